//! What streams that are gone leave behind in the queues of those that wait.

use super::hostile::{inject, stream};
use super::*;
use crate::path::CarrierName;
use crate::wire::PathNews;

/// The peer says that it sends on the first path, or that nothing is to be sent there.
fn says_up(w: &mut World, number: u64, version: u64, up: bool) {
    let (path, name) = (PathId::FIRST, CarrierName::default());
    let (hears, free, priority, facts) = (true, true, 0, None);
    let news = PathNews { path, version, up, hears, free, priority, name, facts };
    inject(w, 1, number, &[Frame::Path(news)]);
}

/// The peer opens a stream.
fn opens(w: &mut World, number: u64, id: StreamId) {
    inject(w, 1, number, &[Frame::Open(id, origin()), stream(id.0, 0, false, b"x")]);
    w.sides[1].consume(w.now, id, 1);
}

/// The peer gives a stream up, and its user follows.
fn gives_up(w: &mut World, number: u64, id: StreamId) {
    inject(w, 1, number, &[Frame::Reset { id, reason: ResetReason::HostReset, end: 0 }]);
    while w.sides[1].poll_event().is_some() {}
    w.sides[1].release(w.now, id);
}

/// A peer whose path takes nothing opens streams, has them answered and gives them up, without end.
#[test]
fn turns_and_credit_of_streams_that_are_gone_do_not_pile_up() {
    let mut w = World::new(81, CLEAN, config());
    says_up(&mut w, 0, 1, false);
    for n in 0..10_000 {
        let id = StreamId(2 * n);
        opens(&mut w, 2 * n + 1, id);
        assert_eq!(w.sides[1].write(w.now, id, &[7; 100]), 100);
        gives_up(&mut w, 2 * n + 2, id);
        let side = &w.sides[1];
        let waiting = [side.schedule.entries(), side.blocked.len(), side.credits.len()];
        assert!(waiting.iter().all(|n| *n <= 200), "{waiting:?} after {n}");
    }
    assert_eq!(w.sides[1].streams(), 0);
    assert!(w.sides[1].schedule.is_empty(), "nothing is waited for");
}

/// A peer whose windows are the smallest has every longer answer wait for credit.
#[test]
fn streams_that_are_gone_do_not_wait_for_credit() {
    let mut w = World::new(82, CLEAN, config());
    let params = w.sides[0].params();
    w.sides[1].set_peer(Params { stream_window: 1024, reserve: 1024, ..params });
    let mut buf = [0; 1451];
    for n in 0..5_000 {
        w.now += Duration::from_millis(1);
        let id = StreamId(2 * n);
        opens(&mut w, 2 * n, id);
        assert_eq!(w.sides[1].write(w.now, id, &[7; 4096]), 4096);
        while w.sides[1].poll_packet(w.now, PathId::FIRST, &mut buf, SEALING).is_some() {}
        gives_up(&mut w, 2 * n + 1, id);
        let waiting = w.sides[1].blocked.len();
        assert!(waiting <= 200, "{waiting} after {n}");
    }
    assert_eq!(w.sides[1].streams(), 0);
}

/// Many streams that are gone at once hold up other peers for no longer than a few packets do.
#[test]
fn a_packet_passes_over_a_bounded_number_of_streams_that_are_gone() {
    let mut w = World::new(83, CLEAN, LinkConfig { max_streams: 8_000, ..config() });
    says_up(&mut w, 0, 1, false);
    for n in 0..8_000 {
        opens(&mut w, n + 1, StreamId(2 * n));
        w.sides[1].write(w.now, StreamId(2 * n), b"answer");
    }
    for n in 0..5_000 {
        gives_up(&mut w, 8_001 + n, StreamId(2 * n));
    }
    says_up(&mut w, 13_001, 2, true);
    let (mut buf, mut before) = ([0; 1451], w.sides[1].schedule.entries());
    let (gone, mut rounds) = (before - 3_000, 0);
    assert!(gone > 4_000, "{gone}");
    while w.sides[1].schedule.entries() > 0 {
        w.sides[1].poll_packet(w.now, PathId::FIRST, &mut buf, SEALING);
        let entries = w.sides[1].schedule.entries();
        assert!(before - entries <= 1_200, "{} in one packet", before - entries);
        before = entries;
        // While anything waits the session asks for its turn.
        w.now = w.sides[1].poll_timeout(w.now).expect("something waits").max(w.now);
        w.sides[1].handle_timeout(w.now);
        rounds += 1;
        assert!(rounds < 1_000);
    }
}
