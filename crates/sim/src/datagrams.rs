//! Unsplit packets: IPv4 and UDP, so that their headers are compressed, with a number and a
//! pattern in it, each delivered whole. Plain ones come at most once, ordered ones also in order.

use relay::{Carry, Rule};
use units::internet_sum;

use crate::pattern::Pattern;
use crate::plan::MIN_DATAGRAM;

/// What became of the datagrams sent to one node.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// Length and arrivals, by number.
    sent: Vec<(usize, u32)>,
    pub arrived: u64,
    /// The last ordered one.
    last: u64,
    /// Both nodes have room for the streams that keep the order.
    keeps_order: bool,
}

/// The destination ports of the ways that packets are carried.
const WAYS: [(u16, Carry); 2] = [(5000, Carry::Plain), (5001, Carry::Ordered)];

/// The way of packet `number`.
fn way(number: u64) -> (u16, Carry) {
    WAYS[number as usize % WAYS.len()]
}

/// The rules that say so.
pub(crate) fn rules() -> Vec<Rule> {
    let rule = |(port, carry)| Rule {
        protocol: Some(UDP),
        ports: vec![port..=port],
        dscp: None,
        class: None,
        carry: Some(carry),
        compress: None,
        headers: None,
        dedup: None,
        via: None,
    };
    WAYS.map(rule).to_vec()
}

const UDP: u8 = 17;

impl Datagrams {
    /// `keeps_order`: both nodes have room for the streams that keep the order.
    pub fn new(keeps_order: bool) -> Datagrams {
        Datagrams { keeps_order, ..Datagrams::default() }
    }

    /// The next packet from `node` to the other, `len` bytes long.
    pub fn make(&mut self, node: usize, len: usize) -> Vec<u8> {
        let len = len.max(MIN_DATAGRAM);
        let number = self.sent.len() as u64;
        self.sent.push((len, 0));
        let mut packet = vec![0; len];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[9] = UDP;
        packet[12..16].copy_from_slice(&[10, node as u8 + 1, 0, 9]);
        packet[16..20].copy_from_slice(&[10, 2 - node as u8, 0, 9]);
        packet[4..6].copy_from_slice(&(number as u16).to_be_bytes());
        packet[22..24].copy_from_slice(&way(number).0.to_be_bytes());
        packet[24..26].copy_from_slice(&(len as u16 - 20).to_be_bytes());
        let sum = internet_sum(&[&packet[..20]]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet[28..36].copy_from_slice(&number.to_be_bytes());
        pattern(node, number).fill(0, &mut packet[36..]);
        packet
    }

    /// A packet from `node` arrived.
    pub fn check(&mut self, node: usize, packet: &[u8]) -> Result<(), String> {
        let Some(name) = packet.get(28..36).and_then(|n| n.first_chunk::<8>()) else {
            return Err(format!("a datagram of {} bytes arrived: none was sent", packet.len()));
        };
        let number = u64::from_be_bytes(*name);
        let Some((len, arrivals)) = self.sent.get_mut(number as usize) else {
            return Err(format!("datagram {number} arrived and was never sent"));
        };
        *arrivals += 1;
        self.arrived += 1;
        if *arrivals > 1 {
            return Err(format!("datagram {number} arrived twice"));
        }
        if way(number).1 == Carry::Ordered && self.keeps_order {
            if number < self.last {
                return Err(format!("datagram {number} arrived after {}", self.last));
            }
            self.last = number;
        }
        if packet.len() != *len || pattern(node, number).mismatch(0, &packet[36..]).is_some() {
            return Err(format!("datagram {number} of {len} bytes arrived changed"));
        }
        Ok(())
    }
}

fn pattern(node: usize, number: u64) -> Pattern {
    Pattern::new(0xd000_0000_0000_0000 | (node as u64) << 48 | number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_changes_are_seen() {
        let mut datagrams = Datagrams::default();
        let one = datagrams.make(0, 100);
        let mut other = datagrams.make(0, 100);
        assert_eq!(datagrams.check(0, &one), Ok(()));
        assert!(datagrams.check(0, &one).is_err());
        other[80] ^= 1;
        assert!(datagrams.check(0, &other).is_err());
    }

    #[test]
    fn ordered_packets_out_of_order_are_seen() {
        let mut datagrams = Datagrams::new(true);
        let packets: Vec<_> = (0..5).map(|_| datagrams.make(0, 100)).collect();
        assert_eq!(datagrams.check(0, &packets[3]), Ok(()));
        assert!(datagrams.check(0, &packets[1]).is_err());
        assert_eq!(datagrams.check(0, &packets[0]), Ok(()), "a plain one may be late");
    }
}
