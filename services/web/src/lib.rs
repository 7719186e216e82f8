//! The web over a bentpipe link: what is decided and remembered, without sockets or clocks.
//!
//! A host's connection to port 80 comes to the terminal's `bentpipe-web`. [`first`] looks at what
//! the host sends first: HTTP is answered, everything else goes back to the gateway. Requests of
//! all hosts cross the link in one exchange (spec/web.md), an HTTP/2 connection whose header
//! compression and interleaving are the reason for it; [`headers`] says which fields cross and how
//! an answer that is no server's is told. The hub's `bentpipe-web` has its gateway connect to the
//! server, keeps that connection, and answers. The terminal keeps what is for everybody
//! ([`cache`]), in memory and in files ([`disk`]: the only module here that does anything but
//! think); whether a server is one of the host that was named, [`verified`] says. HTTPS passes as
//! it is, unless the operator has it opened ([`inspect`]).

pub mod cache;
pub mod delta;
pub mod disk;
pub mod encoded;
pub mod first;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzed;
pub mod headers;
pub mod inspect;
pub mod push;
pub mod verified;
