//! Which fields of requests and answers cross the link.

use std::net::{IpAddr, SocketAddr};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, StatusCode, Uri, Version};
use hyper::body::Body;

/// In a request: the server's address that the host connected to.
pub(crate) const TO: HeaderName = HeaderName::from_static("bp-to");
/// In a request: the host.
const FROM: HeaderName = HeaderName::from_static("bp-from");
/// In a request: its `Cookie`. HTTP/2 sends cookies in full each time, lest somebody guess one by
/// the length of what he sends himself; what is long is not guessed (RFC 7541, section 7.1).
const LONG_COOKIE: HeaderName = HeaderName::from_static("bp-cookie");
/// Why there is no answer begins so where the server's certificate is not valid.
pub const CERTIFICATE: &str = "certificate: ";
/// And so where the server wants one of the user's.
pub const PAPERS: &str = "client-certificate: ";
/// Longer ones would fill the table of what was sent before.
const LONG: std::ops::Range<usize> = 16..1024;
/// In an answer: it is not the server's. The value says why there is none.
const FAILED: HeaderName = HeaderName::from_static("bp-failed");

/// Fields that concern one connection (RFC 9110, section 7.6.1) and not the next.
const OF_ONE_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Where a request goes and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// The server's address that the host connected to.
    pub to: SocketAddr,
    /// The host.
    pub from: IpAddr,
}

/// Why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its length is told twice (RFC 9112, section 6.3), which two readers may read differently.
    #[error("its length is told twice")]
    TwoLengths,
    /// No host, several, or none that a URI could have.
    #[error("it does not name one host")]
    Host,
    /// Its target is not a path.
    #[error("its target is not a path")]
    Target,
    /// Its method is CONNECT or the like.
    #[error("its method is not forwarded")]
    Method,
}

