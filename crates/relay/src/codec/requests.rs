//! The relay's calls to its codecs: for its own flows, for the driver, and for whoever serves the
//! files of chunks.

use link::PeerId;
use squeeze::dedup::Dedup;
use squeeze::stream::Stopwatch;
use units::{Duration, Instant};

use super::{BadStream, LinkCompression};
use crate::{Action, FlowId, Relay};

impl Relay {
    /// Measures compression by this clock, so that its level follows the processor.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.codecs.set_stopwatch(stopwatch);
        self.endpoint.set_stopwatch(stopwatch);
    }

    /// What compression did in the session with a peer so far.
    pub fn compression(&self, peer: PeerId) -> LinkCompression {
        let chunks = self.codecs.chunk_counts(peer, self.endpoint.session(peer));
        LinkCompression { chunks, ..self.codecs.compression(peer, &self.flows) }
    }

    /// A stream that was reset because it could not be decompressed, for the log: at most one in
    /// ten seconds, which says how many others there were.
    pub fn poll_bad_stream(&mut self, now: Instant) -> Option<BadStream> {
        self.codecs.poll_bad_stream(now)
    }

    /// Deduplicates the streams of a peer that takes it ([`link::session::LinkConfig`] must
    /// say that this node does), over `dedup`, whose keys are made of
    /// [`link::endpoint::Endpoint::chunk_secret`]. To be called before the peer's first session
    /// begins, or after [`Relay::await_dedup`]; [`Relay::poll_action`] follows.
    pub fn set_dedup(&mut self, peer: PeerId, dedup: Dedup) {
        self.codecs.set_dedup(peer, dedup);
    }

    /// [`Relay::set_dedup`] follows for this peer, after its session may have begun: what it sends
    /// in streams waits until then, and what is sent to it is not deduplicated. To be called
    /// before the peer's first session begins.
    pub fn await_dedup(&mut self, peer: PeerId) {
        self.codecs.await_dedup(peer);
    }

    /// A peer whose chunks' files may have to be served ([`Relay::serve_files`]).
    pub fn poll_files(&mut self) -> Option<PeerId> {
        self.codecs.next_files()
    }

    /// Does [`Relay::poll_files`] name one?
    pub fn has_files(&self) -> bool {
        self.codecs.has_files()
    }

    /// Lends the chunks of a peer to `serve`, which does what they want of files and answers
    /// whether that was anything. [`Relay::poll_action`] follows: streams may have waited.
    pub fn serve_files(&mut self, peer: PeerId, serve: impl FnOnce(&mut Dedup) -> bool) {
        if self.codecs.dedup_mut(peer).is_some_and(serve) {
            self.codecs.touch(peer);
        }
    }

    /// The processor time that codecs have taken so far: computed from the bytes for chunks, and
    /// measured for the rest, if there is a stopwatch ([`Relay::set_stopwatch`]).
    pub fn codec_time(&self) -> Duration {
        self.codecs.spent()
    }

    /// Compresses what came before the peer's parameters were known.
    pub(crate) fn flush_early(&mut self, now: Instant, flow: FlowId) {
        let Some((mut active, codecs)) = self.active(now, flow) else { return };
        if codecs.has_early(flow)
            && let Some(codec) = active.session.codec()
        {
            codecs.flush(&mut active, codec);
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
        let Some((mut active, codecs)) = self.active(now, flow) else { return };
        if let Some(codec) = active.session.codec().filter(|codec| codec.dedup) {
            codecs.pull(&mut active, codec, all);
        }
    }

    pub(crate) fn settle_chunks(&mut self, now: Instant, peer: PeerId) {
        let number = self.endpoint.session_number(peer);
        let Some(session) = self.endpoint.session_mut(peer) else { return };
        let actions = &mut self.actions;
        let ready = |flow| actions.push_back(Action::Write(flow));
        self.codecs.settle_chunks(now, peer, (number, session), ready);
    }
}
