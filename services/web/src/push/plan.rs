//! What of all that a page names the hub fetches, and in which order.

use std::collections::{BTreeMap, BTreeSet};

use http::Uri;
use url::{Host, Url};

use super::fields::hash;
use super::{Found, Kind, MAX_ADDRESS};

/// Objects of one page.
pub const MAX_OBJECTS: usize = 250;
/// Those that are fetched or sent at once.
const AT_ONCE: usize = 6;
/// How far objects lead to others: a page to a sheet to a font, or one redirect to the next.
const MAX_DEPTH: u8 = 4;
/// Hosts that are told apart for their names.
const MAX_HOSTS: usize = 8;
/// Bytes of references, and of the addresses from which they start, that are looked at for one
/// page: each is copied, however often the page names the same.
const MAX_LOOKED_AT: usize = 4 << 20;

/// An object that is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where it is.
    pub url: Url,
    /// By what both ends know it.
    pub name: String,
    /// What it is to the page.
    pub kind: Kind,
    /// The page's own host serves it, where the page came from.
    pub is_own: bool,
    /// Over how many others the page led to it.
    pub depth: u8,
}

/// What is fetched for one page.
#[derive(Debug)]
pub struct Plan {
    page: Url,
    /// Hashes of what the terminal has already.
    held: BTreeSet<u32>,
    /// What was found so far.
    seen: BTreeSet<String>,
    queue: BTreeMap<(Kind, usize), Wanted>,
    /// Hosts beside the page's own, and how many of them were told.
    hosts: Vec<String>,
    told: usize,
    running: usize,
    /// Bytes of references that were looked at.
    looked_at: usize,
    bytes_left: u64,
}

impl Plan {
    /// For a page of which objects of so many bytes may be sent, beside those that are `held`.
    pub fn new(page: Url, held: BTreeSet<u32>, bytes: u64) -> Plan {
        let seen = BTreeSet::from([name_of(&page)]);
        let (queue, hosts, told, running, looked_at) = Default::default();
        Plan { page, held, seen, queue, hosts, told, running, looked_at, bytes_left: bytes }
    }

    /// Where the page is.
    pub fn page(&self) -> &Url {
        &self.page
    }

    /// The page's name.
    pub fn name(&self) -> String {
        name_of(&self.page)
    }

    /// Takes what a text names; the names of what will be fetched.
    pub fn find(&mut self, base: &Url, found: Vec<Found>, depth: u8) -> Vec<String> {
        let wanted = found.into_iter().filter_map(|found| self.want(base, &found, depth));
        wanted.collect()
    }

    fn want(&mut self, base: &Url, found: &Found, depth: u8) -> Option<String> {
        if self.is_full() || depth > MAX_DEPTH || found.reference.len() > MAX_ADDRESS {
            return None;
        }
        self.looked_at += base.as_str().len() + found.reference.len();
        let mut url = base.join(found.reference.trim()).ok()?;
        url.set_fragment(None);
        // Pages may write hosts that HTTP cannot ask for, such as `a{b`.
        url.as_str().parse::<Uri>().ok()?;
        let is_own = self.is_own(&url)?;
        let name = name_of(&url);
        if name.len() > MAX_ADDRESS || self.held.contains(&hash(&name)) {
            return None;
        }
        if !self.seen.insert(name.clone()) {
            return None;
        }
        if let Some(Host::Domain(host)) = url.host().filter(|_| !is_own)
            && self.page.host() != url.host()
            && self.hosts.len() < MAX_HOSTS
            && self.hosts.iter().all(|known| known != host)
        {
            self.hosts.push(host.to_owned());
        }
        let wanted = Wanted { url, name: name.clone(), kind: found.kind, is_own, depth };
        self.queue.insert((found.kind, self.seen.len()), wanted);
        Some(name)
    }

    /// Is it where the page came from? `None`: nobody is asked there. Other hosts are asked by
    /// name, in the page's own scheme and at its usual port only, lest a page have the hub call
    /// addresses of its choice.
    fn is_own(&self, url: &Url) -> Option<bool> {
        let plain = url.scheme() == self.page.scheme()
            && url.username().is_empty()
            && url.password().is_none();
        let is_own = url.host() == self.page.host() && url.port() == self.page.port();
        let may = is_own || (matches!(url.host(), Some(Host::Domain(_))) && url.port().is_none());
        (plain && may).then_some(is_own)
    }

    /// Is nothing more looked for?
    pub fn is_full(&self) -> bool {
        let is_too_much = self.looked_at > MAX_LOOKED_AT;
        is_too_much || self.seen.len() > MAX_OBJECTS || self.bytes_left == 0
    }

