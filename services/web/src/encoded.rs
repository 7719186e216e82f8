//! Pages that their server encodes, read while they pass.
//!
//! A page that is somebody's own is not compressed by the link, because it may hold secrets beside
//! what somebody else chose (docs/compression.md). So its server is asked to do what it does for
//! every browser, as without us: such a page crosses in gzip, and both ends read in it what they
//! would read in a plain one ([`Decoder`]). Other codings are not asked for, because they are not
//! read.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZFlush, MZStatus};

use crate::delta::MAX_PAGE;

/// Of a member's head (RFC 1952, section 2.3) more is not read: servers send ten bytes.
const MAX_HEAD: usize = 1 << 10;
const FIXED_HEAD: usize = 10;
const TRAILER: usize = 8;
/// Bytes that are unpacked at once.
const OUT: usize = 32 << 10;

/// The coding that an own page is asked for in, for a browser that takes these: one that is read.
pub fn asked_for(fields: &HeaderMap) -> HeaderValue {
    let all =
        fields.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let takes_gzip = all.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight: String = weight.chars().filter(|c| !c.is_whitespace()).collect();
        let is_refused = weight.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    });
    HeaderValue::from_static(if takes_gzip { "gzip" } else { "identity" })
}

/// What is inside a body.
pub enum Decoder {
    /// The body as it is.
    Plain,
    /// What gzip packed.
    Gzip(Gunzip),
}

impl Decoder {
    /// For an answer with these fields. `None`: its coding is not read.
    pub fn of(fields: &HeaderMap) -> Option<Decoder> {
        let mut codings = fields.get_all(header::CONTENT_ENCODING).iter();
        let coding = codings.next().map_or("identity", |coding| coding.to_str().unwrap_or(""));
        match coding.trim().to_ascii_lowercase().as_str() {
            _ if codings.next().is_some() => None,
            "identity" => Some(Decoder::Plain),
            "gzip" | "x-gzip" => Some(Decoder::Gzip(Gunzip::default())),
            _ => None,
        }
    }

    /// What is inside the next bytes. Of what is packed [`MAX_PAGE`] bytes at most come out of all
    /// of it, and none of what is damaged.
    pub fn read(&mut self, bytes: &Bytes) -> Bytes {
        match self {
            Decoder::Plain => bytes.clone(),
            Decoder::Gzip(packed) => packed.read(bytes).into(),
        }
    }

    /// Is all of it read that was in what came?
    pub fn is_whole(&self) -> bool {
        matches!(self, Decoder::Plain | Decoder::Gzip(Gunzip { at: At::End, .. }))
    }
}

/// Unpacks one member of gzip.
#[derive(Default)]
pub struct Gunzip {
    at: At,
    /// Bytes that came out, and their checksum.
    unpacked: usize,
    sum: crc32fast::Hasher,
}

/// Where in a member it is.
enum At {
    Head(Vec<u8>),
    Content(Box<InflateState>),
    /// What came of it.
    Trailer(Vec<u8>),
    /// All came, and the trailer confirms it.
    End,
    /// It is no member, is damaged, or has too much in it.
    Unread,
}

impl Default for At {
    fn default() -> At {
        At::Head(Vec::new())
    }
}

impl Gunzip {
    fn read(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let rest = match &mut self.at {
            At::Head(head) => {
                head.extend_from_slice(bytes);
                match head_length(head) {
                    Some(length) if length <= head.len().min(MAX_HEAD) => {
                        let rest = head.split_off(length);
                        self.at = At::Content(InflateState::new_boxed(DataFormat::Raw));
                        rest
                    }
                    Some(_) if head.len() < MAX_HEAD => return out,
                    _ => {
                        self.at = At::Unread;
                        return out;
                    }
                }
            }
            _ => bytes.to_vec(),
        };
        self.unpack(&rest, &mut out);
        out
    }

