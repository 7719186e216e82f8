//! TCP sockets on loopback: ends, resets, options and failures.

use super::*;
use crate::poll::{Events, Interest, Poller};

/// Until the poller says that the socket has news.
fn wait_for(fd: &impl AsFd, interest: Interest) {
    let mut poller = Poller::new().unwrap();
    poller.add(fd, 0, interest).unwrap();
    let mut events = Events::with_capacity(1);
    assert_eq!(poller.wait(&mut events, Some(Duration::from_secs(10))).unwrap(), 1, "no news");
}

fn to(server: SocketAddr, options: &TcpOptions) -> Connect<'_> {
    Connect { to: server, from: None, mark: None, options }
}

/// A connected pair: what connected and what was accepted.
fn pair() -> (Stream, Stream) {
    let listener = listener();
    let client = connect(&to(listener.local_addr(), &TcpOptions::default())).unwrap();
    wait_for(&listener, Interest::READ);
    (client, listener.accept().unwrap().stream)
}

fn listener() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap(), &TcpOptions::default()).unwrap()
}

fn read_all(stream: &Stream) -> io::Result<Vec<u8>> {
    let (mut all, mut buf) = (Vec::new(), [0; 4096]);
    loop {
        wait_for(stream, Interest::READ);
        match stream.read(&mut buf)? {
            0 => return Ok(all),
            n => all.extend_from_slice(&buf[..n]),
        }
    }
}

#[test]
fn bytes_and_both_ends_pass_in_order() {
    let (client, server) = pair();
    let pieces = [IoSlice::new(b"one "), IoSlice::new(b"two")];
    assert_eq!(client.write_vectored(&pieces).unwrap(), 7);
    client.shutdown_write().unwrap();
    assert_eq!(read_all(&server).unwrap(), b"one two");
    assert_eq!(server.write(b"answer").unwrap(), 6);
    server.close_in_order().unwrap();
    drop(server);
    assert_eq!(read_all(&client).unwrap(), b"answer");
}

#[test]
fn a_dropped_stream_resets_at_either_end() {
    for client_dies in [true, false] {
        let (client, server) = pair();
        let (dead, alive) = if client_dies { (client, server) } else { (server, client) };
        drop(dead);
        assert_eq!(read_all(&alive).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn nothing_is_under_way_to_a_host_that_has_everything_or_reset() {
    let (client, server) = pair();
    server.set_receive_buffer(4096).unwrap();
    assert_eq!(client.under_way(), 0);
    while client.write(&[7; 65_536]).is_ok() {}
    assert!(client.under_way() > 65_536);
    drop(server);
    wait_for(&client, Interest::NONE);
    assert!(client.unacknowledged().unwrap() > 0, "it was not acknowledged, and never will be");
    assert_eq!(client.under_way(), 0);
    let (client, server) = pair();
    client.write(b"all of it").unwrap();
    client.shutdown_write().unwrap();
    assert_eq!(read_all(&server).unwrap(), b"all of it");
    server.close_in_order().unwrap();
    drop(server);
    assert_eq!(read_all(&client).unwrap(), b"");
    assert_eq!(client.under_way(), 0);
}

#[test]
fn accepted_connections_have_the_listeners_options() {
    let (client, server) = pair();
    for stream in [&client, &server] {
        let get = |level, name| get_option::<libc::c_int>(stream.as_fd(), level, name).unwrap();
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_OOBINLINE), 1);
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 7200);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), 128 << 10);
        let linger: libc::linger =
            get_option(stream.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER).unwrap();
        assert_eq!((linger.l_onoff, linger.l_linger), (1, 0));
    }
}

