//! Files that are right, and files that are wrong in every way that people find.

use std::path::Path;

use ::link::keys::PrivateKey;
use relay::{Carry, ClassId, Open, Share};
use units::{BitRate, ByteCount, Duration};

use super::*;

fn private(n: u8) -> String {
    PrivateKey::from_bytes([n; 32]).to_base64()
}
fn public(n: u8) -> String {
    PrivateKey::from_bytes([n; 32]).public().to_string()
}

/// A file with this in a peer's table, or all that is wrong with it.
pub fn parse_peer(peer: &str) -> Result<Config, String> {
    Config::parse(&file("", peer), Path::new("t.toml")).map_err(|e| {
        let problems = e.to_report().problems;
        problems.into_iter().map(|p| p.message + "\n").collect()
    })
}

/// A file with `node` and `peer` lines added to what every file needs.
fn file(node: &str, peer: &str) -> String {
    format!(
        "[node]\nprivate_key = \"{}\"\n{node}\n\n[[peer]]\nname = \"shore\"\n\
         public_key = \"{}\"\n{peer}\n",
        private(1),
        public(2)
    )
}

const LINK: &str = r#"link = { send = "2Mbit", receive = "20Mbit", delay = "300ms" }"#;

fn good(text: &str) -> Config {
    Config::parse(text, Path::new("t.toml")).unwrap_or_else(|e| panic!("{:#?}", e.to_report()))
}

/// Every problem as `line:column message | help`.
fn faults(text: &str) -> Vec<String> {
    let e = Config::parse(text, Path::new("t.toml")).expect_err("a wrong file");
    let report = e.to_report();
    assert!(!report.problems.is_empty(), "a refusal says why");
    report
        .problems
        .into_iter()
        .map(|p| {
            let at = |n: Option<usize>| n.map_or(0, |n| n);
            let help = p.help.map(|h| format!(" | {h}")).unwrap_or_default();
            format!("{}:{} {}{help}", at(p.line), at(p.column), p.message)
        })
        .collect()
}

/// The one problem of a peer with these lines.
pub fn peer_fault(peer: &str) -> String {
    one(faults(&file("", peer)))
}
fn node_fault(node: &str) -> String {
    one(faults(&file(node, LINK)))
}
fn one(faults: Vec<String>) -> String {
    assert_eq!(faults.len(), 1, "{faults:#?}");
    faults.into_iter().next().unwrap_or_default()
}

fn assert_says(fault: &str, parts: &[&str]) {
    for part in parts {
        assert!(fault.contains(part), "\"{part}\" is missing in: {fault}");
    }
}

#[test]
fn a_ships_file_reads_as_it_is_meant() {
    let config = good(&file(
        r#"
listen = "0.0.0.0:4501"
lan    = ["eth1", "eth2"]
proxy  = "127.0.0.1:1080"
memory = "64MiB"
log    = "debug""#,
        r#"
endpoint   = "shore.example.net:4500"
routes     = ["0.0.0.0/0", "::/0"]
profile    = "inmarsat-b"
link       = { send = "128kbit", receive = "23.58Mbit", delay = "270ms", ber = 1e-7, mtu = 1400 }
keepalive  = "25s"
on_failure = "wire"
source     = "keep"
allow      = ["10.2.0.0/24"]
deny       = ["192.0.2.0/24"]
stream_buffer = "4MiB""#,
    ));
    let node = &config.node;
    assert_eq!(node.tun.as_deref(), Some("bentpipe0"));
    assert_eq!(node.lan, ["eth1", "eth2"]);
    assert_eq!((node.memory, node.listen.port()), (ByteCount(64 << 20), 4501));
    let peer = config.peer("shore").expect("the peer");
    assert_eq!(peer.endpoint.as_ref().expect("an endpoint").to_string(), "shore.example.net:4500");
    assert_eq!(peer.link.send, BitRate::from_kbps(128));
    assert_eq!(peer.link.delay, Duration::from_millis(270));
    assert_eq!((peer.link.mtu, peer.profile), (1400, Some("inmarsat-b")));
    assert_eq!(peer.keepalive, Some(Duration::from_secs(25)));
    assert_eq!((peer.on_failure, peer.source), (OnFailure::Wire, Source::Keep));
    assert_eq!(config.warnings.len(), 0);
}

#[test]
fn a_single_hosts_own_connections_are_split_only_where_the_file_says_so() {
    let own = good(&file("own = true", LINK));
    assert!(own.node.own && own.node.lan.is_empty());
    assert_eq!(own.node.tun.as_deref(), Some("bentpipe0"));
    assert_says(&own.to_string(), &["own          this node's own TCP"]);
    let not = good(&file("own = false", LINK));
    assert_eq!((not.node.own, not.node.tun.as_ref()), (false, None));
    assert!(!not.to_string().contains("\n  own "));
    assert_eq!(not.changes(&own).needs_restart, ["tun", "own"]);
    assert_says(&node_fault("own = \"true\""), &["own", "true or false, without quotes"]);
    assert_says(&node_fault("own = 1"), &["own", "true or false"]);
}

