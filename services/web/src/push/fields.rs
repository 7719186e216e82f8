//! The fields that push adds to the exchange (spec/web.md, W-PU), and those that say whom a pushed
//! answer suits.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};

use crate::headers::{TO, proofs, proves_who_asks};

/// In a request: it may bring objects of so many bytes, if they are not [`BYTES`].
const PUSH: HeaderName = HeaderName::from_static("bp-push");
/// In a request: hashes of what the terminal has of this host.
const HOLDS: HeaderName = HeaderName::from_static("bp-holds");
/// In a request: marks of what the terminal has of this host and does not know to hold ([`mark`]).
const HAD: HeaderName = HeaderName::from_static("bp-had");
/// In an answer and in a pushed one: its body has promises in it. The value is its length.
const FRAMED: HeaderName = HeaderName::from_static("bp-framed");
/// In a request that objects may be pushed for, and in a pushed answer: the number of the page.
const PAGE: HeaderName = HeaderName::from_static("bp-page");
/// In a pushed answer: its status. 0: its body is a list of what does not come.
const STATUS: HeaderName = HeaderName::from_static("bp-status");
/// In a request: the numbers of pages that their user has left.
const LEFT: HeaderName = HeaderName::from_static("bp-left");

/// Bytes of one page's objects, where nobody says otherwise.
pub const BYTES: u64 = 1_000_000;
/// Hashes that a request has at most.
pub const MAX_HELD: usize = 200;
/// Pages that are left at once.
pub const MAX_LEFT: usize = 32;

/// What a request for a page says of push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The page's number at the terminal.
    pub page: u64,
    /// Bytes of all objects.
    pub bytes: u64,
    /// Hashes of names that need not be sent.
    pub held: BTreeSet<u32>,
    /// Marks of what need not be sent if it is the same still.
    pub had: BTreeSet<u32>,
}

/// A name's hash, FNV-1a of 32 bits. Who makes two names with one hash keeps one of them from
/// being pushed.
pub fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

/// The hash of an answer's name and of what tells it from others of the same name; `None` if
/// nothing does.
pub fn mark(name: &str, answer: &HeaderMap) -> Option<u32> {
    let tells = answer.get(header::ETAG).or_else(|| answer.get(header::LAST_MODIFIED))?;
    Some(hash(&format!("{name}\n{}", tells.to_str().ok()?)))
}

/// Are these the fields of one and the same answer, by what tells versions apart?
pub fn is_same(one: &HeaderMap, other: &HeaderMap) -> bool {
    let tells = [header::ETAG, header::LAST_MODIFIED];
    let told = tells.iter().find(|name| one.contains_key(*name));
    told.is_some_and(|name| one.get(name) == other.get(name))
}

/// Removes what a host or a server sends of our own fields.
pub fn clear(fields: &mut HeaderMap) {
    for name in [PUSH, HOLDS, HAD, FRAMED, PAGE, STATUS, LEFT] {
        fields.remove(name);
    }
}

/// Asks for push.
pub fn set_ask(fields: &mut HeaderMap, ask: &Ask) {
    let text = |text: String| HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""));
    if ask.bytes != BYTES {
        fields.insert(PUSH, ask.bytes.into());
    }
    fields.insert(PAGE, ask.page.into());
    for (name, hashes) in [(HOLDS, &ask.held), (HAD, &ask.had)] {
        if !hashes.is_empty() {
            let all = hashes.iter().take(MAX_HELD);
            let all: Vec<u8> = all.flat_map(|hash| hash.to_be_bytes()).collect();
            fields.insert(name, text(Base64UrlUnpadded::encode_string(&all)));
        }
    }
}

