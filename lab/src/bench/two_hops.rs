//! Two satellites one after the other: the node between them splits anew what it connects
//! for the one peer and what leads behind the other.
//!
//! ```text
//!  client ── a ══ first link ══ middle ══ second link ══ far ── server
//! ```

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use link::keys::PrivateKey;
use os::netns::{NetNs, veth};
use os::proc::entropy;

use super::checked::Checked;
use super::setup::{link, lossy};
use crate::emulate::EmulatorHandle;
use crate::testbed::gateway::{Gateway, PORT};
use crate::testbed::measure::median;
use crate::testbed::progress::{Board, Row};
use crate::testbed::topology::{LAN, PREFIX, Plan, Topology, configure, emulated, quiet};
use crate::testbed::traffic::{self, Server, Wanted};
use crate::testbed::way::LinkSetup;

/// The slower link's way to the client, bit/s, and the faster one's.
const SLOWER: u64 = 20_000_000;
const FASTER: u64 = 30_000_000;
const BYTES: u64 = 40_000_000;
const FAR_SERVER: [u8; 4] = [10, 77, 9, 2];

/// The share of the slower link that one transfer over both has, once it flows.
pub fn two_hops(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("two satellites in a row", 2 * seeds * BYTES);
    row.begin();
    let mut checks = Vec::new();
    for (what, rates) in [("first", [SLOWER, FASTER]), ("second", [FASTER, SLOWER])] {
        let mut runs = Vec::new();
        for seed in 1..=seeds {
            runs.push(Chain::build(rates, seed)?.transfer(seed, &row)?);
        }
        let middle =
            |of: fn(&(f64, f64)) -> f64| median(runs.iter().map(of)).ok_or("nothing was measured");
        let (share, first) = (middle(|r| r.0)?, middle(|r| r.1)?);
        checks.push(Checked {
            value: Some(share),
            ..Checked::asked(
                &format!(
                    "20/2 and 30/3 Mbit/s, 600 ms and 0.1 % loss each, the {what} link the slower: \
                     40 MB, share of the slower link from the first byte on"
                ),
                "≥ 94 %",
                format!("{share:.1} %"),
                share >= 94.0,
            )
        });
        checks.push(Checked::told("its first byte after", format!("{first:.2} s")));
    }
    row.end("done".into());
    Ok(checks)
}

/// Dropped from the top: programs before the network they run in.
struct Chain {
    gateways: [Gateway; 3],
    _server: Server,
    _second: EmulatorHandle,
    _far: [NetNs; 2],
    /// The client, the first link, and the node between the two (as `gwb`).
    near: Topology,
}

impl Chain {
    /// Links of these rates towards the client, the first and the second.
    fn build(rates: [u64; 2], seed: u64) -> Result<Chain, String> {
        let [first, second] = rates.map(|bps| lossy(link(bps, bps / 10, 300), 0.001));
        let plan = Plan { link: first.clone(), seed, ..Plan::default() };
        let near = Topology::build(&plan).map_err(|e| e.to_string())?;
        let os = |e: os::OsError| e.to_string();
        let space = |role: &str| NetNs::unique(PREFIX, &format!("hops{seed}-{role}")).map_err(os);
        let (far, server) = (space("far")?, space("server")?);
        for host in [&far, &server] {
            quiet(host).map_err(os)?;
        }
        let sat = emulated(&near.gwb, "sat2", &far, "sat2", &second, !seed);
        let sat = sat.map_err(|e| e.to_string())?;
        veth(&far, LAN, &server, "eth0").map_err(os)?;
        for (host, script) in [
            (&near.gwb, "addr add 10.77.8.1/24 dev sat2\nlink set sat2 up\n"),
            (
                &far,
                "addr add 10.77.8.2/24 dev sat2\nlink set sat2 up\n\
                 addr add 10.77.9.1/24 dev lan\nlink set lan up\n",
            ),
            (
                &server,
                "addr add 10.77.9.2/24 dev eth0\nlink set eth0 up\n\
                 route add default via 10.77.9.1\n",
            ),
        ] {
            configure(host, script).map_err(os)?;
        }
        far.make_router().map_err(os)?;
        let gateways = start(&near, &far, &[first, second])?;
        let served = server.run(|| Server::start(IpAddr::from(FAR_SERVER), near.origin));
        let served = served.map_err(|e| format!("the server does not start: {e}"))?;
        Ok(Chain { gateways, _server: served, _second: sat, _far: [far, server], near })
    }

