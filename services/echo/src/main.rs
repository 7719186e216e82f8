//! The smallest accelerator, to try the service socket with and to begin another one from
//! (docs/services.md). It carries hosts' connections as the gateway itself would:
//!
//! ```text
//! client ── bentpipe-echo ── stream ══ link ══ stream ── bentpipe-echo ── server
//!           preface: "SERVER CLIENT"                     Connect{SERVER, as CLIENT}
//! ```
//!
//! One thread for each connection. What cannot be carried is passed back to the gateway.

mod carry;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use service::message::{Accepted, Incoming};
use service::{Client, Error, Event, Reason, Request};

/// Threads do little: the standard 2 MiB would be counted against the address space.
const STACK: usize = 128 << 10;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

struct Echo {
    client: Client,
    open: AtomicU64,
    done: AtomicU64,
    bytes: AtomicU64,
}

fn serve() -> Result<(), Error> {
    let (open, done, bytes) = Default::default();
    let echo = Arc::new(Echo { client: Client::from_environment()?, open, done, bytes });
    let mut room = service::room();
    while let Some(delivery) = echo.client.next(&mut room)? {
        match (delivery.event, delivery.socket) {
            (Event::Accepted(it), Some(socket)) => {
                echo.work(move |echo| echo.near(&it, socket));
            }
            (Event::Incoming(it), Some(socket)) => {
                let preface = String::from_utf8_lossy(delivery.bytes).into_owned();
                echo.work(move |echo| echo.far(&it, &preface, socket));
            }
            (Event::Link(link), _) => {
                eprintln!("link {}: {:?}, {} bit/s", link.peer, link.state, link.rate);
            }
            (Event::Reset { id, reason }, _) => eprintln!("stream {id} was reset: {reason}"),
            // What is open goes on until the gateway ends.
            _ => {}
        }
    }
    Ok(())
}

impl Echo {
    fn work(self: &Arc<Echo>, work: impl FnOnce(&Echo) + Send + 'static) {
        let echo = self.clone();
        let thread = thread::Builder::new().stack_size(STACK).spawn(move || {
            echo.open.fetch_add(1, Relaxed);
            work(&echo);
            echo.open.fetch_sub(1, Relaxed);
            echo.done.fetch_add(1, Relaxed);
            echo.tell();
        });
        if let Err(why) = thread {
            eprintln!("a connection is reset: no thread for it ({why})");
        }
    }

    /// The client's side: a stream to the counterpart, or back to the gateway.
    fn near(&self, it: &Accepted, socket: OwnedFd) {
        let preface = format!("{} {}", it.server, it.client);
        match self.client.open(&it.peer, Some(it.client), preface.as_bytes()) {
            Ok((_, stream)) => self.carry(socket, stream),
            Err(why) => {
                eprintln!("{} to {} is passed: {why}", it.client, it.server);
                // Without a gateway there is nobody to pass it to.
                let _ = self.client.pass(socket, it.dscp, b"");
            }
        }
    }

    /// The server's side. Where there is no connection the stream is dropped, which resets it.
    fn far(&self, it: &Incoming, preface: &str, stream: OwnedFd) {
        let (server, client) = preface.split_once(' ').unwrap_or((preface, ""));
        let client = client.parse::<SocketAddr>().ok();
        match self.client.connect(&it.peer, server, client) {
            Ok((_, socket)) => self.carry(socket, stream),
            Err(Reason::ShuttingDown) => {}
            Err(why) => eprintln!("no connection to {server} for {}: {why}", it.peer),
        }
    }

    fn carry(&self, socket: OwnedFd, stream: OwnedFd) {
        let count = |n: usize| {
            self.bytes.fetch_add(n as u64, Relaxed);
        };
        match carry::carry(socket.into(), stream.into(), count) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
            Err(why) => eprintln!("a connection is reset: {why}"),
        }
    }

    fn tell(&self) {
        let counters = [("open", &self.open), ("done", &self.done), ("bytes", &self.bytes)];
        let counters = counters.map(|(name, n)| (name.to_owned(), n.load(Relaxed))).into();
        // Without a gateway nobody wants to know.
        let _ = self.client.send(&Request::Stats { counters }, b"", None);
    }
}
