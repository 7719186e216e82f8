//! Active FTP through a gateway, as far as it can be decided without sockets: [`control`] reads a
//! session's commands and replies along, [`preface`] is what the two halves tell each other of a
//! stream, [`places`] divides the program's room among hosts and peers.
//!
//! A host that says PORT waits for the server to connect to it. The hub's half says PASV to the
//! server in its place (RFC 959, section 4.1.2), has its gateway connect to the port that the
//! server names, and opens a stream to the terminal's half, which has its gateway connect to the
//! host as the server. Nobody listens for strangers, and no address translator on the way between
//! hub and server needs to know FTP.

pub mod control;
pub mod places;
pub mod preface;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use control::{Control, Named};
use preface::Preface;

/// For the fuzzer: nothing that a host, a server or a peer says panics or grows without end, no
/// host is connected to at a port that it has not named, and a session that names none is not
/// changed.
///
/// The input is what the two say in turn, each piece behind `C` (the host) or `S` (the server),
/// with a zero behind it. Before the first one a `6` may stand: then both have IPv6 addresses.
pub fn fuzz(data: &[u8]) {
    if let Some(preface) = std::str::from_utf8(data).ok().and_then(|text| text.parse().ok()) {
        let preface: Preface = preface;
        assert_eq!(preface.to_string().parse(), Ok(preface));
    }
    let (client, server, pieces): (IpAddr, IpAddr, &[u8]) = match data.split_first() {
        Some((b'6', rest)) => {
            let of = |n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n).into();
            (of(2), of(5), rest)
        }
        _ => (Ipv4Addr::new(10, 1, 0, 2).into(), Ipv4Addr::new(203, 0, 113, 5).into(), data),
    };
    let (mut control, mut named) = (Control::new(client, server), Named::new(client));
    let (mut said, mut heard) = (Vec::new(), Vec::new());
    let mut names_ports = false;
    for piece in pieces.split(|byte| *byte == 0) {
        let Some((who, text)) = piece.split_first().filter(|(_, text)| !text.is_empty()) else {
            continue;
        };
        if *who == b'S' {
            let (mut out, before) = (Vec::new(), named.len());
            if let Some(data) = control.on_server(text, &mut out) {
                assert!(named.take(data.client), "the host has not named {}", data.client);
                assert!(data.server != 0 && named.len() < before);
            }
        } else {
            said.extend_from_slice(text);
            control.on_client(text, &mut heard);
            named.on_client(text);
            names_ports |= !named.is_empty();
        }
        assert!(control.size() <= Control::MOST, "{} bytes are kept", control.size());
    }
    control.on_client(b"", &mut heard);
    if !names_ports {
        assert_eq!(heard, said, "what names no port passes as it is");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_replays() {
        corpus::replay("ftp", super::fuzz);
    }
}
