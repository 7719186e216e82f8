//! Flows: what the driver tells of their sockets, and what it is told for them.

use std::net::IpAddr;

use link::PeerId;
use link::session::{PathHealth, RecvState, Session};
use link::wire::{Origin, ResetReason, StreamId, Target};
use units::{Instant, one_host};

use crate::codec::{ActiveFlow, Codecs};
use crate::flows::{Flow, Kind};
use crate::{Bytes, Caller, FlowId, Relay};

/// Work for a peer that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    peer: PeerId,
    begin: Instant,
}

impl Relay {
    /// A client here wants a connection: opens a stream for it. `None` where there is no
    /// memory left for it (reset the client). Intercepted clients come by [`Relay::accept`].
    pub fn open(&mut self, now: Instant, peer: PeerId, origin: Origin) -> Option<FlowId> {
        let (kind, target) = (self.policies.kind(peer, &origin, true), origin.target.clone());
        if self.is_stopped(peer, kind.host, kind.class) {
            self.stats.over_budget += 1;
            return None;
        }
        if !self.has_place(now, peer, kind.host) {
            return None;
        }
        let session = self.endpoint.session_mut(peer)?;
        let stream = session.open(now, origin)?;
        let flow = self.insert(now, peer, stream, kind, target.clone());
        self.pending_opens.on_open(flow, peer, target);
        Some(flow)
    }

