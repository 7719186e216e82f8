//! What is kept, for how long it is fresh, and how it is given.

use super::*;

#[test]
fn an_answer_is_fresh_for_as_long_as_its_server_says() {
    for (fields, seconds) in [
        (&[("cache-control", "max-age=60")][..], 60),
        (&[("cache-control", "MAX-AGE=60")], 60),
        (&[("cache-control", "max-age=\"60\"")], 60),
        (&[("cache-control", "max-age=0060")], 60),
        (&[("cache-control", "max-age=60, s-maxage=30")], 30),
        (&[("cache-control", "max-age=30, s-maxage=60")], 60),
        (&[("cache-control", "max-age=60"), ("cache-control", "max-age=20")], 20),
        (&[("cache-control", "max-age=99999999999999999999999")], 200),
        (&[("cache-control", "max-age=60"), ("age", "15")], 45),
        (&[("cache-control", "max-age=60"), ("age", "no number")], 0),
        (&[("cache-control", "max-age=60"), ("age", "0, 0")], 0),
        (&[("cache-control", "max-age=60"), ("age", "0"), ("age", "0")], 0),
        (&[("expires", MINUTE_LATER), ("date", DATE)], 60),
        (&[("expires", MINUTE_LATER), ("date", DATE), ("cache-control", "max-age=5")], 5),
        (&[("expires", "Sunday, 06-Nov-94 08:50:37 GMT"), ("date", DATE)], 60),
        (&[("expires", "0"), ("date", DATE)], 0),
        (&[("expires", DATE), ("date", MINUTE_LATER)], 0),
        (&[("expires", MINUTE_LATER), ("expires", MINUTE_LATER), ("date", DATE)], 0),
        (&[("expires", MINUTE_LATER)], 0),
        (&[("date", DATE)], 0),
        (&[("cache-control", "max-age")], 0),
        (&[("cache-control", "max-age=-5")], 0),
        (&[("cache-control", "max-age=5x")], 0),
        (&[("cache-control", "x=\", max-age=60, \"")], 0),
        (&[("cache-control", "x=\"\\\", max-age=60, \"")], 0),
        (&[("cache-control", "x=\",\", max-age=60")], 60),
        // A tenth of the time for which it had not changed.
        (&[("date", DATE), ("last-modified", "Sun, 06 Nov 1994 08:40:37 GMT")], 54),
        (&[("date", DATE), ("last-modified", MINUTE_LATER)], 0),
        (&[("last-modified", "Sun, 06 Nov 1994 08:40:37 GMT")], 0),
        (
            &[
                ("expires", "-1"),
                ("date", DATE),
                ("last-modified", "Sat, 05 Nov 1994 08:40:37 GMT"),
            ],
            0,
        ),
    ] {
        assert_eq!(fresh_for(fields), seconds, "{fields:?}");
    }
}

#[test]
fn what_may_be_somebodys_own_is_not_kept() {
    for answer in [
        &[("cache-control", "private, max-age=60")][..],
        &[("cache-control", "max-age=60, private=\"\"")],
        &[("cache-control", "no-store, max-age=60")],
        &[("cache-control", "No-Store, max-age=60")],
        &[("cache-control", "max-age=60"), ("cache-control", "no-store")],
        &[("cache-control", "max-age=60"), ("set-cookie", "a=b")],
        &[("cache-control", "max-age=60, public"), ("set-cookie", "a=b"), ("etag", "\"x\"")],
        &[("cache-control", "max-age=60"), ("vary", "*")],
        &[("cache-control", "max-age=60"), ("vary", "accept, *")],
        &[("cache-control", "max-age=60"), ("vary", ""), ("vary", "*")],
        &[("cache-control", "max-age=60"), ("vary", "no name")],
    ] {
        assert!(kept(&[], answer).is_none(), "{answer:?}");
    }
    let public = [("cache-control", "max-age=60, public, s-maxage=60, must-revalidate")];
    for asking in [
        ("authorization", "Basic x"),
        ("if-match", "\"x\""),
        ("if-unmodified-since", DATE),
        ("cache-control", "no-store"),
    ] {
        assert!(kept(&[asking], &public).is_none(), "{asking:?}");
    }
    let cookie = [("cookie", "me=1")];
    assert!(kept(&cookie, &[("cache-control", "max-age=60")]).is_none());
    assert!(kept(&cookie, &[("etag", "\"x\"")]).is_none());
    assert!(kept(&cookie, &public).is_some());
    let unreadable = HeaderValue::from_bytes(b"max-age=60, \xff").unwrap();
    let fields = HeaderMap::from_iter([(header::CACHE_CONTROL, unreadable)]);
    assert!(keep(&ask(&[], 0), StatusCode::OK, &fields, at(0)).is_none());
    assert!(keep(&head(&[], 0), StatusCode::OK, &map(&public), at(0)).is_none(), "no body");
}

