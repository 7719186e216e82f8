//! Questions and pauses.

use super::*;
use crate::wire::Reader;

/// Where in the packet its first STATE and its first PING are.
fn state_and_ping(payload: &[u8]) -> (Option<usize>, Option<usize>) {
    let (mut reader, mut state, mut ping) = (Reader::new(payload), None, None);
    let mut at = 0;
    while let Ok(Some(frame)) = reader.frame() {
        match frame {
            Frame::State(_) => state = state.or(Some(at)),
            Frame::Ping => ping = ping.or(Some(at)),
            _ => {}
        }
        at += 1;
    }
    (state, ping)
}

/// L-LO-5. Nothing new has arrived: no report would be due but for the question.
#[test]
fn who_asks_says_before_it_what_has_arrived() {
    let (_, mut w) = transfer(1, CLEAN, config(), 1, 100_000);
    for side in &mut w.sides {
        assert_eq!(side.first().report_due(), None);
        side.paths[0].ping = true;
        let mut buf = [0; 1400];
        let built = side.poll_packet(w.now, PathId::FIRST, &mut buf, SEALING).expect("a question");
        let (state, ping) = state_and_ping(&buf[..built.len]);
        assert!(ping.is_some(), "{:?}", &buf[..built.len]);
        assert!(state.is_some() && state < ping, "{state:?} {ping:?}");
    }
}

/// L-CL-2: what was under way while both machines slept.
#[test]
fn a_sleep_in_mid_transfer_is_no_round_trip() {
    for sleep in [10, 60, 3 * 24 * 3_600] {
        let mut w = World::new(9, CLEAN, config());
        let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
        let id = w.sides[0].open(w.now, origin()).unwrap();
        feeder.left.insert(id, (0, 1 << 40));
        let mut each = |w: &mut World| {
            feeder.feed(w.now, &mut w.sides[0]);
            drain.drain(w.now, &mut w.sides[1]);
        };
        w.run(Duration::from_secs(3), &mut each);
        assert!(!w.flight.is_empty());
        w.now += Duration::from_secs(sleep);
        for _ in 0..50 {
            w.run(Duration::from_millis(100), &mut each);
            for side in &w.sides {
                assert!(side.rtt() < Duration::from_secs(1), "{} after {sleep} s", side.rtt());
            }
        }
    }
}
