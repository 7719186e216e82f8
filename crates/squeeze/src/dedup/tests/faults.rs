//! One fault, or one rule, at a time.

use std::net::IpAddr;
use std::sync::Arc;

use units::{Duration, Rng};

use super::ends::{Pair, Stream, WINDOW, limits, random};
use crate::dedup::chunker::Chunker;
use crate::dedup::wire::Message;
use crate::dedup::{Bad, Dedup, Keys, Limits, Scope, Store};

const LAN: Option<Scope> = Some(Scope::Lan);

fn host(n: u8) -> Option<Scope> {
    Some(Scope::Host(IpAddr::from([10, 0, 0, n])))
}

pub fn pair() -> Pair {
    let mut pair = Pair::new(limits());
    pair.exchange();
    pair
}

#[test]
fn nothing_is_named_before_the_peer_has_told_what_it_holds() {
    // L-DD-3
    let mut pair = Pair::new(limits());
    let content = random(100_000, 1);
    let mut stream = Stream::new(&pair, 1, LAN, content.clone());
    while !stream.is_over() {
        stream.push(&mut pair, 10_000);
        stream.pull(&mut pair, 1 << 20, WINDOW, false);
        let arrived = stream.wire.len();
        stream.take(&mut pair, arrived, usize::MAX).expect("items");
    }
    stream.close(&mut pair);
    assert_eq!(pair.far.dedup.receiver.store.len(), 0);
    pair.exchange();
    pair.send(LAN, &content, 10_000);
    assert!(pair.far.dedup.receiver.store.len() > 5);
}

#[test]
fn a_host_gains_from_its_own_content_only_unless_the_scope_is_the_lan() {
    // L-DD-4
    let (mut pair, content) = (pair(), random(300_000, 2));
    let full = pair.send(host(1), &content, 64 * 1024);
    assert!(full > content.len());
    assert!(pair.send(host(1), &content, 64 * 1024) * 50 < full, "the same host");
    assert!(pair.send(host(2), &content, 64 * 1024) > content.len(), "another host");
    assert!(pair.send(LAN, &content, 64 * 1024) > content.len(), "a host's is not the LAN's");
    assert!(pair.send(LAN, &content, 64 * 1024) * 50 < full, "the LAN's is");
    assert_eq!(pair.send(None, &content, 64 * 1024), content.len() + 1, "scope off");
}

#[test]
fn ids_and_scopes_are_keyed_by_the_pair_of_peers() {
    // L-DD-2: neither id nor tag says anything to who does not have the key.
    let (a, b) = (Keys::new(&[1; 32]), Keys::new(&[2; 32]));
    assert_ne!(a.id(b"content"), b.id(b"content"));
    assert_ne!(a.scope(Scope::Lan), b.scope(Scope::Lan));
    assert_eq!(a.id(b"content"), Keys::new(&[1; 32]).id(b"content"));
}

#[test]
fn what_the_receiver_lost_is_asked_for_once_and_comes() {
    // L-DD-6
    let (mut pair, content) = (pair(), random(2_000_000, 3));
    let first = pair.send(LAN, &content, 64 * 1024);
    let numbers: Vec<u64> = pair.far.dedup.receiver.store.numbers().collect();
    let mut rng = Rng::new(1);
    let mut lost = 0;
    for number in numbers {
        if rng.below(4) == 0 {
            pair.far.dedup.receiver.store.remove(number);
            lost += 1;
        }
    }
    let messages = pair.messages;
    let second = pair.send(LAN, &content, 64 * 1024);
    assert_eq!(pair.far.dedup.receiver.asked(), lost);
    assert!(second * 50 < first, "the stream itself carries references only");
    let brought = pair.messages.0 - messages.0;
    assert!(brought < first / 3, "only what was missing comes: {brought} of {first}");
    let third = pair.send(LAN, &content, 64 * 1024);
    assert!(third * 50 < first);
    assert_eq!(pair.far.dedup.receiver.asked(), lost, "it is all there again");
}

