//! Is the server at this address one of the host that was named? (spec/web.md, W-VE)
//!
//! Whoever connects to his own server and names another's host must not have his answers given to
//! those who ask that host. The hub looks the name up ([`Book`]): only where the address is one of
//! its own the answer may come from, and get into, what all share. The terminal's cache has the
//! address in its keys; it hears from the hub which other addresses the same host has ([`Beside`]),
//! so that a name with many of them is kept once.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::Uri;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use units::Shares;

/// In an answer: other addresses of the host that was named.
const BESIDE: HeaderName = HeaderName::from_static("bp-beside");

/// An address counts as a name's for so long after it was seen.
const HOLDS: Duration = Duration::from_secs(600);
/// So long after a look-up none follows: an address that is not the name's is not looked for again.
const RESTS: Duration = Duration::from_secs(60);
/// Names that are remembered, and addresses of each: those seen last. Of too many names the one
/// goes that was used longest ago, of the peer with the most.
const MAX_NAMES: usize = 4096;
const MAX_ADDRESSES: usize = 64;
/// Addresses that an answer tells of.
const MAX_TOLD: usize = 16;
/// Bytes of a name (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;

/// What is known of an address and a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the host's.
    Is,
    /// It is not, as far as is known.
    IsNot,
    /// This name has to be looked up.
    LookUp(String),
}

#[derive(Debug, Default)]
struct Name {
    /// Its addresses, and when they were seen last.
    addresses: BTreeMap<IpAddr, Duration>,
    looked_up: Duration,
    /// The peer that brought it first.
    holder: String,
    used: u64,
}

/// Names, and for which peers they are remembered.
#[derive(Debug)]
struct Names<K> {
    names: BTreeMap<K, Name>,
    /// By their last use.
    shares: Shares<String, (), (u64, K)>,
    last_use: u64,
}

impl<K> Default for Names<K> {
    fn default() -> Names<K> {
        Names { names: BTreeMap::new(), shares: Shares::default(), last_use: 0 }
    }
}

impl<K: Ord + Clone> Names<K> {
    /// One that is remembered, and is used.
    fn find(&mut self, key: &K) -> Option<&mut Name> {
        let name = self.names.get_mut(key)?;
        let holder = (name.holder.clone(), ());
        self.shares.remove(&holder, &(name.used, key.clone()));
        self.last_use += 1;
        name.used = self.last_use;
        self.shares.add(&holder, (name.used, key.clone()), 1);
        Some(name)
    }

    /// Remembers one that this peer brings, if it is not there already.
    fn add(&mut self, key: &K, peer: &str) {
        if self.names.contains_key(key) {
            return;
        }
        while self.names.len() >= MAX_NAMES
            && let Some((_, oldest)) = self.shares.gives_way().cloned()
        {
            self.forget(&oldest);
        }
        let holder = (peer.to_owned(), ());
        self.shares.add(&holder, (0, key.clone()), 1);
        self.names.insert(key.clone(), Name { holder: holder.0, ..Name::default() });
    }

    fn forget(&mut self, key: &K) {
        if let Some(name) = self.names.remove(key) {
            self.shares.remove(&(name.holder, ()), &(name.used, key.clone()));
        }
    }
}

/// The addresses of names, as the hub's resolver tells them.
#[derive(Debug, Default)]
pub struct Book(Names<String>);

/// The host that a URI names, in small letters; `None` where its port is not the server's.
fn host(uri: &Uri, to: SocketAddr) -> Option<String> {
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let port = uri.port_u16().unwrap_or(usual);
    let host = uri.host().filter(|host| host.len() <= MAX_NAME && port == to.port())?;
    Some(host.trim_end_matches('.').to_ascii_lowercase())
}

/// The address that is written in place of a name.
fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

impl Book {
    /// Is `to` a server of the host that `uri` names?
    pub fn judge(&mut self, uri: &Uri, to: SocketAddr, now: Duration) -> Verdict {
        let Some(host) = host(uri, to) else { return Verdict::IsNot };
        if let Some(address) = literal(&host) {
            return if address == to.ip() { Verdict::Is } else { Verdict::IsNot };
        }
        let Some(name) = self.0.find(&host) else { return Verdict::LookUp(host) };
        name.addresses.retain(|_, seen| now.saturating_sub(*seen) < HOLDS);
        if name.addresses.contains_key(&to.ip()) {
            return Verdict::Is;
        }
        match now.saturating_sub(name.looked_up) < RESTS {
            true => Verdict::IsNot,
            false => Verdict::LookUp(host),
        }
    }

