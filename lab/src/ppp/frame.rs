//! Frames of PPP on an asynchronous line (RFC 1662): flags between them, escapes within, a check of
//! 16 bits at the end.

const FLAG: u8 = 0x7e;
const ESCAPE: u8 = 0x7d;
const FLIP: u8 = 0x20;
/// All stations, unnumbered information; left out once that is agreed (ACFC).
const HEAD: [u8; 2] = [0xff, 0x03];
/// The check of a frame with its own check (RFC 1662, C.2).
const GOOD: u16 = 0xf0b8;
/// Longer frames are noise.
const LONGEST: usize = 2_048;

fn check(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xffff, |sum, byte| {
        (0..8).fold(
            sum ^ u16::from(*byte),
            |sum, _| {
                if sum & 1 == 1 { sum >> 1 ^ 0x8408 } else { sum >> 1 }
            },
        )
    })
}

/// Writes a frame. `short`: what was agreed at the end of LCP holds, no address, the protocol in a
/// byte where it fits (PFC), control characters as they are (ACCM 0).
pub fn write(protocol: u16, payload: &[u8], short: bool, out: &mut Vec<u8>) {
    let mut bytes = Vec::with_capacity(payload.len() + 6);
    if !short {
        bytes.extend(HEAD);
    }
    match u8::try_from(protocol) {
        Ok(byte) if short => bytes.push(byte),
        _ => bytes.extend(protocol.to_be_bytes()),
    }
    bytes.extend(payload);
    let sum = !check(&bytes);
    bytes.extend(sum.to_le_bytes());
    // One flag ends a frame and begins the next.
    if out.last() != Some(&FLAG) {
        out.push(FLAG);
    }
    for byte in bytes {
        if byte == FLAG || byte == ESCAPE || !short && byte < FLIP {
            out.extend([ESCAPE, byte ^ FLIP]);
        } else {
            out.push(byte);
        }
    }
    out.push(FLAG);
}

/// Takes frames out of what the line brings.
#[derive(Debug, Default)]
pub struct Reader {
    frame: Vec<u8>,
    escaped: bool,
    /// It is too long: what follows up to the next flag is no frame.
    broken: bool,
    /// Frames with a wrong check.
    pub damaged: u64,
}

impl Reader {
    /// Takes bytes; `take` is given the protocol and the content of each good frame.
    pub fn read(&mut self, bytes: &[u8], mut take: impl FnMut(u16, &[u8])) {
        for byte in bytes {
            match *byte {
                FLAG => self.end(&mut take),
                ESCAPE => self.escaped = true,
                _ if self.frame.len() >= LONGEST => self.broken = true,
                byte => {
                    let flip = if std::mem::take(&mut self.escaped) { FLIP } else { 0 };
                    self.frame.push(byte ^ flip);
                }
            }
        }
    }

    fn end(&mut self, take: &mut impl FnMut(u16, &[u8])) {
        let frame = std::mem::take(&mut self.frame);
        let is_broken = std::mem::take(&mut self.broken) | std::mem::take(&mut self.escaped);
        if frame.is_empty() {
            return;
        }
        let content = frame.strip_suffix(&frame[frame.len().saturating_sub(2)..]).unwrap_or(&[]);
        let content = content.strip_prefix(&HEAD).unwrap_or(content);
        let parts = match *content {
            [odd, ref rest @ ..] if odd & 1 == 1 => Some((u16::from(odd), rest)),
            [high, low, ref rest @ ..] => Some((u16::from_be_bytes([high, low]), rest)),
            _ => None,
        };
        match parts {
            Some((protocol, rest)) if !is_broken && check(&frame) == GOOD => take(protocol, rest),
            _ => self.damaged += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use units::Rng;

    use super::*;
    use crate::ppp::protocol::{IP, LCP};

    fn read(bytes: &[u8]) -> (Vec<(u16, Vec<u8>)>, u64) {
        let (mut reader, mut frames) = (Reader::default(), Vec::new());
        for piece in bytes.chunks(3) {
            reader.read(piece, |protocol, payload| frames.push((protocol, payload.to_vec())));
        }
        (frames, reader.damaged)
    }

    #[test]
    fn frames_of_all_bytes_come_as_they_were_and_a_damaged_one_alone_is_lost() {
        let all: Vec<u8> = (0..=255).collect();
        for (protocol, short) in [(LCP, false), (IP, false), (LCP, true), (IP, true)] {
            let mut line = Vec::new();
            for n in 0..3 {
                write(protocol, &all[n..], short, &mut line);
            }
            let (frames, damaged) = read(&line);
            assert_eq!((frames.len(), damaged), (3, 0));
            assert!(frames.iter().zip(0..).all(|(f, n)| *f == (protocol, all[n..].to_vec())));
            line[20] ^= 0x40;
            assert_eq!(read(&line).0.len(), 2);
        }
    }

    /// Table 3 of the source has 31 bytes beside 56 of a ping's content: 28 of IP and ICMP, and 3.
    #[test]
    fn a_packet_in_a_row_costs_four_bytes_of_which_the_source_counts_three() {
        let mut line = vec![FLAG];
        write(IP, &[0x45; 84], true, &mut line);
        assert_eq!(line.len(), 1 + 84 + 4);
    }

    #[test]
    fn whatever_the_line_brings_is_read() {
        let mut rng = Rng::new(7);
        let noise: Vec<u8> = (0..200_000)
            .map(|_| match rng.below(8) {
                0 => FLAG,
                1 => ESCAPE,
                _ => rng.below(256) as u8,
            })
            .collect();
        assert!(read(&noise).1 > 100);
        assert_eq!(read(&[0x55; 10_000]).0, []);
    }
}
