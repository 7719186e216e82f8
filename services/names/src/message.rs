//! The little that is read in DNS messages (RFC 1035, 6891): enough to know whose answer a
//! message is and how long it holds. Records are never taken apart, and so pass unchanged.

const HEADER: usize = 12;
const OPT: u16 = 41;
const SOA: u16 = 6;
const ANY: u16 = 255;
/// A, AAAA and HTTPS.
const OF_BROWSERS: [u16; 3] = [1, 28, 65];
/// Transfers of zones: not for a cache.
const TRANSFERS: [u16; 2] = [251, 252];
/// What UDP carries without fragments, and the size that canonical questions tell.
pub const LARGEST: usize = 1232;
/// Longer questions are not for a cache: a name has 255 bytes, and resolvers pad to a multiple of
/// 128 (RFC 8467). In bytes.
pub const LONGEST_QUESTION: usize = 512;
/// What clients take that say nothing of it.
const SMALLEST: usize = 512;
/// Options of one hop: cookie, keepalive and padding.
const HOP_OPTIONS: [u16; 3] = [10, 11, 12];
/// Nothing is kept for longer than a day, and no "there is none" for longer than three hours.
const LONGEST: u32 = 86_400;
const LONGEST_NEGATIVE: u32 = 10_800;
/// Records that say how a service is reached (RFC 9460), and their parameter with its protocols.
const SVCB: [u16; 2] = [64, 65];
const ALPN: u16 = 1;
/// A protocol that nobody speaks: kept free for that (RFC 8701, section 2).
const NOBODYS: [u8; 2] = [0x0a, 0x0a];
/// The flag with which a resolver says that it has verified all of the answer.
const VERIFIED: u8 = 0x20;
/// What a server says that fails, and one that refuses.
const FAILURES: [u8; 2] = [2, 5];
/// The TTL of records that are served past their time (RFC 8767, section 4).
const STALE_TTL: u32 = 30;

/// A question that a cache may answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The client's number for it.
    pub id: [u8; 2],
    /// The question with its name as the client spells it.
    question: Vec<u8>,
    /// The bytes that the client takes in a datagram.
    limit: usize,
    /// It wants signatures, too, and may verify them (RFC 4035, section 3.2.1).
    signed: bool,
    /// The whole message without what does not matter to the answer.
    pub canonical: Vec<u8>,
}

/// Reads a message piece by piece.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let piece = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(piece)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    fn long(&mut self) -> Option<u32> {
        Some(u32::from(self.number()?) << 16 | u32::from(self.number()?))
    }

    /// Passes over a name; a pointer ends it.
    fn name(&mut self, may_point: bool) -> Option<()> {
        let begin = self.at;
        loop {
            let len = self.take(1)?[0];
            match len >> 6 {
                0 if len == 0 => break,
                0 => drop(self.take(len.into())?),
                3 if may_point => {
                    self.take(1)?;
                    break;
                }
                _ => return None,
            }
        }
        (self.at - begin <= 255).then_some(())
    }

    /// A record's type, and where its TTL and its data are.
    fn record(&mut self) -> Option<(u16, usize, &'a [u8])> {
        self.name(true)?;
        let (kind, _class, ttl_at) = (self.number()?, self.number()?, self.at);
        self.long()?;
        let len = self.number()?;
        Some((kind, ttl_at, self.take(len.into())?))
    }

    fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }
}

impl Query {
    /// The question in a message; `None` where there is anything in it that a cache should not
    /// meddle with.
    pub fn parse(message: &[u8]) -> Option<Query> {
        let mut r = Reader { bytes: message, at: 0 };
        let head = r.take(HEADER)?;
        let more = match (head[2] & 0xfe, &head[4..10], &head[10..12]) {
            (0, [0, 1, 0, 0, 0, 0], [0, more @ 0..=1]) => *more,
            _ => return None,
        };
        r.name(false)?;
        let kind = r.number()?;
        r.number()?;
        let question = message[HEADER..r.at].to_vec();
        // RD, AD and CD matter to the answer; the number does not.
        let mut canonical = vec![0, 0, head[2], head[3] & 0x30, 0, 1, 0, 0, 0, 0, 0, more];
        canonical.extend(question.iter().map(u8::to_ascii_lowercase));
        // Type and class are no letters.
        let at = canonical.len() - 4;
        canonical[at..].copy_from_slice(&question[question.len() - 4..]);
        let (mut limit, mut signed) = (SMALLEST, false);
        if more == 1 {
            let (size, wants) = opt(&mut r, &mut canonical)?;
            (limit, signed) = (usize::from(size).clamp(SMALLEST, LARGEST), wants);
        }
        let whole = r.is_at_end() && !TRANSFERS.contains(&kind);
        whole.then_some(Query { id: [head[0], head[1]], question, limit, signed, canonical })
    }

