//! The explicit proxy's languages: SOCKS5 (RFC 1928), HTTP CONNECT (RFC 9110 section
//! 9.3.6) and plain requests (RFC 9112 section 3.2.2), told apart by how they begin and read
//! without I/O.
//!
//! ```text
//! client ── greeting ──▶ Negotiation ──▶ Step::Reply "no authentication"   (SOCKS5)
//!        ── request  ──▶             ──▶ Step::Connect { target, early }
//!                          the driver asks the far side to connect
//!        ◀── success ──  Negotiation::succeeded()   then bytes flow both ways
//!        ◀── refusal ──  Negotiation::refused(why)  then the connection closes
//! ```
//!
//! Names are handed over unresolved: the far node resolves them, so that a lookup
//! costs no round trip of its own. A client can make this hold at most
//! [`MAX_REQUEST`] bytes before its request is complete.

mod body;
mod forward;
mod http;
mod socks;

pub use body::Rest;
use forward::Forward;

use crate::host::HostPort;

/// Bytes of a whole request; what is longer is refused. Browsers send about 500.
pub const MAX_REQUEST: usize = 8192;

/// What to do next for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until more bytes come.
    NeedMore,
    /// Send these bytes to the client, then ask again with [`Negotiation::feed`] of
    /// what comes (or of nothing: what came already is kept).
    Reply(Vec<u8>),
    /// Connect to `target`; then say [`Negotiation::succeeded`] or
    /// [`Negotiation::refused`].
    Connect {
        /// Where the client wants to go.
        target: HostPort,
        /// The first bytes for the server: a request that is passed on, and what the client
        /// sent behind it.
        early: Vec<u8>,
        /// What of the client's further bytes is for the server.
        rest: Rest,
    },
    /// Send these bytes (possibly none) and close.
    Close(Vec<u8>),
}

/// Why a request is not carried out, as far as the proxy's languages can tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server refused the connection.
    Refused,
    /// No way leads to the server's network.
    NetworkUnreachable,
    /// No way leads to the server.
    HostUnreachable,
    /// The name does not exist.
    UnknownName,
    /// The server, or the link, did not answer in time.
    TimedOut,
    /// The rules of this node or of the far one forbid it.
    Forbidden,
    /// Memory or descriptors are used up.
    Overloaded,
    /// Anything else.
    Failed,
}

/// One client's negotiation, from its first byte to its connection.
#[derive(Debug, Default)]
pub struct Negotiation {
    /// What has come and is not used up; at most [`MAX_REQUEST`] bytes and one read.
    buffer: Vec<u8>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    FirstByte,
    SocksGreeting,
    SocksRequest,
    HttpRequest,
    SocksAnswer,
    HttpAnswer,
    ForwardAnswer,
    Over,
}

/// What a parser found at the start of the buffer.
enum Parsed<T> {
    /// The beginning of something.
    Partial,
    /// A value and the bytes it took.
    Whole(T, usize),
    /// Nothing that can be carried out; what to tell the client.
    Wrong(Vec<u8>),
}

impl<T> Parsed<T> {
    fn map<U>(self, to: impl FnOnce(T) -> U) -> Parsed<U> {
        match self {
            Parsed::Partial => Parsed::Partial,
            Parsed::Whole(value, used) => Parsed::Whole(to(value), used),
            Parsed::Wrong(answer) => Parsed::Wrong(answer),
        }
    }
}

impl Negotiation {
    /// A client that has just connected.
    pub fn new() -> Negotiation {
        Negotiation::default()
    }

    /// Takes what the client sent (possibly nothing) and says what to do. Call it
    /// again with nothing after each [`Step::Reply`]. After [`Step::Connect`] or
    /// [`Step::Close`] further bytes are not looked at.
    pub fn feed(&mut self, bytes: &[u8]) -> Step {
        if self.is_decided() {
            return Step::NeedMore;
        }
        self.buffer.extend_from_slice(bytes);
        let step = self.advance();
        if step == Step::NeedMore && self.buffer.len() > MAX_REQUEST {
            return self.close(match self.stage {
                Stage::HttpRequest => http::too_large(),
                _ => Vec::new(),
            });
        }
        step
    }

