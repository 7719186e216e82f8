//! Tells the first shard what it is to hear from this one, beside notes: events for watchers and
//! for the log of outages, and what hosts had.

use control::{Event, Failing, Flow, RekeyState, UsageBytes, Way};
use link::PeerId;
use link::endpoint::{LinkEvent, Rekey};
use relay::{FlowNews, HostTraffic, Target};
use units::{Duration, Instant};

use super::tidings::PeerUsage;
use super::{Shard, paths};
use crate::up::peer_table::KnownPeer;

/// How often usage is told: after a crash so much of it is lost, and what writing takes.
pub const USAGE: Duration = Duration::from_secs(20);

impl Shard {
    /// Somebody watches, or nobody does any more; split connections, too.
    pub fn set_watched(&mut self, any: bool, flows: bool) {
        if any && !self.watched {
            self.sample_all(); // Rates that changed while nobody watched are told.
        }
        self.watched = any;
        self.relay.tell_flows(flows);
    }

    /// Tells what happened to a link.
    pub(super) fn tell_link(&mut self, now: Instant, id: PeerId, event: LinkEvent) {
        let silent = |direction, since| {
            Some(Event::LinkSilent { direction, for_ms: now.since(since).as_millis() })
        };
        let told = match event {
            LinkEvent::Up { resumed: true, .. } => Some(Event::Rekey { state: RekeyState::InTime }),
            LinkEvent::Up { cipher, rtt, .. } => {
                let address = self.relay.endpoint.peer_endpoint(id).map(|a| a.to_string());
                let (cipher, rtt_us) = (cipher.name().to_owned(), rtt.as_micros());
                Some(Event::LinkUp { address, cipher, rtt_us, anew: false })
            }
            LinkEvent::Moved(_, to) => Some(Event::LinkMoved { address: to.to_string() }),
            LinkEvent::Using(path, why) => self.peers.with_id(id).map(|peer| {
                let (told, cause) =
                    (self.relay.endpoint.path_name(id, path), self.cause_of(id, path, why));
                Event::Path { path: paths::name_of(peer, path, told), cause }
            }),
            // The log and the status tell it.
            LinkEvent::OverItsPart => None,
            LinkEvent::NothingReceived(since) => silent(Way::Receive, since),
            LinkEvent::TransmitDead(since) => silent(Way::Transmit, since),
            LinkEvent::NoAcks(since) => silent(Way::Reports, since),
            LinkEvent::Back => Some(Event::LinkBack),
            LinkEvent::Closed => Some(Event::LinkDown { cause: control::Cause::Closed }),
            LinkEvent::Failing(_) => {
                let failing = self.failing(now, id).map(Box::<Failing>::new);
                failing.map(|failing| Event::LinkFailing { failing })
            }
            LinkEvent::Rekey(rekey) => Some(Event::Rekey { state: rekey_state(rekey) }),
        };
        let peer = self.peers.with_id_mut(id);
        let (Some(peer), Some(mut told)) = (peer, told) else { return };
        match &mut told {
            Event::LinkUp { anew, .. } => *anew = std::mem::replace(&mut peer.up, true),
            Event::LinkDown { .. } => peer.up = false,
            _ => {}
        }
        self.tidings.push(peer, told);
    }

    /// Tells of flows, while somebody watches.
    pub(super) fn tell_flows(&mut self, now: Instant) {
        while let Some(news) = self.relay.poll_flow_news() {
            let Some(peer) = self.peers.with_id(news.peer) else { continue };
            let flow = told_flow(now, &news, peer, self.number);
            self.tidings.push(
                peer,
                match news.closed {
                    true => Event::FlowClosed { flow },
                    false => Event::FlowOpened { flow },
                },
            );
        }
        self.tidings.missed += self.relay.take_missed_flow_news();
    }

