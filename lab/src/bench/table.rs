//! The link at the physical limit: its rows, with the figures
//! that it gives for each. Physical limits are arithmetic: 1,448 payload bytes in a
//! 1,500-byte IP packet (R-HEADER), the best packet for the bit-error ratio, the
//! losses, and one round trip for the request.

use sim::grid::Cell;
use units::{BitRate, Duration, Ratio};

use super::cases::{Case, Must, measure, measure_fairness, run_cases};
use super::checked::Checked;
use super::setup::{file, link, lossy, noisy, page, streams};
use crate::testbed::gateway::Pair;
use crate::testbed::progress::Board;
use crate::testbed::results::{Load, Run};
use crate::testbed::way::{LinkSetup, Work};

type Measured = Result<Vec<Checked>, String>;

/// Gigabyte, for seconds of processor time per gigabyte.
const GB: f64 = 1e9;
/// Runs of a short transfer without random errors: what varies is this machine.
const SHORT: u64 = 5;

/// 200 kB, and a page, over 100 kbit/s with a bit-error ratio of 1e-5.
pub fn noisy_100k(board: &Board, seeds: u64) -> Measured {
    let link = noisy(link(100_000, 100_000, 500), 1e-5);
    measure(
        board,
        &[
            Case::new(
                "100 kbit/s, 1 s, BER 1e-5: 200 kB",
                link.clone(),
                file(200_000),
                Must::Time(19.6),
            )
            .known("19.2 s", "20.1 s")
            .of(seeds),
            Case::new(
                "100 kbit/s, 1 s, BER 1e-5: page, 6 connections",
                link,
                page(),
                Must::Time(9.1),
            )
            .known("8.6 s", "10.1 s")
            .of(seeds),
        ],
    )
}

/// 10 MB over a T1 with three bit-error ratios.
pub fn t1(board: &Board, seeds: u64) -> Measured {
    let link = link(1_544_000, 1_544_000, 250);
    let case = |ber: f64, runs, must, limit, best| {
        let errors = if ber > 0.0 { format!("{ber:e}") } else { "0".into() };
        let what = format!("T1, 250 ms one way, BER {errors}: 10 MB");
        let link = noisy(link.clone(), ber);
        Case::new(what, link, file(10_000_000), Must::Share(must)).known(limit, best).of(runs)
    };
    measure(
        board,
        &[
            case(0.0, 1, 95.0, "95.6 %", "94.6 %"),
            case(1e-7, seeds, 95.0, "95.5 %", "93.0 %"),
            case(1e-6, seeds, 94.0, "94.5 %", "92.2 %"),
        ],
    )
}

/// Losses, and for each: what must be reached, the limit, the best existing tool.
type Losses = [(f64, f64, &'static str, &'static str); 4];

fn at_45m(work: Work, title: &str, seeds: u64, losses: Losses) -> Vec<Case> {
    let case = |(loss, must, limit, best): (f64, f64, &'static str, &'static str)| {
        let what = format!("45 Mbit/s, 700 ms, loss {} %: {title}", loss * 100.0);
        let link = lossy(link(45_000_000, 45_000_000, 350), loss);
        let runs = if loss > 0.0 { seeds } else { 1 };
        Case::new(what, link, work, Must::Share(must)).known(limit, best).of(runs)
    };
    losses.into_iter().map(case).collect()
}

/// One stream for 40 s over 45 Mbit/s.
pub fn one_stream(board: &Board, seeds: u64) -> Measured {
    let losses = [
        (0.0, 94.0, "94.8 %", "78 %"),
        (0.001, 94.0, "94.7 %", "77 %"),
        (0.01, 93.0, "93.9 %", "88 %"),
        (0.1, 82.0, "85.4 %", "75 %"),
    ];
    measure(board, &at_45m(streams(1, 40), "one stream, 40 s", seeds, losses))
}