#[test]
fn a_store_that_is_lost_in_the_middle_of_a_transfer_costs_time_and_no_byte() {
    // L-DD-5
    let (mut pair, content) = (pair(), random(1_000_000, 4));
    pair.send(LAN, &content, 64 * 1024);
    let mut stream = Stream::new(&pair, 1, LAN, content.clone());
    let mut turns = 0;
    while !stream.is_over() {
        stream.push(&mut pair, 64 * 1024);
        stream.pull(&mut pair, 1 << 20, WINDOW, true);
        if turns == 5 {
            pair.far.dedup.receiver.rebuild(99);
        }
        let arrived = stream.wire.len();
        stream.take(&mut pair, arrived, 50_000).expect("items");
        stream.credit(&mut pair);
        pair.exchange();
        turns += 1;
        assert!(turns < 1000, "{} bytes", stream.got.len());
    }
    assert!(stream.got == content);
    stream.close(&mut pair);
    pair.exchange();
    let asked = pair.far.dedup.receiver.asked();
    assert!((1..=130).contains(&asked), "what was under way is asked for, each once: {asked}");
    assert!(pair.send(LAN, &content, 64 * 1024) < 600_000, "the new store fills");
    assert!(pair.send(LAN, &content, 64 * 1024) * 50 < content.len());
}

#[test]
fn both_programs_die_and_know_it_all_afterwards() {
    let (mut pair, content) = (pair(), random(3_000_000, 5));
    let first = pair.send(LAN, &content, 64 * 1024);
    pair.far.dedup.receiver.store.flush();
    pair.exchange();
    let held = pair.far.dedup.receiver.store.len();
    pair.restart_far(77);
    assert_eq!(pair.far.dedup.receiver.store.len(), held);
    assert_eq!(pair.far.dedup.receiver.store.epoch(), 2, "the same store");
    pair.restart_near(78);
    assert!(pair.send(LAN, &content, 64 * 1024) * 50 < first);
    assert_eq!(pair.far.dedup.receiver.asked(), 0);
    // The sender's files are lost: it sends it all again, under new numbers.
    pair.near.disk = Default::default();
    pair.restart_near(79);
    assert!(pair.send(LAN, &content, 64 * 1024) > content.len());
    assert!(pair.send(LAN, &content, 64 * 1024) * 50 < first);
    // The receiver's are lost.
    pair.far.disk = Default::default();
    pair.restart_far(80);
    assert_eq!(pair.far.dedup.receiver.store.epoch(), 80);
    assert!(pair.send(LAN, &content, 64 * 1024) > content.len());
    assert!(pair.send(LAN, &content, 64 * 1024) * 50 < first);
}

#[test]
fn a_program_that_dies_while_it_writes_finds_what_it_wrote() {
    // L-DD-9
    let (mut pair, content) = (pair(), random(2_000_000, 6));
    let first = pair.send(LAN, &content, 64 * 1024);
    pair.far.dedup.receiver.store.flush();
    pair.exchange();
    let files = pair.far.disk.clone();
    let mut rng = Rng::new(2);
    for n in 0..40 {
        pair.far.disk = files.clone();
        let last = *files.data.keys().last().expect("a segment");
        let data = pair.far.disk.data.get_mut(&last).expect("a segment");
        data.truncate(data.len() - rng.below(300_000) as usize % data.len());
        let index = pair.far.disk.index.get_mut(&last).expect("a segment");
        index.truncate(index.len() - rng.below(2000) as usize % index.len());
        pair.restart_far(100 + n);
        assert_eq!(pair.far.disk.quarantined, 0, "cut is not damaged");
        let cost = pair.send(LAN, &content, 64 * 1024);
        assert!(cost < first / 2, "{cost}");
        assert_eq!(pair.far.dedup.receiver.asked(), 0, "the sender knows what is left");
    }
}

