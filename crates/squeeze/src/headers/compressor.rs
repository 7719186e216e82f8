//! The sender's side.

use std::collections::BTreeMap;

use units::{Duration, Instant};

use super::code::{Code, Coded, Reference, SHORT_STEPS, write_whole};
use super::history::History;
use super::payload::{self, Trial, Worth};
use super::shape::{Key, Kind, Shape, may_be_rtp};
use super::{MAX_CONTEXTS, MAX_HEADER, MAX_PAYLOAD_MEMORY};
use crate::stream::Stopwatch;

/// A flow that was idle for this long gives its context to one that needs it. With less
/// more flows than contexts would take them from each other before any was of use.
const IDLE: Duration = Duration::from_secs(5);
/// After so long without a packet nothing refers to what was sent before (L-HC-8 of spec/link.md).
pub const FORGET: Duration = Duration::from_secs(150);
/// Flows seen lately that have no context, as hashes, two in a place: packets that may be RTP
/// are looked for as two flows, which must not keep each other out. A flow gets a context with
/// its second packet: a question that is asked once has no use for it.
const SEEN: usize = 256;
/// Steps after which a new reference is due: a round trip later they still fit one byte.
const FAR: u32 = 48;

/// Names the reference that a packet carries, for [`Compressor::on_fate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    context: u16,
    slot: u8,
    serial: u64,
}

/// What stands before the part of a packet that travels as it is.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    coded: Coded,
    /// Bytes of the payload in place of which others travel.
    packed: usize,
    /// Of the packet, so many bytes do not travel.
    pub skips: usize,
}

impl Head {
    /// The bytes before.
    pub fn bytes(&self) -> &[u8] {
        self.coded.as_slice()
    }

    /// The bytes that a packet of `len` bytes becomes.
    pub fn len_of(&self, len: usize) -> usize {
        self.coded.len() + self.packed + len - self.skips
    }
}

/// A reference that was sent.
#[derive(Clone, Copy)]
struct Sent {
    reference: Reference,
    /// The flow's packets before it.
    count: u32,
    serial: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody knows yet whether it arrived.
    UnderWay,
    /// It did.
    Known,
    Lost,
}

struct Context {
    key: Key,
    last_used: Instant,
    history: History,
    slots: [Option<Sent>; 2],
    /// The payloads that packets may refer to with each.
    memory: [Vec<u8>; 2],
    worth: Worth,
    /// The youngest reference that the peer is known to have.
    in_use: Option<usize>,
}

/// What [`Compressor::compress`] prepared.
struct Plan {
    context: usize,
    shape: Shape,
    now: Instant,
    /// Does the payload shrink, if it was tried?
    shrinks: Option<bool>,
    /// A reference for this slot.
    install: Option<Install>,
}

#[derive(Clone, Copy)]
struct Install {
    slot: usize,
    reference: Reference,
    /// The payload is kept: after what is kept in this slot, if any.
    keeps: Option<Option<usize>>,
}

