//! What a peer that is authentic but means ill can do, and corners that only long
//! lives and odd links reach.

use super::*;
use crate::path::CarrierName;
use crate::wire::{Frame, MAX_NAME, PathFacts, PathNews, StateFrame, StreamFrame, Writer};

/// One packet of the other side's making.
pub(super) fn inject(w: &mut World, to: usize, number: u64, frames: &[Frame<'_>]) {
    let mut buf = [0; 9000];
    let mut writer = Writer::new(&mut buf);
    for frame in frames {
        assert!(writer.put(frame));
    }
    let n = writer.len();
    w.sides[to].handle_packet(w.now, w.now, (PathId::FIRST, number), 0, &buf[..n], &mut |_| {});
}

pub(super) fn stream(id: u64, offset: u64, fin: bool, data: &[u8]) -> Frame<'_> {
    Frame::Stream(StreamFrame { id: StreamId(id), offset, fin, data })
}

#[test]
fn losses_do_not_multiply_a_streams_turns() {
    let mut w = World::new(11, Pipe { loss: 0.03, ..CLEAN }, config());
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    for _ in 0..3 {
        let id = w.sides[0].open(w.now, origin()).unwrap();
        feeder.left.insert(id, (0, 1 << 40));
    }
    w.run(Duration::from_secs(20), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
        assert!(w.sides[0].schedule.entries() <= 6 && w.sides[0].blocked.len() <= 3);
    });
    assert!(w.sides[0].stats().packets_lost > 500);
}

#[test]
fn a_node_that_only_receives_datagrams_keeps_nothing_of_its_reports() {
    let mut w = World::new(12, CLEAN, config());
    for _ in 0..400 {
        assert!(w.sides[0].send_datagram(w.now, &[1; 100], &Label::default()));
        w.run(Duration::from_millis(200), |w| while w.sides[1].take_datagram(|_| {}) {});
    }
    assert!(w.sides[1].stats().reports > 300);
    assert_eq!(w.sides[1].paths[0].sent.next_number(), w.sides[1].paths[0].sent.floor());
}

#[test]
fn the_peer_is_asked_before_packet_numbers_grow_long() {
    let mut w = World::new(13, CLEAN, config());
    let mut buf = [0; 1451];
    for _ in 0..40_000u32 {
        w.now += Duration::from_millis(30);
        w.sides[1].paths[0].received.on_ping();
        let number = w.sides[0].first().next_number();
        w.sides[0].first_mut().book_other(w.now, &[], 60);
        inject(&mut w, 1, number, &[]);
        w.sides[1].poll_packet(w.now, PathId::FIRST, &mut buf, SEALING);
    }
    let s = &w.sides[1];
    assert!(s.paths[0].sent.in_flight() > 0, "a question is on its way");
    assert!(s.paths[0].sent.next_number() > 20_000);
}

#[test]
fn what_was_merely_settled_does_not_count_as_received() {
    let mut w = World::new(14, CLEAN, config());
    // Two hundred reports that all get lost.
    let mut buf = [0; 1451];
    for _ in 0..200 {
        w.now += Duration::from_secs(1);
        let number = w.sides[0].first().next_number();
        w.sides[0].first_mut().book_other(w.now, &[], 60);
        inject(&mut w, 1, number, &[Frame::Ping]);
        assert!(w.sides[1].poll_packet(w.now, PathId::FIRST, &mut buf, SEALING).is_some());
    }
    assert_eq!(w.sides[1].paths[0].sent.floor(), 200);
    assert_eq!(w.sides[1].first().confirmed(), None, "the peer decodes numbers from its last one");
}

#[test]
fn a_reset_behind_bytes_that_nobody_takes_leaves_nothing_behind() {
    for opened in [true, false] {
        let mut w = World::new(15, CLEAN, config());
        let id = w.sides[0].open(w.now, origin()).unwrap();
        let mut feeder = Feeder::default();
        feeder.left.insert(id, (0, 100_000_000));
        if opened {
            w.run(Duration::from_secs(10), |w| feeder.feed(w.now, &mut w.sides[0]));
        } else {
            // All the first packets are lost; the reset comes before the opening.
            w.dead[0] = true;
            w.run(Duration::from_millis(200), |w| feeder.feed(w.now, &mut w.sides[0]));
            w.dead[0] = false;
        }
        w.sides[0].reset(w.now, id, ResetReason::HostReset, true);
        w.sides[0].release(w.now, id);
        let mut told = false;
        w.run(Duration::from_secs(5), |w| {
            while let Some(event) = w.sides[1].poll_event() {
                told |= matches!(event, Event::Reset(..));
            }
        });
        assert_eq!(told, opened);
        // The host did not take in time what came before the reset.
        w.sides[1].release(w.now, id);
        w.run(Duration::from_secs(20), |_| {});
        for side in &w.sides {
            assert_eq!((side.streams(), side.memory_used()), (0, 0));
            assert_eq!((side.over_reserve, side.recv_over_reserve), (0, 0));
        }
    }
}

