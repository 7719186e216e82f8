//! A client of the service socket, against a gateway played here.

use std::thread;

use super::*;
use crate::message::Accepted;
use os::tcp::{Stream, TcpOptions, pair};

/// The gateway's end, by hand.
struct Gateway(SeqPacket);

impl Gateway {
    fn say(&self, event: &Event, bytes: &[u8], socket: Option<BorrowedFd<'_>>) {
        let packet = packet::encode(event, bytes).unwrap();
        self.0.send(&[IoSlice::new(&packet)], socket.as_slice(), true).unwrap();
    }

    fn hear(&self) -> (Request, Vec<u8>, Vec<OwnedFd>) {
        let mut room = room();
        let got = self.0.receive(&mut room, true).unwrap();
        let (request, bytes) = packet::decode(&room[..got.len]).unwrap();
        (request, bytes.to_vec(), got.descriptors)
    }
}

fn two() -> (Gateway, Client) {
    let (ours, theirs) = SeqPacket::pair().unwrap();
    let gateway = Gateway(ours);
    gateway.say(&Event::Hello { version: VERSION, service: "echo".into() }, b"", None);
    let client = Client::new(theirs).unwrap();
    let hello = Request::Hello {
        version: VERSION,
        datagrams: false,
        offline: false,
        pings: true,
        proxied: false,
    };
    assert_eq!(gateway.hear().0, hello);
    (gateway, client)
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let (a, b) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
    (a.into(), b.into())
}

#[test]
fn a_client_says_hello_and_knows_its_name() {
    let (_gateway, client) = two();
    assert_eq!(client.name(), "echo");
    let (ours, theirs) = SeqPacket::pair().unwrap();
    Gateway(ours).say(&Event::Hello { version: 9, service: "echo".into() }, b"", None);
    assert!(matches!(Client::new(theirs), Err(Error::OtherVersion(9))));
}

/// Nor does one wait for room: the gateway has enough to hear then.
#[test]
fn a_ping_is_answered_and_nobody_has_to_do_with_it() {
    let (gateway, client) = two();
    for _ in 0..2 {
        gateway.say(&Event::Ping, b"", None);
        gateway.say(&Event::Stop, b"", None);
        let mut room = room();
        assert_eq!(client.next(&mut room).unwrap().unwrap().event, Event::Stop);
        assert_eq!(gateway.hear().0, Request::Pong);
        gateway.say(&Event::Ping, b"", None);
        assert!(client.try_next(&mut room).is_err());
        assert_eq!(gateway.hear().0, Request::Pong);
    }
    let hint = packet::encode(&Request::Stop, &[0; 10_000]).unwrap();
    while client.socket.send(&[IoSlice::new(&hint)], &[], false).is_ok() {}
    gateway.say(&Event::Ping, b"", None);
    gateway.say(&Event::Stop, b"", None);
    assert_eq!(client.next(&mut room()).unwrap().unwrap().event, Event::Stop);
}

#[test]
fn a_connection_that_is_passed_is_the_very_socket_with_what_was_read() {
    let (gateway, client) = two();
    let (near, far) = sockets();
    let address: SocketAddr = "10.1.0.2:40000".parse().unwrap();
    let (peer, class) = ("shore".to_owned(), "normal".to_owned());
    let it =
        Accepted { id: 1, client: address, server: address, peer, class, dscp: 46, name: None };
    gateway.say(&Event::Accepted(it.clone()), b"", Some(near.as_fd()));
    drop(near);
    let mut room = room();
    let got = client.next(&mut room).unwrap().unwrap();
    assert_eq!(got.event, Event::Accepted(it));
    let socket = got.socket.unwrap();
    client.pass(socket, 46, b"GET").unwrap();
    let (request, bytes, mut descriptors) = gateway.hear();
    assert_eq!((request, &bytes[..]), (Request::Pass { dscp: 46 }, &b"GET"[..]));
    let near = Stream::from(descriptors.pop().unwrap());
    near.write(b"hello").unwrap();
    let mut buf = [0; 10];
    assert_eq!(Stream::from(far).read(&mut buf).unwrap(), 5);
}

#[test]
fn a_connection_of_which_too_much_was_read_is_reset_and_the_service_goes_on() {
    let (gateway, client) = two();
    let (near, far) = sockets();
    client.pass(near, 0, &vec![0; MAX_PACKET]).unwrap();
    let reset = Stream::from(far).read(&mut [0; 10]).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    client.send(&Request::Pong, b"", None).unwrap();
    assert_eq!(gateway.hear().0, Request::Pong);
}

#[test]
fn answers_find_who_asked_whatever_their_order() {
    let (gateway, client) = two();
    thread::scope(|scope| {
        let refused = scope.spawn(|| client.connect("shore", "a.example:80", None));
        let Request::Connect { request: first, target, .. } = gateway.hear().0 else { panic!() };
        assert_eq!(target, "a.example:80");
        let opened = scope.spawn(|| client.open("shore", None, b"preface"));
        let (Request::Open { request: second, .. }, bytes, _) = gateway.hear() else { panic!() };
        assert_eq!(bytes, b"preface");
        let (near, _far) = sockets();
        gateway.say(&Event::Opened { request: second, id: 9 }, b"", Some(near.as_fd()));
        gateway.say(&Event::Failed { request: first, reason: Reason::Denied }, b"", None);
        gateway.say(&Event::Stop, b"", None);
        let mut room = room();
        assert_eq!(client.next(&mut room).unwrap().unwrap().event, Event::Stop);
        assert_eq!(refused.join().unwrap().unwrap_err(), Reason::Denied);
        assert_eq!(opened.join().unwrap().unwrap().0, 9);
    });
}

#[test]
fn nobody_waits_for_a_gateway_that_has_ended() {
    let (gateway, client) = two();
    thread::scope(|scope| {
        let asked = scope.spawn(|| client.open("shore", None, b""));
        gateway.hear();
        drop(gateway);
        assert!(client.next(&mut room()).unwrap().is_none());
        assert_eq!(asked.join().unwrap().unwrap_err(), Reason::ShuttingDown);
    });
    assert_eq!(client.open("shore", None, b"").unwrap_err(), Reason::ShuttingDown);
}

#[test]
fn a_message_without_the_socket_that_it_should_have_is_none() {
    let (gateway, client) = two();
    gateway.say(&Event::Opened { request: 5, id: 1 }, b"", None);
    assert!(matches!(client.next(&mut room()), Err(Error::Malformed(_))));
}
