//! Both ends of the repair code over losses that the bytes choose, and repair packets and
//! plaintexts that only a hostile peer would make.

use std::collections::{BTreeMap, BTreeSet};

use super::Bytes;
use crate::repair::{FecDecoder, FecEncoder, MAX_WINDOW, Purpose};
use crate::wire::Writer;

/// Symbols are padded by less than this.
const LANE: usize = 64;

/// Steps of one run at most: a window is combined anew in each.
const STEPS: usize = 4096;
/// Hints of packets that are not REPAIR.
const HINTS: [u8; 4] = [0, 2, 3, 4];

struct World {
    encoder: FecEncoder,
    decoder: FecDecoder,
    /// Bytes of the longest plaintext.
    plaintext: usize,
    window: usize,
    /// The next packet's number.
    number: u64,
    /// All that left, by number; and what of it was lost.
    sent: BTreeMap<u64, (u8, Vec<u8>)>,
    lost: BTreeSet<u64>,
    /// Nobody lied to the decoder yet.
    honest: bool,
}

/// Runs what `data` says. As long as nobody lies what comes back is what was lost.
pub fn repair(data: &[u8]) {
    let mut bytes = Bytes(data);
    let plaintext = [16, 200, 1460][usize::from(bytes.u8() % 3)];
    let window = [16, 64, MAX_WINDOW][usize::from(bytes.u8() % 3)];
    let mut world = World {
        encoder: FecEncoder::default(),
        decoder: FecDecoder::default(),
        plaintext,
        window,
        number: bytes.number() & ((1 << 61) - 1),
        sent: BTreeMap::new(),
        lost: BTreeSet::new(),
        honest: true,
    };
    world.decoder.make_room(window, plaintext);
    for _ in 0..STEPS {
        if bytes.is_empty() {
            return;
        }
        world.act(&mut bytes);
        world.take_recovered();
    }
}

impl World {
    fn act(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.u8() % 16 {
            0..=6 => self.send(bytes),
            7..=10 => self.send_repair(bytes),
            11 => self.arrive_late(bytes),
            12 => self.number += 1 + bytes.number() % 5000,
            13 => self.forge_packet(bytes),
            14 => self.forge_repair(bytes),
            _ => match bytes.u8() % 4 {
                0 => self.encoder.release(),
                1 => {
                    self.decoder.release();
                    self.decoder.make_room(self.window, self.plaintext);
                }
                // A peer of which more is known now has longer windows.
                _ => {
                    self.window = (self.window * 2).min(MAX_WINDOW);
                    self.decoder.make_room(self.window, self.plaintext);
                }
            },
        }
    }

    fn send(&mut self, bytes: &mut Bytes<'_>) {
        let (how, len) = (bytes.u8(), usize::from(bytes.u16()) % (self.plaintext + 1));
        let (number, hint) = (self.number, HINTS[usize::from(how % 4)]);
        let packet: Vec<u8> = (0..len as u64)
            .map(|i| (number.wrapping_add(i).wrapping_mul(0x9e37_79b1) >> 13) as u8)
            .collect();
        self.number += 1;
        self.encoder.keep(number, hint, &packet, self.window, self.plaintext);
        if how & 0x30 == 0 {
            self.lost.insert(number);
        } else {
            self.decoder.on_packet(number, hint, &packet);
        }
        self.sent.insert(number, (hint, packet));
    }

    fn send_repair(&mut self, bytes: &mut Bytes<'_>) {
        let (how, back) = (bytes.u8(), bytes.number() % 3000);
        let number = self.number;
        // Mostly there is room for a head and the longest symbol.
        let room = if how & 0xc0 == 0 { usize::from(how) } else { self.plaintext + 4 };
        let mut buf = vec![0; room];
        let mut writer = Writer::new(&mut buf);
        let first = number.saturating_sub(back);
        let purpose = match how & 0x0f {
            15 => Purpose::Tail(number - back.min(number) / 2),
            period => Purpose::Flow(u64::from(period)),
        };
        let Some(covers) = self.encoder.write(number, first, purpose, &mut writer) else { return };
        let more = (number - first) / 8;
        let sound = covers.start + more >= first && covers.start < covers.end;
        assert!(sound && covers.end <= number, "{covers:?} of {first} … {number}");
        let len = writer.len();
        self.number += 1;
        if how & 0x30 != 0 {
            let taken = self.decoder.on_repair(number, &buf[..len]);
            assert!(taken.is_ok() || !self.honest, "what we wrote can be read");
        }
    }

    fn arrive_late(&mut self, bytes: &mut Bytes<'_>) {
        let n = usize::from(bytes.u8()) % self.lost.len().max(1);
        let Some(number) = self.lost.iter().nth(n).copied() else { return };
        self.lost.remove(&number);
        let (hint, packet) = &self.sent[&number];
        self.decoder.on_packet(number, *hint, packet);
    }

    /// A number near those in use, or any.
    fn any_number(&self, bytes: &mut Bytes<'_>) -> u64 {
        let number = match bytes.u8() % 4 {
            0 => bytes.number(),
            1 => self.number.saturating_add(bytes.number()),
            _ => self.number.saturating_sub(bytes.number()),
        };
        number & ((1 << 62) - 1)
    }

    fn forge_packet(&mut self, bytes: &mut Bytes<'_>) {
        self.honest = false;
        let (number, hint) = (self.any_number(bytes), HINTS[usize::from(bytes.u8() % 4)]);
        let len = usize::from(bytes.u8());
        self.decoder.on_packet(number, hint, bytes.take(len));
    }

    fn forge_repair(&mut self, bytes: &mut Bytes<'_>) {
        self.honest = false;
        let number = self.any_number(bytes);
        let len = usize::from(bytes.u8());
        let mut payload = bytes.take(len).to_vec();
        // Symbols are longer than what a fuzzer likes to write.
        payload.resize(payload.len() + usize::from(bytes.u16()) % (self.plaintext + 40), 0x5a);
        let _ = self.decoder.on_repair(number, &payload);
    }

    fn take_recovered(&mut self) {
        let mut content = Vec::new();
        while let Some((number, hint)) = self.decoder.next_recovered(&mut content) {
            assert!(HINTS.contains(&hint) && content.len() <= self.plaintext + LANE);
            let same = self.sent.get(&number).is_some_and(|(h, c)| *h == hint && *c == content);
            assert!(same || !self.honest, "packet {number} is another");
            self.lost.remove(&number);
        }
        assert!(self.decoder.equations() <= 128, "{} equations", self.decoder.equations());
    }
}
