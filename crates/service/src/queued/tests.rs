//! What a gateway does not take yet.

use std::io::IoSlice;

use os::seqpacket::SeqPacket;
use os::tcp::{TcpOptions, pair};

use super::*;
use crate::message::{Event, Reason};

const MANY: u64 = 5_000;

fn say(gateway: &SeqPacket, event: &Event) {
    let packet = packet::encode(event, b"").unwrap();
    gateway.send(&[IoSlice::new(&packet)], &[], true).unwrap();
}

fn queued() -> (Queued, SeqPacket) {
    let (ours, gateway) = SeqPacket::pair().unwrap();
    say(&gateway, &Event::Hello { version: crate::VERSION, service: "names".into() });
    let queued = Queued::new(Client::new(ours).unwrap());
    gateway.receive(&mut crate::room(), false).unwrap();
    (queued, gateway)
}

fn request(n: u64) -> Request {
    Request::Connect { request: n, peer: "ship".into(), target: "10.2.0.2:53".into(), source: None }
}

/// All that the gateway gets now: the requests' numbers, and how many sockets came with them.
fn heard(gateway: &SeqPacket) -> (Vec<u64>, usize) {
    let (mut room, mut numbers, mut sockets) = (crate::room(), Vec::new(), 0);
    while let Ok(got) = gateway.receive(&mut room, false) {
        match packet::decode(&room[..got.len]).unwrap().0 {
            Request::Connect { request, .. } => numbers.push(request),
            Request::Pass { dscp } => numbers.push(u64::from(dscp)),
            other => panic!("{other:?}"),
        }
        sockets += got.descriptors.len();
    }
    (numbers, sockets)
}

#[test]
fn who_is_not_heard_hears_and_is_heard_later_in_order() {
    let (mut queued, gateway) = queued();
    let mut poller = Poller::new().unwrap();
    for n in 0..MANY {
        queued.send(&request(n), b"", None).unwrap();
    }
    let (socket, _other) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
    queued.pass(socket.into(), 7, b"").unwrap();
    assert!(!queued.unsaid.is_empty(), "more than the socket holds");
    say(&gateway, &Event::Failed { request: 0, reason: Reason::Refused });
    let mut room = crate::room();
    let delivery = queued.try_next(&mut room).unwrap().unwrap();
    assert!(matches!(delivery.event, Event::Failed { request: 0, .. }));

    let (mut numbers, mut sockets) = (Vec::new(), 0);
    let mut events = os::poll::Events::with_capacity(4);
    while numbers.len() <= MANY as usize {
        let (more, with) = heard(&gateway);
        numbers.extend(more);
        sockets += with;
        queued.watch(&poller, 1).unwrap();
        poller.wait(&mut events, Some(units::Duration::ZERO)).unwrap();
        assert_eq!(events.is_empty(), queued.unsaid.is_empty(), "room is told where it is wanted");
        let nothing = queued.try_next(&mut room).unwrap_err();
        assert!(matches!(nothing, Error::Socket(e) if e.kind() == ErrorKind::WouldBlock));
    }
    assert_eq!(numbers, (0..MANY).chain([7]).collect::<Vec<_>>());
    assert_eq!((sockets, queued.bytes), (1, 0));
}

#[test]
fn a_gateway_that_takes_nothing_costs_no_memory_without_end() {
    let (mut queued, _gateway) = queued();
    let body = vec![0; 32 << 10];
    let refused = (0..1_000).find_map(|n| queued.send(&request(n), &body, None).err());
    assert!(matches!(refused, Some(Error::NotHeard)));
    assert!(queued.bytes <= MOST_UNSAID);
}

#[test]
fn a_gateway_that_is_gone_is_told_as_such() {
    let (mut queued, gateway) = queued();
    for n in 0..MANY {
        queued.send(&request(n), b"", None).unwrap();
    }
    say(&gateway, &Event::Stop);
    drop(gateway);
    let mut room = crate::room();
    let stop = queued.try_next(&mut room).unwrap().unwrap();
    assert!(matches!(stop.event, Event::Stop));
    drop(stop);
    assert!(queued.try_next(&mut room).unwrap().is_none());
}
