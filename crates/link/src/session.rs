//! What two nodes share once they have keys: streams, datagrams, receive state,
//! credit and the pacer. It outlives keys, addresses and darkness.
//!
//! A file here is one of three things:
//!
//! - a part, a type with fields and methods of its own that knows nothing of the whole: `schedule`
//!   (whose turn it is) with `hosts` and `control`, `flows`, `lane_headers`; of a path `health`,
//!   `missing`, `repair`, `said` and `trust`; and what all name: `config`, `facts`, `event`,
//!   `status`;
//! - a whole that is made of parts: `path`, of these `paths`, and the session in `state`;
//! - an act, what a whole does with its parts. A path's: `aside`, `liveness`, `mtu`, `news`,
//!   `repair_packets`, `weigh`. The session's: all others. No part
//!   and no whole imports an act.
//!
//! The order in which packets are filled (`send.rs`): reports that are due, then
//! control frames, then streams and datagrams as `schedule.rs` says; what counts as
//! urgent among them is in `priority.rs`. What arrives is taken apart in `receive.rs`;
//! how much each stream may have outstanding is in `flow_control.rs`.
//!
//! There is no congestion window: the pacer (R-RATE) and credit are the
//! only limits, so a lost packet delays the bytes it carried and nothing else.

mod aside;
mod codec;
mod config;
mod control;
mod event;
mod facts;
mod flow_control;
mod flows;
mod health;
mod hosts;
mod lane_headers;
mod liveness;
mod messages;
mod missing;
mod mtu;
mod news;
mod packets;
mod path;
mod path_changes;
mod paths;
mod priority;
mod receive;
mod repair;
mod repair_packets;
mod rest;
mod said;
mod schedule;
mod send;
mod show;
mod spread;
mod state;
mod status;
mod streams;
mod trust;
mod weigh;

pub use self::codec::StreamCodec;
pub(crate) use self::config::Params;
pub use self::config::{LinkConfig, NEARLY_EMPTY, PathConfig, best_packet};
#[cfg(feature = "mistakes")]
pub use self::event::Mistake;
pub use self::event::{Event, RecvState};
pub use self::facts::{Disagreements, End, Facts, Families, Services};
pub use self::health::PathHealth;
pub(crate) use self::receive::PathFrame;
pub use self::state::Session;
pub use self::status::{PathStatus, PathTraffic, SessionStats, Why};
pub use crate::rate::{RateMode, RateStatus};
pub use crate::repair::bulk_repair_interval;
pub use crate::traffic::{Carry, ChosenBy, ClassConfig, ClassId, Compress, Label};

#[cfg(test)]
mod tests;
