//! Many users behind one cache, of whom none may see what is another's.

use super::*;
use units::Rng;

/// A server, as sites are: what an answer at `page` says of itself, and whether it is its reader's
/// alone.
const PAGES: [(&[(&str, &str)], bool); 13] = [
    (&[("cache-control", "max-age=600")], false),
    (&[("cache-control", "public, max-age=600")], false),
    (&[("cache-control", "s-maxage=600"), ("vary", "accept-encoding")], false),
    (&[("last-modified", "Sat, 05 Nov 1994 08:40:37 GMT"), ("date", DATE)], false),
    (&[("cache-control", "no-cache"), ("etag", "\"x\"")], false),
    (&[("cache-control", "private, max-age=600"), ("etag", "\"x\"")], true),
    (&[("cache-control", "no-store, max-age=600")], true),
    (&[("cache-control", "max-age=600, stale-if-error=600"), ("set-cookie", "me")], true),
    (&[("cache-control", "max-age=600"), ("vary", "*")], true),
    (
        &[("cache-control", "max-age=600, public"), ("vary", "cookie, x-auth-token, x-api-key")],
        true,
    ),
    // Careless servers: personal, and the request alone says so.
    (&[("cache-control", "max-age=600")], true),
    (&[("etag", "\"x\""), ("last-modified", DATE), ("date", DATE)], true),
    (&[("etag", "W/\"x\"")], true),
];

struct User {
    name: String,
    /// How the server knows him.
    by: &'static str,
}

fn requests(rng: &mut Rng, user: &User, personal: bool) -> HeaderMap {
    let mut fields = Vec::new();
    if personal || rng.below(3) == 0 {
        fields.push((user.by, user.name.as_str()));
    }
    let more = [
        ("if-none-match", "\"x\""),
        ("cache-control", "max-stale"),
        ("cache-control", "no-cache"),
        ("cache-control", "only-if-cached"),
        ("accept-encoding", "gzip"),
        ("pragma", "no-cache"),
        ("x-forwarded-host", "evil"),
        ("x-original-url", "/evil"),
        ("x-forwarded-scheme", "evil"),
        ("forwarded", "host=evil"),
        ("x-http-method-override", "evil"),
    ];
    if rng.below(3) == 0 {
        fields.push(("range", ["bytes=0-1", "bytes=2-3"][rng.below(2) as usize]));
    }
    if rng.below(2) == 0 {
        fields.push(more[rng.below(more.len() as u64) as usize]);
    }
    map(&fields)
}

#[test]
fn in_a_hundred_thousand_mixed_requests_nobody_gets_what_is_anothers() {
    let mut rng = Rng::new(4711);
    let mut memory = Memory::new(1 << 20);
    let users: Vec<User> = (0..8)
        .map(|n| {
            let by = ["cookie", "authorization", "x-auth-token", "x-api-key"][n % 4];
            User { name: format!("user-{n}"), by }
        })
        .collect();
    let (mut hits, mut parts, mut number, mut repeats, mut stood_in) = (0, 0, 0, 0, 0);
    for n in 0..100_000u64 {
        let user = &users[rng.below(8) as usize];
        let page = rng.below(PAGES.len() as u64) as usize;
        let (fields, personal) = PAGES[page];
        // Some lie about the host or the server.
        let (host, to) = (rng.below(3), rng.below(3) + 1);
        let uri: Uri = format!("http://h{host}/{page}").parse().unwrap();
        let key = Key::new("far", format!("10.2.0.{to}:80").parse().unwrap(), &uri);
        let mut request = Request::new(());
        *request.headers_mut() = requests(&mut rng, user, personal);
        if rng.below(9) == 0 {
            *request.method_mut() = Method::HEAD;
        }
        let now = at(n / 10);
        let whose = if personal { user.name.as_str() } else { "all" };
        // The server repeats what it is told of other hosts, paths and methods.
        let repeated = |(_, value): (&HeaderName, &HeaderValue)| {
            value.to_str().ok().filter(|v| v.contains("evil")).map(str::to_owned)
        };
        let evil = request.headers().iter().find_map(repeated).unwrap_or_default();
        repeats += u64::from(!evil.is_empty());
        let body = format!("{to} h{host}/{page} for {whose} {evil}");
        let Some(asked) = Asked::of(&request, &key, true, now) else { continue };
        let found = asked.digests().find_map(|digest| memory.find(digest, &asked));
        let is_cut_off = rng.below(4) == 0;
        let judge = if is_cut_off { judge_cut_off } else { judge };
        let verdict = judge(&asked, found.as_ref().map(|f| &*f.0), now);
        let gives = matches!(verdict, Verdict::Fresh | Verdict::Stale | Verdict::StandIn);
        if let (Some((stored, kept)), true) = (&found, gives) {
            hits += 1;
            stood_in += u64::from(verdict == Verdict::StandIn);
            let is_part = stored.is_of_a_range();
            parts += u64::from(is_part);
            let part = if is_part { format!("{body} in part") } else { body };
            assert_eq!(kept, &part, "{user}", user = user.name);
            let given = give(&asked, stored, now);
            assert!(!given.fields.contains_key("set-cookie"));
            continue;
        }
        if is_cut_off || verdict == Verdict::Never {
            continue;
        }
        let mut fields = map(fields);
        let (mut status, mut body) = (StatusCode::OK, body);
        if asked.range().is_some() && rng.below(2) == 0 {
            fields.insert("content-range", HeaderValue::from_static("bytes 0-1/99"));
            (status, body) = (StatusCode::PARTIAL_CONTENT, body + " in part");
        }
        if let Some(stored) = keep(&asked, status, &fields, now) {
            number += 1;
            if let Some((old, _)) = found {
                memory.forget(old.digest(), old.number);
            }
            let stored = Stored { number, length: body.len() as u64, ..stored };
            memory.insert(stored.digest(), stored.into(), body.into(), Holder::Nobody);
        }
    }
    assert!(
        hits > 10_000 && parts > 50 && repeats > 10_000 && stood_in > 100,
        "{hits} hits, {parts} of parts, {repeats} with fields that are repeated, {stood_in} stale"
    );
}
