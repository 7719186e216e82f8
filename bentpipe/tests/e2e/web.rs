//! The service `bentpipe-web` at both ends of a link: hosts' requests to port 80, and what is not
//! HTTP there.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bentpipe::admin::{ServiceState, ServiceStatus};
use os::netns::NetNs;

use crate::accelerators::{self, program};
use crate::documents::{WEB, put, toml};
use crate::gateway::Gateway;
use crate::harness::{Plan, Scratch, World, must, root, wait_for, wait_long_for};
use crate::tcp::{
    End, accept, connect, expect, listen, pattern, read_to_end, reset, send_all, try_connect,
};

pub const AT: &str = "10.2.0.2:80";

/// The default network, with the service at both ends as the page says.
pub fn world(label: &str) -> (World, Scratch) {
    world_with(label, |_, _| {})
}

/// The same with changes to the plan, in which both services are the last tables of their nodes.
pub fn world_with(label: &str, change: impl FnOnce(&mut Plan, &Scratch)) -> (World, Scratch) {
    let programs = Scratch::new(&format!("programs-{label}"));
    let at = program("bentpipe-web", &programs);
    let world = World::with(|plan| {
        for settings in [&mut plan.a, &mut plan.b] {
            accelerators::serve(settings, WEB, "bentpipe-web", &at);
        }
        change(plan, &programs);
    });
    for gateway in [&world.a, &world.b] {
        wait_for("a service that runs", || match service(gateway) {
            it if it.state == ServiceState::Running => Ok(()),
            it => Err(format!("{it:?}\n{}", gateway.log())),
        });
    }
    (world, programs)
}

/// An example of the page with this network's program in it.
pub fn example(words: &str, programs: &Scratch) -> String {
    let at = programs.sub("bin").join("bentpipe-web").display().to_string();
    put(toml(WEB, words), "/usr/bin/bentpipe-web", &at)
}

/// Puts the command that the page prints behind these words in place of the one that is there.
pub fn command(node: &str, words: &str, programs: &Scratch) -> String {
    let old = node.lines().find(|line| line.starts_with("command = ")).expect("a command");
    put(node, old, example(words, programs).trim_end())
}

pub fn service(gateway: &Gateway) -> ServiceStatus {
    gateway.status().services.first().cloned().expect("it has a service")
}

/// Waits until the service at `gateway` has counted so many.
pub fn wait_for_count(gateway: &Gateway, what: &str, n: u64) {
    wait_for(what, || match service(gateway).counters.get(what) {
        Some(counted) if *counted == n => Ok(()),
        other => Err(format!("{other:?} {what}\n{}", gateway.log())),
    });
}

/// Waits until nothing more of what hosts leave unread crosses.
pub fn wait_until_still(world: &World) {
    let crossed = || world.a.status().links[0].receive.lan_bytes;
    let mut before = 0;
    wait_long_for("all of them to stand still", Duration::from_secs(60), || {
        thread::sleep(Duration::from_secs(1));
        let last = std::mem::replace(&mut before, crossed());
        (last > 1_000_000 && last == before).then_some(()).ok_or(format!("{last}, {before}"))
    });
}

/// A server of HTTP/1.1 whose connections are kept. It answers with what `answer` makes of a
/// request's head and body: fields and the answer's body.
pub struct Server {
    connections: Arc<AtomicU64>,
    heads: Arc<Mutex<Vec<String>>>,
}

pub type Answer = fn(&str, &[u8]) -> (String, Vec<u8>);

impl Server {
    pub fn start(ns: &NetNs, answer: Answer) -> Server {
        Server::start_at(ns, AT, answer)
    }

