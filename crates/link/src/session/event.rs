//! What the user of a session is told.

use crate::wire::{Origin, ResetReason, StreamId};

/// A mistake that a test plants in a session.
#[cfg(feature = "mistakes")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// What a report says has arrived is forgotten now and then.
    DroppedAcknowledgement,
    /// Bytes that the reader took are shown again now and then.
    DoubleDelivery,
    /// Credit for bytes that the reader took is never told.
    CreditLeak,
}

/// What happened, for the user of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer opened a stream.
    Opened(StreamId, Origin),
    /// The far connection of our stream stands.
    Accepted(StreamId),
    /// There is something to take from the stream: bytes, its end, or its reset.
    Readable(StreamId),
    /// The stream takes bytes again.
    Writable(StreamId),
    /// The peer gave the stream up; what it sent before can still be taken.
    Reset(StreamId, ResetReason),
    /// There is something of the peer's messages about chunks to take, or room again for ours
    /// ([`Session::has_message_room`](super::Session::has_message_room)).
    Messages,
}

/// What stands behind the bytes that [`Session::peek`](super::Session::peek) shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvState {
    /// More may come.
    Open,
    /// All was taken and the peer closed in good order.
    Finished,
    /// All that will come was taken and the peer gave up.
    Reset(ResetReason),
}
