//! Messages about chunks, and streams that refer to chunks.

use super::*;

fn dedup() -> LinkConfig {
    LinkConfig { dedup: true, ..config() }
}

const BAD: Pipe = Pipe { loss: 0.1, reorder: 0.2, duplicate: 0.1 };

/// L-DD-12: bytes come once and in order, count as no stream, and are taken as they come.
#[test]
fn messages_cross_a_bad_link_and_are_no_stream() {
    let mut w = World::new(61, BAD, dedup());
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for n in 0..200u32 {
        let bytes = vec![n as u8; 1 + (n as usize * 37) % 900];
        assert!(w.sides[0].has_message_room());
        w.sides[0].send_messages(w.now, &bytes);
        sent.extend(bytes);
        w.run(Duration::from_millis(20), |w| {
            let now = w.now;
            w.sides[1].take_messages(now, |bytes| got.extend_from_slice(bytes));
        });
    }
    w.run(Duration::from_secs(30), |w| {
        let now = w.now;
        w.sides[1].take_messages(now, |bytes| got.extend_from_slice(bytes));
    });
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    for side in &w.sides {
        assert_eq!((side.streams(), side.stats().streams_total), (0, 0));
        assert!(side.is_quiet() && side.memory_used() == 0);
    }
}

/// Whoever found no room hears once of it, when there is room again.
#[test]
fn room_for_messages_is_told_when_it_is_there() {
    let mut w = World::new(68, CLEAN, dedup());
    let told = |w: &mut World| {
        let events = std::iter::from_fn(|| w.sides[0].poll_event());
        events.filter(|event| *event == Event::Messages).count()
    };
    told(&mut w);
    while w.sides[0].has_message_room() {
        w.sides[0].send_messages(w.now, &[7; 1000]);
    }
    assert!(!w.sides[0].has_message_room());
    assert_eq!(told(&mut w), 0, "nothing has left");
    w.run(Duration::from_secs(5), |_| {});
    assert_eq!(told(&mut w), 1);
    assert!(w.sides[0].has_message_room());
    // Whoever did not ask hears nothing.
    w.sides[0].send_messages(w.now, &[7; 1000]);
    w.run(Duration::from_secs(5), |_| {});
    assert_eq!(told(&mut w), 0);
}

/// L-DD-12: no messages where they were not agreed on, and one stream of them.
#[test]
fn messages_that_were_not_agreed_on_are_refused() {
    let mut w = World::new(62, CLEAN, config());
    assert!(!w.sides[0].has_message_room());
    w.sides[0].send_messages(w.now, b"unasked");
    w.run(Duration::from_secs(5), |_| {});
    assert_eq!(w.sides[1].stats().violations, 1);
    assert!(w.sides[0].messages_are_refused());

    let mut w = World::new(63, CLEAN, dedup());
    w.sides[0].send_messages(w.now, b"one");
    w.sides[0].messages = [None; 2];
    w.sides[0].send_messages(w.now, b"two");
    w.run(Duration::from_secs(5), |_| {});
    let (mut got, now) = (Vec::new(), w.now);
    w.sides[1].take_messages(now, |bytes| got.extend_from_slice(bytes));
    assert_eq!((got.as_slice(), w.sides[1].stats().violations), (&b"one"[..], 1));
    assert!(w.sides[0].messages_are_refused());
}

/// Messages have their place though there are as many streams as there may be.
#[test]
fn messages_have_room_beside_all_streams() {
    let mut w = World::new(64, CLEAN, LinkConfig { max_streams: 4, ..dedup() });
    for _ in 0..4 {
        let id = w.sides[0].open(w.now, origin()).expect("a stream");
        w.sides[0].write(w.now, id, b"x");
    }
    w.run(Duration::from_secs(2), |_| {});
    assert_eq!(w.sides[1].streams(), 4);
    w.sides[0].send_messages(w.now, b"hello");
    w.run(Duration::from_secs(2), |_| {});
    let (mut got, now) = (Vec::new(), w.now);
    w.sides[1].take_messages(now, |bytes| got.extend_from_slice(bytes));
    assert_eq!(got, b"hello");
}

