//! Datagrams that are kept until the peer is known to have them.

use std::collections::VecDeque;

use crate::datagram::Waiting;
use crate::session::{ClassId, HostId};

/// Kept datagrams by number.
#[derive(Default)]
pub(crate) struct Kept {
    /// The number of the first.
    base: u64,
    packets: VecDeque<Option<(ClassId, HostId, Waiting)>>,
    bytes: usize,
    limit: usize,
}

/// The most numbers from the oldest kept to the newest.
const MAX: usize = 1 << 16;

impl Kept {
    pub fn new(limit: usize) -> Kept {
        Kept { limit, ..Kept::default() }
    }

    /// Gives back what more of them took.
    pub fn shrink(&mut self) {
        self.packets.shrink_to_fit();
    }

    /// May a datagram of `len` bytes be kept?
    pub fn has_room(&self, len: usize) -> bool {
        self.bytes + len <= self.limit && self.packets.len() < MAX
    }

    pub fn keep(&mut self, class: ClassId, host: HostId, waiting: Waiting) -> u64 {
        self.bytes += waiting.bytes.len();
        self.packets.push_back(Some((class, host, waiting)));
        self.base + self.packets.len() as u64 - 1
    }

    /// Takes one out; `None` if it was taken before.
    pub fn take(&mut self, number: u64) -> Option<(ClassId, HostId, Waiting)> {
        let at = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let taken = self.packets.get_mut(at)?.take()?;
        self.bytes -= taken.2.bytes.len();
        while let Some(None) = self.packets.front() {
            self.packets.pop_front();
            self.base += 1;
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_and_memory_has_a_limit() {
        let mut kept = Kept::new(300);
        let packet = |n: usize| Waiting { bytes: vec![n as u8; 100], ..Waiting::default() };
        let mut keep = |n| {
            assert!(kept.has_room(100));
            kept.keep(ClassId::NORMAL, HostId::default(), packet(n))
        };
        let numbers = [keep(0), keep(1), keep(2)];
        assert!(!kept.has_room(1));
        assert_eq!(kept.take(numbers[1]).unwrap().2.bytes, [1; 100]);
        assert!(kept.take(numbers[1]).is_none() && kept.take(99).is_none());
        assert_eq!(kept.take(numbers[0]).unwrap().2.bytes, [0; 100]);
        assert_eq!(kept.packets.len(), 1);
        assert!(kept.has_room(200) && kept.take(numbers[0]).is_none());
    }
}
