//! A gateway with a real client before it and a real server behind it. The peers'
//! prefixes exist nowhere: what is sent to them ends at this program.

mod ends;
mod faults;
mod guard;
mod own;

use super::*;
use crate::netns::{NetNs, root_alone, veth};
use crate::poll::Events;
use crate::sys;
use crate::tcp::{self, Accepted, Connect, TcpOptions, TransparentListener};
use crate::tun::TunError;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use units::Duration;

struct Lab {
    client: NetNs,
    gateway: NetNs,
    server: NetNs,
}

impl Lab {
    fn new(label: &str) -> Lab {
        let ns = |role: &str| NetNs::unique("ostest", &format!("{label}{role}")).unwrap();
        let lab = Lab { client: ns("c"), gateway: ns("g"), server: ns("s") };
        veth(&lab.client, "eth0", &lab.gateway, "lan0").unwrap();
        veth(&lab.server, "eth0", &lab.gateway, "wan0").unwrap();
        for (ns, device, v4, v6) in [
            (&lab.client, "eth0", "10.1.0.2/24", "fd01::2/64"),
            (&lab.gateway, "lan0", "10.1.0.1/24", "fd01::1/64"),
            (&lab.gateway, "wan0", "10.2.0.1/24", "fd02::1/64"),
            (&lab.server, "eth0", "10.2.0.2/24", "fd02::2/64"),
        ] {
            ns.address(device, v4).unwrap();
            ns.address(device, v6).unwrap();
        }
        for (ns, v4, v6) in
            [(&lab.client, "10.1.0.1", "fd01::1"), (&lab.server, "10.2.0.1", "fd02::1")]
        {
            ns.route(&format!("default via {v4}")).unwrap();
            ns.route(&format!("default via {v6}")).unwrap();
        }
        lab.gateway.make_router().unwrap();
        lab
    }

    /// Runs `work` on the gateway with interception of `routes` in force.
    fn intercepting<T: Send>(
        &self,
        routes: &[&str],
        change: impl FnOnce(&mut InterceptConfig) + Send,
        work: impl FnOnce(Gateway) -> T + Send,
    ) -> T {
        self.gateway.run(|| {
            let tun = Tun::open("bp0", 1500).unwrap();
            let listener = TransparentListener::bind(0, &TcpOptions::default()).unwrap();
            let mut config = InterceptConfig::new("bp0", listener.port());
            config.lan = vec!["lan0".into()];
            config.routes = prefixes(routes);
            change(&mut config);
            let intercept = Intercept::install(&config).unwrap_or_else(|e| panic!("{e}"));
            work(Gateway { tun, listener, intercept })
        })
    }
}

fn prefixes(texts: &[&str]) -> Vec<IpPrefix> {
    texts.iter().map(|t| t.parse().unwrap()).collect()
}

struct Gateway {
    tun: Tun,
    listener: TransparentListener,
    intercept: Intercept,
}

impl Gateway {
    fn next_syn(&self) -> Vec<u8> {
        next_packet(self.intercept.syns())
    }

    /// Puts SYNs back until a connection arrives.
    fn accept(&self, v4: bool) -> Accepted {
        let listener = if v4 { &self.listener.v4 } else { self.listener.v6.as_ref().unwrap() };
        for _ in 0..200 {
            if news_within(listener, 0) {
                return listener.accept().unwrap();
            }
            let mut syn = [0; 1500];
            if news_within(self.intercept.syns(), 100)
                && let Ok(n) = self.intercept.syns().read(&mut syn)
            {
                self.intercept.syns().write(&syn[..n]).unwrap();
            }
        }
        panic!("nothing came");
    }
}

fn wait_for(fd: &impl AsFd) {
    assert!(news_within(fd, 10_000), "nothing came");
}

fn news_within(fd: &impl AsFd, millis: u64) -> bool {
    let mut poller = Poller::new().unwrap();
    poller.add(fd, 0, Interest::READ).unwrap();
    let mut events = Events::with_capacity(1);
    poller.wait(&mut events, Some(Duration::from_millis(millis))).unwrap() > 0
}

fn next_packet(tun: &Tun) -> Vec<u8> {
    let mut buf = vec![0; 1500];
    loop {
        wait_for(tun);
        match tun.read(&mut buf) {
            // What was there was not meant for anybody beyond the link.
            Err(TunError::Blocked) => {}
            read => {
                buf.truncate(read.unwrap());
                return buf;
            }
        }
    }
}