#[test]
fn what_is_left_out_has_careful_defaults() {
    let config = good(&file("", LINK));
    assert_eq!(config.node.listen.to_string(), "0.0.0.0:4500");
    assert_eq!((config.node.tun.as_ref(), config.node.proxy), (None, None));
    assert_eq!((config.node.shards, config.node.on_stop), (1, OnStop::Block));
    let peer = &config.peers[0];
    assert_eq!((peer.keepalive, peer.on_failure), (None, OnFailure::Block));
    assert_eq!((peer.open, peer.source), (Open::Auto, Source::Nat));
    assert_eq!(peer.fast_ports, [80, 443]);
    assert_eq!((peer.link.mtu, peer.link.ber), (1500, units::Ratio::ZERO));
    assert!(peer.endpoint.is_none() && peer.routes.is_empty() && peer.allow.is_empty());
    assert_eq!(good(&file("", &format!("{LINK}\nkeepalive = \"off\""))).peers[0].keepalive, None);
}

#[test]
fn what_an_end_in_order_releases_is_said() {
    let file = |on_stop: &str| file(&format!("lan = [\"eth1\"]\n{on_stop}"), LINK);
    let [kept, released] = ["", "on_stop = \"release\""].map(|node| good(&file(node)));
    assert_eq!(released.node.on_stop, OnStop::Release);
    assert!(released.to_string().contains("on stop") && !kept.to_string().contains("on stop"));
    assert!(kept.to_string().contains("until `bentpipe down FILE`"), "{kept}");
    assert_eq!(released.to_json()["node"]["on_stop"], "release");
    assert_eq!(kept.changes(&released).needs_restart.len(), 0, "a reload is enough");
    assert_says(&node_fault("on_stop = \"wire\""), &["\"block\" or \"release\""]);
}

#[test]
fn shards_are_a_number_or_as_many_as_there_are_processors() {
    let of = |text: &str| good(&file(&format!("shards = {text}"), LINK)).node.shards;
    assert_eq!([of("1"), of("3"), of("64")], [1, 3, 64]);
    let processors = std::thread::available_parallelism().expect("a number").get();
    assert_eq!(of("\"auto\"") as usize, processors.min(64));
    let says = ["shards in [node]", "a number of threads", "\"auto\"", "from 1 to 64"];
    for wrong in ["0", "65", "-1", "1.5", "\"many\"", "[2]"] {
        assert_says(&node_fault(&format!("shards = {wrong}")), &says);
    }
    assert_says(&node_fault("shards = \"4\""), &["write shards = 4"]);
    let (one, two) = (good(&file("", LINK)), good(&file("shards = 2", LINK)));
    assert_eq!(one.changes(&two).needs_restart, ["shards"]);
    assert!(two.to_string().contains("shards") && !one.to_string().contains("shards"));
    assert_eq!(two.to_json()["node"]["shards"], 2);
}

#[test]
fn a_link_table_overrides_its_profile_value_by_value() {
    let peer = "profile = \"inmarsat-b\"\nlink = { delay = \"300ms\" }";
    let link = good(&file("", peer)).peers[0].link.clone();
    assert_eq!((link.send, link.delay), (BitRate::from_kbps(64), Duration::from_millis(300)));
    assert!(link.ber > units::Ratio::ZERO, "the profile's error ratio stays");
}

#[test]
fn the_two_ends_of_an_asymmetric_profile_send_at_its_two_rates() {
    let at = |end: &str| {
        let peer = format!("profile = \"geo-20-2\"\nend = \"{end}\"");
        let link = good(&file("", &peer)).peers[0].link.clone();
        (link.send, link.receive)
    };
    let (down, up) = (BitRate::from_mbps(20), BitRate::from_mbps(2));
    assert_eq!((at("terminal"), at("hub")), ((up, down), (down, up)));
    let fault = peer_fault("profile = \"geo-20-2\"");
    assert_says(&fault, &["which end this node is", "end = \"terminal\""]);
}

#[test]
fn unknown_keys_are_named_with_the_nearest_known_one() {
    assert_eq!(
        node_fault("lsiten = \"0.0.0.0:4500\""),
        "3:1 there is no key \"lsiten\" in [node] | did you mean \"listen\"?"
    );
    assert_says(
        &peer_fault(&format!("{LINK}\nendpiont = \"a:1\"")),
        &["9:1", "no key \"endpiont\" in peer \"shore\"", "did you mean \"endpoint\"?"],
    );
    assert_says(
        &peer_fault(
            r#"link = { send = "1Mbit", recieve = "1Mbit", receive = "1Mbit", delay = "1ms" }"#,
        ),
        &["no key \"recieve\" in link of peer \"shore\"", "did you mean \"receive\"?"],
    );
    assert_says(&one(faults(&(file("", LINK) + "[nod]\n"))), &["\"nod\"", "\"node\"?"]);
    assert_says(&node_fault("zzz = 1"), &["known here: ", "listen"]);
    // Right, and in the wrong place.
    assert_says(&node_fault("allow = [\"10.2.0.0/24\"]"), &["\"allow\" belongs in [[peer]]"]);
    assert_says(&peer_fault(&format!("{LINK}\nown = true")), &["\"own\" belongs in [node]"]);
}

