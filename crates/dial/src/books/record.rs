//! The ledger's lines: one record each, with its checksum before it.
//!
//! ```text
//! 1c291ca3 start 17 1795392000 shore inmarsat USD 10.2.0.7 mail
//! └ CRC-32 of what follows the space, in hexadecimal
//! ```
//!
//! Words are separated by spaces; in names a space, a percent sign and what is not printable
//! ASCII stand as `%20`; an empty name is `%`. Text, because a bill is something that people look
//! at, with tools that they have.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use units::Duration;

use crate::calendar::{Day, Month, Wall};
use crate::money::{Currency, Money};

/// A name from the configuration: of a peer, a carrier, a class, a service, a rule.
pub type Name = Arc<str>;

/// Whose traffic it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Host {
    /// The node's own, or nobody's in particular.
    #[default]
    Node,
    /// A host's in the LAN.
    Addr(IpAddr),
    /// Several hosts', told together.
    Others,
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Host::Node => f.pad("node"),
            Host::Others => f.pad("others"),
            Host::Addr(addr) => f.pad(&addr.to_string()),
        }
    }
}
impl std::str::FromStr for Host {
    type Err = std::net::AddrParseError;
    fn from_str(s: &str) -> Result<Host, std::net::AddrParseError> {
        match s {
            "node" => Ok(Host::Node),
            "others" => Ok(Host::Others),
            addr => addr.parse().map(Host::Addr),
        }
    }
}

/// Whose and of what kind traffic is: what a session's price is divided by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Account {
    /// Whose.
    pub host: Host,
    /// Its class.
    pub class: Name,
    /// The service that carried it, or what the service calls it (a message); empty: none.
    pub service: Name,
}

/// What is added up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Calls that it raised.
    pub calls: u64,
    /// Milliseconds of connection.
    pub connect_ms: u64,
    /// Bytes that left here.
    pub sent: u64,
    /// Bytes that came.
    pub received: u64,
    /// What it cost.
    pub price: Money,
}

impl Sums {
    /// Both ways.
    pub fn bytes(&self) -> u64 {
        self.sent.saturating_add(self.received)
    }
    /// Adds `other`.
    pub fn add(&mut self, other: &Sums) {
        self.calls = self.calls.saturating_add(other.calls);
        self.connect_ms = self.connect_ms.saturating_add(other.connect_ms);
        self.sent = self.sent.saturating_add(other.sent);
        self.received = self.received.saturating_add(other.received);
        self.price = self.price.plus(other.price);
    }
}

/// What sums are kept by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cell {
    /// The day on which the session began.
    pub day: Day,
    /// Its currency.
    pub currency: Currency,
    /// The peer.
    pub peer: Name,
    /// The carrier.
    pub carrier: Name,
    /// Whose and what.
    pub account: Account,
}

/// One line of the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Record {
    /// The carrier is there: from now on it costs.
    Start { session: u64, at: Wall, peer: Name, carrier: Name, currency: Currency, raised: Account },
    /// What crossed since the last such line.
    Usage { session: u64, account: Account, sent: u64, received: u64 },
    /// What the session costs so far.
    Mark { session: u64, elapsed: Duration, price: Money },
    /// It is over.
    End { session: u64, elapsed: Duration, price: Money, cause: Name },
    /// A month's price.
    Fee { month: Month, peer: Name, carrier: Name, currency: Currency, price: Money },
    /// Sums of sessions that are over, in the place of their lines.
    Sum { cell: Cell, sums: Sums },
    /// Numbers of sessions go on from here.
    Next { session: u64 },
}

/// CRC-32 (ISO-HDLC, as in zip).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        crc >> 8 ^ CRC_TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize]
    })
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

fn escaped(name: &str, out: &mut String) {
    out.push(' ');
    if name.is_empty() {
        out.push('%');
    }
    for byte in name.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02x}");
            }
        }
    }
}

fn unescaped(word: &str) -> Option<Name> {
    if word == "%" {
        return Some("".into());
    }
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let code = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok().map(Into::into)
}

impl Record {
    /// Its line, with the end of the line.
    pub fn line(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        format!("{:08x} {text}\n", crc32(text.as_bytes()))
    }

    fn write(&self, out: &mut String) {
        let ms = |d: &Duration| d.as_millis();
        // Writing to a string does not fail.
        let _ = match self {
            Record::Start { session, at, peer, carrier, currency, raised } => {
                let _ = write!(out, "start {session} {}", at.0);
                escaped(peer, out);
                escaped(carrier, out);
                let _ = write!(out, " {currency}");
                raised.write(out)
            }
            Record::Usage { session, account, sent, received } => {
                let _ = write!(out, "usage {session} {sent} {received}");
                account.write(out)
            }
            Record::Mark { session, elapsed, price } => {
                write!(out, "mark {session} {} {price}", ms(elapsed))
            }
            Record::End { session, elapsed, price, cause } => {
                let _ = write!(out, "end {session} {} {price}", ms(elapsed));
                escaped(cause, out);
                Ok(())
            }
            Record::Fee { month, peer, carrier, currency, price } => {
                let _ = write!(out, "fee {} {currency} {price}", month.0);
                escaped(peer, out);
                escaped(carrier, out);
                Ok(())
            }
            Record::Sum { cell, sums: s } => {
                let _ = write!(out, "sum {} {}", cell.day.0, cell.currency);
                escaped(&cell.peer, out);
                escaped(&cell.carrier, out);
                let _ = cell.account.write(out);
                write!(out, " {} {} {} {} {}", s.calls, s.connect_ms, s.sent, s.received, s.price)
            }
            Record::Next { session } => write!(out, "next {session}"),
        };
    }

