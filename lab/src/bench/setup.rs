//! What rows are made of: links, what these carry, and gateways around them.

use channel::{ChannelConfig, QueueLimit};
use units::{BitRate, ByteCount, Duration, Ratio};

use crate::testbed::gateway::Pair;
use crate::testbed::results::Load;
use crate::testbed::topology::{Plan, Topology};
use crate::testbed::way::{LinkSetup, Work};

/// A link of so many bit/s down and up, and milliseconds one way. Its queue holds half a
/// second, and ten packets on the slowest.
pub fn link(down: u64, up: u64, delay_ms: u64) -> LinkSetup {
    let queue = |bps: u64| ByteCount((bps / 16).max(15_000));
    let one = |bps| ChannelConfig {
        rate: Some(BitRate::from_bps(bps)),
        queue: QueueLimit::Bytes(queue(bps)),
        delay: Duration::from_millis(delay_ms),
        ..ChannelConfig::default()
    };
    LinkSetup { down: one(down), up: one(up) }
}

/// The link with random losses in both directions.
pub fn lossy(link: LinkSetup, loss: f64) -> LinkSetup {
    let with = |c: ChannelConfig| ChannelConfig { loss: Ratio::from_f64(loss), ..c };
    LinkSetup { down: with(link.down), up: with(link.up) }
}

/// The link with bit errors in both directions.
pub fn noisy(link: LinkSetup, ber: f64) -> LinkSetup {
    let with = |c: ChannelConfig| ChannelConfig { ber: Ratio::from_f64(ber), ..c };
    LinkSetup { down: with(link.down), up: with(link.up) }
}

/// A file of so many bytes.
pub fn file(bytes: u64) -> Work {
    Work::File { bytes: ByteCount(bytes), at_most: None, ftp: false }
}

/// So many endless files side by side.
pub fn streams(count: u32, seconds: u64) -> Work {
    Work::Streams { count, time: Duration::from_secs(seconds), pace: None, udp: None }
}

/// A small page, as browsers of the time fetched it.
pub fn page() -> Work {
    Work::Page { html: ByteCount(8_000), objects: 8, object: ByteCount(8_000), connections: 6 }
}

/// Memory of the two gateways, bytes.
pub fn memories(topology: &Topology) -> Result<[u64; 2], String> {
    let [a, b] = topology.gateways.as_ref().ok_or("there are no gateways")?;
    let memory = |load: std::io::Result<Load>| load.map(|l| l.memory).map_err(|e| e.to_string());
    Ok([memory(a.load())?, memory(b.load())?])
}

/// A gateway pair over this link.
pub fn build(link: &LinkSetup, seed: u64) -> Result<Topology, String> {
    build_with(link, seed, Pair::default())
}

pub fn build_with(link: &LinkSetup, seed: u64, pair: Pair) -> Result<Topology, String> {
    let gateways = Some(pair);
    let plan = Plan { link: link.clone(), seed, gateways, ..Plan::default() };
    Topology::build(&plan).map_err(|e| e.to_string())
}
