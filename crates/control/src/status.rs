//! What a gateway says of itself and its links. Fields are only ever added; names carry their
//! units.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Failing, PathReport, ServiceStatus, Stranger, TelephoneReport};

/// Everything an operator may want to know about a running gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// This node.
    pub node: NodeStatus,
    /// One entry per peer, in the order of the configuration.
    pub links: Vec<LinkStatus>,
    /// Programs that the gateway runs, in the order of the configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceStatus>,
    /// Telephone lines that answer for all peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub telephones: Vec<TelephoneReport>,
    /// Links without a gateway at their far end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub one_sided: Vec<OneSidedStatus>,
}

/// A link without a gateway at its far end (`mode = "split"`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OneSidedStatus {
    /// What people call it.
    pub peer: String,
    /// The interface towards it.
    pub device: String,
    /// The prefixes beyond it.
    pub routes: Vec<String>,
    /// The congestion control of its connections; empty for the kernel's own.
    pub congestion: String,
    /// Connections that are split now.
    pub connections_open: u64,
    /// Connections since the start.
    pub connections_total: u64,
}

/// The node itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Of the program.
    pub version: String,
    /// In base64.
    pub public_key: String,
    /// The configuration file, as an absolute path.
    pub file: String,
    /// The number of its process.
    pub pid: u32,
    /// It was told to end, and waits for open connections.
    pub ending: bool,
    /// Since the start.
    pub uptime_ms: u64,
    /// Memory of the process (resident set).
    pub memory_bytes: u64,
    /// Bytes that wait in buffers of all links and flows.
    pub buffered_bytes: u64,
    /// The configured limit of `buffered_bytes`.
    pub buffer_limit_bytes: u64,
    /// Where peers reach it.
    pub listen: String,
    /// The TUN device, if there is one.
    pub tun: Option<String>,
    /// Interfaces whose TCP is split.
    pub lan: Vec<String>,
    /// Is this node's own TCP split, too?
    #[serde(default)]
    pub own: bool,
    /// Where the explicit proxy listens.
    pub proxy: Option<String>,
    /// Why rules and routes are not as the file and the peers want them. What stood before
    /// is in force, and it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Threads that have peers each.
    pub shards: u64,
    /// Nodes that called lately and are no peers, or call somebody else; 16 at most.
    pub strangers: Vec<Stranger>,
    /// Packets that belong to no link, by reason.
    pub dropped: BTreeMap<String, u64>,
}

/// Where a link stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// No session.
    #[default]
    Down,
    /// The handshake is under way.
    Rising,
    /// The peer ended the session in order, and is not called: it calls when it is back.
    Departed,
    /// The peer answers.
    Up,
    /// The peer has not answered, or not heard, for a while; its streams wait.
    Fading,
    /// Its line is down, and is raised when somebody waits for it.
    Resting,
    /// Its line is down by `link down`, and is raised for nothing.
    OrderedDown,
    /// Its line was to be raised, and that came to nothing.
    LineFailed,
    /// One that this program does not know.
    #[serde(other)]
    Unknown,
}

impl LinkState {
    /// The state in a word or two.
    pub fn words(self) -> &'static str {
        match self {
            LinkState::Down => "down",
            LinkState::Rising => "rising",
            LinkState::Departed => "departed",
            LinkState::Up => "up",
            LinkState::Fading => "fading",
            LinkState::Resting => "resting",
            LinkState::OrderedDown => "ordered down",
            LinkState::LineFailed => "line failed",
            LinkState::Unknown => "unknown",
        }
    }

    /// Is its line down as it is wanted: nobody needs it, or the operator said so?
    pub fn rests(self) -> bool {
        matches!(self, LinkState::Resting | LinkState::OrderedDown)
    }
}

/// Which way of a link is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From this node: the peer is heard, and confirms nothing.
    Transmit,
    /// To this node: nothing is received, though something is waited for. Whether the peer
    /// hears cannot be known then.
    Receive,
    /// From this node: the peer is heard, and sends no reports at all.
    Reports,
}

