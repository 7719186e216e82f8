//! What this node does for a peer: for which source addresses it speaks, and where
//! this node connects on its behalf.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use link::PeerId;
use link::session::{ClassId, Label};
use link::wire::{Origin, Target};
use squeeze::dedup::Scope;
use units::{IpPrefix, embedded_v4, local_nat64_v4};

use crate::classify::{self, Rule, Share};
use crate::connects;
use crate::flows::Kind;
use crate::packet::{Facts, Packet, TCP};
use crate::self_test;

/// The rules of one peer.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Prefixes that live behind the peer.
    pub routes: Vec<IpPrefix>,
    /// Destinations opened for it although they are denied by default.
    pub allow: Vec<IpPrefix>,
    /// Destinations closed to it, whatever else is said.
    pub deny: Vec<IpPrefix>,
    /// True: servers see the client's own address. False: this node's.
    pub keep_source: bool,
    /// Which class what we send it is in; the first that matches.
    pub rules: Vec<Rule>,
    /// Classes whose streams are not compressed unless a rule says it.
    pub plain_classes: Vec<ClassId>,
    /// Classes of which headers of unsplit packets are not, unless a rule says it.
    pub plain_headers: Vec<ClassId>,
    /// What streams share chunks with, where the link deduplicates, unless their class or a
    /// rule says otherwise.
    pub dedup: Share,
    /// The same by class.
    pub dedup_classes: Vec<(ClassId, Share)>,
    /// When clients here that want to reach something behind the peer are answered.
    pub open: Open,
    /// With [`Open::Auto`]: ports where every server is expected to answer whose address
    /// family works at the far side.
    pub fast_ports: Vec<u16>,
    /// QUIC's first packets to it are refused, so that browsers use TCP.
    pub refuse_quic: bool,
    /// Connections that it may cause here in a second; `None`: [`DEFAULT_CONNECTS`]. What may
    /// come at once, to one destination and without an answer follows from it.
    pub connects: Option<u32>,
}

/// When a client is told that its connection stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Open {
    /// At once; where there is no connection after all it is reset.
    Fast,
    /// When the far side has connected.
    Sure,
    /// At once where an answer is to be expected, else when the far side has connected.
    #[default]
    Auto,
}

/// Blocks of addresses that are named one by one as denied anew.
const MOST_DENIED: usize = 64;

impl Policy {
    /// Connections that it may cause here in a second.
    pub(crate) fn connects(&self) -> u32 {
        self.connects.unwrap_or(connects::DEFAULT)
    }

    /// May this node connect, or pass packets, to `addr` for the peer? `own` are this
    /// node's addresses, which like all special ones are denied unless listed.
    pub fn permits(&self, addr: IpAddr, own: &[IpPrefix]) -> bool {
        let addr = addr.to_canonical();
        let listed = |list: &[IpPrefix]| is_in(list, addr);
        if listed(&self.deny) || never(addr) {
            return false;
        }
        // Where the address begins in that of a NAT64 of one's own is not known, so that `allow`
        // says nothing of it.
        if let IpAddr::V6(v6) = addr
            && local_nat64_v4(v6).any(|inner| is_in(&self.deny, inner.into()))
        {
            return false;
        }
        // A NAT64, or the end of a tunnel, leads to the IPv4 address, whoever runs it.
        if let IpAddr::V6(v6) = addr
            && embedded_v4(v6).any(|inner| !self.permits(inner.into(), own))
        {
            return false;
        }
        listed(&self.allow) || !(special(addr) || is_in(own, addr))
    }

    /// Addresses to which `before` let connections be, and this does not, in blocks, as far as
    /// `allow` and `deny` say it themselves. Of more than 64 blocks it is all that they lie in.
    pub fn denied_since(&self, before: &Policy) -> Vec<IpPrefix> {
        let are_in = |all: &[IpPrefix], p: &IpPrefix| all.iter().any(|block| block.covers(p));
        let lost = before.allow.iter().filter(|p| !are_in(&self.allow, p)).copied();
        let lost: Vec<IpPrefix> = lost.collect();
        let mut denied = self.allow.iter().fold(lost.clone(), |mut rest, allowed| {
            // No more than is told is worth the work.
            if rest.len() <= MOST_DENIED {
                rest = rest.iter().flat_map(|block| block.without(allowed)).collect();
            }
            rest
        });
        if denied.len() > MOST_DENIED {
            denied = lost;
        }
        denied.extend(self.deny.iter().filter(|p| !are_in(&before.deny, p)));
        if denied.len() > MOST_DENIED {
            denied = vec![IpPrefix::ALL_V4, IpPrefix::ALL_V6];
        }
        denied
    }