#[test]
fn bytes_before_a_reset_arrive_even_beyond_the_credit_of_its_moment() {
    let mut w = World::new(16, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let mut feeder = Feeder::default();
    feeder.left.insert(id, (0, 100_000_000));
    w.run(Duration::from_secs(10), |w| feeder.feed(w.now, &mut w.sides[0]));
    w.sides[0].reset(w.now, id, ResetReason::HostReset, true);
    w.sides[0].release(w.now, id);
    let written = w.sides[0].stats().stream_bytes_in;
    w.run(Duration::from_secs(30), |w| {
        while w.sides[1].poll_event().is_some() {}
        while !w.sides[1].peek(id).is_empty() {
            let n = w.sides[1].peek(id).len();
            w.sides[1].consume(w.now, id, n);
        }
    });
    assert_eq!(w.sides[1].stats().stream_bytes_out, written);
    assert_eq!(w.sides[1].recv_state(id), RecvState::Reset(ResetReason::HostReset));
}

/// L-PA-2.
#[test]
fn a_peer_that_offers_the_moon_gets_no_more_than_our_memory() {
    let mut w = World::new(17, CLEAN, LinkConfig { memory: ByteCount(4 << 20), ..config() });
    let all = u64::MAX;
    let (stream_window, total_window) = (all, all);
    let (contexts, history) = (all, all);
    let (mtu, reserve, dedup) = (all, all, all);
    let told = None;
    let moon = Params { mtu, stream_window, total_window, reserve, contexts, history, dedup, told };
    let encoded = Params::decode(&moon.encode()).unwrap();
    w.sides[0].set_peer(encoded);
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let mut feeder = Feeder::default();
    feeder.left.insert(id, (0, 1 << 40));
    // It speaks, so it is not silent, and confirms nothing.
    w.dead = [true, true];
    let mut number = 0;
    w.run(Duration::from_secs(60), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        if w.now.as_nanos() / 100_000_000 > number {
            inject(w, 0, number, &[Frame::Credit(id, 1)]);
            number += 1;
        }
    });
    let held = w.sides[0].memory_used();
    assert!(held < 5 << 20, "{held} bytes held");
}

#[test]
fn a_peer_cannot_make_this_node_remember_ever_more_closed_streams() {
    let mut w = World::new(18, CLEAN, LinkConfig { max_streams: 50, ..config() });
    for n in 0..20_000u64 {
        let id = StreamId(n * 6);
        inject(&mut w, 1, n, &[Frame::Reset { id, reason: ResetReason::HostReset, end: 0 }]);
    }
    assert!(w.sides[1].closed.len() <= 1024 + 100);
    inject(&mut w, 1, 20_000, &[Frame::Open(StreamId(19_999 * 6), origin())]);
    assert_eq!(w.sides[1].poll_event(), None, "the newest are remembered");
}

/// L-ST-6: a connection that waited for its carrier while so many others were given up.
#[test]
fn a_number_that_was_skipped_is_refused_when_it_comes() {
    let mut w = World::new(34, CLEAN, config());
    let [first, late] = [(); 2].map(|()| w.sides[0].open(w.now, origin()).unwrap());
    w.sides[0].release(w.now, first);
    for n in 0..2_000u64 {
        let id = StreamId(first.0 + n * 6);
        w.sides[0].first_mut().book_other(w.now, &[], 60);
        inject(&mut w, 1, n, &[Frame::Reset { id, reason: ResetReason::HostReset, end: 0 }]);
    }
    w.sides[0].first_mut().book_other(w.now, &[], 60);
    inject(&mut w, 1, 2_000, &[Frame::Open(late, origin())]);
    assert_eq!(w.sides[1].poll_event(), None);
    w.run(Duration::from_secs(3), |_| {});
    assert_eq!(w.sides[0].poll_event(), Some(Event::Reset(late, ResetReason::Exhausted)));
    w.sides[0].release(w.now, late);
    w.run(Duration::from_secs(3), |_| {});
    assert_eq!((w.sides[0].streams(), w.sides[1].streams()), (0, 0));
}

/// L-ST-5, L-ST-6.
#[test]
fn an_overrun_ends_the_stream_and_never_looks_like_a_close() {
    let mut w = World::new(19, CLEAN, config());
    inject(&mut w, 1, 0, &[Frame::Open(StreamId(0), origin()), stream(0, 0, true, b"all")]);
    inject(&mut w, 1, 1, &[stream(0, 2, false, b"more than all")]);
    assert_eq!(w.sides[1].recv_state(StreamId(0)), RecvState::Reset(ResetReason::Protocol));
    // The same on a stream that nobody was told of.
    inject(&mut w, 1, 2, &[stream(2, 0, true, b"all")]);
    inject(&mut w, 1, 3, &[stream(2, 2, false, b"more than all")]);
    assert_eq!(w.sides[1].stats().violations, 2);
    w.sides[1].release(w.now, StreamId(0));
    w.run(Duration::from_secs(30), |_| {});
    assert_eq!((w.sides[1].streams(), w.sides[1].memory_used()), (0, 0));
}

