//! What is not split passes as packets: ICMP, UDP, IPv6, TCP of interfaces that are not
//! split. None of it may lose its size or its meaning.

use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use os::netns::NetNs;
use socket2::SockRef;

use crate::harness::{LAN, Plan, World, pings, root, said, shell};
use crate::tcp::{End, SERVER, SERVER_V6, joined, listen, pattern, read_to_end, send_all};

#[test]
fn pings_of_every_size_pass_in_both_families_and_directions() {
    if !root() {
        return;
    }
    let world = World::with(Plan::open_to_shore);
    for (from, v4, v6) in
        [(&world.client, "10.2.0.2", "fd02::2"), (&world.server, "10.1.0.2", "fd01::2")]
    {
        for ping in [
            v4.to_owned(),
            // 1,472 bytes and 28 of headers are 1,500, which must not be cut here.
            format!("-s 1472 -M do {v4}"),
            format!("-s 1452 -M do {v6}"),
            // More than a packet: the host itself cuts it.
            format!("-s 4000 {v4}"),
            format!("-s 4000 {v6}"),
        ] {
            pings(from, 3, &ping);
        }
    }
    let datagrams = &world.a.status().links[0].datagrams;
    assert!(datagrams.sent >= 30 && datagrams.received >= 30, "{datagrams:?}");
}

/// Packet `n` of a call.
fn rtp(n: u32) -> Vec<u8> {
    let seq = (n as u16).to_be_bytes();
    let head = [&[0x80, 18][..], &seq, &(160 * n).to_be_bytes(), &[0xca, 0x11, 0, 1]].concat();
    [head, vec![n as u8; 20]].concat()
}

/// R-HC: a real host's packets lose nearly all of their headers on the link, and arrive.
#[test]
fn a_call_crosses_without_most_of_its_headers() {
    if !root() {
        return;
    }
    let world = World::new();
    for (from, to) in [("10.1.0.2:0", "10.2.0.2:5004"), ("[fd01::2]:0", "[fd02::2]:5004")] {
        let (client, server) = (udp(&world.client, from), udp(&world.server, to));
        let saved = || world.b.status().links[0].datagrams.bytes_saved_received;
        let before = saved();
        let mut buffer = [0; 100];
        for n in 0..100 {
            client.send_to(&rtp(n), to).unwrap();
            // The first ones may wait for their neighbour's address.
            let len = server.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..len], rtp(n));
        }
        // A packet is answered for after a round trip and a report at the latest.
        let saved = saved() - before;
        println!("{to}: {saved} bytes saved");
        assert!(saved >= 80 * 36, "{saved}");
    }
}