    /// What a connection is: `from_here`, or opened by the peer.
    pub(crate) fn kind(&self, origin: &Origin, from_here: bool) -> Kind {
        let port = match &origin.target {
            Target::Address(a) => a.port(),
            Target::Name(_, port) => *port,
            Target::Service(..) => 0,
        };
        let ports = Some((origin.client.map_or(0, |c| c.port()), port));
        let facts = Facts { protocol: TCP, ports, dscp: origin.dscp };
        let (class, chosen_by) = classify::chosen(&self.rules, &facts);
        let compress = classify::compress(&self.rules, &facts);
        let compress = compress.unwrap_or(!self.plain_classes.contains(&class));
        let host = origin.client.map(|c| c.ip());
        if self_test::is_for_service(&origin.target) {
            // Whatever the rules say of others: it gives way to them, and what crosses once
            // is not kept for a second time.
            let (class, scope) = (ClassId::BULK, None);
            return Kind { class, chosen_by, host, port, from_here, compress, scope };
        }
        let by_class = || self.dedup_classes.iter().find(|(c, _)| *c == class).map(|(_, s)| *s);
        let share = classify::share(&self.rules, &facts).or_else(by_class);
        let scope = match share.unwrap_or(self.dedup) {
            Share::Off => None,
            Share::Lan => Some(Scope::Lan),
            Share::Host => host.map(Scope::Host),
        };
        Kind { class, chosen_by, host, port, from_here, compress, scope }
    }

    /// What an unsplit packet is; `host` is the one of its two that is in a LAN.
    pub(crate) fn label(&self, packet: &Packet, bytes: &[u8], host: IpAddr) -> Label {
        let plain = [&self.plain_classes[..], &self.plain_headers];
        classify::label(&self.rules, plain, packet, bytes, host)
    }
}

/// What each peer may do, by its slot.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    of: Vec<Option<Policy>>,
    /// Connections that each may have at once.
    most_flows: Vec<usize>,
}

impl Policies {
    pub fn of(&self, peer: PeerId) -> Option<&Policy> {
        self.of.get(peer.index())?.as_ref()
    }

    pub fn set(&mut self, peer: PeerId, policy: Policy) {
        if self.of.len() <= peer.index() {
            self.of.resize(peer.index() + 1, None);
        }
        self.of[peer.index()] = Some(policy);
    }

    /// Connections with the peer at once.
    pub fn most_flows(&self, peer: PeerId) -> usize {
        self.most_flows.get(peer.index()).copied().unwrap_or(0)
    }

    pub fn set_most_flows(&mut self, peer: PeerId, most: usize) {
        if self.most_flows.len() <= peer.index() {
            self.most_flows.resize(peer.index() + 1, 0);
        }
        self.most_flows[peer.index()] = most;
    }

    /// The peer may do nothing any more.
    pub fn clear(&mut self, peer: PeerId) {
        if let Some(slot) = self.of.get_mut(peer.index()) {
            *slot = None;
        }
    }

    /// What a connection of the peer's, or for it, is.
    pub fn kind(&self, peer: PeerId, origin: &Origin, from_here: bool) -> Kind {
        let nobodys = || Policy::default().kind(origin, from_here);
        self.of(peer).map_or_else(nobodys, |policy| policy.kind(origin, from_here))
    }
}

/// Is the address in one of these blocks?
pub(crate) fn is_in(blocks: &[IpPrefix], addr: IpAddr) -> bool {
    blocks.iter().any(|block| block.contains(addr))
}

