//! The hub's part of page push: reads pages as they pass, fetches what they name, and sends it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bentpipe_web::cache::Digest;
use bentpipe_web::delta::{self, MAX_PAGE, Packer, Versions};
use bentpipe_web::encoded::{self, Decoder};
use bentpipe_web::headers::Way;
use bentpipe_web::push::fields::{self, Ask};
use bentpipe_web::push::plan::{Plan, Wanted};
use bentpipe_web::push::scan::{Scanner, Text, in_fields};
use bentpipe_web::push::{Budget, Found, Kind, frames, name_of};
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::timeout;
use units::is_private;
use url::Url;

use crate::body::{self, Body, Broken};
use crate::busy::UnderWay;
use crate::counted::Counted;
use crate::exchange::{self, Exchanges, Sender};
use crate::gateway::Gateway;
use crate::hub::{Ahead, Hub};
use crate::local::Local;
use crate::rank::Ranks;
use crate::shares::{Place, Places};

/// A server that has not begun to answer by then is asked by the host itself.
const SLOW: Duration = Duration::from_secs(5);
/// Pages whose objects are sent at once; of others none are. A peer alone may have half of them.
const PAGES: usize = 512;
/// The service at this node that is told which names pages need, as the operator calls it.
const NAMES: &str = "names";
/// Addresses of another host that are tried.
const MAX_TRIED: usize = 3;
/// Pages that are packed at once: each takes a few megabytes meanwhile. Likewise.
const PACKERS: usize = 32;

/// What the hub has for push, and for deltas.
pub struct Pushing {
    /// Bytes for one page; 0: nothing is pushed.
    budget: Budget,
    urgent: Exchanges,
    /// Images, which hold up nothing else where their hosts do not read them.
    images: Exchanges,
    pages: RefCell<Vec<Weak<Page>>>,
    /// Pages as they were sent.
    versions: RefCell<Versions>,
    places: Rc<Places>,
    packers: Rc<Places>,
}

impl Pushing {
    pub fn new(gateway: &Rc<Gateway>, counted: &Rc<Counted>, budget: Budget) -> Pushing {
        let stream = || Exchanges::new(gateway.clone(), counted.clone(), exchange::PUSH_PREFACE);
        let (urgent, images) = (stream(), stream());
        let (pages, versions) = Default::default();
        let (places, packers) = (Places::new(PAGES), Places::new(PACKERS));
        Pushing { budget, urgent, images, pages, versions, places, packers }
    }

    /// A host asks for this itself: no page need begin to fetch it.
    pub fn asked(&self, peer: &str, way: Way, uri: &Uri) {
        let name = name_of(uri);
        self.pages_of(peer, way).iter().for_each(|page| page.plan.borrow_mut().asked(&name));
    }

    /// A host is sent its own answer: what is still being fetched of the same does not cross, too.
    pub fn answered(&self, peer: &str, way: Way, uri: &Uri) {
        let name = name_of(uri);
        for page in self.pages_of(peer, way) {
            let running = page.running.borrow();
            running.get(&name).filter(|it| !it.is_sent).iter().for_each(|it| it.task.abort());
        }
    }

    fn pages_of(&self, peer: &str, way: Way) -> Vec<Rc<Page>> {
        let pages = self.pages.borrow();
        let its = |page: &Rc<Page>| *page.peer == *peer && page.way.from == way.from;
        pages.iter().filter_map(Weak::upgrade).filter(its).collect()
    }
}

impl Pushing {
    /// The users of these pages have left them.
    pub fn leave(&self, peer: &str, left: &[u64]) {
        let pages: Vec<_> = self.pages.borrow().iter().filter_map(Weak::upgrade).collect();
        for page in pages.iter().filter(|p| *p.peer == *peer && left.contains(&p.number)) {
            page.stop();
        }
    }
}

struct Running {
    task: AbortHandle,
    /// Its answer is on its way to the terminal.
    is_sent: bool,
}

/// A page, while its objects are fetched and sent.
pub struct Page {
    hub: Rc<Hub>,
    peer: Rc<str>,
    way: Way,
    number: u64,
    plan: RefCell<Plan>,
    /// Marks of what the terminal has, and which may hold still.
    had: BTreeSet<u32>,
    /// The answers to its host: objects take their turns with them.
    ranks: Ranks,
    /// What its objects are asked for with.
    copied: RefCell<HeaderMap>,
    /// Other hosts whose address is known.
    others: RefCell<BTreeMap<String, SocketAddr>>,
    is_over: Cell<bool>,
    /// What is fetched or sent just now, by name.
    running: RefCell<BTreeMap<String, Running>>,
    /// A page that the terminal has, too.
    base: Option<(Digest, Bytes)>,
    /// One of those whose objects are sent.
    place: Option<Place>,
}

