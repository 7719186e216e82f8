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

/// A client that sends to all kinds of prefixes, and what of it has arrived in clear.
struct Sender {
    lab: Lab,
    v4: UdpSocket,
    v6: UdpSocket,
}

const ROUTES: [&str; 3] = ["10.99.0.0/16", "10.98.0.0/16", "fd99::/32"];

/// Of [`ROUTES`] one goes in clear when the program is gone, and a part of one always.
fn settings(config: &mut InterceptConfig) {
    config.direct = prefixes(&["10.99.7.0/24"]);
    config.in_clear = prefixes(&["10.98.0.0/16"]);
}

impl Sender {
    /// One packet to each of [`ROUTES`], to what goes direct and to what another's rule leads.
    const KINDS: [&str; 5] = ["v4", "v6", "direct", "wire", "ruled"];

    fn new(label: &str) -> Sender {
        let lab = Lab::new(label);
        lab.gateway.route("10.96.0.0/13 via 10.2.0.2").unwrap();
        lab.gateway.route("fd99::/32 via fd02::2").unwrap();
        lab.server.run(|| {
            nft("add table inet t; \
                 add chain inet t p { type filter hook prerouting priority raw; }; \
                 add rule inet t p ip daddr 10.99.7.0/24 counter accept comment \"direct\"; \
                 add rule inet t p ip daddr 10.98.0.0/16 counter accept comment \"wire\"; \
                 add rule inet t p ip daddr 10.99.8.1 counter accept comment \"ruled\"; \
                 add rule inet t p ip daddr 10.99.0.0/16 counter drop comment \"v4\"; \
                 add rule inet t p ip6 daddr fd99::/32 counter drop comment \"v6\"");
        });
        let [v4, v6] = ["10.1.0.2:9", "[fd01::2]:9"]
            .map(|from| lab.client.run(|| UdpSocket::bind(from)).unwrap());
        Sender { lab, v4, v6 }
    }

    /// To [`Sender::KINDS`]; packets of one send arrive in its order or never: those that pass
    /// come last.
    fn send(&self) {
        let to = ["10.99.1.1:9", "10.99.7.1:9", "10.98.0.1:9", "10.99.8.1:9"];
        let v4 = to.map(|to| (&self.v4, to));
        for (socket, to) in [(&self.v6, "[fd99::1]:9")].into_iter().chain(v4) {
            socket.send_to(b"x", to).unwrap();
        }
    }

    fn wait_until(&self, is_so: &dyn Fn([u64; 5]) -> bool) {
        let begin = Instant::now();
        loop {
            thread::sleep(std::time::Duration::from_millis(100));
            let seen = Sender::KINDS.map(|of| in_clear(&self.lab, of));
            if is_so(seen) {
                return;
            }
            assert!(begin.elapsed().as_secs() < 20, "{seen:?}");
        }
    }

    /// Sends, and waits for what has arrived since the beginning.
    fn sees(&self, expected: [u64; 5]) {
        self.send();
        self.wait_until(&|seen| seen == expected);
    }

    /// Somebody else's, before ours.
    fn lead_elsewhere(&self) {
        self.lab.gateway.ip("rule add to 10.99.8.1 lookup main priority 100").unwrap();
    }
}

#[test]
fn with_block_nothing_of_a_host_leaves_in_clear_while_the_rules_are_gone_and_all_else_does() {
    if !root_alone() {
        return;
    }
    let sender = Sender::new("guard");
    let lab = &sender.lab;
    lab.intercepting(&ROUTES, settings, |mut gateway| {
        sender.lead_elsewhere();
        let client = connects_later(&lab.client, "10.99.1.1:80");
        let _accepted = gateway.accept(true);
        let mut client = client.join().unwrap().unwrap();
        sender.sees([0, 0, 1, 0, 1]);
        flush(lab);
        sender.lead_elsewhere();
        client.write_all(b"to a socket of the gateway").unwrap();
        sender.sees([0, 0, 2, 1, 1]);
        gateway.intercept.repair().unwrap();
        sender.sees([0, 0, 3, 1, 2]);
        // Without block nothing is dropped, which shows that the counters count.
        let mut config = gateway.intercept.config.clone();
        config.on_failure = OnFailure::Wire;
        gateway.intercept.update(&config).unwrap();
        flush(lab);
        sender.send();
        sender.wait_until(&|[v4, v6, ..]| v4 > 0 && v6 > 0);
    });
}

#[test]
fn with_block_nothing_of_a_host_leaves_in_clear_where_rules_go_when_the_program_is_gone() {
    if !root_alone() {
        return;
    }
    let sender = Sender::new("stopped");
    let lab = &sender.lab;
    // One that would go in clear if it were not inside one that blocks.
    let routes: Vec<&str> = ROUTES.into_iter().chain(["10.99.9.0/24"]).collect();
    let settings = |config: &mut InterceptConfig| {
        settings(config);
        config.in_clear.extend(prefixes(&["10.99.9.0/24"]));
        // More text than an argument may have.
        for n in 0..2_500 {
            let to = Ipv4Addr::from(0xc612_0000_u32 + n);
            config.direct.push(IpPrefix::new(to.into(), 32));
        }
    };
    // The watchdog lets go of its lock when it has finished.
    let wait = || {
        let within = std::time::Duration::from_secs(15);
        lab.gateway.run(|| drop(lock_within(LOCK, within).unwrap()));
    };
    let sees = |expected: [u64; 5]| {
        sender.v4.send_to(b"x", "10.99.9.1:9").unwrap();
        sender.sees(expected);
    };
    lab.intercepting(&routes, settings, drop);
    wait();
    sender.lead_elsewhere();
    sees([0, 0, 1, 1, 1]);
    flush(lab);
    sender.lead_elsewhere();
    sees([0, 0, 2, 2, 1]);
    // A start that fails leaves it so.
    lab.gateway.run(|| {
        let tun = Tun::open("bp0", 1500).unwrap();
        let mut config = InterceptConfig::new(tun.name(), 1);
        config.routes = prefixes(&["10.99.0.0/16"]);
        lab.gateway.ip("route add 10.99.0.0/16 dev lan0 table 25216 metric 1").unwrap();
        assert!(Intercept::install(&config).is_err());
        lab.gateway.ip("route delete 10.99.0.0/16 dev lan0 table 25216 metric 1").unwrap();
    });
    sees([0, 0, 3, 3, 1]);
    // Rules that were gone before the end are back.
    lab.intercepting(&routes, settings, |gateway| {
        flush(lab);
        drop(gateway);
    });
    wait();
    sender.lead_elsewhere();
    sees([0, 0, 4, 4, 2]);
    lab.gateway.run(|| release().unwrap());
    sender.sees([1, 1, 5, 5, 3]);
}