fn nothing_on(tun: &Tun) -> bool {
    matches!(tun.read(&mut [0; 1500]), Err(TunError::Blocked))
}

fn sum(words: &[u8], start: u32) -> u32 {
    words
        .chunks(2)
        .fold(start, |s, w| s + (u32::from(w[0]) << 8) + w.get(1).map_or(0, |b| u32::from(*b)))
}

fn fold(mut s: u32) -> [u8; 2] {
    while s > 0xffff {
        s = (s & 0xffff) + (s >> 16);
    }
    (!(s as u16)).to_be_bytes()
}

/// A TCP segment without data in an IP packet, with right checksums.
fn segment(from: SocketAddr, to: SocketAddr, seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    tcp.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
    tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let (mut packet, addresses) = match (from.ip(), to.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mut head = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
            head.extend([a.octets(), b.octets()].concat());
            let check = fold(sum(&head, 0));
            head[10..12].copy_from_slice(&check);
            (head, [a.octets(), b.octets()].concat())
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let mut head = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
            head.extend([a.octets(), b.octets()].concat());
            (head, [a.octets(), b.octets()].concat())
        }
        _ => panic!("one family"),
    };
    let check = fold(sum(&tcp, sum(&addresses, 6 + 20)));
    tcp[16..18].copy_from_slice(&check);
    packet.extend(tcp);
    packet
}

/// Source, destination, sequence number and flags of a packet's TCP header.
fn parse(packet: &[u8]) -> (SocketAddr, SocketAddr, u32, u8) {
    let v4 = packet[0] >> 4 == 4;
    let address = |at: usize| -> IpAddr {
        if v4 {
            <[u8; 4]>::try_from(&packet[at..at + 4]).map(Ipv4Addr::from).unwrap().into()
        } else {
            <[u8; 16]>::try_from(&packet[at..at + 16]).map(Ipv6Addr::from).unwrap().into()
        }
    };
    let (from, to, head) =
        if v4 { (address(12), address(16), 20) } else { (address(8), address(24), 40) };
    let port = |at: usize| u16::from_be_bytes([packet[head + at], packet[head + at + 1]]);
    let seq = u32::from_be_bytes(packet[head + 4..head + 8].try_into().unwrap());
    (SocketAddr::new(from, port(0)), SocketAddr::new(to, port(2)), seq, packet[head + 13])
}

const SYN: u8 = 2;
const RST_ACK: u8 = 0x14;

fn connects_later(ns: &NetNs, to: &str) -> thread::JoinHandle<io::Result<TcpStream>> {
    let (ns, to) = (ns.clone(), to.parse().unwrap());
    thread::spawn(move || {
        ns.run(|| TcpStream::connect_timeout(&to, std::time::Duration::from_secs(15)))
    })
}

#[test]
fn a_syn_put_back_opens_the_connection_with_both_addresses_kept() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("open");
    lab.intercepting(
        &["10.99.0.0/16", "fd99::/32"],
        |_| {},
        |gateway| {
            for server in ["10.99.1.1:80", "[fd99::1]:80"] {
                let client = connects_later(&lab.client, server);
                let accepted = gateway.accept(server.starts_with("10"));
                let mut client = client.join().unwrap().unwrap();
                assert_eq!(accepted.server, server.parse().unwrap());
                assert_eq!(accepted.client, client.local_addr().unwrap());
                assert_eq!(client.peer_addr().unwrap(), accepted.server);

                client.write_all(b"question").unwrap();
                wait_for(&accepted.stream);
                let mut buf = [0; 16];
                assert_eq!(accepted.stream.read(&mut buf).unwrap(), 8);
                accepted.stream.write(b"answer").unwrap();
                accepted.stream.close_in_order().unwrap();
                drop(accepted.stream);
                let mut answer = String::new();
                client.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, "answer");
                assert!(nothing_on(&gateway.tun), "a segment crossed the tunnel");
            }
            assert!(gateway.intercept.warnings().is_empty());
        },
    );
}

/// Opens a connection from this very port, whatever it was used for before.
fn connects_from(ns: &NetNs, from: &str, to: &str) -> tcp::Stream {
    let options = TcpOptions::default();
    let how =
        Connect { to: to.parse().unwrap(), from: from.parse().ok(), mark: None, options: &options };
    ns.run(|| tcp::connect(&how).unwrap())
}

