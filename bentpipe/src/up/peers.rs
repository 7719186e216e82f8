//! From the configuration's peers to the relay's.

use std::net::SocketAddr;
use std::sync::Arc;

use link::endpoint::PeerConfig;
use link::keys::PresharedKey;
use link::session::{Facts, Families, LinkConfig, NEARLY_EMPTY, PathConfig, Services, best_packet};
use link::{CarrierName, Remote};
use relay::{Policy, Share, streams_for};
use squeeze::dedup::Limits;
use units::{BitRate, ByteCount, Duration};

use crate::config::{Carrier, LinkSettings, Node, Peer, Queue, Source};
use crate::host::Host;

/// Streams for which the configured memory is enough with a block of 8 kB each way and
/// bookkeeping.
const BYTES_PER_STREAM: u64 = 16 * 1024;

/// Peers that are taken to use their links at once. Of more than so many each is promised a part as
/// if there were no more, and what they take is counted (`link::endpoint::memory`).
const ACTIVE: usize = 64;
/// What a peer may always have of it, however many there are: a stream or two of a fast link.
const FLOOR: ByteCount = ByteCount(64 << 10);

/// The memory for streams that a peer, one of so many, is promised.
fn part(node: &Node, peers: usize) -> ByteCount {
    ByteCount(node.memory.0 / peers.clamp(1, ACTIVE) as u64)
}

/// What the peers of one shard may take together, if that is less than they were promised, and what
/// each has at least.
pub fn shared_memory(node: &Node, peers: usize) -> (Option<ByteCount>, ByteCount) {
    let shared = (peers > ACTIVE).then(|| ByteCount(node.memory.0 / u64::from(node.shards.max(1))));
    let floor = node.memory.0 / peers.max(1) as u64;
    (shared, ByteCount(floor.max(FLOOR.0)))
}

/// History that compressed streams may keep, each way: an eighth of the memory, up to 32 MB,
/// with which 10,000 streams have 3 kB each and a few hundred the most that helps.
fn history(memory: ByteCount, compress: bool) -> ByteCount {
    ByteCount(if compress { (memory.0 / 8).min(32 << 20) } else { 0 })
}

/// The link to `peer`, one of `peers` that share the node's memory.
pub fn link_config(node: &Node, peer: &Peer, peers: usize) -> LinkConfig {
    let memory = part(node, peers);
    let link = &peer.link;
    LinkConfig {
        send_rate: link.send,
        rate_mode: link.rate,
        receive_rate: link.receive,
        rtt: link.delay.times(2),
        mtu: link.mtu,
        packet: best_packet(link.mtu, link.ber),
        queue: queue(link),
        bit_errors: link.ber,
        overhead: overhead(link) + framing(node, peer),
        memory,
        stream_buffer: stream_buffer(peer),
        max_streams: streams_for((memory.0 / BYTES_PER_STREAM).clamp(64, 100_000) as u32),
        headers: link.headers,
        history: history(memory, peer.compress),
        dedup: peer.dedup != Share::Off,
        facts: facts(node, peer),
        classes: peer.traffic.classes.clone(),
    }
}

/// What one of a peer's carriers is.
pub fn path_config(peer: &Peer, carrier: &Carrier) -> PathConfig {
    let link = &carrier.link;
    let at = peer.carriers.iter().position(|c| c.name == carrier.name);
    PathConfig {
        send_rate: link.send,
        rate_mode: link.rate,
        receive_rate: link.receive,
        rtt: link.delay.times(2),
        mtu: link.mtu,
        packet: best_packet(link.mtu, link.ber),
        queue: queue(link),
        bit_errors: link.ber,
        overhead: overhead(link) + framing_at(peer, at.unwrap_or(0)),
        name: carrier_name(carrier),
        priority: carrier.priority,
        keepalive: keepalive(peer, at),
        probe: carrier.probe,
    }
}

/// What the peer is told that the carrier is called.
pub fn carrier_name(carrier: &Carrier) -> CarrierName {
    CarrierName::new(carrier.name.as_bytes()).unwrap_or_default()
}

/// How often something is sent by the carrier in this place. Where a line is raised in place of one
/// that dies, that has to be known also while this node has nothing to say.
fn keepalive(peer: &Peer, at: Option<usize>) -> Option<Duration> {
    let lines = peer.line.as_ref().map_or(&[][..], |line| &line.lines);
    let others = |at: usize| lines.iter().any(|line| line.carrier.is_some_and(|of| of != at));
    let beside = at.filter(|at| others(*at));
    let probe = beside.and_then(|at| peer.carriers[at].probe);
    [peer.keepalive, probe].into_iter().flatten().min()
}

