//! Links whose delay and rate change by themselves (R-RATE): low orbits, mobile networks, rain.

use link::session::RateMode;
use units::{Duration, Rng};

use crate::rate::line::{Line, belief, mbit, ms, percent, secs, way};

const SEEDS: std::ops::Range<u64> = 1..3;

/// A link of at most so many Mbit/s there and `back` Mbit/s back, with an RTT in milliseconds.
fn line(seed: u64, mode: RateMode, most: f64, back: f64, rtt: u64, queue: u64) -> Line {
    let rates = [mbit(most), mbit(back)];
    let beliefs = [(0, 1), (1, 0)].map(|(out, back)| {
        let mut belief = belief(rates[out], rates[back], mode);
        belief.rtt = ms(rtt);
        belief
    });
    let mut line = Line::new(seed, beliefs, rates.map(|r| way(r, ms(rtt / 2), ms(queue))));
    line.start();
    line
}

/// Another rate of the forward line, in Mbit/s.
fn set_rate(w: &mut Line, rate: f64) {
    let now = w.channel(0).clone();
    w.change(0, channel::ChannelConfig { rate: Some(mbit(rate)), ..now });
}

/// Another delay of one way, in microseconds.
fn set_delay(w: &mut Line, sender: usize, micros: u64) {
    let now = w.channel(sender).clone();
    w.change(sender, channel::ChannelConfig { delay: Duration::from_micros(micros), ..now });
}

fn set_loss(w: &mut Line, loss: f64) {
    for sender in 0..2 {
        let now = w.channel(sender).clone();
        w.change(sender, channel::ChannelConfig { loss: percent(loss), ..now });
    }
}

/// Runs until then with delays of 25 to 60 ms each way, others every 50 ms.
fn jitter(w: &mut Line, rng: &mut Rng, until: f64) {
    let mut at = w.now.as_nanos() as f64 / 1e9;
    while at < until {
        for sender in 0..2 {
            set_delay(w, sender, rng.between(25_000, 60_000));
        }
        at += 0.05;
        w.run(secs(at));
    }
}

/// L-RA-2, L-RA-10: a queue raises the least delay of an interval, jitter does not (RFC 8289).
#[test]
fn jitter_is_no_queue() {
    for mode in [RateMode::Fixed, RateMode::Learned] {
        for seed in SEEDS {
            let mut rng = Rng::new(seed);
            let mut w = line(seed, mode, 50.0, 10.0, 85, 300);
            set_loss(&mut w, 0.1);
            jitter(&mut w, &mut rng, 40.0);
            let (all, second) = (w.goodput(0.5, 40.0) / 50.0, w.goodput(20.0, 40.0) / 50.0);
            let (loaded, idle) = w.echo(0.5, 40.0, 95);
            let what = format!(
                "{mode:?}, seed {seed}: {all:.3} of the link, {second:.3} in the second half, echo \
                 {loaded:.0} ms, {idle:.0} ms on the idle link"
            );
            println!("{what}");
            assert!(all > 0.93 && second > 0.93, "{what}");
            // Up to 11 ms are what a pacer may make good at once (L-RA-9).
            assert!(loaded < idle + 15.0, "{what}");
        }
    }
}

#[test]
fn a_queue_is_drained_where_there_is_jitter_too() {
    for mode in [RateMode::Fixed, RateMode::Learned] {
        for seed in SEEDS {
            let mut rng = Rng::new(seed);
            let mut w = line(seed, mode, 50.0, 10.0, 85, 2000);
            set_loss(&mut w, 0.1);
            jitter(&mut w, &mut rng, 10.0);
            set_rate(&mut w, 25.0);
            jitter(&mut w, &mut rng, 25.0);
            let (most, _) = w.queue(10.0, 12.0);
            let drained = w.first(10.3, |l| l.queue < 20.0).map(|t| t + 0.3);
            let (_, mean) = w.queue(12.0, 25.0);
            let goodput = w.goodput(12.0, 25.0) / 25.0;
            let what = format!(
                "{mode:?}, seed {seed}: a queue of {most:.0} ms, drained after {drained:.2?} s, \
                 then {mean:.0} ms on average and {goodput:.3} of the link"
            );
            println!("{what}");
            assert!(most < 400.0 && drained.is_some_and(|t| t < 2.5), "{what}");
            assert!(mean < 70.0 && goodput > 0.9, "{what}");
        }
    }
}