#[test]
fn flipped_bits_are_never_delivered() {
    // L-DD-7, L-DD-9
    let mut limits = limits();
    limits.memory = 100_000; // All but the last is read from disk.
    limits.disk = 8 << 20;
    let mut pair = Pair::new(limits);
    pair.exchange();
    let content = random(2_000_000, 7);
    let mut rng = Rng::new(3);
    let mut quarantined = 0;
    for n in 0..60 {
        pair.send(LAN, &content, 64 * 1024); // Checks what comes, bit for bit.
        pair.far.dedup.receiver.store.flush();
        pair.exchange();
        for _ in 0..rng.below(4) {
            for disk in [&mut pair.far.disk, &mut pair.near.disk] {
                if let Some(byte) = disk.anywhere(&mut rng) {
                    *byte ^= 1 << rng.below(8);
                }
            }
        }
        if n % 3 == 0 {
            pair.restart_far(200 + n);
            pair.restart_near(300 + n);
        }
        quarantined = quarantined.max(pair.far.disk.quarantined);
    }
    assert!(quarantined > 10, "damage was found: {quarantined}");
}

#[test]
fn a_full_disk_costs_memory_of_what_went_and_nothing_else() {
    let mut limits = limits();
    limits.memory = 200_000;
    let mut pair = Pair::new(limits);
    pair.exchange();
    pair.far.disk.room = Some(1_000_000);
    let content = random(3_000_000, 8);
    for n in 0..5 {
        pair.send(LAN, &content, 64 * 1024);
        assert!(pair.far.disk.len() <= 1_400_000, "{}", pair.far.disk.len());
        assert!(pair.far.dedup.receiver.store.size().0 <= 2 * limits.memory);
        if n == 2 {
            pair.restart_far(50);
        }
    }
    let small = random(100_000, 9);
    pair.send(LAN, &small, 64 * 1024);
    assert!(pair.send(LAN, &small, 64 * 1024) * 20 < small.len(), "what is recent is there");
    // Room again: the store grows back.
    pair.far.disk.room = None;
    for _ in 0..40 {
        pair.send(LAN, &content, 64 * 1024);
    }
    let cost = pair.send(LAN, &content, 64 * 1024);
    assert!(cost * 50 < content.len(), "{cost}");
}

#[test]
fn a_disk_that_fails_for_a_while_costs_nothing_that_is_there_and_little_of_what_comes() {
    let mut limits = limits();
    limits.memory = 200_000;
    let mut pair = Pair::new(limits);
    pair.exchange();
    let before = random(3_000_000, 20);
    pair.send(LAN, &before, 64 * 1024);
    pair.far.dedup.receiver.store.flush();
    pair.exchange();
    let (files, on_disk) = (pair.far.disk.data.clone(), pair.far.dedup.receiver.store.size().1);
    pair.far.disk.is_broken = true;
    let during = random(150_000, 21);
    for content in [&random(1_000_000, 22), &during] {
        pair.send(LAN, content, 64 * 1024);
        // The owner of the files has it all written every now and then.
        pair.far.dedup.receiver.store.flush();
        pair.exchange();
        let (memory, disk) = pair.far.dedup.receiver.store.size();
        assert!(memory <= 2 * limits.memory, "{memory}");
        assert_eq!(disk, on_disk);
        let is_kept = |(n, data): (&u64, &Vec<u8>)| {
            pair.far.disk.data.get(n).is_some_and(|now| now.starts_with(data))
        };
        assert!(files.iter().all(is_kept), "no segment went");
        assert_eq!(pair.far.disk.data.len(), files.len(), "nor is half of one left");
    }
    pair.far.disk.is_broken = false;
    pair.far.dedup.receiver.store.flush();
    pair.exchange();
    assert!(pair.far.dedup.receiver.store.size().1 > on_disk + 150_000);
    pair.restart_far(51);
    for content in [&before, &during] {
        assert!(pair.send(LAN, content, 64 * 1024) * 20 < content.len());
    }
    assert_eq!(pair.far.dedup.receiver.asked(), 0);
}

