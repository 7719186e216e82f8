//! What holds when the program has ended, and what this host itself sends meanwhile.

use super::*;

#[test]
fn dropping_leaves_what_was_asked_for_and_a_new_start_or_a_sweep_takes_it_over() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("after");
    let routes = ["10.99.0.0/16", "fd99::/32"];
    let wire = |c: &mut InterceptConfig| c.on_failure = OnFailure::Wire;
    lab.intercepting(&routes, wire, drop);
    assert_eq!(ours(&lab.gateway), "");

    lab.intercepting(
        &routes,
        |_| {},
        |gateway| {
            let in_force = ours(&lab.gateway);
            routes::install(&Plan::of(&gateway.intercept.config).unwrap()).unwrap();
            assert_eq!(ours(&lab.gateway), in_force, "a plan in force needs no change");
        },
    );
    let left = ours(&lab.gateway);
    assert!(left.contains("unreachable 10.99.0.0/16") && left.contains("unreachable fd99::/32"));
    let marks = |of: &str| left.matches(of).count();
    assert_eq!(marks("0x6270"), marks("0x62700007") + 2, "only what tells hosts: {left}");
    assert_eq!(marks("0x62700009"), 2, "and by which it knows that rules are there: {left}");
    tells_hosts(&lab, ["10.99.1.1", "fd99::1"]);
    // A later run with other peers takes over what it finds.
    lab.intercepting(
        &["10.98.0.0/16"],
        |_| {},
        |gateway| {
            assert!(!ours(&lab.gateway).contains("10.99"));
            gateway.intercept.remove().unwrap();
            assert_eq!(ours(&lab.gateway), "");
        },
    );
    lab.intercepting(&routes, |_| {}, drop);
    lab.gateway.run(|| release().unwrap());
    assert_eq!(ours(&lab.gateway), "");
}

/// Each of many connections is refused at once, and each ping is answered.
fn tells_hosts(lab: &Lab, servers: [&str; 2]) {
    for server in servers {
        let at = std::net::SocketAddr::new(server.parse().unwrap(), 80).to_string();
        let calls: Vec<_> = (0..20).map(|_| connects_later(&lab.client, &at)).collect();
        for call in calls {
            let e = call.join().unwrap().unwrap_err();
            assert_eq!(e.raw_os_error(), Some(libc::ECONNREFUSED), "{at}: {e}");
        }
        let ping = lab.client.command("ping").args(["-c4", "-i1.05", "-W2", server]).output();
        let said = String::from_utf8(ping.unwrap().stdout).unwrap();
        assert!(said.contains("+4 errors"), "{said}");
    }
}

#[test]
fn peers_differ_in_what_becomes_of_their_traffic_and_may_change_their_mind() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("mixed");
    let mixed = |c: &mut InterceptConfig| c.in_clear = prefixes(&["10.99.0.0/16"]);
    lab.intercepting(&["10.98.0.0/16", "10.99.0.0/16", "10.97.0.0/24"], mixed, |gateway| {
        drop(gateway);
        let left = ours(&lab.gateway);
        assert!(left.contains("10.98.0.0/16") && left.contains("10.97.0.0/24"), "{left}");
        assert!(!left.contains("10.99.0.0/16"), "{left}");
    });
    lab.intercepting(
        &["10.98.0.0/16"],
        |_| {},
        |mut gateway| {
            let in_clear = prefixes(&["10.98.0.0/16"]);
            let new = InterceptConfig { in_clear, ..gateway.intercept.config.clone() };
            gateway.intercept.update(&new).unwrap();
            assert!(ours(&lab.gateway).contains("fwmark"), "the dismissed watchdog did its work");
        },
    );
    assert_eq!(ours(&lab.gateway), "");
}

/// Asks the server behind the gateway's own default route: TCP, UDP and ping, both ways.
struct Outside {
    tcp: TcpListener,
    udp: UdpSocket,
    gateway: NetNs,
    server: NetNs,
}

/// An address of the Internet, and one of those of the gateway there.
const INTERNET: &str = "203.0.113.7";
const WAN: &str = "10.2.0.1";

impl Outside {
    fn new(lab: &Lab) -> Outside {
        lab.gateway.route("default via 10.2.0.2").unwrap();
        lab.gateway.route("default via fd02::2").unwrap();
        lab.server.ip(&format!("address add {INTERNET}/32 dev lo")).unwrap();
        lab.server.ip(&format!("route replace 10.2.0.0/24 dev eth0 src {INTERNET}")).unwrap();
        let udp = lab.server.run(|| UdpSocket::bind((INTERNET, 53)).unwrap());
        udp.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        Outside {
            tcp: lab.server.run(|| TcpListener::bind((INTERNET, 80)).unwrap()),
            udp,
            gateway: lab.gateway.clone(),
            server: lab.server.clone(),
        }
    }

    /// This host's own traffic goes out and its answers come back.
    fn check_own_traffic(&self) {
        connects_later(&self.gateway, &format!("{INTERNET}:80")).join().unwrap().unwrap();
        assert_eq!(self.tcp.accept().unwrap().1.ip().to_string(), WAN);
        let own = self.gateway.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        own.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        own.send_to(b"where?", (INTERNET, 53)).unwrap();
        let (_, from) = self.udp.recv_from(&mut [0; 16]).unwrap();
        self.udp.send_to(b"there", from).unwrap();
        own.recv(&mut [0; 16]).unwrap();
        for (ns, args) in
            [(&self.gateway, [INTERNET].as_slice()), (&self.server, &["-I", INTERNET, WAN])]
        {
            let ping =
                ns.command("ping").args(["-c", "1", "-W", "10"]).args(args).output().unwrap();
            assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stdout));
        }
    }

    /// Somebody out there opens a connection to this host's own address.
    fn visit(&self, door: &TcpListener) -> (TcpStream, TcpStream) {
        let near = connects_later(&self.server, &door.local_addr().unwrap().to_string());
        let (near, far) = (near.join().unwrap().unwrap(), door.accept().unwrap().0);
        assert_eq!(far.peer_addr().unwrap().ip().to_string(), INTERNET);
        for end in [&near, &far] {
            end.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        }
        (near, far)
    }
}

