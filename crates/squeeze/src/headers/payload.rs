//! The payloads of unsplit packets (R-COMPRESS: "bulk compression with a short memory").
//!
//! Each payload is compressed on its own, with the flow's **memory** as a dictionary: the last
//! payloads of those packets that became references. Memory belongs to its reference, so a loss
//! harms no other packet; and each flow has its own, so that no host learns of another's
//! content.

use std::cell::RefCell;

use zstd_safe::{CCtx, DCtx};

use super::meter::Meter;
use super::shape::{Kind, Shape};
use super::{MAX_PACKET, MAX_PAYLOAD_MEMORY};
use crate::frame;

/// Shorter payloads are not tried: a frame and the longer form of the header cost some 8 bytes.
const LEAST: usize = 24;
/// For a packet and its memory level 6 takes some 30 µs on a common core.
const LEVEL: i32 = 6;
/// After this many failures in a row only one packet in 2^6 is tried.
const MOST_FAILURES: u32 = 6;

/// zstd's contexts keep nothing from packet to packet, but take memory: one pair for each thread
/// serves all its links.
struct Coder {
    compressor: CCtx<'static>,
    decompressor: DCtx<'static>,
    dictionary: Vec<u8>,
    frame: Vec<u8>,
}

thread_local! {
    static CODER: RefCell<Coder> = RefCell::new(Coder {
        compressor: CCtx::create(),
        decompressor: DCtx::create(),
        dictionary: Vec::new(),
        frame: Vec::new(),
    });
}

/// Whether compressing a flow's payloads pays, learned by trying, ever more rarely.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worth {
    failures: u32,
    /// Packets to skip before the next try.
    passes: u32,
}

/// UDP ports of tunnels, which carry packets of many hosts. Their payloads are not compressed
/// with each other as a dictionary: the length would tell one host of another's content.
const TUNNELS: [u16; 13] = [
    1701, // L2TP (RFC 2661, 8.1)
    2152, // GTP-U (3GPP TS 29.281, 4.4.2)
    3544, // Teredo (RFC 4380, 2.7)
    4341, // LISP data (RFC 9300, 5.3)
    4754, // GRE (RFC 8086)
    4755, // GRE in DTLS (RFC 8086)
    4789, // VXLAN (RFC 7348, 8)
    4790, // VXLAN-GPE (IANA's port registry)
    5247, // CAPWAP data (RFC 5415, 3.1)
    6080, // GUE (IANA's port registry)
    6081, // Geneve (RFC 8926, 3.3)
    6635, // MPLS (RFC 7510, 3)
    8472, // VXLAN as Linux had it before it had a port (drivers/net/vxlan.c)
];

/// May a payload of this flow refer to those before it? Not what is encrypted or spoken; not
/// where the "flow" is all that two hosts exchange by a protocol that is not known, which may
/// be a tunnel for others; and not TCP, whose packets do not say where a request begins, that
/// mixes secrets with what others chose (CRIME).
pub(super) fn may_refer(packet: &[u8], shape: &Shape) -> bool {
    let port = |at: usize| u16::from_be_bytes([packet[shape.ip + at], packet[shape.ip + at + 1]]);
    match shape.kind {
        Kind::Udp => !TUNNELS.contains(&port(0)) && !TUNNELS.contains(&port(2)),
        Kind::Echo => true,
        Kind::Ip | Kind::Rtp | Kind::Tcp | Kind::Esp => false,
    }
}

impl Worth {
    /// Is a payload of `len` bytes to be tried?
    pub fn is_due(&self, len: usize) -> bool {
        self.passes == 0 && len >= LEAST
    }

    /// Do payloads shrink, as far as is known?
    pub fn shrinks(&self) -> bool {
        self.failures == 0
    }

    /// A packet of the flow has left; `tried`: did its payload shrink, if that was tried?
    pub fn on_left(&mut self, tried: Option<bool>) {
        match tried {
            Some(true) => *self = Worth::default(),
            Some(false) => {
                self.failures = (self.failures + 1).min(MOST_FAILURES);
                self.passes = 1 << self.failures;
            }
            None => self.passes = self.passes.saturating_sub(1),
        }
    }
}

/// The last payload that was tried, and the result. A packet that did not fit the rest of a link
/// packet comes again with the next, and the result is the same.
#[derive(Default)]
pub(super) struct Trial {
    payload: Vec<u8>,
    /// The reference whose memory was used.
    serial: u64,
    /// The compressed payload; empty: it does not shrink.
    compressed: Vec<u8>,
    pub meter: Meter,
    /// Payloads compressed so far.
    #[cfg(test)]
    pub runs: u32,
}

impl Trial {
    /// Forgets the last one.
    pub fn give_back(&mut self) {
        self.serial = 0;
        (self.payload, self.compressed) = (Vec::new(), Vec::new());
    }

    /// Does the payload shrink with the memory of the reference `serial` (above 0)?
    pub fn shrinks(&mut self, payload: &[u8], serial: u64, memory: &[u8]) -> bool {
        if self.serial != serial || self.payload != payload {
            self.serial = serial;
            self.payload.clear();
            self.payload.extend_from_slice(payload);
            self.compressed.clear();
            self.meter.measure(|| pack(payload, memory, &mut self.compressed));
            #[cfg(test)]
            (self.runs += 1);
        }
        !self.compressed.is_empty()
    }

    pub fn compressed(&self) -> &[u8] {
        &self.compressed
    }
}

impl Coder {
    fn refer_to(&mut self, memory: &[u8]) {
        self.dictionary.clear();
        self.dictionary.push(frame::RAW);
        self.dictionary.extend_from_slice(memory);
    }
}

/// Appends the compressed `payload` to `out` (L-HC-6); nothing if it does not shrink.
fn pack(payload: &[u8], memory: &[u8], out: &mut Vec<u8>) {
    CODER.with_borrow_mut(|coder| {
        coder.refer_to(memory);
        let Coder { compressor, dictionary, frame, .. } = coder;
        let compressed = frame::pack(compressor, frame, payload, dictionary, LEVEL);
        if let Some(compressed) =
            compressed.filter(|compressed| compressed.len() + 2 < payload.len())
        {
            out.extend_from_slice(compressed);
        }
    });
}

/// Decompresses what [`pack`] wrote and appends it to `out`. `None` if it is malformed; `out` may
/// have grown then.
pub(super) fn unpack(compressed: &[u8], memory: &[u8], out: &mut Vec<u8>) -> Option<()> {
    CODER.with_borrow_mut(|coder| {
        coder.refer_to(memory);
        let Coder { decompressor, dictionary, frame, .. } = coder;
        frame::join(frame, &[compressed]);
        let most = MAX_PACKET.min(compressed.len() * frame::MAX_EXPANSION) as u64;
        let len = frame::content_size(frame).filter(|n| *n <= most)? as usize;
        let begin = out.len();
        out.resize(begin + len, 0);
        frame::unpack(decompressor, frame, dictionary, &mut out[begin..]).then_some(())
    })
}

/// L-HC-7: the memory that a new reference has: that of the one before and its payload, if that is
/// kept, else none.
pub(super) fn remember(memory: &mut Vec<u8>, before: &[u8], payload: Option<&[u8]>) {
    let Some(payload) = payload else { return *memory = Vec::new() };
    let payload = &payload[payload.len().saturating_sub(MAX_PAYLOAD_MEMORY)..];
    let before = &before[before.len().saturating_sub(MAX_PAYLOAD_MEMORY - payload.len())..];
    memory.clear();
    memory.reserve_exact(before.len() + payload.len());
    memory.extend_from_slice(before);
    memory.extend_from_slice(payload);
}
