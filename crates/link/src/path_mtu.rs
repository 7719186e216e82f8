//! The largest packet that crosses the path (spec/link.md, "Path MTU"; RFC 8899, packetization
//! layer path MTU discovery for datagrams): what losses say about sizes, and which sizes are
//! tried. It starts with the largest that the configuration allows and does nothing until
//! that fails, so a link that is configured right pays nothing for it.
//!
//! Sizes are lengths of IP packets in bytes.

use units::{Duration, Instant};

/// Lengths that paths are known to have, largest first: Ethernet; PPPoE; what tunnels leave;
/// IPv6 at least (RFC 8200); SLIP and ARPANET (RFC 1191, section 7.1); every IPv4 host
/// (RFC 1122), which also the longest OPEN fits into. After a black hole the last is used
/// until more is known.
const LADDER: [u16; 6] = [1500, 1492, 1400, 1280, 1006, 576];
/// Those and what the configuration says.
const RUNGS: usize = LADDER.len() + 1;
/// So many lost in a row, while smaller ones arrive, are no coincidence: at 10 % loss they
/// are one in a million.
const IN_A_ROW: u32 = 6;
/// So many after a round trip in which nothing arrived but the answer to a small question.
const AFTER_ASKING: u32 = 3;
/// Larger sizes are tried this often, or as often as makes it a hundredth of the link.
const EVERY: Duration = Duration::from_secs(5);
const SHARE: u64 = 100;
/// Several sizes are tried at once where the link carries them in this time.
const AT_ONCE: Duration = Duration::from_millis(250);
/// Rounds after a black hole that do not wait for their time.
const QUICK_ROUNDS: u8 = 2;

/// What a path can be asked for: rungs by number, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rungs {
    sizes: [u16; RUNGS],
    len: usize,
}

impl Rungs {
    fn new(largest: u16) -> Rungs {
        let mut rungs = Rungs { sizes: [largest; RUNGS], len: 1 };
        for size in LADDER.into_iter().filter(|s| *s < largest) {
            rungs.sizes[rungs.len] = size;
            rungs.len += 1;
        }
        rungs
    }

    /// The lowest that is at least `size`; the largest for what is larger than all.
    fn of(&self, size: u64) -> usize {
        let above = self.sizes[..self.len].iter().take_while(|s| u64::from(**s) >= size);
        above.count().saturating_sub(1)
    }

    fn lowest(&self) -> usize {
        self.len - 1
    }
}

/// What became of packets, by size: the evidence that large ones vanish. Packets that were
/// lost count while none as large that left later is known to have arrived.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    rungs: Rungs,
    /// The rung in use. What is larger left before it was.
    current: usize,
    /// Framing that the link counts beside the IP packet.
    framing: u64,
    /// The newest number that arrived, by rung.
    newest: [Option<u64>; RUNGS],
    lost: [u32; RUNGS],
    first_lost: u64,
}

impl Evidence {
    /// Of a path that takes anything: nothing is looked at.
    pub fn none() -> Evidence {
        Evidence {
            rungs: Rungs::new(1),
            current: 0,
            framing: 0,
            newest: [None; RUNGS],
            lost: [0; RUNGS],
            first_lost: u64::MAX,
        }
    }

    fn is_of_interest(&self) -> bool {
        self.current < self.rungs.lowest()
    }

    /// A packet arrived, of this size as the link counts it.
    pub fn on_arrived(&mut self, number: u64, size: u16) {
        if !self.is_of_interest() {
            return;
        }
        let rung = self.rungs.of(u64::from(size).saturating_sub(self.framing));
        self.newest[rung] = self.newest[rung].max(Some(number));
        if number > self.first_lost {
            // None of its size or below is lost for its size.
            self.lost[rung..].fill(0);
            if self.lost == [0; RUNGS] {
                self.first_lost = u64::MAX;
            }
        }
    }

