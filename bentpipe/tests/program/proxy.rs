//! Two gateways without any right, joined by loopback: the explicit proxy at one end,
//! servers at the other, and what an operator does to them meanwhile.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bentpipe::admin::{self, Answer, LinkState, Request, Status};
use link::keys::PrivateKey;

/// Far longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two gateways: `ship` has the proxy, `shore` connects to servers.
struct Pair {
    dir: PathBuf,
    proxy: SocketAddr,
    ship: Gateway,
    shore: Gateway,
}

struct Gateway {
    child: Child,
    /// What a service manager would hear.
    notices: UnixDatagram,
    admin: PathBuf,
    file: PathBuf,
    log: PathBuf,
}

/// A port that nobody listens on, for TCP and UDP. It lies below those that the kernel
/// hands out, so that no connection takes it before the gateway does.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(12_000 + (std::process::id() * 97 + n) % 20_000).expect("a port");
        let address = (Ipv4Addr::LOCALHOST, port);
        if UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok() {
            return port;
        }
    }
}

fn scratch_dir() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("bentpipe-proxy-{}-{n}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
}

impl Pair {
    fn start() -> Pair {
        Pair::start_with("200Mbit", "")
    }

    /// A pair with a link of this rate and this line in both peers' tables.
    fn start_with(rate: &str, line: &str) -> Pair {
        let dir = scratch_dir();
        let (ship, shore) = (PrivateKey::from_bytes([1; 32]), PrivateKey::from_bytes([2; 32]));
        let (proxy_port, ship_port, shore_port) = (free_port(), free_port(), free_port());
        let link = format!(
            "link = {{ send = \"{rate}\", receive = \"{rate}\", delay = \"1ms\" }}\n{line}"
        );
        let ship_file = format!(
            "[node]\nprivate_key = \"{}\"\nlisten = \"127.0.0.1:{ship_port}\"\n\
             proxy = \"127.0.0.1:{proxy_port}\"\nadmin = \"ship.sock\"\n\
             [[peer]]\nname = \"shore\"\npublic_key = \"{}\"\n\
             endpoint = \"127.0.0.1:{shore_port}\"\nroutes = [\"0.0.0.0/0\", \"::/0\"]\n{link}\n",
            ship.to_base64(),
            shore.public()
        );
        let shore_file = format!(
            "[node]\nprivate_key = \"{}\"\nlisten = \"127.0.0.1:{shore_port}\"\n\
             admin = \"shore.sock\"\n\
             [[peer]]\nname = \"ship\"\npublic_key = \"{}\"\nroutes = [\"10.2.0.0/24\"]\n\
             allow = [\"127.0.0.1/32\", \"::1/128\"]\n{link}\n",
            shore.to_base64(),
            ship.public()
        );
        let pair = Pair {
            proxy: SocketAddr::from((Ipv4Addr::LOCALHOST, proxy_port)),
            ship: Gateway::start(&dir, "ship", &ship_file),
            shore: Gateway::start(&dir, "shore", &shore_file),
            dir,
        };
        pair.ship.wait_for("the link rises", |s| s.links[0].state == LinkState::Up);
        pair
    }

