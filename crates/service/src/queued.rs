//! The gateway of a program whose one loop both hears and says.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use os::poll::{Interest, Poller};

use crate::client::{Client, Delivery, Error};
use crate::message::Request;
use crate::packet;

/// What may be unsaid, in bytes of packets: a gateway that takes nothing of so much is stuck.
const MOST_UNSAID: usize = 16 << 20;
/// And in sockets, each of which is a descriptor of this program's.
const MOST_SOCKETS: usize = 4_096;

/// A packet, and the socket that goes with it.
type Packet = (Vec<u8>, Option<OwnedFd>);

/// A [`Client`] that never waits for the gateway to hear. The gateway takes no requests of a
/// service that leaves answers unread, so that a loop which waits to be heard, and hears nothing
/// meanwhile, waits for ever. What the gateway does not take yet stays here, in its order.
pub struct Queued {
    client: Client,
    unsaid: VecDeque<Packet>,
    /// Of them, bytes and sockets.
    bytes: usize,
    sockets: usize,
    /// What the poller was told to look for.
    watched: Option<Interest>,
}

impl Queued {
    /// For this gateway.
    pub fn new(client: Client) -> Queued {
        Queued { client, unsaid: VecDeque::new(), bytes: 0, sockets: 0, watched: None }
    }

    /// Has the poller tell under this number when there is something to hear, and room for what
    /// is unsaid: [`Queued::try_next`] does both. To be called before each wait.
    ///
    /// # Errors
    /// If the system has no room to watch one more.
    pub fn watch(&mut self, poller: &Poller, token: u64) -> Result<(), Error> {
        let wanted = if self.unsaid.is_empty() { Interest::READ } else { Interest::READ_WRITE };
        match self.watched {
            Some(watched) if watched == wanted => return Ok(()),
            Some(_) => poller.modify(&self.client, token, wanted),
            None => poller.add(&self.client, token, wanted),
        }
        .map_err(io::Error::other)?;
        self.watched = Some(wanted);
        Ok(())
    }

    /// As [`Client::try_next`]; and says what the gateway takes of what is unsaid.
    ///
    /// # Errors
    /// As [`Client::try_next`].
    pub fn try_next<'a>(&mut self, room: &'a mut [u8]) -> Result<Option<Delivery<'a>>, Error> {
        match self.say_queued() {
            // One that has ended may have said something before.
            Err(Error::Socket(e)) if has_ended(&e) => {
                self.unsaid.clear();
                (self.bytes, self.sockets) = (0, 0);
            }
            said => said?,
        }
        self.client.try_next(room)
    }

    /// Sends a request, with bytes and a socket where it has them; later, if the gateway takes
    /// nothing now.
    ///
    /// # Errors
    /// If the socket fails, the packet would be too long, or too much is unsaid.
    pub fn send(
        &mut self,
        request: &Request,
        bytes: &[u8],
        socket: Option<OwnedFd>,
    ) -> Result<(), Error> {
        let packet = packet::encode(request, bytes)?;
        let sockets = self.sockets + usize::from(socket.is_some());
        if self.bytes + packet.len() > MOST_UNSAID || sockets > MOST_SOCKETS {
            return Err(Error::NotHeard);
        }
        self.bytes += packet.len();
        self.sockets = sockets;
        self.unsaid.push_back((packet, socket));
        self.say_queued()
    }

    /// As [`Client::pass`]; later, if the gateway takes nothing now.
    ///
    /// # Errors
    /// If the socket to the gateway fails, or too much is unsaid.
    pub fn pass(&mut self, socket: OwnedFd, dscp: u8, read: &[u8]) -> Result<(), Error> {
        match self.send(&Request::Pass { dscp }, read, Some(socket)) {
            Err(Error::Malformed(_)) => Ok(()),
            sent => sent,
        }
    }

    /// Is there something that the gateway has not taken?
    pub fn is_unsaid(&self) -> bool {
        !self.unsaid.is_empty()
    }

    fn say_queued(&mut self) -> Result<(), Error> {
        while let Some((packet, socket)) = self.unsaid.front() {
            let socket = socket.as_ref().map(AsFd::as_fd);
            match self.client.send_packet(packet, socket, false) {
                Err(Error::Socket(e)) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                sent => sent?,
            }
            self.bytes -= packet.len();
            self.sockets -= usize::from(socket.is_some());
            self.unsaid.pop_front();
        }
        Ok(())
    }
}

/// Is there nobody at the other end any more?
fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

impl AsFd for Queued {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }
}

#[cfg(test)]
mod tests;
