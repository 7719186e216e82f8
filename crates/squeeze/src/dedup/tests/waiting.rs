//! Streams that wait, for a disk, for the peer or for their hosts, beside others.

use super::ends::{Pair, Stream, WINDOW, limits, random};
use super::faults::pair;
use crate::dedup::keys::{TAG, tag};
use crate::dedup::wire::{Item, Message};
use crate::dedup::{Bad, ItemDecoder, Limits, Op, Scope, Shown};

const LAN: Option<Scope> = Some(Scope::Lan);

#[test]
fn known_content_on_disk_costs_no_turn_of_the_disk_or_of_the_peer_for_each_chunk() {
    for late in [false, true] {
        let mut pair = Pair::new(Limits { memory: 100_000, ..limits() });
        pair.exchange();
        let content = random(500_000, 20);
        // Then memory is another's.
        for content in [&content, &random(500_000, 21)] {
            pair.send(LAN, content, 64 * 1024);
            pair.far.dedup.receiver.store.flush();
            pair.exchange();
        }
        let chunks = pair.far.dedup.receiver.store.len() / 2;
        let mut stream = Stream::new(&pair, 1, LAN, content);
        while !stream.ended {
            stream.push(&mut pair, 64 * 1024);
            stream.pull(&mut pair, 1 << 20, WINDOW, true);
        }
        pair.far.dedup.receiver.set_late(late);
        let arrived = stream.wire.len();
        assert_eq!(stream.take(&mut pair, arrived, usize::MAX), Ok(0));
        let ops = std::iter::from_fn(|| pair.far.dedup.receiver.poll_op());
        let loads = ops.filter(|op| matches!(op, Op::Load { .. })).count();
        let mut message = Vec::new();
        while pair.far.dedup.poll_message(false, &mut message) {
            message.clear();
        }
        let asked = pair.far.dedup.receiver.asked() as usize;
        if late {
            assert_eq!(loads, 0);
            assert!(asked + 10 > chunks, "all that is referred to: {asked} of {chunks}");
        } else {
            assert_eq!(asked, 0);
            assert!((10..=17).contains(&loads), "some at once, and not all: {loads}");
        }
        stream.close(&mut pair);
    }
}

#[test]
fn what_follows_a_missing_chunk_is_looked_at_once_however_often_the_stream_is() {
    let mut pair = pair();
    let mut input = Vec::new();
    Item::References { first: 1_000, count: 1 }.write(0, &mut input);
    input.extend([0; TAG]);
    for _ in 0..4_000 {
        Item::Literal(1).write(1_000, &mut input);
        input.push(b'x');
    }
    Item::References { first: 2_000, count: 1 }.write(1_000, &mut input);
    input.extend([0; TAG]);
    let mut decoder = ItemDecoder::default();
    let Ok(Shown::Head(n)) = decoder.show(&mut pair.far.dedup.receiver, 1, &[&input]) else {
        panic!("an item")
    };
    input.drain(..n);
    let mut asked_after = |looks: usize| {
        for _ in 0..looks {
            let shown = decoder.show(&mut pair.far.dedup.receiver, 1, &[&input]);
            assert!(matches!(shown, Ok(Shown::Waiting)));
        }
        while pair.far.dedup.poll_message(false, &mut Vec::new()) {}
        pair.far.dedup.receiver.asked()
    };
    assert_eq!(asked_after(10), 1, "a look passes some items and no more");
    assert_eq!(asked_after(10), 2, "each goes on where the one before ended");
}

#[test]
fn one_stream_that_waits_holds_up_no_other() {
    // L-DD-6
    let (mut pair, content) = (pair(), random(300_000, 13));
    pair.send(LAN, &content, 64 * 1024);
    let lost: Vec<u64> = pair.far.dedup.receiver.store.numbers().collect();
    let mut waiting = Stream::new(&pair, 1, LAN, content.clone());
    waiting.push(&mut pair, 64 * 1024);
    waiting.pull(&mut pair, 1 << 20, WINDOW, true);
    lost.into_iter().for_each(|n| pair.far.dedup.receiver.store.remove(n));
    let arrived = waiting.wire.len();
    assert_eq!(waiting.take(&mut pair, arrived, usize::MAX), Ok(0));
    // No message comes through; another stream goes on all the same.
    let other = random(200_000, 14);
    let mut stream = Stream::new(&pair, 2, LAN, other.clone());
    for _ in 0..10 {
        stream.push(&mut pair, 64 * 1024);
        stream.pull(&mut pair, 1 << 20, WINDOW, true);
        let arrived = stream.wire.len();
        stream.take(&mut pair, arrived, usize::MAX).expect("items");
    }
    assert!(stream.got == other);
    pair.exchange();
    let ready = std::iter::from_fn(|| pair.far.dedup.receiver.poll_ready());
    assert!(ready.collect::<Vec<_>>().contains(&1), "the one that waits is told");
    let arrived = waiting.wire.len();
    assert!(waiting.take(&mut pair, arrived, usize::MAX).expect("items") > 10_000);
    waiting.close(&mut pair);
    stream.close(&mut pair);
}

