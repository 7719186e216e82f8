//! What the two nodes' files say of each other, told in the handshake and compared, so that
//! what cannot work is known at both ends from the start (L-PA-3, L-PA-4).

use std::fmt;

use units::BitRate;

/// Address families.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

impl Families {
    /// Is the family one of them?
    pub const fn contains(self, is_v4: bool) -> bool {
        if is_v4 { self.v4 } else { self.v6 }
    }

    /// Those that are sent to who takes others only. Who has no prefix at all for the peer
    /// serves what names no client: proxies, and hubs that show their own address.
    const fn untaken_by(self, takes: Families) -> Families {
        if takes.is_empty() {
            return Families { v4: false, v6: false };
        }
        Families { v4: self.v4 && !takes.v4, v6: self.v6 && !takes.v6 }
    }

    /// None.
    pub const fn is_empty(self) -> bool {
        !self.v4 && !self.v6
    }

    const fn bits(self) -> u64 {
        self.v4 as u64 | (self.v6 as u64) << 1
    }

    const fn of_bits(bits: u64) -> Families {
        Families { v4: bits & 1 != 0, v6: bits & 2 != 0 }
    }
}

impl fmt::Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.v4, self.v6) {
            (true, true) => "IPv4 and IPv6",
            (true, false) => "IPv4",
            (false, true) => "IPv6",
            (false, false) => "nothing",
        })
    }
}

/// An end of a link profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The remote end.
    Terminal,
    /// The end with the servers.
    Hub,
}

/// Services that a node's file names, told in a few bits: each name has one of [`SLOTS`]. That it
/// is set says that the node may have the service, and that it is not set that it has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Services(u32);

/// With the seven bits of the other facts they take four bytes.
const SLOTS: u32 = 21;

impl Services {
    /// These, and the one of this name.
    #[must_use]
    pub fn with(self, name: &str) -> Services {
        Services(self.0 | Services::slot(name))
    }

    /// May a service of this name be one of them?
    pub fn may_have(self, name: &str) -> bool {
        self.0 & Services::slot(name) != 0
    }

    /// By FNV-1a with 32 bits, of which the lowest byte mixes least.
    fn slot(name: &str) -> u32 {
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        1 << ((name.bytes().fold(0x811c_9dc5, mix) >> 8) % SLOTS)
    }
}

/// What a node's file says of the link, beside its rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Families of the prefixes behind the peer: what it may send here.
    pub takes: Families,
    /// Families of which this node's hosts may send to the peer.
    pub sends: Families,
    /// Which end of its profile this node is, if the file says it.
    pub end: Option<End>,
    /// This node answers self-tests (L-TE-1); the file has no say in it.
    pub tests: bool,
    /// The services that it has.
    pub services: Services,
}

impl Facts {
    /// Two bits of families taken, two of families sent, two of the end, one of tests, and then
    /// those of services.
    pub(super) fn bits(self) -> u64 {
        let end = match self.end {
            None => 0,
            Some(End::Terminal) => 1,
            Some(End::Hub) => 2,
        };
        let files = self.takes.bits() | self.sends.bits() << 2 | end << 4;
        files | u64::from(self.tests) << 6 | u64::from(self.services.0) << 7
    }

    /// Other bits are of later versions.
    pub(super) fn of_bits(bits: u64) -> Facts {
        Facts {
            takes: Families::of_bits(bits),
            sends: Families::of_bits(bits >> 2),
            end: match bits >> 4 & 3 {
                1 => Some(End::Terminal),
                2 => Some(End::Hub),
                _ => None,
            },
            tests: bits & 1 << 6 != 0,
            services: Services((bits >> 7) as u32 & ((1 << SLOTS) - 1)),
        }
    }
}

/// Digits of a rate that are told.
const DIGITS_BELOW: u64 = 1000;

/// A rate in 14 bits, two bytes of a varint: three decimal digits, and above them the power
/// of ten. So it is within half a per cent, and reads as the file has it.
pub(super) fn rate_bits(rate: BitRate) -> u64 {
    let (mut digits, mut power) = (rate.as_bps(), 0);
    while digits >= DIGITS_BELOW {
        // Rounded once, at the last step.
        let rounds = digits < 10 * DIGITS_BELOW - 5;
        digits = (digits + if rounds { 5 } else { 0 }) / 10;
        power += 1;
    }
    digits | power.min(15) << 10
}

