//! A file by passive FTP (RFC 959): a session of commands, and a connection for the file.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{
    Fetched, PATIENCE, PIECE, Request, SAMPLE, Served, Wanted, parse_request, receive, send,
};

/// The port of sessions.
pub const PORT: u16 = 21;

/// A server of files.
pub struct Server {
    stop: Arc<AtomicBool>,
    served: Arc<Mutex<Vec<Served>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` until dropped; times are since `origin`.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start(address: IpAddr, origin: Instant) -> io::Result<Server> {
        let listener = TcpListener::bind((address, PORT))?;
        listener.set_nonblocking(true)?;
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
        let thread = thread::Builder::new().name("lab-ftp".into()).spawn({
            let (stop, served) = (stop.clone(), served.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept() {
                        // A client that goes away ends its session, and reports what was missing.
                        Ok((session, _)) => drop(hold(&session, origin, &stop, &served)),
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                }
            }
        })?;
        Ok(Server { stop, served, thread: Some(thread) })
    }

    /// What was noticed of the files that were sent, after the last session's end.
    pub fn stop(mut self) -> Vec<Served> {
        self.end();
        std::mem::take(&mut self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed; what was sent until then still counts.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Answers one client's commands.
fn hold(
    session: &TcpStream,
    origin: Instant,
    stop: &AtomicBool,
    served: &Mutex<Vec<Served>>,
) -> io::Result<()> {
    session.set_nonblocking(false)?;
    session.set_nodelay(true)?;
    session.set_read_timeout(Some(PATIENCE))?;
    let mut out = session;
    out.write_all(b"220 ready\r\n")?;
    let mut waiting = None;
    for line in BufReader::new(session).lines() {
        let line = line?;
        let (command, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let reply = match command {
            "USER" => "331 any word\r\n".to_owned(),
            "PASS" => "230 welcome\r\n".to_owned(),
            "TYPE" => "200 as it is\r\n".to_owned(),
            "PASV" => {
                let listener = TcpListener::bind((session.local_addr()?.ip(), 0))?;
                let reply = passive(listener.local_addr()?)?;
                waiting = Some(listener);
                reply
            }
            "RETR" => {
                let listener = waiting.take().ok_or(io::ErrorKind::InvalidInput)?;
                let request = parse_request(&format!("GET /{argument} HTTP/1.0"));
                let request = request.ok_or(io::ErrorKind::InvalidInput)?;
                out.write_all(b"150 it comes\r\n")?;
                let (data, _) = listener.accept()?;
                data.set_nodelay(true)?;
                data.set_write_timeout(Some(PATIENCE))?;
                let request = Request { bare: true, ..request };
                let one = send(&data, &request, (origin, SAMPLE), stop)?;
                served.lock().unwrap_or_else(PoisonError::into_inner).push(one);
                "226 that was it\r\n".to_owned()
            }
            _ => "502 not here\r\n".to_owned(),
        };
        out.write_all(reply.as_bytes())?;
    }
    Ok(())
}

fn passive(at: SocketAddr) -> io::Result<String> {
    let IpAddr::V4(address) = at.ip() else {
        return Err(io::Error::other("PASV knows no IPv6"));
    };
    let ([a, b, c, d], [high, low]) = (address.octets(), at.port().to_be_bytes());
    Ok(format!("227 at ({a},{b},{c},{d},{high},{low})\r\n"))
}

/// Where a server waits that has said so.
fn place(reply: &str) -> Option<SocketAddr> {
    let (_, list) = reply.split_once('(')?;
    let numbers: Vec<u8> =
        list.split(')').next()?.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let [a, b, c, d, high, low] = numbers[..] else { return None };
    Some((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])).into())
}

/// Fetches a file as [`super::fetch`] does, by a session of its own.
///
/// # Errors
/// If the server refuses, or what comes is not the file.
pub fn fetch(
    server: IpAddr,
    wanted: Wanted,
    origin: Instant,
    progress: &AtomicUsize,
) -> io::Result<Fetched> {
    let begin = Instant::now();
    let session = TcpStream::connect_timeout(&(server, PORT).into(), PATIENCE)?;
    fetch_by(session, begin, wanted, origin, progress)
}

fn fetch_by(
    session: TcpStream,
    begin: Instant,
    wanted: Wanted,
    origin: Instant,
    progress: &AtomicUsize,
) -> io::Result<Fetched> {
    let started = begin.duration_since(origin).as_secs_f64();
    let connected = begin.elapsed().as_secs_f64();
    session.set_nodelay(true)?;
    session.set_read_timeout(Some(PATIENCE))?;
    let mut replies = BufReader::new(session.try_clone()?);
    expect(&mut replies, "220")?;
    let mut say = |command: &str, code: &str| {
        (&session).write_all(format!("{command}\r\n").as_bytes())?;
        expect(&mut replies, code)
    };
    say("USER anonymous", "331")?;
    say("PASS lab", "230")?;
    say("TYPE I", "200")?;
    let reply = say("PASV", "227")?;
    let at = place(&reply).ok_or_else(|| io::Error::other(format!("no place: {reply}")))?;
    let data = TcpStream::connect_timeout(&at, PATIENCE)?;
    data.set_read_timeout(Some(PATIENCE))?;
    let text = if wanted.text { "text/" } else { "" };
    say(&format!("RETR {text}{}/{}", wanted.seed, wanted.bytes), "150")?;
    let noted = Fetched { started, connected, asked: wanted.bytes, ..Fetched::default() };
    let reader = BufReader::with_capacity(PIECE, data);
    let fetched = receive(reader, wanted, noted, (origin, begin), progress)?;
    if fetched.bytes == fetched.asked {
        expect(&mut replies, "226")?;
    }
    Ok(fetched)
}

fn expect(replies: &mut impl BufRead, code: &str) -> io::Result<String> {
    let mut reply = String::new();
    replies.read_line(&mut reply)?;
    match reply.starts_with(code) {
        true => Ok(reply),
        false => Err(io::Error::other(format!("the server says {reply:?} in place of {code}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_arrives_whole_by_a_session() {
        let (begin, address) = (Instant::now(), IpAddr::from([127, 0, 0, 1]));
        let listener = TcpListener::bind((address, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(place(&passive(at).unwrap()), Some(at));
        for bad in ["227", "227 (1,2,3,4,5)", "227 (1,2,3,4,5,256)"] {
            assert_eq!(place(bad), None);
        }
        let served = thread::spawn(move || {
            let (session, _) = listener.accept().unwrap();
            let served = Mutex::default();
            hold(&session, begin, &AtomicBool::new(false), &served).unwrap();
            served.into_inner().unwrap()
        });
        let session = TcpStream::connect(at).unwrap();
        let got = fetch_by(session, begin, Wanted::whole(7, 300_001), begin, &AtomicUsize::new(0));
        let got = got.unwrap();
        assert_eq!((got.bytes, got.received.last().unwrap().1), (300_001, 300_001.0));
        assert!(got.connected <= got.first_byte && got.first_byte <= got.complete);
        assert_eq!(served.join().unwrap().len(), 1);
    }
}
