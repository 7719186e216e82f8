//! A session's commands and replies (RFC 959, RFC 2428), read along at the hub.
//!
//! Everything passes as it is but PORT and EPRT that name the host itself: in their place goes
//! PASV or EPSV, and in place of the server's answer the one that the host waits for. What
//! follows AUTH (RFC 4217) is nobody's to read, and passes as it is, like what is no FTP.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

/// A longer line is none of FTP's.
const MAX_LINE: usize = 4096;
/// What a reply of the server may take while it is held.
const MAX_HELD: usize = 16 << 10;
/// Commands that may wait for their replies; who says more at once is only listened to no more. And
/// ports that may wait for their connections.
const MAX_WAITING: usize = 64;

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// Its reply, which passes.
    Reply,
    /// Whether what follows is still to be read.
    Auth,
    /// The port of the server, for the host's.
    Port(u16, Command),
}

/// How the host said where it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Port,
    Eprt,
}

/// A data connection to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The server's port, at the address of the session.
    pub server: u16,
    /// The host's port, at the address of the session.
    pub client: u16,
}

/// A session.
#[derive(Debug)]
pub struct Control {
    client: IpAddr,
    server: IpAddr,
    /// What has come of a line.
    from_client: Vec<u8>,
    from_server: Vec<u8>,
    waiting: VecDeque<Waits>,
    /// A reply of several lines: the code that its last one has.
    several: Option<[u8; 3]>,
    /// A reply that may be another's.
    held: Vec<u8>,
    /// Nothing is read any more.
    passes: bool,
}

impl Control {
    /// A session of this host with this server.
    pub fn new(client: IpAddr, server: IpAddr) -> Control {
        // The server speaks first (RFC 959, section 5.4).
        let (from_client, from_server, held) = Default::default();
        let waiting = VecDeque::from([Waits::Reply]);
        let (several, passes) = (None, false);
        Control { client, server, from_client, from_server, waiting, several, held, passes }
    }

    /// What goes to the server in place of what the host said; of nothing, which is its end, what
    /// was held.
    pub fn on_client(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut all = std::mem::take(&mut self.from_client);
        all.extend_from_slice(bytes);
        let mut at = 0;
        while !self.passes
            && let Some(line) = first_line(&all[at..])
        {
            self.on_command(line, out);
            at += line.len();
        }
        // Once for all lines: each alone would move what is behind it.
        all.drain(..at);
        self.from_client = all;
        if self.passes || bytes.is_empty() || self.from_client.len() > MAX_LINE {
            self.passes |= self.from_client.len() > MAX_LINE;
            out.append(&mut self.from_client);
        }
    }

    /// What goes to the host in place of what the server said, and the data connection that is to
    /// be made.
    pub fn on_server(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Option<Data> {
        let mut data = None;
        let mut all = std::mem::take(&mut self.from_server);
        all.extend_from_slice(bytes);
        let mut at = 0;
        while !self.passes
            && let Some(line) = first_line(&all[at..])
        {
            data = self.on_reply(line, out).or(data);
            at += line.len();
        }
        all.drain(..at);
        self.from_server = all;
        if self.passes || bytes.is_empty() || self.from_server.len() > MAX_LINE {
            self.passes |= self.from_server.len() > MAX_LINE;
            out.append(&mut self.held);
            out.append(&mut self.from_server);
        }
        data
    }

    /// Bytes of what came and waits here: bounded, whatever the two say.
    pub fn size(&self) -> usize {
        let lines = self.from_client.len() + self.from_server.len() + self.held.len();
        lines + self.waiting.len() * size_of::<Waits>()
    }

    /// What [`Control::size`] is at most.
    pub const MOST: usize = MAX_HELD + 3 * MAX_LINE + (MAX_WAITING + 1) * size_of::<Waits>();

    fn on_command(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let (verb, rest) = verb_of(line);
        let port = match verb.as_slice() {
            b"PORT" => port_of(rest, self.client).map(|port| (port, Command::Port)),
            b"EPRT" => eprt_of(rest, self.client).map(|port| (port, Command::Eprt)),
            _ => None,
        };
        let waits = match port {
            Some((port, command)) => {
                let asks: &[u8] = if self.server.is_ipv4() { b"PASV\r\n" } else { b"EPSV\r\n" };
                out.extend_from_slice(asks);
                Waits::Port(port, command)
            }
            None => {
                out.extend_from_slice(line);
                if verb == b"AUTH" { Waits::Auth } else { Waits::Reply }
            }
        };
        self.waiting.push_back(waits);
        // Whose replies cannot be told apart any more cannot be read.
        self.passes |= self.waiting.len() > MAX_WAITING;
    }

    fn on_reply(&mut self, line: &[u8], out: &mut Vec<u8>) -> Option<Data> {
        let waits = self.waiting.front().copied();
        let held = matches!(waits, Some(Waits::Port(..)));
        if held { &mut self.held } else { &mut *out }.extend_from_slice(line);
        let ends = ends_reply(line, &mut self.several);
        if self.held.len() > MAX_HELD {
            self.passes = true;
        }
        // A mark (1yz) comes before the reply. One that nobody waits for ends the session (421).
        let code = ends.filter(|code| code[0] != b'1')?;
        match (self.waiting.pop_front()?, code[0]) {
            (Waits::Port(client, command), b'2') => {
                let server = match self.server.is_ipv4() {
                    true => pasv_port(line),
                    false => epsv_port(line),
                };
                let Some(server) = server else {
                    out.append(&mut self.held);
                    return None;
                };
                self.held.clear();
                out.extend_from_slice(match command {
                    Command::Port => b"200 PORT command successful.\r\n",
                    Command::Eprt => b"200 EPRT command successful.\r\n",
                });
                return Some(Data { server, client });
            }
            (Waits::Port(..), _) => out.append(&mut self.held),
            (Waits::Auth, b'2' | b'3') => self.passes = true,
            _ => {}
        }
        None
    }
}

/// The ports that a host has named in its session, read along at the terminal: the hub's word is
/// not enough to connect to a host.
#[derive(Debug)]
pub struct Named {
    client: IpAddr,
    line: Vec<u8>,
    ports: VecDeque<u16>,
}

impl Named {
    /// Of a session of this host, which has named none yet.
    pub fn new(client: IpAddr) -> Named {
        Named { client, line: Vec::new(), ports: VecDeque::new() }
    }

