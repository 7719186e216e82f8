use super::*;

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn at(seconds: u64) -> Now {
    Now { steady: Duration::from_secs(seconds) }
}

fn key(host: &str) -> Key {
    let uri = format!("http://{host}/a").parse().unwrap();
    Key::new("far", "10.2.0.2:80".parse().unwrap(), &uri)
}

fn map(fields: &[(&str, &str)]) -> HeaderMap {
    let parsed = fields.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap()));
    let mut map = HeaderMap::new();
    parsed.for_each(|(name, value): (HeaderName, HeaderValue)| {
        map.append(name, value);
    });
    map
}

fn ask(fields: &[(&str, &str)], seconds: u64) -> Option<Asked> {
    let mut request = Request::new(());
    *request.headers_mut() = map(fields);
    asked(&request, &key("a"), true, at(seconds))
}

fn kept(asking: &[(&str, &str)], answer: &[(&str, &str)]) -> Option<Promise> {
    keep(ask(asking, 0)?, StatusCode::OK, &map(answer), at(0))
}

/// For how many seconds such an answer is given out; 0: it is not kept.
fn fresh_for(answer: &[(&str, &str)]) -> u64 {
    let Some(promise) = kept(&[], answer) else { return 0 };
    let mut cache = Cache::default();
    cache.insert(promise, Bytes::from_static(b"body"));
    (0..200).find(|s| cache.find(&ask(&[], *s).unwrap()).is_none()).unwrap_or(200)
}

#[test]
fn an_answer_is_fresh_for_as_long_as_its_server_says() {
    for (fields, seconds) in [
        (&[("cache-control", "max-age=60")][..], 60),
        (&[("cache-control", "MAX-AGE=60")], 60),
        (&[("cache-control", "max-age=60, s-maxage=30")], 30),
        (&[("cache-control", "max-age=30, s-maxage=60")], 60),
        (&[("cache-control", "max-age=60"), ("cache-control", "max-age=20")], 20),
        (&[("cache-control", "max-age=99999999999999999999999")], 200),
        (&[("cache-control", "max-age=60"), ("age", "15")], 45),
        (&[("cache-control", "max-age=60"), ("age", "no number")], 0),
        (&[("expires", "Sun, 06 Nov 1994 08:50:37 GMT"), ("date", DATE)], 60),
        (
            &[
                ("expires", "Sun, 06 Nov 1994 08:50:37 GMT"),
                ("date", DATE),
                ("cache-control", "max-age=5"),
            ],
            5,
        ),
        (&[("expires", "0"), ("date", DATE)], 0),
        (&[("expires", "Sun, 06 Nov 1994 08:50:37 GMT")], 0),
        (&[("date", DATE)], 0),
        (&[("cache-control", "max-age")], 0),
        (&[("cache-control", "max-age=-5")], 0),
        (&[("cache-control", "max-age=5x")], 0),
        (&[("cache-control", "x=\", max-age=60, \"")], 0),
        (&[("cache-control", "x=\"\\\", max-age=60, \"")], 0),
        (&[("cache-control", "x=\",\", max-age=60")], 60),
    ] {
        assert_eq!(fresh_for(fields), seconds, "{fields:?}");
    }
}

#[test]
fn what_may_be_somebodys_own_is_not_kept() {
    for answer in [
        &[("cache-control", "private, max-age=60")][..],
        &[("cache-control", "max-age=60, private=\"x-a, x-b\"")],
        &[("cache-control", "no-store, max-age=60")],
        &[("cache-control", "no-cache, max-age=60")],
        &[("cache-control", "max-age=60"), ("cache-control", "no-store")],
        &[("cache-control", "max-age=60"), ("set-cookie", "a=b")],
        &[("cache-control", "max-age=60"), ("vary", "*")],
        &[("cache-control", "max-age=60"), ("vary", "accept, *")],
    ] {
        assert!(kept(&[], answer).is_none(), "{answer:?}");
    }
    let public = [("cache-control", "max-age=60, public")];
    for asking in [
        ("authorization", "Basic x"),
        ("range", "bytes=0-1"),
        ("if-none-match", "\"x\""),
        ("cache-control", "no-cache"),
        ("pragma", "no-cache"),
    ] {
        assert!(kept(&[asking], &public).is_none(), "{asking:?}");
    }
    let cookie = [("cookie", "me=1")];
    assert!(kept(&cookie, &[("cache-control", "max-age=60")]).is_none());
    assert!(kept(&cookie, &public).is_some());
    for status in [StatusCode::PARTIAL_CONTENT, StatusCode::NOT_FOUND, StatusCode::NOT_MODIFIED] {
        assert!(keep(ask(&[], 0).unwrap(), status, &map(&public), at(0)).is_none(), "{status}");
    }
}

#[test]
fn only_those_who_asked_the_same_of_the_same_server_get_it() {
    let mut cache = Cache::default();
    let answer = [("cache-control", "max-age=60"), ("vary", "Accept-Encoding")];
    let promise = kept(&[("accept-encoding", "gzip")], &answer).unwrap();
    cache.insert(promise, Bytes::from_static(b"body"));
    let same = ask(&[("accept-encoding", "gzip"), ("user-agent", "x")], 5).unwrap();
    let found = cache.find(&same).unwrap();
    assert_eq!((&found.body[..], &found.fields["age"]), (&b"body"[..], &HeaderValue::from(5)));
    assert!(cache.find(&ask(&[], 5).unwrap()).is_none());
    assert!(cache.find(&ask(&[("accept-encoding", "br")], 5).unwrap()).is_none());
    let uri: Uri = "http://a/a".parse().unwrap();
    for other in [
        key("b"),
        Key::new("other", "10.2.0.2:80".parse().unwrap(), &uri),
        Key::new("far", "10.2.0.3:80".parse().unwrap(), &uri),
    ] {
        assert!(cache.find(&Asked { key: other, ..same.clone() }).is_none());
    }
    assert!(cache.find(&Asked { key: key("A"), ..same.clone() }).is_some());
    cache.forget(&key("a"));
    assert!(cache.find(&same).is_none());
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn the_way_here_counts_as_age_once() {
    let answer = map(&[("cache-control", "max-age=60"), ("age", "10"), ("date", DATE)]);
    let promise = keep(ask(&[], 0).unwrap(), StatusCode::OK, &answer, at(4)).unwrap();
    let mut cache = Cache::default();
    cache.insert(promise, Bytes::new());
    let age =
        |cache: &mut Cache, s| cache.find(&ask(&[], s).unwrap()).unwrap().fields["age"].clone();
    assert_eq!(age(&mut cache, 4), HeaderValue::from(14));
    assert_eq!(age(&mut cache, 30), HeaderValue::from(40));
}

#[test]
fn memory_has_a_limit_and_the_least_recently_used_go_first() {
    let mut cache = Cache::default();
    let all = MAX_BYTES / MAX_BODY + 20;
    let asked = |n: usize| Asked { key: key(&format!("h{n}")), ..ask(&[], 1).unwrap() };
    for n in 0..all {
        let answer = map(&[("cache-control", "max-age=60")]);
        let promise = keep(asked(n), StatusCode::OK, &answer, at(1)).unwrap();
        cache.insert(promise, Bytes::from(vec![0; MAX_BODY]));
        assert!(cache.bytes() <= MAX_BYTES);
        assert!(cache.find(&asked(0)).is_some(), "used all the time");
    }
    assert!(cache.find(&asked(1)).is_none());
    assert!(cache.find(&asked(all - 1)).is_some());
    assert_eq!(cache.entries.len(), cache.by_use.len());
}
