//! The compressor: the sender's end of header compression.

use std::collections::BTreeMap;

use units::{Duration, Instant};

use super::code::{Code, HeadBytes, Reference, SHORT_STEPS, write_whole};
use super::history::History;
use super::payload::{self, Trial, Worth};
use super::shape::{Key, Kind, Shape, may_be_rtp};
use super::{MAX_CONTEXTS, MAX_HEADER, MAX_PAYLOAD_MEMORY};
use crate::stream::Stopwatch;

/// A flow that was idle for this long may lose its context to another. A shorter time would let
/// many flows take contexts from each other before any of them is of use.
const IDLE: Duration = Duration::from_secs(5);
/// After this time without a packet no earlier reference is used (L-HC-8 of spec/link.md).
pub const FORGET: Duration = Duration::from_secs(150);
/// Hashes of recent flows that have no context yet, two in a place: a packet that may be RTP is
/// looked up as two flows, which must not evict each other. A flow gets a context with its second
/// packet: a single query would not use it.
const SEEN: usize = 256;
/// Steps after which a new reference is due, so that a round trip later they still fit one byte.
const FAR: u32 = 48;

/// Names the reference that a packet carries, for [`Compressor::on_fate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    context: u16,
    slot: u8,
    serial: u64,
}

/// The bytes that replace the header of a packet, and its payload where that is compressed.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: HeadBytes,
    /// Length of the compressed payload, 0 if it is sent as it is.
    packed: usize,
    /// Bytes at the packet's begin that are not sent.
    pub skips: usize,
}

impl Head {
    /// The compressed header.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// The compressed length of a packet of `len` bytes.
    pub fn len_of(&self, len: usize) -> usize {
        self.bytes.len() + self.packed + len - self.skips
    }
}

/// A reference that was sent.
#[derive(Clone, Copy)]
struct SentReference {
    reference: Reference,
    /// The flow's packets before it.
    count: u32,
    serial: u64,
    state: ReferenceState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReferenceState {
    /// Sent, neither acknowledged nor lost yet.
    UnderWay,
    Acked,
    Lost,
}

struct Context {
    key: Key,
    last_used: Instant,
    history: History,
    slots: [Option<SentReference>; 2],
    /// The payloads that belong to each reference, as a dictionary.
    memory: [Vec<u8>; 2],
    worth: Worth,
    /// The slot of the youngest acknowledged reference.
    in_use: Option<usize>,
}

/// The packet that [`Compressor::compress`] prepared.
struct Prepared {
    context: usize,
    shape: Shape,
    now: Instant,
    /// Whether the payload shrinks; `None`: not tried.
    shrinks: Option<bool>,
    /// The reference that it becomes.
    install: Option<Install>,
}

#[derive(Clone, Copy)]
struct Install {
    slot: usize,
    reference: Reference,
    /// The payload is kept, after the memory of this slot, if any; `None`: it is not kept.
    keeps: Option<Option<usize>>,
}

/// Compresses the headers of packets.
pub struct Compressor {
    limit: usize,
    contexts: Vec<Context>,
    by_key: BTreeMap<Key, u16>,
    seen: Box<[[u32; 2]]>,
    /// No context is idle before this time.
    full_until: Instant,
    serial: u64,
    /// When the last packet was compressed.
    last: Instant,
    prepared: Option<Prepared>,
    trial: Trial,
}

impl Compressor {
    /// With at most as many contexts as the peer has, and [`MAX_CONTEXTS`]; 0: every packet
    /// goes as it is. Memory, about 900 bytes for each and 4 kB where payloads shrink, is
    /// taken when flows come, and up to 18 kB for the payload that was tried last.
    pub fn new(contexts: usize) -> Compressor {
        Compressor {
            limit: contexts.min(MAX_CONTEXTS),
            contexts: Vec::new(),
            by_key: BTreeMap::new(),
            seen: Box::default(),
            full_until: Instant::ZERO,
            serial: 0,
            last: Instant::ZERO,
            prepared: None,
            trial: Trial::default(),
        }
    }

