//! What an accelerator needs of the gateway that starts it: sockets of hosts' connections,
//! streams to the peer's service of the same name, connections to servers, and the state of
//! links (spec/service.md).
//!
//! The two talk by packets on one Unix socket. Each is a line of JSON, bytes behind it where the
//! message has some, and a descriptor where it hands a socket over ([`message`], [`packet`]).
//! Nothing here is asynchronous: [`Client`] waits. A program with a loop of its own has a
//! [`Queued`] instead, watches it ([`Queued::watch`]) and calls [`Queued::try_next`] until there
//! is nothing left.
//!
//! ```no_run
//! # use service::{Client, Event};
//! # fn main() -> Result<(), service::Error> {
//! let client = Client::from_environment()?;
//! let mut room = service::room();
//! while let Some(delivery) = client.next(&mut room)? {
//!     match (delivery.event, delivery.socket) {
//!         (Event::Accepted(it), Some(socket)) => {
//!             println!("{} wants {}", it.client, it.server);
//!             client.pass(socket, it.dscp, b"")?; // not mine after all
//!         }
//!         _ => {}
//!     }
//! }
//! # Ok(()) }
//! ```

pub mod carry;
mod client;
pub mod message;
pub mod packet;
mod queued;
pub mod quota;

pub use client::{Client, Delivery, Error, Takes, close_in_order, room};
pub use message::{Event, Reason, Request};
pub use queued::Queued;

/// Says why the program ends, so that the gateway's log has it as an error: on a terminal the
/// sentence alone, else with its level before it (spec/service.md, "The program").
pub fn say_error(why: &dyn std::fmt::Display) {
    use std::io::IsTerminal as _;
    let level = if std::io::stderr().is_terminal() { "" } else { "<3>" };
    eprintln!("{level}{why}");
}

/// Answers `--help` and `--version` of a program without options of its own; true: there was such
/// a question.
pub fn answers_person(about: &str, version: &str) -> bool {
    let asked = std::env::args().nth(1).unwrap_or_default();
    match asked.as_str() {
        "-h" | "--help" => println!("{about}"),
        "-V" | "--version" => println!("{version}"),
        _ => return false,
    }
    true
}

/// The version of the protocol.
pub const VERSION: u32 = 1;
/// The environment variable that says which descriptor is the socket.
pub const SOCKET_VARIABLE: &str = "BENTPIPE_SOCKET";