/// A full packet's framing stands for all: small ones then leave a little early.
fn overhead(link: &LinkSettings) -> u16 {
    let mtu = u64::from(link.mtu);
    (link.overhead.on_the_line(mtu) - mtu) as u16
}

/// What a line adds to a packet.
fn framed() -> u16 {
    (dial::framing::max_framed(128) - 128) as u16
}

/// What framing adds to a packet of the peer's first carrier, if that is a modem's.
fn framing(node: &Node, peer: &Peer) -> u16 {
    if may_telephone(node, peer) { framed() } else { framing_at(peer, 0) }
}

/// The same of the carrier in this place.
fn framing_at(peer: &Peer, at: usize) -> u16 {
    let mut lines = peer.line.iter().flat_map(|line| &line.lines);
    let is_modem = lines.any(|line| line.modem.is_some() && line.carrier.unwrap_or(0) == at);
    if is_modem { framed() } else { 0 }
}

/// May the peer call this node by telephone, as far as its link says? No serial line is faster
/// than eight tenths of its bits.
pub fn may_telephone(node: &Node, peer: &Peer) -> bool {
    let fastest = node.telephones.iter().map(|line| u64::from(line.modem.speed)).max();
    let is_called = peer.endpoint.is_none() && peer.carriers.is_empty() && peer.line.is_none();
    let fits = usize::from(peer.link.mtu) <= dial::framing::MAX_PACKET;
    is_called && fits && fastest.is_some_and(|speed| peer.link.send.as_bps() <= speed / 10 * 8)
}

/// Is the peer found again, after a restart, where it was last? Not one whose calls come by
/// modems: nobody is there any more who was, and a session there would leave the line that is paid
/// for empty.
pub fn is_remembered(node: &Node, peer: &Peer) -> bool {
    !may_telephone(node, peer) && !peer.is_at_lines_alone()
}

fn queue(link: &LinkSettings) -> Duration {
    match link.queue {
        None => NEARLY_EMPTY,
        Some(Queue::Time(time)) => time,
        Some(Queue::Bytes(bytes)) => link.send.time_for(bytes),
    }
}

/// What one stream may have buffered: where there are several carriers, enough for the one that
/// needs most.
fn stream_buffer(peer: &Peer) -> Option<ByteCount> {
    let rates = peer.carriers.iter().map(|c| c.link.receive.as_bps()).sum();
    let trip = peer.carriers.iter().map(|c| c.link.delay.times(2)).max();
    let most = match (peer.spread, trip) {
        (true, Some(trip)) => Some(BitRate::from_bps(rates).bytes_in(trip).0 * 4),
        _ => peer.carriers.iter().map(|c| c.link.bandwidth_delay_product().0 * 4).max(),
    };
    peer.stream_buffer.or(most.map(|n| ByteCount(n.max(256 * 1024))))
}

/// What the peer is told of this node's file. Without a TUN device no packet leaves here.
pub fn facts(node: &Node, peer: &Peer) -> Facts {
    let has = |is_v4| peer.routes.iter().any(|prefix| prefix.is_v4() == is_v4);
    let takes = Families { v4: has(true), v6: has(false) };
    let sends = if node.tun.is_some() { takes } else { Families::default() };
    let services = node.services.iter().map(|service| service.name.as_str());
    let services = services.fold(Services::default(), Services::with);
    Facts { takes, sends, end: peer.link.end, tests: true, services }
}

/// Peers that share the node's memory, and those of them that share its room for chunks.
#[derive(Clone, Copy, Debug)]
pub struct Sharers {
    pub memory: usize,
    pub chunks: usize,
}

impl Sharers {
    /// Of a node's peers.
    pub fn of(peers: &[Arc<Peer>]) -> Sharers {
        let chunks = peers.iter().filter(|peer| peer.dedup != Share::Off).count();
        Sharers { memory: peers.len(), chunks }
    }
}

/// What the chunks of one of `peers` may cost, of what the node has for all of them. A half of
/// the memory is for the store; what waits for the disk may be as much again (see
/// [`Limits::memory`]), and so may be what is kept until the peer has it.
pub fn chunk_limits(node: &Node, peers: usize) -> Limits {
    let peers = peers.max(1) as u64;
    let memory = (node.chunks.memory.0 / peers) as usize;
    let disk = node.chunks.disk.0 / peers;
    // Those that the peer's store holds, which may be larger than our part for it: 150 bytes for
    // each, 150 MB at a hub whose terminals have all of them.
    let chunks = ((1 << 20) / peers).clamp(1 << 10, 1 << 18) as usize;
    Limits { memory: memory / 2, disk, sources: memory / 2, assembling: memory / 4, chunks }
}