/// Takes what a request says of push out of it.
pub fn take_ask(fields: &mut HeaderMap) -> Option<Ask> {
    let [push, page, holds, had] = [PUSH, PAGE, HOLDS, HAD].map(|name| fields.remove(name));
    let page = page.as_ref()?.to_str().ok()?;
    let bytes = match push {
        Some(push) => push.to_str().ok()?.parse().ok()?,
        None => BYTES,
    };
    let hashes = |field: Option<HeaderValue>| {
        let text = field.as_ref().and_then(|h| h.to_str().ok()).unwrap_or("");
        let all = Base64UrlUnpadded::decode_vec(text).ok()?;
        let all = all.as_chunks().0.iter().take(MAX_HELD).map(|b| u32::from_be_bytes(*b));
        Some(all.collect())
    };
    Some(Ask { page: page.parse().ok()?, bytes, held: hashes(holds)?, had: hashes(had)? })
}

/// Says that their user has left these pages.
pub fn set_left(fields: &mut HeaderMap, pages: &[u64]) {
    let list = pages.iter().take(MAX_LEFT).map(u64::to_string).collect::<Vec<_>>().join(",");
    if let Ok(list) = HeaderValue::from_str(&list) {
        fields.insert(LEFT, list);
    }
}

/// Takes the pages that a user has left out of a request.
pub fn take_left(fields: &mut HeaderMap) -> Vec<u64> {
    let list = fields.remove(LEFT);
    let list = list.as_ref().and_then(|list| list.to_str().ok()).unwrap_or("");
    list.split(',').take(MAX_LEFT).filter_map(|page| page.parse().ok()).collect()
}

/// A request that says nothing else.
pub fn farewell<B>(pages: &[u64], body: B) -> Request<B> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("http://left/");
    *request.version_mut() = Version::HTTP_2;
    set_left(request.headers_mut(), pages);
    request
}

/// Notes that promises are between the body's bytes.
pub fn set_framed(fields: &mut HeaderMap) {
    let length = fields.remove(header::CONTENT_LENGTH);
    fields.insert(FRAMED, length.unwrap_or(HeaderValue::from_static("-")));
}

/// Are there promises in the body? Its length stands where it belongs again.
pub fn take_framed(fields: &mut HeaderMap) -> bool {
    let Some(length) = fields.remove(FRAMED) else { return false };
    fields.remove(header::CONTENT_LENGTH);
    if !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit) {
        fields.insert(header::CONTENT_LENGTH, length);
    }
    true
}

/// The fields of a page's request with which its objects are asked for, too. Cookies are for the
/// host that has them.
pub fn copied(page: &HeaderMap) -> HeaderMap {
    const COPIED: [HeaderName; 6] = [
        header::USER_AGENT,
        header::ACCEPT_ENCODING,
        header::ACCEPT_LANGUAGE,
        header::COOKIE,
        header::DNT,
        HeaderName::from_static("sec-gpc"),
    ];
    let mut copied = HeaderMap::new();
    for name in COPIED {
        for value in page.get_all(&name) {
            copied.append(name.clone(), value.clone());
        }
    }
    copied
}

/// What a browser's cookies are after an answer with these fields, for the same host's root. Those
/// that only a browser can judge are left out: the terminal finds that they differ. `is_secure`: it
/// came by `https`.
pub fn set_cookies(copied: &mut HeaderMap, answer: &HeaderMap, is_secure: bool) {
    let before = copied.get(header::COOKIE).and_then(|c| c.to_str().ok()).unwrap_or("");
    let mut pairs: Vec<(String, String)> = before
        .split("; ")
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let (were, mut changed) = (pairs.len(), false);
    for set in answer.get_all(header::SET_COOKIE).iter().filter_map(|s| s.to_str().ok()) {
        let mut parts = set.split(';').map(str::trim);
        let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else {
            continue;
        };
        let simple = parts.all(|attribute| {
            let (name, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            match name.to_ascii_lowercase().as_str() {
                "path" => value == "/",
                "secure" => is_secure,
                "httponly" | "samesite" | "expires" | "max-age" => value != "0",
                _ => false,
            }
        });
        if simple {
            changed = true;
            match pairs.iter_mut().find(|(n, _)| n == name) {
                Some(pair) => pair.1 = value.to_owned(),
                None => pairs.push((name.to_owned(), value.to_owned())),
            }
        }
    }
    if !changed || pairs.len() > were + 50 {
        return;
    }
    let text = pairs.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join("; ");
    if let Ok(value) = HeaderValue::from_str(&text) {
        copied.insert(header::COOKIE, value);
    }
}

/// An answer as it is pushed.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// The number of its page.
    pub page: u64,
    /// Where its server is.
    pub to: SocketAddr,
    /// Its address.
    pub uri: Uri,
    /// `None`: the body is a list of what does not come.
    pub status: Option<StatusCode>,
    /// Its fields.
    pub fields: HeaderMap,
}

