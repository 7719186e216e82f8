//! How small the headers of real flows become, and what bad links do to them.

mod payloads;

use proptest::prelude::*;
use units::{Duration, Rng, internet_sum};

use super::FORGET;
use super::fuzz::Pair;

/// Makes packets of one flow.
#[derive(Clone, Debug)]
struct Flow {
    v6: bool,
    transport: Transport,
    payload: usize,
    id: u16,
    steps: u32,
    /// A UDP checksum of zero.
    unsummed: bool,
    /// Its payloads are reports of a ship's instruments.
    text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Transport {
    Udp,
    Rtp,
    /// Data, or acknowledgements; with timestamps or without.
    Tcp {
        data: bool,
        timestamps: bool,
    },
    Echo,
    Esp,
    Gre,
}

impl Flow {
    fn new(v6: bool, transport: Transport, payload: usize) -> Flow {
        Flow { v6, transport, payload, id: 7, steps: 0, unsummed: false, text: false }
    }

    fn transport(&self) -> (u8, Vec<u8>, Option<usize>) {
        let n = self.steps;
        let udp = || [0xc3, 0x50, 0x13, 0xc4, 0, 0, 0, 0].to_vec();
        match self.transport {
            Transport::Udp => (17, udp(), Some(6)),
            Transport::Rtp => {
                let mut head = udp();
                head.extend([0x80, 18]);
                head.extend((65_500 + n as u16 as u32).to_be_bytes()[2..].iter());
                head.extend((0xffff_f000_u32.wrapping_add(160 * n)).to_be_bytes());
                head.extend([0xde, 0xad, 0xbe, 0xef]);
                (17, head, Some(6))
            }
            Transport::Tcp { data, timestamps } => {
                let mut head = vec![0x9c, 0x40, 0, 80];
                let grown = |per: u32| (0xffff_0000_u32.wrapping_add(n * per)).to_be_bytes();
                head.extend(if data { grown(self.payload as u32) } else { [0, 0, 9, 9] });
                head.extend(if data { [0, 0, 8, 8] } else { grown(2 * 1448) });
                head.extend([if timestamps { 0x80 } else { 0x50 }, 0x10, 0x10, 0, 0, 0, 0, 0]);
                if timestamps {
                    head.extend([1, 1, 8, 10]);
                    head.extend((1000 + n).to_be_bytes());
                    head.extend((5000 + n).to_be_bytes());
                }
                (6, head, Some(16))
            }
            Transport::Echo => {
                let mut head = vec![if self.v6 { 128 } else { 8 }, 0, 0, 0, 0x12, 0x34];
                head.extend((n as u16).to_be_bytes());
                (if self.v6 { 58 } else { 1 }, head, Some(2))
            }
            Transport::Esp => {
                let mut head = vec![0xc0, 0xff, 0xee, 1];
                head.extend((n + 1).to_be_bytes());
                (50, head, None)
            }
            Transport::Gre => (47, vec![0, 0, 8, 0], None),
        }
    }

