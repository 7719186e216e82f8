//! What the kernel delivers to this host: its routing table "local", asked by rtnetlink(7).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use units::IpPrefix;

use crate::OsError;
use crate::error::OrCannot;
use crate::netlink::{HEAD, Netlink, attributes, kind, messages};
use crate::sys::set_option;

/// Bytes of a `struct rtmsg`, the fixed part of what is told of a route.
const ROUTE: usize = 12;

/// The prefixes of the table "local", of both families, in the calling thread's network namespace.
pub(super) fn delivered() -> Result<Vec<IpPrefix>, OsError> {
    let mut all = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        match dump(family as u8, &mut all) {
            Ok(()) => {}
            // This system has no IPv6, or its table nothing.
            Err(e) if e.raw_os_error().is_some_and(is_nothing) => {}
            Err(e) => return Err(e).or_cannot(|| "list what is delivered to this host".into()),
        }
    }
    Ok(all)
}

fn is_nothing(error: i32) -> bool {
    [libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::ENOENT].contains(&error)
}

fn dump(family: u8, all: &mut Vec<IpPrefix>) -> io::Result<()> {
    let socket = Netlink::open(0, 0)?;
    // The kernel then tells of this table alone, and not of the Internet's 10^6 routes beside it.
    // One before 4.20 cannot: all is looked at here in any case.
    let _ = set_option(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1i32);
    socket.send(&question(family))?;
    loop {
        if socket.receive(|bytes| take(family, bytes, all))?? {
            return Ok(());
        }
    }
}

fn question(family: u8) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEAD + ROUTE);
    message.extend(((HEAD + ROUTE) as u32).to_ne_bytes());
    message.extend(libc::RTM_GETROUTE.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    message.extend([0; 8]); // number and sender
    message.extend([family, 0, 0, 0, libc::RT_TABLE_LOCAL, 0, 0, 0, 0, 0, 0, 0]);
    message
}

/// Takes the routes out of a part of the answer; answers whether it was the last.
fn take(family: u8, bytes: &[u8], all: &mut Vec<IpPrefix>) -> io::Result<bool> {
    for message in messages(bytes) {
        match libc::c_int::from(kind(message)) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let code = message.get(HEAD..).and_then(|m| m.first_chunk().copied());
                return Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(
                    code.unwrap_or([0; 4]),
                )));
            }
            _ => all.extend(message.get(HEAD..).and_then(|m| prefix(family, m))),
        }
    }
    Ok(false)
}

/// The prefix of a route of the table "local" by which packets are delivered here.
fn prefix(family: u8, route: &[u8]) -> Option<IpPrefix> {
    let [of, length, _, _, table, _, _, way, ..] = *route.first_chunk::<ROUTE>()?;
    let here = [libc::RTN_LOCAL, libc::RTN_BROADCAST, libc::RTN_ANYCAST].contains(&way);
    if of != family || table != libc::RT_TABLE_LOCAL || !here {
        return None;
    }
    let to = attributes(&route[ROUTE..]).find(|(kind, _)| *kind == libc::RTA_DST);
    let to = match (to.map(|(_, to)| to), i32::from(family)) {
        (Some(to), libc::AF_INET) => Ipv4Addr::from(*to.first_chunk::<4>()?).into(),
        (Some(to), _) => Ipv6Addr::from(*to.first_chunk::<16>()?).into(),
        // Everything.
        (None, libc::AF_INET) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        (None, _) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    Some(IpPrefix::new(to, length))
}
