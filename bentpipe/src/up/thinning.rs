//! Floods, thinned by the kernel before they take the place of others' packets in the socket:
//! `link::endpoint::Thinning` says what is thinned, and how much. A program reads the header for it
//! (spec, "Packet protection" and "Handshake"), like that of [`steering`](super::steering).

use link::endpoint::Thinning;
use os::udp::Instruction::{self, And, Byte, Half, Random, Skip, SkipBelow, SkipUnless, Word};
use os::udp::filter::{CONTENT, DROP, PASS};

const INITIATION: u32 = 1;
const RESPONSE: u32 = 2;
const COOKIE_REPLY: u32 = 3;
/// Indices that are compared one after another; of more, one half is left aside each time.
const FEW: usize = 8;

/// The program. What is shorter than a header does not pass.
pub fn program(thinning: &Thinning) -> Vec<Instruction> {
    let mut all = vec![Byte(CONTENT), SkipUnless(INITIATION, 5)];
    all.extend(one_of(thinning.calls));
    // All that have an index load it and go on behind what strangers get.
    all.extend([SkipUnless(RESPONSE, 2), Word(CONTENT + 6), Skip(15)]);
    all.extend([SkipUnless(COOKIE_REPLY, 2), Word(CONTENT + 2), Skip(12)]);
    // A data packet, and the code of its index's length.
    all.push(And(0xe0));
    all.extend([SkipUnless(0xc0, 2), Half(CONTENT + 1), Skip(8)]);
    all.extend([SkipUnless(0xe0, 2), Word(CONTENT + 1), Skip(5)]);
    all.extend(one_of(thinning.strangers));
    for (index, n) in &thinning.over {
        all.push(SkipUnless(*index, 5));
        all.extend(one_of(*n));
    }
    match thinning.strangers {
        0 => all.push(PASS),
        n => all.extend(among(&thinning.known, n)),
    }
    all
}

/// One of 2^n passes.
fn one_of(n: u8) -> [Instruction; 5] {
    [Random, And((1 << n) - 1), SkipUnless(0, 1), PASS, DROP]
}

/// What was loaded passes if it is among these numbers, which are in their order; of others one of
/// 2^n.
fn among(known: &[u32], n: u8) -> Vec<Instruction> {
    if known.len() <= FEW {
        let compare = known.iter().flat_map(|index| [SkipUnless(*index, 1), PASS]);
        return compare.chain(one_of(n)).collect();
    }
    let (below, above) = known.split_at(known.len() / 2);
    let (lower, upper) = (among(below, n), among(above, n));
    let mut all = vec![SkipBelow(above[0], 1), Skip(lower.len() as u32)];
    all.extend(lower);
    all.extend(upper);
    all
}

#[cfg(test)]
mod tests {
    use os::udp::{Transmit, UdpConfig, UdpError, UdpSocket};

    use super::*;

    fn data(index: u32) -> Vec<u8> {
        let mut packet = match index {
            0x100..=0xffff => [&[0b1100_0101][..], &(index as u16).to_be_bytes()].concat(),
            _ => [&[0b1110_1111][..], &index.to_be_bytes()].concat(),
        };
        packet.extend([7; 40]);
        packet
    }

    fn handshake(kind: u8, index_at: usize, index: u32) -> Vec<u8> {
        let mut packet = vec![0xff; 200];
        packet[..2].copy_from_slice(&[kind, 1]);
        packet[index_at..index_at + 4].copy_from_slice(&index.to_be_bytes());
        packet
    }

    /// How many of `times` packets pass; one more that always does comes behind them.
    fn pass(thinning: &Thinning, packet: &[u8], times: usize) -> usize {
        let config = UdpConfig { gro: false, ..UdpConfig::new("127.0.0.1:0".parse().unwrap()) };
        let socket = UdpSocket::bind(&config).unwrap();
        let mut sender = UdpSocket::bind(&config).unwrap();
        socket.set_filter(&program(thinning)).unwrap();
        let to = socket.local_addr();
        let mut send = |payload: &[u8]| {
            sender.send(&Transmit { to, from: None, payload, segment: 0 }).unwrap();
        };
        (0..times).for_each(|_| send(packet));
        socket.clear_filter().unwrap();
        send(b"end");
        let (mut buf, mut came) = (vec![0; socket.slot() * 8], 0);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            match socket.receive(&mut buf) {
                Ok(got) => {
                    for it in got {
                        if it.payload == b"end" {
                            return came;
                        }
                        came += 1;
                    }
                }
                // The kernel may deliver later than it takes.
                Err(UdpError::Blocked) => {
                    assert!(std::time::Instant::now() < until, "the end comes");
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    #[test]
    fn of_a_peer_that_is_over_its_part_some_packets_pass_and_of_others_all() {
        let thinning = Thinning { over: vec![(0x1234, 2), (0x1_0000, 10)], ..Thinning::default() };
        let passed = pass(&thinning, &data(0x1234), 1000);
        assert!((100..500).contains(&passed), "about a quarter: {passed}");
        assert!(pass(&thinning, &data(0x1_0000), 1000) < 100);
        for other in [data(0x1235), data(0x1234_0000), handshake(1, 2, 0x1234)] {
            assert_eq!(pass(&thinning, &other, 50), 50);
        }
    }

    #[test]
    fn indices_that_are_known_pass_and_of_others_and_of_initiations_some() {
        for count in [1, FEW, FEW + 1, 256] {
            let known: Vec<u32> = (0..count as u32).map(|n| 0x200 + 3 * n).collect();
            let last = known[count - 1];
            let thinning = Thinning { strangers: 10, known, ..Thinning::default() };
            for index in [0x200, 0x200 + 3 * (count as u32 / 2), last] {
                assert_eq!(pass(&thinning, &data(index), 20), 20, "{index:x} of {count}");
                assert_eq!(pass(&thinning, &handshake(2, 6, index), 5), 5);
                assert_eq!(pass(&thinning, &handshake(3, 2, index), 5), 5);
            }
            for index in [0x1ff, 0x201, last + 1, u32::MAX] {
                assert!(pass(&thinning, &data(index), 300) < 30, "{index:x} of {count}");
            }
            assert_eq!(pass(&thinning, &handshake(1, 2, 9), 20), 20, "initiations");
        }
        let none = Thinning { strangers: 10, calls: 3, ..Thinning::default() };
        for odd in [&[0x7f; 30][..], &[0x80; 30], &[0xa5; 30]] {
            assert!(pass(&none, odd, 300) < 30);
        }
        let calls = pass(&none, &handshake(1, 2, 9), 1000);
        assert!((40..350).contains(&calls), "about an eighth: {calls}");
        for short in [&[][..], &[0xc0, 5], &[0xe0, 1, 2], &[2, 1, 3]] {
            assert_eq!(pass(&none, short, 10), 0);
        }
    }
}