    /// Reads what follows the head.
    fn unpack(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        let mut room = [0; OUT];
        while let At::Content(state) = &mut self.at {
            let most = OUT.min(MAX_PAGE - self.unpacked + 1);
            let step = inflate(state, bytes, &mut room[..most], MZFlush::None);
            bytes = &bytes[step.bytes_consumed..];
            self.unpacked += step.bytes_written;
            if self.unpacked > MAX_PAGE {
                self.at = At::Unread;
                return;
            }
            self.sum.update(&room[..step.bytes_written]);
            out.extend_from_slice(&room[..step.bytes_written]);
            match step.status {
                Ok(MZStatus::StreamEnd) => self.at = At::Trailer(Vec::new()),
                Ok(_) if step.bytes_written == most || !bytes.is_empty() => {}
                // It wants more; nothing to read is no error of the content's.
                Ok(_) | Err(miniz_oxide::MZError::Buf) => return,
                Err(_) => self.at = At::Unread,
            }
        }
        self.confirm(bytes);
    }

    /// Reads what follows the content. The library refuses some damage by how the bytes were cut;
    /// the trailer tells all of it.
    fn confirm(&mut self, bytes: &[u8]) {
        match &mut self.at {
            At::Trailer(trailer) => {
                trailer.extend_from_slice(bytes);
                let length = (self.unpacked as u32).to_le_bytes();
                let right = [self.sum.clone().finalize().to_le_bytes(), length].concat();
                if trailer.len() >= TRAILER || !right.starts_with(trailer) {
                    self.at = if *trailer == right { At::End } else { At::Unread };
                }
            }
            // Another member, which browsers read and nobody sends.
            At::End if !bytes.is_empty() => self.at = At::Unread,
            _ => {}
        }
    }
}

