//! What a packet costs a gateway that has many peers or many streams: as much as one that
//! has few, or something in the loop looks at all of them.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use os::proc::raise_descriptor_limit;

use super::checked::Checked;
use super::crowd::{self, CrowdServer};
use super::setup::link;
use crate::testbed::gateway::Pair;
use crate::testbed::measure::median;
use crate::testbed::progress::{Board, Row};
use crate::testbed::topology::{Plan, SERVER, Topology};
use crate::testbed::traffic::{self, Server, Wanted};

/// Peers that are configured and never there.
const ABSENT: usize = 1_000;
/// Connections that are open and say nothing, or ask all at once.
const FEW: usize = 800;
const MANY: usize = 8_000;
/// One transfer, and how many: a processor's time is told in hundredths of a second.
const BYTES: u64 = 80_000_000;
const TRANSFERS: u64 = 3;
/// How long idle gateways are looked at.
const IDLE: Duration = Duration::from_secs(3);
/// How much dearer a packet may be beside all the others: twice what runs differ.
const DEARER: f64 = 1.2;

/// Processor time of gateways with few and many peers and streams.
pub fn hub(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    raise_descriptor_limit().map_err(|e| e.to_string())?;
    let row = board.row("many peers and streams", 3 * TRANSFERS * BYTES);
    row.begin();
    let alone = Hub::build(0)?;
    let one = alone.transfer(&row)?;
    let (few, _) = alone.ask(FEW)?;
    let (many, open) = alone.ask(MANY)?;
    let beside_streams = alone.transfer(&row)?;
    drop((open, alone));
    let large = Hub::build(ABSENT)?;
    let before = large.topology.gateways_cpu()?;
    thread::sleep(IDLE);
    let idle = (large.topology.gateways_cpu()? - before) / IDLE.as_secs_f64() * 100.0;
    let beside_peers = large.transfer(&row)?;
    row.end(format!("{one:.1} s/GB alone"));

    let dearer = |what: &str, alone: f64, beside: f64, unit: &str| {
        let factor = beside / alone;
        let measured = format!("{factor:.2} ({alone:.1} → {beside:.1} {unit})");
        Checked::asked(what, &format!("≤ {DEARER} times"), measured, factor <= DEARER)
    };
    Ok(vec![
        dearer(
            "processor for a GB beside 1,000 peers that are idle, against none",
            one,
            beside_peers,
            "s",
        ),
        dearer(
            "processor for a GB beside 8,000 streams that are idle, against none",
            one,
            beside_streams,
            "s",
        ),
        dearer(
            "processor for a stream that opens, asks and is answered: 8,000 at once, against 800",
            few * 1e6,
            many * 1e6,
            "µs",
        ),
        Checked::told("two gateways with 1,000 idle peers", format!("{idle:.1} % of a core")),
    ])
}

/// A pair of gateways around a fast link.
struct Hub {
    topology: Topology,
    _files: Server,
    _crowd: CrowdServer,
}

impl Hub {
    fn build(absent: usize) -> Result<Hub, String> {
        // Beyond 64 peers the memory is shared as if there were no more: one has as much as one
        // alone, and that is room for all the streams.
        let node = format!("memory = \"{}MB\"\n", 160 * (absent + 1).min(64));
        let gateways = Some(Pair { absent, node, ..Pair::default() });
        let link = link(200_000_000, 20_000_000, 20);
        let plan = Plan { link, seed: 1, gateways, ..Plan::default() };
        let topology = Topology::build(&plan).map_err(|e| e.to_string())?;
        let server = |e: std::io::Error| format!("the server does not start: {e}");
        let files = topology.server.run(|| Server::start(SERVER[0], topology.origin));
        let crowd = CrowdServer::start(&topology.server, SERVER[0]).map_err(server)?;
        Ok(Hub { _files: files.map_err(server)?, _crowd: crowd, topology })
    }

    /// Processor time for a GB, s.
    fn transfer(&self, row: &Row) -> Result<f64, String> {
        let address = SocketAddr::new(SERVER[0], traffic::PORT);
        let one = |seed| -> Result<f64, String> {
            let before = self.topology.gateways_cpu()?;
            let (wanted, origin) = (Wanted::whole(seed, BYTES), self.topology.origin);
            let fetch = || traffic::fetch(address, wanted, origin, &row.done);
            self.topology.client.run(fetch).map_err(|e| format!("the client failed: {e}"))?;
            Ok((self.topology.gateways_cpu()? - before) / (BYTES as f64 / 1e9))
        };
        let costs: Result<Vec<f64>, String> = (0..TRANSFERS).map(one).collect();
        median(costs?).ok_or_else(|| "nothing was measured".into())
    }

    /// Processor time for each of `count` streams that open, ask and are answered, s; and
    /// the streams.
    fn ask(&self, count: usize) -> Result<(f64, Vec<std::net::TcpStream>), String> {
        let before = self.topology.gateways_cpu()?;
        let begin = Instant::now();
        let crowd = crowd::gather(&self.topology, SERVER[0], count)?;
        if let Some(first) = crowd.refused.iter().chain(&crowd.lost).next() {
            return Err(format!("after {:.1} s: {first}", begin.elapsed().as_secs_f64()));
        }
        Ok(((self.topology.gateways_cpu()? - before) / count as f64, crowd.open))
    }
}
