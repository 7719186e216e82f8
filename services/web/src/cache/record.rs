//! An answer in a file: its body, what is known of it, and where that begins.
//!
//! ```text
//! body ‖ about ‖ trailer
//! about    peer, server, URI, status, calendar time, age, time it took, length, check of each
//!          piece of the body, fields, chosen-by fields
//! trailer  length of about (4) ‖ check of about (8) ‖ "bpweb\x00\x00\x01"
//! ```
//!
//! Numbers have 8 bytes, most significant first; texts have their length (4 bytes) before them, and
//! lists the number of their members. Whoever freshens an answer appends a new `about` and trailer:
//! until the file has its new name, the old end of it counts.

use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::stored::Rules;
use super::{Key, Now, Stored, digest_of};

/// Bytes of the body under one check.
pub const PIECE: usize = 32 << 10;
/// Bytes of a trailer.
pub const TRAILER: usize = 20;
/// Bytes of `about` at most.
pub const MAX_ABOUT: usize = 256 << 10;

const MAGIC: &[u8; 8] = b"bpweb\x00\x00\x01";

/// What is known of a file's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The answer.
    pub stored: Stored,
    /// Of each piece of its body.
    pub checks: Vec<u64>,
}

/// The check of a piece, or of `about`.
pub fn check(bytes: &[u8]) -> u64 {
    (digest_of(bytes) >> 64) as u64
}

/// The length of `about` that a trailer tells, and its check.
pub fn read_trailer(trailer: &[u8]) -> Option<(usize, u64)> {
    let (length, rest) = trailer.split_first_chunk::<4>()?;
    let (check, magic) = rest.split_first_chunk::<8>()?;
    let length = u32::from_be_bytes(*length) as usize;
    (magic == MAGIC && length <= MAX_ABOUT).then_some((length, u64::from_be_bytes(*check)))
}

impl Record {
    /// `about` and the trailer; `None` if there is too much of it.
    pub fn encode(&self, now: Now) -> Option<Vec<u8>> {
        let it = &self.stored;
        let mut out = Writer(Vec::new());
        out.text(it.key.peer.as_bytes());
        out.text(it.key.to.to_string().as_bytes());
        out.text(it.key.uri.as_bytes());
        out.number(it.status.as_u16().into());
        out.time(now.calendar);
        out.time(it.age_at(now));
        out.time(it.took);
        out.number(it.length);
        out.number(self.checks.len() as u64);
        self.checks.iter().for_each(|check| out.number(*check));
        out.number(it.fields.len() as u64);
        for (name, value) in &it.fields {
            out.text(name.as_str().as_bytes());
            out.text(value.as_bytes());
        }
        out.number(it.chosen_by.len() as u64);
        for (name, value) in &it.chosen_by {
            out.text(name.as_str().as_bytes());
            out.text(value);
        }
        let Writer(mut bytes) = out;
        let length = u32::try_from(bytes.len()).ok().filter(|n| *n as usize <= MAX_ABOUT)?;
        let check = check(&bytes);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&check.to_be_bytes());
        bytes.extend_from_slice(MAGIC);
        Some(bytes)
    }

    /// What `about` says, if it is whole. While the program did not run the calendar counts: an
    /// answer that would come from the future is of any age.
    pub fn decode(about: &[u8], expected: u64, number: u64, now: Now) -> Option<Record> {
        let mut it = Reader(about);
        if check(about) != expected {
            return None;
        }
        let peer = it.string()?;
        let to = it.string()?.parse().ok()?;
        let key = Key { peer, to, uri: it.string()? };
        let status = StatusCode::from_u16(it.number()?.try_into().ok()?).ok()?;
        let (written, then, took) = (it.time()?, it.time()?, it.time()?);
        let lain = now.calendar.checked_sub(written);
        let age = lain.map_or(Duration::from_secs(super::words::FOREVER), |lain| then + lain);
        let length = it.number()?;
        let checks = (0..it.count(8)?).map(|_| it.number()).collect::<Option<Vec<_>>>()?;
        if checks.len() as u64 != length.div_ceil(PIECE as u64) {
            return None;
        }
        let mut fields = HeaderMap::new();
        for _ in 0..it.count(8)? {
            let name = HeaderName::from_bytes(it.text()?).ok()?;
            fields.try_append(name, HeaderValue::from_bytes(it.text()?).ok()?).ok()?;
        }
        let mut chosen_by = Vec::new();
        for _ in 0..it.count(8)? {
            let name = HeaderName::from_bytes(it.text()?).ok()?;
            chosen_by.push((name, it.text()?.to_vec()));
        }
        let rules = Rules::of(status, &fields);
        let came = now.steady;
        let stored =
            Stored { key, number, status, fields, chosen_by, came, age, took, length, rules };
        it.0.is_empty().then_some(Record { stored, checks })
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, n: u64) {
        self.0.extend_from_slice(&n.to_be_bytes());
    }

    fn time(&mut self, time: Duration) {
        self.number(time.as_millis().try_into().unwrap_or(u64::MAX));
    }

    fn text(&mut self, text: &[u8]) {
        // Texts are fields of a message, which are bounded far below.
        self.0.extend_from_slice(&(text.len() as u32).to_be_bytes());
        self.0.extend_from_slice(text);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*number))
    }

    fn time(&mut self) -> Option<Duration> {
        // Sums of two stay within what a `Duration` holds.
        self.number().map(|ms| Duration::from_millis(ms.min(1 << 48)))
    }

    /// Of members that have so many bytes at least.
    fn count(&mut self, each: usize) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len() / each).then_some(count)
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        self.0 = rest;
        Some(text)
    }

    fn string(&mut self) -> Option<String> {
        String::from_utf8(self.text()?.to_vec()).ok()
    }
}

/// For the fuzzers: what is read is bounded by what is there, and reads the same when it is
/// written again.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn fuzz(about: &[u8]) {
    let now = Now { steady: Duration::ZERO, calendar: Duration::from_secs(1 << 31) };
    let _ = read_trailer(about);
    let Some(record) = Record::decode(about, check(about), 1, now) else { return };
    let Some(again) = record.encode(now) else { return };
    let (about, _) = again.split_at(again.len() - TRAILER);
    let back = Record::decode(about, check(about), 1, now).expect("what was written");
    assert_eq!(back.stored.fields, record.stored.fields);
    assert_eq!(back.checks, record.checks);
}