    /// The hosts that objects lead to beside the page's own, each once, and eight at most.
    pub fn take_hosts(&mut self) -> Vec<String> {
        let new = self.hosts[self.told..].to_vec();
        self.told = self.hosts.len();
        new
    }

    /// The next to be fetched now. [`Plan::done`] follows.
    pub fn start(&mut self) -> Option<Wanted> {
        if self.running == AT_ONCE {
            return None;
        }
        let (_, wanted) = self.queue.pop_first()?;
        self.running += 1;
        Some(wanted)
    }

    /// One that was fetched is through.
    pub fn done(&mut self) {
        self.running -= 1;
    }

    /// May an answer of this length be sent? What has no length pays as it goes ([`Plan::pay`]).
    pub fn admit(&mut self, length: Option<u64>) -> bool {
        match length {
            Some(length) => self.pay(length),
            None => self.bytes_left > 0,
        }
    }

    /// Takes bytes from what the page may have; false if there are not so many.
    pub fn pay(&mut self, bytes: u64) -> bool {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = left.unwrap_or(self.bytes_left);
        left.is_some()
    }

    /// A host has asked for it itself: it need not be fetched for the page.
    pub fn asked(&mut self, name: &str) {
        self.queue.retain(|_, wanted| wanted.name != name);
    }

    /// Fetches nothing more; the names of what was to come.
    pub fn stop(&mut self) -> Vec<String> {
        self.bytes_left = 0;
        std::mem::take(&mut self.queue).into_values().map(|wanted| wanted.name).collect()
    }
}