    /// A packet was lost, of this size as the link counts it; answers whether it is known to
    /// have been too long.
    pub fn on_lost(&mut self, number: u64, size: u16) -> bool {
        if self.rungs.lowest() == 0 {
            return false;
        }
        let rung = self.rungs.of(u64::from(size).saturating_sub(self.framing));
        if rung < self.current || !self.is_of_interest() {
            return rung < self.current;
        }
        let as_large = self.newest[..=rung].iter().max().copied().flatten();
        if as_large > Some(number) || rung == self.rungs.lowest() {
            // It was not for its size: what took it may have taken the others.
            self.clear();
            return false;
        }
        self.lost[rung] += 1;
        self.first_lost = self.first_lost.min(number);
        false
    }

    /// Packets that were lost in a row so far.
    pub fn in_a_row(&self) -> u64 {
        self.lost.iter().map(|n| u64::from(*n)).sum()
    }

    fn clear(&mut self) {
        self.lost = [0; RUNGS];
        self.first_lost = u64::MAX;
    }

    /// Do large packets vanish, `least` of them so far?
    fn is_black_hole(&self, least: u32) -> bool {
        let smaller_arrive = self.newest.iter().max().copied().flatten() > Some(self.first_lost);
        self.lost.iter().sum::<u32>() >= least && smaller_arrive
    }
}

/// A probe that has not been answered.
#[derive(Clone, Copy, Debug)]
struct Probe {
    rung: usize,
    number: u64,
}

/// The size in use and the search for a larger one.
#[derive(Clone, Debug)]
pub(crate) struct PathMtu {
    rungs: Rungs,
    /// The rung in use.
    current: usize,
    /// Rungs of the round that are yet to be tried, as bits.
    to_send: u8,
    probes: Vec<Probe>,
    /// When what is not answered counts as lost.
    due: Option<Instant>,
    next_round: Instant,
    /// Rounds that go ahead of their time.
    quick: u8,
    /// Where the link has time for one size only: is it the largest next?
    largest_next: bool,
    /// A packet as large as may be has left since the last round, and when the last did.
    used: bool,
    used_at: Instant,
}

impl PathMtu {
    /// A path that may take packets of this size.
    pub fn new(largest: u16) -> PathMtu {
        PathMtu {
            rungs: Rungs::new(largest),
            current: 0,
            to_send: 0,
            probes: Vec::new(),
            due: None,
            next_round: Instant::ZERO,
            quick: 0,
            largest_next: true,
            used: false,
            used_at: Instant::ZERO,
        }
    }

    /// The largest size, if another, by what the peer takes. Of probes under way, whose sizes are
    /// void then, `give_up` hears.
    pub fn set_largest(&mut self, largest: u16, give_up: impl FnMut(u64)) {
        if self.rungs.sizes[0] != largest {
            self.probes.iter().map(|probe| probe.number).for_each(give_up);
            *self = PathMtu::new(largest);
        }
    }

    /// What became of the probes under way cannot be known any more.
    pub fn forget_probes(&mut self, give_up: impl FnMut(u64)) {
        self.probes.drain(..).map(|probe| probe.number).for_each(give_up);
        self.due = None;
    }

    /// The same path for another session: what is under way is not its.
    pub fn renewed(&self) -> PathMtu {
        PathMtu { current: self.current, used: true, ..PathMtu::new(self.rungs.sizes[0]) }
    }

    /// The largest packet to be sent; `None` while nothing is known against any.
    pub fn limit(&self) -> Option<u16> {
        (self.current > 0).then(|| self.rungs.sizes[self.current])
    }

    /// The largest packet to be sent.
    pub fn size(&self) -> u16 {
        self.rungs.sizes[self.current]
    }

    /// Is there a smaller size?
    pub fn can_shrink(&self) -> bool {
        self.current < self.rungs.lowest()
    }

    /// Evidence about the size in use, from now on.
    pub fn evidence(&self, framing: u64) -> Evidence {
        Evidence { rungs: self.rungs, current: self.current, framing, ..Evidence::none() }
    }

    /// A packet of this size left.
    pub fn on_sent(&mut self, now: Instant, size: u64) {
        if size + 64 > u64::from(self.size()) {
            self.used |= self.current > 0;
            self.used_at = now;
        }
    }

    /// Full packets left within this time.
    pub fn used_within(&self, now: Instant, time: Duration) -> bool {
        now.since(self.used_at) <= time.max(EVERY.times(2))
    }

