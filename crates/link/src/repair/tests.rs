//! Both ends over losses.

use units::{Ratio, Rng};

use super::*;
use crate::wire::Writer;

const PLAINTEXT: usize = 1400;

fn plaintext(number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let len = if number.is_multiple_of(5) { rng.below(PLAINTEXT as u64) } else { PLAINTEXT as u64 };
    // No question, whose symbol is empty.
    (0..len.max(8)).map(|_| rng.below(256) as u8).collect()
}

fn hint(number: u64) -> u8 {
    [0, 2, 3, 4][number as usize % 4]
}

/// Sends `sources` packets with a repair after every `interval` over losses; answers how
/// many were lost, and how many of them came back.
fn send(seed: u64, sources: u64, interval: u64, window: u64, loss: f64) -> (usize, usize) {
    let mut rng = Rng::new(seed);
    let (mut encoder, mut decoder) = (FecEncoder::default(), FecDecoder::default());
    decoder.make_room(MAX_WINDOW, PLAINTEXT);
    let (mut lost, mut back) = (std::collections::BTreeSet::new(), 0);
    let mut content = Vec::new();
    for number in 0..sources {
        let dropped = rng.chance(Ratio::from_f64(loss));
        if number % interval == interval - 1 {
            let mut buf = [0; PLAINTEXT + 3];
            let mut w = Writer::new(&mut buf);
            let from = number.saturating_sub(window);
            assert!(encoder.write(number, from, Purpose::Flow(interval), &mut w).is_some());
            let len = w.len();
            if !dropped {
                decoder.on_repair(number, &buf[..len]).expect("well formed");
            }
        } else {
            let packet = plaintext(number);
            encoder.keep(number, hint(number), &packet, MAX_WINDOW, PLAINTEXT);
            if dropped {
                lost.insert(number);
            } else {
                decoder.on_packet(number, hint(number), &packet);
            }
        }
        while let Some((n, h)) = decoder.next_recovered(&mut content) {
            assert!(lost.contains(&n), "{n} was not lost");
            assert_eq!((h, &content), (hint(n), &plaintext(n)));
            back += 1;
        }
        assert!(!decoder.take_contradiction());
    }
    (lost.len(), back)
}

#[test]
fn what_is_lost_comes_back_by_the_code_alone() {
    for (seed, packets, loss) in [(1, 100_000, 0.001), (2, 50_000, 0.01), (3, 20_000, 0.1)] {
        let code =
            BulkCode::new(LossModel::independent(loss), (2625.0, 2048.0), 5.6e6, true, false)
                .expect("coded");
        let (lost, back) = send(seed, packets, code.interval, code.window, loss);
        println!("{loss}: {back} of {lost} by {code:?}");
        assert!(lost > 0 && back * 100 >= lost * 90, "{loss}: {back} of {lost}");
    }
}

#[test]
fn one_repair_after_each_packet_is_a_copy() {
    let (lost, back) = send(4, 2_000, 2, 1, 0.2);
    assert!(lost > 100 && back * 100 / lost >= 74, "{back} of {lost}");
}

/// REPAIR packet `number` over all before it goes from one end to the other.
fn repair_all(encoder: &mut FecEncoder, decoder: &mut FecDecoder, number: u64) {
    let mut buf = [0; PLAINTEXT + 3];
    let mut w = Writer::new(&mut buf);
    encoder.write(number, 0, Purpose::Flow(0), &mut w).expect("there is something to combine");
    let len = w.len();
    decoder.on_repair(number, &buf[..len]).expect("well formed");
}

#[test]
fn a_packet_that_comes_late_serves_the_equations() {
    let (mut encoder, mut decoder) = (FecEncoder::default(), FecDecoder::default());
    decoder.make_room(64, PLAINTEXT);
    let mut content = Vec::new();
    for number in 0..10 {
        encoder.keep(number, hint(number), &plaintext(number), 64, PLAINTEXT);
        if !(3..6).contains(&number) {
            decoder.on_packet(number, hint(number), &plaintext(number));
        }
    }
    for number in 10..12 {
        repair_all(&mut encoder, &mut decoder, number);
    }
    assert_eq!(decoder.next_recovered(&mut content), None);
    decoder.on_packet(3, hint(3), &plaintext(3));
    let mut back = Vec::new();
    while let Some((n, _)) = decoder.next_recovered(&mut content) {
        assert_eq!(content, plaintext(n));
        back.push(n);
    }
    back.sort_unstable();
    assert_eq!(back, [4, 5]);
}

