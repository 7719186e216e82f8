//! `bentpipe-lab run --check`, as continuous integration may use it.

use std::process::{Command, Output};

use os::netns::root;

/// Its results go into a directory of the test `name`.
fn lab(name: &str, words: &[&str]) -> Output {
    let dir = std::env::temp_dir().join(format!("bplabcheck-{}-{name}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_bentpipe-lab"));
    let output = command.args(["-q", "run"]).args(words).arg("--dir").arg(&dir).output();
    let _ = std::fs::remove_dir_all(&dir);
    output.expect("the program starts")
}

/// 200 kB over 100 kbit/s with bit errors, through a gateway pair: about 25 s.
#[test]
fn a_short_scenario_keeps_its_bounds() {
    if !root() {
        return;
    }
    let output = lab("short", &["wise-web", "--way", "gateways", "--seeds", "1", "--check"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}\n{errors}");
    assert!(said.contains("All 1 bounds hold"), "{said}");
}

#[test]
fn a_check_of_ways_without_bounds_is_refused_before_anything_runs() {
    let output = lab("refused", &["wise-web", "--way", "tcp", "--check"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("nothing to check"), "{errors}");
}
