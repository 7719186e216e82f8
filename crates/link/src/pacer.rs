//! The pacer (R-RATE): packets leave at an explicit rate, in full from the first packet, and never
//! faster.

use units::{BitRate, ByteCount, Duration, Instant};

/// How far ahead of the link packets may be handed to the kernel while somebody waits for single
/// packets: a batch is never longer than one packet or this time at the link's rate.
const LEAD: Duration = Duration::from_millis(1);
/// The same while nobody waits for single packets. A wake-up costs more than a packet: at
/// 45 Mbit/s, with 270 µs between packets, one wake-up then serves eight packets instead of two.
const BULK_LEAD: Duration = Duration::from_millis(3);
/// From this rate on the bulk lead holds more packets than the short one.
const BULK_FROM: BitRate = BitRate::from_mbps(12);
/// A burst that makes up for lateness leaves a standing queue in the modem, which delays every
/// keystroke, because the link sends no faster than it is fed. So each packet leaves later by
/// its own time over this number, until the queue is at most `STANDING`: 10 ms are gone after 1 s.
/// A host that is always late loses that much of the link; hence only while somebody waits for
/// single packets.
const GIVEN_BACK: u64 = 128;
/// The standing queue that is left: it keeps the link busy through the usual lateness of a host,
/// and no keystroke notices it.
const STANDING: Duration = Duration::from_millis(3);

/// The pacer of one link.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    rate: BitRate,
    /// How much lateness of the driver is made up for while packets wait. More would be a burst
    /// that the modem's queue cannot hold; less would waste link time whenever the host is busy.
    catch_up: Duration,
    /// When the link would have sent all packets, had none been late.
    free_at: Instant,
    /// When the link will in fact have sent all packets: never earlier.
    empty_at: Instant,
    /// Somebody waits for single packets.
    is_waited_for: bool,
}

impl Pacer {
    /// A pacer for a link of `rate` whose modem may hold `queue` of it.
    pub fn new(rate: BitRate, queue: Duration) -> Pacer {
        let (free_at, empty_at) = (Instant::ZERO, Instant::ZERO);
        Pacer { rate, catch_up: queue, free_at, empty_at, is_waited_for: false }
    }

    pub fn rate(&self) -> BitRate {
        self.rate
    }

    /// Sets the rate, also for packets that the link has not sent yet.
    pub fn set_rate(&mut self, now: Instant, rate: BitRate) {
        for at in [&mut self.free_at, &mut self.empty_at] {
            let left = self.rate.bytes_in(at.since(now));
            if left.0 > 0 {
                *at = now + rate.time_for(left);
            }
        }
        self.rate = rate;
    }

    /// Does somebody wait for single packets, whom a queue in the modem would delay?
    pub fn set_waited_for(&mut self, is_waited_for: bool) {
        self.is_waited_for = is_waited_for;
    }

    /// May a packet leave now?
    pub fn ready(&self, now: Instant) -> bool {
        self.free_at <= now + self.lead()
    }

    /// When to ask again. Half the short lead or a third of the long one, so that at high rates
    /// one wake-up serves a batch.
    pub fn next(&self) -> Instant {
        let is_bulk = self.lead() > LEAD;
        self.free_at - if is_bulk { BULK_LEAD.divided_by(3) } else { LEAD.divided_by(2) }
    }

    fn lead(&self) -> Duration {
        if self.is_waited_for || self.rate < BULK_FROM { LEAD } else { BULK_LEAD }
    }

    /// A packet of `size` bytes (as the link counts them) leaves.
    pub fn on_sent(&mut self, now: Instant, size: u64) {
        let time = self.rate.time_for(ByteCount(size));
        self.empty_at = self.empty_at.max(now) + time;
        self.free_at = self.free_at.max(now - self.catch_up) + time;
        if self.is_waited_for {
            let queued = self.empty_at.since(self.free_at + STANDING);
            self.free_at += queued.min(time.divided_by(GIVEN_BACK));
        }
    }

