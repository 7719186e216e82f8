//! Programs that do not run for a while because their host is busy: what waits in their
//! sockets meanwhile has not waited before the line (R-RATE, L-RE-6), and nothing is lost by it
//! but the time in which the sender itself stood still.

use link::session::RateMode;
use units::{BitRate, Rng};

use crate::rate::line::{Line, belief, mbit, ms, secs, way};

fn line(seed: u64, mode: RateMode, rate: BitRate) -> Line {
    let channel = || way(rate, ms(250), ms(500));
    let believe = || belief(rate, rate, mode);
    let mut line = Line::new(seed, [believe(), believe()], [channel(), channel()]);
    line.start();
    line.run(secs(5.0));
    line
}

#[test]
fn packets_that_wait_for_a_busy_host_are_no_queue_on_the_way() {
    for mode in [RateMode::Fixed, RateMode::Learned] {
        for node in [0, 1] {
            let mut line = line(1, mode, mbit(5.0));
            for (i, behind) in [60, 200, 0, 600, 30, 0].into_iter().enumerate() {
                line.fall_behind(node, ms(behind));
                line.run(secs(5.0 + 2.0 * (i + 1) as f64));
            }
            let what = format!("{mode:?}, node {node}");
            assert!(line.between(5.0, 17.0).all(|l| l.rate == 5.0), "{what}: slowed");
            assert!(line.carried(5.0, 17.0) > 4.95, "{what}: {}", line.carried(5.0, 17.0));
        }
    }
}

#[test]
fn a_program_that_stood_still_goes_on_as_if_nothing_had_been() {
    for (rate, longest) in [(0.384, 100), (0.384, 1500), (5.0, 400), (5.0, 1500)] {
        for nodes in [&[0][..], &[1], &[0, 1]] {
            let mut line = line(1, RateMode::Fixed, mbit(rate));
            let mut rng = Rng::new(longest);
            let mut still = 0;
            for round in 0..15 {
                line.run(secs(5.0 + 2.0 * f64::from(round) + rng.below(500) as f64 / 1e3));
                let node = nodes[rng.below(nodes.len() as u64) as usize];
                let time = rng.between(longest / 10, longest);
                still += if node == 0 { time } else { 0 };
                line.freeze(node, line.now + ms(time));
            }
            line.run(secs(37.0));
            let what = format!("{rate} Mbit/s, up to {longest} ms, nodes {nodes:?}");
            assert!(line.between(5.0, 37.0).all(|l| l.rate == rate), "{what}: slowed");
            let possible = rate * (32.0 - still as f64 / 1e3) / 32.0;
            let carried = line.carried(5.0, 37.0);
            assert!(carried > 0.98 * possible, "{what}: {carried} of {possible} Mbit/s");
        }
    }
}
