//! The loop: what one who asks without end, or reads nothing, costs the others.

use std::collections::VecDeque;
use std::io::IoSlice;

use names::message::Query;
use os::seqpacket::SeqPacket;
use os::tcp::{Stream, TcpOptions, pair};
use service::packet;

use super::*;

const SERVER: &str = "10.2.0.2:53";

/// The program, and the gateway's end of its socket.
fn names() -> (Names, SeqPacket) {
    let (ours, gateway) = SeqPacket::pair().unwrap();
    say(&gateway, &Event::Hello { version: service::VERSION, service: "names".into() }, b"");
    (Names::new(Client::new(ours).unwrap()).unwrap(), gateway)
}

fn say(gateway: &SeqPacket, event: &Event, bytes: &[u8]) {
    let packet = packet::encode(event, bytes).unwrap();
    gateway.send(&[IoSlice::new(&packet)], &[], true).unwrap();
}

/// What the program has said so far.
fn said(gateway: &SeqPacket) -> Vec<Request> {
    let mut room = service::room();
    let next = || {
        let got = gateway.receive(&mut room, false).ok()?;
        Some(packet::decode::<Request>(&room[..got.len]).unwrap().0)
    };
    std::iter::from_fn(next).collect()
}

fn step(names: &mut Names) {
    assert!(names.step(&mut service::room(), &mut Events::with_capacity(256)).unwrap());
}

/// A question for addresses.
fn question(id: u16, host: &str) -> Vec<u8> {
    let name = names::message::name(host).unwrap();
    let [high, low] = id.to_be_bytes();
    let head = [high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&head[..], &name, &[0, 1, 0, 1]].concat()
}

/// Its answer: so many addresses.
fn answer(query: &[u8], addresses: u16) -> Vec<u8> {
    let end = if query[11] == 1 { query.len() - 11 } else { query.len() };
    let mut out = query[..end].to_vec();
    (out[2], out[3], out[11]) = (0x81, 0x80, 0);
    out[6..8].copy_from_slice(&addresses.to_be_bytes());
    for n in 0..addresses {
        out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 10, 9, (n >> 8) as u8, n as u8]);
    }
    out
}

/// A host's connection with these questions; the host's end.
fn connection(names: &mut Names, host: u8, questions: &[Vec<u8>]) -> Stream {
    let small = TcpOptions {
        send_buffer: Some(16 << 10),
        receive_buffer: Some(16 << 10),
        ..TcpOptions::default()
    };
    let (ours, theirs) = pair(&small, &small).unwrap();
    for question in questions {
        let message = [&(question.len() as u16).to_be_bytes()[..], question].concat();
        assert_eq!(theirs.write(&message).unwrap(), message.len());
    }
    let it = Accepted {
        id: 1,
        client: ([10, 1, 0, host], 4_000).into(),
        server: SERVER.parse().unwrap(),
        peer: "hub".into(),
        class: "bulk".into(),
        dscp: 0,
        name: None,
    };
    let (taken, asked, answered, since, ended) = (0, 0, 0, names.now(), false);
    let host = Host { it, taken, asked, answered, since, ended };
    names.add(Of::Host(Box::new(host)), ours.into(), vec![]).unwrap();
    theirs
}

/// An answer of 60 kB that is kept; its question.
fn keep_a_long_answer(names: &mut Names) -> Vec<u8> {
    let question = question(7, "long.example");
    let query = Query::parse(&question).unwrap().canonical;
    let message = answer(&query, 3_750);
    let frame = Frame::Along { server: SERVER.parse().unwrap(), query, message };
    assert!(names.near.on_frame(0, "hub", frame));
    question
}

fn unread(names: &Names) -> usize {
    names.sockets.values().map(|socket| socket.wire.written.len()).sum()
}

/// A peer's stream that takes many questions at once.
fn large_pair() -> (Stream, Stream) {
    let large = TcpOptions {
        send_buffer: Some(400 << 10),
        receive_buffer: Some(400 << 10),
        ..TcpOptions::default()
    };
    pair(&large, &large).unwrap()
}

