//! An answer as a file has it.

use super::record::{Record, TRAILER, check, read_trailer};
use super::*;

fn record() -> Record {
    let answer = [("cache-control", "max-age=60"), ("vary", "foo"), ("x", "1"), ("x", "2")];
    let stored = kept(&[("foo", "bar")], &answer).unwrap();
    Record { stored, checks: vec![7] }
}

#[test]
fn what_is_written_is_read_and_has_grown_older_meanwhile() {
    let before = record();
    let bytes = before.encode(at(5)).unwrap();
    let (about, trailer) = bytes.split_at(bytes.len() - TRAILER);
    let (length, expected) = read_trailer(trailer).unwrap();
    assert_eq!(length, about.len());
    // Another run of the program, ten seconds later by the calendar.
    let later = Now { steady: Duration::from_secs(1), calendar: at(15).calendar };
    let after = Record::decode(about, expected, 1, later).unwrap();
    assert_eq!(after.stored.age_at(later), Duration::from_secs(15));
    assert_eq!(after.checks, before.checks);
    let untimed = |stored: Stored| Stored { came: Duration::ZERO, age: Duration::ZERO, ..stored };
    assert_eq!(untimed(after.stored), untimed(before.stored));
    let back = Now { calendar: at(4).calendar, ..later };
    let after = Record::decode(about, expected, 1, back).unwrap();
    assert_ne!(judge(&ask(&[("foo", "bar")], 1), Some(&after.stored), back), Verdict::Fresh);
}

#[test]
fn no_byte_of_it_may_change_and_none_be_missing() {
    let bytes = record().encode(at(0)).unwrap();
    let read = |bytes: &[u8]| {
        let (about, trailer) = bytes.split_at_checked(bytes.len().checked_sub(TRAILER)?)?;
        let (length, expected) = read_trailer(trailer)?;
        (length == about.len()).then(|| Record::decode(about, expected, 1, at(0)))?
    };
    assert!(read(&bytes).is_some());
    for n in 0..bytes.len() {
        let mut other = bytes.clone();
        other[n] ^= 1;
        assert!(read(&other).is_none(), "byte {n}");
        assert!(read(&bytes[..n]).is_none(), "{n} bytes");
    }
}

#[test]
fn what_claims_more_than_it_has_is_none() {
    // With a right check: whoever wrote it was wrong, or wants it to go wrong.
    let bytes = record().encode(at(0)).unwrap();
    let about = &bytes[..bytes.len() - TRAILER];
    for n in 0..about.len() {
        let mut other = about.to_vec();
        other[n] = 0xff;
        let _ = Record::decode(&other, check(&other), 1, at(0));
        record::fuzz(&other);
        record::fuzz(&about[..n]);
    }
    let wrong = Record { checks: vec![1, 2], ..record() };
    let bytes = wrong.encode(at(0)).unwrap();
    let about = &bytes[..bytes.len() - TRAILER];
    assert!(Record::decode(about, check(about), 1, at(0)).is_none(), "ten bytes are one piece");
    let long = "x".repeat(60_000);
    let fields: Vec<_> = (0..5).map(|_| ("x", long.as_str())).collect();
    let mut much = record();
    much.stored.fields.extend(map(&fields));
    assert!(much.encode(at(0)).is_none(), "too much about it");
}

#[test]
fn the_corpus_replays_and_is_understood() {
    let mut understood = 0;
    corpus::replay("web-record", |about| {
        record::fuzz(about);
        let now = Now { steady: Duration::ZERO, calendar: Duration::from_secs(1 << 31) };
        understood += usize::from(Record::decode(about, check(about), 1, now).is_some());
    });
    assert!(understood >= 3);
}
