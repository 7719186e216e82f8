//! This host's own connections: of its programs, and those that the program makes for a
//! peer and that lead behind another.

use super::*;

const SERVERS: [&str; 2] = ["10.99.0.9:80", "[fd99::9]:80"];

fn begin(to: &str, from: Option<&str>, mark: Option<u32>) -> tcp::Stream {
    let (to, from) = (to.parse().unwrap(), from.map(|f| f.parse().unwrap()));
    tcp::connect(&Connect { to, from, mark, options: &TcpOptions::default() }).unwrap()
}

/// Both ends hear each other, and the tunnel nothing.
fn check_joined(gateway: &Gateway, near: &tcp::Stream, far: &tcp::Stream) {
    let mut buf = [0; 16];
    for (from, to, word) in [(near, far, &b"ask"[..]), (far, near, b"answer")] {
        assert_eq!(from.write(word).unwrap(), word.len());
        wait_for(to);
        let n = to.read(&mut buf).unwrap();
        assert_eq!(&buf[..n], word);
    }
    near.shutdown_write().unwrap();
    wait_for(far);
    assert_eq!(far.read(&mut buf).unwrap(), 0, "the end arrives");
    assert!(nothing_on(&gateway.tun), "nothing of it crosses as packets");
}

/// Answers the next SYN of the syn device with a reset in the server's name.
fn refuse(gateway: &Gateway) {
    let (client, server, seq, _) = parse(&gateway.next_syn());
    let reset = segment(server, client, 0, seq.wrapping_add(1), RST_ACK);
    gateway.intercept.syns().write(&reset).unwrap();
}

fn refusal_of(stream: &tcp::Stream) -> io::ErrorKind {
    let mut poller = Poller::new().unwrap();
    poller.add(stream, 0, Interest::READ_WRITE).unwrap();
    poller.wait(&mut Events::with_capacity(1), Some(Duration::from_secs(10))).unwrap();
    stream.outcome().unwrap_err().error.kind()
}

#[test]
fn connections_of_the_host_itself_are_split_where_that_is_asked_for() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("own");
    lab.intercepting(
        &["10.99.0.0/16", "fd99::/32"],
        |config| config.own = true,
        |gateway| {
            for server in SERVERS {
                let near = begin(server, None, None);
                let accepted = gateway.accept(near.local_addr().unwrap().is_ipv4());
                assert_eq!(accepted.client, near.local_addr().unwrap());
                assert_eq!(accepted.server, server.parse().unwrap());
                check_joined(&gateway, &near, &accepted.stream);
                let refused = begin(server, None, None);
                refuse(&gateway);
                assert_eq!(refusal_of(&refused), io::ErrorKind::ConnectionRefused);
            }
            // What the program does not want to be split is not.
            let _plain = begin(SERVERS[0], None, Some(Marks::default().unsplit));
            assert_eq!(parse(&next_packet(&gateway.tun)).1, SERVERS[0].parse().unwrap());
            assert!(nothing_on(gateway.intercept.syns()));
        },
    );
}

#[test]
fn what_is_connected_for_one_peer_behind_another_is_split_whatever_its_address() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("onward");
    lab.intercepting(
        &["10.98.0.0/16", "fd98::/32", "10.99.0.0/16", "fd99::/32"],
        |config| config.onward = true,
        |gateway| {
            let mark = Some(Marks::default().onward);
            let kept = [Some("10.98.0.7:5000"), Some("[fd98::7]:5000")];
            for (server, from) in SERVERS.into_iter().zip(kept).chain(SERVERS.map(|s| (s, None))) {
                let near = begin(server, from, mark);
                let own = near.local_addr().unwrap();
                let accepted = gateway.accept(own.is_ipv4());
                assert_eq!((accepted.client, accepted.server), (own, server.parse().unwrap()));
                check_joined(&gateway, &near, &accepted.stream);
                let from = from.map(|f| f.replace(":5000", ":5001"));
                let refused = begin(server, from.as_deref(), mark);
                refuse(&gateway);
                assert_eq!(refusal_of(&refused), io::ErrorKind::ConnectionRefused, "{from:?}");
            }
            // The host's own are not, unless it is asked for.
            let _plain = begin(SERVERS[1], None, None);
            assert_eq!(parse(&next_packet(&gateway.tun)).1, SERVERS[1].parse().unwrap());
            assert!(nothing_on(gateway.intercept.syns()));
        },
    );
}

#[test]
fn peers_may_come_and_go_and_with_them_what_is_split_between_them() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("onwards");
    lab.intercepting(
        &["10.99.0.0/16"],
        |_| {},
        |mut gateway| {
            let mark = Some(Marks::default().onward);
            let mut config = InterceptConfig::new("bp0", gateway.listener.port());
            config.routes = prefixes(&["10.99.0.0/16"]);
            for onward in [true, false, true] {
                config.onward = onward;
                gateway.intercept.update(&config).unwrap_or_else(|e| panic!("{e}"));
                let near = begin(SERVERS[0], None, mark);
                if onward {
                    check_joined(&gateway, &near, &gateway.accept(true).stream);
                } else {
                    assert_eq!(parse(&next_packet(&gateway.tun)).1, SERVERS[0].parse().unwrap());
                    drop(near);
                }
                while gateway.tun.read(&mut [0; 1500]).is_ok() {}
            }
            gateway.intercept.remove().unwrap();
        },
    );
    assert_eq!(ours(&lab.gateway), "", "nothing is left");
}

