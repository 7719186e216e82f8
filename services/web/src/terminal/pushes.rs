//! The terminal's part of page push: asks for it, keeps what comes, and gives it to hosts.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bentpipe_web::cache::{self, Digest, Holder, Stored};
use bentpipe_web::delta::{self, MAX_PAGE, Owner, Unpacker, Versions};
use bentpipe_web::encoded::Decoder;
use bentpipe_web::headers::{self, Way};
use bentpipe_web::push::fields::{self, Ask, Pushed};
use bentpipe_web::push::frames::{Part, Reader};
use bentpipe_web::push::held::Held;
use bentpipe_web::push::scan::may_name_others;
use bentpipe_web::push::shelf::{self, Key, Look, Shelf};
use bentpipe_web::push::{Budget, name_of};
use bentpipe_web::verified::Beside;
use bytes::Bytes;
use http::uri::Scheme;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use hyper::service::service_fn;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::visits::Visits;
use super::{Inspection, from};
use crate::body::{self, Body, Broken};
use crate::client::Received;
use crate::counted::Counted;
use crate::exchange;
use crate::gateway::Gateway;
use crate::hosts::Hosts;
use crate::loads::Source;
use crate::local::{Local, sooner};
use crate::socket::{Socket, watched};
use crate::store::{Found, Keep, Store};
use crate::tray::{Tray, Unread};

/// A page that was asked for.
pub struct Asking {
    page: u64,
    owner: Owner,
    name: String,
    /// A page that the hub may have, too.
    base: Option<(Digest, Bytes)>,
}

/// What waits for a host's request.
#[derive(Clone)]
enum Here {
    /// It was pushed.
    Pushed(Rc<Tray>),
    /// It was kept, and holds for this request.
    Kept(Found),
}

/// What the terminal was sent ahead of requests, and pages as they came.
pub struct Pushes {
    shelf: RefCell<Shelf<Here>>,
    /// Of what was taken from the shelf.
    unread: Rc<Unread>,
    /// Something on the shelf has changed.
    changed: Notify,
    counted: Rc<Counted>,
    held: RefCell<Held>,
    versions: RefCell<Versions>,
    beside: RefCell<Beside>,
    store: Rc<Store>,
    started: Instant,
    gateway: Rc<Gateway>,
    /// Bytes that are asked for with one page; 0: nothing is.
    budget: Budget,
    inspection: Option<Rc<Inspection>>,
    visits: Rc<Visits>,
    hosts: Rc<Hosts>,
}

