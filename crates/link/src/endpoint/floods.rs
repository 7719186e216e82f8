//! Floods: packets that come in such numbers that reading them costs more than what they are.
//!
//! A packet that is dropped at once costs a microsecond or two, most of it to bring it here; and
//! while it waits it takes the place of another's in the socket. So where many thousands a second
//! are dropped, their kind is *thinned* before it comes here: of packets for a peer that is over
//! its part, of packets for an index that nobody has, and of initiations one of 2^n passes. n grows
//! while what passes is still a flood and falls when it ebbs, so that what is left is about as much
//! as can be dropped in passing, whoever sends how much. Who is thinned is looked at ten times a
//! second; the owner has the kernel do it ([`Thinning`]).

use std::collections::BTreeMap;

use units::{Duration, Instant};

use super::indices::IndexTable;
use super::peer::PeerId;
use crate::tunnel::PacketKind;

/// How often it is looked at.
const WINDOW: Duration = Duration::from_millis(100);
/// Packets of a kind dropped in a window: more are a flood, of which a hundredth of a processor can
/// bear a part; less than the second it ebbs.
const FLOOD: [u32; 2] = [2_000, 200];
/// Initiations: strangers who are peers are among them, and those are met with cookies.
const FLOOD_OF_CALLS: [u32; 2] = [10_000, 1_000];
/// One of so many passes at least, as a power of two.
const FINEST: u8 = 10;
/// What a flood begins with.
const FIRST: u8 = 2;
/// Indices that a program in the kernel can compare, where the memory for two such programs is
/// short: 20 kB, while one takes the place of another. With more in use packets for unknown ones
/// are not thinned.
const MOST_KNOWN: usize = 256;

/// Which packets are thinned: one of 2^n passes, all where n is 0.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Thinning {
    /// Packets with these receiver indices, and how much.
    pub over: Vec<(u32, u8)>,
    /// What has an index that is not among [`Thinning::known`], and what is no packet.
    pub strangers: u8,
    /// The indices in use, in their order, where strangers are thinned.
    pub known: Vec<u32>,
    /// Initiations.
    pub calls: u8,
}

impl Thinning {
    /// Does everything pass?
    pub fn is_none(&self) -> bool {
        self.over.is_empty() && self.strangers == 0 && self.calls == 0
    }
}

/// One kind of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Gauge {
    dropped: u32,
    n: u8,
}

impl Gauge {
    fn close(&mut self, [flood, ebb]: [u32; 2]) {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > flood {
            self.n = (self.n + 1).clamp(FIRST, FINEST);
        } else if dropped < ebb {
            self.n = self.n.saturating_sub(1);
        }
    }
}

/// What is dropped, by kinds, and what is thinned.
#[derive(Debug, Default)]
pub(super) struct Floods {
    peers: BTreeMap<PeerId, Gauge>,
    strangers: Gauge,
    calls: Gauge,
    window_ends: Instant,
    /// What the kernel was told, and of which state of the indices.
    told: Thinning,
    indices: u64,
}

impl Floods {
    /// A packet was dropped before much was done.
    pub fn note(&mut self, kind: Option<PacketKind>, reason: &str) {
        match kind {
            Some(PacketKind::Initiation) => self.calls.dropped += 1,
            None => self.strangers.dropped += 1,
            Some(_) if reason == "unknown index" => self.strangers.dropped += 1,
            Some(_) => {}
        }
    }

    /// A packet was dropped because its peer is over its part.
    pub fn note_over(&mut self, peer: PeerId) {
        self.peers.entry(peer).or_default().dropped += 1;
    }

    /// When it is to be looked at, while anything is thinned.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.told.is_none()).then_some(self.window_ends)
    }

    /// Which packets are to be thinned from now on, if that has changed.
    pub fn poll(&mut self, now: Instant, indices: &IndexTable) -> Option<Thinning> {
        let is_over = now >= self.window_ends;
        if !is_over && (self.told.is_none() || self.indices == indices.changes()) {
            return None;
        }
        if is_over {
            self.window_ends = now + WINDOW;
            self.peers.values_mut().for_each(|gauge| gauge.close(FLOOD));
            self.peers.retain(|_, gauge| gauge.n > 0);
            self.strangers.close(FLOOD);
            self.calls.close(FLOOD_OF_CALLS);
        }
        let thinning = self.thinning(indices);
        self.indices = indices.changes();
        let is_news = thinning != self.told;
        is_news.then(|| {
            self.told = thinning.clone();
            thinning
        })
    }

    fn thinning(&self, indices: &IndexTable) -> Thinning {
        let of = |(peer, gauge): (&PeerId, &Gauge)| {
            let n = gauge.n;
            indices.of(*peer).map(move |index| (index, n)).collect::<Vec<_>>()
        };
        let over = self.peers.iter().flat_map(of).collect();
        let strangers = if indices.len() <= MOST_KNOWN { self.strangers.n } else { 0 };
        let known = if strangers > 0 { indices.known().collect() } else { Vec::new() };
        Thinning { over, strangers, known, calls: self.calls.n }
    }
}

