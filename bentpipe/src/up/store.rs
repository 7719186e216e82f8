//! The peers' last addresses, kept across restarts, so that a restarted hub finds its
//! terminals at once. Keys and counters are never stored.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use link::keys::PublicKey;

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
}

impl Store {
    /// The store of the node with this key, in the state directory.
    pub fn open(node: &PublicKey) -> Store {
        let dir = state_directory();
        // Base64 may hold a slash.
        let name = format!("{}.endpoints.json", node.to_string().replace('/', "_"));
        let path = dir.map(|d| d.join(name));
        let text = path.as_ref().and_then(|p| fs::read_to_string(p).ok());
        let addresses = text.and_then(|t| serde_json::from_str(&t).ok()).unwrap_or_default();
        Store { path, addresses }
    }

    /// Where the peer was last.
    pub fn get(&self, peer: &PublicKey) -> Option<SocketAddr> {
        self.addresses.get(&peer.to_string()).copied()
    }

    /// The peer is here now. A disk that is full or read-only costs only the memory of it.
    pub fn set(&mut self, peer: &PublicKey, address: SocketAddr) {
        if self.addresses.insert(peer.to_string(), address) == Some(address) {
            return;
        }
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
