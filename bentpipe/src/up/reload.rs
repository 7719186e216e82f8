//! SIGHUP: the file again, while sessions go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use link::keys::PublicKey;
use units::Instant;

use super::driver::Driver;
use super::interception::Clear;
use super::peers::Sharers;
use super::roster::{ListedPeer, Roster};
use super::shard::inbox::Order;
use crate::config::{Config, Node, Peer};

impl Driver {
    /// Reads the file again; answers which changed keys need a restart. A bad file leaves
    /// the old one in force and says why.
    pub(super) fn reload(&mut self, now: Instant) -> Result<Vec<String>, String> {
        let new = Config::load(&self.path).map_err(|e| {
            format!("{} stays in force as it was: {}", self.path.display(), e.in_one_line())
        })?;
        let changes = self.config.changes(&new);
        for what in &changes.needs_restart {
            crate::log!(Warn, "a change takes effect only after a restart", setting = what);
        }
        crate::logging::set_level(self.global.level(new.node.log));
        let Node { log, on_stop, direct, .. } = new.node;
        let node = Node { log, on_stop, direct, ..self.config.node.clone() };
        // Links without a gateway at their far end stay as they were installed.
        let split = std::mem::take(&mut self.config.split);
        self.config = Config { node, split, ..new };
        self.list_everyone(now);
        let all = Sharers::of(&self.config.peers);
        let stored = |peer: &Arc<Peer>| Some((peer.public_key, self.store.get(&peer.public_key)?));
        let stored: BTreeMap<_, _> = changes.added.iter().filter_map(stored).collect();
        for shard in 1..=self.others.len() {
            let own = Box::new(self.config_of(shard));
            self.others.order(shard, Order::Reload(own, all, stored.clone()));
        }
        let mut trouble = self.shard.reload(now, self.config_of(0), all, &stored);
        if let Err(e) = self.update_interception(now) {
            trouble.push(e.to_string());
        }
        os::proc::give_back_memory();
        crate::log!(Info, "the configuration was read again", peers = all.memory);
        if trouble.is_empty() {
            Ok(changes.needs_restart.into_iter().map(str::to_owned).collect())
        } else {
            Err(trouble.join("; "))
        }
    }

    /// Lists the peers of the file, each with the shard that has it: one that had it before,
    /// or the one with the fewest. After the start these are their places in the file, modulo
    /// the number of shards.
    pub(super) fn list_everyone(&mut self, now: Instant) {
        let mut before: BTreeMap<PublicKey, ListedPeer> =
            self.everyone.drain().map(|p| (p.config.public_key, p)).collect();
        let mut counts = vec![0; 1 + self.others.len()];
        for known in self.config.peers.iter().filter_map(|p| before.get(&p.public_key)) {
            counts[known.shard] += 1;
        }
        let mut everyone = Roster::default();
        self.shard_routes = relay::Routes::default();
        for config in self.config.peers.iter().cloned() {
            let key = config.public_key;
            let (shard, clear) = match before.remove(&key) {
                Some(known) => (known.shard, known.clear),
                None => {
                    let fewest = (0..counts.len()).min_by_key(|s| counts[*s]).unwrap_or(0);
                    counts[fewest] += 1;
                    (fewest, Clear::new(now))
                }
            };
            for prefix in &config.routes {
                self.shard_routes.insert(*prefix, shard);
            }
            if shard != 0 {
                self.shard.relay.endpoint.set_elsewhere(key, Some(shard as u32));
            }
            everyone.push(ListedPeer { config, shard, clear });
        }
        for gone in before.keys() {
            self.shard.relay.endpoint.set_elsewhere(*gone, None);
        }
        self.everyone = everyone;
    }

    /// The configuration with the peers of one shard.
    pub(super) fn config_of(&self, shard: usize) -> Config {
        let own = self.everyone.iter().filter(|p| p.shard == shard).map(|p| p.config.clone());
        let others = self.everyone.iter().filter(|p| p.shard != shard);
        Config {
            node: self.config.node.clone(),
            peers: own.collect(),
            split: Vec::new(),
            elsewhere: others.flat_map(|p| p.config.routes.iter().copied()).collect(),
            warnings: Vec::new(),
        }
    }
}
