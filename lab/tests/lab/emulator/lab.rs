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

/// The page's own scenario, with a smaller file.
#[test]
fn the_pages_scenario_runs_from_a_file() {
    if !root() {
        return;
    }
    let page = include_str!("../../../../docs/lab.md");
    let template = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let template = template.expect("a template");
    let small = template.replace("bytes = \"10MB\"", "bytes = \"300kB\"");
    assert_ne!(small, template);
    let file = std::env::temp_dir().join(format!("bplabown-{}.toml", std::process::id()));
    std::fs::write(&file, small).expect("a file");
    let output = lab("own", &[file.to_str().expect("UTF-8"), "--seeds", "1"]);
    let _ = std::fs::remove_file(&file);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}\n{errors}");
    for what in ["File transfer over a T1 by satellite", "Satellite, gateways"] {
        assert!(said.contains(what), "{what}: {said}");
    }
}

#[test]
fn a_scenario_of_ones_own_must_not_take_the_name_of_a_published_one() {
    let file = std::env::temp_dir().join(format!("bplabtaken-{}.toml", std::process::id()));
    let text = include_str!("../../../scenarios/umd-ftp.toml");
    for (name, why) in [("umd-ftp", "published experiment"), ("../x", "letters, digits")] {
        let line = format!("name = {name:?}");
        let text: Vec<&str> =
            text.lines().map(|l| if l.starts_with("name ") { &*line } else { l }).collect();
        std::fs::write(&file, text.join("\n")).expect("a file");
        let output = lab("taken", &[file.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.replace('\n', " ").contains(why), "{errors}");
    }
    let _ = std::fs::remove_file(&file);
}