#[test]
fn a_host_that_asks_without_end_leaves_others_their_turns() {
    let (mut names, gateway) = names();
    let (client, server) = (([10, 1, 0, 9], 4_000).into(), SERVER.parse().unwrap());
    for n in 0..150 {
        let event = Event::Datagram { peer: "hub".into(), client, server };
        say(&gateway, &event, &question(n, &format!("n{n}.example")));
    }
    for n in 1..=3 {
        step(&mut names);
        assert_eq!(names.near.counts.misses, (n * AT_ONCE as u64).min(150));
    }
    let said = said(&gateway);
    let stats = said.iter().filter(|it| matches!(it, Request::Stats { .. })).count() as u64;
    let seconds = names.now() / TOLD;
    assert!((1..=1 + seconds).contains(&stats), "at most one a second: {said:?}");
}

#[test]
fn answers_that_hosts_do_not_read_take_bounded_memory_and_are_all_there_for_one_that_does() {
    let (mut names, _gateway) = names();
    let question = keep_a_long_answer(&mut names);
    let questions = vec![question; 17];
    let hosts: Vec<Stream> =
        (0..200).map(|n| connection(&mut names, n as u8, &questions)).collect();
    assert!(unread(&names) < 16 << 20, "{} bytes", unread(&names));
    let (mut got, mut room) = (0, vec![0; 1 << 20]);
    let whole = 17 * (2 + answer(&questions[0], 3_750).len());
    for _ in 0..2_000 {
        while let Ok(n @ 1..) = hosts[3].read(&mut room) {
            got += n;
        }
        if got >= whole {
            break;
        }
        step(&mut names);
    }
    assert_eq!(got, whole);
    assert_eq!(names.hosts.sum(), 200, "nobody lost his connection");
}

#[test]
fn answers_that_come_together_for_hosts_that_do_not_read_reset_the_connection_with_the_most() {
    let (mut names, _gateway) = names();
    let hosts: Vec<Stream> = (0..200).map(|n| connection(&mut names, n as u8, &[])).collect();
    let numbers: Vec<u64> = names.sockets.keys().copied().collect();
    for number in numbers {
        for _ in 0..8 {
            names.reply(number, &vec![0; 60_000]);
        }
    }
    assert!(unread(&names) <= MOST_OF_HOSTS, "{} bytes", unread(&names));
    assert_eq!(names.hosts.sum(), names.sockets.len());
    drop(hosts);
}

#[test]
fn a_host_with_all_connections_leaves_one_to_another_and_who_has_as_many_is_passed() {
    let (mut names, _gateway) = names();
    let mut hosts = Vec::new();
    for _ in 0..MOST_HOSTS {
        assert!(names.makes_room([10, 1, 0, 9].into()));
        hosts.push(connection(&mut names, 9, &[]));
    }
    assert!(!names.makes_room([10, 1, 0, 9].into()), "nobody has more");
    assert!(names.makes_room([10, 1, 0, 2].into()));
    assert_eq!(names.hosts.sum(), MOST_HOSTS - 1);
}

#[test]
fn a_peer_that_asks_without_end_leaves_others_their_turns() {
    let (mut names, gateway) = names();
    let (ours, theirs) = large_pair();
    let query = Query::parse(&question(0, "again.example")).unwrap().canonical;
    let (client, server) = (([10, 1, 0, 2], 4_000).into(), SERVER.parse().unwrap());
    let frame = Frame::Ask { id: 1, waits: true, client, server, query }.encode();
    let flood = frame.repeat(10_000);
    let written = theirs.write(&flood).unwrap();
    assert!(written > 200 << 10, "{written} bytes");
    names.open_far("evil".into(), ours.into()).unwrap();
    names.settle().unwrap();
    let taken = |names: &Names| -> usize {
        names.sockets.values().map(|socket| socket.wire.written.len()).sum()
    };
    // A question that is repeated is refused at once: in 7 bytes.
    let mut room = vec![0; 1 << 20];
    let refused = taken(&names) / 7 + theirs.read(&mut room).unwrap_or(0) / 7;
    assert!(refused <= (100 << 10) / frame.len(), "{refused} of them in one turn");
    let mut got = refused;
    // But those that wait for the first one's answer.
    let all = written / frame.len() - 64;
    for _ in 0..20 {
        if got < all {
            step(&mut names);
            got += theirs.read(&mut room).unwrap_or(0) / 7;
        }
    }
    assert!(got >= all, "{got} of {all}");
    drop(gateway);
}

