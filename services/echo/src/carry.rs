//! Bytes between two sockets, both ways, with their ends and resets.

use std::io::{self, ErrorKind};

use os::poll::{Events, Interest, Poller};
use os::tcp::Stream;

const BUFFER: usize = 64 << 10;

/// One direction.
struct Direction {
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    /// Its source has ended, and its destination been told.
    ended: bool,
    told: bool,
}

/// Carries until both directions have ended in good order.
///
/// # Errors
/// If one of the two was reset. Both are dropped then, which resets the other.
pub fn carry(a: Stream, b: Stream, count: impl Fn(usize)) -> io::Result<()> {
    let mut poller = Poller::new().map_err(io::Error::other)?;
    for (socket, token) in [(&a, 0), (&b, 1)] {
        let both = Interest::READ_WRITE.edge();
        poller.add(socket, token, both).map_err(io::Error::other)?;
    }
    let mut events = Events::with_capacity(2);
    let (mut there, mut back) = (Direction::new(), Direction::new());
    loop {
        there.pump(&a, &b, &count)?;
        back.pump(&b, &a, &count)?;
        if there.told && back.told {
            // Only now: whoever dies before resets both.
            a.close_in_order()?;
            return b.close_in_order();
        }
        poller.wait(&mut events, None).map_err(io::Error::other)?;
        for event in events.iter().filter(|event| event.failed) {
            let socket = if event.token == 0 { &a } else { &b };
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
        }
    }
}

impl Direction {
    fn new() -> Direction {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Direction { buffer, begin: 0, end: 0, ended: false, told: false }
    }

    /// Moves what can be moved now.
    fn pump(&mut self, from: &Stream, to: &Stream, count: &impl Fn(usize)) -> io::Result<()> {
        while !self.told {
            let moved = if self.begin < self.end {
                to.write(&self.buffer[self.begin..self.end]).map(|n| self.begin += n)
            } else if self.ended {
                self.told = true;
                to.shutdown_write()
            } else {
                from.read(&mut self.buffer).map(|n| {
                    (self.begin, self.end, self.ended) = (0, n, n == 0);
                    count(n);
                })
            };
            match moved {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                other => other?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use os::tcp::{TcpOptions, pair};
    use std::thread;

    fn read_to_end(stream: &Stream) -> io::Result<Vec<u8>> {
        let (mut all, mut buf) = (Vec::new(), [0; 4096]);
        loop {
            match stream.read(&mut buf) {
                Ok(0) => return Ok(all),
                Ok(n) => all.extend_from_slice(&buf[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(std::time::Duration::from_millis(1));
                }
                Err(e) => return Err(e),
            }
        }
    }

    #[test]
    fn bytes_ends_and_resets_are_carried() {
        for orderly in [true, false] {
            let (near, a) = pair(&TcpOptions::default()).unwrap();
            let (b, far) = pair(&TcpOptions::default()).unwrap();
            let carrier = thread::spawn(move || carry(a, b, |_| ()));
            near.write(b"request").unwrap();
            near.shutdown_write().unwrap();
            assert_eq!(read_to_end(&far).unwrap(), b"request");
            far.write(b"answer").unwrap();
            if orderly {
                far.shutdown_write().unwrap();
                assert_eq!(read_to_end(&near).unwrap(), b"answer");
                carrier.join().unwrap().unwrap();
            } else {
                drop(far);
                let end = read_to_end(&near).unwrap_err();
                assert_eq!(end.kind(), ErrorKind::ConnectionReset);
                carrier.join().unwrap().unwrap_err();
            }
        }
    }
}
