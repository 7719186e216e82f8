//! Many connections at once: none starves another, none is refused or lost (R-MANY).

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use units::{BitRate, Rng};

use crate::harness::{Daemon, World, root, root_alone, wait_for, wait_long_for};
use crate::tcp::{
    End, SERVER, accept, accept_within, check_echo, connect, end_within, joined, listen, pattern,
    read_to_end, try_connect,
};

/// How long a thousand buffers may take to fill over a slow link.
const FILLING: Duration = Duration::from_secs(300);
/// What a rate is the mean of.
const WINDOW: Duration = Duration::from_secs(5);

/// Reads for `time` and says how many bytes came a second.
fn rate_over(stream: &mut TcpStream, time: Duration) -> f64 {
    let (begin, mut got) = (Instant::now(), 0);
    let mut buf = vec![0; 65_536];
    while begin.elapsed() < time {
        match stream.read(&mut buf) {
            Ok(0) => panic!("the active stream ended"),
            Ok(n) => got += n,
            Err(e) => panic!("the active stream starved: {e}"),
        }
    }
    got as f64 / begin.elapsed().as_secs_f64()
}

/// Writes for ever what never comes twice: a pattern would cross at more than the link's rate.
fn flood(stream: TcpStream) {
    let write = move || {
        let mut rng = Rng::new(stream.peer_addr().map_or(0, |a| a.port()).into());
        let mut block = vec![0; 16_384];
        rng.fill(&mut block);
        stream.set_write_timeout(None).unwrap();
        while (&stream).write_all(&block).is_ok() {
            rng.fill(&mut block);
        }
    };
    thread::Builder::new().stack_size(64 << 10).spawn(write).unwrap();
}

/// How many bytes a stream gets in a second: the median of five windows.
fn median_rate(stream: &mut TcpStream, _: f64) -> f64 {
    let mut rates = [(); 5].map(|()| rate_over(stream, WINDOW));
    rates.sort_unstable_by(f64::total_cmp);
    eprintln!("five windows: {rates:.0?} bytes a second");
    rates[2]
}

/// The same, of the first window that has enough: the machine may stand still in some.
fn best_rate(stream: &mut TcpStream, enough: f64) -> f64 {
    let mut best = 0.0f64;
    for _ in 0..24 {
        best = best.max(rate_over(stream, WINDOW));
        if best > enough {
            break;
        }
    }
    best
}

/// One stream on a link with a thousand others whose readers have stopped: all at once,
/// or each after it had the link for a moment. `look` says what rate it has, or looks for one
/// that is enough.
fn one_stream_among_a_thousand_stopped(one_by_one: bool, look: fn(&mut TcpStream, f64) -> f64) {
    const STOPPED: usize = 1_000;
    let world = World::with(|plan| (plan.rate, plan.delay_ms) = (BitRate::from_mbps(20), 300));
    // Small buffers beside the client, so that all of them soon are full.
    world.client.sysctl("net.ipv4.tcp_rmem", "4096 8192 8192").unwrap();
    world.gwa.sysctl("net.ipv4.tcp_wmem", "4096 8192 8192").unwrap();
    let listener = listen(&world.server, SERVER);
    let mut alone = connect(&world.client, SERVER);
    flood(accept(&listener));
    rate_over(&mut alone, Duration::from_secs(1));
    let before = rate_over(&mut alone, Duration::from_secs(3));
    drop(alone);

    let mut stopped = Vec::new();
    for _ in 0..STOPPED {
        stopped.push(connect(&world.client, SERVER));
        if one_by_one {
            flood(accept(&listener));
        }
    }
    if !one_by_one {
        (0..STOPPED).for_each(|_| flood(accept(&listener)));
    }
    // Until nothing more is sent for them: what was taken for all of them goes in turn.
    let (mut last, mut quiet) = (0, 0);
    wait_long_for("the stopped streams to be full", FILLING, || {
        let sent = world.b.status().links[0].send.link_bytes;
        let moved = sent - std::mem::replace(&mut last, sent);
        thread::sleep(Duration::from_millis(500));
        quiet = if moved < 20_000 { quiet + 1 } else { 0 };
        (quiet >= 5).then_some(()).ok_or(format!("{moved} bytes moved"))
    });
    let mut active = connect(&world.client, SERVER);
    flood(accept(&listener));
    rate_over(&mut active, Duration::from_secs(1));
    // Where the stopped ones hold what fresh streams may have, it earns its credit first,
    // round trip by round trip.
    let start = rate_over(&mut active, Duration::from_secs(3));
    rate_over(&mut active, Duration::from_secs(4));
    let among = look(&mut active, 0.9 * before);
    let share = among / before * 100.0;
    eprintln!(
        "one stream alone {:.2} MB/s, among {STOPPED} stopped ones {:.2} MB/s: {share:.0} % \
         ({:.0} % from its second to its fourth second)",
        before / 1e6,
        among / 1e6,
        start / before * 100.0
    );
    assert!(share >= 90.0, "{share:.0} % of its rate is left");
    for gateway in [&world.a, &world.b] {
        let node = gateway.status().node;
        assert!(node.buffered_bytes <= node.buffer_limit_bytes, "{node:?}");
    }
    // One that starts to read again gets going.
    rate_over(&mut stopped[0], Duration::from_secs(1));
}

