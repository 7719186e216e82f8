//! `bentpipe doctor`, in a network whose faults are known.

use std::path::PathBuf;
use std::process::Command;

use os::netns::{NetNs, root, veth};
use serde_json::Value;

/// A file that is gone with the test.
struct Config(PathBuf);

impl Config {
    fn new(name: &str, text: &str) -> Config {
        use std::os::unix::fs::OpenOptionsExt;
        let file = format!("bentpipe-doctor-{name}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(file);
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&path);
        std::io::Write::write_all(file.as_mut().expect("a file"), text.as_bytes()).expect("room");
        Config(path)
    }
}
impl Drop for Config {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn key(which: &str) -> String {
    let keys = Command::new(env!("CARGO_BIN_EXE_bentpipe")).arg("keygen").output().expect("keys");
    let text = String::from_utf8(keys.stdout).expect("UTF-8");
    let line = text.lines().find(|l| l.starts_with(which)).expect("the key").to_owned();
    line.split('"').nth(1).expect("quotes").to_owned()
}

/// What the doctor says about `config` in `place`, and whether he is content.
fn ask(place: &NetNs, config: &Config) -> (Vec<Value>, bool) {
    let mut doctor = place.command(env!("CARGO_BIN_EXE_bentpipe"));
    let output = doctor.args(["--json", "doctor"]).arg(&config.0).output().expect("a doctor");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["ok"], output.status.success());
    (answer["checks"].as_array().expect("checks").clone(), output.status.success())
}

/// State and finding of the checks called `name`.
fn found(checks: &[Value], name: &str) -> Vec<(String, String)> {
    let text = |c: &Value, key: &str| c[key].as_str().unwrap_or_default().to_owned();
    let named = checks.iter().filter(|c| c["check"] == name);
    named.map(|c| (text(c, "state"), text(c, "finding"))).collect()
}

fn config(name: &str, lan: &str, peer: &str) -> Config {
    let (private, public) = (key("private_key"), key("public_key"));
    let node = format!("[node]\nprivate_key = \"{private}\"\nlan = [\"{lan}\"]\n");
    let link = "link = { send = \"2Mbit\", receive = \"20Mbit\", delay = \"300ms\" }";
    let peer = format!("[[peer]]\nname = \"far\"\npublic_key = \"{public}\"\n{link}\n{peer}\n");
    Config::new(name, &(node + &peer))
}

#[test]
fn a_hub_in_good_order_gets_a_clean_bill_and_its_faults_are_named() {
    if !root() {
        return;
    }
    let hub = NetNs::unique("bpdoctor", "e2ehub").expect("root");
    let router = NetNs::unique("bpdoctor", "e2erouter").expect("root");
    veth(&hub, "wan0", &router, "eth0").expect("a cable");
    hub.address("wan0", "10.5.0.1/24").expect("an address");
    router.address("eth0", "10.5.0.2/24").expect("an address");
    hub.route("default via 10.5.0.2").expect("a route");
    hub.make_router().expect("forwarding");
    let peer = "endpoint = \"203.0.113.7:4500\"\nroutes = [\"10.99.0.0/16\"]\nsource = \"keep\"";
    let file = config("hub", "wan0", peer);

    router.route("10.99.0.0/16 via 10.5.0.1").expect("a route");
    let (checks, content) = ask(&hub, &file);
    assert!(content, "{checks:#?}");
    for name in ["configuration", "listen", "lan", "endpoint", "return route", "interception"] {
        assert_eq!(found(&checks, name)[0].0, "ok", "{name}: {checks:#?}");
    }
    assert_eq!(found(&checks, "endpoint")[0].1, "far: 203.0.113.7 via 10.5.0.2 dev wan0");

    router.ip("route del 10.99.0.0/16").expect("it was there");
    let occupied = hub.run(|| std::net::UdpSocket::bind("0.0.0.0:4500")).expect("a socket");
    let (checks, content) = ask(&hub, &file);
    assert!(!content);
    let (state, finding) = &found(&checks, "return route")[0];
    assert_eq!(state, "warn");
    assert!(finding.contains("10.5.0.2 does not send answers to 10.99.0.0/16 here"), "{finding}");
    assert_eq!(found(&checks, "listen")[0].1, "another program has UDP 0.0.0.0:4500");
    drop(occupied);

    assert_eq!(found(&checks, "routes"), []);
    let own = config("lan", "wan0", "routes = [\"10.5.0.0/24\"]");
    let (checks, _) = ask(&hub, &own);
    assert_eq!(
        found(&checks, "routes"),
        [("warn".into(), "far: 10.5.0.0/24 is the network of wan0, not the peer's".into())]
    );

    assert_eq!(found(&checks, "rules")[0].0, "ok");
    hub.ip("rule add priority 5270 lookup 52").expect("a rule");
    let (checks, _) = ask(&hub, &file);
    let before = "other programs' come before the gateway's: 5270: from all lookup 52";
    assert_eq!(found(&checks, "rules"), [("warn".into(), before.into())]);

    hub.ip("route del default").expect("it was there");
    hub.sysctl("net.ipv4.ip_forward", "0").expect("a parameter");
    let (checks, content) = ask(&hub, &file);
    assert!(!content);
    assert_eq!(found(&checks, "endpoint")[0].1, "far: there is no route to 203.0.113.7:4500");
    assert!(found(&checks, "lan").iter().any(|(state, _)| state == "fail"));
}