/// What the peer may do.
pub fn policy(peer: &Peer) -> Policy {
    Policy {
        routes: peer.routes.clone(),
        allow: peer.allow.clone(),
        deny: peer.deny.clone(),
        keep_source: peer.source == Source::Keep,
        rules: peer.traffic.rules.clone(),
        plain_classes: peer.traffic.plain.clone(),
        plain_headers: peer.traffic.plain_headers.clone(),
        dedup: peer.dedup,
        dedup_classes: peer.traffic.dedup.clone(),
        open: peer.open,
        fast_ports: peer.fast_ports.clone(),
        refuse_quic: peer.refuse_quic,
        connects: Some(peer.connects),
    }
}

/// The peer for the endpoint; `stored` is where it was last.
pub fn peer_config(
    node: &Node,
    peer: &Peer,
    peers: usize,
    stored: Option<SocketAddr>,
) -> PeerConfig {
    PeerConfig {
        public_key: peer.public_key,
        preshared_key: peer.preshared_key.clone().unwrap_or(PresharedKey::NONE),
        endpoint: fixed_endpoint(peer).or(stored).map(Remote::from),
        link: link_config(node, peer, peers),
        keepalive: keepalive(peer, Some(0)),
    }
}

/// The configured address, where it is no name, and the peer is not at modems alone.
pub fn fixed_endpoint(peer: &Peer) -> Option<SocketAddr> {
    let endpoint = peer.endpoint.as_ref().filter(|_| !peer.is_at_lines_alone())?;
    match &endpoint.host {
        Host::Ip(ip) => Some(SocketAddr::new(*ip, endpoint.port)),
        Host::Name(_) => None,
    }
}

/// The configured name and port, where it is one.
pub fn named_endpoint(peer: &Peer) -> Option<(&str, u16)> {
    let endpoint = peer.endpoint.as_ref()?;
    match &endpoint.host {
        Host::Ip(_) => None,
        Host::Name(name) => Some((name, endpoint.port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::path::Path;

    /// Its calls would be paid for and carry nothing, while the session is where it was.
    #[test]
    fn who_calls_by_a_modem_is_not_looked_for_where_he_was() {
        let key = link::keys::PrivateKey::generate([7; 32]);
        let peer = link::keys::PrivateKey::generate([9; 32]);
        let peer = peer.public();
        let is_remembered = |rate: &str, more: &str| {
            let text = format!(
                "[node]\nprivate_key = \"{}\"\n[[peer]]\npublic_key = \"{peer}\"\n\
                 link = {{ send = \"{rate}\", receive = \"{rate}\", delay = \"1s\", mtu = 500 }}\n\
                 {more}",
                key.to_base64()
            );
            let config = Config::parse(&text, Path::new("/")).unwrap_or_else(|e| panic!("{e:?}"));
            super::is_remembered(&config.node, &config.peers[0])
        };
        let telephone = "[[telephone]]\nserial = \"/dev/ttyS0\"\nspeed = 115200\n";
        let answering = "[peer.line]\nserial = \"/dev/ttyS0\"\nanswer = true\n";
        assert!(is_remembered("9600bit", ""));
        assert!(!is_remembered("9600bit", telephone));
        assert!(is_remembered("2Mbit", telephone), "faster than a modem");
        assert!(!is_remembered("9600bit", answering));
        let carriers = "[[peer.carrier]]\nname = \"vsat\"\n[[peer.carrier]]\nname = \"modem\"\n";
        let beside = format!("{answering}carrier = \"modem\"\n{carriers}");
        assert!(is_remembered("9600bit", &beside), "it may be at the other carrier");
        let two = "[[peer.line]]\nserial = \"/dev/ttyS0\"\nanswer = true\ncarrier = \"vsat\"\n\
                   [[peer.line]]\nserial = \"/dev/ttyS1\"\nanswer = true\ncarrier = \"modem\"\n";
        assert!(!is_remembered("9600bit", &format!("{two}{carriers}")), "two modems");
    }

    #[test]
    fn the_modems_queue_is_used_as_configured() {
        let key = link::keys::PrivateKey::generate([7; 32]);
        let peer = link::keys::PrivateKey::generate([9; 32]);
        let peer = peer.public();
        let queue_of = |more: &str| {
            let text = format!(
                "[node]\nprivate_key = \"{}\"\n[[peer]]\npublic_key = \"{peer}\"\n\
                 link = {{ send = \"1Mbit\", receive = \"8Mbit\", delay = \"300ms\"{more} }}\n",
                key.to_base64()
            );
            let config = Config::parse(&text, Path::new("/")).unwrap_or_else(|_| panic!("{text}"));
            link_config(&config.node, &config.peers[0], 1).queue
        };
        assert_eq!(queue_of(""), NEARLY_EMPTY);
        assert_eq!(queue_of(", queue = \"80ms\""), Duration::from_millis(80));
        assert_eq!(queue_of(", queue = \"64kB\""), Duration::from_millis(512));
    }
}
