//! A hub with thousands of terminals that are all there: real handshakes and packets, as
//! `bentpipe-lab load` makes them.

use units::{BitRate, Duration};

use super::checked::Checked;
use crate::load::{Load, Traffic, measure};
use crate::testbed::progress::Board;

/// Terminals with a session, and those of them with a transfer.
const LIVE: usize = 1_000;
const BUSY: usize = 100;
const RATE: BitRate = BitRate::from_mbps(5);
/// How long transfers are measured.
const TIME: Duration = Duration::from_secs(20);
/// Terminals that a hub knew when it died.
const KNOWN: usize = 8_000;
/// What is asked for.
const UNFAIR: f64 = 2.0;
const CPU_PER_GB: f64 = 8.0;
const BEYOND_RTT: f64 = 0.05;
const APART: f64 = 10.0;
const DEARER: f64 = 1.1;
const RESTART: f64 = 30.0;

/// A thousand sessions in one process, and in one with two shards.
pub fn thousand(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let load =
        Load { terminals: LIVE, busy: BUSY, rate: RATE, time: TIME, shards: 1, restart: false };
    let row = board.row("1,000 terminals, one shard and two", 0);
    row.begin();
    let one = measure(&load)?.traffic.ok_or("there were no transfers")?;
    let two = measure(&Load { shards: 2, ..load })?.traffic.ok_or("there were no transfers")?;
    row.end(format!("{:.1} s/GB", one.cpu_per_gb));
    let mut checks = of_one(&one);
    let mean = two.shards.iter().sum::<f64>() / two.shards.len() as f64;
    let apart = two.shards.iter().map(|cpu| (cpu - mean).abs() / mean * 100.0).fold(0.0, f64::max);
    let dearer = two.cpu_per_gb / one.cpu_per_gb;
    checks.extend([
        unfair("the same with two shards", &two),
        Checked::asked(
            "two shards: how far the work of one is from the mean",
            &format!("≤ {APART} %"),
            format!("{apart:.1} % ({:.1?} s)", two.shards),
            apart <= APART,
        ),
        Checked::asked(
            "two shards: processor for a GB against one",
            &format!("≤ {DEARER} times"),
            format!("{dearer:.2} ({:.2} → {:.2} s)", one.cpu_per_gb, two.cpu_per_gb),
            dearer <= DEARER,
        ),
    ]);
    Ok(checks)
}

fn of_one(one: &Traffic) -> Vec<Checked> {
    let [free, busy] = one.p99.map(|p99| p99 * 1e3);
    let most = (one.rtt + BEYOND_RTT) * 1e3;
    let lost = one.failed;
    vec![
        unfair("1,000 sessions, 100 transfers of 5 Mbit/s", one),
        Checked::asked(
            "processor of the hub for a GB",
            &format!("≤ {CPU_PER_GB} s"),
            format!("{:.2} s", one.cpu_per_gb),
            one.cpu_per_gb <= CPU_PER_GB,
        ),
        Checked::asked(
            "small requests beside them: 99 of 100, and none lost",
            &format!("≤ {most:.0} ms"),
            format!("{free:.1} ms of {}, {lost} lost", one.answered[0]),
            free <= most && lost == 0,
        ),
        Checked::told(
            "the same of terminals whose link is full",
            format!("{busy:.1} ms of {}", one.answered[1]),
        ),
        Checked::told("memory of the hub", format!("{:.0} MB", one.memory as f64 / 1e6)),
    ]
}

/// What a transfer differs most, and that the links were full.
fn unfair(what: &str, traffic: &Traffic) -> Checked {
    let share = traffic.goodput / (BUSY as f64 * RATE.as_bps() as f64) * 100.0;
    Checked::asked(
        what,
        &format!("≤ {UNFAIR} % from the mean"),
        format!("{:.2} %, Jain {:.5}, {share:.1} % of the links", traffic.unfair, traffic.jain),
        traffic.unfair <= UNFAIR,
    )
}

/// Eight thousand sessions after the hub's death.
pub fn restart(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("8,000 terminals whose hub dies", 0);
    row.begin();
    let load = Load { terminals: KNOWN, busy: 0, rate: RATE, time: TIME, shards: 1, restart: true };
    let measured = measure(&load)?;
    let after = measured.restart.ok_or("the hub was not started again")?;
    row.end(format!("{:.1} s", after.seconds));
    Ok(vec![
        Checked::asked(
            "8,000 sessions after the hub was killed and started again",
            &format!("< {RESTART} s"),
            format!("{:.1} s, {:.1} s of its processor", after.seconds, after.hub_cpu),
            after.seconds < RESTART,
        ),
        Checked::told(
            "8,000 terminals that call at once",
            format!("{:.1} s", measured.calls.seconds),
        ),
        Checked::told(
            "memory of the hub with 8,000 sessions",
            format!("{:.0} MB", after.hub_memory as f64 / 1e6),
        ),
    ])
}