    /// The peer keeps this many contexts. Ignored once contexts are in use.
    pub fn set_contexts(&mut self, contexts: usize) {
        if self.contexts.is_empty() {
            self.limit = contexts.min(MAX_CONTEXTS);
        }
    }

    /// Forgets all references, and frees the memory.
    pub fn forget(&mut self) {
        self.contexts = Vec::new();
        self.by_key = BTreeMap::new();
        self.seen = Box::default();
        self.full_until = Instant::ZERO;
        self.prepared = None;
        self.trial.give_back();
    }

    /// Measures the work on payloads by this clock of processor time.
    pub fn set_stopwatch(&mut self, stopwatch: Option<Stopwatch>) {
        self.trial.meter.stopwatch = stopwatch;
    }

    /// The time that payloads have taken so far; zero without a stopwatch.
    pub fn spent(&self) -> Duration {
        self.trial.meter.spent
    }

    /// What the packet becomes; `None`: it goes as it is. Where it has left in a link
    /// packet, as it is or compressed, [`Compressor::on_left`] follows before the next. One
    /// that has not may come again, or another.
    /// `payload`: the link is so slow that its payload is worth a try.
    pub fn compress(&mut self, now: Instant, packet: &[u8], payload: bool) -> Option<Head> {
        self.prepared = None;
        if self.limit == 0 {
            return None;
        }
        // After a long pause all references are forgotten (L-HC-8).
        if now.since(self.last) >= FORGET {
            self.forget();
        }
        self.last = now;
        let (context, shape) = self.context(now, packet)?;
        let flow = &self.contexts[context];
        let mut head = Head { bytes: HeadBytes::new(), packed: 0, skips: 0 };
        let prepared = Prepared { context, shape, now, shrinks: None, install: None };
        let prepared = self.prepared.insert(prepared);
        let free = flow.slot_for_next().filter(|_| flow.history.knows(&shape));
        // Payloads are kept even while they do not shrink: later ones may.
        let keeps = payload && payload::may_refer(packet, &shape);
        let Some((slot, mut code)) = flow.code(packet, &shape) else {
            let slot = free?;
            let (deltas, random_id) = (*flow.history.deltas(), flow.history.has_random_id());
            let reference = Reference::new(packet, shape, deltas, random_id);
            head.place(context, slot);
            write_whole(&reference, keeps, &mut head.bytes);
            prepared.install = Some(Install { slot, reference, keeps: keeps.then_some(None) });
            return Some(head);
        };
        let SentReference { reference: base, serial, .. } = flow.slots[slot].as_ref()?;
        let may_pack = keeps && !code.carries_checksum();
        if may_pack && flow.worth.is_due(packet.len() - shape.len) {
            let (payload, memory) = (&packet[shape.len..], &flow.memory[slot]);
            code.packed = self.trial.shrinks(payload, *serial, memory);
            prepared.shrinks = Some(code.packed);
        }
        let shrinks = prepared.shrinks.unwrap_or(flow.worth.shrinks());
        let is_due = !code.is_as_predicted()
            || code.steps > FAR
            || keeps && shrinks && flow.memory[slot].len() < MAX_PAYLOAD_MEMORY;
        if let Some(next) = free.filter(|_| is_due) {
            code.keeps = keeps;
            code.install(base, flow.history.deltas());
            let keeps = keeps.then_some(Some(slot));
            let advanced = base.advanced(packet, &code);
            prepared.install = advanced.map(|reference| Install { slot: next, reference, keeps });
        }
        head.place(context, slot);
        code.write(base, &mut head.bytes);
        head.packed = if code.packed { self.trial.compressed().len() } else { 0 };
        head.skips = if code.packed { packet.len() } else { shape.len };
        Some(head)
    }

