//! What TCP means to its users, through the gateways as without them (R-SEMANTICS).

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use units::BitRate;

use crate::harness::{Plan, World, root, wait_for};
use crate::tcp::{
    CLIENT, End, SERVER, SERVER_V6, accept, check_echo, connect, end_within, expect, joined,
    listen, pattern, read_to_end, reset, send_all, try_connect,
};

#[test]
fn a_refused_port_resets_the_client_and_never_closes_cleanly() {
    if !root() {
        return;
    }
    // With the default, which knows nothing of these ports, the server is asked first.
    let world = World::with(Plan::fast);
    for to in [SERVER, SERVER_V6] {
        match try_connect(&world.client, to) {
            Ok(mut stream) => {
                assert_eq!(end_within(&mut stream, Duration::from_secs(20)), Some(End::Reset));
            }
            // The reset came before the client's thread woke to hear that the connection stood.
            Err(e) => assert!(
                matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset),
                "{e}"
            ),
        }
    }
    world.wait_until_no_streams();
}

#[test]
fn a_client_that_sent_its_question_and_ended_gets_an_answer_of_500_kb() {
    if !root() {
        return;
    }
    let world = World::new();
    for at in [SERVER, SERVER_V6] {
        let (mut near, mut far) = joined(&world.client, &listen(&world.server, at));
        near.write_all(b"question").unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut far), (b"question".to_vec(), End::Clean));
        let answer = pattern(1, 500_000);
        let sending = send_all(&far, answer.clone());
        let (got, end) = read_to_end(&mut near);
        assert_eq!(end, End::Clean);
        assert!(got == answer, "{} bytes of 500,000 are right", got.len());
        sending.join().unwrap().unwrap();
    }
    world.wait_until_no_streams();
}

#[test]
fn a_server_that_ends_first_still_gets_what_the_client_sends_afterwards() {
    if !root() {
        return;
    }
    let world = World::new();
    let (mut near, mut far) = joined(&world.client, &listen(&world.server, SERVER));
    far.write_all(b"220 welcome").unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&mut near), (b"220 welcome".to_vec(), End::Clean));
    thread::sleep(Duration::from_millis(300));
    let upload = pattern(2, 300_000);
    send_all(&near, upload.clone()).join().unwrap().unwrap();
    let (got, end) = read_to_end(&mut far);
    assert!(got == upload && end == End::Clean, "{} bytes, {end:?}", got.len());
    world.wait_until_no_streams();
}

#[test]
fn a_server_that_resets_in_mid_answer_resets_the_client() {
    if !root() {
        return;
    }
    let world = World::new();
    let (mut near, mut far) = joined(&world.client, &listen(&world.server, SERVER));
    let answer = pattern(3, 100_000);
    far.write_all(&answer).unwrap();
    // What the reset overtakes is lost without gateways, too: let it arrive.
    let mut first = vec![0; 50_000];
    near.read_exact(&mut first).unwrap();
    reset(far);
    let (rest, end) = read_to_end(&mut near);
    assert_eq!(end, End::Reset);
    assert!(answer.starts_with(&[first, rest].concat()), "nothing but what was sent arrives");
    world.wait_until_no_streams();
}

#[test]
fn a_server_that_resets_once_all_is_acknowledged_loses_nothing_on_a_slow_link() {
    if !root() {
        return;
    }
    // As load balancers end connections. The bytes take more than ten seconds of the link.
    let world = World::with(|plan| plan.rate = BitRate::from_kbps(128));
    let (mut near, far) = joined(&world.client, &listen(&world.server, SERVER));
    let answer = pattern(3, 200_000);
    let bytes = answer.clone();
    let server = thread::spawn(move || {
        (&far).write_all(&bytes).unwrap();
        let kernel = os::tcp::Stream::from(far.try_clone().unwrap());
        wait_for("the acknowledgement of all", || match kernel.unacknowledged() {
            Ok(0) => Ok(()),
            left => Err(format!("{left:?} bytes are left")),
        });
        reset(far);
    });
    let (got, end) = read_to_end(&mut near);
    assert!(got == answer, "{} of 200,000 bytes", got.len());
    assert_eq!(end, End::Reset);
    server.join().unwrap();
    world.wait_until_no_streams();
}

#[test]
fn a_gateway_that_is_stopped_waits_for_the_last_bytes_of_a_connection_that_has_ended() {
    if !root() {
        return;
    }
    let mut world = World::new();
    let (mut near, far) = joined(&world.client, &listen(&world.server, SERVER));
    SockRef::from(&near).set_recv_buffer_size(4096).unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    let answer = pattern(8, 60_000);
    send_all(&far, answer.clone()).join().unwrap().unwrap();
    // Both ends were relayed; a part of the bytes is still with the gateway's system.
    world.wait_until_no_streams();
    world.a.signal("TERM");
    thread::sleep(Duration::from_secs(1));
    let (got, end) = read_to_end(&mut near);
    assert!(got == answer && end == End::Clean, "{} bytes, {end:?}", got.len());
    assert!(world.a.wait_until_ended().success());
}

