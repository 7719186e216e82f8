//! Encodes a header as steps from a reference, and decodes it.

use units::internet_sum;

use super::bytes::{Reader, Short};
use super::shape::{Field, Kind, MAX_FIELDS, Shape};
use super::{MAX_HEADER, MAX_PACKET};

/// Room for what stands before a payload: two numbers, a mask, ten fields, a checksum, a
/// mask and ten deltas, of five bytes each at most.
pub(super) type HeadBytes = Short<128>;
/// By how much each field grows from packet to packet.
pub(super) type Deltas = [i32; MAX_FIELDS];

/// A header that later packets of its flow are encoded against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    pub shape: Shape,
    header: [u8; MAX_HEADER],
    pub deltas: Deltas,
    /// IPv4's identification is random: each packet carries it in full.
    pub random_id: bool,
}

/// How a packet differs from its reference.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Code {
    /// Packets since the reference.
    pub steps: u32,
    /// The packet becomes the reference of the other slot.
    pub installs: bool,
    /// The payload is compressed.
    pub packed: bool,
    /// The payload is kept with the reference that the packet becomes.
    pub keeps: bool,
    random_id: u16,
    /// Fields that are not as predicted, by their place, and how they differ.
    mask: u32,
    values: [i32; MAX_FIELDS],
    checksum: Option<u16>,
    /// Deltas of the new reference that are not those of the old one.
    delta_mask: u32,
    deltas: Deltas,
}

const LONG: u8 = 0x80;
const LONG_INSTALLS: u8 = 0x20;
const FULL: u8 = 0xc0;
const INSTALLS: u8 = 0x20;
const DELTAS: u8 = 0x10;
const CHECKSUM: u8 = 0x08;
const MASK: u8 = 0x04;
const PACKED: u8 = 0x02;
const KEEPS: u8 = 0x01;
pub(super) const WHOLE: u8 = 0xff;
const RANDOM_ID: u8 = 0x08;
const WHOLE_KEEPS: u8 = 0x10;

/// Steps of the short form, and of the long one.
pub(super) const SHORT_STEPS: u32 = 0x7f;
const LONG_STEPS: u32 = 0x1fff;

impl Reference {
    /// The reference that `packet` becomes.
    pub fn new(packet: &[u8], shape: Shape, deltas: Deltas, random_id: bool) -> Reference {
        let mut header = [0; MAX_HEADER];
        header[..shape.len].copy_from_slice(&packet[..shape.len]);
        Reference { shape, header, deltas, random_id: random_id && shape.id.is_some() }
    }

    /// The reference that a later header of the same shape makes; `None` if the shape differs.
    pub fn advanced(&self, header: &[u8], code: &Code) -> Option<Reference> {
        let shape = Shape::read(header, self.shape.kind).filter(|s| *s == self.shape)?;
        let mut deltas = self.deltas;
        for (i, delta) in deltas.iter_mut().enumerate() {
            if code.delta_mask >> i & 1 == 1 {
                *delta = code.deltas[i];
            }
        }
        Some(Reference::new(header, shape, deltas, self.random_id))
    }

    pub fn value(&self, field: Field) -> u32 {
        field.get(&self.header)
    }

    fn predicted(&self, i: usize, field: Field, steps: u32) -> u32 {
        let growth = (self.deltas[i] as u32).wrapping_mul(steps);
        self.value(field).wrapping_add(growth)
    }

    fn is_carried(&self, i: usize) -> bool {
        self.random_id && self.shape.id == Some(i)
    }

    /// How `packet`, which has this shape, differs from the prediction after `steps` packets.
    pub fn code(&self, packet: &[u8], steps: u32) -> Code {
        let mut code = Code { steps, ..Code::default() };
        for (i, field) in self.shape.fields().iter().enumerate() {
            let value = field.get(packet);
            if self.is_carried(i) {
                code.random_id = value as u16;
                continue;
            }
            let difference = field.difference(value, self.predicted(i, *field, steps));
            if difference != 0 {
                code.mask |= 1 << i;
                code.values[i] = if field.width == 1 { value as i32 } else { difference };
            }
        }
        code
    }

