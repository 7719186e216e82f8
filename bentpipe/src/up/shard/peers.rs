//! The peers of a shard: added, changed, and told that they are no longer in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use link::PeerId;
use link::keys::PublicKey;
use link::session::{ClassId, Disagreements};
use os::OsError;
use relay::Share;
use squeeze::dedup::Limits;
use units::{BitRate, Duration, Instant};

use super::Shard;
use super::recarry::first_link;
use crate::config::{Config, LinkSettings, Peer};
use crate::up::error::UpError;
use crate::up::losses::Losses;
use crate::up::meter::Meter;
use crate::up::peer_table::KnownPeer;
use crate::up::peers::{self, Sharers};
use crate::up::self_test::{Listener, NewTest, Wanted};
use crate::up::turns::Turns;
use crate::up::twins::Twins;

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
        if peer.is_at_lines_alone() {
            self.relay.endpoint.keep_to_lines(id);
        }
        let modems = self.open_modems(&peer);
        let paths = self.open_paths(now, id, &peer, &modems);
        self.open_line(now, id, &peer, &modems, &paths);
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
            reported: None,
            told_rate: (0, 0),
            told_bytes: [0, 0],
            resolve_at,
            turns: Turns::default(),
            told,
            twins: Twins::default(),
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
        self.chunks.set_limits(self.chunk_limits());
        let known = self.peers.with_id(id);
        if let Some(peer) = known.filter(|peer| peer.config.dedup != Share::Off) {
            let now = self.clock.now();
            self.chunks.add(now, &mut self.relay, id, &peer.config.public_key);
        }
    }

    /// Each peer's part of what chunks may cost.
    pub fn chunk_limits(&self) -> Limits {
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
        self.chunks.set_limits(limits);
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
        let _ = self.read_own_addresses(); // Else what was read before stands.
    }

    /// Goes over to another configuration, of a node with so many peers in all. `stored`:
    /// where new ones were last. Answers what went wrong.
    pub fn reload(
        &mut self,
        now: Instant,
        mut new: Config,
        sharers: Sharers,
        stored: &BTreeMap<PublicKey, SocketAddr>,
    ) -> Vec<String> {
        let changes = self.config.changes(&new);
        // One of them may be back.
        self.forget_those_who_left(now, Instant::FAR_FUTURE);
        self.dismiss_peers(now, &changes.removed);
        let mut trouble = Vec::new();
        for peer in changes.changed {
            let (key, before) = (peer.public_key, self.peers.with_key(&peer.public_key));
            let before = before.map(|known| known.config.clone());
            if let Err(e) = self.change_peer(now, peer.clone()) {
                trouble.push(format!("carriers of peer \"{}\" stay as they were: {e}", peer.name));
                // So that the next reload tries again.
                let in_force = new.peers.iter_mut().find(|peer| peer.public_key == key);
                if let Some((in_force, before)) = in_force.zip(before) {
                    *in_force = with_carriers_of(&peer, &before);
                    let _ = self.change_peer(now, in_force.clone());
                }
            }
        }
        self.set_config(new);
        self.sharers = sharers;
        self.share_memory();
        for peer in changes.added {
            let stored = stored.get(&peer.public_key).copied();
            if let Err(e) = self.add_peer(peer, stored) {
                trouble.push(e.to_string());
            }
        }
        self.open_new_chunks();
        self.share_chunks();
        self.watch_modems();
        self.update_telephones();
        trouble
    }

    /// The operator wants the link to a peer measured.
    pub fn test(&mut self, now: Instant, key: &PublicKey, wanted: Wanted, listener: Listener) {
        let Some(peer) = self.peers.with_key(key) else {
            return; // The listener learns by its channel's end that there is none.
        };
        let link = &peer.config.link;
        let configured_bps = [link.send.as_bps(), link.receive.as_bps()];
        let bulk = peer.config.traffic.classes.get(ClassId::BULK.index());
        let cap_bps = bulk.and_then(|class| class.cap).map(BitRate::as_bps);
        let (peer, name) = (peer.id, peer.config.name.clone());
        let test = NewTest { peer, name, configured_bps, cap_bps, wanted, listener };
        self.begin_test(now, test);
    }

    /// Peers that are no longer in the file are told that their sessions are over.
    fn dismiss_peers(&mut self, now: Instant, removed: &[Arc<Peer>]) {
        if removed.is_empty() {
            return;
        }
        // What they had is on the day's account; their farewells are not.
        self.tell_usage(Instant::FAR_FUTURE);
        let keys: BTreeSet<PublicKey> = removed.iter().map(|peer| peer.public_key).collect();
        for id in
            keys.iter().filter_map(|key| Some(self.peers.with_key(key)?.id)).collect::<Vec<_>>()
        {
            self.tell_line_of(now, id);
        }
        for known in self.peers.take_out(|peer| keys.contains(&peer.config.public_key)) {
            self.close_line(now, known.id);
            self.tell_removed(&known);
            self.relay.dismiss_peer(known.id);
            // Another peer may have its name.
            self.end_service_connections(now, known.id, &known.config.name);
            self.chunks.remove(now, &mut self.relay, known.id);
            self.leaving.push((now + FAREWELL, known.id));
        }
    }

    /// Takes out the peers that were told that their sessions are over and have had their time for
    /// it by `until`.
    pub fn forget_those_who_left(&mut self, now: Instant, until: Instant) {
        let over = self.leaving.partition_point(|(at, _)| *at <= until);
        for (_, id) in self.leaving.drain(..over).collect::<Vec<_>>() {
            self.dismiss_caller(now, id);
            self.relay.remove_peer(id);
        }
    }

    /// New settings for a peer whose session goes on.
    ///
    /// # Errors
    /// If the system refuses what new carriers need. Then all settings are as they were.
    fn change_peer(&mut self, now: Instant, peer: Arc<Peer>) -> Result<(), OsError> {
        let Some(known) = self.peers.with_key(&peer.public_key) else { return Ok(()) };
        let (id, old, paths) = (known.id, known.config.clone(), known.paths.clone());
        let is_managed = old.line.is_some() || peer.line.is_some();
        let (new_paths, full) = match is_managed {
            true => (paths.clone(), None),
            false => self.change_carriers(now, id, (&old, &paths), &peer)?,
        };
        if let Some(why) = full {
            crate::log!(Warn, why);
        }
        self.change_line(now, id, &peer);
        let links = [first_link(&old, &paths), first_link(&peer, &new_paths)];
        let Some(known) = self.peers.with_id_mut(id) else { return Ok(()) };
        known.paths = new_paths;
        let policy = peers::policy(&peer);
        let denied = policy.denied_since(&peers::policy(&old));
        let ended = self.relay.change_policy(now, known.id, policy);
        // By the name that they knew when they asked for connections.
        self.services.narrow(now, &old.name, denied);
        if ended > 0 {
            crate::log!(
                Warn,
                "connections of a peer were ended: `allow` and `deny` no longer let it go there",
                peer = peer.name,
                connections = ended
            );
        }
        let facts = peers::facts(&self.config.node, &peer);
        // Where the first path's carrier is gone its rates do not matter.
        let link = links[1].or(links[0]).unwrap_or(&old.link);
        let rates = [link, links[0].unwrap_or(link)].map(|link| [link.send, link.receive]);
        if facts != peers::facts(&self.config.node, &old) || rates[0] != rates[1] {
            self.relay.endpoint.set_facts(now, known.id, facts, rates[0]);
        }
        // The modem does not say again what it has said.
        let is_same =
            |new: &LinkSettings| (new.rate, &new.modem) == (old.link.rate, &old.link.modem);
        known.reported = known.reported.filter(|_| is_same(&peer.link));
        let send = known.reported.map_or(link.send, |reported| reported.min(link.send));
        self.relay.endpoint.set_use(now, id, (link.rate, send), &peer.traffic.classes);
        if peer.endpoint != old.endpoint {
            if let Some(address) = peers::fixed_endpoint(&peer).filter(|_| peer.carriers.is_empty())
            {
                self.relay.endpoint.set_endpoint(now, id, address);
            }
            known.resolve_at = peers::named_endpoint(&peer).map(|_| now);
        }
        let is_renamed = peer.name != old.name;
        known.config = peer;
        if is_renamed {
            self.peers.on_renamed();
            // A narrower file would speak of the new name alone.
            self.end_service_connections(now, id, &old.name);
        }
        self.look_at_links(now, [id]);
        Ok(())
    }
}

/// The peer with the carriers, and the link of the first, that it had before.
fn with_carriers_of(peer: &Peer, before: &Peer) -> Arc<Peer> {
    Arc::new(Peer {
        carriers: before.carriers.clone(),
        endpoint: before.endpoint.clone(),
        link: before.link.clone(),
        spread: before.spread,
        ..peer.clone()
    })
}
