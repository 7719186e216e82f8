//! The stores of chunks that came from peers: their files, served between packets (R-COMPRESS;
//! spec/link.md, "Deduplication").

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use link::PeerId;
use link::keys::PublicKey;
use os::poll::Clock;
use relay::Relay;
use squeeze::dedup::{Dedup, Keys, Limits, Store};
use units::{Duration, Instant};

use crate::chunk_files::ChunkFiles;

/// Time that files may take before packets have their turn. One operation more may be begun
/// within it.
const TURN: Duration = Duration::from_millis(2);
/// What waits is written, and what the peer holds written down, so long after it came: what a
/// program that is killed loses.
const SAVED_AFTER: Duration = Duration::from_secs(1);

/// The files of all peers' chunks.
pub struct ChunkStores {
    /// Where they are; `None`: chunks are kept in memory only.
    dir: Option<PathBuf>,
    files: BTreeMap<PeerId, ChunkFiles>,
    /// Peers whose files have to be served.
    busy: BTreeSet<PeerId>,
    /// Peers whose chunks changed, and when they are to be saved.
    changed: BTreeSet<PeerId>,
    save_at: Option<Instant>,
    told: bool,
}

/// A key as the name of a directory: base64 may hold a slash.
fn name(key: &PublicKey) -> String {
    key.to_string().replace('/', "_")
}

impl ChunkStores {
    /// Stores of the node with this key under `dir`.
    pub fn new(dir: Option<&Path>, node: &PublicKey) -> ChunkStores {
        ChunkStores {
            dir: dir.map(|dir| dir.join(name(node))),
            files: BTreeMap::new(),
            busy: BTreeSet::new(),
            changed: BTreeSet::new(),
            save_at: None,
            told: false,
        }
    }

    /// Deduplicates the streams of a peer from now on. Where its files cannot be used chunks
    /// are kept in memory, which is told once.
    pub fn add(&mut self, relay: &mut Relay, peer: PeerId, key: &PublicKey, limits: &Limits) {
        let Some(secret) = relay.endpoint.chunk_secret(peer) else { return };
        let keys = Arc::new(Keys::new(&secret));
        let dir = self.dir.as_ref().filter(|_| limits.disk > 0).map(|dir| dir.join(name(key)));
        let opened = dir.map(|dir| ChunkFiles::open(&dir, &keys, limits).map_err(|e| (dir, e)));
        let dedup = match opened {
            Some(Ok((files, dedup))) => {
                self.files.insert(peer, files);
                Some(dedup)
            }
            Some(Err((dir, error))) => {
                if !std::mem::replace(&mut self.told, true) {
                    let dir = dir.display();
                    crate::log!(Warn, "chunks are kept in memory only", dir = dir, error = error);
                }
                None
            }
            None => None,
        };
        let in_memory = || -> Option<Dedup> {
            let epoch = u64::from_ne_bytes(os::proc::entropy().ok()?) | 1;
            let store = Store::new(keys.clone(), limits.memory, 0, epoch);
            Some(Dedup::new(keys, store, &Limits { disk: 0, ..*limits }))
        };
        if let Some(dedup) = dedup.or_else(in_memory) {
            relay.set_dedup(peer, dedup);
        }
    }

    /// The peer is about to be taken out.
    pub fn remove(&mut self, relay: &mut Relay, peer: PeerId) {
        if let Some(mut files) = self.files.remove(&peer) {
            relay.serve_files(peer, |dedup| {
                files.finish(dedup);
                false
            });
        }
        self.busy.remove(&peer);
        self.changed.remove(&peer);
    }

    /// Writes all that there is, at the end of the program.
    pub fn finish(&mut self, relay: &mut Relay) {
        let peers: Vec<PeerId> = self.files.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.remove(relay, peer));
    }

    /// Do files have to be served as soon as everything else has had its turn?
    pub fn has_work(&self) -> bool {
        !self.busy.is_empty()
    }

    /// When [`ChunkStores::work`] is to be called although nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.save_at
    }

    /// Does some of what chunks want of files.
    pub fn work(&mut self, clock: &Clock, relay: &mut Relay) {
        let begin = clock.now();
        while let Some(peer) = relay.poll_files() {
            if self.files.contains_key(&peer) {
                self.busy.insert(peer);
                self.changed.insert(peer);
                self.save_at.get_or_insert(begin + SAVED_AFTER);
            }
        }
        if self.save_at.is_some_and(|at| at <= begin) {
            self.save_at = None;
            for peer in std::mem::take(&mut self.changed) {
                self.save(relay, peer);
            }
        }
        while let Some(peer) = self.busy.pop_first() {
            let Some(files) = self.files.get_mut(&peer) else { continue };
            let mut more = true;
            relay.serve_files(peer, |dedup| {
                let mut any = false;
                while more && clock.now().since(begin) < TURN {
                    more = files.serve_one(dedup);
                    any |= more;
                }
                any
            });
            if let (false, (1.., Some(error))) = (self.told, files.failures()) {
                self.told = true;
                crate::log!(Warn, "chunks could not be written or read", error = error);
            }
            if more {
                self.busy.insert(peer);
                return;
            }
        }
    }

    fn save(&mut self, relay: &mut Relay, peer: PeerId) {
        let Some(files) = self.files.get_mut(&peer) else { return };
        self.busy.insert(peer);
        relay.serve_files(peer, |dedup| {
            dedup.receiver.store.flush();
            files.save(dedup);
            false
        });
    }
}