    /// A connection to the proxy that has asked for `target` in SOCKS5.
    fn socks(&self, kind: u8, address: &[u8], port: u16) -> TcpStream {
        let mut client = connect(self.proxy);
        client.write_all(&[5, 1, 0]).expect("a greeting");
        let mut choice = [0; 2];
        client.read_exact(&mut choice).expect("a choice");
        assert_eq!(choice, [5, 0]);
        client
            .write_all(&[&[5, 1, 0, kind], address, &port.to_be_bytes()].concat())
            .expect("a request");
        client
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for gateway in [&self.ship, &self.shore] {
                eprintln!("{}:\n{}", gateway.log.display(), gateway.log_text());
            }
        }
        // Their files go when nobody writes to them any more.
        self.ship.kill();
        self.shore.kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Gateway {
    fn start(dir: &std::path::Path, name: &str, config: &str) -> Gateway {
        let (file, log) = (dir.join(format!("{name}.toml")), dir.join(format!("{name}.log")));
        std::fs::write(&file, config).expect("a configuration");
        let notify = dir.join(format!("{name}.notify"));
        let _ = std::fs::remove_file(&notify);
        let notices = UnixDatagram::bind(&notify).expect("a socket");
        notices.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        // setpriv ends the gateway when the test's thread is gone, however it went.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_bentpipe"), "up", "-v"])
            .arg(&file)
            .env("STATE_DIRECTORY", dir)
            .env("NOTIFY_SOCKET", &notify)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("setpriv starts (util-linux)");
        Gateway { child, notices, admin: dir.join(format!("{name}.sock")), file, log }
    }

    fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn status(&self) -> Option<Status> {
        match admin::ask(&self.admin, &Request::Status, units::Duration::from_secs(10)) {
            Ok(Answer::Status(status)) => Some(*status),
            _ => None,
        }
    }

    fn wait_for(&self, what: &str, holds: impl Fn(&Status) -> bool) -> Status {
        let start = Instant::now();
        loop {
            if let Some(status) = self.status().filter(|s| holds(s)) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {:#?}", self.status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(sent.success());
    }

    fn wait_for_log(&self, text: &str) {
        let start = Instant::now();
        while !self.log_text().contains(text) {
            assert!(start.elapsed() < PATIENCE, "no \"{text}\" in: {}", self.log_text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_until_ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end: {}", self.log_text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn next_notice(&self) -> String {
        let mut buf = [0; 256];
        let n = self.notices.recv(&mut buf).expect("a notice");
        String::from_utf8_lossy(&buf[..n]).into_owned()
    }

    /// `bentpipe reload` of its file: whether that succeeded, and both outputs.
    fn reload(&self) -> (bool, String) {
        reload(&self.file)
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}

fn reload(file: &std::path::Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bentpipe"));
    let output = command.arg("reload").arg(file).output().expect("the program runs");
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, PATIENCE).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.set_write_timeout(Some(PATIENCE)).expect("a time-out");
    stream
}

/// A server that reads to the end of what each client sends, then answers with it and
/// ends.
fn echo_server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).and_then(|_| stream.write_all(&bytes))
            });
        }
    });
    port
}

/// Sends `bytes` and their end, and returns what comes back until its end.
fn exchange(mut client: TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    client.write_all(bytes)?;
    client.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    Ok(answer)
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    units::Rng::new(seed).fill(&mut bytes);
    bytes
}

const SOCKS_SUCCEEDED: &[u8] = &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

#[test]
fn socks_and_connect_carry_bytes_and_both_ends_count_them() {
    let (pair, port) = (Pair::start(), echo_server());
    let bytes = noise(300_000, 1);

    for mut client in [
        pair.socks(1, &[127, 0, 0, 1], port),
        pair.socks(3, b"\x09localhost", port),
        pair.socks(3, b"\x09127.0.0.1", port),
    ] {
        let mut reply = [0; 10];
        client.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply, SOCKS_SUCCEEDED);
        assert_eq!(exchange(client, &bytes).expect("an echo"), bytes);
    }

    let mut client = connect(pair.proxy);
    let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n");
    client.write_all(request.as_bytes()).expect("a request");
    let head = b"HTTP/1.1 200 Connection established\r\n\r\n";
    let mut answer = vec![0; head.len()];
    client.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, head);
    assert_eq!(exchange(client, &bytes).expect("an echo"), bytes);

    let done = |s: &Status| s.links[0].streams_open == 0;
    let ship = pair.ship.wait_for("the ship's streams end", done).links.remove(0);
    let shore = pair.shore.wait_for("the shore's streams end", done).links.remove(0);
    assert_eq!((ship.peer.as_str(), shore.peer.as_str()), ("shore", "ship"));
    assert_eq!((ship.streams_total, shore.streams_total), (4, 4));
    assert!(ship.send.lan_bytes >= 1_200_000 && shore.send.lan_bytes >= 1_200_000);
    assert!(ship.send.link_bytes > ship.send.lan_bytes, "headers and tags come on top");
    assert_eq!(ship.send.configured_bps, 200_000_000);
    assert_eq!(pair.ship.log_text().matches("link up peer=").count(), 1);
}