fn udp(ns: &NetNs, at: &str) -> UdpSocket {
    let socket = ns.run(|| UdpSocket::bind(at)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

#[test]
fn udp_passes_with_its_addresses_ports_and_sizes() {
    if !root() {
        return;
    }
    let world = World::with(Plan::keep);
    for (near, far) in [("10.1.0.2:5001", "10.2.0.2:5002"), ("[fd01::2]:5001", "[fd02::2]:5002")] {
        let (client, server) = (udp(&world.client, near), udp(&world.server, far));
        // Empty, small, a full packet's, and in fragments.
        for size in [0, 1, 500, 1400, 1452, 1472, 3000, 20_000] {
            let data = pattern(51, size);
            client.send_to(&data, far).unwrap();
            let mut got = vec![0; 65_536];
            let (n, from) = server.recv_from(&mut got).unwrap_or_else(|e| panic!("{size}: {e}"));
            assert_eq!(from, near.parse().unwrap());
            assert!(got[..n] == data, "{size} bytes to {far}");
            server.send_to(&data, from).unwrap();
            let (n, from) = client.recv_from(&mut got).unwrap_or_else(|e| panic!("{size}: {e}"));
            assert!(from == far.parse().unwrap() && got[..n] == data, "{size} bytes back");
        }
    }
}

#[test]
fn a_packet_too_large_for_the_tunnel_is_answered_on_both_sides() {
    if !root() {
        return;
    }
    let world = World::with(Plan::open_to_shore);
    for (host, gateway) in [(&world.client, &world.gwa), (&world.server, &world.gwb)] {
        for ns in [host, gateway] {
            ns.ip(&format!("link set {LAN} mtu 9000")).unwrap();
        }
    }
    for (from, v4, v6) in
        [(&world.client, "10.2.0.2", "fd02::2"), (&world.server, "10.1.0.2", "fd01::2")]
    {
        let said4 = said(&shell(from, &format!("ping -c 1 -W 20 -s 3000 -M do {v4}")));
        assert!(said4.contains("mtu = 1500") || said4.contains("mtu=1500"), "{said4}");
        let said6 = said(&shell(from, &format!("ping -c 1 -W 20 -s 3000 -M do {v6}")));
        assert!(said6.contains("mtu = 1500") || said6.contains("mtu=1500"), "{said6}");
        // And now that the way is known, such datagrams arrive in fragments.
        pings(from, 2, &format!("-s 3000 -M want {v4}"));
    }
}

#[test]
fn tcp_that_is_not_split_passes_with_segments_that_need_no_fragments() {
    if !root() {
        return;
    }
    let world = World::with(|plan| {
        plan.a.lan = Some(vec![]);
        plan.b.lan = Some(vec![]);
    });
    for (at, headers) in [(SERVER, 40), (SERVER_V6, 60)] {
        let listener = listen(&world.server, at);
        let (mut near, mut far) = joined(&world.client, &listener);
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
        for end in [&near, &far] {
            let mss = SockRef::from(end).tcp_mss().unwrap();
            // Timestamps take 12 bytes of each segment.
            assert!(mss + headers < 1500, "segments of {mss} bytes fill a whole packet");
            assert!(mss > 1200, "segments of {mss} bytes are needlessly small");
        }
        let data = pattern(52, 400_000);
        let sending = [send_all(&near, data.clone()), send_all(&far, data.clone())];
        // Both at once, as programs do: the buffer of a socket that nobody reads overflows,
        // its kernel drops what it had offered room for, and the sender's timer backs off
        // to half a minute.
        let reading = thread::spawn(move || read_to_end(&mut far));
        assert!(read_to_end(&mut near) == (data.clone(), End::Clean));
        assert!(reading.join().unwrap() == (data, End::Clean));
        for s in sending {
            s.join().unwrap().unwrap();
        }
    }
    assert_eq!(world.a.status().links[0].streams_total, 0, "nothing was split");
    // Refusal crosses as it is.
    let refused = crate::tcp::try_connect(&world.client, "10.2.0.2:7009").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn refused_quic_is_heard_at_once_and_the_rest_of_its_port_passes() {
    if !root() {
        return;
    }
    let world = World::with(|plan| plan.a.peer = "quic = \"refuse\"\n".into());
    for (host, server) in [("10.1.0.2:0", "10.2.0.2:443"), ("[fd01::2]:0", "[fd02::2]:443")] {
        let far = world.server.run(|| UdpSocket::bind(server)).unwrap();
        let near = world.client.run(|| UdpSocket::bind(host)).unwrap();
        for socket in [&far, &near] {
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        near.connect(server).unwrap();
        // DTLS, as VPNs use the port.
        near.send(&[22, 254, 253, 0, 0, 0]).unwrap();
        let mut room = [0; 1500];
        let (len, from) = far.recv_from(&mut room).unwrap();
        assert_eq!(room[..len], [22, 254, 253, 0, 0, 0]);
        far.send_to(b"hello", from).unwrap();
        assert_eq!(near.recv(&mut room).unwrap(), 5);
        // QUIC's long header, version 1.
        let mut initial = [0; 1200];
        initial[..5].copy_from_slice(&[0xc3, 0, 0, 0, 1]);
        let begin = Instant::now();
        near.send(&initial).unwrap();
        let refused = near.recv(&mut room).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{refused}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        far.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        far.recv_from(&mut room).unwrap_err();
    }
}

#[test]
fn a_small_satellite_mtu_cuts_nothing_that_hosts_send_whole() {
    if !root() {
        return;
    }
    let world = World::with(|plan| {
        plan.a.mtu = 576;
        plan.b.mtu = 576;
    });
    for ns in [&world.gwa, &world.gwb] {
        ns.ip("link set sat0 mtu 576").unwrap();
    }
    pings(&world.client, 3, "-s 1472 -M do 10.2.0.2");
    let (mut near, far) = joined(&world.client, &listen(&world.server, SERVER));
    let data = pattern(53, 500_000);
    let sending = send_all(&far, data.clone());
    let _ = near.shutdown(std::net::Shutdown::Write);
    assert!(read_to_end(&mut near) == (data, End::Clean));
    sending.join().unwrap().unwrap();
}

#[test]
fn a_ping_tells_of_an_unreachable_host_and_a_passed_hop() {
    if !root() {
        return;
    }
    let world = World::new();
    let text = said(&shell(&world.client, "ping -c 4 -W 6 10.2.0.99"));
    assert!(text.contains("Destination Host Unreachable"), "{text}");
    // The first gateway lets it into the tunnel with a hop less, the second refuses it.
    let text = said(&shell(&world.client, "ping -c 1 -W 5 -t 2 10.2.0.2"));
    assert!(text.contains("Time to live exceeded"), "{text}");
}