#[test]
fn a_thousand_stopped_readers_leave_the_active_stream_its_rate() {
    if root_alone() {
        one_stream_among_a_thousand_stopped(false, best_rate);
    }
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_readers_that_stopped_at_once_or_one_by_one_leave_the_active_stream_its_rate() {
    if root_alone() {
        for one_by_one in [false, true] {
            one_stream_among_a_thousand_stopped(one_by_one, median_rate);
        }
    }
}

/// Writes noise to every connection for as long as it takes any, all of them in one thread:
/// nothing comes twice, because what did would not be kept twice.
fn feed(listener: &TcpListener, stopped: &AtomicBool) {
    let (mut rng, mut block) = (Rng::new(1), vec![0; 16_384]);
    let mut streams = Vec::new();
    while !stopped.load(Ordering::Relaxed) {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            streams.push(stream);
        }
        for stream in &streams {
            rng.fill(&mut block);
            let mut stream: &TcpStream = stream;
            while stream.write(&block).is_ok_and(|n| n > 0) {}
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A world in which hosts keep little, so that what they do not read waits in the gateways.
fn world_of_readers_that_stopped(limit: u64) -> World {
    let world = World::with(|plan| {
        plan.rate = BitRate::from_mbps(200);
        let node = format!("memory = \"{limit}B\"\ndedup_memory = \"1MiB\"");
        (plan.a.node, plan.b.node) = (node.clone(), node);
    });
    world.client.sysctl("net.ipv4.tcp_rmem", "4096 8192 8192").unwrap();
    world.gwa.sysctl("net.ipv4.tcp_wmem", "4096 8192 8192").unwrap();
    // All namespaces share the kernel's memory for TCP.
    world.server.sysctl("net.ipv4.tcp_wmem", "4096 16384 16384").unwrap();
    world
}

/// Memory of both gateways, bytes.
fn memory(world: &World) -> [u64; 2] {
    [&world.a, &world.b].map(|g| g.status().node.memory_bytes)
}

/// Waits until nothing has moved for so many half seconds; the most that each gateway took beside
/// what it has idle.
fn most_taken(world: &World, idle: [u64; 2], rest: u32) -> [u64; 2] {
    let (mut most, mut last, mut quiet) = ([0; 2], 0, 0);
    wait_long_for("all buffers to be full", FILLING, || {
        thread::sleep(Duration::from_millis(500));
        let status = [&world.a, &world.b].map(|g| g.status());
        let now = status.each_ref().map(|s| s.node.memory_bytes);
        most = [0, 1].map(|n| most[n].max(now[n].saturating_sub(idle[n])));
        let sent = status[1].links[0].send.link_bytes;
        quiet = if sent - last < 20_000 { quiet + 1 } else { 0 };
        last = sent;
        (quiet >= rest).then_some(()).ok_or(format!("{most:?} bytes taken"))
    });
    eprintln!("{most:?} bytes beside the {idle:?} of idle gateways");
    most
}

/// At the memory limit new connections are refused, and though no reader
/// takes anything the gateways take little more than twice the limit: each stream has a reserve
/// of its own beside it.
#[test]
fn at_the_memory_limit_connections_are_refused() {
    const LIMIT: u64 = 16 << 20;
    /// One for each 16 kB, and half as many again.
    const ASKED: usize = 1_536;
    const GRANTED: usize = 1_024;
    if !root() {
        return;
    }
    let world = world_of_readers_that_stopped(LIMIT);
    let listener = listen(&world.server, SERVER);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let server = thread::spawn(move || feed(&listener, &stopped));
    let idle = memory(&world);
    let clients: Vec<_> = (0..ASKED).map(|_| try_connect(&world.client, SERVER)).collect();
    let most = most_taken(&world, idle, 10);
    let refused = clients.into_iter().filter(|c| match c {
        Ok(stream) => {
            stream.set_nonblocking(true).unwrap();
            let mut stream: &TcpStream = stream;
            stream.read(&mut [0; 1]).is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
        }
        Err(_) => true,
    });
    let refused = refused.count();
    eprintln!("{refused} refused");
    stop.store(true, Ordering::Relaxed);
    server.join().unwrap();
    assert_eq!(refused, ASKED - GRANTED);
    assert!(most.iter().all(|bytes| *bytes < 5 * LIMIT / 2), "{most:?}");
}

/// Not a test but the server of the next, in a process of its own.
#[test]
#[ignore = "a helper of another test"]
fn feed_a_crowd() {
    let Ok(at) = std::env::var(HELPER) else { return };
    os::proc::raise_descriptor_limit().unwrap();
    let listener = TcpListener::bind(&at).unwrap();
    socket2::SockRef::from(&listener).listen(4096).unwrap();
    listener.set_nonblocking(true).unwrap();
    feed(&listener, &AtomicBool::new(false));
}

/// The default limit, and as many readers that stopped as a busy gateway has connections: all of
/// a gateway's memory is no more than 1.3 times the limit.
#[test]
#[ignore = "takes a minute"]
fn ten_thousand_readers_that_stopped_fill_the_limit_and_little_is_taken_beside_it() {
    const LIMIT: u64 = 256 << 20;
    if !root_alone() {
        return;
    }
    let world = world_of_readers_that_stopped(LIMIT);
    let (program, log) = (std::env::current_exe().unwrap(), world.dir("feed").join("log"));
    let _helper = Daemon::start(
        &world.server,
        &format!(
            "env {HELPER}={SERVER} {} --exact many::feed_a_crowd --ignored --nocapture",
            program.display()
        ),
        &log,
    );
    wait_for("the server", || {
        let listening = crate::harness::must(&world.server, "ss -ltn");
        listening.contains(":7000").then_some(()).ok_or("not yet".into())
    });
    let idle = memory(&world);
    let clients: Vec<TcpStream> = world.client.run(|| {
        (0..CROWD)
            .map(|n| TcpStream::connect(SERVER).unwrap_or_else(|e| panic!("{n}: {e}")))
            .collect()
    });
    let most = most_taken(&world, idle, 60);
    let open = [&world.a, &world.b].map(|g| g.status().links[0].streams_open);
    assert_eq!(open, [clients.len() as u64; 2]);
    for (most, idle) in most.into_iter().zip(idle) {
        let times = (most + idle) as f64 / LIMIT as f64;
        eprintln!(
            "{times:.2} times the limit, {:.2} without what an idle gateway has",
            most as f64 / LIMIT as f64
        );
        assert!(times > 0.9, "the limit was not filled: {times}");
        assert!(times <= 1.3, "{times}");
    }
}

#[test]
fn streams_that_run_together_share_the_link_fairly() {
    if !root_alone() {
        return;
    }
    let world = World::with(|plan| plan.rate = BitRate::from_mbps(16));
    let listener = listen(&world.server, SERVER);
    let pairs: Vec<_> = (0..8).map(|_| joined(&world.client, &listener)).collect();
    let readers: Vec<_> = pairs
        .into_iter()
        .map(|(mut near, far)| {
            flood(far);
            thread::spawn(move || {
                rate_over(&mut near, Duration::from_secs(1));
                rate_over(&mut near, Duration::from_secs(4))
            })
        })
        .collect();
    let rates: Vec<f64> = readers.into_iter().map(|r| r.join().unwrap()).collect();
    let (sum, squares) = rates.iter().fold((0.0, 0.0), |(s, q), r| (s + r, q + r * r));
    let jain = sum * sum / (rates.len() as f64 * squares);
    eprintln!("8 streams: {:.2} MB/s together, Jain's index {jain:.3}", sum / 1e6);
    assert!(jain >= 0.99, "{rates:?}");
}

/// How many connections; a process may have 20,000 descriptors here.
const CROWD: usize = 10_000;
/// Says to [`serve_a_crowd`] that it is the helper of another test.
const HELPER: &str = "BENTPIPE_E2E_SERVE";

/// Not a test but the server of one, in a process of its own.
#[test]
#[ignore = "a helper of another test"]
fn serve_a_crowd() {
    let Ok(at) = std::env::var(HELPER) else { return };
    os::proc::raise_descriptor_limit().unwrap();
    let listener = TcpListener::bind(&at).unwrap();
    socket2::SockRef::from(&listener).listen(4096).unwrap();
    let mut crowd: Vec<TcpStream> = Vec::with_capacity(CROWD);
    let mut word = [0; 8];
    while crowd.len() < CROWD {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.read_exact(&mut word).unwrap();
        stream.write_all(&word).unwrap();
        crowd.push(stream);
    }
    // Once more with all of them open, and then to the end.
    for stream in &mut crowd {
        stream.read_exact(&mut word).unwrap();
        stream.write_all(&word).unwrap();
    }
    for mut stream in crowd {
        assert_eq!(stream.read(&mut word).unwrap(), 0, "a clean end");
    }
}

#[test]
fn ten_thousand_connections_are_open_at_once_and_none_is_lost() {
    if !root() {
        return;
    }
    let world = World::with(|plan| plan.a.node = "memory = \"512MiB\"".into());
    check_echo(&world.client, &listen(&world.server, "10.2.0.2:7999"));
    world.wait_until_no_streams();
    let idle = [&world.a, &world.b].map(|g| g.status().node.memory_bytes);
    let (program, log) = (std::env::current_exe().unwrap(), world.dir("crowd").join("log"));
    let mut helper = Daemon::start(
        &world.server,
        &format!(
            "env {HELPER}={SERVER} {} --exact many::serve_a_crowd --ignored --nocapture",
            program.display()
        ),
        &log,
    );
    wait_for("the server", || {
        let listening = crate::harness::must(&world.server, "ss -ltn");
        listening.contains(":7000").then_some(()).ok_or("not yet".into())
    });
    let begin = Instant::now();
    let mut crowd: Vec<TcpStream> = world.client.run(|| {
        let open = |n: usize| {
            let mut stream = TcpStream::connect(SERVER).unwrap_or_else(|e| panic!("{n}: {e}"));
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.write_all(&n.to_be_bytes()).unwrap();
            stream
        };
        (0..CROWD).map(open).collect()
    });
    eprintln!("{CROWD} connections were opened in {:?}", begin.elapsed());
    let mut word = [0; 8];
    for round in 0..2 {
        for (n, stream) in crowd.iter_mut().enumerate() {
            if round == 1 {
                stream.write_all(&n.to_be_bytes()).unwrap();
            }
        }
        let mut lost = Vec::new();
        for (n, stream) in crowd.iter_mut().enumerate() {
            match stream.read_exact(&mut word) {
                Ok(()) => assert_eq!(word, n.to_be_bytes()),
                Err(e) => lost.push(format!("{n}: {e}")),
            }
        }
        let drops = || [&world.a, &world.b].map(|g| g.status().node.dropped);
        assert!(lost.is_empty(), "{} lost, {lost:.100?}\n{:?}", lost.len(), drops());
    }
    eprintln!("each had two answers after {:?}", begin.elapsed());
    for (gateway, idle) in [&world.a, &world.b].into_iter().zip(idle) {
        let status = gateway.status();
        assert_eq!(status.links[0].streams_open, CROWD as u64);
        let each = status.node.memory_bytes.saturating_sub(idle) / CROWD as u64;
        eprintln!("gateway {}: {idle} bytes idle, {each} for each", gateway.name());
        assert!(each <= 20_000, "{each} bytes for a connection at rest");
    }
    drop(crowd);
    let status = helper.wait_until_ended(Duration::from_secs(120));
    assert!(status.success(), "{status}: {}", std::fs::read_to_string(&log).unwrap());
    world.wait_until_no_streams();
}

#[test]
fn hundreds_of_short_exchanges_at_once_all_succeed() {
    const EACH: usize = 40;
    if !root() {
        return;
    }
    let world = World::new();
    let listener = listen(&world.server, SERVER);
    let server = thread::spawn(move || {
        for n in 0..8 * EACH {
            let mut stream = accept(&listener);
            thread::spawn(move || {
                let (question, end) = read_to_end(&mut stream);
                assert_eq!((question.len(), end), (100, End::Clean));
                stream.write_all(&pattern(n as u64, 2_000)).unwrap();
            });
        }
    });
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let mut stream = connect(&world.client, SERVER);
                    stream.write_all(&[1; 100]).unwrap();
                    stream.shutdown(std::net::Shutdown::Write).unwrap();
                    let (answer, end) = read_to_end(&mut stream);
                    assert_eq!((answer.len(), end), (2_000, End::Clean));
                }
            });
        }
    });
    server.join().unwrap();
    world.wait_until_no_streams();
}