#[test]
fn fields_for_the_first_reader_alone_are_not_kept() {
    let stored = kept(
        &[],
        &[
            ("cache-control", "max-age=60, private=\"x-me, set-cookie\", no-cache=\"x-too\""),
            ("x-me", "1"),
            ("x-too", "2"),
            ("set-cookie", "me=1"),
            ("proxy-authentication-info", "x"),
            ("x-all", "3"),
        ],
    )
    .unwrap();
    let names: Vec<_> = stored.fields.keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["cache-control", "x-all"]);
    assert_eq!(judge(&ask(&[], 1), Some(&stored), at(1)), Verdict::Fresh);
}

#[test]
fn a_status_is_kept_if_it_is_said_or_by_default_and_never_if_it_is_not_an_answer_of_its_own() {
    let fresh = [("cache-control", "max-age=60")];
    let guess = [("date", DATE), ("last-modified", "Sat, 05 Nov 1994 08:40:37 GMT")];
    for (status, said, guessed) in [
        (200, true, true),
        (201, true, false),
        (203, true, true),
        (204, true, true),
        (206, false, false),
        (301, true, true),
        (302, true, false),
        (304, false, false),
        (308, true, true),
        (404, true, true),
        (410, true, true),
        (500, true, false),
        (503, true, false),
        (599, true, false),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(answered(&[], status, &fresh).is_some(), said, "{status}");
        assert_eq!(answered(&[], status, &guess).is_some(), guessed, "{status}");
    }
    let understood = [("cache-control", "max-age=60, no-store, must-understand")];
    assert!(kept(&[], &understood).is_some());
    assert!(answered(&[], StatusCode::from_u16(599).unwrap(), &understood).is_none());
}

#[test]
fn what_cannot_be_used_again_is_not_kept() {
    assert!(kept(&[], &[("date", DATE)]).is_none());
    assert!(kept(&[], &[("cache-control", "max-age=0")]).is_none());
    assert!(kept(&[], &[("cache-control", "no-cache")]).is_none());
    assert!(kept(&[], &[("cache-control", "no-cache"), ("etag", "\"x\"")]).is_some());
}

#[test]
fn the_way_here_counts_as_age_once() {
    let answer = map(&[("cache-control", "max-age=60"), ("age", "10"), ("date", DATE)]);
    let stored = keep(&ask(&[], 0), StatusCode::OK, &answer, at(4)).unwrap();
    let age = |s| give(&ask(&[], s), &stored, at(s)).fields["age"].clone();
    assert_eq!(age(4), HeaderValue::from(14));
    assert_eq!(age(30), HeaderValue::from(40));
}

