//! Peers that nothing was to do with yet: of thousands that a hub waits for, most at any time.
//! One costs what its file says and a seed. It wakes when it calls, when it is to be called, or
//! when somebody has something for it: then it gets what it would have had from the start.

use units::{BitRate, Instant};

use super::peer::{Peer, PeerConfig, PeerId, PeerStats, blob};
use super::sleepers::Sleeper;
use super::state::Endpoint;
use crate::handshake::Offer;
use crate::path::PathId;
use crate::session::{ClassConfig, Facts, LinkConfig, PathHealth, RateMode, Session, SessionStats};
use crate::tunnel::{MAX_KEY_LIFETIME, Rekey, Tunnel, TunnelConfig, TunnelError};

impl Endpoint {
    /// Adds a peer and, where its endpoint is known, initiates.
    ///
    /// # Errors
    /// If its key is this node's own or unusable.
    pub fn add_peer(&mut self, now: Instant, config: PeerConfig) -> Result<PeerId, TunnelError> {
        Tunnel::check(&self.config.private_key, &config.public_key)?;
        let (key, is_known) = (config.public_key, config.endpoint.is_some());
        self.strangers.forget(&key);
        let entropy = self.entropy.fork();
        let id = self.sleepers.add(Sleeper { config, entropy, added: now });
        if id.index() == self.peers.len() {
            self.peers.push(None);
        }
        self.by_key.insert(key, id);
        if is_known {
            self.wake(id);
        }
        Ok(id)
    }

    /// A peer that slept is to be ready, as it would be had it never slept.
    pub(super) fn wake(&mut self, id: PeerId) {
        let Some(sleeper) = self.sleepers.remove(id) else { return };
        let Sleeper { config, entropy, added } = *sleeper;
        let side = u64::from(self.public_key() > &config.public_key);
        let mut session = Session::new(added, config.link.clone(), side);
        session.set_stopwatch(self.stopwatch);
        session.set_keepalive(PathId::FIRST, config.keepalive);
        let tunnel = TunnelConfig {
            local: self.config.private_key.clone(),
            peer: config.public_key,
            preshared: config.preshared_key.clone(),
            offer: Offer::new(self.config.hardware_aes),
            params: blob(&session),
            endpoint: config.endpoint,
            key_lifetime: self.config.key_lifetime.min(MAX_KEY_LIFETIME),
        };
        let mut tunnel = Tunnel::new(tunnel, entropy);
        tunnel.set_rtt(config.link.path().full_rtt(config.link.rtt));
        tunnel.connect(added);
        self.peers[id.index()] = Some(Box::new(Peer {
            config,
            tunnel,
            session,
            side,
            sessions: 0,
            before: SessionStats::default(),
            begun: false,
            health: PathHealth::Alive,
            rekey: Rekey::InTime,
            path: PathId::FIRST,
            path_news: (0, Instant::ZERO),
            dirty: false,
            tended: None,
            noisy: false,
            has_datagrams: false,
            changed: false,
            timer: None,
            memory: 0,
            stats: PeerStats::default(),
        }));
        self.sleepers.on_woken(id);
        self.mark(id);
    }

    /// A peer that woke, or never slept: what else it needs is to be there before packets are
    /// sent to it.
    pub fn poll_woken(&mut self) -> Option<PeerId> {
        self.sleepers.poll_woken()
    }

    /// What the file says of a peer.
    pub(super) fn config_of(&self, id: PeerId) -> Option<&PeerConfig> {
        let asleep = self.sleepers.get(id).map(|sleeper| &sleeper.config);
        asleep.or_else(|| self.peer(id).map(|peer| &peer.config))
    }

    fn link_mut(&mut self, id: PeerId) -> Option<&mut LinkConfig> {
        match self.sleepers.get_mut(id) {
            Some(sleeper) => Some(&mut sleeper.config.link),
            None => self.peers[id.index()].as_deref_mut().map(|peer| &mut peer.config.link),
        }
    }

    /// The file says something else of the link to a peer, of its rates too (to the peer, and
    /// from it): the peer is told by a handshake.
    pub fn set_facts(&mut self, now: Instant, id: PeerId, facts: Facts, rates: [BitRate; 2]) {
        let Some(link) = self.link_mut(id) else { return };
        link.facts = facts;
        [link.send_rate, link.receive_rate] = rates;
        let Some(peer) = self.peers[id.index()].as_deref_mut() else { return };
        peer.session.set_facts(facts, rates);
        peer.tunnel.set_params(blob(&peer.session));
        peer.tunnel.renew(now);
        self.mark(id);
    }

    /// The file says something else of how the link to a peer is used: the mode of its rate, and
    /// what kinds of traffic may have.
    pub fn set_use(
        &mut self,
        now: Instant,
        id: PeerId,
        (mode, rate): (RateMode, BitRate),
        classes: &[ClassConfig],
    ) {
        let Some(link) = self.link_mut(id) else { return };
        (link.rate_mode, link.send_rate) = (mode, rate);
        link.classes = classes.to_vec();
        let Some(peer) = self.peers[id.index()].as_deref_mut() else { return };
        peer.session.set_rate_mode(now, mode, rate);
        peer.session.set_classes(now, classes);
        self.mark(id);
        self.mark_noisy(id);
    }
}
