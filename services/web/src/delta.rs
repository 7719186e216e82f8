//! Deltas: a page that has changed crosses as its difference from one that the terminal has.
//!
//! Both ends remember whole pages, as they crossed, by host and by what tells their bytes apart
//! ([`Versions`]). A request names one that the terminal has: that of the same address, or the last
//! page of the same site. If the hub has it, too, the page crosses packed by zstd with it as the
//! dictionary ([`Packer`], [`Unpacker`]).

use std::collections::BTreeMap;
use std::net::IpAddr;

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, DCtx, DParameter, InBuffer, OutBuffer, SafeResult};

use crate::cache::{Digest, digest_of, origin_of};

/// In a request: a page that the terminal has.
const BASE: HeaderName = HeaderName::from_static("bp-base");
/// In an answer: its body is packed, with this page as the dictionary.
const DELTA: HeaderName = HeaderName::from_static("bp-delta");

/// Bytes of one page; of longer ones there are no deltas.
pub const MAX_PAGE: usize = 1 << 20;
/// Bytes of all pages with all that each takes, and pages.
const MAX_BYTES: usize = 33 << 20;
const MAX_PAGES: usize = 4096;
/// Bytes of a page's name; a page with a longer one is not remembered.
const MAX_NAME: usize = 2 << 10;
/// What a page takes beside its bytes and its name.
const OVERHEAD: usize = 256;
const LEVEL: i32 = 3;
/// Bytes back to which a packed page reaches, as a power of two: twice the longest dictionary.
const WINDOW: u32 = 21;
/// A dictionary that begins so would be read as one of zstd's own form.
const MAGIC: [u8; 4] = [0x37, 0xa4, 0x30, 0xec];
/// Bytes that come out at once.
const OUT: usize = 32 << 10;

/// A host behind a peer: nobody's page is packed with another's.
pub type Owner = (String, IpAddr);

/// Pages that crossed whole.
#[derive(Debug, Default)]
pub struct Versions {
    pages: BTreeMap<(Owner, Digest), Page>,
    by_use: BTreeMap<u64, (Owner, Digest)>,
    /// The last of each address, and of each site.
    last: BTreeMap<(Owner, String), Digest>,
    bytes: usize,
    by_peer: BTreeMap<String, Share>,
    uses: u64,
}

/// What is remembered for one peer.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    pages: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Page {
    bytes: Bytes,
    name: String,
    used: u64,
}

impl Page {
    /// Bytes that it takes. Its name is in two books.
    fn weight(&self) -> usize {
        self.bytes.len() + 2 * self.name.len() + OVERHEAD
    }
}

/// The part of a name that pages of a site share.
fn site(name: &str) -> String {
    origin_of(name).to_owned()
}

impl Versions {
    /// Remembers a page.
    pub fn insert(&mut self, owner: &Owner, name: &str, bytes: Bytes) {
        let is_too_long = bytes.len() > MAX_PAGE || name.len() > MAX_NAME;
        if bytes.is_empty() || is_too_long || bytes.starts_with(&MAGIC) {
            return;
        }
        let digest = digest_of(&bytes);
        let key = (owner.clone(), digest);
        self.forget(&key);
        for last in [name.to_owned(), site(name)] {
            self.last.insert((owner.clone(), last), digest);
        }
        self.uses += 1;
        let page = Page { bytes, name: name.to_owned(), used: self.uses };
        self.bytes += page.weight();
        let its = self.by_peer.entry(owner.0.clone()).or_default();
        (its.pages, its.bytes) = (its.pages + 1, its.bytes + page.weight());
        self.by_use.insert(self.uses, key.clone());
        self.pages.insert(key, page);
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.oldest(|its| its.bytes)
        {
            self.forget(&oldest);
        }
        while self.pages.len() > MAX_PAGES
            && let Some(oldest) = self.oldest(|its| its.pages)
        {
            self.forget(&oldest);
        }
    }

