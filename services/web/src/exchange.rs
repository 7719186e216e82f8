//! The exchange between two services: HTTP/2 over one of the gateways' streams (spec/web.md).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use service::Reason;
use tokio::sync::Mutex;

use crate::body::Body;
use crate::gateway::Gateway;
use crate::socket::{Socket, watched};
use crate::{Counted, Local};

/// Opens a stream: what follows is version 1.
pub const PREFACE: &[u8] = b"web 1";
/// Opens a stream of the hub's: what follows is what it pushes, version 1.
pub const PUSH_PREFACE: &[u8] = b"web push 1";

/// Bytes of one body under way: above what the fastest link holds in a round trip.
const BODY_WINDOW: u32 = 4 << 20;
/// Bytes of all bodies under way.
const WINDOW: u32 = 16 << 20;
/// Requests under way at once.
pub const REQUESTS: u32 = 3000;
/// Bytes of a request's or an answer's fields.
const FIELDS: u32 = 64 << 10;

/// Bytes of one body that wait for the link; the rest waits where it comes from.
const WAITING: usize = 16 << 10;

/// The side that asks.
pub fn client() -> client::Builder<Local> {
    let mut builder = client::Builder::new(Local);
    builder
        .initial_stream_window_size(BODY_WINDOW)
        .initial_connection_window_size(WINDOW)
        .initial_max_send_streams(REQUESTS as usize)
        .max_send_buf_size(WAITING)
        .max_header_list_size(FIELDS);
    builder
}

/// The side that answers.
pub fn server() -> server::Builder<Local> {
    let mut builder = server::Builder::new(Local);
    builder
        .initial_stream_window_size(BODY_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(REQUESTS)
        .max_send_buf_size(WAITING)
        .max_header_list_size(FIELDS)
        .auto_date_header(false);
    builder
}

/// Asks on an exchange.
pub type Sender = client::SendRequest<Body>;

/// The exchanges that this end opens, one with each peer.
pub struct Exchanges {
    gateway: Rc<Gateway>,
    counted: Rc<Counted>,
    preface: &'static [u8],
    class: Option<&'static str>,
    open: RefCell<BTreeMap<String, Rc<Mutex<Option<Open>>>>>,
}

/// An exchange, and whether it has waited for the link since it was opened.
struct Open {
    sender: Sender,
    waits: bool,
}

impl Exchanges {
    /// Of streams that begin so, in this class of the link or in that of the file's rules.
    pub fn new(
        gateway: Rc<Gateway>,
        counted: Rc<Counted>,
        preface: &'static [u8],
        class: Option<&'static str>,
    ) -> Exchanges {
        Exchanges { gateway, counted, preface, class, open: RefCell::default() }
    }

    /// The exchange with a peer, and whether it is new: opened now, or while the link was down as it
    /// is still.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn sender(&self, peer: &str) -> Result<(Sender, bool), Reason> {
        let one = self.open.borrow_mut().entry(peer.to_owned()).or_default().clone();
        let mut one = one.lock().await;
        let is_down = self.gateway.is_down(peer);
        if let Some(open) = one.as_mut().filter(|open| !open.sender.is_closed()) {
            open.waits &= is_down;
            return Ok((open.sender.clone(), open.waits));
        }
        let stream = self.gateway.open(peer, self.preface, self.class).await?;
        let socket = watched(stream).map_err(|_| Reason::Exhausted)?;
        let (sender, connection) = client()
            .handshake(Socket::new(socket, Bytes::new()))
            .await
            .map_err(|_| Reason::Protocol)?;
        Counted::add(&self.counted.exchanges);
        Local::spawn(async move {
            if let Err(why) = connection.await {
                eprintln!("an exchange has ended: {why}");
            }
        });
        *one = Some(Open { sender: sender.clone(), waits: is_down });
        Ok((sender, true))
    }
}
