//! What `bentpipe status` shows of a shard and its peers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use link::session::{PathHealth, RateMode, RateStatus};
use relay::{ByHost, ChunkCounts, CompressionCounts, HostTraffic, LinkCompression, StreamCounts};
use units::{Duration, Instant};

use super::Shard;
use super::telling::rekey_state;
use crate::admin::{
    CompressedBytes, Compression, DatagramCounts, Dead, Deduplication, Direction, HandshakeCounts,
    HostAccount, HostCompression, LinkStatus, RateReport, RekeyState, Stranger, StreamCompression,
    Way,
};
use crate::config::Traffic;
use crate::up::disagreements;
use crate::up::losses::{Fates, is_up};
use crate::up::peer_table::KnownPeer;

/// What one shard tells of itself and its peers.
#[derive(Default)]
pub struct Part {
    pub buffered: u64,
    pub dropped: BTreeMap<String, u64>,
    pub strangers: Vec<Stranger>,
    pub links: Vec<LinkStatus>,
}

impl Part {
    /// Adds what another shard tells.
    pub fn add(&mut self, other: Part) {
        self.buffered += other.buffered;
        for (why, n) in other.dropped {
            *self.dropped.entry(why).or_default() += n;
        }
        self.strangers.extend(other.strangers);
        self.links.extend(other.links);
    }
}

impl Shard {
    /// This shard's part of the status.
    pub fn part(&self, now: Instant) -> Part {
        let buffered = self
            .peers
            .iter()
            .filter_map(|p| self.relay.endpoint.session(p.id))
            .map(|s| s.memory_used());
        let relay = self.relay.stats();
        let mut dropped: BTreeMap<String, u64> =
            self.relay.endpoint.drops().iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        for (name, count) in [
            ("destination denied", relay.denied),
            ("foreign datagram", relay.foreign),
            ("datagram denied", relay.datagrams_denied),
            ("flow forgotten", relay.flows_forgotten),
            ("family not taken there", relay.not_taken_there),
            ("quic refused", relay.quic_refused),
            ("unroutable packet", relay.unroutable),
            ("datagram queue full", relay.overflow),
            ("no place for a connection", relay.full),
            ("connection gave way", relay.displaced),
            ("budget used up", relay.over_budget),
            ("connection over budget", relay.stopped),
            ("opening gave way", relay.syns_dropped),
            ("between two sockets", relay.between_sockets),
        ] {
            if count > 0 {
                dropped.insert(name.to_owned(), count);
            }
        }
        let links = self.peers.iter().map(|p| self.link_status(now, p)).collect();
        Part { buffered: buffered.sum(), dropped, strangers: self.strangers(now), links }
    }

