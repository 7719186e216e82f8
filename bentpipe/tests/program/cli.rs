//! The program as people and scripts call it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bentpipe(args: &[&str]) -> Output {
    run(args, "")
}

fn run(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bentpipe"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}
fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// A directory of this test's own.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("bentpipe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Dir(path)
    }
    fn file(&self, name: &str, text: &str, mode: u32) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        path.display().to_string()
    }
}
impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What `keygen` prints: the private and the public line.
fn key_lines() -> (String, String) {
    let text = out(&bentpipe(&["keygen"]));
    let mut lines = text.lines().map(str::to_owned);
    (lines.next().expect("a private key"), lines.next().expect("a public key"))
}

fn value(line: &str) -> String {
    line.split('"').nth(1).expect("a quoted value").to_owned()
}

#[test]
fn keygen_prints_two_lines_for_two_files() {
    let (private, public) = key_lines();
    assert!(private.starts_with("private_key = \"") && private.ends_with("=\""));
    assert!(public.starts_with("public_key  = \"") && public.ends_with("=\""));
    assert_eq!((value(&private).len(), value(&public).len()), (44, 44));
    assert_ne!(key_lines().0, private, "every key is new");
}

#[test]
fn keygen_public_computes_the_other_half() {
    let (private, public) = key_lines();
    for input in [value(&private), private.clone(), format!("{private}\n{public}\n")] {
        let output = run(&["keygen", "--public"], &input);
        assert_eq!(value(&out(&output)), value(&public));
    }
    let refused = run(&["keygen", "--public"], "nonsense\n");
    assert_eq!(refused.status.code(), Some(1));
    assert!(err(&refused).starts_with("bentpipe: standard input holds not a key"));
}

#[test]
fn keygen_as_json_is_one_object() {
    let keys: Value = serde_json::from_str(&out(&bentpipe(&["keygen", "--json"]))).expect("JSON");
    assert_eq!(keys.as_object().expect("an object").len(), 2);
    let psk: Value =
        serde_json::from_str(&out(&bentpipe(&["--json", "keygen", "--psk"]))).expect("JSON");
    assert_eq!(psk["preshared_key"].as_str().map(str::len), Some(44));
}

/// Both files of a pair, as the README shows them.
fn pair(dir: &Dir) -> [String; 2] {
    let ((ship_private, ship_public), (hub_private, hub_public)) = (key_lines(), key_lines());
    let ship = format!(
        "[node]\n{ship_private}\nlan = [\"eth1\"]\n\n[[peer]]\nname = \"shore\"\n{hub_public}\n\
         endpoint = \"203.0.113.7:4500\"\nroutes = [\"0.0.0.0/0\", \"::/0\"]\n\
         profile = \"geo-20-2\"\nend = \"terminal\"\nkeepalive = \"25s\"\n"
    );
    let hub = format!(
        "[node]\n{hub_private}\n\n[[peer]]\nname = \"ship\"\n{ship_public}\n\
         routes = [\"10.2.0.0/24\"]\nprofile = \"geo-20-2\"\nend = \"hub\"\n"
    );
    [dir.file("ship.toml", &ship, 0o600), dir.file("hub.toml", &hub, 0o600)]
}

#[test]
fn check_accepts_both_files_of_a_pair_and_says_what_they_mean() {
    let dir = Dir::new("pair");
    for file in pair(&dir) {
        let output = bentpipe(&["check", &file]);
        assert!(output.status.success(), "{}", err(&output));
        assert!(out(&output).starts_with(&format!("{file} is valid\n")));
        assert_eq!(err(&output), "");
        let json: Value =
            serde_json::from_str(&out(&bentpipe(&["check", "--json", &file]))).expect("JSON");
        assert_eq!(json["ok"], true);
        assert_eq!(json["config"]["peers"][0]["profile"], "geo-20-2");
    }
}