#[test]
fn a_request_says_how_old_an_answer_may_be() {
    let with = |answer: &str, asking: &[(&str, &str)], seconds| {
        let stored = kept(&[], &[("cache-control", answer)]).unwrap();
        judge(&ask(asking, seconds), Some(&stored), at(seconds))
    };
    let cc = |says| [("cache-control", says)];
    assert_eq!(with("max-age=60", &cc("max-age=10"), 5), Verdict::Fresh);
    assert_eq!(with("max-age=60", &cc("max-age=10"), 11), Verdict::Miss);
    assert_eq!(with("max-age=60", &cc("max-age=0"), 0), Verdict::Miss);
    assert_eq!(with("max-age=60", &cc("min-fresh=50"), 9), Verdict::Fresh);
    assert_eq!(with("max-age=60", &cc("min-fresh=50"), 11), Verdict::Miss);
    assert_eq!(with("max-age=60", &cc("no-cache"), 1), Verdict::Miss);
    assert_eq!(with("max-age=60", &cc("no-store"), 1), Verdict::Miss);
    assert_eq!(with("max-age=60", &[("pragma", "no-cache")], 1), Verdict::Miss);
    assert_eq!(with("max-age=60", &[("pragma", "x"), ("cache-control", "x")], 1), Verdict::Fresh);
    assert_eq!(with("max-age=60", &cc("max-stale=10"), 69), Verdict::Fresh);
    assert_eq!(with("max-age=60", &cc("max-stale=10"), 71), Verdict::Miss);
    assert_eq!(with("max-age=60", &cc("max-stale"), 9999), Verdict::Fresh);
    for strict in ["must-revalidate", "proxy-revalidate", "s-maxage=60"] {
        let answer = format!("max-age=60, {strict}");
        assert_eq!(with(&answer, &cc("max-stale"), 61), Verdict::Miss, "{strict}");
        assert_eq!(with(&answer, &[], 59), Verdict::Fresh, "{strict}");
    }
    assert_eq!(with("max-age=60", &cc("only-if-cached"), 5), Verdict::Fresh);
    assert_eq!(with("max-age=60", &cc("only-if-cached"), 65), Verdict::Never);
    assert_eq!(judge(&ask(&cc("only-if-cached"), 0), None, at(0)), Verdict::Never);
}

#[test]
fn a_stale_answer_is_validated_by_what_its_server_gave() {
    let verdict = |answer: &[(&str, &str)], seconds| {
        judge(&ask(&[], seconds), kept(&[], answer).as_ref(), at(seconds))
    };
    let tagged = [("cache-control", "max-age=60"), ("etag", "W/\"x\""), ("last-modified", DATE)];
    let conditions = map(&[("if-none-match", "W/\"x\""), ("if-modified-since", DATE)]);
    assert_eq!(verdict(&tagged, 61), Verdict::Validate(conditions));
    let no_cache = [("cache-control", "no-cache"), ("etag", "\"x\"")];
    assert_eq!(verdict(&no_cache, 0), Verdict::Validate(map(&[("if-none-match", "\"x\"")])));
    let stored = kept(&[], &tagged).unwrap();
    assert_eq!(judge(&head(&[], 61), Some(&stored), at(61)), Verdict::Miss);
    let meanwhile = [("cache-control", "max-age=60, stale-while-revalidate=30"), ("etag", "\"x\"")];
    assert_eq!(verdict(&meanwhile, 89), Verdict::Stale);
    assert!(matches!(verdict(&meanwhile, 90), Verdict::Validate(_)));
    let strict = "max-age=60, stale-while-revalidate=30, must-revalidate";
    assert_eq!(verdict(&[("cache-control", strict)], 61), Verdict::Miss);
}

#[test]
fn a_304_makes_an_answer_fresh_with_the_fields_that_it_has() {
    let stored = kept(
        &[],
        &[
            ("cache-control", "max-age=60"),
            ("etag", "\"x\""),
            ("content-encoding", "gzip"),
            ("age", "50"),
            ("x-old", "1"),
            ("x-both", "1"),
        ],
    )
    .unwrap();
    let told = map(&[
        ("cache-control", "max-age=100"),
        ("etag", "\"y\""),
        ("content-encoding", "br"),
        ("content-length", "0"),
        ("x-both", "2"),
        ("x-both", "3"),
    ]);
    // Somebody with a cookie asked; that the body holds is not about him.
    let (fresh, may) = stored.freshened(&ask(&[("cookie", "me")], 70), &told, at(72));
    assert!(may);
    assert_eq!((fresh.number, fresh.length), (1, 10));
    let both: Vec<_> = fresh.fields.get_all("x-both").iter().collect();
    assert_eq!(both, ["2", "3"]);
    for (name, value) in [("etag", "\"x\""), ("content-encoding", "gzip"), ("x-old", "1")] {
        assert_eq!(fresh.fields[name], value);
    }
    assert!(!fresh.fields.contains_key("content-length") && !fresh.fields.contains_key("age"));
    let fresh_at = |s| judge(&ask(&[], s), Some(&fresh), at(s)) == Verdict::Fresh;
    assert!(fresh_at(72) && fresh_at(169) && !fresh_at(170), "two seconds on the way");
    for says in [("cache-control", "private"), ("set-cookie", "a=b"), ("vary", "*")] {
        let (given, may) = stored.freshened(&ask(&[], 70), &map(&[says]), at(72));
        assert!(!may, "{says:?}");
        assert_eq!(given.fields[says.0], says.1, "whoever asked gets it");
    }
}

