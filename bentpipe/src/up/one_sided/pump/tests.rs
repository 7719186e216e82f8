//! Real sockets: hosts that reset.

use std::time::{Duration, Instant};

use os::poll::{Events, Interest, Poller};
use os::tcp::{self, TcpOptions};

use super::*;

/// A pair between a client that reads when it is told to, with a small buffer, and a server.
struct Bench {
    pair: Option<Pair>,
    poller: Poller,
    events: Events,
    buffer: Vec<u8>,
    client: Stream,
    server: Option<Stream>,
    outcome: Turn,
}

impl Bench {
    fn new() -> Bench {
        let plain = TcpOptions::default();
        let small = TcpOptions { receive_buffer: Some(4096), ..TcpOptions::default() };
        let (to_client, client) = tcp::pair(&plain, &small).unwrap();
        let (to_server, server) = tcp::pair(&plain, &plain).unwrap();
        let poller = Poller::new().unwrap();
        poller.add(&to_client, 0, Interest::READ_WRITE.edge()).unwrap();
        poller.add(&to_server, 1, Interest::READ_WRITE.edge()).unwrap();
        Bench {
            pair: Some(Pair::new(to_client, to_server)),
            poller,
            events: Events::with_capacity(4),
            buffer: vec![0; PIECE],
            client,
            server: Some(server),
            outcome: Turn::Rests,
        }
    }

    /// What the engine does: the pair goes when both shall be reset and nothing is under way.
    fn turn(&mut self) {
        let wait = Some(units::Duration::from_millis(1));
        self.poller.wait(&mut self.events, wait).unwrap();
        let Some(pair) = &mut self.pair else { return };
        self.events.iter().for_each(|event| pair.on_event(event.token as usize, event));
        self.outcome = pair.turn(&mut self.buffer);
        if self.outcome == Turn::Ended && pair.left() == 0 {
            self.pair = None;
        }
    }

    fn until(&mut self, mut done: impl FnMut(&mut Bench) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            assert!(begin.elapsed() < Duration::from_secs(20), "it takes too long");
            self.turn();
        }
    }
}

#[test]
fn what_a_host_gave_before_its_reset_is_passed_on_and_then_the_reset() {
    let mut bench = Bench::new();
    let mut bytes = vec![0; 100_000];
    units::Rng::new(1).fill(&mut bytes);
    let mut at = 0;
    bench.until(|bench| {
        let server = bench.server.as_ref().unwrap();
        at += server.write(&bytes[at..]).unwrap_or(0);
        at == bytes.len() && server.unacknowledged().unwrap() == 0
    });
    bench.server = None;
    for _ in 0..20 {
        bench.turn();
    }
    let (mut got, mut end) = (Vec::new(), None);
    bench.until(|bench| {
        let mut buf = [0; 4096];
        match bench.client.read(&mut buf) {
            Ok(n) => got.extend_from_slice(&buf[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => end = Some(e.kind()),
        }
        end.is_some()
    });
    assert_eq!(end, Some(ErrorKind::ConnectionReset));
    assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
}

#[test]
fn where_both_hosts_reset_nothing_is_kept() {
    let mut bench = Bench::new();
    bench.server.as_ref().unwrap().write(&[0; 10_000]).unwrap();
    bench.until(|bench| bench.server.as_ref().unwrap().unacknowledged().unwrap() == 0);
    bench.server = None;
    let (_, other) = tcp::pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
    drop(std::mem::replace(&mut bench.client, other));
    bench.until(|bench| bench.pair.is_none());
}

#[test]
fn a_host_that_resets_resets_the_other_at_once_where_nothing_waits() {
    let mut bench = Bench::new();
    bench.turn();
    bench.server = None;
    bench.until(|bench| bench.pair.is_none());
    let mut end = None;
    // It may still be on its way.
    bench.until(|bench| {
        let failed = bench.client.read(&mut [0; 1]).err().map(|e| e.kind());
        end = failed.filter(|kind| *kind != ErrorKind::WouldBlock);
        end.is_some()
    });
    assert_eq!(end, Some(ErrorKind::ConnectionReset));
}

/// A server that reads nothing before it has written all that it has to say, and a client that has
/// gone: plain TCP would have reset it.
#[test]
fn a_server_that_writes_before_it_reads_hears_of_its_clients_reset() {
    let mut bench = Bench::new();
    let (mut up, mut down) = (false, 0);
    // Until neither way takes more: the client reads nothing, and neither does the server.
    let mut idle = 0;
    bench.until(|bench| {
        let more = bench.client.write(&[1; 65_536]).is_ok_and(|n| n > 0);
        let wrote = bench.server.as_ref().unwrap().write(&[2; 65_536]).unwrap_or(0);
        (up, down) = (up | more, down + wrote);
        idle = if more || wrote > 0 { 0 } else { idle + 1 };
        idle > 100
    });
    assert!(up && down > 65_536);
    let (_, other) = tcp::pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
    drop(std::mem::replace(&mut bench.client, other));
    let mut wrote = false;
    bench.until(|bench| {
        assert!(bench.pair.as_ref().is_none_or(|pair| pair.left() > 0));
        wrote |= bench.server.as_ref().unwrap().write(&[2; 65_536]).is_ok_and(|n| n > 0);
        // It is not to wait for ever.
        wrote && bench.pair.as_ref().is_some_and(Pair::is_resetting)
    });
    let mut end = None;
    bench.until(|bench| {
        let failed = bench.server.as_ref().unwrap().read(&mut [0; 65_536]).err();
        end = failed.map(|e| e.kind()).filter(|kind| *kind != ErrorKind::WouldBlock);
        end.is_some()
    });
    assert_eq!(end, Some(ErrorKind::ConnectionReset));
}
