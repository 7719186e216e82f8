//! The two parts of a direction under test: who sends, and who counts.

use link::PeerId;
use link::endpoint::PeerStats;
use link::session::{RecvState, SessionStats};
use relay::self_test::{Counted, Sent};
use relay::{FlowId, Relay};
use units::{Duration, Instant};

use super::Tools;
use crate::admin::Spread;

/// Reads or writes of one test before others have their turn.
const ROUNDS: usize = 4;

/// Whose link packets a test looks at.
pub struct Looks {
    peer: PeerId,
    session: SessionStats,
    link: PeerStats,
    queue: Vec<u64>,
}

impl Looks {
    pub fn begin(relay: &Relay, peer: PeerId) -> Looks {
        let (session, link) = stats(relay, peer);
        Looks { peer, session, link, queue: Vec::new() }
    }

    /// To be called at each tick.
    pub fn look(&mut self, relay: &Relay) {
        if let Some(session) = relay.endpoint.session(self.peer) {
            self.queue.push(session.rate_status().queueing.as_micros());
        }
    }

    /// How long packets queued.
    pub fn queue(&self) -> Spread {
        Spread::of(self.queue.clone())
    }

    /// What became of the packets since.
    pub fn sent(&self, relay: &Relay) -> Sent {
        let (s, link) = stats(relay, self.peer);
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let lost = since(s.packets_lost, self.session.packets_lost);
        let queue = self.queue();
        Sent {
            settled: since(s.packets_arrived, self.session.packets_arrived) + lost,
            // What repair brought back counts as arrived.
            lost: lost + since(s.peer_recovered, self.session.peer_recovered),
            packets: since(link.packets_out, self.link.packets_out),
            repairs: since(s.repairs_sent, self.session.repairs_sent),
            queue_median_us: queue.median_us,
            queue_p95_us: queue.p95_us,
        }
    }
}

fn stats(relay: &Relay, peer: PeerId) -> (SessionStats, PeerStats) {
    let session = relay.endpoint.session(peer).map(|s| s.stats()).unwrap_or_default();
    (session, relay.endpoint.peer_stats(peer))
}

/// Who sends.
pub struct Sending {
    flow: FlowId,
    ends: Instant,
    over: bool,
    pub looks: Box<Looks>,
}

impl Sending {
    pub fn begin(now: Instant, relay: &Relay, flow: FlowId, peer: PeerId, time: Duration) -> Self {
        Sending { flow, ends: now + time, over: false, looks: Box::new(Looks::begin(relay, peer)) }
    }

    /// When its time is over, until [`Sending::is_over`] has said so.
    pub fn ends(&self) -> Option<Instant> {
        Some(self.ends).filter(|_| !self.over)
    }

    /// Is its time over just now? Said once.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let before = std::mem::replace(&mut self.over, now >= self.ends);
        self.over && !before
    }

    /// Sends what there is room for; true if there may be more.
    pub fn work(&mut self, now: Instant, relay: &mut Relay, tools: &mut Tools) -> bool {
        for _ in 0..ROUNDS {
            let room = relay.writable_bytes(now, self.flow).min(tools.buffer.len());
            if now >= self.ends || room == 0 {
                return false; // Action::Read follows.
            }
            let bytes = &mut tools.buffer[..room];
            tools.random.fill(bytes);
            relay.local_data(now, self.flow, bytes);
        }
        true
    }
}

/// Who counts.
pub struct Counting {
    flow: FlowId,
    peer: PeerId,
    time: Duration,
    /// When the first bytes had come; how many of the stream, and of the link, by then.
    first: Option<(Instant, u64, u64)>,
    pub counted: Option<Counted>,
}

impl Counting {
    pub fn new(flow: FlowId, peer: PeerId, time: Duration) -> Counting {
        Counting { flow, peer, time, first: None, counted: None }
    }

    /// When it is to look again at the latest.
    pub fn ends(&self) -> Option<Instant> {
        let (first, ..) = self.first.filter(|_| self.counted.is_none())?;
        Some(first + self.time)
    }

    /// Looks at what has come, before it is taken. `over`: no more comes.
    pub fn look(&mut self, now: Instant, relay: &Relay, over: bool) {
        let arrived = relay.arrived(self.flow);
        let link = relay.endpoint.peer_stats(self.peer).bytes_in;
        let Some((first, arrived_then, link_then)) = self.first else {
            self.first = Some((now, arrived, link)).filter(|_| arrived > 0);
            return;
        };
        if self.counted.is_none() && (over || now >= first + self.time) {
            self.counted = Some(Counted {
                time_us: now.since(first).as_micros(),
                stream_bytes: arrived.saturating_sub(arrived_then),
                link_bytes: link.saturating_sub(link_then),
            });
        }
    }
}

/// The last bytes of what was taken from a stream.
pub struct Tail<const N: usize> {
    bytes: [u8; N],
    /// How many bytes there were in all.
    pub taken: u64,
}

impl<const N: usize> Tail<N> {
    pub fn new() -> Tail<N> {
        Tail { bytes: [0; N], taken: 0 }
    }

    /// The last bytes, if there were so many.
    pub fn last(&self) -> Option<&[u8; N]> {
        (self.taken >= N as u64).then_some(&self.bytes)
    }

    fn push(&mut self, more: &[u8]) {
        self.taken += more.len() as u64;
        let more = &more[more.len().saturating_sub(N)..];
        self.bytes.rotate_left(more.len());
        self.bytes[N - more.len()..].copy_from_slice(more);
    }

    /// Takes what came of the flow, up to `most` bytes in all; what stands behind it if all
    /// was taken.
    pub fn take(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        flow: FlowId,
        most: u64,
    ) -> Option<RecvState> {
        for _ in 0..ROUNDS {
            let mut slices: [&[u8]; 16] = [&[]; 16];
            let n = relay.outgoing(now, flow, &mut slices);
            if n == 0 {
                return Some(relay.outgoing_state(flow));
            }
            let mut taken = 0;
            for slice in &slices[..n] {
                let room = most.saturating_sub(self.taken).min(slice.len() as u64) as usize;
                self.push(&slice[..room]);
                taken += room;
            }
            relay.wrote(now, flow, taken);
            if self.taken >= most {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_are_kept_however_they_come() {
        let all: Vec<u8> = (0..100).collect();
        for piece in [1, 3, 7, 8, 9, 50, 100] {
            let mut tail = Tail::<8>::new();
            all.chunks(piece).for_each(|piece| tail.push(piece));
            assert_eq!(tail.last().map(|b| &b[..]), Some(&all[92..]), "{piece}");
        }
        let mut tail = Tail::<8>::new();
        tail.push(&[1, 2, 3]);
        assert_eq!(tail.last(), None);
    }
}