    fn link_status(&self, now: Instant, peer: &KnownPeer) -> LinkStatus {
        let endpoint = &self.relay.endpoint;
        let stats = endpoint.peer_stats(peer.id);
        // Nothing was to do with it yet, if there is none.
        let session = endpoint.session(peer.id);
        let s = endpoint.session_stats(peer.id);
        let squeezed = self.relay.compression(peer.id);
        // The session counts a stream's bytes as they cross: after compression.
        let all = &squeezed.all;
        let sent = (s.stream_bytes_in + all.sent).saturating_sub(all.sent_as);
        let received = (s.stream_bytes_out + all.received).saturating_sub(all.received_as);
        let (rate_out, rate_in) = peer.meter.rates(now, self.sampling.since(), &stats);
        let health = endpoint.health(peer.id);
        let state = self.link_state(now, peer);
        // Nothing is asked of a link whose line is down, and nothing can fail.
        let rests = state.rests();
        let dead =
            |direction, since| Some(Dead { direction, for_ms: now.since(since).as_millis() });
        let dead = match health {
            PathHealth::Alive => None,
            PathHealth::NothingReceived { since } => dead(Way::Receive, since),
            PathHealth::TransmitDead { since } => dead(Way::Transmit, since),
            PathHealth::NoAcks { since } => dead(Way::Reports, since),
        };
        LinkStatus {
            peer: peer.config.name.clone(),
            public_key: peer.config.public_key.to_string(),
            shard: self.number as u64,
            state,
            failing: self.failing(now, peer.id).filter(|_| !rests),
            dead: dead.filter(|_| !rests),
            rekey: match rests {
                true => RekeyState::InTime,
                false => rekey_state(endpoint.rekey(now, peer.id)),
            },
            endpoint: endpoint.peer_endpoint(peer.id).map(|a| a.to_string()),
            twins: peer.twins.seen(now).map(|both| both.map(|address| address.to_string())),
            heard_ms: stats.heard.map(|at| now.since(at).as_millis()),
            send: Direction {
                configured_bps: peer.config.link.send.as_bps(),
                measured_bps: rate_out,
                loss_ppm: peer.losses.ppm(Fates::of(endpoint, peer.id), is_up(endpoint, peer.id)),
                packets: stats.packets_out,
                lan_bytes: sent + s.datagram_bytes_in,
                link_bytes: stats.bytes_out,
            },
            receive: Direction {
                configured_bps: peer.config.link.receive.as_bps(),
                measured_bps: rate_in,
                loss_ppm: 0,
                packets: stats.packets_in,
                lan_bytes: received + s.datagram_bytes_out,
                link_bytes: stats.bytes_in,
            },
            rate: rate_report(&session.map_or(as_configured(peer), |s| s.rate_status())),
            rtt_us: session.map(|s| s.rtt().as_micros()),
            path_mtu: session.map(|s| u64::from(s.path_mtu())),
            paths: self.path_reports(now, peer),
            line: self.line_report(now, peer.id),
            books_unwritten: self.books_unwritten(peer.id),
            streams_open: session.map_or(0, |s| s.streams() as u64),
            streams_total: s.streams_total,
            repaired_packets: s.recovered + s.peer_recovered,
            retransmitted_packets: s.packets_lost,
            retransmitted_bytes: s.retransmitted,
            compression: compression(&squeezed, &peer.config.traffic),
            dedup: squeezed.chunks.map(deduplication).unwrap_or_default(),
            datagrams: DatagramCounts {
                sent: s.datagrams_in,
                received: s.datagrams_out,
                dropped: s.datagrams_dropped,
                bytes_saved_sent: s.datagram_bytes_saved_out,
                bytes_saved_received: s.datagram_bytes_saved_in,
                cpu_us: s.datagram_cpu.as_micros(),
            },
            hosts: self.relay.host_traffic(peer.id).as_ref().map(host_accounts).unwrap_or_default(),
            disagreements: session
                .map(|s| disagreements::sentences(&s.disagreements()))
                .unwrap_or_default(),
            handshakes: HandshakeCounts {
                completed: stats.handshakes,
                failed: stats.handshakes_failed,
            },
            dropped: [
                ("datagram".to_owned(), s.datagrams_dropped),
                ("violation".to_owned(), s.violations - s.contradictions),
                ("contradicting repair".to_owned(), s.contradictions),
                ("repair too dear".to_owned(), s.too_dear),
                ("over its part".to_owned(), stats.over_its_part),
                ("connection refused".to_owned(), self.relay.refused_connects(peer.id)),
            ]
            .into_iter()
            .chain(squeezed.bad.iter().map(|(why, n)| (why.to_string(), *n)))
            .chain([("item that means nothing".to_owned(), squeezed.bad_items)])
            .chain(squeezed.chunks.map(|c| ("message about chunks".to_owned(), c.violations)))
            .filter(|(_, n)| *n > 0)
            .collect(),
        }
    }
}

/// Hosts and streams that are told one by one.
const MOST_TOLD: usize = 32;