    /// The next packet; its payload is drawn from `rng`.
    fn next(&mut self, rng: &mut Rng) -> Vec<u8> {
        let (protocol, head, sum_at) = self.transport();
        let len = head.len() + self.payload;
        let mut p = if self.v6 {
            let mut p = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, protocol, 60];
            p.extend((0..32).map(|i| if i < 16 { 0x20 } else { i }));
            p
        } else {
            let total = (20 + len) as u16;
            let mut p = vec![0x45, 0, (total >> 8) as u8, total as u8];
            p.extend(self.id.to_be_bytes());
            p.extend([0, 0, 63, protocol, 0, 0, 10, 1, 0, 2, 10, 2, 0, 2]);
            p
        };
        let ip = p.len();
        p.extend(&head);
        match self.text {
            false => p.extend((0..self.payload).map(|_| rng.below(256) as u8)),
            true => p.extend(report(rng).bytes().cycle().take(self.payload)),
        }
        if protocol == 17 {
            p[ip + 4..ip + 6].copy_from_slice(&(len as u16).to_be_bytes());
        }
        self.id = self.id.wrapping_add(1);
        self.steps += 1;
        if let Some(at) = sum_at.filter(|_| !self.unsummed) {
            set_sum(&mut p, ip, protocol, at);
        }
        if !self.v6 {
            let sum = internet_sum(&[&p[..20]]);
            p[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        p
    }
}

/// A sentence as instruments have it (NMEA 0183), with numbers that differ.
fn report(rng: &mut Rng) -> String {
    let mut n = |below| rng.below(below);
    format!(
        "$GPGGA,{:06},48{:02}.{:04},N,011{:02}.{:04},E,1,08,0.{},{}.{},M,46.9,M,,*{:02X}\r\n",
        n(240_000),
        n(60),
        n(10_000),
        n(60),
        n(10_000),
        n(10),
        n(900),
        n(10),
        n(256)
    )
}

fn set_sum(p: &mut [u8], ip: usize, protocol: u8, at: usize) {
    let addresses = if ip == 40 { 8..40 } else { 12..20 };
    let length = ((p.len() - ip) as u16).to_be_bytes();
    let pseudo = [&p[addresses], &[0, protocol], &length].concat();
    let pseudo = if protocol == 1 { vec![] } else { pseudo };
    let sum = internet_sum(&[&pseudo, &p[ip..]]);
    p[ip + at..ip + at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Sends `count` packets over a link on which `rtt` packets fit before a report of the
/// first comes; answers how many bytes each header became.
fn header_bytes(flow: &mut Flow, count: usize, rtt: usize) -> Vec<usize> {
    let (mut pair, mut rng) = (Pair::new(16), Rng::new(1));
    let mut out = vec![];
    for i in 0..count {
        let packet = flow.next(&mut rng);
        out.push(pair.send(&packet) - flow.payload);
        if i >= rtt {
            pair.arrive(0);
            pair.report(1);
        }
    }
    assert_eq!(pair.late, 0);
    out
}

/// After two packets and a round trip.
fn worst_when_steady(mut flow: Flow) -> usize {
    *header_bytes(&mut flow, 1000, 40)[44..].iter().max().unwrap()
}

const DATA: Transport = Transport::Tcp { data: true, timestamps: false };
const ACKS: Transport = Transport::Tcp { data: false, timestamps: false };

#[test]
fn steady_voice_takes_two_bytes_and_three_now_and_then() {
    for v6 in [false, true] {
        let mut flow = Flow::new(v6, Transport::Rtp, 20);
        let bytes = header_bytes(&mut flow, 1000, 40);
        assert!(bytes[44..].iter().all(|n| *n <= 3), "{bytes:?}");
        let two = bytes[44..].iter().filter(|n| **n == 2).count();
        assert!(two * 100 >= bytes[44..].len() * 97, "{two} of {}", bytes.len());
        flow.unsummed = true;
        assert!(worst_when_steady(flow) <= 3);
    }
}

/// Its flow as RTP and its flow as UDP are both looked for, and may meet in one place.
#[test]
fn a_call_from_any_port_is_compressed() {
    for port in 1024..5000_u16 {
        let (mut pair, mut rng) = (Pair::new(16), Rng::new(1));
        let mut flow = Flow::new(false, Transport::Rtp, 20);
        flow.unsummed = true;
        let mut last = 0;
        for _ in 0..8 {
            let mut packet = flow.next(&mut rng);
            packet[20..22].copy_from_slice(&port.to_be_bytes());
            last = pair.send(&packet) - flow.payload;
            pair.arrive(0);
            pair.report(1);
        }
        assert!(last <= 3, "from port {port}: {last}");
    }
}

#[test]
fn steady_flows_of_every_kind_take_what_is_promised() {
    for v6 in [false, true] {
        let worst = |transport, payload| worst_when_steady(Flow::new(v6, transport, payload));
        assert!(worst(DATA, 1448) <= 4, "TCP data: {}", worst(DATA, 1448));
        assert!(worst(ACKS, 0) <= 4, "acknowledgements: {}", worst(ACKS, 0));
        assert!(worst(Transport::Esp, 200) <= 3);
        assert!(worst(Transport::Echo, 56) <= 3);
        assert!(worst(Transport::Udp, 100) <= 3);
        // Its own header counts as payload.
        assert!(worst(Transport::Gre, 100) <= 3 + 4);
        let stamped = worst(Transport::Tcp { data: true, timestamps: true }, 1448);
        assert!(stamped <= 4, "TCP with timestamps: {stamped}");
    }
}

#[test]
fn irregular_tcp_stays_small() {
    // Segments of any length and acknowledgements of any step, as a shell session has.
    let (mut pair, mut rng) = (Pair::new(16), Rng::new(5));
    let (mut seq, mut ack) = (1_u32, 1_u32);
    let mut total = 0;
    for i in 0..500 {
        let mut flow = Flow::new(false, DATA, rng.below(60) as usize);
        flow.id = 100 + i as u16;
        let mut p = flow.next(&mut rng);
        p[24..28].copy_from_slice(&seq.to_be_bytes());
        p[28..32].copy_from_slice(&ack.to_be_bytes());
        p[33] = if rng.below(3) == 0 { 0x18 } else { 0x10 };
        seq += flow.payload as u32;
        ack += rng.below(300) as u32;
        p[36..38].fill(0);
        set_sum(&mut p, 20, 6, 16);
        total += pair.send(&p) - flow.payload;
        if i >= 10 {
            pair.arrive(0);
            pair.report(1);
        }
    }
    assert!(total < 500 * 11, "{} bytes each", total as f64 / 500.0);
}

#[test]
fn a_random_identification_costs_its_two_bytes() {
    let (mut pair, mut rng) = (Pair::new(16), Rng::new(3));
    let mut flow = Flow::new(false, Transport::Esp, 50);
    let mut last = 0;
    for i in 0..400 {
        flow.id = rng.below(65_536) as u16;
        last = pair.send(&flow.next(&mut rng)) - 50;
        if i >= 10 {
            pair.arrive(0);
            pair.report(1);
        }
    }
    assert!(last <= 5, "{last}");
}

/// L-HC-8.
#[test]
fn after_a_pause_nothing_refers_to_what_was_sent_before() {
    let (mut pair, mut rng) = (Pair::new(16), Rng::new(1));
    let mut flow = Flow::new(false, Transport::Udp, 20);
    let mut send = |pair: &mut Pair| {
        let bytes = pair.send(&flow.next(&mut rng)) - 20;
        pair.arrive(0);
        pair.report(1);
        bytes
    };
    let steady = |bytes: &[usize]| bytes[7] <= 3;
    assert!(steady(&[(); 8].map(|()| send(&mut pair))));
    pair.wait(FORGET - Duration::from_secs(1));
    assert!(send(&mut pair) <= 3, "a shorter pause is none");
    pair.wait(FORGET);
    pair.forget();
    // What arrives is what was sent, which `arrive` sees to.
    let after = [(); 8].map(|()| send(&mut pair));
    assert!(after[0] >= 28 && steady(&after), "{after:?}");
}

/// L-HC-3.
#[test]
fn packets_go_whole_until_a_reference_is_known_to_be_there() {
    let (mut pair, mut rng) = (Pair::new(16), Rng::new(1));
    let mut flow = Flow::new(false, Transport::Rtp, 20);
    for _ in 0..50 {
        assert!(pair.send(&flow.next(&mut rng)) >= 60);
    }
    while pair.under_way() > 0 {
        pair.arrive(0);
    }
    assert!(pair.send(&flow.next(&mut rng)) >= 60, "it arrived, but nobody said so");
    pair.report(10);
    assert_eq!(pair.send(&flow.next(&mut rng)), 22);
}

#[test]
fn a_question_that_is_asked_once_takes_no_context() {
    let (mut pair, mut rng) = (Pair::new(2), Rng::new(1));
    for port in 0..1000_u16 {
        let mut p = Flow::new(true, Transport::Udp, 30).next(&mut rng);
        p[40..42].copy_from_slice(&port.to_be_bytes());
        assert_eq!(pair.send(&p), p.len());
    }
}

#[test]
fn more_flows_than_contexts_take_them_only_from_idle_ones() {
    let (mut pair, mut rng) = (Pair::new(2), Rng::new(1));
    let mut flows: Vec<_> = (0..3_u8).map(|i| (i, Flow::new(true, Transport::Rtp, 20))).collect();
    let mut send = |pair: &mut Pair, i: usize| {
        let (name, flow) = &mut flows[i];
        let mut p = flow.next(&mut rng);
        p[40] = *name;
        p[46..48].fill(0);
        set_sum(&mut p, 40, 17, 6);
        let len = pair.send(&p);
        pair.arrive(0);
        pair.report(1);
        len
    };
    for round in 0..10 {
        let lens = [0, 1, 2].map(|i| send(&mut pair, i));
        if round > 5 {
            assert_eq!(lens, [22, 22, 80]);
        }
    }
    pair.wait(Duration::from_secs(6));
    send(&mut pair, 1);
    let lens = [0; 6].map(|_| send(&mut pair, 2));
    assert_eq!(lens[5], 22, "the first flow was idle");
    assert_eq!(send(&mut pair, 1), 22, "the second was not");
}

/// L-HC-5.
#[test]
fn what_is_no_whole_packet_goes_as_it_is() {
    let mut pair = Pair::new(4);
    let mut rng = Rng::new(9);
    let good = Flow::new(false, Transport::Udp, 40).next(&mut rng);
    let mut odd = vec![good.clone(), good[..30].to_vec(), vec![0x45], vec![0x60; 41], vec![9; 99]];
    let mut fragment = good.clone();
    fragment[6] = 0x20;
    let mut longer = good.clone();
    longer.push(0);
    let mut wrong = good;
    wrong[10] ^= 1;
    odd.extend([fragment, longer, wrong]);
    for p in odd.iter().skip(1).cycle().take(70) {
        pair.send(p);
        pair.arrive(0);
        pair.report(1);
    }
}

/// L-HC-1, L-HC-5.
#[test]
fn a_wrong_checksum_arrives_as_wrong_as_it_was() {
    let (mut pair, mut rng) = (Pair::new(4), Rng::new(2));
    let mut flow = Flow::new(false, Transport::Udp, 40);
    let mut len = 0;
    for i in 0..50 {
        let mut p = flow.next(&mut rng);
        if i % 3 == 0 {
            p[26] ^= 0x55;
        }
        len = pair.send(&p);
        pair.arrive(0);
        pair.report(1);
    }
    assert!(len < 48);
}

fn flows() -> impl Strategy<Value = Vec<Flow>> {
    let transport = prop_oneof![
        Just(Transport::Udp),
        Just(Transport::Rtp),
        any::<(bool, bool)>().prop_map(|(data, timestamps)| Transport::Tcp { data, timestamps }),
        Just(Transport::Echo),
        Just(Transport::Esp),
        Just(Transport::Gre),
    ];
    let flow = (any::<bool>(), transport, 0..200_usize, any::<u16>(), any::<bool>(), any::<bool>())
        .prop_map(|(v6, transport, payload, id, unsummed, text)| Flow {
            id,
            unsummed,
            text,
            ..Flow::new(v6, transport, payload)
        });
    proptest::collection::vec(flow, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// L-HC-5: loss, any order, copies deemed lost that come nonetheless, few contexts, fields that
    /// jump: what arrives is what was sent (asserted by the pair).
    #[test]
    fn whatever_happens_packets_arrive_as_they_were_sent(
        mut flows in flows(), seed in any::<u64>(), contexts in 1..5_usize, chaos in 0..40_u64,
    ) {
        let (mut pair, mut rng) = (Pair::new(contexts), Rng::new(seed));
        for _ in 0..600 {
            let which = rng.below(flows.len() as u64) as usize;
            let flow = &mut flows[which];
            if rng.below(100) < chaos {
                flow.steps = flow.steps.wrapping_add(rng.below(300) as u32);
                flow.payload = rng.below(300) as usize;
            }
            let mut p = flow.next(&mut rng);
            if rng.below(100) < chaos {
                // Any byte of it changes; sums may be wrong then.
                let at = rng.below(p.len().min(60) as u64) as usize;
                p[at] = p[at].wrapping_add(rng.below(256) as u8);
            }
            pair.send(&p);
            while pair.under_way() as u64 > rng.below(30) {
                let at = rng.below((pair.under_way() as u64).min(1 + chaos)) as usize;
                match rng.below(100) {
                    n if n < chaos => pair.lose(at),
                    n if n < 2 * chaos => {
                        pair.deem_lost(at);
                        break;
                    }
                    _ => pair.arrive(at),
                }
            }
            pair.report(rng.below(3) as usize);
            pair.wait(Duration::from_millis(rng.below(2000)));
        }
    }

    #[test]
    fn no_bytes_make_the_receiver_fall(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        super::fuzz::headers(&data);
    }
}

/// L-HC-4.
#[test]
fn what_is_late_by_a_reference_is_dropped_and_not_mistaken() {
    let (mut pair, mut rng) = (Pair::new(4), Rng::new(4));
    let mut flow = Flow::new(false, Transport::Rtp, 20);
    for i in 0..400 {
        pair.send(&flow.next(&mut rng));
        // Every fifth stays behind on the way and comes at the very end.
        if i % 5 == 4 {
            pair.deem_lost(pair.under_way() - 1);
        } else {
            pair.arrive(pair.under_way() - 1);
            pair.report(1);
        }
    }
    while pair.under_way() > 0 {
        pair.arrive(0);
    }
    assert!(pair.late > 20, "{}", pair.late);
}

#[test]
fn the_corpus_of_headers_replays() {
    corpus::replay("headers", super::fuzz::headers);
}
