//! The peers' last addresses, kept across restarts, so that a restarted hub finds its
//! terminals at once. Keys and counters are never stored. Where a ship is, is nobody else's
//! business: the file is the owner's alone, and forgets peers that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use link::keys::PublicKey;
use serde::{Deserialize, Serialize};
use units::{Duration, Instant};

use crate::calendar;
use crate::human;
use crate::state_directory::{read_whole, state_directory};

/// Between two writes: each is of the whole file, and the terminals of a hub may all come up
/// at once.
const SPACING: Duration = Duration::from_secs(1);

/// A file that is in use is written at least so often, so that its age tells whether it is.
const SIGN_OF_LIFE: Duration = Duration::from_secs(86_400);

/// A file that cannot be read is tried again after this, or when there is something to write.
const AGAIN: Duration = Duration::from_secs(60);

/// Peers that are not in the configuration any more, and files of nodes that run no more, are
/// kept for so long, in seconds.
const KEPT: u64 = 30 * 86_400;
/// How a node's file ends, behind its key.
const ENDING: &str = ".endpoints.json";

/// What is written of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    /// Where it was last.
    Here(SocketAddr),
    /// The same of one that is no longer in the configuration.
    Gone {
        address: SocketAddr,
        /// Since when, as far as it was seen: seconds since 1970.
        since: u64,
    },
}

/// A small file of `peer key → address`; without a place for it, nothing is kept.
pub struct Store {
    path: Option<PathBuf>,
    entries: BTreeMap<String, Entry>,
    /// The file could not be read: until it is, nothing is written over it.
    unread: bool,
    /// The keys of the peers at the start.
    peers: BTreeSet<String>,
    /// Something has changed and is to be written then.
    save_at: Option<Instant>,
    saved_at: Option<Instant>,
}

impl Store {
    /// The store of the node with this key and these peers, in the state directory.
    pub fn open(node: &PublicKey, peers: &[PublicKey]) -> Store {
        let dir = state_directory();
        // Base64 may hold a slash.
        let name = format!("{}{ENDING}", node.to_string().replace('/', "_"));
        if let Some(dir) = &dir {
            forget_others(dir, &name, calendar::seconds());
        }
        Store::at(dir.map(|d| d.join(name)), peers, calendar::seconds())
    }

    fn at(path: Option<PathBuf>, peers: &[PublicKey], now: u64) -> Store {
        let peers = peers.iter().map(ToString::to_string).collect();
        let entries = BTreeMap::new();
        let mut store = Store { path, entries, unread: true, peers, save_at: None, saved_at: None };
        if let Err(why) = store.read(now) {
            let why = human::reason(&why);
            crate::log!(
                Error,
                "the peers' addresses cannot be read, and are tried again",
                why = why
            );
            store.save_at = Some(Instant::ZERO);
        }
        store
    }

    /// Takes what was written, where that was not done yet. What was heard since is newer.
    /// `now`: seconds since 1970.
    ///
    /// # Errors
    /// The file cannot be read for now.
    fn read(&mut self, now: u64) -> std::io::Result<()> {
        if !self.unread {
            return Ok(());
        }
        let read = self.path.as_deref().map(read_whole::<BTreeMap<String, Entry>>).transpose()?;
        self.unread = false;
        let before = read.flatten().unwrap_or_default();
        let mut entries = before.clone();
        for (key, entry) in &mut entries {
            *entry = match (*entry, self.peers.contains(key)) {
                (Entry::Here(address), false) => Entry::Gone { address, since: now },
                (Entry::Gone { address, .. }, true) => Entry::Here(address),
                (entry, _) => entry,
            };
        }
        let is_kept = |entry: &Entry| match entry {
            Entry::Here(_) => true,
            Entry::Gone { since, .. } => now.saturating_sub(*since) < KEPT,
        };
        entries.retain(|_, entry| is_kept(entry));
        if entries != before || !entries.is_empty() {
            self.save_at = Some(Instant::ZERO);
        }
        entries.append(&mut self.entries);
        self.entries = entries;
        Ok(())
    }

    /// Where the peer was last.
    pub fn get(&self, peer: &PublicKey) -> Option<SocketAddr> {
        match self.entries.get(&peer.to_string())? {
            Entry::Here(address) | Entry::Gone { address, .. } => Some(*address),
        }
    }

    /// The peer is here now, which [`Store::save`] writes down.
    pub fn set(&mut self, now: Instant, peer: &PublicKey, address: SocketAddr) {
        let entry = Entry::Here(address);
        if self.entries.insert(peer.to_string(), entry) != Some(entry) {
            // At once where nothing was written lately.
            let next = self.saved_at.map_or(now, |at| now.max(at + SPACING));
            self.save_at = Some(self.save_at.map_or(next, |at| at.min(next)));
        }
    }

    /// When [`Store::save`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.save_at
    }

    /// Writes what has changed, if it is due. A disk that is full or read-only costs only the
    /// memory of it.
    pub fn save(&mut self, now: Instant) {
        if self.save_at.is_none_or(|at| at > now) {
            return;
        }
        if self.read(calendar::seconds()).is_err() {
            self.save_at = Some(now + AGAIN);
            return;
        }
        (self.save_at, self.saved_at) = (Some(now + SIGN_OF_LIFE), Some(now));
        let Some(path) = &self.path else { return };
        let Ok(text) = serde_json::to_string(&self.entries) else { return };
        // Written beside it and moved, so that a crash leaves the old one or the new one.
        let beside = path.with_extension("new");
        let written = write(&beside, &text).and_then(|()| fs::rename(&beside, path));
        if let Err(e) = written {
            crate::log!(Debug, "the peers' addresses were not stored", error = e);
        }
    }
}

