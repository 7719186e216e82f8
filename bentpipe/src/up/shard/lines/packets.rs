//! Packets that are not split, as a link manager wants to know them: whose they are, and for what.

use std::net::{IpAddr, SocketAddr};

use dial::books::Host;
use dial::rules::{Action, Flow};
use link::PeerId;
use link::session::ClassId;
use relay::classify;
use relay::dns::{self, Named};
use relay::packet::{Facts, Packet};
use units::Instant;

use super::managed::{ManagedLine, key_of};
use super::questions::Question;
use crate::up::shard::Shard;

pub(super) const TCP: u8 = 6;
const UDP: u8 = 17;
const DNS: u16 = 53;

/// A packet that came over the link, or what is to be known of it.
pub(in crate::up::shard) struct Arrived {
    from: IpAddr,
    host: IpAddr,
    facts: Facts,
    len: usize,
    /// What it says it answers, and how.
    answer: Option<(Question, Named)>,
}

impl Arrived {
    pub fn read(packet: &[u8]) -> Option<Arrived> {
        let parsed = Packet::parse(packet)?;
        let facts = parsed.facts(packet);
        let is_dns = facts.protocol == UDP && facts.ports.is_some_and(|(from, _)| from == DNS);
        let datagram = is_dns.then(|| relay::datagram::parse(packet)).flatten();
        let answer = datagram.and_then(|(server, host, m)| Question::answered(host, server, m));
        let (from, host, len) = (parsed.source, parsed.destination, packet.len());
        Some(Arrived { from, host, facts, len, answer })
    }
}

impl Shard {
    /// The place of the line that a host's packet wants, if its peer has one, and whose packet it
    /// is.
    pub(in crate::up::shard) fn wanted_line(&self, packet: &[u8]) -> Option<(usize, Flow)> {
        let parsed = Packet::parse(packet)?;
        let at = self.line_of(self.relay.peer_for(parsed.destination)?)?;
        let facts = parsed.facts(packet);
        let port = facts.ports.map_or(0, |(_, to)| to);
        let mut flow = self.flow(at, facts, parsed.source, port, parsed.destination);
        if (facts.protocol, port) == (UDP, DNS) {
            let datagram = relay::datagram::parse(packet);
            let named = datagram.and_then(|(_, _, message)| dns::read(message));
            flow.name = named.map_or(flow.name, |named| Some(named.name.into()));
        }
        Some((at, flow))
    }

    fn line_of(&self, peer: PeerId) -> Option<usize> {
        self.lines.iter().position(|line| line.peer == peer)
    }

    fn flow(&self, at: usize, facts: Facts, host: IpAddr, port: u16, remote: IpAddr) -> Flow {
        let traffic = self.peers.with_id(self.lines[at].peer).map(|peer| &peer.config.traffic);
        let class = traffic.map_or("", |t| t.class_name(classify::class(&t.rules, &facts)));
        Flow {
            host: Host::Addr(host),
            protocol: facts.protocol,
            port,
            remote: Some(remote),
            name: self.line_names.get(host, remote),
            class: class.into(),
            service: "".into(),
        }
    }

    /// Is the line down, and does the packet not raise it? A service would ask its other half.
    pub(in crate::up::shard) fn is_noise_now(&self, packet: &[u8]) -> bool {
        !self.lines.is_empty()
            && self.wanted_line(packet).is_some_and(|(at, flow)| self.lines[at].is_noise_now(&flow))
    }

