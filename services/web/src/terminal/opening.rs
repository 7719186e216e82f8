//! How a host's connection begins, and how long the terminal waits for that.
//!
//! A host that says nothing may wait for a server that speaks first, so its connection soon goes
//! back to the gateway. Browsers open connections before they need them, too: where the server is
//! known to speak HTTP, which it does not begin, the terminal waits
//! (docs/decisions/silent-connections-wait-where-http-is-spoken.md).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bentpipe_web::first::{MAX_HEAD, Verdict, judge};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::shares::HostPlace;

/// A host that says nothing for so long may wait for the server to speak first.
const SILENCE: Duration = Duration::from_millis(100);
/// What it began to say must come to an end by then.
pub const SLOW: Duration = Duration::from_secs(10);
/// So much is judged at every byte: the words of other protocols are short.
const FEW: usize = 256;
/// So long it is waited for where it is known that the server does not begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// While it is waited for, it is looked so often whether that still makes sense.
const LOOK: Duration = Duration::from_millis(500);
/// So long a server is believed to speak HTTP.
const LATELY: Duration = Duration::from_secs(3600);
/// Servers that are remembered.
const SERVERS: usize = 4096;
/// Connections that say nothing at once and are waited for; one host alone, or one /64, has half.
pub const SILENT: usize = 1000;

type Key = (String, SocketAddr);

/// Which servers speak HTTP.
#[derive(Default)]
pub struct Servers(RefCell<BTreeMap<Key, Server>>);

#[derive(Default)]
struct Server {
    /// Requests to which it has not answered yet.
    asked: usize,
    /// It answered one then.
    spoke: Option<Instant>,
}

impl Server {
    fn speaks_http(&self) -> bool {
        self.asked > 0 || self.spoke.is_some_and(|then| then.elapsed() < LATELY)
    }
}

/// A request to a server, until it has answered or failed.
pub struct Asking(Rc<Servers>, Key);

impl Servers {
    /// A host asks a server by HTTP.
    pub fn asked(self: &Rc<Servers>, peer: &str, to: SocketAddr) -> Asking {
        let mut all = self.0.borrow_mut();
        let key = (peer.to_owned(), to);
        if all.len() >= SERVERS && !all.contains_key(&key) {
            let oldest = all.iter().filter(|(_, it)| it.asked == 0).min_by_key(|(_, it)| it.spoke);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.map(|key| all.remove(&key));
        }
        all.entry(key.clone()).or_default().asked += 1;
        Asking(Rc::clone(self), key)
    }

    /// Does this server speak HTTP, or has it been asked by it just now?
    pub fn speak_http(&self, peer: &str, to: SocketAddr) -> bool {
        self.0.borrow().get(&(peer.to_owned(), to)).is_some_and(Server::speaks_http)
    }
}

impl Asking {
    /// It has answered by HTTP, or has not.
    pub fn answered(&self, by_http: bool) {
        if let Some(server) = self.0.0.borrow_mut().get_mut(&self.1) {
            server.spoke = by_http.then(Instant::now);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut all = self.0.0.borrow_mut();
        let Some(server) = all.get_mut(&self.1) else { return };
        server.asked -= 1;
        if !server.speaks_http() {
            all.remove(&self.1);
        }
    }
}

/// What the host says first, of which so much was read, until it is known what that is. While it
/// says nothing it is waited for as long as `makes_sense` says so, if `wait` gives it a place for
/// that.
pub async fn first_bytes(
    stream: &TcpStream,
    mut read: Vec<u8>,
    wait: impl Fn() -> Option<HostPlace>,
    makes_sense: impl Fn() -> bool,
) -> (Verdict, Vec<u8>) {
    match judge(&read) {
        Verdict::More => {}
        verdict => return (verdict, read),
    }
    if read.is_empty() && !speaks(stream, wait, makes_sense).await {
        return (Verdict::Pass, read);
    }
    let (until, mut judged) = (Instant::now() + SLOW, read.len());
    while timeout_at(until, stream.readable()).await.is_ok_and(|ready| ready.is_ok()) {
        read.reserve(MAX_HEAD);
        match stream.try_read_buf(&mut read) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => continue,
            Ok(1..) => {}
            _ => break,
        }
        if !says_more(&read, judged) {
            continue;
        }
        judged = read.len();
        match judge(&read) {
            Verdict::More => {}
            verdict => return (verdict, read),
        }
    }
    (Verdict::Pass, read)
}

/// Is what was read, of which so much was judged, worth another look? All of it is read for that:
/// who sends it byte by byte is not to have it read as often.
fn says_more(read: &[u8], judged: usize) -> bool {
    read.len() <= FEW || read[judged..].contains(&b'\n') || read.len() >= judged + judged / 8
}

/// Waits for the host to say something, or to end; false if its server may be the one to begin.
async fn speaks(
    stream: &TcpStream,
    wait: impl Fn() -> Option<HostPlace>,
    makes_sense: impl Fn() -> bool,
) -> bool {
    let mut byte = [0];
    if let Ok(said) = timeout(SILENCE, stream.peek(&mut byte)).await {
        return said.is_ok();
    }
    let Some(_place) = wait() else { return false };
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && makes_sense() {
        if let Ok(said) = timeout(LOOK, stream.peek(&mut byte)).await {
            return said.is_ok();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u32) -> SocketAddr {
        (std::net::Ipv4Addr::from(n), 80).into()
    }

    #[test]
    fn what_comes_byte_by_byte_is_judged_a_few_hundred_times() {
        let head = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(15_000)).into_bytes();
        let (mut judged, mut times) = (0, 0);
        for n in 1..=head.len() {
            if says_more(&head[..n], judged) {
                (judged, times) = (n, times + 1);
            }
        }
        assert!(times < FEW + 60, "{times}");
        assert_eq!((judged, judge(&head)), (head.len(), Verdict::Http), "it ends a line");
    }

    #[test]
    fn a_server_speaks_http_while_it_is_asked_and_after_it_answered() {
        let servers = Rc::new(Servers::default());
        let known = || servers.speak_http("ship", at(1));
        let (one, two) = (servers.asked("ship", at(1)), servers.asked("ship", at(1)));
        assert!(known() && !servers.speak_http("ship", at(2)) && !servers.speak_http("x", at(1)));
        one.answered(true);
        drop((one, two));
        assert!(known());
        let failed = servers.asked("ship", at(1));
        failed.answered(false);
        drop(failed);
        assert!(!known(), "it may be another server now");
        drop(servers.asked("ship", at(1)));
        assert!(!known() && servers.0.borrow().is_empty(), "nobody heard its answer");
    }

    #[test]
    fn so_many_servers_are_remembered_and_the_oldest_go_first() {
        let servers = Rc::new(Servers::default());
        for n in 0..2 * SERVERS as u32 {
            servers.asked("ship", at(n)).answered(true);
        }
        assert_eq!(servers.0.borrow().len(), SERVERS);
        assert!(servers.speak_http("ship", at(2 * SERVERS as u32 - 1)));
        assert!(!servers.speak_http("ship", at(0)));
    }
}
