//! What is kept of answers, and when it is given out: a shared cache by RFC 9111.
//!
//! Nothing here reads a clock, a socket or a file. A request becomes [`Asked`]; whoever keeps
//! answers looks for one that [`Stored::answers`] it; [`judge`] says what is to be done: give it,
//! give it and ask meanwhile, ask whether it holds, or ask for another. An answer that comes is
//! kept if [`keep`] says so; a 304 makes it fresh again ([`Stored::freshened`]); [`give`] makes of
//! it what the host asked for. [`Memory`] and [`Index`] are the books of what is kept, [`record`]
//! is its form on disk.
//!
//! An answer to a request for a range (206, or 416) is kept for those who ask for the same range,
//! in the same words. One that has all bytes is kept as the whole that it is.
//!
//! The key holds the server's address beside the host that was named: who lies about one of them
//! gets his own answers back and poisons nobody's.

mod changed;
mod given;
mod holder;
mod index;
mod memory;
pub mod record;
mod stored;
mod words;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use blake2::Digest as _;
use http::header::{self, HeaderMap, HeaderName};
use http::uri::Scheme;
use http::{Method, Request, StatusCode, Uri};

pub use changed::{changes, obsolete};
pub use given::{Given, Part, give};
pub use holder::Holder;
pub use index::{Gone, Index, Place};
pub use memory::Memory;
use stored::plain_value;
pub use stored::{Stored, keep};
use words::Directives;

/// The time. How old something is a clock says that only runs forward: a terminal's calendar may be
/// wrong, and `Age` says what a `Date` would (RFC 9111, section 4.2.3). The calendar tells only how
/// long a file lay while the program did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since the program's start.
    pub steady: Duration,
    /// Since 1970, as the terminal believes.
    pub calendar: Duration,
}

/// Whose answer it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    peer: String,
    to: SocketAddr,
    uri: String,
}

/// Names a [`Key`] in books and files.
pub type Digest = u128;

/// The half of a digest in which those of a target's parts differ.
const OF_A_PART: Digest = u64::MAX as Digest;

/// The digests of a target and of its parts.
pub fn parts_of(target: Digest) -> RangeInclusive<Digest> {
    target & !OF_A_PART..=target | OF_A_PART
}

impl Key {
    /// Of what is asked for at a server behind `peer`; of the URI the host is in small letters.
    pub fn new(peer: &str, to: SocketAddr, uri: &Uri) -> Key {
        Key { peer: peer.to_owned(), to, uri: plain_uri(uri) }
    }

    /// What names it. Different keys have different ones, as nobody can make them alike.
    pub fn digest(&self) -> Digest {
        digest_of(format!("{}\n{}\n{}", self.peer, self.to, self.uri).as_bytes())
    }

    /// What names its answer to a request for this range. Whoever forgets the target finds it by
    /// the half that both have ([`parts_of`]).
    fn digest_of_part(&self, range: &[u8]) -> Digest {
        let whole = self.digest();
        let part = digest_of(&[&whole.to_be_bytes(), range].concat());
        whole & !OF_A_PART | part & OF_A_PART
    }

    /// The same for all servers and peers.
    pub fn uri_digest(&self) -> u64 {
        uri_digest(&self.uri)
    }

    /// The host that was named, and its port.
    pub fn host(&self) -> &str {
        host_of(&self.uri)
    }

    /// The scheme and the host, as keys have them.
    pub fn origin(&self) -> &str {
        origin_of(&self.uri)
    }

    /// Behind whom it is.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The server's address.
    pub fn server(&self) -> SocketAddr {
        self.to
    }

    /// Host and target, with the scheme before them if it is `https`.
    pub fn uri(&self) -> &str {
        &self.uri
    }
}

/// What URIs of `https` begin with, here too, so that no answer of theirs is one of `http`.
const SECURE: &str = "https://";

/// Host and target of an `http` URI, as keys have them; of others the scheme, too.
pub fn plain_uri(uri: &Uri) -> String {
    let authority = uri.authority().map(|a| a.as_str().to_ascii_lowercase()).unwrap_or_default();
    let secure = uri.scheme() == Some(&Scheme::HTTPS);
    let (scheme, port) = if secure { (SECURE, ":443") } else { ("", ":80") };
    let host = authority.strip_suffix(port).unwrap_or(&authority);
    // A port may be empty, and a host named `https:` must not make of a path another's host.
    let host = host.trim_end_matches(':');
    format!("{scheme}{host}{}", uri.path_and_query().map_or("/", |t| t.as_str()))
}