impl Page {
    /// The page that a terminal's request asks for, and in which coding its server is asked for
    /// it: as it is where the link compresses it, or where it crosses as its difference from
    /// another.
    pub async fn asked(
        hub: &Rc<Hub>,
        peer: &Rc<str>,
        way: Way,
        uri: &Uri,
        fields: &mut HeaderMap,
        ranks: &Ranks,
    ) -> Option<Rc<Page>> {
        let pushing = &hub.pushing;
        let (base, ask) = (delta::take_base(fields), fields::take_ask(fields));
        let Ask { page: number, bytes, held, had } = ask?;
        let url = Url::parse(&uri.to_string()).ok()?;
        let bytes = bytes.min(pushing.budget.over(hub.gateway.bills(peer)));
        let mut place = if bytes > 0 { pushing.places.take(peer, 1) } else { None };
        // Promised is only what there is a stream for.
        if place.is_some() && pushing.urgent.sender(peer, 0, exchange::Kind::Private).await.is_err()
        {
            place = None;
        }
        let bytes = if place.is_some() { bytes } else { 0 };
        let owner = (peer.to_string(), way.from);
        let base = base.and_then(|digest| {
            let page = pushing.versions.borrow_mut().find(&owner, digest)?;
            Some((digest, page))
        });
        let page = Rc::new(Page {
            hub: hub.clone(),
            peer: peer.clone(),
            way,
            number,
            plan: RefCell::new(Plan::new(url, held, bytes)),
            had,
            ranks: ranks.clone(),
            copied: RefCell::new(fields::copied(fields)),
            others: RefCell::default(),
            is_over: Cell::new(false),
            running: RefCell::default(),
            base,
            place,
        });
        if page.place.is_some() {
            let mut pages = pushing.pages.borrow_mut();
            pages.retain(|page| page.strong_count() > 0);
            pages.push(Rc::downgrade(&page));
        }
        if fields.contains_key(header::ACCEPT_ENCODING) {
            let coding = page.coding(fields, page.base.is_none());
            fields.insert(header::ACCEPT_ENCODING, coding);
        }
        Some(page)
    }

    /// The coding for a page or a sheet that is asked for with these fields: its server's own
    /// where it would cross as it is.
    fn coding(&self, fields: &HeaderMap, is_not_packed: bool) -> HeaderValue {
        let is_private = exchange::Kind::of(fields) == exchange::Kind::Private;
        let as_it_is = is_private || self.hub.gateway.is_uncompressed(&self.peer);
        match as_it_is && is_not_packed {
            true => encoded::asked_for(fields),
            false => HeaderValue::from_static("identity"),
        }
    }

    /// The page's own answer, with promises between its bytes.
    pub fn read_own(self: &Rc<Page>, answer: Response<Body>) -> Response<Body> {
        let base = self.plan.borrow().page().clone();
        let is_secure = base.scheme() == "https";
        fields::set_cookies(&mut self.copied.borrow_mut(), answer.headers(), is_secure);
        self.read(answer, base, 0, false)
    }

    /// An answer with promises between its bytes, if it names anything.
    /// Where the terminal `has` it the promises alone cross.
    fn read(
        self: &Rc<Page>,
        answer: Response<Body>,
        base: Url,
        depth: u8,
        has: bool,
    ) -> Response<Body> {
        let (mut parts, body) = answer.into_parts();
        let found = in_fields(parts.status, &parts.headers);
        let decoder = Decoder::of(&parts.headers);
        let scanner = decoder.as_ref().map_or(Scanner::Blind, |_| Scanner::of(&parts.headers));
        if found.is_empty() && matches!(scanner, Scanner::Blind) {
            return Response::from_parts(parts, body);
        }
        let is_kept = depth == 0
            && !matches!(scanner, Scanner::Blind)
            && delta::may_be_kept(parts.status, &parts.headers);
        // What its server has packed is not packed again.
        let is_packed = is_kept && matches!(decoder, Some(Decoder::Plain));
        let packed = if is_packed { self.packer(&mut parts.headers) } else { None };
        let mut it = Reading {
            body,
            decoder: decoder.unwrap_or(Decoder::Plain),
            text: Text::new(scanner, base),
            page: Rc::clone(self),
            depth,
            ready: VecDeque::new(),
            packed,
            copy: is_kept.then(Vec::new),
            has,
            is_whole: false,
        };
        it.promise(found, true);
        fields::set_framed(&mut parts.headers);
        Response::from_parts(parts, Box::pin(it))
    }

