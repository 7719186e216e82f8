//! A simulated host and the socket between it and its gateway: how many bytes it has
//! produced, how many the gateway took and gave, and when it does something next.
//!
//! ```text
//! produced ≥ taken          host → gateway
//! received ≤ written        gateway → host
//! ```
//!
//! Both differences are bounded by the socket's buffer, as the kernel's windows do.

use relay::{FlowId, Relay};
use units::{Duration, Instant};

use crate::pattern::Pattern;
use crate::plan;

/// Bytes that a gateway reads of a socket at once.
const READ: u64 = 64 * 1024;

/// One host of one connection.
#[derive(Debug)]
pub(crate) struct Host {
    pub plan: plan::Host,
    /// The gateway's flow, while the gateway has the socket.
    pub flow: Option<FlowId>,
    /// The connection stands: bytes pass.
    pub connected: bool,
    /// Its gateway's kernel has answered its SYN.
    pub shaking: bool,
    /// What it sends.
    pub pattern: Pattern,

    pub produced: u64,
    pub taken: u64,
    /// It closed its direction.
    pub ended: bool,
    /// The gateway knows.
    pub end_taken: bool,

    pub written: u64,
    pub received: u64,
    /// The gateway shut the direction towards the host.
    pub shut: bool,

    /// The connection is over by a reset, for this reason.
    pub reset: Option<String>,
    /// It was this host that reset it.
    pub gave_up: bool,
    /// It is among the world's open hosts.
    pub counted: bool,
    /// When the next event for it is set.
    pub tick: Option<Instant>,

    may_send: bool,
    next_produce: Instant,
    next_read: Instant,
    paused: bool,
}

/// A rate-limited host does its share this often.
const QUANTUM: Duration = Duration::from_millis(50);

impl Host {
    pub fn new(plan: plan::Host, pattern: Pattern) -> Host {
        Host {
            plan,
            flow: None,
            connected: false,
            shaking: false,
            pattern,
            produced: 0,
            taken: 0,
            ended: false,
            end_taken: false,
            written: 0,
            received: 0,
            shut: false,
            reset: None,
            gave_up: false,
            counted: true,
            tick: None,
            may_send: true,
            next_produce: Instant::ZERO,
            next_read: Instant::ZERO,
            paused: false,
        }
    }

    /// The client waits until the server stands.
    pub fn hold(&mut self) {
        self.may_send = false;
    }

    /// The server stands.
    pub fn release(&mut self) {
        self.may_send = true;
    }

    /// Has it seen the peer's end in good order?
    pub fn saw_end(&self) -> bool {
        self.shut && self.received == self.written
    }

    /// Nothing will happen to it any more.
    pub fn is_over(&self) -> bool {
        self.reset.is_some() || self.end_taken && self.saw_end()
    }

    /// Room in the socket's buffer towards the host.
    pub fn room(&self) -> u64 {
        self.plan.socket - (self.written - self.received)
    }

    /// Its gateway takes what it has for it. True if that was something; else what is wrong.
    pub fn give(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        flow: FlowId,
        scratch: &mut Vec<u8>,
    ) -> Result<bool, String> {
        let mut moved = false;
        while self.produced > self.taken {
            let room = relay.writable_bytes(now, flow) as u64;
            let n = (self.produced - self.taken).min(room).min(READ);
            if n == 0 {
                break;
            }
            scratch.resize(n as usize, 0);
            self.pattern.fill(self.taken, scratch);
            let took = relay.local_data(now, flow, scratch) as u64;
            if took != n {
                return Err(format!("{n} bytes fit, {took} were taken"));
            }
            self.taken += n;
            moved = true;
        }
        if self.ended && !self.end_taken && self.taken == self.produced {
            self.end_taken = true;
            moved = true;
            relay.local_end(now, flow);
        }
        Ok(moved)
    }

    /// Its gateway has for it what another host sent by this pattern. How many bytes it took; else
    /// what is wrong with them.
    pub fn receive(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        flow: FlowId,
        sent: Pattern,
    ) -> Result<u64, String> {
        let mut slices: [&[u8]; 16] = [&[]; 16];
        let n = relay.outgoing(now, flow, &mut slices);
        let mut total = 0;
        for slice in &slices[..n] {
            let n = (slice.len() as u64).min(self.room() - total);
            let at = self.written + total;
            if let Some(wrong) = sent.mismatch(at, &slice[..n as usize]) {
                return Err(format!("byte {} is not the one sent", at + wrong as u64));
            }
            total += n;
        }
        if total > 0 {
            self.written += total;
            relay.wrote(now, flow, total as usize);
        }
        Ok(total)
    }

    fn may_produce(&self) -> bool {
        let asked = self.received >= self.plan.after && (!self.plan.after_end || self.saw_end());
        // What it waited for may never come in full.
        self.connected && self.may_send && !self.ended && (asked || self.saw_end())
    }

    /// Does what is due; answers whether it resets the connection now.
    pub fn act(&mut self, now: Instant) -> bool {
        if self.reset.is_some() {
            return false;
        }
        self.read(now);
        if self.plan.resets_at.is_some_and(|n| self.received >= n && self.received > 0) {
            return true;
        }
        self.produce(now);
        let done = self.may_produce() && self.produced == self.plan.bytes;
        if done && self.plan.resets {
            return true;
        }
        self.ended |= done;
        false
    }

    fn produce(&mut self, now: Instant) {
        if !self.may_produce() {
            return;
        }
        let room = self.plan.socket - (self.produced - self.taken);
        let left = self.plan.bytes - self.produced;
        let mut n = left.min(room);
        if let Some(pace) = self.plan.pace {
            if now < self.next_produce {
                return;
            }
            n = n.min(pace.bytes_in(QUANTUM).0.max(1));
            self.next_produce = now + QUANTUM;
        }
        self.produced += n;
    }

    fn read(&mut self, now: Instant) {
        let waiting = self.written - self.received;
        if waiting == 0 || now < self.next_read {
            return;
        }
        self.paused = false;
        let mut n = waiting;
        if let Some(pace) = self.plan.reads {
            n = n.min(pace.bytes_in(QUANTUM).0.max(1));
            self.next_read = now + QUANTUM;
        }
        self.received += n;
        if let Some((at, pause)) = self.plan.pause
            && self.received >= at
        {
            self.plan.pause = None;
            self.paused = true;
            self.next_read = now + pause;
        }
    }

    /// When it has something to do that no byte from its gateway calls for.
    pub fn next_act(&self, now: Instant) -> Option<Instant> {
        if self.reset.is_some() {
            return None;
        }
        let read = (self.written > self.received).then_some(self.next_read);
        let has_room = self.plan.socket > self.produced - self.taken;
        let produce = (self.may_produce() && has_room && self.produced < self.plan.bytes)
            .then_some(self.next_produce);
        [read, produce].into_iter().flatten().min().map(|t| t.max(now))
    }
}

/// An end in good order: only behind the last of all bytes, and only if the other host closed its
/// direction. Else what is wrong.
pub(crate) fn check_end(hosts: &[Option<Host>; 2], side: usize) -> Result<(), String> {
    let (Some(host), Some(sender)) = (&hosts[side], &hosts[1 - side]) else {
        return Err("an end with only one host".into());
    };
    if !sender.ended || host.written != sender.produced {
        let (got, sent) = (host.written, sender.produced);
        return Err(format!("a clean end after {got} of {sent} bytes"));
    }
    Ok(())
}
