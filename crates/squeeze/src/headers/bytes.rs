//! Numbers in bytes: the link's varints (spec/link.md, "Frames"), and room for few of them.

use units::varint;

/// The most bytes of a number of 32 bits.
const MAX_VARINT: usize = 5;

/// A short run of bytes, without memory of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Short<N> {
    pub fn new() -> Short<N> {
        Short { bytes: [0; N], len: 0 }
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// At most five bytes.
    pub fn varint(&mut self, n: u32) {
        self.len += varint::put(n.into(), &mut self.bytes[self.len..]);
    }

    /// A difference, which may be negative.
    pub fn zigzag(&mut self, n: i32) {
        self.varint((n << 1 ^ n >> 31) as u32);
    }
}

/// Takes bytes off the front; `None` where they have run out.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// Numbers above 2^32 − 1 are refused, and forms of more bytes than any of them takes.
    pub fn varint(&mut self) -> Option<u32> {
        let (n, len) = varint::take(self.0).filter(|(_, len)| *len <= MAX_VARINT)?;
        self.0 = &self.0[len..];
        u32::try_from(n).ok()
    }

    pub fn zigzag(&mut self) -> Option<i32> {
        let n = self.varint()?;
        Some((n >> 1) as i32 ^ -((n & 1) as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_more_than_32_bits_or_five_bytes_are_refused() {
        let taken = |bytes: &[u8]| Reader(bytes).varint();
        assert_eq!(taken(&[0xf0, 0xff, 0xff, 0xff, 0xff]), Some(u32::MAX));
        assert_eq!(taken(&[0xf1, 0, 0, 0, 0]), None);
        assert_eq!(taken(&[0xf8, 0, 0, 0, 0, 1]), None);
    }

    proptest! {
        #[test]
        fn numbers_come_back(n in any::<u32>(), shift in 0u32..32, d in any::<i32>()) {
            let n = n >> shift;
            let mut out = Short::<10>::new();
            out.varint(n);
            out.zigzag(d >> shift);
            let mut r = Reader(out.as_slice());
            prop_assert_eq!((r.varint(), r.zigzag()), (Some(n), Some(d >> shift)));
            prop_assert!(r.0.is_empty());
        }
    }
}