    /// Packs the page with one that the terminal has, if there is one.
    fn packer(&self, fields: &mut HeaderMap) -> Option<(Packer, Place)> {
        let (digest, base) = self.base.as_ref()?;
        let place = self.hub.pushing.packers.take(&self.peer, 1)?;
        let packer = Packer::new(base).ok()?;
        delta::set_delta(fields, *digest);
        Some((packer, place))
    }

    /// Tells the service of names which hosts the page's host needs beside its own.
    fn tell_names(&self) {
        let mut plan = self.plan.borrow_mut();
        let others = plan.take_hosts();
        if !others.is_empty() {
            let own = plan.page().host_str().unwrap_or("");
            let lines = std::iter::once(own).chain(others.iter().map(String::as_str));
            let text: String = lines.flat_map(|host| [host, "\n"]).collect();
            self.hub.gateway.hint(NAMES, &self.peer, text.as_bytes());
        }
    }

    /// Fetches as much as may be fetched at once.
    fn go_on(self: &Rc<Page>) {
        loop {
            let next = self.plan.borrow_mut().start();
            let Some(wanted) = next else { return };
            let name = wanted.name.clone();
            // Made here: a task may be aborted before it begins.
            let done = Done(self.clone(), name.clone());
            let task = spawn_local(self.clone().push(wanted, done)).abort_handle();
            self.running.borrow_mut().insert(name, Running { task, is_sent: false });
        }
    }

    /// The host has left: what has not been sent is not, nor fetched any further.
    fn stop(self: &Rc<Page>) {
        if self.is_over.replace(true) {
            return;
        }
        let mut names = self.plan.borrow_mut().stop();
        let running = std::mem::take(&mut *self.running.borrow_mut());
        for (name, it) in running {
            it.task.abort();
            names.push(name);
        }
        Counted::more(&self.hub.counted.push_stopped, names.len());
        Local::spawn(self.clone().withdraw(names));
    }

    async fn withdraw(self: Rc<Page>, names: Vec<String>) {
        if names.is_empty() {
            return;
        }
        let list = frames::promises(names.iter().map(String::as_str));
        let request = fields::withdrawal(self.number, body::whole(list));
        if let Ok(mut sender) = self.sender(Kind::Page, exchange::Kind::Private).await {
            // Without the stream nobody believes in its promises.
            let _ = sender.ask(request).await;
        }
    }

    async fn sender(&self, kind: Kind, says: exchange::Kind) -> Result<Sender, String> {
        let pushing = &self.hub.pushing;
        let (stream, says) = match kind.is_urgent() {
            true => (&pushing.urgent, says),
            // Compressing them would gain nothing.
            false => (&pushing.images, exchange::Kind::Private),
        };
        stream
            .sender(&self.peer, 0, says)
            .await
            .map(|(sender, _)| sender)
            .map_err(|why| why.to_string())
    }

    /// Fetches an object and sends it.
    async fn push(self: Rc<Page>, wanted: Wanted, _done: Done) {
        let _under_way = self.hub.gateway.begin_request();
        if self.send(&wanted).await.is_err() {
            self.clone().withdraw(vec![wanted.name]).await;
        }
    }

