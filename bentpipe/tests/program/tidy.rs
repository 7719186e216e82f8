//! The house rules that no compiler checks.

mod circles;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// Every file of the project with one of these endings, with its name from the root.
fn files(endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&root(), &mut |path| {
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        if endings.iter().any(|e| name.ends_with(e)) {
            found.push((name, fs::read_to_string(path).unwrap_or_default()));
        }
    });
    assert!(!found.is_empty(), "the project has files that end in {endings:?}");
    found.sort();
    found
}

fn walk(dir: &Path, see: &mut impl FnMut(&Path)) {
    const NOT_OURS: [&str; 4] = [".git", "target", "report", "node_modules"];
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if !NOT_OURS.iter().any(|skip| name == *skip) {
                walk(&path, see);
            }
        } else {
            see(&path);
        }
    }
}

fn fail_with(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// Crates that read files, talk to people, to gateways or to services, or call Linux.
const NOT_CORE: [&str; 6] = ["config", "console", "control", "corpus", "os", "service"];

/// Crates that take facts and time and give work (ARCHITECTURE.md).
fn core_crates() -> Vec<String> {
    let crates = fs::read_dir(root().join("crates")).expect("crates").flatten();
    let names = crates.filter(|e| e.path().is_dir()).map(|e| e.file_name());
    names.filter_map(|n| n.into_string().ok()).filter(|n| !NOT_CORE.contains(&n.as_str())).collect()
}

#[test]
fn core_crates_depend_on_nothing_that_could_do_io() {
    // What may be added here: code that opens no socket or file, reads no clock and
    // draws no randomness of its own.
    const PURE: [&str; 17] = [
        "units",
        "link",
        "relay",
        "channel",
        "sim",
        "squeeze",
        "dial",
        "aws-lc-rs",
        "snow",
        "blake2",
        "base64ct",
        "zeroize",
        "zstd-safe",
        "thiserror",
        "serde",
        "serde_json",
        "toml",
    ];
    const OF_TESTS: [&str; 2] = ["corpus", "proptest"];
    let mut faults = Vec::new();
    for core in core_crates() {
        let name = format!("crates/{core}/Cargo.toml");
        let text = fs::read_to_string(root().join(&name)).expect("a manifest");
        let manifest: toml::Table = text.parse().expect("TOML");
        for (section, more) in [("dependencies", &[][..]), ("dev-dependencies", &OF_TESTS)] {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else {
                continue;
            };
            let may = |d: &str| PURE.contains(&d) || more.contains(&d);
            for dependency in table.keys().filter(|d| !may(d)) {
                faults.push(format!("{name}: core crates may not depend on {dependency}"));
            }
        }
    }
    fail_with(faults);
}

#[test]
fn the_bans_of_core_crates_cover_every_core_crate() {
    let bans = fs::read_to_string(root().join("crates/clippy.toml")).expect("the bans");
    for banned in ["Instant::now", "SystemTime::now", "HashMap", "TcpStream", "UdpSocket"] {
        assert!(bans.contains(banned), "crates/clippy.toml bans {banned}");
    }
    // Clippy takes the nearest file, so one further down would lift the bans.
    for core in core_crates() {
        for name in ["clippy.toml", ".clippy.toml"] {
            let path = root().join("crates").join(&core).join(name);
            assert!(!path.exists(), "{} lifts the bans of crates/clippy.toml", path.display());
        }
    }
}

#[test]
fn unsafe_is_forbidden_everywhere_but_in_os() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the manifest");
    assert!(manifest.contains("unsafe_code = \"forbid\""));
    let mut faults = Vec::new();
    for (name, text) in files(&["Cargo.toml"]) {
        let exempt = name == "Cargo.toml" || name.starts_with("crates/os/");
        let forbids = ["[lints]\nworkspace = true", "[lints.rust]\nunsafe_code = \"forbid\""];
        if !exempt && !name.starts_with("fuzz/") && !forbids.iter().any(|f| text.contains(f)) {
            faults.push(format!("{name}: [lints] workspace = true is missing"));
        }
    }
    fail_with(faults);
}

/// What a ship's router gets has no emulator, scenario, bench or plot in it.
#[test]
fn the_product_depends_on_nothing_of_the_laboratory() {
    let manifest = fs::read_to_string(root().join("bentpipe/Cargo.toml")).expect("a manifest");
    let manifest: toml::Table = manifest.parse().expect("TOML");
    let mut product = manifest["dependencies"].as_table().expect("a table").keys();
    assert_eq!(product.find(|d| ["bentpipe-lab", "sim", "channel"].contains(&d.as_str())), None);
    let mut scripts = Vec::new();
    walk(&root(), &mut |path| scripts.extend(path.ends_with("build.rs").then(|| path.to_owned())));
    assert!(scripts.is_empty(), "build scripts hide what a build reads: {scripts:?}");
}