#[test]
fn first_bytes_that_come_with_the_request_reach_the_server() {
    let (pair, port) = (Pair::start(), echo_server());
    let client = connect(pair.proxy);
    let all =
        [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1], &port.to_be_bytes()[..], b"early bytes"].concat();
    let answer = exchange(client, &all).expect("an echo");
    assert_eq!(answer, [&[5, 0], SOCKS_SUCCEEDED, b"early bytes"].concat());
}

/// Lines as a server logs them.
fn log_lines(len: usize) -> Vec<u8> {
    let mut rng = units::Rng::new(5);
    let mut text = String::new();
    while text.len() < len {
        let (minute, address, page) = (rng.below(60), rng.below(250), rng.below(1000));
        text += &format!(
            "192.0.2.{address} - - [21/Nov/2026:12:{minute:02}:07 +0000] \
             \"GET /charts/{page}.png HTTP/1.1\" 200 {}\n",
            rng.below(100_000)
        );
    }
    text.truncate(len);
    text.into_bytes()
}

/// A server of HTTP that answers each request with its body.
fn http_echo_server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || -> io::Result<()> {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") {
                    stream.read_exact(&mut byte)?;
                    head.push(byte[0]);
                }
                let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
                let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
                let length = length.and_then(|n| n.parse().ok()).unwrap_or(0);
                let mut body = vec![0; length];
                stream.read_exact(&mut body)?;
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")?;
                stream.write_all(&body)
            });
        }
    });
    port
}

#[test]
fn streams_are_compressed_both_ways_and_noise_is_let_be() {
    let pair = Pair::start_with("20Mbit", "");
    let port = echo_server();
    let text = log_lines(1_000_000);
    let echo = |bytes: &[u8]| {
        let mut client = pair.socks(1, &[127, 0, 0, 1], port);
        client.read_exact(&mut [0; 10]).expect("a reply");
        assert!(exchange(client, bytes).expect("an echo") == bytes, "the echo is what was sent");
    };
    let idle = |s: &Status| s.links[0].streams_open == 0;

    echo(&text);
    let ship = pair.ship.wait_for("the stream ends", idle).links.remove(0);
    let c = &ship.compression.total;
    assert_eq!((c.sent, c.received), (1_000_000, 1_000_000));
    assert!(c.sent_as < 350_000 && c.received_as < 350_000, "{c:?}");
    assert!(ship.send.link_bytes < 450_000 && ship.send.lan_bytes >= 1_000_000, "{ship:?}");

    echo(&noise(1_000_000, 3));
    let both = pair.ship.wait_for("the stream ends", idle).links.remove(0).compression.total;
    let (sent, received) = (both.sent_as - c.sent_as, both.received_as - c.received_as);
    assert!(sent <= 1_001_000 && received <= 1_001_000, "{both:?}");
}

#[test]
fn curl_gets_its_page_compressed_and_its_request_is_not() {
    let pair = Pair::start_with("20Mbit", "dedup = \"off\"");
    let port = http_echo_server();
    let (page, got) = (pair.dir.join("page"), pair.dir.join("got"));
    let text = log_lines(400_000);
    std::fs::write(&page, &text).expect("a page");
    let status = Command::new("curl")
        .args(["-sS", "--max-time", "60", "-H", "Expect:", "-x"])
        .arg(format!("socks5h://{}", pair.proxy))
        .arg("--data-binary")
        .arg(format!("@{}", page.display()))
        .arg("-o")
        .arg(&got)
        .arg(format!("http://127.0.0.1:{port}/"))
        .status()
        .expect("curl runs");
    assert!(status.success(), "{status}");
    assert!(std::fs::read(&got).expect("a file") == text, "the page is what was sent");
    let done = |s: &Status| s.links[0].streams_open == 0;
    let c = pair.ship.wait_for("the stream ends", done).links.remove(0).compression.total;
    assert_eq!(c.sent_as, c.sent + 1, "a request goes as it is");
    assert!(c.received_as < c.received * 35 / 100, "{c:?}");
}

