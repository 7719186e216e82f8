//! The hosts' connections: bytes between sockets and the relay's flows.
//!
//! Sockets are watched for changes only; what is known to be readable or writable is
//! remembered here, and a connection is looked at when it has news and the relay lets
//! it move. A socket resets when dropped, until both directions have ended in good
//! order (R-SEMANTICS).
//!
//! No byte that was acknowledged to a host is lost to a reset, nor to an end:
//!
//! * A host resets: what it gave before is still read from its socket, as the link has room, and
//!   only then is the relay told (`Connection::dead`).
//! * A peer resets: the flow goes on until its bytes are written, while they move ([`patience`]).
//! * A flow is over: its socket is kept until the host has what the kernel holds ([`lingering`]).

mod lingering;
mod patience;

pub use patience::Patience;

use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;

use link::session::RecvState;
use os::poll::{Event, Interest, Poller};
use os::tcp::{self, Connect, ConnectError, Failure, Stream, TcpOptions, Unreachable};
use relay::{Caller, FlowId, Relay, ResetReason};
use units::{Duration, Instant};

use crate::proxy_proto::Rest;
use lingering::{Holder, Lingering};
use patience::{Moved, Resetting};

/// Bytes read from a socket at once.
const READ: usize = 64 * 1024;
/// A server of several addresses has so long at one before the next is tried.
const ADDRESS: Duration = Duration::from_secs(5);
/// Reads and writes for one connection before the others have their turn.
const ROUNDS: usize = 4;
/// Processor time for compressing streams before packets have their turn.
pub(super) const CODING: Duration = Duration::from_millis(10);

struct Connection {
    flow: FlowId,
    stream: Stream,
    /// The kernel still works on the connection to the server.
    connecting: bool,
    /// Where else the server may be, while it does, and when the next is tried.
    others: Option<(Instant, Box<Others>)>,
    readable: bool,
    /// Bytes came since the kernel was last asked to acknowledge.
    arrived: bool,
    writable: bool,
    failed: bool,
    /// The host reset, or the kernel gave it up: nothing is written to it any more, and what it
    /// gave before is still read.
    dead: bool,
    queued: bool,
    /// Bytes that the host was written.
    written: u64,
    /// The peer gave up.
    peer_reset: bool,
    /// How long the host is waited for whose other one gave up: ours, or the far one.
    resetting: Option<Resetting>,
    /// The host ended its direction, and we ours towards it.
    input_ended: bool,
    output_ended: bool,
    /// What of the host's bytes is for the far side.
    rest: Rest,
    /// What a service has read of it, and the relay has not yet.
    ahead: Vec<u8>,
}

/// Other addresses of a server, in the order in which they are tried.
pub struct Others {
    /// Each with the routing mark of what goes there.
    pub addresses: VecDeque<(SocketAddr, Option<u32>)>,
    /// As whom.
    pub from: Option<SocketAddr>,
}

/// All sockets that belong to flows.
pub struct Connections {
    slots: Vec<Option<Box<Connection>>>,
    count: usize,
    queue: VecDeque<FlowId>,
    /// Flows of which one side gave up, with the time when they are looked at.
    resetting: BTreeSet<(Instant, FlowId)>,
    /// Flows whose servers have other addresses, with the time when the next is tried.
    attempts: BTreeSet<(Instant, FlowId)>,
    /// Sockets of flows that are over.
    lingering: Lingering,
    buffer: Vec<u8>,
    options: TcpOptions,
}

impl Connections {
    /// No connections yet. New ones have `options` from birth.
    pub fn new(options: TcpOptions) -> Connections {
        Connections {
            slots: Vec::new(),
            count: 0,
            queue: VecDeque::new(),
            resetting: BTreeSet::new(),
            attempts: BTreeSet::new(),
            lingering: Lingering::default(),
            buffer: vec![0; READ],
            options,
        }
    }

