//! Directions that mix secrets with what others choose.

/// Methods that HTTP requests begin with (RFC 9110, 9.1; RFC 5789; WebDAV's of RFC 4918, 3253
/// and 5323), the preface of HTTP/2 (RFC 9113, 3.4), and the line that proxies put before a
/// connection (PROXY protocol).
const METHODS: [&[u8]; 21] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"CONNECT ",
    b"OPTIONS ",
    b"TRACE ",
    b"PATCH ",
    b"PRI * HTTP/",
    b"PROXY ",
    b"PROPFIND ",
    b"PROPPATCH ",
    b"MKCOL ",
    b"COPY ",
    b"MOVE ",
    b"LOCK ",
    b"UNLOCK ",
    b"REPORT ",
    b"MERGE ",
    b"SEARCH ",
];
/// A method of another name is at most so long here. UPnP has `SUBSCRIBE`, CalDAV `MKCALENDAR`.
const METHOD: usize = 20;
/// Ports where servers of HTTP are.
const PORTS: [u16; 8] = [80, 591, 3128, 8000, 8008, 8080, 8081, 8888];

/// Does this direction, from the client to the server's `port`, mix secrets (cookies) with
/// what other parties may choose (paths)? Then it is not compressed: its length would tell
/// one from the other (CRIME). `first`: its first bytes.
pub fn mixes_secrets(port: u16, first: &[u8]) -> bool {
    PORTS.contains(&port) || begins_a_request(first)
}

/// May these be the first bytes of a request of HTTP?
fn begins_a_request(first: &[u8]) -> bool {
    // Empty lines before a request are skipped (RFC 9112, 2.2).
    let blank = first.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
    let first = &first[blank..];
    let method = first.iter().take_while(|b| b.is_ascii_uppercase() || **b == b'-').count();
    let of_another_method = match first[method..] {
        _ if method == 0 || method > METHOD => false,
        [] | [b' '] => true,
        // The target is a path, `*`, or a URL of HTTP (RFC 9112, 3.2).
        [b' ', b'/' | b'*', ..] => true,
        [b' ', ref target @ ..] => {
            let n = target.len().min(4);
            target[..n].eq_ignore_ascii_case(&b"http"[..n])
        }
        _ => false,
    };
    of_another_method || METHODS.iter().any(|m| first.starts_with(&m[..m.len().min(first.len())]))
}

/// What the names of fields that prove who asks have in them: `Cookie`, `Authorization`,
/// `X-Api-Key`, `X-Auth-Token` …
const PROOFS: [&[u8]; 7] =
    [b"cookie", b"auth", b"token", b"session", b"api-key", b"apikey", b"credential"];
/// A field's name that is longer is looked at so far.
const NAME: usize = 48;
/// By so many bytes at the latest it is known whether a direction is requests.
const FIRST: usize = 24;

/// Watches the requests of a connection, on their way to the server, for such as prove who asks.
/// Their answers may hold secrets of the asker's, and repeat what somebody else chose for the
/// request: compressed together they would tell one by the other (BREACH). HTTP/2 hides its
/// fields, and counts as such.
///
/// Lines of bodies are looked at like those of heads: one that is mistaken for a field costs the
/// compression of answers and no more.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    state: Watch,
    /// Bytes that were looked at and are offered again.
    ahead: usize,
    /// The first bytes, or those of a line, in small letters.
    line: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Watch {
    /// Nothing says yet what this is.
    #[default]
    First,
    /// At the name of a field, or of what may be one.
    Name,
    /// Behind it.
    Rest,
    /// These are no requests.
    Else,
    /// A request proved who asks.
    Proof,
}

impl Requests {
    /// Has one of the requests proved who asks?
    pub fn prove(&self) -> bool {
        self.state == Watch::Proof
    }

    /// What the server gets next. What it does not take is offered again.
    pub fn offered(&mut self, pieces: &[&[u8]]) {
        let (mut seen, mut total) = (self.ahead, 0);
        for piece in pieces {
            let skipped = seen.min(piece.len());
            seen -= skipped;
            total += piece.len();
            self.look(&piece[skipped..]);
        }
        self.ahead = self.ahead.max(total);
    }

