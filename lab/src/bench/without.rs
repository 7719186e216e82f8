//! The transfers of the README without gateways: the kernel's own TCP from end to end, over the
//! same emulated links. What QUIC gets without gateways is a figure of the row `quic`.

use units::{ByteCount, Duration};

use super::cases::{Case, Must, run_cases, run_one_by_one, run_way};
use super::checked::Checked;
use super::setup::{file, link, lossy, streams};
use crate::testbed::figure::Figure;
use crate::testbed::measure::median;
use crate::testbed::progress::Board;
use crate::testbed::results::Run;
use crate::testbed::scenario::Scenario;
use crate::testbed::way::{HostTcp, LinkSetup, Work};

/// Each may take a minute.
const MOST_RUNS: u64 = 3;
/// A file that takes longer is cut off, and the time for all of it reckoned from its rate.
const AT_MOST: Duration = Duration::from_secs(60);
/// More than any of the links needs: 500 Mbit/s for 600 ms are 37.5 MB.
const LARGE: ByteCount = ByteCount(128_000_000);

/// TCP as Linux has it, and the one of its kind that minds losses least, with all the window it
/// wants.
fn variants() -> [(&'static str, HostTcp); 2] {
    let tcp = |name: &str, buffers| HostTcp {
        congestion: Some(name.into()),
        buffers,
        ..HostTcp::default()
    };
    [("CUBIC", tcp("cubic", None)), ("BBR, windows to 128 MB", tcp("bbr", Some(LARGE)))]
}

fn alone(what: &str, link: &LinkSetup, work: Work, told_as: Must, runs: u64) -> Vec<Case> {
    let case = |(name, tcp)| Case {
        alone: Some(tcp),
        ..Case::new(format!("{what}: {name}"), link.clone(), work, told_as).of(runs)
    };
    variants().into_iter().map(case).collect()
}

fn cut(bytes: u64) -> Work {
    Work::File { bytes: ByteCount(bytes), at_most: Some(AT_MOST), ftp: false }
}

const TIME: Must = Must::Time(f64::INFINITY);

/// Links up to 45 Mbit/s; medians over a few seeds where errors are random.
pub fn without(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    let seeds = seeds.clamp(1, MOST_RUNS);
    let geo = link(20_000_000, 2_000_000, 300);
    let (little, more) = (lossy(geo.clone(), 0.001), lossy(geo.clone(), 0.01));
    let trunk = lossy(link(45_000_000, 45_000_000, 350), 0.01);
    let slow = link(64_000, 64_000, 300);
    let side_by_side = [
        alone("20/2 Mbit/s, 600 ms, loss 0.1 %: 20 MB", &little, cut(20_000_000), TIME, seeds),
        alone("the same, loss 1 %: 10 MiB", &more, cut(10 << 20), TIME, seeds),
        alone("the same, no loss: 10 MB", &geo, cut(10_000_000), TIME, 1),
        alone("the same, no loss: 1 kB", &geo, file(1_000), TIME, 1),
        alone("64 kbit/s, 600 ms: 1 MB", &slow, file(1_000_000), TIME, 1),
    ]
    .concat();
    let what = "45 Mbit/s, 700 ms, loss 1 %: 110 streams, 30 s";
    let many = alone(what, &trunk, streams(110, 30), Must::Share(0.0), seeds);
    let mut all = told(&side_by_side, &run_cases(board, &side_by_side)?)?;
    all.extend(told(&many, &run_one_by_one(board, &many)?)?);
    all.push(of_1999(board)?);
    Ok(all)
}

/// Links that need most of the machine.
pub fn without_fast(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    let ka = lossy(link(155_000_000, 20_000_000, 300), 0.001);
    let fast = link(500_000_000, 500_000_000, 300);
    let what = "155/20 Mbit/s, 600 ms, loss 0.1 %: 100 MB";
    let cases = [
        alone(what, &ka, cut(100_000_000), TIME, seeds.clamp(1, MOST_RUNS)),
        alone("500 Mbit/s, 600 ms: one stream, 30 s", &fast, streams(1, 30), Must::Goodput(0.0), 1),
    ]
    .concat();
    told(&cases, &run_one_by_one(board, &cases)?)
}

fn told(cases: &[Case], runs: &[Vec<Run>]) -> Result<Vec<Checked>, String> {
    cases.iter().zip(runs).map(|(case, runs)| case.tell(runs)).collect()
}

/// Hosts of 1999 over a T1.
fn of_1999(board: &Board) -> Result<Checked, String> {
    let scenario = Scenario::built_in("umd-ftp").map_err(|e| e.to_string())?;
    let runs = run_way(&scenario, "satellite", 1, board)?;
    let kbps = median(runs.iter().filter_map(|r| r.work.figure(Figure::Goodput)));
    let mbps = kbps.ok_or("the T1 was not measured")? / 1e3;
    let told = Checked::told(
        "T1, 250 ms one way: 4 MB, hosts as in 1999 (Reno, 32 kB)",
        format!("{mbps:.2} Mbit/s"),
    );
    Ok(Checked { value: Some(mbps), ..told })
}
