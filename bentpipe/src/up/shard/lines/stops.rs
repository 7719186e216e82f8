//! Hosts whose budget for the month is used up: the relay is told which, and the operator.

use control::LineHost;
use dial::books::Host;
use dial::manager::HostSpending;
use dial::money::{Currency, Money};
use link::session::ClassId;
use relay::StoppedHosts;
use units::Instant;

use super::{ManagedLine, SPACING};
use crate::up::shard::Shard;

/// Hosts that the status names; those that have spent most.
const MOST_TOLD: usize = 256;

/// What the relay was told.
#[derive(Default)]
pub(super) struct Stops {
    told: StoppedHosts,
    /// The manager's number for these hosts ([`dial::manager::Manager::stopped_changes`]).
    changes: u64,
    /// When to look at which carriers everything goes by, while a host is stopped.
    look_at: Instant,
}

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

/// Tells the log of a budget: a host's, or that of all.
pub(super) fn tell(peer: &str, host: Option<Host>, [spent, of]: [Money; 2], stopped: bool) {
    let what = match (host, stopped) {
        (_, false) => "a month's budget is nearly used up",
        (None, true) => "a month's budget is used up: nothing that costs more is begun",
        (Some(_), true) => "a month's budget is used up: its host is stopped where it costs more",
    };
    let host = host.map_or_else(|| "all hosts".to_owned(), |host| host.to_string());
    crate::log!(Warn, what, peer = peer, host = host, spent = spent, of = of);
}

/// What the operator is told of hosts' budgets, the dearest hosts first.
pub(super) fn report(hosts: &[(HostSpending, Currency)]) -> Vec<LineHost> {
    let mut hosts = hosts.to_vec();
    hosts.sort_by_key(|(host, _)| std::cmp::Reverse((host.stopped, host.spent)));
    let told = |(of, currency): &(HostSpending, Currency)| LineHost {
        host: of.host.to_string(),
        spent: of.spent.to_string(),
        budget: of.of.to_string(),
        currency: currency.to_string(),
        stopped: of.stopped,
    };
    hosts.iter().take(MOST_TOLD).map(told).collect()
}
