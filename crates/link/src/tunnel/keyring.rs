//! The keys of one peer: those we send under, those that packets may still come under,
//! and those that wait for their first packet.

use units::{Duration, Instant};

use crate::handshake::{Agreed, Params, SessionId};
use crate::path::{PathId, Remote};
use crate::replay::ReplayWindow;
use crate::seal::{Cipher, OpeningKey, SealingKey};
use crate::tunnel::PacketError;
use crate::tunnel::header::DataHeader;

/// Responder keys that may wait for confirmation at once (L-HS-9).
pub(super) const MAX_PENDING: usize = 8;
/// Replaced keys that packets may still come under.
const MAX_OLD: usize = 3;
/// Age at which a key is replaced, however little it was used.
const RENEW_AFTER: Duration = Duration::from_secs(2 * 3600);
/// The side that did not initiate waits this much longer, so that both do not renew at once.
const RESPONDER_WAITS: Duration = Duration::from_secs(600);
/// Age at which a key is erased, used or not.
const ERASE_AFTER: Duration = Duration::from_secs(24 * 3600);
/// The same of a pending key of another session than that of the current one, which a first packet
/// is to confirm: all that the initiator sends for that (L-HS-8) comes within 10 round trips. Who
/// holds such a packet back could end the session with it later.
const OTHERS_PENDING: Duration = Duration::from_secs(300);
/// A pause between two packets of the peer counts as use for so long at most: a line that
/// was dark wears no key.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The largest packet number; a session ends there (it never does: 2,900 years at 50 million
/// packets a second).
pub(super) const MAX_NUMBER: u64 = (1 << 62) - 1;

/// The keys of one handshake.
pub(super) struct Keypair {
    pub local_index: u32,
    pub remote_index: u32,
    pub session: SessionId,
    pub cipher: Cipher,
    /// We sent the initiation.
    pub ours: bool,
    /// A packet came under these keys, so the peer has them.
    pub heard: bool,
    seal: SealingKey,
    open: OpeningKey,
    born: Instant,
    sealed: u64,
    /// How long packets came under these keys, and when the last did.
    used: Duration,
    opened: Instant,
    /// Packets that failed to open.
    pub forgeries: u64,
}

/// What is left of a key (L-PP-6). Each of three limits counts, in eighths of it: packets
/// sealed, time in use, forgeries met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wear {
    /// Nothing is to be done.
    Fresh,
    /// A new handshake should replace it: after four eighths, five at the responder.
    Due,
    /// None has for long: after six.
    Overdue,
    /// It seals and opens nothing any more.
    Spent,
}

/// Keys that the peer may have; its first packet under them tells.
pub(super) struct Pending {
    pub keys: Keypair,
    /// The peer's, and those that the response told it.
    pub params: Params,
    pub own: Params,
    /// Where the initiation came from and the response went.
    pub from: Remote,
    pub answered: Instant,
    /// The initiation held a cookie of ours, so it is no replay.
    pub proven: bool,
}

impl Pending {
    /// When it is over, beside this session's keys.
    fn lapses(&self, session: Option<SessionId>) -> Instant {
        let is_others = session.is_some_and(|session| session != self.keys.session);
        self.keys.born + if is_others { OTHERS_PENDING } else { ERASE_AFTER }
    }
}

struct Old {
    keys: Keypair,
    /// Set while the peer sends under newer keys.
    expires: Option<Instant>,
}

/// One peer's keys.
#[derive(Default)]
pub(super) struct Keyring {
    current: Option<Keypair>,
    old: Vec<Old>,
    pending: Vec<Pending>,
    freed: Vec<u32>,
}

/// A place in the keyring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Current,
    Old(usize),
    Pending(usize),
}

impl Keypair {
    pub fn new(agreed: &Agreed, local_index: u32, ours: bool, now: Instant) -> Keypair {
        let (send, receive) = match ours {
            true => (&agreed.keys.from_initiator, &agreed.keys.from_responder),
            false => (&agreed.keys.from_responder, &agreed.keys.from_initiator),
        };
        Keypair {
            local_index,
            remote_index: agreed.remote_index,
            session: agreed.session,
            cipher: agreed.cipher,
            ours,
            heard: false,
            seal: SealingKey::new(agreed.cipher, send.as_bytes()),
            open: OpeningKey::new(agreed.cipher, receive.as_bytes()),
            born: now,
            sealed: 0,
            used: Duration::ZERO,
            opened: now,
            forgeries: 0,
        }
    }

    /// Seals a packet whose header is written; `header_len` bytes of it.
    pub fn seal(&mut self, path: PathId, number: u64, header_len: usize, packet: &mut [u8]) {
        let (header, rest) = packet.split_at_mut(header_len);
        self.seal.seal_in_place(path, number, header, rest);
        self.sealed += 1;
    }