/// L-DD-8: references whose content is within the window go on with each CREDIT; those of one
/// block, for which no credit comes, do not.
#[test]
fn content_of_references_beyond_the_window_ends_the_stream() {
    let mut w = World::new(22, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    assert_eq!(w.sides[0].write(w.now, id, &[7; 1000]), 1000);
    w.run(Duration::from_secs(3), |_| {});
    let window = w.sides[1].params().stream_window;
    for _ in 0..9 {
        w.sides[1].took_referred(w.now, id, window);
        w.sides[1].consume(w.now, id, 100);
        w.run(Duration::from_secs(3), |_| {});
    }
    assert_eq!((w.sides[1].recv_state(id), w.sides[1].stats().violations), (RecvState::Open, 0));
    for _ in 0..3 {
        w.sides[1].took_referred(w.now, id, window / 2);
        // Credit is due, and says nothing new.
        w.run(Duration::from_secs(3), |_| {});
    }
    assert_eq!(w.sides[1].recv_state(id), RecvState::Reset(ResetReason::Protocol));
    assert_eq!(w.sides[1].stats().violations, 1);
    // Its last byte may have been the last of an item, which its reader has taken now.
    w.sides[1].consume(w.now, id, 100);
}

#[test]
fn a_frame_repeated_is_told_once() {
    let mut w = World::new(20, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    inject(&mut w, 0, 0, &[Frame::Accepted(id), Frame::Accepted(id)]);
    assert_eq!(w.sides[0].poll_event(), Some(Event::Accepted(id)));
    assert_eq!(w.sides[0].poll_event(), None);
}

#[test]
fn the_smallest_link_carries_datagrams_and_refuses_names_that_do_not_fit() {
    let mut w = World::new(21, CLEAN, LinkConfig { mtu: 128, packet: 128, ..config() });
    let params = w.sides[0].params();
    for side in &mut w.sides {
        side.set_peer(params);
        side.first_mut().set_ipv6(true);
    }
    assert!(w.sides[0].send_datagram(w.now, &[5; 1400], &Label::default()));
    let target = Target::Name("a".repeat(MAX_NAME), 80);
    let long = w.sides[0].open(w.now, Origin { client: None, target, dscp: 0 }).unwrap();
    let short = w.sides[0].open(w.now, origin()).unwrap();
    let mut whole = 0;
    w.run(Duration::from_secs(5), |w| while w.sides[1].take_datagram(|d| whole = d.len()) {});
    assert_eq!(whole, 1400);
    assert_eq!(w.sides[0].poll_event(), Some(Event::Reset(long, ResetReason::Unreachable)));
    assert_eq!(w.sides[0].recv_state(long), RecvState::Reset(ResetReason::Unreachable));
    assert_eq!(w.sides[1].poll_event(), Some(Event::Opened(short, origin())));
    w.sides[0].release(w.now, long);
    assert_eq!(w.sides[0].streams(), 1);
}

// L-SE-6
/// L-SE-6.
#[test]
fn the_end_of_a_session_does_not_wait_for_a_busy_link() {
    let mut w = World::new(22, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let mut feeder = Feeder::default();
    feeder.left.insert(id, (0, 1 << 40));
    w.run(Duration::from_secs(2), |w| feeder.feed(w.now, &mut w.sides[0]));
    w.transmit();
    w.sides[0].close(ResetReason::ShuttingDown);
    let before = w.flight.len();
    w.transmit();
    assert_eq!(w.flight.len() - before, 1, "the first copy leaves at once");
    let first = w.sides[0].first().next_number();
    assert!(w.sides[0].is_closing());
    w.run(Duration::from_millis(200), |_| {});
    assert_eq!(
        w.sides[0].first().next_number() - first,
        2,
        "one lost packet does not hide the end"
    );
    assert!(!w.sides[0].is_closing());
    w.run(Duration::from_secs(1), |_| {});
    assert!(w.sides[1].peer_closed());
    assert_eq!(w.sides[0].first().next_number() - first, 2, "and nothing follows it");
}

#[test]
fn a_half_closed_stream_gives_its_credit_back() {
    let mut w = World::new(23, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let mut feeder = Feeder::default();
    feeder.left.insert(id, (0, 3_000_000));
    w.run(Duration::from_secs(10), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        while w.sides[1].poll_event().is_some() {}
        while !w.sides[1].peek(id).is_empty() {
            let n = w.sides[1].peek(id).len();
            w.sides[1].consume(w.now, id, n);
        }
    });
    assert_eq!(w.sides[1].recv_state(id), RecvState::Finished);
    assert_eq!((w.sides[0].streams(), w.sides[0].over_reserve), (1, 0));
}

/// L-ST-1: numbers count up by two from the side's own, and one that is over means nothing.
#[test]
fn a_stream_s_number_does_not_come_again() {
    let mut w = World::new(31, CLEAN, config());
    for side in 0..2 {
        let ids: Vec<u64> =
            (0..4).filter_map(|_| w.sides[side].open(w.now, origin())).map(|id| id.0).collect();
        let first = side as u64;
        assert_eq!(ids, [first, first + 2, first + 4, first + 6]);
    }
    let mut w = World::new(32, CLEAN, config());
    let end = Frame::Reset { id: StreamId(4), reason: ResetReason::HostReset, end: 0 };
    inject(&mut w, 1, 0, &[Frame::Open(StreamId(4), origin()), end]);
    while w.sides[1].poll_event().is_some() {}
    w.sides[1].release(w.now, StreamId(4));
    inject(&mut w, 1, 1, &[Frame::Open(StreamId(4), origin()), stream(4, 0, false, b"spliced")]);
    assert_eq!(w.sides[1].poll_event(), None);
    assert_eq!((w.sides[1].streams(), w.sides[1].memory_used()), (0, 0));
}

/// L-CR-2, L-CR-3: bytes that all arrived, of a stream that ended, are still in the receiver's
/// memory while their reader has not taken them. What the sender does not count there the
/// receiver would count as overrun, and reset a stream that did nothing wrong.
#[test]
fn a_stream_that_ended_stays_on_the_account_until_its_reader_has_taken_it() {
    let small = LinkConfig { memory: ByteCount(512 << 10), ..config() };
    let mut w = World::new(33, CLEAN, small);
    let mut feeder = Feeder::default();
    let mut ids = Vec::new();
    // Users are done with what they wrote and what both ended.
    let release = |w: &mut World, feeder: &Feeder, ids: &[StreamId]| {
        for id in ids.iter().filter(|id| !feeder.left.contains_key(id)) {
            if w.sides[0].recv_state(*id) == RecvState::Finished {
                w.sides[0].release(w.now, *id);
            }
        }
    };
    for _ in 0..12 {
        // As much as it gets, and nobody reads; the other direction ends at once.
        let id = w.sides[0].open(w.now, origin()).unwrap();
        ids.push(id);
        feeder.left.insert(id, (0, 40_000));
        w.run(Duration::from_secs(3), |w| feeder.feed(w.now, &mut w.sides[0]));
        w.sides[1].finish(w.now, id);
        w.run(Duration::from_secs(1), |_| {});
        release(&mut w, &feeder, &ids);
    }
    assert_eq!(w.sides[1].stats().violations, 0, "an innocent stream was reset");
    assert!(w.sides[0].over_reserve >= w.sides[1].recv_over_reserve, "both accounts hold it");
    // Their readers wake up, and everything goes.
    let mut drain = Drain::default();
    w.run(Duration::from_secs(30), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
        release(w, &feeder, &ids);
    });
    assert_eq!(drain.finished.len(), 12);
    for side in &w.sides {
        assert_eq!((side.streams(), side.memory_used()), (0, 0));
        assert_eq!((side.over_reserve, side.recv_over_reserve), (0, 0));
        assert_eq!(side.stats().violations, 0);
    }
}

#[test]
fn a_peer_of_an_older_version_tells_no_facts_and_nothing_is_compared() {
    let own = Params::of(&config());
    let old = Params { told: None, ..own };
    assert_eq!(
        (Params::decode(&old.encode()), Params::decode(&own.encode())),
        (Some(old), Some(own))
    );
    assert_eq!(own.encode().len(), old.encode().len() + 5, "what the facts cost");
    let mut session = Session::new(Instant::from_nanos(1), config(), 0);
    session.set_peer(old);
    assert_eq!(session.disagreements(), Default::default());
    // One that tells a part of them is compared by that.
    let told = own.told.map(|told| Told { send: 0, receive: 0, ..told });
    session.set_peer(Params { told, ..own });
    assert_eq!(session.disagreements(), Default::default());
}

/// L-CR-5: of frames of one byte with a byte missing between them the places took more memory
/// than the bytes, and each further frame moved megabytes.
#[test]
fn a_stream_of_holes_takes_no_more_than_its_window() {
    let mut w = World::new(71, CLEAN, config());
    let window = w.sides[1].params.stream_window;
    inject(&mut w, 1, 0, &[Frame::Open(StreamId(0), origin())]);
    let offsets: Vec<u64> = (1..window.min(1 << 20)).step_by(2).collect();
    for (n, some) in offsets.chunks(150).enumerate() {
        let frames: Vec<Frame<'_>> = some.iter().map(|o| stream(0, *o, false, b"x")).collect();
        inject(&mut w, 1, n as u64 + 1, &frames);
    }
    let most = 64 + window as usize / 1024;
    assert!(offsets.len() > most, "{} pieces are sent", offsets.len());
    let side = &w.sides[1];
    let pieces = side.streams[&StreamId(0)].recv.pieces();
    assert!(pieces <= most, "{pieces} pieces of {most}");
    assert!(
        !side.paths[0].received.has(offsets.len() as u64 / 150),
        "what was not taken is not reported"
    );
}

/// In each no more than its reserve, which no window counts.
#[test]
fn many_streams_of_holes_take_no_more_pieces_than_their_bytes_are_worth() {
    let mut w = World::new(74, CLEAN, config());
    let mut number = 0;
    let streams = 50;
    for of in 0..streams {
        inject(&mut w, 1, number, &[Frame::Open(StreamId(2 * of), origin())]);
        number += 1;
        let offsets: Vec<u64> = (1..12_000).step_by(2).collect();
        for some in offsets.chunks(150) {
            let frames: Vec<_> = some.iter().map(|o| stream(2 * of, *o, false, b"x")).collect();
            inject(&mut w, 1, number, &frames);
            number += 1;
        }
    }
    let side = &w.sides[1];
    let pieces = side.streams.values().map(|s| s.recv.pieces());
    assert_eq!(side.streams.len(), streams as usize);
    // 64, and one for each 128 bytes of its 12 kB.
    assert!(pieces.clone().all(|n| n <= 158), "{:?}", pieces.max());
    let in_blocks: usize = side.streams.values().map(|s| s.recv.in_blocks()).sum();
    let in_pieces = pieces.sum::<usize>() * size_of::<std::ops::Range<u64>>();
    assert!(in_pieces > 100_000, "{in_pieces} bytes of pieces");
    let used = side.memory_used();
    assert!(used >= (in_blocks + in_pieces) as u64, "{used} of {in_blocks} and {in_pieces}");
    // The bytes between them come: of each stream there is one piece.
    for of in 0..streams {
        for half in [0, 6_000] {
            inject(&mut w, 1, number, &[stream(2 * of, half, false, &[b'x'; 6_000])]);
            number += 1;
        }
    }
    assert_eq!(w.sides[1].memory_used(), in_blocks as u64, "closed pieces are given back");
    for of in 0..streams {
        w.sides[1].reset(w.now, StreamId(2 * of), ResetReason::Refused, false);
    }
    assert_eq!(w.sides[1].memory_used(), 0);
}

/// The same from a peer whose packets get lost: all of it arrives.
#[test]
fn a_stream_in_many_pieces_arrives_whole() {
    let mut w = World::new(72, Pipe { loss: 0.5, ..CLEAN }, config());
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    feeder.left.insert(id, (0, 1 << 20));
    w.run(Duration::from_secs(60), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
    });
    assert_eq!(w.sides[1].stats().violations, 0);
    assert_eq!(drain.got.get(&id), Some(&(1 << 20)));
}

/// L-LO-8.
#[test]
fn a_peer_that_speaks_and_never_reports_is_told_and_takes_bounded_memory() {
    speaks_and_never_reports(Duration::from_secs(300));
}

#[test]
#[ignore = "4 hours of virtual time"]
fn a_peer_that_speaks_and_never_reports_takes_bounded_memory_for_hours() {
    speaks_and_never_reports(HOURS);
}

/// Datagrams towards one that says something now and then, and reports nothing of them.
fn speaks_and_never_reports(time: Duration) {
    let mut w = World::new(73, CLEAN, config());
    w.dead = [true, true];
    let id = w.sides[0].open(w.now, origin()).unwrap();
    w.sides[0].write(w.now, id, &[7; 1_000]);
    let mut buf = [0; 1451];
    let (mut said, mut told) = (0, None);
    let (mut most, mut most_bytes) = (0, 0);
    for ms in 0..time.as_millis() {
        w.now += Duration::from_millis(1);
        (0..4).for_each(|_| _ = w.sides[0].send_datagram(w.now, &[1; 64], &Label::default()));
        w.sides[0].handle_timeout(w.now);
        while w.sides[0].poll_packet(w.now, PathId::FIRST, &mut buf, SEALING).is_some() {}
        if ms % 500 == 0 {
            inject(&mut w, 0, said, &[Frame::Datagram(&[0x45; 40])]);
            while w.sides[0].take_datagram(|_| {}) {}
            said += 1;
        }
        let sent = &w.sides[0].paths[0].sent;
        (most, most_bytes) = (most.max(sent.unsettled()), most_bytes.max(sent.bytes()));
        assert!(!sent.has_more_than(65_536));
        if let PathHealth::NoAcks { .. } = w.sides[0].health() {
            told.get_or_insert(ms);
        }
    }
    assert!(told.is_some_and(|ms| (10_000..40_000).contains(&ms)), "{told:?}");
    println!("{time}: {most} packets kept at most, {most_bytes} bytes");
    assert!(most <= 65_536 && most_bytes <= 20 << 20, "{most} packets, {most_bytes} bytes");
    let least = time.as_millis() * 2 / 3;
    assert!(w.sides[0].paths[0].sent.next_number() > least, "datagrams go on");
}

/// What a peer says that acknowledges nothing of what is sent after the first packets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    /// It is heard and sends no ACK.
    NoAck,
    /// Its ACKs are always that of the first packet: others came after it.
    AnOldAck,
    /// Its ACKs are always the same.
    TheSameAck,
    /// It acknowledges one packet of fifty.
    OneMore,
    /// It is not heard.
    Nothing,
}

