//! What the terminal keeps of answers, and when it gives them out (RFC 9111, as a shared cache).
//!
//! Only answers that say themselves how long they are fresh are kept, in memory, and only fresh ones
//! are given. The key holds the server's address beside the host that was named: who lies about one
//! of them gets his own answers back and poisons nobody's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Uri};

/// Bytes of all answers.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of one.
pub const MAX_BODY: usize = 1 << 20;
/// What an answer counts for beside its body and fields.
const OVERHEAD: usize = 512;
/// Seconds that nobody's clock outlives (RFC 9111, section 1.2.2).
const FOREVER: u64 = 1 << 31;

/// The time, by a clock that only runs forward. The calendar is not asked: a terminal's may be wrong,
/// and `Age` says what a `Date` would (RFC 9111, section 4.2.3).
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Since the program's start.
    pub steady: Duration,
}

/// Whose answer it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    peer: String,
    to: SocketAddr,
    uri: String,
}

impl Key {
    /// Of what is asked for at a server behind `peer`; of the URI the host is in small letters.
    pub fn new(peer: &str, to: SocketAddr, uri: &Uri) -> Key {
        let authority = uri.authority().map(|a| a.as_str().to_ascii_lowercase());
        let target = uri.path_and_query().map_or("/", |t| t.as_str());
        let uri = authority.unwrap_or_default() + target;
        Key { peer: peer.to_owned(), to, uri }
    }
}

/// The fields of a request that decide, remembered until the answer is there.
#[derive(Clone, Debug)]
pub struct Asked {
    key: Key,
    fields: HeaderMap,
    at: Now,
}

/// An answer that is given out again.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its fields, with its age.
    pub fields: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

#[derive(Debug)]
struct Entry {
    fields: HeaderMap,
    body: Bytes,
    /// Values of the request's fields that `Vary` names.
    chosen_by: Vec<(HeaderName, Vec<HeaderValue>)>,
    came: Duration,
    age: Duration,
    lifetime: Duration,
    used: u64,
}

/// An answer on its way that will be kept if it comes whole.
#[derive(Debug)]
pub struct Promise {
    key: Key,
    entry: Entry,
}

/// The answers.
#[derive(Debug, Default)]
pub struct Cache {
    entries: BTreeMap<Key, Entry>,
    by_use: BTreeMap<u64, Key>,
    last_use: u64,
    bytes: usize,
}

/// May this request be answered from here, and its answer be kept? If so, what has to be known of it
/// later.
pub fn asked<B>(request: &Request<B>, key: &Key, empty: bool, at: Now) -> Option<Asked> {
    const NOT_WITH: [HeaderName; 9] = [
        header::AUTHORIZATION,
        header::CACHE_CONTROL,
        header::PRAGMA,
        header::RANGE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
        header::IF_RANGE,
    ];
    let fields = request.headers();
    let plain = *request.method() == Method::GET && empty;
    (plain && !NOT_WITH.iter().any(|name| fields.contains_key(name))).then(|| Asked {
        key: key.clone(),
        fields: fields.clone(),
        at,
    })
}

/// Does a request change what it names (RFC 9111, section 4.4)?
pub fn changes(method: &Method) -> bool {
    !method.is_safe()
}

/// Is this answer to be kept, if it comes whole?
pub fn keep(asked: Asked, status: StatusCode, fields: &HeaderMap, now: Now) -> Option<Promise> {
    if status != StatusCode::OK || fields.contains_key(header::SET_COOKIE) {
        return None;
    }
    let says = Directives::of(fields)?;
    // What was asked for with a cookie is for everybody only if the server says so.
    if asked.fields.contains_key(header::COOKIE) && !says.public {
        return None;
    }
    let lifetime = says.lifetime.or_else(|| expires(fields))?;
    let age = age(fields, now.steady.saturating_sub(asked.at.steady))?;
    if lifetime <= age {
        return None;
    }
    let chosen_by = chosen_by(fields, &asked.fields)?;
    let (came, body, used) = (now.steady, Bytes::new(), 0);
    let entry = Entry { fields: fields.clone(), body, chosen_by, came, age, lifetime, used };
    Some(Promise { key: asked.key, entry })
}

/// What `Cache-Control` says to a shared cache; `None` if it forbids to keep the answer.
struct Directives {
    public: bool,
    lifetime: Option<Duration>,
}

impl Directives {
    fn of(fields: &HeaderMap) -> Option<Directives> {
        let (mut public, mut max_age, mut shared) = (false, None, None);
        for value in fields.get_all(header::CACHE_CONTROL) {
            for directive in split(value.to_str().ok()?) {
                let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
                match name.trim().to_ascii_lowercase().as_str() {
                    "no-store" | "no-cache" | "private" => return None,
                    "public" => public = true,
                    "max-age" => shorter(&mut max_age, value),
                    "s-maxage" => {
                        public = true;
                        shorter(&mut shared, value);
                    }
                    _ => {}
                }
            }
        }
        let lifetime = shared.or(max_age).map(Duration::from_secs);
        Some(Directives { public, lifetime })
    }
}