fn name_of(url: &Url) -> String {
    let port = url.port().map_or(String::new(), |port| format!(":{port}"));
    let query = url.query().map_or(String::new(), |query| format!("?{query}"));
    let scheme = if url.scheme() == "https" { "https://" } else { "" };
    format!("{scheme}{}{port}{}{query}", url.host_str().unwrap_or(""), url.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::name_of as name_of_uri;

    fn plan(bytes: u64) -> Plan {
        Plan::new(Url::parse("http://10.2.0.2/dir/page.html").unwrap(), BTreeSet::new(), bytes)
    }

    fn find(plan: &mut Plan, references: &[&str]) -> Vec<String> {
        let base = plan.page().clone();
        let found = |r: &&str| Found { reference: (*r).to_owned(), kind: Kind::Image };
        plan.find(&base, references.iter().map(found).collect(), 1)
    }

    #[test]
    fn references_are_found_from_where_they_stand_and_once() {
        let mut plan = plan(1);
        let found = find(
            &mut plan,
            &[
                "a.png",
                "./a.png#x",
                "/b.png?c=d e",
                "../../c.png",
                "//10.2.0.2/d",
                "?q",
                "page.html",
                "",
            ],
        );
        let expected = ["dir/a.png", "b.png?c=d%20e", "c.png", "d", "dir/page.html?q"];
        assert_eq!(found, expected.map(|path| format!("10.2.0.2/{path}")));
        for wanted in std::iter::from_fn(|| plan.start()) {
            assert_eq!(name_of_uri(&wanted.url.as_str().parse().unwrap()), wanted.name);
        }
    }

    #[test]
    fn other_hosts_are_told_once_and_eight_of_them() {
        let mut plan = plan(1);
        find(&mut plan, &["a.png", "http://One.test/a", "http://two.test/b", "http://one.test/c"]);
        assert_eq!(plan.take_hosts(), ["one.test", "two.test"]);
        find(&mut plan, &["http://two.test/d", "http://three.test/"]);
        assert_eq!(plan.take_hosts(), ["three.test"]);
        let many: Vec<String> = (0..20).map(|n| format!("http://host{n}.test/")).collect();
        find(&mut plan, &many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(plan.take_hosts().len(), MAX_HOSTS - 3);
    }

    #[test]
    fn nobody_is_asked_at_addresses_and_ports_that_a_page_makes_up() {
        let mut plan = plan(1);
        let refused = [
            "http://10.2.0.3/",
            "http://127.0.0.1/",
            "http://[::1]/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://10.2.0.2:22/",
            "http://other.test:8080/",
            "http://o{her.test/",
            "https://10.2.0.2/",
            "https://other.test/",
            "ftp://10.2.0.2/",
            "file:///etc/passwd",
            "data:text/css,a",
            "javascript:alert(1)",
            "http://user:word@10.2.0.2/",
            "http://",
        ];
        assert_eq!(find(&mut plan, &refused), [""; 0]);
        assert_eq!(find(&mut plan, &["http://Other.test:80/x"]), ["other.test/x"]);
        assert!(!plan.start().unwrap().is_own);
    }

    #[test]
    fn pages_of_https_have_objects_of_https_only() {
        let page = Url::parse("https://a.test/").unwrap();
        let mut plan = Plan::new(page, BTreeSet::new(), 1);
        let references = ["x", "http://a.test/y", "http://b.test/", "https://b.test:443/z"];
        assert_eq!(find(&mut plan, &references), ["https://a.test/x", "https://b.test/z"]);
        let next = plan.start().unwrap();
        assert!(next.is_own && next.name == name_of_uri(&next.url.as_str().parse().unwrap()));
        assert_eq!(find(&mut plan, &["https://b.test:8443/", "https://10.2.0.3/"]), [""; 0]);
    }

    #[test]
    fn a_reference_cannot_bring_lines_of_its_own_into_a_request() {
        let mut plan = plan(1);
        find(&mut plan, &["a\r\nHost: b\r\n\r\nGET /c", "http://10.2.0.2/\u{0}\u{7f} <>\"`{}|\\^"]);
        for wanted in std::iter::from_fn(|| plan.start()) {
            let is_plain = |c: char| c.is_ascii_graphic();
            assert!(wanted.url.as_str().chars().all(is_plain), "{}", wanted.url);
        }
    }

    #[test]
    fn a_page_that_names_a_million_objects_has_a_few_of_them_fetched() {
        let mut plan = plan(1);
        for n in 0..1_000_000 {
            find(&mut plan, &[&format!("{n}.png")]);
            if plan.is_full() {
                break;
            }
        }
        let mut fetched = 0;
        while let Some(_one) = plan.start() {
            fetched += 1;
            plan.done();
        }
        assert_eq!(fetched, MAX_OBJECTS);
        let long = "a".repeat(MAX_ADDRESS + 1);
        assert_eq!(find(&mut self::plan(1), &[&long]), [""; 0]);
    }

    #[test]
    fn what_names_nothing_new_is_not_looked_at_without_end() {
        let page = |path: &str| Url::parse(&format!("http://a.test/{path}")).unwrap();
        let cases = [(page("b/"), "a".repeat(2000)), (page(&"b/".repeat(30_000)), "a".into())];
        for (base, reference) in cases {
            let mut plan = Plan::new(page(""), BTreeSet::new(), 1);
            let mut looked = 0;
            while !plan.is_full() && looked < 100_000 {
                looked += 1;
                let found = Found { reference: reference.clone(), kind: Kind::Image };
                plan.find(&base, vec![found], 1);
            }
            assert!(looked * base.as_str().len() < 8 << 20, "{looked}");
        }
    }

    #[test]
    fn redirects_without_end_are_followed_a_few_times() {
        let mut plan = plan(1000);
        let mut base = plan.page().clone();
        let mut depth = 0;
        loop {
            let to = Found { reference: format!("/{}", depth + 1), kind: Kind::Page };
            depth += 1;
            if plan.find(&base, vec![to], depth).is_empty() {
                break;
            }
            base = plan.start().expect("it is fetched").url;
        }
        assert_eq!(depth, MAX_DEPTH + 1);
    }

    #[test]
    fn sheets_and_scripts_come_before_images_and_few_at_once() {
        let mut plan = plan(1);
        let base = plan.page().clone();
        let mut kinds = vec![Kind::Image; 5];
        kinds.extend([Kind::Font, Kind::Script, Kind::Style, Kind::Image]);
        let found = kinds.iter().enumerate();
        let found = found.map(|(n, kind)| Found { reference: n.to_string(), kind: *kind });
        plan.find(&base, found.collect(), 1);
        let mut next = || plan.start().map(|w| w.kind);
        assert_eq!([next(), next(), next()], [Kind::Style, Kind::Script, Kind::Font].map(Some));
        assert_eq!([next(), next(), next()], [Some(Kind::Image); 3]);
        assert_eq!(next(), None, "so many are under way");
        plan.done();
        plan.asked("10.2.0.2/dir/3");
        assert_eq!(plan.start().unwrap().name, "10.2.0.2/dir/4", "3 was asked for");
    }

    #[test]
    fn what_the_terminal_holds_and_what_is_too_much_is_not_sent() {
        let page = Url::parse("http://a.test/").unwrap();
        let mut plan = Plan::new(page, BTreeSet::from([hash("a.test/held")]), 1000);
        assert_eq!(find(&mut plan, &["held", "new"]), ["a.test/new"]);
        assert!(plan.admit(Some(600)) && !plan.admit(Some(600)) && plan.admit(Some(399)));
        assert!(plan.admit(None) && plan.pay(1) && !plan.admit(None));
        assert!(plan.is_full() && find(&mut plan, &["more"]).is_empty());
        assert_eq!(plan.stop(), ["a.test/new"]);
        assert_eq!(plan.start(), None);
    }
}
