//! Hosts whose budget for the month is used up: the relay is told which.

use dial::books::Host;
use link::session::ClassId;
use relay::StoppedHosts;
use units::Instant;

use super::managed::ManagedLine;
use super::work::SPACING;
use crate::up::shard::Shard;

impl Shard {
    /// Tells the relay which hosts are stopped, and in which classes, when either is another.
    pub(super) fn stop_hosts(&mut self, now: Instant, at: usize) {
        let line = &self.lines[at];
        let (stopped, changes) = (line.manager.stopped_hosts(), line.manager.stopped_changes());
        let is_due = !stopped.is_empty() && now >= line.stops.look_at;
        if changes == line.stops.changes && !is_due {
            return;
        }
        let addr = |host: &Host| match host {
            Host::Addr(addr) => Some(addr.to_canonical()),
            Host::Node | Host::Others => None,
        };
        let hosts = stopped.iter().filter_map(addr).collect();
        let classes = if stopped.is_empty() { 0 } else { self.classes_that_cost(now, line) };
        let told = StoppedHosts { hosts, classes };
        let line = &mut self.lines[at];
        (line.stops.changes, line.stops.look_at) = (changes, now + SPACING);
        if told != line.stops.told {
            line.stops.told.clone_from(&told);
            // What a connection that is reset had under way pays for nothing of others'.
            line.crossed
                .retain(|_, c| !addr(&c.flow.host).is_some_and(|a| told.hosts.contains(&a)));
            self.relay.stop_hosts(now, line.peer, told);
        }
    }

    /// Classes whose traffic would go by a carrier with a price, a bit for each.
    fn classes_that_cost(&self, now: Instant, line: &ManagedLine) -> u32 {
        let carried = self.carried(now, line);
        let mut classes = if line.manager.charges(carried.active) { u32::MAX } else { 0 };
        let Some(peer) = self.peers.with_id(line.peer) else { return classes };
        let traffic = &peer.config.traffic;
        for class in 0..traffic.classes.len() {
            let name = traffic.class_name(ClassId::from_index(class));
            if let Some(carrier) = carried.of_class.get(name) {
                let costs = u32::from(line.manager.charges(*carrier));
                classes = classes & !(1 << class) | costs << class;
            }
        }
        classes
    }
}
