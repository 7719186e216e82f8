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
/// Ports where servers of HTTP are.
const PORTS: [u16; 8] = [80, 591, 3128, 8000, 8008, 8080, 8081, 8888];

/// Does this direction, from the client to the server's `port`, mix secrets (cookies) with
/// what other parties may choose (paths)? Then it is not compressed: its length would tell
/// one from the other (CRIME). `first`: its first bytes.
pub fn mixes_secrets(port: u16, first: &[u8]) -> bool {
    // Empty lines before a request are skipped (RFC 9112, 2.2).
    let blank = first.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
    let first = &first[blank..];
    PORTS.contains(&port)
        || METHODS.iter().any(|m| first.starts_with(&m[..m.len().min(first.len())]))
}
