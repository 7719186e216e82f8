//! SIGHUP: the peers' source is asked again, while sessions go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use units::{Duration, Instant};

use super::driver::Driver;
use super::in_clear::Clear;
use super::peer_source::PeerUpdate;
use super::peer_table::ListedPeer;
use super::peers::Sharers;
use super::shard::inbox::Order;
use crate::config::{Config, Peer};

/// Lines that are being dropped are looked at so often.
const DROPPING: Duration = Duration::from_secs(1);

impl Driver {
    /// Asks the source of peers again; answers which changed keys need a restart. A source that
    /// cannot be read leaves everything in force as it is, and says why.
    pub(super) fn reload(&mut self, now: Instant) -> Result<Vec<String>, String> {
        let PeerUpdate { new, changes } = self.source.update(&self.config)?;
        self.reload_at = None;
        let is_leaving = |peer: &&Arc<Peer>| self.shard.leaving_lines.has(&peer.public_key);
        if let Some(peer) = changes.added.iter().find(is_leaving) {
            let why = format!(
                "the line of peer \"{}\" is still being dropped since the peer was taken out of \
                 the file, which takes effect in some seconds",
                peer.name
            );
            self.reload_at = Some(now + DROPPING);
            return Err(why);
        }
        for what in &changes.needs_restart {
            crate::log!(Warn, "a change takes effect only after a restart", setting = what);
        }
        crate::logging::set_level(self.global.level(new.node.log));
        self.config = new;
        self.list_everyone(now);
        let all = Sharers::of(&self.config.peers);
        let stored = |peer: &Arc<Peer>| Some((peer.public_key, self.last_place(peer)?));
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

    /// Reads the file again that waits for lines to be dropped.
    pub(super) fn reload_again(&mut self, now: Instant) {
        if self.reload_at.is_none_or(|at| at > now) {
            return;
        }
        self.reload_at = None;
        match self.reload(now) {
            // It waits on.
            Err(_) if self.reload_at.is_some() => {}
            Err(why) => crate::log!(Error, why),
            Ok(_) => {}
        }
    }

    /// Lists the peers of the file, each with the shard that has it: one that had it before,
    /// or the one with the fewest. After the start these are their places in the file, modulo
    /// the number of shards.
    pub(super) fn list_everyone(&mut self, now: Instant) {
        let before = std::mem::take(&mut self.everyone);
        let mut counts = vec![0; 1 + self.others.len()];
        for known in self.config.peers.iter().filter_map(|p| before.with_key(&p.public_key)) {
            counts[known.shard] += 1;
        }
        self.shard_routes = relay::Routes::default();
        for config in self.config.peers.iter().cloned() {
            let key = config.public_key;
            let (shard, clear) = match before.with_key(&key) {
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
            self.everyone.push(ListedPeer { config, shard, clear });
        }
        let keys = before.iter().map(|known| known.config.public_key);
        for gone in keys.filter(|key| self.everyone.with_key(key).is_none()) {
            self.shard.relay.endpoint.set_elsewhere(gone, None);
        }
    }

    /// The configuration with the peers of one shard.
    pub(super) fn config_of(&self, shard: usize) -> Config {
        let own = self.everyone.iter().filter(|p| p.shard == shard).map(|p| p.config.clone());
        let others = self.everyone.iter().filter(|p| p.shard != shard);
        Config {
            node: self.config.node.clone(),
            peers: own.collect(),
            split: self.config.split.clone(),
            elsewhere: others.flat_map(|p| p.config.routes.iter().copied()).collect(),
            warnings: Vec::new(),
        }
    }
}
