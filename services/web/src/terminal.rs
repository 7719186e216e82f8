//! The end where hosts are: their connections, and the exchange with each peer.

mod cached;
mod inspected;
mod logins;
mod opening;
mod pushes;
mod upgrade;
mod visits;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bentpipe_web::cache::Key;
use bentpipe_web::first::{self, Verdict};
use bentpipe_web::headers::{self, Way};
use bentpipe_web::inspect::hello::HANDSHAKE;
use bentpipe_web::push::{Budget, fields};
use http::header::{CONNECTION, HeaderValue};
use http::uri::Scheme;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioTimer;
use service::message::Accepted;
use tokio::net::TcpStream;

use crate::body::{self, Body};
use crate::client::Received;
use crate::counted::Counted;
use crate::exchange;
use crate::exchange::{Exchanges, Kind, Sender};
use crate::gateway::Gateway;
use crate::hosts::Hosts;
use crate::loads::{Loads, Source};
use crate::local::Local;
use crate::shares::{HostPlaces, Places, holder_of};
use crate::socket::{Socket, watched};
use crate::store::Store;
pub use inspected::Inspection;
use logins::Logins;
use opening::{SILENT, SLOW, Servers, first_bytes};
pub use pushes::Pushes;
use visits::{Host, Visit, Visits};

/// A request's fields must be here by then; so long a connection rests without one, too.
const FIELDS: Duration = Duration::from_secs(60);
/// What hyper keeps of a request before it is taken apart.
const BUFFER: usize = 64 << 10;

/// How often it is looked whether an exchange still stands that waits for the link.
const LOOK: Duration = Duration::from_secs(1);

/// Hosts' connections at once, of which one host alone, or one /64, has half. More are carried as
/// plain streams.
const CONNECTIONS: usize = 3000;

/// Bytes of targets and fields of requests under way, of which one host alone, or one /64, has
/// half: of each several copies are held until it is answered.
const HEADS: usize = 32 << 20;

