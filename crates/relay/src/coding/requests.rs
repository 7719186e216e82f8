//! What the relay wants of coding: for its own flows, for the driver, and for whoever serves
//! the files of chunks.

use link::PeerId;
use squeeze::dedup::Dedup;
use squeeze::stream::Stopwatch;
use units::{Duration, Instant};

use super::{BadStream, LinkSqueezed};
use crate::{Action, FlowId, Relay};

impl Relay {
    /// Measures compression by this clock, so that its level follows the processor.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.coders.set_stopwatch(stopwatch);
        self.endpoint.set_stopwatch(stopwatch);
    }

    /// What compression did in the session with a peer so far.
    pub fn squeezed(&self, peer: PeerId) -> LinkSqueezed {
        let chunks = self.coders.chunk_counts(peer, self.endpoint.session(peer));
        LinkSqueezed { chunks, ..self.coders.squeezed(peer, &self.flows) }
    }

    /// A stream that was reset because what came of it could not be undone, for the log: at
    /// most one in ten seconds of this relay, which says how many others there were.
    pub fn poll_bad_stream(&mut self, now: Instant) -> Option<BadStream> {
        self.coders.poll_bad_stream(now)
    }

    /// Deduplicates the streams of a peer that takes it ([`link::session::LinkConfig`] must
    /// say that this node does), over `dedup`, whose keys are made of
    /// [`link::endpoint::Endpoint::chunk_secret`]. To be called before the peer's first session
    /// begins.
    pub fn set_dedup(&mut self, peer: PeerId, dedup: Dedup) {
        self.coders.set_dedup(peer, dedup);
    }

    /// A peer whose chunks' files may have to be served ([`Relay::serve_files`]).
    pub fn poll_files(&mut self) -> Option<PeerId> {
        self.coders.next_files()
    }

    /// Does [`Relay::poll_files`] name one?
    pub fn has_files(&self) -> bool {
        self.coders.has_files()
    }

    /// Lends the chunks of a peer to `serve`, which does what they want of files and answers
    /// whether that was anything. [`Relay::poll_action`] follows: streams may have waited.
    pub fn serve_files(&mut self, peer: PeerId, serve: impl FnOnce(&mut Dedup) -> bool) {
        if self.coders.dedup_mut(peer).is_some_and(serve) {
            self.coders.touch(peer);
        }
    }

    /// The processor time that coding streams has taken so far: what chunks took by their
    /// bytes, and the rest, if there is a stopwatch ([`Relay::set_stopwatch`]).
    pub fn coding_time(&self) -> Duration {
        self.coders.spent()
    }

    /// What came before the peer told what it takes is coded now.
    pub(crate) fn flush_early(&mut self, now: Instant, flow: FlowId) {
        let Some((mut turn, coders)) = self.turn(now, flow) else { return };
        if coders.has_early(flow)
            && let Some(coding) = turn.session.coding()
        {
            coders.flush(&mut turn, coding);
        }
    }

    /// The link has room, or credit, for the flow: what is held of its host's content goes.
    pub(crate) fn pump(&mut self, now: Instant, flow: FlowId) {
        self.pull(now, flow, false);
    }

    /// The flow is about to be over: all that is held of its host's content goes.
    pub(crate) fn hurry(&mut self, now: Instant, flow: FlowId) {
        self.pull(now, flow, true);
    }

    fn pull(&mut self, now: Instant, flow: FlowId, all: bool) {
        let Some((mut turn, coders)) = self.turn(now, flow) else { return };
        if let Some(coding) = turn.session.coding().filter(|coding| coding.dedup) {
            coders.pull(&mut turn, coding, all);
        }
    }

    pub(crate) fn settle_chunks(&mut self, now: Instant, peer: PeerId) {
        let number = self.endpoint.session_number(peer);
        let Some(session) = self.endpoint.session_mut(peer) else { return };
        let actions = &mut self.actions;
        let ready = |flow| actions.push_back(Action::Write(flow));
        self.coders.settle_chunks(now, peer, (number, session), ready);
    }
}