    /// A look-up for this peer has told these; none where it failed.
    pub fn note(&mut self, peer: &str, host: &str, addresses: &[IpAddr], now: Duration) {
        let host = host.to_owned();
        self.0.add(&host, peer);
        let Some(name) = self.0.find(&host) else { return };
        name.looked_up = now;
        name.addresses.extend(addresses.iter().map(|address| (*address, now)));
        while name.addresses.len() > MAX_ADDRESSES
            && let Some((oldest, _)) = name.addresses.iter().min_by_key(|(_, seen)| **seen)
        {
            let oldest = *oldest;
            name.addresses.remove(&oldest);
        }
    }

    /// Tells in an answer which other addresses the host has, if it has any.
    pub fn tell(&self, uri: &Uri, to: SocketAddr, fields: &mut HeaderMap) {
        let name = host(uri, to).and_then(|host| self.0.names.get(&host));
        let of_kind = |a: &&IpAddr| **a != to.ip() && a.is_ipv4() == to.is_ipv4();
        let others = name.into_iter().flat_map(|name| name.addresses.keys().filter(of_kind));
        let others: Vec<_> = others.take(MAX_TOLD).map(IpAddr::to_string).collect();
        if let Ok(value) = HeaderValue::from_str(&others.join(","))
            && !others.is_empty()
        {
            fields.insert(BESIDE, value);
        }
    }
}

/// Removes what a server says of it.
pub fn clear(fields: &mut HeaderMap) {
    fields.remove(BESIDE);
}

/// What the terminal knows of hosts with several addresses.
#[derive(Debug, Default)]
pub struct Beside(Names<(String, String)>);

impl Beside {
    /// Takes what the hub behind `peer` tells of the host out of its answer.
    pub fn note(
        &mut self,
        (peer, uri, to): (&str, &Uri, SocketAddr),
        fields: &mut HeaderMap,
        now: Duration,
    ) {
        let Some(told) = fields.remove(BESIDE) else { return };
        let (Some(host), Ok(told)) = (host(uri, to), told.to_str()) else { return };
        let told = told.split(',').take(MAX_TOLD).filter_map(|address| address.parse().ok());
        let key = (peer.to_owned(), host);
        self.0.add(&key, peer);
        if let Some(name) = self.0.find(&key) {
            // What is not told any more is not the host's any more.
            name.addresses = told.chain([to.ip()]).map(|address| (address, now)).collect();
        }
    }