#[test]
fn check_refuses_a_wrong_file_with_place_and_suggestion() {
    let dir = Dir::new("wrong");
    let (private, _) = key_lines();
    let file = dir.file("w.toml", &format!("[node]\n{private}\nlsiten = \"0.0.0.0:1\"\n"), 0o600);
    let output = bentpipe(&["check", &file]);
    assert_eq!(output.status.code(), Some(1));
    let text = err(&output);
    assert!(text.contains(&format!("{file}:3:1")), "{text}");
    assert!(text.contains("did you mean \"listen\"?"), "{text}");
    assert_eq!(text.matches("lsiten\"").count(), 1, "one error, said once: {text}");
    assert!(!text.contains(&value(&private)), "{text}");

    let output = bentpipe(&["check", "--json", &file]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_str(&out(&output)).expect("JSON");
    assert_eq!(json["problems"][0]["line"], 3);
    assert_eq!(json["problems"][0]["help"], "did you mean \"listen\"?");
}

#[test]
fn errors_are_lines_of_the_log_where_json_is_asked_for() {
    let dir = Dir::new("json-errors");
    let socket = dir.0.join("nobody.sock").display().to_string();
    let lines = |output: &std::process::Output| -> Vec<Value> {
        err(output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let output = bentpipe(&["--json", "status", "--socket", &socket]);
    assert_eq!(output.status.code(), Some(1));
    let told = lines(&output);
    assert_eq!(told[0]["level"], "error");
    assert!(told[0]["message"].as_str().unwrap().contains(&socket), "{told:?}");

    let (private, _) = key_lines();
    let file = dir.file("w.toml", &format!("[node]\n{private}\nlsiten = \"0.0.0.0:1\"\n"), 0o600);
    let output = bentpipe(&["--json", "up", &file]);
    assert_eq!(output.status.code(), Some(1));
    let told = lines(&output);
    assert_eq!(told.len(), 1, "one error, said once: {told:?}");
    let at = &told[0];
    assert_eq!(at["line"], "3");
    assert_eq!((&at["file"], &at["column"]), (&file.into(), &"1".into()), "{told:?}");
    assert_eq!(at["help"], "did you mean \"listen\"?");
}

#[test]
fn key_files_that_others_can_read_are_refused_with_the_command_that_mends_it() {
    let dir = Dir::new("keyfile");
    let (private, _) = key_lines();
    let file = dir.file("n.toml", "[node]\nprivate_key_file = \"node.key\"\n", 0o644);

    let key = dir.file("node.key", &format!("{}\n", value(&private)), 0o640);
    let output = bentpipe(&["check", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains(&format!("chmod 600 {key}")), "{}", err(&output));

    dir.file("node.key", &format!("{}\n", value(&private)), 0o600);
    let output = bentpipe(&["check", &file]);
    assert!(output.status.success(), "{}", err(&output));

    dir.file("node.key", "nonsense", 0o600);
    assert!(err(&bentpipe(&["check", &file])).contains("node.key holds not a key"));
    std::fs::remove_file(&key).expect("the key file goes");
    assert!(err(&bentpipe(&["check", &file])).contains("cannot read the key file"));
}

#[test]
fn a_file_with_a_key_inside_that_others_can_read_is_warned_about() {
    let dir = Dir::new("open");
    let (private, _) = key_lines();
    let file = dir.file("n.toml", &format!("[node]\n{private}\n"), 0o644);
    let output = bentpipe(&["check", &file]);
    assert!(output.status.success());
    assert!(err(&output).contains(&format!("chmod 600 {file}")), "{}", err(&output));
}

#[test]
fn files_that_cannot_be_read_get_one_sentence() {
    for (file, why) in [
        ("/nonexistent/n.toml", "cannot read /nonexistent/n.toml: no such file or directory\n"),
        ("/", "/ is a directory, not a configuration file\n"),
    ] {
        let output = bentpipe(&["check", file]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(err(&output), format!("bentpipe: {why}"));
    }
}

#[test]
fn status_without_a_gateway_says_so_and_fails() {
    let output = bentpipe(&["status", "--socket", "/nonexistent/s"]);
    assert_eq!(output.status.code(), Some(1));
    let text = err(&output);
    assert!(text.contains("no gateway runs here: nothing listens on /nonexistent/s"), "{text}");
    assert!(text.contains("bentpipe up FILE"), "{text}");
}

#[test]
fn unknown_commands_and_options_are_refused_with_code_2() {
    for args in
        [&["fly"][..], &["check"], &["check", "--fast", "x"], &["keygen", "--public", "--psk"]]
    {
        assert_eq!(bentpipe(args).status.code(), Some(2), "{args:?}");
    }
    assert!(bentpipe(&["--version"]).status.success());
}

#[test]
fn manual_pages_and_completions_are_written_for_every_command() {
    let dir = Dir::new("manual");
    let at = dir.0.join("out");
    let output = bentpipe(&["manual", at.to_str().unwrap()]);
    assert!(output.status.success(), "{}", err(&output));
    for (file, words) in [
        ("man1/bentpipe.1", "satellite"),
        ("man1/bentpipe-up.1", "SIGTERM"),
        ("man1/bentpipe-reload.1", "configuration"),
        ("completions/bentpipe.bash", "doctor"),
        ("completions/_bentpipe", "doctor"),
        ("completions/bentpipe.fish", "doctor"),
    ] {
        let text = std::fs::read_to_string(at.join(file)).unwrap_or_default();
        assert!(text.contains(words), "{file}: {text}");
    }
}