/// L-DD-13: its user hears of credit, but not of each of the hundreds that a packet may have.
#[test]
fn credits_that_come_at_once_are_one_event() {
    let mut w = World::new(67, CLEAN, dedup());
    let id = w.sides[0].open(w.now, origin()).expect("a stream");
    w.sides[0].write(w.now, id, &[9; 1000]);
    w.sides[0].mark_referring(id);
    w.run(Duration::from_secs(2), |_| {});
    let (now, session) = (w.now, &mut w.sides[0]);
    while session.poll_event().is_some() {}
    for n in 1..=250 {
        session.on_credit(now, id, n);
    }
    assert_eq!(session.taken(id), Some(250));
    for n in [500, 501] {
        assert_eq!(session.poll_event(), Some(Event::Writable(id)));
        assert_eq!(session.poll_event(), None);
        session.on_credit(now, id, n);
    }
}

/// L-DD-13: what refers to chunks lives until all of it was taken, though all has arrived.
#[test]
fn a_stream_that_refers_waits_for_its_credit() {
    for refers in [false, true] {
        let mut w = World::new(65, BAD, dedup());
        let id = w.sides[0].open(w.now, origin()).expect("a stream");
        w.sides[0].write(w.now, id, &[9; 70]);
        if refers {
            w.sides[0].mark_referring(id);
        }
        w.sides[0].finish(w.now, id);
        w.run(Duration::from_secs(5), |_| {});
        // The other direction ends, and both users are done, but for the last byte.
        w.sides[1].finish(w.now, id);
        w.sides[1].consume(w.now, id, 69);
        w.run(Duration::from_secs(5), |_| {});
        assert_eq!(w.sides[0].recv_state(id), RecvState::Finished);
        w.sides[0].release(w.now, id);
        w.run(Duration::from_secs(20), |_| {});
        assert_eq!(w.sides[0].contains(id), refers, "its host has not taken all");
        w.sides[1].mark_referred(id);
        w.sides[1].consume(w.now, id, 1);
        w.sides[1].release(w.now, id);
        w.run(Duration::from_secs(20), |_| {});
        if refers {
            assert!(w.sides.iter().all(|side| !side.contains(id)), "both are done");
        }
    }
}

/// L-DD-13: the same where its host reset after sending. It lives until all of it was taken, or
/// until its sender knows that nobody wants it, though all has arrived.
#[test]
fn a_stream_that_refers_and_was_reset_waits_for_its_credit() {
    for takes_all in [true, false] {
        let mut w = World::new(66, BAD, dedup());
        let id = w.sides[0].open(w.now, origin()).expect("a stream");
        w.sides[0].write(w.now, id, &[9; 20_000]);
        w.sides[0].mark_referring(id);
        w.sides[0].reset(w.now, id, ResetReason::HostReset, true);
        w.sides[0].release(w.now, id);
        w.run(Duration::from_secs(20), |_| {});
        assert!(w.sides[0].contains(id), "what it refers to may be asked for yet");
        assert_eq!(w.sides[0].credit_in_use().0, 0, "its bytes are off the peer's account");
        w.sides[1].mark_referred(id);
        assert_eq!(w.sides[1].peek(id).len().min(1), 1);
        if takes_all {
            while let n @ 1.. = w.sides[1].peek(id).len() {
                w.sides[1].consume(w.now, id, n);
            }
            assert_eq!(w.sides[1].recv_state(id), RecvState::Reset(ResetReason::HostReset));
        } else {
            w.sides[1].consume(w.now, id, 5);
        }
        w.sides[1].release(w.now, id);
        w.run(Duration::from_secs(20), |_| {});
        assert!(w.sides.iter().all(|side| !side.contains(id)), "takes all: {takes_all}");
    }
}

/// L-DD-13: both hosts reset at once; what each side says of that is lost for a while.
#[test]
fn streams_that_refer_and_were_reset_from_both_sides_end() {
    for seed in 0..20 {
        let mut w = World::new(67 + seed, BAD, dedup());
        let id = w.sides[0].open(w.now, origin()).expect("a stream");
        w.sides[0].write(w.now, id, &[9; 3_000]);
        w.sides[0].mark_referring(id);
        w.run(Duration::from_secs(3), |_| {});
        assert!(w.sides[1].contains(id));
        w.pipe.loss = 0.5;
        w.sides[1].write(w.now, id, &[8; 3_000]);
        w.sides[1].mark_referring(id);
        w.sides[1].mark_referred(id);
        for side in &mut w.sides {
            side.reset(w.now, id, ResetReason::HostReset, true);
            side.release(w.now, id);
        }
        w.run(Duration::from_secs(120), |_| {});
        for side in &w.sides {
            assert!(!side.contains(id), "seed {seed}");
            assert_eq!(side.credit_in_use(), (0, 0));
            assert_eq!(side.memory_used(), 0);
        }
    }
}
