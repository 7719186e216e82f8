//! An answer that is kept: whether it may be, for how long it is fresh, and how a 304 freshens it.

use std::time::Duration;

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName};

use super::given::may_be_joined;
use super::words::{Directives, FOREVER, date, seconds};
use super::{Asked, Digest, Key, Now};
use crate::headers::{logs_connection_in, proves_who_asks};

/// The longest freshness that nobody promised (RFC 9111, section 4.2.2).
const GUESS: Duration = Duration::from_secs(24 * 3600);

/// What a field counts for beside its text.
const FIELD: usize = 100;

/// How stale an answer may be that is given because the link is down.
const CUT_OFF: Duration = Duration::from_secs(24 * 3600);

/// Statuses whose answers may be kept without a word about it (RFC 9110, section 15.1).
const BY_DEFAULT: [u16; 12] = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501];

/// What `must-understand` asks for: statuses whose meaning for a cache is known here.
const UNDERSTOOD: [u16; 33] = [
    200, 201, 202, 203, 204, 205, 206, 300, 301, 302, 303, 307, 308, 400, 401, 402, 403, 404, 405,
    406, 408, 409, 410, 411, 413, 414, 415, 416, 500, 501, 502, 503, 504,
];

/// Fields of a 304 that do not change those of the kept answer (RFC 9111, section 3.2): they are
/// about the body, which is the old one.
const OF_THE_BODY: [HeaderName; 5] = [
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::ETAG,
    HeaderName::from_static("content-md5"),
];

/// An answer without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What it answers.
    pub key: Key,
    /// Tells it from others of this store.
    pub number: u64,
    /// Its status.
    pub status: StatusCode,
    /// Its fields, without those that must not be kept.
    pub fields: HeaderMap,
    /// What the request had in the fields that `Vary` names.
    pub(super) chosen_by: Vec<(HeaderName, Vec<u8>)>,
    /// When it came, by the steady clock.
    pub came: Duration,
    /// How old it was then.
    pub age: Duration,
    /// How long it took to come whole.
    pub took: Duration,
    /// Bytes of its body.
    pub length: u64,
    pub(super) rules: Rules,
}

/// What an answer's fields permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub lifetime: Duration,
    /// It must be validated each time.
    pub no_cache: bool,
    /// Once stale it must not be given out, whatever else is said.
    pub strict: bool,
    /// How long after its lifetime it may be given while it is validated.
    pub while_revalidate: Duration,
    /// How long after its lifetime it may be given where there is no other answer.
    pub if_error: Duration,
}

impl Rules {
    pub fn of(status: StatusCode, fields: &HeaderMap) -> Rules {
        let says = Directives::of(fields);
        let no_cache = says.has_plain("no-cache");
        let strict = ["must-revalidate", "proxy-revalidate", "s-maxage"];
        Rules {
            lifetime: explicit_lifetime(&says, fields)
                .or_else(|| guessed_lifetime(status, &says, fields))
                .unwrap_or_default(),
            no_cache,
            strict: no_cache || strict.iter().any(|name| says.has(name)),
            while_revalidate: says.seconds("stale-while-revalidate").unwrap_or_default(),
            if_error: says.seconds("stale-if-error").unwrap_or_default(),
        }
    }
}

fn explicit_lifetime(says: &Directives, fields: &HeaderMap) -> Option<Duration> {
    says.seconds("s-maxage").or_else(|| says.seconds("max-age")).or_else(|| expires(fields))
}

/// Until `Expires`, by the server's own clock. One that cannot be read, or compared with a `Date`,
/// has passed (RFC 9111, section 5.3).
fn expires(fields: &HeaderMap) -> Option<Duration> {
    fields.get(header::EXPIRES)?;
    let left = date(fields, header::EXPIRES)
        .zip(date(fields, header::DATE))
        .and_then(|(expires, date)| expires.duration_since(date).ok());
    Some(left.unwrap_or_default())
}

/// A tenth of the time for which it had not changed (RFC 9111, section 4.2.2).
fn guessed_lifetime(status: StatusCode, says: &Directives, fields: &HeaderMap) -> Option<Duration> {
    if !BY_DEFAULT.contains(&status.as_u16()) && !says.has("public") {
        return None;
    }
    let (date, changed) = (date(fields, header::DATE)?, date(fields, header::LAST_MODIFIED)?);
    Some((date.duration_since(changed).ok()? / 10).min(GUESS))
}

/// The answer to `asked`, if it may be kept and is of use. Its number, length and time are set when
/// it has come whole.
pub fn keep(asked: &Asked, status: StatusCode, fields: &HeaderMap, now: Now) -> Option<Stored> {
    if asked.head || asked.wants.no_store || logs_connection_in(fields) {
        return None;
    }
    // What was asked for with a cookie or a token is for everybody only if the server says so.
    let says = Directives::of(fields);
    let for_all = says.has("public") || says.has("s-maxage");
    match proves_who_asks(&asked.fields) && !for_all {
        true => None,
        false => keep_for_all(asked, status, fields, now),
    }
}

