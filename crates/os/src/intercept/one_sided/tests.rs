//! Rules and routes of a gateway with such a link, as other programs change the system's.

use super::*;
use crate::intercept::children::readable_within;
use crate::netns::{NetNs, root_alone, veth};

fn config() -> OneSidedConfig {
    let link = OneSidedLink {
        device: "sat0".into(),
        routes: vec!["0.0.0.0/0".parse().unwrap()],
        initial_windows: [30, 60],
        least_rto: units::Duration::from_millis(300),
        packets: [1000, 1500],
    };
    OneSidedConfig { lan: vec![], own: false, listener_port: 1, links: vec![link] }
}

#[test]
fn routes_to_the_link_carry_its_metrics_and_others_do_not() {
    let leg_route = |line: &str, family| {
        let (route, way) = read_route(line);
        replace_command(&route, &way, family, &config())
    };
    let there = "default via 10.0.0.1 dev sat0 proto 3 scope 0 initcwnd 9 rto_min lock 3s";
    let metrics = "initcwnd 30 initrwnd 60 rto_min 300ms";
    assert_eq!(
        leg_route(there, Family::V4),
        format!(
            "route replace default table 25193 via 10.0.0.1 dev sat0 {metrics} mtu 1000 \
             advmss 1460 proto 144\n"
        )
    );
    assert_eq!(
        leg_route("default dev sat0 metric 7", Family::V6),
        format!(
            "route replace default table 25193 metric 7 dev sat0 {metrics} advmss 1440 proto 144\n"
        )
    );
    let here = "10.2.0.0/24 dev lan0 proto 2 scope 253 src 10.2.0.1";
    let same = "route replace 10.2.0.0/24 table 25193 dev lan0 src 10.2.0.1 proto 144\n";
    assert_eq!(leg_route(here, Family::V4), same);
}

/// A gateway with its link, and a host beyond that.
struct Lab {
    gateway: NetNs,
    _far: NetNs,
}

impl Lab {
    fn new(label: &str) -> Lab {
        let ns = |role: &str| NetNs::unique("ostest", &format!("{label}{role}")).unwrap();
        let (gateway, far) = (ns("g"), ns("f"));
        veth(&gateway, "sat0", &far, "eth0").unwrap();
        gateway.address("sat0", "10.2.0.1/24").unwrap();
        gateway.address("sat0", "fd02::1/64").unwrap();
        Lab { gateway, _far: far }
    }

    fn install(&self) -> OneSided {
        self.gateway.run(|| OneSided::install(&config()).unwrap_or_else(|e| panic!("{e}")))
    }

    /// What there is of ours: rules, and routes with all that they carry.
    fn ours(&self) -> String {
        let mut all = String::new();
        for family in ["-4", "-6"] {
            let rules = self.gateway.ip(&format!("{family} rule show")).unwrap();
            all.extend(
                rules.lines().filter(|l| l.contains(" proto 144")).map(|l| format!("{l}\n")),
            );
            let routes = self.gateway.ip(&format!("{family} route show table all protocol 144"));
            all += &routes.unwrap();
        }
        all
    }
}

/// Repairs until nothing is told any more: what a repair does is told, too.
fn follow(lab: &Lab, one_sided: &mut OneSided) {
    let waits = |fd: &OneSided| readable_within(fd.as_fd(), 0).unwrap();
    assert!(waits(one_sided), "nothing was told");
    for _ in 0..3 {
        assert!(!lab.gateway.run(|| one_sided.repair().unwrap()), "its helpers live");
    }
    assert!(!waits(one_sided), "what a repair does needs another one");
}

#[test]
fn routes_of_main_are_followed_as_they_come_change_and_go() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("follow");
    let mut one_sided = lab.install();
    let at_first = lab.ours();
    for (family, net, gateways) in [
        ("-4", "10.50.0.0/16", ["10.2.0.2", "10.2.0.3"]),
        ("-6", "fd50::/32", ["fd02::2", "fd02::3"]),
    ] {
        let [before, after] = gateways.map(|via| format!("{net} via {via} dev sat0 table 25193"));
        let mut route = |words: &str| {
            lab.gateway.ip(&format!("{family} route {words}")).unwrap();
            follow(&lab, &mut one_sided);
            lab.ours()
        };
        let came = route(&format!("add {net} via {}", gateways[0]));
        let line = came.lines().find(|l| l.contains(&before)).unwrap_or_else(|| panic!("{came}"));
        assert!(line.contains("initcwnd 30"), "{line}");
        let changed = route(&format!("change {net} via {}", gateways[1]));
        assert!(changed.contains(&after) && !changed.contains(&before), "{changed}");
        assert_eq!(route(&format!("delete {net}")), at_first);
    }
    drop(one_sided);
    assert_eq!(lab.ours(), "");
}

#[test]
fn what_others_remove_is_put_back_and_what_is_not_ours_stays() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("back");
    let foreign = "10.60.0.0/16 dev sat0 table 25193";
    lab.gateway.ip(&format!("route add {foreign}")).unwrap();
    let mut one_sided = lab.install();
    let before = lab.ours();
    for table in TABLES {
        for family in ["-4", "-6"] {
            lab.gateway.ip(&format!("{family} route flush table {table} proto 144")).unwrap();
            follow(&lab, &mut one_sided);
            assert_eq!(lab.ours(), before, "{family} table {table}");
        }
    }
    lab.gateway.ip("rule flush protocol 144").unwrap();
    follow(&lab, &mut one_sided);
    assert_eq!(lab.ours(), before);
    let all = lab.gateway.ip("route show table 25193").unwrap();
    assert!(all.contains("10.60.0.0/16 dev sat0"), "{all}");
}

#[test]
fn a_repair_that_failed_is_made_up_for_without_further_news() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("behind");
    // The system keeps a route whose gateway it no longer reaches, but takes no new one.
    lab.gateway.route("10.50.0.0/16 via 10.2.0.2").unwrap();
    lab.gateway.ip("route delete 10.2.0.0/24 dev sat0").unwrap();
    lab.gateway.ip("route add 10.2.0.0/24 dev sat0 table 7").unwrap();
    lab.gateway.ip("rule add priority 7 lookup 7").unwrap();
    let mut one_sided = lab.install();
    let before = lab.ours();
    lab.gateway.ip("rule delete priority 7").unwrap();
    lab.gateway.ip("route delete 10.50.0.0/16 table 25193").unwrap();
    lab.gateway.route("10.51.0.0/16 dev sat0").unwrap();
    lab.gateway.ip("-6 route flush table 25190").unwrap();
    let repair = |one_sided: &mut OneSided| lab.gateway.run(|| one_sided.repair());
    for _ in 0..3 {
        let error = repair(&mut one_sided).unwrap_err().to_string();
        assert!(error.contains("invalid gateway"), "{error}");
        let others = ["10.51.0.0/16 dev sat0 table 25193", "local default dev lo table 25190"];
        let ours = lab.ours();
        assert_eq!(others.map(|other| ours.matches(other).count()), [1, 2], "{ours}");
    }
    // New rules are no news.
    lab.gateway.ip("rule add priority 7 lookup 7").unwrap();
    assert!(!one_sided.watch.any_news());
    assert!(!repair(&mut one_sided).unwrap());
    let whole = lab.ours();
    let old = whole.split_inclusive('\n').filter(|line| !line.contains("10.51.0.0/16"));
    assert_eq!(old.collect::<String>(), before);
}