/// Tries until nobody has a socket any more that was dropped: another test's child has it, too,
/// until it runs its program.
fn soon<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let begin = std::time::Instant::now();
    loop {
        match attempt() {
            Some(done) => return done,
            None => assert!(begin.elapsed().as_secs() < 15, "it comes to be"),
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn the_outcome_of_an_attempt_tells_a_reset_from_what_a_router_says() {
    let listener = listener();
    let client = connect(&to(listener.local_addr(), &TcpOptions::default())).unwrap();
    wait_for(&client, Interest::WRITE);
    client.outcome().unwrap();
    let nobody = listener.local_addr();
    drop(listener);
    let failure = soon(|| {
        let client = connect(&to(nobody, &TcpOptions::default())).unwrap();
        wait_for(&client, Interest::WRITE);
        client.outcome().err()
    });
    assert_eq!(failure.error.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(failure.unreachable, None, "a reset is no ICMP error");
}

#[test]
fn a_refused_connection_is_told_by_take_error_once() {
    let free_port = listener().local_addr();
    let (client, error) = soon(|| {
        let client = connect(&to(free_port, &TcpOptions::default())).unwrap();
        wait_for(&client, Interest::WRITE);
        client.take_error().unwrap().map(|error| (client, error))
    });
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(client.take_error().unwrap().is_none());
}

#[test]
fn urgent_data_stays_in_its_place() {
    let (client, server) = pair();
    client.write(b"ab").unwrap();
    // SAFETY: pointer and length describe a literal.
    let n = unsafe { libc::send(client.fd.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(n, 1);
    client.write(b"cd").unwrap();
    client.shutdown_write().unwrap();
    assert_eq!(read_all(&server).unwrap(), b"ab!cd");
}

#[test]
fn a_full_socket_blocks_and_counts_what_it_holds() {
    let (client, server) = pair();
    client.set_send_buffer(64 << 10).unwrap();
    let mut taken = 0;
    let error = loop {
        match client.write(&[7; 16 << 10]) {
            Ok(n) => taken += n,
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    // What has arrived and is not acknowledged yet counts on both sides.
    let (unacknowledged, unread) = (client.unacknowledged().unwrap(), server.unread().unwrap());
    assert!(unacknowledged <= taken && unread <= taken && unacknowledged + unread >= taken);
    assert!(client.info().unwrap().established);
}

#[test]
fn an_accept_without_a_connection_would_block() {
    assert_eq!(listener().accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_source_address_is_kept_and_a_taken_one_is_told() {
    let listener = listener();
    let options = TcpOptions::default();
    let from: SocketAddr = "127.0.0.77:0".parse().unwrap();
    let how =
        Connect { to: listener.local_addr(), from: Some(from), mark: None, options: &options };
    let first = match connect(&how) {
        Err(ConnectError::Failed(e)) if e.errno() == Some(libc::EPERM) => return,
        other => other.unwrap(),
    };
    wait_for(&listener, Interest::READ);
    let accepted = listener.accept().unwrap();
    assert_eq!(accepted.client.ip(), from.ip());
    let again = Connect { from: Some(first.local_addr().unwrap()), ..how };
    assert!(matches!(connect(&again), Err(ConnectError::SourceInUse)));
}

#[test]
fn a_transparent_listener_resets_what_was_meant_for_itself() {
    let options = TcpOptions::default();
    let listener = match TransparentListener::bind(0, &options) {
        Err(e) if e.errno() == Some(libc::EPERM) => return,
        other => other.unwrap(),
    };
    let client = connect(&to(listener.v4.local_addr(), &options)).unwrap();
    wait_for(&listener.v4, Interest::READ);
    assert_eq!(listener.v4.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(read_all(&client).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    if let Some(v6) = &listener.v6 {
        assert_eq!(v6.local_addr().port(), listener.port());
    }
}

#[test]
fn connections_that_nobody_meant_do_not_keep_the_caller() {
    let options = TcpOptions::default();
    let listener = match TransparentListener::bind(0, &options) {
        Err(e) if e.errno() == Some(libc::EPERM) => return,
        other => other.unwrap(),
    };
    let here = to(listener.v4.local_addr(), &options);
    let clients: Vec<Stream> = (0..100).map(|_| connect(&here).unwrap()).collect();
    for client in &clients {
        wait_for(client, Interest::WRITE);
    }
    let is_reset = |client: &Stream| client.outcome().is_err();
    assert_eq!(listener.v4.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let after_one = clients.iter().filter(|c| is_reset(c)).count();
    assert!((1..100).contains(&after_one), "{after_one} of 100 at once");
    // The poller tells of the rest.
    wait_for(&listener.v4, Interest::READ);
    assert_eq!(listener.v4.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let rest = clients.iter().filter(|c| is_reset(c)).count();
    assert_eq!(after_one + rest, 100);
}

#[test]
fn the_round_trip_time_is_measured_and_the_source_port_chosen_late() {
    let (client, server) = pair();
    client.write(b"x").unwrap();
    wait_for(&server, Interest::READ);
    assert!(client.info().unwrap().rtt > Duration::ZERO);
    assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
}

#[test]
fn a_port_in_use_names_the_port() {
    let taken = listener();
    let e = Listener::bind(taken.local_addr(), &TcpOptions::default()).unwrap_err().to_string();
    assert!(e.contains(&taken.local_addr().to_string()) && e.contains("another program"), "{e}");
}
