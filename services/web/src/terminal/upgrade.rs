//! Requests that leave HTTP behind (`Upgrade`), or log a connection in, on a connection that has
//! been served so far: from there on the gateway carries it as a plain stream.

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use bentpipe_web::first::upgrade;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use tokio::net::TcpStream;

use super::server;
use crate::body::Body;
use crate::socket::Socket;

/// Bytes of such a request that go back with its connection. A packet to the gateway has room for
/// them, and for what was read behind them.
const MOST: usize = 48 << 10;

/// Serves a connection until it ends, or a host wants to speak something else on it: then it comes
/// back with the bytes of that request and all that was read behind it.
pub(super) async fn serve<F>(
    stream: TcpStream,
    read: Vec<u8>,
    answer: impl Fn(Request<Incoming>) -> F,
) -> Option<(TcpStream, Vec<u8>)>
where
    F: Future<Output = Result<Response<Body>, String>>,
{
    let (wanted, is_flushed) = (RefCell::new(None), Rc::new(Cell::new(true)));
    let service = service_fn(|request: Request<Incoming>| {
        let length = request.body().size_hint().exact();
        let fits = |head: &Vec<u8>| length.is_some_and(|it| head.len() as u64 + it <= MOST as u64);
        let answer = match upgrade(&request).filter(fits) {
            Some(head) => {
                *wanted.borrow_mut() = Some((head, request.into_body()));
                None
            }
            None => Some(answer(request)),
        };
        async {
            match answer {
                Some(answer) => answer.await,
                None => pending().await,
            }
        }
    });
    let socket = Socket::noting(stream, read.into(), Rc::clone(&is_flushed));
    // Of one that hyper does not read, while an answer is awaited, it does not see a reset.
    let watch = socket.inner().watch();
    let mut connection = server().serve_connection(socket, service);
    let served = poll_fn(|context| {
        // Hosts break their connections off every day, and see here that ours was.
        if Pin::new(&mut connection).poll(context).is_ready() {
            return Poll::Ready(None);
        }
        // The answers before it cross first.
        match is_flushed.get() && wanted.borrow().is_some() {
            true => Poll::Ready(wanted.borrow_mut().take()),
            false => Poll::Pending,
        }
    });
    let (mut head, mut body) = watch.unless_gone(served).await??;
    let parts = connection.into_parts();
    // What of its body was taken apart already: there comes no more.
    while let Some(Ok(frame)) = body.frame().await {
        head.extend_from_slice(frame.data_ref().map_or(&[][..], |bytes| bytes));
    }
    let (stream, unread): (TcpStream, Bytes) = parts.io.into_inner().into_parts()?;
    head.extend_from_slice(&parts.read_buf);
    head.extend_from_slice(&unread);
    Some((stream, head))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{Shutdown, TcpStream as Host};
    use std::time::Duration;

    use socket2::SockRef;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// Serves a host that asks for something that no server answers, and then does this. Was it
    /// noticed within the time that it had gone?
    fn is_noticed(within: Duration, then: fn(Host)) -> bool {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut host = Host::connect(listener.local_addr().unwrap()).unwrap();
            host.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let host = RefCell::new(Some(host));
            let served = serve(stream, Vec::new(), |_| {
                // The request is under way.
                host.take().into_iter().for_each(then);
                pending()
            });
            let passed = timeout(within, served).await;
            assert!(!matches!(passed, Ok(Some(_))), "nothing goes back");
            passed.is_ok()
        })
    }

    #[test]
    fn a_host_that_has_gone_is_noticed_while_its_server_is_silent() {
        let resets = |host| SockRef::from(&host).set_linger(Some(Duration::ZERO)).unwrap();
        assert!(is_noticed(Duration::from_secs(20), resets), "its reset is seen");
    }

    #[test]
    fn a_host_that_has_said_all_is_answered_still() {
        let ends = |host: Host| {
            host.shutdown(Shutdown::Write).unwrap();
            std::mem::forget(host);
        };
        assert!(!is_noticed(Duration::from_secs(1), ends), "it waits for its answer");
    }
}
