//! `bentpipe-lab emulate` as a user calls it.

use std::process::{Child, Command, Output, Stdio};

use os::netns::{NetNs, root};
use serde_json::Value;

use crate::emulator::wire::{Scratch, sleep_ms};

/// The program, which ends with its test, however that ends.
struct Program(Option<Child>);

fn emulate(words: &str) -> Program {
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_bentpipe-lab"), "emulate"])
        .args(words.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Program(Some(child.expect("setpriv starts (util-linux)")))
}

impl Program {
    fn finish(mut self) -> (Output, String) {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr.clone()).unwrap();
        (output, errors)
    }

    fn signal(&self, name: &str) {
        let pid = self.0.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn hosts(label: &str) -> [NetNs; 2] {
    ["l", "r"].map(|side| NetNs::unique("emutest", &format!("{label}-{side}")).unwrap())
}

#[test]
fn the_program_joins_two_namespaces_and_reports() {
    if !root() {
        return;
    }
    let [left, right] = hosts("prog");
    let file = Scratch::file("json");
    let report = &file.0;
    let program = emulate(&format!(
        "--left ns:{} --right ns:{}:sky7 --rate 2Mbit --up-delay 30ms --down-delay 20ms \
         --seed 9 --report {}",
        left.name(),
        right.name(),
        report.display()
    ));
    let up = |ns: &NetNs, device: &str, address: &str| {
        for _ in 0..600 {
            if ns.ip(&format!("link show {device}")).is_ok() {
                break;
            }
            sleep_ms(50);
        }
        ns.address(device, address).unwrap();
    };
    up(&left, "sat0", "10.9.0.1/24");
    up(&right, "sky7", "10.9.0.2/24");
    let ping = left.command("ping").args(["-c", "3", "-i", "0.2", "10.9.0.2"]).output().unwrap();
    assert!(ping.status.success(), "{ping:?}");
    program.signal("USR1");
    for _ in 0..600 {
        if report.exists() {
            break;
        }
        sleep_ms(50);
    }
    let first: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(first["up"]["config"]["delay"], "30ms");
    assert_eq!(first["down"]["config"]["delay"], "20ms");
    program.signal("INT");
    let (output, errors) = program.finish();
    assert!(output.status.success(), "{errors}");
    let last: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(last["seed"], 9);
    assert!(last["up"]["counters"]["delivered"]["packets"].as_u64() >= Some(3));
    assert!(last["elapsed_s"].as_f64() > first["elapsed_s"].as_f64());
    assert!(last["up"]["series"]["utilisation"].as_array().is_some_and(|a| !a.is_empty()));
    assert!(left.ip("link show sat0").is_err(), "the interface is gone with the program");
}

#[test]
fn the_program_ends_by_itself_and_prints_the_report() {
    if !root() {
        return;
    }
    let [left, right] = hosts("self");
    let program = emulate(&format!(
        "--left ns:{} --right ns:{} --duration 300ms --report -",
        left.name(),
        right.name()
    ));
    let (output, errors) = program.finish();
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["elapsed_s"].as_f64() >= Some(0.3));
}

#[test]
fn what_cannot_work_is_one_sentence_and_a_failure() {
    if !root() {
        return;
    }
    let [left, right] = hosts("fail");
    let (l, r) = (left.name(), right.name());
    for (words, expected) in [
        ("--left nosuch0 --right nosuch1".to_owned(), "nosuch0"),
        (format!("--left ns:nosuch --right ns:{r}"), "/run/netns/nosuch"),
        (format!("--left ns:{l} --right ns:{r} --rate 0bit"), "rate"),
        (format!("--left ns:{l} --right ns:{r} --reorder 1%"), "reorder_delay"),
        (format!("--left ns:{l} --right ns:{r} --link /no/link.toml"), "/no/link.toml"),
        (format!("--left ns:{l}:lo --right ns:{r}"), "lo"),
    ] {
        let (output, errors) = emulate(&words).finish();
        assert!(!output.status.success(), "{words}");
        assert!(errors.contains(expected), "{words}: {errors}");
        assert!(!errors.contains("panicked"), "{errors}");
    }
}