    /// Opens a packet in place; answers the length of its payload.
    pub fn open(
        &mut self,
        now: Instant,
        number: u64,
        header: &DataHeader,
        packet: &mut [u8],
    ) -> Result<usize, PacketError> {
        if self.forgeries >= self.cipher.forgery_limit() {
            return Err(PacketError::KeyWornOut);
        }
        let path = header.path;
        let (header, rest) = packet.split_at_mut(header.len());
        let opened = self.open.open_in_place(path, number, header, rest).map_err(|_| {
            self.forgeries += 1;
            PacketError::Forged
        })?;
        self.used += now.since(self.opened).min(LONGEST_PAUSE);
        self.opened = now;
        Ok(opened)
    }

    /// As if it had sealed so many packets.
    #[cfg(test)]
    pub fn pretend_sealed(&mut self, packets: u64) {
        self.sealed = packets;
    }

    /// Time since the handshake.
    pub fn age(&self, now: Instant) -> Duration {
        now.since(self.born)
    }

    /// What is left of these keys, of which `lifetime` of use is the end.
    pub fn wear(&self, now: Instant, lifetime: Duration) -> Wear {
        let (due, age) = match self.ours {
            true => (4, RENEW_AFTER),
            false => (5, RENEW_AFTER + RESPONDER_WAITS),
        };
        // Asked for every packet, and this is nearly always the answer.
        if !self.is_worn(due, lifetime) && self.age(now) < age {
            Wear::Fresh
        } else if self.is_worn(8, lifetime) || self.age(now) >= ERASE_AFTER {
            Wear::Spent
        } else if self.is_worn(6, lifetime) {
            Wear::Overdue
        } else {
            Wear::Due
        }
    }

    fn is_worn(&self, eighths: u64, lifetime: Duration) -> bool {
        let over = |n: u64, limit: u64| n >= limit / 8 * eighths;
        over(self.sealed, self.cipher.confidentiality_limit())
            || over(self.used.as_nanos(), lifetime.as_nanos())
            || over(self.forgeries, self.cipher.forgery_limit())
    }
}

impl Keyring {
    /// Gives back the room of keys that are no more.
    pub fn give_back(&mut self) {
        self.old.shrink_to_fit();
        self.pending.shrink_to_fit();
        self.freed.shrink_to_fit();
    }

    pub fn current(&self) -> Option<&Keypair> {
        self.current.as_ref()
    }

    pub fn current_mut(&mut self) -> Option<&mut Keypair> {
        self.current.as_mut()
    }

    /// The keys that a packet to `receiver` may be under: one, except for index 0.
    pub fn slots(&self, receiver: u32) -> impl Iterator<Item = Slot> + '_ {
        let current = self.current.iter().map(|k| (Slot::Current, k));
        let pending = self.pending.iter().enumerate().map(|(i, p)| (Slot::Pending(i), &p.keys));
        let old = self.old.iter().enumerate().map(|(i, o)| (Slot::Old(i), &o.keys));
        current
            .chain(pending)
            .chain(old)
            .filter(move |(_, k)| k.local_index == receiver)
            .map(|(slot, _)| slot)
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Keypair> {
        match slot {
            Slot::Current => self.current.as_mut(),
            Slot::Old(i) => self.old.get_mut(i).map(|o| &mut o.keys),
            Slot::Pending(i) => self.pending.get_mut(i).map(|p| &mut p.keys),
        }
    }

    /// Makes `keys` the ones to send under. The ones before stay for receiving if they
    /// belong to the same session; another session's are gone (L-SE-4).
    pub fn install(&mut self, keys: Keypair) {
        let session = keys.session;
        if let Some(before) = self.current.replace(keys) {
            self.old.insert(0, Old { keys: before, expires: None });
        }
        let (kept, gone) = std::mem::take(&mut self.old)
            .into_iter()
            .partition::<Vec<_>, _>(|o| o.keys.session == session);
        self.old = kept;
        self.freed.extend(gone.iter().map(|o| o.keys.local_index));
        self.freed
            .extend(self.old.drain(MAX_OLD.min(self.old.len())..).map(|o| o.keys.local_index));
    }

    /// The peer sends under the current keys: the others expire at `expires`.
    pub fn on_heard_current(&mut self, expires: Instant) {
        if let Some(current) = &mut self.current {
            current.heard = true;
        }
        for old in &mut self.old {
            old.expires.get_or_insert(expires);
        }
    }

    /// The peer sends under old keys: they must stay.
    pub fn on_heard_old(&mut self, index: usize) {
        if let Some(old) = self.old.get_mut(index) {
            old.expires = None;
        }
    }

