//! Requests that what is kept may answer: given, asked for, or validated over the link.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bentpipe_web::cache::{
    Asked, Holder, Key, Verdict, changes, condition, judge, judge_cut_off, keep, obsolete,
};
use bentpipe_web::first;
use bentpipe_web::headers::{self, Way};
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::Scheme;
use http::{Request, Response, StatusCode, Uri, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use service::message::Accepted;
use tokio::time::timeout;

use super::{Terminal, from};
use crate::body::{Body, keeping, nothing, passing, whole};
use crate::counted::Counted;
use crate::loads::Source;
use crate::local::{Local, unless};
use crate::store::{Found, kept};
use crate::terminal::Pushes;

/// Answers that are validated while hosts have been given them.
const MEANWHILE: usize = 64;
/// A server has so long for one of them: others wait for its place.
const MEANWHILE_TIME: Duration = Duration::from_secs(300);
/// How long a link that is down may take to come up before it is said that nobody can be asked.
const MOMENT: Duration = Duration::from_secs(2);
/// What the host is told then.
const CUT_OFF: &str = "The satellite link is down, and this may be shown only after its server was \
                       asked. Reload to have the server asked as soon as the link is up.\n";

type Answer = Result<Response<Body>, String>;

/// Why there is no answer of a server's.
struct NoAnswer {
    why: String,
    /// The link does not carry, or the peer's service does not answer.
    cut_off: bool,
}

impl Terminal {
    /// The answer to a request that is ready for the link. An error resets the host's connection.
    pub(super) async fn answer_or_ask(
        self: Rc<Terminal>,
        peer: Rc<str>,
        key: Key,
        request: Request<Incoming>,
    ) -> Answer {
        let empty = request.body().is_end_stream();
        let Some(mut asked) = Asked::of(&request, &key, empty, self.store.now()) else {
            return self.pass_on(&peer, &key, request.map(passing)).await;
        };
        // It has no body.
        let mut request = request.map(drop);
        let found = self.find(&mut asked, request.uri()).await;
        match (self.judge(&peer, &asked, found.as_ref()).await, found) {
            (Verdict::Fresh, Some(found)) => {
                self.hosts.hit(&asked.key, &found.stored);
                self.pushes.holds(&found.stored);
                Ok(from(Source::Memory, self.store.give(&asked, &found)))
            }
            (Verdict::Stale, Some(found)) => {
                Counted::add(&self.counted.stale);
                self.hosts.hit(&asked.key, &found.stored);
                let answer = self.store.give(&asked, &found);
                self.validate_meanwhile(peer, asked, request, found);
                Ok(from(Source::Memory, answer))
            }
            (Verdict::Validate(conditions), Some(found)) => {
                condition(request.headers_mut(), conditions);
                self.ask_for(&peer, asked, request, Some(found), true).await
            }
            (Verdict::StandIn, Some(found)) => {
                Counted::add(&self.counted.stale);
                self.hosts.hit(&asked.key, &found.stored);
                Ok(from(Source::Memory, self.store.give(&asked, &found)))
            }
            (Verdict::Never, _) => Ok(timed_out(nothing())),
            (Verdict::CutOff, _) => Ok(timed_out(whole(CUT_OFF.into()))),
            (_, found) => self.ask_for(&peer, asked, request, found, false).await,
        }
    }

    /// What is to be done with a request. The link may be down for a moment only, as after a start.
    async fn judge(&self, peer: &str, asked: &Asked, found: Option<&Found>) -> Verdict {
        let stored = found.map(|found| &*found.stored);
        if self.gateway.is_dark(peer) {
            match judge_cut_off(asked, stored, self.store.now()) {
                // The session goes on where the link does: what waits for it is not in vain.
                Verdict::CutOff if !self.gateway.is_down(peer) => {}
                Verdict::CutOff if self.gateway.comes_up(peer, MOMENT).await => {}
                verdict => return verdict,
            }
        }
        judge(asked, stored, self.store.now())
    }

    /// Is the request with which a connection begins answered without the link?
    pub(super) async fn answers_alone(&self, it: &Accepted, read: &[u8]) -> bool {
        let Some((mut request, has_body)) = first::request(read) else { return false };
        let way = Way { to: it.server, from: it.client.ip() };
        if headers::for_link(&mut request, way, Scheme::HTTP).is_err() {
            return true;
        }
        let key = Key::new(&it.peer, way.to, request.uri());
        let Some(mut asked) = Asked::of(&request, &key, !has_body, self.store.now()) else {
            return false;
        };
        let found = self.find(&mut asked, request.uri()).await;
        let stored = found.as_ref().map(|found| &*found.stored);
        let verdict = judge_cut_off(&asked, stored, self.store.now());
        !matches!(verdict, Verdict::Validate(_) | Verdict::Miss)
    }

    /// What is kept of it, or of the same at another address of the host.
    async fn find(&self, asked: &mut Asked, uri: &Uri) -> Option<Found> {
        let by = holder_of(&asked.fields);
        if let Some(found) = self.store.find(asked, &by).await {
            return Some(found);
        }
        let own = asked.key.clone();
        for key in self.pushes.beside(&own, uri) {
            asked.key = key;
            if let Some(found) = self.store.find(asked, &by).await {
                return Some(found);
            }
        }
        asked.key = own;
        None
    }

    /// Asks the server with a request whose answer is not kept.
    async fn pass_on(&self, peer: &str, key: &Key, request: Request<Body>) -> Answer {
        let changes = changes(request.method());
        let uri = request.uri().clone();
        let answer = self.ask_server(peer, request).await.map_err(|no| no.why)?;
        if changes {
            let beside = self.pushes.beside(key, &uri);
            for key in beside.iter().chain([key]) {
                let keys = obsolete(key, answer.status(), answer.headers());
                keys.iter().for_each(|key| self.store.forget_target(key));
            }
        }
        Ok(answer)
    }

    /// Asks the server, with conditions if what was `found` is to be validated. Where the link
    /// fails meanwhile, or no answer comes in time, what was found stands in if it may.
    async fn ask_for(
        &self,
        peer: &str,
        asked: Asked,
        request: Request<()>,
        found: Option<Found>,
        validating: bool,
    ) -> Answer {
        let now = || self.store.now();
        let stands_in = |cut_off| {
            let found = found.as_ref().filter(|f| f.stored.stands_in(&asked, now(), cut_off))?;
            Counted::add(&self.counted.stale);
            Some(self.store.give(&asked, found))
        };
        let holder = holder_of(request.headers());
        let asking = self.ask_server(peer, request.map(|()| nothing()));
        let may_stand_in = found.as_ref().is_some_and(|f| f.stored.stands_in(&asked, now(), true));
        let answered = match may_stand_in {
            true => unless(asking, self.gateway.is_late(peer)).await,
            false => Some(asking.await),
        };
        let late = || NoAnswer { why: "the link does not answer".to_owned(), cut_off: true };
        let answer = match answered.unwrap_or_else(|| Err(late())) {
            Ok(answer) => answer,
            // Who cannot prove himself is nobody's server, and what was kept does not stand in.
            Err(NoAnswer { why, .. }) if why.starts_with(headers::CERTIFICATE) => return Err(why),
            Err(NoAnswer { why, cut_off }) => return stands_in(cut_off).ok_or(why),
        };
        let status = answer.status();
        if let (true, StatusCode::NOT_MODIFIED, Some(found)) = (validating, status, &found) {
            return Ok(self.give_freshened(&asked, found, answer.headers()));
        }
        if matches!(status.as_u16(), 500 | 502 | 503 | 504)
            && let Some(stale) = stands_in(false)
        {
            return Ok(stale);
        }
        let mut keep = keep(&asked, status, answer.headers(), now()).and_then(|stored| {
            self.pushes.holds(&stored);
            self.store.begin(&asked, stored, holder)
        });
        if let Some(Found { stored: old, .. }) = &found {
            let head = asked.is_head() && status == StatusCode::OK;
            let other = head && !old.agrees_with_head(answer.headers());
            let newer = asked.displaces(status) || other;
            match &mut keep {
                // A part, or that there is none, says nothing of the whole.
                Some(_) if matches!(status.as_u16(), 206 | 416) && !old.is_of_a_range() => {}
                Some(keep) => keep.replaces(old),
                None if newer => self.store.forget(old.digest(), old.number),
                None => {}
            }
        }
        Ok(answer.map(|body| match keep {
            Some(keep) => kept(body, keep),
            None => body,
        }))
    }

    /// The server's answer without the fields of one hop.
    async fn ask_server(
        &self,
        peer: &str,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, NoAnswer> {
        let page = self.pushes.ask(peer, &mut request);
        headers::pack_cookie(request.headers_mut());
        let way = headers::way(request.headers());
        let way = way.ok_or(NoAnswer { why: "it leads nowhere".to_owned(), cut_off: false })?;
        let (uri, seat) = (request.uri().clone(), self.exchanges.seat(peer, way.from));
        let asking = self.servers.asked(peer, way.to);
        let answer = self.ask(peer, seat.lane(), request).await;
        let mut answer = answer.map_err(|why| NoAnswer { why, cut_off: true })?;
        self.pushes.hear((peer, &uri, way.to), answer.headers_mut());
        let mut answer = Pushes::open(&self.pushes, page, answer).await;
        let failed = headers::take_failed(answer.headers_mut());
        asking.answered(failed.is_none());
        if let Some(why) = failed {
            return Err(NoAnswer { why, cut_off: false });
        }
        headers::strip_hop(answer.headers_mut());
        *answer.version_mut() = Version::HTTP_11;
        Ok(answer.map(|body| keeping(body, seat)))
    }

    /// What was stale holds: the server has said so with these fields.
    fn give_freshened(&self, asked: &Asked, found: &Found, fields: &HeaderMap) -> Response<Body> {
        self.hosts.validated(&asked.key, &found.stored);
        self.store.give(asked, &self.store.holds(asked, found, fields))
    }

    fn validate_meanwhile(
        self: Rc<Terminal>,
        peer: Rc<str>,
        asked: Asked,
        mut request: Request<()>,
        found: Found,
    ) {
        let which = found.stored.number;
        let mut under_way = self.meanwhile.borrow_mut();
        if under_way.len() >= MEANWHILE || !under_way.insert(which) {
            return;
        }
        drop(under_way);
        // All of what is kept, whatever part of it its host wanted.
        request.headers_mut().remove(header::IF_RANGE);
        if !found.stored.is_of_a_range() {
            request.headers_mut().remove(header::RANGE);
        }
        let conditions = found.stored.conditions();
        let validating = conditions.is_some();
        condition(request.headers_mut(), conditions.unwrap_or_default());
        let (digest, begun) = (found.stored.digest(), Cell::new(false));
        Local::spawn(async move {
            let ask = async {
                // Where it fails the next request asks again.
                let answer = self.ask_for(&peer, asked, request, Some(found), validating).await;
                if let Ok(answer) = answer {
                    begun.set(true);
                    let mut body = answer.into_body();
                    while let Some(Ok(_)) = body.frame().await {}
                }
            };
            if timeout(MEANWHILE_TIME, ask).await.is_err() && begun.get() {
                // There is another, too long to be fetched beside hosts: the next host asks for it,
                // and not each of them in vain.
                self.store.forget(digest, which);
            }
            self.meanwhile.borrow_mut().remove(&which);
        });
    }
}

/// The host that asks.
fn holder_of(fields: &HeaderMap) -> Holder {
    headers::way(fields).map_or(Holder::Nobody, |way| Holder::Host(way.from))
}

/// No server could be asked.
fn timed_out(body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    let fields = answer.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