/// The interfaces whose bound sockets stay outside, in each family.
fn bound(ns: &NetNs) -> Vec<String> {
    let device = |rule: &str| Some(rule.split_once(" oif ")?.1.split(' ').next()?.to_owned());
    let of_family = |family: &str| {
        let rules = ns.ip(&format!("{family} rule show")).unwrap();
        let mut found: Vec<String> = rules.lines().filter_map(device).collect();
        found.sort();
        found
    };
    ["-4", "-6"].map(of_family).concat()
}

#[test]
fn bound_sockets_have_rules_on_the_interfaces_that_have_a_gateway_as_these_come_and_go() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("bound");
    lab.gateway.route("default via 10.2.0.2 dev wan0").unwrap();
    lab.intercepting(
        &["0.0.0.0/0", "::/0"],
        |config| config.own = true,
        |mut gateway| {
            let mut after = |words: &str, wanted: &[&str]| {
                lab.gateway.ip(words).unwrap();
                wait_for(&gateway.intercept);
                assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Nothing, "{words}");
                assert_eq!(bound(&lab.gateway), wanted, "{words}");
            };
            assert_eq!(bound(&lab.gateway), ["wan0"]);
            after("route add 10.7.0.0/16 via 10.1.0.2", &["lan0", "wan0"]);
            after("-6 route add default via fd02::2", &["lan0", "wan0", "wan0"]);
            after("route delete 10.7.0.0/16", &["wan0", "wan0"]);
            after("route delete default", &["wan0"]);
            // Without a gateway every destination is a neighbour, as without the program.
            after("-6 route delete default", &[]);
            after("route add default dev wan0", &["wan0"]);
            after("address add 10.3.0.1/24 dev wan0", &["wan0"]);
            gateway.intercept.remove().unwrap();
        },
    );
    assert_eq!(ours(&lab.gateway), "", "nothing is left");
}

/// Takes the IPv6 addresses of an interface away, but for the link-local one.
fn keep_link_local(ns: &NetNs, interface: &str) {
    ns.ip(&format!("-6 address flush dev {interface} scope global")).unwrap();
}

/// An application that hears so at once goes on by IPv4.
#[test]
fn a_host_with_a_link_local_address_alone_is_told_at_once_that_there_is_no_way() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("linklocal");
    for (own, servers) in [(true, &["2001:db8::9", "fd99::9"][..]), (false, &["2001:db8::9"])] {
        for interface in ["lan0", "wan0"] {
            keep_link_local(&lab.gateway, interface);
        }
        lab.intercepting(
            &["0.0.0.0/0", "::/0", "fd99::/32"],
            |config| config.own = own,
            |mut gateway| {
                let connect = |server: &str| {
                    let to = SocketAddr::new(server.parse().unwrap(), 80);
                    TcpStream::connect_timeout(&to, std::time::Duration::from_secs(5))
                };
                for server in servers {
                    let error = connect(server).unwrap_err();
                    assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable, "{server}");
                    assert!(nothing_on(gateway.intercept.syns()) && nothing_on(&gateway.tun));
                }
                // Its neighbours are there as before.
                let mut ping = lab.gateway.command("ping");
                lab.client.ip("-6 address add fe80::1/64 dev eth0 nodad").unwrap();
                ping.args(["-c1", "-W5", "fe80::1%lan0"]);
                assert!(ping.output().unwrap().status.success());
                lab.client.ip("-6 address delete fe80::1/64 dev eth0").unwrap();
                if !own {
                    return;
                }
                // With an address it goes by the link.
                lab.gateway.address("wan0", "2001:db8:1::1/64").unwrap();
                wait_for(&gateway.intercept);
                assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Nothing);
                for server in SERVERS {
                    let near = begin(server, None, None);
                    check_joined(&gateway, &near, &gateway.accept(server.starts_with("10")).stream);
                }
            },
        );
    }
}

/// The kernel forwards nothing of link-local addresses, and says so.
#[test]
fn a_host_of_the_lan_with_a_link_local_address_alone_is_told_at_once() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("lanlocal");
    lab.gateway.ip("-6 address add fe80::1/64 dev lan0 nodad").unwrap();
    keep_link_local(&lab.client, "eth0");
    lab.client.ip("-6 route replace default via fe80::1 dev eth0").unwrap();
    lab.intercepting(
        &["0.0.0.0/0", "::/0"],
        |_| {},
        |gateway| {
            let to = "[2001:db8::9]:80".parse().unwrap();
            let error = lab
                .client
                .run(|| TcpStream::connect_timeout(&to, std::time::Duration::from_secs(5)))
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::HostUnreachable, "{error}");
            assert!(nothing_on(gateway.intercept.syns()) && nothing_on(&gateway.tun));
        },
    );
}