const FIXED_PORTS: [(&str, &str); 2] =
    [("10.1.0.2:5555", "10.99.1.1:80"), ("[fd01::2]:5555", "[fd99::1]:80")];

#[test]
fn a_port_is_used_again_right_after_the_server_closed_first() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("reuse");
    lab.intercepting(
        &["10.99.0.0/16", "fd99::/32"],
        |_| {},
        |gateway| {
            for (from, server) in FIXED_PORTS {
                for _ in 0..4 {
                    let client = connects_from(&lab.client, from, server);
                    let accepted = gateway.accept(server.starts_with("10"));
                    assert_eq!(accepted.client, from.parse().unwrap());
                    assert_eq!(accepted.server, server.parse().unwrap());
                    // The server's end first: its TIME_WAIT stays here.
                    accepted.stream.write(b"answer").unwrap();
                    accepted.stream.close_in_order().unwrap();
                    drop(accepted.stream);
                    let (mut buf, mut n) = ([0; 16], 0);
                    while n < 6 || client.read(&mut buf).is_err() {
                        wait_for(&client);
                        n += client.read(&mut buf).unwrap_or(0);
                    }
                    client.close_in_order().unwrap();
                }
            }
        },
    );
}

#[test]
fn a_host_that_forgot_a_connection_opens_it_anew_from_the_same_port() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("forgot");
    lab.intercepting(
        &["10.99.0.0/16", "fd99::/32"],
        |_| {},
        |gateway| {
            for (from, server) in FIXED_PORTS {
                let v4 = server.starts_with("10");
                let client = connects_from(&lab.client, from, server);
                let old = gateway.accept(v4);
                // It loses power, as it were: not even its reset leaves.
                let nft = |what: &str| lab.client.run(|| nft(what));
                nft(
                    "add table inet t; add chain inet t o { type filter hook output priority 0; }; \
                     add rule inet t o tcp flags rst drop",
                );
                drop(client);
                nft("delete table inet t");
                let _client = connects_from(&lab.client, from, server);
                let new = gateway.accept(v4);
                assert_eq!(new.client, old.client);
                wait_for(&old.stream);
                let error = old.stream.read(&mut [0; 1]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            }
        },
    );
}

fn nft(commands: &str) {
    command::run(Command::new("nft").args(["-f", "-"]), commands).unwrap();
}

#[test]
fn a_reset_written_in_the_servers_name_refuses_the_client() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("refuse");
    lab.intercepting(
        &["10.99.0.0/16", "fd99::/32"],
        |_| {},
        |gateway| {
            for server in ["10.99.1.1:80", "[fd99::1]:80"] {
                let client = connects_later(&lab.client, server);
                let (from, to, seq, flags) = parse(&gateway.next_syn());
                assert_eq!((to, flags & 0x17), (server.parse().unwrap(), SYN));
                let reset = segment(to, from, 0, seq.wrapping_add(1), RST_ACK);
                gateway.intercept.syns().write(&reset).unwrap();
                let error = client.join().unwrap().unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            }
        },
    );
}

#[test]
fn a_connection_from_the_clients_own_address_gets_its_answers() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("keep");
    lab.intercepting(
        &["10.1.0.0/24", "10.99.0.0/16", "fd99::/32"],
        |_| {},
        |_gateway| {
            for (from, server) in
                [("10.99.0.7:0", "10.2.0.2:80"), ("[fd99::7]:5000", "[fd02::2]:80")]
            {
                let listener = lab.server.run(|| TcpListener::bind(server)).unwrap();
                let how = Connect {
                    to: server.parse().unwrap(),
                    from: Some(from.parse().unwrap()),
                    mark: None,
                    options: &TcpOptions::default(),
                };
                let stream = tcp::connect(&how).unwrap();
                let (mut accepted, seen) = listener.accept().unwrap();
                assert_eq!(seen, stream.local_addr().unwrap());
                assert_eq!(seen.ip(), from.parse::<SocketAddr>().unwrap().ip());
                accepted.write_all(b"hello").unwrap();
                wait_for(&stream);
                assert_eq!(stream.read(&mut [0; 16]).unwrap(), 5);
            }
        },
    );
}