/// The gateway and its keeper are two ends of one language, which is the keeper's.
const MAY_KNOW: [(&str, &str); 1] = [("up", "keeper")];

#[test]
fn no_command_imports_another() {
    let text = fs::read_to_string(root().join("bentpipe/src/cli.rs")).expect("the command line");
    let commands: Vec<&str> = text
        .match_indices("::run(args")
        .map(|(at, _)| at)
        .collect::<Vec<_>>()
        .into_iter()
        .filter_map(|at| text[..at].rsplit([' ', '(']).next())
        .filter(|name| *name != "manual")
        .collect();
    assert!(commands.len() > 12 && commands.contains(&"status"), "{commands:?}");
    let mut faults = Vec::new();
    for (file, text) in files(&["rs"]) {
        let Some(inside) = file.strip_prefix("bentpipe/src/") else { continue };
        let own = inside.split(['/', '.']).next().unwrap_or_default();
        if !commands.contains(&own) {
            continue;
        }
        for other in commands.iter().filter(|other| **other != own) {
            let is_known = MAY_KNOW.contains(&(own, other));
            if !is_known && text.contains(&format!("crate::{other}::")) {
                faults.push(format!("{file} imports the command {other}"));
            }
        }
    }
    fail_with(faults);
}

#[test]
fn files_are_short_enough_to_keep_in_mind() {
    const MOST: usize = 900;
    let long = files(&[".rs"]).into_iter().map(|(name, text)| (name, text.lines().count()));
    fail_with(
        long.filter(|(_, lines)| *lines > MOST)
            .map(|(name, lines)| format!("{name}: {lines} lines, more than {MOST}"))
            .collect(),
    );
}

/// Who opens a file learns from its first line what is in it, and that line is no title alone.
#[test]
fn every_module_opens_with_what_it_does() {
    const SHORTEST: usize = 16;
    let mut faults = Vec::new();
    for (name, text) in files(&[".rs"]) {
        match text.lines().next().and_then(|line| line.strip_prefix("//! ")) {
            None => faults.push(format!("{name}: the first line has to say `//! what it does`")),
            Some(line) if line.len() < SHORTEST => {
                faults.push(format!("{name}: \"{line}\" does not say what the module does"));
            }
            Some(_) => {}
        }
    }
    fail_with(faults);
}

#[test]
fn nothing_is_left_half_done() {
    let marks = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];
    let mut faults = Vec::new();
    for (name, text) in files(&[".rs"]) {
        for (n, line) in text.lines().enumerate() {
            if let Some(mark) = marks.iter().find(|m| line.contains(**m)) {
                faults.push(format!("{name}:{}: {mark}…)", n + 1));
            }
        }
    }
    fail_with(faults);
}

/// The formatter keeps code within 100 columns, and leaves comments as they are.
#[test]
fn comments_are_within_the_width_of_code() {
    let mut faults = Vec::new();
    for (name, text) in files(&[".rs"]) {
        for (at, line) in text.lines().enumerate() {
            let is_text = !line.contains("http") && !line.contains("//! {\"");
            let is_comment = line.trim_start().starts_with("//") && is_text;
            if is_comment && line.chars().count() > 100 {
                faults.push(format!("{name}:{}: a comment of more than 100 columns", at + 1));
            }
        }
    }
    fail_with(faults);
}

#[test]
fn lines_end_cleanly() {
    let mut faults = Vec::new();
    for (name, text) in files(&[".rs", ".toml", ".md", ".sh", "Makefile"]) {
        if !text.is_empty() && !text.ends_with('\n') {
            faults.push(format!("{name}: the last line has no end"));
        }
        for (n, line) in text.lines().enumerate() {
            // A recipe line of a Makefile may be a tab alone; nothing else ends in space.
            if line.trim_end() != line {
                faults.push(format!("{name}:{}: space at the end of the line", n + 1));
            }
        }
    }
    fail_with(faults);
}

/// The targets of `[text](target)` in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let mut faults = Vec::new();
    for (name, text) in files(&[".md"]) {
        let dir = root().join(&name).parent().expect("a directory").to_owned();
        let mut in_code = false;
        for (n, line) in text.lines().enumerate() {
            in_code ^= line.trim_start().starts_with("```");
            for link in links(line).filter(|_| !in_code) {
                let target = link.split('#').next().unwrap_or("");
                let elsewhere = link.contains("://") || link.starts_with("mailto:");
                if !elsewhere && !target.is_empty() && !dir.join(target).exists() {
                    faults.push(format!("{name}:{}: {link} does not exist", n + 1));
                }
            }
        }
    }
    fail_with(faults);
}

