//! The hub: one real gateway with thousands of peers in its file, in a namespace of its own.

use std::net::Ipv4Addr;

use link::keys::PrivateKey;
use os::netns::NetNs;
use units::{BitRate, Duration};

use super::terminal::rates;
use crate::testbed::gateway::Gateway;
use crate::testbed::topology::PREFIX;

/// Where it is, and on which port it and its terminals are.
pub const HUB: Ipv4Addr = Ipv4Addr::LOCALHOST;
pub const PORT: u16 = 4500;
/// The server behind it.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
/// What the files say of the way to a terminal: loopback takes no time.
pub const DELAY: Duration = Duration::from_millis(1);
/// As terminals behind NAT have it.
pub const KEEPALIVE: Duration = Duration::from_secs(25);
/// The hub's own place among the keys.
pub const OWN_KEY: usize = usize::MAX;

/// The key of the terminal of this number. They protect nothing.
pub fn key(n: usize) -> PrivateKey {
    // Some bits of the first byte say nothing.
    let mut seed = [0x6c; 32];
    seed[8..16].copy_from_slice(&(n as u64).to_le_bytes());
    PrivateKey::generate(seed)
}

/// The host behind the terminal of this number.
pub fn host_behind(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, (n >> 8) as u8, n as u8, 1)
}

/// What its file says beside the peers.
#[derive(Clone, Copy, Debug)]
pub struct HubPlan {
    /// Peers in its file.
    pub terminals: usize,
    /// The rate to each.
    pub rate: BitRate,
    /// Threads that share them.
    pub shards: u32,
}

impl HubPlan {
    /// Its file.
    pub fn file(&self) -> String {
        let node = format!(
            "[node]\nprivate_key = \"{}\"\nlisten = \"{HUB}:{PORT}\"\nadmin = \"admin.sock\"\n\
             log = \"warn\"\nshards = {}\n",
            key(OWN_KEY).to_base64(),
            self.shards
        );
        std::iter::once(node).chain((0..self.terminals).map(|n| self.peer(n))).collect()
    }

    fn peer(&self, n: usize) -> String {
        let [to, from] = rates(self.rate);
        let [_, high, low, _] = host_behind(n).octets();
        format!(
            "[[peer]]\nname = \"t{n}\"\npublic_key = \"{}\"\nroutes = [\"10.{high}.{low}.0/24\"]\n\
             allow = [\"{SERVER}/32\"]\ncompress = \"off\"\n\
             link = {{ send = \"{}bit\", receive = \"{}bit\", delay = \"{DELAY}\", \
             rate = \"fixed\" }}\n",
            key(n).public(),
            to.as_bps(),
            from.as_bps(),
        )
    }

    /// Starts it in a namespace of its own, where its terminals and the server have their
    /// addresses, too.
    ///
    /// # Errors
    /// One sentence.
    pub fn start(&self) -> Result<Hub, String> {
        let host = NetNs::unique(PREFIX, "hub").map_err(|e| e.to_string())?;
        host.address("lo", &format!("{SERVER}/32")).map_err(|e| e.to_string())?;
        let mut gateway = Gateway::start("hub", &host, &self.file()).map_err(|e| e.to_string())?;
        gateway.wait_until_ready().map_err(|e| e.to_string())?;
        Ok(Hub { gateway, host })
    }
}

/// It runs until it is dropped.
pub struct Hub {
    /// Its process.
    pub gateway: Gateway,
    /// Its namespace.
    pub host: NetNs,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::Config;

    use super::*;

    #[test]
    fn a_gateway_takes_the_file_that_is_written_for_it() {
        let plan = HubPlan { terminals: 300, rate: BitRate::from_mbps(5), shards: 2 };
        let text = plan.file();
        let config = Config::parse(&text, Path::new("/")).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((config.peers.len(), config.node.shards), (300, 2));
        assert_eq!(config.peers[299].public_key, *key(299).public());
        assert_eq!(config.peers[7].link.send, BitRate::from_mbps(5));
    }
}
