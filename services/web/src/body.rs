//! Bodies on their way.

use std::convert::Infallible;
use std::error::Error;
use std::pin::Pin;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Body as HttpBody, Incoming};

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
