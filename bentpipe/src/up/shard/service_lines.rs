//! What a shard has of services: their lines, the requests that are open, and what they were told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use link::PeerId;
use os::tcp::Stream;
use relay::{ConnectId, FlowId, ResetReason};
use service::Event;
use service::message::{Denied, Link};
use units::{Duration, Instant, IpPrefix};

use crate::up::services::line::{Answer, Line, Sent, reason_of};

/// When it is looked again whether a service takes its answers.
pub const AGAIN: Duration = Duration::from_millis(2);

/// A connection to a server that a service wants.
pub struct Dial {
    pub line: Arc<Line>,
    pub request: u64,
    /// To a host of this side, which the peer's policy does not concern.
    pub back: bool,
    /// Once its name is resolved.
    pub stream: Option<(Stream, SocketAddr)>,
}

/// What a shard has of services.
#[derive(Default)]
pub struct ServiceLines {
    pub running: BTreeMap<String, Arc<Line>>,
    /// Answers that wait for room.
    pub backlog: VecDeque<(Arc<Line>, Answer)>,
    pub dials: BTreeMap<ConnectId, Dial>,
    /// Names whose addresses somebody wants to know, with the request.
    pub look_ups: BTreeMap<u64, (Arc<Line>, u64)>,
    pub last_look_up: u64,
    pub streams: BTreeMap<FlowId, (Arc<Line>, u64)>,
    /// What each that runs was told of links.
    pub told: BTreeMap<String, Told>,
    /// When it is looked for news of links, or for room.
    pub due: Option<Instant>,
}

/// What a service was told.
#[derive(Default)]
pub struct Told {
    pub links: BTreeMap<PeerId, Link>,
    /// Peers of whom something may be new.
    pub news: BTreeSet<PeerId>,
}

impl ServiceLines {
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// An answer, as soon as there is room. The request is open until then.
    pub fn answer(&mut self, now: Instant, line: &Arc<Line>, answer: Answer) {
        if matches!(answer.event, Event::Failed { .. }) {
            line.counts.failed.fetch_add(1, Relaxed);
        }
        if line.waiting() == 0 && deliver(line, &answer) {
            return end(line, &answer);
        }
        line.count_waiting(true);
        self.backlog.push_back((line.clone(), answer));
        self.wake_at(now + AGAIN);
    }

    /// A peer may not reach these addresses any more: all services hear of it, behind the
    /// connections that they were given before.
    pub fn narrow(&mut self, now: Instant, peer: &str, denied: Vec<IpPrefix>) {
        if denied.is_empty() {
            return;
        }
        for line in self.running.values().cloned().collect::<Vec<_>>() {
            let (peer, denied) = (peer.to_owned(), Denied(denied.clone()));
            let event = Event::Narrowed { peer, denied };
            self.answer(now, &line, Answer { event, socket: None });
        }
    }

    pub fn wake_at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Answers that have found room, in their order.
    pub fn flush(&mut self, now: Instant) {
        let mut full: Vec<Arc<Line>> = Vec::new();
        for _ in 0..self.backlog.len() {
            let Some((line, answer)) = self.backlog.pop_front() else { return };
            if full.iter().any(|f| Arc::ptr_eq(f, &line)) || !deliver(&line, &answer) {
                full.push(line.clone());
                self.backlog.push_back((line, answer));
            } else {
                line.count_waiting(false);
                end(&line, &answer);
            }
        }
        if !self.backlog.is_empty() {
            self.wake_at(now + AGAIN);
        }
    }

    /// The flow's stream was reset: its service is told why before its socket says that.
    pub fn on_reset(&mut self, flow: FlowId, reason: ResetReason) {
        if let Some((line, id)) = self.streams.remove(&flow) {
            // Where there is no room for it the socket's reset has to do.
            line.send(&Event::Reset { id, reason: reason_of(reason) }, b"", None);
        }
    }

    pub fn add_stream(
        &mut self,
        flow: FlowId,
        line: &Arc<Line>,
        id: u64,
        exists: impl Fn(FlowId) -> bool,
    ) {
        if self.streams.len() >= 64 && self.streams.len().is_power_of_two() {
            self.streams.retain(|flow, _| exists(*flow));
        }
        self.streams.insert(flow, (line.clone(), id));
    }
}

/// False if there is no room. To a service that is gone nothing need be said.
fn deliver(line: &Line, answer: &Answer) -> bool {
    let socket = answer.socket.as_ref().map(AsFd::as_fd);
    line.send(&answer.event, b"", socket) != Sent::Full
}

/// The request that has this answer is not open any more.
fn end(line: &Line, answer: &Answer) {
    answer.request().into_iter().for_each(|request| line.end_request(request));
}