#[test]
fn wrong_units_are_answered_with_the_right_ones() {
    let link = |s: &str, r: &str, d: &str| {
        peer_fault(&format!("link = {{ send = {s}, receive = {r}, delay = {d} }}"))
    };
    let text = file("", r#"link = { send = "128kbps", receive = 20, delay = "270" }"#);
    let all = faults(&text).join("\n");
    assert_says(
        &all,
        &[
            "\"128kbps\" is not a rate",
            "did you mean \"128kbit\"?",
            "write receive = \"20kbit\"",
            "did you mean \"270ms\"?",
        ],
    );
    // What is missing because it was wrong is not reported a second time as missing.
    assert_eq!(faults(&text).len(), 3, "{all}");
    assert_says(&link("\"1Mbit\"", "\"1Mbit\"", "\"1.5 sec\""), &["did you mean \"1.5s\"?"]);
    assert_says(&node_fault("memory = \"256M\""), &["did you mean \"256MiB\"?"]);
    assert_says(&node_fault("memory = 1000000"), &["write memory = \"1000000B\""]);
}

#[test]
fn impossible_links_are_refused() {
    let link = |more: &str| {
        let rates = r#"send = "1Mbit", receive = "1Mbit""#;
        peer_fault(&format!("link = {{ {rates}, {more} }}"))
    };
    assert_says(&link("delay = \"61s\""), &["longer than 60s"]);
    assert_says(&link("delay = \"1s\", mtu = 127"), &["from 128 to 9000"]);
    assert_says(&link("delay = \"1s\", mtu = 9001"), &["from 128 to 9000"]);
    assert_says(&link("delay = \"1s\", mtu = \"1500\""), &["write mtu = 1500"]);
    assert_says(&link("delay = \"1s\", ber = 0.5"), &["from 0 to 0.01"]);
    assert_says(&link("delay = \"1s\", ber = -1e-7"), &["from 0 to 0.01"]);
    assert_says(&link("delay = \"1s\", ber = nan"), &["from 0 to 0.01"]);
    assert_says(&link("delay = \"1s\", ber = 1"), &["write ber = \"1%\""]);
    assert_says(&link("delay = \"1s\", ber = \"2%\""), &["from 0 to 0.01"]);
    assert_says(&link("delay = \"1s\", queue = \"50\""), &["neither a size", "\"50B\""]);
    assert_says(&link("delay = \"1s\", overhead = \"atn\""), &["did you mean \"atm\"?"]);
    let rate = |more| link(&format!("delay = \"1s\", {more}"));
    assert_says(&rate("rate = \"learnt\""), &["did you mean \"learned\"?"]);
    assert_says(&rate("rate_file = \"/run/modem\""), &["rate = \"reported\""]);
    let both = "rate = \"reported\", rate_file = \"/f\", rate_command = \"c\"";
    assert_says(&rate(both), &["both rate_file and rate_command"]);
    let rarely = "rate = \"reported\", rate_file = \"/f\", rate_every = \"2h\"";
    assert_says(&rate(rarely), &["between 100ms and 1h"]);
    assert_says(
        &peer_fault(r#"link = { send = "0bit", receive = "1Mbit", delay = "1s" }"#),
        &["rate of 0"],
    );
    assert_says(&peer_fault(r#"link = { send = "1Mbit" }"#), &["lacks receive, delay"]);
    assert_says(&peer_fault("profile = \"inmarsat\""), &["did you mean \"inmarsat-b\"?"]);
    assert_says(&peer_fault("routes = []"), &["has no link", "profile = "]);
}

#[test]
fn the_ways_of_opening_are_read_and_shown() {
    let read = |text: &str| good(&file("", &format!("{LINK}\n{text}")));
    for (text, open, shown) in [
        ("open = \"fast\"", Open::Fast, "fast: clients are answered at once"),
        ("open = \"sure\"", Open::Sure, "sure: clients are answered when"),
        ("fast_ports = [22]", Open::Auto, "fast ports 22"),
        ("open = \"auto\"\nfast_ports = []", Open::Auto, "fast ports none"),
    ] {
        let config = read(text);
        assert_eq!(config.peers[0].open, open, "{text}");
        assert!(config.to_string().contains(shown), "{config}");
    }
    assert_says(
        &peer_fault(&format!("{LINK}\nopen = \"fats\"")),
        &["is not one of \"fast\", \"sure\" or \"auto\"", "did you mean \"fast\"?"],
    );
    for wrong in ["80", "[\"80\"]", "[0]", "[65536]"] {
        let fault = peer_fault(&format!("{LINK}\nfast_ports = {wrong}"));
        assert_says(&fault, &["list of ports from 1 to 65535"]);
    }
    let vain = peer_fault(&format!("{LINK}\nopen = \"sure\"\nfast_ports = [80]"));
    assert_says(&vain, &["fast_ports", "mean nothing without auto"]);
}

#[test]
fn a_key_or_a_route_belongs_to_one_peer() {
    let peer = |name: &str, key: u8, route: &str| {
        format!(
            "[[peer]]\nname = \"{name}\"\npublic_key = \"{}\"\nroutes = [\"{route}\"]\n{LINK}\n",
            public(key)
        )
    };
    let node = format!("[node]\nprivate_key = \"{}\"\n", private(1));
    let with = |a: &str, b: &str| one(faults(&format!("{node}{a}{b}")));
    assert_says(
        &with(&peer("a", 2, "10.0.0.0/8"), &peer("b", 2, "11.0.0.0/8")),
        &["peer \"b\" has the same key as peer \"a\""],
    );
    assert_says(
        &with(&peer("a", 2, "10.0.0.0/8"), &peer("b", 1, "11.0.0.0/8")),
        &["peer \"b\" has this node's own key"],
    );
    assert_says(
        &with(&peer("a", 2, "10.0.0.0/8"), &peer("a", 3, "11.0.0.0/8")),
        &["two peers are named \"a\""],
    );
    assert_says(
        &with(&peer("a", 2, "10.0.0.0/8"), &peer("b", 3, "::ffff:10.0.0.0/104")),
        &["10.0.0.0/8 is a route of peer \"a\" already"],
    );
    let nested = format!("{node}{}{}", peer("a", 2, "0.0.0.0/0"), peer("b", 3, "10.2.0.0/16"));
    assert_eq!(good(&nested).peers.len(), 2, "a longer prefix may lead elsewhere");
}

#[test]
fn prefixes_and_endpoints_that_cannot_be_meant_are_refused() {
    let fault = |line: &str| peer_fault(&format!("{LINK}\n{line}"));
    assert_says(&fault("routes = [\"10.2.0.1/24\"]"), &["\"10.2.0.0/24\" or \"10.2.0.1/32\""]);
    assert_says(&fault("routes = \"0.0.0.0/0\""), &["it is a list", "[\"0.0.0.0/0\"]"]);
    assert_says(&fault("endpoint = \"203.0.113.7\""), &["did you mean \"203.0.113.7:4500\"?"]);
    assert_says(&fault("endpoint = \"2001:db8::1\""), &["did you mean \"[2001:db8::1]:4500\"?"]);
    assert_says(&fault("endpoint = \"[2001:db8::1]:4500\""), &["this node listens on IPv4"]);
    assert_says(&fault("endpoint = \"0.0.0.0:4500\""), &["not an address of a node"]);
    assert_says(&fault("keepalive = \"1ms\""), &["not between 1s and 24h"]);
    assert_says(&fault("keepalive = 25"), &["needs a unit", "write keepalive = \"25s\""]);
    assert_says(
        &fault("allow = [\"10.0.0.0/8\"]\ndeny = [\"10.0.0.0/8\"]"),
        &["both allowed and denied"],
    );
    assert_says(&fault("stream_buffer = \"1B\""), &["below 4KiB"]);
}

#[test]
fn compression_is_on_unless_a_peer_a_class_or_a_rule_says_otherwise() {
    let peer = |lines: &str| good(&file("", &format!("{LINK}\n{lines}"))).peers.remove(0);
    assert!(peer("").compress && peer("compress = \"auto\"").compress);
    assert!(!peer("compress = \"off\"").compress);
    let peer = peer(
        "[[peer.class]]\nname = \"bulk\"\ncompress = \"off\"\n\
         [[peer.class]]\nname = \"video\"\nshare = 40\ncompress = \"off\"\n\
         [[peer.class]]\nname = \"normal\"\ncompress = \"auto\"\n\
         [[peer.rule]]\nports = [5432]\ncompress = \"off\"\n\
         [[peer.rule]]\nports = [873]\nclass = \"bulk\"\ncompress = \"auto\"",
    );
    assert_eq!(peer.traffic.plain, [ClassId::BULK, ClassId::from_index(4)]);
    assert_eq!(peer.traffic.class_name(ClassId::from_index(4)), "video");
    let says: Vec<_> = peer.traffic.rules.iter().map(|r| r.compress).collect();
    assert_eq!(says, [Some(false), Some(true)]);
    let wrong = peer_fault(&format!("{LINK}\ncompress = \"on\""));
    assert_says(&wrong, &["\"on\" is not one of", "\"auto\""]);
}

#[test]
fn headers_are_compressed_unless_a_class_or_a_rule_says_otherwise() {
    let peer = |lines: &str| good(&file("", &format!("{LINK}\n{lines}"))).peers.remove(0);
    assert!(peer("").traffic.plain_headers.is_empty());
    let peer = peer(
        "[[peer.class]]\nname = \"bulk\"\nheaders = \"off\"\n\
         [[peer.class]]\nname = \"normal\"\nheaders = \"on\"\n\
         [[peer.rule]]\nprotocol = \"esp\"\nheaders = \"off\"\n\
         [[peer.rule]]\nports = [5004]\nclass = \"bulk\"\nheaders = \"on\"",
    );
    assert_eq!(peer.traffic.plain_headers, [ClassId::BULK]);
    let says: Vec<_> = peer.traffic.rules.iter().map(|r| r.headers).collect();
    assert_eq!(says, [Some(false), Some(true)]);
    let wrong = peer_fault(&format!("{LINK}\n[[peer.rule]]\nports = [1]\nheaders = \"auto\""));
    assert_says(&wrong, &["\"auto\" is not one of", "\"on\""]);
}

#[test]
fn deduplication_is_within_a_host_unless_a_peer_a_class_or_a_rule_says_otherwise() {
    let read = |node: &str, lines: &str| good(&file(node, &format!("{LINK}\n{lines}")));
    let peer = |lines: &str| read("", lines).peers.remove(0);
    assert_eq!(peer("").dedup, Share::Host);
    assert_eq!(peer("dedup = \"lan\"").dedup, Share::Lan);
    assert_eq!(peer("dedup = \"off\"").dedup, Share::Off);
    let peer = peer(
        "[[peer.class]]\nname = \"bulk\"\ndedup = \"lan\"\n\
         [[peer.class]]\nname = \"video\"\nshare = 40\ndedup = \"off\"\n\
         [[peer.rule]]\nports = [5432]\ndedup = \"off\"\n\
         [[peer.rule]]\nports = [873]\nclass = \"bulk\"",
    );
    let video = ClassId::from_index(4);
    assert_eq!(peer.traffic.dedup, [(ClassId::BULK, Share::Lan), (video, Share::Off)]);
    let says: Vec<_> = peer.traffic.rules.iter().map(|r| r.dedup).collect();
    assert_eq!(says, [Some(Share::Off), None]);
    let wrong = peer_fault(&format!("{LINK}\ndedup = \"wan\""));
    assert_says(&wrong, &["\"wan\" is not one of", "\"lan\""]);

    let lines = "dedup_memory = \"8MiB\"\ndedup_disk = \"0B\"\ndedup_dir = \"kept\"";
    let config = read(lines, "");
    let chunks = &config.node.chunks;
    assert_eq!((chunks.memory.0, chunks.disk.0), (8 << 20, 0));
    assert!(chunks.dir.as_ref().is_some_and(|dir| dir.ends_with("kept")), "{chunks:?}");
    let shown = config.to_string();
    for words in ["8MiB in memory, none on disk", "host: what a host had before"] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
}

#[test]
fn classes_and_rules_are_read_and_checked() {
    let config = good(&file(
        "",
        &format!(
            "{LINK}\n[[peer.class]]\nname = \"video\"\nshare = 40\n\
             [[peer.class]]\nname = \"bulk\"\ncap = \"500kbit\"\n\
             [[peer.class]]\nname = \"interactive\"\nhold = \"20ms\"\n\
             [[peer.rule]]\nprotocol = \"udp\"\nports = [5001, \"6000-6010\"]\nclass = \"video\"\n\
             [[peer.rule]]\ndscp = \"af41\"\nclass = \"bulk\"\n\
             [[peer.rule]]\nprotocol = \"esp\"\ncarry = \"ordered\"\n\
             [[peer.rule]]\nports = [443]\ncarry = \"plain\""
        ),
    ));
    let traffic = &config.peers[0].traffic;
    assert_eq!(traffic.names, ["control", "interactive", "normal", "bulk", "video"]);
    assert_eq!((traffic.classes[4].share, traffic.classes[4].cap), (Some(40), None));
    assert_eq!(traffic.classes[3].cap, Some(BitRate::from_kbps(500)));
    assert_eq!(traffic.classes[1].hold, Some(Duration::from_millis(20)));
    let rule = &traffic.rules[0];
    assert_eq!(
        (rule.protocol, rule.dscp, rule.class.map(ClassId::index)),
        (Some(17), None, Some(4))
    );
    assert_eq!(rule.ports, [5001..=5001, 6000..=6010]);
    assert_eq!((traffic.rules[1].dscp, traffic.rules[1].class), (Some(34), Some(ClassId::BULK)));
    assert_eq!((traffic.rules[2].class, traffic.rules[2].carry), (None, Some(Carry::Ordered)));
    assert_eq!(traffic.rules[3].carry, Some(Carry::Plain));
    let shown = config.to_string();
    assert!(shown.contains("video, 40 % of the link"), "{shown}");

    let fault = |lines: &str| peer_fault(&format!("{LINK}\n{lines}"));
    let rule = |lines: &str| fault(&format!("[[peer.rule]]\n{lines}"));
    let class = |lines: &str| fault(&format!("[[peer.class]]\n{lines}"));
    assert_says(&rule("class = \"bluk\""), &["no class \"bluk\"", "did you mean \"bulk\"?"]);
    assert_says(&rule("class = \"x\""), &["define it with [[peer.class]]"]);
    assert_says(&rule("dscp = 8"), &["has no class", "\"bulk\""]);
    assert_says(&rule("class = \"bulk\"\nports = [\"9-2\"]"), &["not a port such as 5001"]);
    assert_says(&rule("class = \"bulk\"\nports = [70000]"), &["a port such as 5001"]);
    assert_says(&rule("class = \"bulk\"\nprotocol = \"upd\""), &["did you mean \"udp\"?"]);
    assert_says(&rule("class = \"bulk\"\ndscp = 64"), &["\"ef\""]);
    assert_says(&rule("carry = \"order\""), &["\"order\" is not one of", "ordered"]);
    let unordered = rule("carry = \"unordered\"");
    assert_says(&unordered, &["is gone", "write carry = \"ordered\"", "\"plain\" for calls"]);
    assert_says(&rule("class = \"bulk\"\ndeadline = \"2s\""), &["is gone", "leave it out"]);
    assert_says(&class("share = 4"), &["has no name"]);
    assert_says(&class("name = \"v\"\nhold = \"21ms\""), &["longer than 20ms"]);
    assert_says(&class("name = \"v\"\ncap = \"0bit\""), &["is a rate of 0", "for no cap"]);
    assert_says(&class("name = \"v\"\nshare = 0"), &["percent from 1 to 99"]);
    assert_says(&class("name = \"interactive\"\nshare = 5"), &["goes first and has no share"]);
    let twice = "name = \"v\"\nshare = 60\n[[peer.class]]\nname = \"w\"\nshare = 60";
    assert_says(&class(twice), &["120 % together"]);
    assert_says(
        &class("name = \"v\"\nshare = 6\n[[peer.class]]\nname = \"v\""),
        &["class \"v\" is there twice"],
    );
}

#[test]
fn node_values_that_cannot_work_are_refused() {
    assert_says(&node_fault("listen = \"4500\""), &["did you mean \"0.0.0.0:4500\"?"]);
    assert_says(&node_fault("listen = 4500"), &["write listen = \"0.0.0.0:4500\""]);
    assert_says(&node_fault("listen = \"0.0.0.0:0\""), &["has port 0"]);
    assert_says(&node_fault("lan = [\"a-name-of-16-chr\"]"), &["at most 15 bytes"]);
    assert_says(&node_fault("lan = [\"eth1\", \"eth1\"]"), &["eth1 is twice in lan"]);
    assert_says(
        &node_fault("tun = \"eth1\"\nlan = [\"eth1\"]"),
        &["both the tun device and a lan"],
    );
    assert_says(&node_fault("memory = \"1kB\""), &["below 1MiB"]);
    assert_says(&node_fault("log = \"verbose\""), &["\"error\", \"warn\", \"info\""]);
    assert_says(&node_fault("log = \"dbug\""), &["did you mean \"debug\"?"]);
}

#[test]
fn missing_tables_and_keys_are_asked_for() {
    assert_says(&one(faults("")), &["1:1 the file has no [node] table"]);
    assert_says(&one(faults("[node]\n")), &["[node] has no private_key", "bentpipe keygen"]);
    let no_key = format!("[node]\nprivate_key = \"{}\"\n[[peer]]\n{LINK}\n", private(1));
    assert_says(&one(faults(&no_key)), &["[[peer]] has no public_key"]);
    let single = format!("[node]\nprivate_key = \"{}\"\n[peer]\n{LINK}\n", private(1));
    assert_says(&one(faults(&single)), &["start each with [[peer]]"]);
}

#[test]
fn all_problems_of_a_file_come_at_once_and_in_its_order() {
    let text = file("lsiten = 1\nmemory = \"1kB\"", "profile = \"warp\"\nkeepalive = 25");
    let lines: Vec<String> =
        faults(&text).iter().map(|f| f.split(':').next().unwrap_or("").to_owned()).collect();
    assert_eq!(lines, ["3", "4", "9", "10"]);
}

#[test]
fn broken_toml_is_refused_with_its_place() {
    assert_says(&faults("[node]\nlisten = \n")[0], &["2:", "not TOML"]);
    assert_says(&faults("[node]\nlisten = \"a\"\nlisten = \"b\"\n")[0], &["3:1", "not TOML"]);
    assert_says(&faults("[node\n")[0], &["1:", "not TOML"]);
}

#[test]
fn no_message_shows_a_key() {
    let key = private(1);
    let texts = [
        format!("[node]\nprivate_key = \"{}\"\n", &key[..40]),
        format!("[node]\nprivate_key = \"{key}\nlisten = 1\n"),
        format!("[node]\nprivate_kye = \"{key}\"\n"),
        format!("[node]\nlisten = \"{key}\"\nprivate_key = \"{key}\"\nzzz = 1\n"),
    ];
    for text in texts {
        let e = Config::parse(&text, Path::new("t.toml")).expect_err("a wrong file");
        let mut shown = String::new();
        miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::none())
            .render_report(&mut shown, &e)
            .expect("it renders");
        shown.push_str(&format!("{e:?}{}", serde_json::to_string(&e.to_report()).expect("JSON")));
        assert!(!shown.contains(&key[2..34]), "{shown}");
    }
}

#[test]
fn a_report_points_at_the_place_with_a_caret() {
    let e = Config::parse(&file("memory = \"256M\"", LINK), Path::new("ship.toml")).unwrap_err();
    let mut shown = String::new();
    miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::ascii())
        .render_report(&mut shown, &e)
        .expect("it renders");
    assert_says(&shown, &["ship.toml:3:10", "memory = \"256M\"", "^", "did you mean \"256MiB\"?"]);
}

#[test]
fn too_little_memory_for_a_link_is_a_warning() {
    let config = good(&file("memory = \"1MiB\"", LINK));
    assert_eq!(config.warnings.len(), 1);
    assert_says(
        &config.warnings[0].message,
        &["needs 2.8MiB of buffers to stay full, and memory is 1MiB"],
    );
}

#[test]
fn a_family_that_is_allowed_and_has_no_way_back_is_a_warning() {
    let warnings = |routes: &str| {
        let more = format!("{routes}allow = [\"10.1.0.0/16\", \"fd10:1::/64\"]");
        good(&format!("{}{more}\n", file("", LINK))).warnings
    };
    let found = warnings("routes = [\"10.2.0.0/24\"]\n");
    assert_eq!(found.len(), 1);
    assert_says(&found[0].message, &["fd10:1::/64", "no IPv6", "one way"]);
    assert_eq!(warnings("routes = [\"10.2.0.0/24\", \"fd10:2::/64\"]\n").len(), 0);
    assert_eq!(warnings("").len(), 0, "who has no addresses is no matter of families");
}

#[test]
fn a_reload_finds_what_is_new_changed_and_gone() {
    let two = |second: u8, route: &str| {
        good(&format!(
            "{}routes = [\"{route}\"]\n[[peer]]\nname = \"x\"\npublic_key = \"{}\"\n{LINK}\n",
            file("", LINK),
            public(second)
        ))
    };
    let old = two(3, "10.0.0.0/8");
    assert_eq!(old.changes(&two(3, "10.0.0.0/8")), Changes::default());
    let changes = old.changes(&two(4, "11.0.0.0/8"));
    let names =
        |peers: &[std::sync::Arc<Peer>]| peers.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&changes.changed), ["shore"]);
    assert_eq!((changes.added.len(), changes.removed.len()), (1, 1));
    let moved = good(&file("listen = \"0.0.0.0:9\"", LINK));
    assert_eq!(old.changes(&moved).needs_restart, ["listen"]);
}

