//! Shares of the processor: what the packets of one peer take of it is not taken from the others.
//!
//! Packets of all peers come from one socket in the order in which they arrived. While all are
//! looked at soon after, nobody is limited and nothing is measured. Once packets have waited for
//! [`STRAINED`] and more than one peer sends, the shard is *strained*: for a minute all work is
//! measured that packets of a peer cause, and charged to its account, which drains by its part of
//! the time. A packet that has waited for [`TOO_LATE`] is dropped before it is opened if its peer's
//! account holds more than [`BURST`]. So nothing is dropped that could be done in time, one peer
//! alone is never limited, and the wait of the others stays near [`TOO_LATE`] however much one of
//! them sends.
//!
//! Most of what a packet costs may come after it was taken (connections, decompression, packets for
//! hosts), and many are taken in one turn. So each counts in advance as much as this peer's packets
//! cost at their dearest lately, until the turn is over and what they did cost is known. A turn
//! is long while nothing is known yet: whoever could not be served meanwhile may take a part of it
//! later, once.

use std::collections::BTreeMap;

use units::{Duration, Instant};

use super::peer::PeerId;

/// Packets that waited so long are a sign of strain: gathering takes 2 ms (`may_gather_for`), and a
/// busy machine some more.
const STRAINED: Duration = Duration::from_millis(5);
/// Strain is expected to come back for so long: whoever causes it in bursts is met prepared.
const STRAIN_LASTS: Duration = Duration::from_secs(60);
/// What a peer may be late by, when it is over its part.
const TOO_LATE: Duration = Duration::from_millis(10);
/// What an account may hold.
const BURST: Duration = Duration::from_millis(25);
/// What is not remembered beyond: what a peer took while nobody had to wait for it.
const MOST: Duration = Duration::from_millis(100);
/// A peer has something to do for so long after a packet of its own: keystrokes and questions are
/// that far apart.
const ACTIVE: Duration = Duration::from_secs(2);
/// Nobody's part is less than one of so many, however many peers there are: that is far more than
/// an honest link takes, and shares are not to limit that.
const MOST_PARTS: u64 = 8;
/// The mean cost of a packet is that of so many,
const WINDOW: u32 = 64;
/// and the dearest window counts for so long.
const DEAREST_LASTS: Duration = Duration::from_secs(10);
/// A peer that is over its part is told of once in so long.
const TELLING: Duration = Duration::from_secs(60);

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Take,
    /// Its peer is over its part, which is to be told or was told a while ago.
    Drop {
        tell: bool,
    },
}

/// One peer's.
#[derive(Debug)]
struct Account {
    /// Time taken, less what has drained by `at`.
    level: Duration,
    at: Instant,
    /// What may be taken first, once.
    credit: Duration,
    /// It is among those of this turn, whose packets count so much in advance, and took so much.
    in_turn: bool,
    reserved: Duration,
    taken: Duration,
    /// The window at hand: packets taken, and what was spent for the peer meanwhile.
    packets: u32,
    spent: Duration,
    /// The dearest mean lately, and when it was found.
    dearest: (Duration, Instant),
    told: Option<Instant>,
}

/// The accounts of all peers of an endpoint.
#[derive(Debug)]
pub(super) struct Shares {
    /// Who sent last, and when; and when somebody else did.
    newest: (PeerId, Instant),
    other: Option<Instant>,
    strained_until: Option<Instant>,
    /// Time taken in the turn at hand.
    taken: Duration,
    /// What the last long turn left to each peer.
    credit: Duration,
    accounts: BTreeMap<PeerId, Account>,
    /// Whose packets were taken in this turn, and what they count in advance.
    in_turn: Vec<PeerId>,
    reserved: Duration,
    /// Whose packets came last, the newest first: as many as there are parts.
    latest: [(PeerId, Instant); MOST_PARTS as usize],
}

/// No peer has this number.
const NOBODY: PeerId = PeerId::from_index(u32::MAX as usize);

impl Default for Shares {
    fn default() -> Shares {
        Shares {
            newest: (NOBODY, Instant::ZERO),
            other: None,
            strained_until: None,
            taken: Duration::ZERO,
            credit: Duration::ZERO,
            accounts: BTreeMap::new(),
            in_turn: Vec::new(),
            reserved: Duration::ZERO,
            latest: [(NOBODY, Instant::ZERO); MOST_PARTS as usize],
        }
    }
}

impl Shares {
    /// Is work to be measured?
    #[inline]
    pub fn is_strained(&self) -> bool {
        self.strained_until.is_some()
    }

    /// The turn is over: what its packets cost has been charged, as far as it was done.
    pub fn begin_turn(&mut self, now: Instant) {
        if self.strained_until.is_none() {
            return;
        }
        if self.strained_until.is_some_and(|until| until <= now) {
            self.strained_until = None;
            self.credit = Duration::ZERO;
            self.accounts = BTreeMap::new();
            self.latest = [(NOBODY, Instant::ZERO); MOST_PARTS as usize];
        }
        let taken = std::mem::replace(&mut self.taken, Duration::ZERO);
        if taken > MOST {
            // The least part of it that a peer may have, for those who had no more.
            let part = taken.divided_by(MOST_PARTS);
            self.credit = part.min(MOST);
            let modest = self.accounts.values_mut().filter(|account| account.taken <= part);
            modest.for_each(|account| account.credit = self.credit);
        }
        for peer in self.in_turn.drain(..) {
            if let Some(account) = self.accounts.get_mut(&peer) {
                (account.in_turn, account.reserved) = (false, Duration::ZERO);
                account.taken = Duration::ZERO;
                account.close_window(now);
            }
        }
        self.reserved = Duration::ZERO;
    }