    pub fn start_at(ns: &NetNs, at: &str, answer: Answer) -> Server {
        let listener = listen(ns, at);
        let (connections, heads) = (Arc::new(AtomicU64::new(0)), Arc::default());
        let server = Server { connections: connections.clone(), heads: Arc::clone(&heads) };
        thread::spawn(move || {
            loop {
                let stream = accept(&listener);
                let number = connections.fetch_add(1, Ordering::Relaxed);
                let heads = Arc::clone(&heads);
                thread::spawn(move || serve(stream, number, &heads, answer));
            }
        });
        server
    }

    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    number: u64,
    heads: &Mutex<Vec<String>>,
    answer: Answer,
) -> Option<()> {
    loop {
        let head = read_head(&mut stream)?;
        let length = field(&head, "content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        heads.lock().unwrap().push(format!("{head}came-on: {number}\r\n"));
        let (fields, body) = answer(&head, &body);
        stream.write_all(fields.as_bytes()).ok()?;
        if !head.starts_with("HEAD") {
            stream.write_all(&body).ok()?;
        }
        if fields.contains("Connection: close") {
            return stream.shutdown(Shutdown::Write).ok();
        }
    }
}

/// The next message's head, in lower case but for its first line.
pub fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let text = String::from_utf8(head).ok()?;
    let (first, rest) = text.split_once("\r\n")?;
    Some(format!("{first}\r\n{}", rest.to_lowercase()))
}

pub fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|l| l.split_once(": ").filter(|(n, _)| *n == name).map(|f| f.1))
}

pub fn sized(body: Vec<u8>) -> (String, Vec<u8>) {
    (format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()), body)
}

/// What the tests' server says.
fn site(head: &str, body: &[u8]) -> (String, Vec<u8>) {
    let target = head.split(' ').nth(1).unwrap_or("");
    match target {
        "/echo" => sized(body.to_vec()),
        "/large" => sized(pattern(7, 3_000_000)),
        "/chunked" => (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
            b"5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n".to_vec(),
        ),
        "/until-close" => {
            ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".into(), pattern(8, 100_000))
        }
        "/truncated" => (
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n".into(),
            vec![b'x'; 50],
        ),
        // What a careless cache or browser would take for a field of its own.
        "/folded" => (
            "HTTP/1.1 200 OK\r\nX-One: a\r\n Set-Cookie: mine\r\nContent-Length: 2\r\n\r\n".into(),
            b"me".to_vec(),
        ),
        "/spaced" => (
            "HTTP/1.1 200 OK\r\nContent-Length : 2\r\nConnection: close\r\n\r\n".into(),
            b"me".to_vec(),
        ),
        "/not-modified" => ("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n".into(), vec![]),
        "/fresh" => {
            let (mut head, body) = sized(pattern(9, 50_000));
            head.insert_str(head.len() - 2, "Cache-Control: max-age=600\r\n");
            (head, body)
        }
        "/private" => (
            "HTTP/1.1 200 OK\r\nCache-Control: private, max-age=600\r\nContent-Length: 2\r\n\r\n"
                .into(),
            b"me".to_vec(),
        ),
        "/range" => (
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2-4/10\r\nContent-Length: 3\r\n\r\n".into(),
            b"cde".to_vec(),
        ),
        _ => sized(target.as_bytes().to_vec()),
    }
}

/// Sends this over a connection of its own; all that comes back.
fn say(world: &World, text: &str) -> (String, End) {
    let mut stream = connect(&world.client, AT);
    stream.write_all(text.as_bytes()).expect("a request");
    // It may have been reset already.
    let _ = stream.shutdown(Shutdown::Write);
    let (bytes, end) = read_to_end(&mut stream);
    (String::from_utf8_lossy(&bytes).into_owned(), end)
}

