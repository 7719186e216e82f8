//! Further nodes beside the two of the experiment, each joined to every other by a link
//! of its own and with a host behind it: a mesh of terminals. Traffic passes between any two
//! of them, several pairs at a time, and must find its way among the links.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use link::keys::PrivateKey;
use os::netns::{NetNs, veth};

use super::gateway::{Gateway, GatewayError, PORT};
use super::topology::{BuildError, HOST, LAN, configure, emulated, host_script, quiet, set_tcp};
use super::way::{HostTcp, LinkSetup, MOST_BESIDE};
use crate::emulate::EmulatorHandle;

/// Addresses behind the nodes of a mesh, the client's and the server's first.
const NETS: [&str; 2 + MOST_BESIDE] =
    ["10.77.1.0/24", "10.77.3.0/24", "10.77.5.0/24", "10.77.6.0/24"];
/// The hosts behind the further nodes, and the nodes' addresses towards them.
const HOSTS: [[Ipv4Addr; 2]; MOST_BESIDE] = [[host(5, 2), host(5, 1)], [host(6, 2), host(6, 1)]];
/// Third byte of the first further link's addresses.
const FIRST_LINK: u8 = 20;

/// The further nodes. Dropped from the top.
pub struct Mesh {
    links: Vec<EmulatorHandle>,
    /// The nodes' namespaces.
    pub nodes: Vec<NetNs>,
    /// The hosts behind them.
    hosts: Vec<NetNs>,
}

const fn host(net: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, net, number)
}

/// Every pair of nodes but the first two, whose link the experiment has: the lower node,
/// the higher one, and the link's number.
fn pairs(nodes: usize) -> impl Iterator<Item = (usize, usize, u8)> {
    let all = (0..nodes).flat_map(move |low| (low + 1..nodes).map(move |high| (low, high)));
    all.filter(|pair| *pair != (0, 1)).zip(0..).map(|((low, high), i)| (low, high, i))
}

/// The address of one end of a link.
fn end(link: u8, higher: bool) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, FIRST_LINK + link, if higher { 2 } else { 1 })
}

impl Mesh {
    /// Builds the nodes and their links, each as the experiment's own.
    pub fn build(
        first: [&NetNs; 2],
        nodes: Vec<NetNs>,
        hosts: Vec<NetNs>,
        link: &LinkSetup,
        tcp: &HostTcp,
        seed: u64,
    ) -> Result<Mesh, BuildError> {
        for space in nodes.iter().chain(&hosts) {
            quiet(space)?;
        }
        for ((node, host), [own, router]) in nodes.iter().zip(&hosts).zip(HOSTS) {
            veth(host, HOST, node, LAN)?;
            configure(host, &host_script(own, router, tcp))?;
            configure(node, &format!("link set {LAN} up\naddr add {router}/24 dev {LAN}\n"))?;
            set_tcp(host, tcp)?;
        }
        let mut mesh = Mesh { links: Vec::new(), nodes, hosts };
        let all: Vec<&NetNs> = first.into_iter().chain(&mesh.nodes).collect();
        let mut links = Vec::new();
        for (low, high, i) in pairs(all.len()) {
            let device = |to: usize| format!("sat{to}");
            let (left, right) = (device(high), device(low));
            let draw = seed ^ (u64::from(i) + 1) << 32;
            links.push(emulated(all[low], &left, all[high], &right, link, draw)?);
            for (node, device, own, far) in [
                (low, &left, end(i, false), end(i, true)),
                (high, &right, end(i, true), end(i, false)),
            ] {
                configure(all[node], &script(device, own, far))?;
            }
        }
        for node in &mesh.nodes {
            node.make_router()?;
        }
        mesh.links = links;
        Ok(mesh)
    }

    /// The host behind the further node `i`, and its address.
    pub fn host(&self, i: usize) -> Option<(&NetNs, Ipv4Addr)> {
        Some((self.hosts.get(i)?, HOSTS.get(i)?[0]))
    }