/// Does this name of [`plain_uri`]'s belong to `https`?
pub fn is_secure(name: &str) -> bool {
    name.starts_with(SECURE)
}

/// Scheme and host of such a name.
pub fn origin_of(name: &str) -> &str {
    let (scheme, host, _) = split(name);
    &name[..scheme.len() + host.len()]
}

/// The host of such a name, and its port.
pub fn host_of(name: &str) -> &str {
    split(name).1
}

/// Scheme, if it is `https`, host and target of such a name.
fn split(name: &str) -> (&str, &str, &str) {
    let (scheme, rest) = name.split_at(if is_secure(name) { SECURE.len() } else { 0 });
    let (host, target) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    (scheme, host, target)
}

/// Names a host and target for all servers and peers.
pub fn uri_digest(uri: &str) -> u64 {
    digest_of(uri.as_bytes()) as u64
}

/// What tells bytes apart from all others.
pub fn digest_of(bytes: &[u8]) -> Digest {
    let hash = blake2::Blake2b512::digest(bytes);
    u128::from_be_bytes(std::array::from_fn(|n| hash[n]))
}

/// What a request's `Cache-Control` wants.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wants {
    no_store: bool,
    no_cache: bool,
    only_kept: bool,
    max_age: Option<Duration>,
    min_fresh: Duration,
    /// How stale it may be; `None`: not at all.
    max_stale: Option<Duration>,
}

impl Wants {
    fn of(fields: &HeaderMap) -> Wants {
        let says = Directives::of(fields);
        let reloads = |v: &http::HeaderValue| v.as_bytes().eq_ignore_ascii_case(b"no-cache");
        let old_fashioned = !fields.contains_key(header::CACHE_CONTROL)
            && fields.get_all(header::PRAGMA).iter().any(reloads);
        let max_age = says.seconds("max-age");
        let any = says.has_plain("max-stale").then_some(Duration::MAX);
        Wants {
            no_store: says.has("no-store"),
            no_cache: says.has("no-cache") || old_fashioned || max_age == Some(Duration::ZERO),
            only_kept: says.has("only-if-cached"),
            max_age,
            min_fresh: says.seconds("min-fresh").unwrap_or_default(),
            max_stale: any.or_else(|| says.seconds("max-stale")),
        }
    }
}

/// Does this field tell a server another host, address or method than the request's own? Some obey
/// and write it into what they answer, without saying so in `Vary`. `X-Forwarded-For` is not among
/// them: proxies of a LAN put it into everything
/// (docs/decisions/fields-that-answers-may-repeat.md).
fn speaks_for_another(name: &HeaderName) -> bool {
    const BEGIN: [&str; 5] =
        ["x-forwarded-", "x-original-", "x-rewrite-", "x-http-method", "x-override-"];
    const ARE: [&str; 12] = [
        "forwarded",
        "front-end-https",
        "x-backend-host",
        "x-forwarded",
        "x-forwarder-for",
        "x-host",
        "x-http-host-override",
        "x-method-override",
        "x-proxy-url",
        "x-scheme",
        "x-server-name",
        "x-url-scheme",
    ];
    let name = name.as_str();
    name != "x-forwarded-for"
        && (BEGIN.iter().any(|begin| name.starts_with(begin)) || ARE.contains(&name))
}

/// What has to be known of a request until its answer is there.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What is asked for.
    pub key: Key,
    /// Its fields.
    pub fields: HeaderMap,
    /// When it was asked.
    pub at: Now,
    head: bool,
    wants: Wants,
}

impl Asked {
    /// May this request be answered from what is kept, and its answer be kept?
    pub fn of<B>(request: &Request<B>, key: &Key, empty: bool, at: Now) -> Option<Asked> {
        // With an authorisation answers are somebody's own. The other conditions are for the
        // server.
        const NOT_WITH: [HeaderName; 3] =
            [header::AUTHORIZATION, header::IF_MATCH, header::IF_UNMODIFIED_SINCE];
        let fields = request.headers();
        let head = *request.method() == Method::HEAD;
        let reads = head || *request.method() == Method::GET;
        let ours = reads
            && empty
            && !NOT_WITH.iter().any(|name| fields.contains_key(name))
            && !fields.keys().any(speaks_for_another);
        ours.then(|| Asked {
            key: key.clone(),
            fields: fields.clone(),
            at,
            head,
            wants: Wants::of(fields),
        })
    }

