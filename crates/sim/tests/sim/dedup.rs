//! What deduplication makes of transfers, in virtual time, over a link with files under its
//! stores.

use relay::Share;
use sim::exchange::{Exchanged, Exchanges};
use units::{BitRate, ByteCount, Duration};

fn link(bps: u64, answer: u64) -> Exchanges {
    Exchanges::one([BitRate::from_bps(bps); 2], Duration::from_millis(600), 100, answer)
}

fn run(exchanges: &Exchanges) -> Exchanged {
    exchanges.run(None).unwrap_or_else(|e| panic!("{exchanges:?}: {e}"))
}

/// The second client gets the same answer: little crosses, and it is there sooner than the
/// link could carry it.
#[test]
fn what_crossed_does_not_cross_again() {
    let two = Exchanges {
        count: 2,
        spacing: Duration::from_secs(120),
        dedup: [Some(Share::Lan); 2],
        ..link(2_000_000, 5_000_000)
    };
    for history in [ByteCount(0), ByteCount(8 << 20)] {
        let e = run(&Exchanges { history, ..two.clone() });
        let [first, second] = [e.bytes_by[0][1], e.bytes_by[1][1] - e.bytes_by[0][1]];
        assert!(first > 5_000_000 && second * 1000 <= first * 15, "{second} of {first}");
        assert!(e.times[1].as_millis() * 3 < e.times[0].as_millis(), "{:?}", e.times);
    }
    let host = run(&Exchanges { dedup: [Some(Share::Host); 2], ..two });
    assert!(host.bytes_by[1][1] > 2 * 5_000_000, "another host's: {:?}", host.bytes_by);
}

/// Keystrokes beside a transfer are answered as soon as without deduplication, be the transfer
/// known or not.
#[test]
fn keystrokes_beside_a_transfer_wait_no_longer() {
    for (bps, count) in [(64_000, 100), (512_000, 60), (10_000_000, 10)] {
        let keys = Exchanges {
            count,
            spacing: Duration::from_micros(1_037_129),
            request: 40,
            answer: 60,
            beside: 1 << 40,
            ..link(bps, 0)
        };
        let on = Exchanges { dedup: [Some(Share::Lan); 2], ..keys.clone() };
        let mean = |e: Exchanges| run(&e).times.iter().map(|t| t.as_micros()).sum::<u64>() / count;
        let (off, on) = (mean(keys), mean(on));
        println!("{off} and {on} us at {bps} bit/s");
        assert!(on <= off + 5_000, "{off} and {on} us at {bps} bit/s");
    }
}

/// What is new crosses at two thousandths more at most, and no slower.
#[test]
fn noise_crosses_at_hardly_more() {
    for (bps, answer) in [(64_000, 500_000), (2_000_000, 5_000_000), (100_000_000, 30_000_000)] {
        let off = run(&link(bps, answer));
        let on = run(&Exchanges { dedup: [Some(Share::Host); 2], ..link(bps, answer) });
        let [a, b] = [&off, &on].map(|e| e.bytes[1]);
        assert!(b * 1000 <= a * 1002, "{a} and {b} bytes at {bps} bit/s");
        let [a, b] = [&off, &on].map(|e| e.times[0].as_micros());
        assert!(b * 1000 <= a * 1002 + 1_000_000, "{a} and {b} us at {bps} bit/s");
    }
}