/// The same, of a rate that whoever hears of it must not exceed.
pub(super) fn rate_bits_below(rate: BitRate) -> u64 {
    let (mut digits, mut power) = (rate.as_bps(), 0);
    while digits >= DIGITS_BELOW {
        (digits, power) = (digits / 10, power + 1);
    }
    digits | power.min(15) << 10
}

/// The rate that these bits mean; `None` for 0, and for what no rate is.
pub(super) fn rate_of_bits(bits: u64) -> Option<BitRate> {
    let (digits, power) = (bits & 0x3ff, u32::try_from(bits >> 10).ok()?);
    let bps = 10_u64.checked_pow(power)?.checked_mul(digits)?;
    (bps > 0 && digits < DIGITS_BELOW).then_some(BitRate::from_bps(bps))
}

/// What a node told of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub facts: Facts,
    /// 14 bits; 0: not told.
    pub send: u64,
    pub receive: u64,
}

/// What in the two files cannot both be right, as this node sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disagreements {
    /// Families that hosts here send to the peer, which does not take them.
    pub not_taken_there: Families,
    /// Families that the peer's hosts send, and this node does not take.
    pub not_taken_here: Families,
    /// Both nodes say that they are this end of a link that is not the same both ways.
    pub same_end: Option<End>,
    /// What this node sends at and what the peer's file says it receives, where they are more
    /// than a tenth apart.
    pub outward: Option<[BitRate; 2]>,
    /// What the peer's file says it sends at and what this node receives, likewise.
    pub inward: Option<[BitRate; 2]>,
}

