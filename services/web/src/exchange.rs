//! The exchange between two services: HTTP/2 over one of the gateways' streams (spec/web.md).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use bentpipe_web::headers;
use bytes::Bytes;
use http::HeaderMap;
use hyper::server::conn::http2 as server;
use service::Reason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::client;
pub use crate::client::Sender;
use crate::counted::Counted;
use crate::gateway::Gateway;
use crate::local::Local;
use crate::socket::{Socket, watched};
use crate::tray::MAX_WAITING;

/// Opens a stream: what follows is version 1.
pub const PREFACE: &[u8] = b"web 1";
/// Opens a stream of the hub's: what follows is what it pushes, version 1.
pub const PUSH_PREFACE: &[u8] = b"web push 1";

/// What an open exchange begins with. Gateways do not compress what answers HTTP/2's own first
/// bytes: answers there may hold secrets beside what somebody else chose (docs/compression.md).
/// Nothing on an open exchange says who asks, so its answers hold none. They take this for HTTP/1:
/// its requests are not compressed, and its answers are.
const OPEN: &[u8] = b"GET \n";
/// The same of what is pushed, which they are to compress.
const OPEN_PUSH: &[u8] = b"\0";
/// How long an exchange may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the requests on an exchange say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// None says who asks: what follows is compressed.
    Open,
    /// Some may.
    Private,
}

impl Kind {
    /// The kind of exchange for a request with these fields.
    pub fn of(fields: &HeaderMap) -> Kind {
        if headers::proves_who_asks(fields) { Kind::Private } else { Kind::Open }
    }
}

