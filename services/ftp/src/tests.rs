//! The program with a gateway that is only its socket.

use std::io::IoSlice;

use os::seqpacket::SeqPacket;
use os::tcp::{TcpOptions, pair};
use service::packet;

use super::*;

fn ftp() -> (Ftp, SeqPacket) {
    let (ours, gateway) = SeqPacket::pair().unwrap();
    let hello = Event::Hello { version: service::VERSION, service: "ftp".into() };
    say(&gateway, &hello, b"", None);
    (Ftp::new(Client::new(ours).unwrap()).unwrap(), gateway)
}

fn say(gateway: &SeqPacket, event: &Event, bytes: &[u8], socket: Option<&OwnedFd>) {
    let packet = packet::encode(event, bytes).unwrap();
    let socket = socket.map(|socket| socket.as_fd());
    gateway.send(&[IoSlice::new(&packet)], socket.as_slice(), true).unwrap();
}

/// Has the program take what the gateway has said; what it asks for then.
fn hear(ftp: &mut Ftp, gateway: &SeqPacket) -> Vec<Request> {
    assert!(ftp.hear(&mut service::room(), &mut vec![0; BUFFER]).unwrap());
    let mut room = service::room();
    let next = || {
        let got = gateway.receive(&mut room, false).ok()?;
        Some(packet::decode::<Request>(&room[..got.len]).unwrap().0)
    };
    let no_stats = |it: &Request| !matches!(it, Request::Stats { .. } | Request::Hello { .. });
    std::iter::from_fn(next).filter(no_stats).collect()
}

fn sockets() -> (Stream, OwnedFd) {
    let (ours, theirs) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
    (ours, theirs.into())
}

/// The host's socket, and the stream's.
fn session(ftp: &mut Ftp, gateway: &SeqPacket, server: &str) -> (Stream, Stream) {
    let it = Accepted {
        id: 1,
        client: "10.1.0.2:2000".parse().unwrap(),
        server: server.parse().unwrap(),
        peer: "hub".into(),
        class: "bulk".into(),
        dscp: 0,
        name: None,
    };
    let ((host, its), (far, stream)) = (sockets(), sockets());
    say(gateway, &Event::Accepted(it), b"", Some(&its));
    let asked = hear(ftp, gateway);
    let [Request::Open { request, .. }] = &asked[..] else { panic!("{asked:?}") };
    say(gateway, &Event::Opened { request: *request, id: 9 }, b"", Some(&stream));
    assert_eq!(hear(ftp, gateway), []);
    (host, far)
}

#[test]
fn two_sessions_from_one_port_of_a_host_have_each_their_data_connections() {
    let (mut ftp, gateway) = ftp();
    let first = session(&mut ftp, &gateway, "10.2.0.2:21");
    let second = session(&mut ftp, &gateway, "10.2.0.3:21");
    let numbers: Vec<u64> = ftp.joined.keys().copied().collect();
    for (host, port) in [(&first.0, 40_000), (&second.0, 40_001)] {
        let said = format!("PORT 10,1,0,2,{},{}\r\n", port >> 8, port & 255);
        assert_eq!(host.write(said.as_bytes()).unwrap(), said.len());
    }
    for number in numbers {
        ftp.turn(number, &mut vec![0; BUFFER]).unwrap();
    }
    for (port, is_named) in [(40_000, true), (40_001, true), (40_001, false), (50_000, false)] {
        let (_far, stream) = sockets();
        let preface = Preface::Data { client: "10.1.0.2:2000".parse().unwrap(), port };
        let incoming = Incoming { id: 3, peer: "hub".into(), client: None };
        say(&gateway, &Event::Incoming(incoming), preface.to_string().as_bytes(), Some(&stream));
        let asked = hear(&mut ftp, &gateway);
        match &asked[..] {
            [Request::Back { port: at, .. }] if is_named => assert_eq!(*at, port),
            [] if !is_named => {}
            other => panic!("{port}: {other:?}"),
        }
    }
    ftp.joined.keys().copied().collect::<Vec<_>>().into_iter().for_each(|n| ftp.end(n));
    assert!(ftp.near.is_empty());
}

#[test]
fn streams_of_a_peer_without_end_leave_others_their_turns() {
    let (mut ftp, gateway) = ftp();
    let flood = AT_ONCE * 3 / 2;
    for _ in 0..flood {
        let (_far, stream) = sockets();
        let incoming = Incoming { id: 3, peer: "ship".into(), client: None };
        say(&gateway, &Event::Incoming(incoming), b"nothing known", Some(&stream));
    }
    let event = Event::Failed { request: 1, reason: Reason::TimedOut };
    say(&gateway, &event, b"", None);
    hear(&mut ftp, &gateway);
    let left =
        std::iter::from_fn(|| ftp.client.try_next(&mut service::room()).ok().flatten().map(|_| ()));
    assert_eq!(left.count(), flood + 1 - AT_ONCE);
}

#[test]
fn what_is_counted_is_told_once_a_second() {
    let (mut ftp, gateway) = ftp();
    for _ in 0..100 {
        ftp.counted.failed += 1;
        ftp.has_news = true;
        ftp.tell();
    }
    let mut room = service::room();
    let next = || {
        let got = gateway.receive(&mut room, false).ok()?;
        Some(packet::decode::<Request>(&room[..got.len]).unwrap().0)
    };
    let stats = std::iter::from_fn(next).filter(|it| matches!(it, Request::Stats { .. })).count();
    let seconds = ftp.told_at.map_or(0, |at| at.elapsed().as_secs()) as usize;
    assert!((1..=1 + seconds).contains(&stats), "{stats}");
    assert!(ftp.until_told().is_some_and(|wait| wait <= TOLD), "the rest comes later");
}