impl World {
    /// Both directions are down but for what side 1 is made to say once a second. Side 0 sends a
    /// datagram every 20 ms. Answers the most packets that it kept meanwhile.
    fn goes_on_towards(&mut self, says: Says, time: Duration) -> usize {
        let (mut buf, until, mut most, mut steps) = ([0; 1451], self.now + time, 0, 0u64);
        while self.now < until {
            self.now += Duration::from_millis(20);
            self.sides[0].send_datagram(self.now, &[1; 64], &Label::default());
            self.sides[0].handle_timeout(self.now);
            let now = self.now;
            while self.sides[0].poll_packet(now, PathId::FIRST, &mut buf, SEALING).is_some() {}
            most = most.max(self.sides[0].paths[0].sent.unsettled());
            steps += 1;
            let largest = self.sides[0].first().confirmed().unwrap_or(0);
            let frame = match says {
                Says::NoAck => Frame::Datagram(&[0x45; 40]),
                Says::AnOldAck => Frame::State(StateFrame::of_one(0)),
                Says::TheSameAck => Frame::State(StateFrame::of_one(largest)),
                Says::OneMore => Frame::State(StateFrame::of_one(largest + 1)),
                Says::Nothing => continue,
            };
            if steps.is_multiple_of(50) {
                let number = self.sides[1].first().next_number();
                self.sides[1].first_mut().book_other(now, &[], 60);
                inject(self, 0, number, &[frame]);
                while self.sides[0].take_datagram(|_| {}) {}
            }
        }
        most
    }
}