#[test]
fn the_store_keeps_to_its_limits_and_keeps_what_is_used() {
    let mut limits = limits();
    (limits.memory, limits.disk) = (300_000, 3_000_000);
    let mut pair = Pair::new(limits);
    pair.exchange();
    let used = random(500_000, 10);
    pair.send(LAN, &used, 64 * 1024);
    for n in 0..20 {
        pair.send(LAN, &random(1_000_000, 100 + n), 64 * 1024);
        let again = pair.send(LAN, &used, 64 * 1024);
        assert!(again * 20 < used.len(), "after {n} MB of others: {again}");
        let (memory, disk) = pair.far.dedup.receiver.store.size();
        assert!(memory <= 2 * limits.memory && disk <= limits.disk, "{memory} {disk}");
        assert!(pair.far.disk.len() as u64 <= limits.disk + (1 << 19));
    }
}

#[test]
fn a_store_whose_part_of_the_disk_is_of_no_use_any_more_gives_its_files_up() {
    let (mut pair, content) = (pair(), random(1_000_000, 23));
    let all = limits();
    let set = |pair: &mut Pair, disk| {
        pair.far.dedup.set_limits(&Limits { disk, ..all });
        pair.far.dedup.receiver.store.flush();
        pair.exchange();
    };
    pair.send(LAN, &content, 64 * 1024);
    set(&mut pair, all.disk);
    assert!(pair.far.disk.len() > 1_000_000);
    set(&mut pair, 256 * 1024 - 1);
    assert!(pair.far.disk.is_empty());
    assert_eq!(pair.far.dedup.receiver.store.size().1, 0);
    // What comes now is kept in memory, and waits for no disk.
    for n in 0..4 {
        pair.send(LAN, &random(1_000_000, 30 + n), 64 * 1024);
        assert!(pair.far.dedup.receiver.store.size().0 <= all.memory);
    }
    assert!(pair.far.disk.is_empty());
    // There is room again.
    set(&mut pair, all.disk);
    pair.send(LAN, &content, 64 * 1024);
    set(&mut pair, all.disk);
    assert!(pair.far.disk.len() > 1_000_000);
    pair.restart_far(52);
    assert!(pair.send(LAN, &content, 64 * 1024) * 20 < content.len());
}

#[test]
fn references_under_way_are_bounded_by_the_window_of_their_content() {
    // L-DD-8
    let (mut pair, content) = (pair(), random(3_000_000, 11));
    pair.send(LAN, &content, 64 * 1024);
    let window = 200_000;
    let mut stream = Stream::new(&pair, 1, LAN, content.clone());
    // The far host takes nothing.
    for _ in 0..100 {
        stream.push(&mut pair, 64 * 1024);
        stream.pull(&mut pair, 1 << 20, window, true);
        assert!(pair.near.dedup.sender.sources() <= window);
    }
    let stuck = stream.pushed;
    assert!(stuck < window + 100_000, "the host is not read on: {stuck}");
    let mut turns = 0;
    while !stream.is_over() {
        let arrived = stream.wire.len();
        stream.take(&mut pair, arrived, 100_000).expect("items");
        stream.credit(&mut pair);
        stream.push(&mut pair, 64 * 1024);
        stream.pull(&mut pair, 1 << 20, window, true);
        pair.exchange();
        turns += 1;
        assert!(turns < 1000);
    }
    assert!(stream.got == content);
    stream.close(&mut pair);
}

#[test]
fn without_room_for_what_is_referred_to_it_goes_as_it_is() {
    let mut limits = limits();
    limits.sources = 50_000;
    let mut pair = Pair::new(limits);
    pair.exchange();
    let content = random(500_000, 12);
    pair.send(LAN, &content, 64 * 1024);
    let mut stream = Stream::new(&pair, 1, LAN, content.clone());
    while !stream.ended {
        stream.push(&mut pair, 64 * 1024);
        stream.pull(&mut pair, 1 << 20, WINDOW, true);
        assert!(pair.near.dedup.sender.sources() <= 50_000);
    }
    stream.pull(&mut pair, 1 << 20, WINDOW, true);
    let arrived = stream.wire.len();
    stream.take(&mut pair, arrived, usize::MAX).expect("items");
    pair.exchange();
    assert!(stream.got == content);
    stream.close(&mut pair);
}

