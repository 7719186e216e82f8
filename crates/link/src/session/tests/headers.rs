//! Compressed headers and held packets (spec/link.md, "Header compression", L-OR-5).

use super::*;

fn internet_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Packet `n` of a call: IPv4, UDP, RTP and 20 bytes of voice that say which it is.
fn voice(call: u8, n: u32) -> Vec<u8> {
    let mut p = vec![0x45, 0xb8, 0, 60];
    p.extend((n as u16).to_be_bytes());
    p.extend([0x40, 0, 64, 17, 0, 0, 10, 1, 0, 2, 10, 2, 0, 2]);
    p.extend([0x40, call, 0x50, call, 0, 40, 0, 0]);
    p.extend([0x80, 18]);
    p.extend((n as u16).to_be_bytes());
    p.extend((160 * n).to_be_bytes());
    p.extend([0, 0, 0, call]);
    p.extend([call; 16]);
    p.extend(n.to_be_bytes());
    let pseudo = [&p[12..20], &[0, 17, 0, 40], &p[20..]].concat();
    let sum = internet_sum(&pseudo).to_be_bytes();
    p[26..28].copy_from_slice(&sum);
    let sum = internet_sum(&p[..20]).to_be_bytes();
    p[10..12].copy_from_slice(&sum);
    p
}

/// Calls of a minute, each with a packet every 20 ms at a time of its own; answers the
/// world and what arrived of how many.
fn calls(calls: u8, pipe: Pipe, config: LinkConfig, carry: Carry) -> (World, usize, u64) {
    let mut w = World::new(51, pipe, config);
    let begin = w.now;
    let mut got = 0;
    let mut longest = 0;
    let mut run = |w: &mut World, until: Instant| {
        let left = until.since(w.now);
        w.run(left, |w| {
            let now = w.now;
            while w.sides[1].take_datagram(|d| {
                let n = u32::from_be_bytes(*d.last_chunk().unwrap());
                assert_eq!(d, voice(d[55], n), "it arrives as it was sent");
                let sent = begin + at(d[55], n);
                longest = longest.max(now.since(sent).as_millis());
                got += 1;
            }) {}
        });
    };
    for n in 0..3000 {
        for call in 0..calls {
            run(&mut w, begin + at(call, n));
            let label = Label { carry, flow: u32::from(call), ..Label::default() };
            let class = ClassId::INTERACTIVE;
            assert!(w.sides[0].send_datagram(w.now, &voice(call, n), &Label { class, ..label }));
        }
    }
    let end = w.now + Duration::from_secs(5);
    run(&mut w, end);
    assert_eq!(w.sides[1].stats().violations, 0);
    (w, got, longest)
}

/// When packet `n` of a call is spoken.
fn at(call: u8, n: u32) -> Duration {
    Duration::from_micros(20_000 * u64::from(n) + 1_950 * u64::from(call))
}

/// What the packets of a minute take as they are.
const PLAIN: u64 = 3000 * 60;

fn narrow() -> LinkConfig {
    LinkConfig { send_rate: BitRate::from_kbps(512), ..config() }
}

/// L-HC-1, L-HC-3: 40 bytes of headers become three with the frame's own byte.
#[test]
fn a_call_s_headers_become_three_bytes_with_the_frame() {
    let (w, got, _) = calls(1, CLEAN, narrow(), Carry::Plain);
    assert_eq!(got, 3000);
    let [out, back] = [w.sides[0].stats(), w.sides[1].stats()];
    // A round trip of whole ones, and a byte more when the reference moves on.
    let least = (3000 - 60) * 38 - 100;
    assert!(out.header_bytes_saved_out >= least, "{} of {least}", out.header_bytes_saved_out);
    assert_eq!(out.header_bytes_saved_out, back.header_bytes_saved_in);
}

