//! Two sockets joined: what one host sends the other receives, ends and resets included. A reset
//! is passed on behind all that its host gave before.

use std::io::{ErrorKind, IoSlice};

use os::poll::Event;
use os::tcp::Stream;

/// Bytes moved at once, and the most that waits for a socket with no room.
pub const PIECE: usize = 64 * 1024;
/// Pieces before others have their turn.
const ROUNDS: usize = 8;

/// One socket and what is known of it.
pub struct Side {
    pub stream: Stream,
    readable: bool,
    writable: bool,
    failed: bool,
    /// Its host reset: nothing is written to it any more, and what it gave before is still read.
    dead: bool,
    /// Bytes came since the kernel was last asked to acknowledge.
    arrived: bool,
}

/// What flows one way.
#[derive(Default)]
struct Half {
    /// Read and not yet written.
    waiting: Vec<u8>,
    input_ended: bool,
    output_ended: bool,
    bytes: u64,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing to do until there is news.
    Rests,
    /// It gave way to others.
    HasMore,
    /// Drop both when their hosts have all that was written: both ends were relayed, and they close
    /// in good order, or one side reset, and so shall the other.
    Ended,
}

/// A connection through this host.
pub struct Pair {
    /// The client's socket and the server's.
    pub sides: [Side; 2],
    /// From the client, and to it.
    halves: [Half; 2],
    /// See [`Turn::Ended`].
    ended: bool,
    pub queued: bool,
}

impl Side {
    /// A socket of which nothing is known yet.
    pub fn new(stream: Stream) -> Side {
        Side { stream, readable: true, writable: true, failed: false, dead: false, arrived: false }
    }

    /// Has it bytes, or an end, that its host has not acknowledged?
    pub fn is_under_way(&self) -> bool {
        self.stream.under_way() > 0
    }

    fn on_event(&mut self, event: Event) {
        self.readable |= event.readable;
        self.arrived |= event.readable;
        self.writable |= event.writable;
        self.failed |= event.failed;
    }

    /// Has its host reset? The look takes the error away: a later read tells of an end where
    /// there is none.
    fn look(&mut self) {
        if std::mem::take(&mut self.failed) {
            self.dead |= matches!(self.stream.take_error(), Ok(Some(_)));
        }
    }

    /// What arrived while nobody can take it is acknowledged at once, and not after 40 ms.
    fn acknowledge(&mut self) {
        if std::mem::take(&mut self.arrived) {
            // Without it the kernel acknowledges a little later.
            let _ = self.stream.acknowledge();
        }
    }
}

impl Pair {
    /// Joins a client's socket and a server's.
    pub fn new(client: Stream, server: Stream) -> Pair {
        Pair {
            sides: [Side::new(client), Side::new(server)],
            halves: Default::default(),
            ended: false,
            queued: false,
        }
    }

    /// The poller has news of the client's socket (0) or the server's (1).
    pub fn on_event(&mut self, side: usize, event: Event) {
        self.sides[side].on_event(event);
    }

    /// Bytes from the client, and to it.
    pub fn bytes(&self) -> [u64; 2] {
        [self.halves[0].bytes, self.halves[1].bytes]
    }

    /// What keeps the pair: bytes that were not written yet, and bytes and ends that hosts have not
    /// acknowledged. 0: it may be dropped.
    pub fn left(&self) -> u64 {
        let waiting = self.halves.iter().map(|half| half.waiting.len() as u64);
        let under_way = self.sides.iter().map(|side| side.stream.under_way() as u64);
        waiting.chain(under_way).sum::<u64>() + u64::from(!self.ended)
    }

    /// Has one host reset, and the other not everything yet that came before?
    pub fn is_resetting(&self) -> bool {
        !self.ended && self.sides.iter().any(|side| side.dead)
    }

    /// Moves what can be moved. `buffer` is at least [`PIECE`] long.
    pub fn turn(&mut self, buffer: &mut [u8]) -> Turn {
        let turn = self.move_bytes(buffer);
        self.ended |= turn == Turn::Ended;
        turn
    }

    fn move_bytes(&mut self, buffer: &mut [u8]) -> Turn {
        self.sides.iter_mut().for_each(Side::look);
        let [client, server] = &mut self.sides;
        let [up, down] = &mut self.halves;
        let more = up.pass(client, server, buffer) | down.pass(server, client, buffer);
        let ends = |from: &Side, half: &Half, to: &Side| from.dead && (to.dead || half.is_given());
        if ends(client, up, server) || ends(server, down, client) {
            return Turn::Ended;
        }
        if self.halves.iter().all(|half| half.output_ended) {
            for side in &self.sides {
                let _ = side.stream.close_in_order();
            }
            return Turn::Ended;
        }
        if more { Turn::HasMore } else { Turn::Rests }
    }
}

impl Half {
    /// Moves what can be moved; true where there may be more at once.
    fn pass(&mut self, from: &mut Side, to: &mut Side, buffer: &mut [u8]) -> bool {
        for _ in 0..ROUNDS {
            if to.dead {
                self.waiting = Vec::new();
                if self.input_ended || !from.readable {
                    return false;
                }
                // For nobody; but its host may read nothing before it is rid of it.
                match from.stream.read(&mut buffer[..PIECE]) {
                    Ok(0) => self.input_ended = true,
                    Ok(_) => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => from.readable = false,
                    Err(_) => (from.dead, self.input_ended) = (true, true),
                }
                continue;
            }
            if !self.waiting.is_empty() {
                let n = self.write(to, None);
                self.waiting.drain(..n);
                if !self.waiting.is_empty() {
                    from.acknowledge();
                    return to.writable;
                }
                // A quiet connection keeps no memory.
                self.waiting = Vec::new();
            }
            if self.input_ended {
                if !self.output_ended && !from.dead {
                    self.output_ended = true;
                    let _ = to.stream.shutdown_write();
                }
                return false;
            }
            if !(from.readable || from.dead) {
                return false;
            }
            match from.stream.read(&mut buffer[..PIECE]) {
                Ok(0) => self.input_ended = true,
                Ok(n) => {
                    self.bytes += n as u64;
                    let written = self.write(to, Some(&buffer[..n]));
                    self.waiting.extend_from_slice(&buffer[written..n]);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock && !from.dead => from.readable = false,
                Err(_) => (from.dead, self.input_ended) = (true, true),
            }
        }
        true
    }

    /// Was all that will ever come written?
    fn is_given(&self) -> bool {
        self.input_ended && self.waiting.is_empty()
    }

    /// Writes `bytes`, or what waits; how many the socket took.
    fn write(&self, to: &mut Side, bytes: Option<&[u8]>) -> usize {
        if !to.writable {
            return 0;
        }
        let bytes = bytes.unwrap_or(&self.waiting);
        match to.stream.write_vectored(&[IoSlice::new(bytes)]) {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                to.writable = false;
                0
            }
            Err(_) => {
                to.dead = true;
                0
            }
        }
    }
}

#[cfg(test)]
mod tests;