#[test]
fn repair_that_contradicts_what_came_back_is_noticed() {
    for honest in [true, false] {
        let (mut encoder, mut decoder) = (FecEncoder::default(), FecDecoder::default());
        decoder.make_room(64, PLAINTEXT);
        for number in 0..10 {
            encoder.keep(number, hint(number), &plaintext(number), 64, PLAINTEXT);
            // What the peer combines is not what it sent.
            let sent = if honest || number != 7 { number } else { 1_007 };
            if number != 3 {
                decoder.on_packet(number, hint(number), &plaintext(sent));
            }
        }
        repair_all(&mut encoder, &mut decoder, 10);
        assert!(!decoder.take_contradiction(), "one equation alone says nothing of it");
        repair_all(&mut encoder, &mut decoder, 11);
        assert_eq!(decoder.take_contradiction(), !honest);
        assert!(!decoder.take_contradiction());
    }
}

#[test]
fn random_repairs_never_panic_and_take_bounded_memory() {
    let mut rng = Rng::new(9);
    let mut decoder = FecDecoder::default();
    decoder.make_room(MAX_WINDOW, PLAINTEXT);
    let mut content = Vec::new();
    for number in 0..5_000u64 {
        let bytes: Vec<u8> = (0..rng.below(60)).map(|_| rng.below(256) as u8).collect();
        match rng.below(3) {
            0 => decoder.on_packet(number, hint(number), &bytes),
            1 => drop(decoder.on_repair(number, &bytes)),
            _ => drop(decoder.on_repair(rng.below(1 << 40), &bytes)),
        }
        while decoder.next_recovered(&mut content).is_some() {}
        assert!(decoder.equations() <= 128);
    }
}

/// L-RP-1: a tail behind a steady flow reaches as far as any, and a REPAIR packet in its
/// window that was lost is only one more that is missing.
#[test]
fn a_tail_reaches_back_over_the_repair_packets_of_a_flow() {
    let (mut encoder, mut decoder) = (FecEncoder::default(), FecDecoder::default());
    decoder.make_room(MAX_WINDOW, PLAINTEXT);
    let (last, interval) = (3_000, 48);
    let lost = [1_200, 1_919, 2_500, 2_990];
    let mut buf = [0; PLAINTEXT + 3];
    let mut content = Vec::new();
    for number in 0..last + 8 {
        let mut w = Writer::new(&mut buf);
        if number >= last {
            // No byte is left for more than the head.
            let covers = encoder.write(number, number - 1_920, Purpose::Flow(0), &mut w);
            assert_eq!(covers, Some(number - 1_920..number));
            assert_eq!(w.len(), PLAINTEXT + 3);
            decoder.on_repair(number, &buf).expect("well formed");
        } else if number % interval == interval - 1 {
            assert!(encoder.write(number, number - 1, Purpose::Flow(interval), &mut w).is_some());
            let len = w.len();
            if !lost.contains(&number) {
                decoder.on_repair(number, &buf[..len]).expect("well formed");
            }
        } else {
            encoder.keep(number, hint(number), &plaintext(number), MAX_WINDOW, PLAINTEXT);
            if !lost.contains(&number) {
                decoder.on_packet(number, hint(number), &plaintext(number));
            }
        }
    }
    assert_eq!(lost[1] % interval, interval - 1, "one of them is REPAIR");
    let mut back = Vec::new();
    while let Some((n, _)) = decoder.next_recovered(&mut content) {
        assert_eq!(content, plaintext(n));
        back.push(n);
    }
    back.sort_unstable();
    assert_eq!(back, [1_200, 2_500, 2_990]);
}

