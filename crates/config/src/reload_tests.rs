//! The reload matrix: what becomes of each key of the file when it is read again, and again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use link::keys::{PresharedKey, PrivateKey};

use super::{Changes, Config};

thread_local! {
    /// Keys that tables were asked for, by the key that the table stands under.
    static ASKED: RefCell<BTreeSet<(&'static str, &'static str)>> = const { RefCell::new(BTreeSet::new()) };
}

/// A table under the key `table` was asked for `key`.
pub(super) fn asked_for(table: &'static str, key: &'static str) {
    if !table.is_empty() {
        ASKED.with_borrow_mut(|all| all.insert((table, key)));
    }
}

/// What a change of a key does at a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It takes effect: of `[node]`, and of a peer, which is changed.
    Node,
    Peer,
    /// The peer is another: taken out, and added.
    Another,
    /// It is named as needing a restart.
    Restart(&'static str),
}

use Effect::{Another, Node, Restart};

/// Table, key, two values that differ, what goes with both, and what the change does.
type Row = (&'static str, &'static str, [&'static str; 2], &'static str, Effect);

const LINK: &str = "send = \"2Mbit\"\nreceive = \"20Mbit\"\ndelay = \"300ms\"";

/// All keys. A new one is put here with what a reload makes of it, which `docs/operators-guide.md`
/// tells, too.
const ROWS: &[Row] = &[
    ("node", "private_key", ["KEY1", "KEY3"], "", Restart("private_key")),
    ("node", "private_key_file", ["FILE1", "FILE3"], "", Restart("private_key")),
    ("node", "listen", ["\"0.0.0.0:4501\"", "\"0.0.0.0:4502\""], "", Restart("listen")),
    ("node", "tun", ["\"a0\"", "\"b0\""], "lan = [\"lan0\"]", Restart("tun")),
    ("node", "lan", ["[\"lan0\"]", "[\"lan1\"]"], "", Restart("lan")),
    ("node", "direct", ["[\"10.20.0.0/16\"]", "[\"10.21.0.0/16\"]"], "lan = [\"lan0\"]", Node),
    ("node", "dns", ["[\"9.9.9.9\"]", "[\"2620:fe::fe\"]"], "lan = [\"lan0\"]", Node),
    ("node", "own", ["true", "false"], "lan = [\"lan0\"]", Restart("own")),
    ("node", "proxy", ["\"127.0.0.1:1\"", "\"127.0.0.1:2\""], "", Restart("proxy")),
    ("node", "admin", ["\"a.sock\"", "\"b.sock\""], "", Restart("admin")),
    ("node", "memory", ["\"8MiB\"", "\"9MiB\""], "", Restart("memory")),
    ("node", "dedup_memory", ["\"8MiB\"", "\"9MiB\""], "", Restart("dedup_memory")),
    ("node", "dedup_disk", ["\"8MiB\"", "\"9MiB\""], "", Restart("dedup_disk")),
    ("node", "dedup_dir", ["\"a\"", "\"b\""], "", Restart("dedup_dir")),
    ("node", "user", ["\"a\"", "\"b\""], "", Restart("user")),
    ("node", "shards", ["1", "2"], "", Restart("shards")),
    ("node", "key_lifetime", ["\"1h\"", "\"10min\""], "", Restart("key_lifetime")),
    ("node", "log", ["\"info\"", "\"debug\""], "", Node),
    ("node", "on_stop", ["\"block\"", "\"release\""], "", Node),
    ("peer", "public_key", ["PUBLIC2", "PUBLIC4"], "", Another),
    ("peer", "name", ["\"a\"", "\"b\""], "", Effect::Peer),
    ("peer", "preshared_key", ["PSK1", "PSK2"], "", Restart("preshared_key of a peer")),
    (
        "peer",
        "preshared_key_file",
        ["PSKFILE1", "PSKFILE2"],
        "",
        Restart("preshared_key of a peer"),
    ),
    ("peer", "endpoint", ["\"192.0.2.1:1\"", "\"192.0.2.2:1\""], "", Effect::Peer),
    ("peer", "routes", ["[\"10.1.0.0/16\"]", "[\"10.2.0.0/16\"]"], "", Effect::Peer),
    ("peer", "profile", ["\"geo-20-2\"", "\"leo\""], "end = \"hub\"", Restart("delay of a link")),
    ("peer", "end", ["\"hub\"", "\"terminal\""], "profile = \"geo-20-2\"", Effect::Peer),
    ("peer", "link", ["{ LINK }", "{ LINK, mtu = 1400 }"], "", Restart("mtu of a link")),
    ("peer", "keepalive", ["\"25s\"", "\"off\""], "", Restart("keepalive of a peer")),
    ("peer", "on_failure", ["\"block\"", "\"wire\""], "", Effect::Peer),
    ("peer", "open", ["\"fast\"", "\"sure\""], "", Effect::Peer),
    ("peer", "fast_ports", ["[80]", "[443]"], "", Effect::Peer),
    ("peer", "connects", ["1000", "100"], "", Effect::Peer),
    ("peer", "quic", ["\"carry\"", "\"refuse\""], "", Effect::Peer),
    ("peer", "source", ["\"nat\"", "\"keep\""], "", Effect::Peer),
    ("peer", "allow", ["[\"10.1.0.0/16\"]", "[]"], "", Effect::Peer),
    ("peer", "deny", ["[\"10.1.0.0/16\"]", "[]"], "", Effect::Peer),
    ("peer", "stream_buffer", ["\"64KiB\"", "\"65KiB\""], "", Restart("stream_buffer of a peer")),
    ("peer", "compress", ["\"auto\"", "\"off\""], "", Restart("compress of a peer")),
    ("peer", "dedup", ["\"host\"", "\"off\""], "", Restart("dedup of a peer")),
    ("peer", "carriers", ["\"one\"", "\"all\""], "", Effect::Peer),
    ("peer", "carrier", ["CARRIER1", "CARRIER2"], "", Effect::Peer),
    (
        "peer",
        "order",
        ["\"priority\"", "\"cost\""],
        "carrier = [{ name = \"a\", source = \"192.0.2.7\", tariff = { currency = \"USD\" } }]",
        Effect::Peer,
    ),
    (
        "peer",
        "budget",
        ["\"1\"", "\"2\""],
        "carrier = [{ name = \"a\", source = \"192.0.2.7\", tariff = { currency = \"USD\" } }]",
        Effect::Peer,
    ),
    ("peer", "line", ["LINE1", "LINE2"], "", Effect::Peer),
    ("line", "raise", ["\"a\"", "\"b\""], "", Effect::Peer),
    ("line", "drop", ["\"a\"", "\"b\""], "", Effect::Peer),
    (
        "line",
        "serial",
        ["\"/dev/ttyS0\"", "\"/dev/ttyS1\""],
        "numbers = [\"1\"]",
        Restart("line of a peer"),
    ),
    (
        "line",
        "speed",
        ["9600", "19200"],
        "serial = \"/dev/ttyS0\"\nnumbers = [\"1\"]",
        Restart("line of a peer"),
    ),
    (
        "line",
        "hardware_flow",
        ["true", "false"],
        "serial = \"/dev/ttyS0\"\nnumbers = [\"1\"]",
        Restart("line of a peer"),
    ),
    (
        "line",
        "init",
        ["[\"AT&F\"]", "[\"AT&F1\"]"],
        "serial = \"/dev/ttyS0\"\nnumbers = [\"1\"]",
        Effect::Peer,
    ),
    ("line", "numbers", ["[\"1\"]", "[\"2\"]"], "serial = \"/dev/ttyS0\"", Effect::Peer),
    (
        "line",
        "answer",
        ["true", "false"],
        "serial = \"/dev/ttyS0\"\nnumbers = [\"1\"]",
        Effect::Peer,
    ),
    ("line", "carrier", ["\"a\"", "\"b\""], "", Restart("line of a peer")),
    ("line", "idle", ["\"20s\"", "\"21s\""], "", Effect::Peer),
    ("line", "guard", ["\"1s\"", "\"2s\""], "", Effect::Peer),
    ("line", "most_linger", ["\"20s\"", "\"21s\""], "", Effect::Peer),
    ("line", "setup", ["\"20s\"", "\"21s\""], "", Effect::Peer),
    ("line", "min_call", ["\"20s\"", "\"21s\""], "", Effect::Peer),
    ("line", "max_call", ["\"20s\"", "\"21s\""], "", Effect::Peer),
    ("line", "quiet", ["[\"22:00-06:00\"]", "[\"23:00-06:00\"]"], "", Effect::Peer),
    ("line", "otherwise", ["\"raise\"", "\"never\""], "", Effect::Peer),
    ("line", "noise", ["\"raise\"", "\"never\""], "", Effect::Peer),
    (
        "line",
        "zone",
        ["\"a\"", "\"b\""],
        "tariff = { currency = \"USD\", zone = [{ name = \"a\" }, { name = \"b\" }] }",
        Effect::Peer,
    ),
    ("line", "clock", ["\"utc\"", "\"local\""], "", Effect::Peer),
    ("line", "redial", ["{ per_hour = 1 }", "{ per_hour = 2 }"], "", Effect::Peer),
    (
        "line",
        "host_budget",
        [
            "[{ hosts = [\"10.1.0.1/32\"], budget = \"1\" }]",
            "[{ hosts = [\"10.1.0.1/32\"], budget = \"2\" }]",
        ],
        "",
        Effect::Peer,
    ),
    ("line", "budget", ["\"1\"", "\"2\""], "", Effect::Peer),
    (
        "line",
        "tariff",
        ["{ currency = \"USD\", per_call = \"1\" }", "{ currency = \"USD\", per_call = \"2\" }"],
        "",
        Effect::Peer,
    ),
    ("tariff", "lead", ["\"1s\"", "\"2s\""], "per_minute = \"1\"", Effect::Peer),
    (
        "tariff",
        "hours",
        [
            "[{ when = [\"00:00-24:00\"], per_minute = \"1\" }]",
            "[{ when = [\"00:00-24:00\"], per_minute = \"2\" }]",
        ],
        "",
        Effect::Peer,
    ),
    ("tariff", "per_month", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("tariff", "fair_use", ["\"1MB\"", "\"2MB\""], "per_month = \"1\"", Effect::Peer),
    ("tariff", "beyond", ["\"slow\"", "\"stopped\""], "per_month = \"1\"", Effect::Peer),
    ("zone", "name", ["\"a\"", "\"b\""], "", Effect::Peer),
    ("zone", "per_call", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("zone", "per_minute", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("zone", "per_megabyte", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("zone", "increment", ["\"1s\"", "\"2s\""], "per_minute = \"1\"", Effect::Peer),
    ("zone", "minimum", ["\"1s\"", "\"2s\""], "per_minute = \"1\"", Effect::Peer),
    ("zone", "block", ["\"1kB\"", "\"2kB\""], "per_megabyte = \"1\"", Effect::Peer),
    ("zone", "lead", ["\"1s\"", "\"2s\""], "per_minute = \"1\"", Effect::Peer),
    (
        "zone",
        "hours",
        [
            "[{ when = [\"00:00-24:00\"], per_minute = \"1\" }]",
            "[{ when = [\"00:00-24:00\"], per_minute = \"2\" }]",
        ],
        "",
        Effect::Peer,
    ),
    ("zone", "per_month", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("zone", "fair_use", ["\"1MB\"", "\"2MB\""], "per_month = \"1\"", Effect::Peer),
    ("zone", "beyond", ["\"slow\"", "\"stopped\""], "per_month = \"1\"", Effect::Peer),
    ("tariff", "zone", ["[{ name = \"a\" }]", "[{ name = \"b\" }]"], "", Effect::Peer),
    (
        "hours",
        "when",
        ["[\"mon-fri 00:00-24:00\", \"sat,sun 00:00-24:00\"]", "[\"00:00-24:00\"]"],
        "",
        Effect::Peer,
    ),
    ("hours", "per_minute", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("redial", "first", ["\"20s\"", "\"21s\""], "", Effect::Peer),
    ("redial", "most", ["\"20s\"", "\"21s\""], "", Effect::Peer),
    ("redial", "rest", ["\"20s\"", "\"21s\""], "", Effect::Peer),
    ("redial", "attempts", ["1", "2"], "", Effect::Peer),
    ("redial", "per_hour", ["1", "2"], "", Effect::Peer),
    ("host_budget", "hosts", ["[\"10.1.0.1/32\"]", "[\"10.1.0.2/32\"]"], "", Effect::Peer),
    ("host_budget", "budget", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("line", "demand", ["DEMAND1", "DEMAND2"], "", Effect::Peer),
    ("tariff", "currency", ["\"USD\"", "\"EUR\""], "", Effect::Peer),
    ("tariff", "per_call", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("tariff", "per_minute", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("tariff", "per_megabyte", ["\"1\"", "\"2\""], "", Effect::Peer),
    ("tariff", "increment", ["\"6s\"", "\"7s\""], "per_minute = \"1\"", Effect::Peer),
    ("tariff", "minimum", ["\"6s\"", "\"7s\""], "per_minute = \"1\"", Effect::Peer),
    ("tariff", "block", ["\"1kB\"", "\"2kB\""], "per_megabyte = \"1\"", Effect::Peer),
    ("demand", "name", ["\"a\"", "\"b\""], "", Effect::Peer),
    ("demand", "classes", ["[\"a\"]", "[\"b\"]"], "", Effect::Peer),
    ("demand", "services", ["[\"a\"]", "[\"b\"]"], "", Effect::Peer),
    ("demand", "protocol", ["\"tcp\"", "\"udp\""], "", Effect::Peer),
    ("demand", "ports", ["[80]", "[81]"], "", Effect::Peer),
    ("demand", "hosts", ["[\"10.1.0.0/16\"]", "[\"10.2.0.0/16\"]"], "", Effect::Peer),
    ("demand", "to", ["[\"10.1.0.0/16\"]", "[\"10.2.0.0/16\"]"], "", Effect::Peer),
    ("demand", "names", ["[\"a.b\"]", "[\"b.b\"]"], "", Effect::Peer),
    ("demand", "then", ["\"raise\"", "\"never\""], "", Effect::Peer),
    ("demand", "through_quiet", ["true", "false"], "", Effect::Peer),
    ("demand", "fail_fast", ["true", "false"], "", Effect::Peer),
    ("demand", "amount", ["\"1kB\"", "\"2kB\""], "then = \"batch\"\nage = \"1h\"", Effect::Peer),
    ("demand", "age", ["\"1h\"", "\"2h\""], "then = \"batch\"", Effect::Peer),
    (
        "demand",
        "hours",
        ["[\"22:00-06:00\"]", "[\"23:00-06:00\"]"],
        "then = \"batch\"\nage = \"1h\"",
        Effect::Peer,
    ),
    ("peer", "class", ["CLASS1", "CLASS2"], "", Effect::Peer),
    ("peer", "rule", ["RULE1", "RULE2"], "", Effect::Peer),
    ("carrier", "name", ["\"a\"", "\"b\""], "", Effect::Peer),
    ("carrier", "interface", ["\"eth1\"", "\"eth2\""], "", Effect::Peer),
    ("carrier", "source", ["\"192.0.2.1\"", "\"192.0.2.2\""], "", Effect::Peer),
    ("carrier", "endpoint", ["\"192.0.2.8:1\"", "\"192.0.2.9:1\""], "", Effect::Peer),
    ("carrier", "priority", ["1", "2"], "", Effect::Peer),
    (
        "carrier",
        "tariff",
        [
            "{ currency = \"USD\", per_megabyte = \"1\" }",
            "{ currency = \"USD\", per_megabyte = \"2\" }",
        ],
        "",
        Effect::Peer,
    ),
    ("link", "send", ["\"2Mbit\"", "\"3Mbit\""], "", Effect::Peer),
    ("link", "receive", ["\"2Mbit\"", "\"3Mbit\""], "", Effect::Peer),
    ("link", "delay", ["\"300ms\"", "\"301ms\""], "", Restart("delay of a link")),
    ("link", "ber", ["1e-6", "1e-7"], "", Restart("ber of a link")),
    ("link", "loss", ["0.01", "0.02"], "", Effect::Peer),
    ("link", "mtu", ["1400", "1500"], "", Restart("mtu of a link")),
    ("link", "packet_time", ["\"1ms\"", "\"2ms\""], "", Restart("mtu of a link")),
    ("link", "queue", ["\"20ms\"", "\"30ms\""], "", Restart("queue of a link")),
    ("link", "overhead", ["0", "8"], "", Restart("overhead of a link")),
    ("link", "headers", ["\"on\"", "\"off\""], "", Restart("headers of a link")),
    ("link", "rate", ["\"fixed\"", "\"learned\""], "", Effect::Peer),
    ("link", "rate_file", ["\"/a\"", "\"/b\""], "rate = \"reported\"", Effect::Peer),
    ("link", "rate_command", ["\"a\"", "\"b\""], "rate = \"reported\"", Effect::Peer),
    (
        "link",
        "rate_every",
        ["\"1s\"", "\"2s\""],
        "rate = \"reported\"\nrate_file = \"/a\"",
        Effect::Peer,
    ),
    ("class", "carriers", ["[\"a\"]", "[]"], "name = \"bulk\"", Effect::Peer),
    ("class", "name", ["\"a\"", "\"b\""], "share = 10", Effect::Peer),
    ("class", "share", ["10", "20"], "", Effect::Peer),
    ("class", "cap", ["\"1Mbit\"", "\"2Mbit\""], "", Effect::Peer),
    ("class", "hold", ["\"1ms\"", "\"2ms\""], "", Effect::Peer),
    ("class", "compress", ["\"auto\"", "\"off\""], "", Effect::Peer),
    ("class", "headers", ["\"on\"", "\"off\""], "", Effect::Peer),
    ("class", "dedup", ["\"host\"", "\"lan\""], "", Effect::Peer),
    ("rule", "protocol", ["\"tcp\"", "\"udp\""], "", Effect::Peer),
    ("rule", "ports", ["[80]", "[81]"], "", Effect::Peer),
    ("rule", "dscp", ["8", "9"], "", Effect::Peer),
    ("rule", "class", ["\"bulk\"", "\"normal\""], "ports = [80]", Effect::Peer),
    ("rule", "carry", ["\"ordered\"", "\"plain\""], "protocol = \"udp\"", Effect::Peer),
    ("rule", "compress", ["\"auto\"", "\"off\""], "", Effect::Peer),
    ("rule", "headers", ["\"on\"", "\"off\""], "", Effect::Peer),
    ("rule", "dedup", ["\"host\"", "\"lan\""], "", Effect::Peer),
    ("rule", "via", ["\"a\"", "\"b\""], "", Effect::Peer),
    ("service", "command", ["[\"a\"]", "[\"b\"]"], "", Restart("service")),
    ("service", "user", ["\"a\"", "\"b\""], "", Restart("service")),
    ("service", "memory", ["\"64MiB\"", "\"65MiB\""], "", Restart("service")),
    ("service", "descriptors", ["100", "200"], "", Restart("service")),
    ("service", "directory", ["\"/a\"", "\"/b\""], "", Restart("service")),
    ("service", "reads", ["[\"/a\"]", "[\"/b\"]"], "", Restart("service")),
    ("telephone", "name", ["\"a\"", "\"b\""], "", Restart("telephone")),
    ("telephone", "serial", ["\"/dev/a\"", "\"/dev/b\""], "", Restart("telephone")),
    ("telephone", "speed", ["9600", "19200"], "", Restart("telephone")),
    ("telephone", "hardware_flow", ["true", "false"], "", Restart("telephone")),
    ("telephone", "init", ["[\"AT&F\"]", "[\"AT&F1\"]"], "", Restart("telephone")),
    ("telephone", "idle", ["\"20s\"", "\"21s\""], "", Restart("telephone")),
];

fn private(n: u8) -> String {
    PrivateKey::from_bytes([n; 32]).to_base64().to_string()
}

/// The file in which `key` of `table` has a value.
fn file(&(table, key, _, beside, _): &Row, value: &str, dir: &Path) -> Config {
    let key_in = |name: &str, key: &str| {
        let path = dir.join(name);
        std::fs::write(&path, key).expect("a key file");
        os_only_mine(&path);
        format!("\"{}\"", path.display())
    };
    let psk = |n: u8| PresharedKey::from_bytes([n; 32]).to_base64().to_string();
    let value = match value {
        "KEY1" | "KEY3" => format!("\"{}\"", private(value.as_bytes()[3])),
        "FILE1" | "FILE3" => key_in(value, &private(value.as_bytes()[4])),
        "PUBLIC2" | "PUBLIC4" => {
            format!("\"{}\"", PrivateKey::from_bytes([value.as_bytes()[6]; 32]).public())
        }
        "PSK1" | "PSK2" => format!("\"{}\"", psk(value.as_bytes()[3])),
        "PSKFILE1" | "PSKFILE2" => key_in(value, &psk(value.as_bytes()[7])),
        "CARRIER1" => "[{ name = \"a\", source = \"192.0.2.7\" }]".into(),
        "CARRIER2" => "[{ name = \"a\", source = \"192.0.2.8\" }]".into(),
        "LINE1" => "{ idle = \"20s\" }".into(),
        "LINE2" => "{ idle = \"21s\" }".into(),
        "DEMAND1" => "[{ ports = [80], then = \"never\" }]".into(),
        "DEMAND2" => "[{ ports = [81], then = \"never\" }]".into(),
        "CLASS1" => "[{ name = \"a\", share = 10 }]".into(),
        "CLASS2" => "[{ name = \"a\", share = 20 }]".into(),
        "RULE1" => "[{ ports = [80], class = \"bulk\" }]".into(),
        "RULE2" => "[{ ports = [81], class = \"bulk\" }]".into(),
        other => other.replace("LINK", &LINK.replace('\n', ", ")),
    };
    // What a table needs where nothing else is said of it.
    let lines = |of: &str, needs: &[&str]| {
        let mut lines: Vec<String> = match of == table {
            true => std::iter::once(format!("{key} = {value}"))
                .chain(beside.lines().map(str::to_owned))
                .collect(),
            false => Vec::new(),
        };
        let key_of = |line: &str| line.split(" = ").next().unwrap_or_default().to_owned();
        for need in needs.iter().flat_map(|need| need.lines()) {
            let instead = |line: &String| {
                let given = key_of(line);
                given == key_of(need) || given.strip_suffix("_file") == Some(&key_of(need))
            };
            if !lines.iter().any(instead) {
                lines.push(need.to_owned());
            }
        }
        lines
    };
    let own = format!("private_key = \"{}\"", private(1));
    let theirs = format!("public_key = \"{}\"", PrivateKey::from_bytes([2; 32]).public());
    let node = lines("node", &[&own]).join("\n");
    let peer = lines("peer", &[&theirs, "name = \"p\""]);
    let has = |key: &str| peer.iter().any(|line| line.starts_with(&format!("{key} = ")));
    let link = format!("link = {{ {} }}", lines("link", &[LINK]).join(", "));
    let link = if has("link") || has("profile") { String::new() } else { link };
    let sub = |kind: &str, needs: &[&str]| match kind == table {
        true => format!("[[peer.{kind}]]\n{}\n", lines(kind, needs).join("\n")),
        false => String::new(),
    };
    let carrier = match (table, key) {
        ("line", "carrier") => ["a", "b"]
            .map(|name| {
                format!(
                    "[[peer.carrier]]\nname = \"{name}\"\nsource = \"192.0.2.{}\"\n",
                    name.as_bytes()[0]
                )
            })
            .concat(),
        _ => sub("carrier", &["name = \"c\"", "source = \"192.0.2.7\""]),
    };
    let class = sub("class", &["name = \"c\""]);
    let rule = match key {
        "protocol" | "ports" | "dscp" => sub("rule", &["class = \"bulk\""]),
        _ => sub("rule", &["ports = [80]"]),
    };
    let inner = |kind: &str, needs: &[&str], open: &str| match kind == table {
        true => format!("[peer.line]\n{open}\n{}\n", lines(kind, needs).join("\n")),
        false => String::new(),
    };
    let line = match table {
        "line" => format!("[peer.line]\n{}\n", lines("line", &[]).join("\n")),
        "tariff" => inner("tariff", &["currency = \"USD\""], "[peer.line.tariff]"),
        "zone" | "hours" => {
            let of =
                format!("[peer.line.tariff]\ncurrency = \"USD\"\n[[peer.line.tariff.{table}]]");
            let needs: &[&str] = match table {
                "zone" => &["name = \"z\""],
                _ => &["when = [\"00:00-24:00\"]", "per_minute = \"9\""],
            };
            inner(table, needs, &of)
        }
        "redial" => inner("redial", &[], "[peer.line.redial]"),
        "host_budget" => {
            let needs = ["hosts = [\"10.1.0.9/32\"]", "budget = \"9\""];
            inner("host_budget", &needs, "[[peer.line.host_budget]]")
        }
        _ => inner("demand", &["then = \"raise\""], "[[peer.line.demand]]"),
    };
    let peer = peer.join("\n");
    let service = match table {
        "service" => lines("service", &["command = [\"a\"]"]).join("\n"),
        _ => "command = [\"a\"]".into(),
    };
    let services = format!("[service.a]\n{service}\n[service.b]\ncommand = [\"b\"]\n");
    let telephone = match table {
        "telephone" => {
            format!("[[telephone]]\n{}\n", lines(table, &["serial = \"/dev/c\""]).join("\n"))
        }
        _ => String::new(),
    };
    let services = services + &telephone;
    let text =
        format!("[node]\n{node}\n{services}[[peer]]\n{peer}\n{link}\n{carrier}{class}{rule}{line}");
    Config::parse(&text, Path::new("t.toml"))
        .unwrap_or_else(|e| panic!("{text}\n{:#?}", e.to_report().problems))
}

/// A directory that goes with the test, also if that fails.
struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn os_only_mine(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
}

#[test]
fn every_key_takes_effect_on_reload_or_is_named_as_needing_a_restart() {
    let dir = std::env::temp_dir().join(format!("bentpipe-matrix-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let _gone = Gone(dir.clone());
    for row in ROWS {
        let [before, after] = row.2.map(|value| file(row, value, &dir));
        let changes = before.changes(&after);
        let Changes { needs_restart, added, changed, removed } = &changes;
        let counts = [added.len(), changed.len(), removed.len()];
        let what = format!("{} in {}: {needs_restart:?}, {counts:?}", row.1, row.0);
        match row.4 {
            Restart(name) => assert!(needs_restart.contains(&name), "{what}"),
            _ => assert_eq!(needs_restart, &Vec::<&str>::new(), "{what}"),
        }
        match row.4 {
            Node => {
                assert_ne!(before.node, after.node, "{what}");
                assert_eq!(counts, [0, 0, 0], "{what}");
            }
            Effect::Peer => assert_eq!(counts, [0, 1, 0], "{what}"),
            Another => assert_eq!(counts, [1, 0, 1], "{what}"),
            Restart(_) => assert!(before.node != after.node || changed.len() == 1, "{what}"),
        }
        // What waits is named at each further reload, and is forgotten where it is taken back.
        let mut runs = before.clone();
        for _ in 0..2 {
            let mut new = after.clone();
            assert_eq!(runs.changes(&new).needs_restart, *needs_restart, "{what}");
            runs.keep_fixed(&mut new);
            runs = new;
        }
        assert_eq!(runs.changes(&before).needs_restart, Vec::<&str>::new(), "{what}");
        match row.4 {
            Restart(_) => {}
            // The rest takes effect.
            _ => assert_eq!(runs.changes(&after), Changes::default(), "{what}"),
        }
    }
    let listed: BTreeSet<_> = ROWS.iter().map(|row| (row.0, row.1)).collect();
    let asked = ASKED.with_borrow(Clone::clone);
    let missing: Vec<_> = asked.difference(&listed).collect();
    assert!(missing.is_empty(), "keys without a row: say what a reload makes of them: {missing:?}");
    let gone: Vec<_> = listed.difference(&asked).collect();
    assert!(gone.is_empty(), "rows without a key: {gone:?}");
}

#[test]
fn beside_what_waits_for_a_restart_the_rest_of_a_peer_takes_effect() {
    let row = |beside| ("link", "mtu", ["1400", "1500"], beside, Restart("mtu of a link"));
    let dir = Path::new("/nonexistent");
    let before = file(&row(""), "1400", dir);
    let mut after = file(&row("send = \"3Mbit\"\ndelay = \"301ms\"\nloss = 0.1"), "1500", dir);
    let asked = after.peers[0].link.clone();
    before.keep_fixed(&mut after);
    let (was, is) = (&before.peers[0].link, &after.peers[0].link);
    assert_eq!((is.mtu, is.delay), (was.mtu, was.delay));
    assert_eq!((is.send, is.loss), (asked.send, asked.loss));
    // A peer that is taken out and comes back begins with what the file says.
    let mut without = before.clone();
    without.peers.clear();
    let mut back = file(&row(""), "1500", dir);
    without.keep_fixed(&mut back);
    assert_eq!(back.peers[0].link.mtu, 1500);
}
