//! Why links have no session: what the handshakes tell, what ICMP and the system say of the
//! peer's address, and which other node calls from there, put together.

use std::net::SocketAddr;

use link::PeerId;
use link::endpoint::{self, Failure, Strange, StrangerNews};
use units::Instant;

use super::Shard;
use crate::admin::{Failing, LinkStatus, Reason, Stranger};
use crate::up::unreached::Why;

impl Shard {
    /// Why handshakes with a peer come to nothing, as far as this shard knows.
    pub(super) fn failing(&self, now: Instant, id: PeerId) -> Option<Failing> {
        let endpoint = &self.relay.endpoint;
        let failing = endpoint.failing(now, id)?;
        let address = endpoint.peer_endpoint(id).or(failing.from);
        let config = self.peers.with_id(id).map(|peer| &peer.config);
        let mut told = Failing {
            reason: match failing.failure {
                Failure::Silence => Reason::Silence,
                Failure::AnswersNotTaken => Reason::AnswersNotTaken,
                Failure::AnswersForged => Reason::AnswersForged,
                Failure::NoCommonCipher => Reason::NoCommonCipher,
            },
            for_ms: now.since(failing.since).as_millis(),
            initiations: failing.initiations,
            answered: failing.answered,
            address: address.map(|a| a.to_string()),
            only_called: config.is_some_and(|peer| {
                peer.endpoint.is_none() && peer.carriers.iter().all(|c| c.endpoint.is_none())
            }),
            ..Failing::default()
        };
        let why = address.and_then(|to| self.carrier.unreached.why(now, to));
        match why.filter(|_| told.reason == Reason::Silence) {
            Some(Why::Icmp(icmp, by)) => {
                told.reason = Reason::NotArrived;
                told.said = Some(icmp.to_string());
                told.said_by = by.map(|ip| ip.to_canonical().to_string());
            }
            Some(Why::System(error)) => {
                told.reason = Reason::NotSent;
                told.said = Some(error.clone());
            }
            None => {}
        }
        blame(&mut told, &self.strangers(now));
        Some(told)
    }

    /// The nodes that called here in vain.
    pub(super) fn strangers(&self, now: Instant) -> Vec<Stranger> {
        self.relay.endpoint.strangers().map(|s| stranger(now, s)).collect()
    }

    /// Logs that handshakes with a peer fail, and why.
    pub(super) fn tell_failing(&mut self, now: Instant, id: PeerId) {
        let Some(failing) = self.failing(now, id) else { return };
        let own = self.relay.endpoint.public_key().to_string();
        let name = self.peers.with_id(id).map(|p| p.config.name.clone());
        crate::log!(
            Warn,
            failing.finding(),
            peer = name.unwrap_or_default(),
            mend = failing.mend(&own)
        );
    }

    /// Logs nodes that call and are not known, few at a time.
    pub(super) fn tell_strangers(&mut self, now: Instant) {
        let Some(news) = self.relay.endpoint.poll_stranger(now) else { return };
        let StrangerNews { stranger: who, others } = news;
        let peer = self.peer_at(who.from).unwrap_or("unknown");
        let told = stranger(now, &who);
        crate::log!(
            Warn,
            told.finding(),
            address = told.address,
            peer_there = peer,
            own_key = self.relay.endpoint.public_key(),
            others = others
        );
    }

    /// The peer whose address that is.
    fn peer_at(&self, address: SocketAddr) -> Option<&str> {
        let endpoint = &self.relay.endpoint;
        let there = |id| endpoint.peer_endpoint(id) == Some(address);
        self.peers.iter().find(|p| there(p.id)).map(|p| p.config.name.as_str())
    }
}

fn stranger(now: Instant, of: &endpoint::Stranger) -> Stranger {
    let (reason, public_key) = match of.why {
        Strange::UnknownNode(key) => (Reason::OtherNode, Some(key.to_string())),
        Strange::OtherKey => (Reason::OtherKey, None),
        Strange::OtherVersion(_) => (Reason::OtherVersion, None),
    };
    Stranger {
        reason,
        public_key,
        address: of.from.to_string(),
        count: of.count,
        ago_ms: now.since(of.last).as_millis(),
    }
}

/// Who else calls from the peer's address says more than silence does. The strangers are the
/// whole node's: initiations come to the first shard, whoever has the peer.
pub fn blame_strangers(links: &mut [LinkStatus], strangers: &[Stranger]) {
    for failing in links.iter_mut().filter_map(|link| link.failing.as_mut()) {
        blame(failing, strangers);
    }
}

fn blame(failing: &mut Failing, strangers: &[Stranger]) {
    if ![Reason::Silence, Reason::NotArrived].contains(&failing.reason) {
        return;
    }
    let there = strangers.iter().find(|s| Some(&s.address) == failing.address.as_ref());
    if let Some(stranger) = there {
        failing.reason = stranger.reason;
        failing.public_key.clone_from(&stranger.public_key);
    }
}
