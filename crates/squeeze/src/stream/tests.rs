//! How small the bytes of streams become: source code, random data, small messages.

use std::path::Path;

use proptest::prelude::*;
use units::{BitRate, Instant, Rng};

use super::block::{Head, MAX_HEAD};
use super::*;

pub const SLOW: u64 = 64_000;

fn terms(rate: u64) -> Terms {
    Terms { rate: BitRate::from_bps(rate), longest: 16 * 1024, history: 128 * 1024 }
}

fn encode(e: &mut BlockEncoder, c: &mut Zstd, terms: &Terms, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    e.encode(c, terms, content, |bytes| out.extend_from_slice(bytes));
    assert!(out.len() <= BlockEncoder::worst(content.len()), "{} of {}", out.len(), content.len());
    out
}

/// Decodes what has come of a stream, taking `step` bytes at a time; answers what is left.
fn decode(
    d: &mut BlockDecoder,
    c: &mut Zstd,
    stream: &[u8],
    step: usize,
    out: &mut Vec<u8>,
) -> usize {
    let mut at = 0;
    loop {
        let rest = &stream[at..];
        let (a, b) = rest.split_at(rest.len() / 3);
        match d.show(c, &[a, b]).expect("what an encoder made") {
            Shown::Content(bytes) => {
                let n = bytes.len().min(step);
                out.extend_from_slice(&bytes[..n]);
                at += d.took(n);
                if out.len().is_multiple_of(7) {
                    d.forget();
                }
            }
            Shown::AsItIs(n) => {
                let n = (n as usize).min(rest.len()).min(step);
                if n == 0 {
                    return 0;
                }
                out.extend_from_slice(&rest[..n]);
                at += d.took(n);
            }
            Shown::Head(n) => at += n,
            Shown::More => return rest.len(),
        }
    }
}

/// Sends `content` in pieces of up to `piece` bytes there and back; answers what it cost.
pub fn round_trip(content: &[u8], rate: u64, piece: usize) -> usize {
    let (mut near, mut far) = (Zstd::default(), Zstd::default());
    let (mut e, mut d) = (BlockEncoder::default(), BlockDecoder::default());
    let (mut stream, mut got, mut cost) = (Vec::new(), Vec::new(), 0);
    for piece in content.chunks(piece) {
        let coded = encode(&mut e, &mut near, &terms(rate), piece);
        cost += coded.len();
        stream.extend(coded);
        let left = decode(&mut d, &mut far, &stream, 1000, &mut got);
        stream.drain(..stream.len() - left);
        assert_eq!(left, 0, "whole blocks are decoded");
        assert_eq!(e.kept(), d.kept());
    }
    assert!(got == content, "what came is what was sent");
    cost
}

pub fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(7).fill(&mut bytes);
    bytes
}

/// Source code: this crate's and its neighbours'.
fn source_code() -> Vec<u8> {
    let files = [
        include_str!("encoder.rs"),
        include_str!("decoder.rs"),
        include_str!("zstd.rs"),
        include_str!("block.rs"),
        include_str!("effort.rs"),
        include_str!("tests.rs"),
        include_str!("../../../relay/src/lib.rs"),
        include_str!("../../../link/src/session.rs"),
        include_str!("../../../link/src/session/send.rs"),
        include_str!("../../../link/src/session/receive.rs"),
        include_str!("../../../link/src/handshake.rs"),
        include_str!("../../../sim/src/world.rs"),
    ];
    files.concat().into_bytes()
}

/// An answer of about 1 kB with numbers that differ each time.
fn exchange(n: u64) -> Vec<u8> {
    let mut rng = Rng::new(n);
    let mut number = |below| rng.below(below);
    let mut items = String::new();
    for (name, unit) in
        [("fuel oil", "t"), ("fresh water", "t"), ("provisions", "kg"), ("spares", "kg")]
    {
        items += &format!(
            "{{\"id\":{},\"name\":\"{name}\",\"value\":{},\"unit\":\"{unit}\",\"updated_at\":\
             \"2026-11-{:02}T{:02}:00:00Z\"}},",
            number(100_000),
            number(5000),
            number(28) + 1,
            number(24),
        );
    }
    items.pop();
    let body = format!(
        "{{\"status\":\"ok\",\"error\":null,\"data\":{{\"id\":{},\"name\":\"MV Aurora {}\",\
         \"position\":{{\"latitude\":{}.{:05},\"longitude\":-{}.{:05}}},\"speed\":{}.{},\
         \"course\":{},\"next_port\":\"Rotterdam\",\"items\":[{items}]}},\
         \"message\":\"next report is due at noon, all stations normal\"}}",
        number(1 << 30),
        number(100),
        number(90),
        number(100_000),
        number(180),
        number(100_000),
        number(20),
        number(10),
        number(360),
    );
    format!(
        "HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 12:{:02}:{:02} GMT\r\nServer: nginx/1.26.1\r\n\
         Content-Type: application/json; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nX-Request-Id: {:016x}\r\nConnection: close\r\n\r\n{body}",
        number(60),
        number(60),
        body.len(),
        number(u64::MAX),
    )
    .into_bytes()
}

