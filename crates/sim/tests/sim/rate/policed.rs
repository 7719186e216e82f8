//! Losses that the rate itself causes (R-RATE): policers and throttles, which delay nothing.

use channel::GilbertElliott;
use link::session::RateMode;
use units::{ByteCount, Ratio};

use crate::rate::MODES;
use crate::rate::line::{Line, Policer, back, belief, mbit, ms, percent, secs, way};

const SEEDS: std::ops::Range<u64> = 1..3;

/// 20 Mbit/s, 600 ms, with losses of so many per cent.
fn line(seed: u64, mode: RateMode, loss: f64) -> Line {
    let beliefs = [belief(mbit(20.0), mbit(2.0), mode), belief(mbit(2.0), mbit(20.0), mode)];
    let mut forward = way(mbit(20.0), ms(300), ms(500));
    forward.loss = percent(loss);
    let mut line = Line::new(seed, beliefs, [forward, back()]);
    line.start();
    line
}

/// L-RA-7.
#[test]
fn a_policed_rate_is_found_within_ten_seconds() {
    let policers = [(8.0, 15_000), (8.0, 3_000), (2.0, 1_000_000), (18.0, 15_000)];
    for (rate, size) in policers {
        for mode in [RateMode::Fixed, RateMode::Learned] {
            for seed in SEEDS {
                let mut w = line(seed, mode, 0.1);
                w.policer = Some(Policer::new(mbit(rate), ByteCount(size)));
                w.run(secs(40.0));
                let goodput = w.goodput(10.0, 40.0) / rate;
                let dropped = w.dropped(10.0, 40.0);
                let what = format!(
                    "{mode:?}, {rate} Mbit/s after {size} bytes, seed {seed}: {goodput:.3} of it \
                     read, {dropped:.1} % dropped"
                );
                println!("{what}");
                assert!(goodput > 0.9, "{what}");
                assert!(dropped < 3.0, "{what}");
                // Neither goes into repair, nor into sending again what arrived.
                let stats = w.session(0).stats();
                let sent = stats.packets_arrived + stats.packets_lost;
                assert!(stats.packets_late * 100 < sent, "{what}: {} late", stats.packets_late);
            }
        }
    }
}

/// L-RA-7.
#[test]
fn a_throttle_that_comes_and_goes_is_followed() {
    for mode in [RateMode::Fixed, RateMode::Learned] {
        let mut w = line(1, mode, 0.1);
        w.run(secs(10.0));
        w.policer = Some(Policer::new(mbit(5.0), ByteCount(20_000)));
        w.run(secs(40.0));
        let throttled = w.goodput(20.0, 40.0) / 5.0;
        w.policer = None;
        w.run(secs(120.0));
        let there = w.first(40.0, |l| l.rate > 18.0);
        println!("{mode:?}: {throttled:.3} of the throttle, all of the link after {there:?} s");
        assert!(throttled > 0.9, "{mode:?}: {throttled}");
        assert!(there.is_some_and(|t| t < 70.0), "{mode:?}: {there:?}");
    }
}

/// L-RA-2: the losses of the link itself do not slow the sender, whatever their pattern.
#[test]
fn losses_that_the_rate_does_not_cause_slow_nothing() {
    for mode in MODES {
        for seed in SEEDS {
            // 1 % and 5 % in bursts of 20 packets, and 20 % at random.
            for (bursts, loss) in [(0.0005, 0.0), (0.0026, 0.0), (0.0, 20.0)] {
                let mut w = line(seed, mode, loss);
                let burst = GilbertElliott {
                    p: Ratio::from_f64(bursts),
                    r: Ratio::from_f64(0.05),
                    h: Ratio::ZERO,
                    k: Ratio::ONE,
                };
                let now = w.channel(0).clone();
                w.change(0, channel::ChannelConfig { burst: Some(burst), ..now });
                w.run(secs(10.0));
                w.outage(true);
                w.run(secs(10.3));
                w.outage(false);
                w.run(secs(25.0));
                let what = format!("{mode:?}, bursts {bursts}, loss {loss} %, seed {seed}");
                assert!(w.between(0.0, 25.0).all(|l| l.rate >= 19.99), "{what}: slowed");
            }
        }
    }
}
