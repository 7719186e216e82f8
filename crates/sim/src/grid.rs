//! What the link carries, over a grid of rate × round trip × loss × asymmetry: one
//! stream from a server to a client, in virtual time, through the very code that runs
//! over sockets. Deterministic, so that the whole grid can lie beside the code as a
//! text and a change that costs throughput anywhere shows in the difference.

use std::fmt::Write as _;

use units::{BitRate, ByteCount, Duration, Instant, Ratio};

use crate::check::Failure;
use crate::plan::{Connection, Fault, FaultKind, Plan, Way};
use crate::world::World;

/// One cell: a link, and how long it is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// From the server to the client.
    pub forward: BitRate,
    /// From the client to the server.
    pub back: BitRate,
    /// Both ways together.
    pub rtt: Duration,
    /// Of each packet, both ways.
    pub loss: Ratio,
    /// From the client's connecting to the last byte that counts.
    pub time: Duration,
}

/// What a cell gave.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throughput {
    /// Bytes that the client had read in order when the time was over.
    pub bytes: u64,
    /// Such bytes as a share of what the forward rate carries since the client connected,
    /// %: the mean over the second half of the time, because what is read in order grows
    /// in jumps of up to a round trip where packets are lost.
    pub share: f64,
}

/// At which the second half is looked at.
const MOMENTS: u64 = 40;

/// So often is looked at what waits: a wait may be as short as some packets.
const LAG_MOMENTS: u64 = 1_000;

/// When the client connects: on the slowest links, with the heaviest losses, opening a
/// session takes a while.
const BEGIN: Duration = Duration::from_secs(120);
/// Losses whose draws differ by points.
const MUCH: f64 = 0.1;
/// More than any cell carries.
const ENDLESS: u64 = 1 << 44;
/// A request.
const REQUEST: u64 = 100;
/// Every session may buffer so much; 1 Gbit/s over a second needs four times its 125 MB.
const MEMORY: ByteCount = ByteCount(2 << 30);
/// Virtual events per packet are about four; beyond this something turns in circles.
const STEPS_A_PACKET: u64 = 40;

/// Lets one stream run for the cell's time, with one draw of the losses or, where draws
/// differ much, three, whose mean counts: on slow links, and on all where a tenth is lost.
///
/// # Errors
/// The first promise of the simulator that did not hold.
pub fn measure(cell: &Cell) -> Result<Throughput, Failure> {
    let few = cell.loss > Ratio::ZERO && packets(cell) < 3 * PACKETS;
    let draws = if few || cell.loss.as_f64() >= MUCH { 3 } else { 1 };
    let mut mean = Throughput::default();
    for seed in 1..=draws {
        let one = measure_draw(cell, seed)?;
        mean.bytes += one.bytes / draws;
        mean.share += one.share / draws as f64;
    }
    Ok(mean)
}

fn measure_draw(cell: &Cell, seed: u64) -> Result<Throughput, Failure> {
    let plan = Plan { seed, ..plan(cell) };
    let most = cell.forward.bytes_in(cell.time).0 / 100 * STEPS_A_PACKET;
    let mut world = World::new(&plan, None);
    world.most_steps = world.most_steps.max(most);
    let mut given = Throughput::default();
    for moment in MOMENTS..2 * MOMENTS {
        let time = cell.time.times(moment + 1).divided_by(2 * MOMENTS);
        world.run(Instant::ZERO + BEGIN + time, |_| false)?;
        given.bytes = world.talks[0].hosts[0].as_ref().map_or(0, |client| client.received);
        let possible = cell.forward.bytes_in(time).0.max(1) as f64;
        given.share += given.bytes as f64 / possible * 100.0 / MOMENTS as f64;
    }
    Ok(given)
}

/// How long a byte waits on average behind earlier ones that are missing, over the second
/// half of the cell's time, in round trips: what the client's gateway holds out of order by
/// what it passes on a second (Little's law).
///
/// # Errors
/// The first promise of the simulator that did not hold.
pub fn lag(cell: &Cell, seed: u64) -> Result<f64, Failure> {
    let plan = Plan { seed, ..plan(cell) };
    let mut world = World::new(&plan, None);
    world.most_steps = u64::MAX;
    let read = |w: &World<'_>| w.talks[0].hosts[0].as_ref().map_or(0, |client| client.received);
    let (mut held, mut before) = (0, 0);
    for moment in LAG_MOMENTS..2 * LAG_MOMENTS {
        let time = cell.time.times(moment).divided_by(2 * LAG_MOMENTS);
        world.run(Instant::ZERO + BEGIN + time, |_| false)?;
        held += world.nodes[0].session().map_or(0, |s| s.memory_used());
        if moment == LAG_MOMENTS {
            before = read(&world);
        }
    }
    let a_second = (read(&world) - before) as f64 * 2.0 / cell.time.as_secs_f64();
    Ok(held as f64 / LAG_MOMENTS as f64 / a_second / cell.rtt.as_secs_f64())
}

fn plan(cell: &Cell) -> Plan {
    let end = Instant::ZERO + BEGIN + cell.time;
    let losses = Fault {
        from: Instant::ZERO,
        until: end + Duration::from_secs(1),
        kind: FaultKind::Loss(Way { sender: 0, both: true }, cell.loss),
    };
    let connection = Connection::fetch(Instant::ZERO + BEGIN, REQUEST, ENDLESS);
    Plan {
        faults: vec![losses],
        heal_at: end,
        connections: vec![connection],
        memories: [MEMORY; 2],
        ..Plan::quiet([cell.back, cell.forward], cell.rtt)
    }
}

