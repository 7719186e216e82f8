//! What the terminal was promised and sent ahead of requests, until a host asks for it.
//!
//! A thing is for the host whose page named it, and is given once. What nobody asks for in
//! [`LIFE`] was wasted. Where there is no room the host that has the most gives way, of its pages
//! the oldest with all that came for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::HeaderMap;
use http::header::COOKIE;
use units::{Shares, host_in_network};
use url::Url;

use crate::cache::{Digest, digest_of, is_secure, origin_of};
use crate::headers::Way;

/// How long what came waits for its request, and a page for what it named.
const LIFE: Duration = Duration::from_secs(60);
/// A request waits for what was promised, as long as something of the page comes so often: at
/// least, and at most on slow links.
const PATIENCE: Duration = Duration::from_secs(3);
const LONGEST: Duration = LIFE;
/// What comes is noticed by the block of the link's compression, of so many bytes at most (L-CO-4).
const BLOCK: u64 = 64 << 10;
/// Pages whose objects are awaited, and objects.
const MAX_PAGES: usize = 512;
const MAX_THINGS: usize = 8192;
/// Objects of one page: the hub's limit and those that it takes back.
const MAX_OF_PAGE: usize = 512;
/// Bytes that wait here, with their fields.
const MAX_BYTES: usize = 32 << 20;
/// What a page and a name count for beside bytes when one has to give way: who takes all of any of
/// the three has the most.
const OF_PAGE: usize = MAX_BYTES / MAX_PAGES;
const OF_THING: usize = MAX_BYTES / MAX_THINGS;
/// Of a longer name nothing is believed; the hub does not push it (`plan`).
const MAX_NAME: usize = 2 << 10;

/// How long nothing of a page may come before a request for what was promised crosses, over a link
/// of so many bits per second (0: nobody knows).
pub fn patience(rate: u64, round_trip: Duration) -> Duration {
    let bits = BLOCK * 8;
    let block = bits.saturating_mul(1000).checked_div(rate).map(Duration::from_millis);
    block.unwrap_or_default().saturating_add(round_trip).clamp(PATIENCE, LONGEST)
}

/// An object, and the host that may have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The peer behind which its server is.
    pub peer: String,
    /// The host.
    pub from: IpAddr,
    /// Its name ([`super::name_of`]).
    pub name: String,
}

/// A page that a host asked for.
#[derive(Debug)]
pub struct Page {
    peer: String,
    way: Way,
    /// The fields with which its objects are asked for ([`super::fields::copied`]).
    pub fields: HeaderMap,
    /// Its own name.
    pub name: String,
    /// What came of it or was taken back, so that a promise that comes late is none.
    settled: BTreeSet<Digest>,
    /// Names that were promised for it.
    promised: usize,
    news: Duration,
    /// With all that came for it or was promised.
    weight: usize,
}

impl Page {
    /// The host that asked for it.
    pub fn host(&self) -> IpAddr {
        self.way.from
    }

    /// The fields with which the object of this name was asked for: another host's without cookies.
    pub fn asked_with(&self, name: &str) -> HeaderMap {
        let mut fields = self.fields.clone();
        if !is_own(&self.name, name) {
            fields.remove(COOKIE);
        }
        fields
    }
}

/// Is an object of the host that its page came from? The hub compares addresses as they are parsed
/// (`plan`), of which different texts may be the same.
fn is_own(page: &str, object: &str) -> bool {
    let origin = |name: &str| {
        let scheme = if is_secure(name) { "" } else { "http://" };
        Url::parse(&format!("{scheme}{}", origin_of(name))).ok().map(|url| url.origin())
    };
    match (origin(page), origin(object)) {
        (Some(page), Some(object)) => page == object,
        _ => true,
    }
}

/// What is known of an object.
#[derive(Debug, PartialEq, Eq)]
pub enum Look<T> {
    /// Nothing: it has to be asked for.
    Nothing,
    /// It is on its way; if nothing is heard of it until then it has to be asked for.
    Coming(Duration),
    /// It is here; and the page that named it.
    Here(T, u64),
}

