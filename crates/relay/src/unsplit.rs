//! Packets that are not split: they cross the link as datagrams.

use std::net::IpAddr;

use link::PeerId;
use link::session::{ChosenBy, ClassId};
use units::{Instant, IpPrefix};

use crate::classify;
use crate::packet::Packet;
use crate::policy::{is_in, never};
use crate::refusal;
use crate::routes::{Owners, is_in_longer};
use crate::tracking::{Kind, Upper};
use crate::{Action, NotPassed, RefusedConnection, RefusedPacket, Relay, Verdict};

impl Relay {
    /// An IP packet was read from the TUN device. `split`: whether a SYN in it came
    /// from a LAN whose TCP is split.
    pub fn handle_tun(&mut self, now: Instant, packet: &mut [u8], split: bool) -> Verdict {
        self.handle_tun_in(now, packet, split, ClassId::NORMAL)
    }

    /// The same; a packet that nothing has a class for goes in this one.
    pub fn handle_tun_in(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        split: bool,
        otherwise: ClassId,
    ) -> Verdict {
        let Some(mut p) = Packet::parse(packet) else {
            self.stats.unroutable += 1;
            return Verdict::Refused;
        };
        let Some((peer, route)) = self.owners.here.find(p.destination) else {
            self.stats.unroutable += 1;
            return Verdict::Refused;
        };
        if !self.is_taken_there(peer, p.source) {
            self.stats.not_taken_there += 1;
            self.refuse_here(now, packet, split, refusal::no_route);
            return Verdict::Refused;
        }
        let rules = self.policies.of(peer).map_or(&[][..], |policy| &policy.rules);
        let class = || classify::class(rules, &p.facts(packet));
        if self.stopped.stops(peer, p.source, class) {
            self.stats.over_budget += 1;
            self.refuse_here(now, packet, split, refusal::no_route);
            return Verdict::Refused;
        }
        if self.policies.of(peer).is_some_and(|policy| policy.refuse_quic) && p.begins_quic(packet)
        {
            self.stats.quic_refused += 1;
            self.refuse_here(now, packet, split, refusal::port_unreachable);
            return Verdict::Refused;
        }
        if let Some(pair) = p.opens(packet).filter(|_| split) {
            return self.on_syn(now, peer, pair, packet);
        }
        // Its host sends it again, and then the socket is there.
        if p.connection(packet).is_some_and(|pair| self.pending_opens.is_new(now, pair)) {
            self.stats.between_sockets += 1;
            return Verdict::Refused;
        }
        let (session, policy) = (self.endpoint.session_mut(peer), self.policies.of(peer));
        let (Some(session), Some(policy)) = (session, policy) else { return Verdict::Dropped };
        p.clamp_mss(packet, session.max_whole_datagram());
        if let Some(name) = router_name(packet, &self.own, &self.interfaces) {
            p.rename_icmp_source(packet, name);
        }
        // Behind a default route is the Internet: then the LAN is on our side.
        let host = if route == 0 { p.source } else { p.destination };
        let mut label = policy.label(&p, packet, host);
        if route > 0 && !self.accounts.has_heard(peer, host) {
            label.sender = Some(p.source);
        }
        if label.class == ClassId::NORMAL {
            (label.class, label.chosen_by) = (otherwise, ChosenBy::Operator);
        }
        if !session.send_datagram(now, packet, &label) {
            self.stats.overflow += 1;
            return Verdict::Dropped;
        }
        self.accounts.on_packet_sent(peer, host, packet.len());
        if Upper::of(packet).is_some_and(|upper| upper.accepts_tcp(packet)) {
            self.connects.on_answered(peer, p.source, p.destination);
        }
        if !policy.permits(p.source, &self.own) || is_in(&self.lans, p.source) {
            self.tracking.on_sent(now, peer, packet);
        }
        Verdict::Sent
    }

    /// Does the peer take packets of the address family? It told with the handshake.
    fn is_taken_there(&self, peer: PeerId, source: IpAddr) -> bool {
        let refused = self.endpoint.session(peer).map(|s| s.disagreements().not_taken_there);
        refused.is_none_or(|families| !families.contains(source.is_ipv4()))
    }

    /// Tells a host here that the net it wants is unreachable, as its rule says (R-DDR); no more
    /// often than others are told. `split`: as for [`Relay::handle_tun`].
    pub fn refuse_unreachable(&mut self, now: Instant, packet: &[u8], split: bool) {
        self.refuse_here(now, packet, split, refusal::no_route);
    }

    /// Tells a host here that its packet does not pass.
    fn refuse_here(
        &mut self,
        now: Instant,
        packet: &[u8],
        split: bool,
        make: fn(&[u8]) -> Option<Vec<u8>>,
    ) {
        let Some(answer) = self.refused.answer_here(now, packet, make) else { return };
        self.actions.push_back(match split {
            true => Action::ToClient(answer),
            false => Action::ToHost(answer),
        });
    }