const RATES: [u64; 5] = [2_400, 64_000, 1_000_000, 10_000_000, 100_000_000];
const RTTS_MS: [u64; 3] = [20, 600, 1_500];
const LOSSES: [f64; 4] = [0.0, 0.001, 0.01, 0.1];
const ASYMMETRIES: [u64; 3] = [1, 20, 200];
/// On a slower return a packet of 150 bytes takes more than a second.
const SLOWEST_RETURN: u64 = 1_000;
/// Packets that a cell is worth.
const PACKETS: u64 = 12_000;
/// Yet no cell is shorter than this, nor than so many round trips.
const SHORTEST: Duration = Duration::from_secs(12);
const ROUND_TRIPS: u64 = 40;
/// Bytes under way beyond which a cell would take too long.
const MOST_UNDER_WAY: ByteCount = ByteCount(10_000_000);

/// How much worse a cell may be before something became worse, in points, because a
/// changed protocol draws other losses: half a point; three standard deviations of what
/// the losses take; and of what is read in order, which lags by some round trips behind
/// the losses (measured with many seeds: up to 1.5, and up to 6 at 10 %).
pub fn tolerance(cell: &Cell) -> f64 {
    let loss = cell.loss.as_f64();
    let draw = 3.0 * (loss * (1.0 - loss) / packets(cell) as f64).sqrt();
    let round_trips = if loss > 0.0 { 1.5 + 45.0 * loss } else { 0.0 };
    let lag = round_trips * cell.rtt.as_secs_f64() / cell.time.as_secs_f64();
    0.5 + 100.0 * (draw + lag)
}

fn packets(cell: &Cell) -> u64 {
    (cell.forward.bytes_in(cell.time).0 / 1_500).max(1)
}

/// All cells, those of a line of the text in a row.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for forward in RATES.map(BitRate::from_bps) {
        let backs = ASYMMETRIES.map(|a| BitRate::from_bps(forward.as_bps() / a));
        for back in backs.into_iter().filter(|b| b.as_bps() >= SLOWEST_RETURN) {
            for rtt in RTTS_MS.map(Duration::from_millis) {
                if forward.bytes_in(rtt) > MOST_UNDER_WAY {
                    continue;
                }
                let time = Duration::from_secs(PACKETS * 1_500 * 8 / forward.as_bps());
                let time = time.max(SHORTEST).max(rtt.times(ROUND_TRIPS));
                let cell = |loss| Cell { forward, back, rtt, loss: Ratio::from_f64(loss), time };
                all.extend(LOSSES.map(cell));
            }
        }
    }
    all
}

/// The grid as a text: a line for each link, a column for each loss. `shares` are those
/// of [`cells`], in their order.
pub fn text(shares: &[f64]) -> String {
    let mut out = String::from(
        "# In-order goodput of one stream, the whole transfer with its start, as a share of\n\
         # the forward rate, %. Made by `make grid`; a test compares.\n",
    );
    let _ = write!(out, "# {:>8} {:>10} {:>7} {:>8}", "forward", "return", "RTT", "time");
    for loss in LOSSES {
        let _ = write!(out, " {:>8}", format!("loss {}%", loss * 100.0));
    }
    out.push('\n');
    for (line, shares) in cells().chunks(LOSSES.len()).zip(shares.chunks(LOSSES.len())) {
        let Cell { forward, back, rtt, time, .. } = line[0];
        let names = [forward.to_string(), back.to_string(), rtt.to_string(), time.to_string()];
        let [forward, back, rtt, time] = names;
        let _ = write!(out, "{forward:>10} {back:>10} {rtt:>7} {time:>8}");
        for share in shares {
            let _ = write!(out, " {share:>8.2}");
        }
        out.push('\n');
    }
    out
}

/// The shares that a text holds, if it is one of this grid.
pub fn shares(text: &str) -> Option<Vec<f64>> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let all = lines
        .flat_map(|line| line.split_whitespace().skip(4).map(|w| w.parse().ok()))
        .collect::<Option<Vec<f64>>>()?;
    // Links are told apart by their names: a text of another grid is none of this one.
    let same = self::text(&all) == text;
    (all.len() == cells().len() && same).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_back_and_one_of_another_grid_is_not() {
        let shares: Vec<f64> = (0..cells().len()).map(|i| i as f64 / 4.0).collect();
        let text = text(&shares);
        assert_eq!(self::shares(&text), Some(shares));
        assert_eq!(self::shares(&text.replacen("64kbit", "65kbit", 1)), None);
        let shorter: Vec<&str> = text.lines().take(9).collect();
        assert_eq!(self::shares(&shorter.join("\n")), None);
    }

    #[test]
    fn a_link_never_carries_more_than_its_packets_leave_room_for() {
        let cell = Cell {
            forward: BitRate::from_mbps(2),
            back: BitRate::from_mbps(2),
            rtt: Duration::from_millis(500),
            loss: Ratio::ZERO,
            time: Duration::from_secs(20),
        };
        let clean = measure(&cell).unwrap();
        assert_eq!(measure(&cell).unwrap(), clean, "the same cell twice");
        // 1,448 of 1,500 bytes (R-HEADER), and a round trip before the first.
        assert!(clean.share > 85.0 && clean.share < 1448.0 / 15.0 * 0.975, "{clean:?}");
        let lossy = measure(&Cell { loss: Ratio::from_f64(0.1), ..cell }).unwrap();
        assert!(lossy.share < clean.share * 0.92 && lossy.share > 40.0, "{lossy:?}");
    }
}