#[test]
fn more_streams_than_may_wait_at_once_all_come_through() {
    let (mut pair, content) = (pair(), random(6_000_000, 15));
    pair.send(LAN, &content, 64 * 1024);
    let mut streams: Vec<Stream> = content
        .chunks(40_000)
        .cycle()
        .take(1300)
        .enumerate()
        .map(|(n, piece)| Stream::new(&pair, n as u64, LAN, piece.to_vec()))
        .collect();
    for stream in &mut streams {
        stream.push(&mut pair, 64 * 1024);
        stream.pull(&mut pair, 1 << 20, WINDOW, true);
    }
    let lost: Vec<u64> = pair.far.dedup.receiver.store.numbers().collect();
    lost.into_iter().for_each(|n| pair.far.dedup.receiver.store.remove(n));
    let mut turns = 0;
    while !streams.iter().all(Stream::is_over) {
        for stream in streams.iter_mut().filter(|s| !s.is_over()) {
            // Every third host takes nothing for a while.
            if !(turns < 20 && stream.key % 3 == 0) {
                let arrived = stream.wire.len();
                stream.take(&mut pair, arrived, usize::MAX).expect("items");
                stream.credit(&mut pair);
            }
        }
        pair.exchange();
        turns += 1;
        assert!(turns < 200);
    }
    for mut stream in streams {
        assert!(stream.got == stream.content);
        stream.close(&mut pair);
    }
}

#[test]
fn many_hosts_that_take_nothing_leave_others_some_of_the_sources() {
    // L-DD-6, L-DD-8
    let limits = Limits { sources: 4 << 20, ..limits() };
    let mut pair = Pair::new(limits);
    pair.exchange();
    let content = random(5_500_000, 23);
    pair.send(LAN, &content, 64 * 1024);
    let (long, rest) = content.split_at(2_500_000);
    let mut pieces = rest.chunks(300_000);
    let mut send = |pair: &mut Pair, key| {
        let piece = if key == 0 { long } else { pieces.next().expect("enough of it") };
        let mut stream = Stream::new(pair, key, LAN, piece.to_vec());
        while !stream.encoder.is_done() {
            stream.push(pair, 64 * 1024);
            stream.pull(pair, 1 << 20, 8 << 20, true);
        }
        stream
    };
    let ten: Vec<Stream> = (0..10).map(|key| send(&mut pair, key)).collect();
    let left = limits.sources - pair.near.dedup.sender.sources();
    assert!(left > limits.sources / 7, "{left} are left");
    let next = send(&mut pair, 10);
    let saved = next.content.len() - next.cost;
    assert!(saved > limits.sources / 80, "the next one saves {saved}");
    ten.into_iter().chain([next]).for_each(|mut stream| stream.close(&mut pair));
    // One alone may have half of it.
    let mut alone = Stream::new(&pair, 1, LAN, long.to_vec());
    while !alone.encoder.is_done() {
        alone.push(&mut pair, 64 * 1024);
        alone.pull(&mut pair, 1 << 20, 8 << 20, true);
    }
    let used = pair.near.dedup.sender.sources();
    assert!((limits.sources * 9 / 20..=limits.sources / 2).contains(&used), "{used}");
    alone.close(&mut pair);
}

#[test]
fn a_stream_that_means_another_chunk_by_a_number_lets_those_ask_anew_that_wait_for_it() {
    // L-DD-7: the peer breaks its rule.
    let mut pair = Pair::new(Limits { memory: 20_000, ..limits() });
    pair.exchange();
    let content = random(20_000, 22);
    pair.far.dedup.receiver.keep(1, &content[..10_000]);
    for n in 2..6 {
        // It is written, and memory is another's.
        pair.far.dedup.receiver.store.flush();
        pair.exchange();
        pair.far.dedup.receiver.keep(n, &random(10_000, n));
    }
    let [first, second] = content.as_chunks::<10_000>().0 else { panic!("two chunks") };
    let [first_tag, second_tag] = [first, second].map(|content| tag(&pair.keys.id(content)));
    let get = |pair: &mut Pair, wanted, key| pair.far.dedup.receiver.get(1, wanted, key);
    assert_eq!(get(&mut pair, first_tag, 1), Ok(None));
    assert_eq!(get(&mut pair, first_tag, 2), Ok(None));
    pair.far.disk.serve(&mut pair.far.dedup);
    let ready = |pair: &mut Pair| {
        std::iter::from_fn(|| pair.far.dedup.receiver.poll_ready()).collect::<Vec<_>>()
    };
    assert_eq!(ready(&mut pair), [1, 2]);
    // It has been read, and the second to fetch it wants something else.
    assert_eq!(get(&mut pair, second_tag, 2), Ok(None));
    pair.far.dedup.receiver.check();
    assert_eq!(ready(&mut pair), [1], "it does not wait for what is gone");
    assert_eq!(get(&mut pair, first_tag, 1), Ok(None));
    let mut bytes = Vec::new();
    Message::Bytes { number: 1, content: second }.write(&mut bytes);
    pair.far.dedup.handle_message(&bytes);
    assert_eq!(get(&mut pair, second_tag, 2), Ok(Some(second.as_slice().into())));
    assert_eq!(get(&mut pair, first_tag, 1), Err(Bad::Chunk));
    pair.far.dedup.receiver.check();
    assert_eq!(pair.far.dedup.receiver.burden().0, 0);
}
