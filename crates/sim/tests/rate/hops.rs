//! Two links in a row: what the one gives is written to the other.

use link::session::RateMode;

use crate::line::{Line, belief, mbit, ms, percent, secs, way};

/// Bytes that the node in the middle holds between the two.
const HELD: u64 = 1_000_000;
const BYTES: u64 = 40_000_000;

/// A link of so many Mbit/s, a tenth of it back, that loses 0.1 %.
fn lossy(seed: u64, rate: f64) -> Line {
    let rates = [mbit(rate), mbit(rate / 10.0)];
    let beliefs =
        [(0, 1), (1, 0)].map(|(there, back)| belief(rates[there], rates[back], RateMode::Fixed));
    let ways = rates.map(|rate| {
        let mut way = way(rate, ms(300), ms(500));
        way.loss = percent(0.1);
        way
    });
    let mut line = Line::new(seed, beliefs, ways);
    line.may_write = 0;
    line.start();
    line
}

/// The share of the slower link that a transfer has from its first byte on.
fn share(seed: u64, rates: [f64; 2]) -> f64 {
    let [mut first, mut second] = [0, 1].map(|n| lossy(seed + 100 * n as u64, rates[n]));
    let mut at = first.now.max(second.now).as_nanos() as f64 / 1e9;
    first.may_write = BYTES;
    let mut begun = None;
    while second.read < BYTES {
        at += 0.001;
        assert!(at < 100.0, "{rates:?}, seed {seed}: {} bytes of {BYTES}", second.read);
        first.may_read = second.written + HELD;
        first.run(secs(at));
        second.may_write = first.read;
        second.run(secs(at));
        if second.read > 0 {
            begun.get_or_insert(at);
        }
    }
    BYTES as f64 * 8e-6 / (at - begun.unwrap_or(0.0)) / rates[0].min(rates[1])
}

/// L-RP-8: what is missing of the first round trip would idle a second link that is the slower
/// one, and that is never made good.
#[test]
fn two_links_in_a_row_are_filled_from_the_first_byte_on() {
    for seed in 1..4 {
        for rates in [[30.0, 20.0], [20.0, 30.0]] {
            let share = share(seed, rates);
            println!("{rates:?}, seed {seed}: {share:.3}");
            assert!(share > 0.94, "{rates:?}, seed {seed}: {share:.3} of the slower link");
        }
    }
}
