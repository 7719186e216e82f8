//! Links that are not what the file says, or do not stay what they were: bit errors that
//! nobody told of, rates and delays that change, losses in bursts, jitter, policers.

use channel::{ChannelConfig, GilbertElliott, Policer};
use units::{BitRate, ByteCount, Ratio};

use super::cases::{Case, Must, measure, run_cases, run_one_by_one, run_way};
use super::checked::Checked;
use super::setup::{file, link, lossy, noisy, page, streams};
use super::table::processor_time_asked;
use crate::testbed::figure::{Bound, Figure};
use crate::testbed::gateway::Pair;
use crate::testbed::measure::median;
use crate::testbed::progress::Board;
use crate::testbed::results::Run;
use crate::testbed::scenario::Scenario;
use crate::testbed::way::{LinkSetup, Told};

type Measured = Result<Vec<Checked>, String>;

/// Noisy links whose bit-error ratio the gateways' files do not have.
pub fn ber_unknown(board: &Board, seeds: u64) -> Measured {
    let slow = noisy(link(100_000, 100_000, 500), 1e-5);
    let t1 = noisy(link(1_544_000, 1_544_000, 250), 1e-6);
    let case = |what: &str, link: &LinkSetup, work, must| {
        let pair = Pair { told: Told { no_ber: true, ..Told::default() }, ..Pair::default() };
        Case { pair, ..Case::new(what, link.clone(), work, must).of(seeds) }
    };
    measure(
        board,
        &[
            case(
                "100 kbit/s, 1 s, BER 1e-5, untold: 200 kB",
                &slow,
                file(200_000),
                Must::Time(19.6),
            )
            .known("19.2 s", "20.1 s"),
            case("100 kbit/s, 1 s, BER 1e-5, untold: page", &slow, page(), Must::Time(9.1))
                .known("8.6 s", "9.4 s"),
            case(
                "T1, 250 ms one way, BER 1e-6, untold: 10 MB",
                &t1,
                file(10_000_000),
                Must::Share(94.0),
            )
            .known("94.5 %", "92.2 %"),
        ],
    )
}

/// A low orbit with handovers.
pub fn leo(board: &Board, seeds: u64) -> Measured {
    bounds(board, "leo", seeds, "93.6 %, ping 130–270 ms")
}

/// A fade in Ka band.
pub fn ka_fade(board: &Board, _seeds: u64) -> Measured {
    bounds(board, "ka-fade", 1, "")
}

/// The bounds of a scenario's way "gateways", and what else is told of its ping.
fn bounds(board: &Board, name: &str, seeds: u64, best: &str) -> Measured {
    let scenario = Scenario::built_in(name).map_err(|e| e.to_string())?;
    let runs = run_way(&scenario, "gateways", seeds, board)?;
    let mut checks = Vec::new();
    for figure in [Figure::Share, Figure::Ping, Figure::Ping95, Figure::Ping99, Figure::PingLost] {
        let of = |b: &&Bound| b.way == "gateways" && b.figure == figure;
        let bound = scenario.bounds.iter().find(of);
        let value = middle(&runs, figure)?;
        let (what, unit) = (format!("{}: {}", scenario.title, figure.title()), figure.unit());
        let told = Checked::told(&what, format!("{value:.1} {unit}"));
        let least = bound.and_then(|b| b.least).map(|n| format!("≥ {n} {unit}"));
        let most = bound.and_then(|b| b.most).map(|n| format!("≤ {n} {unit}"));
        let asked: Vec<String> = least.into_iter().chain(most).collect();
        let known = if figure == Figure::Share { best } else { "" };
        checks.push(Checked {
            best: known.into(),
            asked: asked.join(", "),
            value: Some(value),
            met: bound.map(|b| b.holds(value)),
            ..told
        });
    }
    Ok(checks)
}

fn middle(runs: &[Run], figure: Figure) -> Result<f64, String> {
    median(runs.iter().filter_map(|r| r.work.figure(figure)))
        .ok_or_else(|| format!("{} was not measured", figure.title()))
}

/// Losses of one per cent that come twenty packets at a time.
pub fn bursts(board: &Board, seeds: u64) -> Measured {
    let mut link = link(20_000_000, 2_000_000, 300);
    for way in [&mut link.down, &mut link.up] {
        // 1/r = 20 packets; p ÷ (p + r) = 1 %.
        way.burst = Some(GilbertElliott {
            p: Ratio::from_f64(0.05 / 99.0),
            r: Ratio::from_f64(0.05),
            h: Ratio::ZERO,
            k: Ratio::ONE,
        });
    }
    let what = "20/2 Mbit/s, 600 ms, 1 % lost in bursts of 20: one stream, 40 s";
    let case = Case::new(what, link, streams(1, 40), Must::Share(92.0)).known("", "91 %");
    measure(board, &[case.of(seeds)])
}

/// What 95 of 100 pings over the idle link of `jitter` stay below: the sum of two delays, each
/// drawn evenly from 25 to 60 ms.
const IDLE_PING: f64 = 108.9;