/// L-LO-11: what a peer that is heard does not acknowledge is kept for a while, and not until there
/// are too many packets. Nothing of a stream gets lost by that.
#[test]
fn what_a_peer_that_is_heard_never_acknowledges_is_given_up_after_a_while() {
    for says in [Says::NoAck, Says::AnOldAck, Says::TheSameAck, Says::OneMore] {
        let mut w = World::new(76, CLEAN, config());
        let id = w.sides[0].open(w.now, origin()).unwrap();
        let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
        feeder.left.insert(id, (0, 1_000_000));
        // Some of the stream is under way when it begins.
        w.run(Duration::from_millis(1_000), |w| feeder.feed(w.now, &mut w.sides[0]));
        w.flight.clear();
        let most = w.goes_on_towards(says, Duration::from_secs(3_600));
        let health = w.sides[0].health();
        match says {
            Says::NoAck => assert!(matches!(health, PathHealth::NoAcks { .. }), "{health:?}"),
            Says::TheSameAck => {
                assert!(matches!(health, PathHealth::TransmitDead { .. }), "{health:?}");
            }
            // An ACK that another overtook says nothing against the link.
            _ => assert_eq!(health, PathHealth::Alive),
        }
        // 50 a second for a minute, beside the stream's of the time before that was known.
        assert!(most < 6_000, "{says:?}: {most} packets are kept");
        assert!(w.sides[0].paths[0].sent.next_number() > 150_000, "datagrams go on");
        w.run(Duration::from_secs(60), |w| {
            feeder.feed(w.now, &mut w.sides[0]);
            drain.drain(w.now, &mut w.sides[1]);
            while w.sides[1].take_datagram(|_| {}) {}
        });
        assert_eq!(drain.finished, [id], "{says:?}: all of the stream arrives");
        assert_eq!(w.sides[0].health(), PathHealth::Alive);
    }
}