    /// Open sockets, with those whose flow is over and whose host has not got all of it yet.
    pub fn len(&self) -> usize {
        self.count + self.lingering.len()
    }

    /// Bytes that the flow's host has sent and nobody has taken.
    pub fn unread(&self, flow: FlowId) -> u64 {
        let connection = self.slots.get(flow.slot()).and_then(Option::as_ref);
        let stream = connection.filter(|c| c.flow == flow).map(|c| &c.stream);
        stream.and_then(|stream| stream.unread().ok()).unwrap_or(0) as u64
    }

    /// Does a connection wait for its turn?
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes an established connection for `flow`. False (and reset) if it cannot be watched.
    pub fn add(&mut self, poller: &Poller, flow: FlowId, stream: Stream, connecting: bool) -> bool {
        if poller.add(&stream, flow.to_u64(), Interest::READ_WRITE.edge()).is_err() {
            return false;
        }
        if self.slots.len() <= flow.slot() {
            self.slots.resize_with(flow.slot() + 1, || None);
        }
        let before = self.slots[flow.slot()].replace(Box::new(Connection {
            flow,
            stream,
            connecting,
            others: None,
            readable: !connecting,
            arrived: false,
            writable: !connecting,
            failed: false,
            dead: false,
            queued: false,
            written: 0,
            peer_reset: false,
            resetting: None,
            input_ended: false,
            output_ended: false,
            rest: Rest::Everything,
            ahead: Vec::new(),
        }));
        // A flow that the relay has given up leaves its place before the driver hears of it.
        self.count += usize::from(before.is_none());
        self.enqueue(flow);
        true
    }

    /// Takes a connection that a service passes, with what it has read of it. False as in
    /// [`Connections::add`].
    pub fn add_with(
        &mut self,
        poller: &Poller,
        flow: FlowId,
        stream: Stream,
        ahead: Vec<u8>,
    ) -> bool {
        let added = self.add(poller, flow, stream, false);
        if let Some(c) = self.get(flow) {
            c.ahead = ahead;
        }
        added
    }

    /// Takes the connection of a client of the proxy, of whose bytes `ahead` have been read and are
    /// for the server, and `rest` of those that follow.
    /// False as in [`Connections::add`].
    pub fn add_client(
        &mut self,
        poller: &Poller,
        flow: FlowId,
        stream: Stream,
        rest: Rest,
        ahead: Vec<u8>,
    ) -> bool {
        let added = self.add(poller, flow, stream, false);
        if let Some(c) = self.get(flow) {
            (c.rest, c.ahead) = (rest, ahead);
        }
        added
    }

    /// Connects to a server for `flow`, by packets with a routing mark, and as `from` where that
    /// is given, which is of the server's family.
    pub fn connect(
        &mut self,
        poller: &Poller,
        flow: FlowId,
        to: SocketAddr,
        from: Option<SocketAddr>,
        mark: Option<u32>,
    ) -> Result<(), ResetReason> {
        let stream = begin(to, from, mark, &self.options)?;
        match self.add(poller, flow, stream, true) {
            true => Ok(()),
            false => Err(ResetReason::Exhausted),
        }
    }

    /// The flow's server, to which [`Connections::connect`] connects, may be elsewhere, too.
    pub fn try_others(&mut self, now: Instant, flow: FlowId, others: Others) {
        if let Some(c) = self.get(flow).filter(|_| !others.addresses.is_empty()) {
            let until = now + ADDRESS;
            c.others = Some((until, Box::new(others)));
            self.attempts.insert((until, flow));
        }
    }

