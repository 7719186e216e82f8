//! What `bentpipe-web` keeps: validated over the link, on disk through crashes, and at the
//! operator's disposal.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use bentpipe::admin::ServiceState;
use serde_json::Value;

use crate::documents::{self, WEB, put};
use crate::gateway::{Gateway, PROGRAM};
use crate::harness::{Plan, Scratch, World, must, root, wait_for};
use crate::tcp::pattern;
use crate::web::{AT, Server, example, field, service, sized, wait_for_count, world_with};

/// Gives the service at a a directory, which the gateway makes, as the page says.
pub fn with_directory(plan: &mut Plan, programs: &Scratch) {
    let directory = programs.sub("state").join("web").display().to_string();
    let text = example("there are files, too, one for each answer:", programs);
    let text = put(&text, "\"bentpipe-web\"", &format!("\"{USER}\""));
    plan.a.node = format!("\n{}", put(&text, "/var/lib/bentpipe/web", &directory));
}

/// Whom the service runs as.
const USER: u32 = 64_322;

fn files(programs: &Scratch) -> Vec<PathBuf> {
    let entries = fs::read_dir(programs.sub("state").join("web/cache")).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| !path.ends_with("lock")).collect()
}

fn get(world: &World, more: &str, path: &str) -> (String, Vec<u8>) {
    let file = world.dir("files").join("got").display().to_string();
    // curl makes none where no body comes.
    let _ = fs::remove_file(&file);
    let command = format!("curl -sS --max-time 60 {more} -o {file} -D - http://{AT}{path}");
    let head = must(&world.client, &command).to_lowercase();
    (head, fs::read(&file).unwrap_or_default())
}

fn with(mut answer: (String, Vec<u8>), fields: &str) -> (String, Vec<u8>) {
    answer.0.insert_str(answer.0.len() - 2, fields);
    answer
}

/// What the tests' server says.
fn site(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let target = head.split(' ').nth(1).unwrap_or("");
    if field(head, "if-none-match") == Some("\"one\"") {
        return ("HTTP/1.1 304 Not Modified\r\nX-Times: more\r\n\r\n".into(), Vec::new());
    }
    let fresh = "Cache-Control: max-age=600\r\n";
    match target {
        "/checked" => {
            let fields = "Cache-Control: no-cache\r\nETag: \"one\"\r\nX-Times: one\r\n";
            with(sized(pattern(1, 100_000)), fields)
        }
        "/small" => with(sized(pattern(2, 20_000)), fresh),
        "/large" => with(sized(pattern(3, 3_000_000)), fresh),
        _ => with(sized(pattern(target.len() as u64, 100_000)), fresh),
    }
}

/// Kills the service at a as a crash would, and waits for the next.
fn kill_service(gateway: &Gateway) {
    let it = service(gateway);
    let pid = it.pid.expect("a process").to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    wait_for("another start", || match service(gateway) {
        now if now.starts > it.starts && now.state == ServiceState::Running => Ok(()),
        now => Err(format!("{now:?}\n{}", gateway.log())),
    });
}

fn web(world: &World, words: &[&str]) -> (Value, String) {
    web_at(&world.a, words)
}

pub fn web_at(gateway: &Gateway, words: &[&str]) -> (Value, String) {
    let socket = gateway.dir().join("admin.sock");
    let mut command = Command::new(PROGRAM);
    let output = command.args(["web", "--json", "--socket"]).arg(socket).args(words);
    let output = output.output().expect("bentpipe web");
    let (out, err) = (&output.stdout, &output.stderr);
    (serde_json::from_slice(out).unwrap_or_default(), String::from_utf8_lossy(err).into_owned())
}

#[test]
fn what_is_stale_is_validated_and_its_body_does_not_cross_the_link_again() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("web-validated", |_, _| {});
    let server = Server::start(&world.server, site);
    let body = pattern(1, 100_000);
    assert!(get(&world, "", "/checked").1 == body);
    let before = world.a.status().links[0].receive.lan_bytes;
    let (head, again) = get(&world, "", "/checked");
    assert!(head.contains(" 200 ") && head.contains("x-times: more") && again == body, "{head}");
    // Who has it himself is told that it holds, and a part of it is given.
    let (head, none) = get(&world, "-H 'If-None-Match: \"one\"'", "/checked");
    assert!(head.contains(" 304 ") && none.is_empty(), "{head}");
    let (head, part) = get(&world, "-r 5-9", "/checked");
    assert!(head.contains(" 206 ") && part == body[5..10], "{head}");
    let heads = server.heads();
    assert_eq!(heads.len(), 4);
    assert!(heads[1..].iter().all(|h| field(h, "if-none-match") == Some("\"one\"")), "{heads:?}");
    let crossed = world.a.status().links[0].receive.lan_bytes - before;
    assert!(crossed < 10_000, "{crossed} bytes");
    wait_for_count(&world.a, "validated", 3);
    // Nobody asks far away for who wants what is kept or nothing.
    let wants = "-H 'Cache-Control: only-if-cached'";
    assert!(get(&world, wants, "/checked").0.contains(" 504 "));
    assert_eq!(server.heads().len(), 4);
}