/// Removes the files of other nodes that have given no sign of life for 30 days.
fn forget_others(dir: &Path, own: &str, now: u64) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_others = entry.file_name().to_str().is_some_and(|n| n.ends_with(ENDING) && n != own);
        let written = entry.metadata().ok().filter(|about| about.is_file() && is_others);
        let age = written.map(|about| now.saturating_sub(about.mtime().unsigned_abs()));
        if age.is_some_and(|age| age >= KEPT) {
            // Of another user's directory nothing can be removed, and need not be.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Writes a file that only its owner can read.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    // One that a crash left may have other rights.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Whatever ended the program: the last addresses are where peers are found next time.
impl Drop for Store {
    fn drop(&mut self) {
        self.save(Instant::FAR_FUTURE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::keys::PrivateKey;

    fn key(n: u8) -> PublicKey {
        *PrivateKey::from_bytes([n; 32]).public()
    }

    #[test]
    fn only_the_owner_can_read_it_and_peers_that_are_gone_are_forgotten_after_thirty_days() {
        use std::os::unix::fs::PermissionsExt as _;
        const DAY: u64 = 86_400;
        let dir = std::env::temp_dir().join(format!("bentpipe-kept-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("endpoints.json");
        // As an earlier version left it: readable by all, with one who is gone.
        let old = format!(r#"{{"{}":"192.0.2.1:4500","{}":"192.0.2.2:4500"}}"#, key(1), key(2));
        fs::write(&path, old).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("rights");
        let open = |peers: &[PublicKey], day: u64| {
            let mut store = Store::at(Some(path.clone()), peers, day * DAY);
            store.save(Instant::ZERO);
            [1, 2].map(|n| store.get(&key(n)).is_some())
        };
        assert_eq!(open(&[key(1)], 100), [true, true]);
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Back before the time is over, it counts anew.
        assert_eq!(open(&[key(1)], 129), [true, true]);
        assert_eq!(open(&[key(1), key(2)], 129), [true, true]);
        assert_eq!(open(&[key(1)], 131), [true, true]);
        assert_eq!(open(&[key(1)], 160), [true, true]);
        assert_eq!(open(&[key(1)], 161), [true, false]);
        let _ = fs::remove_dir_all(&dir);
    }

    #[test]
    fn addresses_that_cannot_be_read_are_never_written_over_and_count_when_they_can_be() {
        let dir = std::env::temp_dir().join(format!("bentpipe-addresses-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let (path, aside) = (dir.join("endpoints.json"), dir.join("aside"));
        let peers = [key(1), key(2), key(3)];
        let open = || Store::at(Some(path.clone()), &peers, calendar::seconds());
        let address = |n: u8| SocketAddr::from(([192, 0, 2, n], 4500));
        let mut store = open();
        store.set(Instant::ZERO, &key(1), address(1));
        store.set(Instant::ZERO, &key(2), address(2));
        drop(store);
        // Not even root reads a directory as a file.
        fs::rename(&path, &aside).and_then(|()| fs::create_dir(&path)).expect("put aside");
        let mut store = open();
        let now = Instant::ZERO + Duration::from_secs(5);
        store.set(now, &key(2), address(20));
        store.save(now);
        assert!(store.poll_timeout().is_some_and(|at| at > now), "not all the time");
        fs::remove_dir(&path).and_then(|()| fs::rename(&aside, &path)).expect("put back");
        drop(store);
        let store = open();
        let told = [1, 2, 3].map(|n| store.get(&key(n)));
        assert_eq!(told, [Some(address(1)), Some(address(20)), None]);
        drop(store);
        // A damaged one is put aside.
        fs::write(&path, "{\"torn").expect("written");
        assert_eq!(open().get(&key(1)), None);
        assert!(path.with_extension("damaged").exists());
        let _ = fs::remove_dir_all(&dir);
    }

    #[test]
    fn many_addresses_are_written_once_a_second_and_none_is_lost() {
        let dir = std::env::temp_dir().join(format!("bentpipe-store-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("endpoints.json");
        let all: Vec<PublicKey> = (1..100).map(key).collect();
        let open = || Store::at(Some(path.clone()), &all, 0);
        let address = |n: u8| SocketAddr::from(([192, 0, 2, n], 4500));
        let mut store = open();
        let begin = Instant::ZERO + Duration::from_millis(100);
        store.set(begin, &key(1), address(1));
        assert_eq!(store.poll_timeout(), Some(begin), "the first at once");
        store.save(begin);
        for n in 2..100 {
            let now = begin + Duration::from_millis(u64::from(n));
            store.set(now, &key(n), address(n));
            store.save(now);
        }
        assert_eq!(open().entries.len(), 1);
        let due = store.poll_timeout().expect("some wait");
        assert_eq!(due, begin + SPACING);
        store.save(due);
        let read = open();
        assert!((1..100).all(|n| read.get(&key(n)) == Some(address(n))));
        // Where nothing changed nothing is written.
        store.set(due, &key(5), address(5));
        assert_eq!(store.poll_timeout(), Some(due + SIGN_OF_LIFE), "but once a day");
        let _ = fs::remove_dir_all(&dir);
    }

    #[test]
    fn files_of_nodes_that_run_no_more_are_gone_after_thirty_days() {
        let dir = std::env::temp_dir().join(format!("bentpipe-others-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let names = ["own.endpoints.json", "old.endpoints.json", "usage.json"];
        for name in names {
            fs::write(dir.join(name), "{}").expect("written");
        }
        let left = |days: u64| {
            forget_others(&dir, names[0], calendar::seconds() + days * 86_400);
            names.map(|name| dir.join(name).exists())
        };
        assert_eq!(left(29), [true; 3]);
        assert_eq!(left(31), [true, false, true]);
        let _ = fs::remove_dir_all(&dir);
    }
}
