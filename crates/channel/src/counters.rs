//! Counts of what a channel did with packets.

use serde::Serialize;
use units::ByteCount;

use crate::LossCause;

/// A number of packets and their bytes (IP bytes, as the caller gave them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, len: ByteCount) {
        self.packets += 1;
        self.bytes = self.bytes.saturating_add(len.0);
    }
}

/// What a channel has done since it was made. At every moment
/// `offered = policed + queue_drops + waiting + on the line + sent`, and
/// `sent = lost_* + delivered + in flight` (duplicates counted apart).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Pushed by the caller.
    pub offered: Tally,
    /// Refused because the policer's bucket was empty.
    pub policed: Tally,
    /// Refused because the queue was full.
    pub queue_drops: Tally,
    /// Sent over the line, whatever became of them.
    pub sent: Tally,
    /// Arrived at the far end, corrupted ones included, duplicates not.
    pub delivered: Tally,
    /// Lost in an outage.
    pub lost_outage: Tally,
    /// Lost to bit errors.
    pub lost_bit_error: Tally,
    /// Lost to the Gilbert–Elliott process.
    pub lost_burst: Tally,
    /// Lost to independent loss.
    pub lost_random: Tally,
    /// Lost because they were longer than the path takes.
    pub lost_too_long: Tally,
    /// Second copies that arrived.
    pub duplicated: Tally,
    /// Sent on a detour.
    pub reordered: Tally,
    /// Arrived with a flipped bit.
    pub corrupted: Tally,
}

impl Counters {
    /// Packets lost to impairments, whatever the cause (drops by the queue and the policer
    /// do not count).
    pub fn lost(&self) -> Tally {
        let all = [
            self.lost_outage,
            self.lost_bit_error,
            self.lost_burst,
            self.lost_random,
            self.lost_too_long,
        ];
        all.iter().fold(Tally::default(), |a, b| Tally {
            packets: a.packets + b.packets,
            bytes: a.bytes.saturating_add(b.bytes),
        })
    }

    pub(crate) fn lost_to(&mut self, cause: LossCause) -> &mut Tally {
        match cause {
            LossCause::Outage => &mut self.lost_outage,
            LossCause::BitError => &mut self.lost_bit_error,
            LossCause::Burst => &mut self.lost_burst,
            LossCause::Random => &mut self.lost_random,
            LossCause::TooLong => &mut self.lost_too_long,
        }
    }
}
