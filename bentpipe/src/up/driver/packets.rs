//! Packets of the hosts, to and from the TUN devices.

use os::tun::TunError;
use relay::Verdict;
use units::Instant;

use super::{Driver, UpError};

/// TUN packets per turn.
const TUN_PACKETS: usize = 64;

impl Driver {
    pub(super) fn read_tun(&mut self, now: Instant) -> Result<(), UpError> {
        let Some(tun) = &self.tun else { return Ok(()) };
        for _ in 0..TUN_PACKETS {
            let Some(n) = packet_read(tun.read(&mut self.packet))? else { break };
            self.relay.handle_tun(now, &mut self.packet[..n], false);
        }
        Ok(())
    }

    pub(super) fn read_syns(&mut self, now: Instant) -> Result<(), UpError> {
        let Some(intercept) = &self.intercept else { return Ok(()) };
        for _ in 0..TUN_PACKETS {
            let Some(n) = packet_read(intercept.syns().read(&mut self.packet))? else { break };
            // A gateway that ends opens nothing new.
            if self.draining.is_none()
                && self.relay.handle_tun(now, &mut self.packet[..n], true) == Verdict::Intercept
            {
                // A full queue loses the SYN; the client sends it again.
                let _ = intercept.syns().write(&self.packet[..n]);
            }
        }
        Ok(())
    }

    pub(super) fn write_tun(&mut self) {
        let tun = &self.tun;
        while self.relay.poll_tun(|packet| {
            if let Some(tun) = tun {
                // What the kernel does not take is lost, as on any full interface.
                let _ = tun.write(packet);
            }
        }) {}
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