    /// The question came by a connection: its answer need not fit into a datagram.
    pub fn by_connection(&mut self) {
        self.limit = usize::from(u16::MAX);
    }

    /// The answer to this client, `age` seconds after it came; `None`: it is past its time, and
    /// all its records get a short one. `no_quic`: it is not to hear of HTTP/3, unless it may find
    /// out that the record is another than was signed.
    pub fn answer(&self, answer: &Answer, age: Option<u32>, no_quic: bool) -> Vec<u8> {
        let mut message = answer.aged(age);
        if no_quic && !self.signed && !answer.http3.is_empty() {
            for at in answer.http3.iter().map(|at| usize::from(*at)) {
                // No byte moves: names elsewhere may point behind it.
                message[at..at + 2].copy_from_slice(&NOBODYS);
            }
            message[3] &= !VERIFIED;
        }
        message[..2].copy_from_slice(&self.id);
        message[HEADER..HEADER + self.question.len()].copy_from_slice(&self.question);
        if message.len() > self.limit {
            // The client asks again by TCP.
            message.truncate(HEADER + self.question.len());
            message[2] |= 2;
            message[6..12].fill(0);
        }
        message
    }
}

/// A host's name as messages have it, in lower case; `None` if it is none.
pub fn name(host: &str) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    for label in host.strip_suffix('.').unwrap_or(host).split('.') {
        let is_of_host = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if !(1..=63).contains(&label.len()) || !label.bytes().all(is_of_host) {
            return None;
        }
        name.push(label.len() as u8);
        name.extend(label.bytes().map(|b| b.to_ascii_lowercase()));
    }
    name.push(0);
    (name.len() <= 255).then_some(name)
}

/// The name that a canonical question asks for.
pub fn name_of(canonical: &[u8]) -> Option<&[u8]> {
    let mut r = Reader { bytes: canonical, at: HEADER };
    r.name(false)?;
    canonical.get(HEADER..r.at)
}

/// Is a canonical question one of those that browsers ask of each host: for addresses, or how it is
/// reached by HTTPS?
pub fn is_of_browsers(canonical: &[u8]) -> bool {
    let kind = || {
        let at = HEADER + name_of(canonical)?.len();
        canonical.get(at..at + 2).map(|kind| u16::from_be_bytes([kind[0], kind[1]]))
    };
    kind().is_some_and(|kind| OF_BROWSERS.contains(&kind))
}

/// The same canonical question for another name.
pub fn with_name(canonical: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let behind = HEADER + name_of(canonical)?.len();
    Some([&canonical[..HEADER], name, &canonical[behind..]].concat())
}

/// Copies an OPT record without what is of one hop; the size that it tells, and whether signatures
/// are wanted.
fn opt(r: &mut Reader<'_>, canonical: &mut Vec<u8>) -> Option<(u16, bool)> {
    let [0] = r.take(1)? else { return None };
    let (kind, size, flags, len) = (r.number()?, r.number()?, r.take(4)?, r.number()?);
    // Of version 0, which knows one flag.
    if kind != OPT || flags[..2] != [0, 0] || flags[2] & 0x7f != 0 || flags[3] != 0 {
        return None;
    }
    let mut options = Reader { bytes: r.take(len.into())?, at: 0 };
    let mut kept = Vec::new();
    while !options.is_at_end() {
        let begin = options.at;
        let (code, len) = (options.number()?, options.number()?);
        options.take(len.into())?;
        if !HOP_OPTIONS.contains(&code) {
            kept.extend_from_slice(&options.bytes[begin..options.at]);
        }
    }
    canonical.push(0);
    canonical.extend([OPT, LARGEST as u16].map(u16::to_be_bytes).concat());
    canonical.extend_from_slice(flags);
    canonical.extend((kept.len() as u16).to_be_bytes());
    canonical.extend(kept);
    Some((size, flags[2] & 0x80 != 0))
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    message: Vec<u8>,
    /// Where its TTLs are.
    ttls: Vec<u16>,
    /// Where it names HTTP/3 as a protocol of a service.
    http3: Vec<u16>,
    /// For how many seconds it may be kept; 0: not at all.
    pub ttl: u32,
}