    /// Other servers of the same host.
    pub fn of(
        &mut self,
        (peer, uri, to): (&str, &Uri, SocketAddr),
        now: Duration,
    ) -> Vec<SocketAddr> {
        let key = host(uri, to).map(|host| (peer.to_owned(), host));
        let Some(name) = key.and_then(|key| self.0.find(&key)) else { return Vec::new() };
        let is_known = name.addresses.get(&to.ip());
        if is_known.is_none_or(|seen| now.saturating_sub(*seen) >= HOLDS) {
            return Vec::new();
        }
        let others = name.addresses.keys().filter(|address| **address != to.ip());
        others.map(|address| SocketAddr::new(*address, to.port())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "10.2.0.2:80";
    const B: &str = "10.2.0.3:80";
    const EVIL: &str = "10.2.0.9:80";

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn ips(all: &[&str]) -> Vec<IpAddr> {
        all.iter().map(|a| at(a).ip()).collect()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_address_is_a_names_only_if_the_name_leads_there() {
        let mut book = Book::default();
        let bank = uri("http://Bank.test./a");
        assert_eq!(book.judge(&bank, at(A), SECOND), Verdict::LookUp("bank.test".into()));
        book.note("ship", "bank.test", &ips(&[A, B]), SECOND);
        assert_eq!(book.judge(&bank, at(A), SECOND), Verdict::Is);
        assert_eq!(book.judge(&bank, at(B), SECOND), Verdict::Is);
        assert_eq!(book.judge(&bank, at(EVIL), SECOND), Verdict::IsNot);
        assert_eq!(book.judge(&bank, at("10.2.0.2:81"), SECOND), Verdict::IsNot);
        // A name may get another address, and lose one.
        let later = SECOND + RESTS;
        assert_eq!(book.judge(&bank, at(EVIL), later), Verdict::LookUp("bank.test".into()));
        book.note("ship", "bank.test", &ips(&[B]), later);
        assert_eq!(book.judge(&bank, at(A), later), Verdict::Is);
        assert_eq!(book.judge(&bank, at(A), SECOND + HOLDS), Verdict::LookUp("bank.test".into()));
        // What does not resolve is nobody's, and not asked for each time.
        book.note("ship", "none.test", &[], SECOND);
        assert_eq!(book.judge(&uri("http://none.test/"), at(A), SECOND), Verdict::IsNot);
    }

    #[test]
    fn an_address_in_place_of_a_name_needs_no_look_up() {
        let mut book = Book::default();
        for (name, to, verdict) in [
            ("http://10.2.0.2/", A, Verdict::Is),
            ("http://10.2.0.2:80/", A, Verdict::Is),
            ("http://10.2.0.2:8080/", A, Verdict::IsNot),
            ("http://10.2.0.2/", EVIL, Verdict::IsNot),
            ("http://[fd02::2]/", "[fd02::2]:80", Verdict::Is),
            ("http://[fd02::2]/", A, Verdict::IsNot),
            ("https://10.2.0.2/", "10.2.0.2:443", Verdict::Is),
        ] {
            assert_eq!(book.judge(&uri(name), at(to), SECOND), verdict, "{name} {to}");
        }
    }

    #[test]
    fn the_terminal_learns_a_hosts_other_addresses_and_nobody_elses() {
        let (mut book, mut beside) = (Book::default(), Beside::default());
        let cdn = uri("http://cdn.test/x");
        book.note("ship", "cdn.test", &ips(&[A, B, "[fd02::2]:80"]), SECOND);
        let mut fields = HeaderMap::new();
        book.tell(&cdn, at(A), &mut fields);
        assert_eq!(fields[BESIDE], "10.2.0.3");
        beside.note(("far", &cdn, at(A)), &mut fields, SECOND);
        assert!(fields.is_empty());
        assert_eq!(beside.of(("far", &cdn, at(B)), SECOND), [at(A)]);
        assert_eq!(beside.of(("far", &uri("http://CDN.test/y"), at(A)), SECOND), [at(B)]);
        for (peer, of, to) in [
            ("far", "http://cdn.test/x", EVIL),
            ("far", "http://cdn.test:81/x", A),
            ("far", "http://other.test/x", A),
            ("other", "http://cdn.test/x", A),
        ] {
            assert!(beside.of((peer, &uri(of), at(to)), SECOND).is_empty(), "{peer} {of} {to}");
        }
        assert!(beside.of(("far", &cdn, at(B)), SECOND + HOLDS).is_empty(), "for its time");
    }

    #[test]
    fn names_of_one_peer_displace_its_own_and_a_name_is_of_who_asked_first() {
        let mut book = Book::default();
        let bank = uri("http://bank.test/");
        book.note("ship", "bank.test", &ips(&[A]), SECOND);
        let fill = |book: &mut Book, from: usize| {
            for n in from..from + 2 * MAX_NAMES {
                book.note("evil", &format!("n{n}.test"), &ips(&[A]), SECOND);
            }
        };
        fill(&mut book, 0);
        assert_eq!(book.judge(&bank, at(A), SECOND), Verdict::Is);
        book.note("evil", "bank.test", &ips(&[A]), SECOND);
        fill(&mut book, 2 * MAX_NAMES);
        assert_eq!(book.judge(&bank, at(A), SECOND), Verdict::Is);
        assert_eq!(book.0.names.len(), MAX_NAMES);
        // Of its own those go that were used longest ago.
        let last = uri(&format!("http://n{}.test/", 4 * MAX_NAMES - 1));
        assert_eq!(book.judge(&last, at(A), SECOND), Verdict::Is);
    }

    #[test]
    fn what_is_remembered_is_bounded_whatever_hosts_name() {
        let (mut book, mut beside) = (Book::default(), Beside::default());
        for n in 0..2 * MAX_NAMES as u64 {
            let (name, now) = (format!("n{n}.test"), Duration::from_millis(n));
            book.note("ship", &name, &ips(&[A, B]), now);
            let of = uri(&format!("http://{name}/"));
            let mut fields = HeaderMap::new();
            book.tell(&of, at(A), &mut fields);
            beside.note(("far", &of, at(A)), &mut fields, now);
        }
        assert_eq!([book.0.names.len(), beside.0.names.len()], [MAX_NAMES; 2]);
        assert_eq!([book.0.shares.sum(), beside.0.shares.sum()], [MAX_NAMES; 2]);
        for n in 0..=u8::MAX {
            let now = Duration::from_millis(n.into());
            book.note("ship", "many.test", &[IpAddr::from([10, 0, 0, n])], now);
        }
        assert_eq!(book.0.names["many.test"].addresses.len(), MAX_ADDRESSES);
        let long = uri(&format!("http://{}/", "a".repeat(MAX_NAME + 1)));
        assert_eq!(book.judge(&long, at(A), SECOND), Verdict::IsNot);
    }
}
