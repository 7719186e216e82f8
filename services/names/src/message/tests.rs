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
    let kind = [out[end - 4], out[end - 3]];
    for n in 0..addresses {
        out.extend([0xc0, 12, kind[0], kind[1], 0, 1]);
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

/// The answer to a canonical question, verified: an HTTPS record with these protocols, and an
/// address behind it.
pub fn https(query: &[u8], protocols: &[&str]) -> Vec<u8> {
    let mut out = answer(query, 0, 0);
    (out[3], out[7]) = (0xa0, 2);
    let alpn: Vec<u8> =
        protocols.iter().flat_map(|p| [&[p.len() as u8], p.as_bytes()].concat()).collect();
    let data = [
        &[0, 1, 0][..],
        &[0, 1, 0, alpn.len() as u8],
        &alpn,
        &[0, 3, 0, 2, 1, 0xbb],
        &[0, 4, 0, 4, 10, 9, 0, 1],
    ]
    .concat();
    out.extend([0xc0, 12, 0, 65, 0, 1, 0, 0, 1, 44, 0, data.len() as u8]);
    out.extend(data);
    out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 10, 9, 0, 1]);
    out
}

#[test]
fn where_quic_is_refused_no_record_names_it_but_to_those_who_verify_signatures() {
    let has = |message: &[u8], what: &[u8]| message.windows(what.len()).any(|w| w == what);
    let plain = Query::parse(&question(1, "a.example", None)).unwrap();
    let verifies = Query::parse(&question(1, "a.example", Some(1232))).unwrap();
    for query in [&plain, &verifies] {
        let message = https(&query.canonical, &["h3", "h2", "h3-29", "h33"]);
        let answer = Answer::parse(&query.canonical, &message).unwrap();
        let as_it_is = query.answer(&answer, Some(0), false);
        assert!(has(&as_it_is, b"\x02h3\x02h2\x05h3-29\x03h33") && as_it_is[3] == 0xa0);
        let told = query.answer(&answer, Some(0), true);
        if query == &verifies {
            assert_eq!(told, as_it_is, "its signature would not be one any more");
            continue;
        }
        assert!(has(&told, b"\x02\x0a\x0a\x02h2\x05\x0a\x0a-29\x03h33"), "{told:?}");
        assert_eq!(told[3], 0x80, "nobody has verified what it says now");
        let others = |m: &[u8]| m.iter().filter(|b| ![b'h', b'3', 0x0a].contains(*b)).count();
        assert_eq!((told.len(), others(&told)), (as_it_is.len(), others(&as_it_is)));
    }
    // What is no such record is left as it is, wherever it breaks off.
    let message = https(&plain.canonical, &["h3"]);
    let at = message.windows(2).position(|w| w == b"h3").unwrap();
    for (at, value) in [(at - 1, 9), (at - 2, 200), (at - 6, 9)] {
        let mut broken = message.clone();
        broken[at] = value;
        if let Some(answer) = Answer::parse(&plain.canonical, &broken) {
            assert_eq!(plain.answer(&answer, Some(0), true), plain.answer(&answer, Some(0), false));
        }
    }
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
    assert_eq!(query.answer(&parsed, Some(40), false), expected);
    expected = answer(&question(7, "Www.Example.com", None), 30, 2);
    assert_eq!(query.answer(&parsed, None, false), expected, "past its time");
}

#[test]
fn a_long_answer_is_truncated_to_what_the_client_takes() {
    for (edns, fits) in [(None, false), (Some(1232), true), (Some(513), false)] {
        let query = Query::parse(&question(7, "a.example", edns)).unwrap();
        let long = answer(&query.canonical, 300, 50);
        let parsed = Answer::parse(&query.canonical, &long).unwrap();
        let told = query.answer(&parsed, Some(0), false);
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

/// RFC 2308, section 2.2: where the name is another's and that has no such record.
#[test]
fn a_name_that_only_stands_for_another_has_no_such_record() {
    let query = Query::parse(&question(1, "a.example", None)).unwrap().canonical;
    let ttl = |message: &[u8]| Answer::parse(&query, message).unwrap().ttl;
    let mut alone = answer(&query, 86_400, 1);
    assert_eq!(ttl(&alone), 86_400);
    // CNAME in place of A.
    alone[query.len() + 3] = 5;
    assert_eq!(ttl(&alone), 0, "no SOA");
    let soa = &none(&query, 900, 60)[query.len()..];
    alone[9] = 1;
    alone.extend(soa);
    assert_eq!(ttl(&alone), 60);
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
            https(&query.canonical, &["h2", "h3"]), none(&query.canonical, 9, 9), bytes];
        for mut message in good {
            for (at, value) in &changes {
                let at = usize::from(*at) % message.len().max(1);
                if let Some(byte) = message.get_mut(at) { *byte = *value; }
            }
            if let Some(q) = Query::parse(&message) {
                prop_assert_eq!(&Query::parse(&q.canonical).unwrap().canonical, &q.canonical);
            }
            if let Some(parsed) = Answer::parse(&query.canonical, &message) {
                for no_quic in [false, true] {
                    prop_assert!(query.answer(&parsed, Some(5), no_quic).len() <= 1232);
                }
            }
        }
    }
}
