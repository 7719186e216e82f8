//! Packets that are not split: they cross the link as datagrams.

use units::Instant;

use crate::packet::Packet;
use crate::{Relay, Verdict};

impl Relay {
    /// An IP packet was read from the TUN device. `split`: whether a SYN in it came
    /// from a LAN whose TCP is split.
    pub fn handle_tun(&mut self, now: Instant, packet: &mut [u8], split: bool) -> Verdict {
        let Some(p) = Packet::parse(packet) else {
            self.stats.unroutable += 1;
            return Verdict::Dropped;
        };
        let Some((peer, route)) = self.routes.find(p.destination) else {
            self.stats.unroutable += 1;
            return Verdict::Dropped;
        };
        if let Some(pair) = p.opens(packet).filter(|_| split) {
            return self.on_syn(now, peer, pair, packet);
        }
        let (session, policy) = (self.endpoint.session_mut(peer), self.policies.of(peer));
        let (Some(session), Some(policy)) = (session, policy) else { return Verdict::Dropped };
        p.clamp_mss(packet, session.max_whole_datagram());
        // Behind a default route is the Internet: then the LAN is on our side.
        let host = if route == 0 { p.source } else { p.destination };
        let label = policy.label(&p, packet, host);
        if session.send_datagram(now, packet, &label) {
            Verdict::Sent
        } else {
            self.stats.overflow += 1;
            Verdict::Dropped
        }
    }

    /// Lends the next IP packet for the TUN device to `write`; false if there is none.
    /// Only packets from the peer's own prefixes to where it may go pass.
    pub fn poll_tun(&mut self, mut write: impl FnMut(&mut [u8])) -> bool {
        while let Some(peer) = self.endpoint.peer_with_datagrams() {
            let Some(session) = self.endpoint.session_mut(peer) else { continue };
            let max = session.max_whole_datagram();
            let policy = self.policies.of(peer);
            let (own, mut passed, mut foreign) = (&self.own, false, false);
            session.take_datagram(|bytes| {
                let parsed = Packet::parse(bytes);
                let allowed = parsed.filter(|p| {
                    policy.is_some_and(|rules| {
                        rules.owns(p.source) && rules.permits(p.destination, own)
                    })
                });
                match allowed {
                    Some(p) => {
                        p.clamp_mss(bytes, max);
                        write(bytes);
                        passed = true;
                    }
                    None => foreign = true,
                }
            });
            self.stats.foreign += u64::from(foreign);
            if passed {
                return true;
            }
        }
        false
    }
}