impl Pushes {
    pub fn new(
        gateway: &Rc<Gateway>,
        counted: Rc<Counted>,
        store: Rc<Store>,
        budget: Budget,
        inspection: Option<Rc<Inspection>>,
        (visits, hosts): (Rc<Visits>, Rc<Hosts>),
    ) -> Pushes {
        let (shelf, unread, changed, held, versions, beside) = Default::default();
        let (started, gateway) = (Instant::now(), Rc::clone(gateway));
        Pushes {
            shelf,
            unread,
            changed,
            counted,
            held,
            versions,
            beside,
            store,
            started,
            gateway,
            budget,
            inspection,
            visits,
            hosts,
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Asks for the objects of what may be a page, and for its difference from one that is here.
    pub fn ask(&self, peer: &str, request: &mut Request<Body>) -> Option<Asking> {
        let way = headers::way(request.headers())?;
        let fields = request.headers();
        let is_page = fields::may_be_pushed(request)
            && request.body().is_end_stream()
            && may_name_others(request.uri(), fields);
        if !is_page {
            return None;
        }
        let (now, uri) = (self.now(), request.uri());
        let bytes = self.budget.over(self.gateway.bills(peer));
        let key = cache::Key::new(peer, way.to, uri);
        let is_kept = |digest| self.store.has(digest);
        let (held, had) = self.held.borrow_mut().of(&key, now, is_kept);
        let copied = fields::copied(fields);
        let (owner, name) = ((peer.to_owned(), way.from), name_of(uri));
        self.expire(now);
        let page = self.shelf.borrow_mut().page(peer, way, name.clone(), copied, now);
        self.tell_displaced();
        fields::set_ask(request.headers_mut(), &Ask { page, bytes, held, had });
        let mut versions = self.versions.borrow_mut();
        let base = versions.like(&owner, &name);
        let base = base.and_then(|digest| Some((digest, versions.find(&owner, digest)?)));
        if let Some(left) = self.visits.leaves(request, page)
            && self.awaited(peer, way.from).contains(&left)
        {
            fields::set_left(request.headers_mut(), &[left]);
        }
        if let Some((digest, _)) = base {
            delta::set_base(request.headers_mut(), digest);
        }
        Some(Asking { page, owner, name, base })
    }

    /// Notes that the terminal has this answer.
    pub fn holds(&self, stored: &Stored) {
        if stored.is_of_a_range() {
            return;
        }
        let (fresh_for, _) = stored.left(self.store.now());
        let mark = fields::mark(stored.key.uri(), &stored.fields);
        self.held.borrow_mut().note(&stored.key, mark, self.now().saturating_add(fresh_for));
    }

    /// Takes what the hub tells of the host's other addresses out of its answer.
    pub fn hear(&self, of: (&str, &Uri, SocketAddr), fields: &mut HeaderMap) {
        self.beside.borrow_mut().note(of, fields, self.now());
    }

    /// The keys of the same at other addresses of the host.
    pub fn beside(&self, key: &cache::Key, uri: &Uri) -> Vec<cache::Key> {
        let of = (key.peer(), uri, key.server());
        let others = self.beside.borrow_mut().of(of, self.now());
        others.into_iter().map(|to| cache::Key::new(key.peer(), to, uri)).collect()
    }

    /// Pages of this host of which something is yet to come.
    pub fn awaited(&self, peer: &str, from: IpAddr) -> Vec<u64> {
        let is_coming = |here: &Here| matches!(here, Here::Pushed(tray) if tray.is_coming());
        self.shelf.borrow().awaited(peer, from, is_coming)
    }

    /// Gives up what nobody has asked for in its time.
    pub fn tidy(&self) {
        self.expire(self.now());
    }

    fn expire(&self, now: Duration) {
        for (name, bytes) in self.shelf.borrow_mut().expire(now) {
            self.waste(&name, bytes);
        }
    }

    /// Who waits for an object of a page that gave way is to ask for it.
    fn tell_displaced(&self) {
        if self.shelf.borrow_mut().take_displaced() {
            self.changed.notify_waiters();
        }
    }

    fn waste(&self, name: &str, bytes: usize) {
        self.hosts.pushed(name, false);
        Counted::add(&self.counted.push_wasted);
        Counted::more(&self.counted.push_wasted_bytes, bytes);
    }

    /// What was pushed for this request; waits for it if it is on its way.
    pub async fn find(
        &self,
        peer: &str,
        way: Way,
        request: &mut Request<Incoming>,
    ) -> Option<Response<Body>> {
        fields::clear(request.headers_mut());
        delta::clear(request.headers_mut());
        if !is_for_pushed(request) {
            return None;
        }
        let key = Key { peer: peer.to_owned(), from: way.from, name: name_of(request.uri()) };
        loop {
            let changed = self.changed.notified();
            match self.look(&key, way) {
                Look::Nothing => return None,
                Look::Coming(_) if self.gateway.is_down(peer) => return None,
                Look::Here(here, page) => return self.give(&key, page, here, request),
                Look::Coming(until) => {
                    let _ = timeout_at(self.started + until, changed).await;
                }
            }
        }
    }

    /// The answer to a request that crosses, or the same if that is pushed before the answer
    /// comes: then the request is broken off.
    pub async fn or_meanwhile(
        &self,
        (peer, way): (&str, Way),
        request: &Request<()>,
        asking: impl Future<Output = Result<Response<Body>, String>>,
    ) -> Result<Response<Body>, String> {
        let key = Key { peer: peer.to_owned(), from: way.from, name: name_of(request.uri()) };
        let pushed = async {
            loop {
                let changed = self.changed.notified();
                if let Look::Here(here, page) = self.look(&key, way)
                    && let Some(answer) = self.give(&key, page, here, request)
                {
                    return Ok(from(Source::Pushed, answer));
                }
                changed.await;
            }
        };
        let answered = async {
            let answer = asking.await?;
            // The hub does not push it any more.
            if self.shelf.borrow_mut().give_up(&key) {
                self.changed.notify_waiters();
            }
            Ok(answer)
        };
        sooner(answered, pushed).await
    }

    fn look(&self, key: &Key, way: Way) -> Look<Here> {
        let patience =
            shelf::patience(self.gateway.rate(&key.peer), self.gateway.round_trip(&key.peer));
        self.shelf.borrow().look(key, way.to, self.now(), patience)
    }

    fn give<B>(
        &self,
        key: &Key,
        page: u64,
        here: Here,
        request: &Request<B>,
    ) -> Option<Response<Body>> {
        match here {
            Here::Pushed(tray) => self.give_pushed(key, page, tray, request),
            Here::Kept(found) => self.give_kept(key, page, &found, request),
        }
    }

    fn give_pushed<B>(
        &self,
        key: &Key,
        page: u64,
        tray: Rc<Tray>,
        request: &Request<B>,
    ) -> Option<Response<Body>> {
        let suits = |it: &mut bentpipe_web::push::shelf::Page| {
            fields::suits(&it.asked_with(&key.name), request.headers(), &tray.fields)
        };
        let mut shelf = self.shelf.borrow_mut();
        if tray.is_broken() || !shelf.page_of(page).is_some_and(suits) {
            return None;
        }
        shelf.take(key, page)?;
        self.visits.looks_at(request, page);
        self.hosts.pushed(&key.name, true);
        Counted::add(&self.counted.push_used);
        let mut answer = Response::new(body::nothing());
        *answer.headers_mut() = tray.fields.clone();
        if fields::is_known(request.headers(), &tray.fields) {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            answer.headers_mut().remove(header::CONTENT_LENGTH);
            return Some(answer);
        }
        *answer.status_mut() = tray.status;
        let counted = Rc::clone(&self.counted);
        let read = move |n| Counted::more(&counted.push_used_bytes, n);
        *answer.body_mut() = Box::pin(tray.take(key.from, read));
        Some(answer)
    }

    fn give_kept<B>(
        &self,
        key: &Key,
        page: u64,
        found: &Found,
        request: &Request<B>,
    ) -> Option<Response<Body>> {
        let stored = &found.stored;
        let mut shelf = self.shelf.borrow_mut();
        let sent = shelf.page_of(page)?.asked_with(&key.name);
        if !fields::suits(&sent, request.headers(), &stored.fields) {
            return None;
        }
        shelf.take(key, page)?;
        self.visits.looks_at(request, page);
        self.hosts.pushed(&key.name, true);
        Counted::add(&self.counted.push_used);
        let asked = cache::Asked::of(request, &stored.key, true, self.store.now())?;
        Some(self.store.give(&asked, found))
    }

    /// The answer without the promises in it, which are noted before anything of it is given on,
    /// and unpacked.
    pub async fn open(
        this: &Rc<Pushes>,
        asking: Option<Asking>,
        answer: Response<Received>,
    ) -> Response<Body> {
        let (mut parts, body) = answer.into_parts();
        let is_framed = fields::take_framed(&mut parts.headers);
        let packed_with = delta::take_delta(&mut parts.headers);
        fields::clear(&mut parts.headers);
        let Some(asking) = asking.filter(|_| is_framed) else {
            return Response::from_parts(parts, body::passing(body));
        };
        let body = body::passing(body);
        if let Some(page) = this.shelf.borrow_mut().page_of(asking.page) {
            fields::set_cookies(&mut page.fields, &parts.headers, cache::is_secure(&asking.name));
        }
        let mut it = Unframed::new(Rc::clone(this), Some(asking.page), body);
        if let Some(digest) = packed_with {
            match unpacker(&asking, digest) {
                Ok(unpacker) => it.unpacker = Some(unpacker),
                Err(why) => it.failure = Some(why),
            }
        }
        let decoder = Decoder::of(&parts.headers);
        let decoder = decoder.filter(|_| delta::may_be_kept(parts.status, &parts.headers));
        it.copy = decoder.map(|decoder| PageCopy { asking, decoder, bytes: Vec::new() });
        let length = parts.headers.get(header::CONTENT_LENGTH).and_then(|l| l.to_str().ok());
        it.left = length.and_then(|length| length.parse().ok());
        it.begin().await;
        Response::from_parts(parts, Box::pin(it))
    }

    /// Serves the stream on which a hub pushes.
    pub async fn serve(this: Rc<Pushes>, peer: String, socket: OwnedFd) {
        let Ok(mut stream) = watched(socket) else { return };
        if exchange::take_kind(&mut stream).await.is_err() {
            return;
        }
        let _over = Over(Rc::clone(&this), peer.clone());
        let served = exchange::push_server().serve_connection(
            Socket::new(stream, Bytes::new()),
            service_fn(|request| Pushes::receive(this.clone(), peer.clone(), request)),
        );
        if let Err(why) = served.await {
            eprintln!("a stream of pushes from {peer} has ended: {why}");
        }
    }

    /// One pushed answer. It is answered when a host takes it, or it has come: from then on the
    /// hub knows that it is wanted.
    async fn receive(
        this: Rc<Pushes>,
        peer: String,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let refused = |status| {
            let mut answer = Response::new(body::nothing());
            *answer.status_mut() = status;
            Ok(answer)
        };
        let Some(mut pushed) = fields::from_push(&mut request) else {
            return refused(StatusCode::BAD_REQUEST);
        };
        pushed.to = this.shelf.borrow().server_of(pushed.page, pushed.to);
        let Some(status) = pushed.status else {
            this.withdraw(&peer, pushed.page, request.into_body()).await;
            return refused(StatusCode::NO_CONTENT);
        };
        if status == StatusCode::NOT_MODIFIED {
            let is_known = this.freshen(&peer, pushed, request.into_body()).await;
            return refused(if is_known { StatusCode::NO_CONTENT } else { StatusCode::GONE });
        }
        let Some(tray) = this.arrive(peer, status, pushed, request.into_body()) else {
            return refused(StatusCode::GONE);
        };
        match tray.settled().await {
            true => Ok(Response::new(Box::pin(tray.until_end()) as Body)),
            false => refused(StatusCode::NO_CONTENT),
        }
    }

    async fn withdraw(self: &Rc<Pushes>, peer: &str, page: u64, body: Incoming) {
        let mut body = Unframed::new(Rc::clone(self), None, body::passing(body));
        while poll_fn(|context| body.poll_more(context)).await.is_ok_and(|more| more) {}
        self.shelf.borrow_mut().withdraw(peer, page, body.names);
        self.changed.notify_waiters();
    }

    /// What the terminal has is the same still; false if it has it no more, and hosts are to ask.
    async fn freshen(self: &Rc<Pushes>, peer: &str, pushed: Pushed, body: Incoming) -> bool {
        let Pushed { page, to, uri, mut fields, .. } = pushed;
        headers::strip_hop(&mut fields);
        self.hear((peer, &uri, to), &mut fields);
        if fields::take_framed(&mut fields) {
            let mut body = Unframed::new(Rc::clone(self), Some(page), body::passing(body));
            Local::spawn(async move { while let Some(Ok(_)) = body.frame().await {} });
        }
        let name = name_of(&uri);
        let found = self.find_kept(peer, page, to, &uri, &fields).await;
        let is_known = found.is_some_and(|found| {
            self.holds(&found.stored);
            let mut shelf = self.shelf.borrow_mut();
            let here = (Here::Kept(found), headers::size(&fields));
            shelf.arrive((peer, page), name.clone(), to, here, self.now()).is_some()
        });
        if is_known {
            Counted::add(&self.counted.pushed);
        } else {
            self.shelf.borrow_mut().withdraw(peer, page, vec![name]);
        }
        self.changed.notify_waiters();
        is_known
    }

    /// What is kept of an object of the page, with these fields of a server that says it holds.
    async fn find_kept(
        &self,
        peer: &str,
        page: u64,
        to: SocketAddr,
        uri: &Uri,
        fields: &HeaderMap,
    ) -> Option<Found> {
        let mut request = Request::new(());
        let by = {
            let mut shelf = self.shelf.borrow_mut();
            let its = shelf.page_of(page)?;
            *request.headers_mut() = its.asked_with(&name_of(uri));
            Holder::Host(its.host())
        };
        let (key, now) = (cache::Key::new(peer, to, uri), self.store.now());
        let asked = cache::Asked::of(&request, &key, true, now)?;
        let found = self.store.find(&asked, &by).await?;
        // It may have been replaced meanwhile.
        let is_same = fields::is_same(fields, &found.stored.fields);
        is_same.then(|| self.store.holds(&asked, &found, fields))
    }

    fn arrive(
        self: &Rc<Pushes>,
        peer: String,
        status: StatusCode,
        pushed: Pushed,
        body: Incoming,
    ) -> Option<Rc<Tray>> {
        let Pushed { page, to, uri, mut fields, .. } = pushed;
        // Nobody will ask here for what is not opened.
        let opens = |it: &Rc<Inspection>| uri.host().is_some_and(|name| it.opens(name));
        if uri.scheme() != Some(&Scheme::HTTP) && !self.inspection.as_ref().is_some_and(opens) {
            return None;
        }
        headers::strip_hop(&mut fields);
        self.hear((&peer, &uri, to), &mut fields);
        let is_framed = fields::take_framed(&mut fields);
        let now = self.now();
        self.expire(now);
        let mut shelf = self.shelf.borrow_mut();
        let bytes = headers::size(&fields);
        let tray = Rc::new(Tray::new(status, fields, Rc::clone(&self.unread)));
        let here = (Here::Pushed(Rc::clone(&tray)), bytes);
        let key = shelf.arrive((&peer, page), name_of(&uri), to, here, now);
        let asked_with =
            key.as_ref().and_then(|key| Some(shelf.page_of(page)?.asked_with(&key.name)));
        drop(shelf);
        self.tell_displaced();
        let (key, asked_with) = (key?, asked_with?);
        self.changed.notify_waiters();
        Counted::add(&self.counted.pushed);
        let keep = self.keep((&peer, to, key.from), &uri, asked_with, &tray);
        let body = body::passing(body);
        let body: Body = match is_framed {
            true => Box::pin(Unframed::new(Rc::clone(self), Some(page), body)),
            false => body,
        };
        Local::spawn(Pushes::fill(self.clone(), (key, page), Rc::clone(&tray), body, keep));
        Some(tray)
    }

    /// Keeps it for those who ask later, if it is for everybody.
    fn keep(
        &self,
        (peer, to, host): (&str, SocketAddr, IpAddr),
        uri: &Uri,
        asked_with: HeaderMap,
        tray: &Tray,
    ) -> Option<Keep> {
        let mut request = Request::new(());
        *request.headers_mut() = asked_with;
        let (key, now) = (cache::Key::new(peer, to, uri), self.store.now());
        let asked = cache::Asked::of(&request, &key, true, now)?;
        let stored = cache::keep(&asked, tray.status, &tray.fields, now)?;
        self.holds(&stored);
        self.store.begin(&asked, stored, Holder::Host(host))
    }

    /// Fills a tray with what comes.
    async fn fill(
        this: Rc<Pushes>,
        (key, page): (Key, u64),
        tray: Rc<Tray>,
        mut body: Body,
        mut keep: Option<Keep>,
    ) {
        let mut came = 0;
        let whole = loop {
            let data = match body.frame().await {
                None => break true,
                Some(Err(_)) => break false,
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            // An end may come as a frame without bytes, when who has read all has gone already.
            if data.is_empty() {
                continue;
            }
            Counted::more(&this.counted.pushed_bytes, data.len());
            came += data.len();
            if let Some(keep) = &mut keep {
                keep.append(&data);
            }
            let has_room = this.shelf.borrow_mut().grow(&key, page, data.len(), this.now());
            this.tell_displaced();
            // What a host reads goes on, although its page gave way.
            let is_wanted = has_room || tray.is_taken();
            if !is_wanted || !tray.put(data).await {
                break false;
            }
        };
        tray.end(whole);
        match (whole, &mut keep) {
            (true, Some(keep)) => keep.finish(),
            (true, None) => {}
            // What no host has taken is asked for again.
            (false, _) => {
                if this.shelf.borrow_mut().take(&key, page).is_some() {
                    this.waste(&key.name, came);
                    this.changed.notify_waiters();
                }
            }
        }
    }
}

fn is_for_pushed(request: &Request<Incoming>) -> bool {
    fields::may_be_pushed(request) && request.body().is_end_stream()
}

/// The request, if it may be answered with what was pushed.
pub fn head_of(request: &Request<Incoming>) -> Option<Request<()>> {
    is_for_pushed(request).then(|| {
        let mut head = Request::new(());
        *head.uri_mut() = request.uri().clone();
        *head.headers_mut() = request.headers().clone();
        *head.extensions_mut() = request.extensions().clone();
        head
    })
}

/// When a stream of this peer's is no more, however it ends, no promise holds.
struct Over(Rc<Pushes>, String);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.shelf.borrow_mut().lose(&self.1);
        self.0.changed.notify_waiters();
    }
}

/// A body with promises, which are noted as soon as they come, and its bytes.
struct Unframed {
    body: Body,
    reader: Reader,
    parts: Vec<Part>,
    data: VecDeque<Bytes>,
    pushes: Rc<Pushes>,
    page: Option<u64>,
    /// Promises of no page.
    names: Vec<String>,
    ended: bool,
    /// Told to whoever reads on.
    failure: Option<Broken>,
    unpacker: Option<Unpacker>,
    /// Bytes of the page that are yet to come, where that is known: whoever reads it may stop
    /// there.
    left: Option<u64>,
    copy: Option<PageCopy>,
}

/// A page as it comes, to be remembered if it is not too long.
struct PageCopy {
    asking: Asking,
    decoder: Decoder,
    /// What was inside its bytes so far.
    bytes: Vec<u8>,
}

impl Unframed {
    fn new(pushes: Rc<Pushes>, page: Option<u64>, body: Body) -> Unframed {
        let (reader, parts, data, names) = Default::default();
        let (ended, failure, unpacker, left, copy) = Default::default();
        Unframed {
            body,
            reader,
            parts,
            data,
            pushes,
            page,
            names,
            ended,
            failure,
            unpacker,
            left,
            copy,
        }
    }

