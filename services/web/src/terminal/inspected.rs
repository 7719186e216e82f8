//! HTTPS that is opened: the host speaks TLS with the terminal, and its requests go the way of all
//! others (docs/web.md, "Inspection").

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use bentpipe_web::headers::{self, CERTIFICATE, PAPERS, Way};
use bentpipe_web::inspect::bypass::Bypass;
use bentpipe_web::inspect::certificate::Authority;
use bentpipe_web::inspect::hello::{Hello, Reader, plain};
use bentpipe_web::inspect::refused::{Refused, Why};
use http::header::{self, HeaderValue};
use http::uri::Scheme;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use service::message::Accepted;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{SLOW, Terminal, Visit, closing, refuse, server};
use crate::authority;
use crate::authority::Stamp;
use crate::body::{self, Body};
use crate::clock::calendar;
use crate::counted::Counted;
use crate::local::Local;
use crate::shares::HostPlaces;
use crate::socket::Socket;

/// Certificates that are at hand.
const CERTIFICATES: usize = 1024;
/// For how long: a connection begins with one that holds for weeks.
const AT_HAND: Duration = Duration::from_secs(24 * 3600);
/// A browser's connection is ended without a request for so long.
const IDLE: Duration = Duration::from_secs(300);
/// Requests of one connection at once.
const REQUESTS: u32 = 128;
/// Requests of all connections at once, of which one host alone, or one /64, has half.
const REQUESTS_OF_ALL: usize = 3000;
/// Bytes that wait here of a request's body, or of an answer's.
const BODY: u32 = 64 << 10;
/// Bytes that wait of all requests' bodies of a connection.
const BODIES: u32 = 2 * BODY;

/// What inspection needs.
pub struct Inspection {
    bypass: RefCell<List>,
    refused: RefCell<Refused>,
    acceptor: TlsAcceptor,
    requests: HostPlaces,
    started: Instant,
}

/// The names that are never opened, and the file that has them.
struct List {
    dir: PathBuf,
    names: Bypass,
    /// The file that was read.
    read: Option<Stamp>,
    /// The file as it was a moment ago.
    seen: Option<Stamp>,
}

impl List {
    /// Reads the file again if somebody has written it, once it has stayed the same from one look
    /// to the next: half a list would open what the other half forbids. Why it cannot be read.
    fn look(&mut self) -> Option<Result<(), String>> {
        // One that is gone is being replaced, and what it said holds.
        let now = authority::bypass_stamp(&self.dir)?;
        if self.read == Some(now) || self.seen.replace(now) != Some(now) {
            return None;
        }
        self.read = Some(now);
        Some(authority::read_bypass(&self.dir).map(|names| self.names = names))
    }
}

impl Inspection {
    /// With the authority in this directory.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(dir: &Path) -> Result<Inspection, String> {
        let read = authority::bypass_stamp(dir);
        let (authority, names) = authority::load(dir)?;
        let bypass = List { dir: dir.to_owned(), names, read, seen: read }.into();
        let certificates = Names::new(authority)?;
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certificates));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let (refused, started) = (RefCell::default(), Instant::now());
        let (acceptor, requests) = (Arc::new(config).into(), HostPlaces::new(REQUESTS_OF_ALL));
        Ok(Inspection { bypass, refused, acceptor, requests, started })
    }

    /// Is this name opened for hosts?
    pub fn opens(&self, name: &str) -> bool {
        self.bypass.borrow().names.why(&plain(name)).is_none()
    }

    /// Takes a list that was edited; connections that are open already stay as they are.
    pub fn look(&self) {
        match self.bypass.borrow_mut().look() {
            Some(Ok(())) => eprintln!("the list of names that are never opened was read again"),
            Some(Err(why)) => eprintln!("{why}; the names that were on the list before still hold"),
            None => {}
        }
    }

    fn note(&self, host: IpAddr, name: &str, why: Why) {
        self.refused.borrow_mut().note(host, name, why, self.started.elapsed());
    }

    /// Names that could not be opened a moment ago: whose, which, for how long and why.
    pub fn left_alone(&self, most: usize) -> Vec<(IpAddr, String, Duration, String)> {
        let refused = self.refused.borrow();
        let all = refused.all(self.started.elapsed()).take(most);
        all.map(|(host, name, left, why)| (host, name.to_owned(), left, why.text())).collect()
    }

    /// Reads on until it is known whether the host's connection is opened: the name that it wants.
    pub(super) async fn wants(
        &self,
        stream: &TcpStream,
        read: &mut Vec<u8>,
        host: IpAddr,
        counted: &Counted,
    ) -> Option<String> {
        let (mut hello, until) = (Reader::default(), Instant::now() + SLOW);
        loop {
            match hello.read(read) {
                Hello::More => {}
                Hello::Closed(_) => return None,
                Hello::Open { name, is_old } => {
                    let refused = self.refused.borrow();
                    let now = self.started.elapsed();
                    let (skipped, is_opened) = match self.opens(&name) {
                        true => (&counted.refused, refused.why(host, &name, is_old, now).is_none()),
                        false => (&counted.bypassed, false),
                    };
                    if !is_opened {
                        Counted::add(skipped);
                    }
                    return is_opened.then_some(name);
                }
            }
            timeout_at(until, stream.readable()).await.ok()?.ok()?;
            match stream.try_read_buf(read) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Ok(1..) => {}
                _ => return None,
            }
        }
    }
}

