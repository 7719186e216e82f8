//! From content to items: one direction of a stream on its way to the link.

use std::collections::VecDeque;

use units::{Duration, Instant};

use super::catalogue::Known;
use super::chunker::{Chunker, HINT_AT};
use super::keys::{Hasher, Id, Scope, tag};
use super::sender::Sender;
use super::store::MIN_KEPT;
use super::wire::{Item, MAX_ITEM, MAX_REFERENCES};

/// Content that is held at the most: a chunk is judged when all of it is there.
const MAX_INPUT: usize = 64 * 1024;
/// A chunk that may be known is waited for so long after its last bytes came, and so long
/// after its first: what a server sends in one go arrives closer together (R-SETUP waits as
/// long for the first bytes of a stream).
const PAUSE: Duration = Duration::from_millis(20);
/// What is too short to say whether it begins like a known chunk, behind one that is, is waited
/// for less long: it may be the end of a message. Who never waits there sends a sixth of what the
/// peer holds, where that comes by packets of 1,448 bytes over a link that is idle between them.
const GLIMPSE: Duration = Duration::from_millis(4);
const PATIENCE: Duration = Duration::from_millis(100);
/// Nothing is waited for in a direction that had less content than this: an exchange of small
/// messages saves little and would pay with its latency.
const BULK: u64 = 16 * 1024;

/// One direction of a stream on its way to the link.
///
/// Content goes in by [`ItemEncoder::push`]; what goes to the link comes out by
/// [`ItemEncoder::pull`]. Whole chunks go as references where the peer holds them and as they are
/// where not. What is no whole chunk yet waits only while the link has other bytes of the
/// stream to send, or for 20 ms where the chunk seems to be one that the peer holds (4 ms while
/// there is too little of it to tell).
pub struct ItemEncoder {
    scope: u64,
    chunker: Chunker,
    /// Content from `at` on has not gone.
    input: Vec<u8>,
    at: usize,
    /// Where chunks end, as places in `input`.
    ends: VecDeque<End>,
    /// The id of what went of a chunk before all of it was there.
    gone: Option<Box<Hasher>>,
    /// Bytes left of the literal that was announced.
    literal: usize,
    /// The number that was named last.
    last: u64,
    /// The last chunk was referred to.
    matching: bool,
    ended: bool,
    /// Everything is to go, whatever is under way.
    hurried: bool,
    /// Since when what is held might have gone.
    first_held: Instant,
    last_push: Instant,
    /// The sender's session that the references belong to.
    session: u64,
    /// References that the receiver has not taken.
    under_way: VecDeque<UnderWay>,
    outstanding: usize,
    /// Bytes of content so far.
    pushed: u64,
    item: Vec<u8>,
}

struct End {
    at: usize,
    hint: u32,
    id: Option<Id>,
}

struct UnderWay {
    /// Where on the stream it ends, once that is known.
    offset: Option<u64>,
    first: u64,
    count: usize,
    content: usize,
}

impl ItemEncoder {
    /// A direction whose content may be known to the peer from others of the same scope.
    pub fn new(sender: &Sender, scope: Scope) -> ItemEncoder {
        ItemEncoder {
            scope: sender.keys.scope(scope),
            chunker: Chunker::default(),
            input: Vec::new(),
            at: 0,
            ends: VecDeque::new(),
            gone: None,
            literal: 0,
            last: 0,
            matching: false,
            ended: false,
            hurried: false,
            first_held: Instant::ZERO,
            last_push: Instant::ZERO,
            session: sender.session,
            under_way: VecDeque::new(),
            outstanding: 0,
            pushed: 0,
            item: Vec::new(),
        }
    }

    /// How many bytes [`ItemEncoder::push`] takes now.
    pub fn room(&self) -> usize {
        MAX_INPUT.saturating_sub(self.held())
    }

    /// Bytes of content that have not gone.
    pub fn held(&self) -> usize {
        self.input.len() - self.at
    }

    /// Content from the host. It is all taken; [`ItemEncoder::room`] tells how much is meant to
    /// be there at once.
    pub fn push(&mut self, now: Instant, sender: &Sender, content: &[u8]) {
        if self.at == self.input.len() {
            self.input.clear();
            self.at = 0;
            self.first_held = now;
        } else if self.at > MAX_INPUT / 2 {
            self.input.drain(..self.at);
            self.ends.iter_mut().for_each(|end| end.at -= self.at);
            self.at = 0;
        }
        self.last_push = now;
        self.pushed += content.len() as u64;
        let mut from = self.input.len();
        self.input.extend_from_slice(content);
        while let Some(n) = self.chunker.scan(&sender.keys, &self.input[from..]) {
            from += n;
            self.ends.push_back(End { at: from, hint: self.chunker.hint(), id: None });
        }
    }

