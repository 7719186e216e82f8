//! For the fuzzers: the fields that the exchange adds, and gzip, as a peer or a server that means
//! no good writes them.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};

use crate::encoded::Decoder;
use crate::push::fields::{self, MAX_HELD, MAX_LEFT};
use crate::{delta, headers, verified};

/// A message: its target, and lines of fields behind it. What HTTP could not carry is left out.
fn message(data: &[u8]) -> Request<()> {
    let mut lines = data.split(|byte| *byte == b'\n');
    let target = lines.next().unwrap_or_default();
    let mut request = Request::new(());
    *request.uri_mut() = Uri::try_from(target).unwrap_or_default();
    for line in lines.take(100) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default().trim_ascii();
        let name = HeaderName::from_bytes(&line[..colon]);
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            request.headers_mut().append(name, value);
        }
    }
    request
}

/// What the exchange's fields mean comes back as it went, within its bounds, and none of them
/// reaches a host or a server.
pub fn exchange(data: &[u8]) {
    let request = message(data);

    let mut asked = request.headers().clone();
    if let Some(ask) = fields::take_ask(&mut asked) {
        assert!(ask.held.len() <= MAX_HELD && ask.had.len() <= MAX_HELD);
        let mut again = HeaderMap::new();
        fields::set_ask(&mut again, &ask);
        assert_eq!(fields::take_ask(&mut again), Some(ask));
        assert!(again.is_empty());
    }
    let left = fields::take_left(&mut asked);
    assert!(left.len() <= MAX_LEFT);
    let mut again = HeaderMap::new();
    fields::set_left(&mut again, &left);
    assert_eq!(fields::take_left(&mut again), left);

    let mut answer = request.headers().clone();
    if let Some(digest) = delta::take_base(&mut answer) {
        delta::set_base(&mut answer, digest);
        assert_eq!(delta::take_base(&mut answer), Some(digest));
    }
    delta::take_delta(&mut answer);
    fields::take_framed(&mut answer);
    headers::take_failed(&mut answer);
    fields::clear(&mut answer);
    delta::clear(&mut answer);
    verified::clear(&mut answer);

    let mut carried = request.clone();
    if let Some(pushed) = fields::from_push(&mut carried) {
        let status = pushed.status.unwrap_or(StatusCode::OK);
        let mut answer = Response::new(());
        *answer.status_mut() = status;
        *answer.headers_mut() = pushed.fields;
        let again = fields::into_push(pushed.page, pushed.to, &pushed.uri, answer);
        let mut again = again.expect("an address is one");
        let again = fields::from_push(&mut again).expect("it is one still");
        assert_eq!((again.page, again.to, again.uri), (pushed.page, pushed.to, pushed.uri));
        assert_eq!(again.status, Some(status));
    }

    // As a hub reads them, in its order.
    let mut crossing = request;
    fields::take_left(crossing.headers_mut());
    if headers::for_server(&mut crossing).is_ok() {
        delta::take_base(crossing.headers_mut());
        fields::take_ask(crossing.headers_mut());
        let ours = ["to", "from", "cookie", "push", "page", "holds", "had", "left", "base"];
        let is_left = |name: &str| crossing.headers().contains_key(format!("bp-{name}"));
        assert!(!ours.into_iter().any(is_left), "{:?}", crossing.headers());
        assert!(crossing.uri().authority().is_none());
    }
}

/// What is in gzip does not depend on how its bytes arrive, and is bounded.
pub fn gzip(data: &[u8]) {
    let Some((&step, data)) = data.split_first() else { return };
    let mut fields = HeaderMap::new();
    fields.insert("content-encoding", HeaderValue::from_static("gzip"));
    let read = |step: usize| {
        let mut decoder = Decoder::of(&fields).expect("it is read");
        let mut out = Vec::new();
        for part in data.chunks(step) {
            out.extend_from_slice(&decoder.read(&bytes::Bytes::copy_from_slice(part)));
            assert!(out.len() <= delta::MAX_PAGE);
        }
        (out, decoder.is_whole())
    };
    let (whole, ended) = read(data.len().max(1));
    let (in_parts, ended_in_parts) = read(usize::from(step) + 1);
    if ended || ended_in_parts {
        assert!(ended && ended_in_parts && whole == in_parts);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_the_exchanges_fields_replays() {
        corpus::replay("web-fields", super::exchange);
    }

    #[test]
    fn the_corpus_of_gzip_replays() {
        corpus::replay("web-gzip", |data| {
            for step in [0, 1, 9, 63, 255] {
                super::gzip(&[&[step], &data[1..]].concat());
            }
        });
    }
}