/// The terminal's part.
pub struct Terminal {
    pub gateway: Rc<Gateway>,
    pub counted: Rc<Counted>,
    exchanges: Exchanges,
    pub pushes: Rc<Pushes>,
    pub store: Rc<Store>,
    pub hosts: Rc<Hosts>,
    pub loads: Rc<Loads>,
    /// Answers that are validated while their hosts have them already.
    meanwhile: RefCell<BTreeSet<u64>>,
    places: HostPlaces,
    heads: Rc<Places>,
    /// Of connections that say nothing.
    silent: HostPlaces,
    servers: Rc<Servers>,
    visits: Rc<Visits>,
    logins: Logins,
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
        let (meanwhile, servers, loads) = Default::default();
        let hosts = Rc::<Hosts>::default();
        let visits = Rc::<Visits>::default();
        let exchanges = Exchanges::new(gateway.clone(), counted.clone(), exchange::PREFACE);
        let (also, opens) = (store.clone(), inspection.clone());
        let seen = (visits.clone(), hosts.clone());
        let pushes = Pushes::new(&gateway, counted.clone(), also, push, opens, seen);
        let pushes = Rc::new(pushes);
        Terminal {
            gateway,
            counted,
            exchanges,
            pushes,
            store,
            hosts,
            loads,
            meanwhile,
            places: HostPlaces::new(CONNECTIONS),
            heads: Places::new(HEADS),
            silent: HostPlaces::new(SILENT),
            servers,
            visits,
            logins: Logins::default(),
            inspection,
        }
    }

    /// Serves a host's connection, of which so much was read, or gives it back.
    pub async fn serve(self: Rc<Terminal>, it: Accepted, read: Vec<u8>, socket: OwnedFd) {
        let Ok(stream) = watched(socket) else { return };
        let host = it.client.ip();
        let place = self.places.take(host).filter(|_| self.gateway.serves(&it.peer));
        let (mut verdict, mut read) = match place {
            Some(_) => {
                let speak_http = || {
                    let knows = it.name.is_none() && self.gateway.serves(&it.peer);
                    knows && self.servers.speak_http(&it.peer, it.server)
                };
                let wait = || self.silent.take(host);
                first_bytes(&stream, read, wait, speak_http).await
            }
            None => (Verdict::Pass, read),
        };
        // Whether there is another half to ask is known when the link is up, and what has begun
        // here can be carried no other way.
        let is_alone = self.gateway.is_alone(&it.peer);
        if is_alone && verdict == Verdict::Http && !self.answers_alone(&it, &read).await {
            verdict = Verdict::Pass;
        }
        // The hub goes where the request says, which is to be where the client wanted to go.
        let named: Option<Rc<str>> = it.name.as_deref().map(Rc::from);
        if verdict == Verdict::Http
            && named.as_deref().is_some_and(|name| !first::is_for(&read, name))
        {
            verdict = Verdict::Pass;
        }
        let way = Way { to: it.server, from: it.client.ip() };
        let server = (&*it.peer, way, named.as_deref().unwrap_or(""));
        if verdict == Verdict::Http && self.logins.has(server, self.store.now().steady) {
            verdict = Verdict::Pass;
        }
        if let (Some(inspection), Some(&HANDSHAKE), false) =
            (&self.inspection, read.first(), is_alone)
            && let Some(name) =
                inspection.wants(&stream, &mut read, it.client.ip(), &self.counted).await
            && named.as_deref().is_none_or(|named| named.eq_ignore_ascii_case(&name))
        {
            let socket = Socket::plain(stream, read.into());
            return self.clone().serve_inspected(inspection.clone(), it, socket, name).await;
        }
        if verdict != Verdict::Http {
            return self.pass(stream, it.dscp, &read);
        }
        Counted::add(&self.counted.connections);
        let peer: Rc<str> = it.peer.into();
        let visit = self.visit(&peer, way.from);
        let served = upgrade::serve(stream, read, |mut request| {
            visit.mark(&mut request);
            self.clone().answer_for(peer.clone(), named.clone(), way, request)
        });
        if let Some((stream, read)) = served.await {
            self.pass(stream, it.dscp, &read);
        }
    }

    /// One more connection of a host's. When it has none any more the hub hears which pages it
    /// left.
    fn visit(self: &Rc<Terminal>, peer: &Rc<str>, host: IpAddr) -> Visit {
        let (terminal, host) = (Rc::clone(self), (Rc::clone(peer), host));
        let its = host.clone();
        Visit::new(&self.visits, host, move || Local::spawn(terminal.say_farewell(its)))
    }

    async fn say_farewell(self: Rc<Terminal>, (peer, host): Host) {
        let pages = self.pushes.awaited(&peer, host);
        // It is worth no call.
        if pages.is_empty() || !self.gateway.serves(&peer) || self.gateway.is_down(&peer) {
            return;
        }
        let seat = self.exchanges.seat(&peer, host);
        // Where nobody hears it what comes is wasted.
        let _ = self.ask(&peer, seat.lane(), fields::farewell(&pages, body::nothing())).await;
    }

    /// Gives a host's connection back.
    fn pass(&self, stream: TcpStream, dscp: u8, read: &[u8]) {
        Counted::add(&self.counted.passed);
        if let Ok(stream) = stream.into_std() {
            self.gateway.pass(stream.into(), dscp, read);
        }
    }

    /// The answer to one request. An error resets the host's connection. To a client of the proxy,
    /// which said the server's name, it is told.
    async fn answer_for(
        self: Rc<Terminal>,
        peer: Rc<str>,
        named: Option<Rc<str>>,
        way: Way,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, String> {
        let Some(name) = named else { return self.answer(peer, way, "", request).await };
        if !first::is_for_host(&request, &name) {
            return Ok(refuse(headers::Refused::Host));
        }
        self.answer(peer, way, &name, request).await.or_else(|why| {
            let mut answer = Response::new(body::whole(format!("{why}\n").into()));
            *answer.status_mut() = StatusCode::BAD_GATEWAY;
            Ok(closing(answer, true))
        })
    }

    /// The answer to one request. An error resets the host's connection.
    async fn answer(
        self: Rc<Terminal>,
        peer: Rc<str>,
        way: Way,
        named: &str,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, String> {
        Counted::add(&self.counted.requests);
        let is_alone = self.gateway.is_alone(&peer);
        let last = headers::ends_connection(request.headers()) || is_alone;
        if let Err(why) = headers::for_link(&mut request, way, Scheme::HTTP) {
            return Ok(refuse(why));
        }
        let answer = self.clone().answer_ready(peer.clone(), way, request).await?;
        let (server, now) = ((&*peer, way, named), self.store.now().steady);
        let is_left = self.logins.hear(server, answer.headers(), now);
        Ok(closing(answer, last || is_left))
    }

    /// The answer to a request that is ready for the link: pushed, kept, or asked for.
    async fn answer_ready(
        self: Rc<Terminal>,
        peer: Rc<str>,
        way: Way,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, String> {
        let head = headers::size_of_head(&request);
        let Some(head) = self.heads.take(&holder_of(way.from), head) else {
            let mut answer = Response::new(body::nothing());
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return Ok(closing(answer, true));
        };
        let key = Key::new(&peer, way.to, request.uri());
        self.hosts.request(&key);
        let (under_way, asked) =
            (self.gateway.begin_request(), self.loads.ask(&self.hosts, way.from, &request));
        let answer = match self.pushes.find(&peer, way, &mut request).await {
            Some(answer) => from(Source::Pushed, answer),
            None => {
                let (pushes, head) = (self.pushes.clone(), pushes::head_of(&request));
                // On the heap: each future around it would have room for it once more.
                let asking = Box::pin(self.answer_or_ask(peer.clone(), key, request));
                match head {
                    Some(head) => pushes.or_meanwhile((&peer, way), &head, asking).await?,
                    None => asking.await?,
                }
            }
        };
        Ok(asked.answered(answer).map(|body| body::keeping(body, (under_way, head))))
    }

    /// Asks the peer's service on a host's lane, on a new exchange if the one there was has ended
    /// meanwhile.
    async fn ask(
        &self,
        peer: &str,
        lane: usize,
        mut request: Request<Body>,
    ) -> Result<Response<Received>, String> {
        let kind = Kind::of(request.headers());
        loop {
            let (mut sender, new) =
                self.exchanges.sender(peer, lane, kind).await.map_err(|why| why.to_string())?;
            // Opening an exchange has a line raised. The request waits here meanwhile: a peer that
            // is started anew knows nothing of the exchange.
            let waits = new && self.gateway.is_down(peer);
            let is_closed = |sender: &Sender| waits && sender.is_closed();
            while waits && !self.gateway.comes_up(peer, LOOK).await && !is_closed(&sender) {}
            if is_closed(&sender) {
                continue;
            }
            match sender.ask(request).await {
                Ok(answer) => return Ok(answer),
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if !new || waits => request = unsent,
                    _ => return Err(failed.to_string()),
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

/// Notes where an answer came from.
fn from(source: Source, mut answer: Response<Body>) -> Response<Body> {
    answer.extensions_mut().insert(source);
    answer
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