/// L-RA-4, L-RA-8, L-RA-13: rate and delay are others every 15 s, after 120 ms in the dark.
#[test]
fn a_low_orbit_is_followed() {
    for seed in 1..7 {
        let mut rng = Rng::new(seed);
        let mut w = line(seed, RateMode::Learned, 140.0, 20.0, 54, 200);
        set_loss(&mut w, 0.2);
        let (mut at, mut carries) = (0.0, 0.0);
        for _ in 0..6 {
            let rate = rng.between(40_000, 140_000) as f64 / 1e3;
            let delay = rng.between(18_000, 36_000);
            set_rate(&mut w, rate);
            set_delay(&mut w, 0, delay);
            set_delay(&mut w, 1, delay);
            carries += rate * 15.0;
            if at > 0.0 {
                w.outage(true);
                w.run(secs(at + 0.12));
                w.outage(false);
            }
            at += 15.0;
            w.run(secs(at));
        }
        let share = w.goodput(0.0, at) * at / carries;
        let [(half, idle), (nearly, far), (most, _)] = [50, 95, 99].map(|p| w.echo(0.0, at, p));
        let what = format!(
            "seed {seed}: {share:.3} of the link, echo {half:.0} ms, {idle:.0} ms on the idle \
             link, {nearly:.0} and {far:.0} ms at the 95th percentile, {most:.0} ms at the 99th"
        );
        println!("{what}");
        assert!(share > 0.925, "{what}");
        // The pacer's lead is 3 ms of it, in the queue and before it (L-RA-1).
        assert!(half < idle + 8.0 && nearly < far + 15.0 && most < 150.0, "{what}");
    }
}

/// A fade of 40 Mbit/s, over a link with so much back, that loses so many per cent: the share of
/// the link that was read, and what 95 % of the echoes stayed below.
fn fade(
    seed: u64,
    mode: RateMode,
    (back, loss): (f64, f64),
    rate: impl Fn(f64) -> f64,
) -> (f64, f64) {
    let mut w = line(seed, mode, 40.0, back, 600, 500);
    set_loss(&mut w, loss);
    let (mut at, mut carries) = (0.0, 0.0);
    for _ in 0..700 {
        let rate = rate(at);
        set_rate(&mut w, rate);
        carries += rate * 0.1;
        at += 0.1;
        w.run(secs(at));
    }
    // Until 0.9 s there is a handshake and the first bytes are under way.
    let share = w.read_at(at - 0.05) as f64 * 8e-6 / (carries - 0.9 * 40.0);
    (share, w.echo(0.0, at, 95).0)
}

/// L-RA-3: rain takes 32 of 40 Mbit/s within 5 s, and gives them back.
#[test]
fn a_fade_is_followed() {
    for seed in SEEDS {
        let (share, most) = fade(seed, RateMode::Learned, (10.0, 0.1), |at| match at {
            20.0..25.0 => 40.0 - (at - 20.0) * 6.4,
            25.0..45.0 => 8.0,
            45.0..50.0 => 8.0 + (at - 45.0) * 6.4,
            _ => 40.0,
        });
        let what = format!("seed {seed}: {share:.3} of the link, echo {most:.0} ms");
        println!("{what}");
        assert!(share > 0.91, "{what}");
        assert!(most < 750.0, "{what}");
    }
}

/// L-RA-3, L-RA-4: a fade of ten seconds each way, whether the rate is said to be known or not.
#[test]
fn a_slow_fade_is_followed_down_and_up() {
    for mode in [RateMode::Fixed, RateMode::Learned] {
        let (share, most) = fade(1, mode, (4.0, 0.0), |at| match at {
            18.0..28.0 => 40.0 - (at - 18.0) * 3.2,
            28.0..38.0 => 8.0,
            38.0..48.0 => 8.0 + (at - 38.0) * 3.2,
            _ => 40.0,
        });
        let what = format!("{mode:?}: {share:.3} of the link, echo {most:.0} ms");
        println!("{what}");
        assert!(share > 0.92, "{what}");
        assert!(most < 770.0, "{what}");
    }
}
