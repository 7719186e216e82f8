//! Two sockets joined: what one host sends the other receives, ends and resets included.

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
    /// Both ends were relayed: closed in good order.
    Ended,
    /// One side reset, and so shall the other: drop both.
    Reset,
}

/// A connection through this host.
pub struct Pair {
    /// The client's socket and the server's.
    pub sides: [Side; 2],
    /// From the client, and to it.
    halves: [Half; 2],
    pub queued: bool,
}

impl Side {
    /// A socket of which nothing is known yet.
    pub fn new(stream: Stream) -> Side {
        Side { stream, readable: true, writable: true, failed: false, arrived: false }
    }

    /// Has it bytes, or an end, that its host has not acknowledged?
    pub fn is_under_way(&self) -> bool {
        self.stream.unacknowledged().is_ok_and(|bytes| bytes > 0)
    }

    fn on_event(&mut self, event: Event) {
        self.readable |= event.readable;
        self.arrived |= event.readable;
        self.writable |= event.writable;
        self.failed |= event.failed;
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

    /// Has a side bytes, or an end, that its host has not acknowledged?
    pub fn is_under_way(&self) -> bool {
        self.sides.iter().any(Side::is_under_way)
    }

    /// Moves what can be moved. `buffer` is at least [`PIECE`] long.
    pub fn turn(&mut self, buffer: &mut [u8]) -> Turn {
        let [client, server] = &mut self.sides;
        let [up, down] = &mut self.halves;
        let passed = up.pass(client, server, buffer);
        let more = match (passed, down.pass(server, client, buffer)) {
            (Ok(a), Ok(b)) => a || b,
            _ => return Turn::Reset,
        };
        for side in &mut self.sides {
            if std::mem::take(&mut side.failed)
                && let Ok(Some(_)) = side.stream.take_error()
            {
                return Turn::Reset;
            }
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
    /// True where there may be more at once; an error where a socket was reset.
    fn pass(&mut self, from: &mut Side, to: &mut Side, buffer: &mut [u8]) -> Result<bool, ()> {
        for _ in 0..ROUNDS {
            if !self.waiting.is_empty() {
                let n = self.write(to, None)?;
                self.waiting.drain(..n);
                if !self.waiting.is_empty() {
                    from.acknowledge();
                    return Ok(to.writable);
                }
                // A quiet connection keeps no memory.
                self.waiting = Vec::new();
            }
            if self.input_ended {
                if !self.output_ended {
                    self.output_ended = true;
                    let _ = to.stream.shutdown_write();
                }
                return Ok(false);
            }
            if !from.readable {
                return Ok(false);
            }
            match from.stream.read(&mut buffer[..PIECE]) {
                Ok(0) => self.input_ended = true,
                Ok(n) => {
                    self.bytes += n as u64;
                    let written = self.write(to, Some(&buffer[..n]))?;
                    self.waiting.extend_from_slice(&buffer[written..n]);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => from.readable = false,
                Err(_) => return Err(()),
            }
        }
        Ok(true)
    }

    /// Writes `bytes`, or what waits; how many the socket took.
    fn write(&self, to: &mut Side, bytes: Option<&[u8]>) -> Result<usize, ()> {
        if !to.writable {
            return Ok(0);
        }
        let bytes = bytes.unwrap_or(&self.waiting);
        match to.stream.write_vectored(&[IoSlice::new(bytes)]) {
            Ok(n) => Ok(n),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                to.writable = false;
                Ok(0)
            }
            Err(_) => Err(()),
        }
    }
}
