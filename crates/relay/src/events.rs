//! What follows from what peers and links do.

use link::PeerId;
use link::endpoint::{EndpointEvent, LinkEvent};
use link::session::Event;
use link::wire::{Origin, ResetReason, StreamId, Target};
use units::Instant;

use crate::{Action, Policy, Relay, self_test};

impl Relay {
    /// The next thing to do.
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        loop {
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
                let peer = self.coders.next_touched()?;
                self.settle_chunks(now, peer);
                continue;
            };
            match event {
                EndpointEvent::Stream(peer, event) => self.on_event(now, peer, event),
                EndpointEvent::SessionLost(peer, reason) => {
                    let session = self.endpoint.session_number(peer);
                    self.abort_before(peer, session, reason);
                }
                EndpointEvent::Link(peer, event) => {
                    if let LinkEvent::Up { resumed: false, .. } = event {
                        self.coders.touch(peer); // It is to hear what is held here.
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
                let flow = flow(id).filter(|f| !self.openings.holds(*f));
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
                    self.coders.on_messages(now, peer, session, s);
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
        let kind = self.policies.kind(peer, &origin, false);
        let has_place = self.has_place(now, peer, kind.host);
        let flow = self.insert(now, peer, stream, kind);
        if !has_place {
            return self.connect_failed(now, flow, ResetReason::Exhausted);
        }
        let policy = self.policies.of(peer);
        let permitted = policy.is_some_and(|rules| {
            let target = match &origin.target {
                Target::Address(a) => rules.permits(a.ip(), &self.own),
                Target::Name(..) => true, // its addresses are asked for one by one
            };
            target
                && origin.client.is_none_or(|c| self.owners.owned(peer, c.ip()).is_some())
                && (!rules.keep_source || can_keep(&origin))
        });
        if !permitted {
            self.count_denied();
            return self.connect_failed(now, flow, ResetReason::Denied);
        }
        let rate = policy.map_or(0, Policy::connects);
        let client = origin.client.map(|c| c.ip());
        if !self_test::is_for_service(&origin.target)
            && !self.connects.begin(now, (peer, rate), flow, &origin.target, client)
        {
            return self.connect_failed(now, flow, ResetReason::Exhausted);
        }
        let keep = policy.is_some_and(|rules| rules.keep_source);
        let source = origin.client.filter(|_| keep);
        self.actions.push_back(Action::Connect { flow, target: origin.target, source });
    }
}

/// Is the client's address one that the connection can have? Without a client it is a proxy's of
/// the peer, which servers see as this node's own, as they do where it goes to a name.
fn can_keep(origin: &Origin) -> bool {
    let (Some(client), Target::Address(target)) = (origin.client, &origin.target) else {
        return true;
    };
    let client = client.ip();
    client == client.to_canonical() && client.is_ipv4() == target.ip().to_canonical().is_ipv4()
}
