//! For the fuzzers, and the tests: a sender and a receiver with a bad link between them.

use units::{Duration, Instant};

use super::{Compressor, Decompressor, Refused, Token};

/// A packet on the link.
struct UnderWay {
    number: u64,
    /// What it becomes, and whether that is compressed.
    body: Vec<u8>,
    compressed: bool,
    packet: Vec<u8>,
    token: Option<Token>,
}

/// Both sides of one direction of a link.
pub struct Pair {
    now: Instant,
    compressor: Compressor,
    decompressor: Decompressor,
    next: u64,
    link: Vec<UnderWay>,
    /// Tokens deemed lost whose packets are still under way.
    reports: Vec<(Token, bool)>,
    /// Packets that came too late to be understood.
    pub late: u64,
}

impl Pair {
    /// With so many contexts.
    pub fn new(contexts: usize) -> Pair {
        Pair {
            now: Instant::ZERO,
            compressor: Compressor::new(contexts),
            decompressor: Decompressor::new(contexts),
            next: 0,
            link: Vec::new(),
            reports: Vec::new(),
            late: 0,
        }
    }

    /// Sends a packet; answers how many bytes it becomes.
    pub fn send(&mut self, packet: &[u8]) -> usize {
        let head = self.compressor.compress(self.now, packet, true);
        let (body, compressed) = match head {
            Some(head) => {
                let pieces = [head.bytes(), self.compressor.packed(), &packet[head.skips..]];
                (pieces.concat(), true)
            }
            None => (packet.to_vec(), false),
        };
        let len = body.len();
        assert_eq!(head.map_or(packet.len(), |h| h.len_of(packet.len())), len);
        let token = self.compressor.on_left(packet, compressed);
        let packet = packet.to_vec();
        self.link.push(UnderWay { number: self.next, body, compressed, packet, token });
        self.next += 1;
        len
    }

    /// The receiver forgets all references.
    pub fn forget(&mut self) {
        self.decompressor.forget();
    }

    /// Packets under way.
    pub fn under_way(&self) -> usize {
        self.link.len()
    }

    /// A packet under way arrives: what comes out is what went in, or nothing, where it came
    /// after those that followed it.
    pub fn arrive(&mut self, at: usize) {
        let p = self.link.remove(at);
        let mut out = Vec::new();
        let got = if p.compressed {
            self.decompressor.decompress(p.number, &p.body, &mut out)
        } else {
            out.extend_from_slice(&p.body);
            Ok(())
        };
        match got {
            Ok(()) => assert_eq!(out, p.packet, "what arrives is what was sent"),
            Err(Refused::Late) => {
                let overtaken = p.number + 1 < self.next;
                assert!(overtaken && out.is_empty(), "only what was overtaken comes too late");
                self.late += 1;
            }
            Err(Refused::Malformed) => panic!("an honest packet is understood: {:x?}", p.body),
        }
        self.reports.extend(p.token.map(|t| (t, true)));
    }

    /// A packet under way is lost for good.
    pub fn lose(&mut self, at: usize) {
        let p = self.link.remove(at);
        self.reports.extend(p.token.map(|t| (t, false)));
    }

    /// A packet under way is deemed lost and stays under way.
    pub fn deem_lost(&mut self, at: usize) {
        self.reports.extend(self.link[at].token.map(|t| (t, false)));
    }

    /// The oldest reports, `n` of them, come back.
    pub fn report(&mut self, n: usize) {
        for (token, arrived) in self.reports.drain(..n.min(self.reports.len())) {
            self.compressor.on_fate(token, arrived);
        }
    }

    /// Time passes.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// Something that no honest sender wrote comes with the next number.
    pub fn forge(&mut self, body: &[u8]) {
        let mut out = Vec::new();
        let got = self.decompressor.decompress(self.next, body, &mut out);
        assert_eq!(got.is_ok(), !out.is_empty(), "a packet or none");
        assert!(
            out.len() <= super::MAX_PACKET && out.len() <= 100 * body.len() + super::MAX_HEADER
        );
    }
}

/// Any bytes: packets made of them, and changes of packets that were, over a link that
/// loses and turns round; and bytes for the receiver as they are.
pub fn headers(data: &[u8]) {
    let mut honest = Pair::new(4);
    let mut hostile = Pair::new(4);
    let mut packet: Vec<u8> = Vec::new();
    let mut rest = data;
    while let [op, more @ ..] = rest {
        rest = more;
        let n = usize::from(*op >> 4);
        let (head, tail) = rest.split_at(n.min(rest.len()));
        match op & 15 {
            // A new packet, made to be a whole one.
            0 => {
                let (bytes, left) = rest.split_at((4 * n + 20).min(rest.len()));
                (packet, rest) = (bytes.to_vec(), left);
                mend(&mut packet);
            }
            // The same with other bytes at a place.
            1 => {
                if let [at, bytes @ ..] = head {
                    for (i, byte) in bytes.iter().enumerate() {
                        if let Some(b) = packet.get_mut(usize::from(*at) + i) {
                            *b = b.wrapping_add(*byte);
                        }
                    }
                    mend(&mut packet);
                }
                rest = tail;
            }
            2..6 => {
                for _ in 0..=n {
                    step(&mut packet);
                    let len = honest.send(&packet);
                    assert!(len <= packet.len() + 60, "{len} of {}", packet.len());
                }
            }
            6..9 => (0..=n).for_each(|_| {
                if honest.under_way() > 0 {
                    honest.arrive(0);
                }
            }),
            9 if honest.under_way() > n => honest.arrive(n),
            10 if honest.under_way() > n => honest.lose(n),
            11 if honest.under_way() > n => honest.deem_lost(n),
            12 => honest.report(n + 1),
            13 => honest.wait(Duration::from_secs(n as u64)),
            14 => {
                let (bytes, left) = rest.split_at((8 * n + 2).min(rest.len()));
                rest = left;
                hostile.next += 1;
                hostile.forge(bytes);
            }
            _ => {
                hostile.next = (hostile.next + n as u64).saturating_sub(8);
                hostile.forge(head);
                rest = tail;
            }
        }
        // The receiver's tests are not to run for ever.
        while honest.under_way() > 200 {
            honest.lose(0);
        }
    }
}

/// Makes lengths right, and the IPv4 checksum.
fn mend(packet: &mut Vec<u8>) {
    packet.resize(packet.len().max(40), 0);
    let len = packet.len() as u16;
    if packet[0] >> 4 == 6 {
        packet[4..6].copy_from_slice(&(len - 40).to_be_bytes());
        return;
    }
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[6] &= 0x40;
    packet[7] = 0;
    if packet[9] == 17 {
        packet[24..26].copy_from_slice(&(len - 20).to_be_bytes());
    }
    packet[10..12].fill(0);
    let sum = units::internet_sum(&[&packet[..20]]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The next packet of the flow: identification and what may be a sequence number grow.
fn step(packet: &mut Vec<u8>) {
    packet.resize(packet.len().max(40), 0);
    for at in if packet[0] >> 4 == 6 { [30, 31] } else { [5, 31] } {
        packet[at] = packet[at].wrapping_add(1);
    }
    mend(packet);
}
