//! The sending rate (R-RATE): what a link that is not what the configuration says does to
//! its queue, and how soon the sender follows. All links have a round trip of 600 ms.

mod changing;
mod cubic;
mod frozen;
mod line;
mod path;
mod policed;
mod thin;

use channel::ChannelConfig;
use line::{Line, back, belief, mbit, ms, percent, secs, way};
use link::session::RateMode;

const MODES: [RateMode; 3] = [RateMode::Fixed, RateMode::Reported, RateMode::Learned];
const RTT: f64 = 0.6;

/// A link of `true_rate` Mbit/s, configured as `rate`, and 2 Mbit/s back.
fn line(seed: u64, mode: RateMode, rate: f64, channel: ChannelConfig) -> Line {
    let beliefs = [belief(mbit(rate), mbit(2.0), mode), belief(mbit(2.0), mbit(rate), mode)];
    let mut line = Line::new(seed, beliefs, [channel, back()]);
    line.start();
    line
}

#[test]
fn a_link_that_is_configured_right_is_never_slowed() {
    for mode in MODES {
        for (rate, loss) in [(20.0, 0.0), (45.0, 0.0), (45.0, 1.0), (20.0, 10.0)] {
            let mut channel = way(mbit(rate), ms(300), ms(500));
            channel.loss = percent(loss);
            let mut w = line(1, mode, rate, channel);
            w.run(secs(20.0));
            let what = format!("{mode:?} {rate} Mbit/s {loss} %");
            assert!(w.between(0.0, 20.0).all(|l| l.rate == rate), "{what}: slowed");
            if loss < 5.0 {
                // Above, repair holds the stream's bytes back at times (R-WINDOW).
                assert!(w.carried(2.0, 20.0) > 0.995 * rate, "{what}: {}", w.carried(2.0, 20.0));
            }
            // 10 ms that a late node may make good, and the lead of 3 ms (L-RA-1, L-RA-9).
            assert!(w.queue(2.0, 20.0).0 < 14.0, "{what}: {:?}", w.queue(2.0, 20.0));
            assert_eq!(w.dropped(0.0, 20.0), 0.0, "{what}");
            if loss == 0.0 {
                // 1,448 of 1,500 bytes are the stream's.
                assert!(w.goodput(2.0, 20.0) > 0.96 * rate, "{what}: {}", w.goodput(2.0, 20.0));
            }
        }
    }
}

#[test]
fn a_rate_four_times_too_high_settles_at_the_true_one() {
    for mode in MODES {
        for queue in [150, 500, 1000, 2000] {
            let mut w = line(2, mode, 80.0, way(mbit(20.0), ms(300), ms(queue)));
            let begun = w.now.as_nanos() as f64 / 1e9;
            w.run(secs(begun + 60.0));
            let settled = begun + 5.0;
            let what = format!("{mode:?}, queue {queue} ms");
            assert!(w.carried(settled, 60.0) > 18.0, "{what}: {}", w.carried(settled, 60.0));
            assert!(w.goodput(settled, 60.0) > 18.3, "{what}: {}", w.goodput(settled, 60.0));
            assert!(w.dropped(settled, 60.0) < 2.0, "{what}: {} %", w.dropped(settled, 60.0));
            let (most, mean) = w.queue(settled, 60.0);
            assert!(most < 150.0 && mean < 30.0, "{what}: {most} ms, {mean} ms on average");
            assert!(w.between(settled, 60.0).all(|l| l.status.capacity >= mbit(18.0)), "{what}");
        }
    }
}

#[test]
fn a_link_that_falls_to_8_of_20_is_followed_within_two_round_trips() {
    for mode in MODES {
        for phase in [0.0, 0.7, 1.4] {
            let mut w = line(3, mode, 20.0, way(mbit(20.0), ms(300), ms(1000)));
            let fall = 10.0 + phase;
            w.run(secs(fall));
            w.change(0, way(mbit(8.0), ms(300), ms(2500)));
            w.run(secs(fall + 20.0));
            let right = w.first(fall, |l| (mbit(7.2)..=mbit(8.0)).contains(&l.status.capacity));
            let drained = w.first(fall + 2.0 * RTT, |l| l.queue < 25.0).map(|t| t + 2.0 * RTT);
            let what = format!("{mode:?}: right after {right:?} s, drained after {drained:?} s");
            assert!(right.is_some_and(|t| t <= 2.0 * RTT), "{what}");
            assert!(drained.is_some_and(|t| t <= 5.0 * RTT), "{what}");
            let after = fall + 5.0 * RTT;
            assert!(w.carried(after, fall + 20.0) > 7.2, "{what}");
            let goodput = w.goodput(after, fall + 20.0);
            assert!(goodput > 7.4, "{what}, goodput {goodput}");
            assert!(w.queue(after, fall + 20.0).0 < 150.0, "{what}");
        }
    }
}

