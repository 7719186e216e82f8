//! Entry points of the fuzzers in `fuzz/`; a test here replays their corpora, so that
//! what a fuzzer once found stays found on the stable compiler.
//!
//! Each takes any bytes, reads what to do from them and panics if the code under it
//! does, or breaks a promise that holds whatever the bytes are.

mod endpoint;
#[cfg(fuzzing)]
mod exchange;
mod handshakes;
mod repair;
mod session;

pub use endpoint::endpoints;
#[cfg(fuzzing)]
pub(crate) use exchange::{Folded, Remembered};
pub use handshakes::handshakes;
pub use repair::repair;
pub use session::sessions;
use squeeze::headers::Compressor;
use units::{Duration, Instant};

use crate::datagram::{Inbox, MAX_DATAGRAM, Outbox, PacketQueue, Wrote};
use crate::handshake::MAX_PARAMS;
use crate::session::{Compress, Params};
use crate::wire::{FragmentFrame, Frame, Reader, Writer, short};

/// Takes values off the front of the fuzzer's bytes; zeros when they have run out.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from(self.u8()) << 8 | u16::from(self.u8())
    }

    /// Small numbers, those at the ends of the formats' ranges, and any.
    fn number(&mut self) -> u64 {
        match self.u8() {
            n @ 0..200 => u64::from(n),
            200..230 => u64::from(self.u16()),
            230..240 => u64::from(self.u16()) << 16 | u64::from(self.u16()),
            n @ 240..250 => (1u64 << (7 * u32::from(n - 239)).min(63)).wrapping_sub(1),
            250..253 => u64::MAX - u64::from(self.u8()),
            _ => (1 << 62) - u64::from(self.u8()),
        }
    }

    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }
}

/// The payload of a packet: what can be read can be written and read again alike.
pub fn frames(data: &[u8]) {
    let mut reader = Reader::new(data);
    while let Ok(Some(frame)) = reader.frame() {
        if let Frame::State(state) | Frame::StateOf(_, state) = &frame {
            let mut above = None;
            for run in state.received() {
                assert!(run.start() <= run.end() && *run.start() >= state.lo);
                assert!(above.is_none_or(|above| *run.end() < above), "runs descend");
                above = Some(*run.start());
            }
            if state.delay == Duration::MAX {
                continue; // A delay beyond all measure is not told as it was.
            }
        }
        let mut copy = vec![0; crate::wire::frame_len(&frame)];
        let mut writer = Writer::new(&mut copy);
        assert!(writer.put(&frame), "a frame fits its length");
        let written = writer.len();
        let again = Reader::new(&copy[..written]).frame();
        assert_eq!(again, Ok(Some(frame)), "a frame comes back as it was");
    }
    // A handshake carries no more of them.
    if let Some(params) = Params::decode(&data[..data.len().min(MAX_PARAMS)]) {
        assert_eq!(Params::decode(&params.encode()), Some(params));
    }
    let mut bytes = Bytes(data);
    let (n, reference) = (usize::from(bytes.u8() % 3) + 2, bytes.number() & ((1 << 62) - 1));
    if let Ok((_, truncated, _)) = short::read_head(bytes.0, n) {
        let offset = short::expand(truncated, n, reference);
        assert_eq!(offset & ((1 << (8 * n)) - 1), truncated);
    }
}

/// Reassembly of datagrams out of any pieces, and cutting them for any packet.
pub fn datagrams(data: &[u8]) {
    let mut bytes = Bytes(data);
    let (mut inbox, mut outbox) = (Inbox::new(1 << 17), Outbox::new(1 << 17));
    let mut now = Instant::ZERO;
    while !bytes.is_empty() {
        now += Duration::from_millis(u64::from(bytes.u8()) * 100);
        match bytes.u8() % 4 {
            0 => {
                let (id, total) = (bytes.number(), bytes.number());
                let (offset, len) = (bytes.number(), usize::from(bytes.u16()) % 2000);
                let zeros = [0; 2000];
                let data = &zeros[..len];
                // As the reader of frames lets it pass.
                if len > 0 && offset.checked_add(len as u64).is_some_and(|end| end <= total) {
                    inbox.on_fragment(now, &FragmentFrame { id, total, offset, data });
                }
            }
            1 => inbox.on_datagram(bytes.take(60)),
            2 => while inbox.pop(|d| assert!(!d.is_empty() && d.len() <= MAX_DATAGRAM)) {},
            _ => cut_and_join(&mut bytes, &mut outbox),
        }
    }
}

fn cut_and_join(bytes: &mut Bytes<'_>, outbox: &mut Outbox) {
    let len = usize::from(bytes.u16()) % (MAX_DATAGRAM + 1);
    let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
    // 55: the least that a packet of 128 bytes leaves over IPv6.
    let room = 55 + usize::from(bytes.u16()) % 9000;
    let mut queue = PacketQueue::default();
    if !outbox.push(Instant::ZERO, &mut queue, &data, Compress::Headers) {
        return;
    }
    let (mut inbox, mut packet) = (Inbox::new(1 << 17), vec![0; room]);
    let mut headers = Compressor::new(0);
    while !outbox.is_empty() {
        let mut writer = Writer::new(&mut packet);
        let now = Instant::ZERO;
        while outbox.write(now, &mut queue, &mut headers, &mut writer, room) != Wrote::Nothing {}
        let written = writer.len();
        assert!(written > 0, "an empty packet takes a piece of any datagram");
        let mut reader = Reader::new(&packet[..written]);
        while let Some(frame) = reader.frame().expect("what we wrote can be read") {
            match frame {
                Frame::Datagram(d) => inbox.on_datagram(d),
                Frame::Fragment(f) => inbox.on_fragment(Instant::ZERO, &f),
                _ => {}
            }
        }
    }
    assert!(inbox.pop(|d| assert_eq!(d, data)), "the datagram arrives whole");
}

#[cfg(test)]
mod tests {
    use corpus::replay;

    #[test]
    fn the_corpus_of_frames_replays() {
        replay("frames", super::frames);
    }

    #[test]
    fn the_corpus_of_datagrams_replays() {
        replay("datagrams", super::datagrams);
    }

    #[test]
    fn the_corpus_of_sessions_replays() {
        replay("sessions", super::sessions);
    }

    #[test]
    fn the_corpus_of_repair_replays() {
        replay("repair", super::repair);
    }

    #[test]
    fn the_corpus_of_handshakes_replays() {
        replay("handshakes", super::handshakes);
    }

    #[test]
    fn the_corpus_of_endpoints_replays() {
        replay("endpoints", super::endpoints);
    }
}