    /// Connects to the next address of the flow's server in place of the last, which failed for
    /// `reason`. Where there is none the relay hears that.
    fn next_address(
        &mut self,
        now: Instant,
        poller: &Poller,
        flow: FlowId,
        relay: &mut Relay,
        mut reason: ResetReason,
    ) {
        let others = self.get(flow).and_then(|c| c.others.take());
        let Some((_, mut others)) = others else {
            relay.connect_failed(now, flow, reason);
            return self.abort(flow);
        };
        while let Some((to, mark)) = others.addresses.pop_front() {
            let goes = relay.leads_on(now, Caller::Flow(flow), to.ip());
            let has_its_part = goes == Err(ResetReason::Exhausted);
            match goes.and_then(|()| self.connect(poller, flow, to, others.from, mark)) {
                Ok(()) => return self.try_others(now, flow, *others),
                Err(why) => reason = why,
            }
            if has_its_part {
                break; // Nor may it have any other.
            }
        }
        relay.connect_failed(now, flow, reason);
        self.abort(flow);
    }

    /// The poller has news about a flow's socket.
    pub fn on_event(&mut self, event: Event) {
        let flow = FlowId::from_u64(event.token);
        if let Some(c) = self.get(flow) {
            c.readable |= event.readable;
            c.arrived |= event.readable;
            c.writable |= event.writable;
            c.failed |= event.failed;
            self.enqueue(flow);
        }
    }

    /// The relay has bytes for the flow, or takes bytes from it.
    pub fn enqueue(&mut self, flow: FlowId) {
        if let Some(c) = self.get(flow)
            && !c.queued
        {
            c.queued = true;
            self.queue.push_back(flow);
        }
    }

    /// The flow's peer gave up: what came before is still written, while the host takes it.
    pub fn peer_reset(&mut self, now: Instant, flow: FlowId, relay: &mut Relay) {
        if let Some(c) = self.get(flow) {
            c.peer_reset = true;
            let at = c.begin_resetting(now, relay);
            self.resetting.insert((at, flow));
            self.enqueue(flow);
        } else {
            // Its server's name is still being resolved.
            relay.closed(now, flow);
        }
    }

    /// Resets the flow's socket.
    pub fn abort(&mut self, flow: FlowId) {
        if self.get(flow).is_some() {
            self.slots[flow.slot()] = None;
            self.count -= 1;
        }
    }

    /// Resets all sockets whose connection has not ended in order.
    pub fn abort_all(&mut self) {
        self.slots.clear();
        self.count = 0;
        self.lingering = Lingering::default();
    }

    /// The relay has nothing for the flow any more; its host may not have got all of it yet.
    fn end(&mut self, now: Instant, of: Holder, flow: FlowId) {
        if self.get(flow).is_some()
            && let Some(c) = self.slots[flow.slot()].take()
        {
            self.count -= 1;
            self.lingering.add(now, of, c.stream);
        }
    }

