//! The decompressor: the receiver's end of header compression.

use units::Duration;

use super::bytes::Reader;
use super::code::{Code, Reference, WHOLE, read_whole};
use super::meter::Meter;
use super::{MAX_CONTEXTS, MAX_HEADER, MAX_PACKET, payload};
use crate::stream::Stopwatch;

/// Why a packet was not decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It arrived after its reference was replaced: it counts as lost.
    Late,
    /// No honest sender writes this.
    Malformed,
}

/// A reference in a slot.
#[derive(Clone)]
struct ReceivedReference {
    /// Number of the link packet that brought it.
    since: u64,
    reference: Reference,
    /// The payloads that belong to it, as a dictionary.
    memory: Vec<u8>,
}

/// Decompresses what the peer's [`Compressor`](super::Compressor) wrote.
#[derive(Default)]
pub struct Decompressor {
    contexts: Vec<[Option<ReceivedReference>; 2]>,
    limit: usize,
    meter: Meter,
}

impl Decompressor {
    /// With `contexts` contexts at most ([`MAX_CONTEXTS`] at most). Memory, about 500 bytes
    /// for each and 4 kB where payloads are kept, is taken when the peer uses them.
    pub fn new(contexts: usize) -> Decompressor {
        let limit = contexts.min(MAX_CONTEXTS);
        Decompressor { contexts: Vec::new(), limit, meter: Meter::default() }
    }

    /// Forgets all references: the peer does not refer to them any more.
    pub fn forget(&mut self) {
        self.contexts = Vec::new();
    }

    /// Measures the work on payloads by this clock of processor time.
    pub fn set_stopwatch(&mut self, stopwatch: Option<Stopwatch>) {
        self.meter.stopwatch = stopwatch;
    }

    /// The time that payloads have taken so far; zero without a stopwatch.
    pub fn spent(&self) -> Duration {
        self.meter.spent
    }

    /// Decompresses `body`, which came in link packet `number`, and appends the packet to `out`.
    /// Each number counts once, and the content of one link packet comes in order.
    ///
    /// # Errors
    /// If it cannot be decompressed; `out` is unchanged then.
    pub fn decompress(
        &mut self,
        number: u64,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let begin = out.len();
        let made = self.append(number, body, out);
        if made.is_err() {
            out.truncate(begin);
        }
        made
    }

    fn append(&mut self, number: u64, body: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        let mut r = Reader(body);
        let place = r.varint().ok_or(Refused::Malformed)?;
        let (context, slot) = ((place >> 1) as usize, (place & 1) as usize);
        if context >= self.limit {
            return Err(Refused::Malformed);
        }
        if r.0.first() == Some(&WHOLE) {
            r.byte();
            let (reference, keeps) = read_whole(&mut r).ok_or(Refused::Malformed)?;
            if r.0.len() > MAX_PACKET {
                return Err(Refused::Malformed);
            }
            let payload = keeps.then_some(&r.0[reference.shape.len..]);
            if self.contexts.len() <= context {
                self.contexts.resize(context + 1, [const { None }; 2]);
            }
            fill(&mut self.contexts[context][slot], number, reference, &[], payload);
            out.extend_from_slice(r.0);
            return Ok(());
        }
        let [even, odd] = self.contexts.get_mut(context).ok_or(Refused::Malformed)?;
        let (base, other) = if slot == 0 { (even, odd) } else { (odd, even) };
        // A sender uses only acknowledged references, so a missing one is the sender's fault.
        let base = base.as_ref().ok_or(Refused::Malformed)?;
        if base.since >= number {
            return Err(Refused::Late);
        }
        let code = Code::read(&base.reference, &mut r).ok_or(Refused::Malformed)?;
        // The header has the payload's checksum.
        let begin = out.len();
        out.resize(begin + base.reference.shape.len, 0);
        if code.packed {
            let made = self.meter.measure(|| payload::unpack(r.0, &base.memory, out));
            made.ok_or(Refused::Malformed)?;
        } else {
            out.extend_from_slice(r.0);
        }
        let (room, payload) = out[begin..].split_at_mut(base.reference.shape.len);
        let mut header = [0; MAX_HEADER];
        let len = base.reference.header(&code, payload, &mut header).ok_or(Refused::Malformed)?;
        let header = &header[..len];
        room.copy_from_slice(header);
        if code.installs {
            let next = base.reference.advanced(header, &code).ok_or(Refused::Malformed)?;
            fill(other, number, next, &base.memory, code.keeps.then_some(&*payload));
        }
        Ok(())
    }
}

/// Fills a slot with a new reference, unless a younger packet has filled it.
fn fill(
    slot: &mut Option<ReceivedReference>,
    number: u64,
    reference: Reference,
    before: &[u8],
    payload: Option<&[u8]>,
) {
    if slot.as_ref().is_some_and(|s| s.since >= number) {
        return;
    }
    let mut memory = slot.take().map_or_else(Vec::new, |s| s.memory);
    payload::remember(&mut memory, before, payload);
    *slot = Some(ReceivedReference { since: number, reference, memory });
}
