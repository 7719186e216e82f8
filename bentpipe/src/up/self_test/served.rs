//! A test that a peer asks for. It costs the peer as many bytes, or as much time, as it costs
//! this node: nothing is kept, and what is sent has the class bulk and the link's own pace.

use link::PeerId;
use link::session::RecvState;
use relay::self_test::{LONGEST, Part, Report, Request};
use relay::{FlowId, Relay, ResetReason};
use units::Instant;

use super::parts::{Counting, Sending, Tail};
use super::{GRACE, Tools, Turn, works};

pub struct Served {
    pub flow: FlowId,
    pub peer: PeerId,
    /// It is reset then at the latest.
    deadline: Instant,
    stage: Stage,
}

enum Stage {
    /// The request comes.
    Asked(Tail<{ Request::LEN }>),
    Sending(Sending),
    Counting(Counting),
    /// What is left of the report.
    Reporting(Vec<u8>),
    /// The peer's end is missing.
    Ending,
}

impl Served {
    pub fn new(now: Instant, flow: FlowId, peer: PeerId) -> Served {
        let deadline = now + LONGEST + GRACE.times(2);
        Served { flow, peer, deadline, stage: Stage::Asked(Tail::new()) }
    }

    /// Has it not told all of its report yet?
    pub fn is_measuring(&self) -> bool {
        !matches!(self.stage, Stage::Ending)
    }

    pub fn ends(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Sending(sending) => sending.ends(),
            Stage::Counting(counting) => counting.ends(),
            _ => None,
        }
    }

    pub fn turn(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        tools: &mut Tools,
        tick: bool,
    ) -> Turn<()> {
        if now >= self.deadline || (tick && !works(relay, self.peer)) {
            relay.local_reset(now, self.flow, ResetReason::TimedOut);
            return Turn::Over(());
        }
        if let Stage::Asked(request) = &mut self.stage {
            let state = request.take(now, relay, self.flow, Request::LEN as u64);
            match request.last().map(Request::decode) {
                // Nothing of a test is kept, and references cost its peer next to nothing.
                Some(Some(_)) if !relay.comes_as_it_is(self.flow) => {
                    relay.local_reset(now, self.flow, ResetReason::Denied);
                    return Turn::Over(());
                }
                Some(Some(request)) => {
                    self.stage = begin(now, relay, self.flow, self.peer, request)
                }
                None if matches!(state, None | Some(RecvState::Open)) => return Turn::Rests,
                // Of another version, or no request at all.
                None | Some(None) => {
                    relay.local_reset(now, self.flow, ResetReason::Denied);
                    return Turn::Over(());
                }
            }
        }
        let mut more = false;
        match &mut self.stage {
            Stage::Sending(sending) => {
                if tick {
                    sending.looks.look(relay);
                }
                more = sending.work(now, relay, tools);
                if sending.is_over(now) {
                    let sent = sending.looks.sent(relay);
                    self.report(Report { sent, ..Report::default() });
                }
            }
            Stage::Counting(counting) => {
                counting.look(now, relay, false);
                let state = Tail::<1>::new().take(now, relay, self.flow, u64::MAX);
                more = state.is_none();
                counting.look(now, relay, !matches!(state, None | Some(RecvState::Open)));
                if let Some(counted) = counting.counted {
                    self.report(Report { counted, ..Report::default() });
                } else if matches!(state, Some(RecvState::Finished)) {
                    self.report(Report::default()); // Nothing came.
                }
            }
            _ => {}
        }
        self.end(now, relay, more)
    }

    fn report(&mut self, report: Report) {
        self.stage = Stage::Reporting(report.encode().to_vec());
    }

    /// Tells the report as there is room, and takes what still comes.
    fn end(&mut self, now: Instant, relay: &mut Relay, more: bool) -> Turn<()> {
        if let Stage::Reporting(rest) = &mut self.stage {
            let room = relay.writable_bytes(now, self.flow).min(rest.len());
            let taken = relay.local_data(now, self.flow, &rest[..room]);
            rest.drain(..taken);
            if rest.is_empty() {
                relay.local_end(now, self.flow);
                self.stage = Stage::Ending;
            }
        }
        if !matches!(self.stage, Stage::Reporting(_) | Stage::Ending) {
            return if more { Turn::HasMore } else { Turn::Rests };
        }
        match Tail::<1>::new().take(now, relay, self.flow, u64::MAX) {
            None => Turn::HasMore,
            Some(RecvState::Open) => Turn::Rests,
            Some(RecvState::Finished) if self.is_measuring() => Turn::Rests,
            Some(_) => {
                relay.closed(now, self.flow);
                Turn::Over(())
            }
        }
    }
}

fn begin(now: Instant, relay: &Relay, flow: FlowId, peer: PeerId, request: Request) -> Stage {
    match request.part {
        Part::Send => Stage::Sending(Sending::begin(now, relay, flow, peer, request.time)),
        Part::Count => Stage::Counting(Counting::new(flow, peer, request.time)),
    }
}
