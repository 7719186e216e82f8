//! Which class of the link a connection or packet is in (R-QOS): by the operator's rules,
//! else by its DSCP, else "normal", of which the link itself finds what is interactive.
//! And how an unsplit packet is carried (R-LLLL): by rules, else plain; but QUIC, which
//! repairs itself and mistakes loss for congestion, is repaired without order.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use link::session::{Carry, ChosenBy, ClassId, Compress, Label};

use crate::packet::{Facts, Packet, UDP};

/// One rule; what it does not name it does not ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The IP protocol.
    pub protocol: Option<u8>,
    /// Ports of TCP, UDP, SCTP or DCCP, at either end; empty: any.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The differentiated services code point, 0…63.
    pub dscp: Option<u8>,
    /// The class of what matches; `None`: later rules decide.
    pub class: Option<ClassId>,
    /// How unsplit packets that match are carried; `None`: later rules decide.
    pub carry: Option<Carry>,
    /// Whether what matches is compressed; `None`: later rules decide.
    pub compress: Option<bool>,
    /// Whether headers of unsplit packets that match are; `None`: later rules decide.
    pub headers: Option<bool>,
    /// What streams that match share chunks with; `None`: later rules decide.
    pub dedup: Option<Share>,
    /// The service that takes connections that match; `None`: later rules decide.
    pub via: Option<String>,
}

/// With whose content a stream's content is deduplicated (R-COMPRESS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// That of the same LAN host, as far as it is known.
    #[default]
    Host,
    /// That of all hosts behind the two nodes.
    Lan,
    /// None.
    Off,
}

impl Rule {
    fn matches(&self, facts: &Facts) -> bool {
        let port = || {
            let is_in = |port| self.ports.iter().any(|range| range.contains(&port));
            self.ports.is_empty() || facts.ports.is_some_and(|(a, b)| is_in(a) || is_in(b))
        };
        self.protocol.is_none_or(|p| p == facts.protocol)
            && self.dscp.is_none_or(|d| d == facts.dscp)
            && port()
    }
}

/// The class of what has these `facts`.
pub fn class(rules: &[Rule], facts: &Facts) -> ClassId {
    chosen(rules, facts).0
}

/// The same, and who chose it: the first rule that matches and names one, or the host.
pub fn chosen(rules: &[Rule], facts: &Facts) -> (ClassId, ChosenBy) {
    let class = rules.iter().filter(|rule| rule.matches(facts)).find_map(|rule| rule.class);
    match class {
        Some(class) => (class, ChosenBy::Operator),
        None => (by_dscp(facts.dscp), ChosenBy::Host),
    }
}

/// Is what has these `facts` to be compressed? What the first rule says that says it.
pub fn compress(rules: &[Rule], facts: &Facts) -> Option<bool> {
    rules.iter().filter(|rule| rule.matches(facts)).find_map(|rule| rule.compress)
}

/// The same of an unsplit packet's headers.
fn headers(rules: &[Rule], facts: &Facts) -> Option<bool> {
    rules.iter().filter(|rule| rule.matches(facts)).find_map(|rule| rule.headers)
}

/// What a stream with these `facts` shares chunks with: what the first rule says that says it.
pub fn share(rules: &[Rule], facts: &Facts) -> Option<Share> {
    rules.iter().filter(|rule| rule.matches(facts)).find_map(|rule| rule.dedup)
}

/// The service that takes connections with these `facts`: of the first rule that names one.
pub fn via<'a>(rules: &'a [Rule], facts: &Facts) -> Option<&'a str> {
    rules.iter().filter(|rule| rule.matches(facts)).find_map(|rule| rule.via.as_deref())
}

/// How an unsplit packet with these `facts` is carried, by the first rule that says it.
fn carry(rules: &[Rule], facts: &Facts) -> Carry {
    let chosen = rules.iter().filter(|rule| rule.matches(facts)).find_map(|rule| rule.carry);
    let is_quic = facts.protocol == UDP && facts.ports.is_some_and(|(a, b)| a == 443 || b == 443);
    // It takes what comes late for lost (docs/decisions/quic-in-order.md).
    chosen.unwrap_or(if is_quic { Carry::Ordered } else { Carry::Plain })
}

/// What the code points ask for (RFC 4594, RFC 8622 for 1).
fn by_dscp(dscp: u8) -> ClassId {
    match dscp {
        48 | 56 => ClassId::CONTROL,          // CS6, CS7
        40 | 44 | 46 => ClassId::INTERACTIVE, // CS5, VOICE-ADMIT, EF
        1 | 8 => ClassId::BULK,               // LE, CS1
        _ => ClassId::NORMAL,
    }
}

