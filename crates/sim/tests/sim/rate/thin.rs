//! Thin return links (R-ASYM): reports must fit, and what they leave out must not be taken
//! for lost.

use channel::ChannelConfig;
use link::session::RateMode;
use units::ByteCount;

use crate::rate::line::{Line, belief, mbit, ms, percent, secs, way};

/// A stream over `forward` Mbit/s that is reported over `back` kbit/s; the loss is that of
/// the two ways in per cent.
fn thin(seed: u64, mode: RateMode, forward: f64, back: f64, loss: [f64; 2]) -> Line {
    let (forward, back) = (mbit(forward), mbit(back / 1e3));
    let mut beliefs = [belief(forward, back, mode), belief(back, forward, mode)];
    for belief in &mut beliefs {
        belief.rtt = ms(540);
    }
    let mut ways = [way(forward, ms(270), ms(500)), way(back, ms(270), ms(500))];
    for (way, loss) in ways.iter_mut().zip(loss) {
        way.loss = percent(loss);
    }
    let mut line = Line::new(seed, beliefs, ways);
    line.start();
    line
}

#[test]
fn a_link_with_a_thin_return_is_filled() {
    // Over 128 kbit/s as the ku profile has it, at 200 : 1, and beyond; the last is the
    // most that reports and credit may take together, in per cent.
    use RateMode::{Fixed, Learned};
    for (mode, forward, back, loss, most) in [
        (Fixed, 23.58, 128.0, 0.0, 8.0),
        (Learned, 23.58, 128.0, 0.1, 8.0),
        (Fixed, 23.58, 128.0, 1.0, 8.0),
        (Learned, 20.0, 100.0, 0.0, 8.0),
        (Fixed, 20.0, 100.0, 1.0, 8.0),
        (Fixed, 10.0, 25.0, 0.0, 20.0),
    ] {
        let mut w = thin(11, mode, forward, back, [loss, 0.0]);
        w.run(secs(30.0));
        let carried = w.carried(3.0, 30.0) / forward;
        let returned = w.returned(3.0, 30.0) / (back / 1e3) * 100.0;
        let what = format!(
            "{mode:?} {forward} Mbit/s over {back} kbit/s, {loss} % lost: carried {carried:.4}, \
             the return is used by {returned:.2} %, {:.2} Mbit/s read",
            w.goodput(3.0, 30.0)
        );
        assert!(carried > 0.98, "{what}");
        // Reports take 5 %, and credit some.
        assert!(returned < most, "{what}");
    }
}

/// L-LO-1.
#[test]
fn what_reports_leave_out_is_not_taken_for_lost() {
    for lost in [0.0, 30.0, 60.0] {
        for forward_loss in [0.0, 5.0] {
            // What is sent in vain comes in rare bursts: some runs together. Where most
            // reports and some data are lost forty draws together had 1.2 of 1,000.
            let seeds = if forward_loss > 0.0 { 11..31 } else { 11..12 };
            let most = if lost > 50.0 && forward_loss > 0.0 { 2 } else { 1 };
            let (mut in_vain, mut all) = (0, 0);
            for seed in seeds {
                let mut w = thin(seed, RateMode::Fixed, 23.58, 128.0, [forward_loss, lost]);
                w.run(secs(30.0));
                let stats = w.session(0).stats();
                in_vain += stats.packets_late;
                all += stats.packets_arrived + stats.packets_lost;
            }
            let what = format!(
                "{lost} % of reports and {forward_loss} % of data lost: {in_vain} of {all} sent \
                 in vain"
            );
            println!("{what}");
            assert!(in_vain * 1000 <= all * most, "{what}");
        }
    }
}

/// L-LO-9: no more reports come by themselves when there is nothing more to send.
#[test]
fn what_reports_leave_out_at_the_end_goes_again_soon() {
    let rates = [mbit(200.0), mbit(20.0)];
    let beliefs = [(0, 1), (1, 0)].map(|(out, back)| {
        let mut belief = belief(rates[out], rates[back], RateMode::Fixed);
        belief.memory = ByteCount(1 << 30);
        belief
    });
    let [mut forward, back] = rates.map(|rate| way(rate, ms(300), ms(500)));
    forward.loss = percent(5.0);
    let dark = ChannelConfig { loss: percent(100.0), ..back.clone() };
    for begin in [3.0, 3.5, 4.0, 4.5, 5.0] {
        // Many, for the repair code would leave few gaps of one.
        let mut w = Line::new(11, beliefs.clone(), [forward.clone(), back.clone()]);
        w.start_streams(30);
        w.run(secs(4.0));
        w.stop();
        w.run(secs(begin));
        w.change(1, dark.clone());
        w.run(secs(begin + 1.0));
        w.change(1, back.clone());
        let written = w.session(0).stats().stream_bytes_in;
        // Eight round trips after the reports come again.
        let (mut at, latest) = (begin + 1.0, begin + 1.0 + 8.0 * 0.6);
        while at < latest && w.read_at(at) < written {
            at += 0.1;
            w.run(secs(at + 0.05));
        }
        println!("reports missing from {begin} s on: all was read at {at:.1} s");
        assert!(at < latest, "{} bytes are missing at {at:.1} s", written - w.read_at(at));
    }
}