#[test]
fn what_is_not_split_crosses_the_tunnel_and_a_peers_syn_is_no_new_connection() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("rest");
    lab.intercepting(
        &["0.0.0.0/0", "::/0"],
        |_| {},
        |gateway| {
            // UDP from a host, TCP from an interface that is not split, TCP of the node itself.
            let udp = lab.client.run(|| UdpSocket::bind("10.1.0.2:9")).unwrap();
            udp.send_to(b"x", "192.0.2.1:9").unwrap();
            assert_eq!(next_packet(&gateway.tun)[9], 17);
            for ns in [&lab.server, &lab.gateway] {
                let client = connects_later(ns, "192.0.2.1:80");
                let (from, to, seq, flags) = parse(&next_packet(&gateway.tun));
                assert_eq!((to, flags & 0x17), ("192.0.2.1:80".parse().unwrap(), SYN));
                let reset = segment(to, from, 0, seq.wrapping_add(1), RST_ACK);
                gateway.tun.write(&reset).unwrap();
                assert_eq!(
                    client.join().unwrap().unwrap_err().kind(),
                    io::ErrorKind::ConnectionRefused
                );
            }
            assert!(nothing_on(gateway.intercept.syns()));

            // A SYN that a peer sent as a packet goes to the host that it is meant for.
            for (peer, host) in
                [("192.0.2.1:7", "10.1.0.2:80"), ("[2001:db8::1]:7", "[fd01::2]:80")]
            {
                let _listening = lab.client.run(|| TcpListener::bind(host)).unwrap();
                let (peer, host) = (peer.parse().unwrap(), host.parse().unwrap());
                gateway.tun.write(&segment(peer, host, 100, 0, SYN)).unwrap();
                let (from, to, _, flags) = parse(&next_packet(&gateway.tun));
                assert_eq!((from, to, flags & 0x17), (host, peer, 0x12));
            }
            assert!(nothing_on(gateway.intercept.syns()));
        },
    );
}

#[test]
fn a_default_route_into_the_tunnel_leaves_lans_and_the_carrier_alone() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("default");
    lab.gateway.route("default via 10.2.0.2").unwrap();
    lab.gateway.route("10.50.0.0/16 via 10.2.0.2").unwrap();
    lab.server.ip("address add 10.50.0.1/32 dev lo").unwrap();
    lab.server.ip("address add 203.0.113.7/32 dev lo").unwrap();
    // The strictest of networks: every interface checks sources.
    for interface in ["all", "lan0", "wan0"] {
        lab.gateway.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "1").unwrap();
    }
    // What a hostile modem's DHCP would say (TunnelVision).
    for route in ["0.0.0.0/1", "128.0.0.0/1", "203.0.113.0/24", "198.51.100.1/32"] {
        lab.gateway.route(&format!("{route} via 10.2.0.2")).unwrap();
    }
    let settings = |c: &mut InterceptConfig| {
        c.carrier_ports = vec![4500];
        c.direct = prefixes(&["10.50.0.0/16"]);
    };
    lab.intercepting(&["0.0.0.0/0", "10.50.1.0/24"], settings, |gateway| {
        // This node's own questions for names go past the tunnel; a host's do not, nor do
        // those to a resolver behind a longer route into it.
        let resolver = lab.server.run(|| UdpSocket::bind("203.0.113.7:53")).unwrap();
        resolver.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let own = lab.gateway.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        own.send_to(b"where?", "203.0.113.7:53").unwrap();
        assert_eq!(resolver.recv(&mut [0; 16]).unwrap(), 6);
        own.send_to(b"where?", "10.50.1.53:53").unwrap();
        assert_eq!(next_packet(&gateway.tun)[16..20], [10, 50, 1, 53]);
        let host = lab.client.run(|| UdpSocket::bind("10.1.0.2:0")).unwrap();
        host.send_to(b"where?", "203.0.113.7:53").unwrap();
        assert_eq!(next_packet(&gateway.tun)[16..20], [203, 0, 113, 7]);
        // Networks of this host and those that are named come before the tunnel's default.
        for near in ["10.2.0.2:80", "10.50.0.1:80"] {
            let _listening = lab.server.run(|| TcpListener::bind(near)).unwrap();
            connects_later(&lab.client, near).join().unwrap().unwrap();
        }
        // The carrier reaches its endpoint and hears from it.
        let mut config = crate::udp::UdpConfig::new("0.0.0.0:4500".parse().unwrap());
        config.mark = Some(Marks::default().carrier);
        let mut carrier = crate::udp::UdpSocket::bind(&config).unwrap();
        let endpoint = lab.server.run(|| UdpSocket::bind("203.0.113.7:4500")).unwrap();
        let to = endpoint.local_addr().unwrap();
        carrier.send(&crate::udp::Transmit { to, from: None, payload: b"up", segment: 0 }).unwrap();
        let (n, from) = endpoint.recv_from(&mut [0; 16]).unwrap();
        assert_eq!((n, from), (2, "10.2.0.1:4500".parse().unwrap()));
        endpoint.send_to(b"down", from).unwrap();
        wait_for(&carrier);
        // Everything else is the tunnel's, whatever routes say; so are SYNs, which open in spite of
        // the filters.
        for far in ["203.0.113.7:80", "10.50.1.1:80"] {
            let client = connects_later(&lab.client, far);
            let accepted = gateway.accept(true);
            assert_eq!(accepted.server, far.parse().unwrap());
            client.join().unwrap().unwrap();
        }
        // The same port on another host is a host's traffic.
        let udp = lab.client.run(|| UdpSocket::bind("10.1.0.2:9")).unwrap();
        udp.send_to(b"x", "198.51.100.1:4500").unwrap();
        assert_eq!(next_packet(&gateway.tun)[16..20], [198, 51, 100, 1]);
    });
}