    /// When [`Connections::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let first = |times: &BTreeSet<(Instant, FlowId)>| times.first().map(|(at, _)| *at);
        let times = [first(&self.resetting), first(&self.attempts), self.lingering.poll_timeout()];
        times.into_iter().flatten().min()
    }

    /// Ends flows whose host, ours or the far one, does not take what came before the other's
    /// reset, and lets go of sockets whose host has everything.
    pub fn handle_timeout(&mut self, now: Instant, poller: &Poller, relay: &mut Relay) {
        self.lingering.handle_timeout(now);
        while let Some((at, flow)) = self.attempts.first().copied().filter(|(at, _)| *at <= now) {
            self.attempts.remove(&(at, flow));
            // Where the last one failed the time of this one has just begun, and what has just come
            // is looked at first.
            let is_due = |c: &mut Connection| {
                !c.writable && !c.failed && c.others.as_ref().is_some_and(|o| o.0 == at)
            };
            if self.get(flow).is_some_and(is_due) {
                self.next_address(now, poller, flow, relay, ResetReason::TimedOut);
            }
        }
        while let Some((at, flow)) = self.resetting.first().copied() {
            if at > now {
                return;
            }
            self.resetting.remove(&(at, flow));
            let Some(c) = self.get(flow) else { continue };
            let moved = c.moved(relay);
            let Some(resetting) = &mut c.resetting else { continue };
            if resetting.is_due(now, moved) {
                match c.dead {
                    true => relay.local_reset(now, flow, ResetReason::HostReset),
                    false => relay.closed(now, flow),
                }
                self.abort(flow);
            } else {
                let next = resetting.at();
                self.resetting.insert((next, flow));
            }
        }
    }

    /// Gives every connection that waits one turn, or as many as can be compressed in
    /// [`CODING`]: meanwhile nothing is sent and nothing read.
    pub fn work(&mut self, now: Instant, poller: &Poller, relay: &mut Relay) {
        let begin = relay.codec_time();
        for _ in 0..self.queue.len() {
            if relay.codec_time() - begin > CODING {
                return;
            }
            let Some(flow) = self.queue.pop_front() else { return };
            let Some(c) = self.slots.get_mut(flow.slot()).and_then(Option::as_mut) else {
                continue;
            };
            if c.flow != flow {
                continue;
            }
            c.queued = false;
            let work = relay.work_begins(flow);
            // The relay forgets it with its flow.
            let of = (relay.flow_peer(flow), relay.flow_client(flow));
            let turn = c.turn(now, relay, &mut self.buffer);
            let goes_on = matches!(turn, Turn::Rests | Turn::HasMore);
            if goes_on && c.dead && c.resetting.is_none() {
                self.resetting.insert((c.begin_resetting(now, relay), flow));
            }
            relay.charge(work);
            match turn {
                Turn::Rests => {}
                Turn::HasMore => self.enqueue(flow),
                Turn::Unreached(reason) => self.next_address(now, poller, flow, relay, reason),
                Turn::Ended => self.end(now, of, flow),
                Turn::Over => self.abort(flow),
            }
        }
    }

    fn get(&mut self, flow: FlowId) -> Option<&mut Connection> {
        let c = self.slots.get_mut(flow.slot())?.as_mut()?;
        (c.flow == flow).then_some(c)
    }
}

/// Begins a connection, as [`Connections::connect`].
pub fn begin(
    to: SocketAddr,
    from: Option<SocketAddr>,
    mark: Option<u32>,
    options: &TcpOptions,
) -> Result<Stream, ResetReason> {
    if from.is_some_and(|f| f.is_ipv4() != to.is_ipv4()) {
        return Err(ResetReason::Denied);
    }
    let begin = |from| tcp::connect(&Connect { to, from, mark, options });
    let stream = match begin(from) {
        // The client's port is still held by an earlier connection of its own.
        Err(ConnectError::SourceInUse) => begin(from.map(|f| SocketAddr::new(f.ip(), 0))),
        other => other,
    };
    stream.map_err(|e| match e {
        ConnectError::Unreachable(e) => reason_of_own(&e, to.is_ipv4()),
        ConnectError::SourceInUse => ResetReason::Exhausted,
        ConnectError::Failed(e) => {
            crate::log!(Warn, e);
            ResetReason::Exhausted
        }
    })
}

/// How a connection's turn ended.
enum Turn {
    /// Nothing to do until there is news.
    Rests,
    /// It gave way to others.
    HasMore,
    /// There is no connection to the server at this address.
    Unreached(ResetReason),
    /// Drop its socket when its host has what was written; the relay knows.
    Ended,
    /// Drop its socket; the relay knows.
    Over,
}

impl Connection {
    fn turn(&mut self, now: Instant, relay: &mut Relay, buffer: &mut [u8]) -> Turn {
        if self.connecting {
            match self.finish_connecting(relay) {
                Some(Turn::Rests) | None => {}
                Some(over) => return over,
            }
            if self.connecting {
                return self.rest_or_give_up(now, relay);
            }
        }
        if std::mem::take(&mut self.failed) {
            // The look takes the error away: a later read tells of an end where there is none.
            self.dead |= matches!(self.stream.take_error(), Ok(Some(_)));
        }
        if self.dead && self.peer_reset {
            // Neither takes anything of the other any more.
            relay.closed(now, self.flow);
            return Turn::Over;
        }
        let mut more = false;
        match self.read(now, relay, buffer) {
            Turn::HasMore => more = true,
            Turn::Rests => {}
            over => return over,
        }
        match self.write(now, relay) {
            Turn::HasMore => more = true,
            Turn::Rests => {}
            over => return over,
        }
        if self.input_ended && self.output_ended {
            // Both ends were relayed: only now may the socket close in good order.
            let _ = self.stream.close_in_order();
            relay.closed(now, self.flow);
            return Turn::Ended;
        }
        if more { Turn::HasMore } else { Turn::Rests }
    }