    /// The server took `n` bytes of what was offered.
    pub fn took(&mut self, n: usize) {
        self.ahead = self.ahead.saturating_sub(n);
    }

    fn look(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, after)) = bytes.split_first() {
            match self.state {
                Watch::Else | Watch::Proof => return,
                Watch::Rest => {
                    let Some(end) = bytes.iter().position(|b| *b == b'\n') else { return };
                    self.state = Watch::Name;
                    bytes = &bytes[end + 1..];
                    continue;
                }
                Watch::First => {
                    self.line.push(byte);
                    if !begins_a_request(&self.line) {
                        self.state = Watch::Else;
                    } else if self.line.starts_with(b"PRI * HTTP/") {
                        self.state = Watch::Proof;
                    } else if self.line.len() >= FIRST || byte == b'\n' && self.line.len() > 4 {
                        self.state = if byte == b'\n' { Watch::Name } else { Watch::Rest };
                    }
                    if self.state != Watch::First {
                        self.line = Vec::new();
                    }
                }
                Watch::Name if byte == b'\n' => self.line.clear(),
                Watch::Name if byte == b':' || self.line.len() == NAME => {
                    let proves = |name: &&[u8]| self.line.windows(name.len()).any(|w| w == *name);
                    self.state = match PROOFS.iter().any(proves) {
                        true => Watch::Proof,
                        false => Watch::Rest,
                    };
                    self.line.clear();
                }
                Watch::Name => self.line.push(byte.to_ascii_lowercase()),
            }
            bytes = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prove(request: &[u8], cut: usize) -> bool {
        let mut requests = Requests::default();
        for piece in request.chunks(cut) {
            // Half of it is not taken, and offered again.
            requests.offered(&[piece]);
            requests.took(piece.len() / 2);
            requests.offered(&[&piece[piece.len() / 2..]]);
            requests.took(piece.len() - piece.len() / 2);
        }
        requests.prove()
    }

    #[test]
    fn requests_that_prove_who_asks_are_known_however_they_arrive() {
        for (request, proves) in [
            (&b"GET /a?q=1 HTTP/1.1\r\nHost: a.example\r\nCookie: a=1\r\n\r\n"[..], true),
            (b"GET / HTTP/1.1\nhost: a\nAUTHORIZATION: Basic YTpi\n\n", true),
            (b"\r\nPOST / HTTP/1.1\r\nX-Api-Key: 7\r\n\r\n", true),
            (b"PROXY TCP4 10.1.0.2 10.2.0.2 1 80\r\nGET / HTTP/1.1\r\nCookie: 1\r\n\r\n", true),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true),
            (
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\nCookie: 1\r\n\r\n",
                true,
            ),
            (b"GET /cookie:token HTTP/1.1\r\nHost: cookies.example\r\nAccept: */*\r\n\r\n", false),
            (b"GET / HTTP/1.1\r\nUser-Agent: curl\r\nReferer: http://a/?token=1\r\n\r\n", false),
            (b"SUBSCRIBE /e HTTP/1.1\r\nHost: a\r\nCookie: 1\r\n\r\n", true),
            (b"M-SEARCH * HTTP/1.1\r\nHost: a\r\nAuthorization: 1\r\n\r\n", true),
            (b"MKCALENDAR http://a/c HTTP/1.1\r\nCookie: 1\r\n\r\n", true),
            (b"EHLO host.example\r\nCookie: a\r\n", false),
            (b"EHLO ship\r\nAUTH PLAIN:\r\nCookie: a\r\n", false),
            (b"LONGERTHANANYMETHODIS /e\r\nCookie: a\r\n", false),
            (b"\x16\x03\x01\x02\x00\x01\ncookie: a\n", false),
        ] {
            for cut in [1, 2, 3, 7, 50, 1000] {
                let text = String::from_utf8_lossy(request);
                assert_eq!(prove(request, cut), proves, "{text} by {cut}");
            }
        }
    }
}