/// A connection that is opened.
struct Opened {
    peer: Rc<str>,
    way: Way,
    name: String,
    inspection: Rc<Inspection>,
    /// It is to end when what was asked is answered.
    is_left: Cell<bool>,
    visit: Visit,
    asked: Cell<Instant>,
}

impl Terminal {
    /// Speaks TLS with the host, as the server that it wants, and answers its requests.
    pub(super) async fn serve_inspected(
        self: Rc<Terminal>,
        inspection: Rc<Inspection>,
        it: Accepted,
        socket: Socket,
        name: String,
    ) {
        let host = it.client.ip();
        let tls = match timeout(SLOW, inspection.acceptor.accept(socket)).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(why)) => {
                if let Some(why) = refusal(&why) {
                    Counted::add(&self.counted.refused);
                    inspection.note(host, &name, Why::Client(why));
                }
                return;
            }
            Err(_) => return,
        };
        Counted::add(&self.counted.inspected);
        let (is_left, asked) = (Cell::new(false), Cell::new(Instant::now()));
        let way = Way { to: it.server, from: host };
        let peer = it.peer.into();
        let visit = self.visit(&peer, host);
        let opened = Opened { peer, way, name, inspection, is_left, visit, asked };
        let opened = Rc::new(opened);
        match tls.get_ref().1.alpn_protocol() {
            Some(b"h2") => self.serve_http2(opened, tls).await,
            _ => {
                let answer = |request| self.clone().answer_opened(opened.clone(), request);
                let watch = tls.get_ref().0.watch();
                let served = server().serve_connection(TokioIo::new(tls), service_fn(answer));
                // Hosts break their connections off every day, and see here that ours was.
                let _ = watch.unless_gone(served).await;
            }
        }
    }

    async fn serve_http2(self: Rc<Terminal>, opened: Rc<Opened>, tls: TlsStream<Socket>) {
        let answer = |request| self.clone().answer_opened(opened.clone(), request);
        let connection = http2().serve_connection(TokioIo::new(tls), service_fn(answer));
        let mut connection = pin!(connection);
        loop {
            // Looked at whenever something is answered.
            let served = poll_fn(|context| {
                if opened.is_left.get() {
                    connection.as_mut().graceful_shutdown();
                }
                connection.as_mut().poll(context)
            });
            match timeout_at(opened.asked.get() + IDLE, served).await {
                Ok(_) => return,
                Err(_) if opened.is_left.get() => opened.asked.set(Instant::now()),
                Err(_) => opened.is_left.set(opened.asked.get().elapsed() >= IDLE),
            }
        }
    }

    /// The answer to one request of an opened connection.
    async fn answer_opened(
        self: Rc<Terminal>,
        opened: Rc<Opened>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, String> {
        Counted::add(&self.counted.requests);
        opened.asked.set(Instant::now());
        opened.visit.mark(&mut request);
        if is_web_socket(&request) {
            return Ok(opened.leave(Why::WebSocket));
        }
        let Some(place) = opened.inspection.requests.take(opened.way.from) else {
            let mut answer = Response::new(body::nothing());
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return Ok(answer);
        };
        let last = headers::ends_connection(request.headers());
        let way = opened.way;
        if let Err(why) = headers::for_link(&mut request, way, Scheme::HTTPS) {
            return Ok(refuse(why));
        }
        if request.uri().host().map(plain).as_ref() != Some(&opened.name) {
            // Browsers ask again, on a connection of that name's.
            let mut answer = Response::new(body::nothing());
            *answer.status_mut() = StatusCode::MISDIRECTED_REQUEST;
            return Ok(answer);
        }
        let answer = self.answer_ready(opened.peer.clone(), way, request).await;
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(why) if why.starts_with(PAPERS) => opened.leave(Why::Papers),
            Err(why) => page(&opened.name, &why),
        };
        if headers::logs_connection_in(answer.headers()) {
            opened.inspection.note(way.from, &opened.name, Why::Login);
            opened.is_left.set(true);
        }
        // Over QUIC nothing is opened.
        answer.headers_mut().remove(header::ALT_SVC);
        let is_last = last || opened.is_left.get();
        Ok(closing(answer, is_last).map(|body| body::keeping(body, place)))
    }
}