/// Makes few bytes of packets' headers.
pub struct Compressor {
    limit: usize,
    contexts: Vec<Context>,
    by_key: BTreeMap<Key, u16>,
    seen: Box<[[u32; 2]]>,
    /// Until then no context is idle.
    full_until: Instant,
    serial: u64,
    /// When a packet came last.
    last: Instant,
    plan: Option<Plan>,
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
            plan: None,
            trial: Trial::default(),
        }
    }

    /// The peer has room for so many contexts. What was sent by those in use counts on.
    pub fn set_contexts(&mut self, contexts: usize) {
        if self.contexts.is_empty() {
            self.limit = contexts.min(MAX_CONTEXTS);
        }
    }

    /// Refers to nothing that was sent before, and gives its memory back.
    pub fn forget(&mut self) {
        self.contexts = Vec::new();
        self.by_key = BTreeMap::new();
        self.seen = Box::default();
        self.full_until = Instant::ZERO;
        self.plan = None;
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
        self.plan = None;
        if self.limit == 0 {
            return None;
        }
        // What nobody used for long is not worth its memory.
        if now.since(self.last) >= FORGET {
            self.forget();
        }
        self.last = now;
        let (context, shape) = self.context(now, packet)?;
        let flow = &self.contexts[context];
        let mut head = Head { coded: Coded::new(), packed: 0, skips: 0 };
        let plan = Plan { context, shape, now, shrinks: None, install: None };
        let plan = self.plan.insert(plan);
        let free = flow.slot_for_next().filter(|_| flow.history.knows(&shape));
        // A memory goes on as long as the flow does: what does not shrink may do so again.
        let keeps = payload && payload::may_refer(packet, &shape);
        let Some((slot, mut code)) = flow.code(packet, &shape) else {
            let slot = free?;
            let (strides, random_id) = (*flow.history.strides(), flow.history.has_random_id());
            let reference = Reference::new(packet, shape, strides, random_id);
            head.place(context, slot);
            write_whole(&reference, keeps, &mut head.coded);
            plan.install = Some(Install { slot, reference, keeps: keeps.then_some(None) });
            return Some(head);
        };
        let Sent { reference: base, serial, .. } = flow.slots[slot].as_ref()?;
        let may_pack = keeps && !code.carries_checksum();
        if may_pack && flow.worth.is_due(packet.len() - shape.len) {
            let (payload, memory) = (&packet[shape.len..], &flow.memory[slot]);
            code.packed = self.trial.shrinks(payload, *serial, memory);
            plan.shrinks = Some(code.packed);
        }
        let shrinks = plan.shrinks.unwrap_or(flow.worth.shrinks());
        let is_due = !code.is_as_predicted()
            || code.steps > FAR
            || keeps && shrinks && flow.memory[slot].len() < MAX_PAYLOAD_MEMORY;
        if let Some(next) = free.filter(|_| is_due) {
            code.keeps = keeps;
            code.install(base, flow.history.strides());
            let keeps = keeps.then_some(Some(slot));
            let advanced = base.advanced(packet, &code);
            plan.install = advanced.map(|reference| Install { slot: next, reference, keeps });
        }
        head.place(context, slot);
        code.write(base, &mut head.coded);
        head.packed = if code.packed { self.trial.coded().len() } else { 0 };
        head.skips = if code.packed { packet.len() } else { shape.len };
        Some(head)
    }

    /// What travels in place of the payload of the last [`Compressor::compress`], after
    /// [`Head::bytes`]; nothing where it travels as it is.
    pub fn packed(&self) -> &[u8] {
        let shrinks = self.plan.as_ref().is_some_and(|plan| plan.shrinks == Some(true));
        if shrinks { self.trial.coded() } else { &[] }
    }

    /// Payloads that were worked on.
    #[cfg(test)]
    pub(super) fn runs(&self) -> u32 {
        self.trial.runs
    }

    /// The packet of the last [`Compressor::compress`] has left, compressed or (`!compressed`)
    /// as it is. What became of the token's link packet is to be told.
    pub fn on_left(&mut self, packet: &[u8], compressed: bool) -> Option<Token> {
        let plan = self.plan.take()?;
        let flow = &mut self.contexts[plan.context];
        let count = flow.history.count;
        flow.history.observe(packet, &plan.shape);
        flow.last_used = plan.now;
        flow.worth.on_left(plan.shrinks);
        let Install { slot, reference, keeps } = plan.install.filter(|_| compressed)?;
        let mut memory = std::mem::take(&mut flow.memory[slot]);
        let before = keeps.flatten().map_or(&[][..], |base| &flow.memory[base]);
        let payload = keeps.map(|_| &packet[plan.shape.len..]);
        payload::remember(&mut memory, before, payload);
        flow.memory[slot] = memory;
        self.serial += 1;
        let serial = self.serial;
        flow.slots[slot] = Some(Sent { reference, count, serial, state: State::UnderWay });
        Some(Token { context: plan.context as u16, slot: slot as u8, serial })
    }

    /// The link packet with a reference arrived, or was deemed lost; it may arrive
    /// nonetheless, but never be lost after it arrived.
    pub fn on_fate(&mut self, token: Token, arrived: bool) {
        let Some(flow) = self.contexts.get_mut(usize::from(token.context)) else { return };
        let slot = usize::from(token.slot & 1);
        let Some(sent) = flow.slots[slot].as_mut().filter(|s| s.serial == token.serial) else {
            return; // Another took its place.
        };
        if !arrived {
            if sent.state == State::UnderWay {
                sent.state = State::Lost;
            }
            return;
        }
        sent.state = State::Known;
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
        self.coded.varint((context << 1 | slot) as u32);
    }
}

impl Context {
    /// Where the next reference goes: not where one is in use or under way.
    fn slot_for_next(&self) -> Option<usize> {
        let is_free = |i: &usize| {
            let under_way = self.slots[*i].as_ref().is_some_and(|s| s.state == State::UnderWay);
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
            let mut coded = Coded::new();
            code.write(reference, &mut coded);
            if best.as_ref().is_none_or(|(len, _)| coded.len() < *len) {
                best = Some((coded.len(), code));
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
    fn candidates(&self, sent: &Sent, packet: &[u8]) -> impl Iterator<Item = u32> + use<> {
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
            let by_field = (0..fields.len()).filter(|i| reference.strides[*i] != 0);
            for (slot, i) in steps[2..].iter_mut().zip(by_field) {
                let quotient = grown(i).wrapping_div(reference.strides[i]);
                *slot = u32::try_from(quotient).ok().filter(|n| *n <= 0x1fff);
            }
        }
        steps.into_iter().flatten()
    }
}

// The first reference is confirmed a round trip after it left, and the next one as long
// after that: in between steps grow on.
const _: () = assert!(FAR < SHORT_STEPS);
