//! What is forwarded while the rules are gone.

use super::*;

/// Packets that reached the server for prefixes of the peers'.
fn in_clear(lab: &Lab, of: &str) -> u64 {
    let list = lab.server.run(|| {
        command::run(Command::new("nft").args(["list", "table", "inet", "t"]), "").unwrap()
    });
    let name = format!("comment \"{of}\"");
    let line = list.lines().find(|line| line.contains(&name)).expect("a counter");
    line.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap()
}

fn flush(lab: &Lab) {
    for family in ["-4", "-6"] {
        lab.gateway.ip(&format!("{family} rule flush")).unwrap();
        lab.gateway.ip(&format!("{family} rule add priority 32766 lookup main")).unwrap();
    }
}

#[test]
fn with_block_nothing_of_a_host_leaves_in_clear_while_the_rules_are_gone_and_all_else_does() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("guard");
    lab.gateway.route("10.96.0.0/13 via 10.2.0.2").unwrap();
    lab.gateway.route("fd99::/32 via fd02::2").unwrap();
    lab.server.run(|| {
        nft("add table inet t; add chain inet t p { type filter hook prerouting priority raw; }; \
             add rule inet t p ip daddr 10.99.7.0/24 counter accept comment \"direct\"; \
             add rule inet t p ip daddr 10.98.0.0/16 counter accept comment \"wire\"; \
             add rule inet t p ip daddr 10.99.8.1 counter accept comment \"ruled\"; \
             add rule inet t p ip daddr 10.99.0.0/16 counter drop comment \"v4\"; \
             add rule inet t p ip6 daddr fd99::/32 counter drop comment \"v6\"");
    });
    let settings = |c: &mut InterceptConfig| {
        c.direct = prefixes(&["10.99.7.0/24"]);
        c.in_clear = prefixes(&["10.98.0.0/16"]);
    };
    let routes = ["10.99.0.0/16", "10.98.0.0/16", "fd99::/32"];
    lab.intercepting(&routes, settings, |mut gateway| {
        let [v4, v6] = ["10.1.0.2:9", "[fd01::2]:9"]
            .map(|from| lab.client.run(|| UdpSocket::bind(from)).unwrap());
        let send = || {
            v6.send_to(b"x", "[fd99::1]:9").unwrap();
            for to in ["10.99.1.1:9", "10.99.7.1:9", "10.98.0.1:9", "10.99.8.1:9"] {
                v4.send_to(b"x", to).unwrap();
            }
        };
        // Packets of one send arrive in its order or never: those that pass come last.
        let wait_until = |is_so: &dyn Fn([u64; 5]) -> bool| {
            let begin = Instant::now();
            loop {
                thread::sleep(std::time::Duration::from_millis(100));
                let seen = ["v4", "v6", "direct", "wire", "ruled"].map(|of| in_clear(&lab, of));
                if is_so(seen) {
                    return;
                }
                assert!(begin.elapsed().as_secs() < 20, "{seen:?}");
            }
        };
        let seen = |expected: [u64; 5]| wait_until(&|seen| seen == expected);
        // Another's rule comes first and holds, as it always did.
        lab.gateway.ip("rule add to 10.99.8.1 lookup main priority 100").unwrap();
        let client = connects_later(&lab.client, "10.99.1.1:80");
        let _accepted = gateway.accept(true);
        let mut client = client.join().unwrap().unwrap();
        send();
        seen([0, 0, 1, 0, 1]);
        flush(&lab);
        lab.gateway.ip("rule add to 10.99.8.1 lookup main priority 100").unwrap();
        client.write_all(b"to a socket of the gateway").unwrap();
        send();
        seen([0, 0, 2, 1, 1]);
        gateway.intercept.repair().unwrap();
        send();
        seen([0, 0, 3, 1, 2]);
        // Without block nothing is dropped, which shows that the counters count.
        let mut config = gateway.intercept.config.clone();
        config.on_failure = OnFailure::Wire;
        gateway.intercept.update(&config).unwrap();
        flush(&lab);
        send();
        wait_until(&|[v4, v6, ..]| v4 > 0 && v6 > 0);
    });
}