#[test]
fn datagrams_are_masqueraded_for_the_prefixes_that_ask_for_it_and_routes_can_change() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("nat");
    let nat = |c: &mut InterceptConfig| c.masquerade = prefixes(&["10.99.0.0/16", "fd99::/32"]);
    lab.intercepting(&["10.99.0.0/16", "10.98.0.0/16", "fd99::/32"], nat, |mut gateway| {
        let server = lab.server.run(|| UdpSocket::bind("[::]:7000")).unwrap();
        let seen = |gateway: &Gateway, from: &str, to: &str| {
            gateway.tun.write(&udp_packet(from.parse().unwrap(), to.parse().unwrap())).unwrap();
            server.recv_from(&mut [0; 16]).unwrap().1.ip().to_canonical().to_string()
        };
        assert_eq!(seen(&gateway, "10.99.0.1:5", "10.2.0.2:7000"), "10.2.0.1");
        assert_eq!(seen(&gateway, "[fd99::1]:5", "[fd02::2]:7000"), "fd02::1");
        assert_eq!(seen(&gateway, "10.98.0.1:5", "10.2.0.2:7000"), "10.98.0.1");

        let routes = prefixes(&["10.98.0.0/16", "10.97.0.0/24"]);
        gateway.intercept.update_routes(&routes, &[]).unwrap();
        assert_eq!(seen(&gateway, "10.99.0.2:5", "10.2.0.2:7000"), "10.99.0.2");
        server.send_to(b"x", "[::ffff:10.97.0.1]:5").unwrap();
        assert_eq!(next_packet(&gateway.tun)[16..20], [10, 97, 0, 1]);
        let gone = lab.gateway.ip("route get 10.99.0.1");
        assert!(!gone.is_ok_and(|route| route.contains("bp0")));
        gateway.intercept.update_routes(&routes, &prefixes(&["0.0.0.0/0", "::/0"])).unwrap();
        assert_eq!(seen(&gateway, "10.98.0.1:6", "10.2.0.2:7000"), "10.2.0.1");
    });
}

/// A UDP datagram "hi".
fn udp_packet(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut packet = segment(from, to, 0, 0, 0);
    let head = packet.len() - 20;
    let mut udp = [from.port().to_be_bytes(), to.port().to_be_bytes(), [0, 10], [0, 0]].concat();
    udp.extend(b"hi");
    let addresses = packet[if head == 20 { 12 } else { 8 }..head].to_vec();
    let check = fold(sum(&udp, sum(&addresses, 17 + 10)));
    udp[6..8].copy_from_slice(&check);
    packet.truncate(head);
    packet.extend(udp);
    if head == 20 {
        packet[3] = 30;
        packet[9] = 17;
        packet[10..12].copy_from_slice(&[0, 0]);
        let check = fold(sum(&packet[..20], 0));
        packet[10..12].copy_from_slice(&check);
    } else {
        packet[5] = 10;
        packet[6] = 17;
    }
    packet
}

