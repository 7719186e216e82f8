//! Link packets on a line of bytes: framing for serial carriers (8N1).
//!
//! A frame is the packet and its CRC-16, written so that the byte `+` stands nowhere in it, and
//! a `+` after it:
//!
//! ```text
//! [+] block … block +        block: code (1), then 0 … 253 bytes that are not '+'
//! ```
//!
//! A block's code is the number of its bytes plus one, and says that a `+` follows them in the
//! packet; the code 255 says that 254 bytes and no `+` follow (consistent overhead byte stuffing,
//! Cheshire and Baker 1999, with `+` in the place of the zero). Codes are exchanged with `+` so
//! that they are never one. A `+` stands before the frame too when the line was at rest: what
//! noise made of the rest is then a frame of its own.
//!
//! * **Overhead**: two bytes of CRC, one code for each 254 bytes, one or two `+`. A packet of 128
//!   bytes costs 5 bytes at most, whatever it contains; byte stuffing as in PPP (RFC 1662) would
//!   double the worst one.
//! * **Noise**: whatever is lost, added or changed, the next `+` ends it. A frame arrives if it
//!   and the `+` before it are undamaged.
//! * **Escapes**: a modem takes `+++` between two pauses for its own (Hayes). Here no two frames
//!   are empty, so that three `+` never follow each other.
//!
//! The CRC is not for safety: the link authenticates packets. It tells noise from forgery, so
//! that a bad line is counted as one.

/// The byte that ends a frame and stands nowhere else.
pub const DELIMITER: u8 = b'+';
/// The longest run that one code covers.
const RUN: usize = 254;
/// The code that says "254 bytes, and no delimiter after them".
const FULL: u8 = 255;

/// The longest packet that a line carries.
pub const MAX_PACKET: usize = 2_048;
/// The longest frame without its delimiters.
const MAX_FRAME: usize = MAX_PACKET + 2 + (MAX_PACKET + 2) / RUN + 1;

/// The most bytes that a packet of `len` bytes takes on the line.
pub const fn max_framed(len: usize) -> usize {
    let content = len + 2;
    content + content / RUN + 1 + 2
}

/// Writes `packet` as a frame to the end of `out`. `rested`: nothing was sent just before, so
/// that a delimiter comes first.
///
/// # Panics
/// If the packet is longer than [`MAX_PACKET`]: links on a line have an MTU below it.
pub fn write(packet: &[u8], rested: bool, out: &mut Vec<u8>) {
    assert!(packet.len() <= MAX_PACKET, "a packet of {} bytes on a line", packet.len());
    if rested {
        out.push(DELIMITER);
    }
    let mut code_at = out.len();
    out.push(0);
    let crc = crc16(packet).to_be_bytes();
    for &byte in packet.iter().chain(&crc) {
        if byte == DELIMITER {
            out[code_at] = code((out.len() - code_at) as u8);
            code_at = out.len();
            out.push(0);
            continue;
        }
        out.push(byte);
        if out.len() - code_at == RUN + 1 {
            out[code_at] = code(FULL);
            code_at = out.len();
            out.push(0);
        }
    }
    out[code_at] = code((out.len() - code_at) as u8);
    out.push(DELIMITER);
}

/// A code on the line: zero, which no code is, in the place of the delimiter.
fn code(n: u8) -> u8 {
    if n == DELIMITER { 0 } else { n }
}

/// What a line has brought, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Packets that arrived whole.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Frames that noise spoiled, and noise between frames.
    pub spoiled: u64,
}

/// Finds the packets in what a line brings.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    frame: Vec<u8>,
    /// The frame is longer than any packet's: it is noise up to the next delimiter.
    too_long: bool,
    counts: LineCounts,
}

impl Reader {
    /// A reader at the beginning of a call.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// Takes `bytes` and hands each whole packet to `packet`.
    pub fn read(&mut self, bytes: &[u8], mut packet: impl FnMut(&[u8])) {
        for &byte in bytes {
            if byte != DELIMITER {
                match self.frame.len() < MAX_FRAME {
                    true => self.frame.push(byte),
                    false => self.too_long = true,
                }
                continue;
            }
            let found = if self.too_long { None } else { decode(&mut self.frame) };
            match found {
                Some(len) => {
                    self.counts.packets += 1;
                    self.counts.bytes += len as u64;
                    packet(&self.frame[..len]);
                }
                None if self.frame.is_empty() => {}
                None => self.counts.spoiled += 1,
            }
            self.frame.clear();
            self.too_long = false;
        }
    }

    /// What came so far.
    pub fn counts(&self) -> LineCounts {
        self.counts
    }
}

/// Undoes the stuffing in place; the packet's length if the frame is one.
fn decode(frame: &mut [u8]) -> Option<usize> {
    let (mut from, mut to) = (0, 0);
    while from < frame.len() {
        let code = match frame[from] {
            0 => DELIMITER,
            code => code,
        };
        let run = usize::from(code) - 1;
        if from + 1 + run > frame.len() {
            return None;
        }
        frame.copy_within(from + 1..from + 1 + run, to);
        from += 1 + run;
        to += run;
        if code != FULL && from < frame.len() {
            frame[to] = DELIMITER;
            to += 1;
        }
    }
    let len = to.checked_sub(2).filter(|len| *len > 0)?;
    let crc = u16::from_be_bytes([frame[len], frame[len + 1]]);
    (crc == crc16(&frame[..len])).then_some(len)
}