/// What is said twice holds as the shorter, and what is no number as none.
fn shorter(so_far: &mut Option<u64>, value: &str) {
    let value = seconds(value.trim().trim_matches('"')).unwrap_or(0);
    *so_far = Some(so_far.map_or(value, |before| before.min(value)));
}

fn seconds(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().map_or(FOREVER, |n: u64| n.min(FOREVER)))
}

/// Members of a list, of which some may be quoted strings with commas.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    list.split(move |c| {
        let ends = c == ',' && !quoted;
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        ends
    })
}

fn date(fields: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(fields.get(name)?.to_str().ok()?).ok()
}

/// One that cannot be read has passed (RFC 9111, section 5.3); without a `Date` it is none here.
fn expires(fields: &HeaderMap) -> Option<Duration> {
    let mut all = fields.get_all(header::EXPIRES).iter();
    if all.next().is_none() || all.next().is_some() {
        return None;
    }
    date(fields, header::EXPIRES)?.duration_since(date(fields, header::DATE)?).ok()
}

/// Its age when it came (RFC 9111, section 4.2.3). The way here took `waited` at most, and that is
/// counted once: a hub does not change `Age`.
fn age(fields: &HeaderMap, waited: Duration) -> Option<Duration> {
    let told = match fields.get(header::AGE) {
        Some(age) => seconds(age.to_str().ok()?.split(',').next()?.trim()).unwrap_or(FOREVER),
        None => 0,
    };
    Some(Duration::from_secs(told) + waited)
}

/// The request's values of what `Vary` names; `None` if nobody knows what it depends on.
fn chosen_by(fields: &HeaderMap, asked: &HeaderMap) -> Option<Vec<(HeaderName, Vec<HeaderValue>)>> {
    let mut chosen = Vec::new();
    for vary in fields.get_all(header::VARY) {
        for name in vary.to_str().ok()?.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            let name: HeaderName = (name != "*").then(|| name.parse().ok())??;
            chosen.push((name.clone(), values(asked, &name)));
        }
    }
    Some(chosen)
}

fn values(fields: &HeaderMap, name: &HeaderName) -> Vec<HeaderValue> {
    fields.get_all(name).iter().cloned().collect()
}

impl Entry {
    fn size(&self) -> usize {
        let fields: usize = self.fields.iter().map(|(n, v)| n.as_str().len() + v.len()).sum();
        self.body.len() + fields + OVERHEAD
    }
}

impl Cache {
    /// The answer, if there is a fresh one for this very request.
    pub fn find(&mut self, asked: &Asked) -> Option<Kept> {
        let entry = self.entries.get_mut(&asked.key)?;
        let age = entry.age + asked.at.steady.saturating_sub(entry.came);
        let chosen =
            |(name, had): &(HeaderName, Vec<HeaderValue>)| values(&asked.fields, name) == *had;
        if age >= entry.lifetime || !entry.chosen_by.iter().all(chosen) {
            return None;
        }
        self.by_use.remove(&entry.used);
        self.last_use += 1;
        entry.used = self.last_use;
        self.by_use.insert(entry.used, asked.key.clone());
        let mut fields = entry.fields.clone();
        fields.insert(header::AGE, age.as_secs().into());
        Some(Kept { fields, body: entry.body.clone() })
    }

    /// Targets of what is fresh of the host and server of `site`, with the host's name.
    pub fn fresh_of(&self, site: &Key, now: Now) -> impl Iterator<Item = &str> {
        let host = site.uri.split_inclusive('/').next().unwrap_or("").to_owned();
        let first = Key { uri: host.clone(), ..site.clone() };
        let entries = self.entries.range(first.clone()..).take_while(move |(key, _)| {
            (&key.peer, key.to) == (&first.peer, first.to) && key.uri.starts_with(&host)
        });
        let is_fresh = move |e: &Entry| e.age + now.steady.saturating_sub(e.came) < e.lifetime;
        entries.filter(move |(_, e)| is_fresh(e)).map(|(key, _)| key.uri.as_str())
    }

    /// Keeps an answer that has come whole.
    pub fn insert(&mut self, promise: Promise, body: Bytes) {
        let Promise { key, mut entry } = promise;
        self.forget(&key);
        self.last_use += 1;
        (entry.body, entry.used) = (body, self.last_use);
        self.bytes += entry.size();
        self.by_use.insert(entry.used, key.clone());
        self.entries.insert(key, entry);
        while self.bytes > MAX_BYTES
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            self.forget(&oldest.clone());
        }
    }

    /// Forgets what was kept of this.
    pub fn forget(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.size();
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
