//! What deduplication must reach.

use std::thread;
use std::time::Duration;

use super::checked::Checked;
use super::setup::link;
use super::squeeze::{self, Bed, Wish};
use crate::testbed::gateway::Pair;
use crate::testbed::progress::Board;

type Measured = Result<Vec<Checked>, String>;

/// What was said at the end of a connection has been told by then, and chunks are written.
const SETTLE: Duration = Duration::from_secs(3);

fn both() -> Pair {
    Pair { compress: true, dedup: true, ..Pair::default() }
}

/// The same 10 MB that nothing compresses a second time, and with a hundredth changed.
pub fn second_transfer(board: &Board, _seeds: u64) -> Measured {
    const BYTES: u64 = 10_000_000;
    let row = board.row("second transfer", 3 * BYTES);
    let bed = Bed::build_with(&link(20_000_000, 2_000_000, 300), both())?;
    row.begin();
    let mut crossed = Vec::new();
    for wish in [Wish::Noise(BYTES), Wish::Noise(BYTES), Wish::Changed(BYTES)] {
        let before = bed.status()?;
        let time = bed.fetch(wish, &row)?;
        thread::sleep(SETTLE);
        let after = bed.status()?;
        let both_ways = (after.receive.link_bytes - before.receive.link_bytes)
            + (after.send.link_bytes - before.send.link_bytes);
        crossed.push((both_ways as f64, time));
    }
    let share = |n: usize| crossed[n].0 / crossed[0].0 * 100.0;
    row.end(format!("{:.2} and {:.2} %", share(1), share(2)));
    let times: Vec<String> = crossed.iter().map(|(_, time)| format!("{time:.1}")).collect();
    Ok(vec![
        Checked::asked(
            "10 MB of noise again over 20/2 Mbit/s, 600 ms: link bytes, both ways, of the first's",
            "≤ 1.5 %",
            format!("{:.2} %", share(1)),
            share(1) <= 1.5,
        ),
        Checked::asked(
            "the same with 1 % of it changed in ten places",
            "≤ 4 %",
            format!("{:.2} %", share(2)),
            share(2) <= 4.0,
        ),
        Checked::told("their times", format!("{} s", times.join(", "))),
    ])
}

/// What it takes of the processor on the fastest link that is deduplicated.
pub fn cost(board: &Board, _seeds: u64) -> Measured {
    const BYTES: u64 = 200_000_000;
    let row = board.row("cost of chunks", 3 * BYTES);
    row.begin();
    let mut costs = Vec::new();
    for (dedup, runs) in [(false, 1), (true, 2)] {
        let gateways = Pair { dedup, ..both() };
        let bed = Bed::build_with(&link(100_000_000, 10_000_000, 20), gateways)?;
        for _ in 0..runs {
            let before = bed.topology.gateways_cpu()?;
            bed.fetch(Wish::Noise(BYTES), &row)?;
            thread::sleep(SETTLE);
            costs.push((bed.topology.gateways_cpu()? - before) * 1e9 / BYTES as f64);
        }
    }
    let [off, new, known] = costs[..] else { return Err("nothing was measured".into()) };
    row.end(format!("{:.1} s/GB", new - off));
    Ok(vec![Checked::told(
        "200 MB of noise over 100 Mbit/s: processor time of both gateways without, new, again",
        format!("{off:.1}, {new:.1}, {known:.1} s/GB"),
    )])
}

/// Ten thousand connections that have said something and rest.
pub fn idle_streams(board: &Board, _seeds: u64) -> Measured {
    squeeze::rest(board, both(), "deduplicated")
}