/// What left before or in darkness is not given up for its age: reports of it may come yet.
#[test]
fn in_darkness_nothing_is_given_up_for_its_age() {
    let mut w = World::new(77, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    w.sides[0].write(w.now, id, &[7; 1_000]);
    w.run(Duration::from_millis(700), |_| {});
    let floor = w.sides[0].paths[0].sent.floor();
    let most = w.goes_on_towards(Says::Nothing, Duration::from_secs(1_200));
    assert_eq!(w.sides[0].paths[0].sent.floor(), floor);
    assert!(most > 55_000, "{most}");
}

/// L-LO-8: a peer that says its path is as fast and as long as no path is.
#[test]
fn a_path_that_only_the_peer_has_described_keeps_a_bounded_number_of_packets() {
    let mut w = World::new(74, CLEAN, config());
    let path = PathId::of_side(1).next().expect("a path that the peer may open");
    // 999 · 10^12 bits a second.
    let rate = 12 << 10 | 999;
    let facts =
        PathFacts { send: rate, receive: rate, rtt: 1 << 50, mtu: 1 << 50, overhead: 1 << 50 };
    let facts = Some(facts);
    let (up, hears, free, priority) = (true, true, true, 0);
    let name = CarrierName::new(b"sixteen letters.").expect("it fits");
    let news = PathNews { path, version: 1, up, hears, free, priority, name, facts };
    inject(&mut w, 0, 0, &[Frame::Path(news)]);
    let path = w.sides[0].path(path).expect("the path is there");
    assert!(path.is_described, "it is taken as it was told");
    let most = path.most_unsettled();
    assert!(most <= 262_144, "{most} packets");
    assert_eq!(w.sides[0].first().most_unsettled(), 65_536);
}

#[test]
fn resets_of_streams_that_never_were_leave_little_behind() {
    let mut w = World::new(72, CLEAN, LinkConfig { max_streams: 16_384, ..config() });
    let reset = |n: u64| Frame::Reset { id: StreamId(n), reason: ResetReason::HostReset, end: 0 };
    for number in 0..400u64 {
        let ids = (0..100).map(|i| 1_000_000 + (number * 100 + i) * 2_000);
        let frames: Vec<Frame<'_>> = ids.map(reset).collect();
        inject(&mut w, 1, number, &frames);
        assert!(w.sides[1].closed.len() <= 1_025, "{}", w.sides[1].closed.len());
    }
    assert_eq!(w.sides[1].closed.len(), 1_024);
}

/// Each report may have the node go through all that is in flight.
#[test]
fn a_packet_full_of_reports_has_losses_looked_for_once() {
    let mut w = World::new(75, CLEAN, config());
    w.dead = [true, true];
    let mut buf = [0; 1451];
    for _ in 0..2_000u64 {
        w.now += Duration::from_millis(1);
        w.sides[0].send_datagram(w.now, &[1; 64], &Label::default());
        w.sides[0].handle_timeout(w.now);
        while w.sides[0].poll_packet(w.now, PathId::FIRST, &mut buf, SEALING).is_some() {}
    }
    let newest = w.sides[0].paths[0].sent.next_number() - 1;
    let state = |n: u64| Frame::State(StateFrame::of_one(newest - n));
    let frames: Vec<Frame<'_>> = (0..100).rev().map(state).collect();
    inject(&mut w, 0, 0, &frames);
    assert!(w.sides[0].looked_for_losses);
    assert_eq!(w.sides[0].poll_timeout(w.now), Some(w.now), "the rest is looked at afterwards");
    w.sides[0].handle_timeout(w.now);
    assert!(w.sides[0].paths[0].sent.confirmed() == Some(newest));
}

#[test]
fn a_wish_with_the_last_number_that_there_is_takes_no_command_from_this_node() {
    let mut w = World::new(16, CLEAN, config());
    inject(&mut w, 1, 0, &[Frame::Use { sequence: u64::MAX, path: None }]);
    let now = w.now;
    w.sides[1].use_path(now, None);
    inject(&mut w, 1, 1, &[Frame::Use { sequence: 2, path: None }]);
    w.sides[1].use_path(now, Some(PathId::FIRST));
}

/// L-PA-2: what a peer reserves for each stream lies here until it reports it.
#[test]
fn a_peer_that_reserves_much_for_each_stream_gets_no_more_than_our_reserve() {
    let mut w = World::new(84, CLEAN, config());
    let params = w.sides[0].params();
    w.sides[0].set_peer(Params { reserve: 64 << 10, ..params });
    // Other streams have all that is beyond reserves.
    w.sides[0].over_reserve = params.total_window;
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let mut feeder = Feeder::default();
    feeder.left.insert(id, (0, 1 << 20));
    let mut buf = [0; 1451];
    for _ in 0..50 {
        w.now += Duration::from_millis(10);
        feeder.feed(w.now, &mut w.sides[0]);
        w.sides[0].handle_timeout(w.now);
        while w.sides[0].poll_packet(w.now, PathId::FIRST, &mut buf, SEALING).is_some() {}
    }
    let (end, unsent) = w.sides[0].written(id);
    assert_eq!(end - unsent, params.reserve);
}

/// A peer that keeps more for each stream than this node counts with says nothing of bytes within
/// that: both accounts are clear all the same when a stream is over.
#[test]
fn a_stream_towards_a_peer_with_a_larger_reserve_leaves_the_account() {
    let mut w = World::new(85, CLEAN, config());
    w.sides[1].params.reserve = 64 << 10;
    let params = w.sides[1].params();
    w.sides[0].set_peer(params);
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let (mut feeder, mut drain, mut closer) =
        (Feeder::default(), Drain::default(), Drain::default());
    feeder.left.insert(id, (0, 40_000));
    w.run(Duration::from_secs(10), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
        closer.drain(w.now, &mut w.sides[0]);
    });
    assert_eq!(drain.finished, [id]);
    for side in &w.sides {
        assert_eq!((side.streams(), side.over_reserve, side.recv_over_reserve), (0, 0, 0));
    }
}