impl Disagreements {
    pub(super) fn between(own: &Told, peer: &Told) -> Disagreements {
        let apart = |send, receive| {
            let rates = [rate_of_bits(send)?, rate_of_bits(receive)?];
            let [send, receive] = rates.map(BitRate::as_bps);
            (send.abs_diff(receive) > send.max(receive) / 10).then_some(rates)
        };
        let is_lopsided = own.send != own.receive;
        Disagreements {
            not_taken_there: own.facts.sends.untaken_by(peer.facts.takes),
            not_taken_here: peer.facts.sends.untaken_by(own.facts.takes),
            same_end: own.facts.end.filter(|e| peer.facts.end == Some(*e) && is_lopsided),
            outward: apart(own.send, peer.receive),
            inward: apart(peer.send, own.receive),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(send: u64, receive: u64, end: Option<End>) -> Told {
        let both = Families { v4: true, v6: true };
        let [send, receive] = [send, receive].map(|n| rate_bits(BitRate::from_kbps(n)));
        let facts = Facts { takes: both, sends: both, end, tests: true, ..Facts::default() };
        Told { facts, send, receive }
    }

    #[test]
    fn rates_are_told_as_files_have_them() {
        for bps in [2_400, 64_000, 128_000, 1_540_000, 20_000_000, 999_000, 10_000_000_000] {
            let rate = BitRate::from_bps(bps);
            assert_eq!(rate_of_bits(rate_bits(rate)), Some(rate));
        }
        let rounded = |bps| rate_of_bits(rate_bits(BitRate::from_bps(bps))).unwrap().as_bps();
        assert_eq!(
            [1_544_000, 134_940_000, 999_600].map(rounded),
            [1_540_000, 135_000_000, 999_000]
        );
        assert_eq!(rate_of_bits(0), None);
        assert_eq!(rate_of_bits(0x3ff), None);
        assert_eq!(rate_of_bits(u64::MAX), None);
    }

    #[test]
    fn rates_more_than_a_tenth_apart_are_found() {
        let fits = Disagreements::default();
        assert_eq!(
            Disagreements::between(&told(20_000, 2_000, None), &told(2_000, 20_000, None)),
            fits
        );
        assert_eq!(
            Disagreements::between(&told(20_000, 2_000, None), &told(2_000, 18_000, None)),
            fits
        );
        let found = Disagreements::between(&told(20_000, 2_000, None), &told(2_500, 17_000, None));
        let rates = |a, b| Some([a, b].map(BitRate::from_kbps));
        assert_eq!((found.outward, found.inward), (rates(20_000, 17_000), rates(2_500, 2_000)));
        // Who tells no rates is compared with nothing.
        let silent = Told { send: 0, receive: 0, ..told(1, 1, None) };
        assert_eq!(Disagreements::between(&told(20_000, 2_000, None), &silent), fits);
    }

    #[test]
    fn the_same_end_at_both_is_found_where_it_matters() {
        let hub = |send, receive| told(send, receive, Some(End::Hub));
        let found = Disagreements::between(&hub(20_000, 2_000), &hub(20_000, 2_000));
        assert_eq!(found.same_end, Some(End::Hub));
        assert!(found.outward.is_some() && found.inward.is_some());
        let found = Disagreements::between(&hub(2_000, 2_000), &hub(2_000, 2_000));
        assert_eq!(found, Disagreements::default());
    }

    #[test]
    fn who_has_no_prefix_for_the_peer_is_taken_to_serve_what_names_no_client() {
        let both = Families { v4: true, v6: true };
        let told = |takes, sends| {
            let facts = Facts { takes, sends, ..Facts::default() };
            Told { facts, send: 0, receive: 0 }
        };
        let (hub, far) = (told(both, both), told(Families::default(), both));
        let found = Disagreements::between(&hub, &far);
        assert!(found.not_taken_there.is_empty() && found.not_taken_here.is_empty(), "{found:?}");
    }

    #[test]
    fn a_family_that_goes_one_way_only_is_found_at_both_ends() {
        let (mut ship, mut shore) = (told(1, 1, None), told(1, 1, None));
        shore.facts.takes.v6 = false;
        let v6 = Families { v4: false, v6: true };
        let at_ship = Disagreements::between(&ship, &shore);
        assert_eq!((at_ship.not_taken_there, at_ship.not_taken_here), (v6, Families::default()));
        let at_shore = Disagreements::between(&shore, &ship);
        assert_eq!((at_shore.not_taken_there, at_shore.not_taken_here), (Families::default(), v6));
        ship.facts.sends.v6 = false;
        assert_eq!(Disagreements::between(&ship, &shore), Disagreements::default());
    }

    #[test]
    fn services_have_the_places_that_the_specification_says() {
        let places =
            ["web", "mail", "dns", "echo"].map(|name| Services::slot(name).trailing_zeros());
        assert_eq!(places, [15, 3, 7, 11]);
    }

    proptest! {
        #[test]
        fn every_rate_is_told_within_half_a_per_cent(bps in 1u64..100_000_000_000) {
            let below = rate_of_bits(rate_bits_below(BitRate::from_bps(bps))).unwrap().as_bps();
            prop_assert!(below <= bps && bps - below <= bps / 100, "{below} of {bps}");
            let bits = rate_bits(BitRate::from_bps(bps));
            prop_assert!(bits < 1 << 14);
            let told = rate_of_bits(bits).unwrap().as_bps();
            prop_assert!(told.abs_diff(bps) <= bps / 190, "{} {}", told, bps);
        }

        #[test]
        fn facts_come_back_from_their_bits(low in 0u64..48, rest in 0u64..1 << (SLOTS + 1)) {
            let bits = low | rest << 6;
            prop_assert_eq!(Facts::of_bits(bits).bits(), bits);
            prop_assert_eq!(Facts::of_bits(bits | 1 << (SLOTS + 7)), Facts::of_bits(bits));
        }

        #[test]
        fn a_service_that_is_told_is_found(names in prop::collection::vec("[a-z-]{1,32}", 0..8)) {
            let none = Services::default();
            let told = names.iter().fold(none, |told, name| told.with(name));
            prop_assert!(names.iter().all(|name| told.may_have(name) && !none.may_have(name)));
            let facts = Facts { services: told, ..Facts::default() };
            prop_assert_eq!(Facts::of_bits(facts.bits()).services, told);
        }
    }
}
