//! Questions for names by sockets of our own, whose packets carry the carrier's mark: for
//! endpoints only, where everything else that this node sends goes into the link.
//!
//! What `/etc/hosts` and the name servers of `/etc/resolv.conf` say counts. A name server on this
//! machine asks by itself, and so into the link; for systemd's the ones that it asks are in a file
//! ([`BEHIND`]). Whoever gets no answer here asks the system's resolver.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const HOSTS: &str = "/etc/hosts";
const SERVERS: &str = "/etc/resolv.conf";
/// Whom systemd-resolved asks.
const BEHIND: &str = "/run/systemd/resolve/resolv.conf";
/// As many servers as the C library asks.
const MOST_SERVERS: usize = 3;
/// How long one server has, and how often each is asked.
const PATIENCE: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2;
/// A, AAAA (RFC 1035, RFC 3596) and the Internet's class.
const KINDS: [u16; 2] = [1, 28];
const INTERNET: u16 = 1;
/// A header of the DNS.
const HEADER: usize = 12;

/// The addresses of `name`; none if nobody knows any.
pub fn resolve(name: &str, mark: u32) -> Vec<IpAddr> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let known = in_hosts(&read(HOSTS), name);
    if !known.is_empty() {
        return known;
    }
    let mut servers = servers(&read(SERVERS));
    if servers.iter().all(IpAddr::is_loopback) {
        servers = self::servers(&read(BEHIND));
    }
    for server in servers.iter().cycle().take(servers.len() * ROUNDS) {
        let mut found = ask((*server, 53).into(), mark, name);
        if !found.is_empty() {
            // As RFC 6724 has it: what there is a way to, and of that IPv6, comes first.
            let is_far = |to: &IpAddr| os::udp::marked_socket((*to, 53).into(), mark).is_err();
            found.sort_by_key(|address| (is_far(address), address.is_ipv4()));
            return found;
        }
    }
    vec![]
}

/// `address name name…` a line, with remarks behind `#`.
fn in_hosts(text: &str, name: &str) -> Vec<IpAddr> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
        })
        .collect()
}

/// `nameserver address` a line.
fn servers(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| line.strip_prefix("nameserver")?.trim().parse().ok();
    text.lines().filter_map(address).take(MOST_SERVERS).collect()
}

/// Asks one server for both kinds of addresses, and waits until it has answered both.
fn ask(server: SocketAddr, mark: u32, name: &str) -> Vec<IpAddr> {
    let (Ok(socket), Ok(seed)) = (os::udp::marked_socket(server, mark), os::proc::entropy::<4>())
    else {
        return vec![];
    };
    let ids = [[seed[0], seed[1]], [seed[2], seed[3]]].map(u16::from_be_bytes);
    let mut open = Vec::new();
    for (kind, id) in KINDS.into_iter().zip(ids) {
        let Some(question) = question(id, name, kind) else { return vec![] };
        if socket.send(&question).is_err() {
            return vec![];
        }
        open.push(question);
    }
    let (until, mut found) = (Instant::now() + PATIENCE, Vec::new());
    let mut buf = [0; 4096];
    while !open.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || socket.set_read_timeout(Some(left)).is_err() {
            break;
        }
        let Ok(n) = socket.recv(&mut buf) else { break };
        for at in (0..open.len()).rev() {
            if let Some(addresses) = read_answer(&open[at], &buf[..n]) {
                open.remove(at);
                found.extend(addresses);
            }
        }
    }
    found
}

/// A question for `name`; none if it is no name.
fn question(id: u16, name: &str, kind: u16) -> Option<Vec<u8>> {
    let mut packet = Vec::with_capacity(HEADER + name.len() + 6);
    packet.extend(id.to_be_bytes());
    // Recursion desired; one question.
    packet.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let name = name.strip_suffix('.').unwrap_or(name);
    for label in name.split('.') {
        let len = u8::try_from(label.len()).ok().filter(|n| (1..64).contains(n))?;
        packet.push(len);
        packet.extend(label.as_bytes());
    }
    packet.push(0);
    packet.extend(kind.to_be_bytes());
    packet.extend(INTERNET.to_be_bytes());
    (name.len() < 254).then_some(packet)
}