/// Speaks HTTP/2 with hosts.
fn http2() -> http2::Builder<Local> {
    let mut builder = http2::Builder::new(Local);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(REQUESTS)
        .initial_stream_window_size(BODY)
        .initial_connection_window_size(BODIES)
        .max_send_buf_size(BODY as usize)
        .keep_alive_interval(IDLE / 5);
    builder
}

impl Opened {
    /// Leaves the name alone from now on, and says so.
    fn leave(&self, why: Why) -> Response<Body> {
        let answer = page(&self.name, &format!("{}; from now on it is left alone", why.text()));
        self.inspection.note(self.way.from, &self.name, why);
        self.is_left.set(true);
        closing(answer, true)
    }
}

/// Why a client ended the handshake, if it did not just go away.
fn refusal(why: &io::Error) -> Option<String> {
    let tls = why.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match tls {
        rustls::Error::AlertReceived(alert) => format!("{alert:?}"),
        other => other.to_string(),
    })
}

fn is_web_socket(request: &Request<Incoming>) -> bool {
    let upgrade = request.headers().get(header::UPGRADE);
    upgrade.is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Says that there is no answer of the server's, and what may be done.
fn page(name: &str, why: &str) -> Response<Body> {
    let advice = match why.strip_prefix(CERTIFICATE) {
        Some(why) => format!(
            "<p>The certificate by which {name} should prove itself is not valid: {why}. Somebody may \
             be passing for it, so nothing was sent there, and nothing is shown.</p><p>The far end of \
             this satellite link verifies certificates for your device. Try again later. If it stays \
             like this, tell whoever runs the link: the site may be at fault, or the clock or the list \
             of authorities at the far end.</p>",
            why = escaped(why)
        ),
        None => format!(
            "<p>There is no answer from {name}: {}.</p><p>Load the page again; if that does not help, \
             tell whoever runs this satellite link.</p>",
            escaped(why.strip_prefix(PAPERS).unwrap_or(why))
        ),
    };
    let text = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title>\
         <h1>{name} cannot be shown</h1>{advice}</html>\n"
    );
    let mut answer = Response::new(body::whole(text.into()));
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    let fields = answer.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Certificates for names, made when they are first wanted.
#[derive(Debug)]
struct Names {
    authority: Authority,
    /// Of all of them.
    key: Arc<dyn SigningKey>,
    at_hand: Mutex<BTreeMap<String, (Duration, Arc<CertifiedKey>)>>,
}

impl Names {
    fn new(authority: Authority) -> Result<Names, String> {
        let none = |_| "there is no randomness for a key".to_owned();
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(none)?;
        let secret = pair.to_pkcs8v1().map_err(none)?;
        let secret = PrivateKeyDer::try_from(secret.as_ref())?;
        let key = any_supported_type(&secret).map_err(|why| why.to_string())?;
        Ok(Names { authority, key, at_hand: Mutex::default() })
    }

    fn certified(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let now = calendar();
        let mut at_hand = self.at_hand.lock().ok()?;
        // A calendar that was set back makes them anew, too.
        at_hand.retain(|_, (made, _)| now.checked_sub(*made).is_some_and(|age| age < AT_HAND));
        if let Some((_, it)) = at_hand.get(name) {
            return Some(it.clone());
        }
        let public_key = self.key.public_key()?;
        let serial = authority::serial().ok()?;
        let certificate = self.authority.certify(name, &public_key, serial, now).ok()?;
        let chain = std::iter::once(certificate).chain(self.authority.chain().iter().cloned());
        let it = Arc::new(CertifiedKey::new(chain.collect(), self.key.clone()));
        let oldest =
            at_hand.iter().min_by_key(|(_, (made, _))| *made).map(|(name, _)| name.clone());
        if let Some(oldest) = oldest.filter(|_| at_hand.len() >= CERTIFICATES) {
            at_hand.remove(&oldest);
        }
        at_hand.insert(name.to_owned(), (now, it.clone()));
        Some(it)
    }
}

impl ResolvesServerCert for Names {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certified(&plain(hello.server_name()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    #[test]
    fn certificates_are_made_once_for_each_name_and_so_many_are_at_hand() {
        let dir = tempfile::tempdir().unwrap();
        authority::make(dir.path()).unwrap();
        let names = Names::new(authority::load(dir.path()).unwrap().0).unwrap();
        let first = names.certified("a.test").unwrap();
        assert!(Arc::ptr_eq(&first, &names.certified("a.test").unwrap()));
        assert_eq!(first.cert.len(), 2, "its own, and the authority's");
        assert_ne!(first.cert[0], names.certified("b.test").unwrap().cert[0]);
        for n in 0..CERTIFICATES {
            names.certified(&format!("{n}.test")).unwrap();
        }
        assert_eq!(names.at_hand.lock().unwrap().len(), CERTIFICATES);
    }

    /// A host opens eight requests whose bodies nobody reads: what it may send.
    #[test]
    fn bodies_that_nobody_reads_have_so_many_bytes_each_and_together() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            tokio::task::spawn_local(async move {
                let never = |request: Request<Incoming>| async move {
                    std::future::pending::<()>().await;
                    drop(request);
                    Ok::<_, String>(Response::new(body::nothing()))
                };
                let _ = http2().serve_connection(TokioIo::new(near), service_fn(never)).await;
            });
            let (mut requests, connection) = h2::client::handshake(far).await.unwrap();
            tokio::task::spawn_local(async move { drop(connection.await) });
            let (mut answers, mut bodies) = (Vec::new(), Vec::new());
            for _ in 0..8 {
                let request = Request::post("https://a.test/").body(()).unwrap();
                let (answer, body) = requests.send_request(request, false).unwrap();
                answers.push(answer);
                bodies.push((body, 0));
            }
            // Each round every body sends what it may.
            for _ in 0..1000 {
                for (body, sent) in &mut bodies {
                    body.reserve_capacity(4 << 10);
                    let some = body.capacity().min(4 << 10);
                    if some > 0 {
                        body.send_data(vec![0; some].into(), false).unwrap();
                        *sent += some;
                    }
                }
                tokio::task::yield_now().await;
            }
            let most = *bodies.iter().map(|(_, sent)| sent).max().unwrap();
            let all: usize = bodies.iter().map(|(_, sent)| sent).sum();
            assert!(most <= BODY as usize && all <= BODIES as usize, "{most} of {all} bytes");
            assert!(all > BODY as usize, "{all} bytes");
        });
    }

    #[test]
    fn a_list_that_was_edited_counts_once_it_is_whole_and_one_that_is_wrong_never() {
        let dir = tempfile::tempdir().unwrap();
        authority::make(dir.path()).unwrap();
        let inspection = Inspection::open(dir.path()).unwrap();
        let opens = |name| {
            inspection.look();
            inspection.opens(name)
        };
        let write = |text: &str| std::fs::write(dir.path().join("bypass"), text).unwrap();
        assert!(opens("a.test") && opens("a.test") && !opens("paypal.com"));
        write("*.test ours\n");
        assert!(opens("a.test"), "it may grow still");
        assert!(!opens("a.test") && opens("paypal.com"));
        write("*.test ours\nhttps://b theirs\n");
        assert!(!opens("a.test") && !opens("a.test") && opens("b"));
        std::fs::remove_file(dir.path().join("bypass")).unwrap();
        assert!(!opens("a.test") && !opens("a.test"), "it is being replaced");
        write("b ours\n");
        assert!(!opens("a.test") && opens("a.test") && !opens("b"));
    }

    #[test]
    fn a_page_says_what_is_wrong_and_nothing_in_it_is_obeyed() {
        let text = |why: &str| {
            let answer = page("a.test", why);
            assert_eq!(
                (answer.status(), &answer.headers()["cache-control"]),
                (StatusCode::BAD_GATEWAY, &HeaderValue::from_static("no-store"))
            );
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let body = runtime.block_on(answer.into_body().collect()).unwrap().to_bytes();
            String::from_utf8(body.to_vec()).unwrap()
        };
        let invalid = text("certificate: it has expired");
        assert!(invalid.contains("not valid: it has expired"), "{invalid}");
        for prefix in ["", CERTIFICATE, PAPERS] {
            assert!(!text(&format!("{prefix}<script>")).contains("<script>"), "{prefix}");
        }
    }
}
