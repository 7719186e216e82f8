//! Both languages, spoken well, badly and in pieces.

use proptest::prelude::*;

use super::*;

fn target(s: &str) -> HostPort {
    s.parse().unwrap_or_else(|e| panic!("{s}: {e}"))
}

fn connect(s: &str, early: &[u8]) -> Step {
    Step::Connect { target: target(s), early: early.to_vec(), rest: Rest::Everything }
}

const GREETING: &[u8] = &[5, 1, 0];

/// A client that has been greeted.
fn greeted() -> Negotiation {
    let mut n = Negotiation::new();
    assert_eq!(n.feed(GREETING), Step::Reply(vec![5, 0]));
    n
}

fn socks_request(kind: u8, address: &[u8], port: u16) -> Vec<u8> {
    [&[5, 1, 0, kind], address, &port.to_be_bytes()].concat()
}

#[test]
fn socks5_connects_to_addresses_of_both_families_and_to_names() {
    let v4 = socks_request(1, &[192, 0, 2, 7], 443);
    assert_eq!(greeted().feed(&v4), connect("192.0.2.7:443", b""));
    let v6 = socks_request(4, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 80);
    assert_eq!(greeted().feed(&v6), connect("[2001:db8::1]:80", b""));
    let name = socks_request(3, b"\x0bexample.com", 22);
    assert_eq!(greeted().feed(&name), connect("example.com:22", b""));
}

#[test]
fn an_address_written_as_a_name_or_mapped_is_the_address() {
    let name = socks_request(3, b"\x09127.0.0.1", 80);
    assert_eq!(greeted().feed(&name), connect("127.0.0.1:80", b""));
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    assert_eq!(greeted().feed(&socks_request(4, &mapped, 80)), connect("10.0.0.1:80", b""));
}

#[test]
fn socks5_answers_what_it_cannot_do_with_the_right_code() {
    let code = |request: &[u8]| match greeted().feed(request) {
        Step::Close(answer) => (answer.len(), answer[1]),
        other => panic!("{other:?}"),
    };
    assert_eq!(code(&[5, 2, 0, 1]), (10, 7), "BIND");
    assert_eq!(code(&[5, 3, 0, 1]), (10, 7), "UDP ASSOCIATE");
    assert_eq!(code(&[5, 1, 0, 9]), (10, 8), "an address type that does not exist");
    assert_eq!(code(&socks_request(1, &[192, 0, 2, 7], 0)), (10, 1), "port 0");
    assert_eq!(code(&socks_request(3, b"\x00", 80)), (10, 1), "an empty name");
    assert_eq!(code(&socks_request(3, b"\x04a\0.b", 80)), (10, 1), "a name with a zero");
    assert_eq!(code(&socks_request(3, b"\x05127.1", 80)), (10, 1), "half an address");
    assert_eq!(code(&[4]), (10, 1), "another version in the middle");
}

#[test]
fn socks5_clients_that_insist_on_authentication_are_told() {
    assert_eq!(Negotiation::new().feed(&[5, 1, 2]), Step::Close(vec![5, 0xff]));
    assert_eq!(Negotiation::new().feed(&[5, 0]), Step::Close(vec![5, 0xff]));
    assert_eq!(Negotiation::new().feed(&[5, 2, 2, 0]), Step::Reply(vec![5, 0]));
}

#[test]
fn socks4_is_refused_in_its_own_words() {
    let step = Negotiation::new().feed(&[4, 1, 0, 80, 192, 0, 2, 7, 0]);
    assert_eq!(step, Step::Close(vec![0, 91, 0, 0, 0, 0, 0, 0]));
}

