//! Addresses that are private: several networks may have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Does this address belong to nobody in the wide world, so that another host may have it
/// elsewhere? Addresses in IPv6 that hold one of IPv4 count as private, whichever that is.
pub fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || a == 0
                || (a == 100 && b & 0xc0 == 64)
                // Benchmarks (RFC 2544), and what nobody has (RFC 1112), the broadcast among it.
                || (a == 198 && b & 0xfe == 18)
                || a >= 240
        }
        IpAddr::V6(v6) => {
            v6.is_multicast()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
                // Site-local (RFC 3879).
                || v6.segments()[0] & 0xffc0 == 0xfec0
                || leads_to_v4(v6)
        }
    }
}

/// Does it hold an IPv4 address, whatever that is ([`embedded_v4`])? The loopback and the
/// unspecified address count too, and all of a NAT64 of one's own (RFC 8215).
fn leads_to_v4(v6: Ipv6Addr) -> bool {
    v6.to_bits() >> 32 == 0 || is_local_nat64(v6) || embedded_v4(v6).next().is_some()
}

fn is_local_nat64(v6: Ipv6Addr) -> bool {
    v6.to_bits() >> 80 == 0x64_ff9b_0001
}

/// The IPv4 addresses that an IPv6 address holds, to which packets for it may go. One in
/// `::ffff:0:0/96` is not looked for: that is an IPv4 address (`IpAddr::to_canonical`).
///
/// `::/96` (RFC 4291) but for the loopback and the unspecified address, `::ffff:0:0:0/96`
/// (RFC 2765), NAT64's `64:ff9b::/96` (RFC 6052), 6to4's `2002::/16` (RFC 3056) and ISATAP's
/// interface identifiers (RFC 5214) hold one; Teredo's `2001::/32` (RFC 4380) holds its server's,
/// and its client's with all bits inverted.
pub fn embedded_v4(v6: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    const IPV4_TRANSLATED: u128 = 0xffff_0000;
    const NAT64: u128 = 0x64_ff9b << 64;
    let bits = v6.to_bits();
    let at = |shift: u32| Ipv4Addr::from_bits((bits >> shift) as u32);
    // The bit that tells a global IPv4 address from a private one may be wrong.
    let is_isatap = bits as u64 >> 32 & !0x0200_0000 == 0x5efe;
    let last = match bits >> 32 {
        0 => bits > 1,
        IPV4_TRANSLATED | NAT64 => true,
        _ => is_isatap,
    };
    let is_teredo = bits >> 96 == 0x2001_0000;
    let all = [
        last.then(|| at(0)),
        (bits >> 112 == 0x2002).then(|| at(80)),
        is_teredo.then(|| at(64)),
        is_teredo.then(|| Ipv4Addr::from_bits(!at(0).to_bits())),
    ];
    all.into_iter().flatten()
}

/// The IPv4 addresses that an address of a NAT64 of one's own, `64:ff9b:1::/48` (RFC 8215), may
/// lead to. Only its operator knows where they begin: all four places that RFC 6052, section 2.2,
/// has for prefixes of 48 bits or more are read.
pub fn local_nat64_v4(v6: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let bits = v6.to_bits();
    let all = [
        (bits >> 64 & 0xffff) << 16 | bits >> 40 & 0xffff,
        (bits >> 64 & 0xff) << 24 | bits >> 32 & 0xff_ffff,
        bits >> 24 & 0xffff_ffff,
        bits & 0xffff_ffff,
    ];
    let all = all.into_iter().filter(move |_| is_local_nat64(v6));
    all.map(|v4| Ipv4Addr::from_bits(v4 as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nobody_are_known_in_every_way_of_writing_them() {
        for private in [
            "10.0.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.31.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b::9.9.9.9",
            "64:ff9b:1::1",
            "2002:a00:1::1",
            "2001::1",
            "2001:0:cb00:7101::3433:9bfd",
            "2001:db8::5efe:10.0.0.1",
            "2001:db8::200:5efe:198.51.100.1",
            "::ffff:0:10.0.0.1",
            "fec0::1",
            "feff::1",
            "198.18.0.1",
            "198.19.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in [
            "9.9.9.9",
            "100.128.0.1",
            "172.32.0.1",
            "198.20.0.1",
            "2001:db8::1",
            "64:ff9b:2::1",
            "2001:1::1",
            "2001:db8::100:5efe:10.0.0.1",
            "2003::1",
        ] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn the_addresses_that_an_address_holds_are_read_where_each_format_has_them() {
        for (v6, held) in [
            ("2001:db8::1", &[][..]),
            ("::", &[]),
            ("::1", &[]),
            ("64:ff9b:1::10.0.0.1", &[]),
            ("::10.0.0.1", &["10.0.0.1"]),
            ("::ffff:0:10.0.0.1", &["10.0.0.1"]),
            ("64:ff9b::10.0.0.1", &["10.0.0.1"]),
            ("2002:a00:1:5::6", &["10.0.0.1"]),
            ("fe80::5efe:10.0.0.1", &["10.0.0.1"]),
            ("2001:db8::200:5efe:9.9.9.9", &["9.9.9.9"]),
            // Teredo: flags and the client's port stand between the two.
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", &["65.54.227.120", "192.0.2.45"]),
        ] {
            let found: Vec<_> = embedded_v4(v6.parse().unwrap()).map(|v4| v4.to_string()).collect();
            assert_eq!(found, held, "{v6}");
        }
    }

    #[test]
    fn the_addresses_of_a_nat64_of_ones_own_are_read_wherever_its_prefix_ends() {
        for v6 in [
            "64:ff9b:1:a00:0:100::",
            "64:ff9b:1:a:0:1::",
            "64:ff9b:1:0:a:0:100:0",
            "64:ff9b:1:ffff:ffff:ffff:10.0.0.1",
        ] {
            let v4 = Ipv4Addr::new(10, 0, 0, 1);
            assert!(local_nat64_v4(v6.parse().unwrap()).any(|found| found == v4), "{v6}");
        }
        assert_eq!(local_nat64_v4("64:ff9b:2::10.0.0.1".parse().unwrap()).next(), None);
    }
}
