//! What the hub keeps for all terminals behind it: given, asked for, or validated at the server.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use bentpipe_web::cache::{
    self, Asked, Holder, Verdict, agrees, changes, condition, judge, keep, obsolete,
};
use bentpipe_web::headers;
use http::{Request, Response, StatusCode, Uri, header};
use service::Reason;
use service::message::Denied;

use super::lately::Lately;
use super::{Hub, Key, is_ahead};
use crate::body::{Body, nothing};
use crate::hosts::Hosts;
use crate::store::{Found, Store, kept};

/// Whoever could connect to the server is taken to be allowed to for so long.
const ALLOWED: Duration = Duration::from_secs(60);
/// Peers and servers that are remembered for that.
const MAX_ALLOWED: usize = 16_384;

type Answer = Result<Response<Body>, String>;

/// What is kept, and for whom.
pub struct Kept {
    pub store: Rc<Store>,
    pub hosts: Hosts,
    /// Of which servers peers may have answers.
    allowed: RefCell<Lately<SocketAddr, ()>>,
}

impl Kept {
    pub fn new(store: Rc<Store>) -> Kept {
        let allowed = Lately::new(MAX_ALLOWED, ALLOWED).into();
        Kept { store, hosts: Hosts::default(), allowed }
    }

    /// The gateway has connected this peer to this server.
    pub fn allow(&self, peer: &Rc<str>, to: SocketAddr) {
        self.allowed.borrow_mut().keep((peer.clone(), to), ());
    }

    /// The peer may not reach these servers any more.
    pub fn narrow(&self, peer: &str, denied: &Denied) {
        let stays = |of: &str, to: SocketAddr| of != peer || !denied.holds(to.ip());
        self.allowed.borrow_mut().retain(|(of, to), _| stays(of, *to));
    }

    fn allows(&self, peer: &Rc<str>, to: SocketAddr) -> bool {
        self.allowed.borrow().find(&(peer.clone(), to)).is_some()
    }
}

/// The key of an answer that is any peer's: the host was found to be the server's, so that of the
/// server its port alone matters.
fn shared(to: SocketAddr, uri: &Uri) -> cache::Key {
    cache::Key::new("", SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), to.port()), uri)
}

/// What is kept, as a terminal is given it: a 304 has what may be another by now (RFC 9111, section
/// 3.2), and what one to a host leaves out.
fn give(store: &Rc<Store>, asked: &Asked, found: &Found) -> Response<Body> {
    let mut answer = store.give(asked, found);
    if answer.status() == StatusCode::NOT_MODIFIED {
        for name in [header::CONTENT_TYPE, header::CONTENT_LANGUAGE] {
            if let Some(value) = found.stored.fields.get(&name) {
                answer.headers_mut().insert(name, value.clone());
            }
        }
    }
    answer
}

impl Hub {
    /// The answer of a server that is one of the host that was named.
    pub(super) async fn give_or_ask(
        self: &Rc<Hub>,
        kept: &Kept,
        key: &Key,
        uri: &Uri,
        request: Request<Body>,
    ) -> Answer {
        let shared = shared(key.1.to, uri);
        let empty = hyper::body::Body::is_end_stream(request.body());
        let Some(asked) = Asked::of(&request, &shared, empty, kept.store.now()) else {
            let changes = changes(request.method());
            let answer = self.ask_server(key, request).await?;
            if changes {
                let obsolete = obsolete(&shared, answer.status(), answer.headers());
                obsolete.iter().for_each(|key| kept.store.forget_target(key));
            }
            return Ok(answer);
        };
        let mut request = request.map(drop);
        kept.hosts.request(&shared);
        let found = kept.store.find(&asked, &Holder::Peer(key.0.clone())).await;
        let stored = found.as_ref().map(|found| &*found.stored);
        match (judge(&asked, stored, kept.store.now()), found) {
            (Verdict::Fresh, Some(found)) => {
                self.reach(kept, key, is_ahead(&request)).await?;
                kept.hosts.hit(&shared, &found.stored);
                Ok(give(&kept.store, &asked, &found))
            }
            (Verdict::Never, _) => {
                let mut answer = Response::new(nothing());
                *answer.status_mut() = StatusCode::GATEWAY_TIMEOUT;
                Ok(answer)
            }
            // The server is near: nobody is given what is stale because it is.
            (Verdict::Stale | Verdict::Validate(_), Some(found)) => {
                let conditions = found.stored.conditions().filter(|_| !asked.is_head());
                let conditions = conditions.filter(|it| agrees(request.headers(), it));
                let validating = conditions.is_some();
                if let Some(conditions) = conditions {
                    condition(request.headers_mut(), conditions);
                }
                self.ask_for(kept, key, asked, request, (Some(found), validating)).await
            }
            (_, found) => self.ask_for(kept, key, asked, request, (found, false)).await,
        }
    }

    /// Asks the server, with conditions if what was `found` is to be validated.
    async fn ask_for(
        self: &Rc<Hub>,
        kept_here: &Kept,
        key: &Key,
        asked: Asked,
        request: Request<()>,
        (found, validating): (Option<Found>, bool),
    ) -> Answer {
        let store = &kept_here.store;
        let stands_in = || {
            let found = found.as_ref();
            let found = found.filter(|f| f.stored.stands_in(&asked, store.now(), false))?;
            Some(store.give(&asked, found))
        };
        let answer = match self.ask_server(key, request.map(|()| nothing())).await {
            Ok(answer) => answer,
            // Who cannot prove himself is nobody's server, and what was kept does not stand in.
            Err(why) if why.starts_with(headers::CERTIFICATE) => return Err(why),
            // Nor is a peer given what it may not ask for.
            Err(why) if why == Reason::Denied.to_string() => return Err(why),
            Err(why) => return stands_in().ok_or(why),
        };
        let status = answer.status();
        if let (true, StatusCode::NOT_MODIFIED, Some(found)) = (validating, status, &found) {
            kept_here.hosts.validated(&asked.key, &found.stored);
            return Ok(give(store, &asked, &store.holds(&asked, found, answer.headers())));
        }
        if matches!(status.as_u16(), 500 | 502 | 503 | 504)
            && let Some(stale) = stands_in()
        {
            return Ok(stale);
        }
        let keep = keep(&asked, status, answer.headers(), store.now());
        let mut keep =
            keep.and_then(|stored| store.begin(&asked, stored, Holder::Peer(key.0.clone())));
        if let Some(Found { stored: old, .. }) = &found {
            let head = asked.is_head() && status == StatusCode::OK;
            let other = head && !old.agrees_with_head(answer.headers());
            let newer = asked.displaces(status) || other;
            match &mut keep {
                // A part, or that there is none, says nothing of the whole.
                Some(_) if matches!(status.as_u16(), 206 | 416) && !old.is_of_a_range() => {}
                Some(keep) => keep.replaces(old),
                None if newer => store.forget(old.digest(), old.number),
                None => {}
            }
        }
        Ok(answer.map(|body| match keep {
            Some(keep) => kept(body, keep),
            None => body,
        }))
    }

    /// Has the gateway say whether the peer may reach this server: what others asked for is not for
    /// those whom the file keeps from it.
    async fn reach(&self, kept: &Kept, key: &Key, is_ahead: bool) -> Result<(), String> {
        if !kept.allows(&key.0, key.1.to) {
            let sender = self.connect(key, is_ahead).await?;
            self.warm.keep((key.clone(), false), sender);
        }
        Ok(())
    }
}