    /// Reads a line without its end; `None`: it is damaged, or of a later version.
    pub fn read(line: &str) -> Option<Record> {
        let (crc, text) = line.split_once(' ')?;
        if crc.len() != 8 || u32::from_str_radix(crc, 16).ok()? != crc32(text.as_bytes()) {
            return None;
        }
        let mut words = Words(text.split(' '));
        let record = match words.next()? {
            "start" => Record::Start {
                session: words.parse()?,
                at: Wall(words.parse()?),
                peer: words.name()?,
                carrier: words.name()?,
                currency: words.parse()?,
                raised: words.account()?,
            },
            "usage" => {
                let (session, sent, received) = (words.parse()?, words.parse()?, words.parse()?);
                Record::Usage { session, account: words.account()?, sent, received }
            }
            "mark" => Record::Mark {
                session: words.parse()?,
                elapsed: words.millis()?,
                price: words.parse()?,
            },
            "end" => Record::End {
                session: words.parse()?,
                elapsed: words.millis()?,
                price: words.parse()?,
                cause: words.name()?,
            },
            "fee" => {
                let (month, currency, price) =
                    (Month(words.parse()?), words.parse()?, words.parse()?);
                Record::Fee { month, peer: words.name()?, carrier: words.name()?, currency, price }
            }
            "sum" => Record::Sum { cell: words.cell()?, sums: words.sums()? },
            "next" => Record::Next { session: words.parse()? },
            _ => return None,
        };
        words.next().is_none().then_some(record)
    }
}

impl Account {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        write!(out, " {}", self.host)?;
        escaped(&self.class, out);
        escaped(&self.service, out);
        Ok(())
    }
}

/// The words of a line that are still to be read.
struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }
    fn parse<T: std::str::FromStr>(&mut self) -> Option<T> {
        self.next()?.parse().ok()
    }
    fn name(&mut self) -> Option<Name> {
        unescaped(self.next()?)
    }
    fn millis(&mut self) -> Option<Duration> {
        self.parse().map(Duration::from_millis)
    }
    fn account(&mut self) -> Option<Account> {
        Some(Account { host: self.parse()?, class: self.name()?, service: self.name()? })
    }
    fn cell(&mut self) -> Option<Cell> {
        Some(Cell {
            day: Day(self.parse()?),
            currency: self.parse()?,
            peer: self.name()?,
            carrier: self.name()?,
            account: self.account()?,
        })
    }
    fn sums(&mut self) -> Option<Sums> {
        Some(Sums {
            calls: self.parse()?,
            connect_ms: self.parse()?,
            sent: self.parse()?,
            received: self.parse()?,
            price: self.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_check_has_its_published_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    fn account() -> impl Strategy<Value = Account> {
        let host = prop_oneof![
            Just(Host::Node),
            Just(Host::Others),
            any::<std::net::Ipv4Addr>().prop_map(|a| Host::Addr(a.into())),
            any::<std::net::Ipv6Addr>().prop_map(|a| Host::Addr(a.into())),
        ];
        (host, any::<String>(), any::<String>()).prop_map(|(host, class, service)| Account {
            host,
            class: class.into(),
            service: service.into(),
        })
    }

    proptest! {
        #[test]
        fn records_come_back_as_they_were_written(
            session: u64, at: u64, peer: String, carrier: String, raised in account(),
            ms in 0_u64..u64::MAX / 1_000_000, price: u64, n: [u64; 4], day in 0_u32..4_000_000,
        ) {
            let (peer, carrier): (Name, Name) = (peer.into(), carrier.into());
            let (price, elapsed) = (Money::from_micros(price), Duration::from_millis(ms));
            let currency: Currency = "USD".parse().unwrap();
            let cell = Cell { day: Day(day), currency, peer: peer.clone(), carrier: carrier.clone(),
                account: raised.clone() };
            let sums = Sums { calls: n[0], connect_ms: n[1], sent: n[2], received: n[3], price };
            for record in [
                Record::Start { session, at: Wall(at), peer: peer.clone(), carrier: carrier.clone(),
                    currency, raised: raised.clone() },
                Record::Usage { session, account: raised, sent: n[0], received: n[1] },
                Record::Mark { session, elapsed, price },
                Record::End { session, elapsed, price, cause: peer.clone() },
                Record::Fee { month: Month(day), peer, carrier, currency, price },
                Record::Sum { cell, sums },
                Record::Next { session },
            ] {
                let line = record.line();
                prop_assert!(line.is_ascii() && line.ends_with('\n'));
                prop_assert_eq!(Record::read(line.trim_end_matches('\n')), Some(record));
            }
        }

        #[test]
        fn a_line_with_one_wrong_byte_is_no_record(at: prop::sample::Index, byte: u8) {
            let line = Record::Next { session: 17 }.line();
            let mut bytes = line.trim_end().as_bytes().to_vec();
            let at = at.index(bytes.len());
            let was = std::mem::replace(&mut bytes[at], byte);
            let text = String::from_utf8_lossy(&bytes);
            // Hexadecimal digits count alike in both cases.
            let same = byte == was || byte.eq_ignore_ascii_case(&was) && at < 8;
            prop_assert_eq!(Record::read(&text).is_none(), !same);
        }
    }
}
