//! Captures in the pcapng format (draft-ietf-opsawg-pcapng), as far as the emulator
//! needs them: one section, Ethernet interfaces with nanosecond times, packets with
//! comments. Blocks are appended to a buffer; writing it somewhere is the caller's.

/// Which way a packet went, seen from its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Into the interface.
    Inbound,
    /// Out of it.
    Outbound,
}

/// One packet for [`packet`].
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The interface, counted from 0 in the order of the [`interface`] calls.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The bytes to keep, from the destination address on.
    pub bytes: &'a [u8],
    /// How long the frame was.
    pub full_len: u32,
    /// Its direction.
    pub way: Way,
    /// A remark for the reader, shown by Wireshark.
    pub comment: Option<&'a str>,
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const LINKTYPE_ETHERNET: u16 = 1;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
/// Fixed fields of an enhanced packet block before the bytes: 7 words.
const PACKET_FIXED: usize = 28;

/// Appends the section header that a file begins with.
pub fn section(out: &mut Vec<u8>, program: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend(0x1a2b_3c4d_u32.to_le_bytes());
        out.extend([1, 0, 0, 0]);
        // The length of the section is not known: −1.
        out.extend(u64::MAX.to_le_bytes());
        option(out, SHB_USERAPPL, program.as_bytes());
        end_of_options(out);
    });
}

/// Appends the description of an Ethernet interface; packets are cut to `snap` bytes
/// (0: never).
pub fn interface(out: &mut Vec<u8>, name: &str, snap: u32) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend(u32::from(LINKTYPE_ETHERNET).to_le_bytes());
        out.extend(snap.to_le_bytes());
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_TSRESOL, &[9]);
        end_of_options(out);
    });
}

/// Appends one packet.
pub fn packet(out: &mut Vec<u8>, record: &Record<'_>) {
    out.reserve(record.bytes.len() + PACKET_FIXED + 64);
    block(out, ENHANCED_PACKET, |out| {
        out.extend(record.interface.to_le_bytes());
        out.extend(((record.time_ns >> 32) as u32).to_le_bytes());
        out.extend((record.time_ns as u32).to_le_bytes());
        out.extend((record.bytes.len() as u32).to_le_bytes());
        out.extend(record.full_len.to_le_bytes());
        padded(out, record.bytes);
        let way: u32 = if record.way == Way::Inbound { 1 } else { 2 };
        option(out, EPB_FLAGS, &way.to_le_bytes());
        if let Some(comment) = record.comment {
            option(out, OPT_COMMENT, comment.as_bytes());
        }
        end_of_options(out);
    });
}

/// A block: type, total length, content, total length again.
fn block(out: &mut Vec<u8>, kind: u32, content: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    content(out);
    let len = (out.len() - start + 4) as u32;
    out.extend(len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    padded(out, value);
}

fn end_of_options(out: &mut Vec<u8>) {
    out.extend([0; 4]);
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits a file into its blocks: type and content.
    fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
        let word = |b: &[u8]| u32::from_le_bytes(b[..4].try_into().unwrap());
        let mut found = Vec::new();
        while !file.is_empty() {
            let len = word(&file[4..]) as usize;
            assert_eq!(len % 4, 0);
            assert_eq!(word(&file[len - 4..]) as usize, len);
            found.push((word(file), &file[8..len - 4]));
            file = &file[len..];
        }
        found
    }

    #[test]
    fn the_section_header_is_byte_for_byte_what_the_draft_says() {
        let mut out = Vec::new();
        section(&mut out, "x");
        let expected = [
            0x0a, 0x0d, 0x0d, 0x0a, 40, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255,
            255, 255, 255, 255, 255, 4, 0, 1, 0, b'x', 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn blocks_of_every_length_keep_their_frame() {
        let mut out = Vec::new();
        section(&mut out, "bentpipe");
        interface(&mut out, "up", 0);
        for len in 0..9 {
            let record = Record {
                interface: 0,
                time_ns: 0x0123_4567_89ab_cdef,
                bytes: &[7; 9][..len],
                full_len: 9,
                way: Way::Outbound,
                comment: (len % 2 == 1).then_some("lost"),
            };
            packet(&mut out, &record);
        }
        let found = blocks(&out);
        assert_eq!(found.len(), 11);
        let (kind, content) = found[2 + 5];
        assert_eq!(kind, ENHANCED_PACKET);
        assert_eq!(&content[4..12], [0x67, 0x45, 0x23, 0x01, 0xef, 0xcd, 0xab, 0x89]);
        assert_eq!(&content[12..28], [5, 0, 0, 0, 9, 0, 0, 0, 7, 7, 7, 7, 7, 0, 0, 0]);
        assert!(content.ends_with(b"\x01\x00\x04\x00lost\x00\x00\x00\x00"));
    }
}