/// The bytes before a reset are the reader's to take; until then they lie in this node's memory,
/// and the peer does not count them any more (L-CR-7).
#[test]
fn bytes_before_resets_take_no_more_than_the_window_of_all() {
    let small = LinkConfig { memory: ByteCount(4 << 20), ..config() };
    let mut w = World::new(86, CLEAN, small);
    let (mut number, piece) = (0, [7; 8 << 10]);
    let mut refused = None;
    for n in 0..40 {
        let id = StreamId(2 * n);
        let reset = Frame::Reset { id, reason: ResetReason::HostReset, end: 1 << 40 };
        inject(&mut w, 1, number, &[Frame::Open(id, origin()), reset]);
        number += 1;
        for offset in (0..1 << 20).step_by(piece.len()) {
            inject(&mut w, 1, number, &[stream(id.0, offset, false, &piece)]);
            if !w.sides[1].paths[0].received.has(number) {
                refused.get_or_insert((id, offset));
            }
            number += 1;
        }
    }
    let held = w.sides[1].memory_used();
    let bound = (2 << 20) + 40 * (16 << 10) + (64 << 10);
    assert!(held <= bound, "{held} of {bound} bytes");
    assert_eq!(w.sides[1].stats().violations, 0);
    // Where their readers go on, what was not taken is when it comes again.
    let (id, offset) = refused.expect("some were not taken");
    for n in 0..40 {
        while let len @ 1.. = w.sides[1].peek(StreamId(2 * n)).len() {
            w.sides[1].consume(w.now, StreamId(2 * n), len);
        }
    }
    inject(&mut w, 1, number, &[stream(id.0, offset, false, &piece)]);
    assert!(w.sides[1].paths[0].received.has(number));
    for n in 0..40 {
        w.sides[1].release(w.now, StreamId(2 * n));
    }
    assert_eq!((w.sides[1].memory_used(), w.sides[1].recv_over_reserve), (0, 0));
}

