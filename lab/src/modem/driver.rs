//! The exchange in real time: one thread, a pty for each line.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use exchange::{CallRecord, Exchange, ExchangeConfig, Faults};
use miette::miette;
use os::poll::{Clock, Events, Interest, Poller, Waker};
use os::serial::{Got, Pty};
use units::Duration;

use super::LinkTo;

/// How often a pty that nobody has open is looked at: the poller cannot wait for that.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes that are moved at once.
const PIECE: usize = 4_096;

/// What the thread is told.
enum Order {
    /// All calls drop.
    DropAll,
    /// Other things go wrong.
    Faults(Faults),
    /// A line has another pty, or none.
    Plug(usize, Option<Pty>),
}

/// Modems that run in a thread of their own.
pub struct Modems {
    paths: Vec<PathBuf>,
    calls: Arc<Mutex<Vec<CallRecord>>>,
    orders: Option<Sender<Order>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    links: Vec<Option<LinkTo>>,
}

impl Modems {
    /// Starts the exchange. With `dir` there are links to its ptys, by the names of the lines.
    pub fn start(config: ExchangeConfig, seed: u64, dir: Option<&Path>) -> miette::Result<Modems> {
        let system = |e: os::OsError| miette!("{e}");
        let names: Vec<String> = config.lines.iter().map(|l| l.name.clone()).collect();
        let exchange = Exchange::new(config, seed).map_err(|e| miette!("{e}"))?;
        let ptys = names.iter().map(|_| Pty::open()).collect::<Result<Vec<_>, _>>();
        let ptys = ptys.map_err(system)?;
        let mut paths: Vec<PathBuf> = ptys.iter().map(|p| p.path().to_owned()).collect();
        let mut links = Vec::new();
        for (name, path) in names.iter().zip(&mut paths).filter(|_| dir.is_some()) {
            let dir = dir.unwrap_or(Path::new("."));
            links.push(Some(LinkTo::new(dir, name, path)?));
            *path = dir.join(name);
        }
        let (orders, taken) = channel();
        let waker = Waker::new().map_err(system)?;
        let calls = Arc::default();
        let poller = Poller::new().map_err(system)?;
        poller.add(&waker, u64::MAX - 1, Interest::READ).map_err(system)?;
        let lines = ptys.into_iter().map(Line::new);
        let driver = Driver {
            exchange,
            lines: lines.collect(),
            clock: Clock::start(),
            poller,
            waker: waker.clone(),
            orders: taken,
            calls: Arc::clone(&calls),
        };
        let thread = std::thread::Builder::new().name("modems".into()).spawn(|| driver.run());
        let thread = Some(thread.map_err(|e| miette!("cannot start a thread: {e}"))?);
        Ok(Modems { paths, calls, orders: Some(orders), waker, thread, links })
    }

    /// What programs open, line by line.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// What the exchange has metered so far.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All calls drop.
    pub fn drop_all(&self) {
        self.order(Order::DropAll);
    }