#[test]
fn a_second_run_on_the_same_host_is_refused_and_names_why() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("twice");
    lab.intercepting(
        &[],
        |_| {},
        |gateway| {
            let e = Intercept::install(&gateway.intercept.config).err().unwrap().to_string();
            assert!(e.starts_with("another bentpipe already intercepts"), "{e}");
        },
    );
}

#[test]
fn a_killed_child_is_noticed_and_replaced() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("repair");
    lab.intercepting(
        &["10.99.0.0/16"],
        |_| {},
        |mut gateway| {
            assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Nothing);
            for pid in [gateway.intercept.table.pid(), gateway.intercept.watchdog.pid()] {
                // SAFETY: a child of this process that has not been waited for.
                unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
                wait_for(&gateway.intercept);
                assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Child);
                // What that changed is told, too, and needs nothing.
                assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Nothing);
                assert!(!news_within(&gateway.intercept, 0));
            }
            let client = connects_later(&lab.client, "10.99.1.1:80");
            let _accepted = gateway.accept(true);
            client.join().unwrap().unwrap();
        },
    );
}

#[test]
fn a_network_that_comes_as_a_child_dies_is_followed() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("both");
    lab.intercepting(
        &["0.0.0.0/0"],
        |_| {},
        |mut gateway| {
            for (kill, network) in [(0, "192.168.7"), (1, "192.168.8")] {
                let pid = [gateway.intercept.table.pid(), gateway.intercept.watchdog.pid()][kill];
                lab.gateway.address("wan0", &format!("{network}.1/24")).unwrap();
                // SAFETY: a child of this process that has not been waited for.
                unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
                wait_for(
                    &[gateway.intercept.table.death(), gateway.intercept.watchdog.death()][kill],
                );
                assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Child);
                let followed = format!("to {network}.0/24 lookup main");
                assert!(ours(&lab.gateway).contains(&followed), "{followed}");
                assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Nothing);
            }
        },
    );
    let left = ours(&lab.gateway);
    assert!(left.contains("unreachable default") && left.contains("to 192.168.8.0/24"), "{left}");
}

/// systemd-networkd does so at its restart, and other VPN programs.
#[test]
fn what_other_programs_remove_is_put_back_and_new_networks_are_followed() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("rival");
    lab.intercepting(
        &["0.0.0.0/0", "10.99.0.0/16", "fd99::/32"],
        |_| {},
        |mut gateway| {
            let before = ours(&lab.gateway);
            for family in ["-4", "-6"] {
                lab.gateway.ip(&format!("{family} rule flush")).unwrap();
                lab.gateway.ip(&format!("{family} rule add priority 32766 lookup main")).unwrap();
            }
            lab.gateway.ip("route flush table 25216").unwrap();
            wait_for(&gateway.intercept);
            let repaired = gateway.intercept.repair().unwrap();
            assert!(matches!(repaired, Repaired::PutBack(n) if n > 10), "{repaired:?}");
            assert_eq!(ours(&lab.gateway), before);
            assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Nothing);
            let client = connects_later(&lab.client, "10.99.1.1:80");
            let _accepted = gateway.accept(true);
            client.join().unwrap().unwrap();
            lab.gateway.address("wan0", "192.168.7.1/24").unwrap();
            wait_for(&gateway.intercept);
            assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Nothing);
            assert!(ours(&lab.gateway).contains("to 192.168.7.0/24 lookup main"));
        },
    );
    let left = ours(&lab.gateway);
    assert!(left.contains("unreachable default") && left.contains("to 192.168.7.0/24"), "{left}");
}

#[test]
fn marks_count_in_strict_filters_only_while_it_runs() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("filter");
    let counts = || lab.gateway.read_sysctl("net.ipv4.conf.all.src_valid_mark").unwrap();
    for (strict, while_it_runs) in [("0", "0"), ("1", "1")] {
        lab.gateway.sysctl("net.ipv4.conf.lan0.rp_filter", strict).unwrap();
        lab.intercepting(
            &["10.99.0.0/16"],
            |_| {},
            |gateway| {
                assert_eq!(counts(), while_it_runs);
                drop(gateway);
            },
        );
        assert_eq!(counts(), "0");
    }
}

