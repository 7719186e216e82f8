//! A sender, a receiver and streams between them.

use std::sync::Arc;

use units::{Duration, Instant, Rng};

use super::disk::Disk;
use crate::dedup::{
    Bad, Dedup, ItemDecoder, ItemEncoder, Keys, Limits, PLAIN, Recovery, Scope, Shown,
};

pub const WINDOW: usize = 1 << 20;

pub fn limits() -> Limits {
    Limits { memory: 1 << 20, disk: 64 << 20, ..Limits::default() }
}

pub fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// One node's end of the link, with its files.
pub struct Node {
    pub dedup: Dedup,
    pub disk: Disk,
}

/// Two nodes. Streams go from `near` to `far`.
pub struct Pair {
    pub keys: Arc<Keys>,
    pub limits: Limits,
    pub near: Node,
    pub far: Node,
    pub now: Instant,
    /// Bytes of messages, there and back.
    pub messages: (usize, usize),
}

/// One direction of a stream.
pub struct Stream {
    pub key: u64,
    pub content: Vec<u8>,
    pub pushed: usize,
    pub encoder: ItemEncoder,
    pub decoder: ItemDecoder,
    /// What is on the way, and where it begins on the stream.
    pub wire: Vec<u8>,
    pub begin: u64,
    pub got: Vec<u8>,
    pub cost: usize,
    pub ended: bool,
    /// Without a scope: how much went as it is (L-DD-1).
    plain: Option<usize>,
}

impl Stream {
    pub fn new(pair: &Pair, key: u64, scope: Option<Scope>, content: Vec<u8>) -> Stream {
        let sender = &pair.near.dedup.sender;
        let encoder = ItemEncoder::new(sender, scope.unwrap_or(Scope::Lan));
        Stream {
            key,
            content,
            pushed: 0,
            encoder,
            decoder: ItemDecoder::default(),
            wire: Vec::new(),
            begin: 0,
            got: Vec::new(),
            cost: 0,
            ended: false,
            plain: if scope.is_none() { Some(0) } else { None },
        }
    }

    /// The host gives up to `most` bytes.
    pub fn push(&mut self, pair: &mut Pair, most: usize) {
        let n = most.min(self.encoder.room()).min(self.content.len() - self.pushed);
        if n > 0 {
            let piece = &self.content[self.pushed..self.pushed + n];
            if self.plain.is_none() {
                self.encoder.push(pair.now, &pair.near.dedup.sender, piece);
            }
            self.pushed += n;
        }
        if self.pushed == self.content.len() && !self.ended {
            self.encoder.finish();
            self.ended = true;
        }
    }

    /// The link takes up to `room` bytes.
    pub fn pull(&mut self, pair: &mut Pair, room: usize, window: usize, idle: bool) -> usize {
        if let Some(gone) = &mut self.plain {
            let n = room.min(self.pushed - *gone);
            let mark = if *gone == 0 && n > 0 { &PLAIN[..] } else { &[] };
            self.wire.extend([mark, &self.content[*gone..*gone + n]].concat());
            *gone += n;
            self.cost += mark.len() + n;
            return mark.len() + n;
        }
        let (wire, sender) = (&mut self.wire, &mut pair.near.dedup.sender);
        let mut put = |bytes: &[u8]| wire.extend_from_slice(bytes);
        let n = self.encoder.pull(pair.now, sender, (room, window), idle, &mut put);
        assert!(n <= room + 160, "{n} bytes where there was room for {room}");
        self.cost += n;
        self.encoder.written(self.begin + self.wire.len() as u64);
        n
    }

    /// The far host takes up to `most` bytes of what has `arrived`; answers how many.
    pub fn take(&mut self, pair: &mut Pair, arrived: usize, most: usize) -> Result<usize, Bad> {
        let (mut at, mut taken) = (0, 0);
        let receiver = &mut pair.far.dedup.receiver;
        let result = loop {
            let rest = &self.wire[at..arrived.min(self.wire.len()).max(at)];
            let (a, b) = rest.split_at(rest.len() / 3);
            match self.decoder.show(receiver, self.key, &[a, b]) {
                Err(bad) => break Err(bad),
                Ok(Shown::Waiting | Shown::More) => break Ok(taken),
                Ok(Shown::Head(n)) => {
                    assert!(n > 0);
                    at += n;
                }
                Ok(Shown::Content(content)) => {
                    let n = content.len().min(most - taken);
                    self.got.extend_from_slice(&content[..n]);
                    taken += n;
                    at += self.decoder.took(receiver, n);
                    if n == 0 {
                        break Ok(taken);
                    }
                }
                Ok(Shown::AsItIs(n)) => {
                    let n = (n as usize).min(rest.len()).min(most - taken);
                    self.got.extend_from_slice(&rest[..n]);
                    taken += n;
                    at += self.decoder.took(receiver, n);
                    if n == 0 {
                        break Ok(taken);
                    }
                }
            }
        };
        self.wire.drain(..at);
        self.begin += at as u64;
        result
    }