/// Beside data, streams that are opened and reset have half of each packet.
#[test]
fn streams_that_come_and_go_leave_half_of_the_link_to_the_others() {
    let mut w = World::new(87, CLEAN, config());
    let bulk = w.sides[0].open(w.now, origin()).unwrap();
    let mut feeder = Feeder::default();
    feeder.left.insert(bulk, (0, 1 << 40));
    let mut drain = Drain::default();
    w.run(Duration::from_secs(4), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
    });
    let before = w.sides[0].written(bulk);
    let wire = w.wire_bytes[0];
    // Some 60 kB of OPEN and RESET wait, and the link carries 50 kB in this time.
    for _ in 0..1_900 {
        let id = w.sides[0].open(w.now, origin()).unwrap();
        w.sides[0].reset(w.now, id, ResetReason::HostReset, false);
        w.sides[0].release(w.now, id);
    }
    w.run(Duration::from_millis(20), |w| feeder.feed(w.now, &mut w.sides[0]));
    let left = |(end, unsent): (u64, u64)| end - unsent;
    let data = left(w.sides[0].written(bulk)) - left(before);
    let wire = w.wire_bytes[0] - wire;
    assert!(wire > 40_000 && data * 5 > wire * 2, "{data} of {wire} bytes");
}

/// A bulk stream on a path that takes less than is configured, with a probe of its size under way.
fn probing() -> World {
    let mut w = World::new(88, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let mut feeder = Feeder::default();
    feeder.left.insert(id, (0, 1 << 40));
    let mut drain = Drain::default();
    w.run(Duration::from_secs(2), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
    });
    w.path_mtu = 600;
    let until = w.now + Duration::from_secs(60);
    while !w.sides[0].first().is_probing_size() {
        assert!(w.step(until), "a probe leaves");
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
    }
    w
}

/// A probe of the path's size that was under way when the peer told another largest size holds up
/// nothing that left after it.
#[test]
fn a_probe_of_a_size_that_is_void_is_given_up() {
    let mut w = probing();
    let params = w.sides[1].params();
    w.sides[0].set_peer(Params { mtu: 1400, ..params });
    let sent = &w.sides[0].paths[0].sent;
    assert!((sent.floor()..sent.next_number()).all(|number| !sent.is_probing(number)));
}

/// A probe that was under way when its path went down has not been answered.
#[test]
fn a_probe_of_a_path_that_goes_down_tells_nothing_of_its_size() {
    let mut w = probing();
    let size = w.sides[0].first().path_mtu();
    w.sides[0].give_up_path(w.now, 0);
    w.sides[0].paths[0].follow_path(w.now);
    assert_eq!(w.sides[0].first().path_mtu(), size);
}
