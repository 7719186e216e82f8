//! A TUN device in a namespace of its own.

use super::*;
use crate::netns::{NetNs, root_alone};
use crate::poll::{Events, Interest, Poller};
use std::net::UdpSocket;
use units::{Duration, internet_sum};

/// IPv4, UDP, from 10.8.0.2:9 to 10.8.0.1:7000, "hi"; no UDP checksum.
fn packet_to_us() -> Vec<u8> {
    let mut p = vec![0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 8, 0, 2, 10, 8, 0, 1];
    let sum = internet_sum(&[&p]);
    p[10..12].copy_from_slice(&sum.to_be_bytes());
    p.extend([0, 9, 0x1b, 0x58, 0, 10, 0, 0, b'h', b'i']);
    p
}

#[test]
fn packets_pass_both_ways_and_nothing_else_does() {
    if !root_alone() {
        return;
    }
    let ns = NetNs::unique("ostest", "tun").unwrap();
    ns.run(|| {
        let tun = Tun::open("bpt0", 1500).unwrap();
        ns.address("bpt0", "10.8.0.1/24").unwrap();
        let host = UdpSocket::bind("10.8.0.1:7000").unwrap();
        let mut buf = [0; 2000];
        // Joining a group makes the kernel report it, which nobody wants to read.
        host.join_multicast_v4(&"239.1.2.3".parse().unwrap(), &"10.8.0.1".parse().unwrap())
            .unwrap();
        assert!(matches!(tun.read(&mut buf), Err(TunError::Blocked)), "chatter on the device");

        tun.write(&packet_to_us()).unwrap();
        let (n, from) = host.recv_from(&mut buf).unwrap();
        assert_eq!((&buf[..n], from.to_string().as_str()), (&b"hi"[..], "10.8.0.2:9"));

        host.send_to(&[7; 1472], "10.8.0.2:9").unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(&tun, 1, Interest::READ).unwrap();
        poller.wait(&mut Events::with_capacity(1), Some(Duration::from_secs(10))).unwrap();
        assert_eq!(tun.read(&mut buf).unwrap(), 1500);
        assert_eq!(buf[0] >> 4, 4);

        assert!(matches!(tun.write(b"\x10not IP"), Err(TunError::NotAPacket)));
        ns.ip("link set bpt0 down").unwrap();
        assert!(matches!(tun.write(&packet_to_us()), Err(TunError::Down)));
    });
}

#[test]
fn packets_to_neighbours_do_not_keep_the_reader() {
    if !root_alone() {
        return;
    }
    let ns = NetNs::unique("ostest", "tun").unwrap();
    ns.run(|| {
        let tun = Tun::open("bpt2", 1500).unwrap();
        ns.address("bpt2", "10.8.0.1/24").unwrap();
        ns.ip("route add 224.0.0.0/24 dev bpt2").unwrap();
        let host = UdpSocket::bind("10.8.0.1:0").unwrap();
        for _ in 0..100 {
            host.send_to(b"hello", "224.0.0.251:5353").unwrap();
        }
        host.send_to(b"there", "10.8.0.2:9").unwrap();
        let mut buf = [0; 2000];
        assert!(matches!(tun.read(&mut buf), Err(TunError::Blocked)), "100 at once");
        let mut poller = Poller::new().unwrap();
        poller.add(&tun, 1, Interest::READ).unwrap();
        poller.wait(&mut Events::with_capacity(1), Some(Duration::from_secs(10))).unwrap();
        let n = tun.read(&mut buf).unwrap();
        assert!(buf[..n].ends_with(b"there"));
    });
}

#[test]
fn the_device_has_its_mtu_and_no_strict_filter_and_dies_with_its_descriptor() {
    if !root_alone() {
        return;
    }
    let ns = NetNs::unique("ostest", "tunset").unwrap();
    ns.sysctl("net.ipv4.conf.all.rp_filter", "1").unwrap();
    ns.run(|| {
        let tun = Tun::open("bpt0", 1400).unwrap();
        assert_eq!(index_of("bpt0").unwrap(), tun.index());
        assert!(ns.ip("link show bpt0").unwrap().contains("mtu 1400"));
        // The stricter of both rules is the higher number: loose beats strict.
        assert_eq!(ns.read_sysctl("net.ipv4.conf.bpt0.rp_filter").unwrap(), "2");
        let e = Tun::open("bpt0", 1400).unwrap_err().to_string();
        assert!(e.contains("an interface bpt0 exists already"), "{e}");
        drop(tun);
        // Another test's child has it, too, until it runs its program.
        let begin = std::time::Instant::now();
        while index_of("bpt0").is_ok() {
            assert!(begin.elapsed().as_secs() < 15, "it dies");
        }
    });
}

#[test]
fn impossible_names_are_refused_before_the_kernel_sees_them() {
    for bad in ["", "lo", ".", "sixteen-letters-", "a/b", "a b", "bp%d"] {
        assert!(Tun::open(bad, 1500).unwrap_err().to_string().contains("cannot be the name"));
    }
}
