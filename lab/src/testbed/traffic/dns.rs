//! A DNS server that knows a few hosts below any name, by UDP and by TCP.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;

/// Seconds for which its answers hold.
const TTL: u32 = 300;
/// Bytes of a query's head, and where the name in its question begins.
const HEAD: usize = 12;
const TYPE_A: u16 = 1;
/// What is put into an answer's head: it is one, by whom the zone belongs to, who also recurses;
/// and whether there is such a name.
const ANSWER: [u8; 2] = [0x85, 0x80];
const NO_SUCH_NAME: u8 = 3;

/// The first label of a name, up to its `-`, and its address.
pub type Hosts = Arc<[(&'static str, Ipv4Addr)]>;

/// Serves at this address as long as the process lives. The calling thread must be in the
/// namespace of the server.
///
/// # Errors
/// If the port is taken.
pub fn serve(at: IpAddr, hosts: &Hosts) -> io::Result<()> {
    let (socket, listener) = (UdpSocket::bind((at, 53))?, TcpListener::bind((at, 53))?);
    let by_udp = Arc::clone(hosts);
    thread::spawn(move || {
        let mut room = [0; 1500];
        while let Ok((n, from)) = socket.recv_from(&mut room) {
            if let Some(answer) = answer(&room[..n], &by_udp) {
                // Who does not hear it asks again.
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    let by_tcp = Arc::clone(hosts);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let hosts = Arc::clone(&by_tcp);
            // A client that goes away ends its thread.
            thread::spawn(move || serve_one(stream, &hosts));
        }
    });
    Ok(())
}

/// Messages by TCP have their length before them.
fn serve_one(mut stream: TcpStream, hosts: &Hosts) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut query = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut query)?;
        let answer = answer(&query, hosts).ok_or(io::ErrorKind::InvalidData)?;
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], &answer].concat())?;
    }
}

/// The answer to a query with one question; `None` if it is none.
fn answer(query: &[u8], hosts: &Hosts) -> Option<Vec<u8>> {
    let name = query.get(HEAD..)?;
    let end = name.iter().position(|byte| *byte == 0)? + 1;
    let question = query.get(HEAD..HEAD + end + 4)?;
    let kind = u16::from_be_bytes([question[end], question[end + 1]]);
    let label = name.get(1..1 + usize::from(name[0]))?.to_ascii_lowercase();
    let host = label.split(|byte| *byte == b'-').next()?;
    let address = hosts.iter().find(|(known, _)| known.as_bytes() == host).map(|(_, at)| at);
    let found = address.filter(|_| kind == TYPE_A);

    let mut out = [&query[..2], &ANSWER, &[0, 1, 0, 0, 0, 0, 0, 0]].concat();
    out[3] |= if address.is_none() { NO_SUCH_NAME } else { 0 };
    out.extend_from_slice(question);
    let (section, data) = match found {
        Some(at) => (
            7,
            [&TYPE_A.to_be_bytes()[..], &[0, 1], &TTL.to_be_bytes(), &[0, 4], &at.octets()]
                .concat(),
        ),
        // Without it nobody keeps that there is nothing (RFC 2308).
        None => (9, authority()),
    };
    out[section] = 1;
    // The record's name is the question's.
    out.extend([0xc0, HEAD as u8]);
    out.extend(data);
    Some(out)
}

/// A record SOA but for its name: servers and mailboxes are the root's.
fn authority() -> Vec<u8> {
    let numbers = [1, TTL, TTL, TTL, TTL].map(u32::to_be_bytes).concat();
    [&[0, 6, 0, 1][..], &TTL.to_be_bytes(), &[0, 22, 0, 0], &numbers].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, kind: u8) -> Vec<u8> {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.push(label.len() as u8);
            query.extend(label.bytes());
        }
        query.extend([0, 0, kind, 0, 1]);
        query
    }

    #[test]
    fn known_hosts_have_their_address_and_everything_else_is_denied() {
        let hosts: Hosts = [("www", Ipv4Addr::new(203, 0, 113, 11))].into();
        let of = |name, kind| answer(&query(name, kind), &hosts).unwrap();
        let got = of("WWW-7.site.test", 1);
        assert_eq!((&got[..4], &got[6..12]), (&[7, 9, 0x85, 0x80][..], &[0, 1, 0, 0, 0, 0][..]));
        assert!(got.ends_with(&[0, 4, 203, 0, 113, 11]), "{got:?}");
        let none = of("www.site.test", 65);
        assert_eq!((none[3], none[7], none[9]), (0x80, 0, 1), "there is such a name");
        assert_eq!(of("else.site.test", 1)[3], 0x83);
        for n in 0..query("www.site.test", 1).len() {
            assert_eq!(answer(&query("www.site.test", 1)[..n], &hosts), None, "{n}");
        }
    }
}