    /// What was used least recently of the peer that has the most: none pushes out the others'.
    fn oldest(&self, of: impl Fn(&Share) -> usize) -> Option<(Owner, Digest)> {
        let (most, _) = self.by_peer.iter().max_by_key(|(_, its)| of(its))?;
        self.by_use.values().find(|((peer, _), _)| peer == most).cloned()
    }

    fn forget(&mut self, key: &(Owner, Digest)) {
        let Some(page) = self.pages.remove(key) else { return };
        self.by_use.remove(&page.used);
        self.bytes -= page.weight();
        if let Some(its) = self.by_peer.get_mut(&key.0.0) {
            (its.pages, its.bytes) = (its.pages - 1, its.bytes - page.weight());
            if its.pages == 0 {
                self.by_peer.remove(&key.0.0);
            }
        }
        for last in [page.name.clone(), site(&page.name)] {
            let last = (key.0.clone(), last);
            if self.last.get(&last) == Some(&key.1) {
                self.last.remove(&last);
            }
        }
    }

    /// The page that is likest to the one of this name.
    pub fn like(&self, owner: &Owner, name: &str) -> Option<Digest> {
        let last = |name: String| self.last.get(&(owner.clone(), name)).copied();
        last(name.to_owned()).or_else(|| last(site(name)))
    }

    /// The page with this digest.
    pub fn find(&mut self, owner: &Owner, digest: Digest) -> Option<Bytes> {
        let key = (owner.clone(), digest);
        let page = self.pages.get_mut(&key)?;
        self.by_use.remove(&page.used);
        self.uses += 1;
        page.used = self.uses;
        self.by_use.insert(self.uses, key);
        Some(page.bytes.clone())
    }
}

/// May an answer's page be remembered, to be a dictionary later? Its own host alone is given what
/// is packed with it, so that `private` does not matter.
pub fn may_be_kept(status: StatusCode, fields: &HeaderMap) -> bool {
    let says = fields.get_all(header::CACHE_CONTROL).iter();
    let forbids = says
        .filter_map(|v| v.to_str().ok())
        .any(|v| v.split(',').any(|directive| directive.trim().eq_ignore_ascii_case("no-store")));
    status == StatusCode::OK && !forbids
}

/// Removes these fields, whoever sent them.
pub fn clear(fields: &mut HeaderMap) {
    fields.remove(BASE);
    fields.remove(DELTA);
}

fn set(fields: &mut HeaderMap, name: HeaderName, digest: Digest) {
    if let Ok(value) = HeaderValue::from_str(&format!("{digest:032x}")) {
        fields.insert(name, value);
    }
}

fn take(fields: &mut HeaderMap, name: HeaderName) -> Option<Digest> {
    let value = fields.remove(name)?;
    Digest::from_str_radix(value.to_str().ok()?, 16).ok()
}

/// Says in a request which page the terminal has.
pub fn set_base(fields: &mut HeaderMap, digest: Digest) {
    set(fields, BASE, digest);
}

/// Which page the terminal has.
pub fn take_base(fields: &mut HeaderMap) -> Option<Digest> {
    take(fields, BASE)
}

/// Says in an answer what its body is packed with.
pub fn set_delta(fields: &mut HeaderMap, digest: Digest) {
    set(fields, DELTA, digest);
}

/// What an answer's body is packed with.
pub fn take_delta(fields: &mut HeaderMap) -> Option<Digest> {
    take(fields, DELTA)
}

