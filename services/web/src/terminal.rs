//! The end where hosts are: their connections, and the exchange with each peer.

mod cached;
mod inspected;
mod pushes;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bentpipe_web::cache::Key;
use bentpipe_web::first::{MAX_HEAD, Verdict, judge};
use bentpipe_web::headers::{self, Way};
use bentpipe_web::inspect::hello::HANDSHAKE;
use bentpipe_web::push::Budget;
use http::header::{CONNECTION, HeaderValue};
use http::uri::Scheme;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use service::message::Accepted;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::body::{self, Body};
use crate::exchange::{Exchanges, Sender};
use crate::gateway::Gateway;
use crate::hosts::Hosts;
use crate::socket::{Socket, watched};
use crate::store::Store;
use crate::{Counted, exchange};
pub use inspected::Inspection;
pub use pushes::Pushes;

/// A host that says nothing for so long waits for the server to speak first.
const SILENCE: Duration = Duration::from_millis(100);
/// What it began to say must come to an end by then.
const SLOW: Duration = Duration::from_secs(10);
/// A request's fields must be here by then; so long a connection rests without one, too.
const FIELDS: Duration = Duration::from_secs(60);
/// What hyper keeps of a request before it is taken apart.
const BUFFER: usize = 64 << 10;

/// How often it is looked whether an exchange still stands that waits for the link.
const LOOK: Duration = Duration::from_secs(1);

/// Hosts' connections at once; more are carried as plain streams.
const CONNECTIONS: usize = 3000;

/// The terminal's part.
pub struct Terminal {
    pub gateway: Rc<Gateway>,
    pub counted: Rc<Counted>,
    exchanges: Exchanges,
    pub pushes: Rc<Pushes>,
    pub store: Rc<Store>,
    pub hosts: Hosts,
    /// Answers that are validated while their hosts have them already.
    meanwhile: RefCell<BTreeSet<u64>>,
    places: Semaphore,
    pub inspection: Option<Rc<Inspection>>,
}

impl Terminal {
    pub fn new(
        gateway: Rc<Gateway>,
        counted: Rc<Counted>,
        store: Rc<Store>,
        push: Budget,
        inspection: Option<Rc<Inspection>>,
    ) -> Terminal {
        let (hosts, meanwhile) = Default::default();
        let exchanges = Exchanges::new(gateway.clone(), counted.clone(), exchange::PREFACE, None);
        let (also, opens) = (store.clone(), inspection.clone());
        let pushes = Rc::new(Pushes::new(&gateway, counted.clone(), also, push, opens));
        Terminal {
            gateway,
            counted,
            exchanges,
            pushes,
            store,
            hosts,
            meanwhile,
            places: Semaphore::new(CONNECTIONS),
            inspection,
        }
    }

    /// Serves a host's connection, or gives it back.
    pub async fn serve(self: Rc<Terminal>, it: Accepted, socket: OwnedFd) {
        let Ok(stream) = watched(socket) else { return };
        let place = self.places.try_acquire().ok().filter(|_| self.gateway.serves(&it.peer));
        let (mut verdict, mut read) = match place {
            Some(_) => first_bytes(&stream).await,
            None => (Verdict::Pass, Vec::new()),
        };
        // Whether there is another half to ask is known when the link is up, and what has begun
        // here can be carried no other way.
        let is_alone = self.gateway.is_alone(&it.peer);
        if is_alone && verdict == Verdict::Http && !self.answers_alone(&it, &read).await {
            verdict = Verdict::Pass;
        }
        if let (Some(inspection), Some(&HANDSHAKE), false) =
            (&self.inspection, read.first(), is_alone)
            && let Some(name) =
                inspection.wants(&stream, &mut read, it.client.ip(), &self.counted).await
        {
            let socket = Socket::plain(stream, read.into());
            return self.clone().serve_inspected(inspection.clone(), it, socket, name).await;
        }
        if verdict != Verdict::Http {
            Counted::add(&self.counted.passed);
            if let Ok(stream) = stream.into_std() {
                self.gateway.pass(stream.into(), it.dscp, &read);
            }
            return;
        }
        Counted::add(&self.counted.connections);
        let way = Way { to: it.server, from: it.client.ip() };
        let peer: Rc<str> = it.peer.into();
        let served = server().serve_connection(
            Socket::new(stream, read.into()),
            service_fn(|request| self.clone().answer(peer.clone(), way, request)),
        );
        // Hosts break their connections off every day, and see here that ours was.
        let _ = served.await;
    }

    /// The answer to one request. An error resets the host's connection.
    async fn answer(
        self: Rc<Terminal>,
        peer: Rc<str>,
        way: Way,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, String> {
        Counted::add(&self.counted.requests);
        let is_alone = self.gateway.is_alone(&peer);
        let last = headers::ends_connection(request.headers()) || is_alone;
        if let Err(why) = headers::for_link(&mut request, way, Scheme::HTTP) {
            return Ok(refuse(why));
        }
        Ok(closing(self.answer_ready(peer, way, request).await?, last))
    }

    /// The answer to a request that is ready for the link: pushed, kept, or asked for.
    async fn answer_ready(
        self: Rc<Terminal>,
        peer: Rc<str>,
        way: Way,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, String> {
        let key = Key::new(&peer, way.to, request.uri());
        self.hosts.request(&key);
        match self.pushes.find(&peer, way, &mut request).await {
            Some(answer) => Ok(answer),
            None => self.answer_or_ask(peer, key, request).await,
        }
    }

    /// Asks the peer's service, on a new exchange if the one there was has ended meanwhile.
    async fn ask(
        &self,
        peer: &str,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, String> {
        loop {
            let (mut sender, new) =
                self.exchanges.sender(peer).await.map_err(|why| why.to_string())?;
            // Opening an exchange has a line raised. The request waits here meanwhile: a peer that is
            // started anew knows nothing of the exchange.
            let waits = new && self.gateway.is_down(peer);
            let is_closed = |sender: &Sender| waits && sender.is_closed();
            while waits && !self.gateway.comes_up(peer, LOOK).await && !is_closed(&sender) {}
            if is_closed(&sender) {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(answer) => return Ok(answer),
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if !new || waits => request = unsent,
                    _ => return Err(failed.into_error().to_string()),
                },
            }
        }
    }
}

/// Speaks HTTP/1 with hosts.
fn server() -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(FIELDS)
        .max_buf_size(BUFFER)
        .auto_date_header(false)
        .half_close(true);
    builder
}

/// The last answer on a connection says so.
fn closing(mut answer: Response<Body>, last: bool) -> Response<Body> {
    if last {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn refuse(why: headers::Refused) -> Response<Body> {
    let mut answer = Response::new(body::nothing());
    *answer.status_mut() = why.status();
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// What the host says first, until it is known what that is.
async fn first_bytes(stream: &TcpStream) -> (Verdict, Vec<u8>) {
    let mut read = Vec::new();
    let mut until = Instant::now() + SILENCE;
    while timeout_at(until, stream.readable()).await.is_ok_and(|ready| ready.is_ok()) {
        if read.is_empty() {
            until = Instant::now() + SLOW;
        }
        read.reserve(MAX_HEAD);
        match stream.try_read_buf(&mut read) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => continue,
            Ok(1..) => {}
            _ => break,
        }
        match judge(&read) {
            Verdict::More => {}
            verdict => return (verdict, read),
        }
    }
    (Verdict::Pass, read)
}
