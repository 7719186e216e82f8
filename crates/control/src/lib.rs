//! What a running gateway tells and takes, over its control socket (spec/control.md).
//!
//! A client connects to a Unix stream socket, writes one [`Request`] (a JSON object and a
//! newline) and reads one [`Answer`] (the same). `test` has an answer each second before its
//! last. [`Request::Watch`] is answered with [`Notice`]s, one a line, for as long as the client
//! reads: first a snapshot, then each event as it comes.
//!
//! The gateway, the commands of `bentpipe` and other programs use the same types. Fields and
//! events are only ever added, and unknown ones are ignored, so that a client and a gateway of
//! different versions understand each other (CT-1).
//!
//! [`client`] asks and watches; it blocks, and is the only part that does I/O.

pub mod client;
mod event;
mod handshake_failures;
mod line;
mod paths;
mod request;
mod services;
mod status;
mod tested;
mod usage;

pub use event::{Cause, Event, Flow, Notice, Outage, VERSION};
pub use handshake_failures::{Failing, Reason, Stranger};
pub use line::{LineBudget, LineCommand, LineHost, LineReport, LineWaiting, TelephoneReport};
pub use paths::{PathCause, PathCommand, PathReport, PathState};
pub use request::{Answer, Request};
pub use services::{ServiceState, ServiceStatus, ServiceWaiting};
pub use status::{
    CompressedBytes, Compression, DatagramCounts, Dead, Deduplication, Direction, HandshakeCounts,
    HostAccount, HostCompression, LinkState, LinkStatus, NodeStatus, OneSidedStatus, RateReport,
    RekeyState, Status, StreamCompression, Way,
};
pub use tested::{LinkTest, Spread, TestProgress, TestedDirection, mbits, percent};
pub use usage::{By, UsageBytes, UsageReport, UsageRow};