/// An answer as the request that carries it. `None` if its address is none that HTTP carries.
pub fn into_push<B>(
    page: u64,
    to: SocketAddr,
    uri: &Uri,
    answer: Response<B>,
) -> Option<Request<B>> {
    let (parts, body) = answer.into_parts();
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri.clone();
    *request.version_mut() = Version::HTTP_2;
    let mut fields = parts.headers;
    fields.remove(header::HOST);
    fields.remove(header::TE);
    fields.insert(PAGE, page.into());
    fields.insert(STATUS, parts.status.as_u16().into());
    fields.insert(TO, HeaderValue::from_str(&to.to_string()).ok()?);
    *request.headers_mut() = fields;
    Some(request)
}

/// The request that takes promises back.
pub fn withdrawal<B>(page: u64, list: B) -> Request<B> {
    let mut request = Request::new(list);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("http://withdrawn/");
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().insert(PAGE, page.into());
    request.headers_mut().insert(STATUS, 0.into());
    request.headers_mut().insert(TO, HeaderValue::from_static("0.0.0.0:0"));
    request
}

/// What such a request carries, but for its body.
pub fn from_push<B>(request: &mut Request<B>) -> Option<Pushed> {
    let mut fields = std::mem::take(request.headers_mut());
    let mut text = |name| fields.remove(name).and_then(|v| v.to_str().map(str::to_owned).ok());
    let (page, status, to) = (text(PAGE)?, text(STATUS)?, text(TO)?);
    let status = match status.parse().ok()? {
        0 => None,
        code => Some(StatusCode::from_u16(code).ok()?),
    };
    let (page, to, uri) = (page.parse().ok()?, to.parse().ok()?, request.uri().clone());
    Some(Pushed { page, to, uri, status, fields })
}

/// May this request be answered with what was pushed at all? It asks for the whole, and shows no
/// papers.
pub fn may_be_pushed<B>(request: &Request<B>) -> bool {
    const NOT_WITH: [HeaderName; 5] = [
        header::AUTHORIZATION,
        header::RANGE,
        header::IF_MATCH,
        header::IF_UNMODIFIED_SINCE,
        header::EXPECT,
    ];
    let fields = request.headers();
    *request.method() == Method::GET && !NOT_WITH.iter().any(|name| fields.contains_key(name))
}

/// Is an answer that was asked for with the fields `sent` one to a request with the fields
/// `asked`?
pub fn suits(sent: &HeaderMap, asked: &HeaderMap, answer: &HeaderMap) -> bool {
    let same = |name: &HeaderName| sent.get_all(name).iter().eq(asked.get_all(name).iter());
    let encoded = answer.get(header::CONTENT_ENCODING).is_some_and(|e| e != "identity");
    if encoded && !same(&header::ACCEPT_ENCODING) {
        return false;
    }
    let same_asker = proofs(sent).chain(proofs(asked)).all(same);
    if !same_asker && !is_for_everybody(answer, proves_who_asks(sent)) {
        return false;
    }
    answer.get_all(header::VARY).iter().all(|vary| {
        vary.to_str().is_ok_and(|vary| {
            vary.split(',').map(str::trim).filter(|n| !n.is_empty()).all(|name| {
                let is_same = |name: HeaderName| {
                    // What is not encoded suits whatever encodings are accepted.
                    name == header::ACCEPT_ENCODING || same(&name)
                };
                name != "*" && name.parse().is_ok_and(is_same)
            })
        })
    })
}

