//! The side of an exchange that asks: HTTP/2 with a window for each answer's body and none for all.
//!
//! hyper gives a body's window back as the body is read, and that of the connection with it: two
//! bodies that nobody reads would stop all others. So the connection's window is as large as can
//! be, and bodies are bounded by their own. What is unread of all of them is looked at a few times
//! a second ([`Bodies`]): the more it is, the smaller the window that every body has ([`window`]).
//! That holds for those under way, too, so that what nobody reads stays at the far side.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{FlowControl, Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response, header};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{MissedTickBehavior, interval};

use crate::body::{Body, Broken};
use crate::local::Local;
use crate::socket::Socket;

/// Bytes of one body under way: above what the fastest link holds in a round trip.
const MOST: u32 = 4 << 20;
/// The least that a body has, however much is unread of others.
const LEAST: u32 = 16 << 10;
/// With so many more bytes unread each body has half of what it had.
const HALVED_BY: usize = 1 << 20;
/// All that a connection's window can be.
const OF_ALL: u32 = (1 << 31) - 1;
/// How often it is looked what is unread, while anything may be.
const LOOK: Duration = Duration::from_millis(200);

/// Bytes that each body may have under way while so many are unread. Of one lane no more than
/// 8 MiB are unread, and what is on its way when that is seen, and [`LEAST`] of each body.
fn window(unread: usize) -> u32 {
    let halved = u32::try_from(unread / HALVED_BY).unwrap_or(u32::MAX);
    MOST.checked_shr(halved).unwrap_or(0).max(LEAST)
}

/// Begins to ask on this socket. Of a body `waiting` bytes wait for the link at most; `requests`
/// are sent before the other side says how many it takes at once; its answers have `fields` bytes
/// of fields at most.
///
/// # Errors
/// If the socket fails.
pub async fn begin(
    socket: Socket,
    (waiting, requests, fields): (usize, u32, u32),
) -> Result<Sender, h2::Error> {
    let mut builder = Builder::new();
    builder
        .initial_window_size(MOST)
        .initial_connection_window_size(OF_ALL)
        .initial_max_send_streams(requests as usize)
        .max_send_buffer_size(waiting)
        .max_header_list_size(fields)
        .enable_push(false);
    let (requests, connection) = builder.handshake(socket).await?;
    let (bodies, is_closed) = (Rc::<Bodies>::default(), Rc::<Cell<bool>>::default());
    let (read, over) = (Rc::clone(&bodies), Rc::clone(&is_closed));
    Local::spawn(async move {
        let ended = serve(connection, &read).await;
        over.set(true);
        if let Err(why) = ended {
            eprintln!("an exchange has ended: {why}");
        }
    });
    Ok(Sender { requests, bodies, is_closed })
}

/// Moves what is on the exchange, and keeps the windows as they are to be.
async fn serve(
    mut connection: Connection<Socket, Bytes>,
    bodies: &Bodies,
) -> Result<(), h2::Error> {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = MOST;
    poll_fn(|context| {
        // Nothing is unread where there is no body, and none has to be woken for it.
        while !bodies.is_empty(context) && look.poll_tick(context).is_ready() {
            let window = window(bodies.unread());
            // Refused while the other side has not answered the last one: the next look comes.
            if window != told && connection.set_initial_window_size(window).is_ok() {
                told = window;
            }
        }
        Pin::new(&mut connection).poll(context)
    })
    .await
}

/// Answers' bodies that are not over.
#[derive(Default)]
struct Bodies {
    flows: RefCell<BTreeMap<u64, FlowControl>>,
    last: Cell<u64>,
    /// Who looks at them, while there are none.
    idle: RefCell<Option<std::task::Waker>>,
}

impl Bodies {
    fn add(&self, flow: FlowControl) -> u64 {
        self.last.set(self.last.get() + 1);
        self.flows.borrow_mut().insert(self.last.get(), flow);
        if let Some(waker) = self.idle.take() {
            waker.wake();
        }
        self.last.get()
    }

    /// If there are none, whoever asks is woken by the next one.
    fn is_empty(&self, context: &Context<'_>) -> bool {
        let is_empty = self.flows.borrow().is_empty();
        if is_empty {
            *self.idle.borrow_mut() = Some(context.waker().clone());
        }
        is_empty
    }

    /// Bytes that have come and are not read.
    fn unread(&self) -> usize {
        self.flows.borrow().values().map(FlowControl::used_capacity).sum()
    }
}

/// Asks on an exchange.
#[derive(Clone)]
pub struct Sender {
    requests: SendRequest<Bytes>,
    bodies: Rc<Bodies>,
    is_closed: Rc<Cell<bool>>,
}

/// A request without an answer.
pub struct Failed {
    why: h2::Error,
    /// It was not sent.
    unsent: Option<Request<Body>>,
}

