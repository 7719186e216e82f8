//! Addresses that are private: several networks may have them.

use std::net::{IpAddr, Ipv6Addr};

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

/// Is there an IPv4 address in it, whatever that is? `::/96` (RFC 4291), NAT64 (RFC 6052, RFC 8215)
/// and 6to4 (RFC 3056) have one; the loopback and the unspecified address are in the first.
fn leads_to_v4(v6: Ipv6Addr) -> bool {
    let network = v6.to_bits() >> 32;
    network == 0
        || network == 0x64_ff9b << 64
        || network >> 48 == 0x64_ff9b_0001
        || network >> 80 == 0x2002
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
            "2003::1",
        ] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }
}