#[test]
fn a_peer_that_does_not_compress_gets_bytes_as_they_are() {
    let mut pair = Pair::start_with("200Mbit", "compress = \"off\"");
    let (text, port) = (log_lines(100_000), echo_server());
    // The ship would compress; the shore says no.
    let file = std::fs::read_to_string(&pair.ship.file).expect("a file");
    pair.ship.signal("TERM");
    pair.ship.wait_until_ended();
    pair.ship = Gateway::start(&pair.dir, "ship", &file.replace("\"off\"", "\"auto\""));
    pair.ship.wait_for("the link rises", |s| s.links[0].state == LinkState::Up);
    let mut client = pair.socks(1, &[127, 0, 0, 1], port);
    client.read_exact(&mut [0; 10]).expect("a reply");
    assert!(exchange(client, &text).expect("an echo") == text);
    let done = |s: &Status| s.links[0].streams_open == 0;
    let ship = pair.ship.wait_for("the stream ends", done).links.remove(0);
    assert!(ship.send.link_bytes > 100_000 && ship.compression.total.cpu_us == 0, "{ship:?}");
}

#[test]
fn what_the_hub_does_not_allow_never_ends_cleanly() {
    let pair = Pair::start();
    // Private and not listed; the proxy answers before the hub has refused.
    let client = pair.socks(1, &[10, 1, 2, 3], 80);
    let outcome = exchange(client, b"hello");
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    let refused = match &outcome {
        Ok(answer) => answer.len() == 10 && answer[1] != 0,
        // Which call meets the reset first is a matter of timing.
        Err(e) => matches!(e.kind(), ConnectionReset | NotConnected | BrokenPipe),
    };
    assert!(refused, "{outcome:?}");
    let denied =
        |s: &Status| s.node.dropped.iter().any(|(why, n)| why.contains("denied") && *n == 1);
    pair.shore.wait_for("the hub counts what it denied", denied);
    pair.shore.wait_for_log("a peer's connection was refused");
    let log = pair.shore.log_text();
    assert!(log.contains("peer=ship from=") && log.contains("to=10.1.2.3:80 others=0"), "{log}");
}

#[test]
fn a_bad_file_at_reload_leaves_the_old_one_in_force() {
    let (pair, port) = (Pair::start(), echo_server());
    let good = std::fs::read_to_string(&pair.shore.file).expect("a file");
    std::fs::write(&pair.shore.file, good.replace("routes", "roots")).expect("a bad file");
    pair.shore.signal("HUP");
    pair.shore.wait_for_log("did you mean \"routes\"?");
    let log = pair.shore.log_text();
    assert_eq!(log.matches("there is no key \"roots\"").count(), 1, "once, not twice: {log}");
    assert!(!pair.shore.log_text().contains(&PrivateKey::from_bytes([2; 32]).to_base64()));

    let mut client = pair.socks(1, &[127, 0, 0, 1], port);
    client.read_exact(&mut [0; 10]).expect("a reply");
    assert_eq!(exchange(client, b"still here").expect("an echo"), b"still here");
    let sessions = pair.shore.log_text().matches("link up peer=").count();
    assert_eq!(sessions, 1, "the session went on");
}

#[test]
fn a_good_file_at_reload_changes_the_rules_without_a_new_session() {
    let (pair, port) = (Pair::start(), echo_server());
    let good = std::fs::read_to_string(&pair.shore.file).expect("a file");
    std::fs::write(&pair.shore.file, good.replace("127.0.0.1/32", "127.0.0.2/32"))
        .expect("another file");
    pair.shore.signal("HUP");
    pair.shore.wait_for_log("read again");

    let outcome = exchange(pair.socks(1, &[127, 0, 0, 1], port), b"hello");
    assert!(!matches!(&outcome, Ok(answer) if answer.ends_with(b"hello")), "{outcome:?}");
    assert_eq!(pair.shore.log_text().matches("link up peer=").count(), 1);
}

