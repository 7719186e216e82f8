//! Numbers in bytes: the link's varints (spec/link.md, "Frames"), and room for few of them.

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
        let n = u64::from(n);
        let len = (u64::BITS - n.leading_zeros()).max(1).div_ceil(7) as usize;
        let mut be = [0; 8];
        be.copy_from_slice(&n.to_be_bytes());
        be[8 - len] |= !(0xff_u8 >> (len - 1));
        self.bytes(&be[8 - len..]);
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

    /// Numbers above 2^32 − 1 are refused.
    pub fn varint(&mut self) -> Option<u32> {
        let first = self.byte()?;
        let extra = first.leading_ones() as usize;
        if extra > 4 {
            return None;
        }
        let mut n = u64::from(first & (0x7f >> extra));
        for _ in 0..extra {
            n = n << 8 | u64::from(self.byte()?);
        }
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