#[test]
fn a_client_that_resets_resets_the_server() {
    if !root() {
        return;
    }
    let world = World::new();
    let (mut near, mut far) = joined(&world.client, &listen(&world.server, SERVER));
    near.write_all(b"half of a request").unwrap();
    expect(&mut far, b"half of a request");
    reset(near);
    assert_eq!(read_to_end(&mut far), (vec![], End::Reset));
    // In the middle of a download as well.
    let (mut near, far) = joined(&world.client, &listen(&world.server, "10.2.0.2:7001"));
    let sender = send_all(&far, pattern(4, 20_000_000));
    near.read_exact(&mut [0; 10_000]).unwrap();
    reset(near);
    assert_eq!(sender.join().unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
    world.wait_until_no_streams();
}

#[test]
fn urgent_data_keeps_its_place_in_the_stream() {
    if !root() {
        return;
    }
    let world = World::new();
    let (near, far) = joined(&world.client, &listen(&world.server, SERVER));
    for (mut from, mut to) in [(&near, &far), (&far, &near)] {
        SockRef::from(to).set_out_of_band_inline(true).unwrap();
        from.write_all(b"before ").unwrap();
        assert_eq!(SockRef::from(from).send_out_of_band(b"!").unwrap(), 1);
        from.write_all(b" after").unwrap();
        let mut got = [0; 14];
        to.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"before ! after");
    }
}

#[test]
fn either_side_may_open_and_both_see_each_others_addresses() {
    if !root() {
        return;
    }
    let world = World::with(|plan| {
        plan.keep();
        plan.open_to_shore();
    });
    for (from, to, at, source) in [
        (&world.client, &world.server, SERVER, "10.1.0.2"),
        (&world.client, &world.server, SERVER_V6, "fd01::2"),
        (&world.server, &world.client, CLIENT, "10.2.0.2"),
        (&world.server, &world.client, "[fd01::2]:7000", "fd02::2"),
    ] {
        let listener = listen(to, at);
        let (mut near, mut far) = joined(from, &listener);
        assert_eq!(near.peer_addr().unwrap(), at.parse().unwrap());
        assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap(), "address and port");
        assert_eq!(far.peer_addr().unwrap().ip(), source.parse::<std::net::IpAddr>().unwrap());
        let data = pattern(5, 200_000);
        let sending = [send_all(&near, data.clone()), send_all(&far, data.clone())];
        assert!(read_to_end(&mut far) == (data.clone(), End::Clean));
        assert!(read_to_end(&mut near) == (data, End::Clean));
        for s in sending {
            s.join().unwrap().unwrap();
        }
    }
    world.wait_until_no_streams();
    assert_eq!(world.a.status().links[0].streams_total, 4, "all of them were split");
}

/// A reader stops for `time` in the middle of a transfer.
fn a_reader_stops_for(time: Duration) {
    const KERNEL: usize = 256 << 10;
    const STREAM: usize = 256 << 10;
    let world = World::with(|plan| {
        for side in [&mut plan.a, &mut plan.b] {
            side.peer = "stream_buffer = \"256KiB\"".into();
        }
    });
    for ns in [&world.client, &world.gwa, &world.gwb, &world.server] {
        ns.sysctl("net.ipv4.tcp_rmem", &format!("4096 65536 {KERNEL}")).unwrap();
        ns.sysctl("net.ipv4.tcp_wmem", &format!("4096 65536 {KERNEL}")).unwrap();
    }
    let listener = listen(&world.server, SERVER);
    for upload in [true, false] {
        let (near, far) = joined(&world.client, &listener);
        let (writer, mut reader) = if upload { (near, far) } else { (far, near) };
        let data = pattern(6, 8_000_000);
        let taken = write_until_blocked(&writer, &data);
        // Four sockets' buffers and a stream's on both of its ends.
        let most = 4 * KERNEL + 2 * STREAM;
        eprintln!("upload {upload}: {taken} bytes were taken while nobody read, of {most}");
        assert!(taken <= most, "{taken} bytes were taken, the buffers hold {most}");
        for gateway in [&world.a, &world.b] {
            let buffered = gateway.status().node.buffered_bytes;
            assert!(buffered <= 2 * STREAM as u64, "{} holds {buffered}", gateway.name());
        }
        thread::sleep(time);
        let sending = send_all(&writer, data[taken..].to_vec());
        let (got, end) = read_to_end(&mut reader);
        assert!(end == End::Clean && got == data, "{} bytes, {end:?}", got.len());
        sending.join().unwrap().unwrap();
    }
    world.wait_until_no_streams();
}