fn keep_for_all(asked: &Asked, status: StatusCode, fields: &HeaderMap, now: Now) -> Option<Stored> {
    let says = Directives::of(fields);
    if !may_be_kept(status, &says, fields) {
        return None;
    }
    let mut fields = keepable(fields, &says);
    let all = status == StatusCode::PARTIAL_CONTENT && has_all_bytes(&fields);
    let status = if all { StatusCode::OK } else { status };
    if all {
        fields.remove(header::CONTENT_RANGE);
    }
    // Whoever is told who he is must not be somebody else.
    if fields.contains_key(header::SET_COOKIE) {
        return None;
    }
    let mut chosen_by = chosen_by(&fields, &asked.fields)?;
    if is_of_a_range(status) {
        chosen_by.insert(0, (header::RANGE, asked.range()?));
    }
    let age = age(&fields, now.steady.saturating_sub(asked.at.steady));
    let rules = Rules::of(status, &fields);
    let stored = Stored {
        key: asked.key.clone(),
        number: 0,
        status,
        fields,
        chosen_by,
        came: now.steady,
        age,
        took: Duration::ZERO,
        length: 0,
        rules,
    };
    let fresh = stored.age < rules.lifetime && !rules.no_cache;
    (fresh || stored.conditions().is_some()).then_some(stored)
}

/// RFC 9111, section 3.
fn may_be_kept(status: StatusCode, says: &Directives, fields: &HeaderMap) -> bool {
    let understood = UNDERSTOOD.contains(&status.as_u16());
    let forbidden = match says.has("must-understand") {
        true => !understood,
        false => says.has("no-store"),
    };
    let whole = !status.is_informational() && status != StatusCode::NOT_MODIFIED;
    let said = ["public", "max-age", "s-maxage"].iter().any(|name| says.has(name));
    let may = said || fields.contains_key(header::EXPIRES) || BY_DEFAULT.contains(&status.as_u16());
    whole && may && !forbidden && !says.has_plain("private")
}

/// Does an answer of this status answer nobody but who asks for the same range?
fn is_of_a_range(status: StatusCode) -> bool {
    [StatusCode::PARTIAL_CONTENT, StatusCode::RANGE_NOT_SATISFIABLE].contains(&status)
}

/// Does a 206 have the whole, as where `bytes=0-` was asked for?
fn has_all_bytes(fields: &HeaderMap) -> bool {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok());
    let whole = text(header::CONTENT_RANGE).and_then(|range| {
        let (bytes, all) = range.strip_prefix("bytes ")?.split_once('/')?;
        let last: u64 = bytes.strip_prefix("0-")?.parse().ok()?;
        (last.checked_add(1)?.to_string() == all).then_some(all)
    });
    // By its length the exchange knows whether it came whole.
    whole.is_some() && whole == text(header::CONTENT_LENGTH)
}

/// Without what only its first reader may see, or what concerns one connection.
fn keepable(fields: &HeaderMap, says: &Directives) -> HeaderMap {
    let mut kept = fields.clone();
    for name in says.names("private").into_iter().chain(says.names("no-cache")) {
        kept.remove(name);
    }
    kept.remove("proxy-authentication-info");
    kept
}

/// Its age when it came (RFC 9111, section 4.2.3). The way here took `waited` at most, and that is
/// counted once: a hub does not change `Age`. What is no single number may be any age.
fn age(fields: &HeaderMap, waited: Duration) -> Duration {
    let mut all = fields.get_all(header::AGE).iter();
    let told = match (all.next(), all.next()) {
        (None, _) => 0,
        (Some(age), None) => age.to_str().ok().and_then(|a| seconds(a.trim())).unwrap_or(FOREVER),
        _ => FOREVER,
    };
    Duration::from_secs(told) + waited
}

/// The request's values of what `Vary` names; `None` if nobody knows what the answer depends on.
fn chosen_by(fields: &HeaderMap, asked: &HeaderMap) -> Option<Vec<(HeaderName, Vec<u8>)>> {
    let mut chosen = Vec::new();
    for vary in fields.get_all(header::VARY) {
        for name in vary.to_str().ok()?.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            let name: HeaderName = (name != "*").then(|| name.parse().ok())??;
            let value = plain_value(asked, &name);
            chosen.push((name, value));
        }
    }
    Some(chosen)
}

/// A field's lines as one, without the blanks that mean nothing; of languages and encodings in
/// small letters.
pub(super) fn plain_value(fields: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    let lines: Vec<_> = fields.get_all(name).iter().map(|v| v.as_bytes()).collect();
    let whole = lines.join(&b","[..]);
    if whole.contains(&b'"') {
        return whole;
    }
    let members: Vec<_> = whole.split(|b| *b == b',').map(<[u8]>::trim_ascii).collect();
    let mut plain = members.join(&b","[..]);
    if [header::ACCEPT_LANGUAGE, header::ACCEPT_ENCODING].contains(name) {
        plain.make_ascii_lowercase();
    }
    plain
}

