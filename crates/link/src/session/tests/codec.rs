//! What a session promises to its user, who compresses its streams' bytes.

use super::*;
use crate::path::{CarrierName, CarrierNames};

fn compressed() -> LinkConfig {
    LinkConfig { history: ByteCount(1 << 20), ..config() }
}

/// L-CO-1: both nodes settle it, for the whole session.
#[test]
fn whether_streams_are_compressed_is_settled_once() {
    let now = Instant::from_nanos(1);
    let mut session = Session::new(now, compressed(), 0);
    let with = session.params();
    let without = Params { history: 0, ..with };
    let id = session.open(now, origin()).expect("a stream");
    assert_eq!(session.codec(), None, "not before the peer has told");
    assert_eq!(session.writable_for_codec(id, false), 0);

    session.set_peer(with);
    assert_eq!(session.poll_event(), Some(Event::Writable(id)), "now it has");
    assert!(session.writable_for_codec(id, false) > 0);
    let codec = session.codec().expect("it is settled");
    assert_eq!((codec.history, codec.own_history), (1 << 20, 1 << 20));
    session.set_peer(without);
    assert_eq!(session.codec(), Some(codec), "new keys change nothing");

    let mut session = Session::new(now, compressed(), 0);
    session.set_peer(without);
    assert_eq!(session.codec().map(|c| c.history), Some(0), "the peer takes none");
    let mut session = Session::new(now, config(), 0);
    assert_eq!(session.codec().map(|c| c.history), Some(0), "nor does this node");
    session.set_peer(with);
    assert_eq!(session.codec().map(|c| c.history), Some(0));
}

/// L-CO-7: bytes are asked for as late as the link allows, and always in time; a service's stream,
/// on which several things pass, is filled by no more than twice that.
#[test]
fn bytes_are_asked_for_when_the_link_runs_low_on_them_and_it_never_idles() {
    let service = Target::Service("web".into(), Vec::new());
    for origin in [origin(), Origin { target: service, ..origin() }] {
        let interleaves = origin.interleaves();
        let mut w = World::new(31, CLEAN, compressed());
        let id = w.sides[0].open(w.now, origin).expect("a stream");
        let (mut written, mut taken) = (0u64, 0u64);
        const TIME: Duration = Duration::from_secs(5);
        w.run(TIME, |w| {
            let (waits, low) = (w.sides[0].streams[&id].send.unsent(), w.sides[0].low_water());
            assert!(!interleaves || waits <= 2 * low, "{waits} bytes cannot be overtaken");
            let room = w.sides[0].writable_for_codec(id, false);
            assert!(room == 0 || waits <= low, "{waits} bytes wait, {low} keep the link busy");
            if room > 0 {
                w.sides[0].write_compressed(w.now, id, &vec![7; room as usize]);
                written += room;
            }
            while !w.sides[1].peek(id).is_empty() {
                let n = w.sides[1].peek(id).len();
                w.sides[1].consume(w.now, id, n);
                taken += n as u64;
            }
        });
        // All but the headers, and half a round trip at the end.
        let most = config().send_rate.bytes_in(TIME).0;
        assert!(taken * 100 > most * 85, "{taken} of {written} written; the link carries {most}");
    }
}

/// L-CO-7: bytes that go as they are need not be asked for late, and so are asked for seldom.
#[test]
fn bytes_that_go_as_they_are_fill_nearly_all_of_what_may_be_unsent() {
    const PIECE: u64 = 1_000;
    for as_they_are in [false, true] {
        let now = Instant::from_nanos(1);
        let mut session = Session::new(now, compressed(), 0);
        session.set_peer(session.params());
        let id = session.open(now, origin()).expect("a stream");
        let (cap, low) = (session.unsent_cap_of(id), session.low_water());
        let mut written = 0;
        while let room @ 1.. = session.writable_for_codec(id, as_they_are) {
            assert!(room >= cap / 16 && written + room <= cap, "{room} after {written} of {cap}");
            session.write_compressed(now, id, &[7; PIECE as usize]);
            written += PIECE;
        }
        let most = if as_they_are { cap - cap / 16 } else { low };
        assert!(written > most && written <= most + PIECE, "{written}, {most} of {cap}");
    }
}

/// R-QOS: what waits of a transfer stays with its host, which must not make it look like
/// somebody's typing. Where round trips are short, what was sent is soon forgotten.
#[test]
fn a_transfer_of_which_little_waits_is_not_taken_for_interactive() {
    let rate = BitRate::from_kbps(512);
    let rtt = Duration::from_millis(40);
    let link = LinkConfig { send_rate: rate, receive_rate: rate, rtt, ..compressed() };
    let mut w = World::new(32, CLEAN, link);
    let id = w.sides[0].open(w.now, origin()).expect("a stream");
    let mut blocks = 0;
    w.run(Duration::from_secs(20), |w| {
        // A block, and the question that is asked until there is room for the next.
        if w.sides[0].writable_for_codec(id, false) > 0 {
            w.sides[0].write_compressed(w.now, id, &[7; 8_000]);
            w.sides[0].writable_for_codec(id, false);
            blocks += 1;
        }
        let n = w.sides[1].peek(id).len();
        w.sides[1].consume(w.now, id, n);
        let urgent = w.sides[0].schedule.has_strict(w.now, 0);
        assert!(!urgent, "interactive after {blocks} blocks");
    });
    assert!(blocks > 100, "{blocks}");
    // Nor is it for ever: a page of output is over, and then somebody types.
    let shell = w.sides[0].open(w.now, origin()).expect("a stream");
    w.sides[0].write_compressed(w.now, shell, &[7; 5_000]);
    assert_eq!(w.sides[0].writable_for_codec(shell, false), 0);
    w.run(Duration::from_secs(10), |_| {});
    assert!(w.sides[0].writable_for_codec(shell, false) > 0);
    w.sides[0].write_compressed(w.now, shell, &[7; 2]);
    assert!(w.sides[0].schedule.has_strict(w.now, 0));
}

/// Blocks of a stream whose class has no carrier now lie here, maybe for hours.
#[test]
fn a_stream_that_waits_for_its_carrier_is_asked_for_no_more_than_its_reserve() {
    let mut w = World::new(64, CLEAN, LinkConfig { history: ByteCount(1 << 20), ..config() });
    let [satellite, line] = [&b"satellite"[..], b"line"].map(CarrierName::new);
    let carriers = CarrierNames::new(&[line.expect("it is short")]).expect("one name");
    let mut classes = vec![ClassConfig::default(); ClassId::BUILT_IN];
    classes.push(ClassConfig { carriers, ..ClassConfig::default() });
    let now = w.now;
    w.sides[0].name_path(now, PathId::FIRST, satellite.expect("it is short"));
    w.sides[0].set_classes(now, &classes);
    let id = w.sides[0].open(now, origin()).unwrap();
    w.sides[0].set_class(id, ClassId::from_index(ClassId::BUILT_IN), ChosenBy::Operator);
    let reserve = w.sides[0].params().reserve;
    let mut held = 0;
    while let room @ 1.. = w.sides[0].writable_for_codec(id, false) {
        w.sides[0].write_compressed(now, id, &vec![7; room as usize]);
        held += room;
        assert!(held <= reserve, "{held} of {reserve} bytes");
    }
    assert_eq!(held, reserve);
}
