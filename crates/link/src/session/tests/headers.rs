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
    assert!(out.datagram_bytes_saved_out >= least, "{} of {least}", out.datagram_bytes_saved_out);
    assert_eq!(out.datagram_bytes_saved_out, back.datagram_bytes_saved_in);
}

/// L-HC-4, L-DG-7: what is lost, late or doubled never changes another.
#[test]
fn whatever_the_pipe_does_packets_arrive_as_they_were_sent() {
    for carry in [Carry::Plain, Carry::Ordered] {
        let pipe = Pipe { loss: 0.1, reorder: 0.2, duplicate: 0.1 };
        let (w, got, _) = calls(2, pipe, narrow(), carry);
        let least = if carry == Carry::Plain { 5200 } else { 6000 };
        assert!(got >= least, "{carry:?}: {got}");
        match carry {
            Carry::Plain => assert!(w.sides[0].stats().datagram_bytes_saved_out > 5000 * 36),
            Carry::Ordered => assert!(w.sides[0].stats().datagram_bytes_saved_out > 5990 * 37),
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
        w.sides[0].set_peer(params[1]);
        w.sides[1].set_peer(params[0]);
        let mut got = 0;
        for n in 0..200 {
            assert!(w.sides[0].send_datagram(w.now, &voice(1, n), &Label::default()));
            w.run(Duration::from_millis(20), |w| while w.sides[1].take_datagram(|_| got += 1) {});
        }
        w.run(Duration::from_secs(2), |w| while w.sides[1].take_datagram(|_| got += 1) {});
        assert_eq!(got, 200);
        assert_eq!(w.sides[0].stats().datagram_bytes_saved_out, 0);
    }
}

/// A report of a ship's instruments in a UDP packet.
fn report(n: u32) -> Vec<u8> {
    let (a, b) = (n.wrapping_mul(2_654_435_761) >> 8, n.wrapping_mul(40_503) >> 4);
    let text = format!(
        "$GPGGA,{:06},48{:02}.{:04},N,01131.{:04},E,1,08,0.9,545.4,M,46.9,M,,*{:02X}\r\n\
         $GPVTG,{:03}.7,T,034.4,M,005.5,N,010.2,K*48\r\n",
        n,
        a % 60,
        a % 10_000,
        b % 10_000,
        a % 256,
        b % 360
    );
    let len = 28 + text.len() as u16;
    let mut p = vec![0x45, 0];
    p.extend(len.to_be_bytes());
    p.extend((n as u16).to_be_bytes());
    p.extend([0x40, 0, 64, 17, 0, 0, 10, 1, 0, 2, 10, 2, 0, 2, 0x27, 0x10, 0x27, 0x10]);
    p.extend((len - 20).to_be_bytes());
    p.extend([0, 0]);
    p.extend(text.bytes());
    let sum = internet_sum(&p[..20]).to_be_bytes();
    p[10..12].copy_from_slice(&sum);
    p
}

/// A thousand reports, ten a second; answers what part of their bytes was not sent.
fn reports(config: LinkConfig, other: LinkConfig, label: Label) -> f64 {
    let pipe = Pipe { loss: 0.05, reorder: 0.1, duplicate: 0.05 };
    let mut w = World::new(54, pipe, config.clone());
    w.sides = [Session::new(w.now, config, 0), Session::new(w.now, other, 1)];
    let params = [0, 1].map(|side| Params::decode(&w.sides[side].params().encode()).unwrap());
    w.sides[0].set_peer(params[1]);
    w.sides[1].set_peer(params[0]);
    let (mut got, mut bytes) = (0, 0);
    for n in 0..1000 {
        let packet = report(n);
        bytes += packet.len();
        assert!(w.sides[0].send_datagram(w.now, &packet, &label));
        w.run(Duration::from_millis(100), |w| {
            while w.sides[1].take_datagram(|d| {
                let text = std::str::from_utf8(&d[28..]).expect("a report");
                let n = text[7..].split(',').next().and_then(|n| n.parse().ok());
                assert_eq!(d, report(n.expect("its number")));
                got += 1;
            }) {}
        });
    }
    assert!(got > 920, "{got}");
    assert_eq!(w.sides[1].stats().violations, 0);
    w.sides[0].stats().datagram_bytes_saved_out as f64 / bytes as f64
}

/// L-HC-6, L-HC-7, R-COMPRESS: payloads shrink where the link is slow, both nodes compress and
/// no rule says otherwise; headers do in any case.
#[test]
fn payloads_of_packets_are_told_by_those_before() {
    let config = LinkConfig { history: ByteCount(1 << 20), ..narrow() };
    let label = Label { compress: Compress::All, ..Label::default() };
    let all = reports(config.clone(), config.clone(), label);
    let ordered = Label { carry: Carry::Ordered, ..label };
    let in_order = reports(config.clone(), config.clone(), ordered);
    println!("{:.0} % saved, {:.0} % in order", all * 100.0, in_order * 100.0);
    assert!(all > 0.55 && in_order > 0.55, "{all} {in_order}");
    let plain = Label { compress: Compress::Headers, ..label };
    let fast = LinkConfig { send_rate: BitRate::from_mbps(30), ..config.clone() };
    let none = LinkConfig { history: ByteCount(0), ..config.clone() };
    for (mine, other, label) in
        [(&config, &config, plain), (&config, &none, label), (&fast, &config, label)]
    {
        let saved = reports(mine.clone(), other.clone(), label);
        assert!((0.15..0.19).contains(&saved), "headers alone: {saved}");
    }
    for label in [label, ordered] {
        let nothing = Label { compress: Compress::Nothing, ..label };
        let saved = reports(config.clone(), config.clone(), nothing);
        assert!(saved.abs() < 0.001, "nothing is compressed: {saved}");
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

/// A clock that goes on by a microsecond with each look at it.
fn tick() -> Instant {
    thread_local!(static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    LOOKS.set(LOOKS.get() + 1);
    Instant::from_nanos(1000 * LOOKS.get())
}

/// R-COMPRESS: what payloads cost is told at both nodes, each of them once: those too that found
/// no room in their first link packet, and those of streams that are over.
#[test]
fn the_time_that_payloads_take_is_counted() {
    let config = LinkConfig { history: ByteCount(1 << 20), ..narrow() };
    for carry in [Carry::Plain, Carry::Ordered] {
        let mut w = World::new(55, CLEAN, config.clone());
        w.sides.iter_mut().for_each(|side| side.set_stopwatch(Some(tick)));
        let label = Label { compress: Compress::All, carry, ..Label::default() };
        let mut n = 0;
        // First one by one; then many at once, which share link packets.
        for count in [[1; 10], [99; 10]].concat() {
            for _ in 0..count {
                assert!(w.sides[0].send_datagram(w.now, &report(n), &label));
                n += 1;
            }
            w.run(Duration::from_secs(1), |w| while w.sides[1].take_datagram(|_| {}) {});
        }
        let took = [0, 1].map(|side: usize| w.sides[side].stats().datagram_cpu.as_micros());
        println!("{carry:?}: {took:?}");
        assert!(took.iter().all(|n| (900..=1000).contains(n)), "{carry:?}: {took:?}");
        let lanes: Vec<_> = w.sides[0].lanes.values().map(|lane| lane.id).collect();
        for id in lanes {
            w.sides[0].reset(w.now, id, ResetReason::HostReset, false);
            w.sides[0].release(w.now, id);
        }
        w.run(Duration::from_secs(5), |_| {});
        let then = [0, 1].map(|side: usize| w.sides[side].stats().datagram_cpu.as_micros());
        assert_eq!(then, took);
        w.sides.iter_mut().for_each(|side| side.set_stopwatch(None));
        assert!(w.sides[0].send_datagram(w.now, &report(0), &label));
        assert_eq!(w.sides[0].stats().datagram_cpu.as_micros(), took[0]);
    }
}
