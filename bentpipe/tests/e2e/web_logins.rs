//! Servers that take a connection for a user (NTLM, Negotiate), behind two `bentpipe-web`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use os::netns::NetNs;
use socket2::{Domain, Socket, Type};

use crate::harness::{must, root};
use crate::tcp::{accept, listen};
use crate::web::{AT, field, read_head, world};
use crate::web_cache::web_at;

/// Logs each connection in after a challenge, or at once by a ticket. Only `/public` is for all.
fn serve(mut stream: TcpStream) -> Option<()> {
    let (mut challenged, mut user) = (false, false);
    loop {
        let head = read_head(&mut stream)?;
        let length = field(&head, "content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
        stream.read_exact(&mut vec![0; length]).ok()?;
        match field(&head, "authorization") {
            Some("ntlm one") => challenged = true,
            Some("ntlm three") => user |= challenged,
            Some("negotiate ticket") => user = true,
            _ => challenged = false,
        }
        let asks = if challenged { "NTLM two" } else { "NTLM" };
        let answer = match (head.split(' ').nth(1), user) {
            (Some("/public"), _) => "200 OK\r\nContent-Length: 3\r\n\r\nall".to_owned(),
            (_, true) => {
                "200 OK\r\nCache-Control: max-age=600\r\nContent-Length: 4\r\n\r\nuser".into()
            }
            (_, false) => {
                format!("401 No\r\nWWW-Authenticate: {asks}\r\nContent-Length: 0\r\n\r\n")
            }
        };
        stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).ok()?;
    }
}

fn start(ns: &NetNs) {
    let listener = listen(ns, AT);
    thread::spawn(move || {
        loop {
            let stream = accept(&listener);
            thread::spawn(move || serve(stream));
        }
    });
}

/// Connects as the host of this address.
fn connect_as(ns: &NetNs, host: &str) -> TcpStream {
    let at = |text: &str| text.parse::<SocketAddr>().expect("an address").into();
    let socket = ns.run(|| Socket::new(Domain::IPV4, Type::STREAM, None)).expect("a socket");
    socket.bind(&at(&format!("{host}:0"))).expect("its own address");
    socket.connect(&at(AT)).expect("a connection");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    stream
}

/// Posts so many bytes with this login, the last of them later; likewise.
fn post(stream: &mut TcpStream, login: &str, length: usize) -> (String, String, bool) {
    let fields = format!("Authorization: {login}\r\nContent-Length: {length}\r\n");
    let head = format!("POST /mine HTTP/1.1\r\nHost: {AT}\r\n{fields}\r\n");
    stream.write_all(&[head.as_bytes(), &vec![b'x'; length / 2]].concat()).expect("a request");
    thread::sleep(Duration::from_millis(300));
    stream.write_all(&vec![b'x'; length - length / 2]).expect("its end");
    take(stream)
}

/// Asks on this connection: the status, the answer's body, and whether the connection ends with it.
fn ask(stream: &mut TcpStream, request: &str, more: &str) -> (String, String, bool) {
    let text = format!("{request} HTTP/1.1\r\nHost: {AT}\r\n{more}\r\n");
    stream.write_all(text.as_bytes()).expect("a request");
    take(stream)
}

fn take(stream: &mut TcpStream) -> (String, String, bool) {
    let head = read_head(stream).expect("an answer");
    let length = field(&head, "content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("its body");
    let status = head.split(' ').nth(1).expect("a status").to_owned();
    let ends = field(&head, "connection") == Some("close");
    (status, String::from_utf8(body).expect("text"), ends)
}

const MINE: &str = "GET /mine";

#[test]
fn who_logs_a_connection_in_has_it_alone_and_nothing_of_his_is_kept() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-logins");
    start(&world.server);
    must(&world.client, "ip address add 10.1.0.3/24 dev lan0");
    must(&world.client, "ip address add 10.1.0.4/24 dev lan0");
    let is = |got: &(String, String, bool), status: &str, body: &str| {
        assert_eq!((got.0.as_str(), got.1.as_str()), (status, body), "{}", world.a.log());
    };
    // Who is asked for such a login comes back on a connection of his own.
    let from = |host: &str| connect_as(&world.client, host);
    let mut first = from("10.1.0.2");
    let refused = ask(&mut first, MINE, "");
    is(&refused, "401", "");
    assert!(refused.2, "it is the last answer on this connection");
    let mut own = from("10.1.0.2");
    is(&ask(&mut own, MINE, "Authorization: NTLM one\r\n"), "401", "");
    is(&ask(&mut own, MINE, "Authorization: NTLM three\r\n"), "200", "user");
    is(&ask(&mut own, MINE, ""), "200", "user");
    is(&ask(&mut from("10.1.0.2"), MINE, ""), "401", "");
    // Who knows what the server wants says so at once, on a connection that was used before.
    let mut known = from("10.1.0.3");
    is(&ask(&mut known, "GET /public", ""), "200", "all");
    is(&ask(&mut known, MINE, "Authorization: NTLM one\r\n"), "401", "");
    is(&ask(&mut known, MINE, "Authorization: NTLM three\r\n"), "200", "user");
    is(&ask(&mut known, MINE, ""), "200", "user");
    is(&ask(&mut from("10.1.0.3"), MINE, ""), "401", "");
    // Also with a body, of which a part may have been read here.
    must(&world.client, "ip address add 10.1.0.5/24 dev lan0");
    let mut posts = from("10.1.0.5");
    is(&ask(&mut posts, "GET /public", ""), "200", "all");
    is(&post(&mut posts, "NTLM one", 20_000), "401", "");
    is(&post(&mut posts, "NTLM three", 20_000), "200", "user");
    is(&ask(&mut posts, MINE, ""), "200", "user");
    // What has a large one crosses; then the hub's connection is nobody else's.
    let mut sends = from("10.1.0.4");
    is(&ask(&mut sends, "GET /public", ""), "200", "all");
    is(&post(&mut sends, "Negotiate ticket", 60_000), "200", "user");
    is(&ask(&mut from("10.1.0.4"), MINE, ""), "401", "");
    let told = web_at(&world.b, &["stats"]).0;
    assert_eq!(told["hub"]["in_memory"], 0, "{told}");
    let told = web_at(&world.a, &["stats"]).0;
    assert_eq!(told["in_memory"], 0, "{told}");
}
