//! Plain HTTP requests to a proxy (RFC 9112 section 3.2.2): `GET http://host/path`, as apt,
//! wget and browsers send them, and what becomes of them on the way to the server.
//!
//! ```text
//! GET http://shop.test:8080/x?y HTTP/1.1      GET /x?y HTTP/1.1
//! Host: shop.test:8080                        Host: shop.test:8080
//! Proxy-Connection: keep-alive           →
//! Proxy-Authorization: Basic …
//! Accept: */*                                 Accept: */*
//!                                             Connection: close
//! ```
//!
//! One connection carries one request: the server is asked to close it behind its answer,
//! and says so to the client, who makes another for the next request. Over the link that
//! costs no round trip. What the client sends behind its request meanwhile goes nowhere
//! ([`Rest`](super::Rest)), as it may be for another server.

use super::body::{Chunks, Rest};
use super::http::error;
use crate::host::HostPort;

/// Fields that are between the client and the proxy (RFC 9110 section 7.6.1), beside those
/// that `Connection` lists. `Transfer-Encoding` stays, as the body does.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];
/// Fields that frame or route the request: `Connection` cannot take them out.
const NEEDED: [&str; 3] = ["content-length", "host", "transfer-encoding"];

/// A request on its way to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forward {
    pub target: HostPort,
    /// What the server is sent before the body.
    pub head: Vec<u8>,
    /// The body.
    pub rest: Rest,
}

/// The target of a request line, apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Absolute<'a> {
    pub target: HostPort,
    authority: &'a str,
    /// Path and query.
    path: String,
}

/// Reads `http://host[:port][/path][?query]`.
pub(super) fn absolute<'a>(method: &str, text: &'a str) -> Result<Absolute<'a>, Vec<u8>> {
    let bad = |why: &str| Err(error("400 Bad Request", why));
    let rest = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
        Some(_) => return bad("only http:// is forwarded; for https:// use CONNECT"),
        None => return bad("this is a proxy: ask for http://host/path, or CONNECT host:port"),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if authority.contains('@') {
        return bad("a name before the host is not allowed (RFC 9110 section 4.2.4)");
    }
    let path = path.split('#').next().unwrap_or("");
    let path = match path.bytes().next() {
        Some(b'/') => path.to_owned(),
        Some(_) => format!("/{path}"),
        // RFC 9112 section 3.2.4.
        None if method == "OPTIONS" => "*".to_owned(),
        None => "/".to_owned(),
    };
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let read = match has_port {
        true => authority.strip_suffix(':').map_or_else(
            || authority.parse::<HostPort>(),
            |host| format!("{host}:80").parse::<HostPort>(),
        ),
        false => format!("{authority}:80").parse::<HostPort>(),
    };
    match read {
        Ok(target) => Ok(Absolute { target, authority, path }),
        Err(e) => bad(&format!("the target cannot be used: {e}")),
    }
}

/// The request for the server. `fields` are the lines behind the request line, without the
/// empty one.
pub(super) fn forward(
    method: &str,
    absolute: Absolute<'_>,
    version: &str,
    fields: &[u8],
) -> Result<Forward, Vec<u8>> {
    let fields = read_fields(fields)?;
    let rest = body(&fields, version)?;
    let listed: Vec<String> = fields
        .iter()
        .filter(|(name, _)| name.lower == "connection")
        .flat_map(|(_, value)| value.split(|b| *b == b','))
        .map(|word| String::from_utf8_lossy(word.trim_ascii()).to_ascii_lowercase())
        .collect();
    let goes = |name: &str| {
        let is_listed = listed.iter().any(|l| l == name) && !NEEDED.contains(&name);
        !HOP_BY_HOP.contains(&name) && !is_listed && name != "host"
    };
    let Absolute { target, authority, path } = absolute;
    // The target says which host, whatever the field says (RFC 9112 section 3.2.2).
    let mut head = format!("{method} {path} {version}\r\nHost: {authority}\r\n").into_bytes();
    for (name, value) in fields.iter().filter(|(name, _)| goes(&name.lower)) {
        head.extend_from_slice(name.original.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    Ok(Forward { target, head, rest })
}

/// A field's name, as written and in lower case.
struct Name<'a> {
    original: &'a str,
    lower: String,
}

/// Every field with its value. What two parsers could read in two ways is refused.
fn read_fields(fields: &[u8]) -> Result<Vec<(Name<'_>, &[u8])>, Vec<u8>> {
    let bad = |why: &str| error("400 Bad Request", why);
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let lines = fields.split(|b| *b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l));
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            if line.iter().any(|b| matches!(b, b'\r' | 0)) {
                return Err(bad("a header field has a control character"));
            }
            let colon = line.iter().position(|b| *b == b':');
            let (name, value) =
                line.split_at(colon.ok_or_else(|| bad("a header field has no colon"))?);
            let text = std::str::from_utf8(name).ok().filter(|n| !n.is_empty());
            match text.filter(|n| n.bytes().all(is_token)) {
                Some(original) => {
                    let name = Name { original, lower: original.to_ascii_lowercase() };
                    Ok((name, value[1..].trim_ascii()))
                }
                // A folded line begins with a space, too.
                None => Err(bad("a header field has no proper name")),
            }
        })
        .collect()
}

/// Where the body ends (RFC 9112 section 6.3).
fn body(fields: &[(Name<'_>, &[u8])], version: &str) -> Result<Rest, Vec<u8>> {
    let bad = |why: &str| Err(error("400 Bad Request", why));
    let values = |wanted: &str| {
        let same = fields.iter().filter(move |(name, _)| name.lower == wanted);
        same.map(|(_, value)| *value).collect::<Vec<&[u8]>>()
    };
    let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Ok(Rest::Length(0)),
        ([first, more @ ..], []) => {
            let text = std::str::from_utf8(first).unwrap_or("");
            let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            match text.parse::<u64>() {
                Ok(length) if is_number && more.iter().all(|m| m == first) => {
                    Ok(Rest::Length(length))
                }
                _ => bad("Content-Length is not a number"),
            }
        }
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") && version == "HTTP/1.1" => {
            Ok(Rest::Chunks(Chunks::default()))
        }
        _ => bad("it is not clear where the body ends"),
    }
}