#[test]
fn a_reload_waits_for_the_outcome_and_fails_when_the_file_is_wrong() {
    let (pair, port) = (Pair::start(), echo_server());
    let good = std::fs::read_to_string(&pair.shore.file).expect("a file");
    std::fs::write(&pair.shore.file, good.replace("routes", "roots")).expect("a bad file");
    let (done, said) = pair.shore.reload();
    assert!(!done && said.contains("did you mean \"routes\"?"), "{said}");
    let log = pair.shore.log_text();
    assert!(!log.contains("read again"), "{log}");
    assert!(log.contains("did you mean \"routes\"?"), "whoever reads the log knows, too: {log}");

    let other = good.replace("127.0.0.1/32", "127.0.0.2/32");
    let other = other.replace("[[peer]]", "memory = \"100MiB\"\n[[peer]]");
    std::fs::write(&pair.shore.file, other).expect("another file");
    let (done, said) = pair.shore.reload();
    assert!(done && said.contains("memory: changed, takes effect after a restart"), "{said}");
    // In force at once, without waiting.
    let outcome = exchange(pair.socks(1, &[127, 0, 0, 1], port), b"hello");
    assert!(!matches!(&outcome, Ok(answer) if answer.ends_with(b"hello")), "{outcome:?}");

    // Another file than the one that the gateway reads again.
    let other = pair.dir.join("other.toml");
    std::fs::copy(&pair.shore.file, &other).expect("a copy");
    let (done, said) = reload(&other);
    assert!(!done && said.contains("shore.toml") && said.contains("is another"), "{said}");
    let link = pair.dir.join("link.toml");
    std::os::unix::fs::symlink(&pair.shore.file, &link).expect("a link");
    let (done, said) = reload(&link);
    assert!(done && said.contains("shore.toml was read and is in force"), "{said}");

    let nobody = Command::new(env!("CARGO_BIN_EXE_bentpipe"))
        .args(["reload", "--socket", "/nonexistent/s"])
        .output()
        .expect("the program runs");
    assert!(!nobody.status.success());
    let said = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(said.contains("no gateway runs here"), "{said}");
}

#[test]
fn sigterm_ends_a_gateway_in_good_order() {
    let mut pair = Pair::start();
    assert_eq!(pair.ship.next_notice().trim(), "READY=1");
    pair.ship.signal("TERM");
    assert_eq!(pair.ship.next_notice().trim(), "STOPPING=1");
    let ended = pair.ship.wait_until_ended();
    assert!(ended.success(), "{ended}: {}", pair.ship.log_text());
    assert!(!pair.ship.admin.exists(), "its admin socket is gone");
    // The hub is told, and does not call it.
    let departed = |s: &Status| s.links[0].state == LinkState::Departed;
    pair.shore.wait_for("the hub knows that it departed", departed);
}

#[test]
fn a_gateway_without_a_session_has_nothing_to_wait_for_when_it_ends() {
    let mut pair = Pair::start();
    let file = std::fs::read_to_string(&pair.ship.file).expect("a file");
    pair.shore.kill();
    pair.ship.signal("TERM");
    pair.ship.wait_until_ended();
    pair.ship = Gateway::start(&pair.dir, "ship", &file);
    pair.ship.wait_for("it runs", |s| s.links[0].state == LinkState::Rising);
    // Somebody asks for a connection, and goes away.
    drop(pair.socks(1, &[127, 0, 0, 1], 9));
    pair.ship.wait_for("the client is gone", |s| s.links[0].streams_total == 1);
    let begin = Instant::now();
    pair.ship.signal("TERM");
    assert!(pair.ship.wait_until_ended().success());
    // What open connections are given is 10 s.
    assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
}

fn up(config: &str) -> Output {
    let dir = scratch_dir();
    let file = dir.join("n.toml");
    std::fs::write(&file, config).expect("a configuration");
    // One that does not refuse would stay.
    let output = Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_bentpipe"), "up"])
        .arg(&file)
        .env("STATE_DIRECTORY", &dir)
        .output()
        .expect("the program runs");
    let _ = std::fs::remove_dir_all(&dir);
    output
}