    async fn send(self: &Rc<Page>, wanted: &Wanted) -> Result<(), String> {
        let (answer, to) =
            timeout(SLOW, self.fetch(wanted)).await.map_err(|_| "the server is slow")??;
        let status = answer.status();
        let is_for_nobody_else =
            [StatusCode::UNAUTHORIZED, StatusCode::PROXY_AUTHENTICATION_REQUIRED];
        if self.is_over.get() || status.is_server_error() || is_for_nobody_else.contains(&status) {
            return Err("it is not sent".into());
        }
        let has = status == StatusCode::OK
            && fields::mark(&wanted.name, answer.headers()).is_some_and(|m| self.had.contains(&m));
        let length = answer.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|l| l.to_str().ok()).and_then(|l| l.parse().ok());
        let length = if has { Some(0) } else { length };
        if !self.plan.borrow_mut().admit(length) {
            return Err("it is too much".into());
        }
        let answer = match wanted.kind {
            Kind::Page | Kind::Style => self.read(answer, wanted.url.clone(), wanted.depth, has),
            _ if has => answer.map(|_| body::nothing()),
            _ => answer,
        };
        let answer = if has { unchanged(answer) } else { answer };
        let (gone, when_gone) = oneshot::channel();
        let is_wanted = Rc::new(Cell::new(false));
        let (page, is_paid) = (Rc::clone(self), length.is_some());
        let (is_wanted_too, _gone) = (is_wanted.clone(), gone);
        let fills = !wanted.kind.is_urgent();
        let answer = answer.map(|body| {
            let body = self.ranks.rank(body, fills);
            Box::pin(Paying { body, page, is_paid, is_wanted: is_wanted_too, _gone }) as Body
        });
        let uri: Uri = wanted.url.as_str().parse().map_err(|_| "no address of HTTP's")?;
        let request = fields::into_push(self.number, to, &uri, answer).ok_or("no address")?;
        Counted::add(&self.hub.counted.push_sent);
        let says = match wanted.is_own {
            true => exchange::Kind::of(&self.copied.borrow()),
            false => exchange::Kind::Open,
        };
        let sender = self.sender(wanted.kind, says).await?;
        if let Some(it) = self.running.borrow_mut().get_mut(&wanted.name) {
            it.is_sent = true;
        }
        Local::spawn(hold(sender, request, is_wanted, self.hub.gateway.begin_request()));
        // The next one follows when this is on its way; what becomes of it is a round trip away.
        let _ = when_gone.await;
        Ok(())
    }

    /// Asks the server: where the page came from, or by another host's name.
    async fn fetch(&self, wanted: &Wanted) -> Result<(Response<Body>, SocketAddr), String> {
        let request = self.request(wanted)?;
        let known = match wanted.is_own {
            true => Some(self.way.to),
            false => self.others.borrow().get(wanted.url.host_str().unwrap_or("")).copied(),
        };
        let to = match known {
            Some(to) => to,
            None => self.look_up(&wanted.url).await?,
        };
        let name = wanted.url.host_str().filter(|_| wanted.url.scheme() == "https");
        let key = (self.peer.clone(), Way { to, ..self.way }, name.map(Rc::from));
        let uri: Uri = wanted.url.as_str().parse().map_err(|_| "no address of HTTP's")?;
        let answer = self.hub.fetch(&key, &uri, request).await?;
        Ok((answer, to))
    }

    /// The address of another host. It is not asked where it is in nobody's net but the page's own:
    /// that is known before anything is connected.
    async fn look_up(&self, url: &Url) -> Result<SocketAddr, String> {
        let host = url.host_str().unwrap_or("");
        let port = url.port_or_known_default().unwrap_or(80);
        let told = self.hub.gateway.resolve(&self.peer, self.way.from, host).await;
        let told = told.map_err(|why| why.to_string())?;
        let may_be_asked = |ip: &IpAddr| !is_private(*ip) || *ip == self.way.to.ip();
        let mut why = "its address is nobody's".to_owned();
        for ip in told.into_iter().filter(may_be_asked).take(MAX_TRIED) {
            let to = SocketAddr::new(ip, port);
            match self.hub.gateway.connect_ahead(&self.peer, Way { to, ..self.way }).await {
                Ok(_) => {
                    self.others.borrow_mut().insert(host.to_owned(), to);
                    return Ok(to);
                }
                Err(reason) => why = reason.to_string(),
            }
        }
        Err(why)
    }

    fn request(&self, wanted: &Wanted) -> Result<Request<Body>, String> {
        let url = &wanted.url;
        let wrong = |_| "no address of HTTP's".to_owned();
        let mut request = Request::new(body::nothing());
        request.extensions_mut().insert(Ahead);
        *request.uri_mut() = url[url::Position::BeforePath..].parse().map_err(|_| "no target")?;
        let fields = request.headers_mut();
        *fields = self.copied.borrow().clone();
        let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
        fields.insert(header::HOST, HeaderValue::from_str(host).map_err(wrong)?);
        fields.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        match wanted.is_own {
            true => {
                let page = self.plan.borrow().page().to_string();
                fields.insert(header::REFERER, HeaderValue::from_str(&page).map_err(wrong)?);
            }
            false => {
                fields.remove(header::COOKIE);
            }
        }
        if matches!(wanted.kind, Kind::Page | Kind::Style) {
            let coding = self.coding(fields, true);
            fields.insert(header::ACCEPT_ENCODING, coding);
        }
        Ok(request)
    }
}

/// The terminal has the body.
fn unchanged(mut answer: Response<Body>) -> Response<Body> {
    *answer.status_mut() = StatusCode::NOT_MODIFIED;
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    answer
}