#[derive(Debug)]
struct Thing<T> {
    page: u64,
    /// Once it is known.
    to: Option<SocketAddr>,
    here: Option<T>,
    bytes: usize,
    came: Duration,
}

/// All of it; `T` is an answer.
#[derive(Debug)]
pub struct Shelf<T> {
    pages: BTreeMap<u64, Page>,
    things: BTreeMap<Key, Thing<T>>,
    /// Pages by the host that asked for them, in its network.
    shares: Shares<IpAddr, IpAddr, u64>,
    last_page: u64,
    bytes: usize,
    /// What gave way since it was asked last: names and bytes of what had come.
    displaced: Vec<(String, usize)>,
    /// Something did.
    has_displaced: bool,
}

impl<T> Default for Shelf<T> {
    fn default() -> Shelf<T> {
        let (pages, things, last_page, bytes) = Default::default();
        let (shares, displaced, has_displaced) = (Shares::default(), Vec::new(), false);
        Shelf { pages, things, shares, last_page, bytes, displaced, has_displaced }
    }
}

impl<T: Clone> Shelf<T> {
    /// A host asks for a page; its number.
    pub fn page(
        &mut self,
        peer: &str,
        way: Way,
        name: String,
        fields: HeaderMap,
        now: Duration,
    ) -> u64 {
        let holder = host_in_network(way.from);
        if self.pages.len() == MAX_PAGES {
            let of_others = self.shares.gives_way_to(&holder, OF_PAGE);
            let own = || self.shares.first_of(&holder);
            let gives_way = of_others.or_else(own).or_else(|| self.shares.gives_way());
            gives_way.copied().into_iter().for_each(|page| self.displace(page));
        }
        self.last_page += 1;
        let (peer, settled, weight) = (peer.to_owned(), BTreeSet::new(), OF_PAGE);
        let page = Page { peer, way, fields, name, settled, promised: 0, news: now, weight };
        self.pages.insert(self.last_page, page);
        self.shares.add(&holder, self.last_page, OF_PAGE);
        self.last_page
    }

