//! What of the packets to a peer is lost lately: over the last minute in which the link lived.
//! What an outage swallows is no property of the link, and what was an hour ago says nothing of it.

use std::collections::VecDeque;

use link::PeerId;
use link::endpoint::Endpoint;
use link::session::PathHealth;

/// Samples that are kept, one each [`super::meter::SPACING`]: a minute.
const KEPT: usize = 30;
/// On a quiet link older samples count as well, so that a few packets do not make the figure.
const ENOUGH: u64 = 200;
/// So many samples after an outage do not count: what was lost in the dark is noticed a round trip
/// after it.
const SETTLING: u32 = 2;

/// Packets whose fate is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// The peer has them.
    pub arrived: u64,
    /// They were lost.
    pub lost: u64,
}

impl Fates {
    /// Of the packets to a peer, since the start.
    pub fn of(endpoint: &Endpoint, id: PeerId) -> Fates {
        let stats = endpoint.session_stats(id);
        Fates { arrived: stats.packets_arrived, lost: stats.packets_lost }
    }

    fn since(self, before: Fates) -> Fates {
        Fates {
            arrived: self.arrived.saturating_sub(before.arrived),
            lost: self.lost.saturating_sub(before.lost),
        }
    }

    fn plus(self, other: Fates) -> Fates {
        Fates { arrived: self.arrived + other.arrived, lost: self.lost + other.lost }
    }

    fn all(self) -> u64 {
        self.arrived + self.lost
    }
}

/// Do both directions of the link to a peer work?
pub fn is_up(endpoint: &Endpoint, id: PeerId) -> bool {
    endpoint.is_established(id) && endpoint.health(id) == PathHealth::Alive
}

/// The losses of one link.
#[derive(Debug, Default)]
pub struct Losses {
    lately: VecDeque<Fates>,
    last: Fates,
    /// Samples of the living link that do not count yet.
    settling: u32,
}

impl Losses {
    /// Takes a sample of the counters since the start.
    pub fn sample(&mut self, total: Fates, is_alive: bool) {
        let new = total.since(self.last);
        self.last = total;
        if !is_alive {
            // Before the first session nothing is lost.
            self.settling = if total.all() > 0 { SETTLING } else { 0 };
            return;
        }
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        if new.all() == 0 {
            return;
        }
        self.lately.push_back(new);
        if self.lately.len() > KEPT {
            let oldest = self.lately.pop_front().unwrap_or_default();
            let rest: u64 = self.lately.iter().map(|f| f.all()).sum();
            if let Some(next) = self.lately.front_mut().filter(|_| rest < ENOUGH) {
                *next = next.plus(oldest);
            }
        }
    }

    /// Packets lost of a million; `total` are the counters now.
    pub fn ppm(&self, total: Fates, is_alive: bool) -> u64 {
        let newest = total.since(self.last);
        let newest = if is_alive && self.settling == 0 { newest } else { Fates::default() };
        let sum = self.lately.iter().fold(newest, |sum, fates| sum.plus(*fates));
        (sum.lost * 1_000_000).checked_div(sum.all()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of 1,000 packets a sample, one of which is lost.
    struct Link {
        losses: Losses,
        total: Fates,
    }

    impl Link {
        fn new() -> Link {
            Link { losses: Losses::default(), total: Fates::default() }
        }

        fn pass(&mut self, arrived: u64, lost: u64, is_alive: bool) {
            self.total = self.total.plus(Fates { arrived, lost });
            self.losses.sample(self.total, is_alive);
        }

        fn live(&mut self, samples: usize) {
            (0..samples).for_each(|_| self.pass(999, 1, true));
        }

        fn ppm(&self) -> u64 {
            self.losses.ppm(self.total, true)
        }
    }

    #[test]
    fn what_an_outage_swallows_is_not_the_links_loss() {
        let mut link = Link::new();
        link.pass(0, 0, false);
        link.live(1);
        assert_eq!(link.ppm(), 1_000, "from the first session's first packets on");
        link.live(39);
        assert_eq!(link.ppm(), 1_000);
        // What was under way is lost, as is what asks whether the peer is back.
        link.pass(100, 500, true);
        (0..150).for_each(|_| link.pass(0, 10, false));
        link.pass(500, 2_000, true);
        link.pass(900, 300, true);
        link.live(1);
        assert!(link.ppm() < 20_000, "{}", link.ppm());
        // A minute later nothing is left of the moments before it was noticed.
        link.live(40);
        assert_eq!(link.ppm(), 1_000);
    }

    #[test]
    fn losses_are_of_the_last_minute_and_show_at_once() {
        let mut link = Link::new();
        link.live(1_000);
        (0..30).for_each(|_| link.pass(90, 10, true));
        assert_eq!(link.ppm(), 100_000, "an hour without does not hide it");
        let ahead = link.total.plus(Fates { arrived: 0, lost: 1_000 });
        assert!(link.losses.ppm(ahead, true) > 300_000, "since the last sample, too");
        link.live(30);
        assert_eq!(link.ppm(), 1_000);
    }

    #[test]
    fn on_a_quiet_link_more_than_a_minute_counts_and_the_memory_is_bounded() {
        let mut link = Link::new();
        link.live(3);
        // One packet in two seconds, one of fifty lost.
        for n in 0..1_000 {
            link.pass(u64::from(n % 50 != 0), u64::from(n % 50 == 0), true);
        }
        assert!((5_000..30_000).contains(&link.ppm()), "{}", link.ppm());
        assert!(link.losses.lately.len() <= KEPT);
    }
}