#[test]
fn servers_that_do_not_answer_one_host_keep_no_other_from_having_sessions() {
    let (mut ftp, gateway) = ftp();
    let reach = |ftp: &mut Ftp, client: &str| {
        let (_far, stream) = sockets();
        let server = "203.0.113.9:21".parse().unwrap();
        let preface = Preface::Control { server, client: client.parse().unwrap() };
        let incoming = Incoming { id: 3, peer: "ship".into(), client: None };
        say(&gateway, &Event::Incoming(incoming), preface.to_string().as_bytes(), Some(&stream));
        hear(ftp, &gateway)
    };
    let mut asked = Vec::new();
    for _ in 0..600 {
        asked.extend(reach(&mut ftp, "10.1.0.9:2000"));
        // Its place goes to somebody else, and the gateway tries to connect on.
        let last = ftp.last;
        ftp.asked.remove(&last);
        ftp.places.leave(last);
    }
    assert_eq!(asked.len(), MOST_CONNECTS / 4);
    assert_eq!(reach(&mut ftp, "10.1.0.2:2000").len(), 1, "another host of the peer");
    for it in asked {
        let Request::Connect { request, .. } = it else { panic!("{it:?}") };
        say(&gateway, &Event::Failed { request, reason: Reason::TimedOut }, b"", None);
        assert_eq!(hear(&mut ftp, &gateway), []);
    }
    assert_eq!(reach(&mut ftp, "10.1.0.9:2000").len(), 1);
}

#[test]
fn what_its_peer_may_not_reach_any_more_ends_and_nothing_else() {
    let (mut ftp, gateway) = ftp();
    let client: SocketAddr = "10.1.0.2:2000".parse().unwrap();
    // Sessions of two peers with two servers, each with a data connection.
    let mut ends = Vec::new();
    for (peer, server) in [("ship", "10.2.0.2"), ("ship", "10.2.0.3"), ("boat", "10.2.0.2")] {
        let server = SocketAddr::new(server.parse().unwrap(), 21);
        let ((far, stream), (at_server, its)) = (sockets(), sockets());
        let preface = Preface::Control { server, client }.to_string();
        let incoming = Incoming { id: 3, peer: peer.into(), client: None };
        say(&gateway, &Event::Incoming(incoming), preface.as_bytes(), Some(&stream));
        let asked = hear(&mut ftp, &gateway);
        let [Request::Connect { request, .. }] = &asked[..] else { panic!("{asked:?}") };
        let connected = |request| Event::Connected { request, local: client, server };
        say(&gateway, &connected(*request), b"", Some(&its));
        assert_eq!(hear(&mut ftp, &gateway), []);
        for is_joined in [true, false] {
            let session = Hub { peer: peer.into(), server, client };
            ftp.reach_port(session, Data { server: 20, client: 2001 }).unwrap();
            let asked = hear(&mut ftp, &gateway);
            let [Request::Connect { request, .. }] = &asked[..] else { panic!("{asked:?}") };
            let ((at_port, its), (at_stream, stream)) = (sockets(), sockets());
            say(&gateway, &connected(*request), b"", Some(&its));
            let asked = hear(&mut ftp, &gateway);
            let [Request::Open { request, .. }] = &asked[..] else { panic!("{asked:?}") };
            if is_joined {
                say(&gateway, &Event::Opened { request: *request, id: 9 }, b"", Some(&stream));
                assert_eq!(hear(&mut ftp, &gateway), []);
                ends.push((peer, server.ip(), at_stream));
            }
            ends.push((peer, server.ip(), at_port));
        }
        ends.extend([far, at_server].map(|end| (peer, server.ip(), end)));
    }
    assert_eq!((ftp.joined.len(), ftp.asked.len()), (6, 3));
    let denied = Denied(vec!["10.2.0.2/31".parse().unwrap(), "10.2.0.3/32".parse().unwrap()]);
    say(&gateway, &Event::Narrowed { peer: "boat".into(), denied }, b"", None);
    let denied = Denied(vec!["10.2.0.2/32".parse().unwrap()]);
    say(&gateway, &Event::Narrowed { peer: "hub".into(), denied: denied.clone() }, b"", None);
    assert_eq!(hear(&mut ftp, &gateway), []);
    assert_eq!((ftp.joined.len(), ftp.asked.len()), (4, 2), "those of the boat are over");
    say(&gateway, &Event::Narrowed { peer: "ship".into(), denied }, b"", None);
    assert_eq!(hear(&mut ftp, &gateway), []);
    assert_eq!((ftp.joined.len(), ftp.asked.len()), (2, 1));
    for (peer, server, end) in ends {
        let stays = peer == "ship" && server.to_string() == "10.2.0.3";
        let read = end.read(&mut [0; 1]);
        let is_open = matches!(&read, Err(e) if e.kind() == ErrorKind::WouldBlock);
        assert_eq!(is_open, stays, "{peer} {server} {read:?}");
    }
}
