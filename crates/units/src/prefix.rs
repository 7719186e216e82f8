//! Blocks of addresses such as `10.2.0.0/24`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of addresses such as `10.2.0.0/24` or `2001:db8::/32`.
///
/// IPv4-mapped IPv6 forms (`::ffff:a.b.c.d`, RFC 4291 section 2.5.5.2) are kept and
/// compared as the IPv4 addresses they mean, so a rule for `10.0.0.0/8` cannot be
/// walked around by writing the address the other way. The host bits are always zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPrefix {
    addr: IpAddr,
    len: u8,
}

/// Why a text is not an [`IpPrefix`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsePrefixError {
    /// Not an address, or not an address and a length.
    NotAPrefix(String),
    /// The length is above 32 (IPv4) or 128 (IPv6).
    TooLong {
        /// What was written.
        given: String,
        /// The longest length of this address family.
        longest: u8,
    },
    /// Bits beyond the length are set; it may mean the block or the one address.
    HostBits {
        /// What was written.
        given: String,
        /// The block that it lies in.
        block: IpPrefix,
        /// The address alone.
        host: IpPrefix,
    },
}

impl IpPrefix {
    /// Every IPv4 address.
    pub const ALL_V4: IpPrefix = IpPrefix { addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED), len: 0 };
    /// Every IPv6 address.
    pub const ALL_V6: IpPrefix = IpPrefix { addr: IpAddr::V6(Ipv6Addr::UNSPECIFIED), len: 0 };

    /// The block of `len` leading bits that `addr` lies in; a `len` above the
    /// address's length counts as the whole address. Mapped IPv4 becomes IPv4 when
    /// `len` covers the mapping (96 or more).
    pub fn new(addr: IpAddr, len: u8) -> IpPrefix {
        match addr {
            IpAddr::V4(v4) => IpPrefix::new_v4(v4, len),
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) if len >= 96 => IpPrefix::new_v4(v4, len - 96),
                _ => IpPrefix::new_v6(v6, len),
            },
        }
    }

    /// The block that holds this address alone.
    pub fn host(addr: IpAddr) -> IpPrefix {
        IpPrefix::new(addr, 128)
    }

    fn new_v4(addr: Ipv4Addr, len: u8) -> IpPrefix {
        let len = len.min(32);
        let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
        IpPrefix { addr: IpAddr::V4(Ipv4Addr::from_bits(addr.to_bits() & mask)), len }
    }

    fn new_v6(addr: Ipv6Addr, len: u8) -> IpPrefix {
        let len = len.min(128);
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        IpPrefix { addr: IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() & mask)), len }
    }

    /// The first address of the block.
    pub const fn addr(&self) -> IpAddr {
        self.addr
    }

    /// The number of leading bits that count: 0–32 for IPv4, 0–128 for IPv6.
    #[allow(clippy::len_without_is_empty)] // a prefix is never empty
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// True for a block of IPv4 addresses.
    pub const fn is_v4(&self) -> bool {
        self.addr.is_ipv4()
    }

    /// True if `addr` lies in the block; mapped IPv4 counts as IPv4, so `::/0` does
    /// not hold `::ffff:10.0.0.1` and `10.0.0.0/8` does.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.addr, addr.to_canonical()) {
            (IpAddr::V4(_), IpAddr::V4(a)) => IpPrefix::new_v4(a, self.len).addr == self.addr,
            (IpAddr::V6(_), IpAddr::V6(a)) => IpPrefix::new_v6(a, self.len).addr == self.addr,
            _ => false,
        }
    }

    /// True if every address of `other` lies in this block.
    pub fn covers(&self, other: &IpPrefix) -> bool {
        self.is_v4() == other.is_v4() && self.len <= other.len && self.contains(other.addr)
    }

    /// True if some address lies in both blocks.
    pub fn overlaps(&self, other: &IpPrefix) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// This block without `other`, in blocks: one for each bit by which `other` is longer.
    ///
    /// ```
    /// let [block, without] = ["10.2.0.0/16", "10.2.64.0/18"].map(|p| p.parse().unwrap());
    /// let rest = units::IpPrefix::without(&block, &without);
    /// let rest: Vec<String> = rest.map(|p| p.to_string()).collect();
    /// assert_eq!(rest, ["10.2.128.0/17", "10.2.0.0/18"]);
    /// ```
    pub fn without(&self, other: &IpPrefix) -> impl Iterator<Item = IpPrefix> + use<> {
        let (whole, other) = (*self, *other);
        let cut = whole.covers(&other).then_some(whole.len + 1..=other.len);
        let rest = cut.into_iter().flatten().map(move |len| other.sibling(len));
        (!whole.overlaps(&other)).then_some(whole).into_iter().chain(rest)
    }

    /// The other half of the block of `len - 1` bits of which one half of `len` bits has this one.
    fn sibling(&self, len: u8) -> IpPrefix {
        match self.addr {
            IpAddr::V4(v4) => IpPrefix::new_v4((v4.to_bits() ^ 1 << (32 - len)).into(), len),
            IpAddr::V6(v6) => IpPrefix::new_v6((v6.to_bits() ^ 1 << (128 - len)).into(), len),
        }
    }
}