/// The addresses in an answer to `question`; nothing if it is no answer to it. A server that
/// knows of none, or refuses, has answered, too.
fn read_answer(question: &[u8], packet: &[u8]) -> Option<Vec<IpAddr>> {
    let header = packet.get(..HEADER)?;
    let is_answer = header[2] & 0x80 != 0;
    let body = packet.get(HEADER..)?;
    let asked = &question[HEADER..];
    let same = body.get(..asked.len())?.eq_ignore_ascii_case(asked);
    if header[..2] != question[..2] || !is_answer || header[4..6] != [0, 1] || !same {
        return None;
    }
    let records = u16::from_be_bytes([header[6], header[7]]);
    let kind = &asked[asked.len() - 4..asked.len() - 2];
    let (mut rest, mut found) = (&body[asked.len()..], Vec::new());
    for _ in 0..records {
        // What was cut off in the middle still has what came before.
        let Some((record, data, behind)) = read_record(rest) else { break };
        if record[..2] == *kind && record[2..4] == INTERNET.to_be_bytes() {
            found.extend(match data.len() {
                4 => <[u8; 4]>::try_from(data).ok().map(IpAddr::from),
                _ => <[u8; 16]>::try_from(data).ok().map(IpAddr::from),
            });
        }
        rest = behind;
    }
    Some(found)
}

/// A record's ten bytes behind its name, its data, and what follows.
fn read_record(mut bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    loop {
        let (first, rest) = bytes.split_first()?;
        bytes = match first {
            0 => {
                bytes = rest;
                break;
            }
            // The rest of the name stands elsewhere: two bytes say where.
            0xc0.. => {
                bytes = rest.get(1..)?;
                break;
            }
            n => rest.get(usize::from(*n)..)?,
        };
    }
    let (record, rest) = bytes.split_at_checked(10)?;
    let len = u16::from_be_bytes([record[8], record[9]]);
    let (data, behind) = rest.split_at_checked(usize::from(len))?;
    Some((record, data, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to `question` with `records`: kind and data.
    fn answer(question: &[u8], records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut packet = question.to_vec();
        packet[2..4].copy_from_slice(&[0x81, 0x80]);
        packet[7] = records.len() as u8;
        for (kind, data) in records {
            packet.extend([0xc0, 12]);
            packet.extend(kind.to_be_bytes());
            packet.extend([0, 1, 0, 0, 0, 60]);
            packet.extend((data.len() as u16).to_be_bytes());
            packet.extend(*data);
        }
        packet
    }

    #[test]
    fn an_answer_gives_the_addresses_of_its_kind_behind_any_alias() {
        let question = question(7, "shore.example", 1).unwrap();
        let records: [(u16, &[u8]); 3] =
            [(5, b"\x05other\x00"), (1, &[203, 0, 113, 7]), (28, &[1; 16])];
        let packet = answer(&question, &records);
        let found = read_answer(&question, &packet);
        assert_eq!(found, Some(vec!["203.0.113.7".parse().unwrap()]));
        let shorter = read_answer(&question, &packet[..packet.len() - 3]);
        assert_eq!(shorter, found, "what came whole counts");
    }

    #[test]
    fn what_answers_another_question_counts_for_nothing() {
        let [mine, other, six] = [(7, "shore.example", 1), (8, "shore.example", 1), (7, "a.b", 1)]
            .map(|(id, name, kind)| question(id, name, kind).unwrap());
        for theirs in [&other, &six] {
            assert_eq!(read_answer(&mine, &answer(theirs, &[(1, &[1, 2, 3, 4])])), None);
        }
        assert_eq!(read_answer(&mine, &mine), None, "a question is no answer");
        assert_eq!(read_answer(&mine, &answer(&mine, &[])), Some(vec![]), "none is an answer");
    }

    #[test]
    fn no_bytes_of_a_server_panic() {
        let question = question(7, "shore.example", 28).unwrap();
        let whole = answer(&question, &[(5, b"\x05other\x00"), (28, &[1; 16])]);
        for end in 0..whole.len() {
            read_answer(&question, &whole[..end]);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 63, 64, 0xbf, 0xc0, 0xff] {
                let mut packet = whole.clone();
                packet[at] = value;
                read_answer(&question, &packet);
            }
        }
    }

    #[test]
    fn names_that_cannot_be_asked_for_are_not() {
        for name in ["", "a..b", &"a".repeat(64), &"a.".repeat(130)] {
            assert_eq!(question(1, name, 1), None, "{name}");
        }
        assert_eq!(question(1, "a.b.", 1), question(1, "a.b", 1));
    }

    #[test]
    fn the_systems_files_are_read() {
        let hosts = "127.0.0.1 localhost\n203.0.113.7\tshore.example Shore # old.example\n\
                     fd00::7 shore\nnonsense shore\n";
        let found = in_hosts(hosts, "SHORE");
        assert_eq!(found, ["203.0.113.7", "fd00::7"].map(|a| a.parse::<IpAddr>().unwrap()));
        assert_eq!(in_hosts(hosts, "old.example"), Vec::<IpAddr>::new());
        let text = "# by hand\nnameserver 192.0.2.53\nsearch x\nnameserver fd00::53\n\
                    nameserver 1\nnameserver 192.0.2.54\nnameserver 192.0.2.55\n";
        let asked = ["192.0.2.53", "fd00::53", "192.0.2.54"].map(|a| a.parse::<IpAddr>().unwrap());
        assert_eq!(servers(text), asked);
    }
}