fn compression(squeezed: &LinkCompression, traffic: &Traffic) -> Compression {
    let bytes = |s: &CompressionCounts| CompressedBytes {
        sent: s.sent,
        sent_deduplicated: s.sent_items,
        sent_as: s.sent_as,
        received: s.received,
        received_deduplicated: s.received_items,
        received_as: s.received_as,
        cpu_us: s.cpu.as_micros(),
    };
    let name = |host: Option<IpAddr>| host.map_or("other".to_owned(), |h| h.to_string());
    let class = |class| traffic.class_name(class).to_owned();
    let mut hosts: Vec<_> = squeezed.hosts.iter().collect();
    hosts.sort_by_key(|(_, s)| Reverse(s.content()));
    let mut streams: Vec<_> = squeezed.streams.iter().collect();
    streams.sort_by_key(|s| Reverse(s.counts.content()));
    let host = |(host, s): (&Option<IpAddr>, &CompressionCounts)| HostCompression {
        host: name(*host),
        bytes: bytes(s),
    };
    let stream = |s: &StreamCounts| StreamCompression {
        host: name(s.host),
        port: s.port,
        class: class(s.class),
        bytes: bytes(&s.counts),
    };
    Compression {
        total: bytes(&squeezed.all),
        classes: squeezed.classes.iter().map(|(c, s)| (class(*c), bytes(s))).collect(),
        hosts: hosts.into_iter().take(MOST_TOLD).map(host).collect(),
        streams: streams.into_iter().take(MOST_TOLD).map(stream).collect(),
    }
}

/// Hosts whose traffic is told one by one.
const MOST_ACCOUNTS: usize = 128;

fn host_accounts(by_host: &ByHost) -> Vec<HostAccount> {
    let mut all: Vec<_> = by_host.iter().filter_map(|(host, t)| Some(((*host)?, *t))).collect();
    all.sort_by_key(|(_, traffic)| Reverse(traffic.bytes()));
    let mut other = by_host.get(&None).copied().unwrap_or_default();
    for (_, traffic) in all.drain(MOST_ACCOUNTS.min(all.len())..) {
        other += traffic;
    }
    let mut told: Vec<_> = all.into_iter().map(|(h, t)| account(h.to_string(), &t)).collect();
    if other.bytes() > 0 {
        told.push(account("other".to_owned(), &other));
    }
    told
}

fn account(host: String, traffic: &HostTraffic) -> HostAccount {
    HostAccount {
        host,
        stream_bytes_sent: traffic.streams.sent,
        stream_bytes_received: traffic.streams.received,
        packet_bytes_sent: traffic.packets.sent,
        packet_bytes_received: traffic.packets.received,
        packets_sent: traffic.packet_count.sent,
        packets_received: traffic.packet_count.received,
    }
}

fn deduplication(chunks: ChunkCounts) -> Deduplication {
    Deduplication {
        in_use: chunks.in_use,
        chunks: chunks.held,
        memory_bytes: chunks.memory,
        disk_bytes: chunks.disk,
        referred: chunks.referred,
        wanted: chunks.wanted,
        gone: chunks.gone,
        quarantined_files: chunks.quarantined,
    }
}

/// The rate to a peer that nothing was to do with yet.
fn as_configured(peer: &KnownPeer) -> RateStatus {
    let (mode, rate) = (peer.config.link.rate, peer.config.link.send);
    let (delivery, queueing) = (rate, Duration::ZERO);
    RateStatus { mode, cap: rate, rate, capacity: rate, delivery, queueing }
}

fn rate_report(rate: &RateStatus) -> RateReport {
    let mode = match rate.mode {
        RateMode::Fixed => "fixed",
        RateMode::Reported => "reported",
        RateMode::Learned => "learned",
    };
    RateReport {
        mode: mode.to_owned(),
        current_bps: rate.rate.as_bps(),
        limit_bps: rate.cap.as_bps(),
        capacity_bps: rate.capacity.as_bps(),
        delivery_bps: rate.delivery.as_bps(),
        queueing_us: rate.queueing.as_micros(),
    }
}