impl Stored {
    /// About the bytes that it takes in memory beside its body: servers and hosts choose them.
    pub fn weight(&self) -> usize {
        let fields = self.fields.iter().map(|(n, v)| n.as_str().len() + v.len() + FIELD);
        let chosen = self.chosen_by.iter().map(|(n, v)| n.as_str().len() + v.len() + FIELD);
        self.key.uri().len() + fields.chain(chosen).sum::<usize>()
    }

    /// How old it is.
    pub fn age_at(&self, now: Now) -> Duration {
        self.age + now.steady.saturating_sub(self.came)
    }

    /// For how long it has been stale.
    pub(super) fn stale_for(&self, now: Now) -> Duration {
        self.age_at(now).saturating_sub(self.rules.lifetime)
    }

    /// For how long it will be fresh, and for how long it has been stale.
    pub fn left(&self, now: Now) -> (Duration, Duration) {
        let lifetime = if self.rules.no_cache { Duration::ZERO } else { self.rules.lifetime };
        let age = self.age_at(now);
        (lifetime.saturating_sub(age), age.saturating_sub(lifetime))
    }

    /// Is it for those alone who ask for the same range?
    pub fn is_of_a_range(&self) -> bool {
        is_of_a_range(self.status)
    }

    /// Under which it is kept: one of those that [`Asked::digests`] are looked for.
    pub fn digest(&self) -> Digest {
        match self.chosen_by.first() {
            Some((name, range)) if self.is_of_a_range() && name == header::RANGE => {
                self.key.digest_of_part(range)
            }
            _ => self.key.digest(),
        }
    }

    /// Does it answer this request?
    pub fn answers(&self, asked: &Asked) -> bool {
        let same = |(name, had): &(HeaderName, Vec<u8>)| plain_value(&asked.fields, name) == *had;
        // Who has a part of another wants the whole instead.
        let fits = !self.is_of_a_range() || !asked.head && may_be_joined(asked, self);
        self.key == asked.key && self.chosen_by.iter().all(same) && fits
    }

    /// Does it take the other's place?
    pub fn replaces(&self, other: &Stored) -> bool {
        self.key == other.key && self.chosen_by == other.chosen_by
    }

    /// The fields that ask whether it still holds, where it can be asked.
    pub fn conditions(&self) -> Option<HeaderMap> {
        let mut conditions = HeaderMap::new();
        let pairs = [
            (header::ETAG, header::IF_NONE_MATCH),
            (header::LAST_MODIFIED, header::IF_MODIFIED_SINCE),
        ];
        for (of, asks) in pairs {
            if let Some(value) = self.fields.get(of) {
                conditions.insert(asks, value.clone());
            }
        }
        (!conditions.is_empty()).then_some(conditions)
    }

    /// The answer after a 304 with these `fields` (RFC 9111, section 4.3.4), and whether it may be
    /// kept on.
    pub fn freshened(&self, asked: &Asked, fields: &HeaderMap, now: Now) -> (Stored, bool) {
        let mut merged = self.fields.clone();
        // Its age is the 304's.
        merged.remove(header::AGE);
        for name in fields.keys().filter(|name| !OF_THE_BODY.contains(name)) {
            merged.remove(name);
            for value in fields.get_all(name) {
                merged.append(name, value.clone());
            }
        }
        // Whose cookie came with the question does not matter: the body is the one that is kept.
        let kept = keep_for_all(asked, self.status, &merged, now);
        let may = kept.is_some();
        let fresh = kept.unwrap_or_else(|| Stored {
            fields: merged.clone(),
            came: now.steady,
            age: age(&merged, now.steady.saturating_sub(asked.at.steady)),
            rules: Rules::of(self.status, &merged),
            ..self.clone()
        });
        let (number, length, took) = (self.number, self.length, self.took);
        // Whoever asked gets a cookie that the 304 sets; with it the answer is kept no longer.
        (Stored { number, length, took, ..fresh }, may)
    }

    /// May it be given although its server, or the way to it, fails? `cut_off`: the link does.
    pub fn stands_in(&self, asked: &Asked, now: Now, cut_off: bool) -> bool {
        let allowed = if cut_off { self.rules.if_error.max(CUT_OFF) } else { self.rules.if_error };
        let strict = self.rules.strict || asked.wants.no_cache || asked.wants.no_store;
        !strict && !allowed.is_zero() && self.stale_for(now) <= allowed
    }

    /// Is this what an answer to HEAD tells of, too (RFC 9111, section 4.3.5)?
    pub fn agrees_with_head(&self, fields: &HeaderMap) -> bool {
        let same = |name| match (self.fields.get(&name), fields.get(&name)) {
            (Some(mine), Some(told)) => mine == told,
            _ => true,
        };
        [header::ETAG, header::LAST_MODIFIED, header::CONTENT_LENGTH].into_iter().all(same)
    }
}