impl From<IpAddr> for IpPrefix {
    fn from(addr: IpAddr) -> IpPrefix {
        IpPrefix::host(addr)
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}
impl fmt::Debug for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for IpPrefix {
    type Err = ParsePrefixError;

    /// `"10.2.0.0/24"`, `"2001:db8::/32"`, or a bare address, which means itself
    /// alone. Set host bits are refused: they hide which of two things was meant.
    fn from_str(s: &str) -> Result<IpPrefix, ParsePrefixError> {
        let given = s.trim();
        let bad = || ParsePrefixError::NotAPrefix(given.to_owned());
        let (addr, len) = match given.split_once('/') {
            Some((addr, len)) => (addr, Some(len)),
            None => (given, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let longest = if addr.is_ipv4() { 32 } else { 128 };
        let len = match len {
            None => longest,
            // u8's parser would also take "+8".
            Some(text) if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() => {
                text.parse().unwrap_or(u8::MAX)
            }
            Some(_) => return Err(bad()),
        };
        if len > longest {
            return Err(ParsePrefixError::TooLong { given: given.to_owned(), longest });
        }
        let block = IpPrefix::new(addr, len);
        let host = IpPrefix::host(addr);
        if block.addr != host.addr {
            return Err(ParsePrefixError::HostBits { given: given.to_owned(), block, host });
        }
        Ok(block)
    }
}

impl fmt::Display for ParsePrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParsePrefixError::NotAPrefix(given) => {
                write!(f, "\"{given}\" is not a prefix such as \"10.2.0.0/24\" or \"::/0\"")
            }
            ParsePrefixError::TooLong { given, longest } => {
                write!(f, "\"{given}\" is longer than an address: at most /{longest}")
            }
            ParsePrefixError::HostBits { given, block, host } => write!(
                f,
                "\"{given}\" has bits set beyond its length: write \"{block}\" or \"{host}\""
            ),
        }
    }
}
impl std::error::Error for ParsePrefixError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(s: &str) -> IpPrefix {
        s.parse().unwrap_or_else(|e| panic!("{e}"))
    }
    fn addr(s: &str) -> IpAddr {
        s.parse().expect("an address")
    }

    #[test]
    fn a_prefix_holds_its_first_and_last_address_and_not_the_next() {
        let p = prefix("10.2.0.0/23");
        assert!(p.contains(addr("10.2.0.0")) && p.contains(addr("10.2.1.255")));
        assert!(!p.contains(addr("10.2.2.0")) && !p.contains(addr("10.1.255.255")));
        let p = prefix("2001:db8::/33");
        assert!(p.contains(addr("2001:db8:7fff::1")) && !p.contains(addr("2001:db8:8000::")));
    }

    #[test]
    fn default_routes_hold_everything_of_their_family_only() {
        assert!(prefix("0.0.0.0/0").contains(addr("255.255.255.255")));
        assert!(prefix("::/0").contains(addr("ffff::1")));
        assert!(!prefix("::/0").contains(addr("1.2.3.4")));
        assert_eq!((prefix("0.0.0.0/0"), prefix("::/0")), (IpPrefix::ALL_V4, IpPrefix::ALL_V6));
    }

    #[test]
    fn mapped_ipv4_is_ipv4_however_it_is_written() {
        assert!(prefix("10.0.0.0/8").contains(addr("::ffff:10.1.2.3")));
        assert!(!prefix("::/0").contains(addr("::ffff:10.1.2.3")));
        assert_eq!(prefix("::ffff:10.0.0.0/104"), prefix("10.0.0.0/8"));
        assert_eq!(prefix("::ffff:0:0/96"), IpPrefix::ALL_V4);
        assert_eq!(IpPrefix::host(addr("::ffff:127.0.0.1")), prefix("127.0.0.1"));
    }

    #[test]
    fn set_host_bits_are_refused_with_both_meanings() {
        let e = "10.2.0.1/24".parse::<IpPrefix>().unwrap_err();
        assert_eq!(
            e.to_string(),
            "\"10.2.0.1/24\" has bits set beyond its length: \
             write \"10.2.0.0/24\" or \"10.2.0.1/32\""
        );
    }

    #[test]
    fn what_is_no_prefix_is_refused() {
        for bad in ["", "/", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8", "10.0/8", "x/8", "::/-1"] {
            assert_eq!(bad.parse::<IpPrefix>(), Err(ParsePrefixError::NotAPrefix(bad.to_owned())));
        }
        for long in ["10.0.0.0/33", "::/129", "10.0.0.0/99999999999"] {
            let e = long.parse::<IpPrefix>().unwrap_err();
            assert!(matches!(e, ParsePrefixError::TooLong { .. }), "{long}: {e}");
        }
    }

    #[test]
    fn covering_and_overlapping_agree() {
        let (wide, narrow, other) =
            (prefix("10.0.0.0/8"), prefix("10.2.0.0/16"), prefix("11.0.0.0/8"));
        assert!(wide.covers(&narrow) && !narrow.covers(&wide) && wide.covers(&wide));
        assert!(narrow.overlaps(&wide) && wide.overlaps(&narrow) && !wide.overlaps(&other));
        assert!(!IpPrefix::ALL_V6.covers(&wide));
    }

    #[test]
    fn text_comes_back_as_it_went() {
        for s in ["10.2.0.0/24", "192.0.2.7/32", "2001:db8::/32", "::1/128", "0.0.0.0/0", "::/0"] {
            assert_eq!(prefix(s).to_string(), s);
        }
        assert_eq!(prefix("192.0.2.7").to_string(), "192.0.2.7/32");
    }

    #[test]
    fn a_block_without_another_is_what_the_other_has_not() {
        let rest = |a: &str, b: &str| {
            prefix(a).without(&prefix(b)).map(|p| p.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(rest("10.2.0.0/16", "10.2.0.0/16"), [""; 0]);
        assert_eq!(rest("10.2.0.0/24", "10.2.0.0/16"), [""; 0]);
        assert_eq!(rest("10.2.0.0/16", "10.3.0.0/16"), ["10.2.0.0/16"]);
        assert_eq!(rest("10.2.0.0/16", "::/0"), ["10.2.0.0/16"]);
        assert_eq!(rest("0.0.0.0/0", "128.0.0.0/2"), ["0.0.0.0/1", "192.0.0.0/2"]);
        let host: Vec<_> = prefix("::/0").without(&prefix("2001:db8::1/128")).collect();
        assert_eq!(host.len(), 128);
        assert!(!host.iter().any(|p| p.contains(addr("2001:db8::1"))));
        for other in ["2001:db8::", "2001:db8::2", "::", "ffff::"] {
            assert_eq!(host.iter().filter(|p| p.contains(addr(other))).count(), 1, "{other}");
        }
    }
}