impl Failed {
    /// The request, if nothing of it was sent.
    pub fn take_message(&mut self) -> Option<Request<Body>> {
        self.unsent.take()
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.why.fmt(f)
    }
}

impl Sender {
    /// Is the exchange over?
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Asks. A request that is given up before its answer comes is broken off.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn ask(&mut self, request: Request<Body>) -> Result<Response<Received>, Failed> {
        if let Err(why) = poll_fn(|context| self.requests.poll_ready(context)).await {
            return Err(Failed { why, unsent: Some(request) });
        }
        let (head, body) = request.into_parts();
        let is_over = body.is_end_stream();
        let sent = self.requests.send_request(Request::from_parts(head.clone(), ()), is_over);
        let (answer, stream) = match sent {
            Ok(sent) => sent,
            Err(why) => {
                return Err(Failed { why, unsent: Some(Request::from_parts(head, body)) });
            }
        };
        let sending =
            (!is_over).then(|| Sending(Some(spawn_local(send(body, stream)).abort_handle())));
        let answer = answer.await.map_err(|why| Failed { why, unsent: None })?;
        // What is yet to be sent goes on beside the answer.
        if let Some(sending) = sending {
            sending.go_on();
        }
        let (head, stream) = answer.into_parts();
        let body = Received::new(stream, &head.headers, Rc::clone(&self.bodies));
        Ok(Response::from_parts(head, body))
    }
}

/// Breaks off what is sent, when dropped.
struct Sending(Option<AbortHandle>);

impl Sending {
    fn go_on(mut self) {
        self.0 = None;
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// Sends a request's body, as far as its window goes.
async fn send(mut body: Body, mut stream: SendStream<Bytes>) {
    if let Err(reason) = send_all(&mut body, &mut stream).await {
        stream.send_reset(reason);
    }
}

async fn send_all(body: &mut Body, stream: &mut SendStream<Bytes>) -> Result<(), Reason> {
    loop {
        // A byte of room: what is more waits in the stream, in pieces that are as small as those
        // of the body's source.
        stream.reserve_capacity(1);
        while stream.capacity() == 0 {
            match poll_fn(|context| stream.poll_capacity(context)).await {
                Some(Ok(_)) => {}
                _ => return Err(Reason::CANCEL),
            }
        }
        let frame = poll_fn(|context| {
            if stream.poll_reset(context).is_ready() {
                return Poll::Ready(Err(Reason::NO_ERROR));
            }
            body.as_mut().poll_frame(context).map(Ok)
        });
        let failed = |_| Reason::INTERNAL_ERROR;
        match frame.await? {
            None => return stream.send_data(Bytes::new(), true).map_err(failed),
            Some(Err(_)) => return Err(Reason::INTERNAL_ERROR),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => {
                    let is_over = body.is_end_stream();
                    stream.send_data(bytes, is_over).map_err(failed)?;
                    if is_over {
                        return Ok(());
                    }
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return stream.send_trailers(trailers).map_err(failed);
                }
            },
        }
    }
}

/// An answer's body.
pub struct Received {
    stream: RecvStream,
    /// Bytes that are yet to come, where that is known.
    left: Option<u64>,
    /// All bytes have come; trailers may follow.
    has_data: bool,
    bodies: Rc<Bodies>,
    id: u64,
}

impl Received {
    fn new(mut stream: RecvStream, fields: &HeaderMap, bodies: Rc<Bodies>) -> Received {
        let length = fields.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let length = length.and_then(|length| length.parse().ok());
        let left = if stream.is_end_stream() { length.or(Some(0)) } else { length };
        let id = bodies.add(stream.flow_control().clone());
        Received { stream, left, has_data: false, bodies, id }
    }
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if !self.has_data {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(bytes)) => {
                    // Its stream may be over.
                    let _ = self.stream.flow_control().release_capacity(bytes.len());
                    self.left = self.left.map(|left| left.saturating_sub(bytes.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                // The other side has all that it needs, and has said all that it had to.
                Some(Err(why)) if why.reason() == Some(Reason::NO_ERROR) => {
                    return Poll::Ready(None);
                }
                Some(Err(why)) => return Poll::Ready(Some(Err(why.into()))),
                None => self.has_data = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context)).map_err(Broken::from)?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map(SizeHint::with_exact).unwrap_or_default()
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.bodies.flows.borrow_mut().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_unread_the_less_each_body_has_and_none_is_stopped() {
        let mut unread = 0;
        // Bodies of which nothing is read, one after the other.
        for _ in 0..1000 {
            assert!(window(unread) >= LEAST);
            unread += window(unread) as usize;
        }
        assert!(unread <= (12 << 20) + 1000 * LEAST as usize, "{unread}");
        assert_eq!((window(0), window(1 << 20), window(usize::MAX)), (MOST, MOST / 2, LEAST));
    }
}
