//! The peers of a shard: added, changed, and told that they are no longer in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use link::PeerId;
use link::keys::PublicKey;
use link::session::Disagreements;
use relay::Share;
use squeeze::dedup::Limits;
use units::{Duration, Instant};

use super::Shard;
use crate::config::{Config, Peer};
use crate::up::driver::UpError;
use crate::up::losses::Losses;
use crate::up::peers::{self, Sharers};
use crate::up::report::Meter;
use crate::up::roster::KnownPeer;
use crate::up::self_test::{Listener, NewTest, Wanted};

/// How long a peer that was taken out may be told so: all copies of CLOSE, and some more.
const FAREWELL: Duration = Duration::from_millis(500);

impl Shard {
    /// Adds a peer; `stored` is where it was last.
    pub fn add_peer(
        &mut self,
        peer: Arc<Peer>,
        stored: Option<SocketAddr>,
    ) -> Result<PeerId, UpError> {
        let now = self.clock.now();
        let config = peers::peer_config(&self.config.node, &peer, self.sharers.memory, stored);
        let id = self
            .relay
            .add_peer(now, config, peers::policy(&peer))
            .map_err(|e| UpError::Peer(peer.name.clone(), e))?;
        let paths = self.open_paths(now, id, &peer);
        self.open_line(now, id, &peer);
        let resolve_at = peers::named_endpoint(&peer).map(|_| now);
        let meter = Meter::default();
        let told = Disagreements::default();
        self.peers.push(KnownPeer {
            id,
            config: peer,
            paths,
            meter,
            losses: Losses::default(),
            silent_since: None,
            up: false,
            told_rate: (0, 0),
            told_bytes: [0, 0],
            resolve_at,
            told,
        });
        self.look_at_links(now, [id]);
        Ok(id)
    }

    /// Deduplicates the streams of peers that something is to do with from now on. No packet
    /// was sent to them yet.
    pub fn open_new_chunks(&mut self) {
        while let Some(id) = self.relay.endpoint.poll_woken() {
            self.open_chunks(id);
        }
    }

    /// Deduplicates the streams of a peer that is to be, before its first session begins.
    fn open_chunks(&mut self, id: PeerId) {
        let limits = self.chunk_limits();
        let known = self.peers.named(id);
        if let Some(peer) = known.filter(|peer| peer.config.dedup != Share::Off) {
            self.chunks.add(&mut self.relay, id, &peer.config.public_key, &limits);
        }
    }

    /// Each peer's part of what chunks may cost.
    fn chunk_limits(&self) -> Limits {
        let limits = peers::chunk_limits(&self.config.node, self.sharers.chunks);
        let room = self.chunks.room(self.sharers.chunks);
        Limits { disk: limits.disk.min(room), ..limits }
    }

    /// Peers share the node's memory as their number asks for.
    pub fn share_memory(&mut self) {
        let (limit, floor) = peers::shared_memory(&self.config.node, self.sharers.memory);
        self.relay.endpoint.share_memory(limit, floor);
    }

    /// There are more peers than before, or fewer: all that have chunks share anew.
    fn share_chunks(&mut self) {
        let limits = self.chunk_limits();
        for peer in self.peers.iter() {
            self.relay.serve_files(peer.id, |dedup| {
                dedup.set_limits(&limits);
                true
            });
        }
    }

    /// The configuration is another one, as far as peers do not change with it.
    pub fn set_config(&mut self, config: Config) {
        self.relay.set_elsewhere(config.elsewhere.iter().copied());
        self.config = config;
    }

