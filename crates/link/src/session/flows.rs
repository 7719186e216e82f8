//! Flows of datagrams, and which of them are small enough to be interactive.

use units::{Duration, Instant};

use crate::stream::Recent;

/// A flow of datagrams that grew too large counts as interactive again after a pause of this, or
/// of two round trips. Sooner its packets would overtake each other.
const CALM: Duration = Duration::from_secs(1);

/// Places in the table of datagram flows. Two flows in one place count as one.
const FLOWS: usize = 1024;

#[derive(Clone, Copy, Default)]
struct FlowState {
    recent: Recent,
    last: Instant,
    large: bool,
}

/// How much flows of datagrams sent recently. Most sessions have none: the table is allocated
/// with the first.
#[derive(Default)]
pub(super) struct Flows(Box<[FlowState]>);

impl Flows {
    fn get(&mut self, flow: u32) -> &mut FlowState {
        if self.0.is_empty() {
            self.0 = vec![FlowState::default(); FLOWS].into_boxed_slice();
        }
        &mut self.0[flow as usize % FLOWS]
    }

    /// A flow has `len` bytes more to send: is it too large to be interactive? It may have sent
    /// `quick` bytes at once, and as many again in each `time`, which is two round trips.
    pub fn is_large(
        &mut self,
        now: Instant,
        flow: u32,
        len: u64,
        quick: u64,
        time: Duration,
    ) -> bool {
        let flow = self.get(flow);
        let calm = now.since(flow.last) >= CALM.max(time);
        flow.last = now;
        let level = flow.recent.level(now, quick, time);
        flow.recent.add(len);
        flow.large = flow.large && !calm || level + len > quick;
        flow.large
    }
}