/// L-HC-4: what is lost, late or doubled never changes another.
#[test]
fn whatever_the_pipe_does_packets_arrive_as_they_were_sent() {
    for carry in [Carry::Plain, Carry::Unordered(None), Carry::Ordered] {
        let pipe = Pipe { loss: 0.1, reorder: 0.2, duplicate: 0.1 };
        let (w, got, _) = calls(2, pipe, narrow(), carry);
        let least = if carry == Carry::Plain { 5200 } else { 6000 };
        assert!(got >= least, "{carry:?}: {got}");
        if carry == Carry::Plain {
            assert!(w.sides[0].stats().header_bytes_saved_out > 5000 * 36);
        }
    }
}

/// L-HC-2: a node that keeps no headers gets none compressed.
#[test]
fn headers_stay_as_they_are_unless_both_want_it() {
    for off in 0..2 {
        let mut w = World::new(52, CLEAN, config());
        w.sides[off] = Session::new(w.now, LinkConfig { headers: false, ..config() }, off as u64);
        let params = [0, 1].map(|side| Params::decode(&w.sides[side].params().encode()).unwrap());
        w.sides[0].set_peer(params[1], false);
        w.sides[1].set_peer(params[0], false);
        let mut got = 0;
        for n in 0..200 {
            assert!(w.sides[0].send_datagram(w.now, &voice(1, n), &Label::default()));
            w.run(Duration::from_millis(20), |w| while w.sides[1].take_datagram(|_| got += 1) {});
        }
        w.run(Duration::from_secs(2), |w| while w.sides[1].take_datagram(|_| got += 1) {});
        assert_eq!(got, 200);
        assert_eq!(w.sides[0].stats().header_bytes_saved_out, 0);
    }
}

/// L-OR-5, R-HC: ten calls take at most 55 % of their packets' bytes on the link, all that
/// the link counts included, and are not late.
#[test]
fn ten_calls_take_little_more_than_half_of_their_bytes() {
    let mut classes = vec![ClassConfig::default(); 4];
    classes[1].hold = Some(Duration::from_millis(20));
    let (w, got, longest) = calls(10, CLEAN, LinkConfig { classes, ..narrow() }, Carry::Plain);
    assert_eq!(got, 30_000);
    // The reports that come back count too.
    let bytes: u64 = w.wire_bytes.iter().sum();
    let share = bytes as f64 / (10 * PLAIN) as f64;
    println!("{:.1} % of the bytes, {longest} ms at most", share * 100.0);
    assert!(share <= 0.55, "{share}");
    let way = config().rtt.divided_by(2).as_millis();
    assert!(longest <= way + 20 + 30, "{longest} ms");
    // Without it each has a packet of its own.
    let (w, _, _) = calls(10, CLEAN, narrow(), Carry::Plain);
    assert!(w.wire_bytes[0] > 10 * PLAIN);
}

/// L-OR-5: what waits for others goes with the first packet that leaves for another reason.
#[test]
fn held_packets_go_with_any_other_and_full_ones_at_once() {
    let mut classes = vec![ClassConfig::default(); 4];
    classes[1].hold = Some(Duration::from_millis(20));
    let mut w = World::new(53, CLEAN, LinkConfig { classes, ..config() });
    let label = Label { class: ClassId::INTERACTIVE, ..Label::default() };
    let arrives = |w: &mut World| {
        let (begin, mut first) = (w.now, None);
        w.run(Duration::from_secs(1), |w| {
            while w.sides[1].take_datagram(|_| ()) {
                first.get_or_insert(w.now.since(begin).as_millis());
            }
        });
        first.expect("it arrives") - config().rtt.divided_by(2).as_millis()
    };
    assert!(w.sides[0].send_datagram(w.now, &[7; 100], &label));
    assert!((20..25).contains(&arrives(&mut w)));
    assert!(w.sides[0].send_datagram(w.now, &[7; 100], &label));
    assert!(w.sides[0].send_datagram(w.now, &[8; 100], &Label { class: ClassId::BULK, ..label }));
    assert!(arrives(&mut w) < 5, "another leaves");
    for _ in 0..20 {
        assert!(w.sides[0].send_datagram(w.now, &[7; 100], &label));
    }
    assert!(arrives(&mut w) < 5, "they fill a packet");
}
