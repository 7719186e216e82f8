//! All terminals, on one thread: what came is read, what is due is done, and each terminal that
//! something happened to is followed.

use std::collections::BTreeSet;

use os::poll::{Clock, Events, Interest, Poller};
use units::{BitRate, Duration, Instant};

use super::terminal::{Tally, Terminal};

/// Room for what one terminal receives at once, and for what it sends.
const RECEIVE: usize = 16;
const SEND: usize = 60_000;
/// The longest that a turn waits.
const TURN: Duration = Duration::from_millis(100);
/// Timers of one turn: each may be a call, which costs as much as a hundred packets, and what
/// has come is not to wait for thousands of them.
const TIMERS: usize = 32;

/// The terminals of a hub.
pub struct Fleet {
    clock: Clock,
    poller: Poller,
    events: Events,
    pub terminals: Vec<Terminal>,
    timers: BTreeSet<(Instant, usize)>,
    /// What happened so far.
    pub tally: Tally,
    receive: Vec<u8>,
    send: Vec<u8>,
    /// The next terminal that is to ask for something small.
    next: usize,
}

/// Requests side by side with transfers.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// Between two of them.
    pub spacing: Duration,
    /// Every so many is one of a terminal that has a transfer.
    pub of_busy: usize,
}

impl Fleet {
    /// Opens so many terminals, each of which calls the hub at once, in the namespace of the
    /// calling thread.
    ///
    /// # Errors
    /// One sentence.
    pub fn open(count: usize, rate: BitRate) -> Result<Fleet, String> {
        let text = |e: os::OsError| e.to_string();
        os::proc::precise_timers().map_err(text)?;
        let (clock, poller) = (Clock::start(), Poller::new().map_err(text)?);
        let mut terminals = Vec::with_capacity(count);
        for n in 0..count {
            let terminal = Terminal::open(n, clock.now(), rate)?;
            poller.add(&terminal.socket, n as u64, Interest::READ).map_err(text)?;
            terminals.push(terminal);
        }
        let slot = terminals.first().map_or(0, |t| t.socket.slot());
        Ok(Fleet {
            clock,
            poller,
            events: Events::with_capacity(256),
            timers: (0..count).map(|n| (Instant::ZERO, n)).collect(),
            terminals,
            tally: Tally::default(),
            receive: vec![0; slot * RECEIVE],
            send: vec![0; SEND],
            next: 0,
        })
    }

    /// The fleet's time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Goes on until `done`, for so long at most; true if it was.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn run(
        &mut self,
        most: Duration,
        mut done: impl FnMut(&Fleet) -> bool,
    ) -> Result<bool, String> {
        let end = self.now() + most;
        while !done(self) {
            if self.now() >= end {
                return Ok(false);
            }
            self.turn(end)?;
        }
        Ok(true)
    }

    /// Goes on for this time, and asks for small answers meanwhile: terminals in turn, the first
    /// `busy` of which have transfers.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn ask(&mut self, time: Duration, requests: Requests, busy: usize) -> Result<(), String> {
        let end = self.now() + time;
        let mut due = self.now();
        let mut asked = 0;
        while self.now() < end {
            while due <= self.now() {
                due += requests.spacing;
                asked += 1;
                let of_busy = asked % requests.of_busy.max(1) == 0;
                self.ask_one(if of_busy { 0..busy } else { busy..self.terminals.len() });
            }
            self.turn(end.min(due))?;
        }
        Ok(())
    }

    /// The next of these that is free asks.
    fn ask_one(&mut self, among: std::ops::Range<usize>) {
        let (count, now) = (among.len(), self.now());
        for _ in 0..count {
            self.next += 1;
            let n = among.start + self.next % count;
            if self.terminals[n].is_free() {
                self.terminals[n].begin_request(now);
                return self.settle(now, n);
            }
        }
        self.tally.failed += 1;
    }

    /// Begins, or ends, the transfers of the first `busy` terminals.
    pub fn transfer(&mut self, busy: usize, begin: bool) {
        for n in 0..busy.min(self.terminals.len()) {
            let now = self.now();
            match begin {
                true => self.terminals[n].begin_transfer(now),
                false => self.terminals[n].end_transfer(now),
            }
            self.settle(now, n);
        }
    }

    /// Waits for news until then, and follows them.
    fn turn(&mut self, until: Instant) -> Result<(), String> {
        let now = self.now();
        let due = self.timers.first().map_or(until, |(at, _)| *at).min(until).min(now + TURN);
        let wait = Some(due.since(now));
        self.poller.wait(&mut self.events, wait).map_err(|e| e.to_string())?;
        let news: Vec<_> = self.events.iter().collect();
        for event in news {
            let n = event.token as usize;
            self.terminals[n].receive(&self.clock, &mut self.receive, event.failed);
            self.settle(self.clock.now(), n);
        }
        let now = self.now();
        for _ in 0..TIMERS {
            let Some((at, n)) = self.timers.first().copied().filter(|(at, _)| *at <= now) else {
                break;
            };
            self.timers.remove(&(at, n));
            self.terminals[n].timer = None;
            self.terminals[n].endpoint.handle_timeout(now);
            self.settle(now, n);
        }
        Ok(())
    }

    fn settle(&mut self, now: Instant, n: usize) {
        let terminal = &mut self.terminals[n];
        terminal.settle(now, &mut self.send, &mut self.tally);
        let timer = terminal.endpoint.poll_timeout(now);
        let before = std::mem::replace(&mut terminal.timer, timer);
        if before != timer {
            before.map(|at| self.timers.remove(&(at, n)));
            timer.map(|at| self.timers.insert((at, n)));
        }
    }
}
