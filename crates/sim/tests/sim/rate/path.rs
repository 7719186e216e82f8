//! The path MTU (1500 → 576 → 1280 recovers in under 10 s).

use link::session::RateMode;

use crate::rate::line::{Line, back, belief, mbit, ms, percent, secs, way};

/// A line whose way there takes packets of `mtu` bytes from now on.
fn narrow(line: &mut Line, mtu: u16) {
    let now = line.channel(0).clone();
    line.change(0, channel::ChannelConfig { mtu: Some(mtu), ..now });
}

/// L-PM-2, L-PM-3, L-PM-5.
#[test]
fn a_path_whose_mtu_changes_in_mid_transfer_is_followed_within_ten_seconds() {
    for (mode, loss) in [(RateMode::Fixed, 0.0), (RateMode::Fixed, 1.0), (RateMode::Learned, 0.0)] {
        let steps = [(576, 0.90), (1280, 0.955), (1500, 0.96)];
        // Where much is lost the reader is held up at times: the median of some runs.
        let seeds = if loss > 0.0 { 21..26 } else { 21..22 };
        let mut goodputs = [const { Vec::new() }; 3];
        for seed in seeds {
            let beliefs =
                [belief(mbit(10.0), mbit(2.0), mode), belief(mbit(2.0), mbit(10.0), mode)];
            let mut forward = way(mbit(10.0), ms(300), ms(500));
            forward.loss = percent(loss);
            let mut w = Line::new(seed, beliefs, [forward, back()]);
            w.start();
            w.run(secs(8.0));
            let mut at = 8.0;
            for ((mtu, _), goodputs) in steps.into_iter().zip(&mut goodputs) {
                narrow(&mut w, mtu);
                w.run(secs(at + 15.0));
                let what = format!("{mode:?}, {loss} % lost, seed {seed}, MTU {mtu}");
                assert_eq!(w.session(0).path_mtu(), mtu, "{what}");
                assert!(w.between(at, at + 15.0).all(|l| l.rate >= 9.9), "{what}: slowed");
                goodputs.push(w.goodput(at + 10.0, at + 15.0) / 10.0);
                let moves = w.first(at + 1.0, |l| l.read > w.read_at(at + 1.0) + 1_000_000);
                println!("{what}: a megabyte more after {moves:?} s");
                at += 15.0;
            }
        }
        for ((mtu, efficiency), mut goodputs) in steps.into_iter().zip(goodputs) {
            goodputs.sort_by(f64::total_cmp);
            let median = goodputs[goodputs.len() / 2];
            let least = efficiency * (1.0 - loss / 100.0) * 0.97;
            let what = format!("{mode:?}, {loss} % lost, MTU {mtu}: {goodputs:.3?} of the link");
            println!("{what}");
            assert!(median > least, "{what}, {least:.3} asked");
        }
    }
}

/// L-PM-3, L-PM-5: 1,500 bytes take 5 s at 2,400 bit/s.
#[test]
fn a_thin_link_whose_path_narrows_goes_on() {
    let rate = mbit(0.0024);
    let beliefs = [(); 2].map(|()| {
        let mut belief = belief(rate, rate, RateMode::Fixed);
        belief.rtt = ms(1996);
        belief
    });
    let mut w = Line::new(22, beliefs, [(); 2].map(|()| way(rate, ms(998), ms(20_000))));
    w.start();
    w.run(secs(120.0));
    assert!(w.goodput(30.0, 120.0) > 0.93 * 0.0024);
    narrow(&mut w, 576);
    w.run(secs(600.0));
    assert_eq!(w.session(0).path_mtu(), 576);
    let moves = w.first(120.0, |l| l.read > w.read_at(130.0) + 1_000).expect("bytes again");
    println!("2,400 bit/s: bytes again after {moves} s");
    assert!(moves < 45.0, "{moves} s");
    let goodput = w.goodput(200.0, 600.0) / 0.0024;
    assert!(goodput > 0.85, "{goodput}");
}