    /// Other things go wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.order(Order::Faults(faults));
    }

    /// Takes a line's device away, as if its plug were pulled. It must have a link.
    pub fn unplug(&mut self, line: usize) {
        self.links[line] = None;
        self.order(Order::Plug(line, None));
    }

    /// Puts it back; the link leads to a device of another name.
    ///
    /// # Errors
    /// If the system has no pty, or the link cannot be made.
    pub fn plug_in(&mut self, line: usize) -> miette::Result<()> {
        let pty = Pty::open().map_err(|e| miette!("{e}"))?;
        let (path, to) = (self.paths[line].clone(), pty.path().to_owned());
        let (dir, name) = (path.parent(), path.file_name());
        let (dir, name) = dir.zip(name).ok_or_else(|| miette!("the line has no link"))?;
        self.order(Order::Plug(line, Some(pty)));
        self.links[line] = Some(LinkTo::new(dir, &name.to_string_lossy(), &to)?);
        Ok(())
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
            self.waker.wake();
        }
    }

    /// Ends it all; what was metered.
    pub fn stop(mut self) -> Vec<CallRecord> {
        self.end();
        self.calls()
    }

    fn end(&mut self) {
        self.orders = None;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Modems {
    fn drop(&mut self) {
        self.end();
    }
}

struct Line {
    /// `None`: it was unplugged.
    pty: Option<Pty>,
    open: bool,
    /// What the modem has said and the pty did not take.
    unsent: Vec<u8>,
}

impl Line {
    fn new(pty: Pty) -> Line {
        Line { pty: Some(pty), open: false, unsent: Vec::new() }
    }
}

struct Driver {
    exchange: Exchange,
    lines: Vec<Line>,
    clock: Clock,
    poller: Poller,
    waker: Waker,
    orders: Receiver<Order>,
    calls: Arc<Mutex<Vec<CallRecord>>>,
}

impl Driver {
    fn run(mut self) {
        let mut events = Events::with_capacity(16);
        loop {
            match self.orders.try_recv() {
                Ok(order) => self.obey(order),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => break,
            }
            for line in 0..self.lines.len() {
                self.take_from_program(line);
            }
            for line in 0..self.lines.len() {
                self.hand_to_program(line);
            }
            self.publish();
            if self.poller.wait(&mut events, self.patience()).is_err() {
                break;
            }
            self.waker.clear();
        }
        self.publish();
    }

    fn obey(&mut self, order: Order) {
        let now = self.clock.now();
        match order {
            Order::DropAll => self.exchange.drop_all(now),
            Order::Faults(faults) => self.exchange.set_faults(now, faults),
            Order::Plug(line, pty) => {
                if self.lines[line].open {
                    self.set_open(line, false);
                }
                self.lines[line].pty = pty;
            }
        }
    }

    /// How long nothing will happen by itself.
    fn patience(&self) -> Option<Duration> {
        let now = self.clock.now();
        let next = self.exchange.next_time().map(|at| at.since(now));
        let closed = self.lines.iter().any(|l| !l.open || !l.unsent.is_empty());
        [next, closed.then_some(LOOK)].into_iter().flatten().min()
    }

    /// Takes what the modem has room for; the rest stays in the pty, which stops its program.
    fn take_from_program(&mut self, line: usize) {
        loop {
            let now = self.clock.now();
            self.exchange.advance(now);
            let room = self.exchange.room(line).min(PIECE);
            if room == 0 && self.lines[line].open {
                return;
            }
            let mut buf = [0; PIECE];
            let Some(pty) = &self.lines[line].pty else { return };
            let got = pty.read(&mut buf[..room.max(1)]);
            if (got != Got::Gone) != self.lines[line].open {
                self.set_open(line, got != Got::Gone);
            }
            match got {
                Got::Bytes(n) => {
                    self.exchange.write(now, line, &buf[..n]);
                }
                Got::Nothing | Got::Gone => return,
            }
        }
    }

    fn set_open(&mut self, line: usize, open: bool) {
        self.exchange.set_open(self.clock.now(), line, open);
        let Line { pty: Some(pty), open: was, unsent } = &mut self.lines[line] else { return };
        *was = open;
        unsent.clear();
        // Watched by its edges while it is open; a closed one would tell a failure without end.
        let watched = match open {
            true => self.poller.add(pty, line as u64, Interest::READ_WRITE.edge()),
            false => self.poller.remove(pty),
        };
        debug_assert!(watched.is_ok(), "{watched:?}");
    }

    fn hand_to_program(&mut self, line: usize) {
        let Line { pty: Some(pty), unsent, open: true } = &mut self.lines[line] else { return };
        loop {
            if unsent.is_empty() {
                *unsent = self.exchange.read(self.clock.now(), line, PIECE);
            }
            match pty.write(unsent) {
                Got::Bytes(n) => drop(unsent.drain(..n)),
                Got::Nothing | Got::Gone => return,
            }
        }
    }

    fn publish(&self) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.exchange.calls();
        // Only calls that go on change.
        let settled = calls.iter().take_while(|c| c.why != exchange::CallEnd::None).count();
        calls.truncate(settled);
        calls.extend_from_slice(&known[settled..]);
    }
}