#[test]
fn the_changelog_has_a_place_for_what_is_new() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).expect("a changelog");
    let (_, rest) = text.split_once("\n## Unreleased\n").expect("a section \"Unreleased\"");
    let section = rest.split("\n## ").next().unwrap_or("");
    assert!(section.lines().any(|l| l.starts_with("- ")), "it says what is new");
}

#[test]
fn every_profile_is_embedded_and_every_embedded_one_is_a_file() {
    let embedded: BTreeSet<String> =
        bentpipe::config::Profile::names().into_iter().map(str::to_owned).collect();
    let on_disk: BTreeSet<String> = fs::read_dir(root().join("profiles"))
        .expect("profiles")
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.strip_suffix(".toml").map(str::to_owned))
        .collect();
    assert_eq!(embedded, on_disk);
}

/// The blocks of a document that are fenced as `kind`.
fn fenced(text: &str, kind: &str) -> Vec<String> {
    text.split(&format!("\n```{kind}\n"))
        .skip(1)
        .filter_map(|rest| rest.split("\n```").next())
        .map(|block| format!("{block}\n"))
        .collect()
}

/// A gateway's file from a block of a document, with real keys where it writes «…». Where the
/// block shows a part of a file, what is required is put around it.
fn whole_file(block: &str) -> String {
    let key = |n: u8| link::keys::PrivateKey::from_bytes([n; 32]);
    let mut text = block.to_owned();
    if !text.contains("[[peer]]") && text.contains("[[peer.") {
        text.insert_str(0, "[[peer]]\n");
    }
    // A link without a far gateway has no key.
    if !text.contains("public_key") && !text.contains("\"split\"") {
        let rest =
            "[[peer]]\npublic_key = \"«public key of ship»\"\nprofile = \"leo\"\nend = \"hub\"\n";
        text = text.replace("[[peer]]\n", rest);
    }
    if !text.contains("private_key") {
        text = format!("[node]\nprivate_key = \"«private key»\"\n{}", text.replace("[node]\n", ""));
    }
    text.replace("«private key»", &key(1).to_base64())
        .replace("«pre-shared key»", &key(9).to_base64())
        .replace("«public key of ship»", &key(2).public().to_string())
        .replace("«public key of shore»", &key(3).public().to_string())
        .replace("«public key of yacht»", &key(4).public().to_string())
}

#[test]
fn the_configurations_in_the_documents_are_valid_and_without_warnings() {
    let mut checked = 0;
    for (name, text) in files(&[".md"]) {
        for block in fenced(&text, "toml") {
            if !block.contains("[node]") && !block.contains("[[peer") {
                continue; // of the emulator or the lab
            }
            checked += 1;
            let file = whole_file(&block);
            match bentpipe::config::Config::parse(&file, Path::new(&name)) {
                Ok(config) if config.warnings.is_empty() => {}
                Ok(config) => panic!("{name}: {:#?}\n{file}", config.warnings),
                Err(e) => panic!("{name}: {:#?}\n{file}", e.to_report()),
            }
        }
    }
    assert!(checked >= 9, "{checked} blocks");
}

/// The numbered requirements of the protocol that say MUST.
fn musts() -> BTreeSet<String> {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect("a protocol");
    let spec = read("spec/link.md") + &read("spec/control.md");
    let items = spec.split("\n- **").skip(1).filter_map(|item| item.split_once("**"));
    items
        .filter(|(id, rest)| {
            let own = rest.split("\n\n").next().unwrap_or("");
            (id.starts_with("L-") || id.starts_with("CT-")) && own.contains("MUST")
        })
        .map(|(id, _)| id.to_owned())
        .collect()
}

/// The numbered rules of all protocols, each with its file, id and text: up to the next rule or
/// the next empty line, behind which a table of the rule may stand.
fn rules() -> Vec<(String, String, String)> {
    let mut rules = Vec::new();
    for (name, text) in files(&[".md"]) {
        if !name.starts_with("spec/") {
            continue;
        }
        for item in text.split("\n- **").skip(1) {
            let Some((id, rest)) = item.split_once("**") else { continue };
            let own = rest.split("\n\n").next().unwrap_or_default();
            rules.push((name.clone(), id.to_owned(), own.to_owned()));
        }
    }
    assert!(rules.len() > 150, "only {} rules were found", rules.len());
    rules
}

