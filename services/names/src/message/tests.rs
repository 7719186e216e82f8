//! Messages as tests write them.

use super::*;
use proptest::prelude::*;

/// A name in its labels.
fn name(text: &str) -> Vec<u8> {
    let labels = text.split('.').filter(|label| !label.is_empty());
    let mut out: Vec<u8> =
        labels.flat_map(|l| [&[l.len() as u8][..], l.as_bytes()].concat()).collect();
    out.push(0);
    out
}

/// A question for addresses, with EDNS of this size.
pub fn question(id: u8, of: &str, edns: Option<u16>) -> Vec<u8> {
    let more = u8::from(edns.is_some());
    let mut out = vec![0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, more];
    out.extend(name(of));
    out.extend([0, 1, 0, 1]);
    if let Some(size) = edns {
        // DNSSEC is wanted; with a cookie.
        out.extend([0, 0, 41]);
        out.extend(size.to_be_bytes());
        out.extend([0, 0, 0x80, 0, 0, 12, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
    out
}

/// The answer to a canonical question: so many addresses with this TTL.
pub fn answer(query: &[u8], ttl: u32, addresses: u16) -> Vec<u8> {
    let mut out = query.to_vec();
    let end = if query[11] == 1 { query.len() - 11 } else { query.len() };
    out.truncate(end);
    (out[2], out[3]) = (0x81, 0x80);
    out[6..8].copy_from_slice(&addresses.to_be_bytes());
    out[11] = 0;
    for n in 0..addresses {
        out.extend([0xc0, 12, 0, 1, 0, 1]);
        out.extend(ttl.to_be_bytes());
        out.extend([0, 4, 10, 9, (n >> 8) as u8, n as u8]);
    }
    out
}

/// "There is no such name": an SOA with this TTL and minimum.
pub fn none(query: &[u8], ttl: u32, minimum: u32) -> Vec<u8> {
    let mut out = answer(query, 0, 0);
    (out[3], out[9]) = (0x83, 1);
    out.extend([0, 0, 6, 0, 1]);
    out.extend(ttl.to_be_bytes());
    out.extend([0, 22, 0, 0]);
    out.extend([0; 16]);
    out.extend(minimum.to_be_bytes());
    out
}

#[test]
fn questions_that_differ_in_what_does_not_matter_are_one() {
    let one = Query::parse(&question(1, "Www.Example.com", Some(4096))).unwrap();
    let other = Query::parse(&question(2, "wWW.example.COM", Some(1400))).unwrap();
    assert_eq!(one.canonical, other.canonical);
    assert_eq!(Query::parse(&one.canonical).unwrap().canonical, one.canonical);
    let plain = Query::parse(&question(1, "www.example.com", None)).unwrap();
    assert_ne!(one.canonical, plain.canonical, "DNSSEC records are asked for");
}

#[test]
fn an_answer_keeps_the_clients_number_and_spelling_and_its_ttls_shrink() {
    let query = Query::parse(&question(7, "Www.Example.com", None)).unwrap();
    let parsed = Answer::parse(&query.canonical, &answer(&query.canonical, 300, 2)).unwrap();
    assert_eq!(parsed.ttl, 300);
    let mut expected = answer(&question(7, "Www.Example.com", None), 260, 2);
    assert_eq!(query.answer(&parsed, Some(40)), expected);
    expected = answer(&question(7, "Www.Example.com", None), 30, 2);
    assert_eq!(query.answer(&parsed, None), expected, "past its time");
}

#[test]
fn a_long_answer_is_truncated_to_what_the_client_takes() {
    for (edns, fits) in [(None, false), (Some(1232), true), (Some(513), false)] {
        let query = Query::parse(&question(7, "a.example", edns)).unwrap();
        let long = answer(&query.canonical, 300, 50);
        let told = query.answer(&Answer::parse(&query.canonical, &long).unwrap(), Some(0));
        assert_eq!((told[2] & 2 == 0, told.len() > 512), (fits, fits));
    }
}

#[test]
fn that_there_is_none_holds_as_long_as_the_soa_says() {
    let query = Query::parse(&question(1, "none.example", None)).unwrap().canonical;
    let ttl = |message: &[u8]| Answer::parse(&query, message).unwrap().ttl;
    assert_eq!(ttl(&none(&query, 900, 60)), 60);
    assert_eq!(ttl(&none(&query, 50, 60)), 50);
    assert_eq!(ttl(&none(&query, 90_000, 90_000)), 10_800);
    assert_eq!(ttl(&answer(&query, 0, 0)), 0, "no SOA");
    let mut failure = answer(&query, 0, 0);
    failure[3] |= 2;
    assert_eq!(ttl(&failure), 0);
}

#[test]
fn answers_to_other_questions_and_truncated_ones_are_none() {
    let query = Query::parse(&question(1, "a.example", None)).unwrap().canonical;
    let other = Query::parse(&question(1, "b.example", None)).unwrap().canonical;
    assert_eq!(Answer::parse(&query, &answer(&other, 300, 1)), None);
    assert_eq!(Answer::parse(&query, &query), None, "a question");
    let whole = answer(&query, 300, 3);
    for cut in 0..whole.len() {
        assert_eq!(Answer::parse(&query, &whole[..cut]), None);
    }
    let mut truncated = whole;
    truncated[2] |= 2;
    assert_eq!(Answer::parse(&query, &truncated), None);
}

#[test]
fn what_a_cache_should_not_meddle_with_is_no_question() {
    let good = question(1, "a.example", Some(1232));
    assert!(Query::parse(&good).is_some());
    for (at, value) in [(2, 0x81), (2, 0x28), (5, 2), (7, 1), (9, 1), (11, 2), (12, 0xc0)] {
        let mut other = good.clone();
        other[at] = value;
        assert_eq!(Query::parse(&other), None, "byte {at}");
    }
    let mut transfer = question(1, "a.example", None);
    let at = transfer.len() - 3;
    transfer[at] = 252;
    assert_eq!(Query::parse(&transfer), None);
}

proptest! {
    #[test]
    fn nothing_that_arrives_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4),
    ) {
        let query = Query::parse(&question(1, "a.example", Some(1232))).unwrap();
        let good = [question(1, "a.example", Some(1232)), answer(&query.canonical, 300, 3),
            none(&query.canonical, 9, 9), bytes];
        for mut message in good {
            for (at, value) in &changes {
                let at = usize::from(*at) % message.len().max(1);
                if let Some(byte) = message.get_mut(at) { *byte = *value; }
            }
            if let Some(q) = Query::parse(&message) {
                prop_assert_eq!(&Query::parse(&q.canonical).unwrap().canonical, &q.canonical);
            }
            if let Some(parsed) = Answer::parse(&query.canonical, &message) {
                prop_assert!(query.answer(&parsed, Some(5)).len() <= 1232);
            }
        }
    }
}
