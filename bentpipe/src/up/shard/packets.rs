//! Packets of the hosts, from and to the TUN devices.

use relay::Verdict;
use units::Instant;

use super::Shard;

impl Shard {
    /// A packet was read from the tunnel device, or (`split`) from that of SYNs.
    pub fn take_packet(&mut self, now: Instant, packet: &mut [u8], split: bool) {
        // A gateway that ends opens nothing new, and says so.
        if split && self.draining {
            return self.relay.refuse_syn(packet);
        }
        if !split && self.give_datagram(now, packet) {
            return;
        }
        match self.relay.handle_tun(now, packet, split) {
            Verdict::Intercept => self.write_syn(packet),
            Verdict::Refused => {}
            _ if self.lines.is_empty() => {}
            // It is a connection already, which is told of as such.
            Verdict::Pending => self.note_pending_syn(now, packet),
            Verdict::Sent | Verdict::Dropped => self.note_packet(now, packet),
        }
    }

    /// Writes to the device of SYNs. A full queue loses it; the client sends its SYN again.
    pub(super) fn write_syn(&self, packet: &[u8]) {
        if let Some(syns) = &self.syns {
            let _ = syns.write(packet);
        }
    }

    /// Writes to the tunnel device what this node itself has to say.
    pub(super) fn write_to_host(&self, packet: &[u8]) {
        if let Some(tun) = &self.tun {
            let _ = tun.write(packet);
        }
    }

    pub(super) fn write_tun(&mut self, now: Instant) {
        let tun = &self.tun;
        while self.relay.poll_tun(now, |packet| {
            if let Some(tun) = tun {
                // What the kernel does not take is lost, as on any full interface.
                let _ = tun.write(packet);
            }
        }) {}
        self.tell_refused_packets(now);
        self.tell_refused_connections(now);
    }
}
