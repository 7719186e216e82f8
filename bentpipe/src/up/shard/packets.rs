//! Packets of the hosts, from and to the TUN devices.

use relay::{Verdict, datagram};
use units::Instant;

use super::Shard;
use super::lines::Arrived;

impl Shard {
    /// A packet was read from the tunnel device, or (`split`) from that of SYNs.
    pub fn take_packet(&mut self, now: Instant, packet: &mut [u8], split: bool) {
        // A gateway that ends opens nothing new, and says so.
        if split && self.draining {
            return self.relay.refuse_syn(packet);
        }
        if !split && !self.is_noise_now(packet) && self.give_datagram(now, packet) {
            return;
        }
        self.carry_packet(now, packet, split);
    }

    /// A host's packet goes into the link, unless it opens a connection that is split.
    pub(super) fn carry_packet(&mut self, now: Instant, packet: &mut [u8], split: bool) {
        let wanted = match self.lines.is_empty() {
            true => None,
            false => self.wanted_line(packet),
        };
        let wanted = match wanted {
            Some(wanted) if self.fails_fast(now, &wanted, packet) => {
                return self.fail_fast(now, wanted, packet, split);
            }
            wanted => wanted,
        };
        if !self.lines.is_empty()
            && let Some(datagram) = datagram::parse(packet)
        {
            self.note_question(now, datagram);
        }
        let class = wanted.as_ref().map(|(at, flow)| self.class_by_line(*at, flow));
        match self.relay.handle_tun_in(now, packet, split, class.unwrap_or_default()) {
            Verdict::Intercept => self.write_syn(packet),
            Verdict::Refused => {}
            // It is a connection already, which is told of as such.
            Verdict::Pending => {
                wanted.into_iter().for_each(|wanted| self.note_pending_syn(now, wanted));
            }
            Verdict::Sent | Verdict::Dropped => {
                wanted.into_iter().for_each(|wanted| self.note_packet(now, wanted, packet.len()));
            }
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
        let (tun, has_lines) = (&self.tun, !self.lines.is_empty());
        let mut arrived = Vec::new();
        while self.relay.poll_tun(now, |packet| {
            if has_lines {
                arrived.extend(Arrived::read(packet));
            }
            if let Some(tun) = tun {
                // What the kernel does not take is lost, as on any full interface.
                let _ = tun.write(packet);
            }
        }) {}
        arrived.into_iter().for_each(|packet| self.note_arrived(now, packet));
        self.tell_refused_packets(now);
        self.tell_refused_connections(now);
    }
}