#[test]
fn a_wrong_file_and_a_missing_interface_are_said_with_the_command_that_helps() {
    if !root() {
        return;
    }
    let place = NetNs::unique("bpdoctor", "e2efile").expect("root");
    let (checks, content) = ask(&place, &Config::new("wrong", "[node]\nlisten = 7\n"));
    assert!(!content);
    assert_eq!(found(&checks, "configuration")[0].0, "fail");
    let (checks, content) = ask(&place, &config("lan", "eth7", "routes = [\"10.99.0.0/16\"]"));
    assert!(!content);
    assert_eq!(found(&checks, "lan")[0].1, "there is no interface eth7");
}

#[test]
fn programs_carriers_and_a_socket_that_are_not_there_are_named() {
    if !root() {
        return;
    }
    let place = NetNs::unique("bpdoctor", "e2eprogs").expect("root");
    place.ip("link set lo up").expect("it is there");
    let link = "link = { send = \"2Mbit\", receive = \"20Mbit\", delay = \"300ms\" }";
    let file = |raise: &str, service: &str| {
        let rest = format!(
            "routes = [\"10.99.0.0/16\"]\nendpoint = \"127.0.0.1:4500\"\n\
             [[peer.carrier]]\nname = \"vsat\"\ninterface = \"lo\"\n\
             [[peer.carrier]]\nname = \"lte\"\ninterface = \"wwan9\"\n{link}\n\
             [peer.line]\ncarrier = \"lte\"\nraise = \"{raise}\"\ndrop = \"true\"\n\
             [service.web]\ncommand = [\"{service}\"]\n"
        );
        config("programs", "lo", &rest)
    };
    let (checks, _) = ask(&place, &file("PIN=1 sh -c true", "/bin/sh"));
    assert_eq!(found(&checks, "service"), [("ok".into(), "web: /bin/sh is there".into())]);
    assert!(found(&checks, "line").iter().all(|(state, _)| state == "ok"), "{checks:#?}");
    assert_eq!(found(&checks, "admin"), []);
    let carriers: Vec<String> = found(&checks, "carrier").into_iter().map(|c| c.0).collect();
    assert_eq!(carriers[1], "warn", "it may come later: {checks:#?}");

    let (checks, content) = ask(&place, &file("/nonexistent/raze up", "/nonexistent/wbe"));
    assert!(!content);
    let fault = |finding: &str| ("fail".to_owned(), finding.to_owned());
    assert_eq!(found(&checks, "service"), [fault("web: /nonexistent/wbe is not there")]);
    assert_eq!(found(&checks, "line")[0], fault("far: /nonexistent/raze in `raise` is not there"));

    let text = format!(
        "[node]\nprivate_key = \"{}\"\nadmin = \"/nonexistent/s\"\nproxy = \"127.0.0.1:1080\"\n\
         [[peer]]\nname = \"far\"\npublic_key = \"{}\"\n{link}\nroutes = [\"0.0.0.0/0\"]\n",
        key("private_key"),
        key("public_key")
    );
    let (checks, content) = ask(&place, &Config::new("admin", &text));
    let admin = &found(&checks, "admin")[0];
    assert!(!content && admin.0 == "fail", "{checks:#?}");
    assert!(admin.1.starts_with("cannot open the admin socket /nonexistent/s"), "{}", admin.1);
}