/// What takes longer to say is two rules, or a rule and a table.
#[test]
fn every_rule_of_the_protocols_is_short_and_has_an_id_of_its_own() {
    const MOST_WORDS: usize = 120;
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for (file, id, text) in rules() {
        let words = text.split_whitespace().count();
        if words > MOST_WORDS {
            faults.push(format!("{file}: {id} has {words} words, more than {MOST_WORDS}"));
        }
        if !seen.insert(id.clone()) {
            faults.push(format!("{file}: there is another {id}"));
        }
    }
    fail_with(faults);
}

/// A newcomer goes by the map: files that it names are there.
#[test]
fn every_file_that_the_architecture_names_is_there() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the map");
    let there: Vec<String> =
        files(&[".rs"]).into_iter().map(|(name, _)| format!("/{name}")).collect();
    let mut faults = Vec::new();
    let mut named = 0;
    for name in map.split(|c: char| c == '`' || c.is_whitespace() || ":;,()".contains(c)) {
        let name = name.trim_end_matches('.');
        if !name.ends_with(".rs") {
            continue;
        }
        named += 1;
        // `up/…` is in bentpipe's sources, `link/src/…` in the crates.
        let end = format!("/{name}");
        if !there.iter().any(|file| file.ends_with(&end)) {
            faults.push(format!("ARCHITECTURE.md: there is no file {name}"));
        }
    }
    assert!(named > 40, "only {named} files are named");
    fail_with(faults);
}

/// L-KY-1 and the like, wherever they stand: in code, in documents and in the protocols themselves.
#[test]
fn every_rule_that_is_cited_is_there() {
    let known: BTreeSet<String> = rules().into_iter().map(|(_, id, _)| id).collect();
    let mut faults = Vec::new();
    for (name, text) in files(&[".rs", ".md"]) {
        let is_whole = |at: usize| {
            !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        for (at, _) in text.match_indices("L-").chain(text.match_indices("CT-")) {
            let end = |c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-');
            let id = text[at..].split(end).next().unwrap_or_default();
            let is_rule = id.split('-').count() == 3 && id.ends_with(|c: char| c.is_ascii_digit());
            if is_whole(at) && is_rule && !known.contains(id) {
                faults.push(format!("{name}: {id} is in none of the protocols"));
            }
        }
    }
    fail_with(faults);
}

/// What of a file is tests: all of it, or what follows `mod tests {`.
fn tests_in<'a>(name: &str, text: &'a str) -> &'a str {
    let all = ["/tests/", "/tests.rs"].iter().any(|part| name.contains(part));
    match (all, text.find("#[cfg(test)]\nmod tests {")) {
        (true, _) => text,
        (false, Some(at)) => &text[at..],
        (false, None) => "",
    }
}

/// The requirements that a text names, such as L-HS-1 and CT-1.
fn cited(text: &str) -> impl Iterator<Item = String> + '_ {
    text.match_indices("L-").chain(text.match_indices("CT-")).map(|(at, _)| {
        let end = |c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-');
        text[at..].split(end).next().unwrap_or("").to_owned()
    })
}

#[test]
fn every_must_of_the_protocol_is_cited_by_a_test() {
    let musts = musts();
    assert!(musts.len() >= 25, "only {musts:?} were found");
    let sources = files(&[".rs"]);
    let known: BTreeSet<String> =
        sources.iter().flat_map(|(name, text)| cited(tests_in(name, text))).collect();
    let missing = musts.difference(&known);
    fail_with(missing.map(|id| format!("no test cites {id}, which says MUST")).collect());
}

/// L-CL-1: the wall clock is for people: log lines, captures, and what is kept for days. The
/// kernel's timestamps are of it: `stamp` makes an age of them, at most so long, whatever the clock
/// does.
#[test]
fn nothing_but_logs_captures_and_ages_read_the_wall_clock() {
    const ALLOWED: [&str; 6] = [
        "bentpipe/src/calendar.rs",
        "crates/console/src/logging.rs",
        "lab/src/emulate/capture.rs",
        "crates/os/src/port/",
        "crates/os/src/stamp.rs",
        "services/web/src/clock.rs",
    ];
    const CLOCKS: [&str; 2] = ["SystemTime::now", "CLOCK_REALTIME"];
    let reads = |text: &str| CLOCKS.iter().any(|clock| text.contains(clock));
    let faults = files(&[".rs"]).into_iter().filter(|(name, text)| {
        let product = name.contains("/src/") && !ALLOWED.iter().any(|f| name.starts_with(f));
        product && reads(text)
    });
    fail_with(faults.map(|(name, _)| format!("{name} reads the wall clock")).collect());
}