#[test]
fn a_file_of_noise_never_panics() {
    let mut rng = units::Rng::new(5);
    let base = file("lan = [\"eth1\"]", LINK);
    for _ in 0..2_000 {
        let mut bytes = base.clone().into_bytes();
        for _ in 0..rng.between(1, 6) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes[at] = rng.below(128) as u8,
                1 => drop(bytes.drain(at..(at + rng.below(20) as usize).min(bytes.len()))),
                _ => bytes.insert(at, b"[]{}\"=\n.#'"[rng.below(10) as usize]),
            }
            if bytes.is_empty() {
                bytes.push(b'\n');
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Err(e) = Config::parse(&text, Path::new("t.toml")) {
            let mut shown = String::new();
            miette::GraphicalReportHandler::new()
                .render_report(&mut shown, &e)
                .expect("it renders");
        }
    }
}

#[test]
fn shares_are_numbers_or_percent() {
    let ber = |ber: &str| {
        let link = LINK.replace(" }", &format!(", ber = {ber} }}"));
        good(&file("", &link)).peers[0].link.ber
    };
    assert_eq!(ber("\"0.1%\""), ber("1e-3"));
    assert_eq!(ber("\"0.1 %\""), ber("0.001"));
    assert_eq!(ber("\"1e-6\""), ber("1e-6"));
}