    /// Goes over to another configuration, of a node with so many peers in all. `stored`:
    /// where new ones were last. Answers what went wrong.
    pub fn reload(
        &mut self,
        now: Instant,
        new: Config,
        sharers: Sharers,
        stored: &BTreeMap<PublicKey, SocketAddr>,
    ) -> Vec<String> {
        let changes = self.config.changes(&new);
        // One of them may be back.
        self.forget_those_who_left(Instant::FAR_FUTURE);
        self.dismiss_peers(now, &changes.removed);
        for peer in changes.changed {
            self.change_peer(now, peer);
        }
        self.set_config(new);
        self.sharers = sharers;
        self.share_memory();
        let mut trouble = Vec::new();
        for peer in changes.added {
            let stored = stored.get(&peer.public_key).copied();
            if let Err(e) = self.add_peer(peer, stored) {
                trouble.push(e.to_string());
            }
        }
        self.open_new_chunks();
        self.share_chunks();
        self.watch_modems();
        trouble
    }

    /// The peer with this key.
    pub fn with_key(&self, key: &PublicKey) -> Option<&KnownPeer> {
        self.peers.named(self.relay.endpoint.peer_with(key)?)
    }

    /// The operator wants the link to a peer measured.
    pub fn test(&mut self, now: Instant, key: &PublicKey, wanted: Wanted, listener: Listener) {
        let Some(peer) = self.with_key(key) else {
            return; // The listener learns by its channel's end that there is none.
        };
        let link = &peer.config.link;
        let configured_bps = [link.send.as_bps(), link.receive.as_bps()];
        let (peer, name) = (peer.id, peer.config.name.clone());
        let test = NewTest { peer, name, configured_bps, wanted, listener };
        self.tests.ask(now, &self.relay, test);
    }

    /// Peers that are no longer in the file are told that their sessions are over.
    fn dismiss_peers(&mut self, now: Instant, removed: &[Arc<Peer>]) {
        if removed.is_empty() {
            return;
        }
        // What they had is on the day's account; their farewells are not.
        self.tell_usage(Instant::FAR_FUTURE);
        let keys: BTreeSet<PublicKey> = removed.iter().map(|peer| peer.public_key).collect();
        for known in self.peers.take_out(|peer| keys.contains(&peer.config.public_key)) {
            self.close_line(now, known.id);
            self.tell_removed(&known);
            self.relay.dismiss_peer(known.id);
            self.chunks.remove(now, &mut self.relay, known.id);
            self.leaving.push((now + FAREWELL, known.id));
        }
    }

    /// Takes out the peers that were told that their sessions are over.
    pub fn forget_those_who_left(&mut self, now: Instant) {
        let over = self.leaving.partition_point(|(at, _)| *at <= now);
        for (_, id) in self.leaving.drain(..over) {
            self.relay.remove_peer(id);
        }
    }

    /// New settings for a peer whose session goes on.
    fn change_peer(&mut self, now: Instant, peer: Arc<Peer>) {
        let id = self.relay.endpoint.peer_with(&peer.public_key);
        let Some(known) = id.and_then(|id| self.peers.named_mut(id)) else { return };
        let ended = self.relay.change_policy(now, known.id, peers::policy(&peer));
        if ended > 0 {
            crate::log!(
                Warn,
                "connections of a peer were ended: `allow` and `deny` no longer let it go there",
                peer = peer.name,
                connections = ended
            );
        }
        let facts = peers::facts(&self.config.node, &peer);
        let rates = [&peer, &known.config].map(|p| [p.link.send, p.link.receive]);
        if facts != peers::facts(&self.config.node, &known.config) || rates[0] != rates[1] {
            self.relay.endpoint.set_facts(now, known.id, facts, rates[0]);
        }
        let rate = (peer.link.rate, peer.link.send);
        self.relay.endpoint.set_use(now, known.id, rate, &peer.traffic.classes);
        if peer.endpoint != known.config.endpoint {
            if let Some(address) = peers::fixed_endpoint(&peer) {
                self.relay.endpoint.set_endpoint(now, known.id, address);
            }
            known.resolve_at = peers::named_endpoint(&peer).map(|_| now);
        }
        let id = known.id;
        known.config = peer;
        self.look_at_links(now, [id]);
    }
}
