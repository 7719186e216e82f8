//! The names of paths and carriers.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A path of a session (L-PT-1): 0 is the one that every session begins with, others are
/// numbered 2k + side, k ≥ 1, by the node that opens them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PathId(u8);

/// The most paths of a session.
pub const MAX_PATHS: usize = 8;

impl PathId {
    /// The path that every session begins with.
    pub const FIRST: PathId = PathId(0);
    /// The largest number that a header holds.
    const LAST: u8 = 31;

    /// The path of this number; `None` for numbers that no path has.
    pub const fn new(number: u8) -> Option<PathId> {
        match number {
            0 | 2..=PathId::LAST => Some(PathId(number)),
            _ => None,
        }
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Does every session begin with it?
    pub const fn is_first(self) -> bool {
        self.0 == 0
    }

    /// Is it opened by the node of this side (0 for the lower public key, else 1)?
    pub const fn is_opened_by(self, side: u64) -> bool {
        self.0 > 1 && (self.0 & 1) as u64 == side
    }

    /// The paths that the node of this side may open, in order.
    pub fn of_side(side: u64) -> impl Iterator<Item = PathId> {
        (2..=PathId::LAST).map(PathId).filter(move |id| id.is_opened_by(side))
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a node calls one of its carriers (L-PT-5): 16 bytes at most, none for one without a name.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CarrierName {
    len: u8,
    bytes: [u8; CarrierName::LONGEST],
}

impl CarrierName {
    /// The most bytes of a name: what says so of a path fits into the smallest packet.
    pub const LONGEST: usize = 16;

    /// These bytes, or `None` if they are too many or no text of one line.
    pub fn new(name: &[u8]) -> Option<CarrierName> {
        let mut bytes = [0; CarrierName::LONGEST];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        std::str::from_utf8(name).ok().filter(|text| !text.contains(char::is_control))?;
        Some(CarrierName { len: name.len() as u8, bytes })
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Has it none?
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for CarrierName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// The carriers of a class of traffic, best first.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CarrierNames([CarrierName; MAX_PATHS]);

impl CarrierNames {
    /// These names; `None` if they are more than a session has paths.
    pub fn new(names: &[CarrierName]) -> Option<CarrierNames> {
        let mut all = CarrierNames::default();
        all.0.get_mut(..names.len())?.copy_from_slice(names);
        Some(all)
    }

    /// The names.
    pub fn iter(&self) -> impl Iterator<Item = CarrierName> {
        self.0.iter().copied().filter(|name| !name.is_empty())
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// Where packets enter and leave a node: a number that the owner of the endpoint gives to
/// each of its sockets and lines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CarrierId(pub u8);

/// Where packets of a peer come from and go to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Remote {
    /// On this carrier of the node.
    pub carrier: CarrierId,
    /// Its address there; `None` on a carrier that has one other end only.
    pub addr: Option<SocketAddr>,
}

impl Remote {
    /// Does the carrier put IPv6 headers before each packet?
    pub fn is_ipv6(&self) -> bool {
        self.addr.is_some_and(|a| a.ip().to_canonical().is_ipv6())
    }

    /// An address that stands for it where sources are told apart.
    pub(crate) fn source(&self) -> SocketAddr {
        let port = u16::from(self.carrier.0);
        self.addr.unwrap_or(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port))
    }
}

impl From<SocketAddr> for Remote {
    /// On the first carrier.
    fn from(addr: SocketAddr) -> Remote {
        Remote { carrier: CarrierId(0), addr: Some(addr) }
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.addr {
            Some(addr) => addr.fmt(f),
            None => write!(f, "carrier {}", self.carrier.0),
        }
    }
}