/// The body is not what the peer says it is, or there is no memory for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packed page cannot be read: {0}")]
pub struct Broken(&'static str);

fn checked(result: SafeResult) -> Result<usize, Broken> {
    result.map_err(|code| Broken(zstd_safe::get_error_name(code)))
}

/// Packs a page as it comes.
pub struct Packer(CCtx<'static>);

impl Packer {
    /// With this page as the dictionary.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(base: &[u8]) -> Result<Packer, Broken> {
        let mut packer = CCtx::try_create().ok_or(Broken("no memory"))?;
        checked(packer.set_parameter(zstd_safe::CParameter::CompressionLevel(LEVEL)))?;
        checked(packer.set_parameter(zstd_safe::CParameter::WindowLog(WINDOW)))?;
        checked(packer.load_dictionary(base))?;
        Ok(Packer(packer))
    }

    /// These bytes, packed so that they can be unpacked without more.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn pack(&mut self, bytes: &[u8]) -> Result<Bytes, Broken> {
        self.run(bytes, ZSTD_EndDirective::ZSTD_e_flush)
    }

    /// The end of it.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn end(&mut self) -> Result<Bytes, Broken> {
        self.run(&[], ZSTD_EndDirective::ZSTD_e_end)
    }

    fn run(&mut self, bytes: &[u8], how: ZSTD_EndDirective) -> Result<Bytes, Broken> {
        let (mut input, mut packed) = (InBuffer::around(bytes), Vec::new());
        loop {
            let mut room = vec![0; OUT];
            let mut out = OutBuffer::around(&mut room[..]);
            let left = checked(self.0.compress_stream2(&mut out, &mut input, how))?;
            packed.extend_from_slice(out.as_slice());
            if left == 0 && input.pos() == bytes.len() {
                return Ok(packed.into());
            }
        }
    }
}

/// Unpacks a page as it comes.
pub struct Unpacker {
    unpacker: DCtx<'static>,
    /// What has come and is not unpacked.
    packed: Bytes,
    /// More may come out than has.
    more: bool,
    ended: bool,
}