/// A megabyte of this project's source code, in the order of its files' names.
pub fn megabyte_of_code() -> Vec<u8> {
    fn walk(dir: &Path, code: &mut Vec<u8>) {
        let entries = std::fs::read_dir(dir).expect("a directory of the project").flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                walk(&path, code);
            } else if path.extension().is_some_and(|e| e == "rs") {
                code.extend(std::fs::read(&path).expect("a file of the project"));
            }
        }
    }
    let mut code = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for dir in ["crates", "bentpipe"] {
        walk(&root.join(dir), &mut code);
    }
    code.truncate(1_000_000);
    assert_eq!(code.len(), 1_000_000);
    code
}

/// R-COMPRESS: read as a gateway does, as much as makes one block.
#[test]
fn a_megabyte_of_source_code_shrinks_to_a_quarter_on_a_slow_link() {
    let code = megabyte_of_code();
    // A processor that takes no time has time for all of the history.
    let (mut near, mut far) = (Zstd::new(Some(|| Instant::ZERO)), Zstd::default());
    let (mut e, mut d) = (BlockEncoder::default(), BlockDecoder::default());
    let (mut left, mut cost, mut got) = (&code[..], 0, Vec::new());
    while !left.is_empty() {
        let n = e.appetite(BitRate::from_bps(SLOW)).min(left.len());
        let terms = Terms { history: 512 * 1024, ..terms(SLOW) };
        let coded = encode(&mut e, &mut near, &terms, &left[..n]);
        assert_eq!(decode(&mut d, &mut far, &coded, 1 << 20, &mut got), 0);
        cost += coded.len();
        left = &left[n..];
    }
    assert!(got == code);
    println!("1,000,000 bytes of source code become {cost}");
    assert_eq!(e.kept(), 512 * 1024);
    assert!(cost <= 250_000, "{cost}");
}

#[test]
fn random_data_grows_by_less_than_a_thousandth() {
    let data = random(1 << 20);
    for (rate, piece) in [(SLOW, 1448), (100_000_000, 64 * 1024), (SLOW, 64 * 1024)] {
        let cost = round_trip(&data, rate, piece);
        assert!(cost <= data.len() + data.len() / 2000, "{cost} of {}", data.len());
    }
}

/// Text after images: a run cannot be cut, and 256 kB take a slow link half a minute.
#[test]
fn what_follows_data_that_does_not_shrink_is_compressed_again_within_a_second_or_16_kb() {
    for (rate, soon) in [(2_400, 16 << 10), (SLOW, 16 << 10), (400_000, 50_000)] {
        let (mut zstd, mut e) = (Zstd::default(), BlockEncoder::default());
        for piece in random(1 << 20).chunks(1448) {
            encode(&mut e, &mut zstd, &terms(rate), piece);
        }
        let text = source_code();
        let mut pieces = text.chunks(1000);
        let as_it_is = pieces
            .by_ref()
            .take_while(|piece| encode(&mut e, &mut zstd, &terms(rate), piece).len() > 900)
            .count();
        assert!(as_it_is * 1000 <= soon + 1000, "{as_it_is} kB at {rate} bit/s");
    }
}

#[test]
fn data_that_begins_to_shrink_is_found_again() {
    let mut data = random(200_000);
    data.extend(source_code().repeat(4));
    let cost = round_trip(&data, SLOW, 16 * 1024);
    assert!(cost < 200_000 + (data.len() - 200_000) * 6 / 10, "{cost} of {}", data.len());
}

/// Reports of a line each, of which none shrinks by itself.
#[test]
fn small_messages_that_resemble_each_other_shrink_from_the_second_on() {
    let (mut near, mut far) = (Zstd::default(), Zstd::default());
    let (mut e, mut d) = (BlockEncoder::default(), BlockDecoder::default());
    let (mut plain, mut cost, mut got) = (Vec::new(), 0, Vec::new());
    for n in 0..20 {
        let line =
            format!("$GPGGA,12{n:02}19,4807.0{n:02},N,01131.{n:03},E,1,08,0.9,545.4,M*{n:02}\r\n");
        let coded = encode(&mut e, &mut near, &terms(2_400), line.as_bytes());
        assert_eq!(decode(&mut d, &mut far, &coded, 1 << 20, &mut got), 0);
        assert_eq!(e.kept(), d.kept());
        cost += coded.len();
        plain.extend(line.into_bytes());
    }
    assert!(got == plain);
    assert!(cost * 2 < plain.len(), "{cost} of {}", plain.len());
}