    pub fn credit(&mut self, pair: &mut Pair) {
        self.encoder.consumed(&mut pair.near.dedup.sender, self.begin);
    }

    pub fn is_over(&self) -> bool {
        let went = self.plain.is_none_or(|gone| gone == self.content.len());
        went && self.encoder.is_done()
            && self.wire.is_empty()
            && self.got.len() == self.content.len()
    }

    pub fn close(&mut self, pair: &mut Pair) {
        self.encoder.close(&mut pair.near.dedup.sender);
        self.decoder.close(&mut pair.far.dedup.receiver, self.key);
    }
}

impl Pair {
    pub fn new(limits: Limits) -> Pair {
        let keys = Arc::new(Keys::new(&[42; 32]));
        let node = |epoch| {
            let store = Recovery::new(keys.clone(), limits.memory, limits.disk).finish(epoch);
            Node { dedup: Dedup::new(keys.clone(), store, &limits), disk: Disk::default() }
        };
        let (near, far) = (node(1), node(2));
        Pair { keys, limits, near, far, now: Instant::ZERO, messages: (0, 0) }
    }

    pub fn later(&mut self, time: Duration) {
        self.now = Instant::from_nanos(self.now.as_nanos() + time.as_nanos());
    }

    /// All messages, both ways, and all that is to be done with files.
    pub fn exchange(&mut self) {
        self.exchange_with(true);
    }

    pub fn exchange_with(&mut self, news: bool) {
        loop {
            self.near.disk.serve(&mut self.near.dedup);
            self.far.disk.serve(&mut self.far.dedup);
            let mut message = Vec::new();
            if self.far.dedup.poll_message(news, &mut message) {
                self.messages.1 += message.len();
                self.near.dedup.handle_message(&message);
            } else if self.near.dedup.poll_message(news, &mut message) {
                self.messages.0 += message.len();
                self.far.dedup.handle_message(&message);
            } else {
                return;
            }
        }
    }

    /// A session begins.
    pub fn begin(&mut self) {
        self.near.dedup.begin_session();
        self.far.dedup.begin_session();
        self.exchange();
    }

    /// Sends `content` by a stream of its own; answers what it cost on it.
    pub fn send(&mut self, scope: Option<Scope>, content: &[u8], piece: usize) -> usize {
        self.send_over(scope, content, piece, true)
    }

    /// The same over a link that is `idle` between any two reads, or never.
    pub fn send_over(
        &mut self,
        scope: Option<Scope>,
        content: &[u8],
        piece: usize,
        idle: bool,
    ) -> usize {
        let mut stream = Stream::new(self, 1, scope, content.to_vec());
        let mut turns = 0;
        while !stream.is_over() {
            stream.push(self, piece);
            stream.pull(self, 64 * 1024, WINDOW, idle);
            let arrived = stream.wire.len();
            stream.take(self, arrived, usize::MAX).expect("what an encoder made");
            stream.credit(self);
            // News leaves a few times a round trip.
            self.exchange_with(turns % 100 == 99);
            self.later(Duration::from_millis(1));
            turns += 1;
            assert!(turns < 100_000, "{} of {} bytes", stream.got.len(), content.len());
        }
        assert!(stream.got == content, "what came is what was sent");
        assert!(stream.decoder.is_whole());
        stream.close(self);
        self.exchange();
        assert_eq!(self.near.dedup.sender.sources(), 0, "what was taken is kept no more");
        stream.cost
    }

    /// The far program dies, without a word, and starts again over its files.
    pub fn restart_far(&mut self, fresh: u64) {
        self.far.dedup = self.far.disk.recover(&self.keys, &self.limits, fresh);
        self.begin();
    }

    pub fn restart_near(&mut self, fresh: u64) {
        self.near.dedup = self.near.disk.recover(&self.keys, &self.limits, fresh);
        self.begin();
    }
}