    /// Takes losses; answers whether the size in use changed. `asked`: a small packet was
    /// sent because no other was answered.
    pub fn on_evidence(&mut self, now: Instant, evidence: &Evidence, asked: bool) -> bool {
        let least = if asked { AFTER_ASKING } else { IN_A_ROW };
        evidence.is_black_hole(least) && self.shrink(now, self.rungs.lowest())
    }

    /// The kernel refuses packets of this size; answers whether the size in use changed.
    pub fn on_refused(&mut self, now: Instant, size: u64) -> bool {
        let below = |s: &u16| u64::from(*s) < size;
        let rung = self.rungs.sizes[..self.rungs.len].iter().position(below);
        rung.is_some_and(|rung| self.shrink(now, rung))
    }

    fn shrink(&mut self, now: Instant, rung: usize) -> bool {
        if rung <= self.current {
            return false;
        }
        self.current = rung;
        // What is under way is judged before the next round.
        self.to_send = 0;
        self.quick = QUICK_ROUNDS;
        self.next_round = now;
        true
    }

    // ---- probes ------------------------------------------------------------------

    /// From when on a probe may leave, if any.
    pub fn next_probe_at(&self) -> Option<Instant> {
        if self.to_send != 0 {
            return Some(Instant::ZERO);
        }
        let wanted = self.current > 0 && (self.used || self.quick > 0);
        (wanted && self.probes.is_empty()).then_some(self.next_round)
    }

    /// The largest size that would be tried now.
    pub fn largest_probe(&self) -> u16 {
        let first = self.to_send.trailing_zeros() as usize;
        self.rungs.sizes[if self.to_send == 0 { 0 } else { first }]
    }

    /// Does a probe wait for its turn?
    pub fn waits(&self, now: Instant) -> bool {
        self.next_probe_at().is_some_and(|t| t <= now)
    }

    /// The next size to be tried, `time_of` saying how long the link takes for one. `None`
    /// where none fits the time.
    pub fn next_probe(
        &mut self,
        now: Instant,
        time_of: impl Fn(u16) -> Duration,
    ) -> Option<(usize, u16)> {
        if self.to_send == 0 {
            self.begin_round(now, time_of);
        }
        // The smallest first.
        let rung = self.to_send.checked_ilog2()? as usize;
        self.to_send &= !(1 << rung);
        Some((rung, self.rungs.sizes[rung]))
    }

    fn begin_round(&mut self, now: Instant, time_of: impl Fn(u16) -> Duration) {
        if !self.waits(now) {
            return;
        }
        let cost = |rung: usize| time_of(self.rungs.sizes[rung]);
        let mut time = Duration::ZERO;
        let fits = |rung: &usize| {
            time += cost(*rung);
            time <= AT_ONCE
        };
        let count = (0..self.current).rev().take_while(fits).count();
        let rungs = if count == self.current {
            0..self.current
        } else if self.quick > 0 {
            self.current - count..self.current
        } else {
            self.largest_next = !self.largest_next;
            if self.largest_next { self.current - 1..self.current } else { 0..1 }
        };
        self.to_send = rungs.clone().fold(0, |bits, rung| bits | 1 << rung);
        let spent = rungs.fold(Duration::ZERO, |sum, rung| sum + cost(rung));
        let spent = if self.to_send == 0 { cost(self.current - 1) } else { spent };
        self.next_round = now + spent.times(SHARE).max(EVERY);
        self.used = false;
        self.quick = if self.to_send == 0 { 0 } else { self.quick };
    }

    /// A probe left; without an answer until `due` it is lost, and those before it.
    pub fn on_probe_sent(&mut self, rung: usize, number: u64, due: Instant) {
        self.probes.push(Probe { rung, number });
        self.due = Some(due);
    }