#[test]
fn streams_that_rest_within_a_chunk_take_no_memory_from_others() {
    // L-DD-10
    let mut pair = Pair::new(Limits { assembling: 50_000, ..limits() });
    pair.exchange();
    let begun = |pair: &mut Pair, key: u64| {
        let mut stream = Stream::new(pair, key, LAN, random(3000, 500 + key));
        stream.push(pair, 1900);
        stream.pull(pair, 5000, WINDOW, true);
        let arrived = stream.wire.len();
        assert_eq!(stream.take(pair, arrived, usize::MAX), Ok(1900));
        assert!(pair.far.dedup.receiver.burden().2 <= 50_000);
        stream
    };
    let mut streams: Vec<Stream> = (10..110).map(|key| begun(&mut pair, key)).collect();
    let content = random(600_000, 19);
    let first = pair.send(LAN, &content, 1448);
    assert!(pair.send(LAN, &content, 1448) * 20 < first);
    for stream in &mut streams {
        stream.push(&mut pair, 3000);
        stream.pull(&mut pair, 5000, WINDOW, true);
        let arrived = stream.wire.len();
        stream.take(&mut pair, arrived, usize::MAX).expect("items");
        assert!(stream.got == stream.content);
        stream.close(&mut pair);
    }
    pair.exchange();
    assert_eq!(pair.far.dedup.receiver.burden().2, 0);
}

#[test]
fn what_is_typed_is_not_held_and_what_seems_known_not_for_long() {
    let (mut pair, content) = (pair(), random(100_000, 16));
    pair.send(LAN, &content, 64 * 1024);
    let mut stream = Stream::new(&pair, 1, LAN, b"ls -l\n".to_vec());
    stream.push(&mut pair, 100);
    stream.ended = true; // The host is still there.
    assert!(stream.pull(&mut pair, 1000, WINDOW, true) > 0, "at once");
    stream.close(&mut pair);
    // Nor is what begins like something known, while there is little of it.
    let mut stream = Stream::new(&pair, 1, LAN, content.clone());
    stream.push(&mut pair, 1000);
    assert!(stream.pull(&mut pair, 1000, WINDOW, true) >= 1000);
    stream.close(&mut pair);
    // Much of something known, and then nothing.
    let begun = |pair: &mut Pair| {
        let mut stream = Stream::new(pair, 1, LAN, content.clone());
        stream.push(pair, 50_000);
        assert!(stream.pull(pair, 60_000, WINDOW, true) < 1000, "whole chunks, and no more");
        assert!(stream.encoder.held() > 0);
        stream
    };
    let mut stream = begun(&mut pair);
    let until = stream.encoder.poll_timeout(&pair.near.dedup.sender).expect("a time");
    assert_eq!(until.since(pair.now), Duration::from_millis(20));
    pair.later(Duration::from_millis(20));
    let held = stream.encoder.held();
    assert!(stream.pull(&mut pair, 40_000, WINDOW, true) > held);
    stream.close(&mut pair);
    // The end of a message behind it, too short to be told from a known chunk.
    let (mut end, mut chunker) = (0, Chunker::default());
    while end < 40_000 {
        end += chunker.scan(&pair.keys, &content[end..]).expect("a boundary");
    }
    let message = [&content[..end], b"200 OK\r\nand then, later, more"].concat();
    let mut stream = Stream::new(&pair, 1, LAN, message);
    stream.push(&mut pair, end + 8);
    assert!(stream.pull(&mut pair, 60_000, WINDOW, true) < 1000);
    let until = stream.encoder.poll_timeout(&pair.near.dedup.sender).expect("a time");
    assert_eq!(until.since(pair.now), Duration::from_millis(4));
    pair.later(Duration::from_millis(4));
    assert!(stream.pull(&mut pair, 1000, WINDOW, true) > 0);
    stream.close(&mut pair);
    // A trickle of it is not held for ever.
    let mut stream = begun(&mut pair);
    let begin = pair.now;
    while stream.pull(&mut pair, 40_000, WINDOW, true) == 0 {
        pair.later(Duration::from_millis(10));
        stream.push(&mut pair, 1);
        assert!(pair.now.since(begin) <= Duration::from_millis(110));
    }
    stream.close(&mut pair);
}