impl Refused {
    /// What the host is answered.
    pub fn status(self) -> StatusCode {
        match self {
            Refused::Method => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// What the names of fields that prove who asks have in them (docs/compression.md).
const PROOFS: [&str; 7] = ["cookie", "auth", "token", "session", "api-key", "apikey", "credential"];

/// Does a request with these fields say who asks? Its answer may hold secrets of the asker's then.
pub fn proves_who_asks(fields: &HeaderMap) -> bool {
    proofs(fields).next().is_some()
}

/// The names of the fields that say so.
pub fn proofs(fields: &HeaderMap) -> impl Iterator<Item = &HeaderName> {
    fields.keys().filter(|name| PROOFS.iter().any(|proof| name.as_str().contains(proof)))
}

/// Is a login of this scheme one of the connection's? What else is asked for on it its server takes
/// for the same user's.
pub fn is_of_a_connection(value: &[u8]) -> bool {
    let ends = value.iter().position(|b| *b == b' ').unwrap_or(value.len());
    [&b"NTLM"[..], b"Negotiate"].iter().any(|scheme| value[..ends].eq_ignore_ascii_case(scheme))
}

/// Does a message with these fields ask for such a login, or is it part of one?
pub fn logs_connection_in(fields: &HeaderMap) -> bool {
    let asks = fields.get_all(header::WWW_AUTHENTICATE).iter();
    // A comma in a text only makes them too many.
    let asks = asks.flat_map(|value| value.as_bytes().split(|b| *b == b','));
    let shows = fields.get_all(header::AUTHORIZATION).iter().map(HeaderValue::as_bytes);
    asks.chain(shows).map(<[u8]>::trim_ascii).any(is_of_a_connection)
}

/// What fields take of memory, about.
pub fn size(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// What a request's target and fields take of memory, about.
pub fn size_of_head<B>(request: &Request<B>) -> usize {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    target + size(request.headers())
}

/// Removes the fields of one connection, those among them that `Connection` names.
pub fn strip_hop(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_ONE_HOP) {
        fields.remove(name);
    }
}

/// Says that a body of unknown length follows, in a request to a server: hyper says so of its own
/// accord where a method usually has one, and leaves out any other's (RFC 9112, section 6.3).
pub fn frame_body<B: Body>(request: &mut Request<B>) {
    let is_told = request.headers().contains_key(header::CONTENT_LENGTH);
    if !is_told && !request.body().is_end_stream() {
        let chunked = HeaderValue::from_static("chunked");
        request.headers_mut().insert(header::TRANSFER_ENCODING, chunked);
    }
}

/// Removes a length that an answer in chunks has, too: the chunks hold (RFC 9112, section 6.3).
pub fn unframe_body(fields: &mut HeaderMap) {
    if fields.contains_key(header::TRANSFER_ENCODING) {
        fields.remove(header::CONTENT_LENGTH);
    }
}

/// Must nothing be read behind this request? hyper takes chunks where a length is told too, and
/// does not say so; what follows could then be read as part of the body by others (RFC 9112,
/// section 6.1).
pub fn ends_connection(fields: &HeaderMap) -> bool {
    fields.contains_key(header::TRANSFER_ENCODING)
}

/// Makes a host's request one that can cross the link.
///
/// # Errors
/// If it is ambiguous.
pub fn for_link<B>(request: &mut Request<B>, way: Way, scheme: Scheme) -> Result<(), Refused> {
    if request.version() == Version::HTTP_2 {
        from_http2(request)?;
    }
    if request.method() == Method::CONNECT || request.method() == Method::TRACE {
        return Err(Refused::Method);
    }
    let lengths = request.headers().get_all(header::CONTENT_LENGTH).iter().count();
    if lengths + usize::from(request.headers().contains_key(header::TRANSFER_ENCODING)) > 1 {
        return Err(Refused::TwoLengths);
    }
    let authority = authority(request, way)?;
    let target = match request.uri().path_and_query() {
        Some(target) if request.uri().authority().is_none() && target.as_str() != "*" => target,
        _ => return Err(Refused::Target),
    };
    *request.uri_mut() = uri(scheme, authority, target.clone())?;
    let fields = request.headers_mut();
    strip_hop(fields);
    // Answered on the LAN: over the link the body follows at once.
    fields.remove(header::EXPECT);
    fields.remove(header::HOST);
    fields.remove(LONG_COOKIE);
    fields.insert(TO, value(&way.to.to_string())?);
    fields.insert(FROM, value(&way.from.to_string())?);
    *request.version_mut() = Version::HTTP_2;
    Ok(())
}

/// The last thing that is done to a request before it crosses: whoever looks at cookies has done
/// so.
pub fn pack_cookie(fields: &mut HeaderMap) {
    let mut cookies = fields.get_all(header::COOKIE).iter();
    let only = cookies.next().filter(|_| cookies.next().is_none());
    if let Some(cookie) = only.filter(|c| LONG.contains(&c.len())).cloned() {
        fields.remove(header::COOKIE);
        fields.insert(LONG_COOKIE, cookie);
    }
}

/// Whom the host meant: a request of HTTP/1.0 need not say.
fn authority<B>(request: &Request<B>, way: Way) -> Result<Authority, Refused> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            let host = host.to_str().ok().filter(|h| !h.contains('@')).ok_or(Refused::Host)?;
            host.parse().map_err(|_| Refused::Host)
        }
        (None, None) if request.version() == Version::HTTP_10 => {
            way.to.to_string().parse().map_err(|_| Refused::Host)
        }
        _ => Err(Refused::Host),
    }
}

/// Writes a request of HTTP/2 as one of HTTP/1.1 (RFC 9113, section 8.3.1), with its cookies in one
/// field (section 8.2.3).
fn from_http2<B>(request: &mut Request<B>) -> Result<(), Refused> {
    let parts = request.uri().clone().into_parts();
    if let Some(authority) = parts.authority {
        let host = value(authority.as_str())?;
        let mut others = request.headers().get_all(header::HOST).iter();
        if others.any(|other| !other.as_bytes().eq_ignore_ascii_case(host.as_bytes())) {
            return Err(Refused::Host);
        }
        request.headers_mut().insert(header::HOST, host);
    }
    *request.uri_mut() = parts.path_and_query.ok_or(Refused::Target)?.into();
    let fields = request.headers_mut();
    let cookies: Vec<&[u8]> =
        fields.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1 {
        let joined = HeaderValue::from_bytes(&cookies.join(&b"; "[..]));
        fields.insert(header::COOKIE, joined.map_err(|_| Refused::Target)?);
    }
    Ok(())
}

fn uri(scheme: Scheme, authority: Authority, target: PathAndQuery) -> Result<Uri, Refused> {
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(target);
    uri.build().map_err(|_| Refused::Target)
}

fn value(text: &str) -> Result<HeaderValue, Refused> {
    HeaderValue::from_str(text).map_err(|_| Refused::Host)
}