/// Addresses that are no destination at all.
pub(crate) fn never(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(a) => a.is_unspecified() || a.is_broadcast() || a.is_multicast(),
        IpAddr::V6(a) => a.is_unspecified() || a.is_multicast(),
    }
}

/// Addresses that are not the Internet's (IANA special-purpose registries, RFC 6890):
/// this host, link-local (metadata services live there), private, shared, reserved,
/// and IPv6 forms that smuggle an IPv4 address past an IPv4 rule.
fn special(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(a) => special_v4(a),
        IpAddr::V6(a) => special_v6(a),
    }
}

fn special_v4(a: Ipv4Addr) -> bool {
    let [x, y, ..] = a.octets();
    a.is_loopback()
        || a.is_private()
        || a.is_link_local()
        || x == 0
        || x >= 240
        || x == 100 && (64..128).contains(&y) // RFC 6598, shared address space
        || x == 192 && y == 0 && a.octets()[2] == 0 // RFC 6890, protocol assignments
        || x == 198 && (18..20).contains(&y) // RFC 2544, benchmarking
        || a == AZURE
}

/// The metadata host of one cloud ("What is IP address 168.63.129.16?", Azure's documentation):
/// others have theirs at link-local addresses.
const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

fn special_v6(a: Ipv6Addr) -> bool {
    let s = a.segments();
    a.is_loopback()
        || a.is_unique_local()
        || a.is_unicast_link_local()
        || s[0] & 0xffc0 == 0xfec0 // RFC 3879, old site-local
        || a.to_bits() >> 64 == 0 // RFC 4291 IPv4-compatible, RFC 2765 IPv4-translated
        || s[0] == 0x64 && s[1] == 0xff9b && s[2] == 1 // RFC 8215, local NAT64
        || s[0] == 0x2002 // RFC 3056, 6to4
        || s[0] == 0x2001 && s[1] == 0 // RFC 4380, Teredo
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(policy: &Policy, addr: &str) -> bool {
        let own = ["203.0.113.7/32", "2001:db8::7/128", "192.0.2.64/26", "2001:db8:9::/48"];
        let own = own.map(|block| block.parse().unwrap());
        policy.permits(addr.parse().unwrap(), &own)
    }

    #[test]
    fn the_hub_itself_and_private_ranges_are_denied_unless_listed() {
        let policy = Policy { allow: vec!["10.2.0.0/24".parse().unwrap()], ..Policy::default() };
        for addr in [
            "127.0.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "fe80::1",
            "10.3.0.1",
            "192.168.1.1",
            "::ffff:192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "0.0.0.0",
            "::",
            "255.255.255.255",
            "224.0.0.1",
            "ff02::1",
            "fd00::1",
            "203.0.113.7",
            "2001:db8::7",
            "::ffff:203.0.113.7",
            "192.0.2.100",
            "2001:db8:9:1::5",
            "64:ff9b::192.0.2.127",
            "64:ff9b::a00:1",
            "64:ff9b::203.0.113.7",
            "168.63.129.16",
            "2002:a00:1::",
            "2001:0:c633:6401::39cc:9bfe",
            "2001:db8:7::5efe:10.0.0.1",
            "2001:db8:7::200:5efe:192.0.2.127",
            "::10.0.0.1",
            "::ffff:0:10.0.0.1",
        ] {
            assert!(!permits(&policy, addr), "{addr} is open");
        }
        let open = ["10.2.0.9", "::ffff:10.2.0.9", "198.51.100.1", "2001:db8::8", "192.0.2.63"];
        for addr in open {
            assert!(permits(&policy, addr), "{addr} is closed");
        }
    }

    #[test]
    fn deny_wins_over_allow() {
        let policy = Policy {
            allow: vec!["10.2.0.0/24".parse().unwrap(), "127.0.0.1/32".parse().unwrap()],
            deny: vec!["10.2.0.8/32".parse().unwrap()],
            ..Policy::default()
        };
        assert!(permits(&policy, "10.2.0.9"));
        assert!(permits(&policy, "127.0.0.1"));
        assert!(!permits(&policy, "10.2.0.8"));
        assert!(permits(&policy, "64:ff9b::198.51.100.7"));
        assert!(!permits(&policy, "64:ff9b::10.2.0.8"));
    }

    #[test]
    fn what_is_denied_anew_is_named_and_nothing_that_may_still_be_reached() {
        let policy = |allow: &[&str], deny: &[&str]| {
            let [allow, deny] =
                [allow, deny].map(|list| list.iter().map(|p| p.parse().unwrap()).collect());
            Policy { allow, deny, ..Policy::default() }
        };
        let denied = |before: &Policy, now: &Policy| {
            now.denied_since(before).iter().map(IpPrefix::to_string).collect::<Vec<_>>()
        };
        let wide = policy(&["10.2.0.0/16", "2001:db8::/32"], &[]);
        let narrow = policy(&["10.2.0.0/17"], &["10.2.0.8/32"]);
        assert_eq!(denied(&wide, &wide), [""; 0]);
        assert_eq!(denied(&narrow, &wide), [""; 0], "more is allowed and less denied");
        let anew = ["10.2.128.0/17", "2001:db8::/32", "10.2.0.8/32"];
        assert_eq!(denied(&wide, &narrow), anew);
        // The same in other words.
        let halves = policy(&["10.2.0.0/17", "10.2.128.0/17"], &["10.2.0.8/31"]);
        let whole = policy(&["10.2.0.0/16"], &["10.2.0.8/32", "10.2.0.9/32"]);
        assert_eq!(denied(&halves, &whole), [""; 0]);
        assert_eq!(denied(&policy(&["10.2.0.0/16"], &[]), &halves), ["10.2.0.8/31"]);
        // Too many to name: what they lie in, and of very many all that there is.
        let holes: Vec<String> = (0..20).map(|n| format!("10.2.{n}.{n}/32")).collect();
        let holes: Vec<&str> = holes.iter().map(String::as_str).collect();
        let all = policy(&["10.0.0.0/8"], &[]);
        assert_eq!(denied(&all, &policy(&holes[..2], &[])).len(), 31);
        assert_eq!(denied(&all, &policy(&holes, &[])), ["10.0.0.0/8"]);
        let hosts: Vec<String> = (0..65).map(|n| format!("10.2.0.{n}/32")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        assert_eq!(denied(&all, &policy(&["10.0.0.0/8"], &hosts[..64])), hosts[..64]);
        assert_eq!(denied(&all, &policy(&["10.0.0.0/8"], &hosts)), ["0.0.0.0/0", "::/0"]);
    }

    /// What is listed opens no IPv4 address that is in it: that is judged as if it came alone.
    #[test]
    fn an_ipv4_address_in_one_of_ipv6_is_judged_as_if_it_came_alone() {
        let policy = Policy {
            allow: ["::/0", "10.2.0.0/24"].map(|block| block.parse().unwrap()).into(),
            deny: vec!["10.2.0.8/32".parse().unwrap()],
            ..Policy::default()
        };
        // Teredo: of 198.51.100.1 as the server and as the client, with the other end at fault.
        for closed in [
            "2001:0:a02:8::39cc:9bfe",
            "2001:0:a03:1::39cc:9bfe",
            "2001:0:c633:6401::f5fd:fff7",
            "2001:0:c633:6401::f5fc:fffe",
            "2001:0:c633:6401::5601:fff7",
            "2001:0:7f00:1::39cc:9bfe",
            "2001:0:c633:6401::34ff:8ef8",
            "2002:a02:8::1",
            "2002:a03:1::1",
            "2001:db8:7::5efe:10.2.0.8",
            "2001:db8:7::5efe:10.3.0.1",
            "::10.2.0.8",
            "::ffff:0:10.2.0.8",
            "64:ff9b::10.2.0.8",
        ] {
            assert!(!permits(&policy, closed), "{closed} is open");
        }
        for open in [
            "::1",
            "2001:0:c633:6401::39cc:9bfe",
            "2001:0:a02:9::f5fd:fff6",
            "2002:a02:9::1",
            "2002:c633:6401::1",
            "2001:db8:7::5efe:10.2.0.9",
            "::10.2.0.9",
            "64:ff9b::198.51.100.1",
        ] {
            assert!(permits(&policy, open), "{open} is closed");
        }
    }
}
