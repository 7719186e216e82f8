//! Payloads of unsplit packets (L-HC-6, L-HC-7, R-COMPRESS).

use units::Instant;

use super::*;
use crate::headers::{Compressor, Decompressor, Refused};

/// R-COMPRESS: the flow's last payloads are what others are told by.
#[test]
fn payloads_that_repeat_themselves_shrink_and_those_that_do_not_are_left() {
    let bytes = |text, payload| {
        let mut flow = Flow { text, ..Flow::new(false, Transport::Udp, payload) };
        let (mut pair, mut rng, mut sum) = (Pair::new(16), Rng::new(1), 0);
        for i in 0..1000 {
            let packet = flow.next(&mut rng);
            sum += pair.send(&packet);
            if i >= 20 {
                pair.arrive(0);
                pair.report(1);
            }
        }
        assert_eq!(pair.late, 0);
        sum
    };
    let (text, noise) = (bytes(true, 72), bytes(false, 72));
    println!("72 bytes of text become {}, of noise {}", text / 1000, noise / 1000);
    assert!(text < 1000 * 53, "{text}");
    // Headers of 28 bytes become two or four.
    assert!(noise < 1000 * 77, "{noise}");
    let long = bytes(true, 1400);
    assert!(long < 1000 * 110, "{long}");
}

/// What would become a hundredth is padded (L-HC-6), and is no failure.
#[test]
fn a_payload_that_is_said_again_and_again_becomes_a_hundredth() {
    let mut p = Flow::new(false, Transport::Udp, 4000).next(&mut Rng::new(1));
    let mut pair = Pair::new(4);
    let mut len = 0;
    for _ in 0..50 {
        p[5] = p[5].wrapping_add(1);
        let sum = internet_sum(&[&p[..10], &[0, 0], &p[12..20]]);
        p[10..12].copy_from_slice(&sum.to_be_bytes());
        len = pair.send(&p);
        pair.arrive(0);
        pair.report(1);
    }
    // Only the last 2,048 bytes of it are remembered.
    assert!((1900..2100).contains(&len), "{len}");
    let mut flow = Flow { text: true, ..Flow::new(false, Transport::Udp, 8000) };
    for _ in 0..50 {
        len = pair.send(&flow.next(&mut Rng::new(1)));
        pair.arrive(0);
        pair.report(1);
    }
    assert!((80..100).contains(&len), "{len}");
}

/// Of hosts that speak through a tunnel, and of requests with secrets, none is told by another.
#[test]
fn tunnels_and_connections_are_not_compressed() {
    let saves = |transport, port: u16| {
        let (mut pair, mut rng) = (Pair::new(4), Rng::new(1));
        let mut flow = Flow { text: true, unsummed: port > 0, ..Flow::new(false, transport, 400) };
        (0..50).any(|_| {
            let mut p = flow.next(&mut rng);
            if port > 0 {
                p[22..24].copy_from_slice(&port.to_be_bytes());
            }
            let len = pair.send(&p);
            pair.arrive(0);
            pair.report(1);
            len < 400
        })
    };
    assert!(saves(Transport::Udp, 10_110) && saves(Transport::Echo, 0));
    let tcp = Transport::Tcp { data: true, timestamps: false };
    for transport in [tcp, Transport::Esp, Transport::Gre, Transport::Rtp] {
        assert!(!saves(transport, 0), "{transport:?}");
    }
    for port in [1701, 2152, 3544, 4341, 4754, 4755, 4789, 4790, 5247, 6080, 6081, 6635, 8472] {
        assert!(!saves(Transport::Udp, port), "port {port}");
    }
}

#[test]
fn a_payload_is_compressed_as_if_there_were_no_other_flow() {
    let run = |other: bool| {
        let (mut pair, mut rng) = (Pair::new(16), Rng::new(1));
        let mut flow = Flow { text: true, ..Flow::new(false, Transport::Udp, 72) };
        let mut beside = Flow { text: true, ..Flow::new(true, Transport::Udp, 72) };
        let mut lengths = vec![];
        for _ in 0..100 {
            let packet = flow.next(&mut rng);
            lengths.push(pair.send(&packet));
            if other {
                pair.send(&beside.next(&mut Rng::new(7)));
                pair.arrive(1);
            }
            pair.arrive(0);
            pair.report(2);
        }
        lengths
    };
    assert_eq!(run(false), run(true));
}

