//! The end where servers are: requests of the peer's service, and warm connections to servers.

mod cached;
mod lately;
mod named;
mod pushing;
mod secure;
mod verifying;
mod warm;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;

use bentpipe_web::headers::{self, Way};
use bentpipe_web::push::Budget;
use bentpipe_web::{delta, push, verified};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, Version, header};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use service::Reason;
use service::message::Denied;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::body::{Body, keeping, nothing, passing};
use crate::counted::Counted;
use crate::exchange;
use crate::gateway::{Connected, Gateway};
use crate::local::{Local, unless};
use crate::rank::{self, Ranks};
use crate::shares::Places;
use crate::socket::{Socket, watched};
pub use cached::Kept;
use named::Named;
use pushing::{Page, Pushing};
pub use secure::Secure;
use verifying::Verifying;
use warm::Warm;

/// What hyper keeps of an answer before it is taken apart: its fields must fit, for which servers
/// themselves allow 16 kB or less. Thousands may come at
/// once, and faster than the link takes them; of each two such pieces are held.
const BUFFER: usize = 18 << 10;

/// Requests of all peers under way, until their answers have crossed, and bytes of their fields: a
/// peer alone may have half of them.
const REQUESTS: usize = 2 * exchange::REQUESTS as usize;
const FIELDS: usize = 64 << 20;

/// Addresses of a name that are tried.
const TRIED: usize = 4;

type Sender = SendRequest<Body>;

/// In a request: no host has asked for it yet.
#[derive(Clone, Copy)]
struct Ahead;

/// A peer, a server for one of its hosts, and the name that it must prove to speak TLS.
type Key = (Rc<str>, Way, Option<Rc<str>>);

/// Of which requests warm connections are: those with bodies have connections of their own. A
/// server that takes a body for the next request answers that, too, and nobody else is to get that
/// answer.
type Pool = (Key, bool);

/// The hub's part.
pub struct Hub {
    pub gateway: Rc<Gateway>,
    pub counted: Rc<Counted>,
    pub pushing: Pushing,
    requests: Rc<Places>,
    fields: Rc<Places>,
    pub verifying: Verifying,
    /// What is kept for all terminals; `None`: nothing is.
    pub kept: Option<Kept>,
    warm: Warm,
    secure: Secure,
    named: Named,
}

impl Hub {
    pub fn new(
        gateway: Rc<Gateway>,
        counted: Rc<Counted>,
        kept: Option<Kept>,
        push: Budget,
        secure: Secure,
    ) -> Hub {
        let pushing = Pushing::new(&gateway, &counted, push);
        let (requests, fields) = (Places::new(REQUESTS), Places::new(FIELDS));
        let (verifying, warm, named) = Default::default();
        Hub { gateway, counted, pushing, requests, fields, verifying, kept, warm, secure, named }
    }

    /// An address of the host that the URI names, to which the gateway has connected.
    async fn address_of(
        self: &Rc<Hub>,
        peer: &Rc<str>,
        uri: &Uri,
        way: Way,
    ) -> Result<SocketAddr, String> {
        let (host, port) = (uri.host().unwrap_or("").to_ascii_lowercase(), way.to.port());
        let proves = secure::name_of(uri)?.map(Rc::from);
        let name = (peer.clone(), (proves.is_some(), host.clone(), port));
        if let Some(to) = self.named.find(&name) {
            return Ok(to);
        }
        let told = self.gateway.resolve(peer, way.from, &host).await;
        let told = told.map_err(|why| why.to_string())?;
        self.verifying.note(peer, &host, &told);
        let mut why = "the name has no address".to_owned();
        for ip in told.into_iter().filter(|ip| !ip.is_unspecified()).take(TRIED) {
            let to = SocketAddr::new(ip, port);
            let key: Key = (peer.clone(), Way { to, ..way }, proves.clone());
            match self.connect(&key, false).await {
                Ok(sender) => {
                    self.warm.keep((key, false), sender);
                    self.named.keep(name, to);
                    return Ok(to);
                }
                Err(failed) => why = failed,
            }
            if why.starts_with(headers::CERTIFICATE) || why.starts_with(headers::PAPERS) {
                break;
            }
        }
        Err(why)
    }

    /// The peer may not reach these servers any more.
    pub fn narrow(&self, peer: &str, denied: &Denied) {
        self.named.narrow(peer, denied);
        self.kept.iter().for_each(|kept| kept.narrow(peer, denied));
    }

