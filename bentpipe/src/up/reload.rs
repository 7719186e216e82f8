//! SIGHUP: the file again, while sessions go on.

use units::{Duration, Instant};

use super::driver::Driver;
use super::peers;
use crate::config::{Config, Node, Peer};

/// How long a peer that was taken out may be told so: all copies of CLOSE, and some more.
const FAREWELL: Duration = Duration::from_millis(500);

impl Driver {
    /// Reads the file again. A bad one leaves the old one in force and says why.
    pub(super) fn reload(&mut self, now: Instant) -> Result<(), String> {
        let new = Config::load(&self.path).map_err(|e| {
            crate::cli::show(&e);
            format!("{} stays in force as it was: {e}", self.path.display())
        })?;
        let changes = self.config.changes(&new);
        for what in &changes.needs_restart {
            crate::log!(Warn, "a change takes effect only after a restart", setting = what);
        }
        crate::logging::set_level(self.global.level(new.node.log));
        // One of them may be back.
        self.forget_those_who_left(Instant::FAR_FUTURE);
        for peer in &changes.removed {
            self.dismiss_peer(now, peer);
        }
        for peer in changes.changed {
            self.change_peer(now, peer);
        }
        let node = Node { log: new.node.log, ..self.config.node.clone() };
        self.config = Config { node, ..new };
        let mut trouble = Vec::new();
        for peer in changes.added {
            match self.add_peer(peer) {
                Ok(id) => self.open_chunks(id),
                Err(e) => trouble.push(e.to_string()),
            }
        }
        self.share_chunks();
        if let Err(e) = self.update_interception(now) {
            trouble.push(e.to_string());
        }
        self.modems.watch(&self.config.peers);
        crate::log!(Info, "the configuration was read again", peers = self.peers.len());
        if trouble.is_empty() { Ok(()) } else { Err(trouble.join("; ")) }
    }

    /// A peer that is no longer in the file is told that its session is over.
    fn dismiss_peer(&mut self, now: Instant, peer: &Peer) {
        let same = |p: &super::roster::KnownPeer| p.config.public_key == peer.public_key;
        let Some(at) = self.peers.iter().position(same) else { return };
        let known = self.peers.remove(at);
        self.relay.dismiss_peer(known.id);
        self.chunks.remove(now, &mut self.relay, known.id);
        self.leaving.push((now + FAREWELL, known.id));
    }

    /// Takes out the peers that were told that their sessions are over.
    pub(super) fn forget_those_who_left(&mut self, now: Instant) {
        while let Some((at, id)) = self.leaving.first().copied() {
            if at > now {
                return;
            }
            self.leaving.remove(0);
            self.relay.remove_peer(id);
        }
    }

    /// New settings for a peer whose session goes on.
    fn change_peer(&mut self, now: Instant, peer: Peer) {
        let Some(known) = self.peers.iter_mut().find(|p| p.config.public_key == peer.public_key)
        else {
            return;
        };
        self.relay.set_policy(known.id, peers::policy(&peer));
        if let Some(session) = self.relay.endpoint.session_mut(known.id) {
            session.set_rate_mode(now, peer.link.rate, peer.link.send);
            session.set_classes(&peer.traffic.classes);
        }
        if peer.endpoint != known.config.endpoint {
            if let Some(address) = peers::fixed_endpoint(&peer) {
                self.relay.endpoint.set_endpoint(now, known.id, address);
            }
            known.resolve_at = peers::named_endpoint(&peer).map(|_| now);
        }
        known.config = peer;
    }
}
