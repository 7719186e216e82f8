//! TCP as programs use it, from any host of the network. Every wait has an end.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use os::netns::NetNs;
use socket2::SockRef;
use units::Rng;

use crate::harness::PATIENCE;

/// The server's usual address and that of IPv6.
pub const SERVER: &str = "10.2.0.2:7000";
pub const SERVER_V6: &str = "[fd02::2]:7000";
/// The client's.
pub const CLIENT: &str = "10.1.0.2:7000";

/// Opens a connection from `ns`.
pub fn try_connect(ns: &NetNs, to: &str) -> io::Result<TcpStream> {
    connect_within(ns, to, PATIENCE)
}

/// The same, and its calls, with this patience.
pub fn connect_within(ns: &NetNs, to: &str, time: Duration) -> io::Result<TcpStream> {
    let to: SocketAddr = to.parse().expect("an address");
    let stream = ns.run(|| TcpStream::connect_timeout(&to, time))?;
    be_patient(&stream, time);
    Ok(stream)
}

/// Opens a connection that must stand.
pub fn connect(ns: &NetNs, to: &str) -> TcpStream {
    try_connect(ns, to).unwrap_or_else(|e| panic!("cannot connect to {to}: {e}"))
}

fn be_patient(stream: &TcpStream, time: Duration) {
    stream.set_read_timeout(Some(time)).expect("a socket");
    stream.set_write_timeout(Some(time)).expect("a socket");
}

/// Listens in `ns`.
pub fn listen(ns: &NetNs, at: &str) -> TcpListener {
    let listener = ns.run(|| TcpListener::bind(at)).unwrap_or_else(|e| panic!("{at}: {e}"));
    SockRef::from(&listener).listen(1024).expect("a longer queue");
    listener.set_nonblocking(true).expect("a socket");
    listener
}

/// Nobody listens from here on. A child of another test, between fork and exec, may hold the socket
/// for a moment after it is closed here; so it is shut down.
pub fn stop_listening(listener: TcpListener) {
    SockRef::from(&listener).shutdown(Shutdown::Both).expect("it listens");
}

/// The next connection, or `None` if none comes in `time`.
pub fn accept_within(listener: &TcpListener, time: Duration) -> Option<TcpStream> {
    let begin = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("a socket");
                be_patient(&stream, PATIENCE);
                return Some(stream);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => panic!("accept: {e}"),
        }
        if begin.elapsed() > time {
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

pub fn accept(listener: &TcpListener) -> TcpStream {
    accept_within(listener, PATIENCE).expect("a connection arrives")
}

/// One connection through the network: the client's end and the server's.
pub fn joined(client: &NetNs, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let to = listener.local_addr().expect("an address").to_string();
    let near = connect(client, &to);
    (near, accept(listener))
}

/// Bytes that nothing compresses and no shift leaves equal.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// How a direction ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Clean,
    Reset,
}

/// Reads to the end, whatever kind of end it is.
pub fn read_to_end(stream: &mut TcpStream) -> (Vec<u8>, End) {
    let mut bytes = Vec::new();
    let mut buf = [0; 65_536];
    loop {
        match stream.read(&mut buf) {
            Ok(0) => return (bytes, End::Clean),
            Ok(n) => bytes.extend_from_slice(&buf[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return (bytes, End::Reset),
            Err(e) => panic!("after {} bytes: {e}", bytes.len()),
        }
    }
}

/// Reads exactly what is expected.
pub fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).expect("all bytes arrive");
    assert!(got == bytes, "the bytes that arrive are those that were sent");
}

/// Ends a connection by a reset.
pub fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket");
}

/// Writes all of it from a thread of its own, and then ends the direction.
pub fn send_all(stream: &TcpStream, bytes: Vec<u8>) -> JoinHandle<io::Result<()>> {
    let mut stream = stream.try_clone().expect("a descriptor");
    thread::spawn(move || {
        stream.write_all(&bytes)?;
        stream.shutdown(Shutdown::Write)
    })
}

/// How long one of several attempts may take: far less than all of them.
const ATTEMPT: Duration = Duration::from_secs(8);

/// A question and its answer over a new connection: does the way stand, both ways? For those
/// who ask again while it does not: an attempt that meets a black hole is given up soon. Wrong
/// bytes are never a matter of time.
pub fn echo_once(client: &NetNs, listener: &TcpListener) -> io::Result<()> {
    echo_within(client, listener, ATTEMPT)
}

/// The same with as much patience as there is; it must work.
pub fn check_echo(client: &NetNs, listener: &TcpListener) {
    echo_within(client, listener, PATIENCE).expect("a connection works both ways");
}

/// Is this the end of patience, and no answer?
pub fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn echo_within(client: &NetNs, listener: &TcpListener, time: Duration) -> io::Result<()> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let question = ASKED.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let answer = question.map(|byte| !byte);
    let to = listener.local_addr().expect("an address").to_string();
    let mut near = connect_within(client, &to, time)?;
    near.write_all(&question)?;
    let mut far = answering(&near, listener, question, time)?;
    far.write_all(&answer)?;
    let mut word = [0; 4];
    near.read_exact(&mut word)?;
    assert_eq!(word, answer);
    near.shutdown(Shutdown::Write)?;
    expect_end(&mut far)?;
    drop(far);
    expect_end(&mut near)
}

/// The server's end of the connection that asks this question.
fn answering(
    near: &TcpStream,
    listener: &TcpListener,
    question: [u8; 4],
    time: Duration,
) -> io::Result<TcpStream> {
    let (begin, mut why) = (Instant::now(), io::ErrorKind::TimedOut.into());
    while begin.elapsed() < time {
        if let Some(mut far) = accept_within(listener, Duration::from_millis(20)) {
            be_patient(&far, time);
            let mut word = [0; 4];
            match far.read_exact(&mut word) {
                Ok(()) if word == question => return Ok(far),
                // That of an attempt that was given up may come late.
                Ok(()) => {}
                Err(e) => why = e,
            }
        }
        // The client may be told that there is no way.
        if let Some(e) = near.take_error()? {
            return Err(e);
        }
    }
    Err(why)
}

/// A clean end, and nothing before it.
fn expect_end(stream: &mut TcpStream) -> io::Result<()> {
    let mut rest = Vec::new();
    stream.take(1).read_to_end(&mut rest)?;
    assert!(rest.is_empty(), "nothing but the end is left to read");
    Ok(())
}

/// Polls a socket for its end for a while: `None` while it is still open.
pub fn end_within(stream: &mut TcpStream, time: Duration) -> Option<End> {
    let begin = Instant::now();
    let mut buf = [0; 65_536];
    stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
    while begin.elapsed() < time {
        match stream.read(&mut buf) {
            Ok(0) => return Some(End::Clean),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Some(End::Reset),
            Err(e) if is_late(&e) || e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => panic!("{e}"),
        }
    }
    None
}
