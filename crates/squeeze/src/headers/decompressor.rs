//! The receiver's side.

use super::bytes::Reader;
use super::code::{Code, Reference, WHOLE, read_whole};
use super::{MAX_CONTEXTS, MAX_HEADER, MAX_PACKET};

/// Why there is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The packet is later than what took its reference's place: it counts as lost.
    Late,
    /// No honest sender writes this.
    Malformed,
}

/// A reference, and the number of the link packet that it came with.
type Slot = Option<(u64, Reference)>;

/// Makes packets of what the peer's [`Compressor`](super::Compressor) wrote.
#[derive(Default)]
pub struct Decompressor {
    contexts: Vec<[Slot; 2]>,
    limit: usize,
}

impl Decompressor {
    /// With `contexts` contexts at most ([`MAX_CONTEXTS`] at most). Memory, about 450 bytes
    /// for each, is taken when the peer uses them.
    pub fn new(contexts: usize) -> Decompressor {
        Decompressor { contexts: Vec::new(), limit: contexts.min(MAX_CONTEXTS) }
    }

    /// Appends to `out` the packet that `body` stands for, which came with link packet
    /// `number`: each number counts once, and the content of one link packet comes in order.
    ///
    /// # Errors
    /// Where there is none; `out` is as it was.
    pub fn decompress(
        &mut self,
        number: u64,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let mut r = Reader(body);
        let place = r.varint().ok_or(Refused::Malformed)?;
        let (context, slot) = ((place >> 1) as usize, (place & 1) as usize);
        if context >= self.limit {
            return Err(Refused::Malformed);
        }
        if r.0.first() == Some(&WHOLE) {
            r.byte();
            let reference = read_whole(&mut r).ok_or(Refused::Malformed)?;
            if r.0.len() > MAX_PACKET {
                return Err(Refused::Malformed);
            }
            self.install(context, slot, number, reference);
            out.extend_from_slice(r.0);
            return Ok(());
        }
        let found = self.contexts.get(context).and_then(|slots| slots[slot].as_ref());
        // A sender uses only what it knows to be here, so what is not was never there.
        let (since, reference) = found.ok_or(Refused::Malformed)?;
        if *since >= number {
            return Err(Refused::Late);
        }
        let code = Code::read(reference, &mut r).ok_or(Refused::Malformed)?;
        let mut header = [0; MAX_HEADER];
        let len = reference.header(&code, r.0, &mut header).ok_or(Refused::Malformed)?;
        if code.installs {
            let next = reference.advanced(&header[..len], &code).ok_or(Refused::Malformed)?;
            self.install(context, 1 - slot, number, next);
        }
        out.extend_from_slice(&header[..len]);
        out.extend_from_slice(r.0);
        Ok(())
    }

    /// The younger of two packets that fill a slot stays.
    fn install(&mut self, context: usize, slot: usize, number: u64, reference: Reference) {
        if self.contexts.len() <= context {
            self.contexts.resize(context + 1, [None, None]);
        }
        let slot = &mut self.contexts[context][slot];
        if slot.as_ref().is_none_or(|(since, _)| *since < number) {
            *slot = Some((number, reference));
        }
    }
}