#[test]
fn every_kind_of_message_passes_from_real_clients_to_servers_and_back() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-messages");
    let server = Server::start(&world.server, site);
    let dir = world.dir("files");
    let curl = |args: &str| must(&world.client, &format!("curl -sS --max-time 30 {args}"));
    let url = |path: &str| format!("http://{AT}{path}");
    assert_eq!(curl(&url("/a?b=c")), "/a?b=c");
    assert_eq!(curl(&format!("--http1.0 {}", url("/old"))), "/old");
    assert_eq!(curl(&url("/chunked")), "hello, world");
    assert_eq!(curl(&format!("-r 2-4 -w ' %{{http_code}}' {}", url("/range"))), "cde 206");
    assert!(curl(&format!("-I {}", url("/head"))).to_lowercase().contains("content-length: 5"));
    assert_eq!(curl(&format!("-w '%{{http_code}}' {}", url("/not-modified"))), "304");
    for (name, length) in [("large", 3_000_000), ("until-close", 100_000)] {
        let file = dir.join(name);
        curl(&format!("-o {} {}", file.display(), url(&format!("/{name}"))));
        let seed = if name == "large" { 7 } else { 8 };
        assert!(std::fs::read(&file).unwrap() == pattern(seed, length), "{name} is whole");
    }
    // With `Expect: 100-continue`, which curl sends before more than a megabyte.
    let (body, back) = (dir.join("large"), dir.join("back"));
    let [from, to] = [&body, &back].map(|path| path.display().to_string());
    curl(&format!("--data-binary @{from} -o {to} {}", url("/echo")));
    assert!(std::fs::read(&back).unwrap() == pattern(7, 3_000_000), "an echo");
    let before = server.connections();
    let many: String = (0..30).map(|n| format!(" {}", url(&format!("/{n}")))).collect();
    let all: String = (0..30).map(|n| format!("/{n}")).collect();
    assert_eq!(curl(&many), all);
    assert!(server.connections() <= before + 1, "connections to servers are kept");
    let heads = server.heads();
    assert!(heads.iter().all(|h| field(h, "host") == Some("10.2.0.2")), "{heads:?}");
    assert!(heads.iter().all(|h| !h.contains("bp-")), "{heads:?}");
    let came_on = |with_body: bool| -> BTreeSet<&str> {
        let has_body = |h: &&String| field(h, "content-length").is_some_and(|n| n != "0");
        let those = heads.iter().filter(|h| has_body(h) == with_body);
        those.map(|h| field(h, "came-on").unwrap()).collect()
    };
    assert!(!came_on(true).is_empty() && came_on(true).is_disjoint(&came_on(false)), "{heads:?}");
    // One stream carried all of it.
    wait_for_count(&world.a, "exchanges", 1);
    wait_for_count(&world.b, "forwarded", server.heads().len() as u64);
}

#[test]
fn kept_connections_to_servers_end_when_their_peer_may_not_go_there_any_more() {
    if !root() {
        return;
    }
    let (mut world, _programs) = world("web-narrowed");
    let server = Server::start(&world.server, |head, _| {
        if head.starts_with("GET /slow") {
            thread::sleep(Duration::from_secs(60));
        }
        sized(b"here".to_vec())
    });
    assert!(say(&world, "GET /a HTTP/1.0\r\nHost: a\r\n\r\n").0.ends_with("here"));
    // One is kept, and one has a request under way.
    let mut slow = connect(&world.client, AT);
    slow.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait_for("the request", || match server.heads().len() {
        2 => Ok(()),
        n => Err(format!("{n} requests")),
    });
    assert!(say(&world, "GET /b HTTP/1.0\r\nHost: a\r\n\r\n").0.ends_with("here"));
    world.b.configure(|s| s.deny = vec!["10.2.0.2/32"]);
    world.b.signal("HUP");
    world.b.wait_for_log("the configuration was read again");
    let (answer, _) = read_to_end(&mut slow);
    assert!(!String::from_utf8_lossy(&answer).contains("here"), "long before the server's");
    let (answer, _) = say(&world, "GET /c HTTP/1.0\r\nHost: a\r\n\r\n");
    assert!(!answer.contains("here"), "{answer}");
    assert_eq!(server.heads().len(), 3, "the server hears nothing more");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-pipeline");
    let _server = Server::start(&world.server, site);
    let mut stream = connect(&world.client, AT);
    let requests: String =
        (0..10).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    stream.write_all(requests.as_bytes()).expect("requests");
    for n in 0..10 {
        let head = read_head(&mut stream).expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        expect(&mut stream, format!("/{n}").as_bytes());
    }
}

