//! Which of a gateway's carrier sockets gets a packet: that of the shard which gave out the
//! receiver index in it. The kernel decides, by a program that reads the header (spec,
//! "Packet protection" and "Handshake"). It sees the first packet of a run that it joined
//! (GRO): behind an initiation, a packet of another shard's may come to the first, whose
//! endpoint hands it over.

use os::udp::Instruction;

/// The program for `shards` sockets. Data packets, responses and cookie replies go where
/// their index was given out; initiations, and what is no packet, to the first.
pub fn program(shards: u32) -> Vec<Instruction> {
    use Instruction::*;
    const RESPONSE: u32 = 2;
    const COOKIE_REPLY: u32 = 3;
    vec![
        Byte(0),
        SkipUnless(RESPONSE, 2),
        Word(6),
        Skip(9),
        SkipUnless(COOKIE_REPLY, 2),
        Word(2),
        Skip(6),
        // A data packet, and the code of its index's length: indices given out have two
        // bytes or four.
        And(0xe0),
        SkipUnless(0xc0, 2),
        Half(1),
        Skip(2),
        SkipUnless(0xe0, 3),
        Word(1),
        Modulo(shards),
        AnswerLoaded,
        Answer(0),
    ]
}

#[cfg(test)]
mod tests {
    use link::endpoint::{Endpoint, EndpointConfig, shard_of};
    use link::keys::PrivateKey;
    use os::udp::{Transmit, UdpConfig, UdpError, UdpSocket};
    use units::Instant;

    use super::*;

    const BODY: usize = 40;

    fn data(index: u32) -> Vec<u8> {
        let mut packet = match index {
            0x100..=0xffff => [&[0b1100_0101][..], &(index as u16).to_be_bytes()].concat(),
            _ => [&[0b1110_1111][..], &index.to_be_bytes()].concat(),
        };
        let header = packet.len() + 2;
        packet.extend([7; BODY]);
        // The hint 7 stands in the longer ones: the path and the true hint follow the number.
        packet[header] = 2 << 3;
        packet
    }

    fn handshake(kind: u8, index_at: usize, index: u32) -> Vec<u8> {
        let mut packet = vec![0xff; 200];
        packet[..2].copy_from_slice(&[kind, 1]);
        packet[index_at..index_at + 4].copy_from_slice(&index.to_be_bytes());
        packet
    }

    /// What came to a socket: so much, or what there was after ten seconds.
    fn arrived(socket: &UdpSocket, expected: usize) -> Vec<Vec<u8>> {
        let mut buf = vec![0; socket.slot() * 8];
        let mut all = Vec::new();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            match socket.receive(&mut buf) {
                Ok(got) => all.extend(got.map(|d| d.payload.to_vec())),
                // The kernel may deliver later than it takes.
                Err(UdpError::Blocked)
                    if all.len() < expected && std::time::Instant::now() < until =>
                {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                Err(UdpError::Blocked) => return all,
                Err(e) => panic!("{e}"),
            }
        }
    }

    #[test]
    fn the_kernel_sends_each_packet_to_the_shard_that_gave_out_its_index() {
        for (shards, at, from) in [
            (2, "127.0.0.1:0", "127.0.0.1:0"),
            (3, "[::]:0", "127.0.0.1:0"),
            (7, "[::1]:0", "[::1]:0"),
            (64, "0.0.0.0:0", "127.0.0.1:0"),
        ] {
            let config = UdpConfig::new(at.parse().unwrap());
            let group = UdpSocket::bind_group(&config, shards, &program(shards as u32)).unwrap();
            let mut sender = UdpSocket::bind(&UdpConfig::new(from.parse().unwrap())).unwrap();
            let to = (sender.local_addr().ip(), group[0].local_addr().port()).into();
            let indices = [0x100, 0x1234, 0xffff, 0x1_0000, 0x89ab_cdef, u32::MAX];
            let indices = indices.into_iter().chain(0x8000..0x8000 + shards as u32);
            let mut sent = Vec::new();
            for index in indices {
                let owner = shard_of(index, shards as u32) as usize;
                sent.push((owner, data(index)));
                sent.push((owner, handshake(2, 6, index)));
                sent.push((owner, handshake(3, 2, index)));
                // An initiation has its sender's index only.
                sent.push((0, handshake(1, 2, index)));
            }
            // No packets: the first shard drops them.
            for bad in [&[][..], &[0], &[2, 1, 3], &[3], &[0xc0, 5], &[0xe0, 1, 2], &[0x7f; 30]] {
                sent.push((0, bad.to_vec()));
            }
            for bad in [[0x80; 30], [0xa5; 30], [0x85; 30]] {
                sent.push((0, bad.to_vec()));
            }
            for (_, packet) in &sent {
                sender.send(&Transmit { to, from: None, payload: packet, segment: 0 }).unwrap();
            }
            for (number, socket) in group.iter().enumerate() {
                let own = sent.iter().filter(|(owner, _)| *owner == number).map(|(_, p)| p);
                let mut own: Vec<_> = own.cloned().collect();
                let mut got = arrived(socket, own.len());
                got.sort();
                own.sort();
                assert_eq!(got, own, "socket {number} of {shards}");
            }
            // The first endpoint says the same of what comes to it.
            let config = EndpointConfig {
                private_key: PrivateKey::from_bytes([1; 32]),
                seed: [2; 32],
                hardware_aes: false,
                initiations_per_second: 100,
                key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
                fresh: None,
            };
            let (now, from) = (Instant::ZERO, sender.local_addr());
            let mut first = Endpoint::divided(config, shards as u32).remove(0);
            for (owner, packet) in &sent {
                first.handle_packet(now, now, from.into(), &mut packet.clone());
                let to = first.poll_handed_over().map(|it| it.shard as usize);
                assert_eq!(to, (*owner != 0).then_some(*owner), "{packet:?}");
            }
        }
    }

    #[test]
    fn a_run_of_packets_arrives_whole_where_its_first_belongs() {
        let config = UdpConfig::new("127.0.0.1:0".parse().unwrap());
        let group = UdpSocket::bind_group(&config, 3, &program(3)).unwrap();
        let mut sender = UdpSocket::bind(&config).unwrap();
        let to = group[0].local_addr();
        for index in [0x3000u32, 0x3001, 0x3002] {
            let run = data(index).repeat(30);
            let batch = Transmit { to, from: None, payload: &run, segment: BODY + 3 };
            sender.send(&batch).unwrap();
            let owner = shard_of(index, 3) as usize;
            let expected = [0, 1, 2].map(|n| if n == owner { 30 } else { 0 });
            let got = |(socket, n)| arrived(socket, n).len();
            let counts: Vec<usize> = group.iter().zip(expected).map(got).collect();
            assert_eq!(counts, expected);
        }
    }
}
