//! What the project depends on: its licences, its sources, and what is there twice.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Licences that go with MIT OR Apache-2.0 in a program that is handed out.
const GOOD: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    // Asks for the sources of its own files, which are in the registry, and for nothing of ours.
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// What may be there in several versions, and why; anything else is an oversight.
const TWICE: [(&str, &str); 2] = [
    ("syn", "of macros, at build time: some have gone on to the next one"),
    ("unicode-width", "of miette's and textwrap's"),
];
/// Never, in any version: C libraries that duplicate ours, and what nobody keeps up.
const BANNED: [&str; 8] =
    ["openssl-sys", "openssl", "ring", "native-tls", "atty", "failure", "net2", "time-macros-impl"];
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

struct Package {
    name: String,
    version: String,
    licence: String,
    source: Option<String>,
}

fn packages() -> Vec<Package> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["metadata", "--format-version", "1", "--locked", "--offline"]);
    // What other systems need was not fetched.
    let system = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    command.args(["--filter-platform", &system]);
    let output = command.output().expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`cargo metadata` fails: {said}");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |p: &serde_json::Value, key: &str| p[key].as_str().map(str::to_owned);
    let packages = all["packages"].as_array().expect("packages").iter();
    let built = built(&system);
    packages
        .filter(|p| {
            let [name, version] = ["name", "version"].map(|key| text(p, key).unwrap_or_default());
            built.contains(&format!("{name} v{version}"))
        })
        .map(|p| Package {
            name: text(p, "name").expect("a name"),
            version: text(p, "version").expect("a version"),
            licence: text(p, "license").unwrap_or_default(),
            source: text(p, "source"),
        })
        .collect()
}

/// What is built of all that: the lock file also has what a feature that is off would need.
fn built(system: &str) -> BTreeSet<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["tree", "--workspace", "--locked", "--offline"]);
    command.args(["--edges", "normal,build,dev", "--prefix", "none", "--target", system]);
    let output = command.output().expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`cargo tree` fails: {said}");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = |line: &str| {
        let mut words = line.split(' ');
        Some(format!("{} {}", words.next()?, words.next()?))
    };
    let built: BTreeSet<String> = lines.lines().filter_map(words).collect();
    assert!(built.len() > 100, "{built:?}");
    built
}

/// Whether an SPDX expression can be met by good licences only. `AND` binds stronger than `OR`;
/// old packages write `/` for `OR`.
fn is_good(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let good = any(&words, &mut at);
    good && at == words.len()
}

fn any(words: &[&str], at: &mut usize) -> bool {
    let mut good = all(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        good |= all(words, at);
    }
    good
}

fn all(words: &[&str], at: &mut usize) -> bool {
    let mut good = one(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        good &= one(words, at);
    }
    good
}

fn one(words: &[&str], at: &mut usize) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let good = any(words, at);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return good && closed;
    }
    if words.get(*at) != Some(&"WITH") {
        return GOOD.contains(word);
    }
    let whole = words.get(*at + 1).map(|with| format!("{word} WITH {with}"));
    *at += 2;
    whole.is_some_and(|whole| GOOD.contains(&whole.as_str()))
}

#[test]
fn every_dependency_may_be_handed_out_and_comes_from_the_registry() {
    let mut faults = Vec::new();
    for p in packages() {
        let Package { name, version, licence, source } = p;
        if !is_good(&licence) {
            faults.push(format!("{name} {version}: its licence is \"{licence}\""));
        }
        if source.is_some_and(|source| source != REGISTRY) {
            faults.push(format!("{name} {version} comes from elsewhere than crates.io"));
        }
        if BANNED.contains(&name.as_str()) {
            faults.push(format!("{name} {version} is banned"));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn nothing_is_there_twice_but_what_is_known_to_be() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for p in packages() {
        versions.entry(p.name).or_default().insert(p.version);
    }
    versions.retain(|_, of| of.len() > 1);
    let known: BTreeSet<&str> = TWICE.iter().map(|(name, _)| *name).collect();
    let found: BTreeSet<&str> = versions.keys().map(String::as_str).collect();
    assert_eq!(found, known, "{versions:?}");
}

#[test]
fn expressions_of_licences_are_understood() {
    for (expression, good) in [
        ("MIT", true),
        ("MIT/Apache-2.0", true),
        ("GPL-3.0-only", false),
        ("MIT AND GPL-3.0-only", false),
        ("MIT OR GPL-3.0-only", true),
        ("(MIT OR GPL-3.0-only) AND ISC", true),
        ("MIT OR Apache-2.0 AND GPL-2.0-only", true),
        ("(MIT OR Apache-2.0) AND GPL-2.0-only", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-2.0-only WITH LLVM-exception", false),
        ("", false),
        ("(MIT", false),
    ] {
        assert_eq!(is_good(expression), good, "{expression}");
    }
}
