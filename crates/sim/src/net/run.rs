//! One run of many nodes, from beginning to end.

use serde::Serialize;
use units::{Duration, Instant};

use super::plan::{Demand, NetPlan};
use super::world::Net;
use crate::Trace;
use crate::check::Failure;

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetReport {
    /// The seed.
    pub seed: u64,
    /// The hash of everything that happened, in hexadecimal.
    pub hash: String,
    /// Virtual milliseconds in all.
    pub virtual_ms: u64,
    /// Connections opened, and how many were over in good order.
    pub connections: u64,
    /// See `connections`.
    pub finished: u64,
    /// Hosts that saw a reset, or gave one.
    pub resets: u64,
    /// Stream bytes delivered to hosts.
    pub bytes: u64,
    /// Packets that all nodes sent, and their bytes on the links.
    pub packets: u64,
    /// See `packets`.
    pub packet_bytes: u64,
    /// How often drivers woke up for a timeout.
    pub wakes: u64,
    /// The longest queue of a channel, in bytes, and packets that found none free.
    pub longest_queue: u64,
    /// See `longest_queue`.
    pub overflows: u64,
    /// The most that a node's streams took.
    pub most_memory: u64,
    /// Stream bytes delivered, by connection.
    #[serde(skip)]
    pub delivered: Vec<u64>,
    /// The same within the plan's window.
    #[serde(skip)]
    pub window: Vec<u64>,
    /// When each connection was over, in virtual milliseconds from its beginning.
    #[serde(skip)]
    pub times_ms: Vec<Option<u64>>,
}

/// Runs many nodes, with a listener if wanted.
///
/// # Errors
/// The first promise that did not hold.
pub fn run_net(plan: &NetPlan, trace: Option<Trace<'_>>) -> Result<NetReport, Failure> {
    run_world(plan, Net::new(plan, trace))
}

pub(super) fn run_world(plan: &NetPlan, mut net: Net<'_>) -> Result<NetReport, Failure> {
    net.run(plan.heal_at, |_| false)?;
    net.trace(|| "all faults have ended".into());
    let asked = net.talks.len();
    converge(&mut net, plan.patience)?;
    finale(&mut net, asked)?;
    silence(&mut net)?;
    let mut report = net.report.clone();
    report.finished = net.talks.iter().filter(|t| t.ended_well()).count() as u64;
    report.hash = format!("{:016x}", net.digest.value());
    report.virtual_ms = net.now.since(Instant::ZERO).as_millis();
    let took = |t: &super::traffic::Talk| Some(t.ended_at?.since(t.plan.at).as_millis());
    report.times_ms = net.talks[..asked].iter().map(took).collect();
    report.delivered.truncate(asked);
    report.window.truncate(asked);
    Ok(report)
}

/// Everything must come to its end.
fn converge(net: &mut Net<'_>, patience: Duration) -> Result<(), Failure> {
    let last = net.plan.demands.iter().map(|demand| demand.at).max();
    let bound = net.now.max(last.unwrap_or(Instant::ZERO)) + patience;
    let begun = |net: &Net<'_>| last.is_none_or(|at| net.now >= at);
    if net.run(bound, |n| begun(n) && n.open_hosts == 0)? {
        // What is left of streams goes when the last acknowledgements are there.
        let rest = net.plan.delay.times(20) + Duration::from_secs(20);
        let until = net.now + rest;
        while net.now < until && leftover(net).is_some() {
            net.run(net.now + Duration::from_secs(1), |_| false)?;
        }
    }
    let mut talks = net.talks.iter().enumerate();
    let open = talks.find(|(_, t)| t.hosts.iter().flatten().any(|h| !h.is_over()));
    match (open, leftover(net)) {
        (Some((i, talk)), _) => {
            net.fail(format!("{patience} later connection {i} is not over: {:?}", talk.hosts))
        }
        (None, Some(left)) => net.fail(left),
        (None, None) => Ok(()),
    }
}

/// What there is that should be gone, if anything.
fn leftover(net: &Net<'_>) -> Option<String> {
    for (i, node) in net.nodes.iter().enumerate() {
        let Some(relay) = &node.relay else { return Some(format!("node {i} is down")) };
        let mut counts = vec![
            ("flows", relay.flow_count() as u64),
            ("bytes of stream memory", relay.endpoint.memory_used().0),
            ("sockets", node.flows.len() as u64),
        ];
        for neighbour in &node.neighbours {
            let Some(session) = relay.endpoint.session(neighbour.id) else { continue };
            counts.push(("streams", session.streams() as u64));
            let established = relay.endpoint.is_established(neighbour.id);
            counts.push(("things on their way", u64::from(established && !session.is_quiet())));
        }
        if let Some((what, n)) = counts.into_iter().find(|(_, n)| *n > 0) {
            return Some(format!("node {i} still has {n} {what}"));
        }
    }
    None
}

/// A fresh transfer over each link must work, quickly and in good order.
fn finale(net: &mut Net<'_>, asked: usize) -> Result<(), Failure> {
    const FRESH: u64 = 2_000;
    for link in &net.plan.links {
        net.add(Demand::fetch(net.now, link.ends, FRESH, FRESH));
    }
    // A node that started anew may have nothing to say to a peer that does not know yet.
    let until = net.now + Duration::from_secs(60);
    net.run(until, |n| {
        n.talks[asked..].iter().all(|t| t.hosts.iter().all(Option::is_some)) && n.open_hosts == 0
    })?;
    match net.talks[asked..].iter().find(|t| !t.ended_well()) {
        None => Ok(()),
        Some(talk) => net.fail(format!(
            "a fresh connection between the nodes {:?} does not work: {:?}",
            talk.plan.nodes, talk.hosts
        )),
    }
}

/// When nothing is to be said nothing is said.
fn silence(net: &mut Net<'_>) -> Result<(), Failure> {
    net.run(net.now + net.plan.delay.times(8) + Duration::from_secs(20), |_| false)?;
    if let Some(left) = leftover(net) {
        return net.fail(format!("after the last connection, {left}"));
    }
    let before = net.report.packets;
    net.run(net.now + Duration::from_secs(60), |_| false)?;
    match net.report.packets - before + net.in_channels() as u64 {
        0 => Ok(()),
        said => net.fail(format!("{said} packets crossed idle links")),
    }
}
