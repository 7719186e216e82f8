//! What `bentpipe status` shows: the node, and what its shards tell.

use std::path::Path;

use units::Instant;

use super::Driver;
use crate::admin::{NodeStatus, Status, resident_memory};
use crate::up::one_sided::OneSidedLinks;
use crate::up::shard::handshake_failures::blame_strangers;
use crate::up::shard::report::Part;

impl Driver {
    /// Everything an operator may want to know now; `parts` are those of the other shards.
    pub(super) fn status(&self, now: Instant, parts: Vec<Part>) -> Status {
        let node = &self.config.node;
        let mut all = self.shard.part(now);
        parts.into_iter().for_each(|part| all.add(part));
        if self.others.busy() > 0 {
            *all.dropped.entry("shard busy".to_owned()).or_default() += self.others.busy();
        }
        if !self.others.is_empty() {
            all.links.sort_by_key(|link| self.everyone.place_called(&link.peer));
        }
        blame_strangers(&mut all.links, &all.strangers);
        Status {
            node: NodeStatus {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                public_key: self.shard.relay.endpoint.public_key().to_string(),
                file: absolute(&self.path),
                pid: std::process::id(),
                ending: self.draining.is_some(),
                uptime_ms: now.as_nanos() / 1_000_000,
                memory_bytes: resident_memory().unwrap_or(0),
                buffered_bytes: all.buffered,
                buffer_limit_bytes: node.memory.0,
                listen: node.listen.to_string(),
                tun: node.tun.clone(),
                lan: node.lan.clone(),
                own: node.own,
                proxy: node.proxy.map(|p| p.to_string()),
                trouble: self
                    .mending
                    .trouble()
                    .map(str::to_owned)
                    .or_else(|| self.one_sided.as_ref()?.trouble()),
                shards: 1 + self.others.len() as u64,
                strangers: all.strangers,
                dropped: all.dropped,
            },
            links: all.links,
            services: self.services.status(now),
            telephones: self.shard.telephone_reports(now),
            one_sided: self.one_sided.as_ref().map(OneSidedLinks::status).unwrap_or_default(),
        }
    }
}

/// Where the file is, whatever directory is meant by the words it was named with.
fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
