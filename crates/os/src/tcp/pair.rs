//! Two TCP sockets connected with each other over loopback: a reset differs from an end.

use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};

use super::{Connect, ConnectError, Listener, Stream, TcpOptions, connect};
use crate::sys::check;

/// How long the kernel may take to connect a socket with another on the same host. It has done
/// so before the call returns, unless it is very busy.
const PATIENCE_MS: libc::c_int = 50;

/// Two sockets that are connected with each other over the loopback interface, which must be
/// up, with these options each. Unlike a pair of Unix sockets they tell a reset from an end. If the
/// holder of one dies, the other reads a reset, until [`Stream::close_in_order`].
///
/// # Errors
/// If the system has no descriptors or ports left, or the loopback interface is down.
pub fn pair(near: &TcpOptions, far: &TcpOptions) -> io::Result<(Stream, Stream)> {
    let local = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = Listener::bind(local, far).map_err(|e| failed(&e))?;
    let to = listener.local_addr();
    let ours =
        connect(&Connect { to, from: None, mark: None, options: near }).map_err(|e| match e {
            ConnectError::Unreachable(e) => e,
            ConnectError::SourceInUse => ErrorKind::AddrInUse.into(),
            ConnectError::Failed(e) => failed(&e),
        })?;
    let own = ours.local_addr()?;
    // Whoever else knows of the port does not have our address.
    for _ in 0..16 {
        let accepted = match listener.accept() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                wait_for(&listener)?;
                listener.accept()?
            }
            other => other?,
        };
        if accepted.client == own {
            return Ok((ours, accepted.stream));
        }
    }
    Err(ErrorKind::TimedOut.into())
}

fn failed(e: &crate::OsError) -> io::Error {
    e.errno().map_or(ErrorKind::Other.into(), io::Error::from_raw_os_error)
}

fn wait_for(listener: &Listener) -> io::Result<()> {
    let (fd, events) = (listener.as_fd().as_raw_fd(), libc::POLLIN);
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one pollfd that outlives the call.
    check(unsafe { libc::poll(&mut poll, 1, PATIENCE_MS) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closing::{Closer, Shared};

    fn plain() -> TcpOptions {
        TcpOptions::default()
    }

    fn read(stream: &Stream) -> io::Result<Vec<u8>> {
        let mut buf = [0; 100];
        for _ in 0..1000 {
            match stream.read(&mut buf) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                other => return other.map(|n| buf[..n].to_vec()),
            }
        }
        panic!("nothing comes");
    }

    #[test]
    fn a_pair_tells_an_end_from_a_reset() {
        let (a, b) = pair(&plain(), &plain()).unwrap();
        a.write(b"hello").unwrap();
        a.shutdown_write().unwrap();
        assert_eq!(read(&b).unwrap(), b"hello");
        assert_eq!(read(&b).unwrap(), b"");
        b.write(b"still open").unwrap();
        assert_eq!(read(&a).unwrap(), b"still open");
        let (a, b) = pair(&plain(), &plain()).unwrap();
        drop(a);
        assert_eq!(read(&b).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_pair_stands_whatever_segments_are_asked_for() {
        for longest in [0, 87, 88, 32_767, 32_768, 1 << 20, u32::MAX] {
            let options = TcpOptions { longest_segment: Some(longest), ..plain() };
            let (a, b) = pair(&options, &options).unwrap_or_else(|e| panic!("{longest}: {e}"));
            a.write(b"hello").unwrap();
            assert_eq!(read(&b).unwrap(), b"hello");
        }
    }

    #[test]
    fn what_is_no_connection_is_not_taken_for_one() {
        let closer = Closer::start().unwrap();
        let given = |fd| Stream::given(Shared::new(fd, &closer));
        let (a, b) = pair(&plain(), &plain()).unwrap();
        assert!(given(a.into()).is_ok(), "the other end is open");
        drop(b);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(given(file.into()).is_err());
        let (unix, _other) = crate::seqpacket::SeqPacket::pair().unwrap();
        assert!(given(unix.into()).is_err());
        let listener =
            Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), &TcpOptions::default()).unwrap();
        let listening = listener.as_fd().try_clone_to_owned().unwrap();
        assert!(given(listening).is_err(), "it is connected with nobody");
    }
}
