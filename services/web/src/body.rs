//! Bodies on their way.

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bentpipe_web::cache::{Cache, MAX_BODY, Promise};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};

/// Why a body breaks off.
pub type Broken = Box<dyn Error + Send + Sync>;

/// A body on its way.
pub type Body = Pin<Box<dyn HttpBody<Data = Bytes, Error = Broken>>>;

/// What comes from a socket.
pub fn passing(body: Incoming) -> Body {
    Box::pin(body.map_err(Into::into))
}

/// No bytes.
pub fn nothing() -> Body {
    Box::pin(Empty::new().map_err(|never: Infallible| match never {}))
}

/// What is here already.
pub fn whole(bytes: Bytes) -> Body {
    Box::pin(Full::new(bytes).map_err(|never: Infallible| match never {}))
}

/// What comes from a socket, and is kept when it has come whole.
pub fn kept(body: Body, promise: Promise, cache: Rc<RefCell<Cache>>) -> Body {
    let mut keeping = Keeping { body, so_far: BytesMut::new(), promise: Some(promise), cache };
    keeping.keep_if_whole();
    Box::pin(keeping)
}

struct Keeping {
    body: Body,
    so_far: BytesMut,
    /// Until it is kept, or grows too long.
    promise: Option<Promise>,
    cache: Rc<RefCell<Cache>>,
}

impl Keeping {
    fn keep_if_whole(&mut self) {
        if self.body.is_end_stream() {
            self.keep();
        }
    }

    fn keep(&mut self) {
        if let Some(promise) = self.promise.take() {
            let body = std::mem::take(&mut self.so_far).freeze();
            self.cache.borrow_mut().insert(promise, body);
        }
    }

    fn note(&mut self, frame: &Frame<Bytes>) {
        match frame.data_ref() {
            Some(data) if self.so_far.len() + data.len() <= MAX_BODY => {
                self.so_far.extend_from_slice(data);
            }
            // Too long, or with trailers.
            _ => {
                self.promise = None;
                self.so_far = BytesMut::new();
            }
        }
    }
}

impl HttpBody for Keeping {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(why)) => {
                self.promise = None;
                return Poll::Ready(Some(Err(why)));
            }
            None => {
                self.keep();
                return Poll::Ready(None);
            }
        };
        if self.promise.is_some() {
            self.note(&frame);
            self.keep_if_whole();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