#[test]
fn a_window_reaches_back_over_nothing_that_was_not_kept() {
    let mut encoder = FecEncoder::default();
    for number in (0..100).filter(|n| *n != 60) {
        encoder.keep(number, 0, &plaintext(number), 128, PLAINTEXT);
    }
    let mut buf = [0; PLAINTEXT + 3];
    let covers = encoder.write(100, 0, Purpose::Flow(0), &mut Writer::new(&mut buf));
    let first = covers.expect("some were kept").start;
    assert!((61..66).contains(&first), "{first}");
    // A question filled up to any length is kept as nothing.
    let mut question = vec![0; PLAINTEXT];
    question[0] = 1;
    let mut encoder = FecEncoder::default();
    encoder.keep(7, 0, &plaintext(7), 128, PLAINTEXT);
    encoder.keep(8, 0, &question, 128, PLAINTEXT);
    let mut w = Writer::new(&mut buf);
    assert_eq!(encoder.write(9, 7, Purpose::Flow(0), &mut w), Some(7..9));
}

/// L-RP-7: windows are told in steps, and the first packets of a tail are in all of them.
#[test]
fn windows_reach_to_the_first_packet_of_a_tail() {
    let mut encoder = FecEncoder::default();
    let mut buf = [0; PLAINTEXT + 3];
    for number in 0..700 {
        encoder.keep(number, 0, &plaintext(number), 1024, PLAINTEXT);
    }
    for number in 700..710 {
        let mut w = Writer::new(&mut buf);
        let covers = encoder.write(number, 400, Purpose::Tail(700), &mut w).expect("written");
        assert!((360..=400).contains(&covers.start) && covers.end == 700, "{covers:?}");
    }
}

/// L-RP-13: where a burst took the packet that a user waits for and others' data after it, one
/// repair packet brings back the first, though not the rest; up to 96 packets later.
#[test]
fn the_repair_of_a_tail_leaves_out_what_left_after_it() {
    const TAIL: u64 = 50;
    const BURST: u64 = 5;
    for (later, comes_back) in [(10, true), (96, true), (97, false)] {
        let (mut encoder, mut decoder) = (FecEncoder::default(), FecDecoder::default());
        decoder.make_room(MAX_WINDOW, PLAINTEXT);
        let number = TAIL + 1 + later;
        for n in 0..number {
            encoder.keep(n, hint(n), &plaintext(n), MAX_WINDOW, PLAINTEXT);
            if !(TAIL..TAIL + BURST).contains(&n) {
                decoder.on_packet(n, hint(n), &plaintext(n));
            }
        }
        let mut buf = [0; PLAINTEXT + 3];
        let mut w = Writer::new(&mut buf);
        let covers = encoder.write(number, TAIL, Purpose::Tail(TAIL + 1), &mut w).expect("kept");
        assert_eq!(covers.end, if comes_back { TAIL + 1 } else { number });
        let len = w.len();
        decoder.on_repair(number, &buf[..len]).expect("well formed");
        let mut content = Vec::new();
        let back = decoder.next_recovered(&mut content).map(|(n, _)| n);
        assert_eq!(back, comes_back.then_some(TAIL));
        assert!(!comes_back || content == plaintext(TAIL));
    }
}

/// L-RP-3: it may be too long for the path, and must not be reported.
#[test]
fn a_question_that_is_solved_for_does_not_come_back() {
    let (mut encoder, mut decoder) = (FecEncoder::default(), FecDecoder::default());
    decoder.make_room(64, PLAINTEXT);
    let mut question = vec![0; 1_000];
    question[0] = 1;
    for number in 0..10 {
        let packet = if number == 4 { question.clone() } else { plaintext(number) };
        encoder.keep(number, 0, &packet, 64, PLAINTEXT);
        if number != 4 && number != 7 {
            decoder.on_packet(number, 0, &packet);
        }
    }
    let (mut content, mut back) = (Vec::new(), Vec::new());
    for number in 10..12 {
        repair_all(&mut encoder, &mut decoder, number);
        while let Some((n, _)) = decoder.next_recovered(&mut content) {
            back.push(n);
        }
    }
    assert_eq!(back, [7]);
}

