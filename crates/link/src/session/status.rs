//! What a session and its paths tell of themselves: counts, and how each path does.

use std::ops::AddAssign;

use units::{Duration, Instant};

use super::health::PathHealth;
use crate::path::{CarrierName, PathId, Remote};
use crate::rate::RateStatus;

/// Counts for `status`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionStats {
    /// Stream bytes taken from, and given to, the user of the link.
    pub stream_bytes_in: u64,
    /// See `stream_bytes_in`.
    pub stream_bytes_out: u64,
    /// Stream bytes sent again.
    pub retransmitted: u64,
    /// Datagrams taken, given, dropped.
    pub datagrams_in: u64,
    /// See `datagrams_in`.
    pub datagrams_out: u64,
    /// See `datagrams_in`.
    pub datagrams_dropped: u64,
    /// Bytes of the datagrams taken and given.
    pub datagram_bytes_in: u64,
    /// See `datagram_bytes_in`.
    pub datagram_bytes_out: u64,
    /// Bytes of datagrams that compression kept off the link, out and in: as often as
    /// they were sent.
    pub datagram_bytes_saved_out: u64,
    /// See `datagram_bytes_saved_out`.
    pub datagram_bytes_saved_in: u64,
    /// The processor's time that compressing and decompressing their payloads took; zero
    /// without a stopwatch.
    pub datagram_cpu: Duration,
    /// Packets that the peer has, that were deemed lost, and of those that came late.
    pub packets_arrived: u64,
    /// See `packets_arrived`.
    pub packets_lost: u64,
    /// See `packets_arrived`.
    pub packets_late: u64,
    /// Authentic packets that broke the protocol, and credit that was overrun.
    pub violations: u64,
    /// Of these, REPAIR packets that contradicted what had arrived or come back: the decoder was
    /// emptied.
    pub contradictions: u64,
    /// REPAIR packets of the peer that were not worked out: they cost more than their bytes earn.
    pub too_dear: u64,
    /// Streams opened by either side so far.
    pub streams_total: u64,
    /// Packets that came back by repair, here and at the peer; repair packets sent.
    pub recovered: u64,
    /// See `recovered`.
    pub peer_recovered: u64,
    /// See `recovered`.
    pub repairs_sent: u64,
    /// Reports written.
    pub reports: u64,
    /// Probes after silence.
    pub probes: u64,
}

impl AddAssign for SessionStats {
    fn add_assign(&mut self, more: SessionStats) {
        // Named one by one, so that none can be forgotten.
        let SessionStats {
            stream_bytes_in,
            stream_bytes_out,
            retransmitted,
            datagrams_in,
            datagrams_out,
            datagrams_dropped,
            datagram_bytes_in,
            datagram_bytes_out,
            datagram_bytes_saved_out,
            datagram_bytes_saved_in,
            datagram_cpu,
            packets_arrived,
            packets_lost,
            packets_late,
            violations,
            contradictions,
            too_dear,
            streams_total,
            recovered,
            peer_recovered,
            repairs_sent,
            reports,
            probes,
        } = more;
        self.datagram_cpu += datagram_cpu;
        for (sum, more) in [
            (&mut self.stream_bytes_in, stream_bytes_in),
            (&mut self.stream_bytes_out, stream_bytes_out),
            (&mut self.retransmitted, retransmitted),
            (&mut self.datagrams_in, datagrams_in),
            (&mut self.datagrams_out, datagrams_out),
            (&mut self.datagrams_dropped, datagrams_dropped),
            (&mut self.datagram_bytes_in, datagram_bytes_in),
            (&mut self.datagram_bytes_out, datagram_bytes_out),
            (&mut self.datagram_bytes_saved_out, datagram_bytes_saved_out),
            (&mut self.datagram_bytes_saved_in, datagram_bytes_saved_in),
            (&mut self.packets_arrived, packets_arrived),
            (&mut self.packets_lost, packets_lost),
            (&mut self.packets_late, packets_late),
            (&mut self.violations, violations),
            (&mut self.contradictions, contradictions),
            (&mut self.too_dear, too_dear),
            (&mut self.streams_total, streams_total),
            (&mut self.recovered, recovered),
            (&mut self.peer_recovered, peer_recovered),
            (&mut self.repairs_sent, repairs_sent),
            (&mut self.reports, reports),
            (&mut self.probes, probes),
        ] {
            *sum += more;
        }
    }
}

/// What crossed a path, for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathTraffic {
    /// Packets and bytes (IP length) sent.
    pub packets_out: u64,
    /// See `packets_out`.
    pub bytes_out: u64,
    /// Authentic packets that came.
    pub packets_in: u64,
    /// Bytes of these, and of the messages of handshakes.
    pub bytes_in: u64,
    /// When the last of these came.
    pub heard: Option<Instant>,
}

/// What is known of a path.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// Which one.
    pub id: PathId,
    /// Where the peer is on it, if that is known.
    pub remote: Option<Remote>,
    /// It carries everything, but what classes whose carriers are named send.
    pub is_active: bool,
    /// What the node that opened it calls its carrier, as far as this node knows.
    pub name: CarrierName,
    /// Classes whose content goes by it, a bit for each; none where there are no classes.
    pub classes: u32,
    /// This node sends on it.
    pub is_up: bool,
    /// So does the peer, as far as it has told.
    pub is_peer_up: bool,
    /// Packets cross it both ways, as far as is known.
    pub is_alive: bool,
    /// Which directions are alive.
    pub health: PathHealth,
    /// What it carries.
    pub rate: RateStatus,
    /// Its round trip, smoothed.
    pub rtt: Duration,
    /// The largest IP packet that is sent.
    pub mtu: u16,
    /// Packets that arrived, and that were lost.
    pub arrived: u64,
    /// See `arrived`.
    pub lost: u64,
    /// What crossed it in all sessions.
    pub traffic: PathTraffic,
    /// It works and is left alone until then, because it failed.
    pub held_until: Option<Instant>,
    /// What speaks against it.
    pub fault: Option<Why>,
}

/// Why a path carries everything, or does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// It is the first that was alive, or preferred and has held.
    #[default]
    Preferred,
    /// A command of either node chose it, or chose no other.
    Chosen,
    /// Of the other one: nothing is received on it.
    NothingReceived,
    /// The peer hears nothing on it, or reports nothing.
    TransmitDead,
    /// The peer has told that it hears nothing on it.
    Missed,
    /// This node put it down.
    Down,
    /// The peer put it down.
    PeerDown,
    /// What it goes by has no link.
    NoLink,
    /// It failed lately and has not held for long enough.
    Held,
    /// It loses so much, or carries so little, that another carries more.
    Poor,
}