    /// What travels in place of the payload of the last [`Compressor::compress`], after
    /// [`Head::bytes`]; nothing where it travels as it is.
    pub fn packed(&self) -> &[u8] {
        let shrinks = self.prepared.as_ref().is_some_and(|prepared| prepared.shrinks == Some(true));
        if shrinks { self.trial.compressed() } else { &[] }
    }

    /// Payloads that were worked on.
    #[cfg(test)]
    pub(super) fn runs(&self) -> u32 {
        self.trial.runs
    }

    /// The packet of the last [`Compressor::compress`] has not left, and another one is next.
    pub fn forget_prepared(&mut self) {
        self.prepared = None;
    }

    /// The packet of the last [`Compressor::compress`] has left, compressed or (`!compressed`)
    /// as it is. What became of the token's link packet is to be told.
    pub fn on_left(&mut self, packet: &[u8], compressed: bool) -> Option<Token> {
        let prepared = self.prepared.take()?;
        let flow = &mut self.contexts[prepared.context];
        let count = flow.history.count;
        flow.history.observe(packet, &prepared.shape);
        flow.last_used = prepared.now;
        flow.worth.on_left(prepared.shrinks);
        let Install { slot, reference, keeps } = prepared.install.filter(|_| compressed)?;
        let mut memory = std::mem::take(&mut flow.memory[slot]);
        let before = keeps.flatten().map_or(&[][..], |base| &flow.memory[base]);
        let payload = keeps.map(|_| &packet[prepared.shape.len..]);
        payload::remember(&mut memory, before, payload);
        flow.memory[slot] = memory;
        self.serial += 1;
        let serial = self.serial;
        flow.slots[slot] =
            Some(SentReference { reference, count, serial, state: ReferenceState::UnderWay });
        Some(Token { context: prepared.context as u16, slot: slot as u8, serial })
    }

    /// The link packet with a reference arrived, or was deemed lost; it may arrive
    /// nonetheless, but never be lost after it arrived.
    pub fn on_fate(&mut self, token: Token, arrived: bool) {
        let Some(flow) = self.contexts.get_mut(usize::from(token.context)) else { return };
        let slot = usize::from(token.slot & 1);
        let Some(sent) = flow.slots[slot].as_mut().filter(|s| s.serial == token.serial) else {
            return; // The slot has another reference by now.
        };
        if !arrived {
            if sent.state == ReferenceState::UnderWay {
                sent.state = ReferenceState::Lost;
            }
            return;
        }
        sent.state = ReferenceState::Acked;
        let before = flow.in_use.and_then(|i| flow.slots[i].as_ref()).map_or(0, |s| s.serial);
        if token.serial > before {
            flow.in_use = Some(slot);
        }
    }

    // ---- flows -------------------------------------------------------------------

    /// The context of the packet's flow, made where it is worth one.
    fn context(&mut self, now: Instant, packet: &[u8]) -> Option<(usize, Shape)> {
        let shape = Shape::of(packet)?;
        if shape.kind == Kind::Udp
            && may_be_rtp(packet, &shape)
            && let Some(rtp) = Shape::read(packet, Kind::Rtp)
            && let Some(context) = self.find(now, rtp.key(packet))
        {
            return Some((context, rtp));
        }
        Some((self.find(now, shape.key(packet))?, shape))
    }

    fn find(&mut self, now: Instant, key: Key) -> Option<usize> {
        if let Some(context) = self.by_key.get(&key) {
            return Some(usize::from(*context));
        }
        if !self.was_seen(&key) || now < self.full_until {
            return None;
        }
        let flow = Context {
            key,
            last_used: now,
            history: History::default(),
            slots: [None, None],
            memory: [Vec::new(), Vec::new()],
            worth: Worth::default(),
            in_use: None,
        };
        let place = if self.contexts.len() < self.limit {
            self.contexts.push(flow);
            self.contexts.len() - 1
        } else {
            let (place, oldest) =
                self.contexts.iter_mut().enumerate().min_by_key(|(_, c)| c.last_used)?;
            self.full_until = oldest.last_used + IDLE;
            if now < self.full_until {
                return None;
            }
            self.by_key.remove(&oldest.key);
            *oldest = flow;
            place
        };
        self.by_key.insert(key, place as u16);
        Some(place)
    }

