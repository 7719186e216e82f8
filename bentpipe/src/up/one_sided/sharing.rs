//! A link's rate, divided by the legs that have something under way.
//!
//! A leg that begins has its part at once. The parts of the others, of which each costs a system
//! call, follow when the sum is off by more than an eighth, and else at the next look: thousands
//! that begin together do not each change the pace of thousands.

use std::collections::BTreeSet;

use plan::Plan;

/// Of the rate, in thousandths, the legs' paces together: what is left is for SYNs, ACKs and
/// repeats, and keeps the modem's queue empty.
const PACED: u64 = 995;

/// Who has something under way, as far as is known, and what each may send.
pub struct Sharing {
    /// Bytes of content a second that fill the link.
    whole: u64,
    busy: BTreeSet<u64>,
    /// The pace that all had when it was last divided, in bytes a second.
    pace: u64,
}

impl Sharing {
    /// The link is nobody's yet.
    pub fn of(plan: &Plan) -> Sharing {
        let line = u64::from(plan.send.tcp_packet) + u64::from(plan.link.framing);
        let rate = plan.link.send.as_bps() / 8;
        let content = u128::from(rate) * u128::from(plan.send.mss()) / u128::from(line);
        let whole = content as u64 * PACED / 1000;
        Sharing { whole, busy: BTreeSet::new(), pace: whole.max(1) }
    }

    /// Has nobody anything under way?
    pub fn is_idle(&self) -> bool {
        self.busy.is_empty()
    }

    /// The pace of a leg that is still idle, in bytes a second.
    pub fn pace(&self) -> u64 {
        self.pace
    }

    /// What each may send where all that are busy have the same.
    fn part(&self) -> u64 {
        (self.whole / self.busy.len().max(1) as u64).max(1)
    }

    /// The leg has something under way: its pace, if it had nothing before.
    pub fn begin(&mut self, leg: u64) -> Option<u64> {
        self.busy.insert(leg).then(|| self.part())
    }

    /// The leg is no more.
    pub fn remove(&mut self, leg: u64) {
        self.busy.remove(&leg);
    }

    /// Some have begun: divides anew if that is pressing.
    pub fn settle(&mut self, set_pace: impl FnMut(u64, u64)) {
        let part = self.part();
        if self.pace > part + part / 8 {
            self.divide(set_pace);
        }
    }

    /// Looks who still has something under way, and divides anew if the parts are others.
    pub fn look(&mut self, is_busy: impl Fn(u64) -> bool, set_pace: impl FnMut(u64, u64)) {
        self.busy.retain(|leg| is_busy(*leg));
        if self.pace != self.part() {
            self.divide(set_pace);
        }
    }

    fn divide(&mut self, mut set_pace: impl FnMut(u64, u64)) {
        self.pace = self.part();
        self.busy.iter().for_each(|leg| set_pace(*leg, self.pace));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use units::BitRate;

    fn sharing() -> (Sharing, BitRate) {
        let profile = crate::config::Profile::find("t1-geo").expect("a profile");
        let plan = Plan::of(plan::Link {
            send: profile.forward,
            receive: profile.back,
            delay: profile.delay,
            ber: profile.ber,
            loss: profile.loss,
            mtu: profile.mtu,
            framing: 0,
            queue: None,
        });
        (Sharing::of(&plan), profile.forward)
    }

    #[test]
    fn legs_share_the_links_rate_and_leave_a_little() {
        let (mut sharing, rate) = sharing();
        let alone = sharing.begin(0).expect("a pace");
        let full = BitRate::from_bps(alone * 8 * 1500 / 1448);
        assert!(full < rate && full.as_bps() * 100 > rate.as_bps() * 98);
        for leg in 1..4 {
            sharing.begin(leg);
        }
        let mut paces = BTreeMap::new();
        sharing.settle(|leg, pace| {
            paces.insert(leg, pace);
        });
        assert_eq!(paces, (0..4).map(|leg| (leg, alone / 4)).collect());
        // What is left is for who goes on.
        let mut paces = BTreeMap::new();
        sharing.look(
            |leg| leg < 2,
            |leg, pace| {
                paces.insert(leg, pace);
            },
        );
        assert_eq!(paces, (0..2).map(|leg| (leg, alone / 2)).collect());
    }

    #[test]
    fn a_thousand_legs_that_begin_cost_a_thousand_paces_and_not_a_million() {
        const LEGS: u64 = 1000;
        // All in one turn, or each in its own.
        for turns_of in [LEGS, 1] {
            let (mut sharing, _) = sharing();
            let whole = sharing.begin(0).expect("a pace");
            let mut paces = BTreeMap::from([(0, whole)]);
            let mut calls = 1;
            for leg in 1..LEGS {
                if let Some(pace) = sharing.begin(leg) {
                    calls += 1;
                    paces.insert(leg, pace);
                }
                assert_eq!(sharing.begin(leg), None, "it is busy already");
                if (leg + 1) % turns_of == 0 {
                    sharing.settle(|leg, pace| {
                        calls += 1;
                        paces.insert(leg, pace);
                    });
                    let sum: u64 = paces.values().sum();
                    assert!(sum <= whole + whole / 8 + LEGS, "{sum} of {whole}");
                }
            }
            let most = if turns_of == 1 { 12 } else { 2 };
            assert!(calls <= most * LEGS, "{calls} calls, {turns_of} a turn");
            // The next look brings what was not pressing.
            sharing.look(
                |_| true,
                |leg, pace| {
                    paces.insert(leg, pace);
                },
            );
            assert!(paces.values().all(|pace| *pace == whole / LEGS));
        }
    }
}