/// The length of a member's head, or a greater one than what is there; `None` if it is none.
fn head_length(head: &[u8]) -> Option<usize> {
    const HAS_CHECK: u8 = 1 << 1;
    const HAS_EXTRA: u8 = 1 << 2;
    const HAS_NAME: u8 = 1 << 3;
    const HAS_COMMENT: u8 = 1 << 4;
    let begins = [0x1f, 0x8b, 8];
    if !head.iter().zip(begins).all(|(is, must)| *is == must) {
        return None;
    }
    let more = Some(head.len() + 1);
    let Some(&flags) = head.get(3) else { return more };
    let mut at = FIXED_HEAD;
    if flags & HAS_EXTRA != 0 {
        let Some(length) = head.get(at..at + 2) else { return more };
        at += 2 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    }
    for _ in 0..(flags & (HAS_NAME | HAS_COMMENT)).count_ones() {
        let end = head.get(at..).and_then(|text| text.iter().position(|byte| *byte == 0));
        let Some(end) = end else { return more };
        at += end + 1;
    }
    Some(at + if flags & HAS_CHECK != 0 { 2 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use miniz_oxide::deflate::compress_to_vec;

    fn gzip(content: &[u8], flags: u8, more: &[u8]) -> Vec<u8> {
        let mut member = vec![0x1f, 0x8b, 8, flags, 0, 0, 0, 0, 0, 3];
        member.extend_from_slice(more);
        member.extend(compress_to_vec(content, 6));
        member.extend(crc32fast::hash(content).to_le_bytes());
        member.extend((content.len() as u32).to_le_bytes());
        member
    }

    fn fields(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    /// What comes out of it in pieces of this length; is it whole?
    fn read(packed: &[u8], step: usize) -> (Vec<u8>, bool) {
        let mut decoder = Decoder::of(&fields(header::CONTENT_ENCODING, "gzip")).unwrap();
        let pieces = packed.chunks(step);
        let all = pieces.flat_map(|piece| decoder.read(&Bytes::copy_from_slice(piece))).collect();
        (all, decoder.is_whole())
    }

    #[test]
    fn a_packed_page_is_read_however_it_arrives() {
        let page: Vec<u8> = (0..200_000).map(|n: u32| (n.wrapping_mul(n) / 7) as u8).collect();
        let plain = gzip(&page, 0, b"");
        let full = gzip(&page, 0x1e, b"\x03\x00abcname\0comment\0\x01\x02");
        for packed in [plain, full] {
            for step in [1, 7, 1000, packed.len()] {
                assert!(read(&packed, step) == (page.clone(), true), "by {step}");
            }
            let (some, is_whole) = read(&packed[..packed.len() / 2], 100);
            assert!(!some.is_empty() && page.starts_with(&some) && !is_whole);
        }
    }

    #[test]
    fn a_page_that_ends_where_the_room_does_is_whole() {
        let letters: Vec<u8> = (0..3 * OUT).map(|n| b'a' + (n * n / 7 % 26) as u8).collect();
        for length in (1..3).flat_map(|k| (k * OUT - 300)..(k * OUT + 300)) {
            for page in [&letters[..length], &vec![b'a'; length]] {
                let packed = gzip(page, 0, b"");
                for step in [1000, packed.len()] {
                    assert!(read(&packed, step) == (page.to_vec(), true), "{length} by {step}");
                }
            }
        }
    }

    #[test]
    fn all_that_came_is_read_at_once() {
        let page = b"<img src=a.png><img src=b.png>".repeat(1000);
        let packed = gzip(&page, 0, b"");
        let mut decoder = Decoder::Gzip(Gunzip::default());
        let out = decoder.read(&Bytes::from(packed[..packed.len() - TRAILER].to_vec()));
        assert_eq!(out, page);
    }

    #[test]
    fn a_bomb_and_what_is_damaged_are_not_read() {
        let (out, is_whole) = read(&gzip(&vec![b'a'; 64 << 20], 0, b""), 4096);
        assert!(out.len() <= MAX_PAGE && !is_whole);
        assert_eq!(read(&gzip(&vec![b'a'; MAX_PAGE], 0, b""), 4096).0.len(), MAX_PAGE);
        for damaged in [&b"no gzip at all"[..], b"\x1f\x8b\x08\x00\0\0\0\0\0\x03\xff\xff\xff"] {
            assert_eq!(read(damaged, 3), (vec![], false));
        }
        let head = gzip(b"a", 1 << 3, &[b'n'; 2 * MAX_HEAD]);
        assert_eq!(read(&head, 100), (vec![], false), "a name without an end");
        for (more, takes) in [(0, true), (1, false)] {
            let name = [vec![b'n'; MAX_HEAD - FIXED_HEAD - 1 + more], vec![0]].concat();
            let head = gzip(b"a", 1 << 3, &name);
            for step in [1, 100, MAX_HEAD + 20] {
                assert_eq!(read(&head, step).1, takes, "{more} beyond the bound, by {step}");
            }
        }
        let two = [gzip(b"a", 0, b""), gzip(b"b", 0, b"")].concat();
        assert!(!read(&two, 1).1 && !read(&two, two.len()).1);
        // A letter, and three from ten places before it.
        let before = b"\x1f\x8b\x08\0\0\0\0\0\0\x03K\x04\xb2\0\x43\xbe\xb7\xe8\x04\0\0\0";
        assert!(!read(before, 1).1 && !read(before, before.len()).1);
        let sound = gzip(b"a page", 0, b"");
        for at in sound.len() - TRAILER..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            for step in [1, 3, sound.len()] {
                assert!(!read(&damaged, step).1, "byte {at} by {step}");
            }
        }
    }

    #[test]
    fn only_what_is_read_is_asked_for() {
        for (takes, asks) in [
            ("gzip, deflate", "gzip"),
            ("br, GZIP;q=0.5", "gzip"),
            ("br", "identity"),
            ("gzip; q=0, br", "identity"),
            ("identity", "identity"),
        ] {
            assert_eq!(asked_for(&fields(header::ACCEPT_ENCODING, takes)), asks, "{takes}");
        }
        let reads = |coding| Decoder::of(&fields(header::CONTENT_ENCODING, coding)).is_some();
        assert!(reads("gzip") && reads("Identity") && !reads("br") && !reads("gzip, br"));
    }
}
