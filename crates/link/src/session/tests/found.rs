//! What the simulator found, in the small.

use super::*;

fn narrow() -> LinkConfig {
    LinkConfig { stream_buffer: Some(ByteCount(20_000)), ..config() }
}

#[test]
fn the_smallest_memory_and_buffer_make_offers_that_a_peer_takes() {
    for memory in [0, 64 << 10, 300_000, 1 << 20] {
        for buffer in [None, Some(ByteCount(1)), Some(ByteCount(1 << 30))] {
            let small = LinkConfig { memory: ByteCount(memory), stream_buffer: buffer, ..config() };
            let params = Session::new(Instant::ZERO, small, 0).params();
            assert_eq!(Params::decode(&params.encode()), Some(params), "{memory} {buffer:?}");
        }
    }
}

#[test]
fn an_end_never_runs_ahead_of_bytes_that_wait_for_credit() {
    for seed in 0..20 {
        let mut w = World::new(seed, Pipe { loss: 0.3, ..CLEAN }, narrow());
        let id = w.sides[0].open(w.now, origin()).unwrap();
        let data: Vec<u8> = (0..60_000).map(|o| pattern(id, o)).collect();
        assert_eq!(w.sides[0].write(w.now, id, &data), data.len());
        w.sides[0].finish(w.now, id);
        w.run(Duration::from_secs(20), |_| {});
        assert_eq!(w.sides[1].stats.violations, 0, "seed {seed}");
        let mut drain = Drain::default();
        w.run(Duration::from_secs(60), |w| drain.drain(w.now, &mut w.sides[1]));
        assert_eq!(drain.finished, [id], "seed {seed}");
    }
}

#[test]
fn bytes_that_are_lost_after_the_reset_behind_them_arrived_go_again() {
    for seed in 0..20 {
        let mut w = World::new(seed, Pipe { loss: 0.4, ..CLEAN }, narrow());
        let id = w.sides[0].open(w.now, origin()).unwrap();
        let data: Vec<u8> = (0..60_000).map(|o| pattern(id, o)).collect();
        assert_eq!(w.sides[0].write(w.now, id, &data), data.len());
        w.sides[0].reset(w.now, id, ResetReason::HostReset, true);
        w.sides[0].release(w.now, id);
        let mut got = 0;
        w.run(Duration::from_secs(120), |w| {
            while w.sides[1].poll_event().is_some() {}
            loop {
                let n = w.sides[1].peek(id).len();
                if n == 0 {
                    break;
                }
                got += n;
                w.sides[1].consume(w.now, id, n);
            }
            if w.sides[1].recv_state(id) == RecvState::Reset(ResetReason::HostReset) {
                w.sides[1].release(w.now, id);
            }
        });
        assert_eq!(got, data.len(), "seed {seed}");
        assert_eq!([w.sides[0].streams(), w.sides[1].streams()], [0, 0], "seed {seed}");
    }
}

#[test]
fn streams_beyond_all_room_are_refused_and_never_forgotten() {
    let mut w = World::new(1, CLEAN, config());
    w.sides[1].config.max_streams = 2;
    let opened: Vec<StreamId> = (0..30)
        .map(|_| {
            let id = w.sides[0].open(w.now, origin()).unwrap();
            w.sides[0].finish(w.now, id);
            id
        })
        .collect();
    let mut refused = Vec::new();
    w.run(Duration::from_secs(60), |w| {
        while w.sides[1].poll_event().is_some() {}
        while let Some(event) = w.sides[0].poll_event() {
            if let Event::Reset(id, reason) = event {
                assert_eq!(reason, ResetReason::Exhausted);
                refused.push(id);
                w.sides[0].release(w.now, id);
            }
        }
    });
    assert_eq!((refused.len(), w.sides[0].streams(), w.sides[1].streams()), (28, 2, 2));
    assert!(refused.iter().all(|id| opened.contains(id)));
    assert_eq!(w.sides[1].stats.violations, 0, "the peer could not know");
}