#[test]
fn every_requirement_that_is_cited_can_be_looked_up() {
    let page = fs::read_to_string(root().join("docs/requirements.md")).expect("the page");
    let known: BTreeSet<&str> = requirement_ids(&page).collect();
    assert!(known.contains("R-ARQ"), "{known:?}");
    let mut faults = Vec::new();
    for (name, text) in files(&[".rs", ".md", ".toml"]) {
        for id in requirement_ids(&text).filter(|id| !known.contains(id)) {
            faults.push(format!("{name}: {id} is not in docs/requirements.md"));
        }
    }
    fail_with(faults);
}

/// Words such as R-ARQ or R-SPLIT-3.
fn requirement_ids(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.map(|word| word.trim_end_matches('-')).filter(|word| {
        let rest = word.strip_prefix("R-").unwrap_or_default();
        rest.len() > 1
            && rest.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'-')
    })
}

/// The glossary is one text in two places, and has every counter that the code counts.
#[test]
fn every_counter_of_drops_is_explained_by_the_program_and_by_the_guide() {
    use bentpipe::status::glossary;
    let guide = fs::read_to_string(root().join("docs/operators-guide.md")).expect("the guide");
    let missing: Vec<String> =
        glossary::rows().filter(|row| !guide.contains(&format!("\n{row}\n"))).collect();
    assert!(missing.is_empty(), "docs/operators-guide.md lacks:\n{}", missing.join("\n"));
    // In prose there.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (name, meaning) in glossary::FIGURES {
        assert!(words(&guide).contains(&words(meaning)), "docs/operators-guide.md lacks {name}");
    }
    // What the code counts: the reasons that the endpoint gives, those that the status adds.
    let mut counted = BTreeSet::new();
    for (file, openings) in [
        ("crates/link/src/endpoint/receive.rs", &["Err(\"", "ok_or(\"", "=> \""][..]),
        ("crates/link/src/endpoint/elsewhere.rs", &["Err(\"", "ok_or(\""]),
        ("crates/link/src/endpoint/shards.rs", &["Err(\"", "ok_or(\""]),
        ("bentpipe/src/up/shard/report.rs", &["            (\"", "[(\""]),
        ("bentpipe/src/up/driver/status.rs", &["entry(\""]),
        (
            "crates/squeeze/src/stream/block.rs",
            &[
                "            BadBlock::Head => \"",
                "            BadBlock::Bomb => \"",
                "            BadBlock::Frame => \"",
                "            BadBlock::Cut => \"",
                "            BadBlock::History => \"",
            ],
        ),
    ] {
        let text = fs::read_to_string(root().join(file)).expect("a source file");
        for opening in openings {
            let found = text.match_indices(opening).map(|(at, _)| &text[at + opening.len()..]);
            counted.extend(found.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
        }
    }
    counted.retain(|name| !name.is_empty() && !["fixed", "reported", "learned"].contains(&&**name));
    assert!(counted.contains("forged") && counted.contains("decompression bomb"), "{counted:?}");
    let unknown: Vec<&String> =
        counted.iter().filter(|name| glossary::meaning(name).is_none()).collect();
    assert!(unknown.is_empty(), "bentpipe/src/status/glossary.rs lacks {unknown:?}");
}

/// What the unit takes from the program is what the page says that it takes.
#[test]
fn the_units_hardening_is_documented() {
    let unit = fs::read_to_string(root().join("systemd/bentpipe@.service")).expect("the unit");
    let page = fs::read_to_string(root().join("docs/security.md")).expect("the page");
    let (_, told) = page.split_once("The unit (`systemd/").expect("a paragraph");
    let (told, _) = told.split_once("\n\n").expect("its end");
    let words: BTreeSet<&str> =
        told.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let is_hardening = |key: &str| {
        ["Protect", "Private", "Restrict", "Lock", "NoNew", "Capability"]
            .iter()
            .any(|start| key.starts_with(start))
    };
    let mut rights = BTreeSet::new();
    for (key, value) in unit.lines().filter_map(|line| line.split_once('=')) {
        assert!(!is_hardening(key) || words.contains(key), "docs/security.md lacks {key}");
        if key == "CapabilityBoundingSet" {
            rights.extend(value.split_whitespace());
        }
    }
    let named = words.iter().filter(|word| word.starts_with("CAP_")).copied();
    assert_eq!(named.collect::<BTreeSet<_>>(), rights);
}