/// A server of ranges; what is sent to it by POST changes nothing.
fn ranges(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let body = pattern(4, 1_000_000);
    let fields = "Cache-Control: max-age=600\r\nETag: \"four\"\r\n";
    let range = field(head, "range").filter(|_| head.starts_with("GET "));
    let Some(range) = range.and_then(|range| range.strip_prefix("bytes=")) else {
        return with(sized(body), fields);
    };
    let (first, last) = range.split_once('-').expect("a range");
    let (first, last) = (first.parse().expect("a number"), last.parse().unwrap_or(999_999));
    let (head, part) = with(sized(body[first..=last].to_vec()), fields);
    let told = format!("Content-Range: bytes {first}-{last}/1000000\r\n");
    with((head.replace(" 200 OK", " 206 Partial Content"), part), &told)
}

#[test]
fn a_part_that_was_asked_for_does_not_cross_the_link_again() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("web-parts", with_directory);
    let server = Server::start(&world.server, ranges);
    let body = pattern(4, 1_000_000);
    let part = |range: &str, bytes: std::ops::Range<usize>| {
        let (head, got) = get(&world, &format!("-r {range}"), "/film");
        let told = format!("content-range: bytes {}-{}/1000000", bytes.start, bytes.end - 1);
        assert!(head.contains(" 206 ") && head.contains(&told) && got == body[bytes], "{head}");
    };
    part("1000-200999", 1_000..201_000);
    part("201000-400999", 201_000..401_000);
    wait_for_count(&world.a, "stored", 2);
    kill_service(&world.a);
    wait_for_count(&world.a, "on_disk", 2);
    let before = world.a.status().links[0].receive.lan_bytes;
    part("1000-200999", 1_000..201_000);
    part("201000-400999", 201_000..401_000);
    let crossed = world.a.status().links[0].receive.lan_bytes - before;
    assert!(crossed < 10_000, "{crossed} bytes");
    assert_eq!(server.heads().len(), 2);
    // What is changed is forgotten with its parts, at both ends.
    get(&world, "-d x", "/film");
    part("1000-200999", 1_000..201_000);
    assert_eq!(server.heads().len(), 4);
    // A part that is all of it is as good as the whole.
    part("0-", 0..1_000_000);
    assert_eq!(server.heads().len(), 5);
    wait_for_count(&world.a, "stored", 2);
    let (head, got) = get(&world, "", "/film");
    assert!(head.contains(" 200 ") && got == body, "{head}");
    part("7-9", 7..10);
    assert_eq!(server.heads().len(), 5);
}