#[test]
fn socks5_outcomes_have_their_reply_codes() {
    let decided = || {
        let mut n = greeted();
        n.feed(&socks_request(1, &[192, 0, 2, 7], 443));
        n
    };
    assert_eq!(decided().succeeded(), [5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for (why, code) in [
        (Refusal::Failed, 1),
        (Refusal::Overloaded, 1),
        (Refusal::Forbidden, 2),
        (Refusal::NetworkUnreachable, 3),
        (Refusal::HostUnreachable, 4),
        (Refusal::UnknownName, 4),
        (Refusal::Refused, 5),
        (Refusal::TimedOut, 6),
    ] {
        assert_eq!(decided().refused(why), [5, code, 0, 1, 0, 0, 0, 0, 0, 0], "{why:?}");
    }
}

#[test]
fn a_client_that_sends_everything_at_once_loses_nothing() {
    let all = [GREETING, &socks_request(1, &[192, 0, 2, 7], 443), b"hello"].concat();
    let mut n = Negotiation::new();
    assert_eq!(n.feed(&all), Step::Reply(vec![5, 0]));
    assert_eq!(n.feed(b""), connect("192.0.2.7:443", b"hello"));
    let mut n = Negotiation::new();
    let step = n.feed(b"CONNECT example.com:443 HTTP/1.1\r\n\r\n\x16\x03\x01");
    assert_eq!(step, connect("example.com:443", b"\x16\x03\x01"));
}

#[test]
fn http_connect_reads_hosts_of_every_kind() {
    for (line, want) in [
        ("CONNECT example.com:443 HTTP/1.1", "example.com:443"),
        ("CONNECT 192.0.2.7:80 HTTP/1.0", "192.0.2.7:80"),
        ("CONNECT [2001:db8::1]:8443 HTTP/1.1", "[2001:db8::1]:8443"),
    ] {
        let fields = "Host: example.com:443\r\nProxy-Connection: keep-alive\r\n";
        let step = Negotiation::new().feed(format!("{line}\r\n{fields}\r\n").as_bytes());
        assert_eq!(step, connect(want, b""));
    }
    let bare = Negotiation::new().feed(b"\r\nCONNECT a.b:1 HTTP/1.1\nHost: a.b\n\nrest");
    assert_eq!(bare, connect("a.b:1", b"rest"));
}

/// The status code that a request is answered with.
fn status(request: &str) -> String {
    match Negotiation::new().feed(request.as_bytes()) {
        Step::Close(answer) => status_of(&answer),
        other => panic!("{request:?}: {other:?}"),
    }
}

/// Checks that an answer is well-formed and returns its code.
fn status_of(answer: &[u8]) -> String {
    let text = std::str::from_utf8(answer).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("an empty line");
    let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: "));
    if let Some(length) = length {
        assert_eq!(length.parse(), Ok(body.len()), "{text}");
    } else {
        assert_eq!(body, "");
    }
    head.split(' ').nth(1).expect("a code").to_owned()
}

#[test]
fn http_requests_that_are_no_tunnels_are_answered() {
    assert_eq!(status("GET / HTTP/1.1\r\n"), "400");
    assert_eq!(status("GET https://example.com/ HTTP/1.1\r\n"), "400");
    assert_eq!(status("GET http:///x HTTP/1.1\r\n"), "400");
    assert_eq!(status("GET http://a.b:0/ HTTP/1.1\r\n"), "400");
    assert_eq!(status("GET http://me:secret@a.b/ HTTP/1.1\r\n"), "400");
    assert_eq!(status("G\x01T http://a.b/ HTTP/1.1\r\n"), "400");
    assert_eq!(status("CONNECT example.com HTTP/1.1\r\n"), "400");
    assert_eq!(status("CONNECT example.com:0 HTTP/1.1\r\n"), "400");
    assert_eq!(status("CONNECT 2001:db8::1:443 HTTP/1.1\r\n"), "400");
    assert_eq!(status("CONNECT  a.b:1 HTTP/1.1\r\n"), "400");
    assert_eq!(status("CONNECT a.b:1\r\n"), "400");
    assert_eq!(status("CONNECT a.b:1 HTTP/2\r\n"), "505");
    assert_eq!(status("CONNECT a.b:1 HTTP/1.1\r\nno colon\r\n\r\n"), "400");
    assert_eq!(status("CONNECT a.b:1 HTTP/1.1\r\nContent-Length: 5\r\n\r\n"), "400");
    assert_eq!(status("CONNECT a.b:1 HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"), "400");
}

/// Where a plain request goes, and what the server is sent.
fn forwarded(request: &str) -> (String, String) {
    match Negotiation::new().feed(request.as_bytes()) {
        Step::Connect { target, early, .. } => {
            (target.to_string(), String::from_utf8(early).expect("text"))
        }
        other => panic!("{request:?}: {other:?}"),
    }
}

#[test]
fn plain_requests_reach_their_server_in_its_form() {
    let request = "GET http://shop.test:8080/x?y HTTP/1.1\r\nHost: shop.test:8080\r\n\
                   User-Agent: me\r\nProxy-Connection: Keep-Alive\r\n\
                   Proxy-Authorization: Basic eDp5\r\nconnection: x-mine , Keep-Alive\r\n\
                   X-Mine: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nAccept: */*\r\n\r\n";
    let (target, sent) = forwarded(request);
    assert_eq!(target, "shop.test:8080");
    assert_eq!(
        sent,
        "GET /x?y HTTP/1.1\r\nHost: shop.test:8080\r\nUser-Agent: me\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    );
}

#[test]
fn targets_of_plain_requests_are_read_as_people_write_them() {
    for (target, to, line) in [
        ("GET http://a.b", "a.b:80", "GET / HTTP/1.1"),
        ("GET HTTP://A.b/", "A.b:80", "GET / HTTP/1.1"),
        ("GET http://a.b:/x#part", "a.b:80", "GET /x HTTP/1.1"),
        ("GET http://a.b?q=http://c.d/", "a.b:80", "GET /?q=http://c.d/ HTTP/1.1"),
        ("HEAD http://192.0.2.7:81/x", "192.0.2.7:81", "HEAD /x HTTP/1.1"),
        ("GET http://[2001:db8::1]/x", "[2001:db8::1]:80", "GET /x HTTP/1.1"),
        ("GET http://[2001:db8::1]:81/x", "[2001:db8::1]:81", "GET /x HTTP/1.1"),
        ("OPTIONS http://a.b", "a.b:80", "OPTIONS * HTTP/1.1"),
    ] {
        let (server, sent) = forwarded(&format!("{target} HTTP/1.1\r\nHost: other\r\n\r\n"));
        assert_eq!((server.as_str(), sent.lines().next()), (to, Some(line)), "{target}");
        assert!(!sent.contains("other"), "the target says which host: {sent}");
    }
    let (_, old) = forwarded("GET http://a.b/ HTTP/1.0\r\n\r\n");
    assert_eq!(old, "GET / HTTP/1.0\r\nHost: a.b\r\nConnection: close\r\n\r\n");
}

#[test]
fn a_second_request_does_not_reach_the_first_ones_server() {
    let second = "GET http://other.test/secret HTTP/1.1\r\nCookie: x\r\n\r\n";
    let (_, sent) = forwarded(&format!("GET http://a.b/ HTTP/1.1\r\n\r\n{second}"));
    assert!(sent.ends_with("Connection: close\r\n\r\n"), "{sent}");
    let post = "POST http://a.b/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello";
    let (_, sent) = forwarded(&format!("{post}{second}"));
    assert!(sent.ends_with("\r\n\r\nhello") && sent.contains("Content-Length: 5"), "{sent}");
    let post = "POST http://a.b/ HTTP/1.1\r\nConnection: transfer-encoding\r\n\
                transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    let (_, sent) = forwarded(&format!("{post}{second}"));
    assert!(sent.ends_with("\r\n\r\n2\r\nhi\r\n0\r\n\r\n"), "{sent}");
    assert!(sent.contains("transfer-encoding: chunked"), "the body needs it: {sent}");
}

#[test]
fn plain_requests_that_two_servers_would_read_differently_are_refused() {
    let with = |fields: &str| status(&format!("POST http://a.b/ HTTP/1.1\r\n{fields}\r\n"));
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "A: b\r\n folded: c\r\n",
        "A: b\rContent-Length: 5\r\n",
        "no colon\r\n",
        ": no name\r\n",
    ] {
        assert_eq!(with(fields), "400", "{fields:?}");
    }
    let old = "POST http://a.b/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(status(old), "400");
}

#[test]
fn a_plain_request_gets_its_servers_answer_or_the_reason_why_there_is_none() {
    let decided = || {
        let mut n = Negotiation::new();
        n.feed(b"GET http://a.b/ HTTP/1.1\r\n\r\n");
        n
    };
    assert_eq!(decided().succeeded(), b"");
    assert_eq!(status_of(&decided().refused(Refusal::TimedOut)), "504");
}

#[test]
fn http_outcomes_have_their_status_codes() {
    let decided = || {
        let mut n = Negotiation::new();
        n.feed(b"CONNECT a.b:1 HTTP/1.1\r\n\r\n");
        n
    };
    assert_eq!(decided().succeeded(), b"HTTP/1.1 200 Connection established\r\n\r\n");
    for (why, code) in [
        (Refusal::Refused, "502"),
        (Refusal::NetworkUnreachable, "502"),
        (Refusal::HostUnreachable, "502"),
        (Refusal::UnknownName, "502"),
        (Refusal::Failed, "502"),
        (Refusal::TimedOut, "504"),
        (Refusal::Forbidden, "403"),
        (Refusal::Overloaded, "503"),
    ] {
        assert_eq!(status_of(&decided().refused(why)), code, "{why:?}");
    }
}

#[test]
fn requests_without_an_end_are_cut_off() {
    let mut n = Negotiation::new();
    let line = [&b"X-Long: "[..], &[b'x'; 100], b"\r\n"].concat();
    assert_eq!(n.feed(b"CONNECT a.b:1 HTTP/1.1\r\n"), Step::NeedMore);
    let answer = (0..200).find_map(|_| match n.feed(&line) {
        Step::Close(answer) => Some(answer),
        _ => None,
    });
    let answer = answer.expect("an end before 22 kB");
    assert_eq!(status_of(&answer), "431");
    assert_eq!(n.buffered(), 0);
    assert_eq!(n.feed(b"more"), Step::NeedMore);
    assert_eq!(n.buffered(), 0, "bytes after the end are not kept");
}

#[test]
fn tls_and_noise_are_closed_without_a_word() {
    for first in [0u8, 1, 0x16, 0x80, 0xff, b' ', b'{'] {
        assert_eq!(Negotiation::new().feed(&[first, 1, 2, 3]), Step::Close(Vec::new()));
    }
}

/// Feeds `bytes` in pieces of `sizes`, answering replies as a client would.
fn feed_in_pieces(bytes: &[u8], sizes: &[usize]) -> (Vec<u8>, Option<Step>, Vec<u8>) {
    let (mut n, mut replies, mut end, mut rest) = (Negotiation::new(), Vec::new(), None, bytes);
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() && end.is_none() {
        let size = sizes.next().map_or(1, |s| (*s).clamp(1, rest.len()));
        let (piece, after) = rest.split_at(size);
        rest = after;
        let mut step = n.feed(piece);
        while let Step::Reply(bytes) = step {
            replies.extend(bytes);
            step = n.feed(b"");
        }
        assert!(n.buffered() <= MAX_REQUEST);
        if step != Step::NeedMore {
            end = Some(step);
        }
    }
    (replies, end, rest.to_vec())
}

/// What starts like one of the languages and goes on like anything.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        Just(Vec::new()),
        Just(GREETING.to_vec()),
        Just([GREETING, &[5, 1, 0]].concat()),
        Just([GREETING, &[5, 1, 0, 3, 7]].concat()),
        Just(b"CONNECT ".to_vec()),
        Just(b"CONNECT a.b:1 HTTP/1.1\r\n".to_vec()),
        Just(b"CONNECT a.b:1 HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        Just(b"GET http://a.b/ HTTP/1.1\r\n".to_vec()),
        Just(b"PUT http://a.b HTTP/1.1\r\nContent-Length: 20\r\n\r\n".to_vec()),
        Just(b"PUT http://a.b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec()),
        Just(b"PUT http://a.b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n".to_vec()),
    ];
    let tail = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        "[ -~\r\n]{0,64}".prop_map(String::into_bytes),
    ];
    (start, tail).prop_map(|(start, tail)| [start, tail].concat())
}

proptest! {
    #[test]
    fn pieces_mean_the_same_as_the_whole(
        bytes in plausible(),
        sizes in proptest::collection::vec(1usize..9, 1..6),
    ) {
        let (replies, end, rest) = feed_in_pieces(&bytes, &sizes);
        let (whole_replies, whole_end, _) = feed_in_pieces(&bytes, &[bytes.len().max(1)]);
        prop_assert_eq!(replies, whole_replies);
        // In pieces, the bytes behind a request are not read yet.
        let completed = match end {
            Some(Step::Connect { target, mut early, rest: mut filter }) => {
                early.extend_from_slice(&rest[..filter.take(&rest)]);
                Some(Step::Connect { target, early, rest: filter })
            }
            other => other,
        };
        prop_assert_eq!(completed, whole_end);
    }

    #[test]
    fn no_bytes_cause_a_panic_or_a_target_without_a_port(bytes in plausible()) {
        if let (_, Some(Step::Connect { target, .. }), _) = feed_in_pieces(&bytes, &[7]) {
            prop_assert!(target.port != 0);
            prop_assert!(target.to_string().parse::<HostPort>().is_ok());
        }
    }
}

#[test]
fn the_corpus_of_proxy_clients_replays() {
    corpus::replay("proxy", fuzz);
}