    /// May a packet that arrived at `arrived` and claims to be of this peer be opened?
    pub fn admit(&mut self, now: Instant, arrived: Instant, peer: PeerId) -> Verdict {
        if self.strained_until.is_none()
            || now.since(arrived) + self.reserved <= TOO_LATE
            || !self.is_contended(now, peer)
        {
            return Verdict::Take;
        }
        let parts = self.parts(now);
        let Some(account) = self.accounts.get_mut(&peer) else { return Verdict::Take };
        account.drain(now, parts);
        if account.level + account.reserved <= BURST + account.credit {
            return Verdict::Take;
        }
        let tell = account.told.is_none_or(|at| now.since(at) >= TELLING);
        if tell {
            account.told = Some(now);
        }
        Verdict::Drop { tell }
    }

    /// A packet of this peer was opened: nobody else can have made it.
    #[inline]
    pub fn on_authentic(&mut self, now: Instant, arrived: Instant, peer: PeerId) {
        let strained = self.is_strained() || now.since(arrived) > STRAINED;
        if peer != self.newest.0 || strained {
            self.note(now, arrived, peer);
        }
        self.newest.1 = now;
    }

    #[inline(never)]
    fn note(&mut self, now: Instant, arrived: Instant, peer: PeerId) {
        let (before, at) = std::mem::replace(&mut self.newest, (peer, now));
        if before != peer {
            self.other = (before != NOBODY).then_some(at);
        }
        if now.since(arrived) > STRAINED && self.is_contended(now, peer) {
            self.strained_until = Some(now + STRAIN_LASTS);
        }
        if self.strained_until.is_none() {
            return;
        }
        self.note_latest(now, peer);
        let new = || Account::new(now, self.credit);
        let account = self.accounts.entry(peer).or_insert_with(new);
        if !std::mem::replace(&mut account.in_turn, true) {
            self.in_turn.push(peer);
        }
        account.packets += 1;
        account.reserved += account.dearest.0;
        self.reserved += account.dearest.0;
    }

    /// So much time was spent for a peer.
    pub fn charge(&mut self, peer: PeerId, spent: Duration) {
        if let Some(account) = self.accounts.get_mut(&peer) {
            self.taken += spent;
            let paid = spent.min(account.credit);
            account.credit = account.credit - paid;
            account.level = (account.level + (spent - paid)).min(MOST);
            account.spent += spent;
            account.taken += spent;
        }
    }

    /// The peer is no more.
    pub fn forget(&mut self, peer: PeerId) {
        self.accounts.remove(&peer);
    }

    /// Has somebody else something to do?
    fn is_contended(&self, now: Instant, peer: PeerId) -> bool {
        let other = match self.newest {
            (newest, at) if newest != peer && newest != NOBODY => Some(at),
            _ => self.other,
        };
        other.is_some_and(|at| now.since(at) < ACTIVE)
    }

    /// A packet of this peer came.
    fn note_latest(&mut self, now: Instant, peer: PeerId) {
        let known = self.latest.iter().position(|(of, _)| *of == peer);
        let at = known.unwrap_or(self.latest.len() - 1);
        self.latest[..=at].rotate_right(1);
        self.latest[0] = (peer, now);
    }

    /// In how many parts the time is divided: one for each peer with something to do, of whom no
    /// more need be known than there are parts.
    fn parts(&self, now: Instant) -> u64 {
        let is_active =
            |(peer, at): &&(PeerId, Instant)| *peer != NOBODY && now.since(*at) < ACTIVE;
        let active = self.latest.iter().filter(is_active).count() as u64;
        // At least one besides the peer that is asked about (see `is_contended`).
        active.clamp(2, MOST_PARTS)
    }
}

impl Account {
    fn new(now: Instant, credit: Duration) -> Account {
        Account {
            level: Duration::ZERO,
            at: now,
            credit,
            in_turn: false,
            reserved: Duration::ZERO,
            taken: Duration::ZERO,
            packets: 0,
            spent: Duration::ZERO,
            dearest: (Duration::ZERO, now),
            told: None,
        }
    }

    fn drain(&mut self, now: Instant, parts: u64) {
        let drained = now.since(self.at).divided_by(parts);
        self.level = self.level - drained.min(self.level);
        self.at = now;
    }

    fn close_window(&mut self, now: Instant) {
        if self.packets < WINDOW {
            return;
        }
        let mean = self.spent.divided_by(u64::from(self.packets));
        if mean >= self.dearest.0 || now.since(self.dearest.1) >= DEAREST_LASTS {
            self.dearest = (mean, now);
        }
        (self.packets, self.spent) = (0, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests;