/// L-RP-10.
#[test]
fn what_repair_costs_is_bounded_by_its_bytes() {
    let mut decoder = FecDecoder::default();
    decoder.make_room(MAX_WINDOW, PLAINTEXT);
    // Empty symbols over every other packet: each is added to a hundred equations.
    let dearest = |n: u64| (MAX_WINDOW as u64 + 2 * n, [header::code_of(255), 0]);
    for n in 0..3_000 {
        let (number, payload) = dearest(n);
        decoder.on_repair(number, &payload).expect("well formed");
    }
    let dropped = decoder.take_too_dear();
    assert!((1_500..3_000).contains(&dropped), "{dropped}");
    // A full one is worked out all the same.
    let (number, payload) = dearest(3_000);
    decoder.on_repair(number, &[&payload[..], &[1; PLAINTEXT]].concat()).expect("well formed");
    assert_eq!(decoder.take_too_dear(), 0);
    // Who has contradicted himself has spent what he has spent.
    let earned = (3_001..3_100).map(dearest).take_while(|(number, payload)| {
        decoder.on_repair(*number, payload).expect("well formed");
        decoder.take_too_dear() == 0
    });
    let earned = earned.count();
    assert!(earned < 99, "a full packet earns {earned}");
    decoder.release();
    decoder.make_room(MAX_WINDOW, PLAINTEXT);
    let (number, payload) = dearest(3_101);
    decoder.on_repair(number, &payload).expect("well formed");
    assert_eq!(decoder.take_too_dear(), 1);
}

/// Not a test of anything: `cargo test -p link --release -- --ignored --nocapture worst_repairs`
/// prints what the dearest REPAIR packets cost here, and for each byte of them.
#[test]
#[ignore = "a measurement"]
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
fn worst_repairs() {
    use std::time::{Duration, Instant};
    type Make<'a> = &'a dyn Fn(u64) -> (u64, Vec<u8>);
    let run = |name: &str, packets: u64, make: Make<'_>| {
        let mut decoder = FecDecoder::default();
        decoder.make_room(MAX_WINDOW, PLAINTEXT);
        for n in 0..MAX_WINDOW as u64 {
            decoder.on_packet(n, 0, &plaintext(n));
        }
        let (mut worst, mut all, mut bytes, mut content) =
            (Duration::ZERO, Duration::ZERO, 0, vec![]);
        for i in 0..packets {
            let (number, payload) = make(i);
            let begin = Instant::now();
            let _ = decoder.on_repair(number, &payload);
            while decoder.next_recovered(&mut content).is_some() {}
            let took = begin.elapsed();
            worst = worst.max(took);
            all += took;
            bytes += payload.len() + 25;
        }
        println!(
            "{name}: {:.0} µs on average, {:.0} at worst, {:.0} ns a byte",
            all.as_secs_f64() * 1e6 / packets as f64,
            worst.as_secs_f64() * 1e6,
            all.as_secs_f64() * 1e9 / bytes as f64
        );
    };
    let after = 2 * MAX_WINDOW as u64;
    let window = |n: usize| header::code_of(n);
    run("a full symbol over 2,048 that arrived", 500, &|i| {
        (2_048 + i, [&[window(MAX_WINDOW), 0][..], &[1; PLAINTEXT + 1]].concat())
    });
    run("a full symbol over 2,047 that arrived and one that did not", 500, &|i| {
        (2_049 + 2 * i, [&[window(MAX_WINDOW), 0][..], &[1; PLAINTEXT + 1]].concat())
    });
    // 127 equations about the same 128 packets; then others.
    run("an empty symbol over 128 that are missing", 127 * 40, &|i| {
        let (group, n) = (i / 127, i % 127);
        let number = after + group * 400 + 128 + n;
        (number, vec![window(128 + n as usize), 0])
    });
    run("an empty symbol over every other", 5_000, &|i| (after + 2 * i, vec![window(255), 0]));
    run("an empty symbol over one in three", 5_000, &|i| (after + 3 * i / 2, vec![window(192), 0]));
}
