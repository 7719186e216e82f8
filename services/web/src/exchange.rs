//! The exchange between two services: HTTP/2 over one of the gateways' streams (spec/web.md).

use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;

use crate::Local;

/// Opens a stream: what follows is version 1.
pub const PREFACE: &[u8] = b"web 1";

/// Bytes of one body under way: above what the fastest link holds in a round trip.
const BODY_WINDOW: u32 = 4 << 20;
/// Bytes of all bodies under way.
const WINDOW: u32 = 16 << 20;
/// Requests under way at once.
const REQUESTS: u32 = 3000;
/// Bytes of a request's or an answer's fields.
const FIELDS: u32 = 64 << 10;

/// Bytes of one answer that wait for the link; the rest waits at its server.
const WAITING: usize = 16 << 10;

/// The side that asks.
pub fn client() -> client::Builder<Local> {
    let mut builder = client::Builder::new(Local);
    builder
        .initial_stream_window_size(BODY_WINDOW)
        .initial_connection_window_size(WINDOW)
        .initial_max_send_streams(REQUESTS as usize)
        .max_header_list_size(FIELDS);
    builder
}

/// The side that answers.
pub fn server() -> server::Builder<Local> {
    let mut builder = server::Builder::new(Local);
    builder
        .initial_stream_window_size(BODY_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(REQUESTS)
        .max_send_buf_size(WAITING)
        .max_header_list_size(FIELDS)
        .auto_date_header(false);
    builder
}