    /// The header that `code` stands for before `payload`; answers its length.
    pub fn header(&self, code: &Code, payload: &[u8], out: &mut [u8; MAX_HEADER]) -> Option<usize> {
        let shape = &self.shape;
        let total = shape.len + payload.len();
        if total > MAX_PACKET {
            return None;
        }
        out[..shape.len].copy_from_slice(&self.header[..shape.len]);
        let header = &mut out[..shape.len];
        for (i, field) in shape.fields().iter().enumerate() {
            let predicted = self.predicted(i, *field, code.steps);
            let value = match code.mask >> i & 1 {
                _ if self.is_carried(i) => u32::from(code.random_id),
                0 => predicted,
                _ if field.width == 1 => code.values[i] as u32,
                _ => predicted.wrapping_add(code.values[i] as u32),
            };
            field.set(header, value);
        }
        let mut put = |at: usize, n: u16| header[at..at + 2].copy_from_slice(&n.to_be_bytes());
        if shape.v6 {
            put(4, (total - 40) as u16);
        } else {
            put(2, total as u16);
        }
        if let Some(at) = shape.udp_length() {
            put(at, (total - shape.ip) as u16);
        }
        self.write_sums(code, header, payload);
        Some(shape.len)
    }

    fn write_sums(&self, code: &Code, header: &mut [u8], payload: &[u8]) {
        let shape = &self.shape;
        if let Some(at) = shape.checksum() {
            let is_udp = shape.udp_length().is_some();
            let none = is_udp && self.header[at..at + 2] == [0, 0];
            header[at..at + 2].fill(0);
            let sum = match code.checksum {
                Some(sum) => sum,
                None if none => 0,
                None => match transport_sum(shape, header, payload) {
                    // RFC 768: zero would say that there is none.
                    0 if is_udp => 0xffff,
                    sum => sum,
                },
            };
            header[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        if !shape.v6 {
            header[10..12].fill(0);
            let sum = internet_sum(&[&header[..shape.ip]]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// The transport's checksum; the field for it is zero.
fn transport_sum(shape: &Shape, header: &[u8], payload: &[u8]) -> u16 {
    let transport = &header[shape.ip..];
    if shape.kind == Kind::Echo && !shape.v6 {
        return internet_sum(&[transport, payload]);
    }
    let addresses = if shape.v6 { &header[8..40] } else { &header[12..20] };
    let protocol = header[if shape.v6 { 6 } else { 9 }];
    let length = ((transport.len() + payload.len()) as u16).to_be_bytes();
    internet_sum(&[addresses, &[0, protocol], &length, transport, payload])
}

impl Code {
    /// Without a checksum that the receiver cannot compute.
    pub fn carry_checksum(&mut self, packet: &[u8], shape: &Shape) {
        let at = shape.checksum().and_then(|at| packet[at..].first_chunk());
        self.checksum = at.map(|sum| u16::from_be_bytes(*sum));
    }

    /// The packet becomes a reference with these deltas.
    pub fn install(&mut self, reference: &Reference, deltas: &Deltas) {
        self.installs = true;
        for (i, (new, old)) in deltas.iter().zip(&reference.deltas).enumerate() {
            // Beyond the header's fields all deltas are zero.
            if new != old {
                self.delta_mask |= 1 << i;
                self.deltas[i] = *new;
            }
        }
    }

    /// Does the packet say its checksum? Then its payload is not compressed.
    pub fn carries_checksum(&self) -> bool {
        self.checksum.is_some()
    }

    /// Are all fields as predicted?
    pub fn is_as_predicted(&self) -> bool {
        self.mask == 0 && self.checksum.is_none()
    }

    fn is_plain(&self) -> bool {
        self.is_as_predicted() && self.delta_mask == 0 && !self.packed && !self.keeps
    }

    pub fn write(&self, reference: &Reference, out: &mut HeadBytes) {
        match self.steps {
            n @ 0..=SHORT_STEPS if self.is_plain() && !self.installs => out.byte(n as u8),
            n @ 0..=LONG_STEPS if self.is_plain() => {
                let installs = if self.installs { LONG_INSTALLS } else { 0 };
                out.bytes(&[LONG | installs | (n >> 8) as u8, n as u8]);
            }
            n => {
                let bit = |is: bool, bit| if is { bit } else { 0 };
                out.byte(
                    FULL | bit(self.installs, INSTALLS)
                        | bit(self.delta_mask != 0, DELTAS)
                        | bit(self.checksum.is_some(), CHECKSUM)
                        | bit(self.mask != 0, MASK)
                        | bit(self.packed, PACKED)
                        | bit(self.keeps, KEEPS),
                );
                out.varint(n);
            }
        }
        if reference.random_id {
            out.bytes(&self.random_id.to_be_bytes());
        }
        if self.mask != 0 {
            out.varint(self.mask);
            for (i, field) in reference.shape.fields().iter().enumerate() {
                match self.mask >> i & 1 {
                    0 => {}
                    _ if field.width == 1 => out.byte(self.values[i] as u8),
                    _ => out.zigzag(self.values[i]),
                }
            }
        }
        if let Some(sum) = self.checksum {
            out.bytes(&sum.to_be_bytes());
        }
        if self.delta_mask != 0 {
            write_deltas(self.delta_mask, &self.deltas, out);
        }
    }

    /// Reads what [`Code::write`] wrote; the payload is left.
    pub fn read(reference: &Reference, r: &mut Reader<'_>) -> Option<Code> {
        let mut code = Code::default();
        let form = r.byte()?;
        let mut flags = 0;
        if form & LONG == 0 {
            code.steps = u32::from(form);
        } else if form & FULL == LONG {
            code.steps = u32::from(form & 0x1f) << 8 | u32::from(r.byte()?);
            code.installs = form & LONG_INSTALLS != 0;
        } else {
            flags = form & 0x3f;
            code.steps = r.varint()?;
            code.installs = flags & INSTALLS != 0;
            (code.packed, code.keeps) = (flags & PACKED != 0, flags & KEEPS != 0);
            // All bits together would be the mark of a whole packet.
            if code.keeps && !code.installs || code.packed && flags & CHECKSUM != 0 {
                return None;
            }
        }
        if reference.random_id {
            code.random_id = u16::from_be_bytes(r.bytes()?);
        }
        if flags & MASK != 0 {
            code.mask = r.varint()?;
            let fields = reference.shape.fields();
            if code.mask >> fields.len() != 0 {
                return None;
            }
            for (i, field) in fields.iter().enumerate() {
                if code.mask >> i & 1 == 1 {
                    let raw = field.width == 1;
                    code.values[i] = if raw { i32::from(r.byte()?) } else { r.zigzag()? };
                }
            }
        }
        if flags & CHECKSUM != 0 {
            code.checksum = Some(u16::from_be_bytes(r.bytes()?));
        }
        if flags & DELTAS != 0 {
            (code.delta_mask, code.deltas) = read_deltas(reference.shape.fields().len(), r)?;
        }
        Some(code)
    }
}

fn write_deltas(mask: u32, deltas: &Deltas, out: &mut HeadBytes) {
    out.varint(mask);
    for (i, delta) in deltas.iter().enumerate() {
        if mask >> i & 1 == 1 {
            out.zigzag(*delta);
        }
    }
}

/// Reads the deltas of up to `fields` fields.
fn read_deltas(fields: usize, r: &mut Reader<'_>) -> Option<(u32, Deltas)> {
    let mask = r.varint()?;
    if mask >> fields != 0 {
        return None;
    }
    let mut deltas = Deltas::default();
    for (i, delta) in deltas.iter_mut().enumerate() {
        if mask >> i & 1 == 1 {
            *delta = r.zigzag()?;
        }
    }
    Some((mask, deltas))
}

/// Writes what stands before a whole packet that becomes a reference.
pub(super) fn write_whole(reference: &Reference, keeps: bool, out: &mut HeadBytes) {
    let random = if reference.random_id { RANDOM_ID } else { 0 };
    let keeps = if keeps { WHOLE_KEEPS } else { 0 };
    out.bytes(&[WHOLE, reference.shape.kind.to_u8() | random | keeps]);
    let mask = reference.deltas.iter().rev().fold(0, |m, s| m << 1 | u32::from(*s != 0));
    write_deltas(mask, &reference.deltas, out);
}

/// Reads what [`write_whole`] wrote after [`WHOLE`], and makes the reference of the packet
/// that follows; answers too whether its payload is kept.
pub(super) fn read_whole(r: &mut Reader<'_>) -> Option<(Reference, bool)> {
    let kind = r.byte()?;
    let (random_id, keeps) = (kind & RANDOM_ID != 0, kind & WHOLE_KEEPS != 0);
    let kind = Kind::from_u8(kind & !(RANDOM_ID | WHOLE_KEEPS))?;
    // The deltas stand before the packet, whose fields say how many there may be.
    let (_, deltas) = read_deltas(MAX_FIELDS, r)?;
    let shape = Shape::read(r.0, kind)?;
    Some((Reference::new(r.0, shape, deltas, random_id), keeps))
}