    /// Was there a packet of the flow lately?
    fn was_seen(&mut self, key: &Key) -> bool {
        if self.seen.is_empty() {
            self.seen = vec![[0; 2]; SEEN].into_boxed_slice();
        }
        // FNV-1a with 32 bits.
        let hash = key.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        let seen = &mut self.seen[hash as usize % SEEN];
        let was_seen = seen.contains(&hash);
        if seen[0] != hash {
            *seen = [hash, seen[0]];
        }
        was_seen
    }
}

impl Head {
    fn place(&mut self, context: usize, slot: usize) {
        self.bytes.varint((context << 1 | slot) as u32);
    }
}

impl Context {
    /// Where the next reference goes: not where one is in use or under way.
    fn slot_for_next(&self) -> Option<usize> {
        let is_free = |i: &usize| {
            let under_way =
                self.slots[*i].as_ref().is_some_and(|s| s.state == ReferenceState::UnderWay);
            self.in_use != Some(*i) && !under_way
        };
        [0, 1].into_iter().find(is_free)
    }

    /// The shortest form of the packet by the reference in use, and its slot. `None` where
    /// there is no reference, or the packet is not what the receiver would make of it.
    fn code(&self, packet: &[u8], shape: &Shape) -> Option<(usize, Code)> {
        let slot = self.in_use?;
        let sent = self.slots[slot].as_ref()?;
        let reference = &sent.reference;
        let turned_random = self.history.has_random_id() && !reference.random_id;
        if reference.shape != *shape || turned_random && shape.id.is_some() {
            return None;
        }
        let mut best: Option<(usize, Code)> = None;
        for steps in self.candidates(sent, packet) {
            let code = reference.code(packet, steps);
            let mut bytes = HeadBytes::new();
            code.write(reference, &mut bytes);
            if best.as_ref().is_none_or(|(len, _)| bytes.len() < *len) {
                best = Some((bytes.len(), code));
            }
        }
        let (_, mut code) = best?;
        let (header, payload) = packet.split_at(shape.len);
        let mut made = [0; MAX_HEADER];
        let mut is_same = |code: &Code| {
            let len = reference.header(code, payload, &mut made);
            len.is_some_and(|len| made[..len] == *header)
        };
        if !is_same(&code) {
            code.carry_checksum(packet, shape);
            if !is_same(&code) {
                return None;
            }
        }
        Some((slot, code))
    }

    /// Steps that may explain the packet: those of the field that counts; else the packets
    /// since, or what one of the fields says.
    fn candidates(&self, sent: &SentReference, packet: &[u8]) -> impl Iterator<Item = u32> + use<> {
        let reference = &sent.reference;
        let fields = reference.shape.fields();
        let mut steps = [None; 6];
        let grown =
            |i: usize| fields[i].difference(fields[i].get(packet), reference.value(fields[i]));
        if reference.shape.counts() {
            // Steps back, where packets overtook each other, are told as a difference.
            steps[0] = Some(u32::try_from(grown(0)).unwrap_or(0));
        } else {
            steps[0] = Some(0);
            steps[1] = Some(self.history.count.wrapping_sub(sent.count));
            let by_field = (0..fields.len()).filter(|i| reference.deltas[*i] != 0);
            for (slot, i) in steps[2..].iter_mut().zip(by_field) {
                let quotient = grown(i).wrapping_div(reference.deltas[i]);
                *slot = u32::try_from(quotient).ok().filter(|n| *n <= 0x1fff);
            }
        }
        steps.into_iter().flatten()
    }
}

// The first reference is confirmed a round trip after it left, and the next one as long
// after that: in between steps grow on.
const _: () = assert!(FAR < SHORT_STEPS);