#[test]
fn a_question_whose_server_is_not_reached_counts_until_the_gateway_says_so() {
    let (mut names, gateway) = names();
    let (ours, theirs) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
    names.open_far("ship".into(), ours.into()).unwrap();
    let ask = |names: &mut Names, id: u32| {
        let query = Query::parse(&question(0, &format!("n{id}.example"))).unwrap().canonical;
        let (client, server) = (([10, 1, 0, 2], 4_000).into(), SERVER.parse().unwrap());
        let frame = Frame::Ask { id, waits: true, client, server, query }.encode();
        assert_eq!(theirs.write(&frame).unwrap(), frame.len());
        step(names);
        let connects = said(&gateway).into_iter().filter_map(|it| match it {
            Request::Connect { request, .. } => Some(request),
            _ => None,
        });
        connects.collect::<Vec<_>>()
    };
    let requests: Vec<u64> = (0..512).flat_map(|id| ask(&mut names, id)).collect();
    assert_eq!(requests.len(), 512);
    let dials: Vec<u64> = names.dials.keys().copied().collect();
    dials.iter().for_each(|dial| names.end_dial(*dial, None));
    names.settle().unwrap();
    assert!(ask(&mut names, 1_000).is_empty(), "its host has had its part");
    for request in &requests {
        say(&gateway, &Event::Failed { request: *request, reason: service::Reason::TimedOut }, b"");
        step(&mut names);
    }
    assert_eq!(ask(&mut names, 1_001).len(), 1);
}

/// A gateway that refuses all connections at once, and takes no request while an answer is unread.
/// It ends when it comes to nothing for ten seconds.
fn refuse(gateway: SeqPacket, most: usize) -> Option<SeqPacket> {
    let (mut room, mut answers) = (service::room(), VecDeque::<Vec<u8>>::new());
    let (mut refused, mut moved) = (0, Instant::now());
    while refused < most {
        if moved.elapsed().as_secs() >= 10 {
            return None;
        }
        if let Some(packet) = answers.front() {
            match gateway.send(&[IoSlice::new(packet)], &[], false) {
                Ok(()) => {
                    answers.pop_front();
                    (refused, moved) = (refused + 1, Instant::now());
                }
                Err(_) => std::thread::yield_now(),
            }
        } else if let Ok(got) = gateway.receive(&mut room, false) {
            let (request, _) = packet::decode::<Request>(&room[..got.len]).unwrap();
            if let Request::Connect { request, .. } = request {
                let failed = Event::Failed { request, reason: service::Reason::Denied };
                answers.push_back(packet::encode(&failed, b"").unwrap());
            }
        } else {
            std::thread::yield_now();
        }
    }
    Some(gateway)
}

#[test]
fn a_peer_whose_questions_all_fail_at_once_does_not_hold_up_the_service() {
    const ASKED: usize = 1_000;
    let (mut names, gateway) = names();
    let (ours, theirs) = large_pair();
    let server = SERVER.parse().unwrap();
    for id in 0..ASKED as u32 {
        let query = Query::parse(&question(0, &format!("n{id}.example"))).unwrap().canonical;
        let client = ([10, 1, (id >> 8) as u8, id as u8], 4_000).into();
        let frame = Frame::Ask { id, waits: true, client, server, query }.encode();
        assert_eq!(theirs.write(&frame).unwrap(), frame.len());
    }
    let refusing = std::thread::spawn(move || refuse(gateway, ASKED));
    names.open_far("evil".into(), ours.into()).unwrap();
    while !refusing.is_finished() {
        step(&mut names);
    }
    assert!(refusing.join().unwrap().is_some(), "both wait for each other");
}