#[test]
fn a_lossy_link_harms_no_byte() {
    if !root() {
        return;
    }
    let world = World::with(|plan| plan.loss = channel::parse_ratio("0.02").unwrap());
    let listener = listen(&world.server, SERVER);
    for n in 0..3 {
        let mut near = connect(&world.client, SERVER);
        let mut far = accept(&listener);
        let data = pattern(60 + n, 3_000_000);
        let sending =
            [crate::tcp::send_all(&near, data.clone()), crate::tcp::send_all(&far, data.clone())];
        let reader = thread::spawn(move || read_to_end(&mut far));
        assert!(read_to_end(&mut near) == (data.clone(), End::Clean));
        assert!(reader.join().unwrap() == (data, End::Clean));
        for s in sending {
            s.join().unwrap().unwrap();
        }
    }
    let link = &world.b.status().links[0];
    assert!(link.retransmitted_packets > 0 && link.send.loss_ppm > 0, "{link:?}");
    // The end of a quiet connection needs no luck either.
    let mut near = connect(&world.client, SERVER);
    drop(accept(&listener));
    assert_eq!(end_within(&mut near, Duration::from_secs(10)), Some(End::Clean));
}

/// A host sends its SYN again after a second, and each copy waits in front of a gateway
/// that stands still.
#[test]
fn a_gateway_that_stands_still_for_moments_loses_no_connection_and_doubles_none() {
    const CLIENTS: u64 = 64;
    if !root() {
        return;
    }
    let world = World::new();
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    let [over, left] = [AtomicBool::new(false), AtomicBool::new(false)];
    let (asked, answered) = thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (mut words, mut readers) = (0, Vec::new());
            while !left.load(Ordering::Relaxed) {
                let Some(mut stream) = accept_within(&listener, Duration::from_millis(100)) else {
                    continue;
                };
                words += 1;
                let answer = move || {
                    let mut word = [0; 8];
                    stream.read_exact(&mut word).expect("a word on each connection");
                    stream.write_all(&word).unwrap();
                    assert_eq!(stream.read(&mut word).unwrap(), 0, "a clean end");
                };
                readers.push(thread::Builder::new().stack_size(64 << 10).spawn(answer).unwrap());
            }
            readers.into_iter().for_each(|r| r.join().unwrap());
            words
        });
        let open = |n: u64| {
            let mut asked = 0;
            while !over.load(Ordering::Relaxed) {
                let mut stream = try_connect(&world.client, SERVER).unwrap();
                let word = (n << 32 | asked).to_be_bytes();
                let mut back = [0; 8];
                stream.write_all(&word).unwrap();
                stream.read_exact(&mut back).unwrap_or_else(|e| panic!("{asked} of {n}: {e}"));
                assert_eq!(back, word);
                asked += 1;
            }
            asked
        };
        let clients: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || open(n))).collect();
        for _ in 0..3 {
            for gateway in [&world.a, &world.b] {
                gateway.signal("STOP");
                thread::sleep(Duration::from_millis(1_300));
                gateway.signal("CONT");
                thread::sleep(Duration::from_millis(500));
            }
        }
        over.store(true, Ordering::Relaxed);
        let asked: Vec<_> = clients.into_iter().map(|c| c.join()).collect();
        thread::sleep(Duration::from_secs(1));
        left.store(true, Ordering::Relaxed);
        (asked.into_iter().map(|n| n.unwrap()).sum::<u64>(), server.join().unwrap())
    });
    eprintln!("{asked} connections");
    assert_eq!(asked, answered);
    world.wait_until_no_streams();
}