/// A delay that changes without any queue.
pub fn jitter(board: &Board, seeds: u64) -> Measured {
    let mut link = lossy(link(50_000_000, 10_000_000, 42), 0.001);
    for way in [&mut link.down, &mut link.up] {
        way.delay_schedule = "25ms-60ms every 50ms".parse().ok();
    }
    let case = |mode: &str| {
        let what = format!("50/10 Mbit/s, one way 25–60 ms, loss 0.1 %, rate = \"{mode}\": 40 s");
        let told = Told { rate: Some(mode.into()), ..Told::default() };
        let pair = Pair { told, ..Pair::default() };
        let case = Case::new(what, link.clone(), streams(1, 40), Must::Share(93.0));
        Case { pair, ping: true, ..case.known("", "92–93 %").of(seeds) }
    };
    let cases = [case("fixed"), case("learned")];
    let runs = run_cases(board, &cases)?;
    let mut checks = Vec::new();
    for (case, runs) in cases.iter().zip(&runs) {
        checks.push(case.judge(runs)?);
        let value = middle(runs, Figure::Ping95)?;
        let most = IDLE_PING + 10.0;
        checks.push(Checked {
            limit: format!("{IDLE_PING} ms (idle)"),
            value: Some(value),
            ..Checked::asked(
                "its ping, 95 of 100",
                &format!("≤ {most} ms"),
                format!("{value:.1} ms"),
                value <= most,
            )
        });
    }
    Ok(checks)
}

/// The file says 20 Mbit/s, and a policer lets less pass.
pub fn policer(board: &Board, seeds: u64) -> Measured {
    let small = Policer { rate: BitRate::from_mbps(8), burst: ByteCount(30_000) };
    let large = Policer { rate: BitRate::from_mbps(2), burst: ByteCount(1_000_000) };
    let case = |title: &str, policer, mode: &str| {
        let mut link = link(20_000_000, 2_000_000, 300);
        link.down = ChannelConfig { policer: Some(policer), ..link.down };
        let what = format!("20/2 Mbit/s, 600 ms, {title}, {mode}");
        let told = Told { rate: Some(mode.into()), ..Told::default() };
        let pair = Pair { told, ..Pair::default() };
        let case = Case::new(what, link, streams(1, 40), Must::Share(0.0));
        Case { ping: true, pair, ..case.of(seeds) }
    };
    let policers = [("policed to 8 Mbit/s", small), ("bucket of 1 MB, then 2 Mbit/s", large)];
    let modes = ["fixed", "learned"];
    let both = |(title, policer)| modes.map(|mode| case(title, policer, mode));
    let cases: Vec<Case> = policers.into_iter().flat_map(both).collect();
    let runs = run_cases(board, &cases)?;
    let mut checks = Vec::new();
    for ((case, runs), policer) in cases.iter().zip(&runs).zip([small, small, large, large]) {
        checks.extend(policed(&case.what, runs, policer)?);
    }
    Ok(checks)
}

/// What is asked from the tenth second on.
fn policed(what: &str, runs: &[Run], policer: Policer) -> Measured {
    const LEARNT: f64 = 10.0;
    let over = |value: fn(&Run, f64, f64) -> Option<f64>| {
        let all = runs.iter().filter_map(|r| value(r, LEARNT, r.work.complete));
        median(all).ok_or_else(|| format!("{what} was not measured"))
    };
    let rate = over(|r, from, to| r.work.received_between(from, to))?;
    let share = rate / policer.rate.as_bps() as f64 * 100.0;
    let refused =
        over(|r, from, to| r.work.down.refused(r.work.started + from, r.work.started + to))?
            * 100.0;
    let lost = middle(runs, Figure::PingLost)?;
    Ok(vec![
        Checked {
            best: "83 %".into(),
            value: Some(share),
            ..Checked::asked(
                &format!("{what}: goodput after 10 s, of the policed rate"),
                "≥ 90 %",
                format!("{share:.1} %"),
                share >= 90.0,
            )
        },
        Checked {
            value: Some(refused),
            ..Checked::asked(
                "bytes that the policer drops after 10 s",
                "≤ 3 %",
                format!("{refused:.2} %"),
                refused <= 3.0,
            )
        },
        Checked::told("pings lost over all", format!("{lost:.1} %")),
    ])
}

/// Processor time of both gateways at ordinary rates and at a high one.
pub fn cpu(board: &Board, _seeds: u64) -> Measured {
    let mut checks = Vec::new();
    for (mbps, most) in [(45, 10.0), (155, 7.0), (500, 4.5)] {
        let bps = mbps * 1_000_000;
        let what = format!("{mbps} Mbit/s, 600 ms: one stream, 30 s");
        let case = Case::new(what, link(bps, bps, 300), streams(1, 30), Must::Share(90.0));
        let runs = run_one_by_one(board, std::slice::from_ref(&case))?;
        checks.push(case.judge(&runs[0])?);
        checks.push(processor_time_asked(&runs[0][0], most)?);
    }
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::measure::{LinkUse, Outcome};

    #[test]
    fn a_policed_link_is_judged_from_the_tenth_second_on() {
        let policer = Policer { rate: BitRate::from_mbps(8), burst: ByteCount(30_000) };
        let down = LinkUse {
            width: 10.0,
            busy: vec![1.0; 2],
            delivered: vec![1e6, 9.8e6],
            refused: vec![5e6, 0.2e6],
            ..LinkUse::default()
        };
        let work = Outcome {
            complete: 20.0,
            received: vec![(9.9, 1e6), (15.0, 6e6), (20.0, 10.5e6)],
            ping: vec![(1.0, 600.0); 9],
            ping_lost: 1,
            down,
            ..Outcome::default()
        };
        let run = Run { work, before: None, gateways: None, problems: Vec::new() };
        let checks = policed("x", &[run], policer).unwrap();
        assert_eq!(checks[0].value, Some(95.0));
        assert_eq!(
            checks.iter().map(|c| c.met).collect::<Vec<_>>(),
            [Some(true), Some(true), None]
        );
        assert!((checks[1].value.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(checks[2].measured, "10.0 %");
    }
}
