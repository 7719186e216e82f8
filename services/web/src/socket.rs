//! A socket that the gateway gave: reset when dropped, unless it was ended in good order.

use std::cell::Cell;
use std::io::{self, Result};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// One of the gateway's sockets, and what was read of it already.
pub struct Socket {
    stream: TcpStream,
    read: Bytes,
    /// Has all that hyper had to say been written?
    is_flushed: Rc<Cell<bool>>,
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
        Socket { stream, read, is_flushed: Rc::default() }
    }

    /// For hyper, and notes whether all that it had to say has been written.
    pub fn noting(stream: TcpStream, read: Bytes, is_flushed: Rc<Cell<bool>>) -> TokioIo<Socket> {
        TokioIo::new(Socket { stream, read, is_flushed })
    }

    /// The socket, and what was read of it and not taken.
    pub fn into_parts(self) -> (TcpStream, Bytes) {
        (self.stream, self.read)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, room);
        }
        let n = self.read.len().min(room.remaining());
        room.put_slice(&self.read[..n]);
        self.read.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.is_flushed.set(false);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.is_flushed.set(false);
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        // hyper comes here when it has written all.
        self.is_flushed.set(true);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Called where all that was to be said was said: from here on dropping it ends it. Where
    /// hyper gives a connection up it does not come here, and the host sees a reset (S-SK-2).
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        service::close_in_order(&self.stream)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