#[test]
fn a_port_in_use_and_a_second_gateway_get_one_sentence_each() {
    let key = PrivateKey::from_bytes([7; 32]).to_base64();
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let port = taken.local_addr().expect("an address").port();
    let node = |port: u16, admin: &str| {
        format!(
            "[node]\nprivate_key = \"{key}\"\nlisten = \"127.0.0.1:{port}\"\nadmin = \"{admin}\"\n"
        )
    };

    let output = up(&node(port, "n.sock"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{port}")) && text.contains("in use"), "{text}");
    assert!(!text.contains("panicked"), "{text}");

    let pair = Pair::start();
    let output = up(&node(free_port(), &pair.ship.admin.display().to_string()));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("another gateway answers on"), "{text}");
    let pid = pair.ship.status().expect("it answers").node.pid;
    assert!(text.contains(&format!("runs already, process {pid}, with ")), "{text}");
    pair.ship.status().expect("the first one goes on");
}

#[test]
fn the_status_can_be_watched_in_a_pipe_and_its_counters_are_explained() {
    let pair = Pair::start();
    let first_lines = |options: &str, lines: usize| {
        let script = format!(
            "timeout 60 {} status --socket {} {options} | head -n {lines}",
            env!("CARGO_BIN_EXE_bentpipe"),
            pair.ship.admin.display()
        );
        let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(complaint.is_empty(), "a reader that has enough is no fault: {complaint}");
        String::from_utf8(output.stdout).expect("text")
    };
    let documents = first_lines("--watch=1 --json", 3);
    assert_eq!(documents.lines().count(), 3, "{documents}");
    let uptimes: Vec<u64> = documents
        .lines()
        .map(|line| serde_json::from_str::<Status>(line).expect("one document a line"))
        .map(|status| status.node.uptime_ms)
        .collect();
    assert!(uptimes.windows(2).all(|w| w[0] < w[1]), "{uptimes:?}");
    // As text, one after the other, without what only a terminal understands.
    let text = first_lines("--watch=1", 60);
    assert!(text.matches("PEER").count() >= 2, "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    let explained = first_lines("--explain", 100);
    assert!(explained.contains("wrong mac1") && explained.contains("public_key"), "{explained}");
}

/// Each of two nodes with one key ends the session of the other.
#[test]
fn two_nodes_with_one_key_are_told_at_the_end_that_they_call() {
    let pair = Pair::start_with("200Mbit", "keepalive = \"1s\"");
    assert_eq!(pair.shore.status().expect("it runs").links[0].twins, None);
    let file = std::fs::read_to_string(&pair.ship.file).expect("a file");
    let port = |key: &str| {
        let line = file.lines().find(|line| line.starts_with(key)).expect(key);
        line.rsplit(':').next().expect("a port").trim_end_matches('"').to_owned()
    };
    let (listen, proxy) = (free_port(), free_port());
    let copy = file
        .replacen(&port("listen"), &listen.to_string(), 1)
        .replacen(&port("proxy"), &proxy.to_string(), 1)
        .replace("ship.sock", "copy.sock");
    let _copy = Gateway::start(&pair.dir, "copy", &copy);
    let status = pair.shore.wait_for("two are seen", |s| s.links[0].twins.is_some());
    let mut seen = status.links[0].twins.clone().expect("two");
    let mut both = [port("listen"), listen.to_string()].map(|port| format!("127.0.0.1:{port}"));
    seen.sort();
    both.sort();
    assert_eq!(seen, both);
    pair.shore.wait_for_log("two nodes seem to use the key of this peer");
}

#[test]
fn a_test_is_content_with_what_a_cap_leaves_and_names_one_that_may_be_at_the_other_end() {
    let pair = Pair::start_with("20Mbit", "[[peer.class]]\nname = \"bulk\"\ncap = \"2Mbit\"");
    let test = |way: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bentpipe"));
        command.args(["test", "shore", "--for", "2", way, "--socket"]).arg(&pair.ship.admin);
        let output = command.output().expect("the program runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = test("--send");
    assert!(said.contains("%, bulk at most 2)") && !said.contains("Mbit/s that"), "{said}");
    let said = test("--receive");
    assert!(said.contains("of the 20 Mbit/s that receive says; a `cap` of bulk in"), "{said}");
}
