//! Who gets which stored answer, and which gives way.

use super::*;
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use std::sync::Arc;

mod holders;
mod on_disk;
mod parts;
mod rules;
mod users;

pub const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
pub const MINUTE_LATER: &str = "Sun, 06 Nov 1994 08:50:37 GMT";

pub fn at(seconds: u64) -> Now {
    let steady = Duration::from_secs(seconds);
    Now { steady, calendar: Duration::from_secs(1_000_000) + steady }
}

pub fn key(host: &str) -> Key {
    let uri = format!("http://{host}/a").parse().unwrap();
    Key::new("far", "10.2.0.2:80".parse().unwrap(), &uri)
}

/// A host.
pub fn one() -> Holder {
    Holder::Host([10, 1, 0, 1].into())
}

pub fn map(fields: &[(&str, &str)]) -> HeaderMap {
    let parsed = fields.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap()));
    let mut map = HeaderMap::new();
    parsed.for_each(|(name, value): (HeaderName, HeaderValue)| {
        map.append(name, value);
    });
    map
}

pub fn request(method: Method, fields: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.headers_mut() = map(fields);
    request
}

pub fn try_ask(fields: &[(&str, &str)], seconds: u64) -> Option<Asked> {
    Asked::of(&request(Method::GET, fields), &key("a"), true, at(seconds))
}

pub fn ask(fields: &[(&str, &str)], seconds: u64) -> Asked {
    try_ask(fields, seconds).expect("a request that is ours")
}

pub fn head(fields: &[(&str, &str)], seconds: u64) -> Asked {
    Asked::of(&request(Method::HEAD, fields), &key("a"), true, at(seconds)).unwrap()
}

/// The answer of `status` to such a request, with ten bytes of body.
pub fn answered(
    asking: &[(&str, &str)],
    status: StatusCode,
    answer: &[(&str, &str)],
) -> Option<Stored> {
    let stored = keep(&try_ask(asking, 0)?, status, &map(answer), at(0))?;
    Some(Stored { length: 10, number: 1, ..stored })
}

pub fn kept(asking: &[(&str, &str)], answer: &[(&str, &str)]) -> Option<Stored> {
    answered(asking, StatusCode::OK, answer)
}

/// For how many seconds such an answer is given out; 0: never.
pub fn fresh_for(answer: &[(&str, &str)]) -> u64 {
    let Some(stored) = kept(&[], answer) else { return 0 };
    let fresh = |s| judge(&ask(&[], s), Some(&stored), at(s)) == Verdict::Fresh;
    (0..200).find(|s| !fresh(*s)).unwrap_or(200)
}

