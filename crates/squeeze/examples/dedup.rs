//! What deduplication saves and what it costs: `cargo run --release --example dedup`.
//!
//! 10 MB that do not compress are sent, sent again, and sent with 1 % changed in ten places;
//! the processor's time is told for each byte of content.

// An example measures time; the library does not.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use squeeze::dedup::{
    Chunker, Dedup, ItemDecoder, ItemEncoder, Keys, Limits, MAX_CHUNK, Scope, Shown, Store,
};
use units::Rng;

const SIZE: usize = 10_000_000;
const PIECE: usize = 64 * 1024;

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// What one transfer cost: bytes on the stream, bytes of messages, time of either side.
struct Cost {
    stream: usize,
    messages: usize,
    sending: Duration,
    receiving: Duration,
}

fn send(near: &mut Dedup, far: &mut Dedup, content: &[u8]) -> Cost {
    let mut encoder = ItemEncoder::new(&near.sender, Scope::Lan);
    let (mut decoder, mut wire, mut got) = (ItemDecoder::default(), Vec::new(), 0);
    let mut cost =
        Cost { stream: 0, messages: 0, sending: Duration::ZERO, receiving: Duration::ZERO };
    let (now, mut pushed, mut begin) = (units::Instant::ZERO, 0, 0_u64);
    while got < content.len() {
        let start = Instant::now();
        let n = encoder.room().min(PIECE).min(content.len() - pushed);
        encoder.push(now, &near.sender, &content[pushed..pushed + n]);
        pushed += n;
        if pushed == content.len() {
            encoder.finish();
        }
        let mut put = |bytes: &[u8]| wire.extend_from_slice(bytes);
        let room = (PIECE, 4 << 20);
        cost.stream += encoder.pull(now, &mut near.sender, room, false, &mut put);
        encoder.written(begin + wire.len() as u64);
        cost.sending += start.elapsed();
        let start = Instant::now();
        let mut at = 0;
        loop {
            let rest = &wire[at..];
            let n = match decoder.show(&mut far.receiver, 1, &[rest]).expect("items") {
                Shown::Head(n) => {
                    at += n;
                    continue;
                }
                Shown::Content(content) => content.len(),
                Shown::AsItIs(n) => (n as usize).min(rest.len()),
                Shown::Waiting | Shown::More => 0,
            };
            if n == 0 {
                break;
            }
            got += n;
            at += decoder.took(&mut far.receiver, n);
        }
        wire.drain(..at);
        begin += at as u64;
        cost.receiving += start.elapsed();
        encoder.consumed(&mut near.sender, begin);
    }
    cost.messages = exchange(near, far);
    encoder.close(&mut near.sender);
    decoder.close(&mut far.receiver, 1);
    cost
}

fn exchange(near: &mut Dedup, far: &mut Dedup) -> usize {
    let (mut bytes, mut message) = (0, Vec::new());
    while far.poll_message(true, &mut message) {
        near.handle_message(&message);
        bytes += message.len();
        message.clear();
    }
    bytes
}

fn main() {
    let keys = Arc::new(Keys::new(&[1; 32]));
    let content = random(SIZE, 1);
    let start = Instant::now();
    let (mut chunker, mut lengths, mut rest) = (Chunker::default(), Vec::new(), &content[..]);
    while let Some(n) = chunker.scan(&keys, rest) {
        lengths.push(n);
        rest = &rest[n..];
    }
    let time = start.elapsed();
    let ns = |time: Duration| time.as_nanos() as f64 / SIZE as f64;
    let longest = lengths.iter().filter(|n| **n == MAX_CHUNK).count();
    println!(
        "{} chunks, {} bytes on average, {longest} cut at the longest; boundaries {:.2} ns/byte",
        lengths.len(),
        SIZE / lengths.len(),
        ns(time),
    );
    let mut changed = content.clone();
    for n in 0..10 {
        let at = n * SIZE / 10 + 333 * (n + 1);
        changed[at..at + SIZE / 1000].copy_from_slice(&random(SIZE / 1000, 50 + n as u64));
    }
    let limits = Limits { memory: 64 << 20, disk: 0, ..Limits::default() };
    let mut best: Option<[Cost; 3]> = None;
    for _ in 0..5 {
        let node = |epoch| {
            let store = Store::new(keys.clone(), limits.memory, limits.disk, epoch);
            Dedup::new(keys.clone(), store, &limits)
        };
        let (mut near, mut far) = (node(1), node(2));
        exchange(&mut near, &mut far);
        let mut run = [&content, &content, &changed].map(|c| send(&mut near, &mut far, c));
        if let Some(best) = best {
            for (cost, before) in run.iter_mut().zip(best) {
                cost.sending = cost.sending.min(before.sending);
                cost.receiving = cost.receiving.min(before.receiving);
            }
        }
        best = Some(run);
    }
    let best = best.expect("it ran");
    for (name, cost) in ["first", "unchanged", "1 % changed"].iter().zip(&best) {
        println!(
            "{name:12} {:9} bytes ({:7.3} %), messages {:5}; sender {:.2}, receiver {:.2} ns/byte",
            cost.stream,
            cost.stream as f64 * 100.0 / best[0].stream as f64,
            cost.messages,
            ns(cost.sending),
            ns(cost.receiving),
        );
    }
}
