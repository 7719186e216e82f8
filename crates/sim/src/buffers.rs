//! How much a router before a satellite must hold (recommendation, 4.3.1): a host on a faster
//! network sends by TCP through it, with windows of many sizes, and what waits at the most is
//! counted. Beside it the same link between gateways, which know its rate.
//!
//! In slow start each acknowledgement lets two packets go. They come at the link's rate, so the
//! router gets twice what it can send until the window is full: half of it waits there. Of a window
//! that is larger than what fills the link, all that is beyond waits.

use std::collections::VecDeque;

use channel::{Channel, ChannelConfig, QueueLimit};
use units::{BitRate, ByteCount, Duration, Instant};

use crate::check::Failure;
use crate::net::{Demand, NetPlan, run_net};

/// Packets are as long as Ethernet's.
const PACKET: ByteCount = ByteCount(1_500);

/// A router between a fast network and the satellite.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// What the host's network carries.
    pub fast: BitRate,
    /// What the satellite does.
    pub slow: BitRate,
    /// Both ways together.
    pub rtt: Duration,
}

/// What slow start up to a window came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowStart {
    /// Packets that waited in the router at the most.
    pub queue: u64,
    /// Bytes that arrived within ten seconds, a second.
    pub rate: BitRate,
}

/// Counted over so long, as the source does.
const TIME: Duration = Duration::from_secs(10);

impl Router {
    /// A host without losses sends with a window of so many packets.
    pub fn slow_start(&self, window: u64) -> SlowStart {
        let config = ChannelConfig {
            rate: Some(self.slow),
            delay: self.rtt.divided_by(2),
            queue: QueueLimit::Bytes(ByteCount(u64::MAX / 16)),
            ..ChannelConfig::default()
        };
        let channel: Result<Channel<()>, _> = Channel::new(config, 1);
        let mut channel = channel.expect("the rate is above zero");
        let end = Instant::ZERO + TIME;
        let (mut now, mut free_at) = (Instant::from_nanos(1), Instant::ZERO);
        // What the window allows, what is on its way, what is acknowledged when.
        let (mut allowed, mut under_way, mut queue, mut arrived) = (2, 0, 0, 0);
        let mut acknowledged: VecDeque<Instant> = VecDeque::new();
        loop {
            while channel.pop(now).is_some() {
                arrived += 1;
                acknowledged.push_back(now + self.rtt.divided_by(2));
            }
            while acknowledged.front().is_some_and(|at| *at <= now) {
                acknowledged.pop_front();
                under_way -= 1;
                allowed = (allowed + 1).min(window);
            }
            if under_way < allowed && free_at <= now {
                let taken = channel.push(now, PACKET, ());
                taken.expect("there is room for all");
                under_way += 1;
                free_at = now + self.fast.time_for(PACKET);
                queue = queue.max(channel.waiting().0 / PACKET.0);
            }
            let send = (under_way < allowed).then_some(free_at);
            let next = [send, channel.next_time(), acknowledged.front().copied()];
            now = match next.into_iter().flatten().min() {
                Some(next) if next < end => next.max(now),
                _ => break,
            };
        }
        let rate = BitRate::from_bps(arrived * PACKET.0 * 8 * 1_000 / TIME.as_millis());
        SlowStart { queue, rate }
    }

    /// Packets that wait before the link at the most where two gateways have it between them, by
    /// the code that runs over sockets: whatever the window of their hosts.
    ///
    /// # Errors
    /// The first promise of the simulator that did not hold.
    pub fn gateways(&self) -> Result<u64, Failure> {
        let mut plan = NetPlan::row(1, 1, self.slow);
        plan.delay = self.rtt.divided_by(2);
        let begin = Instant::ZERO + Duration::from_secs(3);
        let bytes = self.slow.bytes_in(Duration::from_secs(3)).0;
        plan.memory = ByteCount(1 << 30);
        plan.demands = vec![Demand::fetch(begin, [0, 1], 100, bytes)];
        plan.demands[0].hosts.iter_mut().for_each(|host| host.socket = 16 << 20);
        let report = run_net(&plan, None)?;
        Ok(report.longest_queue.div_ceil(PACKET.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The recommendation has 3,187 by its formula, and 2,279 by its simulation.
    #[test]
    fn half_of_the_window_waits_in_the_router_and_nearly_nothing_between_gateways() {
        let mbps = BitRate::from_mbps;
        let router = Router { fast: mbps(500), slow: mbps(135), rtt: Duration::from_millis(540) };
        let found = router.slow_start(6_000);
        assert!((2_000..=3_200).contains(&found.queue), "{found:?}");
        // As a kernel's does (docs/itu.md): it takes six seconds to begin.
        assert!((mbps(40)..mbps(60)).contains(&found.rate), "{found:?}");
        let fits = router.slow_start(1_000);
        assert!((450..=520).contains(&fits.queue), "{fits:?}");
        // Beyond what fills the link all waits.
        let beyond = router.slow_start(9_000);
        assert!(beyond.queue > 9_000 / 2 - 500, "{beyond:?}");
        let gateways = Router { slow: mbps(20), ..router }.gateways();
        let queue = gateways.unwrap_or_else(|e| panic!("{e}"));
        println!("{found:?} {fits:?} {beyond:?}, gateways {queue}");
        // What a pacer may be ahead by: 13 ms and a packet (L-RA-1, L-RA-9).
        assert!(queue <= 23, "{queue} packets");
    }
}
