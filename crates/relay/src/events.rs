//! Turns the endpoint's events into actions for the driver.

use std::net::SocketAddr;

use link::PeerId;
use link::endpoint::{EndpointEvent, LinkEvent};
use link::session::Event;
use link::wire::{Origin, ResetReason, StreamId, Target};
use units::Instant;

use crate::connects::Asked;
use crate::routes::{Owner, is_in_longer};
use crate::{Action, Caller, Policy, Relay, self_test};

impl Relay {
    /// The next thing to do.
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        loop {
            self.end_giving_way(now);
            match self.actions.pop_front() {
                // Its socket has noticed by itself, or does not wait any more.
                Some(Action::PeerReset(flow, _) | Action::Write(flow))
                    if self.flows.get(flow).is_none() =>
                {
                    continue;
                }
                Some(action) => return Some(action),
                None => {}
            }
            let Some(event) = self.endpoint.poll_event() else {
                let peer = self.codecs.next_touched()?;
                let begin = self.endpoint.work_begins();
                self.settle_chunks(now, peer);
                self.endpoint.charge(peer, begin);
                continue;
            };
            match event {
                EndpointEvent::Stream(peer, event) => {
                    let begin = self.endpoint.work_begins();
                    self.on_event(now, peer, event);
                    self.endpoint.charge(peer, begin);
                }
                EndpointEvent::SessionLost(peer, reason) => {
                    let session = self.endpoint.session_number(peer);
                    self.abort_before(peer, session, reason);
                }
                EndpointEvent::Link(peer, event) => {
                    if let LinkEvent::Up { resumed: false, .. } = event {
                        self.codecs.touch(peer); // It is to hear what is held here.
                    }
                    self.link_events.push_back((peer, event));
                }
            }
        }
    }

    /// What happened to a link, found while actions were polled.
    pub fn poll_link_event(&mut self) -> Option<(PeerId, LinkEvent)> {
        self.link_events.pop_front()
    }

    fn on_event(&mut self, now: Instant, peer: PeerId, event: Event) {
        let session = self.endpoint.session_number(peer);
        let flow = |id| self.flows.find(peer, session, id);
        match event {
            Event::Opened(stream, origin) => self.on_opened(now, peer, stream, origin),
            Event::Accepted(id) => {
                if let Some(flow) = flow(id) {
                    self.on_accepted(now, flow);
                }
            }
            Event::Readable(id) => {
                // Without a socket here it keeps until there is one.
                let flow = flow(id).filter(|f| !self.pending_opens.holds(*f));
                self.actions.extend(flow.map(Action::Write));
            }
            Event::Writable(id) => {
                let flow = flow(id);
                if let Some(flow) = flow {
                    self.flush_early(now, flow);
                    self.pump(now, flow);
                }
                self.actions.extend(flow.map(Action::Read));
            }
            Event::Messages => {
                if let Some(s) = self.endpoint.session_mut(peer) {
                    self.codecs.on_messages(now, peer, session, s);
                }
            }
            Event::Reset(id, reason) => {
                if let Some(flow) = flow(id) {
                    self.on_peer_reset(now, flow, reason);
                }
            }
        }
    }

    fn on_opened(&mut self, now: Instant, peer: PeerId, stream: StreamId, origin: Origin) {
        let policy = self.policies.of(peer);
        let keep = policy.is_some_and(|rules| rules.keep_source);
        let to_service = matches!(origin.target, Target::Service(..));
        let client = match to_service {
            true => Ok(self.client_of_service(peer, &origin)),
            false => self.client_of(peer, &origin, keep),
        };
        let permitted = policy.is_some_and(|rules| match &origin.target {
            Target::Address(a) => rules.permits(a.ip(), &self.own),
            Target::Name(..) => true, // its addresses are asked for one by one
            Target::Service(..) => true,
        });
        let is_test = self_test::is_for_service(&origin.target);
        let known = client.ok().flatten();
        let told = origin.client;
        let origin = Origin { client: known, ..origin };
        let kind = self.policies.kind(peer, &origin, false);
        let denied = !permitted || client.is_err() && !is_test;
        let is_stopped = !denied && self.is_stopped(peer, kind.host, kind.class);
        let has_place = denied || is_stopped || self.has_place(now, peer, kind.host);
        let flow = self.insert(now, peer, stream, kind, origin.target.clone());
        if denied {
            self.note_denied(Some(peer), told, origin.target);
            return self.connect_failed(now, flow, ResetReason::Denied);
        }
        self.stats.over_budget += u64::from(is_stopped);
        if is_stopped || !has_place {
            return self.connect_failed(now, flow, ResetReason::Exhausted);
        }
        if let Target::Service(name, _) = &origin.target
            && !self.services.is_running(name)
        {
            return self.connect_failed(now, flow, ResetReason::NoSuchService);
        }
        if let Target::Address(to) = &origin.target {
            self.flows.leads_to(flow, to.ip());
        }
        let source = known.filter(|_| keep || to_service);
        let client = known.map(|c| c.ip());
        let caller = Caller::Flow(flow);
        let asked = Asked { caller, target: origin.target, source, client, since: now };
        match is_test {
            true => self.connect(asked),
            false => self.connect_or_hold(now, peer, asked),
        }
    }

    fn connect(&mut self, Asked { caller, target, source, .. }: Asked) {
        self.actions.push_back(match caller {
            Caller::Flow(flow) => Action::Connect { flow, target, source },
            Caller::Service(connect) => Action::ServiceConnect { connect, target, source },
        });
    }

    fn is_wanted(&self, caller: Caller) -> bool {
        match caller {
            Caller::Flow(flow) => self.flows.get(flow).is_some(),
            Caller::Service(connect) => self.services.peer_of(connect).is_some(),
        }
    }

    /// Connects, or waits with it until the peer may have one more (L-ST-8).
    pub(crate) fn connect_or_hold(&mut self, now: Instant, peer: PeerId, asked: Asked) {
        let rate = self.policies.of(peer).map_or(0, Policy::connects);
        if self.connects.begin(now, (peer, rate), asked.caller, &asked.target, asked.client) {
            return self.connect(asked);
        }
        if asked.is_over(now) {
            self.connects.refuse(peer);
            return match asked.caller {
                Caller::Flow(flow) => self.connect_failed(now, flow, ResetReason::Exhausted),
                Caller::Service(id) => self.refuse_service(id, ResetReason::Exhausted),
            };
        }
        // Of those that are over already nothing is kept for long.
        if self.held.len(peer) > 2 * self.flows.len() + 64 && self.held.has_doubled() {
            let mut held = std::mem::take(&mut self.held);
            // Services are answered in their turn.
            held.retain(|caller| matches!(caller, Caller::Service(_)) || self.is_wanted(caller));
            self.held = held;
        }
        self.held.push(now, peer, asked);
    }

    pub(crate) fn connect_held(&mut self, now: Instant) {
        for (peer, asked) in self.held.take_due(now) {
            if self.is_wanted(asked.caller) {
                self.connect_or_hold(now, peer, asked);
            } else if let Caller::Service(id) = asked.caller {
                // Its peer left meanwhile, and it waits for an answer.
                self.refuse_service(id, ResetReason::ShuttingDown);
            }
        }
    }

    /// L-ST-7: the client of a stream that the peer opens, where it is the peer's to speak for.
    /// `keep`: a connection needs one that it can have as its source.
    pub(crate) fn client_of(
        &self,
        peer: PeerId,
        origin: &Origin,
        keep: bool,
    ) -> Result<Option<SocketAddr>, NoClient> {
        let Some(client) = origin.client else {
            return if keep { Err(NoClient) } else { Ok(None) };
        };
        match self.owners.owner(peer, client.ip()) {
            // A host of this side's LANs asks for itself.
            Owner::Its(prefix) if keep && is_in_longer(&self.lans, client.ip(), prefix) => {
                Err(NoClient)
            }
            Owner::Its(_) if !keep || can_keep(client, &origin.target) => Ok(Some(client)),
            // A client of the peer's proxy, say. Servers see this node.
            Owner::Nobody if !keep => Ok(None),
            _ => Err(NoClient),
        }
    }
}

/// A stream's client is none that this node may connect for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoClient;

/// Is the client's address one that the connection can have? Addresses of names are chosen so.
fn can_keep(client: SocketAddr, target: &Target) -> bool {
    let client = client.ip();
    let fits = match target {
        Target::Address(to) => client.is_ipv4() == to.ip().to_canonical().is_ipv4(),
        Target::Name(..) | Target::Service(..) => true,
    };
    client == client.to_canonical() && fits
}
