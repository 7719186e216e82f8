//! Active FTP through a gateway, as far as it can be decided without sockets: [`control`] reads a
//! session's commands and replies along, [`preface`] is what the two halves tell each other of a
//! stream.
//!
//! A host that says PORT waits for the server to connect to it. The hub's half says PASV to the
//! server in its place (RFC 959, section 4.1.2), has its gateway connect to the port that the
//! server names, and opens a stream to the terminal's half, which has its gateway connect to the
//! host as the server. Nobody listens for strangers, and no address translator on the way between
//! hub and server needs to know FTP.

pub mod control;
pub mod preface;
