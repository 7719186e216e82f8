//! Packets of the hosts, from the TUN devices to the shards that have their peers.

use os::tun::TunError;
use relay::packet::Packet;
use units::Instant;

use super::{Driver, UpError};
use crate::up::shard::inbox::TUN_PACKETS;

impl Driver {
    pub(super) fn read_tun(&mut self, now: Instant) -> Result<(), UpError> {
        for _ in 0..TUN_PACKETS {
            let Some(tun) = &self.shard.tun else { break };
            let Some(n) = packet_read(tun.read(&mut self.packet))? else { break };
            self.pass(now, n, false);
        }
        Ok(())
    }

    pub(super) fn read_syns(&mut self, now: Instant) -> Result<(), UpError> {
        for _ in 0..TUN_PACKETS {
            let Some(intercept) = &self.intercept else { break };
            let Some(n) = packet_read(intercept.syns().read(&mut self.packet))? else { break };
            self.pass(now, n, true);
        }
        Ok(())
    }

    /// Gives the packet that was read to the shard that has its peer.
    fn pass(&mut self, now: Instant, len: usize, split: bool) {
        let packet = &mut self.packet[..len];
        if !self.others.is_empty()
            && let Some(parsed) = Packet::parse(packet)
            && let Some(other) = self.shard_routes.lookup(parsed.destination).filter(|s| *s > 0)
        {
            return self.others.push(other, packet, split);
        }
        self.shard.take_packet(now, packet, split);
    }
}

/// The length of a packet from a TUN device, if there was one. Any other failure than
/// having none is for good, and the poller would tell of it for ever.
fn packet_read(outcome: Result<usize, TunError>) -> Result<Option<usize>, UpError> {
    match outcome {
        Ok(n) => Ok(Some(n)),
        Err(TunError::Blocked) => Ok(None),
        Err(e) => Err(UpError::TunGone(e)),
    }
}