    /// The share of the slower link, %, and the time to the first byte, s.
    fn transfer(&self, seed: u64, row: &Row) -> Result<(f64, f64), String> {
        // Whatever the gateways say to each other at first is said by then.
        thread::sleep(Duration::from_secs(3));
        let address = SocketAddr::new(FAR_SERVER.into(), traffic::PORT);
        let (wanted, origin) = (Wanted::whole(seed, BYTES), self.near.origin);
        let fetch = || traffic::fetch(address, wanted, origin, &row.done);
        let got = self.near.client.run(fetch).map_err(|e| format!("the client failed: {e}"))?;
        let [_, middle, _] = &self.gateways;
        let status = middle.status().map_err(|e| e.to_string())?;
        if let Some(link) = status.links.iter().find(|l| l.streams_total != 1) {
            return Err(format!(
                "{} streams to {}: it was not split",
                link.streams_total, link.peer
            ));
        }
        if let Some(problem) = self.near.problems().first() {
            return Err(format!("the emulated link is not to be trusted: {problem}"));
        }
        let time = got.complete - got.first_byte;
        Ok((BYTES as f64 * 8.0 / time / SLOWER as f64 * 100.0, got.first_byte))
    }
}

/// The three gateways, up.
fn start(near: &Topology, far: &NetNs, links: &[LinkSetup; 2]) -> Result<[Gateway; 3], String> {
    let key = || entropy().map(PrivateKey::generate).map_err(|e| e.to_string());
    let keys = [key()?, key()?, key()?];
    let node = |of: usize, lan: &str| {
        format!(
            "[node]\nprivate_key = \"{}\"\nlisten = \"0.0.0.0:{PORT}\"\ntun = \"bentpipe0\"\n\
             admin = \"admin.sock\"\nlog = \"warn\"\ndedup_dir = \"chunks\"\n{lan}\n",
            keys[of].to_base64()
        )
    };
    // `down`: this node sends towards the client.
    let peer = |of: usize, link: usize, down: bool, words: &str| {
        let rate = |c: &channel::ChannelConfig| c.rate.map(|r| r.to_string()).unwrap_or_default();
        let (to, from) = (rate(&links[link].down), rate(&links[link].up));
        let (send, receive) = if down { (to, from) } else { (from, to) };
        format!(
            "[[peer]]\nname = \"node-{of}\"\npublic_key = \"{}\"\nopen = \"fast\"\n\
             compress = \"off\"\ndedup = \"off\"\n{words}\n\
             link = {{ send = \"{send}\", receive = \"{receive}\", delay = \"300ms\" }}\n",
            keys[of].public()
        )
    };
    let (client, server) = ("\"10.77.1.0/24\"", "\"10.77.9.0/24\"");
    let configs = [
        node(0, &format!("lan = [\"{LAN}\"]"))
            + &peer(1, 0, false, &format!("routes = [{server}]\nendpoint = \"10.77.2.2:{PORT}\"")),
        node(1, "")
            + &peer(0, 0, true, &format!("routes = [{client}]\nallow = [{server}]"))
            + &peer(2, 1, false, &format!("routes = [{server}]\nendpoint = \"10.77.8.2:{PORT}\"")),
        node(2, "") + &peer(1, 1, true, &format!("routes = [{client}]\nallow = [{server}]")),
    ];
    let hosts = [("client", &near.gwa), ("middle", &near.gwb), ("server", far)];
    let mut gateways = Vec::new();
    for ((side, host), config) in hosts.into_iter().zip(&configs) {
        gateways.push(Gateway::start(side, host, config).map_err(|e| e.to_string())?);
    }
    for gateway in &mut gateways {
        gateway.wait_until_up().map_err(|e| e.to_string())?;
    }
    gateways.try_into().map_err(|_| "there are three".to_owned())
}
