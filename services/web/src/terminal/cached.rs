//! Requests that what is kept may answer: given, asked for, or validated over the link.

use std::rc::Rc;

use bentpipe_web::cache::{Asked, Given, Key, Part, Verdict, changes, give, judge, keep, obsolete};
use bentpipe_web::headers;
use http::header::{self, HeaderMap};
use http::{Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

use super::Terminal;
use crate::body::{Body, nothing, passing, whole};
use crate::store::{FileBody, Found, FoundBody, kept};
use crate::terminal::Pushes;
use crate::{Counted, Local};

/// Answers that are validated while hosts have been given them.
const MEANWHILE: usize = 64;

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
        let Some(asked) = Asked::of(&request, &key, empty, self.store.now()) else {
            return self.pass_on(&peer, &key, request.map(passing)).await;
        };
        // It has no body.
        let mut request = request.map(drop);
        let found = self.store.find(&asked).await;
        let stored = found.as_ref().map(|found| &*found.stored);
        match (judge(&asked, stored, self.store.now()), found) {
            (Verdict::Fresh, Some(found)) => {
                self.hosts.hit(&asked.key, &found.stored);
                self.pushes.holds(&found.stored);
                Ok(self.give(&asked, &found))
            }
            (Verdict::Stale, Some(found)) => {
                Counted::add(&self.counted.stale);
                self.hosts.hit(&asked.key, &found.stored);
                let answer = self.give(&asked, &found);
                self.validate_meanwhile(peer, asked, request, found);
                Ok(answer)
            }
            (Verdict::Validate(conditions), Some(found)) => {
                condition(request.headers_mut(), conditions);
                self.ask_for(&peer, asked, request, Some(found), true).await
            }
            (Verdict::Never, _) => {
                let mut answer = Response::new(nothing());
                *answer.status_mut() = StatusCode::GATEWAY_TIMEOUT;
                Ok(answer)
            }
            (_, found) => self.ask_for(&peer, asked, request, found, false).await,
        }
    }

    /// Asks the server with a request whose answer is not kept.
    async fn pass_on(&self, peer: &str, key: &Key, request: Request<Body>) -> Answer {
        let changes = changes(request.method());
        let answer = self.ask_server(peer, request).await.map_err(|no| no.why)?;
        if changes {
            let keys = obsolete(key, answer.status(), answer.headers());
            keys.iter().for_each(|key| self.store.forget_target(key));
        }
        Ok(answer)
    }

    /// Asks the server, with conditions if what was `found` is to be validated.
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
            Some(self.give(&asked, found))
        };
        let answer = match self.ask_server(peer, request.map(|()| nothing())).await {
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
        let keep = keep(&asked, status, answer.headers(), now()).and_then(|stored| {
            self.pushes.holds(&stored);
            self.store.begin(&asked, stored)
        });
        if let Some(Found { stored: old, .. }) = &found {
            let head = asked.is_head() && status == StatusCode::OK;
            let other = head && !old.agrees_with_head(answer.headers());
            if keep.is_some() || validating && !status.is_server_error() || other {
                self.store.forget(old.key.digest(), old.number);
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
        let answer = self.ask(peer, request).await;
        let answer = answer.map_err(|why| NoAnswer { why, cut_off: true })?;
        let mut answer = Pushes::open(&self.pushes, page, answer).await;
        if let Some(why) = headers::take_failed(answer.headers_mut()) {
            return Err(NoAnswer { why, cut_off: false });
        }
        headers::strip_hop(answer.headers_mut());
        *answer.version_mut() = Version::HTTP_11;
        Ok(answer)
    }

    /// What was stale holds: the server has said so with these fields.
    fn give_freshened(&self, asked: &Asked, found: &Found, fields: &HeaderMap) -> Response<Body> {
        Counted::add(&self.counted.validated);
        self.hosts.validated(&asked.key, &found.stored);
        let (fresh, may_be_kept) = found.stored.freshened(asked, fields, self.store.now());
        if may_be_kept {
            return self.give(asked, &self.store.freshen(found, fresh));
        }
        self.store.forget(fresh.key.digest(), fresh.number);
        self.give(asked, &Found { stored: fresh.into(), body: found.body.clone() })
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
        // All of it, whatever part its host wanted.
        for name in [header::RANGE, header::IF_RANGE] {
            request.headers_mut().remove(name);
        }
        let conditions = found.stored.conditions();
        let validating = conditions.is_some();
        condition(request.headers_mut(), conditions.unwrap_or_default());
        Local::spawn(async move {
            // Where it fails the next request asks again.
            if let Ok(answer) = self.ask_for(&peer, asked, request, Some(found), validating).await {
                let mut body = answer.into_body();
                while let Some(Ok(_)) = body.frame().await {}
            }
            self.meanwhile.borrow_mut().remove(&which);
        });
    }

    fn give(&self, asked: &Asked, found: &Found) -> Response<Body> {
        let Given { status, fields, part } = give(asked, &found.stored, self.store.now());
        let length = found.stored.length;
        let bytes = match part {
            Part::Nothing => 0..0,
            Part::Whole => 0..length,
            Part::Bytes(bytes) => bytes,
        };
        Counted::add(&self.counted.hits);
        let sum = &self.counted.hit_bytes;
        sum.set(sum.get() + (bytes.end - bytes.start));
        let body = match &found.body {
            _ if bytes.is_empty() => nothing(),
            FoundBody::Memory(body) => whole(body.slice(bytes.start as usize..bytes.end as usize)),
            FoundBody::File { file, checks, place } => {
                let it = (file.clone(), checks.clone(), *place);
                Box::pin(FileBody::new(self.store.clone(), it, length, bytes))
            }
        };
        let mut answer = Response::new(body);
        (*answer.status_mut(), *answer.headers_mut()) = (status, fields);
        answer
    }
}

/// Asks whether what is kept holds, instead of whether what the host has does: that is answered here.
fn condition(fields: &mut HeaderMap, conditions: HeaderMap) {
    fields.remove(header::IF_NONE_MATCH);
    fields.remove(header::IF_MODIFIED_SINCE);
    fields.extend(conditions);
}
