//! The MTU of a path: when sizes are tried and what follows (spec/link.md, "Path
//! MTU"). What losses say and which sizes are next is in `path_mtu.rs`.

use units::{ByteCount, Duration, Instant};

use super::path::{Built, Load, Path};
use crate::wire::{Frame, Writer};

/// While interactive flows live a probe takes no more of the link than this, as others'
/// packets do.
const BESIDE_INTERACTIVE: Duration = Duration::from_millis(100);

/// Bytes of a packet's header and tag, and of the short form's head.
const OURS: u64 = 24;

impl Path {
    /// The largest IP packet that is sent now: what the configuration allows, or what is
    /// known to cross the path.
    pub(crate) fn path_mtu(&self) -> u16 {
        self.mtu.size()
    }

    /// The kernel refuses packets of `len` bytes of UDP payload: the way out is narrower.
    pub(crate) fn on_too_big(&mut self, now: Instant, len: usize) {
        let size = len as u64 + self.wire_overhead() - u64::from(self.config.overhead);
        if self.mtu.on_refused(now, size) {
            self.use_path_mtu();
        }
    }

    /// Is a probe to be sent now? Not while something more urgent waits, and not by a
    /// session that has nothing under way but a keepalive.
    pub(super) fn path_probe_waits(&self, now: Instant, load: Load<'_>) -> bool {
        self.mtu.waits(now)
            && !self.silent
            && self.sent.in_flight() > 0
            && self.mtu.used_within(now, self.full_rtt().times(4))
            && !load.is_urgent()
            && self.report_due().is_none_or(|t| t > now)
            && (now >= load.interactive_until || !self.is_long(self.mtu.largest_probe()))
    }

    /// When a probe is to be sent or given up.
    pub(super) fn path_timeout(&self, now: Instant, load: Load<'_>) -> Option<Instant> {
        let next = self.mtu.next_probe_at().map(|t| {
            let waits = self.is_long(self.mtu.largest_probe());
            if waits { t.max(load.interactive_until) } else { t }
        });
        // A silent peer is asked otherwise; what is due now counts as work.
        let next = next.filter(|t| !self.silent && self.sent.in_flight() > 0 && *t > now);
        [next, self.mtu.due()].into_iter().flatten().min()
    }

    fn is_long(&self, size: u16) -> bool {
        self.pacer.rate().time_for(ByteCount(u64::from(size))) > BESIDE_INTERACTIVE
    }

    /// Is a probe under way?
    #[cfg(test)]
    pub(crate) fn is_probing_size(&self) -> bool {
        self.mtu.due().is_some()
    }

    /// Writes a probe: a question, filled up to the size that is tried.
    pub(super) fn write_path_probe(
        &mut self,
        now: Instant,
        load: Load<'_>,
        buf: &mut [u8],
        sealing: u64,
    ) -> Option<Built> {
        if !self.path_probe_waits(now, load) {
            return None;
        }
        let (rate, framing) = (self.pacer.rate(), u64::from(self.config.overhead));
        let time_of = |size: u16| rate.time_for(ByteCount(u64::from(size) + framing));
        let (rung, size) = self.mtu.next_probe(now, time_of)?;
        let len = self.payload_of(u64::from(size)).checked_sub(sealing as usize)?;
        let buf = buf.get_mut(..len)?;
        // What follows the question is PADDING.
        buf.fill(0);
        Writer::new(buf).put(&Frame::Ping);
        self.pacer.on_sent(now, len as u64 + sealing + self.wire_overhead());
        let number = self.sent.push_probe(now);
        self.mtu.on_probe_sent(rung, number, now + self.report_overdue());
        self.keep_for_repair(now, load, number, 0, buf, false);
        Some(Built { number, len, hint: 0 })
    }

    /// Reports or time told more about sizes.
    pub(super) fn follow_path(&mut self, now: Instant) {
        let sent = &mut self.sent;
        if sent.take_probes_given_up() {
            self.mtu.forget_probes(|number| sent.give_up_probe(number));
        }
        let mut changed = self.mtu.take_answers(now, |number, give_up| {
            let open = sent.is_probing(number);
            if open && give_up {
                sent.give_up_probe(number);
            }
            open
        });
        if self.mtu.on_evidence(now, &self.sent.evidence, self.asked > 0) {
            self.sent.counts.too_long += self.sent.evidence.in_a_row();
            changed = true;
        }
        if changed {
            self.use_path_mtu();
        }
    }

    /// Another size is in use: what was gathered about the old one is void, and repair
    /// packets would be as long as what they combine.
    pub(super) fn use_path_mtu(&mut self) {
        self.sent.evidence = self.mtu.evidence(u64::from(self.config.overhead));
        self.fit_sizes();
        self.repair.forget_sent();
    }

    /// The longest packet, or the headers of all, may be others.
    pub(super) fn fit_sizes(&mut self) {
        let framing = u64::from(self.config.overhead);
        let longest = u64::from(self.mtu.size()).min(self.peer_mtu) + framing;
        self.sent.by_size.fit(self.wire_overhead() + OURS, longest);
    }

    /// The largest size follows from both nodes' parameters.
    pub fn set_largest_packet(&mut self, peer_mtu: u64) {
        self.peer_mtu = peer_mtu;
        let own = self.config.packet.min(self.config.mtu);
        let largest = self.peer_mtu.min(u64::from(own)) as u16;
        self.mtu.set_largest(largest, |number| self.sent.give_up_probe(number));
        self.sent.evidence = self.mtu.evidence(u64::from(self.config.overhead));
        self.fit_sizes();
    }
}