#[test]
fn rates_in_other_units_get_the_help_that_is_meant() {
    let send = |send: &str| peer_fault(&LINK.replace("\"2Mbit\"", send));
    assert_says(&send("2000000"), &["write send = \"2Mbit\""]);
    assert_says(&send("512"), &["write send = \"512kbit\""]);
    assert_says(&send("\"2000000\""), &["did you mean \"2Mbit\"?"]);
    assert_says(&send("\"2MB\""), &["MB is megabytes", "\"16Mbit\"", "\"2Mbit\""]);
}

#[test]
fn tables_of_a_peer_are_named_as_they_are_written() {
    let stray = file("", &format!("{LINK}\n[[rule]]\nport = [80]\nclass = \"bulk\"\n"));
    let fault = one(faults(&stray));
    assert_says(&fault, &["no key \"rule\" in the file", "write [[peer.rule]]"]);
    let inside = peer_fault(&format!("{LINK}\n[[peer.rule]]\nprt = 80\nclass = \"bulk\"\n"));
    assert_says(&inside, &["\"prt\" in [[peer.rule]]"]);
}

/// Warnings of a file that can be used.
fn doubts(text: &str) -> Vec<String> {
    good(text).warnings.iter().map(|w| w.message.clone()).collect()
}

#[test]
fn what_cannot_have_been_meant_is_doubted() {
    let routes = |routes: &str| format!("{LINK}\n{routes}\n");
    let lan = "lan = [\"eth1\"]";
    assert_says(&one(doubts(&file(lan, LINK))), &["no peer has routes"]);
    assert!(doubts(&file(lan, &routes("routes = [\"::/0\"]"))).is_empty());
    assert!(doubts(&file("", LINK)).is_empty());
    let both = routes("routes = [\"10.1.0.0/24\"]\nallow = [\"10.1.0.0/24\"]");
    assert_says(&one(doubts(&file("", &both))), &["10.1.0.0/24 is in both routes and allow"]);
    let default = routes("routes = [\"0.0.0.0/0\"]\nallow = [\"0.0.0.0/0\"]");
    assert!(doubts(&file("", &default)).is_empty());
    for open in ["0.0.0.0:1080", "[::]:1080", "203.0.113.7:1080", "[2001:db8::1]:1080"] {
        let text = file(&format!("proxy = \"{open}\""), &routes("routes = [\"::/0\"]"));
        assert_says(&one(doubts(&text)), &[&format!("whoever reaches {open} may use the proxy")]);
    }
    for closed in ["127.0.0.1:1080", "[::1]:1080", "10.1.0.1:1080", "[fd00::1]:1080"] {
        let proxy = format!("proxy = \"{closed}\"");
        assert!(doubts(&file(&proxy, &routes("routes = [\"::/0\"]"))).is_empty(), "{closed}");
        assert_says(&one(doubts(&file(&proxy, LINK))), &["the proxy refuses every address"]);
    }
}