/// Does the server say that others may have it, too? Of what it was asked for by one of its users
/// it has to say so in so many words.
fn is_for_everybody(answer: &HeaderMap, to_a_user: bool) -> bool {
    let mut says = answer
        .get_all(header::CACHE_CONTROL)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(|directive| directive.trim().to_ascii_lowercase())
        .peekable();
    let (mut shared, mut own) = (false, answer.contains_key(header::SET_COOKIE));
    for directive in says.by_ref() {
        match directive.split('=').next().unwrap_or("") {
            "public" | "s-maxage" => shared = true,
            "max-age" => shared |= !to_a_user,
            "private" | "no-store" | "no-cache" => own = true,
            _ => {}
        }
    }
    shared && !own
}

/// Has the host that asks this very answer already (RFC 9110, section 13.2.2)?
pub fn is_known(asked: &HeaderMap, answer: &HeaderMap) -> bool {
    let text = |fields: &HeaderMap, name: HeaderName| {
        fields.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned)
    };
    if let Some(known) = text(asked, header::IF_NONE_MATCH) {
        let plain = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
        let tag = text(answer, header::ETAG).map(|tag| plain(&tag));
        return tag
            .is_some_and(|tag| known.trim() == "*" || known.split(',').any(|k| plain(k) == tag));
    }
    let since = text(asked, header::IF_MODIFIED_SINCE);
    since.is_some() && since == text(answer, header::LAST_MODIFIED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn what_is_asked_arrives_and_what_hosts_say_of_it_does_not() {
        let mut all = fields(&[("bp-push", "9 9"), ("bp-holds", "AAAA"), ("accept", "*/*")]);
        clear(&mut all);
        assert_eq!(all, fields(&[("accept", "*/*")]));
        let (held, had) = (["a/b", "a/c"].map(hash).into(), [hash("a/d\n\"1\"")].into());
        let ask = Ask { page: 7, bytes: 1 << 20, held, had };
        set_ask(&mut all, &ask);
        assert_eq!(take_ask(&mut all), Some(ask));
        assert_eq!(all.len(), 1);
        for (page, push, holds) in
            [("", "1", ""), ("1", "", ""), ("-1", "2", ""), ("1", "2", "~"), ("1", "x", "AAAA")]
        {
            let odd = [("bp-page", page), ("bp-push", push), ("bp-holds", holds)];
            assert_eq!(take_ask(&mut fields(&odd)), None, "{odd:?}");
        }
        let many = Ask { page: 1, bytes: 1, held: (0..1000).collect(), had: BTreeSet::new() };
        set_ask(&mut all, &many);
        assert_eq!(take_ask(&mut all).unwrap().held.len(), MAX_HELD);
        let mut bye = farewell(&[3, 4], ());
        assert_eq!(take_left(bye.headers_mut()), [3, 4]);
        assert!(bye.headers().is_empty() && take_left(bye.headers_mut()).is_empty());
        assert_eq!(take_left(&mut fields(&[("bp-left", "1,x,,-2,5")])), [1, 5]);
    }

    #[test]
    fn an_answer_crosses_as_a_request_and_comes_out_as_it_was() {
        let mut answer = Response::new("body");
        *answer.headers_mut() = fields(&[("content-length", "4"), ("host", "x"), ("bp-page", "3")]);
        set_framed(answer.headers_mut());
        let (to, uri) = ("10.2.0.2:80".parse().unwrap(), Uri::from_static("http://a.test/x?y"));
        let mut request = into_push(7, to, &uri, answer).unwrap();
        let mut pushed = from_push(&mut request).unwrap();
        assert_eq!((pushed.page, pushed.to, &pushed.uri), (7, to, &uri));
        assert_eq!(pushed.status, Some(StatusCode::OK));
        assert!(take_framed(&mut pushed.fields) && !take_framed(&mut pushed.fields));
        assert_eq!(pushed.fields, fields(&[("content-length", "4")]));
        assert_eq!(from_push(&mut withdrawal(7, "")).unwrap().status, None);
        for status in ["", "1", "99", "x"] {
            let mut bad = withdrawal(7, "");
            bad.headers_mut().insert(STATUS, status.parse().unwrap());
            assert!(from_push(&mut bad).is_none(), "{status}");
        }
    }

    #[test]
    fn a_pushed_answer_suits_only_a_request_like_the_one_that_was_made_for_it() {
        let sent = fields(&[("cookie", "a=b"), ("accept-encoding", "gzip"), ("user-agent", "x")]);
        let alike = sent.clone();
        let mut other_cookie = sent.clone();
        other_cookie.insert("cookie", "a=c".parse().unwrap());
        let mut no_gzip = sent.clone();
        no_gzip.remove("accept-encoding");
        let mut with_token = sent.clone();
        with_token.insert("x-auth-token", "t".parse().unwrap());
        for (asked, answer, suit) in [
            (&alike, &[][..], true),
            (&alike, &[("cache-control", "private, no-store"), ("set-cookie", "c=d")], true),
            (&alike, &[("vary", "Cookie, user-agent,Accept-Encoding")], true),
            (&alike, &[("vary", "*")], false),
            (&alike, &[("vary", "origin")], true),
            (&other_cookie, &[], false),
            (&other_cookie, &[("cache-control", "max-age=60")], false),
            (&other_cookie, &[("cache-control", "max-age=60, public")], true),
            (&other_cookie, &[("cache-control", "s-maxage=60")], true),
            (&with_token, &[], false),
            (&with_token, &[("cache-control", "public")], true),
            (&other_cookie, &[("cache-control", "max-age=60, private")], false),
            (&other_cookie, &[("cache-control", "public"), ("set-cookie", "c=d")], false),
            (&other_cookie, &[("cache-control", "public"), ("vary", "cookie")], false),
            (&no_gzip, &[("content-encoding", "gzip")], false),
            (&no_gzip, &[("vary", "accept-encoding")], true),
        ] {
            assert_eq!(suits(&sent, asked, &fields(answer)), suit, "{asked:?} {answer:?}");
        }
        let unknown = fields(&[("accept-encoding", "gzip"), ("user-agent", "x")]);
        for (answer, suit) in [
            (&[][..], false),
            (&[("cache-control", "max-age=60")], true),
            (&[("cache-control", "max-age=60, private")], false),
        ] {
            assert_eq!(suits(&unknown, &sent, &fields(answer)), suit, "{answer:?}");
        }
    }

    #[test]
    fn cookies_of_the_page_are_those_of_its_objects() {
        let mut copied = copied(&fields(&[("cookie", "a=b; c=d"), ("accept", "text/html")]));
        assert_eq!(copied, fields(&[("cookie", "a=b; c=d")]));
        let answer = [
            ("set-cookie", "c=e; Path=/; HttpOnly; SameSite=Lax; Max-Age=60"),
            ("set-cookie", "f=g"),
            ("set-cookie", "no=1; Path=/dir"),
            ("set-cookie", "no=2; Domain=test"),
            ("set-cookie", "no=3; Secure"),
        ];
        set_cookies(&mut copied, &fields(&answer), false);
        assert_eq!(copied["cookie"], "a=b; c=e; f=g");
        set_cookies(&mut copied, &fields(&answer), true);
        assert_eq!(copied["cookie"], "a=b; c=e; f=g; no=3");
    }

    #[test]
    fn who_has_it_already_is_told_so() {
        let answer = fields(&[("etag", "\"x\""), ("last-modified", "Mon")]);
        for (asked, known) in [
            (&[("if-none-match", "W/\"y\", W/\"x\"")][..], true),
            (&[("if-none-match", "\"y\""), ("if-modified-since", "Mon")], false),
            (&[("if-modified-since", "Mon")], true),
            (&[("if-modified-since", "Tue")], false),
            (&[], false),
        ] {
            assert_eq!(is_known(&fields(asked), &answer), known, "{asked:?}");
        }
    }
}
