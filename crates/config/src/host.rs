//! A host as people and proxies name it: an address or a DNS name.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address, or a name that somebody has still to resolve.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// An address; IPv4-mapped IPv6 has become IPv4.
    Ip(IpAddr),
    /// A DNS name, at most 253 bytes of letters, digits, `-`, `_` and `.`.
    Name(String),
}

/// A host and a port, written `host:port`, with IPv6 addresses in brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// Where.
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

/// Why a text is no host, or no host and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Neither an address nor a DNS name.
    #[error("it is neither an address nor a DNS name")]
    NotAHost,
    /// The port is missing, 0, or above 65535.
    #[error("it needs a port from 1 to 65535 after a colon, as in \"203.0.113.7:4500\"")]
    NoPort,
    /// An IPv6 address without brackets, where the port cannot be told apart.
    #[error("an IPv6 address with a port needs brackets, as in \"[2001:db8::1]:4500\"")]
    NoBrackets,
}

/// RFC 1035 section 2.3.4, less the length octets of the wire form.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

impl FromStr for Host {
    type Err = HostError;

    fn from_str(s: &str) -> Result<Host, HostError> {
        if let Ok(ip) = s.parse::<IpAddr>() {
            return Ok(Host::Ip(ip.to_canonical()));
        }
        let name = s.strip_suffix('.').unwrap_or(s);
        if is_name(name) { Ok(Host::Name(name.to_owned())) } else { Err(HostError::NotAHost) }
    }
}

/// True for what may be asked of the DNS. A name whose last label is a number is
/// refused: resolvers read `127.1` or `0x7f.1` as addresses, and rules written for
/// addresses would not see them.
fn is_name(name: &str) -> bool {
    let label_ok = |l: &str| {
        !l.is_empty()
            && l.len() <= MAX_LABEL
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let last = name.rsplit('.').next().unwrap_or("");
    let numeric = last.bytes().all(|b| b.is_ascii_digit())
        || last
            .strip_prefix("0x")
            .or(last.strip_prefix("0X"))
            .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    name.len() <= MAX_NAME && name.split('.').all(label_ok) && !numeric
}

impl FromStr for HostPort {
    type Err = HostError;

    fn from_str(s: &str) -> Result<HostPort, HostError> {
        let (host, port) = match s.strip_prefix('[') {
            Some(rest) => {
                let (inside, after) = rest.split_once(']').ok_or(HostError::NotAHost)?;
                let ip: Ipv6Addr = inside.parse().map_err(|_| HostError::NotAHost)?;
                let port = after.strip_prefix(':').ok_or(HostError::NoPort)?;
                (Host::Ip(IpAddr::V6(ip).to_canonical()), port)
            }
            None => {
                if s.parse::<Ipv6Addr>().is_ok() {
                    return Err(HostError::NoBrackets);
                }
                let (host, port) = s.rsplit_once(':').ok_or(HostError::NoPort)?;
                if host.contains(':') {
                    return Err(HostError::NoBrackets);
                }
                (host.parse()?, port)
            }
        };
        Ok(HostPort { host, port: parse_port(port).ok_or(HostError::NoPort)? })
    }
}

/// A port from 1 to 65535 in plain decimal digits.
pub(crate) fn parse_port(s: &str) -> Option<u16> {
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    s.parse().ok().filter(|p| *p != 0)
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Ip(ip) => write!(f, "{ip}"),
            Host::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl From<[u8; 4]> for Host {
    fn from(b: [u8; 4]) -> Host {
        Host::Ip(IpAddr::V4(Ipv4Addr::from(b)))
    }
}

impl From<[u8; 16]> for Host {
    fn from(b: [u8; 16]) -> Host {
        Host::Ip(IpAddr::V6(Ipv6Addr::from(b)).to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_read_as_they_are_written() {
        for s in ["203.0.113.7:4500", "[2001:db8::1]:4500", "shore.example.net:1", "a_b.x:65535"] {
            assert_eq!(s.parse::<HostPort>().map(|h| h.to_string()), Ok(s.to_owned()));
        }
    }

    #[test]
    fn a_trailing_dot_is_dropped_and_mapped_addresses_become_ipv4() {
        assert_eq!("a.example.:1".parse::<HostPort>().unwrap().to_string(), "a.example:1");
        assert_eq!("::ffff:10.0.0.1".parse(), Ok(Host::from([10, 0, 0, 1])));
    }

    #[test]
    fn endpoints_without_a_usable_port_are_refused() {
        for s in ["203.0.113.7", "x:0", "x:", "x:65536", "x:+80", "[::1]", "[::1]80"] {
            assert_eq!(s.parse::<HostPort>(), Err(HostError::NoPort), "{s}");
        }
        assert_eq!("2001:db8::1".parse::<HostPort>(), Err(HostError::NoBrackets));
        assert_eq!("[2001:db8::g]:1".parse::<HostPort>(), Err(HostError::NotAHost));
    }

    #[test]
    fn names_that_resolvers_would_read_as_addresses_are_refused() {
        for s in ["127.1", "2130706433", "0x7f.1", "0x7f000001", "10.0.0", "1.2.3.4.5", "a.0X1f"] {
            assert_eq!(s.parse::<Host>(), Err(HostError::NotAHost), "{s}");
        }
        assert!("4chan.org".parse::<Host>().is_ok() && "0xdead.example".parse::<Host>().is_ok());
    }

    #[test]
    fn names_with_odd_bytes_or_lengths_are_refused() {
        let long = format!("{}.com", "a".repeat(64));
        for s in ["", ".", "a..b", "-a.b", "a b", "a\0b", "é.fr", long.as_str()] {
            assert_eq!(s.parse::<Host>(), Err(HostError::NotAHost), "{s:?}");
        }
    }
}