#[test]
fn a_stale_answer_stands_in_only_where_its_server_or_a_dead_link_permits() {
    let stands_in = |says: &str, asking: &[(&str, &str)], seconds, cut_off| {
        let stored = kept(&[], &[("cache-control", says)]).unwrap();
        stored.stands_in(&ask(asking, seconds), at(seconds), cut_off)
    };
    assert!(!stands_in("max-age=60", &[], 61, false));
    assert!(stands_in("max-age=60", &[], 61, true));
    assert!(!stands_in("max-age=60", &[], 60 + 25 * 3600, true));
    assert!(stands_in("max-age=60, stale-if-error=10", &[], 70, false));
    assert!(!stands_in("max-age=60, stale-if-error=10", &[], 71, false));
    assert!(!stands_in("max-age=60, stale-if-error=10, must-revalidate", &[], 61, true));
    assert!(!stands_in("max-age=60, stale-if-error=10", &[("pragma", "no-cache")], 61, true));
    assert!(!stands_in("max-age=60", &[("cache-control", "no-store")], 61, true));
}

#[test]
fn while_the_link_is_down_nothing_is_asked_that_is_here_unless_the_host_insists() {
    let tag = ("etag", "\"one\"");
    let verdict = |says: &str, asking: &[(&str, &str)], seconds| {
        let stored = kept(&[], &[("cache-control", says), tag]).unwrap();
        judge_cut_off(&ask(asking, seconds), Some(&stored), at(seconds))
    };
    let reload = [("cache-control", "max-age=0")];
    let asked = |verdict| matches!(verdict, Verdict::Validate(_) | Verdict::Miss);
    assert_eq!(verdict("max-age=60", &[], 59), Verdict::Fresh);
    assert_eq!(verdict("max-age=60", &[], 61), Verdict::StandIn);
    assert_eq!(verdict("max-age=60, stale-while-revalidate=9", &[], 61), Verdict::StandIn);
    assert!(asked(verdict("max-age=60", &[], 60 + 25 * 3600)), "it is too old");
    assert!(asked(verdict("max-age=60", &reload, 1)));
    assert!(asked(verdict("max-age=60", &[("cache-control", "no-store")], 61)));
    for strict in ["max-age=60, must-revalidate", "max-age=60, proxy-revalidate", "s-maxage=60"] {
        assert_eq!(verdict(strict, &[], 59), Verdict::Fresh);
        assert_eq!(verdict(strict, &[], 61), Verdict::CutOff, "{strict}");
        assert!(asked(verdict(strict, &reload, 61)), "{strict}");
    }
    assert_eq!(verdict("no-cache", &[], 1), Verdict::CutOff);
    assert_eq!(judge_cut_off(&ask(&[], 1), None, at(1)), Verdict::Miss);
    let only = ask(&[("cache-control", "only-if-cached")], 1);
    assert_eq!(judge_cut_off(&only, None, at(1)), Verdict::Never);
}

