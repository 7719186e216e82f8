//! A socket that the gateway gave: reset when dropped, unless it was ended in good order.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, ErrorKind, Result};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::local::unless;

/// How often it is looked whether a host that says no more is worth waiting for.
const LOOK: Duration = Duration::from_secs(30);
/// A host that has said all, and is told nothing for so long, has gone: most close both ways with
/// one call.
const SAID_ALL: Duration = Duration::from_secs(300);

/// One of the gateway's sockets, and what was read of it already.
pub struct Socket {
    stream: Rc<TcpStream>,
    read: Bytes,
    /// Has all that hyper had to say been written?
    is_flushed: Rc<Cell<bool>>,
    /// When something was written last.
    wrote: Rc<Cell<Instant>>,
}

/// Sees that who is at the other end has gone, while nothing is read of a socket.
pub struct Watch {
    stream: Rc<TcpStream>,
    wrote: Rc<Cell<Instant>>,
}

impl Watch {
    /// What comes of `served`, unless the other end goes first.
    pub async fn unless_gone<T>(self, served: impl Future<Output = T>) -> Option<T> {
        unless(served, self.gone(LOOK, SAID_ALL)).await
    }

    async fn gone(self, look: Duration, said_all: Duration) {
        loop {
            // A reset.
            if timeout(look, self.stream.ready(Interest::ERROR)).await.is_ok() {
                return;
            }
            if self.has_said_all().await && self.wrote.get().elapsed() >= said_all {
                return;
            }
        }
    }

    async fn has_said_all(&self) -> bool {
        let mut ready = pin!(self.stream.ready(Interest::READABLE));
        poll_fn(|context| {
            let said = match ready.as_mut().poll(context) {
                Poll::Ready(Ok(now)) => now.is_read_closed(),
                Poll::Ready(Err(_)) => true,
                Poll::Pending => false,
            };
            Poll::Ready(said)
        })
        .await
    }
}

/// Makes it one of tokio's.
///
/// # Errors
/// If the runtime cannot watch it.
pub fn watched(socket: OwnedFd) -> Result<TcpStream> {
    let stream = TcpStream::from_std(socket.into())?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Socket {
    /// For hyper; `read` comes before what the socket has yet to say.
    pub fn new(stream: TcpStream, read: Bytes) -> TokioIo<Socket> {
        TokioIo::new(Socket::plain(stream, read))
    }

    /// For TLS, in the same way.
    pub fn plain(stream: TcpStream, read: Bytes) -> Socket {
        Socket::of(stream, read, Rc::default())
    }

    fn of(stream: TcpStream, read: Bytes, is_flushed: Rc<Cell<bool>>) -> Socket {
        let wrote = Rc::new(Cell::new(Instant::now()));
        Socket { stream: Rc::new(stream), read, is_flushed, wrote }
    }

    /// Sees that the other end has gone. It is to end before the socket is taken apart.
    pub fn watch(&self) -> Watch {
        Watch { stream: Rc::clone(&self.stream), wrote: Rc::clone(&self.wrote) }
    }

    /// For hyper, and notes whether all that it had to say has been written.
    pub fn noting(stream: TcpStream, read: Bytes, is_flushed: Rc<Cell<bool>>) -> TokioIo<Socket> {
        TokioIo::new(Socket::of(stream, read, is_flushed))
    }

    /// The socket, and what was read of it and not taken. `None`: it is still watched.
    pub fn into_parts(self) -> Option<(TcpStream, Bytes)> {
        Some((Rc::into_inner(self.stream)?, self.read))
    }

    /// Tries to write, until the socket takes something.
    fn poll_with(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> Result<usize>,
    ) -> Poll<Result<usize>> {
        self.is_flushed.set(false);
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match write(&self.stream) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                written => {
                    self.wrote.set(Instant::now());
                    return Poll::Ready(written);
                }
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        while self.read.is_empty() {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read_buf(room) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
        let n = self.read.len().min(room.remaining());
        room.put_slice(&self.read[..n]);
        self.read.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.poll_with(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.poll_with(context, |stream| stream.try_write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        // hyper comes here when it has written all.
        self.is_flushed.set(true);
        Poll::Ready(Ok(()))
    }

    /// Called where all that was to be said was said: from here on dropping it ends it. Where
    /// hyper gives a connection up it does not come here, and the host sees a reset (S-SK-2).
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        service::close_in_order(&*self.stream)?;
        Poll::Ready(match SockRef::from(&*self.stream).shutdown(Shutdown::Write) {
            // It has gone already.
            Err(e) if e.kind() == ErrorKind::NotConnected => Ok(()),
            done => done,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn who_has_said_all_and_is_told_nothing_has_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut host = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut socket = Socket::plain(listener.accept().await.unwrap().0, Bytes::new());
            let (look, moment) = (Duration::from_millis(5), Duration::from_millis(200));
            // What it said and nobody reads is not its end.
            host.write_all(b"more").unwrap();
            let gone = timeout(moment, socket.watch().gone(look, Duration::ZERO));
            assert!(gone.await.is_err(), "it may say more");
            host.shutdown(Shutdown::Write).unwrap();
            socket.write_all(b"an answer").await.unwrap();
            let gone = timeout(moment, socket.watch().gone(look, SAID_ALL));
            assert!(gone.await.is_err(), "it was told something");
            let gone = timeout(Duration::from_secs(20), socket.watch().gone(look, moment));
            assert!(gone.await.is_ok());
            let (_, read) = socket.into_parts().expect("nobody watches it any more");
            assert!(read.is_empty());
        });
    }
}