    /// The same of a connection.
    pub(in crate::up::shard) fn is_noisy_connection(
        &self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> bool {
        let Some(at) = self.relay.peer_for(server.ip()).and_then(|peer| self.line_of(peer)) else {
            return false;
        };
        let ports = Some((client.port(), server.port()));
        let facts = Facts { protocol: TCP, ports, dscp: 0 };
        let flow = self.flow(at, facts, client.ip(), server.port(), server.ip());
        self.lines[at].is_noise_now(&flow)
    }

    /// Is the packet's host to be told at once that the line is down? What belongs to a connection
    /// that stands waits as ever.
    pub(in crate::up::shard) fn fails_fast(
        &self,
        now: Instant,
        (at, flow): &(usize, Flow),
        packet: &[u8],
    ) -> bool {
        let opens = Packet::parse(packet).and_then(|p| p.opens(packet));
        let begins = flow.protocol != TCP || opens.is_some();
        // A service may have the answer here.
        let is_given = || opens.is_some_and(|(from, to)| self.relay.via(now, from, to).is_some());
        begins && self.lines[*at].manager.fails_fast(now, flow) && !is_given()
    }

    /// The host is told, and what it wanted may raise the line for its next try.
    pub(in crate::up::shard) fn fail_fast(
        &mut self,
        now: Instant,
        wanted: (usize, Flow),
        packet: &[u8],
        split: bool,
    ) {
        self.note_packet(now, wanted, packet.len());
        self.relay.refuse_unreachable(now, packet, split);
    }

    /// The class of what wants a line, unless something else decides it.
    pub(in crate::up::shard) fn class_by_line(&self, at: usize, flow: &Flow) -> ClassId {
        self.lines[at].class_of(flow)
    }

    /// A host's packet went into the link of a peer that has a line, or waits for it.
    pub(in crate::up::shard) fn note_packet(
        &mut self,
        now: Instant,
        (at, flow): (usize, Flow),
        len: usize,
    ) {
        self.lines[at].on_bytes(now, None, flow, [len as u64, 0]);
    }

    /// The far side is asked for a client's connection, or the client asks again: it waits for the
    /// answer, also where the line was hung up since it was asked for.
    pub(in crate::up::shard) fn note_pending_syn(
        &mut self,
        now: Instant,
        (at, flow): (usize, Flow),
    ) {
        self.hear_moved(now);
        let line = &mut self.lines[at];
        let key = key_of(&flow);
        let is_told = || line.waiting.values().any(|w| key_of(&w.flow) == key);
        if line.carries() || !is_told() {
            line.on_bytes(now, None, flow, [0, 0]);
        }
    }

    /// A packet came to a host over the link.
    pub(in crate::up::shard) fn note_arrived(&mut self, now: Instant, arrived: Arrived) {
        let Arrived { from, host, facts, len, answer } = arrived;
        let answer = answer.filter(|(question, _)| self.line_questions.take(now, question));
        let named = answer.map(|(_, named)| named);
        if let Some(named) = &named {
            self.line_names.told(now, host, named);
        }
        let Some(at) = self.relay.peer_for(from).and_then(|peer| self.line_of(peer)) else {
            return;
        };
        let port = facts.ports.map_or(0, |(from, _)| from);
        let mut flow = self.flow(at, facts, host, port, from);
        flow.name = named.map_or(flow.name, |named| Some(named.name.into()));
        let line = &mut self.lines[at];
        // It came before the line went down.
        if line.carries() {
            line.on_bytes(now, None, flow, [0, len as u64]);
        }
    }

    /// A host's datagram goes to a server, or to a service that answers for it.
    pub(in crate::up::shard) fn note_question(
        &mut self,
        now: Instant,
        (host, server, message): (SocketAddr, SocketAddr, &[u8]),
    ) {
        if !self.lines.is_empty()
            && let Some(question) = Question::asked(host, server, message)
        {
            self.line_questions.note(now, question);
        }
    }

    /// A service answered a host's datagram for a server.
    pub(in crate::up::shard) fn note_answer(
        &mut self,
        now: Instant,
        (host, server, message): (SocketAddr, SocketAddr, &[u8]),
    ) {
        if let Some((question, named)) = Question::answered(host, server, message)
            && self.line_questions.take(now, &question)
        {
            self.line_names.told(now, host.ip(), &named);
        }
    }
}

impl ManagedLine {
    fn is_noise_now(&self, flow: &Flow) -> bool {
        let never = || self.settings.manager.rule_of(flow).then == Action::Never;
        self.settings.raises && !self.carries() && never()
    }

    /// On a slow line what somebody waits for goes before what was gathered, and what nobody wants
    /// now. Where there are other carriers, too, classes say by which of them things go.
    pub(super) fn class_of(&self, flow: &Flow) -> ClassId {
        match &self.settings.manager.rule_of(flow).then {
            Action::Batch { .. } | Action::Never if self.is_alone() => ClassId::BULK,
            _ => ClassId::NORMAL,
        }
    }
}