/// A word there and a word back.
fn talk((near, far): &mut (TcpStream, TcpStream)) {
    near.write_all(b"ls").unwrap();
    far.read_exact(&mut [0; 2]).unwrap();
    far.write_all(b"ok").unwrap();
    near.read_exact(&mut [0; 2]).unwrap();
}

#[test]
fn a_default_route_into_the_tunnel_is_not_for_the_host_itself_alive_or_dead() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("own");
    // The strictest of networks.
    for interface in ["all", "lan0", "wan0"] {
        lab.gateway.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "1").unwrap();
    }
    let outside = Outside::new(&lab);
    let door = lab.gateway.run(|| TcpListener::bind((WAN, 22))).unwrap();
    let mut operator = outside.visit(&door);
    talk(&mut operator);
    outside.check_own_traffic();
    lab.intercepting(
        &["0.0.0.0/0", "::/0"],
        |_| {},
        |gateway| {
            talk(&mut operator);
            talk(&mut outside.visit(&door));
            outside.check_own_traffic();
            assert!(nothing_on(&gateway.tun), "own traffic crossed the tunnel");
            // A host's goes through the link, and what comes from there reaches it.
            let host = lab.client.run(|| UdpSocket::bind("10.1.0.2:9")).unwrap();
            host.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            host.send_to(b"x", (INTERNET, 53)).unwrap();
            assert_eq!(next_packet(&gateway.tun)[12..16], [10, 1, 0, 2]);
            let [far, inside] = ["198.51.100.1:7", "10.1.0.2:9"].map(|a| a.parse().unwrap());
            gateway.tun.write(&udp_packet(far, inside)).unwrap();
            host.recv(&mut [0; 16]).unwrap();
            // What comes out of the tunnel to this host itself is answered into it.
            let service = lab.gateway.run(|| UdpSocket::bind("10.1.0.1:161")).unwrap();
            service.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            gateway.tun.write(&udp_packet(far, service.local_addr().unwrap())).unwrap();
            let (_, asker) = service.recv_from(&mut [0; 16]).unwrap();
            service.send_to(b"answer", asker).unwrap();
            let answer = next_packet(&gateway.tun);
            assert_eq!(answer[12..20], [10, 1, 0, 1, 198, 51, 100, 1]);
        },
    );
    talk(&mut operator);
    talk(&mut outside.visit(&door));
    outside.check_own_traffic();
    let e = connects_later(&lab.client, &format!("{INTERNET}:80")).join().unwrap().unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::ECONNREFUSED), "{e}");
}

#[test]
fn what_blocks_is_told_with_its_end_and_is_released_only_when_nobody_runs() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("told");
    let ask = || lab.gateway.run(|| (blocked().unwrap(), is_running()));
    assert_eq!(ask(), (None, false));
    let routes = ["10.99.0.0/16", "::/0"];
    lab.intercepting(
        &routes,
        |_| {},
        |gateway| {
            let (blocked, running) = ask();
            assert!(running && blocked.is_some_and(|b| b.since.is_none()), "it would block");
            let e = release().unwrap_err().to_string();
            assert!(e.starts_with("a gateway runs here"), "{e}");
            gateway.intercept.stop();
        },
    );
    let (blocked, running) = ask();
    let stopped = blocked.unwrap();
    assert!(!running);
    assert_eq!(stopped.prefixes, prefixes(&routes));
    assert_eq!(stopped.since.map(|(how, _)| how), Some(Ended::InOrder));
    // A drop without a word is how a crash looks.
    lab.intercepting(&routes, |_| {}, drop);
    let (ended, at) = ask().0.unwrap().since.unwrap();
    assert_eq!(ended, Ended::Killed);
    assert!(at >= stopped.since.unwrap().1, "the later end counts");
    lab.gateway.run(|| release().unwrap());
    assert_eq!(ask(), (None, false));
    assert_eq!(ours(&lab.gateway), "");
}

#[test]
fn a_change_that_fails_leaves_what_was_in_force() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("fails");
    lab.intercepting(
        &["10.9.0.0/16", "0.0.0.0/0"],
        |_| {},
        |mut gateway| {
            let before = ours(&lab.gateway);
            // Somebody else's route is in the way of the next one.
            lab.gateway.ip("route add 10.8.0.0/16 dev lan0 table 25216 metric 1").unwrap();
            let routes = prefixes(&["10.9.0.0/16", "10.8.0.0/16", "10.7.0.0/24"]);
            assert!(gateway.intercept.update_routes(&routes, &[]).is_err());
            assert_eq!(ours(&lab.gateway), before);
            assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Nothing, "its helpers live");
            let client = connects_later(&lab.client, "10.9.1.1:80");
            let _accepted = gateway.accept(true);
            client.join().unwrap().unwrap();
            lab.gateway.ip("route delete 10.8.0.0/16 dev lan0 table 25216 metric 1").unwrap();
            gateway.intercept.update_routes(&routes, &[]).unwrap();
            assert!(ours(&lab.gateway).contains("10.7.0.0/24"));
        },
    );
    assert!(ours(&lab.gateway).contains("unreachable 10.7.0.0/24"));
}