#[test]
fn the_dictionary_serves_the_first_small_message_of_a_connection() {
    let (mut plain, mut cost) = (0, 0);
    for n in 0..20 {
        let message = exchange(n);
        plain += message.len();
        cost += round_trip(&message, 512_000, 64 * 1024);
    }
    assert!(cost * 100 <= plain * 45, "{cost} of {plain}");
    let greeting = b"220 mx.harbour.example ESMTP Postfix (Debian/GNU)\r\n";
    assert!(round_trip(greeting, SLOW, 1000) < greeting.len());
}

#[test]
fn one_byte_becomes_a_hundred_at_most() {
    let zeros = vec![0; 1 << 20];
    let cost = round_trip(&zeros, 100_000_000, 64 * 1024);
    assert!(cost * 100 >= zeros.len() && cost * 80 <= zeros.len(), "{cost}");

    // A frame that promises more.
    let mut zstd = Zstd::default();
    let frame = zstd.compress(1, &zeros[..64 * 1024], &[]).expect("zeros shrink").to_vec();
    let end = frame.iter().rposition(|b| *b != 0).unwrap() + 1;
    let mut bomb = vec![0; MAX_HEAD];
    let n = Head::Zstd { len: end, used: 0, kept: 0 }.write((&mut bomb[..]).try_into().unwrap());
    bomb.truncate(n);
    bomb.extend(&frame[..end]);
    assert_eq!(BlockDecoder::default().show(&mut zstd, &[&bomb]), Err(BadBlock::Bomb));
}

/// L-CO-8: heads that only keep cost two bytes each and a turn; one behind another is refused.
#[test]
fn a_keep_block_behind_another_is_refused() {
    let (mut zstd, mut decoder) = (Zstd::default(), BlockDecoder::default());
    let mut head = [0; MAX_HEAD];
    let n = Head::Keep(1).write(&mut head);
    let keep = &head[..n];
    assert_eq!(decoder.show(&mut zstd, &[keep]), Ok(Shown::Head(n)));
    let mut stored = [0; MAX_HEAD];
    let len = Head::Stored(3).write(&mut stored);
    let block = [&stored[..len], b"abc"].concat();
    assert_eq!(decoder.show(&mut zstd, &[&block]), Ok(Shown::Content(b"abc")));
    decoder.took(3);
    assert_eq!(decoder.show(&mut zstd, &[keep]), Ok(Shown::Head(n)));
    assert_eq!(decoder.show(&mut zstd, &[keep]), Err(BadBlock::Head));
}

/// L-CO-5.
#[test]
fn blocks_fit_the_reserve_of_a_stream() {
    let mut e = BlockEncoder::default();
    let terms = Terms { longest: 1024, ..terms(SLOW) };
    let mut longest = 0;
    let (mut zstd, code) = (Zstd::default(), source_code());
    e.encode(&mut zstd, &terms, &code, |bytes| longest = longest.max(bytes.len()));
    assert!(longest <= 1024, "{longest}");
}

/// L-CO-2: what one user sends never shows in the size of what another sends (CRIME across
/// streams), however often both do.
#[test]
fn a_stream_is_coded_as_if_there_were_no_other() {
    let secret = b"Cookie: session=7f3a9c55e1d04b2288; csrf=1b9e77aa0c61\r\n".repeat(4);
    let guess = b"Cookie: session=7f3a9c55e1d04b2288; csrf=1b9e77aa0c61\r\n";
    let mut shared = Zstd::default();
    let mut victim = BlockEncoder::default();
    for _ in 0..50 {
        encode(&mut victim, &mut shared, &terms(SLOW), &secret);
        let beside = encode(&mut BlockEncoder::default(), &mut shared, &terms(SLOW), guess);
        let alone = encode(&mut BlockEncoder::default(), &mut Zstd::default(), &terms(SLOW), guess);
        assert_eq!(beside, alone);
    }
    // On one stream it would show: why directions that mix secrets go as they are.
    let right = encode(&mut victim, &mut shared, &terms(SLOW), guess).len();
    let other = b"Cookie: session=0123456789abcdef01; csrf=0f1e2d3c4b5a\r\n";
    assert!(right < encode(&mut victim, &mut shared, &terms(SLOW), other).len());
}