/// 110 streams for 30 s over the same link.
pub fn many_streams(board: &Board, seeds: u64) -> Measured {
    let losses = [
        (0.0, 93.5, "94.2 %", "90 %"),
        (0.001, 93.5, "94.1 %", "90 %"),
        (0.01, 92.5, "93.3 %", "88 %"),
        (0.1, 82.0, "84.8 %", "80 %"),
    ];
    let cases = at_45m(streams(110, 30), "110 streams, 30 s", seeds, losses);
    measure_fairness(board, &cases, 0.99)
}

/// A thin return link.
pub fn thin_return(board: &Board, _seeds: u64) -> Measured {
    let link = link(23_580_000, 128_000, 270);
    let what = "23.58 Mbit/s over 128 kbit/s, 540 ms: one stream, 40 s";
    measure(
        board,
        &[Case::new(what, link, streams(1, 40), Must::Share(94.0)).known("95 %", "86 %")],
    )
}

/// A fast asymmetric link with some loss.
pub fn ka_band(board: &Board, seeds: u64) -> Measured {
    let link = lossy(link(155_000_000, 20_000_000, 300), 0.001);
    let case = |what: &str, bytes, must, limit, best| {
        let what = format!("155/20 Mbit/s, 600 ms, loss 0.1 %: {what}");
        Case::new(what, link.clone(), file(bytes), Must::Time(must)).known(limit, best).of(seeds)
    };
    measure(
        board,
        &[
            case("100 MB", 100_000_000, 6.3, "5.95 s", "6.7 s"),
            case("100 kB", 100_000, 0.63, "0.61 s", "0.61 s"),
        ],
    )
}

/// One stream over a link that needs the whole machine, and what the gateways use.
pub fn fast(board: &Board, _seeds: u64) -> Measured {
    let what = "500 Mbit/s, 600 ms: one stream, 30 s, all on this machine";
    let case =
        Case::new(what, link(500_000_000, 500_000_000, 300), streams(1, 30), Must::Share(90.0))
            .known("94.6 %", "63 % (split), 55 % (encrypted)");
    let runs = run_cases(board, std::slice::from_ref(&case))?;
    let mut checks = vec![case.judge(&runs[0])?];
    checks.extend(processor_time(&runs[0][0])?);
    Ok(checks)
}

/// What both gateways took per gigabyte in this run, at most `most` seconds.
pub fn processor_time_asked(run: &Run, most: f64) -> Result<Checked, String> {
    let [a, b] = run.gateways.ok_or("the gateways' processor time was not measured")?;
    let both = (a.cpu + b.cpu) / (run.work.bytes as f64 / GB);
    let asked = format!("≤ {most} s");
    let what = "CPU of both gateways per GB, encrypted, the same run";
    let checked = Checked::asked(what, &asked, format!("{both:.2} s"), both <= most);
    Ok(Checked { value: Some(both), ..checked })
}

fn processor_time(run: &Run) -> Measured {
    let [a, b] = run.gateways.ok_or("the gateways' processor time was not measured")?;
    let per_gb = |load: Load| load.cpu / (run.work.bytes as f64 / GB);
    let text = |load| format!("{:.2} s/GB", per_gb(load));
    let memory = |load: Load| format!("{:.1} MB", load.memory as f64 / 1e6);
    Ok(vec![
        Checked {
            best: "9–12 s (split), 27–58 s (QUIC), 70 s+ (KCP)".into(),
            ..processor_time_asked(run, 9.0)?
        },
        Checked::told("of it the receiving gateway", text(a)),
        Checked::told("of it the sending gateway", text(b)),
        Checked::told("memory of the receiving gateway under load", memory(a)),
        Checked::told("memory of the sending gateway under load", memory(b)),
    ])
}

/// One stream for a minute over 1 Gbit/s and a second, in virtual time.
pub fn gigabit(board: &Board, _seeds: u64) -> Measured {
    let cell = Cell {
        forward: BitRate::from_mbps(1_000),
        back: BitRate::from_mbps(1_000),
        rtt: Duration::from_secs(1),
        loss: Ratio::ZERO,
        time: Duration::from_secs(60),
    };
    let what = "1 Gbit/s, 1 s, simulated: one stream, 60 s";
    let row = board.row(what, 0);
    row.begin();
    let share = sim::grid::measure(&cell).map_err(|e| e.to_string())?.share;
    row.end(format!("{share:.2} %"));
    let checked = Checked::asked(what, "≥ 93 %", format!("{share:.2} %"), share >= 93.0);
    Ok(vec![Checked { limit: "94.9 %".into(), value: Some(share), ..checked }])
}

