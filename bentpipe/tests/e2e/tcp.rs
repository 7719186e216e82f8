//! TCP as programs use it, from any host of the network. Every wait has an end.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
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
    let to: SocketAddr = to.parse().expect("an address");
    let stream = ns.run(|| TcpStream::connect_timeout(&to, PATIENCE))?;
    with_patience(&stream);
    Ok(stream)
}

/// Opens a connection that must stand.
pub fn connect(ns: &NetNs, to: &str) -> TcpStream {
    try_connect(ns, to).unwrap_or_else(|e| panic!("cannot connect to {to}: {e}"))
}

fn with_patience(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
}

/// Listens in `ns`.
pub fn listen(ns: &NetNs, at: &str) -> TcpListener {
    let listener = ns.run(|| TcpListener::bind(at)).unwrap_or_else(|e| panic!("{at}: {e}"));
    SockRef::from(&listener).listen(1024).expect("a longer queue");
    listener.set_nonblocking(true).expect("a socket");
    listener
}

/// The next connection, or `None` if none comes in `time`.
pub fn accept_within(listener: &TcpListener, time: Duration) -> Option<TcpStream> {
    let begin = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("a socket");
                with_patience(&stream);
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

/// A question and its answer over a new connection: does the way stand, both ways?
pub fn echo_once(client: &NetNs, listener: &TcpListener) -> io::Result<()> {
    let to = listener.local_addr().expect("an address").to_string();
    let mut near = try_connect(client, &to)?;
    near.write_all(b"ping")?;
    let begin = Instant::now();
    let mut far = loop {
        if let Some(far) = accept_within(listener, Duration::from_millis(20)) {
            break far;
        }
        // The client may be told that there is no way.
        if let Some(e) = near.take_error()? {
            return Err(e);
        }
        if begin.elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    };
    let mut word = [0; 4];
    far.read_exact(&mut word)?;
    far.write_all(b"pong")?;
    near.read_exact(&mut word)?;
    assert_eq!(&word, b"pong");
    near.shutdown(Shutdown::Write)?;
    assert_eq!(read_to_end(&mut far), (vec![], End::Clean));
    drop(far);
    assert_eq!(read_to_end(&mut near), (vec![], End::Clean));
    Ok(())
}

/// [`echo_once`] must work.
pub fn check_echo(client: &NetNs, listener: &TcpListener) {
    echo_once(client, listener).expect("a connection works both ways");
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
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => panic!("{e}"),
        }
    }
    None
}
