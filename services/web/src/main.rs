//! `bentpipe-web`: started by a gateway at either end of a link (docs/web.md, spec/web.md).
//!
//! One thread; each connection and each exchange is a task. [`terminal`] has the hosts, [`hub`]
//! the servers, and a program is both.

mod body;
mod exchange;
mod gateway;
mod hub;
mod socket;
mod terminal;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::LocalSet;

use gateway::{Gateway, Given};
use hub::Hub;
use terminal::Terminal;

/// How often the gateway hears what was counted.
const TELL: Duration = Duration::from_secs(1);

/// Runs hyper's tasks on this thread.
#[derive(Clone, Copy)]
pub struct Local;

impl Local {
    /// Runs a task beside all others.
    pub fn spawn(task: impl Future<Output = ()> + 'static) {
        tokio::task::spawn_local(task);
    }
}

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

/// What `bentpipe status` tells of the service.
#[derive(Default)]
pub struct Counted {
    /// Hosts' connections that were served here.
    pub connections: Cell<u64>,
    /// Hosts' connections that went back to the gateway.
    pub passed: Cell<u64>,
    /// Hosts' requests.
    pub requests: Cell<u64>,
    /// Those answered from what is kept.
    pub hits: Cell<u64>,
    /// Bytes of these answers' bodies.
    pub hit_bytes: Cell<u64>,
    /// Exchanges begun.
    pub exchanges: Cell<u64>,
    /// Requests of peers' hosts.
    pub forwarded: Cell<u64>,
    /// Connections to servers for them.
    pub connects: Cell<u64>,
}

impl Counted {
    /// One more.
    pub fn add(what: &Cell<u64>) {
        what.set(what.get() + 1);
    }

    fn all(&self) -> BTreeMap<String, u64> {
        [
            ("connections", &self.connections),
            ("passed", &self.passed),
            ("requests", &self.requests),
            ("hits", &self.hits),
            ("hit_bytes", &self.hit_bytes),
            ("exchanges", &self.exchanges),
            ("forwarded", &self.forwarded),
            ("connects", &self.connects),
        ]
        .map(|(name, n)| (name.to_owned(), n.get()))
        .into()
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), service::Error> {
    let gateway = Rc::new(Gateway::from_environment()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(gateway))
}

async fn serve(gateway: Rc<Gateway>) -> Result<(), service::Error> {
    let counted = Rc::new(Counted::default());
    let terminal = Rc::new(Terminal::new(gateway.clone(), counted.clone()));
    let hub = Rc::new(Hub::new(gateway.clone(), counted.clone()));
    Local::spawn(tell(gateway.clone(), counted));
    gateway
        .hear(|given| match given {
            Given::Accepted(it, socket) => Local::spawn(terminal.clone().serve(it, socket)),
            Given::Incoming(it, preface, socket) if preface == exchange::PREFACE => {
                Local::spawn(hub.clone().serve(it.peer, socket));
            }
            // Of another version: dropping the socket resets the stream.
            Given::Incoming(it, ..) => eprintln!("{} speaks another exchange", it.peer),
        })
        .await
}

/// Tells the gateway what was counted, when that changes.
async fn tell(gateway: Rc<Gateway>, counted: Rc<Counted>) {
    let mut told = BTreeMap::new();
    loop {
        tokio::time::sleep(TELL).await;
        let now = counted.all();
        if now != told {
            gateway.tell(now.clone());
            told = now;
        }
    }
}