/// A direction that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dead {
    /// Which.
    pub direction: Way,
    /// For how long: since the last packet came, or since that left which is not confirmed.
    pub for_ms: u64,
}

/// Whether a link's keys are replaced in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RekeyState {
    /// They are, or none are needed.
    #[default]
    InTime,
    /// Data passes, and no handshake has succeeded for long after it was due.
    Overdue,
    /// They were worn out and erased; nothing passes until a handshake succeeds.
    Erased,
}

/// One link and the peer behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkStatus {
    /// The peer's name.
    pub peer: String,
    /// The peer's key, in base64.
    pub public_key: String,
    /// The number, from 0, of the shard that has the peer.
    pub shard: u64,
    /// Where the link stands.
    pub state: LinkState,
    /// Why there is no session, once handshakes have failed for ten seconds.
    pub failing: Option<Failing>,
    /// The addresses of two nodes that seem to use this peer's key: each ends the other's session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub twins: Option<[String; 2]>,
    /// The direction that is dead, if one is.
    pub dead: Option<Dead>,
    /// Whether its keys are replaced in time.
    pub rekey: RekeyState,
    /// The address in use.
    pub endpoint: Option<String>,
    /// Since the last authenticated packet.
    pub heard_ms: Option<u64>,
    /// This node to the peer.
    pub send: Direction,
    /// The peer to this node.
    pub receive: Direction,
    /// What sets the sending rate.
    pub rate: RateReport,
    /// The latest estimate.
    pub rtt_us: Option<u64>,
    /// The longest IP packet that is sent to the peer now, in bytes: what the configuration
    /// allows, or what the path was found to take.
    pub path_mtu: Option<u64>,
    /// The paths to the peer, where there are several or the file names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathReport>,
    /// Its line, where it is not always up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<crate::LineReport>,
    /// Why the books of what it costs cannot be written to the disk: they are kept in memory, and
    /// written as soon as they can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub books_unwritten: Option<String>,
    /// Streams that are open.
    pub streams_open: u64,
    /// Streams since the start.
    pub streams_total: u64,
    /// Packets of both directions that were lost and came back by repair.
    pub repaired_packets: u64,
    /// Packets whose frames were sent again.
    pub retransmitted_packets: u64,
    /// Stream bytes that were sent again.
    pub retransmitted_bytes: u64,
    /// Bytes of compressed streams.
    pub compression: Compression,
    /// What crossed before and does not again.
    pub dedup: Deduplication,
    /// IP packets that were not split.
    pub datagrams: DatagramCounts,
    /// Traffic of hosts since the program started, of all kinds; those with the most bytes
    /// first, 128 at most. What is not known by an address, and what hosts beyond these had, is
    /// told together as `other`.
    pub hosts: Vec<HostAccount>,
    /// What the peer's file and this node's cannot both be right about, in sentences.
    pub disagreements: Vec<String>,
    /// Handshakes.
    pub handshakes: HandshakeCounts,
    /// What arrived from the peer's address, or was to go there, and was dropped, by
    /// reason.
    pub dropped: BTreeMap<String, u64>,
}

/// One direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Direction {
    /// The rate of the configuration.
    pub configured_bps: u64,
    /// The rate of link packets over the last seconds.
    pub measured_bps: u64,
    /// Packets lost per million, over the last minute in which the link was up (more on a quiet
    /// one): what an outage swallowed is not in it. Only of what this node sends.
    pub loss_ppm: u64,
    /// Link packets.
    pub packets: u64,
    /// Bytes as the hosts see them: streams and datagrams.
    pub lan_bytes: u64,
    /// Bytes of link packets, headers of UDP and IP included.
    pub link_bytes: u64,
}