/// Where a request that is ready for the link goes.
pub fn way(fields: &HeaderMap) -> Option<Way> {
    let text = |name| fields.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
    Some(Way { to: text(TO)?.parse().ok()?, from: text(FROM)?.parse().ok()? })
}

/// Makes a request from the link one for the server, and says where that is.
///
/// # Errors
/// If the peer's service sent no such request.
pub fn for_server<B>(request: &mut Request<B>) -> Result<Way, Refused> {
    let host = request.uri().authority().map(ToString::to_string).ok_or(Refused::Host)?;
    let target = request.uri().path_and_query().cloned().ok_or(Refused::Target)?;
    let fields = request.headers_mut();
    let mut text = |name| fields.remove(name).and_then(|v| v.to_str().map(str::to_owned).ok());
    let (to, from) = (text(TO), text(FROM));
    let to = to.and_then(|t| t.parse().ok()).ok_or(Refused::Host)?;
    let from = from.and_then(|t| t.parse().ok()).ok_or(Refused::Host)?;
    strip_hop(fields);
    // A terminal that answered it did not let it cross (W-RQ-1).
    fields.remove(header::EXPECT);
    if let Some(cookie) = fields.remove(LONG_COOKIE) {
        fields.insert(header::COOKIE, cookie);
    }
    fields.insert(header::HOST, value(&host)?);
    *request.uri_mut() = target.into();
    *request.version_mut() = Version::HTTP_11;
    Ok(Way { to, from })
}

/// Notes in an answer that it is not the server's.
pub fn set_failed(fields: &mut HeaderMap, why: &str) {
    let why = HeaderValue::from_str(why).unwrap_or(HeaderValue::from_static("unknown"));
    fields.insert(FAILED, why);
}