/// Sends a pushed answer, hears whether a host reads it, and holds its stream until the terminal
/// has all of it.
async fn hold(
    mut sender: Sender,
    request: Request<Body>,
    is_wanted: Rc<Cell<bool>>,
    _under_way: UnderWay,
) {
    // Where it fails the terminal knows that it has not come.
    let Ok(mut answered) = sender.ask(request).await else { return };
    is_wanted.set(answered.status() == StatusCode::OK);
    while let Some(Ok(_)) = answered.body_mut().frame().await {}
}

/// One object is through, however.
struct Done(Rc<Page>, String);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.running.borrow_mut().remove(&self.1);
        self.0.plan.borrow_mut().done();
        self.0.go_on();
    }
}

/// A page or a sheet on its way to the terminal.
struct Reading {
    body: Body,
    /// What is inside its bytes.
    decoder: Decoder,
    text: Text,
    page: Rc<Page>,
    depth: u8,
    ready: VecDeque<Bytes>,
    /// Its bytes are packed; and a place among those that are.
    packed: Option<(Packer, Place)>,
    /// What was inside them so far, to be remembered if it is not too much.
    copy: Option<Vec<u8>>,
    /// The terminal has its bytes.
    has: bool,
    is_whole: bool,
}

impl Reading {
    /// Promises what is found, before the bytes that name it go on.
    fn promise(&mut self, found: Vec<Found>, even_if_none: bool) {
        let names = match self.page.is_over.get() {
            true => Vec::new(),
            false => self.page.plan.borrow_mut().find(self.text.base(), found, self.depth + 1),
        };
        if even_if_none || !names.is_empty() {
            self.ready.push_back(frames::promises(names.iter().map(String::as_str)));
            self.page.tell_names();
            self.page.go_on();
        }
    }

    /// Bytes of the page go on, packed or as they are.
    fn send(&mut self, bytes: Bytes) -> Result<(), Broken> {
        if self.has {
            return Ok(());
        }
        let bytes = match &mut self.packed {
            Some((packer, _)) => packer.pack(&bytes)?,
            None => bytes,
        };
        self.frame(bytes);
        Ok(())
    }

    fn frame(&mut self, bytes: Bytes) {
        let mut frames = Vec::new();
        frames::data(bytes, &mut frames);
        self.ready.extend(frames);
    }

    /// All of it is on its way.
    fn end(&mut self) -> Result<(), Broken> {
        self.is_whole = true;
        if let Some((mut packer, _)) = self.packed.take() {
            let end = packer.end()?;
            self.frame(end);
        }
        if let Some(copy) = self.copy.take().filter(|_| self.decoder.is_whole()) {
            let page = &self.page;
            let (owner, name) = ((page.peer.to_string(), page.way.from), page.plan.borrow().name());
            page.hub.pushing.versions.borrow_mut().insert(&owner, &name, copy.into());
        }
        Ok(())
    }

    fn look(&mut self, bytes: &Bytes) {
        let inside = self.decoder.read(bytes);
        match &mut self.copy {
            Some(copy) if copy.len() + inside.len() <= MAX_PAGE => copy.extend_from_slice(&inside),
            _ => self.copy = None,
        }
        let found = self.text.read(&inside);
        self.promise(found, false);
        if self.page.plan.borrow().is_full() {
            self.text.give_up();
        }
    }
}

impl HttpBody for Reading {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if self.is_whole {
                return Poll::Ready(None);
            }
            match ready!(self.body.as_mut().poll_frame(context)?) {
                Some(frame) => {
                    // Trailers have no place in such a body.
                    let bytes = frame.into_data().unwrap_or_default();
                    self.look(&bytes);
                    self.send(bytes)?;
                }
                None => self.end()?,
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.is_whole && self.depth == 0 {
            self.page.stop();
        }
    }
}

/// A pushed body: paid for, counted, and broken off when nobody wants it any more.
struct Paying {
    body: Body,
    page: Rc<Page>,
    is_paid: bool,
    /// A host reads it.
    is_wanted: Rc<Cell<bool>>,
    /// Dropped with this.
    _gone: oneshot::Sender<()>,
}

impl HttpBody for Paying {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = ready!(self.body.as_mut().poll_frame(context)?);
        let length = frame.as_ref().and_then(|f| f.data_ref()).map_or(0, Bytes::len);
        Counted::more(&self.page.hub.counted.push_sent_bytes, length);
        if !self.is_wanted.get() {
            let pays = self.is_paid || self.page.plan.borrow_mut().pay(length as u64);
            if self.page.is_over.get() || !pays {
                return Poll::Ready(Some(Err("nobody wants it".into())));
            }
        }
        Poll::Ready(frame.map(Ok))
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