#[test]
fn content_that_is_not_what_was_referred_to_ends_the_stream() {
    // L-DD-7: the peer answers with other bytes.
    let (mut pair, content) = (pair(), random(100_000, 17));
    pair.send(LAN, &content, 64 * 1024);
    let mut stream = Stream::new(&pair, 1, LAN, content);
    stream.push(&mut pair, 64 * 1024);
    stream.pull(&mut pair, 1 << 20, WINDOW, true);
    let lost: Vec<u64> = pair.far.dedup.receiver.store.numbers().collect();
    lost.into_iter().for_each(|n| pair.far.dedup.receiver.store.remove(n));
    let arrived = stream.wire.len();
    assert_eq!(stream.take(&mut pair, arrived, usize::MAX), Ok(0));
    let mut message = Vec::new();
    while pair.far.dedup.poll_message(false, &mut message) {
        if let Some(Message::Want(numbers)) = Message::read(&message) {
            for number in numbers {
                let mut bytes = Vec::new();
                Message::Bytes { number, content: &[7; 5000] }.write(&mut bytes);
                pair.far.dedup.handle_message(&bytes);
            }
        }
        message.clear();
    }
    assert_eq!(stream.take(&mut pair, arrived, usize::MAX), Err(Bad::Chunk));
    assert!(stream.got.is_empty());
    stream.close(&mut pair);
}

#[test]
fn the_two_sides_never_mean_different_chunks_by_a_number() {
    // L-DD-7: the receiver's store is another's, with the same numbers under the same epoch.
    let (mut pair, content) = (pair(), random(100_000, 18));
    pair.send(LAN, &content, 64 * 1024);
    let numbers: Vec<u64> = pair.far.dedup.receiver.store.numbers().collect();
    for number in numbers {
        pair.far.dedup.receiver.store.remove(number);
        pair.far.dedup.receiver.keep(number, &random(8000, number));
    }
    pair.send(LAN, &content, 64 * 1024);
    assert!(pair.far.dedup.receiver.asked() > 5);
}

#[test]
fn a_peer_that_names_and_asks_without_end_costs_bounded_memory() {
    // L-DD-10
    let limits = Limits { memory: 100_000, disk: 1 << 20, assembling: 50_000, ..limits() };
    let keys = Arc::new(Keys::new(&[1; 32]));
    let store = Store::new(keys.clone(), limits.memory, limits.disk, 1);
    let mut dedup = Dedup::new(keys, store, &limits);
    let mut disk = super::disk::Disk::default();
    let mut rng = Rng::new(4);
    for n in 0..20_000_u64 {
        dedup.receiver.keep(rng.below(1 << 40) + 1, &random(256 + rng.below(20) as usize, n));
        disk.serve(&mut dedup);
        let mut decoder = super::super::ItemDecoder::default();
        let _ = dedup.receiver.get(rng.below(1 << 40), [0; 8], n);
        let _ = decoder.show(&mut dedup.receiver, n, &[&[0x83, 0xe8], &[1; 250]]);
    }
    let (memory, on_disk) = dedup.receiver.store.size();
    assert!(memory <= 2 * limits.memory && on_disk <= limits.disk);
    assert!(dedup.receiver.store.len() <= 300, "{}", dedup.receiver.store.len());
    let (pending, news, assembling) = dedup.receiver.burden();
    assert!(pending <= 1024 && news <= 16 * 1024 + 1 && assembling <= 50_000);
    let mut want = Vec::new();
    Message::Want((1..60).collect()).write(&mut want);
    for _ in 0..1000 {
        dedup.handle_message(&want);
    }
    let mut message = Vec::new();
    while dedup.poll_message(true, &mut message) {
        assert!(message.len() < 20_000);
        message.clear();
    }
}
