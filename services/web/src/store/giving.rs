//! What is kept, as hosts and terminals are given it.

use std::rc::Rc;

use bentpipe_web::cache::{Asked, Given, Part, give};
use http::{HeaderMap, Response};

use super::{FileBody, Found, FoundBody, Store};
use crate::body::{Body, nothing, whole};
use crate::counted::Counted;

impl Store {
    /// The answer that was found, by the conditions and the range of who asks.
    pub fn give(self: &Rc<Store>, asked: &Asked, found: &Found) -> Response<Body> {
        let Given { status, fields, part } = give(asked, &found.stored, self.now());
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
                Box::pin(FileBody::new(Rc::clone(self), it, length, bytes))
            }
        };
        let mut answer = Response::new(body);
        (*answer.status_mut(), *answer.headers_mut()) = (status, fields);
        answer
    }

    /// What was stale holds: the server has said so with these fields.
    pub fn holds(&self, asked: &Asked, found: &Found, fields: &HeaderMap) -> Found {
        Counted::add(&self.counted.validated);
        let (fresh, may_be_kept) = found.stored.freshened(asked, fields, self.now());
        if may_be_kept {
            return self.freshen(found, fresh);
        }
        self.forget(fresh.digest(), fresh.number);
        Found { stored: fresh.into(), body: found.body.clone() }
    }
}