    /// The link between two nodes that the mesh alone joins; its left is the lower one.
    pub fn link(&self, low: usize, high: usize) -> Option<&EmulatorHandle> {
        let (.., i) = pairs(self.nodes.len() + 2).find(|p| (p.0, p.1) == (low, high))?;
        self.links.get(usize::from(i))
    }

    /// What went wrong in the emulated links.
    pub fn problems(&self) -> Vec<String> {
        self.links.iter().flat_map(|link| link.report().problems).collect()
    }

    /// The `[[peer]]` tables of a node (0 and 1: the experiment's own) for those that only
    /// the mesh joins it to. `ends` is the link as its lower and as its higher node see it.
    pub fn peers(&self, node: usize, keys: &[PrivateKey], ends: &[String; 2]) -> String {
        let mut text = String::new();
        for (low, high, i) in pairs(keys.len()) {
            if node != low && node != high {
                continue;
            }
            let far = if node == low { high } else { low };
            let link = &ends[usize::from(node == high)];
            let _ = write!(
                text,
                "[[peer]]\nname = \"node-{far}\"\npublic_key = \"{}\"\nendpoint = \"{}:{PORT}\"\n\
                 routes = [\"{}\"]\nallow = [\"{}\"]\nsource = \"keep\"\n\
                 open = \"fast\"\ncompress = \"off\"\ndedup = \"off\"\nlink = {link}\n",
                keys[far].public(),
                end(i, far == high),
                NETS[far],
                NETS[node],
            );
        }
        text
    }

    /// Starts the gateways of the further nodes.
    pub fn start(
        &self,
        keys: &[PrivateKey],
        ends: &[String; 2],
    ) -> Result<Vec<Gateway>, GatewayError> {
        let mut all = Vec::new();
        for (i, host) in self.nodes.iter().enumerate() {
            let config = format!(
                "[node]\nprivate_key = \"{}\"\nlisten = \"0.0.0.0:{PORT}\"\nlan = [\"{LAN}\"]\n\
                 admin = \"admin.sock\"\nlog = \"warn\"\n{}",
                keys[i + 2].to_base64(),
                self.peers(i + 2, keys, ends),
            );
            all.push(Gateway::start("mesh", host, &config)?);
        }
        Ok(all)
    }
}

fn script(device: &str, own: Ipv4Addr, far: Ipv4Addr) -> String {
    // Stations end as their addresses do.
    let station = |a: Ipv4Addr| format!("02:77:00:00:{:02x}:{:02x}", a.octets()[2], a.octets()[3]);
    format!(
        "link set {device} address {}\nlink set {device} mtu 1500 up\naddr add {own}/24 dev {device}\n\
         neigh replace {far} lladdr {} dev {device} nud permanent\n",
        station(own),
        station(far),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_two_nodes_of_a_mesh_have_one_link() {
        let four: Vec<_> = pairs(4).collect();
        assert_eq!(four, [(0, 2, 0), (0, 3, 1), (1, 2, 2), (1, 3, 3), (2, 3, 4)]);
        let mesh = Mesh { links: Vec::new(), nodes: Vec::new(), hosts: Vec::new() };
        let keys: Vec<_> = (1..=4).map(|i| PrivateKey::generate([i; 32])).collect();
        let ends = ["lower".to_owned(), "higher".to_owned()];
        for node in 0..4 {
            let peers = mesh.peers(node, &keys, &ends);
            assert_eq!(peers.matches("[[peer]]").count(), if node < 2 { 2 } else { 3 }, "{peers}");
            let seen = |end: &str| peers.matches(&format!("link = {end}")).count();
            // How often it is the lower node, and how often the higher one.
            assert_eq!(
                (seen("lower"), seen("higher")),
                [(2, 0), (2, 0), (1, 2), (0, 3)][node],
                "a link that is slow one way is slow the same way for both its ends"
            );
            assert!(
                !peers.contains(&keys[node].public().to_string()),
                "a node is no peer of itself"
            );
        }
    }
}