    /// Lends the next IP packet for the TUN device to `write`; false if there is none.
    /// Packets from the peer's own prefixes pass to where it may go, and everywhere if they
    /// answer what a host here began. Hosts whose packets may not go where they want are told.
    pub fn poll_tun(&mut self, now: Instant, mut write: impl FnMut(&mut [u8])) -> bool {
        while let Some(peer) = self.endpoint.peer_with_datagrams() {
            let begin = self.endpoint.work_begins();
            let Some(session) = self.endpoint.session_mut(peer) else { continue };
            let (max, rate) = (session.max_whole_datagram(), session.rate_status().rate);
            let (policy, own, owners) = (self.policies.of(peer), &self.own, &self.owners);
            let (tracking, refused) = (&mut self.tracking, &mut self.refused);
            let (stats, accounts) = (&mut self.stats, &mut self.accounts);
            let (stopped, connects) = (&self.stopped, &mut self.connects);
            let (lans, direct) = (&self.lans, &self.direct);
            let (mut passed, mut answer) = (false, None);
            session.take_datagram(|bytes| {
                let (Some(p), Some(policy)) = (Packet::parse(bytes), policy) else {
                    return stats.foreign += 1;
                };
                let class = || classify::class(&policy.rules, &p.facts(bytes));
                if stopped.stops(peer, p.destination, class) {
                    return stats.over_budget += 1;
                }
                let permits = policy.permits(p.destination, own);
                let owned = owners.owned(peer, p.source);
                // A host of this side's LANs does not speak from over there, but for one of the
                // same private address that was asked.
                let is_here = owned.is_some_and(|prefix| is_in_longer(lans, p.source, prefix));
                let answers = (is_here || !permits && !never(p.destination))
                    && tracking.is_answer(now, peer, bytes);
                let owned = owned.filter(|_| !is_here || answers);
                let may_pass = (permits || answers && !never(p.destination))
                    && !leads_back(owners, (own, direct), peer, p.destination);
                let why = match (owned, may_pass) {
                    (Some(prefix), true) => {
                        let limit = (peer, policy.connects());
                        if Upper::of(bytes).is_some_and(|upper| upper.opens_tcp(bytes))
                            && !connects.takes_packet(now, limit, p.destination, p.source)
                        {
                            return;
                        }
                        p.clamp_mss(bytes, max);
                        // As for what is sent.
                        let host = if prefix > 0 { p.source } else { p.destination };
                        accounts.on_packet_received(peer, host, bytes.len());
                        write(bytes);
                        return passed = true;
                    }
                    (Some(_), false) => {
                        stats.datagrams_denied += 1;
                        tracking.on_denied(now, peer, bytes);
                        answer = refused.answer(now, peer, rate, bytes);
                        NotPassed::Denied
                    }
                    (None, _) => {
                        stats.foreign += 1;
                        NotPassed::Foreign
                    }
                };
                refused.note(RefusedPacket::of(&p, peer, why));
            });
            if let Some(answer) = answer {
                self.send_answer(now, peer, &answer);
            }
            self.endpoint.charge(peer, begin);
            if passed {
                return true;
            }
        }
        false
    }

    /// Sends the peer's host what it is to know of its packet.
    fn send_answer(&mut self, now: Instant, peer: PeerId, answer: &[u8]) {
        let (session, policy) = (self.endpoint.session_mut(peer), self.policies.of(peer));
        if let (Some(session), Some(policy), Some(p)) = (session, policy, Packet::parse(answer)) {
            // It is not worth a place in a full queue.
            session.send_datagram(now, answer, &policy.label(&p, answer, p.source));
        }
    }

    /// A peer's packet that did not pass and that the operator is to know of.
    pub fn poll_refused_packet(&mut self, now: Instant) -> Option<RefusedPacket> {
        self.refused.poll(now)
    }

    /// A connection that a peer may not have and that the operator is to know of.
    pub fn poll_refused_connection(&mut self, now: Instant) -> Option<RefusedConnection> {
        self.refused.poll_connection(now)
    }
}

/// Would the kernel send the peer's packet back to the peer? It would cross the link until its hop
/// limit ends. A default route is no reason: the peer knows what is not behind it.
fn leads_back(
    owners: &Owners,
    (own, direct): (&[IpPrefix], &[IpPrefix]),
    peer: PeerId,
    destination: IpAddr,
) -> bool {
    owners.owned(peer, destination).filter(|prefix| *prefix > 0).is_some_and(|prefix| {
        !is_in(own, destination) && !is_in_longer(direct, destination, prefix)
    })
}

/// By which address of its own this node tells a host behind a peer of a packet that goes no
/// further here; `None` for all that is no such ICMP error, or has a fitting source.
///
/// The kernel chooses the source for the way back, as that of the way to the Internet, from which
/// the peer takes nothing. The address in the network that the packet was for is one of those that
/// the peer has a route for.
fn router_name(
    packet: &[u8],
    own: &[IpPrefix],
    interfaces: &[(IpAddr, IpPrefix)],
) -> Option<IpAddr> {
    let error = Upper::of(packet)?;
    let Kind::Error(about) = error.kind(packet) else { return None };
    // What was for this node itself is answered in its own name.
    if !is_in(own, error.source) || is_in(own, about.destination) {
        return None;
    }
    let there = interfaces.iter().filter(|(_, network)| network.contains(about.destination));
    // Of several addresses in one network the kernel's choice.
    let name = there.max_by_key(|(name, network)| (network.len(), *name == error.source));
    name.map(|(name, _)| *name)
}

#[cfg(test)]
mod tests;