    /// A new stream of the peer's session becomes a flow.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        peer: PeerId,
        stream: StreamId,
        kind: Kind,
        target: Target,
    ) -> FlowId {
        if let Some(session) = self.endpoint.session_mut(peer) {
            session.set_class(stream, kind.class, kind.chosen_by);
        }
        let session = self.endpoint.session_number(peer);
        let flow = Flow { peer, session, stream, kind, moved: now, to: None };
        let flow = self.flows.insert(flow, target);
        self.flow_news.opened(&self.flows, flow);
        self.moving.note(&self.flows, flow, Bytes::default(), false);
        flow
    }

    /// How many bytes the flow takes now, that is, may be read from its socket. If it is 0,
    /// [`Action::Read`] follows.
    pub fn writable_bytes(&mut self, now: Instant, flow: FlowId) -> usize {
        self.flush_early(now, flow);
        let Some((mut active, codecs)) = self.active(now, flow) else { return 0 };
        match active.session.codec() {
            Some(codec) if !codec.is_active() => {
                active.session.writable_bytes(active.f.stream) as usize
            }
            _ => codecs.room(&mut active),
        }
    }

    /// Bytes were read from the flow's socket; answers how many were taken.
    pub fn local_data(&mut self, now: Instant, flow: FlowId, data: &[u8]) -> usize {
        let Some((mut active, codecs)) = self.active(now, flow) else { return 0 };
        let f = active.f;
        let taken = match active.session.codec() {
            Some(codec) if !codec.is_active() => active.session.write(now, f.stream, data),
            Some(codec) => codecs.encode(&mut active, codec, data),
            None => codecs.wait(&mut active, data),
        };
        let bytes = Bytes { sent: taken as u64, received: 0 };
        self.flows.moved(now, flow, bytes);
        self.moving.note(&self.flows, flow, bytes, false);
        self.accounts.on_stream(f.peer, f.kind.host, bytes);
        taken
    }

    /// The flow's socket has no more input: its host closed its direction.
    pub fn local_end(&mut self, now: Instant, flow: FlowId) {
        let Some((mut active, codecs)) = self.active(now, flow) else { return };
        if !codecs.end(&mut active) {
            active.session.finish(now, active.f.stream);
        }
    }

    /// The flow's socket was reset, or failed; the driver closes it and forgets it. What
    /// was read before is still delivered, and then the reset.
    pub fn local_reset(&mut self, now: Instant, flow: FlowId, reason: ResetReason) {
        self.hurry(now, flow);
        self.with(flow, |session, stream| session.reset(now, stream, reason, true));
        self.closed(now, flow);
    }

    /// The server stands ([`Action::Connect`]).
    pub fn connected(&mut self, flow: FlowId) {
        self.connects.end(Caller::Flow(flow), true);
        self.with(flow, |session, stream| session.accept(stream));
    }

    /// The server does not stand. The flow is gone.
    pub fn connect_failed(&mut self, now: Instant, flow: FlowId, reason: ResetReason) {
        self.with(flow, |session, stream| session.reset(now, stream, reason, false));
        self.closed(now, flow);
    }

    /// Bytes for the flow's socket, as slices for one vectored write; answers how many
    /// slices. Follow with [`Relay::wrote`].
    pub fn outgoing<'a>(
        &'a mut self,
        now: Instant,
        flow: FlowId,
        slices: &mut [&'a [u8]],
    ) -> usize {
        let Some(f) = self.living(flow) else { return 0 };
        let Some(session) = self.endpoint.session_mut(f.peer) else { return 0 };
        let active = ActiveFlow { now, flow, f, session };
        match active.session.codec() {
            Some(codec) if codec.is_active() => {
                self.codecs.decode(active, codec, &self.flows, slices)
            }
            _ => active.session.peek_slices(active.f.stream, slices),
        }
    }

    /// The flow's socket took `n` bytes.
    pub fn wrote(&mut self, now: Instant, flow: FlowId, n: usize) {
        let Some(f) = self.living(flow) else { return };
        let bytes = Bytes { sent: 0, received: n as u64 };
        self.flows.moved(now, flow, bytes);
        self.moving.note(&self.flows, flow, bytes, false);
        self.accounts.on_stream(f.peer, f.kind.host, bytes);
        let (n, referred) = self.codecs.took(flow, f.peer, n);
        self.with(flow, |session, stream| {
            session.took_referred(now, stream, referred as u64);
            if n > 0 {
                session.consume(now, stream, n);
            }
        });
    }

    /// Bytes of the flow's stream that have arrived, in whatever order: what a reader is given
    /// waits for the first that is missing.
    pub fn arrived(&self, flow: FlowId) -> u64 {
        let Some(f) = self.living(flow) else { return 0 };
        self.endpoint.session(f.peer).map_or(0, |session| session.arrived(f.stream))
    }

    /// The flow's socket takes nothing of [`Relay::outgoing`] now.
    pub fn not_taken(&mut self, flow: FlowId) {
        let Some(f) = self.living(flow) else { return };
        self.codecs.not_taken(flow, f.peer);
    }

    /// What stands behind the bytes of [`Relay::outgoing`]. Asking re-arms
    /// [`Action::Write`].
    pub fn outgoing_state(&mut self, flow: FlowId) -> RecvState {
        self.with(flow, |session, stream| session.recv_state(stream))
            .unwrap_or(RecvState::Reset(ResetReason::PeerRestarted))
    }

    /// The driver has closed the flow's socket and forgets it. What was read and ended
    /// in good order is still delivered.
    pub fn closed(&mut self, now: Instant, flow: FlowId) {
        self.hurry(now, flow);
        self.with(flow, |session, stream| session.release(now, stream));
        self.pending_opens.on_closed(flow);
        self.forget(flow);
    }

    /// Clients' SYNs that wait for the far side's answer, or their clients' handshake.
    pub fn pending_opens(&self) -> usize {
        self.pending_opens.len()
    }

    /// The number of flows.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// The peer of a flow.
    pub fn flow_peer(&self, flow: FlowId) -> Option<PeerId> {
        self.flows.get(flow).map(|f| f.peer)
    }

    /// What the client of a flow counts as ([`one_host`]), where it is known.
    pub fn flow_client(&self, flow: FlowId) -> Option<IpAddr> {
        self.flows.get(flow)?.kind.host.map(one_host)
    }

    /// Is something of the flow on its way to the peer, or waiting for it?
    pub fn is_undelivered(&self, flow: FlowId) -> bool {
        let session = self.living(flow).and_then(|f| Some((self.endpoint.session(f.peer)?, f)));
        session.is_some_and(|(session, f)| session.is_undelivered(f.stream))
    }

    /// Does the flow wait for the far host alone, as far as can be told: the link works, and bytes
    /// that have left were not taken, so that more may not follow? Answers a number that grows
    /// whenever bytes leave, or are taken.
    pub fn held_up_by_far_host(&self, flow: FlowId) -> Option<u64> {
        let f = self.living(flow)?;
        let session = self.endpoint.session(f.peer)?;
        let ((written, unsent), taken) = (session.written(f.stream), session.taken(f.stream)?);
        let left = written - unsent;
        let works = session.health() == PathHealth::Alive;
        (works && unsent > 0 && taken < left).then(|| left.saturating_add(taken))
    }

    /// Is what comes on the flow, of which something has come, content as it is, to its end? Else
    /// chunks may be kept of it.
    pub fn comes_as_it_is(&self, flow: FlowId) -> bool {
        self.codecs.comes_as_it_is(flow)
    }

    /// Work for a flow begins, for [`Relay::charge`]: `None` while it need not be measured.
    pub fn work_begins(&self, flow: FlowId) -> Option<Work> {
        let begin = self.endpoint.work_begins()?;
        Some(Work { peer: self.flow_peer(flow)?, begin })
    }

    /// The work is done: its peer bears it.
    pub fn charge(&mut self, work: Option<Work>) {
        if let Some(Work { peer, begin }) = work {
            self.endpoint.charge(peer, Some(begin));
        }
    }

    pub(crate) fn with<T>(
        &mut self,
        flow: FlowId,
        act: impl FnOnce(&mut Session, StreamId) -> T,
    ) -> Option<T> {
        let f = self.living(flow)?;
        let session = self.endpoint.session_mut(f.peer)?;
        Some(act(session, f.stream))
    }

    /// A flow whose session goes on, and the codecs of all.
    pub(crate) fn active(
        &mut self,
        now: Instant,
        flow: FlowId,
    ) -> Option<(ActiveFlow<'_>, &mut Codecs)> {
        let f = self.living(flow)?;
        let session = self.endpoint.session_mut(f.peer)?;
        Some((ActiveFlow { now, flow, f, session }, &mut self.codecs))
    }

    /// A flow whose session goes on. Its peer may have begun another without the driver
    /// having heard of it yet.
    pub(crate) fn living(&self, flow: FlowId) -> Option<Flow> {
        self.flows.get(flow).filter(|f| f.session == self.endpoint.session_number(f.peer))
    }

    pub(crate) fn forget(&mut self, flow: FlowId) {
        self.connects.end(Caller::Flow(flow), false);
        if let Some(f) = self.flows.get(flow) {
            let lives = f.session == self.endpoint.session_number(f.peer);
            let session = self.endpoint.session(f.peer).filter(|_| lives);
            self.codecs.forget(flow, f, session);
            self.flow_news.closed(&self.flows, flow);
            self.moving.note(&self.flows, flow, Bytes::default(), true);
            self.flows.remove(flow);
        }
    }
}
