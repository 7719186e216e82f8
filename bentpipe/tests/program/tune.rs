//! `bentpipe tune` in a network of its own, looked at with the system's tools.

use std::path::PathBuf;
use std::process::Output;

use os::netns::{NetNs, root, veth};

/// A host with a route over a link, its neighbour, and a place for the state.
struct Host {
    ns: NetNs,
    _neighbour: NetNs,
    state: PathBuf,
}

impl Host {
    fn new(name: &str) -> Host {
        let ns = NetNs::unique("bptune", name).expect("root");
        let neighbour = NetNs::unique("bptune", &format!("{name}b")).expect("root");
        veth(&ns, "sat0", &neighbour, "x").expect("a cable");
        ns.address("sat0", "10.9.0.1/24").expect("an address");
        ns.address("sat0", "fd09::1/64").expect("an address");
        neighbour.address("x", "10.9.0.2/24").expect("an address");
        ns.route("default via 10.9.0.2 dev sat0 metric 7 initcwnd 12").expect("a route");
        ns.route("default via fd09::2 dev sat0").expect("a route");
        // A small machine's, so that there is something to raise.
        ns.sysctl("net.ipv4.tcp_rmem", "4096 87380 100000").expect("a parameter");
        ns.sysctl("net.ipv4.tcp_sack", "0").expect("a parameter");
        let state = format!("bentpipe-tune-{name}-{}.json", std::process::id());
        Host { ns, _neighbour: neighbour, state: std::env::temp_dir().join(state) }
    }

    fn tune(&self, words: &str) -> Output {
        let mut command = self.ns.command(env!("CARGO_BIN_EXE_bentpipe"));
        command.arg("tune").arg("--state").arg(&self.state).args(words.split_whitespace());
        command.output().expect("the program")
    }

    /// All routes and parameters, as the system's tools tell them.
    fn looks(&self) -> Vec<String> {
        let mut all = Vec::new();
        for family in ["-4", "-6"] {
            let ip = ["ip", family, "route", "show"].join(" ");
            let routes = self.ns.ip(ip.trim_start_matches("ip ")).expect("routes");
            let mut lines: Vec<_> = routes.lines().map(|l| l.trim_end().to_owned()).collect();
            lines.sort();
            all.extend(lines);
        }
        for key in ["rmem", "wmem", "sack", "timestamps", "window_scaling", "no_metrics_save"] {
            let key = format!("net.ipv4.tcp_{key}");
            let value = self.ns.read_sysctl(&key).expect("a parameter");
            all.push(format!("{key} = {value}"));
        }
        let idle = self.ns.read_sysctl("net.ipv4.tcp_slow_start_after_idle").expect("a parameter");
        all.push(format!("idle = {idle}"));
        all
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.state);
    }
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).expect("UTF-8")
}