    /// Notes the promises that come before the body.
    async fn begin(&mut self) {
        if let Err(why) = poll_fn(|context| self.poll_more(context)).await {
            self.failure = Some(why);
        }
    }

    /// Reads on until something has come; false at the end.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Broken>> {
        if let Some(why) = self.failure.take() {
            return Poll::Ready(Err(why));
        }
        if self.ended {
            return Poll::Ready(Ok(false));
        }
        loop {
            match ready!(self.body.as_mut().poll_frame(context)) {
                Some(frame) => {
                    // Trailers have no place in such a body.
                    let data = frame?.into_data().unwrap_or_default();
                    self.reader.read(data, &mut self.parts)?;
                }
                None => {
                    self.reader.end()?;
                    self.ended = true;
                    return Poll::Ready(Ok(false));
                }
            }
            if !self.parts.is_empty() {
                self.take_parts();
                return Poll::Ready(Ok(true));
            }
        }
    }

    /// The next bytes of the page, of those that came.
    fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        let bytes = loop {
            let Some(unpacker) = &mut self.unpacker else { break self.data.pop_front() };
            if let Some(bytes) = unpacker.give()? {
                break Some(bytes);
            }
            match self.data.pop_front() {
                Some(packed) => unpacker.take(packed),
                None => break None,
            }
        };
        if let (Some(copy), Some(bytes)) = (&mut self.copy, &bytes) {
            let inside = copy.decoder.read(bytes);
            match copy.bytes.len() + inside.len() <= MAX_PAGE {
                true => copy.bytes.extend_from_slice(&inside),
                false => self.copy = None,
            }
        }
        if let (Some(left), Some(bytes)) = (&mut self.left, &bytes) {
            let rest = left.checked_sub(bytes.len() as u64);
            *left = rest.ok_or("a page is longer than it says")?;
            if *left == 0 {
                self.remember();
            }
        }
        Ok(bytes)
    }

    /// All of it is here.
    fn remember(&mut self) {
        if let Some(PageCopy { asking, decoder, bytes }) = self.copy.take()
            && decoder.is_whole()
        {
            let mut versions = self.pushes.versions.borrow_mut();
            versions.insert(&asking.owner, &asking.name, bytes.into());
        }
    }

    /// All of it has come.
    fn end(&mut self) -> Result<(), Broken> {
        if let Some(unpacker) = self.unpacker.take() {
            unpacker.end()?;
        }
        if self.left.is_some_and(|left| left > 0) {
            return Err("a page is shorter than it says".into());
        }
        self.remember();
        Ok(())
    }

    fn take_parts(&mut self) {
        if let Some(page) = self.page {
            self.pushes.shelf.borrow_mut().hear_of(page, self.pushes.now());
        }
        for part in std::mem::take(&mut self.parts) {
            match (part, self.page) {
                (Part::Data(bytes), _) => self.data.push_back(bytes),
                (Part::Promises(names), Some(page)) => {
                    let now = self.pushes.now();
                    self.pushes.shelf.borrow_mut().promise(page, names, now);
                    self.pushes.tell_displaced();
                }
                (Part::Promises(names), None) => self.names = names,
            }
        }
    }
}

impl HttpBody for Unframed {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            match self.next() {
                Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Ok(None) => {}
                Err(why) => return Poll::Ready(Some(Err(why))),
            }
            match ready!(self.poll_more(context)) {
                Ok(true) => {}
                Ok(false) => return Poll::Ready(self.end().err().map(Err)),
                Err(why) => return Poll::Ready(Some(Err(why))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0) && self.failure.is_none()
    }
}

/// Unpacks what is packed with the page that was named.
fn unpacker(asking: &Asking, digest: Digest) -> Result<Unpacker, Broken> {
    match &asking.base {
        Some((named, base)) if *named == digest => Ok(Unpacker::new(base)?),
        _ => Err("a page is packed with another that was not named".into()),
    }
}
