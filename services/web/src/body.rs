//! Bodies on their way.

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// Why a body breaks off.
pub type Broken = Box<dyn Error + Send + Sync>;

/// A body on its way.
pub type Body = Pin<Box<dyn HttpBody<Data = Bytes, Error = Broken>>>;

/// What comes from a socket.
pub fn passing<B>(body: B) -> Body
where
    B: HttpBody<Data = Bytes> + 'static,
    B::Error: Into<Broken>,
{
    Box::pin(body.map_err(Into::into))
}

/// A body that keeps something until it is over.
pub fn keeping(body: Body, kept: impl Unpin + 'static) -> Body {
    Box::pin(Keeping { body, _kept: kept })
}

struct Keeping<T> {
    body: Body,
    _kept: T,
}

impl<T: Unpin> HttpBody for Keeping<T> {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.body.as_mut().poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// No bytes.
pub fn nothing() -> Body {
    Box::pin(Empty::new().map_err(|never: Infallible| match never {}))
}

/// What is here already.
pub fn whole(bytes: Bytes) -> Body {
    Box::pin(Full::new(bytes).map_err(|never: Infallible| match never {}))
}
