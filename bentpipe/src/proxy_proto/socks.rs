//! SOCKS5, RFC 1928: greeting, request, reply. Only CONNECT, only without
//! authentication: the proxy listens where its owner lets it be reached.
//!
//! ```text
//! greeting  05 │ n │ methods (n)
//! choice    05 │ 00
//! request   05 │ command │ 00 │ type │ address │ port (2)
//!             type 01: 4 bytes; 03: length (1) and name; 04: 16 bytes
//! reply     05 │ code │ 00 │ 01 │ 0.0.0.0 │ 0
//! ```

use super::{Parsed, Refusal};
use crate::host::{Host, HostPort};

pub(super) const VERSION: u8 = 5;
pub(super) const NO_AUTHENTICATION: [u8; 2] = [VERSION, METHOD_NONE];
/// Reply code of RFC 1928 section 6.
pub(super) const SUCCEEDED: u8 = 0;

const METHOD_NONE: u8 = 0;
const NO_ACCEPTABLE_METHOD: [u8; 2] = [VERSION, 0xff];
const CONNECT: u8 = 1;
const TYPE_V4: u8 = 1;
const TYPE_NAME: u8 = 3;
const TYPE_V6: u8 = 4;

const GENERAL_FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const NETWORK_UNREACHABLE: u8 = 3;
const HOST_UNREACHABLE: u8 = 4;
const CONNECTION_REFUSED: u8 = 5;
const TTL_EXPIRED: u8 = 6;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_TYPE_NOT_SUPPORTED: u8 = 8;

/// A greeting that offers to go without authentication.
pub(super) fn greeting(buffer: &[u8]) -> Parsed<()> {
    let Some(&count) = buffer.get(1) else { return Parsed::Partial };
    let end = 2 + usize::from(count);
    let Some(methods) = buffer.get(2..end) else { return Parsed::Partial };
    if methods.contains(&METHOD_NONE) {
        Parsed::Whole((), end)
    } else {
        Parsed::Wrong(NO_ACCEPTABLE_METHOD.to_vec())
    }
}

/// A request to connect.
pub(super) fn request(buffer: &[u8]) -> Parsed<HostPort> {
    let wrong = |code| Parsed::Wrong(answer(code));
    match (buffer.first(), buffer.get(1)) {
        (Some(&VERSION), None) | (None, _) => return Parsed::Partial,
        (Some(&VERSION), Some(&CONNECT)) => {}
        (Some(&VERSION), Some(_)) => return wrong(COMMAND_NOT_SUPPORTED),
        (Some(_), _) => return wrong(GENERAL_FAILURE),
    }
    let Some(&kind) = buffer.get(3) else { return Parsed::Partial };
    let (start, length) = match kind {
        TYPE_V4 => (4, 4),
        TYPE_V6 => (4, 16),
        TYPE_NAME => match buffer.get(4) {
            None => return Parsed::Partial,
            Some(&length) => (5, usize::from(length)),
        },
        _ => return wrong(ADDRESS_TYPE_NOT_SUPPORTED),
    };
    let end = start + length + 2;
    let Some(rest) = buffer.get(start..end) else { return Parsed::Partial };
    let (address, port) = rest.split_at(length);
    let port = u16::from_be_bytes([port[0], port[1]]);
    match host(kind, address) {
        Some(host) if port != 0 => Parsed::Whole(HostPort { host, port }, end),
        _ => wrong(GENERAL_FAILURE),
    }
}

fn host(kind: u8, address: &[u8]) -> Option<Host> {
    if kind == TYPE_NAME {
        return std::str::from_utf8(address).ok()?.parse().ok();
    }
    match address.len() {
        4 => <[u8; 4]>::try_from(address).ok().map(Host::from),
        _ => <[u8; 16]>::try_from(address).ok().map(Host::from),
    }
}

/// A reply. The bound address is left zero: it is the far node's, and clients of
/// CONNECT have no use for it.
pub(super) fn answer(code: u8) -> Vec<u8> {
    vec![VERSION, code, 0, TYPE_V4, 0, 0, 0, 0, 0, 0]
}

/// "Request rejected or failed" of SOCKS4.
pub(super) fn socks4_refusal() -> Vec<u8> {
    vec![0, 91, 0, 0, 0, 0, 0, 0]
}

/// The reply code that comes nearest.
pub(super) fn code(why: Refusal) -> u8 {
    match why {
        Refusal::Refused => CONNECTION_REFUSED,
        Refusal::NetworkUnreachable => NETWORK_UNREACHABLE,
        Refusal::HostUnreachable | Refusal::UnknownName => HOST_UNREACHABLE,
        Refusal::TimedOut => TTL_EXPIRED,
        Refusal::Forbidden => NOT_ALLOWED,
        Refusal::Overloaded | Refusal::Failed => GENERAL_FAILURE,
    }
}
