//! `bentpipe plan`, as its users call it.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn bentpipe(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bentpipe")).args(args).output().expect("the program")
}

fn plan(args: &[&str]) -> Value {
    let output = bentpipe(&[&["--json", "plan"], args].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A file that vanishes with its test.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let name = format!("bentpipe-plan-{name}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("a file");
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_profile_is_planned_in_words_and_for_programs() {
    let told = bentpipe(&["plan", "mini-m", "--per-minute", "2.80", "--increment", "6s"]);
    let text = String::from_utf8(told.stdout).expect("UTF-8");
    for part in ["initial RTO", "5.0s", "500B", "[RFC 1122", "price of 1 MB", "price of an hour"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let plan = plan(&["mini-m"]);
    assert_eq!(plan["plan"]["tcp_packet"]["forward"], 500);
    assert_eq!(plan["plan"]["initial_rto"]["return"], 5_000_000_000u64);
    assert!(plan["plan"]["hour_price"].is_null());
}

#[test]
fn a_terminal_sends_at_its_profiles_return_rate() {
    let plan = plan(&["geo-20-2", "--end", "terminal", "--queue", "50ms"]);
    assert_eq!(plan["link"]["sent"], 2_000_000);
    assert_eq!(plan["link"]["queue"], 12_500);
}

#[test]
fn files_are_planned_as_profiles_and_as_configurations() {
    let sky = File::new(
        "sky",
        "forward = \"135Mbit\"\nreturn = \"135Mbit\"\ndelay = \"270ms\"\nmtu = 1500\n",
    );
    let found = plan(&[sky.path()]);
    let buffer = found["plan"]["router_buffer"]["forward"].as_u64().expect("a number");
    // 3,187 packets of 1,430 bytes (ITU-R S.1711-1, section 4.3.1).
    assert!(buffer.abs_diff(3_187 * 1_430) < 4_000, "{buffer}");

    let key = "YD1HnZVjGzWeJiM3DMcUGA3nWrJsJTEUlRMjOSmpYAU=";
    let peer = |name: &str, route: u8, last: char| {
        format!(
            "[[peer]]\nname = \"{name}\"\npublic_key = \"YD1HnZVjGzWeJiM3DMcUGA3nWrJsJTEUlRMjOSmpY{last}U=\"\n\
             routes = [\"10.{route}.0.0/16\"]\nprofile = \"t1-geo\"\n"
        )
    };
    let node = format!("[node]\nprivate_key = \"{key}\"\n");
    let line =
        "[peer.line]\ntariff = { currency = \"USD\", per_minute = \"2\", increment = \"6s\" }\n";
    let both = format!("{node}{}{}{line}", peer("a", 1, 'B'), peer("b", 2, 'C'));
    let two = File::new("two", &both);
    let refused = bentpipe(&["plan", two.path()]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("--peer"), "{text}");
    let of = plan(&[two.path(), "--peer", "b"]);
    assert_eq!(of["link"]["sent"], 1_544_000);
    assert_eq!(of["plan"]["hour_price"]["sent"], 120.0);
    assert!(plan(&[two.path(), "--peer", "a"])["plan"]["hour_price"].is_null());
}

#[test]
fn what_is_no_link_is_refused_with_its_place_and_the_mend() {
    let refused = |args: &[&str]| {
        let output = bentpipe(&[&["plan"], args].concat());
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["mini-n"]).contains("mini-m"), "names the profiles");
    assert!(refused(&["mini-m", "--per-minute", "2,80"]).contains("such as \"2.50\""));
    let wrong = File::new("wrong", "forward = \"8Mbit\"\nreturn = \"1Mbit\"\ndelay = 300\n");
    let text = refused(&[wrong.path()]);
    assert!(text.contains(":3:") && text.contains("300ms"), "{text}");
}