#[track_caller]
fn well(output: Output) -> String {
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn everything_is_set_and_put_back_exactly() {
    if !root() {
        return;
    }
    let host = Host::new("whole");
    let before = host.looks();
    assert!(well(host.tune("--show geo-20-2")).contains("initcwnd 35"), "what would be");
    assert_eq!(host.looks(), before, "--show changes nothing");
    assert!(text(&host.tune("--undo")).contains("nothing is tuned here"));

    well(host.tune("--apply geo-20-2"));
    let route = host.ns.ip("-4 route show default").expect("a route");
    for part in ["initcwnd 35", "initrwnd 1037", "rto_min lock 200ms", "advmss 1460", "metric 7"] {
        assert!(route.contains(part), "{part}: {route}");
    }
    let route = host.ns.ip("-6 route show default").expect("a route");
    assert!(route.contains("advmss 1440") && route.contains("mtu 1500"), "{route}");
    let rmem = host.ns.read_sysctl("net.ipv4.tcp_rmem").expect("a parameter");
    // Four windows of 20 Mbit/s × 600 ms.
    let most: u64 = rmem.split_whitespace().last().expect("three").parse().expect("a number");
    assert!((6_000_000..6_100_000).contains(&most), "{rmem}");
    assert_eq!(host.ns.read_sysctl("net.ipv4.tcp_sack").expect("one"), "1");
    assert_eq!(host.ns.read_sysctl("net.ipv4.tcp_slow_start_after_idle").expect("one"), "0");
    assert!(well(host.tune("--show")).contains("tuned for geo-20-2"));

    // For another link without an undo between: what was there first is put back in the end.
    well(host.tune("--apply mini-m"));
    let route = host.ns.ip("-4 route show default").expect("a route");
    for part in ["initcwnd 2", "mtu 500", "advmss 460", "rto_min lock 500ms"] {
        assert!(route.contains(part), "{part}: {route}");
    }
    let route = host.ns.ip("-6 route show default").expect("a route");
    assert!(route.contains("advmss 440") && !route.contains("mtu"), "{route}");
    well(host.tune("--undo"));
    assert_eq!(host.looks(), before);
    assert!(!host.state.exists());
}

#[test]
fn a_crash_in_the_middle_and_changes_by_others_are_survived() {
    if !root() {
        return;
    }
    let host = Host::new("crash");
    let before = host.looks();
    well(host.tune("--apply t1-geo"));
    // As if the program had ended before it came to the routes.
    let noted = std::fs::read(&host.state).expect("the state");
    well(host.tune("--undo"));
    host.ns.sysctl("net.ipv4.tcp_sack", "1").expect("a parameter");
    std::fs::write(&host.state, noted).expect("the state");
    well(host.tune("--undo"));
    assert_eq!(host.looks(), before);

    // What somebody else has changed since is his.
    well(host.tune("--apply t1-geo"));
    host.ns.sysctl("net.ipv4.tcp_rmem", "4096 50000 60000").expect("a parameter");
    let said = well(host.tune("--undo"));
    assert!(said.contains("somebody changed this since") && said.contains("tcp_rmem"), "{said}");
    let rmem = host.ns.read_sysctl("net.ipv4.tcp_rmem").expect("a parameter");
    assert_eq!(rmem.split_whitespace().collect::<Vec<_>>(), ["4096", "50000", "60000"]);

    // A link or device that is not there changes nothing.
    let before = host.looks();
    for (words, told) in [
        ("--apply geo-20-3", "there is no profile"),
        ("--apply geo-20-2 --device wwan0", "no route leads to the interface \"wwan0\""),
        ("--apply", "PROFILE|FILE"),
    ] {
        let refused = host.tune(words);
        assert!(!refused.status.success() && text(&refused).contains(told), "{}", text(&refused));
    }
    assert_eq!(host.looks(), before);
}

#[test]
fn what_cannot_be_put_back_stays_noted_until_it_can() {
    if !root() {
        return;
    }
    let host = Host::new("refused");
    let before = host.looks();
    well(host.tune("--apply t1-geo"));
    // The kernel refuses a word where a number belongs.
    let noted = std::fs::read_to_string(&host.state).expect("the state");
    let sack = noted.find("net.ipv4.tcp_sack").expect("it is changed");
    let (head, tail) = noted.split_at(sack);
    let refused = format!("{head}{}", tail.replacen("\"before\": \"0\"", "\"before\": \"x\"", 1));
    assert_ne!(noted, refused);
    std::fs::write(&host.state, refused).expect("the state");
    for words in ["--undo", "--undo", "--apply geo-20-2"] {
        let output = host.tune(words);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{words}: {said}");
        assert!(said.contains("tcp_sack") && !said.contains("this host is as it was"), "{said}");
        assert_eq!(host.ns.read_sysctl("net.ipv4.tcp_sack").expect("one"), "1", "{said}");
    }
    let left = std::fs::read_to_string(&host.state).expect("it is still noted");
    assert!(!left.contains("tcp_rmem"), "the others were put back: {left}");
    std::fs::write(&host.state, left.replace("\"x\"", "\"0\"")).expect("the state");
    assert!(well(host.tune("--undo")).contains("this host is as it was"));
    assert_eq!(host.looks(), before);
    assert!(!host.state.exists());
}