impl Unpacker {
    /// With this page as the dictionary.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(base: &[u8]) -> Result<Unpacker, Broken> {
        let mut unpacker = DCtx::try_create().ok_or(Broken("no memory"))?;
        checked(unpacker.set_parameter(DParameter::WindowLogMax(WINDOW)))?;
        checked(unpacker.load_dictionary(base))?;
        Ok(Unpacker { unpacker, packed: Bytes::new(), more: false, ended: false })
    }

    /// Takes packed bytes; [`Unpacker::give`] gives what is in them. To be called when that gives
    /// nothing more.
    pub fn take(&mut self, packed: Bytes) {
        self.packed = packed;
    }

    /// The next bytes, [`OUT`] at most however many are in it; `None`: more has to be taken.
    ///
    /// # Errors
    /// If it is no packed page, or goes on behind its end.
    pub fn give(&mut self) -> Result<Option<Bytes>, Broken> {
        while !self.packed.is_empty() || self.more {
            if self.ended {
                return Err(Broken("it has no end"));
            }
            let mut room = vec![0; OUT];
            let mut out = OutBuffer::around(&mut room[..]);
            let mut input = InBuffer::around(&self.packed);
            let left = checked(self.unpacker.decompress_stream(&mut out, &mut input))?;
            let (read, written) = (input.pos(), out.pos());
            room.truncate(written);
            self.packed = self.packed.split_off(read);
            (self.ended, self.more) = (left == 0, left != 0 && written == OUT);
            if !room.is_empty() {
                return Ok(Some(room.into()));
            }
        }
        Ok(None)
    }

    /// Has its end come?
    ///
    /// # Errors
    /// If not.
    pub fn end(&self) -> Result<(), Broken> {
        if self.ended { Ok(()) } else { Err(Broken("it breaks off")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of this length that compresses no better than others.
    fn page(seed: u64, length: usize) -> Vec<u8> {
        let mut rng = units::Rng::new(seed);
        (0..length).map(|_| b'!' + (rng.next_u64() % 90) as u8).collect()
    }

    fn owner(host: &str) -> Owner {
        ("shore".into(), host.parse().unwrap())
    }

    fn unpack(base: &[u8], packed: &[u8], step: usize) -> Result<Vec<u8>, Broken> {
        let (mut unpacker, mut all) = (Unpacker::new(base)?, Vec::new());
        for part in packed.chunks(step) {
            unpacker.take(Bytes::copy_from_slice(part));
            while let Some(bytes) = unpacker.give()? {
                assert!(bytes.len() <= OUT);
                all.extend_from_slice(&bytes);
            }
        }
        unpacker.end().map(|()| all)
    }

    #[test]
    fn a_page_of_which_two_hundredths_changed_costs_less_than_one_twentieth() {
        let old = page(1, 100_000);
        let mut new = old.clone();
        for place in 0..10 {
            let at = place * 9_876;
            new.splice(at..at + 200, page(2 + place as u64, 200));
        }
        let (mut packer, mut packed) = (Packer::new(&old).unwrap(), Vec::new());
        for part in new.chunks(8_000) {
            let before = packed.len();
            packed.extend_from_slice(&packer.pack(part).unwrap());
            assert!(packed.len() > before, "each part can be unpacked at once");
        }
        packed.extend_from_slice(&packer.end().unwrap());
        assert!(packed.len() < new.len() / 20, "{}", packed.len());
        for step in [1, 1000, packed.len()] {
            assert!(unpack(&old, &packed, step).unwrap() == new, "by {step}");
        }
    }

    #[test]
    fn what_is_no_packed_page_is_refused_and_a_bomb_comes_out_in_small_pieces() {
        let mut packer = Packer::new(b"base").unwrap();
        let mut bomb = Vec::new();
        for _ in 0..64 {
            bomb.extend_from_slice(&packer.pack(&vec![b'a'; 1 << 20]).unwrap());
        }
        assert!(bomb.len() < 64 << 10, "64 MB in {} bytes", bomb.len());
        assert_eq!(unpack(b"base", &bomb, 4096), Err(Broken("it breaks off")));
        bomb.extend_from_slice(&packer.end().unwrap());
        assert_eq!(unpack(b"base", &bomb, 4096).unwrap().len(), 64 << 20);
        bomb.push(0);
        assert_eq!(unpack(b"base", &bomb, 4096), Err(Broken("it has no end")));
        assert!(unpack(b"base", b"not packed at all", 4096).is_err());
        // A window above ours would be memory that the peer asks for.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa0, 0x01, 0x00, 0x00];
        assert!(unpack(b"base", &frame, 4096).is_err());
    }

    #[test]
    fn pages_are_found_by_address_then_by_site_and_only_by_their_own_host() {
        let mut versions = Versions::default();
        let me = owner("10.1.0.2");
        versions.insert(&me, "a.test/x", "one".into());
        versions.insert(&me, "a.test/y", "two".into());
        let digest = |text: &str| digest_of(text.as_bytes());
        assert_eq!(versions.like(&me, "a.test/x"), Some(digest("one")));
        assert_eq!(versions.like(&me, "a.test/z"), Some(digest("two")), "the site's last");
        assert_eq!(versions.like(&me, "b.test/x"), None);
        assert_eq!(versions.like(&owner("10.1.0.3"), "a.test/x"), None);
        assert_eq!(versions.find(&owner("10.1.0.3"), digest("one")), None);
        assert_eq!(versions.find(&me, digest("one")).as_deref(), Some(&b"one"[..]));
    }

    #[test]
    fn there_is_a_limit_to_pages_and_the_least_recently_used_go_first() {
        let mut versions = Versions::default();
        let me = owner("10.1.0.2");
        let long = |n: u64| Bytes::from(page(n, MAX_PAGE));
        versions.insert(&me, "a/long", page(1, MAX_PAGE + 1).into());
        versions.insert(&me, "a/magic", Bytes::from_static(&MAGIC));
        assert_eq!(versions.like(&me, "a/long"), None);
        let first = digest_of(&long(0));
        for n in 0..33 {
            versions.insert(&me, &format!("a/{n}"), long(n));
            assert!(versions.find(&me, first).is_some(), "it is used");
        }
        let bytes: usize = versions.pages.values().map(|page| page.bytes.len()).sum();
        assert_eq!((versions.pages.len(), bytes), (32, 32 * MAX_PAGE));
        assert_eq!(versions.like(&me, "a/1"), Some(digest_of(&long(32))), "only the site's last");
        for n in 0..2 * MAX_PAGES {
            versions.insert(&me, &format!("b/{n}"), format!("{n}").into());
        }
        assert_eq!(versions.pages.len(), MAX_PAGES);
        assert_eq!(versions.by_use.len(), MAX_PAGES);
        assert!(versions.last.len() <= MAX_PAGES + 2);
    }

    #[test]
    fn a_peer_with_many_pages_pushes_out_its_own_and_not_the_others() {
        let mut versions = Versions::default();
        let (ship, evil) = (owner("10.1.0.2"), ("evil".to_owned(), [10, 66, 0, 1].into()));
        versions.insert(&ship, "a/mine", "mine".into());
        for n in 0..100 {
            versions.insert(&evil, &format!("b/{n}"), page(n, MAX_PAGE).into());
        }
        assert!(versions.bytes <= MAX_BYTES);
        assert_eq!(versions.by_peer.values().map(|its| its.bytes).sum::<usize>(), versions.bytes);
        assert_eq!(versions.like(&ship, "a/mine"), Some(digest_of(b"mine")));
    }

    #[test]
    fn names_count_and_many_small_pages_push_out_their_own() {
        let mut versions = Versions::default();
        let (ship, evil) = (owner("10.1.0.2"), ("evil".to_owned(), [10, 66, 0, 1].into()));
        versions.insert(&ship, "a/mine", page(1, 10_000).into());
        let long = "x".repeat(60_000);
        for n in 0..2 * MAX_PAGES {
            let name = if n % 2 == 0 { format!("b/{n}") } else { format!("b/{n}{long}") };
            versions.insert(&evil, &name, format!("{n}").into());
        }
        let mine = versions.like(&ship, "a/mine").expect("it stays");
        assert!(versions.find(&ship, mine).is_some());
        let names = versions.pages.values().map(|page| page.name.len());
        let keys = versions.last.keys().map(|(_, name)| name.len());
        let taken: usize = names.chain(keys).sum();
        assert!(taken + versions.pages.values().map(|p| p.bytes.len()).sum::<usize>() < 40 << 20);
        for n in 0..2 * MAX_PAGES {
            let name = format!("b/{n}{}", &long[..2000]);
            versions.insert(&evil, &name, format!("more {n}").into());
        }
        let taken: usize = versions.last.keys().map(|(_, name)| 2 * name.len()).sum();
        assert!(taken <= MAX_BYTES, "{taken}");
    }

    #[test]
    fn what_may_not_be_stored_is_not_remembered() {
        let mut fields = HeaderMap::new();
        assert!(may_be_kept(StatusCode::OK, &fields));
        assert!(!may_be_kept(StatusCode::NOT_FOUND, &fields));
        fields.insert(header::CACHE_CONTROL, "private, no-cache".parse().unwrap());
        assert!(may_be_kept(StatusCode::OK, &fields));
        fields.append(header::CACHE_CONTROL, "max-age=0, No-Store".parse().unwrap());
        assert!(!may_be_kept(StatusCode::OK, &fields));
    }

    #[test]
    fn fields_say_which_page_and_nothing_else_is_believed() {
        let mut fields = HeaderMap::new();
        set_base(&mut fields, 7);
        set_delta(&mut fields, u128::MAX);
        assert_eq!((take_base(&mut fields), take_base(&mut fields)), (Some(7), None));
        assert_eq!(take_delta(&mut fields), Some(u128::MAX));
        for odd in ["", "x", "100000000000000000000000000000000"] {
            fields.insert(BASE, odd.parse().unwrap());
            assert_eq!(take_base(&mut fields), None);
        }
        set_base(&mut fields, 7);
        clear(&mut fields);
        assert!(fields.is_empty());
    }
}