/// CRC-16/IBM-3740 (polynomial 0x1021, from 0xffff): finds all bursts of up to 16 bits.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xffff, |crc: u16, byte| {
        let index = usize::from((crc >> 8) as u8 ^ byte);
        crc << 8 ^ CRC_TABLE[index]
    })
}

const CRC_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(packets: &[Vec<u8>]) -> Vec<u8> {
        let mut line = Vec::new();
        for (at, packet) in packets.iter().enumerate() {
            write(packet, at == 0, &mut line);
        }
        line
    }
    fn read(line: &[u8], piece: usize) -> (Vec<Vec<u8>>, LineCounts) {
        let (mut reader, mut found) = (Reader::new(), Vec::new());
        for piece in line.chunks(piece.max(1)) {
            reader.read(piece, |p| found.push(p.to_vec()));
        }
        (found, reader.counts())
    }
    /// Packets with many delimiters, and with none for long.
    fn packet() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![3 => Just(DELIMITER), 1 => Just(0_u8), 6 => any::<u8>()];
        let plain = (0_u8..=255, 1_usize..MAX_PACKET).prop_map(|(b, n)| vec![b; n]);
        prop_oneof![
            4 => proptest::collection::vec(byte, 1..700),
            2 => proptest::collection::vec(any::<u8>(), 1..MAX_PACKET),
            1 => plain,
        ]
    }

    #[test]
    fn the_check_has_its_published_value() {
        assert_eq!(crc16(b"123456789"), 0x29b1);
    }

    /// The limit is 14 bytes; where link packets follow each other it is 4.
    #[test]
    fn no_packet_of_128_bytes_costs_more_than_five_bytes() {
        assert_eq!(max_framed(128), 128 + 5);
        for byte in 0..=255 {
            let mut line = Vec::new();
            write(&[byte; 128], true, &mut line);
            assert_eq!(line.len(), 133, "{byte}");
            write(&[byte; 128], false, &mut line);
            assert_eq!(line.len(), 133 + 132, "{byte}");
        }
    }

    #[test]
    fn noise_without_an_end_takes_no_memory_and_one_delimiter_ends_it() {
        let mut reader = Reader::new();
        for _ in 0..100 {
            reader.read(&[b'x'; 10_000], |_| panic!("noise is no packet"));
        }
        assert!(reader.frame.capacity() <= 2 * MAX_FRAME);
        let mut found = Vec::new();
        reader.read(&framed(&[b"hello".to_vec()]), |p| found.push(p.to_vec()));
        assert_eq!(found, [b"hello".to_vec()]);
        assert_eq!(reader.counts().spoiled, 1);
    }

    proptest! {
        #[test]
        fn packets_come_back_however_the_line_cuts_them(
            packets in proptest::collection::vec(packet(), 1..6), piece in 1_usize..400,
        ) {
            let line = framed(&packets);
            let most: usize = packets.iter().map(|p| max_framed(p.len())).sum();
            prop_assert!(line.len() <= most);
            let (found, counts) = read(&line, piece);
            prop_assert_eq!(&found, &packets);
            prop_assert_eq!((counts.packets, counts.spoiled), (packets.len() as u64, 0));
        }

        #[test]
        fn a_modem_never_sees_its_escape(packets in proptest::collection::vec(packet(), 1..6)) {
            let mut line = framed(&packets);
            for packet in &packets {
                write(packet, true, &mut line);
            }
            prop_assert!(!line.windows(3).any(|w| w == b"+++"));
        }

        /// R-MODEM: noise resynchronises within one packet.
        #[test]
        fn what_noise_does_not_touch_arrives(
            packets in proptest::collection::vec(packet(), 3..8), rest: bool,
            at: prop::sample::Index, lost in 0_usize..300,
            noise in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut line = Vec::new();
            let mut ends = Vec::new();
            for (n, packet) in packets.iter().enumerate() {
                write(packet, rest || n == 0, &mut line);
                ends.push(line.len());
            }
            let at = at.index(line.len());
            let to = (at + lost).min(line.len());
            line.splice(at..to, noise);
            let (found, _) = read(&line, 64);
            // Whole frames before the noise, and those whose delimiter before them is whole.
            let before = ends.iter().filter(|e| **e <= at).count();
            let first_after = ends.iter().filter(|e| **e <= to).count() + 1;
            prop_assert_eq!(found.get(..before), Some(&packets[..before]));
            let after = packets.get(first_after..).unwrap_or_default();
            prop_assert!(found.ends_with(after), "{} of {}", found.len(), packets.len());
        }

        #[test]
        fn nothing_that_a_line_brings_panics(line in proptest::collection::vec(
            prop_oneof![Just(DELIMITER), Just(0_u8), Just(255_u8), any::<u8>()], 0..5_000)) {
            read(&line, 77);
        }
    }
}