#[test]
fn what_is_on_disk_survives_a_crash_and_what_is_damaged_there_is_asked_for_again() {
    if !root() {
        return;
    }
    let (world, programs) = world_with("web-crash", with_directory);
    let server = Server::start(&world.server, site);
    let bodies = [("/small", pattern(2, 20_000)), ("/large", pattern(3, 3_000_000))];
    let all_are_right = || bodies.iter().all(|(path, body)| get(&world, "", path).1 == *body);
    assert!(all_are_right());
    wait_for_count(&world.a, "stored", 2);
    wait_for_count(&world.a, "on_disk", 2);
    kill_service(&world.a);
    wait_for_count(&world.a, "on_disk", 2);
    // What the terminal had lost the hub would give.
    web_at(&world.b, &["purge"]);
    assert!(all_are_right());
    let (head, part) = get(&world, "-r 2999990-", "/large");
    assert!(head.contains(" 206 ") && part == bodies[1].1[2_999_990..], "{head}");
    assert_eq!(server.heads().len(), 2, "all of it from the disk");
    // A byte of each is another now.
    let damaged = wait_for("two files", || {
        // One that is being written is gone in a moment.
        let there = files(&programs);
        if there.len() == 2 { Ok(there) } else { Err(format!("{there:?}")) }
    });
    for path in damaged {
        let mut bytes = fs::read(&path).unwrap();
        bytes[10_000] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    kill_service(&world.a);
    wait_for_count(&world.a, "on_disk", 2);
    web_at(&world.b, &["purge"]);
    assert!(all_are_right());
    assert_eq!(server.heads().len(), 4, "both were asked for again");
    wait_for_count(&world.a, "damaged", 2);
    wait_for_count(&world.a, "on_disk", 2);
    assert!(all_are_right());
    assert_eq!(server.heads().len(), 4);
}

#[test]
fn a_full_disk_costs_nobody_an_answer_and_what_is_new_takes_the_place_of_what_is_old() {
    if !root() {
        return;
    }
    // A small disk, in the gateway's own view of the files.
    let (world, _programs) = world_with("web-full", |plan, programs| {
        with_directory(plan, programs);
        let (script, state) = (programs.sub("bin").join("mount.sh"), programs.sub("state"));
        let mount = format!("mount -t tmpfs -o size=512k,mode=755 none {}", state.display());
        fs::write(&script, format!("{mount} && shift && exec \"$@\"\n")).expect("a script");
        let words = format!("-- unshare --mount --propagation private sh {}", script.display());
        plan.a.prefix = words;
    });
    let server = Server::start(&world.server, site);
    for n in 1..=12 {
        let path = format!("/{}", "x".repeat(n));
        assert!(get(&world, "", &path).1 == pattern(path.len() as u64, 100_000));
    }
    assert_eq!(server.heads().len(), 12);
    wait_for("some that found no room, and others that did", || {
        let counters = service(&world.a).counters;
        let is_some = |name: &str| counters.get(name).is_some_and(|n| *n > 0);
        let done = is_some("not_written") && is_some("on_disk") && counters["stored"] > 4;
        done.then_some(()).ok_or(format!("{counters:?}\n{}", world.a.log()))
    });
}

#[test]
fn the_operator_sees_what_is_kept_and_has_it_forgotten() {
    if !root() {
        return;
    }
    let (world, programs) = world_with("web-operator", with_directory);
    let server = Server::start(&world.server, site);
    for path in ["/small", "/small", "/large"] {
        get(&world, "", path);
    }
    wait_for_count(&world.a, "stored", 2);
    let (told, _) = web(&world, &["stats"]);
    assert_eq!((&told["hits"], &told["on_disk"]), (&1.into(), &2.into()), "{told}");
    let host = &told["hosts"][0];
    assert_eq!((&host["host"], &host["requests"]), (&"10.2.0.2".into(), &3.into()), "{told}");
    assert_eq!((&host["hits"], &host["bytes"]), (&1.into(), &20_000.into()), "{told}");
    // The link has a round trip of 100 ms.
    assert!(host["saved_ms"].as_u64().is_some_and(|ms| ms >= 100), "{told}");
    let small = format!("http://{AT}/small");
    let (told, _) = web(&world, &["show", &small]);
    let it = &told["answers"][0];
    assert_eq!((&it["status"], &it["length"]), (&200.into(), &20_000.into()), "{told}");
    assert_eq!(it["where"], "in memory and on disk", "{told}");
    assert_eq!(web(&world, &["purge", &small]).0["purged"], 1);
    let (told, why) = web(&world, &["show", &small]);
    assert!(told.is_null() && why.contains("nothing is kept of"), "{told} {why}");
    // The hub has a copy of its own.
    get(&world, "", "/small");
    assert_eq!(server.heads().len(), 2);
    wait_for_count(&world.b, "hub_hits", 1);
    assert_eq!(web(&world, &["purge", &small]).0["purged"], 1);
    assert_eq!(web_at(&world.b, &["purge", &small]).0["purged"], 1);
    get(&world, "", "/small");
    assert_eq!(server.heads().len(), 3);
    wait_for_count(&world.a, "stored", 4);
    assert_eq!(web(&world, &["purge"]).0["purged"], 2);
    wait_for("no file", || match files(&programs) {
        files if files.is_empty() => Ok(()),
        files => Err(format!("{files:?}")),
    });
    // The page's commands, as they stand there.
    get(&world, "", "/small");
    let commands = documents::commands(WEB, "## What is kept");
    for words in &commands {
        let url = |word: &&str| {
            if *word == "http://example.org/" { small.clone() } else { word.to_string() }
        };
        let words: Vec<String> = words.iter().map(url).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let told = world.a.must(&words);
        assert!(!told.is_empty(), "{words:?} says nothing");
        if words[1] != "stats" {
            assert_eq!(words[2], small);
        }
    }
    assert_eq!(commands.len(), 3);
    assert!(web(&world, &["show", &small]).0.is_null(), "it was forgotten");
    for (words, said) in [
        (&["show", "ftp://a/"][..], "is no URL"),
        (&["--service", "mail", "stats"], r#"has no service \"mail\""#),
    ] {
        assert!(web(&world, words).1.contains(said), "{words:?}: {}", web(&world, words).1);
    }
}