    /// What to send once the server stands; bytes flow after it.
    pub fn succeeded(&mut self) -> Vec<u8> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::SocksAnswer => socks::answer(socks::SUCCEEDED),
            Stage::HttpAnswer => http::established(),
            _ => Vec::new(),
        }
    }

    /// What to send if the connection cannot be made; then close.
    pub fn refused(&mut self, why: Refusal) -> Vec<u8> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::SocksAnswer => socks::answer(socks::code(why)),
            Stage::HttpAnswer | Stage::ForwardAnswer => http::refusal(why),
            _ => Vec::new(),
        }
    }

    /// Bytes held for this client.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    fn is_decided(&self) -> bool {
        use Stage::{ForwardAnswer, HttpAnswer, Over, SocksAnswer};
        matches!(self.stage, SocksAnswer | HttpAnswer | ForwardAnswer | Over)
    }

    fn advance(&mut self) -> Step {
        if self.stage == Stage::FirstByte {
            self.stage = match self.buffer.first() {
                None => return Step::NeedMore,
                Some(&socks::VERSION) => Stage::SocksGreeting,
                // SOCKS4 has no IPv6 and, as first written, no names; its reply says no.
                Some(4) => return self.close(socks::socks4_refusal()),
                Some(b) if b.is_ascii_alphabetic() => Stage::HttpRequest,
                // Empty lines before a request are allowed (RFC 9112 section 2.2).
                Some(b'\r' | b'\n') => Stage::HttpRequest,
                // TLS or noise: there is nothing it would understand.
                Some(_) => return self.close(Vec::new()),
            };
        }
        match self.stage {
            Stage::SocksGreeting => match socks::greeting(&self.buffer) {
                Parsed::Partial => Step::NeedMore,
                Parsed::Whole((), used) => {
                    self.buffer.drain(..used);
                    self.stage = Stage::SocksRequest;
                    Step::Reply(socks::NO_AUTHENTICATION.to_vec())
                }
                Parsed::Wrong(answer) => self.close(answer),
            },
            Stage::SocksRequest => {
                let parsed = socks::request(&self.buffer).map(http::Request::Tunnel);
                self.decide(parsed, Stage::SocksAnswer)
            }
            Stage::HttpRequest => {
                let parsed = http::request(&self.buffer);
                self.decide(parsed, Stage::HttpAnswer)
            }
            _ => Step::NeedMore,
        }
    }

    fn decide(&mut self, parsed: Parsed<http::Request>, next: Stage) -> Step {
        match parsed {
            Parsed::Partial => Step::NeedMore,
            Parsed::Whole(request, used) => {
                let mut behind = std::mem::take(&mut self.buffer);
                behind.drain(..used);
                match request {
                    http::Request::Tunnel(target) => {
                        self.stage = next;
                        Step::Connect { target, early: behind, rest: Rest::Everything }
                    }
                    http::Request::Forward(Forward { target, head, mut rest }) => {
                        self.stage = Stage::ForwardAnswer;
                        let mut early = head;
                        early.extend_from_slice(&behind[..rest.take(&behind)]);
                        Step::Connect { target, early, rest }
                    }
                }
            }
            Parsed::Wrong(answer) => self.close(answer),
        }
    }

    fn close(&mut self, answer: Vec<u8>) -> Step {
        self.stage = Stage::Over;
        self.buffer = Vec::new();
        Step::Close(answer)
    }
}

/// For the fuzzers: what a client says means the same in whatever pieces it comes.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let Some((size, said)) = data.split_first() else { return };
    if said.len() > MAX_REQUEST {
        return;
    }
    let (whole, left) = speak(std::iter::once(said));
    let pieces = said.chunks(usize::from(*size).max(1));
    let (in_pieces, rest) = speak(pieces);
    match (whole, in_pieces) {
        (
            Step::Connect { target, early, rest: behind },
            Step::Connect { target: same, early: mut first, rest: mut filter },
        ) => {
            for piece in rest {
                first.extend_from_slice(&piece[..filter.take(piece)]);
            }
            assert!(left.is_empty() && target == same && early == first && filter == behind);
        }
        (whole, in_pieces) => assert_eq!(whole, in_pieces),
    }
}

/// Feeds a negotiation until it is decided; its last step, and the pieces that it did not take.
#[cfg(any(test, fuzzing))]
fn speak<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Step, Vec<&'a [u8]>) {
    let (mut negotiation, mut pieces) = (Negotiation::new(), pieces);
    while let Some(piece) = pieces.next() {
        let mut step = negotiation.feed(piece);
        while let Step::Reply(answer) = step {
            assert!(!answer.is_empty());
            step = negotiation.feed(&[]);
        }
        if step != Step::NeedMore {
            return (step, pieces.collect());
        }
    }
    (Step::NeedMore, Vec::new())
}

#[cfg(test)]
mod tests;