    /// When [`PathMtu::take_answers`] is to be called without a report.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Sees which probes were answered, as `is_open` tells of their numbers, and after `due`
    /// gives up the others, of which `give_up` hears. Answers whether the size in use changed.
    pub fn take_answers(
        &mut self,
        now: Instant,
        mut is_open: impl FnMut(u64, bool) -> bool,
    ) -> bool {
        if self.due.is_none() {
            return false;
        }
        let give_up = self.due.is_some_and(|t| t <= now);
        let (before, mut best) = (self.current, self.current);
        self.probes.retain(|probe| {
            let open = is_open(probe.number, give_up);
            if !open {
                best = best.min(probe.rung);
            }
            open && !give_up
        });
        self.current = best;
        if self.probes.is_empty() {
            // Also where the rest of the round has yet to leave: that may take its time.
            self.due = None;
        }
        if self.due.is_none() && self.to_send == 0 {
            self.quick = self.quick.saturating_sub(1);
            if self.quick > 0 {
                self.next_round = now;
            }
        }
        self.current != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(path: &PathMtu) -> Evidence {
        path.evidence(0)
    }

    #[test]
    fn the_ladder_is_below_what_is_configured() {
        assert_eq!(Rungs::new(1500).len, 6);
        assert_eq!(Rungs::new(9000).len, 7);
        assert_eq!((Rungs::new(576).len, Rungs::new(128).len), (1, 1));
        let rungs = Rungs::new(1450);
        assert_eq!(rungs.sizes[..rungs.len], [1450, 1400, 1280, 1006, 576]);
        assert_eq!([2000, 1450, 1401, 1400, 577, 20].map(|s| rungs.of(s)), [0, 0, 0, 1, 3, 4]);
    }

    #[test]
    fn losses_are_a_black_hole_only_where_the_large_ones_vanish_and_the_small_ones_do_not() {
        let path = PathMtu::new(1500);
        let of = |packets: &[(u16, bool)]| {
            let mut e = evidence(&path);
            for (number, (size, arrived)) in packets.iter().enumerate() {
                if *arrived {
                    e.on_arrived(number as u64, *size);
                }
            }
            for (number, (size, arrived)) in packets.iter().enumerate() {
                if !*arrived {
                    e.on_lost(number as u64, *size);
                }
            }
            e.is_black_hole(IN_A_ROW)
        };
        let lost = [(1500, false); 6];
        let with = |last: (u16, bool)| of(&[&lost[..], &[last]].concat());
        assert!(!of(&lost), "nothing arrives: an outage");
        assert!(with((50, true)));
        assert!(with((1400, true)), "smaller is small enough");
        assert!(!with((1500, true)), "as large, and later: chance");
        assert!(!of(&[&lost[..], &[(50, false), (50, true)]].concat()), "an outage");
        assert!(!of(&[&lost[1..], &[(50, true)]].concat()), "too few");
        let mixed = [(1500, false), (1250, false), (1300, false), (1250, false)];
        assert!(of(&[&mixed[..], &mixed[..], &[(90, true)]].concat()));
        // What arrived before does not count against it.
        assert!(of(&[&[(1500, true)], &lost[..], &[(90, true)]].concat()));
    }

    fn time(size: u16, bps: u64) -> Duration {
        Duration::from_nanos(u64::from(size) * 8_000_000_000 / bps)
    }

    /// Runs rounds over a path that takes `mtu`; answers the sizes tried in each.
    fn rounds(
        path: &mut PathMtu,
        now: &mut Instant,
        mtu: u16,
        bps: u64,
        n: usize,
    ) -> Vec<Vec<u16>> {
        let mut tried = Vec::new();
        for _ in 0..n {
            path.on_sent(*now, u64::from(path.size()));
            let Some(at) = path.next_probe_at() else { break };
            *now = at.max(*now);
            let mut sizes = Vec::new();
            while let Some((rung, size)) = path.next_probe(*now, |s| time(s, bps)) {
                path.on_probe_sent(rung, u64::from(size), *now + Duration::from_secs(1));
                sizes.push(size);
            }
            path.take_answers(*now, |number, _| number > u64::from(mtu));
            *now += Duration::from_secs(1);
            path.take_answers(*now, |number, _| number > u64::from(mtu));
            tried.push(sizes);
        }
        tried
    }

    fn black_hole(path: &mut PathMtu, now: Instant) -> bool {
        let mut e = evidence(path);
        (0..6).for_each(|n| assert!(!e.on_lost(n, path.size())));
        e.on_arrived(9, 40);
        path.on_evidence(now, &e, false)
    }

    /// L-PM-5.
    #[test]
    fn a_fast_link_tries_all_sizes_at_once_and_again_after_five_seconds() {
        let mut path = PathMtu::new(1500);
        let mut now = Instant::from_nanos(1);
        assert_eq!(path.next_probe_at(), None, "nothing is tried above what is configured");
        assert!(black_hole(&mut path, now));
        assert_eq!(path.limit(), Some(576));
        let begun = now;
        let all = vec![1006, 1280, 1400, 1492, 1500];
        assert_eq!(rounds(&mut path, &mut now, 1300, 20_000_000, 1), [all]);
        assert_eq!(path.size(), 1280);
        let above = vec![1400, 1492, 1500];
        assert_eq!(rounds(&mut path, &mut now, 1300, 20_000_000, 2), [above.clone(), above]);
        assert!(now.since(begun) >= EVERY);
        rounds(&mut path, &mut now, 1500, 20_000_000, 1);
        assert_eq!((path.size(), path.limit()), (1500, None));
        assert_eq!(path.next_probe_at(), None);
    }

    /// L-PM-5.
    #[test]
    fn a_thin_link_tries_one_size_at_a_time_and_spends_a_hundredth_on_it() {
        let mut path = PathMtu::new(1500);
        let mut now = Instant::from_nanos(1);
        assert!(black_hole(&mut path, now));
        let begun = now;
        let tried = rounds(&mut path, &mut now, 1300, 2_400, 6);
        let spent: u64 = tried.iter().flatten().map(|s| time(*s, 2_400).as_nanos()).sum();
        assert!(tried.iter().all(|sizes| sizes.len() <= 1), "{tried:?}");
        assert_eq!(tried[0], [0; 0], "not right after the black hole");
        assert_eq!((&tried[1][..], &tried[2][..]), (&[1500][..], &[1006][..]));
        assert!(spent * 90 <= now.since(begun).as_nanos(), "{spent} of {}", now.since(begun));
        assert_eq!(path.size(), 1280);
    }

    #[test]
    fn what_the_kernel_refuses_is_not_sent_again_and_sizes_end_somewhere() {
        let mut path = PathMtu::new(1500);
        let now = Instant::from_nanos(1);
        assert!(path.on_refused(now, 1500) && path.size() == 1492);
        assert!(!path.on_refused(now, 1500), "that is known");
        assert!(path.on_refused(now, 1400) && path.size() == 1280);
        assert!(path.on_refused(now, 700) && path.size() == 576);
        assert!(!path.on_refused(now, 400) && !black_hole(&mut path, now));
        assert!(!path.can_shrink());
    }

    #[test]
    fn packets_that_left_before_a_smaller_size_was_chosen_do_not_count_against_it() {
        let mut path = PathMtu::new(1500);
        assert!(path.on_refused(Instant::ZERO, 1500));
        let mut e = evidence(&path);
        (0..100).for_each(|n| assert!(e.on_lost(n, 1500)));
        e.on_arrived(200, 40);
        assert!(!path.on_evidence(Instant::ZERO, &e, true));
        (201..207).for_each(|n| assert!(!e.on_lost(n, 1492)));
        e.on_arrived(300, 40);
        assert!(path.on_evidence(Instant::ZERO, &e, false));
        assert_eq!(path.size(), 576);
    }

    #[test]
    fn a_round_whose_rest_has_to_wait_leaves_no_timer_that_stands_due() {
        let mut path = PathMtu::new(1500);
        let now = Instant::from_nanos(1);
        assert!(black_hole(&mut path, now));
        let (rung, _) = path.next_probe(now, |s| time(s, 20_000_000)).unwrap();
        let due = now + Duration::from_secs(1);
        path.on_probe_sent(rung, 7, due);
        assert_eq!(path.due(), Some(due));
        path.take_answers(due, |_, _| true);
        assert_eq!(path.due(), None);
        assert!(path.next_probe(due, |s| time(s, 20_000_000)).is_some(), "the round goes on");
    }
}