    /// One side gave up. When the other is to be looked at.
    fn begin_resetting(&mut self, now: Instant, relay: &mut Relay) -> Instant {
        let limit = if self.dead { patience::FAR_RESET } else { patience::RESET };
        let resetting = Resetting::begin(now, limit, self.moved(relay));
        self.resetting.insert(resetting).at()
    }

    /// How far what came before a reset is on its way to the other host.
    fn moved(&self, relay: &mut Relay) -> Moved {
        if self.dead {
            let held_up = relay.held_up_by_far_host(self.flow);
            return Moved { bytes: held_up.unwrap_or(0), link_delivers: held_up.is_none() };
        }
        // A turn ends at a socket that takes no more, or with nothing to write.
        let has_all = self.writable && !self.queued;
        Moved {
            bytes: self.written.saturating_add(relay.arrived(self.flow)),
            link_delivers: has_all && relay.outgoing_state(self.flow) == RecvState::Open,
        }
    }

    /// The server is not reached yet; does the client still want it?
    fn rest_or_give_up(&mut self, now: Instant, relay: &mut Relay) -> Turn {
        match relay.outgoing_state(self.flow) {
            RecvState::Reset(_) => {
                relay.closed(now, self.flow);
                Turn::Over
            }
            RecvState::Open | RecvState::Finished => Turn::Rests,
        }
    }

    fn finish_connecting(&mut self, relay: &mut Relay) -> Option<Turn> {
        if !(self.writable || self.failed) {
            return None;
        }
        match self.stream.outcome() {
            Ok(()) => {}
            // It was made, and reset before anybody looked: what the server has said meanwhile is
            // the client's. A connection that is refused is never reset.
            Err(failure) if is_reset(&failure) => self.dead = true,
            Err(failure) => return Some(Turn::Unreached(reason_of_failure(&failure))),
        }
        (self.connecting, self.others) = (false, None);
        self.failed = false;
        self.readable = true;
        relay.connected(self.flow);
        Some(Turn::Rests)
    }

