//! The server behind the hub: whoever connects asks for so many bytes, eight of them that say
//! how many, and gets them.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use os::poll::{Events, Interest, Poller, Waker};

/// Its port.
pub const PORT: u16 = 7007;
/// A small answer.
pub const SMALL: u64 = 1_000;
/// What is written at once.
const PIECE: usize = 64 << 10;

/// Tokens of the poller; connections follow.
const LISTENER: u64 = 0;
const END: u64 = 1;
const FIRST: u64 = 2;

/// The server, on a thread of its own until it is dropped.
pub struct Server {
    end: Waker,
    thread: Option<JoinHandle<()>>,
}

struct Guest {
    stream: TcpStream,
    asked: Vec<u8>,
    /// Bytes that it is to get yet, once it has said how many.
    left: Option<u64>,
}

impl Server {
    /// Starts it on this address, in the namespace of the calling thread.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(address: Ipv4Addr) -> Result<Server, String> {
        let text = |e: io::Error| format!("the server does not start: {e}");
        let listener = TcpListener::bind((address, PORT)).map_err(text)?;
        listener.set_nonblocking(true).map_err(text)?;
        let end = Waker::new().map_err(|e| e.to_string())?;
        let poller = Poller::new().map_err(|e| e.to_string())?;
        poller.add(&listener, LISTENER, Interest::READ).map_err(|e| e.to_string())?;
        poller.add(&end, END, Interest::READ).map_err(|e| e.to_string())?;
        let thread = thread::Builder::new().name("server".into());
        let thread = thread.spawn(move || serve(&listener, poller)).map_err(text)?;
        Ok(Server { end, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.wake();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Until the waker is woken. A connection's slot is given to the next one.
fn serve(listener: &TcpListener, mut poller: Poller) {
    let mut events = Events::with_capacity(256);
    let (mut guests, mut free) = (Vec::<Option<Guest>>::new(), Vec::new());
    let content = vec![0x5a; PIECE];
    while poller.wait(&mut events, None).is_ok() {
        for event in events.iter() {
            match event.token {
                END => return,
                LISTENER => {
                    while let Ok((stream, _)) = listener.accept() {
                        let at = free.pop().unwrap_or(guests.len());
                        let ready = stream.set_nonblocking(true).is_ok()
                            && stream.set_nodelay(true).is_ok()
                            && poller.add(&stream, FIRST + at as u64, Interest::READ).is_ok();
                        let guest = Guest { stream, asked: Vec::with_capacity(8), left: None };
                        match guests.get_mut(at) {
                            _ if !ready => free.extend((at < guests.len()).then_some(at)),
                            Some(place) => *place = Some(guest),
                            None => guests.push(Some(guest)),
                        }
                    }
                }
                token => {
                    let at = (token - FIRST) as usize;
                    let Some(guest) = guests[at].as_mut() else { continue };
                    if !guest.turn(&poller, token, &content) {
                        guests[at] = None;
                        free.push(at);
                    }
                }
            }
        }
    }
}

impl Guest {
    /// Takes the question, then gives the answer; false at the end.
    fn turn(&mut self, poller: &Poller, token: u64, content: &[u8]) -> bool {
        if self.left.is_none() {
            let mut byte = [0; 8];
            match self.stream.read(&mut byte[..8 - self.asked.len()]) {
                Ok(0) => return false,
                Ok(n) => self.asked.extend_from_slice(&byte[..n]),
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            }
            let Ok(asked) = <[u8; 8]>::try_from(&self.asked[..]) else { return true };
            self.left = Some(u64::from_be_bytes(asked));
            // From here on only room to write is news.
            if poller.modify(&self.stream, token, Interest::WRITE).is_err() {
                return false;
            }
        }
        let left = self.left.get_or_insert(0);
        while *left > 0 {
            let piece = (*left).min(content.len() as u64) as usize;
            match self.stream.write(&content[..piece]) {
                Ok(n) => *left -= n as u64,
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_for_bytes_gets_as_many() {
        let address = Ipv4Addr::new(127, 200, (std::process::id() % 250) as u8, 7);
        let server = Server::start(address).unwrap();
        for bytes in [0, 5, SMALL, 3 * PIECE as u64 + 1] {
            let mut stream = TcpStream::connect((address, PORT)).unwrap();
            stream.write_all(&bytes.to_be_bytes()).unwrap();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).unwrap();
            assert_eq!(heard.len() as u64, bytes);
        }
        drop(server);
    }
}