    /// The page gives way to another, with all that is for it.
    fn displace(&mut self, page: u64) {
        let its = self.things.iter().filter(|(_, thing)| thing.page == page);
        for key in its.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            if let Some(Thing { here: Some(_), bytes, .. }) = self.remove(&key) {
                self.displaced.push((key.name, bytes));
            }
        }
        self.forget_page(page);
        self.has_displaced = true;
    }

    fn forget_page(&mut self, page: u64) {
        if let Some(it) = self.pages.remove(&page) {
            self.shares.remove(&host_in_network(it.way.from), &page);
        }
    }

    /// Has a page given way since this was asked last? Whoever waits for its objects waits in vain.
    pub fn take_displaced(&mut self) -> bool {
        std::mem::take(&mut self.has_displaced)
    }

    /// Makes room for so many more things and bytes of the page. False: its host has the most.
    fn make_room(&mut self, page: u64, things: usize, bytes: usize) -> bool {
        let Some(it) = self.pages.get(&page) else { return false };
        let (holder, weight) = (host_in_network(it.way.from), things * OF_THING + bytes);
        while self.things.len() + things > MAX_THINGS || self.bytes + bytes > MAX_BYTES {
            match self.shares.gives_way_to(&holder, weight).copied() {
                Some(page) => self.displace(page),
                None => return false,
            }
        }
        true
    }

    /// The page weighs so much more, and so much less.
    fn weigh(&mut self, page: u64, more: usize, less: usize) {
        if let Some(it) = self.pages.get_mut(&page) {
            let holder = host_in_network(it.way.from);
            it.weight = it.weight + more - less;
            self.shares.remove(&holder, &page);
            self.shares.add(&holder, page, it.weight);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Thing<T>> {
        let thing = self.things.remove(key)?;
        self.bytes -= thing.bytes;
        self.weigh(thing.page, 0, OF_THING + thing.bytes);
        Some(thing)
    }

    /// A page that is remembered.
    pub fn page_of(&mut self, page: u64) -> Option<&mut Page> {
        self.pages.get_mut(&page)
    }

    /// The server that an object of the page counts as being of. A page that was asked for by its
    /// host's name has no address at the terminal, and nor have the objects that its host asks for.
    pub fn server_of(&self, page: u64, to: SocketAddr) -> SocketAddr {
        match self.pages.get(&page).map(|page| page.way.to) {
            Some(own) if own.ip().is_unspecified() => SocketAddr::new(own.ip(), to.port()),
            _ => to,
        }
    }

    /// These objects of the page come.
    pub fn promise(&mut self, page: u64, names: Vec<String>, now: Duration) {
        self.hear_of(page, now);
        for name in names {
            let Some(it) = self.pages.get_mut(&page) else { return };
            it.promised += 1;
            if it.promised > MAX_OF_PAGE {
                return;
            }
            if name.len() > MAX_NAME || it.settled.contains(&digest_of(name.as_bytes())) {
                continue;
            }
            let to = (origin_of(&name) == origin_of(&it.name)).then_some(it.way.to);
            let key = Key { peer: it.peer.clone(), from: it.way.from, name };
            // What is here already is younger than the page's request, or the hub would know it.
            if self.things.contains_key(&key) {
                continue;
            }
            if !self.make_room(page, 1, 0) {
                return;
            }
            self.things.insert(key, Thing { page, to, here: None, bytes: 0, came: now });
            self.weigh(page, OF_THING, 0);
        }
    }

    /// These do not come after all. Only the page's own peer says so.
    pub fn withdraw(&mut self, peer: &str, page: u64, names: Vec<String>) {
        for name in names {
            let Some(key) = self.settle(peer, page, name) else { return };
            if self.things.get(&key).is_some_and(|t| t.page == page && t.here.is_none()) {
                self.remove(&key);
            }
        }
    }

    /// Its host has the object otherwise: nobody waits for it any more. False: nobody did.
    pub fn give_up(&mut self, key: &Key) -> bool {
        let promised = self.things.get(key).filter(|thing| thing.here.is_none());
        let page = promised.map(|thing| thing.page);
        page.iter().for_each(|page| self.withdraw(&key.peer, *page, vec![key.name.clone()]));
        page.is_some()
    }

    /// An object has begun to come, whose fields have so many bytes. `None`: nobody wants it.
    pub fn arrive(
        &mut self,
        (peer, page): (&str, u64),
        name: String,
        to: SocketAddr,
        (here, bytes): (T, usize),
        now: Duration,
    ) -> Option<Key> {
        let key = self.settle(peer, page, name)?;
        self.pages.get_mut(&page)?.news = now;
        let is_one_more = !self.things.contains_key(&key);
        if !self.make_room(page, usize::from(is_one_more), bytes) {
            return None;
        }
        self.remove(&key);
        let thing = Thing { page, to: Some(to), here: Some(here), bytes, came: now };
        self.bytes += bytes;
        self.things.insert(key.clone(), thing);
        self.weigh(page, OF_THING + bytes, 0);
        Some(key)
    }

    /// Notes that of this object no promise is to be believed any more.
    fn settle(&mut self, peer: &str, page: u64, name: String) -> Option<Key> {
        let it = self.pages.get_mut(&page).filter(|it| it.peer == peer)?;
        if it.settled.len() >= MAX_OF_PAGE || name.len() > MAX_NAME {
            return None;
        }
        it.settled.insert(digest_of(name.as_bytes()));
        Some(Key { peer: peer.to_owned(), from: it.way.from, name })
    }

    /// More of it is here; false if there is no room for that, or its page gave way.
    pub fn grow(&mut self, key: &Key, page: u64, bytes: usize, now: Duration) -> bool {
        self.hear_of(page, now);
        // What a host has taken is not here any more.
        if self.things.get(key).is_none_or(|t| t.page != page) {
            return self.pages.contains_key(&page);
        }
        if !self.make_room(page, 0, bytes) {
            return false;
        }
        self.things.get_mut(key).into_iter().for_each(|thing| thing.bytes += bytes);
        self.bytes += bytes;
        self.weigh(page, bytes, 0);
        true
    }

    /// Something of the page has come.
    pub fn hear_of(&mut self, page: u64, now: Duration) {
        if let Some(page) = self.pages.get_mut(&page) {
            page.news = now;
        }
    }

    /// What is known of this object, for a host that connected to `to`, over a link with this
    /// [`patience`].
    pub fn look(&self, key: &Key, to: SocketAddr, now: Duration, patience: Duration) -> Look<T> {
        let Some(thing) = self.things.get(key).filter(|t| t.to.is_none_or(|at| at == to)) else {
            return Look::Nothing;
        };
        if let Some(here) = &thing.here {
            return match now < thing.came + LIFE {
                true => Look::Here(here.clone(), thing.page),
                false => Look::Nothing,
            };
        }
        let news = self.pages.get(&thing.page).map_or(thing.came, |page| page.news);
        match news + patience {
            until if now < until => Look::Coming(until),
            _ => Look::Nothing,
        }
    }

    /// Takes it away, to be given or because it broke off.
    pub fn take(&mut self, key: &Key, page: u64) -> Option<T> {
        self.things.get(key).filter(|t| t.page == page)?;
        self.remove(key)?.here
    }

    /// Pages of this host of which something is yet to come: it was promised, or `is_coming` says
    /// so.
    pub fn awaited(&self, peer: &str, from: IpAddr, is_coming: impl Fn(&T) -> bool) -> Vec<u64> {
        let its = self.things.iter().filter(|(key, _)| key.peer == peer && key.from == from);
        let coming = its.filter(|(_, thing)| thing.here.as_ref().is_none_or(&is_coming));
        let pages: BTreeSet<u64> = coming.map(|(_, thing)| thing.page).collect();
        pages.into_iter().collect()
    }

    /// Nothing more comes from this peer.
    pub fn lose(&mut self, peer: &str) {
        let its = self.things.iter().filter(|(key, it)| key.peer == peer && it.here.is_none());
        for key in its.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.remove(&key);
        }
    }

    /// Removes what nobody asked for: its names and bytes, and those of what gave way.
    pub fn expire(&mut self, now: Duration) -> Vec<(String, usize)> {
        let old = self.pages.iter().filter(|(_, page)| now >= page.news + LIFE);
        for page in old.map(|(page, _)| *page).collect::<Vec<_>>() {
            self.forget_page(page);
        }
        let mut wasted = std::mem::take(&mut self.displaced);
        let old = self.things.iter().filter(|(_, thing)| {
            // What has not come yet may come as long as its page does.
            let is_coming = thing.here.is_none() && self.pages.contains_key(&thing.page);
            now >= thing.came + LIFE && !is_coming
        });
        for key in old.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            if let Some(Thing { here: Some(_), bytes, .. }) = self.remove(&key) {
                wasted.push((key.name, bytes));
            }
        }
        wasted
    }

    /// Bytes that wait here.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const TO: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 2)), 80);

    fn key(from: &str, name: &str) -> Key {
        Key { peer: "shore".into(), from: from.parse().unwrap(), name: name.into() }
    }

    fn shelf() -> (Shelf<&'static str>, u64) {
        let mut shelf = Shelf::default();
        let way = Way { to: TO, from: "10.1.0.2".parse().unwrap() };
        let page = shelf.page("shore", way, "a.test/".into(), HeaderMap::new(), S);
        (shelf, page)
    }

    #[test]
    fn what_was_promised_is_waited_for_and_given_once_to_the_host_whose_page_it_is() {
        let (mut shelf, page) = shelf();
        let mine = key("10.1.0.2", "a.test/x");
        shelf.promise(page, vec![mine.name.clone()], S);
        assert_eq!(shelf.look(&mine, TO, S, PATIENCE), Look::Coming(S + PATIENCE));
        assert_eq!(shelf.look(&key("10.1.0.3", "a.test/x"), TO, S, PATIENCE), Look::Nothing);
        let elsewhere = "10.2.0.3:80".parse().unwrap();
        assert_eq!(shelf.look(&mine, elsewhere, S, PATIENCE), Look::Nothing, "another server");
        assert_eq!(
            shelf.arrive(("shore", page), mine.name.clone(), TO, ("x", 0), 2 * S),
            Some(mine.clone())
        );
        assert!(shelf.grow(&mine, page, 100, 2 * S));
        assert_eq!(shelf.look(&mine, TO, 9 * S, PATIENCE), Look::Here("x", page));
        assert_eq!((shelf.bytes(), shelf.take(&mine, page)), (100, Some("x")));
        assert_eq!((shelf.bytes(), shelf.look(&mine, TO, 9 * S, PATIENCE)), (0, Look::Nothing));
    }

    #[test]
    fn a_promise_that_comes_behind_its_object_or_its_end_is_none() {
        let (mut shelf, page) = shelf();
        let (gone, here) = (key("10.1.0.2", "a.test/gone"), key("10.1.0.2", "a.test/here"));
        shelf.withdraw("shore", page, vec![gone.name.clone()]);
        shelf.arrive(("shore", page), here.name.clone(), TO, ("x", 0), S);
        shelf.take(&here, page);
        shelf.promise(page, vec![gone.name.clone(), here.name.clone()], S);
        assert_eq!(shelf.look(&gone, TO, S, PATIENCE), Look::Nothing);
        assert_eq!(shelf.look(&here, TO, S, PATIENCE), Look::Nothing);
    }

    #[test]
    fn nobody_waits_for_what_does_not_come() {
        let (mut shelf, page) = shelf();
        let it = key("10.1.0.2", "a.test/x");
        shelf.promise(page, vec![it.name.clone()], S);
        let (from, other) = (it.from, "10.1.0.3".parse().unwrap());
        assert_eq!(shelf.awaited("shore", from, |_| false), [page]);
        assert!(shelf.awaited("shore", other, |_| true).is_empty());
        assert!(shelf.grow(&key("10.1.0.2", "a.test/y"), page, 1, 3 * S), "news of the page");
        assert_eq!(shelf.look(&it, TO, 3 * S, PATIENCE), Look::Coming(3 * S + PATIENCE));
        assert_eq!(shelf.look(&it, TO, 7 * S, PATIENCE), Look::Nothing);
        shelf.promise(page, vec![it.name.clone()], 7 * S);
        shelf.lose("shore");
        assert_eq!(shelf.look(&it, TO, 7 * S, PATIENCE), Look::Nothing);
    }

    #[test]
    fn nobody_waits_for_what_its_host_was_given_otherwise() {
        let (mut shelf, page) = shelf();
        let (it, here) = (key("10.1.0.2", "a.test/x"), key("10.1.0.2", "a.test/here"));
        shelf.promise(page, vec![it.name.clone(), here.name.clone()], S);
        shelf.arrive(("shore", page), here.name.clone(), TO, ("x", 0), S);
        assert!(shelf.give_up(&it) && !shelf.give_up(&it) && !shelf.give_up(&here));
        assert_eq!(shelf.look(&it, TO, S, PATIENCE), Look::Nothing);
        assert_eq!(shelf.look(&here, TO, S, PATIENCE), Look::Here("x", page));
        // What had left the hub before is taken as ever.
        assert!(shelf.arrive(("shore", page), it.name.clone(), TO, ("x", 0), S).is_some());
    }

    /// At 2,400 bit/s a page of 20 kB takes more than a minute, and each piece of it 13.7 s.
    #[test]
    fn on_a_slow_link_what_was_promised_is_waited_for_while_its_page_comes() {
        let patience = patience(2_400, 2 * S);
        let (mut shelf, page) = shelf();
        let it = key("10.1.0.2", "a.test/x");
        shelf.promise(page, vec![it.name.clone()], S);
        for n in 1..9 {
            let now = 14 * n * S;
            assert!(matches!(shelf.look(&it, TO, now, patience), Look::Coming(_)), "{now:?}");
            shelf.hear_of(page, now);
            assert!(shelf.expire(now).is_empty());
        }
        // Nothing more comes.
        assert_eq!(shelf.look(&it, TO, 112 * S + patience, patience), Look::Nothing);
        shelf.expire(112 * S + LIFE);
        assert!(shelf.things.is_empty() && shelf.pages.is_empty());
    }

    #[test]
    fn patience_is_as_long_as_a_block_takes() {
        for (rate, expected) in [(0, 3_000), (1_000_000, 3_000), (9_600, 55_113), (1, 60_000)] {
            let round_trip = Duration::from_millis(500);
            assert_eq!(patience(rate, round_trip), Duration::from_millis(expected), "{rate}");
        }
        assert_eq!(patience(u64::MAX, Duration::MAX), LONGEST);
    }

    #[test]
    fn a_peer_brings_nothing_into_pages_that_it_was_not_asked_for() {
        let (mut shelf, page) = shelf();
        let name = || "a.test/x".to_owned();
        assert_eq!(shelf.arrive(("another", page), name(), TO, ("x", 0), S), None);
        assert_eq!(shelf.arrive(("shore", page + 1), name(), TO, ("x", 0), S), None);
        shelf.promise(page, vec![name()], S);
        shelf.withdraw("another", page, vec![name()]);
        let it = key("10.1.0.2", "a.test/x");
        assert!(matches!(shelf.look(&it, TO, S, PATIENCE), Look::Coming(_)));
    }

    #[test]
    fn what_nobody_asks_for_goes_and_there_is_a_limit_to_all() {
        let (mut shelf, page) = shelf();
        for n in 0..2 * MAX_OF_PAGE {
            shelf.promise(page, vec![format!("a.test/{n}")], S);
            shelf.arrive(("shore", page), format!("a.test/{n}"), TO, ("x", 0), S);
        }
        let first = key("10.1.0.2", "a.test/0");
        assert!(shelf.grow(&first, page, MAX_BYTES, S) && !shelf.grow(&first, page, 1, S));
        let wasted = shelf.expire(S + LIFE);
        assert_eq!(wasted.len(), MAX_OF_PAGE);
        assert_eq!(shelf.bytes(), 0);
        let way = Way { to: TO, from: "10.1.0.2".parse().unwrap() };
        for _ in 0..2 * MAX_PAGES {
            shelf.page("shore", way, "a.test/".into(), HeaderMap::new(), S);
        }
        assert_eq!(shelf.pages.len(), MAX_PAGES);
        assert!(shelf.expire(S + LIFE).is_empty() && shelf.pages.is_empty());
    }

    /// A page that this host asks for.
    fn page_of<T: Clone>(shelf: &mut Shelf<T>, from: &str) -> u64 {
        let way = Way { to: TO, from: from.parse().unwrap() };
        shelf.page("shore", way, "a.test/".into(), HeaderMap::new(), S)
    }

    #[test]
    fn pages_of_one_host_displace_its_own_with_what_came_for_them() {
        let (mut shelf, page) = shelf();
        let mine = key("10.1.0.2", "a.test/x");
        shelf.promise(page, vec![mine.name.clone()], S);
        let evil = page_of(&mut shelf, "10.1.0.3");
        let its = key("10.1.0.3", "a.test/x");
        shelf.arrive(("shore", evil), its.name.clone(), TO, ("x", 100), S);
        shelf.promise(evil, vec!["a.test/y".into()], S);
        for _ in 0..MAX_PAGES {
            page_of(&mut shelf, "10.1.0.3");
        }
        assert_eq!(shelf.pages.len(), MAX_PAGES);
        assert!(matches!(shelf.look(&mine, TO, S, PATIENCE), Look::Coming(_)));
        assert!(shelf.take_displaced() && !shelf.take_displaced());
        assert!(!shelf.grow(&its, evil, 1, S), "nobody asks for it any more");
        assert_eq!((shelf.bytes(), shelf.things.len()), (0, 1));
        assert_eq!(shelf.expire(S), [("a.test/x".to_owned(), 100)]);
        // Where all have one page, somebody's goes.
        let mut shelf = Shelf::<()>::default();
        for n in 0..2 * MAX_PAGES {
            page_of(&mut shelf, &format!("10.1.{}.{}", n / 256, n % 256));
            assert!(shelf.pages.len() <= MAX_PAGES);
        }
    }

    #[test]
    fn names_and_bytes_of_one_host_leave_room_to_the_others() {
        let mut shelf = Shelf::default();
        for _ in 0..2 * MAX_THINGS / MAX_OF_PAGE {
            let evil = page_of(&mut shelf, "10.1.0.3");
            let names = (0..MAX_OF_PAGE).map(|n| format!("a.test/{evil}/{n}"));
            shelf.promise(evil, names.collect(), S);
        }
        assert_eq!(shelf.things.len(), MAX_THINGS);
        let page = page_of(&mut shelf, "10.1.0.2");
        let mine = key("10.1.0.2", "a.test/x");
        shelf.promise(page, vec![mine.name.clone()], S);
        assert!(matches!(shelf.look(&mine, TO, S, PATIENCE), Look::Coming(_)));
        // Bytes, as well.
        let evil = page_of(&mut shelf, "10.1.0.3");
        let its = key("10.1.0.3", "a.test/long");
        shelf.arrive(("shore", evil), its.name.clone(), TO, ("x", 0), S).unwrap();
        while shelf.grow(&its, evil, 64 << 10, S) {}
        assert!(shelf.bytes() > MAX_BYTES - (64 << 10));
        assert!(shelf.arrive(("shore", page), mine.name.clone(), TO, ("x", 500), S).is_some());
        assert!(shelf.grow(&mine, page, 1 << 20, S));
        assert_eq!(shelf.look(&mine, TO, S, PATIENCE), Look::Here("x", page));
        assert!(shelf.bytes() <= MAX_BYTES);
        let is_its = |weight| shelf.shares.sum() == weight;
        assert!(is_its(shelf.pages.values().map(|page| page.weight).sum()));
        shelf.expire(S + LIFE);
        assert_eq!((shelf.bytes(), shelf.shares.sum()), (0, 0));
    }

    #[test]
    fn objects_of_other_hosts_were_asked_for_without_cookies() {
        let mut shelf = Shelf::<()>::default();
        let way = Way { to: TO, from: "10.1.0.2".parse().unwrap() };
        let mut fields = HeaderMap::new();
        fields.insert(COOKIE, "id=1".parse().unwrap());
        fields.insert("dnt", "1".parse().unwrap());
        let page = shelf.page("shore", way, "127.1/page".into(), fields.clone(), S);
        let page = shelf.page_of(page).unwrap();
        for own in ["127.1/x", "127.0.0.1/x", "127.0.0.1"] {
            assert_eq!(page.asked_with(own), fields, "{own}");
        }
        for other in ["a.test/x", "127.0.0.2/x", "127.0.0.1:81/x", "https://127.0.0.1/x"] {
            let asked = page.asked_with(other);
            assert!(!asked.contains_key(COOKIE) && asked.contains_key("dnt"), "{other}");
        }
    }

    /// What a hostile hub may have a terminal keep.
    #[test]
    fn names_and_fields_are_counted_and_have_their_limits() {
        let way = Way { to: TO, from: "10.1.0.2".parse().unwrap() };
        let mut shelf = Shelf::default();
        let long = |n: u64| format!("a.test/{n}/{}", "x".repeat(60_000));
        let mut names = 0;
        for _ in 0..MAX_PAGES {
            let page = shelf.page("shore", way, "a.test/".into(), HeaderMap::new(), S);
            for n in 0..2 {
                let name = long(n);
                shelf.promise(page, vec![name.clone()], S);
                shelf.withdraw("shore", page, vec![name.clone()]);
                assert_eq!(shelf.arrive(("shore", page), name, TO, ("x", 0), S), None);
            }
            // However many times it says so.
            for n in 0..4 * MAX_OF_PAGE {
                shelf.promise(page, vec![format!("a.test/{page}/{n}")], S);
            }
            names += MAX_OF_PAGE - 2;
            assert_eq!(shelf.things.len(), names.min(MAX_THINGS));
        }
        shelf.expire(S + LIFE);
        let page = shelf.page("shore", way, "a.test/".into(), HeaderMap::new(), 2 * LIFE);
        let mut came = 0;
        for n in 0..MAX_OF_PAGE {
            let (name, fields) = (format!("a.test/{n}"), ("x", 100_000));
            came +=
                usize::from(shelf.arrive(("shore", page), name, TO, fields, 2 * LIFE).is_some());
        }
        assert_eq!(came, MAX_BYTES / 100_000);
        assert!(shelf.bytes() <= MAX_BYTES);
        shelf.expire(4 * LIFE);
        assert_eq!(shelf.bytes(), 0);
    }
}
