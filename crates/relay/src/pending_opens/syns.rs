//! Clients' SYNs: which of them wait, what is asked for them, and how they are answered.

use std::net::SocketAddr;

use link::PeerId;
use link::wire::{Origin, ResetReason, Target};
use units::{Duration, Instant};

use super::intercepted::{HANDSHAKE, Pair};
use super::{PendingSyn, SynState};
use crate::packet::Packet;
use crate::policy::Open;
use crate::{Action, FlowId, Relay, Verdict, refusal};

/// The most pending SYNs, each with a packet of at most 1,500 bytes. Beyond that older ones are
/// given up; their clients retransmit.
pub(super) const MOST: usize = 4096;
/// A SYN comes again after 1 s (RFC 6298), after 3 s from old hosts (RFC 1122), and any
/// one of them may be lost; and the first that is seen here may be the fourth of its client.
const FIRST_WAIT: Duration = Duration::from_secs(15);
/// The longest interval between SYNs: Linux' TCP_RTO_MAX, and a little.
const LONGEST_WAIT: Duration = Duration::from_secs(130);

impl Relay {
    /// Is the far side to be asked before a client that wants `target` is answered?
    pub fn asks_first(&self, now: Instant, peer: PeerId, target: &Target) -> bool {
        let Some(policy) = self.policies.of(peer) else {
            return true;
        };
        match policy.open {
            Open::Fast => false,
            Open::Sure => true,
            // While there is nobody to ask nobody is answered for either.
            Open::Auto => {
                let cache = &self.pending_opens.destinations;
                !self.endpoint.is_established(peer)
                    || !cache.expects(now, peer, target, &policy.fast_ports)
            }
        }
    }

    /// A client's SYN from a LAN whose TCP is split.
    pub(crate) fn on_syn(
        &mut self,
        now: Instant,
        peer: PeerId,
        (client, server): Pair,
        packet: &[u8],
    ) -> Verdict {
        let pair = (client, server);
        if let Some(verdict) = self.on_syn_again(now, pair, packet) {
            return verdict;
        }
        let target = Target::Address(server);
        let dscp = Packet::parse(packet).map_or(0, |p| p.facts(packet).dscp);
        // A service answers for its servers itself.
        if self.via_at(now, peer, client, server, dscp).is_some() {
            self.pending_opens.intercepted.note(now, pair, dscp);
            self.pending_opens.intercepted.pay(pair);
            return Verdict::Intercept;
        }
        let rate = self.endpoint.rate(peer).as_bps();
        if !self.asks_first(now, peer, &target) {
            return self.answer_at_once(now, peer, rate, pair, dscp);
        }
        if !self.pending_opens.callers.may_ask(now, peer, rate, pair) {
            self.stats.syns_dropped += 1;
            return Verdict::Dropped;
        }
        if self.pending_opens.pending.len() >= MOST
            && let Some(other) = self.pending_opens.callers.gives_way()
        {
            self.stats.syns_dropped += 1;
            self.give_up_pending_open(now, other);
        }
        let origin = Origin { client: self.told(client), target, dscp };
        let Some(flow) = self.open(now, peer, origin) else {
            self.refuse(packet, ResetReason::Exhausted);
            return Verdict::Dropped;
        };
        self.announce(flow);
        let until = now + FIRST_WAIT;
        let (syn, state) = (packet.to_vec(), SynState::Asked);
        let pending = PendingSyn { flow, state, syn, first: now, until };
        self.pending_opens.pending.insert(pair, pending);
        self.pending_opens.callers.add(now, pair);
        self.pending_opens.pairs.insert(flow, pair);
        self.pending_opens.due.insert((until, pair));
        Verdict::Pending
    }

    /// The SYN of a client that is answered before the far side is asked.
    fn answer_at_once(
        &mut self,
        now: Instant,
        peer: PeerId,
        rate: u64,
        pair: Pair,
        dscp: u8,
    ) -> Verdict {
        let opens = &mut self.pending_opens;
        let charged = match opens.intercepted.is_paid(pair) {
            true => None,
            false => opens.callers.may_open(now, peer, rate, pair.0),
        };
        if charged == Some(false) {
            self.stats.syns_dropped += 1;
            return Verdict::Dropped;
        }
        opens.intercepted.note(now, pair, dscp);
        if charged.is_some() {
            opens.intercepted.pay(pair);
        }
        Verdict::Intercept
    }

    fn on_syn_again(&mut self, now: Instant, pair: Pair, packet: &[u8]) -> Option<Verdict> {
        let w = self.pending_opens.pending.get_mut(&pair)?;
        match w.state {
            SynState::Asked => {
                packet.clone_into(&mut w.syn);
                let interval = now.since(w.first);
                let wait = interval.times(4).max(FIRST_WAIT).min(LONGEST_WAIT);
                self.pending_opens.set_until(pair, now + wait);
                Some(Verdict::Pending)
            }
            SynState::Standing(_) => {
                self.pending_opens.intercepted.note(now, pair, 0);
                Some(Verdict::Intercept)
            }
            SynState::Gone => {
                self.pending_opens.remove(pair);
                None
            }
        }
    }