    /// Tells of rates that have changed enough, while somebody watches. Called with each sample
    /// of these peers' counters.
    pub(super) fn tell_rates(&mut self, peers: impl Iterator<Item = PeerId>) {
        if !self.watched {
            return;
        }
        for id in peers {
            let Some(session) = self.relay.endpoint.session(id) else { continue };
            let Some(peer) = self.peers.with_id_mut(id) else { continue };
            let rate = session.rate_status();
            let [current_bps, limit_bps, capacity_bps] =
                [rate.rate, rate.cap, rate.capacity].map(|rate| rate.as_bps());
            let (before, limit) = peer.told_rate;
            if current_bps.abs_diff(before).saturating_mul(20) >= before.max(1)
                || limit_bps != limit
            {
                peer.told_rate = (current_bps, limit_bps);
                self.tidings.push(peer, Event::Rate { current_bps, limit_bps, capacity_bps });
            }
        }
    }

    /// When usage is to be told.
    pub(super) fn usage_timeout(&self) -> Option<Instant> {
        Some(self.sampling.usage_at + USAGE)
    }

    /// Tells what hosts had since the last time: of those that had something. `now` may be the
    /// end of all time, to have what is left.
    pub fn tell_usage(&mut self, now: Instant) {
        if now.since(self.sampling.usage_at) < USAGE {
            return;
        }
        if now != Instant::FAR_FUTURE {
            self.sampling.usage_at = now;
        }
        if !self.tidings.usage.is_empty() && now != Instant::FAR_FUTURE {
            return; // The first shard has not heard the last yet.
        }
        self.follow_changes();
        let mut news = self.relay.take_usage();
        let mut used = std::mem::take(&mut self.sampling.used);
        used.extend(news.keys());
        for id in used {
            let Some(peer) = self.peers.with_id_mut(id) else { continue };
            let hosts = news.remove(&id).unwrap_or_default();
            let stats = self.relay.endpoint.peer_stats(id);
            let bytes = [stats.bytes_out, stats.bytes_in];
            let before = std::mem::replace(&mut peer.told_bytes, bytes);
            let link = [0, 1].map(|way: usize| bytes[way].saturating_sub(before[way]));
            if hosts.is_empty() && link == [0, 0] {
                continue;
            }
            self.tidings.usage.push(PeerUsage {
                key: peer.config.public_key,
                name: peer.config.name.clone(),
                hosts: hosts.into_iter().map(|(host, had)| (host, usage_of(&had))).collect(),
                link,
            });
        }
    }

    /// A peer is no longer in the file.
    pub(super) fn tell_removed(&mut self, peer: &KnownPeer) {
        self.tidings.push(peer, Event::LinkDown { cause: control::Cause::Removed });
    }
}

fn told_flow(now: Instant, news: &FlowNews, peer: &KnownPeer, shard: usize) -> Flow {
    Flow {
        id: format!("{shard}.{:x}", news.flow.to_u64()),
        client: news.client.map_or("other".to_owned(), |ip| ip.to_canonical().to_string()),
        server: match &news.target {
            Target::Address(to) => to.to_string(),
            Target::Name(name, port) => format!("{name}:{port}"),
            Target::Service(name, _) => format!("service {name}"),
        },
        class: peer.config.traffic.class_name(news.class).to_owned(),
        from_here: news.from_here,
        sent_bytes: news.bytes.sent,
        received_bytes: news.bytes.received,
        for_ms: now.since(news.began).as_millis(),
    }
}

fn usage_of(had: &HostTraffic) -> UsageBytes {
    UsageBytes {
        stream_bytes_sent: had.streams.sent,
        stream_bytes_received: had.streams.received,
        packet_bytes_sent: had.packets.sent,
        packet_bytes_received: had.packets.received,
        packets_sent: had.packet_count.sent,
        packets_received: had.packet_count.received,
        ..UsageBytes::default()
    }
}

/// As the control socket calls it.
pub fn rekey_state(rekey: Rekey) -> RekeyState {
    match rekey {
        Rekey::InTime => RekeyState::InTime,
        Rekey::Overdue => RekeyState::Overdue,
        Rekey::Erased => RekeyState::Erased,
    }
}
