//! Batches of UDP packets, with and without the offloads of the kernel.

use super::*;

fn socket(config: UdpConfig) -> UdpSocket {
    UdpSocket::bind(&config).unwrap()
}

fn on(addr: &str) -> UdpConfig {
    UdpConfig::new(addr.parse().unwrap())
}

fn plain(addr: &str) -> UdpConfig {
    UdpConfig { gso: false, gro: false, ..on(addr) }
}

fn batch(to: SocketAddr, payload: &[u8], segment: usize) -> Transmit<'_> {
    Transmit { to, from: None, payload, segment }
}

/// Everything that arrives, waiting up to five seconds for `want` datagrams.
fn collect(socket: &UdpSocket, want: usize) -> Vec<(Vec<u8>, SocketAddr, Option<IpAddr>)> {
    let mut buf = vec![0; socket.slot() * 4];
    let mut all = Vec::new();
    for _ in 0..5_000 {
        match socket.receive(&mut buf) {
            Ok(received) => all.extend(received.map(|d| (d.payload.to_vec(), d.from, d.to))),
            Err(UdpError::Blocked) => std::thread::sleep(std::time::Duration::from_millis(1)),
            Err(e) => panic!("{e}"),
        }
        if all.len() >= want {
            break;
        }
    }
    all
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

#[test]
fn a_batch_arrives_as_its_segments_whatever_the_offloads_of_either_side() {
    for (sender, receiver) in [
        (on("127.0.0.1:0"), on("127.0.0.1:0")),
        (plain("127.0.0.1:0"), on("127.0.0.1:0")),
        (on("127.0.0.1:0"), plain("127.0.0.1:0")),
        (plain("[::1]:0"), plain("[::1]:0")),
        (on("[::1]:0"), on("[::1]:0")),
    ] {
        let (mut a, b) = (socket(sender), socket(receiver));
        let sent = payload(150 * 1200 + 77);
        a.send(&batch(b.local_addr(), &sent, 1200)).unwrap();
        let got = collect(&b, 151);
        let lengths: Vec<usize> = got.iter().map(|(d, ..)| d.len()).collect();
        assert_eq!(lengths, [vec![1200; 150], vec![77]].concat());
        assert!(got.iter().flat_map(|(d, ..)| d).eq(&sent));
        assert!(got.iter().all(|(_, from, _)| *from == a.local_addr()));
    }
}

#[test]
fn one_socket_on_all_addresses_carries_both_families_and_answers_from_where_it_was_asked() {
    let mut all = socket(on("[::]:0"));
    let port = all.local_addr().port();
    for (bind, at) in [("127.0.0.1:0", "127.0.0.9"), ("[::1]:0", "::1")] {
        let mut client = socket(on(bind));
        let at: IpAddr = at.parse().unwrap();
        client.send(&batch(SocketAddr::new(at, port), b"ask", 0)).unwrap();
        let (data, from, to) = collect(&all, 1).remove(0);
        assert_eq!((data.as_slice(), from, to), (&b"ask"[..], client.local_addr(), Some(at)));
        all.send(&Transmit { to: from, from: to, payload: b"tell", segment: 0 }).unwrap();
        assert_eq!(collect(&client, 1)[0].1, SocketAddr::new(at, port));
    }
}

#[test]
fn a_receive_call_says_whether_more_may_wait() {
    let (mut a, b) = (socket(plain("127.0.0.1:0")), socket(plain("127.0.0.1:0")));
    let mut buf = vec![0; b.slot() * 2];
    a.send(&batch(b.local_addr(), b"abc", 1)).unwrap();
    let counts = [(); 2].map(|()| {
        let received = b.receive(&mut buf).unwrap();
        (received.is_full(), received.count())
    });
    assert_eq!(counts, [(true, 2), (false, 1)]);
    assert!(matches!(b.receive(&mut buf), Err(UdpError::Blocked)));
}

#[test]
fn an_empty_queue_blocks_and_an_empty_datagram_is_one() {
    let (mut a, b) = (socket(on("127.0.0.1:0")), socket(on("127.0.0.1:0")));
    let mut buf = vec![0; b.slot()];
    assert!(matches!(b.receive(&mut buf), Err(UdpError::Blocked)));
    a.send(&batch(b.local_addr(), b"", 0)).unwrap();
    a.send(&batch(b.local_addr(), b"x", 0)).unwrap();
    a.send(&batch(b.local_addr(), b"", 0)).unwrap();
    let got: Vec<_> = collect(&b, 3).into_iter().map(|d| (d.0, d.1)).collect();
    let from = a.local_addr();
    assert_eq!(got, [(vec![], from), (b"x".to_vec(), from), (vec![], from)]);
}

#[test]
fn a_datagram_longer_than_the_slot_is_dropped_and_the_next_one_is_not() {
    let (mut a, b) = (socket(on("127.0.0.1:0")), socket(plain("127.0.0.1:0")));
    a.send(&batch(b.local_addr(), &payload(5_000), 0)).unwrap();
    a.send(&batch(b.local_addr(), b"short", 0)).unwrap();
    assert_eq!(collect(&b, 1)[0].0, b"short");
}

#[test]
fn too_long_is_told_apart_and_does_not_end_gso() {
    for config in [on("127.0.0.1:0"), plain("127.0.0.1:0")] {
        let gso = config.gso;
        let mut a = socket(config);
        let b = socket(on("127.0.0.1:0"));
        // Loopback's MTU is 65,536, an IP packet ends at 65,535: nothing carries this.
        let e = a.send(&batch(b.local_addr(), &payload(65_530), 0)).unwrap_err();
        assert!(matches!(e, SendError { sent: 0, reason: UdpError::TooBig }), "{e:?}");
        assert_eq!(a.gso(), gso);
        a.send(&batch(b.local_addr(), &payload(2_400), 1_200)).unwrap();
        assert_eq!(collect(&b, 2).len(), 2);
    }
}

#[test]
fn no_route_and_a_foreign_source_are_outages_and_the_socket_lives_on() {
    let mut a = socket(on("0.0.0.0:0"));
    let b = socket(on("127.0.0.1:0"));
    let foreign = Transmit {
        to: b.local_addr(),
        from: Some("192.0.2.1".parse().unwrap()),
        payload: b"x",
        segment: 0,
    };
    let e = a.send(&foreign).unwrap_err();
    assert!(matches!(e.reason, UdpError::Unreachable(_) | UdpError::Failed(_)), "{e:?}");
    a.send(&batch(b.local_addr(), b"y", 0)).unwrap();
    assert_eq!(collect(&b, 1)[0].0, b"y");
}

#[test]
fn a_port_in_use_is_one_clear_sentence() {
    let a = socket(on("127.0.0.1:0"));
    let e = UdpSocket::bind(&UdpConfig::new(a.local_addr())).unwrap_err().to_string();
    assert!(e.starts_with(&format!("cannot listen on UDP {}: address already", a.local_addr())));
    assert!(e.contains("another program has that port"), "{e}");
}

#[test]
fn the_error_numbers_of_the_data_path_keep_their_meaning() {
    let of = |n| UdpError::from(io::Error::from_raw_os_error(n));
    assert!(matches!(of(libc::EAGAIN), UdpError::Blocked));
    assert!(matches!(of(libc::ENOBUFS), UdpError::NoBuffers));
    assert!(matches!(of(libc::EMSGSIZE), UdpError::TooBig));
    assert!(matches!(of(libc::ECONNREFUSED), UdpError::Refused));
    assert!(matches!(of(libc::ENETUNREACH), UdpError::Unreachable(_)));
    assert!(matches!(of(libc::EBADF), UdpError::Failed(_)));
}

#[test]
fn the_path_mtu_of_loopback_is_loopbacks() {
    let a = socket(on("127.0.0.1:0"));
    assert_eq!(a.path_mtu(a.local_addr()), Some(65_535));
}

#[test]
fn a_datagram_knows_how_long_it_has_waited_to_be_read() {
    for config in [on, plain] {
        let (mut a, b) = (socket(config("127.0.0.1:0")), socket(config("127.0.0.1:0")));
        let wait = std::time::Duration::from_millis(20);
        let mut buf = vec![0; b.slot()];
        let mut age_after = |wait| {
            a.send(&batch(b.local_addr(), &payload(100), 0)).unwrap();
            std::thread::sleep(wait);
            for _ in 0..10_000 {
                match b.receive(&mut buf) {
                    Ok(mut received) => return received.next().unwrap().age.to_std(),
                    Err(UdpError::Blocked) => {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    Err(e) => panic!("{e}"),
                }
            }
            panic!("the datagram did not come");
        };
        // The kernel begins to stamp a little after the first socket asked for it.
        assert!((0..100).any(|_| age_after(wait) >= wait));
        assert!((0..100).any(|_| age_after(std::time::Duration::ZERO) < wait));
    }
}

#[test]
fn what_hosts_say_of_packets_that_did_not_arrive_is_told_and_taken_once() {
    use crate::poll::{Events, Interest, Poller};
    for (own, far) in [("127.0.0.1:0", "127.0.0.1"), ("[::]:0", "127.0.0.1"), ("[::]:0", "::1")] {
        let mut a = socket(on(own));
        let mut poller = Poller::new().unwrap();
        poller.add(&a, 7, Interest::READ).unwrap();
        // A port that was free a moment ago.
        let far: IpAddr = far.parse().unwrap();
        let to = socket(on(&SocketAddr::new(far, 0).to_string())).local_addr();
        let mut events = Events::with_capacity(4);
        // Another test's child has the socket, too, until it runs its program.
        let told = (0..20).any(|_| {
            a.send(&batch(to, b"anybody?", 0)).unwrap();
            poller.wait(&mut events, Some(Duration::from_millis(500))).unwrap();
            events.iter().any(|e| e.token == 7 && e.failed)
        });
        assert!(told, "the poller tells");
        let told = a.next_error();
        assert_eq!(told, Some(NotArrived { to, icmp: Icmp::PortUnreachable, by: Some(far) }));
        assert_eq!(a.next_error(), None);
        // It is told once more by the next call, and then the socket is as before.
        let mut buf = vec![0; a.slot()];
        assert!(matches!(a.receive(&mut buf), Err(UdpError::Refused | UdpError::Blocked)));
        assert!(matches!(a.receive(&mut buf), Err(UdpError::Blocked)));
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty(), "nothing is left to tell");
    }
}

#[test]
fn a_packet_that_this_host_finds_too_long_is_no_news_from_afar() {
    let mut a = socket(on("127.0.0.1:0"));
    let b = socket(on("127.0.0.1:0"));
    a.send(&batch(b.local_addr(), &payload(65_530), 0)).unwrap_err();
    assert_eq!(a.next_error(), None);
    a.send(&batch(b.local_addr(), b"short", 0)).unwrap();
    assert_eq!(collect(&b, 1)[0].0, b"short");
}