#[test]
fn what_is_not_http_is_carried_as_a_plain_stream_without_a_byte_lost() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-pass");
    let listener = listen(&world.server, AT);
    let data = pattern(3, 500_000);
    for first in
        [&b"SSH-2.0-client\r\n"[..], b"\x16\x03\x01\x02\x00", b"CONNECT a:1 HTTP/1.1\r\n\r\n"]
    {
        let mut near = connect(&world.client, AT);
        let all = [first, &data].concat();
        let sending = send_all(&near, all.clone());
        let mut far = accept(&listener);
        assert!(read_to_end(&mut far) == (all, End::Clean), "as the client sent it");
        sending.join().unwrap().unwrap();
        let answer = send_all(&far, data.clone());
        assert!(read_to_end(&mut near) == (data.clone(), End::Clean));
        answer.join().unwrap().unwrap();
    }
    // A server that speaks first, and a WebSocket.
    let mut near = connect(&world.client, AT);
    let mut far = accept(&listener);
    far.write_all(b"220 ready\r\n").unwrap();
    expect(&mut near, b"220 ready\r\n");
    let upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n";
    let mut near = connect(&world.client, AT);
    near.write_all(upgrade).unwrap();
    let mut far = accept(&listener);
    expect(&mut far, upgrade);
    far.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\nfree").unwrap();
    expect(&mut near, b"HTTP/1.1 101 Switching Protocols\r\n\r\nfree");
    wait_for_count(&world.a, "passed", 5);
    // A WebSocket as the second request, behind an answer and with bytes of its own.
    let mut near = connect(&world.client, AT);
    near.write_all(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    near.write_all(&[&upgrade[..], b"early"].concat()).unwrap();
    let mut far = accept(&listener);
    assert!(read_head(&mut far).expect("a request").starts_with("GET /first"));
    far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst").unwrap();
    assert!(read_head(&mut near).expect("an answer").starts_with("HTTP/1.1 200"));
    expect(&mut near, b"first");
    let mut far = accept(&listener);
    let head = read_head(&mut far).expect("a request");
    assert!(field(&head, "upgrade") == Some("websocket"), "{head}");
    expect(&mut far, b"early");
    far.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\nfree").unwrap();
    expect(&mut near, b"HTTP/1.1 101 Switching Protocols\r\n\r\nfree");
    near.write_all(&data).unwrap();
    expect(&mut far, &data);
    wait_for_count(&world.a, "passed", 6);
}

#[test]
fn connections_that_are_opened_early_are_served_where_http_is_spoken() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-early");
    let _server = Server::start(&world.server, |head, _| {
        if head.starts_with("GET /slow") {
            thread::sleep(Duration::from_millis(1500));
        }
        sized(b"here".to_vec())
    });
    let ask = |stream: &mut TcpStream, path: &str| {
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())
            .expect("a request");
    };
    let served = |stream: &mut TcpStream| {
        read_head(stream).expect("an answer");
        expect(stream, b"here");
    };
    // Beside the very first request, and long after it.
    let [mut first, mut beside] = [(); 2].map(|()| connect(&world.client, AT));
    ask(&mut first, "/slow");
    thread::sleep(Duration::from_millis(700));
    ask(&mut beside, "/beside");
    served(&mut first);
    served(&mut beside);
    let mut early = connect(&world.client, AT);
    thread::sleep(Duration::from_secs(2));
    ask(&mut early, "/early");
    served(&mut early);
    wait_for_count(&world.a, "requests", 3);
    wait_for_count(&world.a, "passed", 0);
}

