//! What waits for the line: [`Demand`] finds when each rule wants it raised.

use std::collections::{BTreeMap, BTreeSet};

use units::{ByteCount, Instant};

use super::FlowId;
use crate::books::Host;
use crate::rules::{Flow, Rules};

/// Flows that are remembered, at most.
const MOST: usize = 4_096;

#[derive(Clone, Debug)]
struct Waiting {
    flow: Flow,
    rule: usize,
    bytes: u64,
    since: Instant,
}

/// All that waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    flows: BTreeMap<FlowId, Waiting>,
    /// By rule and age; without the flows of hosts whose budget keeps them from raising a line.
    order: BTreeSet<(usize, Instant, FlowId)>,
    /// Bytes and flows of each rule.
    sums: BTreeMap<usize, (u64, usize)>,
    /// Flows of each host.
    hosts: BTreeMap<Host, usize>,
    /// Hosts whose budget is used up.
    stopped: BTreeSet<Host>,
    /// Hosts whose budget does not pay the beginning of a call.
    short: BTreeSet<Host>,
}

/// What waits under one rule.
pub(super) struct Pending<'a> {
    pub rule: usize,
    pub bytes: ByteCount,
    pub flows: usize,
    pub oldest: &'a Flow,
    pub since: Instant,
}

impl Demand {
    /// `bytes` of `flow` wait now; none: it waits no longer.
    pub fn set(&mut self, now: Instant, id: FlowId, flow: &Flow, bytes: u64, rules: &Rules) {
        let rule = rules.find(flow);
        let since = self.remove(id).filter(|w| w.rule == rule).map_or(now, |w| w.since);
        if bytes == 0 {
            return;
        }
        if self.flows.len() >= MOST && !self.make_room(rule, rules) {
            return;
        }
        let waiting = Waiting { flow: flow.clone(), rule, bytes, since };
        *self.hosts.entry(flow.host).or_default() += 1;
        self.index(id, &waiting);
        self.flows.insert(id, waiting);
    }

    /// Somebody who waits is not turned away for the sake of what is gathered, nor that for noise.
    fn make_room(&mut self, rule: usize, rules: &Rules) -> bool {
        let urgency = |rule: usize| rules.get(rule).then.urgency();
        let least = self.flows.iter().rev().min_by_key(|(_, w)| urgency(w.rule));
        let victim = least.filter(|(_, w)| urgency(w.rule) < urgency(rule)).map(|(id, _)| *id);
        victim.is_some_and(|id| self.remove(id).is_some())
    }

    fn remove(&mut self, id: FlowId) -> Option<Waiting> {
        let waiting = self.flows.remove(&id)?;
        if let Some(flows) = self.hosts.get_mut(&waiting.flow.host) {
            *flows -= 1;
            if *flows == 0 {
                self.hosts.remove(&waiting.flow.host);
            }
        }
        if self.order.remove(&(waiting.rule, waiting.since, id)) {
            let (bytes, flows) = self.sums.entry(waiting.rule).or_default();
            (*bytes, *flows) = (bytes.saturating_sub(waiting.bytes), flows.saturating_sub(1));
        }
        Some(waiting)
    }

    fn index(&mut self, id: FlowId, waiting: &Waiting) {
        let host = &waiting.flow.host;
        if !self.stopped.contains(host) && !self.short.contains(host) {
            self.order.insert((waiting.rule, waiting.since, id));
            let (bytes, flows) = self.sums.entry(waiting.rule).or_default();
            (*bytes, *flows) = (bytes.saturating_add(waiting.bytes), *flows + 1);
        }
    }

    /// Other rules hold from now on; who waits has waited since the same time.
    pub fn set_rules(&mut self, rules: &Rules) {
        self.order.clear();
        self.sums.clear();
        for (id, mut waiting) in std::mem::take(&mut self.flows) {
            waiting.rule = rules.find(&waiting.flow);
            self.index(id, &waiting);
            self.flows.insert(id, waiting);
        }
    }

    /// The flows of these hosts raise nothing: their budgets are used up, or too short for a call.
    pub fn leave_out(&mut self, stopped: BTreeSet<Host>, short: BTreeSet<Host>) {
        if stopped == self.stopped && short == self.short {
            return;
        }
        (self.stopped, self.short) = (stopped, short);
        self.order.clear();
        self.sums.clear();
        let flows = std::mem::take(&mut self.flows);
        for (id, waiting) in &flows {
            self.index(*id, waiting);
        }
        self.flows = flows;
    }

    pub fn is_stopped(&self, host: &Host) -> bool {
        self.stopped.contains(host)
    }

    pub fn stopped(&self) -> &BTreeSet<Host> {
        &self.stopped
    }

    /// Does something of this host wait?
    pub fn waits(&self, host: &Host) -> bool {
        self.hosts.contains_key(host)
    }

    /// The hosts of which something waits.
    pub fn hosts(&self) -> impl Iterator<Item = Host> {
        self.hosts.keys().copied()
    }

    /// What waits under a rule, the oldest first.
    pub fn under(&self, rule: usize) -> impl Iterator<Item = &Flow> {
        let places = (rule, Instant::ZERO, FlowId(0))..(rule + 1, Instant::ZERO, FlowId(0));
        self.order.range(places).filter_map(|(.., id)| Some(&self.flows.get(id)?.flow))
    }

    /// What waits, rule by rule, in the order of the rules; also under those that raise nothing.
    pub fn all(&self) -> impl Iterator<Item = Pending<'_>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let first = (from, Instant::ZERO, FlowId(0));
            let (rule, since, id) = *self.order.range(first..).next()?;
            from = rule + 1;
            let (bytes, flows) = self.sums.get(&rule).copied().unwrap_or_default();
            let oldest = &self.flows.get(&id)?.flow;
            Some(Pending { rule, bytes: ByteCount(bytes), flows, oldest, since })
        })
    }
}
