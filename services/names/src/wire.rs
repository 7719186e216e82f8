//! A socket with what has come and what is to go.

use std::io::{self, ErrorKind};

use os::tcp::Stream;

/// See the module.
pub struct Wire {
    pub stream: Stream,
    pub read: Vec<u8>,
    pub written: Vec<u8>,
    /// How much may have come and not been taken, in bytes.
    most: usize,
}

impl Wire {
    pub fn new(stream: Stream, written: Vec<u8>, most: usize) -> Wire {
        Wire { stream, read: Vec::new(), written, most }
    }

    /// Writes and reads until that would block.
    ///
    /// # Errors
    /// If the socket has ended, in either way. `InvalidData`: as much has come as may.
    pub fn turn(&mut self) -> io::Result<()> {
        self.flush()?;
        let mut room = [0; 16 << 10];
        while self.read.len() < self.most {
            let room_left = room.len().min(self.most - self.read.len());
            let room = &mut room[..room_left];
            match self.stream.read(room) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.read.extend_from_slice(&room[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        // Nobody waits for so much with good reason.
        Err(ErrorKind::InvalidData.into())
    }

    /// Writes until that would block.
    ///
    /// # Errors
    /// If the socket has ended.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.written.is_empty() {
            match self.stream.write(&self.written) {
                Ok(n) => drop(self.written.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// A message behind its length, as they go by TCP (RFC 7766), from the byte `at` on.
    pub fn message(&self, at: usize) -> Option<Vec<u8>> {
        let (len, rest) = self.read.get(at..)?.split_first_chunk::<2>()?;
        Some(rest.get(..usize::from(u16::from_be_bytes(*len)))?.to_vec())
    }
}