/// What an unsplit packet is to the link. `host` is its end in the LAN; `plain`: classes that
/// are not compressed unless a rule says it, and those whose headers are not.
pub fn label(
    rules: &[Rule],
    plain: [&[ClassId]; 2],
    packet: &Packet,
    bytes: &[u8],
    host: IpAddr,
) -> Label {
    let facts = packet.facts(bytes);
    let ((class, chosen_by), carry) = (chosen(rules, &facts), carry(rules, &facts));
    let payload = compress(rules, &facts).unwrap_or(!plain[0].contains(&class));
    // A payload is only compressed together with its headers.
    let compress = match headers(rules, &facts).unwrap_or(!plain[1].contains(&class)) {
        false => Compress::Nothing,
        true if payload => Compress::All,
        true => Compress::Headers,
    };
    let (host, flow) = (Some(host), flow(packet, &facts));
    Label { class, chosen_by, host, sender: None, flow, carry, compress }
}

/// Tells flows apart (FNV-1a with 32 bits).
fn flow(packet: &Packet, facts: &Facts) -> u32 {
    let (source, destination) = facts.ports.unwrap_or_default();
    let ports = [source.to_be_bytes(), destination.to_be_bytes()];
    let mut hash = 0x811c_9dc5_u32;
    let mut mix = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    };
    for address in [packet.source, packet.destination] {
        match address {
            IpAddr::V4(a) => mix(&a.octets()),
            IpAddr::V6(a) => mix(&a.octets()),
        }
    }
    mix(&[facts.protocol]);
    mix(ports.as_flattened());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::TCP;

    #[test]
    fn the_first_rule_that_matches_decides_then_the_code_point() {
        let video = ClassId::from_index(4);
        let rule = |protocol, ports: &[_], dscp, class| {
            let ports = ports.to_vec();
            Rule {
                protocol,
                ports,
                dscp,
                class: Some(class),
                carry: None,
                compress: None,
                headers: None,
                dedup: None,
                via: None,
            }
        };
        let rules = [
            rule(Some(17), &[5000..=5010], None, video),
            rule(None, &[873..=873], None, ClassId::BULK),
            rule(None, &[], Some(46), ClassId::NORMAL),
        ];
        let at = |protocol, ports, dscp| class(&rules, &Facts { protocol, ports, dscp });
        assert_eq!(at(17, Some((40_000, 5003)), 0), video);
        assert_eq!(at(17, Some((5010, 40_000)), 46), video);
        assert_eq!(at(TCP, Some((40_000, 5003)), 0), ClassId::NORMAL);
        assert_eq!(at(TCP, Some((873, 40_000)), 46), ClassId::BULK);
        assert_eq!(at(1, None, 46), ClassId::NORMAL);
        assert_eq!(at(1, None, 44), ClassId::INTERACTIVE);
        assert_eq!((at(89, None, 48), at(17, None, 8)), (ClassId::CONTROL, ClassId::BULK));
    }

    #[test]
    fn a_rule_says_before_its_class_what_of_a_packet_is_compressed() {
        let syn = crate::packet::syn(([10, 1, 0, 2], 40_000).into(), ([10, 2, 0, 2], 80).into(), 1);
        let packet = Packet::parse(&syn).expect("a packet");
        let rule = |compress, headers| Rule {
            protocol: None,
            ports: vec![80..=80],
            dscp: None,
            class: Some(ClassId::BULK),
            carry: None,
            compress,
            headers,
            dedup: None,
            via: None,
        };
        let bulk = [ClassId::BULK];
        for (compress, headers, classes, expected) in [
            (None, None, [&[][..], &[]], Compress::All),
            (Some(false), None, [&[], &[]], Compress::Headers),
            (None, None, [&bulk, &[]], Compress::Headers),
            (None, None, [&[], &bulk], Compress::Nothing),
            (None, Some(true), [&[], &bulk], Compress::All),
            (Some(true), Some(false), [&[], &[]], Compress::Nothing),
        ] {
            let rules = [rule(compress, headers)];
            let label = label(&rules, classes, &packet, &syn, [10, 1, 0, 2].into());
            assert_eq!(label.compress, expected, "{compress:?} {headers:?} {classes:?}");
        }
    }

    #[test]
    fn quic_is_carried_in_order_and_a_rule_may_say_otherwise() {
        let esp = Rule {
            protocol: Some(50),
            ports: vec![],
            dscp: None,
            class: None,
            carry: Some(Carry::Ordered),
            compress: None,
            headers: None,
            dedup: None,
            via: None,
        };
        let no_quic = Rule { protocol: Some(17), carry: Some(Carry::Plain), ..esp.clone() };
        let at =
            |rules: &[Rule], protocol, ports| carry(rules, &Facts { protocol, ports, dscp: 0 });
        let quic = Some((50_000, 443));
        assert_eq!(at(&[], 17, quic), Carry::Ordered);
        assert_eq!(at(&[], TCP, quic), Carry::Plain);
        assert_eq!(at(&[esp.clone(), no_quic], 17, quic), Carry::Plain);
        assert_eq!(at(&[esp], 50, None), Carry::Ordered);
    }
}
