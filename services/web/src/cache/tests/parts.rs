//! Answers to requests for a range of bytes.

use super::*;
use bytes::Bytes;

const RANGE: (&str, &str) = ("range", "bytes=2-5");

fn part(asking: &[(&str, &str)], answer: &[(&str, &str)]) -> Option<Stored> {
    let fields = [&[("cache-control", "max-age=60"), ("etag", "\"x\"")], answer].concat();
    answered(asking, StatusCode::PARTIAL_CONTENT, &fields)
}

fn four_of_ten() -> Stored {
    part(&[RANGE], &[("content-range", "bytes 2-5/10"), ("content-length", "4")]).unwrap()
}

#[test]
fn a_part_answers_those_alone_who_ask_for_the_same() {
    let stored = four_of_ten();
    assert!(stored.is_of_a_range());
    for same in [
        &[RANGE][..],
        &[("range", " bytes=2-5 ")],
        &[RANGE, ("if-range", "\"x\"")],
        &[RANGE, ("user-agent", "x")],
    ] {
        assert!(stored.answers(&ask(same, 1)), "{same:?}");
        assert!(ask(same, 1).digests().any(|digest| digest == stored.digest()));
    }
    for other in [
        &[][..],
        &[("range", "bytes=2-4")],
        &[("range", "bytes=2-")],
        &[RANGE, RANGE],
        &[RANGE, ("if-range", "\"y\"")],
        &[RANGE, ("if-range", DATE)],
    ] {
        assert!(!stored.answers(&ask(other, 1)), "{other:?}");
    }
    assert!(!stored.answers(&head(&[RANGE], 1)));
    assert!(part(&[], &[("content-range", "bytes 2-5/10")]).is_none(), "nobody asked for a part");
}

#[test]
fn a_part_is_given_as_it_came_and_validated_like_a_whole() {
    let stored = four_of_ten();
    let given = give(&ask(&[RANGE], 1), &stored, at(1));
    assert_eq!((given.status, given.part), (StatusCode::PARTIAL_CONTENT, Part::Whole));
    assert_eq!(given.fields["content-range"], "bytes 2-5/10");
    let given = give(&ask(&[RANGE, ("if-none-match", "\"x\"")], 1), &stored, at(1));
    assert_eq!((given.status, given.part), (StatusCode::NOT_MODIFIED, Part::Nothing));
    assert!(!given.fields.contains_key("content-range"));
    let late = ask(&[RANGE], 61);
    assert!(matches!(judge(&late, Some(&stored), at(61)), Verdict::Validate(_)));
    let (fresh, may) = stored.freshened(&late, &map(&[("cache-control", "max-age=9")]), at(61));
    assert!(may && fresh.is_of_a_range());
    assert_eq!(
        (fresh.digest(), &fresh.fields["content-range"]),
        (stored.digest(), &stored.fields["content-range"])
    );
}

#[test]
fn a_part_that_is_all_is_kept_as_a_whole() {
    let all = [("content-range", "bytes 0-9/10"), ("content-length", "10")];
    let stored = part(&[("range", "bytes=0-")], &all).unwrap();
    assert_eq!(stored.status, StatusCode::OK);
    assert!(!stored.fields.contains_key("content-range") && stored.digest() == key("a").digest());
    assert!(stored.answers(&ask(&[], 1)) && stored.answers(&ask(&[RANGE], 1)));
    for some in [
        [("content-range", "bytes 0-9/11"), ("content-length", "10")],
        [("content-range", "bytes 0-9/*"), ("content-length", "10")],
        [("content-range", "bytes 1-9/10"), ("content-length", "9")],
        [("content-range", "bytes 0-9/10"), ("content-length", "9")],
        [("content-range", "bytes 0-9/10"), ("x", "of unknown length")],
        [("content-range", "bytes 0-18446744073709551615/0"), ("content-length", "0")],
    ] {
        assert!(part(&[("range", "bytes=0-")], &some).unwrap().is_of_a_range(), "{some:?}");
    }
}

#[test]
fn a_range_that_is_refused_is_refused_to_nobody_else() {
    let fields = [("cache-control", "max-age=60"), ("content-range", "bytes */10")];
    let refused = StatusCode::RANGE_NOT_SATISFIABLE;
    let stored = answered(&[("range", "bytes=99-")], refused, &fields).unwrap();
    assert!(stored.answers(&ask(&[("range", "bytes=99-")], 1)));
    assert!(!stored.answers(&ask(&[], 1)) && !stored.answers(&ask(&[RANGE], 1)));
    assert_ne!(stored.digest(), key("a").digest());
    assert!(answered(&[], refused, &fields).is_none());
}

#[test]
fn whoever_forgets_a_target_forgets_its_parts() {
    let stored = [
        four_of_ten(),
        part(&[("range", "bytes=6-9")], &[("content-range", "bytes 6-9/10")]).unwrap(),
        kept(&[], &[("cache-control", "max-age=60")]).unwrap(),
    ];
    let (mut memory, mut index) = (Memory::new(1 << 20), Index::new(1 << 20));
    let other = Asked { key: key("b"), ..ask(&[RANGE], 0) };
    let other = other.digests().last().unwrap();
    for (number, stored) in stored.into_iter().enumerate() {
        let (digest, uri, number) = (stored.digest(), stored.key.uri_digest(), number as u64);
        memory.insert(digest, Stored { number, ..stored }.into(), Bytes::new(), one());
        assert!(index.insert(Place { digest, uri, number, length: 10 }, one()).is_empty());
    }
    assert!(index.insert(Place { digest: other, uri: 0, number: 9, length: 10 }, one()).is_empty());
    assert_eq!((memory.len(), index.len()), (3, 4));
    memory.forget_target(key("a").digest());
    assert!(memory.is_empty());
    let gone = index.of_target_and_parts(key("a").digest());
    let mut numbers: Vec<_> = gone.iter().map(|place| place.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2]);
}