#[cfg(test)]
mod tests {
    use super::super::indices::Place;
    use super::*;
    use crate::keys::Entropy;

    const PEER: PeerId = PeerId::from_index(3);
    const OTHER: PeerId = PeerId::from_index(4);

    fn indices() -> (IndexTable, [u32; 2]) {
        let mut table = IndexTable::new(Entropy::new([1; 32]), Place { number: 0, of: 1 });
        let given = [PEER, OTHER].map(|peer| table.giver(peer)());
        (table, given)
    }

    fn at(window: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1) + WINDOW.times(window)
    }

    /// A flood of so many in a window, of which those come through that are let.
    fn flood(floods: &mut Floods, table: &IndexTable, windows: std::ops::Range<u64>, rate: u32) {
        for window in windows {
            for _ in 0..rate >> floods.peers.get(&PEER).map_or(0, |gauge| gauge.n) {
                floods.note_over(PEER);
            }
            floods.poll(at(window), table);
        }
    }

    #[test]
    fn a_flood_is_thinned_until_what_is_left_can_be_dropped_in_passing_and_no_more() {
        let (mut floods, (table, [index, _])) = (Floods::default(), indices());
        floods.poll(at(0), &table);
        flood(&mut floods, &table, 1..40, 50_000);
        let n = floods.peers[&PEER].n;
        assert!((FLOOD[1]..=FLOOD[0]).contains(&(50_000 >> n)), "one of 2^{n}");
        assert_eq!(floods.told.over, [(index, n)]);
        assert_eq!((floods.told.strangers, floods.told.calls), (0, 0));
        // When it is over, all of it comes again.
        assert!(floods.poll_timeout().is_some());
        flood(&mut floods, &table, 40..60, 0);
        assert!(floods.told.is_none() && floods.poll_timeout().is_none());
        assert!(floods.peers.is_empty());
    }

    #[test]
    fn what_an_honest_peer_loses_in_strain_thins_nothing() {
        let (mut floods, (table, _)) = (Floods::default(), indices());
        flood(&mut floods, &table, 0..100, FLOOD[0]);
        assert!(floods.told.is_none());
    }

    #[test]
    fn packets_for_nobody_and_initiations_are_thinned_apart_and_who_has_an_index_is_known() {
        let (mut floods, (mut table, given)) = (Floods::default(), indices());
        let mut known = given.to_vec();
        known.sort_unstable();
        let data = Some(PacketKind::Data { receiver: 7 });
        floods.poll(at(0), &table);
        for _ in 0..=FLOOD[0] {
            floods.note(data, "unknown index");
            floods.note(data, "forged");
            floods.note(Some(PacketKind::Initiation), "wrong mac1");
        }
        let thinning = floods.poll(at(1), &table).expect("news");
        let expected = Thinning { strangers: FIRST, known: known.clone(), ..Thinning::default() };
        assert_eq!(thinning, expected);
        // An index that is given out meanwhile is let through at once.
        assert_eq!(floods.poll(at(1), &table), None);
        known.push(table.giver(OTHER)());
        known.sort_unstable();
        assert_eq!(floods.poll(at(1), &table).expect("news").known, known);
        for _ in 0..=FLOOD_OF_CALLS[0] {
            floods.note(Some(PacketKind::Initiation), "wrong mac1");
        }
        assert_eq!(floods.poll(at(2), &table).expect("news").calls, FIRST);
    }

    #[test]
    fn with_more_indices_than_the_kernel_can_compare_none_is_unknown() {
        let (mut floods, (mut table, _)) = (Floods::default(), indices());
        floods.poll(at(0), &table);
        for _ in 0..MOST_KNOWN {
            table.giver(OTHER)();
        }
        for _ in 0..=FLOOD[0] {
            floods.note(None, "malformed");
        }
        assert_eq!(floods.poll(at(1), &table), None);
    }
}
