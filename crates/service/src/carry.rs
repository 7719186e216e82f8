//! Bytes between two sockets, both ways, with their ends and resets.

use std::io::{self, ErrorKind};

use os::tcp::Stream;

/// Bytes that one direction moves before other connections have their turn.
const TURN: usize = 1 << 20;

/// Two sockets that are carried to each other. Dropped before both directions have ended, it
/// resets both.
pub struct Carried {
    /// The two sockets.
    pub ends: [Stream; 2],
    there: Direction,
    back: Direction,
}

/// One direction.
#[derive(Default)]
struct Direction {
    /// Read, and not taken by the destination.
    held: Vec<u8>,
    /// Its source has ended, and its destination been told.
    ended: bool,
    told: bool,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the first of the two.
    There,
    /// To the first of the two.
    Back,
}

/// Hears what was read, of which nothing is the end, and may add something else that is moved.
pub type Reads<'a> = dyn FnMut(Way, &[u8], &mut Vec<u8>) -> Verdict + 'a;

/// What is moved of what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes themselves.
    AsItIs,
    /// What was added.
    Another,
}

/// How a turn ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing can be moved until there is news.
    Rests,
    /// It gave way to others.
    HasMore,
    /// Both directions have ended in good order.
    Over,
}

impl Carried {
    /// Carries `a` to `b` and back.
    pub fn new(a: Stream, b: Stream) -> Carried {
        Carried { ends: [a, b], there: Direction::default(), back: Direction::default() }
    }

    /// Moves what can be moved now; `count` hears how much.
    ///
    /// # Errors
    /// If one of the two was reset.
    pub fn turn(&mut self, room: &mut [u8], mut count: impl FnMut(usize)) -> io::Result<Turn> {
        self.turn_with(room, &mut |_, bytes, _| {
            count(bytes.len());
            Verdict::AsItIs
        })
    }

    /// The same, for who reads along and may move something else instead.
    ///
    /// # Errors
    /// If one of the two was reset.
    pub fn turn_with(&mut self, room: &mut [u8], reads: &mut Reads<'_>) -> io::Result<Turn> {
        let [a, b] = &self.ends;
        let more = [
            self.there.pump(a, b, room, &mut |bytes, out| reads(Way::There, bytes, out))?,
            self.back.pump(b, a, room, &mut |bytes, out| reads(Way::Back, bytes, out))?,
        ];
        if self.there.told && self.back.told {
            // Only now: whoever dies before resets both.
            a.close_in_order()?;
            b.close_in_order()?;
            return Ok(Turn::Over);
        }
        Ok(if more.contains(&true) { Turn::HasMore } else { Turn::Rests })
    }
}

impl Direction {
    /// True if it gave way.
    fn pump(
        &mut self,
        from: &Stream,
        to: &Stream,
        room: &mut [u8],
        reads: &mut dyn FnMut(&[u8], &mut Vec<u8>) -> Verdict,
    ) -> io::Result<bool> {
        let mut moved = 0;
        while !self.told && moved < TURN {
            let step = if !self.held.is_empty() {
                to.write(&self.held).map(|n| drop(self.held.drain(..n)))
            } else if self.ended {
                self.told = true;
                to.shutdown_write()
            } else {
                from.read(room).and_then(|n| {
                    moved += n;
                    self.ended = n == 0;
                    if reads(&room[..n], &mut self.held) == Verdict::Another {
                        return Ok(());
                    }
                    let taken = match to.write(&room[..n]) {
                        Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
                        taken => taken?,
                    };
                    self.held.extend_from_slice(&room[taken..n]);
                    Ok(())
                })
            };
            match step {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                other => other?,
            }
        }
        Ok(!self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use os::tcp::{TcpOptions, pair};

    /// Turns until it ends, or for a while.
    fn carry(carried: &mut Carried) -> io::Result<Turn> {
        let mut room = [0; 4096];
        for _ in 0..100 {
            match carried.turn(&mut room, |_| ())? {
                Turn::Over => return Ok(Turn::Over),
                _ => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
        Ok(Turn::Rests)
    }

    fn read(stream: &Stream) -> io::Result<Vec<u8>> {
        let mut buf = [0; 100];
        let begin = std::time::Instant::now();
        loop {
            match stream.read(&mut buf) {
                Err(e) if e.kind() == ErrorKind::WouldBlock && begin.elapsed().as_secs() < 15 => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                read => return read.map(|n| buf[..n].to_vec()),
            }
        }
    }

    #[test]
    fn bytes_ends_and_resets_are_carried() {
        for orderly in [true, false] {
            let (near, a) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
            let (b, far) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
            let mut carried = Carried::new(a, b);
            near.write(b"request").unwrap();
            near.shutdown_write().unwrap();
            assert_eq!(carry(&mut carried).unwrap(), Turn::Rests);
            assert_eq!((read(&far).unwrap(), read(&far).unwrap()), (b"request".to_vec(), vec![]));
            far.write(b"answer").unwrap();
            if orderly {
                far.shutdown_write().unwrap();
                assert_eq!(carry(&mut carried).unwrap(), Turn::Over);
                drop(carried);
                let got = (read(&near).unwrap(), read(&near).unwrap());
                assert_eq!(got, (b"answer".to_vec(), vec![]));
            } else {
                assert_eq!(carry(&mut carried).unwrap(), Turn::Rests);
                drop(far);
                carry(&mut carried).unwrap_err();
                drop(carried);
                assert_eq!(read(&near).unwrap(), b"answer");
                assert_eq!(read(&near).unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
        }
    }
}