#[test]
fn an_answer_that_is_not_whole_ends_in_a_reset_and_so_does_a_server_that_refuses() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-truncated");
    let (said, end) = say(&world, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((said.as_str(), end), ("", End::Reset), "nobody listens");
    let server = Server::start(&world.server, site);
    let (said, end) = say(&world, "GET /truncated HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(end, End::Reset, "half an answer does not look like one: {said}");
    // A client that gives up in the middle of an answer disturbs nobody.
    let mut stream = connect(&world.client, AT);
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    reset(stream);
    let (said, _) = say(&world, "GET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(said.ends_with("/after"), "{said}");
    assert_eq!(server.heads().len(), 3);
}

#[test]
fn ambiguous_requests_hide_no_second_one() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-hostile");
    let server = Server::start(&world.server, site);
    // What comes behind such a request must not become one.
    let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    for fields in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 6",
        "Content-Length: 6\r\nContent-Length: 7",
        "Content-Length: +6",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Host: b",
    ] {
        let text = format!("POST /smuggled HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{hidden}");
        let (said, _) = say(&world, &text);
        // A length beside chunks: chunks count, and nothing is read behind them (RFC 9112, 6.1).
        let both = fields.contains("chunked\r\n") || fields.contains("\r\nTransfer");
        assert!(both || said.starts_with("HTTP/1.1 400"), "{fields}: {said}");
        assert_eq!(said.matches("HTTP/1.1 ").count(), 1, "{fields}: {said}");
    }
    // Chunk lengths that overflow end the request, and the connection with it.
    for chunk in ["fffffffffffffffff\r\n", "-1\r\n", "5;\r\nhello\n", "zz\r\n"] {
        let text = format!(
            "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{hidden}"
        );
        let (said, _) = say(&world, &text);
        assert!(!said.starts_with("HTTP/1.1 200"), "{chunk}: {said}");
    }
    assert!(!server.heads().iter().any(|h| h.contains("hidden")), "{:?}", server.heads());
    // A second request on the connection is judged as the first.
    let first = "GET /first HTTP/1.1\r\nHost: a\r\n\r\n";
    let (said, _) = say(&world, &format!("{first}GET http://b/second HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(said.contains("/first") && said.contains("HTTP/1.1 400"), "{said}");
    let heads = server.heads();
    assert!(!heads.iter().any(|h| h.contains("second")), "{heads:?}");
    let two_lengths = |h: &String| {
        field(h, "content-length").is_some() && field(h, "transfer-encoding").is_some()
    };
    assert!(!heads.iter().any(two_lengths), "{heads:?}");
}

#[test]
fn folded_lines_bare_ends_of_lines_and_spaces_in_them_hide_no_field_and_no_request() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-lines");
    let server = Server::start(&world.server, site);
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    for fields in [
        "X-One: a\r\n Content-Length: 38",
        "X-One: a\r\n\tTransfer-Encoding: chunked",
        " Content-Length: 38",
        "Content-Length : 38",
        "X-One: a\rContent-Length: 38",
        "X-One: a\0Content-Length: 38",
        "X One: a",
    ] {
        // Behind a request that is sound it is refused.
        let sound = "GET /sound HTTP/1.1\r\nHost: a\r\n\r\n";
        let odd = format!("GET /odd HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let before = server.heads().len();
        let (said, _) = say(&world, &format!("{sound}{odd}{hidden}"));
        let statuses: Vec<_> = said.matches("HTTP/1.1 ").collect();
        assert!(said.contains("HTTP/1.1 400") && statuses.len() == 2, "{fields:?}: {said}");
        assert_eq!(server.heads().len(), before + 1, "{fields:?}: {:?}", server.heads());
        // As the first it is no HTTP: the server itself judges what it gets, as it was written.
        let (said, _) = say(&world, &odd);
        let heads = server.heads();
        let as_written = || heads.last().is_some_and(|h| h.contains(&fields.to_lowercase()));
        assert!(said.starts_with("HTTP/1.1 400") || as_written(), "{fields:?}: {heads:?}");
    }
    let before = server.heads().len();
    // An end of line without its first half is one (RFC 9112, section 2.2), here and so everywhere.
    let body = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let text = format!(
        "POST /echo HTTP/1.1\r\nHost: a\r\nX-One: a\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let (said, _) = say(&world, &(text + body));
    assert!(said.starts_with("HTTP/1.1 200") && said.ends_with(body), "{said}");
    assert_eq!(server.heads().len(), before + 1, "{:?}", server.heads());
    assert!(!server.heads().iter().any(|head| head.contains("/hidden")), "{:?}", server.heads());
    // And of servers' answers.
    for target in ["/folded", "/spaced"] {
        let (said, _) = say(&world, &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let fields = said.to_lowercase();
        assert!(!fields.contains("\r\nset-cookie") && !fields.contains("length :"), "{said}");
        assert!(!fields.contains("\r\n "), "{said}");
    }
}

#[test]
fn the_service_comes_back_after_a_kill_and_hosts_meanwhile_are_served_without_it() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-killed");
    let _server = Server::start(&world.server, site);
    let get = || {
        let request = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let mut stream = try_connect(&world.client, AT)?;
        stream.write_all(request)?;
        let (bytes, end) = read_to_end(&mut stream);
        let whole = end == End::Clean && bytes.ends_with(b"/x");
        whole.then_some(()).ok_or(std::io::Error::from(std::io::ErrorKind::ConnectionReset))
    };
    get().expect("an answer");
    for gateway in [&world.a, &world.b] {
        let it = service(gateway);
        let pid = it.pid.expect("a process").to_string();
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
        wait_for("another start", || match service(gateway) {
            now if now.starts > it.starts && now.state == ServiceState::Running => Ok(()),
            now => Err(format!("{now:?}")),
        });
        thread::sleep(Duration::from_millis(300));
        wait_for("an answer", || get().map_err(|e| e.to_string()));
        wait_for("the service has answered", || {
            get().map_err(|e| e.to_string())?;
            match service(&world.a).counters.get("requests") {
                Some(n) if *n > 0 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}

#[test]
fn fresh_answers_come_from_the_terminal_without_the_satellite() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-fresh");
    let server = Server::start(&world.server, site);
    let dir = world.dir("files");
    let get = |more: &str, path: &str| {
        let file = dir.join("got").display().to_string();
        let got = must(
            &world.client,
            &format!("curl -sS --max-time 30 {more} -o {file} -D - http://{AT}{path}"),
        );
        (got.to_lowercase(), std::fs::read(&file).expect("an answer"))
    };
    let (head, body) = get("", "/fresh");
    assert!(body == pattern(9, 50_000) && !head.contains("age: "), "{head}");
    // Far away is out of reach, and these come.
    world.set_link_down(true);
    for _ in 0..5 {
        let (head, body) = get("", "/fresh");
        assert!(body == pattern(9, 50_000) && head.contains("\nage: "), "{head}");
    }
    world.set_link_down(false);
    wait_for_count(&world.a, "hits", 5);
    assert_eq!(server.heads().len(), 1);
    let (head, body) = get("-H 'Cookie: a=b' -r 10-19", "/fresh");
    assert!(head.contains(" 206 ") && head.contains("bytes 10-19/50000"), "{head}");
    assert_eq!(body, pattern(9, 50_000)[10..20]);
    let (head, _) = get("-I", "/fresh");
    assert!(head.contains("content-length: 50000") && head.contains("\nage: "), "{head}");
    assert_eq!(server.heads().len(), 1);
    // Not so what is private, what is asked for anew, and by another host's name.
    for n in 1..=2 {
        assert_eq!(get("", "/private").1, b"me");
        assert_eq!(get("-H 'Cache-Control: no-cache'", "/fresh").1.len(), 50_000);
        let named = format!("-H 'Host: other-{n}.test'");
        assert!(!get(&named, "/fresh").0.contains("\nage: "), "who lies poisons nobody");
        assert_eq!(server.heads().len(), 1 + 3 * n);
    }
    // What changes it is heard of.
    get("-X POST -d x", "/fresh");
    assert!(!get("", "/fresh").0.contains("\nage: "));
}

/// Connects from another address of the client's network.
fn connect_from(world: &World, from: &str) -> TcpStream {
    let socket = world.client.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        let [from, to] = [&format!("{from}:0"), AT]
            .map(|at| at.parse::<std::net::SocketAddr>().expect("an address"));
        socket.bind(&from.into()).expect("the other host");
        socket.connect_timeout(&to.into(), Duration::from_secs(30)).expect("a connection");
        socket
    });
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time");
    stream
}

#[test]
fn a_host_that_stops_reading_large_answers_holds_up_no_other_answers() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-stalled");
    must(&world.client, "ip address add 10.1.0.3/24 dev lan0");
    let _server = Server::start(&world.server, |head, _| match head.contains("/endless") {
        true => sized(vec![b'x'; 30_000_000]),
        false => sized(pattern(4, 50_000)),
    });
    // What the link and the systems on the way hold of an answer is less than its half.
    let stalled: Vec<_> = (0..6)
        .map(|_| {
            let mut stream = connect(&world.client, AT);
            socket2::SockRef::from(&stream).set_recv_buffer_size(64 << 10).expect("a socket");
            stream.write_all(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").expect("a request");
            stream
        })
        .collect();
    wait_until_still(&world);
    let mut other = connect_from(&world, "10.1.0.3");
    other.write_all(b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n").expect("a request");
    let head = read_head(&mut other).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    expect(&mut other, &pattern(4, 50_000));
    // Nor does it hold up what it asks for itself.
    let mut own = connect(&world.client, AT);
    own.write_all(b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n").expect("a request");
    let head = read_head(&mut own).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    expect(&mut own, &pattern(4, 50_000));
    // They go on where they stopped.
    let mut one = stalled.into_iter().next().expect("one of them");
    read_head(&mut one).expect("an answer");
    expect(&mut one, &vec![b'x'; 30_000_000]);
}

#[test]
fn a_small_request_that_is_made_again_costs_few_bytes_each_way() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-small");
    let _server = Server::start(&world.server, |_, _| {
        let fields = "HTTP/1.1 200 OK\r\nServer: some-server/1.2.3 (Debian)\r\nContent-Length: 1\r\n\
                      Content-Type: text/plain; charset=utf-8\r\nX-Frame-Options: SAMEORIGIN\r\n\
                      Strict-Transport-Security: max-age=31536000; includeSubDomains\r\n\r\n";
        (fields.into(), b"x".to_vec())
    });
    let fields = "-H 'Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8' \
                  -H 'Accept-Language: en-GB,en;q=0.5' -H 'Cookie: session=0123456789abcdef' \
                  -H 'Referer: http://example.org/a/rather/long/page.html'";
    let ask = |n: usize| {
        let urls = format!(" http://{AT}/a/small/object").repeat(n);
        let got = must(&world.client, &format!("curl -sS --max-time 60 {fields}{urls}"));
        assert_eq!(got, "x".repeat(n));
        let link = world.a.status().links[0].clone();
        [link.send.lan_bytes, link.receive.lan_bytes]
    };
    let (before, again) = (ask(2), 100);
    let after = ask(again);
    // An answer's byte is not its header's; the frame that it comes in is.
    let each = [0, 1].map(|way| (after[way] - before[way]) / again as u64);
    println!("bytes each way: {each:?}");
    assert!(each[0] > 0 && each[0] <= 40, "{each:?}");
    assert!(each[1] > 1 && each[1] <= 41, "{each:?}");
}

/// What lays out a page goes before what fills it, and little that cannot be overtaken any more
/// waits between the service and the link.
#[test]
fn a_style_sheet_does_not_wait_behind_a_picture() {
    if !root() {
        return;
    }
    let (world, _programs) =
        world_with("web-rank", |plan, _| plan.rate = units::BitRate::from_mbps(1));
    let _server = Server::start(&world.server, |head, _| {
        let (kind, n) = match head.split(' ').nth(1) {
            Some("/picture") => ("image/png", 1_000_000),
            _ => ("text/css", 50_000),
        };
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {n}\r\n\r\n");
        (head, pattern(3, n))
    });
    let ask = |path: &str| {
        let mut stream = connect(&world.client, AT);
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        stream
    };
    let mut picture = ask("/picture");
    read_head(&mut picture).expect("an answer");
    let come = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&come);
    let reading = thread::spawn(move || {
        let mut piece = [0; 4096];
        while counted.load(Ordering::Relaxed) < 1_000_000 {
            let n = picture.read(&mut piece).expect("more of the picture");
            counted.fetch_add(n as u64, Ordering::Relaxed);
        }
    });
    wait_for("much of the picture", || match come.load(Ordering::Relaxed) {
        n if n > 200_000 => Ok(()),
        n => Err(format!("{n} bytes")),
    });
    let before = come.load(Ordering::Relaxed);
    let mut style = ask("/style");
    read_head(&mut style).expect("an answer");
    style.read_exact(&mut vec![0; 50_000]).expect("a style sheet");
    // A round trip, and what was on its way: over 300 kB when it had to wait. On a slow link what
    // a busy machine adds is few bytes.
    let meanwhile = come.load(Ordering::Relaxed) - before;
    assert!(meanwhile < 150_000, "{meanwhile} bytes of the picture came first");
    drop(style);
    reading.join().unwrap();
}

/// Answers to whoever did not say who he is are compressed by the link, and others are not: what
/// somebody else chose would tell of the secrets beside it (docs/compression.md).
#[test]
fn text_is_compressed_unless_its_request_proves_who_asks() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("web-text", |plan, _| {
        for end in [&mut plan.a, &mut plan.b] {
            end.peer = "dedup = \"off\"\n".into();
        }
    });
    let _server = Server::start(&world.server, |_, _| {
        let text: String = (0..40_000).map(|n| format!("{n} ")).collect();
        sized(text.into_bytes())
    });
    for (field, shrinks) in
        [("X-One: 1", true), ("Cookie: a=b", false), ("Authorization: x", false)]
    {
        let all = || world.b.status().links.remove(0).compression.total;
        let before = all();
        let got = must(&world.client, &format!("curl -sS --max-time 30 -H '{field}' http://{AT}/"));
        assert!(got.starts_with("0 1 2 ") && got.len() > 200_000);
        let after = all();
        let [content, coded] = [after.sent - before.sent, after.sent_as - before.sent_as];
        assert!(content > 200_000, "{field}: {content}");
        assert_eq!(coded * 2 < content, shrinks, "{field}: {coded} of {content}");
    }
}
