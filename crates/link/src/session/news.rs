//! What the two nodes tell each other of a path: whether they use it and hear each other on it, and
//! what it carries, which its opener knows.

use units::{Duration, Instant};

use super::facts::{rate_bits, rate_bits_below, rate_of_bits};
use super::path::Path;
use super::said::{Said, Says};
use crate::wire::{Frame, PathFacts, PathNews, Writer};

/// Rates below are not taken from a peer: a packet would take minutes.
const LEAST_RATE: u64 = 100;
/// Nor longer round trips.
const LONGEST_RTT: Duration = Duration::from_secs(60);

impl Path {
    /// What this node has to say of it.
    pub(super) fn says(&self) -> Says {
        let hears = self.linked && !self.misses_packets();
        let (free, priority) = (self.config.probe.is_some(), self.priority);
        Says { up: self.up, hears, free, priority, name: self.config.name }
    }

    pub(super) fn news(&self) -> PathNews {
        let Said { says: Says { up, hears, free, priority, name }, version, .. } = self.said;
        let c = &self.config;
        let facts = self.is_own.then(|| PathFacts {
            send: rate_bits(c.send_rate),
            receive: rate_bits_below(c.receive_rate),
            rtt: c.rtt.as_millis().max(1),
            mtu: c.mtu.into(),
            overhead: c.overhead.into(),
        });
        PathNews { path: self.id, version, up, hears, free, priority, name, facts }
    }

    /// A question on a path that is not known to work says of the path what was said last: the peer
    /// may take it for down, and what told it otherwise went by one that died (L-PT-5).
    pub(super) fn say_again(&self, w: &mut Writer<'_>) {
        if self.is_beside_others && !self.is_alive() && self.said.version > 0 {
            w.put(&Frame::Path(self.news()));
        }
    }

    /// The peer says something of the path.
    pub(super) fn on_news(&mut self, now: Instant, news: &PathNews) {
        if !self.peer.hear(news) {
            return;
        }
        if let Some(facts) = news.facts.filter(|_| !self.is_own && !self.id.is_first()) {
            self.take_facts(now, &facts);
        }
    }

    /// The opener tells what the path is: its rates are this node's the other way round.
    fn take_facts(&mut self, now: Instant, facts: &PathFacts) {
        let rate = |bits| rate_of_bits(bits).filter(|rate| rate.as_bps() >= LEAST_RATE);
        if let Some((send, receive)) = rate(facts.receive).zip(rate(facts.send)) {
            (self.config.send_rate, self.config.receive_rate) = (send, receive);
            self.set_rate(now, None, send);
            self.is_described = true;
        }
        self.config.rtt = Duration::from_millis(facts.rtt.max(1)).min(LONGEST_RTT);
        self.rtt.expect(self.config.rtt);
        // No longer than the endpoint has room for.
        let largest = u64::from(self.config.mtu);
        self.config.mtu = facts.mtu.clamp(128, largest.max(128)) as u16;
        self.config.packet = self.config.packet.min(self.config.mtu);
        self.set_framing(facts.overhead.min(200) as u16);
        self.set_largest_packet(self.peer_mtu);
    }
}
