//! What an emulator has in hand: the channels and the figures of the ports.

use channel::{Channel, ChannelConfig};
use os::port::Port;
use units::Instant;

use super::arena::Place;
use super::handle::{Direction, EmulatorError, EmulatorOptions};
use super::report::{DirectionReport, LatenessCounts, PortReport, Report};

/// What a handle may look at and change.
pub(super) struct State {
    pub(super) lanes: [Lane; 2],
    pub(super) ports: [PortReport; 2],
    pub(super) frame_memory: usize,
    pub(super) capture_missed: u64,
    pub(super) problem: Option<String>,
}

pub(super) struct Lane {
    pub(super) channel: Channel<Place>,
    pub(super) lateness: LatenessCounts,
    pub(super) last_in: Instant,
}

impl Lane {
    fn new(
        direction: Direction,
        config: ChannelConfig,
        seeds: &mut units::Rng,
        options: &EmulatorOptions,
    ) -> Result<Lane, EmulatorError> {
        let channel = Channel::new(config, seeds.next_u64())
            .map_err(|error| EmulatorError::Config { direction, error })?
            .with_series(options.bin, options.bins);
        Ok(Lane { channel, lateness: LatenessCounts::new(), last_in: Instant::ZERO })
    }

    fn report(&self, now: Instant) -> DirectionReport {
        let busy: u64 = self.channel.series().bins().iter().map(|b| b.busy_ns).sum();
        DirectionReport {
            config: self.channel.config().clone(),
            outage: self.channel.in_manual_outage(),
            counters: *self.channel.counters(),
            queue_bytes: self.channel.waiting().0,
            held_packets: self.channel.held(),
            utilisation: busy as f64 / now.as_nanos().max(1) as f64,
            lateness: self.lateness.summary(),
            series: self.channel.series().clone(),
        }
    }
}

impl State {
    /// Both channels before the first packet.
    pub(super) fn new(
        ports: [&Port; 2],
        [up, down]: [ChannelConfig; 2],
        options: &EmulatorOptions,
    ) -> Result<State, EmulatorError> {
        let mut seeds = units::Rng::new(options.seed);
        let mut lane = |direction, config| Lane::new(direction, config, &mut seeds, options);
        Ok(State {
            lanes: [lane(Direction::Up, up)?, lane(Direction::Down, down)?],
            ports: ports.map(|p| PortReport { name: p.name().to_owned(), ..PortReport::default() }),
            frame_memory: 0,
            capture_missed: 0,
            problem: None,
        })
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let [left, right] = &self.ports;
        let mut problems = [left.problems("left"), right.problems("right")].concat();
        problems.extend(self.problem.clone());
        if self.capture_missed > 0 {
            problems.push(format!(
                "{} packets are missing in the capture because the disk was too slow",
                self.capture_missed
            ));
        }
        problems
    }

    pub(super) fn report(&self, now: Instant, seed: u64) -> Report {
        let [left, right] = self.ports.clone();
        Report {
            elapsed: now.since(Instant::ZERO),
            seed,
            up: self.lanes[0].report(now),
            down: self.lanes[1].report(now),
            left,
            right,
            frame_memory: self.frame_memory,
            capture_missed: self.capture_missed,
            problems: self.problems(),
        }
    }
}
