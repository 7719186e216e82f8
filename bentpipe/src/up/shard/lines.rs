//! Links that are raised and dropped: what waits and what crosses is told to each peer's link
//! manager ([`dial::manager`]), and what that wants is done. A peer without a line costs nothing
//! here.

mod beside;
mod calls;
mod leaving;
mod managed;
mod names;
mod one;
mod opening;
mod orders;
mod packets;
mod paths;
mod questions;
mod report;
mod stops;
mod waiting;
mod work;

pub(in crate::up) use leaving::LeavingLines;
pub(super) use managed::ManagedLine;
pub(super) use names::HostNames;
pub(super) use packets::Arrived;
pub(super) use questions::Questions;