    /// Serves an exchange.
    pub async fn serve(self: Rc<Hub>, peer: String, socket: OwnedFd) {
        let Ok(mut stream) = watched(socket) else { return };
        if exchange::take_kind(&mut stream).await.is_err() {
            return;
        }
        let peer: Rc<str> = peer.into();
        let ranks = Ranks::default();
        let answer = |request| {
            let ranks = ranks.clone();
            let answer = self.clone().answer(peer.clone(), ranks.clone(), request);
            async move {
                let Ok(answer) = answer.await;
                let fills = rank::fills(answer.headers());
                Ok::<_, Infallible>(answer.map(|body| ranks.rank(body, fills)))
            }
        };
        let _serves = self.gateway.begin_serving();
        let served = exchange::server(self.gateway.in_20_ms(&peer))
            .serve_connection(Socket::new(stream, Bytes::new()), service_fn(answer));
        let mut served = pin!(served);
        let ended = match unless(served.as_mut(), self.gateway.ends()).await {
            Some(ended) => ended,
            None => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(why) = ended {
            eprintln!("an exchange with {peer} has ended: {why}");
        }
    }

    async fn answer(
        self: Rc<Hub>,
        peer: Rc<str>,
        ranks: Ranks,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let left = push::fields::take_left(request.headers_mut());
        self.pushing.leave(&peer, &left);
        if !left.is_empty() && headers::way(request.headers()).is_none() {
            return Ok(farewell());
        }
        Counted::add(&self.counted.forwarded);
        let fields = self.fields.take(&peer, headers::size_of_head(&request));
        let (Some(place), Some(fields)) = (self.requests.take(&peer, 1), fields) else {
            return Ok(failed("too much is asked for at once"));
        };
        let uri = request.uri().clone();
        let mut way = match headers::for_server(&mut request) {
            Ok(way) => way,
            Err(why) => return Ok(failed(&why.to_string())),
        };
        let is_named = way.to.ip().is_unspecified();
        if is_named {
            match self.address_of(&peer, &uri, way).await {
                Ok(to) => way.to = to,
                Err(why) => return Ok(failed(&why)),
            }
        }
        let name = match secure::name_of(&uri) {
            Ok(name) => name.map(Rc::from),
            Err(why) => return Ok(failed(&why)),
        };
        let under_way = self.gateway.begin_request();
        let may_be_pushed = push::fields::may_be_pushed(&request) && request.body().is_end_stream();
        if may_be_pushed {
            self.pushing.asked(&peer, way, &uri);
        }
        let page = Page::asked(&self, &peer, way, &uri, request.headers_mut(), &ranks).await;
        let request = request.map(passing);
        let key = (peer.clone(), way, name);
        match self.fetch(&key, &uri, request).await {
            Ok(answer) => {
                if may_be_pushed {
                    self.pushing.answered(&peer, way, &uri);
                }
                let answer = match page {
                    Some(page) => page.read_own(answer),
                    None => answer,
                };
                Ok(answer.map(|body| keeping(body, (place, fields, under_way))))
            }
            Err(why) => {
                if is_named {
                    self.named.forget(way.to);
                }
                Ok(failed(&why))
            }
        }
    }

    /// The server's answer as it crosses the link.
    pub async fn fetch(
        self: &Rc<Hub>,
        key: &Key,
        uri: &Uri,
        request: Request<Body>,
    ) -> Result<Response<Body>, String> {
        let (peer, way, _) = key;
        let mut answer = match &self.kept {
            Some(kept) if self.is_verified(peer, uri, *way).await => {
                self.give_or_ask(kept, key, uri, request).await?
            }
            Some(_) => self.ask_server(key, request).await?,
            None => {
                // A look-up takes as long as a server, and nobody waits for it.
                self.look_up_meanwhile(peer, uri, *way);
                self.ask_server(key, request).await?
            }
        };
        self.verifying.tell(uri, way.to, answer.headers_mut());
        Ok(answer)
    }

    /// The server's answer, without what it says in fields of ours.
    async fn ask_server(
        self: &Rc<Hub>,
        key: &Key,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, String> {
        headers::frame_body(&mut request);
        let logs_in = headers::logs_connection_in(request.headers());
        let pool = (key.clone(), !request.body().is_end_stream());
        let (answer, sender) = self.ask(&pool, request).await?;
        // Whoever is asked there next would be taken for the same user.
        let is_somebodys = logs_in || headers::logs_connection_in(answer.headers());
        let pool = (!is_somebodys).then_some(pool);
        let mut answer = self.clone().hand_on(pool, answer, sender);
        push::fields::clear(answer.headers_mut());
        delta::clear(answer.headers_mut());
        verified::clear(answer.headers_mut());
        Ok(answer)
    }

    /// Asks the server on a warm connection, or on a new one if the server closed that meanwhile
    /// and what is asked can be asked again (RFC 9110, section 9.2.2).
    async fn ask(
        &self,
        pool: &Pool,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Sender), String> {
        let (again, is_ahead) = (again(&request), is_ahead(&request));
        while let Some(mut sender) = self.warm.take(pool) {
            match sender.try_send_request(request).await {
                Ok(answer) => return Ok((answer, sender)),
                Err(mut failed) => match (failed.take_message(), &again) {
                    (Some(unsent), _) => request = unsent,
                    (None, Some(again)) => {
                        request = again.clone().map(|()| nothing());
                        break;
                    }
                    (None, None) => return Err(failed.into_error().to_string()),
                },
            }
        }
        let mut sender = self.connect(&pool.0, is_ahead).await?;
        let answer = sender.send_request(request).await.map_err(|why| why.to_string())?;
        Ok((answer, sender))
    }

    async fn connect(&self, (peer, way, name): &Key, is_ahead: bool) -> Result<Sender, String> {
        let connected = match is_ahead {
            true => self.gateway.connect_ahead(peer, *way).await,
            false => self.gateway.connect(peer, *way).await,
        };
        let Connected { socket, mut may_stand } = connected.map_err(|why| why.to_string())?;
        if may_stand.try_recv() == Err(TryRecvError::Closed) {
            return Err(Reason::Denied.to_string());
        }
        let stream = watched(socket).map_err(|why| why.to_string())?;
        Counted::add(&self.counted.connects);
        if let Some(kept) = &self.kept {
            kept.allow(peer, way.to);
        }
        let socket = Socket::plain(stream, Bytes::new());
        match name {
            None => speak(socket, may_stand).await,
            Some(name) => {
                let ends = async { drop((&mut may_stand).await) };
                let tls = unless(self.secure.connect(name, socket), ends).await;
                let tls = tls.unwrap_or_else(|| Err(Reason::Denied.to_string()));
                if tls.as_ref().is_err_and(|why| why.starts_with(headers::CERTIFICATE)) {
                    Counted::add(&self.counted.bad_certificates);
                }
                speak(tls?, may_stand).await
            }
        }
    }

    /// The answer as it crosses the link. The connection is kept in its pool once the answer is
    /// through.
    fn hand_on(
        self: Rc<Hub>,
        pool: Option<Pool>,
        answer: Response<Incoming>,
        sender: Sender,
    ) -> Response<Body> {
        let (mut parts, body) = answer.into_parts();
        headers::unframe_body(&mut parts.headers);
        headers::strip_hop(&mut parts.headers);
        let _ = headers::take_failed(&mut parts.headers);
        if parts.status == StatusCode::NOT_MODIFIED {
            // It speaks of a body that does not follow.
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        parts.version = Version::HTTP_2;
        let over = body.is_end_stream();
        Local::spawn(async move {
            let mut sender = sender;
            // Ready when the body has been read to its end; failed when the server closes.
            if sender.ready().await.is_ok()
                && let Some(pool) = pool
            {
                self.warm.keep(pool, sender);
            }
        });
        let body = if over { nothing() } else { passing(body) };
        Response::from_parts(parts, body)
    }
}

/// Speaks HTTP on a connection, as long as that may stand.
async fn speak(
    socket: impl AsyncRead + AsyncWrite + Unpin + 'static,
    may_stand: oneshot::Receiver<Infallible>,
) -> Result<Sender, String> {
    let connection =
        Builder::new().read_buf_exact_size(Some(BUFFER)).handshake(TokioIo::new(socket));
    let (sender, connection) = connection.await.map_err(|why| why.to_string())?;
    // Why it ends, whoever waits for an answer hears.
    // That it may stand no more is looked at first: else what waits would still be asked.
    Local::spawn(async move {
        let _ = unless(may_stand, async { drop(connection.await) }).await;
    });
    Ok(sender)
}

fn is_ahead<B>(request: &Request<B>) -> bool {
    request.extensions().get::<Ahead>().is_some()
}

/// What would be asked again: safe, and without a body.
fn again(request: &Request<Body>) -> Option<Request<()>> {
    let safe = [Method::GET, Method::HEAD].contains(request.method());
    (safe && request.body().is_end_stream()).then(|| {
        let mut copy = Request::new(());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        copy
    })
}

/// It is heard that pages were left.
fn farewell() -> Response<Body> {
    let mut answer = Response::new(nothing());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

/// There is no answer of a server.
fn failed(why: &str) -> Response<Body> {
    let mut answer = Response::new(nothing());
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    headers::set_failed(answer.headers_mut(), why);
    answer
}