    /// Erases the keys whose time is over. True if those in use were worn out before they
    /// were old.
    pub fn expire(&mut self, now: Instant, lifetime: Duration) -> bool {
        let spent = |keys: &Keypair| keys.wear(now, lifetime) == Wear::Spent;
        let is_alone = self.pending.is_empty() && self.old.is_empty();
        if is_alone && !self.current.as_ref().is_some_and(spent) {
            return false; // As it is nearly always.
        }
        let current = self.current.take_if(|k| spent(k));
        let session = self.current.as_ref().map(|k| k.session);
        let lapsed = |p: &mut Pending| spent(&p.keys) || p.lapses(session) <= now;
        let pending = self.pending.extract_if(.., lapsed).map(|p| p.keys);
        let over = |old: &mut Old| old.expires.is_some_and(|at| at <= now) || spent(&old.keys);
        let old = self.old.extract_if(.., over).map(|o| o.keys);
        let worn_out = current.as_ref().is_some_and(|k| k.age(now) < ERASE_AFTER);
        self.freed.extend(current.into_iter().chain(pending).chain(old).map(|k| k.local_index));
        worn_out
    }

    /// Erases all keys that packets may be sealed under, so that only a handshake goes on.
    pub fn distrust(&mut self) {
        let pending = self.pending.drain(..).map(|p| p.keys);
        self.freed.extend(self.current.take().into_iter().chain(pending).map(|k| k.local_index));
    }

    /// When the next keys expire.
    pub fn timeout(&self) -> Option<Instant> {
        let expiring = self.old.iter().filter_map(|o| o.expires);
        let session = self.current.as_ref().map(|k| k.session);
        let pending = self.pending.iter().map(|p| p.lapses(session));
        let all = self.current.iter().chain(self.old.iter().map(|o| &o.keys));
        expiring.chain(pending).chain(all.map(|k| k.born + ERASE_AFTER)).min()
    }

    /// Whether one more pending handshake would push out one younger than `age` (L-HS-9).
    pub fn is_crowded(&self, now: Instant, age: Duration) -> bool {
        self.pending.len() >= MAX_PENDING
            && self.pending.iter().all(|p| now.since(p.answered) < age)
    }

    /// Adds a pending handshake; the oldest gives way, one without proof first.
    pub fn add_pending(&mut self, pending: Pending) {
        if self.pending.len() >= MAX_PENDING {
            let victim = self.pending.iter().position(|p| !p.proven).unwrap_or(0);
            self.freed.push(self.pending.remove(victim).keys.local_index);
        }
        self.pending.push(pending);
    }

    /// Takes out a pending handshake that its first packet confirmed. Those before it
    /// are dead: the initiator went on from them.
    pub fn take_pending(&mut self, index: usize) -> Pending {
        let confirmed = self.pending.remove(index);
        self.freed.extend(self.pending.drain(..index).map(|p| p.keys.local_index));
        confirmed
    }

    /// Drops the pending handshakes of other sessions than `session`.
    pub fn drop_pending_of_others(&mut self, session: SessionId) {
        let other = |p: &mut Pending| p.keys.session != session;
        self.freed.extend(self.pending.extract_if(.., other).map(|p| p.keys.local_index));
    }

    /// Gives back an index that no key holds.
    pub fn free(&mut self, index: u32) {
        self.freed.push(index);
    }

    /// An index that is no longer in use.
    pub fn poll_freed(&mut self) -> Option<u32> {
        self.freed.pop()
    }

    /// Empties the ring.
    pub fn clear(&mut self) {
        let all = self.current.take().into_iter().chain(self.old.drain(..).map(|o| o.keys));
        let all = all.chain(self.pending.drain(..).map(|p| p.keys));
        self.freed.extend(all.map(|k| k.local_index));
    }
}

/// What outlives keys: packet numbers both ways, of every path.
pub(super) struct Session {
    pub id: SessionId,
    spaces: Vec<Space>,
}

/// The packet numbers of one path.
pub(super) struct Space {
    path: PathId,
    pub next_number: u64,
    pub window: ReplayWindow,
}

impl Session {
    pub fn new(id: SessionId) -> Session {
        Session { id, spaces: vec![Space::new(PathId::FIRST)] }
    }

    /// The numbers of a path; `None` where nothing was sent or received on it.
    pub fn space(&self, path: PathId) -> Option<&Space> {
        self.spaces.iter().find(|s| s.path == path)
    }

    /// The same, made if they are not there.
    pub fn space_mut(&mut self, path: PathId) -> &mut Space {
        let at = match self.spaces.iter().position(|s| s.path == path) {
            Some(at) => at,
            None => {
                self.spaces.push(Space::new(path));
                self.spaces.len() - 1
            }
        };
        &mut self.spaces[at]
    }
}

impl Space {
    fn new(path: PathId) -> Space {
        Space { path, next_number: 0, window: ReplayWindow::default() }
    }
}