#[test]
fn what_the_link_gains_is_taken_at_once_where_it_is_reported_and_soon_where_it_is_not() {
    for phase in [0.0, 0.5, 1.0, 1.5, 2.0, 2.5] {
        for mode in [RateMode::Reported, RateMode::Learned] {
            let mut w = line(4, mode, 20.0, way(mbit(20.0), ms(300), ms(1000)));
            w.run(secs(10.0));
            w.change(0, way(mbit(8.0), ms(300), ms(2500)));
            if mode == RateMode::Reported {
                let now = w.now;
                w.session(0).set_send_rate(now, mbit(8.0));
            }
            let rise = 25.0 + phase;
            w.run(secs(rise));
            w.change(0, way(mbit(20.0), ms(300), ms(1000)));
            if mode == RateMode::Reported {
                let now = w.now;
                w.session(0).set_send_rate(now, mbit(20.0));
            }
            w.run(secs(rise + 12.0));
            let there = w.first(rise, |l| l.rate >= 18.0).expect("it is found");
            let bound = if mode == RateMode::Reported { RTT } else { 10.0 * RTT };
            assert!(there <= bound, "{mode:?}, phase {phase}: {there} s");
            assert!(w.carried(rise + bound + RTT, rise + 12.0) > 18.0, "{mode:?}, phase {phase}");
        }
    }
}

#[test]
fn random_loss_does_not_hide_what_the_link_carries() {
    let mut channel = way(mbit(20.0), ms(300), ms(1000));
    channel.loss = percent(10.0);
    for seed in 1..6 {
        let mut w = line(seed, RateMode::Learned, 40.0, channel.clone());
        w.run(secs(60.0));
        assert!(w.carried(20.0, 60.0) > 18.0, "{seed}: {}", w.carried(20.0, 60.0));
        // A tenth is lost, headers take 3.5 %, and repair what is missing to 17.4.
        assert!(w.goodput(20.0, 60.0) > 15.5, "{seed}: {}", w.goodput(20.0, 60.0));
        // What stands is little. A try for more builds up to 220 ms for a moment (of eleven seeds).
        let (most, mean) = w.queue(8.0, 60.0);
        assert!(mean < 50.0 && most < 400.0, "{seed}: {most} and {mean} ms");
    }
}

#[test]
fn framing_that_is_not_configured_is_trimmed() {
    // 1,500 bytes of IP and 38 of Ethernet: 2.5 % more than the sender counts.
    let mut w = line(6, RateMode::Fixed, 20.0, way(mbit(19.506), ms(300), ms(500)));
    w.run(secs(120.0));
    assert!(w.queue(5.0, 120.0).0 < 80.0, "{:?}", w.queue(5.0, 120.0));
    assert!(w.queue(5.0, 120.0).1 < 15.0, "{:?}", w.queue(5.0, 120.0));
    assert_eq!(w.dropped(0.0, 120.0), 0.0);
    assert!(w.carried(5.0, 120.0) > 0.985 * 19.506, "{}", w.carried(5.0, 120.0));
}

#[test]
fn a_cubic_flow_beside_a_learned_rate_gets_its_part() {
    let mut w = line(7, RateMode::Learned, 20.0, way(mbit(20.0), ms(300), ms(600)));
    w.other = Some(cubic::Cubic::new(secs(5.0), ms(300)));
    w.run(secs(120.0));
    let (other, ours) = (w.others(60.0, 120.0), w.carried(60.0, 120.0));
    assert!(other >= 3.0, "the CUBIC flow got {other} Mbit/s, the link {ours}");
    assert!(ours >= 1.0, "the link got {ours} Mbit/s, the CUBIC flow {other}");
    // What is left beyond headers does not go into repair.
    let goodput = w.goodput(60.0, 120.0);
    assert!(goodput > 0.935 * ours, "{goodput} of {ours} Mbit/s");
}

#[test]
fn after_an_outage_the_last_good_rate_is_taken_up_and_half_of_it_after_a_long_one() {
    for (length, half) in [(5.0, false), (70.0, true)] {
        let mut w = line(8, RateMode::Learned, 80.0, way(mbit(20.0), ms(300), ms(500)));
        w.run(secs(15.0));
        let good = w.session(0).rate_status().capacity;
        w.outage(true);
        w.run(secs(15.0 + length));
        w.outage(false);
        let back = 15.0 + length;
        w.run(secs(back + 20.0));
        let heard = w.first(back, |l| l.sent > w.looks[w.looks.len() - 1].sent / 100);
        assert!(heard.is_some());
        let rates: Vec<f64> = w.between(back, back + 20.0).map(|l| l.rate).collect();
        let halved = rates.iter().any(|r| (r * 2.0 - good.as_bps() as f64 / 1e6).abs() < 0.1);
        assert_eq!(halved, half, "after {length} s");
        assert!(w.carried(back + 10.0, back + 20.0) > 18.0, "after {length} s");
        assert!(rates[rates.len() / 2..].iter().all(|r| *r > 4.0));
    }
}