#[test]
fn a_hosts_own_conditions_are_answered_here() {
    let status = |answer: &[(&str, &str)], asking: &[(&str, &str)]| {
        let fields = [&[("cache-control", "max-age=60"), ("content-type", "x")], answer].concat();
        let given = give(&ask(asking, 5), &kept(&[], &fields).unwrap(), at(5));
        if given.status == StatusCode::NOT_MODIFIED {
            assert_eq!(given.part, Part::Nothing);
            assert!(!given.fields.contains_key("content-type"));
        }
        given.status.as_u16()
    };
    let tag = [("etag", "\"x\"")];
    for list in ["\"x\"", "W/\"x\"", "*", "\"y\", \"x\"", "\",\", \"x\"", "\"y\" , W/\"x\" , \"z\""]
    {
        assert_eq!(status(&tag, &[("if-none-match", list)]), 304, "{list}");
    }
    for list in ["\"y\"", "x", "\"\"", "\"x"] {
        assert_eq!(status(&tag, &[("if-none-match", list)]), 200, "{list}");
    }
    let dated = [("last-modified", DATE), ("etag", "\"x\"")];
    assert_eq!(status(&dated, &[("if-modified-since", DATE)]), 304);
    assert_eq!(status(&dated, &[("if-modified-since", MINUTE_LATER)]), 304);
    assert_eq!(status(&dated, &[("if-modified-since", "Sat, 05 Nov 1994 08:49:37 GMT")]), 200);
    assert_eq!(status(&dated, &[("if-modified-since", "x")]), 200);
    let both = [("if-none-match", "\"y\""), ("if-modified-since", MINUTE_LATER)];
    assert_eq!(status(&dated, &both), 200, "tags count before dates");
}

#[test]
fn parts_of_a_kept_answer_are_given_and_other_parts_refused() {
    let stored =
        kept(&[], &[("cache-control", "max-age=60"), ("etag", "\"x\""), ("last-modified", DATE)]);
    let stored = stored.unwrap();
    let part = |asking: &[(&str, &str)]| {
        let given = give(&ask(asking, 1), &stored, at(1));
        let range = given.fields.get("content-range").map(|v| v.to_str().unwrap().to_owned());
        let length = given.fields["content-length"].to_str().unwrap().to_owned();
        (given.status.as_u16(), given.part, range.unwrap_or_default(), length)
    };
    let bytes = |range, told: &str, length: &str| {
        (206, Part::Bytes(range), format!("bytes {told}/10"), length.to_owned())
    };
    let whole = (200, Part::Whole, String::new(), "10".to_owned());
    for (range, given) in [
        ("bytes=0-1", bytes(0..2, "0-1", "2")),
        ("bytes=2-", bytes(2..10, "2-9", "8")),
        ("bytes=-3", bytes(7..10, "7-9", "3")),
        ("bytes=-30", bytes(0..10, "0-9", "10")),
        ("bytes=8-99999999999999999999999", bytes(8..10, "8-9", "2")),
        ("bytes=9-9", bytes(9..10, "9-9", "1")),
        ("bytes=10-", (416, Part::Nothing, "bytes */10".into(), "0".into())),
        ("bytes=-0", (416, Part::Nothing, "bytes */10".into(), "0".into())),
        ("bytes=3-2", whole.clone()),
        ("bytes=0-1,3-4", whole.clone()),
        ("bytes=", whole.clone()),
        ("bytes=-", whole.clone()),
        ("bytes=x-", whole.clone()),
        ("lines=0-1", whole.clone()),
    ] {
        assert_eq!(part(&[("range", range)]), given, "{range}");
    }
    let first = bytes(0..1, "0-0", "1");
    for (validator, given) in
        [("\"x\"", &first), (DATE, &first), ("\"y\"", &whole), ("W/\"x\"", &whole)]
    {
        assert_eq!(part(&[("range", "bytes=0-0"), ("if-range", validator)]), *given, "{validator}");
    }
    let given = give(&head(&[("range", "bytes=0-0")], 1), &stored, at(1));
    assert_eq!((given.status, given.part), (StatusCode::OK, Part::Nothing));
    assert_eq!(given.fields["content-length"], "10", "HEAD tells of all of it");
    let gone = Stored { status: StatusCode::NOT_FOUND, ..stored.clone() };
    let given = give(&ask(&[("range", "bytes=0-0"), ("if-none-match", "\"x\"")], 1), &gone, at(1));
    assert_eq!((given.status, given.part), (StatusCode::NOT_FOUND, Part::Whole));
}

#[test]
fn an_answer_to_head_tells_whether_what_is_kept_is_another() {
    let stored = kept(&[], &[("cache-control", "max-age=60"), ("etag", "\"x\"")]).unwrap();
    assert!(stored.agrees_with_head(&map(&[("etag", "\"x\""), ("last-modified", DATE)])));
    assert!(!stored.agrees_with_head(&map(&[("etag", "\"y\"")])));
}
