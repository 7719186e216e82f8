//! The headers of packets that are carried in order: each refers to earlier ones of its stream.

use std::collections::BTreeMap;

use squeeze::headers::{Compressor, Decompressor};
use squeeze::stream::Stopwatch;
use units::Duration;

use crate::wire::StreamId;

/// What both nodes know of the headers of packets in order, for each stream of them.
#[derive(Default)]
pub(super) struct LaneHeaders {
    sent: BTreeMap<StreamId, Compressor>,
    received: BTreeMap<StreamId, Received>,
    /// A packet on its way out of a stream.
    body: Vec<u8>,
    pub stopwatch: Option<Stopwatch>,
    /// Of streams that are over.
    spent: Duration,
}

/// The same for one of the peer's streams.
pub(super) struct Received {
    pub decompressor: Decompressor,
    /// Packets so far.
    pub count: u64,
}

impl LaneHeaders {
    /// Of the peer's parameters nothing is known at first, and no contexts are used.
    pub fn sent(&mut self, id: StreamId, contexts: usize) -> &mut Compressor {
        let headers = self.sent.entry(id).or_insert_with(|| Compressor::new(0));
        headers.set_contexts(contexts);
        headers.set_stopwatch(self.stopwatch);
        headers
    }

    /// The same of a stream of the peer's, and room for a packet of it.
    pub fn received(&mut self, id: StreamId, contexts: usize) -> (&mut Received, &mut Vec<u8>) {
        let received = self
            .received
            .entry(id)
            .or_insert_with(|| Received { decompressor: Decompressor::new(contexts), count: 0 });
        received.decompressor.set_stopwatch(self.stopwatch);
        (received, &mut self.body)
    }

    /// The time that payloads have taken.
    pub fn spent(&self) -> Duration {
        let sent = self.sent.values().map(Compressor::spent);
        let received = self.received.values().map(|r| r.decompressor.spent());
        sent.chain(received).fold(self.spent, |sum, spent| sum + spent)
    }

    /// The stream is over.
    pub fn forget(&mut self, id: StreamId) {
        let sent = self.sent.remove(&id).map(|c| c.spent());
        let received = self.received.remove(&id).map(|r| r.decompressor.spent());
        self.spent += sent.unwrap_or_default() + received.unwrap_or_default();
    }
}