/// A telephone line by satellite, with the web's headers.
pub fn telephone(board: &Board, _seeds: u64) -> Measured {
    let case = Case::new(
        "2,400 bit/s, 998 ms one way: 10 kB",
        link(2_400, 2_400, 998),
        file(10_000),
        Must::Time(39.0),
    );
    let case = Case { headers: true, ..case }.known("38.0 s", "40.6 s (plain TCP)");
    measure(board, &[case])
}

/// Small answers.
pub fn small(board: &Board, seeds: u64) -> Measured {
    let case = |what: &str, bytes, must, limit, best| {
        let what = format!("10 Mbit/s, 600 ms: {what}");
        let link = link(10_000_000, 10_000_000, 300);
        let runs = SHORT.min(seeds);
        Case::new(what, link, file(bytes), Must::Time(must)).known(limit, best).of(runs)
    };
    measure(
        board,
        &[
            case("1 kB", 1_000, 0.61, "0.60 s", "0.60 s"),
            case("10 kB", 10_000, 0.62, "0.61 s", "0.61 s"),
            case("100 kB", 100_000, 0.70, "0.69 s", "0.69 s"),
            case("1 MB", 1_000_000, 1.46, "1.43 s", "1.45 s"),
        ],
    )
}

/// The link of a published simulation.
pub fn broadband(board: &Board, seeds: u64) -> Measured {
    let case = |loss: f64, runs, must, best| {
        let what = format!("250/3 Mbit/s, 300 ms one way, loss {} %: 100 MB", loss * 100.0);
        let link = lossy(link(250_000_000, 3_000_000, 300), loss);
        Case::new(what, link, file(100_000_000), Must::Time(must)).known("3.9 s", best).of(runs)
    };
    measure(
        board,
        &[
            case(0.0, SHORT.min(seeds), 4.2, "4.9 s (simulated, published)"),
            case(0.01, seeds, 4.5, "7.1 s (simulated, published)"),
        ],
    )
}

/// The link of published measurements.
pub fn vsat(board: &Board, seeds: u64) -> Measured {
    let link = lossy(link(20_000_000, 2_000_000, 300), 0.01);
    let what = "20/2 Mbit/s, 600 ms, loss 1 %: 10 MiB";
    let case = Case::new(what, link, file(10 << 20), Must::Time(5.3));
    measure(board, &[case.known("5.0 s", "just over 7 s (published)").of(seeds)])
}

/// A gateway pair with nothing but a cable between: what the program itself can do.
pub fn cable(board: &Board, _seeds: u64) -> Measured {
    let what = "gateway pair over a plain veth: one stream, 10 s";
    let case = Case::new(what, LinkSetup::default(), streams(1, 10), Must::Goodput(1_200.0));
    let pair = Pair { rate: Some(CABLE), ..Pair::default() };
    measure(board, &[Case { pair, ..case }])
}

/// What the operator of such a pair would write: more than two cores can do.
const CABLE: BitRate = BitRate::from_mbps(2_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_errors_are_on_both_ways_and_rates_on_their_own() {
        let link = noisy(lossy(link(20_000_000, 2_000_000, 300), 0.01), 1e-7);
        for way in [&link.down, &link.up] {
            assert_eq!(way.loss, Ratio::from_f64(0.01));
            assert_eq!(way.ber, Ratio::from_f64(1e-7));
            assert_eq!(way.delay, Duration::from_millis(300));
        }
        assert_eq!(link.down.rate, Some(BitRate::from_mbps(20)));
        assert_eq!(link.up.rate, Some(BitRate::from_mbps(2)));
    }
}