impl Answer {
    /// The answer to a canonical question; `None` if it is none, or not whole.
    pub fn parse(canonical: &[u8], message: &[u8]) -> Option<Answer> {
        let mut asked = Reader { bytes: canonical, at: HEADER };
        asked.name(false)?;
        let question = canonical.get(HEADER..asked.at + 4)?;
        let mut r = Reader { bytes: message, at: 0 };
        let head = r.take(HEADER)?;
        // An answer to a plain question, not truncated; and to this one.
        if head[2] & 0xfa != 0x80 || head[4..6] != [0, 1] {
            return None;
        }
        if !r.take(question.len())?.eq_ignore_ascii_case(question) {
            return None;
        }
        let count = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let (mut ttls, mut http3, mut least, mut soa) = (Vec::new(), Vec::new(), LONGEST, None);
        let wanted =
            u16::from_be_bytes([question[question.len() - 4], question[question.len() - 3]]);
        let mut is_there = wanted == ANY;
        for (section, at) in [6, 8, 10].into_iter().enumerate() {
            for _ in 0..count(at) {
                let (kind, ttl_at, data) = r.record()?;
                if kind == OPT {
                    continue;
                }
                let ttl = number_at(message, ttl_at)?;
                // A TTL with its first bit set is none (RFC 2181, section 8).
                let ttl = if ttl >> 31 == 1 { 0 } else { ttl };
                least = least.min(ttl);
                is_there |= section == 0 && kind == wanted;
                ttls.push(u16::try_from(ttl_at).ok()?);
                if SVCB.contains(&kind) {
                    let begin = r.at - data.len();
                    let at = |at| u16::try_from(begin + at).ok();
                    http3.extend(
                        names_of_http3(data).unwrap_or_default().into_iter().filter_map(at),
                    );
                }
                if section == 1 && kind == SOA {
                    soa = number_at(data, data.len().checked_sub(4)?).map(|least| least.min(ttl));
                }
            }
        }
        // It is "there is none" that only an SOA says for how long (RFC 2308).
        let none = soa.unwrap_or(0).min(least).min(LONGEST_NEGATIVE);
        // A name that only stands for another one has no such record either.
        let ttl = match (head[3] & 15, is_there) {
            (0, true) => least,
            (0, false) | (3, _) => none,
            _ => 0,
        };
        r.is_at_end().then(|| Answer { message: message.to_vec(), ttls, http3, ttl })
    }

    /// The answer of a server that refuses or fails without repeating the question, as many do;
    /// `None` if the message is none.
    pub fn of_failure(canonical: &[u8], message: &[u8]) -> Option<Answer> {
        let head = message.first_chunk::<HEADER>()?;
        let fails = FAILURES.contains(&(head[3] & 15));
        if head[2] & 0xfa != 0x80 || head[4..6] != [0, 0] || !fails {
            return None;
        }
        let mut asked = Reader { bytes: canonical, at: HEADER };
        asked.name(false)?;
        let question = canonical.get(HEADER..asked.at + 4)?;
        let mut whole = vec![0, 0, 0x80 | canonical[2] & 1, head[3] & 0x8f, 0, 1, 0, 0, 0, 0, 0, 0];
        whole.extend(question);
        Answer::parse(canonical, &whole)
    }

    /// Could the server not say?
    pub fn is_failure(&self) -> bool {
        !matches!(self.message[3] & 15, 0 | 3)
    }

    /// The message after so many seconds, without a number; `None`: past its time.
    pub fn aged(&self, age: Option<u32>) -> Vec<u8> {
        let mut message = self.message.clone();
        message[..2].fill(0);
        for at in self.ttls.iter().map(|at| usize::from(*at)) {
            let ttl = number_at(&message, at).unwrap_or(0);
            let left = age.map_or(STALE_TTL, |age| ttl.saturating_sub(age));
            message[at..at + 4].copy_from_slice(&left.to_be_bytes());
        }
        message
    }

    /// Its memory.
    pub fn size(&self) -> usize {
        self.message.len() + 2 * (self.ttls.len() + self.http3.len())
    }
}

/// Where the data of an SVCB record names HTTP/3, in one of its versions; `None` if it is none.
fn names_of_http3(data: &[u8]) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    let mut r = Reader { bytes: data, at: 0 };
    r.number()?;
    r.name(false)?;
    while !r.is_at_end() {
        let (key, len) = (r.number()?, r.number()?);
        let begin = r.at;
        let value = r.take(len.into())?;
        let mut ids = Reader { bytes: value, at: 0 };
        while key == ALPN && !ids.is_at_end() {
            let len = ids.take(1)?[0];
            let at = ids.at;
            let id = ids.take(len.into())?;
            if id == b"h3" || id.starts_with(b"h3-") {
                found.push(begin + at);
            }
        }
    }
    Some(found)
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    Reader { bytes, at }.long()
}

#[cfg(test)]
pub mod tests;