#[test]
fn a_log_tells_each_problem_once_with_its_place_and_help() {
    let text = file("lan = []", "roots = []\nalow = []\nuser = 3\nx = 1\n");
    let e = Config::parse(&text, Path::new("t.toml")).expect_err("a wrong file");
    let line = e.in_one_line();
    assert!(!line.contains('\n'), "{line}");
    assert_says(&line, &["t.toml:8:1: there is no key \"roots\"", "(did you mean \"routes\"?)"]);
    assert_says(&line, &["; and ", " more"]);
    assert_eq!(line.matches("\"roots\"").count(), 1);
}

#[test]
fn name_servers_of_hosts_are_one_of_a_family_and_behind_a_peer() {
    let with = |dns: &str| node_fault(&format!("lan = [\"lan0\"]\ndns = [{dns}]"));
    assert_says(&with("\"9.9.9.9\", \"9.9.9.10\""), &["9.9.9.10 is a second name server"]);
    assert_says(&with("\"fe80::1\""), &["fe80::1 is no name server behind a peer"]);
    assert_says(&with("\"127.0.0.1\""), &["127.0.0.1 is no name server"]);
    assert_says(&with("\"9.9.9.9:53\""), &["did you mean \"9.9.9.9\"?"]);
    assert_says(&node_fault("dns = [\"9.9.9.9\"]"), &["only where it has a `lan`"]);
    let warnings = |routes: &str| {
        let node = "lan = [\"lan0\"]\ndns = [\"9.9.9.9\"]\n";
        good(&format!("{}routes = [\"{routes}\"]\n", file(node, LINK))).warnings
    };
    let [one] = &warnings("10.2.0.0/16")[..] else { panic!("one warning") };
    assert!(one.message.contains("to 9.9.9.9, which no peer's routes lead to"), "{one:?}");
    assert_eq!(warnings("0.0.0.0/0").len(), 0);
}

#[test]
fn the_corpus_of_configurations_replays() {
    corpus::replay("config", super::fuzz);
}

#[test]
fn a_node_that_intercepts_nothing_is_not_told_that_it_blocks() {
    let told = |node: &str| good(&file(node, LINK)).to_string();
    assert!(told("lan = [\"eth1\"]").contains("hosts' traffic is blocked"));
    assert!(!told("proxy = \"127.0.0.1:1080\"").contains("hosts' traffic"));
}