/// A bomb is one packet that is not there, and what follows is.
#[test]
fn what_expands_beyond_bounds_or_refers_to_other_payloads_is_refused() {
    let (mut sender, mut receiver) = (Compressor::new(4), Decompressor::new(4));
    let mut flow = Flow { text: true, ..Flow::new(false, Transport::Udp, 400) };
    let (mut rng, mut out, mut bodies) = (Rng::new(1), Vec::new(), Vec::new());
    for number in 0..8 {
        let packet = flow.next(&mut rng);
        let head = sender.compress(Instant::ZERO, &packet, true);
        let body = head.map(|h| [h.bytes(), sender.packed(), &packet[h.skips..]].concat());
        let token = sender.on_left(&packet, body.is_some());
        if let Some(body) = body {
            assert_eq!(receiver.decompress(number, &body, &mut out), Ok(()));
            token.into_iter().for_each(|t| sender.on_fate(t, true));
            bodies.push((head.unwrap().bytes().len(), body));
        }
    }
    let (head, honest) = bodies.pop().unwrap();
    let (head, frame) = honest.split_at(head);
    assert!(frame.len() < 200, "it is compressed: {}", frame.len());
    // A frame of one repeated byte (RFC 8878, 3.1.1.2.3) that becomes 8,000.
    let bomb = [&[0x60, 0x40, 0x1e][..], &(8000_u32 << 3 | 3).to_le_bytes()[..3], &[7]].concat();
    let before = out.len();
    for forged in [&bomb[..], &frame[..frame.len() - 1], &[], &noise(300)] {
        let body = [head, forged].concat();
        assert_eq!(receiver.decompress(100, &body, &mut out), Err(Refused::Malformed));
    }
    assert_eq!(out.len(), before);
    assert_eq!(receiver.decompress(100, &honest, &mut out), Ok(()));
}

/// One for which there was no room in a link packet comes again with the next.
#[test]
fn a_payload_that_is_shown_again_is_worked_on_once_and_fails_once() {
    let run = |shown: usize, text| {
        let mut flow = Flow { text, unsummed: true, ..Flow::new(false, Transport::Udp, 400) };
        let (mut c, mut rng, mut lengths) = (Compressor::new(4), Rng::new(1), vec![]);
        for n in 0..300 {
            let mut packet = flow.next(&mut rng);
            packet[28] = b'$'; // No RTP.
            let mut head = None;
            // The second that is seen of a flow gets it a context.
            for _ in 0..if n == 0 { 1 } else { shown } {
                head = c.compress(Instant::ZERO, &packet, true);
            }
            lengths.push(head.map_or(packet.len(), |h| h.len_of(packet.len())));
            let token = c.on_left(&packet, head.is_some());
            token.into_iter().for_each(|t| c.on_fate(t, true));
        }
        (lengths, c.runs())
    };
    for text in [false, true] {
        let (once, thrice) = (run(1, text), run(3, text));
        println!("of 300 payloads {} were worked on", once.1);
        assert!(once == thrice, "{once:?} {thrice:?}");
    }
}

/// What a host sent is content, also where it begins like a dictionary of zstd's own (RFC 8878, 5).
#[test]
fn payloads_that_begin_like_a_dictionary_are_told_by_each_other() {
    let mut flow = Flow { unsummed: true, ..Flow::new(false, Transport::Udp, 400) };
    let (mut pair, mut len) = (Pair::new(4), 0);
    for _ in 0..20 {
        let mut packet = flow.next(&mut Rng::new(1));
        packet[28..32].copy_from_slice(&0xec30_a437_u32.to_le_bytes());
        len = pair.send(&packet);
        pair.arrive(0);
        pair.report(1);
    }
    assert!(len < 40, "{len}");
}

fn noise(n: usize) -> Vec<u8> {
    let mut rng = Rng::new(5);
    (0..n).map(|_| rng.below(256) as u8).collect()
}