#[test]
fn wrong_interfaces_are_named() {
    if !root_alone() {
        return;
    }
    let ns = NetNs::unique("ostest", "wrong").unwrap();
    ns.run(|| {
        let mut config = InterceptConfig::new("bp0", 1);
        let error = |c: &InterceptConfig| Intercept::install(c).err().unwrap().to_string();
        assert!(error(&config).contains("intercept traffic for the device bp0: no such device"));
        let _tun = Tun::open("bp0", 1500).unwrap();
        config.lan = vec!["eth7".into()];
        assert!(error(&config).contains("split the TCP of eth7: no such device"));
        config.lan = vec!["eth7\" accept".into()];
        assert!(error(&config).contains("cannot be the name"));
    });
}

/// Rules and routes that are in force, ours or not, all in one text.
fn rules_and_routes(ns: &NetNs, ours: bool) -> String {
    let mut all = String::new();
    for family in ["-4", "-6"] {
        let rules = ns.ip(&format!("{family} rule show")).unwrap();
        let routes = ns.ip(&format!("{family} -d route show table all")).unwrap();
        for line in rules.lines().chain(routes.lines()) {
            // Link-local addresses and the TUN's multicast come and go by themselves.
            let passing = line.contains("fe80:") || line.contains("bp0");
            if line.contains(" proto 143") == ours && !passing {
                all += &format!("{line}\n");
            }
        }
    }
    all
}

fn ours(ns: &NetNs) -> String {
    rules_and_routes(ns, true)
}

#[test]
fn rules_and_routes_of_others_are_never_touched() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("others");
    lab.gateway.ip("rule add fwmark 7 lookup 25200 priority 25200").unwrap();
    lab.gateway.ip("route add unreachable 10.98.0.0/16 table 25216 metric 9999").unwrap();
    let before = rules_and_routes(&lab.gateway, false);
    let routes = ["0.0.0.0/0", "10.99.0.0/16", "fd99::/32"];
    lab.intercepting(
        &routes,
        |_| {},
        |mut gateway| {
            assert_eq!(rules_and_routes(&lab.gateway, false), before);
            gateway.intercept.update_routes(&[], &[]).unwrap();
            assert_eq!(rules_and_routes(&lab.gateway, false), before);
            assert_eq!(gateway.intercept.repair().unwrap(), Repaired::Nothing);
            gateway.intercept.remove().unwrap();
        },
    );
    assert_eq!(rules_and_routes(&lab.gateway, false), before);
    lab.intercepting(&routes, |c| c.on_failure = OnFailure::Wire, drop);
    assert_eq!(rules_and_routes(&lab.gateway, false), before);
}

#[test]
fn a_host_without_forwarding_is_warned() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("warn");
    lab.gateway.sysctl("net.ipv4.ip_forward", "0").unwrap();
    lab.intercepting(
        &[],
        |_| {},
        |gateway| {
            let warnings = gateway.intercept.warnings();
            assert!(warnings[0].contains("sysctl net.ipv4.ip_forward=1"), "{warnings:?}");
            assert_eq!(warnings.len(), 1);
        },
    );
}

#[test]
fn a_host_alone_that_splits_its_own_connections_is_not_warned_of_forwarding() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("alone");
    lab.gateway.sysctl("net.ipv4.ip_forward", "0").unwrap();
    lab.gateway.sysctl("net.ipv6.conf.all.forwarding", "0").unwrap();
    for (has_lan, onward, warned) in [(false, false, 0), (true, false, 2), (false, true, 2)] {
        let settings = |config: &mut InterceptConfig| {
            (config.own, config.onward) = (true, onward);
            config.lan.truncate(usize::from(has_lan));
        };
        lab.intercepting(&[], settings, |gateway| {
            let warnings = gateway.intercept.warnings();
            assert_eq!(warnings.len(), warned, "lan {has_lan}: {warnings:?}");
        });
    }
}

#[test]
fn an_intercepted_socket_is_bound_to_the_servers_address() {
    if !root_alone() {
        return;
    }
    let lab = Lab::new("raw");
    lab.intercepting(
        &["10.99.0.0/16"],
        |_| {},
        |gateway| {
            let client = connects_later(&lab.client, "10.99.1.1:22");
            let accepted = gateway.accept(true);
            let bound = sys::local_addr(accepted.stream.as_fd()).unwrap();
            assert_eq!(bound, "10.99.1.1:22".parse().unwrap());
            // A dying gateway resets its hosts.
            let mut client = client.join().unwrap().unwrap();
            drop(accepted);
            let error = client.read(&mut [0; 1]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        },
    );
}