/// Writes until nothing has been taken for a second; how much was.
fn write_until_blocked(mut stream: &TcpStream, data: &[u8]) -> usize {
    stream.set_nonblocking(true).unwrap();
    let (mut taken, mut last) = (0, Instant::now());
    while last.elapsed() < Duration::from_secs(1) && taken < data.len() {
        match stream.write(&data[taken..]) {
            Ok(n) => (taken, last) = (taken + n, Instant::now()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(5)),
            Err(e) => panic!("{e}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    taken
}

#[test]
fn a_reader_that_stops_holds_its_writer_within_the_buffers_and_goes_on() {
    if root() {
        a_reader_stops_for(Duration::from_secs(3));
    }
}

#[test]
#[ignore = "takes minutes"]
fn a_reader_that_stops_for_a_minute_goes_on() {
    if root() {
        a_reader_stops_for(Duration::from_secs(60));
    }
}

/// Connections that are over before the server's side stands, in every way there is.
fn connections_closed_early(count: usize) {
    let world = World::with(|plan| {
        plan.a.node = "memory = \"512MiB\"".into();
        // Clients are to stand before servers do, or refuse.
        plan.fast();
    });
    let listener = listen(&world.server, SERVER);
    // An address where nobody answers is given up after 7 s in place of 127.
    world.gwb.sysctl("net.ipv4.tcp_syn_retries", "2").unwrap();
    check_echo(&world.client, &listener);
    world.wait_until_no_streams();
    let baseline = [world.a.descriptors(), world.b.descriptors()];
    let streams = || world.a.status().links[0].streams_total;
    let streams_before = streams();
    let server = thread::spawn(move || {
        let mut seen = 0;
        while let Some(mut stream) = crate::tcp::accept_within(&listener, Duration::from_secs(6)) {
            seen += 1;
            thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
        seen
    });
    // Listening, refused, and an address where nobody answers.
    let targets = [SERVER, "10.2.0.2:7009", "10.2.0.99:7000"];
    // One that its client resets before the gateway accepts it never becomes a stream; all
    // others do.
    let (tried, opened) = world.client.run(|| {
        let (mut tried, mut opened) = (0, 0);
        for n in 0..count {
            let to = targets[if n % 10 == 9 { 2 } else { n % 2 }].parse().unwrap();
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(20));
            tried += u64::from(n % 3 != 1);
            // A reset may come before this thread wakes to hear that the connection stood.
            let stood = match &stream {
                Ok(_) => true,
                Err(e) => e.kind() == ErrorKind::ConnectionReset,
            };
            opened += u64::from(n % 3 != 1 && stood);
            let Ok(stream) = stream else { continue };
            match n % 3 {
                0 => drop(stream),
                1 => reset(stream),
                _ => {
                    let _ = (&stream).write_all(b"a few words");
                }
            }
        }
        (tried, opened)
    });
    let seen = server.join().unwrap();
    eprintln!("{count} connections closed early; the server saw {seen}");
    assert!(seen > 0);
    world.wait_until_no_streams();
    for (gateway, before) in [&world.a, &world.b].into_iter().zip(baseline) {
        wait_for("descriptors to be closed", || {
            let now = gateway.descriptors();
            (now <= before).then_some(()).ok_or(format!("{now} are open, {before} were"))
        });
        assert_eq!(gateway.status().node.buffered_bytes, 0, "{}", gateway.name());
    }
    let total = streams() - streams_before;
    eprintln!("{opened} of {tried} that were not reset stood, and {total} streams were opened");
    assert!(opened * 100 >= tried * 95, "{opened} of {tried} stood");
    assert!(total >= opened, "{total} streams for {opened} connections");
}

#[test]
fn a_thousand_connections_closed_before_the_server_stands_leave_nothing() {
    if root() {
        connections_closed_early(1_000);
    }
}

#[test]
#[ignore = "takes minutes"]
fn ten_thousand_connections_closed_before_the_server_stands_leave_nothing() {
    if root() {
        connections_closed_early(10_000);
    }
}

#[test]
fn an_unreachable_server_ends_in_a_reset_and_holds_nothing_back() {
    if !root() {
        return;
    }
    // With the default the client hears of it before it stands (see opening.rs).
    let world = World::with(Plan::fast);
    match crate::tcp::try_connect(&world.client, "10.2.0.77:7000") {
        Ok(mut stream) => {
            assert_eq!(end_within(&mut stream, Duration::from_secs(25)), Some(End::Reset));
        }
        // The reset came before the client's thread woke to hear that the connection stood.
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}"),
    }
    let listener = listen(&world.server, SERVER);
    let mut near = connect(&world.client, SERVER);
    near.write_all(b"x").unwrap();
    expect(&mut accept(&listener), b"x");
}