    /// The host says this.
    pub fn on_client(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if !piece.ends_with(b"\n") {
                return;
            }
            let (verb, rest) = verb_of(&self.line);
            let port = match verb.as_slice() {
                b"PORT" => port_of(rest, self.client),
                b"EPRT" => eprt_of(rest, self.client),
                _ => None,
            };
            self.line.clear();
            self.ports.extend(port);
            if self.ports.len() > MAX_WAITING {
                self.ports.pop_front();
            }
        }
    }

    /// Ports that were named, and not taken yet.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Was none named?
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Has the host named this port? Once for each time.
    pub fn take(&mut self, port: u16) -> bool {
        let at = self.ports.iter().position(|named| *named == port);
        at.and_then(|at| self.ports.remove(at)).is_some()
    }
}

/// The first whole line, with its end.
fn first_line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().take(MAX_LINE).position(|b| *b == b'\n')?;
    bytes.get(..=end)
}

/// A command in capitals, without what telnet puts before ABOR (RFC 959, section 4.1.3), and
/// what is behind it.
fn verb_of(line: &[u8]) -> (Vec<u8>, &[u8]) {
    let begin = line.iter().position(u8::is_ascii_alphabetic).unwrap_or(0);
    let line = line[begin..].trim_ascii_end();
    let end = line.iter().position(|b| *b == b' ').unwrap_or(line.len());
    (line[..end].to_ascii_uppercase(), line[end..].trim_ascii())
}

/// The code of a reply whose last line this is.
fn ends_reply(line: &[u8], several: &mut Option<[u8; 3]>) -> Option<[u8; 3]> {
    let code: Option<[u8; 3]> = line.first_chunk().copied();
    let code = code.filter(|code| code.iter().all(u8::is_ascii_digit));
    let more = line.get(3) == Some(&b'-');
    match *several {
        None if more => {
            *several = code;
            None
        }
        None => code,
        Some(of) if code == Some(of) && !more => several.take(),
        Some(_) => None,
    }
}

/// Six numbers below 256 with commas between them.
fn six(text: &[u8]) -> Option<[u8; 6]> {
    let text = std::str::from_utf8(text).ok()?;
    let numbers: Vec<u8> = text.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

fn port(high: u8, low: u8) -> Option<u16> {
    Some(u16::from_be_bytes([high, low])).filter(|port| *port != 0)
}

/// May a host name this port? Those of services may be another's, who has the same address behind a
/// translator (RFC 2577, section 3).
fn may_be_named(port: &u16) -> bool {
    *port >= 1024
}

/// The port of `PORT 10,1,0,2,156,64`, if the address is the host's own.
fn port_of(rest: &[u8], client: IpAddr) -> Option<u16> {
    let [a, b, c, d, high, low] = six(rest)?;
    let is_own = IpAddr::V4(Ipv4Addr::new(a, b, c, d)) == client;
    port(high, low).filter(may_be_named).filter(|_| is_own)
}

/// The port of `EPRT |1|10.1.0.2|40000|`, likewise.
fn eprt_of(rest: &[u8], client: IpAddr) -> Option<u16> {
    let bar = *rest.first()?;
    let parts: Vec<&[u8]> = rest.split(|b| *b == bar).collect();
    let [b"", _, address, port, b""] = parts[..] else { return None };
    let address: IpAddr = std::str::from_utf8(address).ok()?.parse().ok()?;
    number(port).filter(may_be_named).filter(|_| address == client)
}

/// The port of `227 Entering Passive Mode (10,2,0,2,156,64)`. Its address is not minded: the
/// server is where the session is.
fn pasv_port(line: &[u8]) -> Option<u16> {
    let text = line.get(3..)?;
    let text = &text[text.iter().position(u8::is_ascii_digit)?..];
    let end = text.iter().position(|b| !b.is_ascii_digit() && *b != b',').unwrap_or(text.len());
    let [.., high, low] = six(&text[..end])?;
    port(high, low)
}

/// The port of `229 Entering Extended Passive Mode (|||40000|)`.
fn epsv_port(line: &[u8]) -> Option<u16> {
    let text = &line[line.iter().position(|b| *b == b'(')? + 1..];
    let bar = *text.first()?;
    let parts: Vec<&[u8]> = text.split(|b| *b == bar).collect();
    number(parts.get(3)?)
}

fn number(text: &[u8]) -> Option<u16> {
    let port = std::str::from_utf8(text).ok()?.parse().ok();
    port.filter(|port| *port != 0)
}

#[cfg(test)]
mod tests;