    /// From the host to the link.
    fn read(&mut self, now: Instant, relay: &mut Relay, buffer: &mut [u8]) -> Turn {
        for _ in 0..ROUNDS {
            if !self.ahead.is_empty() {
                let room = relay.writable_bytes(now, self.flow).min(self.ahead.len());
                if room == 0 {
                    return Turn::Rests; // Action::Read follows.
                }
                let taken = relay.local_data(now, self.flow, &self.ahead[..room]);
                self.ahead.drain(..taken);
                continue;
            }
            if self.dead && self.has_given_all() {
                return self.tell_reset(now, relay);
            }
            if !(self.readable || self.dead) || self.input_ended {
                return Turn::Rests;
            }
            let room = relay.writable_bytes(now, self.flow).min(buffer.len());
            if room == 0 {
                self.acknowledge();
                return Turn::Rests; // Action::Read follows.
            }
            match self.stream.read(&mut buffer[..room]) {
                Ok(0) if self.dead => return self.tell_reset(now, relay),
                Ok(0) => {
                    self.input_ended = true;
                    relay.local_end(now, self.flow);
                }
                Ok(n) => {
                    // What is behind a forwarded request is for nobody.
                    let n = self.rest.take(&buffer[..n]);
                    let taken = relay.local_data(now, self.flow, &buffer[..n]);
                    assert_eq!(taken, n, "the relay takes what it has room for");
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock && !self.dead => {
                    self.readable = false;
                    self.acknowledge();
                }
                Err(_) => return self.tell_reset(now, relay),
            }
        }
        Turn::HasMore
    }

    /// Was all read that the host gave before its reset?
    fn has_given_all(&self) -> bool {
        self.input_ended || self.stream.unread().is_ok_and(|left| left == 0)
    }

    /// All that the host gave before its reset was read.
    fn tell_reset(&mut self, now: Instant, relay: &mut Relay) -> Turn {
        relay.local_reset(now, self.flow, ResetReason::HostReset);
        Turn::Over
    }

    /// What arrived and was not acknowledged by being read is acknowledged now: while the
    /// link is slower than the host, the kernel's buffer is full, it waits 40 ms for a
    /// read, and the host would see that in its round trip (R-SPLIT-3).
    fn acknowledge(&mut self) {
        if self.arrived {
            self.arrived = false;
            // Without it the kernel acknowledges a little later.
            let _ = self.stream.acknowledge();
        }
    }

    /// From the link to the host.
    fn write(&mut self, now: Instant, relay: &mut Relay) -> Turn {
        for _ in 0..ROUNDS {
            if !self.writable || self.dead {
                return Turn::Rests;
            }
            let mut slices: [&[u8]; 16] = [&[]; 16];
            let n = relay.outgoing(now, self.flow, &mut slices);
            if n == 0 {
                return self.end_output(now, relay);
            }
            let pieces = slices.map(IoSlice::new);
            match self.stream.write_vectored(&pieces[..n]) {
                Ok(n) => {
                    self.written += n as u64;
                    relay.wrote(now, self.flow, n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.writable = false;
                    relay.not_taken(self.flow);
                }
                // What the host gave before is still to be read.
                Err(_) => {
                    self.dead = true;
                    return Turn::HasMore;
                }
            }
        }
        Turn::HasMore
    }

    /// All that came was written; is it all that will come?
    fn end_output(&mut self, now: Instant, relay: &mut Relay) -> Turn {
        match relay.outgoing_state(self.flow) {
            RecvState::Open => Turn::Rests,
            RecvState::Finished => {
                if !self.output_ended {
                    self.output_ended = true;
                    let _ = self.stream.shutdown_write();
                }
                Turn::Rests
            }
            RecvState::Reset(_) => {
                relay.closed(now, self.flow);
                Turn::Ended
            }
        }
    }
}

fn is_reset(failure: &Failure) -> bool {
    let kind = failure.error.kind();
    failure.unreachable.is_none()
        && matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// What the failure of an attempt means to the client: what was said on the way, if
/// anything was.
pub fn reason_of_failure(failure: &Failure) -> ResetReason {
    match failure.unreachable {
        Some(Unreachable::V4(code)) => ResetReason::Icmp(code),
        Some(Unreachable::V6(code)) => ResetReason::Icmpv6(code),
        None => reason_of(&failure.error),
    }
}

/// This host's own routes and rules forbid it: what it would tell as a router.
pub(super) fn reason_of_own(e: &std::io::Error, v4: bool) -> ResetReason {
    let said = match e.kind() {
        ErrorKind::NetworkUnreachable => [0, 0],
        ErrorKind::HostUnreachable => [1, 3],
        ErrorKind::PermissionDenied => [13, 1],
        _ => return reason_of(e),
    };
    if v4 { ResetReason::Icmp(said[0]) } else { ResetReason::Icmpv6(said[1]) }
}

/// The same of an error number alone.
fn reason_of(e: &std::io::Error) -> ResetReason {
    match e.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => ResetReason::Refused,
        ErrorKind::TimedOut => ResetReason::TimedOut,
        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable => ResetReason::Exhausted,
        _ => ResetReason::Unreachable,
    }
}

#[cfg(test)]
mod tests;