    /// Under which what answers it may be kept: its target, and the range of it that is asked for.
    pub fn digests(&self) -> impl Iterator<Item = Digest> + use<> {
        let part = self.range().map(|range| self.key.digest_of_part(&range));
        [Some(self.key.digest()), part].into_iter().flatten()
    }

    /// What it says of a range.
    fn range(&self) -> Option<Vec<u8>> {
        let has = !self.head && self.fields.contains_key(header::RANGE);
        has.then(|| plain_value(&self.fields, &header::RANGE))
    }

    /// Is an answer of this status what is there now, in place of what is kept, also where it may
    /// not be kept itself? One who wants no copy says nothing of what others have; nor does one
    /// that is for him alone: a 304 to his own condition, and what his own fields are refused
    /// with.
    pub fn displaces(&self, status: StatusCode) -> bool {
        let is_there = status.is_success()
            || status.is_redirection() && status != StatusCode::NOT_MODIFIED
            || matches!(status.as_u16(), 404 | 410 | 451);
        !self.head && !self.wants.no_store && is_there
    }

    /// Does it ask for the fields alone?
    pub fn is_head(&self) -> bool {
        self.head
    }
}

/// What is to be done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Give what is kept.
    Fresh,
    /// Give what is kept, and ask meanwhile whether it still holds.
    Stale,
    /// Ask, with these fields in place of the host's own conditions, whether what is kept holds.
    Validate(HeaderMap),
    /// Ask, as the host does.
    Miss,
    /// The host wants what is kept or nothing.
    Never,
    /// Give what is kept although it is stale: nobody can be asked.
    StandIn,
    /// Nobody can be asked, and what is kept is not to be given unasked.
    CutOff,
}

/// Asks whether what is kept holds, instead of whether what the host has does: that is answered
/// here.
pub fn condition(fields: &mut HeaderMap, conditions: HeaderMap) {
    fields.remove(header::IF_NONE_MATCH);
    fields.remove(header::IF_MODIFIED_SINCE);
    fields.extend(conditions);
}

/// Does a request ask about nothing else than what these conditions ask about? Else who asks has
/// another answer than the one that is kept, and is better told whether his own holds.
pub fn agrees(fields: &HeaderMap, conditions: &HeaderMap) -> bool {
    let asks = [header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE];
    asks.into_iter().all(|name| match fields.get(&name) {
        None => true,
        asked => asked == conditions.get(&name),
    })
}

/// What is to be done, where `stored` is what is kept and answers it.
pub fn judge(asked: &Asked, stored: Option<&Stored>, now: Now) -> Verdict {
    let wants = &asked.wants;
    let miss = if wants.only_kept { Verdict::Never } else { Verdict::Miss };
    let Some(stored) = stored.filter(|_| !wants.no_store) else { return miss };
    let (age, rules) = (stored.age_at(now), &stored.rules);
    let young = !rules.no_cache && !wants.no_cache && wants.max_age.is_none_or(|most| age <= most);
    let stale_for = stored.stale_for(now);
    let is_fresh = age < rules.lifetime;
    let enough = age.saturating_add(wants.min_fresh) <= rules.lifetime;
    let suffered = !rules.strict && wants.max_stale.is_some_and(|most| stale_for <= most);
    if young && (is_fresh && enough || suffered) {
        return Verdict::Fresh;
    }
    if wants.only_kept {
        return Verdict::Never;
    }
    if young && !is_fresh && !rules.strict && stale_for < rules.while_revalidate {
        return Verdict::Stale;
    }
    match stored.conditions().filter(|_| !asked.head) {
        Some(conditions) => Verdict::Validate(conditions),
        None => Verdict::Miss,
    }
}

/// What is to be done while the link is down. What is not kept is asked for as ever, and so is what
/// the host insists on having anew: that waits for the link.
pub fn judge_cut_off(asked: &Asked, stored: Option<&Stored>, now: Now) -> Verdict {
    let insists = asked.wants.no_cache || asked.wants.no_store;
    match (judge(asked, stored, now), stored) {
        (Verdict::Stale, _) => Verdict::StandIn,
        (Verdict::Validate(_) | Verdict::Miss, Some(stored)) if !insists => {
            match stored.stands_in(asked, now, true) {
                true => Verdict::StandIn,
                // RFC 9111, section 5.2.2.2.
                false if stored.rules.strict => Verdict::CutOff,
                false => judge(asked, Some(stored), now),
            }
        }
        (verdict, _) => verdict,
    }
}

#[cfg(test)]
mod tests;