#[test]
fn requests_of_http_are_known_by_port_and_by_their_first_bytes() {
    assert!(mixes_secrets(80, b"\x16\x03"));
    assert!(mixes_secrets(9000, b"GET /a HTTP/1.1"));
    assert!(mixes_secrets(9000, b"PRI * HTTP/2.0"));
    for first in [&b"\r\nGET /a HTTP/1.1"[..], b"PROPFIND /a", b"PROXY TCP4 10.1.0.2", b"\r\n"] {
        assert!(mixes_secrets(9000, first));
    }
    assert!(!mixes_secrets(25, b"EHLO ship"));
    let mut out: Vec<u8> = Vec::new();
    let mut plain = BlockEncoder::plain();
    plain.encode(&mut Zstd::default(), &terms(SLOW), b"GET / HTTP/1.1\r\n\r\n", |b| out.extend(b));
    plain.encode(&mut Zstd::default(), &terms(SLOW), b"more", |b| out.extend(b));
    assert_eq!(out, b"\x03GET / HTTP/1.1\r\n\r\nmore");
}

#[test]
fn an_idle_stream_holds_little_and_a_crowd_no_more_than_was_offered() {
    let (mut near, mut far) = (Zstd::default(), Zstd::default());
    let mut total = 0;
    for n in 0..1000 {
        let (mut e, mut d) = (BlockEncoder::default(), BlockDecoder::default());
        let coded =
            encode(&mut e, &mut near, &Terms { history: 4096, ..terms(SLOW) }, &exchange(n));
        decode(&mut d, &mut far, &coded, 1 << 20, &mut Vec::new());
        total += e.memory() + d.memory();
    }
    assert!(total <= 1000 * 12 * 1024, "{total} bytes in 1,000 streams");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn anything_comes_back_as_it_was(
        pieces in prop::collection::vec((0u8..4, 1usize..9000, any::<u64>()), 1..12),
        rate in 1_000u64..3_000_000_000,
        step in 1usize..5000,
        history in 0usize..200_000,
        longest in 1024usize..20_000,
    ) {
        let (mut near, mut far) = (Zstd::default(), Zstd::default());
        let (mut e, mut d) = (BlockEncoder::default(), BlockDecoder::default());
        let (mut content, mut stream, mut got) = (Vec::new(), Vec::new(), Vec::new());
        let code = source_code();
        for (kind, len, seed) in pieces {
            let piece = match kind {
                0 => random(len),
                1 => vec![seed as u8; len * 9],
                _ => code[(seed as usize) % (code.len() - len)..][..len].to_vec(),
            };
            let terms = Terms { rate: BitRate::from_bps(rate), history, longest };
            stream.extend(encode(&mut e, &mut near, &terms, &piece));
            content.extend(piece);
            // A byte at a time here and there: what has not come whole waits.
            let cut = seed as usize % (stream.len() + 1);
            let left = decode(&mut d, &mut far, &stream[..cut], step, &mut got);
            stream.drain(..cut - left);
        }
        let left = decode(&mut d, &mut far, &stream, step, &mut got);
        prop_assert_eq!(left, 0);
        prop_assert!(got == content);
    }

    #[test]
    fn a_decoder_survives_anything(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        crate::fuzz::stream(&bytes);
    }

    #[test]
    fn a_decoder_survives_what_is_almost_right(flips in prop::collection::vec(any::<(u16, u8)>(), 1..5)) {
        let mut coded = encode(
            &mut BlockEncoder::default(), &mut Zstd::default(), &terms(SLOW), &source_code()[..9000],
        );
        for (at, bits) in flips {
            let at = usize::from(at) % coded.len();
            coded[at] ^= bits;
        }
        crate::fuzz::stream(&coded);
    }
}

/// L-CO-2: what a block makes the receiver look through is bounded by its content.
#[test]
fn a_block_that_refers_to_far_more_than_it_says_is_refused() {
    let code = megabyte_of_code();
    let (mut zstd, mut far) = (Zstd::default(), Zstd::default());
    let (mut e, mut d, mut got) = (BlockEncoder::default(), BlockDecoder::default(), Vec::new());
    let coded = encode(&mut e, &mut zstd, &terms(SLOW), &code[..200_000]);
    assert_eq!(decode(&mut d, &mut far, &coded, 1 << 20, &mut got), 0);
    let mut block = encode(&mut e, &mut zstd, &terms(SLOW), &code[200_000..200_300]);
    let head = Head::read(&block).unwrap().unwrap();
    let (Head::Zstd { used, .. }, len) = head else { panic!("{head:?}") };
    assert_eq!(used, 5, "16 kB for 300 bytes");
    // The same with 32 kB.
    block[len - 1] += 1;
    let pieces = [&block[..]];
    assert_eq!(d.show(&mut far, &pieces), Err(BadBlock::Head));
}
