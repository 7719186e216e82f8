//! What services want of the gateway: of a shard ([`Work`]), and of the driver ([`Do`]).

use std::net::SocketAddr;
use std::sync::Arc;

use os::tcp::Stream;
use relay::Target;

use super::commands::Asker;
use super::line::{Line, Proxied};
use crate::admin;

/// What a service wants of a shard.
#[derive(Debug)]
pub struct Work {
    pub line: Arc<Line>,
    pub wish: Wish,
}

/// See [`Work`].
#[derive(Debug)]
pub enum Wish {
    /// [`service::Request::Open`].
    Open {
        request: u64,
        peer: String,
        class: Option<String>,
        client: Option<SocketAddr>,
        preface: Vec<u8>,
    },
    /// [`service::Request::Connect`].
    Connect { request: u64, peer: String, target: String, source: Option<SocketAddr> },
    /// [`service::Request::Resolve`].
    Resolve { request: u64, peer: String, name: String },
    /// [`service::Request::Back`].
    Back { request: u64, client: SocketAddr, server: SocketAddr },
    /// [`service::Request::Pass`].
    Pass { stream: Stream, client: SocketAddr, server: SocketAddr, dscp: u8, read: Vec<u8> },
    /// The same, of a client of the proxy.
    PassProxied { stream: Stream, it: Proxied, read: Vec<u8> },
    /// [`service::Request::Answer`].
    Answer { client: SocketAddr, server: SocketAddr, bytes: Vec<u8> },
    /// [`service::Request::Onward`].
    Onward { client: SocketAddr, server: SocketAddr, bytes: Vec<u8> },
}

/// What the driver is to do for a service.
#[derive(Debug)]
pub enum Do {
    /// It runs, or does not any more: all shards are to know.
    Is(String, Option<Arc<Line>>),
    /// It wants something of a peer's shard.
    Of(String, Work),
    /// It passes a connection to this server.
    Passed(SocketAddr, Work),
    /// It passes a client of the proxy that wants to go there.
    PassedProxied(Target, Work),
    /// It has too many requests open for one more.
    Refuse(Arc<Line>, u64),
    /// The operator's command has this answer.
    Answer(Asker, admin::Answer),
}
