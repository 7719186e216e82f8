//! What a host sends first on a connection: is it HTTP, and ours?

use http::uri::Authority;
use http::{Request, Version, header};

use crate::headers::{is_of_a_connection, logs_connection_in};

/// Bytes of a first request that are looked at. Longer ones are not ours.
pub const MAX_HEAD: usize = 16 << 10;

const MAX_FIELDS: usize = 100;

/// The methods that are understood: those of HTTP, of WebDAV, and others that are registered and
/// may change what is kept. Other words may mean another protocol.
const METHODS: [&str; 21] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "SEARCH",
    "M-SEARCH",
    "LINK",
    "UNLINK",
    "QUERY",
    "PURGE",
];

/// What is to be done with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too little to know: read on.
    More,
    /// HTTP that is answered here.
    Http,
    /// Not ours: the gateway carries it as a plain stream.
    Pass,
}

/// Judges the bytes that came so far. Says `Pass` as early as it can, because a host whose
/// protocol is another one may wait for an answer.
pub fn judge(bytes: &[u8]) -> Verdict {
    let method = bytes.iter().position(|b| *b == b' ').unwrap_or(bytes.len());
    let (begun, ended) = (&bytes[..method], method < bytes.len());
    let known = METHODS.iter().any(|m| match ended {
        true => m.as_bytes() == begun,
        false => m.as_bytes().starts_with(begun),
    });
    if !known {
        return Verdict::Pass;
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => Verdict::More,
        Ok(httparse::Status::Complete(_)) if is_ours(&request) => Verdict::Http,
        _ => Verdict::Pass,
    }
}

/// The request that these bytes begin with, if it is one that is answered here; whether a body
/// follows it.
pub fn request(bytes: &[u8]) -> Option<(Request<()>, bool)> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut read = httparse::Request::new(&mut fields);
    read.parse(bytes).ok().filter(httparse::Status::is_complete)?;
    let mut request = Request::builder().method(read.method?).uri(read.path?);
    for field in read.headers.iter() {
        request = request.header(field.name, field.value);
    }
    let request = request.body(()).ok()?;
    let names = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
    let has_body = names.iter().any(|name| request.headers().contains_key(name));
    Some((request, has_body))
}

/// Is the request that these bytes begin with for the host of this name?
pub fn is_for(bytes: &[u8], name: &str) -> bool {
    request(bytes).is_some_and(|(request, _)| is_for_host(&request, name))
}

/// Is this request for the host of this name, whatever the port?
pub fn is_for_host<B>(request: &Request<B>, name: &str) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    host.is_some_and(|host| host.host().eq_ignore_ascii_case(name))
}

/// Absolute targets are for a proxy that the host talks to, what upgrades is HTTP no longer, and
/// who logs a connection in needs one of his own.
fn is_ours(request: &httparse::Request) -> bool {
    let leaves = |f: &httparse::Header| {
        f.name.eq_ignore_ascii_case("upgrade")
            || f.name.eq_ignore_ascii_case("authorization") && is_of_a_connection(f.value)
    };
    request.path.is_some_and(|target| target.starts_with('/'))
        && !request.headers.iter().any(leaves)
}

/// The head of a request that leaves HTTP behind, or logs its connection in: somebody else reads on
/// from here.
pub fn upgrade<B>(request: &Request<B>) -> Option<Vec<u8>> {
    let fields = request.headers();
    let is_plain = request.uri().authority().is_none() && request.version() == Version::HTTP_11;
    if !is_plain || !fields.contains_key(header::UPGRADE) && !logs_connection_in(fields) {
        return None;
    }
    let target = request.uri().path_and_query()?;
    let mut head = format!("{} {target} HTTP/1.1\r\n", request.method()).into_bytes();
    for (name, value) in fields {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head.extend_from_slice(b"\r\n");
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::*;

    #[test]
    fn http_is_known_by_its_head_and_the_rest_by_its_first_bytes() {
        for (bytes, verdict) in [
            (&b""[..], More),
            (b"G", More),
            (b"GET /", More),
            (b"GET / HTTP/1.1\r\nHost: a\r\n", More),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Http),
            (b"GET / HTTP/1.0\r\n\r\n", Http),
            (b"POST /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", Http),
            (b"PRO", More),
            (b"M-SEARCH /a HTTP/1.1\r\nHost: a\r\n\r\n", Http),
            (b"GETX", Pass),
            (b"SSH-2.0-x\r\n", Pass),
            (b"\x16\x03\x01", Pass),
            (b"CONNECT a:443 HTTP/1.1\r\n\r\n", Pass),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Pass),
            (b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Pass),
            (b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n", Pass),
            (b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: NTLM TlR=\r\n\r\n", Pass),
            (b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic TlR=\r\n\r\n", Http),
            (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", Pass),
            (b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", Pass),
            (b"GET / FTP/1.1\r\n", Pass),
        ] {
            assert_eq!(judge(bytes), verdict, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn a_request_is_read_before_it_is_taken() {
        let read = |text: &str| request(text.as_bytes());
        let (it, has_body) = read("GET /a?b HTTP/1.1\r\nHost: a\r\nX: 1\r\nX: 2\r\n\r\n").unwrap();
        assert_eq!((it.method().as_str(), it.uri()), ("GET", &"/a?b".parse().unwrap()));
        assert_eq!((it.headers().len(), has_body), (3, false));
        assert!(read("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc").unwrap().1);
        assert!(read("GET / HTTP/1.1\r\n").is_none() && read("GET a b HTTP/1.1\r\n\r\n").is_none());
    }

    #[test]
    fn a_request_says_which_host_it_is_for() {
        let asks = |host: &str| format!("GET / HTTP/1.1\r\n{host}\r\n");
        for (host, is_for_shop) in [
            ("Host: Shop.test\r\n", true),
            ("Host: shop.test:8080\r\n", true),
            ("Host: shop.test.evil\r\n", false),
            ("Host: shop.test@evil\r\n", false),
            ("Host: shop.test\r\nHost: evil\r\n", false),
            ("", false),
        ] {
            assert_eq!(is_for(asks(host).as_bytes(), "shop.test"), is_for_shop, "{host:?}");
        }
    }

    #[test]
    fn a_request_that_upgrades_is_written_as_it_was() {
        let request = |version| {
            let it = Request::get("/chat?a=b").header("host", "a").header("upgrade", "websocket");
            it.version(version).body(()).unwrap()
        };
        let head = b"GET /chat?a=b HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\n\r\n";
        assert_eq!(upgrade(&request(Version::HTTP_11)).as_deref(), Some(&head[..]));
        assert_eq!(judge(head), Pass);
        assert_eq!(upgrade(&request(Version::HTTP_10)), None);
        let with = |value| Request::get("/").header("authorization", value).body(()).unwrap();
        let head = b"GET / HTTP/1.1\r\nauthorization: Negotiate YII=\r\n\r\n";
        assert_eq!(upgrade(&with("Negotiate YII=")).as_deref(), Some(&head[..]));
        assert_eq!(upgrade(&with("Basic YTpi")), None);
    }

    #[test]
    fn a_head_that_does_not_end_is_passed() {
        let mut head = b"GET / HTTP/1.1\r\nA: ".to_vec();
        head.resize(MAX_HEAD - 1, b'a');
        assert_eq!(judge(&head), More);
        head.push(b'a');
        assert_eq!(judge(&head), Pass);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_FIELDS + 1));
        assert_eq!(judge(many.as_bytes()), Pass);
    }
}
