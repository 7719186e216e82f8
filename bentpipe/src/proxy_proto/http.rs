//! HTTP: CONNECT (RFC 9110 section 9.3.6) in the framing of RFC 9112, and plain requests
//! ([`super::forward`]).
//!
//! ```text
//! CONNECT host:port HTTP/1.1 CRLF  *( field CRLF )  CRLF
//! ```
//!
//! The fields of CONNECT are looked at only as far as it takes to find their end, but for the
//! lengths of a body, which CONNECT must not have.

use super::forward::{self, Absolute, Forward};
use super::{Parsed, Refusal};
use crate::host::HostPort;

/// What a client asks for.
pub(super) enum Request {
    /// A tunnel.
    Tunnel(HostPort),
    /// A request to be passed on.
    Forward(Forward),
}

/// A request line, read.
enum FirstLine<'a> {
    Tunnel(HostPort),
    Forward { method: &'a str, absolute: Absolute<'a>, version: &'a str },
}

/// A whole request up to its empty line.
pub(super) fn request(buffer: &[u8]) -> Parsed<Request> {
    let blank = buffer.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
    let text = &buffer[blank..];
    // A wrong first line is answered without waiting for the rest.
    let Some(line) = text.iter().position(|b| *b == b'\n') else { return Parsed::Partial };
    let first = match first_line(trim_cr(&text[..line])) {
        Ok(first) => first,
        Err(answer) => return Parsed::Wrong(answer),
    };
    let Some(end) = end_of_fields(text) else { return Parsed::Partial };
    let request = match first {
        FirstLine::Tunnel(target) => check_fields(&text[..end]).map(|()| Request::Tunnel(target)),
        FirstLine::Forward { method, absolute, version } => {
            forward::forward(method, absolute, version, &text[line + 1..end]).map(Request::Forward)
        }
    };
    match request {
        Ok(request) => Parsed::Whole(request, blank + end),
        Err(answer) => Parsed::Wrong(answer),
    }
}

fn trim_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn first_line(line: &[u8]) -> Result<FirstLine<'_>, Vec<u8>> {
    let bad = |why: &str| Err(error("400 Bad Request", why));
    let Ok(line) = std::str::from_utf8(line) else {
        return bad("the request line is not text");
    };
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return bad("the request line is not \"GET http://host/path HTTP/1.1\" or the like");
    };
    if version != "HTTP/1.1" && version != "HTTP/1.0" {
        return Err(error("505 HTTP Version Not Supported", "only HTTP/1.1 and HTTP/1.0"));
    }
    if method != "CONNECT" {
        if !method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-') || method.is_empty() {
            return bad("the method is not a word");
        }
        if !target.bytes().all(|b| b.is_ascii_graphic()) {
            return bad("the target has characters that are not allowed in it");
        }
        let absolute = forward::absolute(method, target)?;
        return Ok(FirstLine::Forward { method, absolute, version });
    }
    match target.parse::<HostPort>() {
        Ok(target) => Ok(FirstLine::Tunnel(target)),
        Err(e) => bad(&format!("the target cannot be used: {e}")),
    }
}

/// One past the empty line that ends the fields; bare line feeds count as ends of
/// line (RFC 9112 section 2.2).
fn end_of_fields(text: &[u8]) -> Option<usize> {
    let mut start = 0;
    while let Some(length) = text[start..].iter().position(|b| *b == b'\n') {
        let line = trim_cr(&text[start..start + length]);
        start += length + 1;
        if line.is_empty() {
            return Some(start);
        }
    }
    None
}

/// A body would be read as the tunnel's first bytes by one side and not by the other.
fn check_fields(head: &[u8]) -> Result<(), Vec<u8>> {
    for line in head.split(|b| *b == b'\n').skip(1).map(trim_cr).filter(|l| !l.is_empty()) {
        let Some(colon) = line.iter().position(|b| *b == b':') else {
            return Err(error("400 Bad Request", "a header field has no colon"));
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let has_body = name.eq_ignore_ascii_case(b"transfer-encoding")
            || (name.eq_ignore_ascii_case(b"content-length") && value != b"0");
        if has_body {
            return Err(error("400 Bad Request", "CONNECT has no body"));
        }
    }
    Ok(())
}

/// The tunnel stands. A 2xx answer to CONNECT has neither length nor body.
pub(super) fn established() -> Vec<u8> {
    b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec()
}

pub(super) fn too_large() -> Vec<u8> {
    error("431 Request Header Fields Too Large", "the request is longer than 8 KiB")
}

/// The status that comes nearest.
pub(super) fn refusal(why: Refusal) -> Vec<u8> {
    match why {
        Refusal::Refused => error("502 Bad Gateway", "the server refused the connection"),
        Refusal::NetworkUnreachable => error("502 Bad Gateway", "the network is unreachable"),
        Refusal::HostUnreachable => error("502 Bad Gateway", "the server is unreachable"),
        Refusal::UnknownName => error("502 Bad Gateway", "there is no such name"),
        Refusal::TimedOut => error("504 Gateway Timeout", "the server did not answer in time"),
        Refusal::Forbidden => error("403 Forbidden", "the gateway's rules forbid this target"),
        Refusal::Overloaded => error("503 Service Unavailable", "the gateway is full"),
        Refusal::Failed => error("502 Bad Gateway", "the connection could not be made"),
    }
}

pub(super) fn error(status: &str, why: &str) -> Vec<u8> {
    let length = why.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{why}\n"
    )
    .into_bytes()
}
