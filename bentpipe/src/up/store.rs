//! The peers' last addresses, kept across restarts, so that a restarted hub finds its
//! terminals at once. Keys and counters are never stored.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use link::keys::PublicKey;
use units::{Duration, Instant};

/// Between two writes: each is of the whole file, and the terminals of a hub may all come up
/// at once.
const SPACING: Duration = Duration::from_secs(1);

/// What outlives the program is here: systemd's state directory, or for root
/// `/var/lib/bentpipe`.
pub fn state_directory() -> Option<PathBuf> {
    std::env::var_os("STATE_DIRECTORY").map(PathBuf::from).or_else(|| {
        let dir = PathBuf::from("/var/lib/bentpipe");
        fs::create_dir_all(&dir).is_ok().then_some(dir)
    })
}

/// A small file of `peer key → address`; without a place for it, nothing is kept.
pub struct Store {
    path: Option<PathBuf>,
    addresses: BTreeMap<String, SocketAddr>,
    /// Something has changed and is to be written then.
    save_at: Option<Instant>,
    saved_at: Option<Instant>,
}

impl Store {
    /// The store of the node with this key, in the state directory.
    pub fn open(node: &PublicKey) -> Store {
        let dir = state_directory();
        // Base64 may hold a slash.
        let name = format!("{}.endpoints.json", node.to_string().replace('/', "_"));
        Store::at(dir.map(|d| d.join(name)))
    }

    fn at(path: Option<PathBuf>) -> Store {
        let text = path.as_ref().and_then(|p| fs::read_to_string(p).ok());
        let addresses = text.and_then(|t| serde_json::from_str(&t).ok()).unwrap_or_default();
        Store { path, addresses, save_at: None, saved_at: None }
    }

    /// Where the peer was last.
    pub fn get(&self, peer: &PublicKey) -> Option<SocketAddr> {
        self.addresses.get(&peer.to_string()).copied()
    }

    /// The peer is here now, which [`Store::save`] writes down.
    pub fn set(&mut self, now: Instant, peer: &PublicKey, address: SocketAddr) {
        if self.addresses.insert(peer.to_string(), address) != Some(address) {
            // At once where nothing was written lately.
            let next = self.saved_at.map_or(now, |at| now.max(at + SPACING));
            self.save_at.get_or_insert(next);
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
        (self.save_at, self.saved_at) = (None, Some(now));
        let Some(path) = &self.path else { return };
        let Ok(text) = serde_json::to_string(&self.addresses) else { return };
        // Written beside it and moved, so that a crash leaves the old one or the new one.
        let beside = path.with_extension("new");
        let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
        if let Err(e) = written {
            crate::log!(Debug, "the peers' addresses were not stored", error = e);
        }
    }
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

    #[test]
    fn many_addresses_are_written_once_a_second_and_none_is_lost() {
        let dir = std::env::temp_dir().join(format!("bentpipe-store-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("endpoints.json");
        let open = || Store::at(Some(path.clone()));
        let key = |n: u8| *PrivateKey::from_bytes([n; 32]).public();
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
        assert_eq!(open().addresses.len(), 1);
        let due = store.poll_timeout().expect("some wait");
        assert_eq!(due, begin + SPACING);
        store.save(due);
        let read = open();
        assert!((1..100).all(|n| read.get(&key(n)) == Some(address(n))));
        // Where nothing changed nothing is written.
        store.set(due, &key(5), address(5));
        assert_eq!(store.poll_timeout(), None);
        let _ = fs::remove_dir_all(&dir);
    }
}