#[test]
fn only_those_who_asked_the_same_of_the_same_server_get_it() {
    let mut memory = Memory::new(1 << 20);
    let answer = [("cache-control", "max-age=60"), ("vary", "Accept-Encoding")];
    let stored = kept(&[("accept-encoding", "gzip")], &answer).unwrap();
    let digest = stored.key.digest();
    memory.insert(digest, stored.into(), Bytes::from_static(b"body"), one());
    let same = ask(&[("accept-encoding", "gzip"), ("user-agent", "x")], 5);
    let mut finds = |asked: &Asked| memory.find(asked.key.digest(), asked).is_some();
    assert!(finds(&same));
    assert!(finds(&ask(&[("accept-encoding", " GZip ")], 5)), "blanks and capitals mean nothing");
    assert!(!finds(&ask(&[], 5)));
    assert!(!finds(&ask(&[("accept-encoding", "br")], 5)));
    let uri: Uri = "http://a/a".parse().unwrap();
    for other in [
        key("b"),
        Key::new("other", "10.2.0.2:80".parse().unwrap(), &uri),
        Key::new("far", "10.2.0.3:80".parse().unwrap(), &uri),
        Key::new("far", "10.2.0.2:80".parse().unwrap(), &"http://a/A".parse().unwrap()),
    ] {
        assert!(!finds(&Asked { key: other, ..same.clone() }));
    }
    assert!(finds(&Asked { key: key("A:80"), ..same.clone() }));
    memory.forget_target(digest);
    assert!(memory.is_empty());
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn what_is_kept_gives_way_to_what_is_there_now_and_to_no_other_answer() {
    let status = |code| StatusCode::from_u16(code).unwrap();
    let displaces = |fields: &[(&str, &str)], code| ask(fields, 1).displaces(status(code));
    for code in [200, 206, 301, 404, 410, 451] {
        assert!(displaces(&[], code), "{code}");
        assert!(!displaces(&[("cache-control", "no-store")], code), "{code}");
    }
    for code in [304, 400, 403, 416, 429, 431, 500, 503] {
        assert!(!displaces(&[], code), "{code}");
    }
}

#[test]
fn an_answer_is_not_given_for_a_target_of_the_same_digest() {
    let mut memory = Memory::new(1 << 20);
    let stored = kept(&[], &[("cache-control", "max-age=60")]).unwrap();
    let digest = stored.key.digest();
    memory.insert(digest, stored.into(), Bytes::new(), one());
    let other = Asked { key: key("b"), ..ask(&[], 1) };
    assert!(memory.find(digest, &other).is_none());
}

#[test]
fn variants_stand_beside_each_other_and_the_oldest_gives_way() {
    let mut memory = Memory::new(1 << 20);
    let answer = [("cache-control", "max-age=60"), ("vary", "foo")];
    let digest = key("a").digest();
    let variant = |n: u64| {
        let foo = n.to_string();
        let stored = kept(&[("foo", &foo)], &answer).unwrap();
        Stored { number: n, ..stored }
    };
    for n in 1..=9 {
        memory.insert(digest, variant(n).into(), Bytes::from(vec![n as u8]), one());
    }
    let mut body = |n: u64| memory.find(digest, &ask(&[("foo", &n.to_string())], 1)).map(|f| f.1);
    assert_eq!(body(9).as_deref(), Some(&[9][..]));
    assert_eq!(body(2).as_deref(), Some(&[2][..]));
    assert_eq!(body(1), None);
    let anew = Stored { number: 10, ..variant(2) };
    memory.insert(digest, anew.into(), Bytes::from_static(b"new"), one());
    assert_eq!(memory.find(digest, &ask(&[("foo", "2")], 1)).unwrap().1, "new");
    assert_eq!(memory.len(), 8);
}

#[test]
fn memory_has_a_limit_and_the_least_recently_used_go_first() {
    let mut memory = Memory::new(100_000);
    let asked = |n: usize| Asked { key: key(&format!("h{n}")), ..ask(&[], 1) };
    for n in 0..100 {
        let asked = asked(n);
        let fields = map(&[("cache-control", "max-age=60")]);
        let stored = keep(&asked, StatusCode::OK, &fields, at(1)).unwrap();
        let stored = Stored { number: n as u64, ..stored };
        memory.insert(asked.key.digest(), Arc::new(stored), Bytes::from(vec![0; 5_000]), one());
        assert!(memory.bytes() <= 100_000);
        assert!(memory.find(key("h0").digest(), &self::ask_of(0)).is_some(), "used all the time");
    }
    assert!(memory.find(key("h1").digest(), &asked(1)).is_none());
    assert!(memory.find(key("h99").digest(), &asked(99)).is_some());
    let stored = kept(&[], &[("cache-control", "max-age=60")]).unwrap();
    memory.insert(key("a").digest(), stored.into(), Bytes::from(vec![0; 200_000]), one());
    assert!(memory.bytes() <= 100_000, "what is longer than all of it is not kept");
}

fn ask_of(n: usize) -> Asked {
    Asked { key: key(&format!("h{n}")), ..ask(&[], 1) }
}

#[test]
fn the_book_of_files_has_limits_of_bytes_and_variants() {
    let place = |digest, number, length| Place { digest, uri: 0, number, length };
    let mut index = Index::new(1 << 20);
    for n in 0..1000 {
        index.insert(place(n as u128, n, 10_000), one());
        index.touch(0, 0, &one());
        assert!(index.bytes() <= 1 << 20);
    }
    assert!(index.len() < 100);
    assert!(!index.of_target(0).is_empty(), "used all the time");
    assert!(index.of_target(1).is_empty());
    assert_eq!(index.all().count(), index.len());
    let mut index = Index::new(1 << 20);
    for n in 0..8 {
        assert!(index.insert(place(7, n, 10), one()).is_empty());
    }
    assert_eq!(index.insert(place(7, 8, 10), one()), [place(7, 0, 10)]);
    assert_eq!(index.of_target(7).len(), 8);
    assert_eq!(index.of_target(7)[0].number, 8, "the newest first");
    assert_eq!(index.insert(place(7, 3, 50), one()), [], "in place of itself");
    assert_eq!(index.insert(place(8, 9, 2 << 20), one()).last(), Some(&place(8, 9, 2 << 20)));
    assert!(index.is_empty() && index.bytes() == 0, "what is longer than all displaces all");
}

#[test]
fn what_changes_something_drops_what_it_names_and_what_its_answer_names_on_the_same_host() {
    let uri = |text: &str| {
        let uri: Uri = text.parse().unwrap();
        Key::new("far", "10.2.0.2:80".parse().unwrap(), &uri)
    };
    let base = uri("http://a/dir/page?x=1");
    let dropped = |name: &str, reference: &str| {
        let fields = map(&[(name, reference)]);
        let mut all = obsolete(&base, StatusCode::OK, &fields);
        assert_eq!(all.remove(0), base);
        all.pop().map(|key| key.uri().to_owned())
    };
    for (reference, named) in [
        ("/x", Some("a/x")),
        ("x", Some("a/dir/x")),
        ("../x?y#z", Some("a/x?y")),
        ("./.", Some("a/dir/")),
        ("../../../x", Some("a/x")),
        ("?q", Some("a/dir/page?q")),
        ("", Some("a/dir/page?x=1")),
        ("http://A:80/x", Some("a/x")),
        ("//a/x", Some("a/x")),
        ("http://b/x", None),
        ("http://a:8080/x", None),
        ("https://a/x", None),
        ("//b/x", None),
        ("http://", None),
        ("\\\\", Some("a/dir/\\\\")),
    ] {
        for name in ["location", "content-location"] {
            assert_eq!(dropped(name, reference).as_deref(), named, "{reference}");
        }
    }
    assert_eq!(obsolete(&base, StatusCode::INTERNAL_SERVER_ERROR, &map(&[])), []);
    assert!(changes(&Method::POST) && changes(&"M-SEARCH".parse().unwrap()));
    assert!(!changes(&Method::GET) && !changes(&Method::HEAD) && !changes(&Method::OPTIONS));
}

#[test]
fn no_key_of_http_is_one_of_https_however_its_host_is_written() {
    let named = |uri: &str| {
        let uri: Uri = uri.parse().unwrap();
        Key::new("far", "10.2.0.2:443".parse().unwrap(), &uri).uri().to_owned()
    };
    assert_eq!(named("https://A.test:443/x"), "https://a.test/x");
    assert_eq!(named("https://a.test:80/x"), "https://a.test:80/x");
    // A host of HTTP writes these as its `Host` and target.
    for (host, target) in [("https:", "//a.test/x"), ("https:80", "//a.test/x"), ("https", "://a")]
    {
        let uri = Uri::builder().scheme("http").authority(host).path_and_query(target).build();
        let Ok(uri) = uri else { continue };
        let key = Key::new("far", "10.2.0.2:443".parse().unwrap(), &uri);
        assert!(!is_secure(key.uri()), "{host} {target}: {}", key.uri());
        assert_eq!(key.host(), "https");
    }
    let base = Key::new("far", "10.2.0.2:443".parse().unwrap(), &"https://a/d/p".parse().unwrap());
    assert_eq!((base.host(), base.origin()), ("a", "https://a"));
    for (reference, there) in [("x", Some("https://a/d/x")), ("https://a/y", Some("https://a/y"))]
        .into_iter()
        .chain([("//a/z", Some("https://a/z")), ("http://a/", None), ("https://b/", None)])
    {
        let fields = map(&[("location", reference)]);
        let also = obsolete(&base, StatusCode::OK, &fields).into_iter().nth(1);
        assert_eq!(also.as_ref().map(Key::uri), there, "{reference}");
    }
}

#[test]
fn long_targets_and_many_fields_count_for_the_memory_that_they_take() {
    let mut memory = Memory::new(1 << 20);
    for n in 0..1_000 {
        let uri: Uri = format!("http://a/{n}{}", "x".repeat(20_000)).parse().unwrap();
        let key = Key::new("far", "10.2.0.2:80".parse().unwrap(), &uri);
        let asked = Asked { key, ..ask(&[], 0) };
        let fields = (0..100).map(|_| ("x", "")).chain([("expires", MINUTE_LATER)]);
        let fields = map(&fields.chain([("date", DATE)]).collect::<Vec<_>>());
        let stored = keep(&asked, StatusCode::OK, &fields, at(0)).unwrap();
        let stored = Stored { number: n, ..stored };
        memory.insert(asked.key.digest(), stored.into(), Bytes::new(), one());
    }
    assert!(memory.len() <= (1 << 20) / 30_000, "{} answers", memory.len());
}