    /// The host ends its direction: what is held is the last chunk.
    pub fn finish(&mut self) {
        let begun = self.ends.back().map_or(self.at, |end| end.at) < self.input.len();
        if !self.ended && begun {
            let hint = if self.chunker.len() < HINT_AT { 0 } else { self.chunker.hint() };
            self.ends.push_back(End { at: self.input.len(), hint, id: None });
        }
        self.ended = true;
    }

    /// The next [`ItemEncoder::pull`] gives all that is held: what may not be referred to now goes
    /// as it is, and nothing is waited for.
    pub fn hurry(&mut self) {
        self.hurried = true;
    }

    /// The peer takes nothing more of the direction: what is held goes nowhere.
    pub fn give_up(&mut self) {
        (self.input, self.at, self.literal) = (Vec::new(), 0, 0);
        self.ends.clear();
        self.gone = None;
    }

    /// References are under way: the stream's credit matters ([`ItemEncoder::consumed`]).
    pub fn is_referring(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Everything has gone, and the host has ended its direction.
    pub fn is_done(&self) -> bool {
        self.ended && self.held() == 0
    }

    /// Gives to `put` what goes to the link now; answers how many bytes. That is at most
    /// `room`, if it is not zero, and what is left of one head beyond it (154 bytes).
    ///
    /// `window` is how much content may be under way as references (L-DD-8): the stream
    /// window of the peer. `idle` says that the link has nothing left of this stream.
    pub fn pull(
        &mut self,
        now: Instant,
        sender: &mut Sender,
        (room, window): (usize, usize),
        idle: bool,
        put: &mut dyn FnMut(&[u8]),
    ) -> usize {
        let mut done = 0;
        while done < room && (self.held() > 0) {
            if self.literal > 0 {
                let n = self.literal.min(room - done);
                put(&self.input[self.at..self.at + n]);
                self.at += n;
                self.literal -= n;
                done += n;
                continue;
            }
            self.item.clear();
            let go_on = match self.ends.front() {
                Some(_) if self.gone.is_some() => self.literal_chunk(now, sender),
                Some(_) => match self.references(now, sender, window) {
                    Some(0) => self.literal_chunk(now, sender),
                    Some(_) => true,
                    None if self.hurried => self.literal_chunk(now, sender),
                    None => false,
                },
                None => idle && self.part(now, sender),
            };
            if !go_on {
                break;
            }
            put(&self.item);
            done += self.item.len();
        }
        if self.held() == 0 && idle {
            // Who rests holds nothing.
            (self.input, self.at) = (Vec::new(), 0);
            self.item = Vec::new();
        }
        done
    }

    /// Refers to as many chunks as there are and the peer holds in a row, if any; answers
    /// how many. `None`: not now, too many are under way.
    fn references(&mut self, now: Instant, sender: &mut Sender, window: usize) -> Option<usize> {
        let (mut first, mut count, mut at) = (0, 0, self.at);
        let mut blocked = false;
        while count < MAX_REFERENCES {
            let Some(end) = self.ends.get_mut(count) else { break };
            let chunk = &self.input[at..end.at];
            let id = *end.id.get_or_insert_with(|| sender.keys.id(chunk));
            let Known::Held(number) = sender.catalogue.known(self.scope, &id) else { break };
            if count > 0 && number != first + count as u64 {
                break;
            }
            let outstanding = self.outstanding + (end.at - self.at);
            if outstanding > window && (self.outstanding > 0 || count > 0) {
                blocked = true;
                break;
            }
            // No room to keep it for the peer: it goes as it is.
            let own = self.outstanding + (at - self.at);
            let may = sender.keeps(number) || outstanding <= sender.fair(own);
            if !may || !sender.keep(number, chunk) {
                break;
            }
            if count == 0 {
                first = number;
            }
            at = end.at;
            count += 1;
        }
        if count == 0 {
            return if blocked { None } else { Some(0) };
        }
        Item::References { first, count }.write(self.last, &mut self.item);
        for end in self.ends.drain(..count) {
            self.item.extend_from_slice(&tag(&end.id.expect("it was looked up by its id")));
        }
        debug_assert!(self.item.len() <= MAX_ITEM);
        self.last = first + count as u64 - 1;
        let content = at - self.at;
        self.under_way.push_back(UnderWay { offset: None, first, count, content });
        self.outstanding += content;
        sender.referred += count as u64;
        (self.at, self.matching, self.first_held) = (at, true, now);
        Some(count)
    }

    /// Announces what is left of the next chunk, and names the chunk.
    fn literal_chunk(&mut self, now: Instant, sender: &mut Sender) -> bool {
        let Some(end) = self.ends.pop_front() else { return false };
        let chunk = &self.input[self.at..end.at];
        let short = self.gone.is_none() && chunk.len() < MIN_KEPT;
        let id = match (self.gone.take(), end.id) {
            (Some(mut hasher), _) => {
                hasher.update(chunk);
                hasher.finish()
            }
            (None, Some(id)) => id,
            (None, None) => sender.keys.id(chunk),
        };
        // What is too short to be kept is not named.
        let number = (!short).then(|| sender.catalogue.name(self.scope, id, end.hint)).flatten();
        self.literal = chunk.len();
        Item::Chunk { number, len: self.literal }.write(self.last, &mut self.item);
        self.last = number.unwrap_or(self.last);
        (self.matching, self.first_held) = (false, now);
        true
    }

    /// Announces what there is of a chunk that is not whole, unless it is worth waiting.
    fn part(&mut self, now: Instant, sender: &Sender) -> bool {
        if self.wait(sender).is_some_and(|until| until > now) {
            return false;
        }
        let part = &self.input[self.at..];
        let hasher = self.gone.get_or_insert_with(|| Box::new(sender.keys.hasher()));
        hasher.update(part);
        self.literal = part.len();
        self.matching = false;
        Item::Literal(self.literal).write(self.last, &mut self.item);
        true
    }

    /// Until when a chunk that is not whole is waited for although the link is idle.
    fn wait(&self, sender: &Sender) -> Option<Instant> {
        let seen = self.chunker.len() >= HINT_AT;
        let (known, pause) =
            if seen { (self.begins(sender), PAUSE) } else { (self.matching, GLIMPSE) };
        let worth = self.gone.is_none() && known && self.pushed >= BULK && !self.hurried;
        let after = |at: Instant, wait: Duration| {
            Instant::from_nanos(at.as_nanos().saturating_add(wait.as_nanos()))
        };
        // What stood behind other chunks could not have gone before.
        let since = self.last_push.max(self.first_held);
        worth.then(|| after(since, pause).min(after(self.first_held, PATIENCE)))
    }

    fn begins(&self, sender: &Sender) -> bool {
        sender.catalogue.begins(self.scope, self.chunker.hint())
    }

    /// When [`ItemEncoder::pull`] is to be called again, idle link or not: a chunk that is not
    /// whole has been waited for long enough then.
    pub fn poll_timeout(&self, sender: &Sender) -> Option<Instant> {
        if self.held() == 0 || self.literal > 0 || !self.ends.is_empty() {
            return None;
        }
        self.wait(sender)
    }

    /// All that was pulled lies below `offset` on the stream: its credit tells when it has
    /// been taken.
    pub fn written(&mut self, offset: u64) {
        for under_way in self.under_way.iter_mut().rev() {
            if under_way.offset.is_some() {
                break;
            }
            under_way.offset = Some(offset);
        }
    }

    /// The far host has taken all that lies below `offset` on the stream (CREDIT).
    pub fn consumed(&mut self, sender: &mut Sender, offset: u64) {
        while self.under_way.front().is_some_and(|u| u.offset.is_some_and(|end| end <= offset)) {
            self.release_first(sender);
        }
    }

    /// The stream is over. To be called before the encoder is dropped.
    pub fn close(&mut self, sender: &mut Sender) {
        while !self.under_way.is_empty() {
            self.release_first(sender);
        }
    }

    fn release_first(&mut self, sender: &mut Sender) {
        let Some(under_way) = self.under_way.pop_front() else { return };
        self.outstanding -= under_way.content;
        if self.session == sender.session {
            (0..under_way.count as u64).for_each(|n| sender.release(under_way.first + n));
        }
    }
}
