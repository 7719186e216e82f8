//! Liveness: which of the link's two directions work (L-LO-6, L-LO-7, L-LO-8).
//!
//! A link may fail in one direction only: a terminal whose transmitter broke, a return channel
//! without power. Each side then sees a half of it. One side receives nothing, although it sends
//! PINGs. The other receives those PINGs, but no ACK for anything that it sent.

use units::{ByteCount, Duration, Instant};

use super::health::{LEAST_ACK_TIMEOUT, PathHealth};
use super::path::Path;

/// The interval of PINGs while it is in doubt whether the peer hears this node, unless the link
/// needs more time for eight of them.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// The ACK timeout is this many times the longest time that an ACK may take, and never less than
/// [`LEAST_ACK_TIMEOUT`].
const ACK_TIMEOUT_FACTOR: u64 = 4;
/// Packets are given up of which a peer has acknowledged nothing for this many round trips, while
/// it was heard ...
const GIVE_UP_RTTS: u64 = 16;
/// ... and for no less than this.
const LEAST_GIVE_UP: Duration = Duration::from_secs(60);
/// Bytes of eight PINGs.
const PROBE_BYTES: ByteCount = ByteCount(640);

impl Path {
    /// Which directions work, as far as this node knows.
    pub(crate) fn health(&self) -> PathHealth {
        self.liveness.health(self.silent.then_some(self.last_heard))
    }

    /// The peer timeout: how long nothing may be heard, or acknowledged, before the path counts as
    /// dead. It is shorter if another path can take over, because a mistake then costs less.
    pub(super) fn peer_timeout(&self) -> Duration {
        let (rtt, second) = (self.rtt.smoothed(), Duration::from_secs(1));
        if self.is_beside_others { rtt.times(3).max(second) } else { rtt.times(2) + second }
    }

    /// A packet of the peer arrived. A peer that waits for an answer sends a PING every max(2 s,
    /// 2 RTT), or as often as its line allows (L-LO-5). After a longer pause the other direction
    /// was down as well, and what the peer says now may have left before it heard anything.
    pub(super) fn on_heard(&mut self, now: Instant) {
        let dark = now.since(self.last_heard);
        let full = self.config.receive_rate.time_for(ByteCount(u64::from(self.config.packet)));
        let asks = Duration::from_secs(2).max(self.rtt.smoothed().times(2));
        if dark > asks.max(self.report_overdue() + full).times(2) {
            self.liveness.forget_evidence();
            self.heard_since = now;
        }
        if dark >= self.rtt.longest_pause() {
            self.rtt.distrust_before(now);
        }
        if !self.liveness.is_tx_dead() {
            self.resume(now, dark);
        }
        self.last_heard = now;
        (self.heard_here, self.heard_since_rise, self.unproven_from) = (true, true, None);
        self.check_acks(now);
    }

    /// A peer that is heard sends an ACK once in a round trip at least (L-RE-2). For one that does
    /// not, every packet ever sent would have to be kept.
    fn check_acks(&mut self, now: Instant) {
        if !self.liveness.owes_ack(now, self.sent.reported()) {
            return;
        }
        let Some(oldest) = self.sent.oldest_in_flight() else { return };
        let timeout = (self.peer_timeout() + self.overdue()).times(ACK_TIMEOUT_FACTOR);
        self.silent |= self.liveness.miss_acks(now, oldest, timeout.max(LEAST_ACK_TIMEOUT));
    }

    /// Packets that left before this are lost, although no ACK says so: the peer was heard ever
    /// since, for far longer than its ACKs take. `None`: it was not heard for so long, and what
    /// left before may have arrived (L-LO-11).
    pub(super) fn gives_up_before(&self, now: Instant) -> Option<Instant> {
        let trip = self.believed_rtt() + self.on_line() + Duration::from_secs(1);
        let then = now - trip.times(GIVE_UP_RTTS).max(LEAST_GIVE_UP);
        (self.heard_since <= then).then_some(then)
    }

    /// An ACK came whose largest packet is `hi` (`None`: a PING of a peer to which nothing has
    /// arrived yet). `progress`: it acknowledged something new.
    pub(super) fn check_transmit(&mut self, now: Instant, hi: Option<u64>, progress: bool) {
        if progress {
            return self.on_heard_by_peer(now);
        }
        self.liveness.on_stale_ack();
        if self.sent.confirmed() != hi {
            return; // A later ACK overtook it.
        }
        let Some(oldest) = self.sent.oldest_in_flight() else { return };
        let first = self.liveness.stale_since(now);
        // Packets that left before then would be acknowledged, had they arrived.
        let acked_by_now = now - self.overdue();
        let since = now.since(first.max(oldest));
        if oldest > acked_by_now || since < self.peer_timeout() + self.on_line() {
            return;
        }
        let next = hi.map_or(0, |n| n + 1);
        let lost = self.sent.first_since(acked_by_now).saturating_sub(next);
        self.silent |= self.liveness.on_lost_in_a_row(lost, oldest);
    }

    /// The interval of PINGs while it is in doubt whether the peer hears this node.
    pub(super) fn probe_interval(&self) -> Option<Duration> {
        let often = PROBE_INTERVAL.max(self.pacer.rate().time_for(PROBE_BYTES));
        (self.liveness.is_probing() && !self.silent).then_some(often)
    }

    /// The peer hears this node: it acknowledged something, or completed a handshake.
    pub(crate) fn on_heard_by_peer(&mut self, now: Instant) {
        self.unproven_from = None;
        if let Some(since) = self.liveness.on_heard_by_peer() {
            self.resume(now, now.since(since));
        }
    }

    /// Both directions work again, after `dark`: streams go on.
    fn resume(&mut self, now: Instant, dark: Duration) {
        if std::mem::take(&mut self.silent) {
            self.rate.on_return(dark, self.sent.next_number());
            self.follow_rate(now);
        }
    }
}
