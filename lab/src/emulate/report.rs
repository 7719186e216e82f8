//! What an emulator has done, for people and for machines.

use channel::{ChannelConfig, Counters, Series};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use units::Duration;

/// Everything an emulator can say about itself at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Seconds since the start.
    #[serde(serialize_with = "seconds", rename = "elapsed_s")]
    pub elapsed: Duration,
    /// The seed in use.
    pub seed: u64,
    /// Left to right.
    pub up: DirectionReport,
    /// Right to left.
    pub down: DirectionReport,
    /// The left port.
    pub left: PortReport,
    /// The right port.
    pub right: PortReport,
    /// Bytes of memory that hold frames now.
    pub frame_memory: usize,
    /// Packets that are missing in the capture because the disk was too slow.
    pub capture_missed: u64,
    /// What went wrong, one sentence each with what mends it. Figures of a run with
    /// problems are not to be trusted.
    pub problems: Vec<String>,
}

/// One direction.
#[derive(Clone, Debug, Serialize)]
pub struct DirectionReport {
    /// What was asked for, as in force now.
    pub config: ChannelConfig,
    /// An outage is switched on by hand.
    pub outage: bool,
    /// Packets and bytes by what became of them.
    pub counters: Counters,
    /// Bytes waiting before the line.
    pub queue_bytes: u64,
    /// Packets anywhere in the channel.
    pub held_packets: usize,
    /// Part of the time during which the line was sending.
    pub utilisation: f64,
    /// How late packets left, compared with the calculated time.
    pub lateness: Lateness,
    /// What happened when.
    #[serde(serialize_with = "columns")]
    pub series: Series,
}

/// How exactly the emulator kept its times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Half of the packets were later than this.
    pub median_us: u64,
    /// One in a hundred was later than this.
    pub p99_us: u64,
    /// The latest of all.
    pub max_us: u64,
}

/// One port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortReport {
    /// The interface's name.
    pub name: String,
    /// Frames that came in, all kinds.
    pub frames_in: u64,
    /// Of these: ARP and IPv6 neighbour discovery.
    pub neighbour_in: u64,
    /// Of these: neither IP nor neighbour discovery.
    pub other_in: u64,
    /// Of these: longer than the MTU, and not forwarded.
    pub too_long: u64,
    /// Frames that the emulator was too slow to read.
    pub overruns: u64,
    /// Frames that went out.
    pub frames_out: u64,
    /// Frames that the kernel refused to send.
    pub refused_out: u64,
}

impl PortReport {
    /// What is wrong at this port, the `side` one ("left"), if anything.
    pub(super) fn problems(&self, side: &str) -> Vec<String> {
        let PortReport { name, too_long, overruns, refused_out, .. } = self;
        let mut problems = Vec::new();
        if *too_long > 0 {
            problems.push(format!(
                "{too_long} frames longer than the MTU came from the {side} port {name} and were not forwarded: \
                 offloads are on at the host; run there: ethtool -K INTERFACE tso off gso off \
                 gro off lro off tx-udp-segmentation off"
            ));
        }
        if *overruns > 0 {
            problems.push(format!(
                "{overruns} frames from the {side} port {name} were lost before the emulated link because this \
                 machine was too busy; they are not in the figures"
            ));
        }
        if *refused_out > 0 {
            problems.push(format!(
                "{refused_out} frames could not be sent out of the {side} port {name}: is it up, and is its MTU \
                 as large as the other port's?"
            ));
        }
        problems
    }
}

const STEP_US: u64 = 10;
const STEPS: usize = 1_000;

/// Counts of latenesses in steps of 10 µs up to 10 ms.
#[derive(Clone, Debug)]
pub(super) struct LatenessCounts {
    steps: Vec<u64>,
    count: u64,
    max: u64,
}

impl LatenessCounts {
    pub(super) fn new() -> LatenessCounts {
        LatenessCounts { steps: vec![0; STEPS], count: 0, max: 0 }
    }

    pub(super) fn add(&mut self, late: Duration) {
        let us = late.as_micros();
        self.steps[((us / STEP_US) as usize).min(STEPS - 1)] += 1;
        self.count += 1;
        self.max = self.max.max(us);
    }

    pub(super) fn summary(&self) -> Lateness {
        let quantile = |per_thousand: u64| {
            let rank = self.count * per_thousand / 1_000;
            let mut seen = 0;
            let passed = self.steps.iter().position(|n| {
                seen += n;
                seen > rank
            });
            passed.map_or(0, |i| (i as u64 + 1) * STEP_US).min(self.max)
        };
        Lateness { median_us: quantile(500), p99_us: quantile(990), max_us: self.max }
    }
}

fn seconds<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f64(d.as_secs_f64())
}

/// Column by column: the way in which plots want it, and much shorter.
fn columns<S: Serializer>(series: &Series, s: S) -> Result<S::Ok, S::Error> {
    let bins = series.bins();
    let width = series.width();
    let share = |ns: u64| (ns as f64 / width.as_nanos() as f64 * 1e4).round() / 1e4;
    let mut out = s.serialize_struct("Series", 6)?;
    out.serialize_field("bin_s", &width.as_secs_f64())?;
    let utilisation: Vec<f64> = bins.iter().map(|b| share(b.busy_ns)).collect();
    out.serialize_field("utilisation", &utilisation)?;
    let mut column = |name, value: fn(&channel::Bin) -> u64| {
        out.serialize_field(name, &bins.iter().map(value).collect::<Vec<_>>())
    };
    column("sent_bytes", |b| b.sent_bytes)?;
    column("lost_bytes", |b| b.lost_bytes)?;
    column("refused_bytes", |b| b.refused_bytes)?;
    column("queue_peak_bytes", |b| b.queue_peak_bytes)?;
    out.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_told_to_ten_microseconds() {
        let mut counts = LatenessCounts::new();
        assert_eq!(counts.summary(), Lateness::default());
        for us in 0..1_000 {
            counts.add(Duration::from_micros(us));
        }
        counts.add(Duration::from_millis(80));
        let Lateness { median_us, p99_us, max_us } = counts.summary();
        assert_eq!((median_us, p99_us, max_us), (510, 1_000, 80_000));
    }

    #[test]
    fn a_long_frame_is_reported_with_the_command_that_mends_it() {
        let port = PortReport { name: "eth1".into(), too_long: 3, ..PortReport::default() };
        let problems = port.problems("left");
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("ethtool -K") && problems[0].contains("left port eth1"));
    }
}