/// Takes what an open exchange begins with; the other kind begins with HTTP/2 itself.
///
/// # Errors
/// If the stream ends, or says nothing or something else.
pub async fn take_kind(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut first = [0];
    timeout(PATIENCE, stream.peek(&mut first)).await??;
    let expected = [OPEN, OPEN_PUSH].into_iter().find(|open| open.starts_with(&first));
    if let Some(expected) = expected {
        let mut got = [0; OPEN.len()];
        let got = &mut got[..expected.len()];
        timeout(PATIENCE, stream.read_exact(got)).await??;
        if got != expected {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

/// Bytes of what hosts upload on one exchange under way: hubs have many peers, and each may have
/// all its lanes.
const UPLOAD_WINDOW: u32 = 2 << 20;
/// Bytes of one pushed body under way, and of all on one stream: those that wait for their hosts
/// ([`crate::tray`]) leave room for others.
const PUSHED_WINDOW: u32 = 4 << 20;
const PUSH_WINDOW: u32 = (MAX_WAITING as u32 + 4) * PUSHED_WINDOW;
/// Exchanges with one peer at once. A host has one to itself while no more hosts than these have
/// requests under way: answers that it does not read hold up no other host's.
pub const LANES: usize = 12;
/// Hosts whose lane is remembered.
const HOSTS: usize = 1024;
/// Requests under way at once.
pub const REQUESTS: u32 = 3000;
/// Bytes of a request's or an answer's fields.
const FIELDS: u32 = 64 << 10;

/// Bytes of one body that wait for the link, and of one piece of it: what the link sends in 20 ms,
/// within these. The rest waits where it comes from.
const WAITING: RangeInclusive<u64> = 4 << 10..=16 << 10;

fn waiting(in_20_ms: Option<u64>) -> usize {
    let (least, most) = (*WAITING.start(), *WAITING.end());
    in_20_ms.unwrap_or(most).clamp(least, most) as usize
}

/// The side that answers hosts' requests, over a link that sends so many bytes in 20 ms.
pub fn server(in_20_ms: Option<u64>) -> server::Builder<Local> {
    answering(UPLOAD_WINDOW, UPLOAD_WINDOW, in_20_ms)
}

/// The side that takes what is pushed.
pub fn push_server() -> server::Builder<Local> {
    answering(PUSHED_WINDOW, PUSH_WINDOW, None)
}

fn answering(body: u32, all: u32, in_20_ms: Option<u64>) -> server::Builder<Local> {
    let mut builder = server::Builder::new(Local);
    builder
        .initial_stream_window_size(body)
        .initial_connection_window_size(all)
        .max_concurrent_streams(REQUESTS)
        .max_send_buf_size(waiting(in_20_ms))
        .max_header_list_size(FIELDS)
        .auto_date_header(false);
    builder
}

/// What is open on one lane.
type Lane = Mutex<Option<Open>>;

/// The exchanges that this end opens with each peer.
pub struct Exchanges {
    gateway: Rc<Gateway>,
    counted: Rc<Counted>,
    preface: &'static [u8],
    open: RefCell<BTreeMap<(String, usize, Kind), Rc<Lane>>>,
    lanes: RefCell<BTreeMap<String, Rc<Lanes>>>,
}

/// An exchange, and whether it has waited for the link since it was opened.
struct Open {
    sender: Sender,
    waits: bool,
}

impl Exchanges {
    /// Of streams that begin so.
    pub fn new(gateway: Rc<Gateway>, counted: Rc<Counted>, preface: &'static [u8]) -> Exchanges {
        let (open, lanes) = Default::default();
        Exchanges { gateway, counted, preface, open, lanes }
    }

    /// The lane of a host's request, until its answer has been read or given up.
    pub fn seat(&self, peer: &str, host: IpAddr) -> Seat {
        let lanes = self.lanes.borrow_mut().entry(peer.to_owned()).or_default().clone();
        lanes.take(host)
    }

    /// The exchange of this kind with a peer on this lane, and whether it is new: opened now, or
    /// while the link was down as it is still.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn sender(
        &self,
        peer: &str,
        lane: usize,
        kind: Kind,
    ) -> Result<(Sender, bool), Reason> {
        let one = self.open.borrow_mut().entry((peer.to_owned(), lane, kind)).or_default().clone();
        let mut one = one.lock().await;
        let is_down = self.gateway.is_down(peer);
        if let Some(open) = one.as_mut().filter(|open| !open.sender.is_closed()) {
            open.waits &= is_down;
            return Ok((open.sender.clone(), open.waits));
        }
        let stream = self.gateway.open(peer, self.preface).await?;
        let mut socket = watched(stream).map_err(|_| Reason::Exhausted)?;
        if kind == Kind::Open {
            let begins = if self.preface == PUSH_PREFACE { OPEN_PUSH } else { OPEN };
            socket.write_all(begins).await.map_err(|_| Reason::Protocol)?;
        }
        let limits = (waiting(self.gateway.in_20_ms(peer)), REQUESTS, FIELDS);
        let sender = client::begin(Socket::plain(socket, Bytes::new()), limits).await;
        let sender = sender.map_err(|_| Reason::Protocol)?;
        Counted::add(&self.counted.exchanges);
        *one = Some(Open { sender: sender.clone(), waits: is_down });
        Ok((sender, true))
    }
}

/// Which hosts have which lane.
#[derive(Default)]
struct Lanes(RefCell<BTreeMap<IpAddr, Host>>);

#[derive(Clone, Copy, Default)]
struct Host {
    lane: usize,
    under_way: usize,
}

/// A request's place on a lane, until it is dropped.
pub struct Seat {
    lanes: Rc<Lanes>,
    host: IpAddr,
    lane: usize,
}

impl Seat {
    /// Which lane.
    pub fn lane(&self) -> usize {
        self.lane
    }
}

impl Lanes {
    /// A host keeps its lane while it has requests under way. Else it takes the one with the fewest
    /// hosts, which is its last one if that is as good: header compression knows its fields there.
    fn take(self: &Rc<Lanes>, host: IpAddr) -> Seat {
        let mut hosts = self.0.borrow_mut();
        if hosts.len() >= HOSTS && !hosts.contains_key(&host) {
            hosts.retain(|_, it| it.under_way > 0);
        }
        let before = hosts.get(&host).copied();
        let lane = match before {
            Some(it) if it.under_way > 0 => it.lane,
            _ => {
                let mut taken = [0; LANES];
                hosts.values().filter(|it| it.under_way > 0).for_each(|it| taken[it.lane] += 1);
                let is_other = |lane| before.is_none_or(|it| it.lane != lane);
                let best = (0..LANES).min_by_key(|lane| (taken[*lane], is_other(*lane)));
                best.unwrap_or_default()
            }
        };
        let it = hosts.entry(host).or_default();
        it.lane = lane;
        it.under_way += 1;
        Seat { lanes: Rc::clone(self), host, lane }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(it) = self.lanes.0.borrow_mut().get_mut(&self.host) {
            it.under_way -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: usize) -> IpAddr {
        IpAddr::V4(u32::try_from(n).unwrap().into())
    }

    #[test]
    fn hosts_with_requests_under_way_share_no_lane_while_there_are_enough() {
        let lanes = Rc::new(Lanes::default());
        let first: Vec<_> = (0..6).map(|_| lanes.take(host(1))).collect();
        assert!(first.iter().all(|seat| seat.lane() == 0), "one host has one lane");
        let others: Vec<_> = (2..=LANES).map(|n| lanes.take(host(n))).collect();
        let mut all: Vec<_> = others.iter().map(Seat::lane).collect();
        all.sort_unstable();
        assert_eq!(all, (1..LANES).collect::<Vec<_>>());
        drop(first);
        assert_eq!(lanes.take(host(99)).lane(), 0, "the free one");
        drop(others);
        assert_eq!(lanes.take(host(5)).lane(), 4, "where it was before");
    }

    #[test]
    fn hosts_that_have_nothing_under_way_are_forgotten_in_time() {
        let lanes = Rc::new(Lanes::default());
        let stays = lanes.take(host(7));
        (1000..4000).for_each(|n| drop(lanes.take(host(n))));
        assert!(lanes.0.borrow().len() <= HOSTS);
        assert!(lanes.0.borrow().contains_key(&host(7)) && stays.lane() == 0);
    }
}