/// Why there is no answer of the server's, if there is none.
pub fn take_failed(fields: &mut HeaderMap) -> Option<String> {
    let why = fields.remove(FAILED)?;
    Some(String::from_utf8_lossy(why.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Way = Way {
        to: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 2)), 80),
        from: IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2)),
    };

    fn request(target: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut builder = Request::builder().uri(target);
        for (name, value) in fields {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap()
    }

    #[test]
    fn a_request_reaches_the_server_as_the_host_sent_it_without_what_was_for_us() {
        let mut it = request(
            "/a?b=c",
            &[
                ("host", "example.org:8080"),
                ("connection", "close, x-mine"),
                ("x-mine", "1"),
                ("keep-alive", "3"),
                ("expect", "100-continue"),
                ("bp-to", "127.0.0.1:22"),
                ("cookie", "a=b"),
            ],
        );
        for_link(&mut it, WAY, Scheme::HTTP).unwrap();
        assert_eq!(it.uri(), "http://example.org:8080/a?b=c");
        assert_eq!(for_server(&mut it), Ok(WAY), "and not where the host's field points");
        assert_eq!(it.uri(), "/a?b=c");
        let fields: Vec<_> = it.headers().iter().map(|(n, v)| (n.as_str(), v.as_bytes())).collect();
        assert_eq!(fields.len(), 2, "{fields:?}");
        assert_eq!(it.headers()["host"], "example.org:8080");
        assert_eq!(it.headers()["cookie"], "a=b");
    }

    #[test]
    fn cookies_arrive_as_they_were_and_only_those_that_nobody_guesses_are_remembered() {
        for (cookie, packed) in [("a=b", false), ("session=0123456789abcdef", true)] {
            let mine = [("host", "a"), ("cookie", cookie), ("bp-cookie", "somebody else's")];
            let mut it = request("/", &mine);
            for_link(&mut it, WAY, Scheme::HTTP).unwrap();
            pack_cookie(it.headers_mut());
            assert_eq!(it.headers().contains_key(LONG_COOKIE), packed);
            for_server(&mut it).unwrap();
            assert_eq!(it.headers()["cookie"], cookie);
            assert!(!it.headers().contains_key(LONG_COOKIE));
        }
        let mut two = request("/", &[("cookie", "session=0123456789abcdef"), ("cookie", "b=c")]);
        pack_cookie(two.headers_mut());
        assert_eq!(two.headers().get_all("cookie").iter().count(), 2);
    }

    #[test]
    fn a_body_whose_length_nobody_knows_is_told_of_and_no_length_is_told_beside_chunks() {
        let body = || http_body_util::Full::new(bytes::Bytes::from_static(b"{}"));
        let mut it = Request::get("/").body(body()).unwrap();
        frame_body(&mut it);
        assert_eq!(it.headers()["transfer-encoding"], "chunked");
        let mut it = Request::get("/").header("content-length", "2").body(body()).unwrap();
        frame_body(&mut it);
        assert!(!it.headers().contains_key("transfer-encoding"));
        let empty = http_body_util::Empty::<bytes::Bytes>::new();
        let mut it = Request::get("/").body(empty).unwrap();
        frame_body(&mut it);
        assert!(it.headers().is_empty());
        let mut fields = request("/", &[("content-length", "1")]).headers().clone();
        unframe_body(&mut fields);
        assert_eq!(fields["content-length"], "1");
        fields.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        unframe_body(&mut fields);
        assert!(!fields.contains_key("content-length"));
    }

    #[test]
    fn logins_of_connections_are_told_from_those_of_requests() {
        for (name, value, is_one) in [
            ("www-authenticate", "NTLM", true),
            ("www-authenticate", "negotiate", true),
            ("www-authenticate", "NTLM TlRMTVNTUAAC=", true),
            ("www-authenticate", "Basic realm=\"a\", Negotiate", true),
            ("www-authenticate", "Basic realm=\"NTLM\"", false),
            ("www-authenticate", "NTLMv9", false),
            ("authorization", "Negotiate YII=", true),
            ("authorization", "Basic TlRMTQ==", false),
            ("proxy-authenticate", "NTLM", false),
        ] {
            let it = request("/", &[("host", "a"), (name, value)]);
            assert_eq!(logs_connection_in(it.headers()), is_one, "{name}: {value}");
        }
        let two = [("www-authenticate", "Basic realm=a"), ("www-authenticate", "Negotiate")];
        assert!(logs_connection_in(request("/", &two).headers()));
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for (target, fields, why) in [
            (
                "/",
                &[("host", "a"), ("content-length", "3"), ("transfer-encoding", "chunked")][..],
                Refused::TwoLengths,
            ),
            (
                "/",
                &[("host", "a"), ("content-length", "3"), ("content-length", "3")],
                Refused::TwoLengths,
            ),
            ("/", &[("host", "a"), ("host", "b")], Refused::Host),
            ("/", &[], Refused::Host),
            ("/", &[("host", "a b")], Refused::Host),
            ("/", &[("host", "u@a")], Refused::Host),
            ("http://b/", &[("host", "a")], Refused::Target),
            ("*", &[("host", "a")], Refused::Target),
        ] {
            assert_eq!(
                for_link(&mut request(target, fields), WAY, Scheme::HTTP),
                Err(why),
                "{target} {fields:?}"
            );
        }
        let mut connect = request("/", &[("host", "a")]);
        *connect.method_mut() = Method::CONNECT;
        assert_eq!(for_link(&mut connect, WAY, Scheme::HTTP), Err(Refused::Method));
    }

    #[test]
    fn a_request_of_http_2_crosses_as_one_of_http_1() {
        let cookies =
            [("cookie", "a=b"), ("cookie", "session=0123456789abcdef"), ("host", "A.test")];
        let mut it = request("https://a.test/x?y", &cookies);
        *it.version_mut() = Version::HTTP_2;
        for_link(&mut it, WAY, Scheme::HTTPS).unwrap();
        assert_eq!(it.uri(), "https://a.test/x?y");
        pack_cookie(it.headers_mut());
        for_server(&mut it).unwrap();
        assert_eq!(it.headers().get_all("cookie").iter().count(), 1);
        assert_eq!(it.headers()["cookie"], "a=b; session=0123456789abcdef");
        assert_eq!(it.headers()["host"], "a.test");
        let mut other = request("https://a.test/", &[("host", "b.test")]);
        *other.version_mut() = Version::HTTP_2;
        assert_eq!(for_link(&mut other, WAY, Scheme::HTTPS), Err(Refused::Host));
    }

    #[test]
    fn an_old_client_that_names_no_host_means_the_address_it_connected_to() {
        let mut it = request("/", &[]);
        *it.version_mut() = Version::HTTP_10;
        for_link(&mut it, WAY, Scheme::HTTP).unwrap();
        assert_eq!(it.uri(), "http://10.2.0.2:80/");
    }
}
