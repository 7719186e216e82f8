//! What compression makes of transfers, in virtual time: the node's own time counts as
//! none, so this is what the protocol does and not what the processor can.

use sim::exchange::{Exchanged, Exchanges};
use units::{BitRate, ByteCount, Duration};

const HISTORY: ByteCount = ByteCount(8 << 20);

/// The same without compression and with it.
fn both(exchanges: &Exchanges) -> [Exchanged; 2] {
    [ByteCount(0), HISTORY].map(|history| {
        let exchanges = Exchanges { history, ..exchanges.clone() };
        exchanges.run(None).unwrap_or_else(|e| panic!("{exchanges:?}: {e}"))
    })
}

fn link(bps: u64, answer: u64) -> Exchanges {
    Exchanges::one([BitRate::from_bps(bps); 2], Duration::from_millis(600), 100, answer)
}

/// R-COMPRESS: data that shrinks takes less of a slow link, and less time.
#[test]
fn what_shrinks_takes_less_of_a_slow_link_and_less_time() {
    let [off, on] = both(&Exchanges { shrinks: true, ..link(64_000, 1_000_000) });
    assert!(on.bytes[1] * 100 < off.bytes[1] * 35, "{:?} and {:?}", off.bytes, on.bytes);
    assert!(on.times[0].as_millis() * 100 < off.times[0].as_millis() * 40, "{:?}", on.times);
}

/// More content comes than the link carries bytes: blocks are asked for in time.
#[test]
fn what_shrinks_comes_faster_than_a_fast_link_carries_bytes() {
    let [off, on] = both(&Exchanges { shrinks: true, ..link(100_000_000, 50_000_000) });
    assert!(on.times[0].as_millis() * 10 < off.times[0].as_millis() * 6, "{:?}", on.times);
    let bits = 8 * 50_000_000 * 1_000 / on.times[0].as_millis();
    assert!(bits > 100_000_000, "{bits} bit/s of content");
}

/// Data that does not shrink costs a thousandth at most, of bytes and of time.
#[test]
fn noise_crosses_at_a_thousandth_more() {
    for (bps, answer) in [(64_000, 500_000), (2_000_000, 5_000_000), (100_000_000, 50_000_000)] {
        let [off, on] = both(&link(bps, answer));
        let [a, b] = [&off, &on].map(|e| e.bytes[1]);
        assert!(b * 1000 <= a * 1001, "{a} and {b} bytes at {bps} bit/s");
        let [a, b] = [&off, &on].map(|e| e.times[0].as_micros());
        assert!(b * 1000 <= a * 1001 + 1_000_000, "{a} and {b} us at {bps} bit/s");
    }
}

/// Keystrokes beside transfers are answered as soon as without compression, within 5 ms of
/// the mean, whatever the transfers are made of, and whether one goes the answers' way or one
/// each way. They come at no multiple of the time that a packet of the transfer takes.
#[test]
fn keystrokes_beside_a_transfer_wait_no_longer() {
    const BESIDE: u64 = 1 << 40;
    let cases = [
        (64_000, 600, 0, 200),
        (512_000, 600, 0, 60),
        (1_000_000, 200, BESIDE, 60),
        (10_000_000, 600, 0, 10),
    ];
    for ((bps, rtt, beside_up, count), shrinks) in
        cases.into_iter().flat_map(|case| [(case, false), (case, true)])
    {
        let keys = Exchanges {
            shrinks,
            count,
            spacing: Duration::from_micros(1_037_129),
            request: 40,
            answer: 60,
            beside: BESIDE,
            beside_up,
            rtt: Duration::from_millis(rtt),
            ..link(bps, 0)
        };
        let of = format!("{bps} bit/s, {rtt} ms, both ways: {}, shrinks: {shrinks}", beside_up > 0);
        let [off, on] =
            both(&keys).map(|e| e.times.iter().map(|t| t.as_micros()).sum::<u64>() / count);
        println!("{off} and {on} us at {of}");
        assert!(on <= off + 5_000, "{off} and {on} us at {of}");
    }
}