    /// Nothing waits: link time that passes now is not made up for later.
    pub fn on_idle(&mut self, now: Instant) {
        self.free_at = self.free_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: Duration = Duration::from_millis(10);

    #[test]
    fn after_a_pause_of_the_driver_no_more_leaves_at_once_than_the_modem_may_hold() {
        for queue_ms in [0, 10, 100] {
            let queue = Duration::from_millis(queue_ms);
            let mut pacer = Pacer::new(BitRate::from_mbps(20), queue);
            let mut now = Instant::ZERO + Duration::from_secs(1);
            pacer.on_idle(now);
            while pacer.ready(now) {
                pacer.on_sent(now, 500);
            }
            now += Duration::from_secs(1);
            let mut burst = 0;
            while pacer.ready(now) {
                pacer.on_sent(now, 500);
                burst += 500;
            }
            // The queue, the lead, and the packet that crosses the line.
            let held = BitRate::from_mbps(20).bytes_in(queue + BULK_LEAD).0;
            assert!((held..=held + 500).contains(&burst), "{queue_ms} ms: {burst} bytes");
        }
    }

    /// What leaves with one wake-up, in packets, at `mbps`.
    fn batch(mbps: u64, is_waited_for: bool) -> u64 {
        let mut pacer = Pacer::new(BitRate::from_mbps(mbps), QUEUE);
        pacer.set_waited_for(is_waited_for);
        let mut now = Instant::ZERO + Duration::from_secs(1);
        pacer.on_idle(now);
        let mut sent = 0;
        for _ in 0..100 {
            while pacer.ready(now) {
                pacer.on_sent(now, 1500);
                sent += 1;
            }
            now = pacer.next().max(now);
        }
        sent / 100
    }

    #[test]
    fn a_wake_up_serves_several_packets_unless_somebody_waits_for_single_ones() {
        assert_eq!([batch(45, false), batch(45, true)], [8, 2]);
        assert_eq!([batch(10, false), batch(10, true)], [1, 1]);
    }

    #[test]
    fn a_late_driver_still_fills_the_link_and_never_exceeds_it() {
        let mut rng = units::Rng::new(3);
        let mut pacer = Pacer::new(BitRate::from_mbps(20), QUEUE);
        let (mut now, mut sent) = (Instant::ZERO, 0u64);
        pacer.on_idle(now);
        while now < Instant::ZERO + Duration::from_secs(10) {
            while pacer.ready(now) {
                pacer.on_sent(now, 1500);
                sent += 1500;
                let allowed = BitRate::from_mbps(20).bytes_in(now.since(Instant::ZERO) + BULK_LEAD);
                assert!(sent <= allowed.0 + 1500);
            }
            now = pacer.next().max(now) + Duration::from_micros(rng.below(8000));
        }
        assert!(sent > 24_900_000, "{sent} of 25,000,000 bytes");
    }

    /// R-QOS: what a late driver made good is no queue that every keystroke waits in.
    #[test]
    fn the_modem_s_queue_after_a_pause_of_the_driver_is_gone_soon() {
        let rate = BitRate::from_mbps(1);
        let mut pacer = Pacer::new(rate, QUEUE);
        let (mut now, mut modem, mut sent) = (Instant::ZERO, Instant::ZERO, 0u64);
        pacer.on_idle(now);
        pacer.set_waited_for(true);
        for pauses in 0..20u64 {
            now += Duration::from_millis(9);
            let mut waits = Duration::ZERO;
            while now < Instant::ZERO + Duration::from_secs(3 * pauses + 3) {
                while pacer.ready(now) {
                    waits = modem.since(now);
                    modem = modem.max(now) + rate.time_for(ByteCount(1500));
                    pacer.on_sent(now, 1500);
                    sent += 1500;
                }
                now = pacer.next().max(now);
            }
            assert!(waits <= LEAD + STANDING, "{waits} after {pauses} pauses");
        }
        // Twenty pauses of 9 ms, which nothing brings back, in a minute.
        let most = rate.bytes_in(Duration::from_secs(60) - Duration::from_millis(180)).0;
        assert!(sent + 4500 > most, "{sent} of {most}");
    }

    #[test]
    fn what_waits_when_the_rate_changes_goes_at_the_new_rate() {
        let mut pacer = Pacer::new(BitRate::from_kbps(8), QUEUE);
        pacer.on_sent(Instant::ZERO, 1500);
        let now = Instant::ZERO + Duration::from_millis(500);
        pacer.set_rate(now, BitRate::from_kbps(80));
        // 1,000 bytes are left: 100 ms.
        assert_eq!(pacer.free_at, now + Duration::from_millis(100));
        pacer.set_rate(now, BitRate::from_kbps(8));
        assert_eq!(pacer.free_at, now + Duration::from_secs(1));
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let mut pacer = Pacer::new(BitRate::from_kbps(64), QUEUE);
        let later = Instant::ZERO + Duration::from_secs(60);
        pacer.on_idle(later);
        let mut n = 0;
        while pacer.ready(later) {
            pacer.on_sent(later, 500);
            n += 1;
        }
        assert_eq!(n, 1);
    }
}