/// What sets the sending rate of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateReport {
    /// How it is known: `fixed`, `reported` or `learned`.
    pub mode: String,
    /// The rate in force.
    pub current_bps: u64,
    /// The most that it may be: configured, or reported by the modem.
    pub limit_bps: u64,
    /// What the link is known to carry, at most the limit.
    pub capacity_bps: u64,
    /// What the peer received lately.
    pub delivery_bps: u64,
    /// How long packets queue on the way, as far as it is not jitter or the way itself.
    pub queueing_us: u64,
}

/// What compression did to the bytes of streams since the program started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Compression {
    /// All streams, open and over.
    pub total: CompressedBytes,
    /// By class, under its name.
    pub classes: BTreeMap<String, CompressedBytes>,
    /// By client, those with the most bytes first, 32 at most. Clients that are not known
    /// by an address, and the least of very many, are told together as `other`.
    pub hosts: Vec<HostCompression>,
    /// Open streams, those with the most bytes first, 32 at most.
    pub streams: Vec<StreamCompression>,
}

/// Bytes before and after compression, and its price.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompressedBytes {
    /// Bytes that hosts here sent.
    pub sent: u64,
    /// What deduplication left of them.
    pub sent_deduplicated: u64,
    /// What they became.
    pub sent_as: u64,
    /// Bytes that hosts here took.
    pub received: u64,
    /// What deduplication had left of them.
    pub received_deduplicated: u64,
    /// What they came as.
    pub received_as: u64,
    /// Processor time for both; what deduplication took of it by its bytes, 2 ns each.
    pub cpu_us: u64,
}

/// Chunks that are kept so that they need not cross again, and what became of them since the
/// program started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Deduplication {
    /// Both nodes deduplicate the streams of this session.
    pub in_use: bool,
    /// The peer's chunks that are held here.
    pub chunks: u64,
    /// What they take in memory.
    pub memory_bytes: u64,
    /// What they take on disk.
    pub disk_bytes: u64,
    /// Chunks that were referred to in place of being sent.
    pub referred: u64,
    /// Chunks that the peer referred to and that were not here: they were asked for.
    pub wanted: u64,
    /// Chunks that the peer was told are not held here, or no more.
    pub gone: u64,
    /// Files that were damaged and are put aside.
    pub quarantined_files: u64,
}

/// The bytes of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostCompression {
    /// The client's address, or `other`.
    pub host: String,
    /// Its bytes.
    #[serde(flatten)]
    pub bytes: CompressedBytes,
}

/// The bytes of one open stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamCompression {
    /// The client's address, or `other`.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// The class's name.
    pub class: String,
    /// Its bytes.
    #[serde(flatten)]
    pub bytes: CompressedBytes,
}

/// IP packets that were not split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatagramCounts {
    /// To the peer.
    pub sent: u64,
    /// From the peer.
    pub received: u64,
    /// That found their queue full, or could not be put together.
    pub dropped: u64,
    /// Bytes of them that compression kept off the link, sent and received.
    pub bytes_saved_sent: u64,
    /// See `bytes_saved_sent`.
    pub bytes_saved_received: u64,
    /// Processor time that compressing and decompressing their payloads took.
    pub cpu_us: u64,
}

/// The traffic of one host with a peer, in bytes as hosts see them. A host is known by the
/// client's address for split connections. For packets it is the host behind the peer, or, where
/// the peer has a default route, the host on this side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostAccount {
    /// The host's address, or `other`.
    pub host: String,
    /// Content of split connections, to the peer and from it.
    pub stream_bytes_sent: u64,
    /// See `stream_bytes_sent`.
    pub stream_bytes_received: u64,
    /// IP packets that are not split, with their headers.
    pub packet_bytes_sent: u64,
    /// See `packet_bytes_sent`.
    pub packet_bytes_received: u64,
    /// How many these are.
    pub packets_sent: u64,
    /// See `packets_sent`.
    pub packets_received: u64,
}

/// Handshakes with a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandshakeCounts {
    /// That ended in a session.
    pub completed: u64,
    /// Initiations that got no good answer in time, and the peer's that were answered in
    /// vain.
    pub failed: u64,
}