    /// Lets a flow's OPEN leave at once, without waiting for first bytes.
    pub fn announce(&mut self, flow: FlowId) {
        self.with(flow, |session, stream| session.announce(stream));
    }

    /// A client's connection was intercepted and stands here: its flow, which may have been
    /// opened when its SYN came. `None`: reset the client.
    pub fn accept(
        &mut self,
        now: Instant,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<FlowId> {
        self.pending_opens.callers.on_handshake(now, client.ip());
        if let Some(w) = self.pending_opens.remove((client, server)) {
            return match w.state {
                SynState::Gone => None,
                SynState::Asked | SynState::Standing(None) => Some(w.flow),
                SynState::Standing(Some(reason)) => {
                    self.actions.push_back(Action::PeerReset(w.flow, reason));
                    Some(w.flow)
                }
            };
        }
        let peer = self.peer_for(server.ip())?;
        // A host that was a stranger when its SYN came is charged now.
        let rate = self.endpoint.rate(peer).as_bps();
        let opens = &mut self.pending_opens;
        if !opens.intercepted.take_paid((client, server))
            && opens.callers.may_open(now, peer, rate, client) == Some(false)
        {
            self.stats.syns_dropped += 1;
            return None;
        }
        let dscp = self.pending_opens.intercepted.take_dscp((client, server));
        let target = Target::Address(server);
        self.open(now, peer, Origin { client: self.told(client), target, dscp })
    }

    /// The far connection of a flow stands.
    pub(crate) fn on_accepted(&mut self, now: Instant, flow: FlowId) {
        if let Some((peer, target)) = self.pending_opens.asked.remove(&flow) {
            let client = self.flows.get(flow).and_then(|f| f.kind.host);
            self.pending_opens.destinations.on_answer(now, client, peer, &target);
        }
        let Some((pair, w)) = self.pending_opens.of_flow(flow) else {
            return self.actions.push_back(Action::Accepted(flow));
        };
        if w.state == SynState::Asked {
            w.state = SynState::Standing(None);
            let syn = std::mem::take(&mut w.syn);
            self.actions.push_back(Action::ToClient(syn));
            self.pending_opens.intercepted.note(now, pair, 0);
            self.pending_opens.set_until(pair, now + HANDSHAKE);
        }
    }

    /// The far side has given a flow up.
    pub(crate) fn on_peer_reset(&mut self, now: Instant, flow: FlowId, reason: ResetReason) {
        let asked = self.pending_opens.asked.remove(&flow);
        if let Some((peer, target)) = &asked {
            self.services.on_reset(now, *peer, target, reason);
        }
        if let Some((peer, target)) = asked.filter(|_| is_the_servers(reason)) {
            let client = self.flows.get(flow).and_then(|f| f.kind.host);
            let policy = self.policies.of(peer);
            let listed = policy.map_or(&[][..], |p| &p.fast_ports);
            self.pending_opens.destinations.on_failure(now, client, peer, &target, listed);
        }
        let Some((pair, w)) = self.pending_opens.of_flow(flow) else {
            return self.actions.push_back(Action::PeerReset(flow, reason));
        };
        if w.state != SynState::Asked {
            w.state = SynState::Standing(Some(reason));
        } else if let Some(w) = self.pending_opens.remove(pair) {
            self.refuse(&w.syn, reason);
            self.closed(now, flow);
        }
    }

    fn refuse(&mut self, syn: &[u8], reason: ResetReason) {
        self.actions.extend(refusal::answer(syn, reason).map(Action::ToClient));
    }

    /// Gives up what clients have waited for in vain, or do not wait for any more.
    pub(crate) fn expire_pending_opens(&mut self, now: Instant) {
        while let Some((_, pair)) =
            self.pending_opens.due.first().copied().filter(|(t, _)| *t <= now)
        {
            self.give_up_pending_open(now, pair);
        }
    }

    /// Gives up all connections whose clients have no socket here yet: this node ends.
    pub fn give_up_pending_opens(&mut self, now: Instant) {
        while let Some(&pair) = self.pending_opens.pending.keys().next() {
            self.give_up_pending_open(now, pair);
        }
    }

    /// Refuses a client that asks while this node ends.
    pub fn refuse_syn(&mut self, syn: &[u8]) {
        if Packet::parse(syn).is_some_and(|p| p.opens(syn).is_some()) {
            self.refuse(syn, ResetReason::HostReset);
        }
    }

    fn give_up_pending_open(&mut self, now: Instant, pair: Pair) {
        if let Some(w) = self.pending_opens.remove(pair).filter(|w| w.state != SynState::Gone) {
            self.connect_failed(now, w.flow, ResetReason::HostReset);
        }
    }
}

/// Does the reason tell something of the server, and not of this node, the peer or the client?
fn is_the_servers(reason: ResetReason) -> bool {
    matches!(
        reason,
        ResetReason::Refused
            | ResetReason::Unreachable
            | ResetReason::TimedOut
            | ResetReason::Denied
            | ResetReason::NoSuchName
            | ResetReason::Icmp(_)
            | ResetReason::Icmpv6(_)
    )
}
