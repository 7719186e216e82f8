//! An answer that comes ahead of its request: bytes that wait, and go on coming while they are
//! read.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::{Body as HttpBody, Frame};
use tokio::sync::Notify;

use crate::body::Broken;

/// Bytes of an answer that wait for a host.
const ROOM: usize = 4 << 20;
/// So many are taken of an answer that is being read, however much waits of others.
const ROOM_TAKEN: usize = 256 << 10;
/// Bytes of all answers that are being read, beyond which of each only [`ROOM_TAKEN`] are taken.
const ROOM_OF_ALL: usize = 32 << 20;
/// Answers with more than that, which stop their streams: they have part of the room of all that
/// is pushed. What would be one more is broken off.
pub const MAX_WAITING: usize = 8;

/// What waits of all answers that hosts have taken.
#[derive(Default)]
pub struct Unread {
    bytes: Cell<usize>,
    waiting: Cell<usize>,
}

impl Unread {
    fn more(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn less(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// One more answer stops its stream, until this is dropped; `None`: too many do.
    fn wait(&self) -> Option<Waiting<'_>> {
        let waiting = self.waiting.get();
        (waiting < MAX_WAITING).then(|| {
            self.waiting.set(waiting + 1);
            Waiting(self)
        })
    }
}

struct Waiting<'a>(&'a Unread);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// The answer.
pub struct Tray {
    pub status: StatusCode,
    pub fields: HeaderMap,
    inside: RefCell<Inside>,
    unread: Rc<Unread>,
    /// Something has changed.
    news: Notify,
}

#[derive(Default)]
struct Inside {
    chunks: VecDeque<Bytes>,
    waiting: usize,
    /// Its end has come, in good order or not.
    ended: Option<bool>,
    is_taken: bool,
    /// Who took it went away.
    is_left: bool,
    reader: Option<Waker>,
    /// Wait for the end.
    others: Vec<Waker>,
}

impl Tray {
    pub fn new(status: StatusCode, fields: HeaderMap, unread: Rc<Unread>) -> Tray {
        Tray { status, fields, inside: RefCell::default(), unread, news: Notify::new() }
    }

    /// Puts more in it, when there is room; false if nobody will read it.
    pub async fn put(&self, bytes: Bytes) -> bool {
        let mut waits = None;
        loop {
            {
                let mut it = self.inside.borrow_mut();
                let (fits, length) = (it.waiting + bytes.len() <= ROOM, bytes.len());
                if it.is_left || (!it.is_taken && !fits) {
                    return false;
                }
                let fits = fits && self.unread.bytes.get() + length <= ROOM_OF_ALL;
                if fits || it.waiting < ROOM_TAKEN || !it.is_taken {
                    if it.is_taken {
                        self.unread.more(length);
                    }
                    it.waiting += length;
                    it.chunks.push_back(bytes);
                    if let Some(reader) = it.reader.take() {
                        reader.wake();
                    }
                    return true;
                }
            }
            waits = waits.or_else(|| self.unread.wait());
            if waits.is_none() {
                return false;
            }
            self.news.notified().await;
        }
    }

    /// No more comes.
    pub fn end(&self, whole: bool) {
        let mut it = self.inside.borrow_mut();
        it.ended = Some(whole);
        let others = std::mem::take(&mut it.others);
        for waker in it.reader.take().into_iter().chain(others) {
            waker.wake();
        }
        self.news.notify_one();
    }

    /// Waits until a host has taken it, or no more comes; true if one has.
    pub async fn settled(&self) -> bool {
        loop {
            {
                let it = self.inside.borrow();
                if it.is_taken || it.ended.is_some() {
                    return it.is_taken;
                }
            }
            self.news.notified().await;
        }
    }

    /// Has its end not come yet?
    pub fn is_coming(&self) -> bool {
        self.inside.borrow().ended.is_none()
    }

    /// Has its end not come in good order?
    pub fn is_broken(&self) -> bool {
        self.inside.borrow().ended == Some(false)
    }

    /// A host takes it; to be called once.
    pub fn take(self: Rc<Tray>, read: impl Fn(usize) + 'static) -> Reading {
        let mut it = self.inside.borrow_mut();
        it.is_taken = true;
        self.unread.more(it.waiting);
        drop(it);
        self.news.notify_one();
        Reading { tray: self, read: Box::new(read) }
    }

    /// A body without bytes that ends when this has come to its end.
    pub fn until_end(self: Rc<Tray>) -> UntilEnd {
        UntilEnd(self)
    }
}

/// The body of an answer that is being read.
pub struct Reading {
    tray: Rc<Tray>,
    read: Box<dyn Fn(usize)>,
}

impl HttpBody for Reading {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut it = self.tray.inside.borrow_mut();
        if let Some(bytes) = it.chunks.pop_front() {
            it.waiting -= bytes.len();
            drop(it);
            self.tray.unread.less(bytes.len());
            self.tray.news.notify_one();
            (self.read)(bytes.len());
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match it.ended {
            Some(true) => Poll::Ready(None),
            Some(false) => Poll::Ready(Some(Err("a pushed answer breaks off".into()))),
            None => {
                it.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut it = self.tray.inside.borrow_mut();
        it.is_left = true;
        it.chunks.clear();
        self.tray.unread.less(std::mem::take(&mut it.waiting));
        self.tray.news.notify_one();
    }
}

/// See [`Tray::until_end`].
pub struct UntilEnd(Rc<Tray>);

impl HttpBody for UntilEnd {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut it = self.0.inside.borrow_mut();
        if it.ended.is_some() {
            return Poll::Ready(None);
        }
        it.others.push(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    fn tray() -> Rc<Tray> {
        one_of(&Rc::default())
    }

    fn one_of(all: &Rc<Unread>) -> Rc<Tray> {
        Rc::new(Tray::new(StatusCode::OK, HeaderMap::new(), Rc::clone(all)))
    }

    fn run<T>(what: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(what)
    }

    #[test]
    fn what_is_put_in_is_read_while_more_comes() {
        run(async {
            let tray = tray();
            assert!(tray.put("a".into()).await);
            let mut reading = tray.clone().take(|_| {});
            assert!(tray.settled().await);
            assert_eq!(reading.frame().await.unwrap().unwrap().into_data().unwrap(), "a");
            assert!(tray.put("b".into()).await);
            assert_eq!(reading.frame().await.unwrap().unwrap().into_data().unwrap(), "b");
            tray.end(true);
            assert!(reading.frame().await.is_none());
            assert!(tray.clone().until_end().frame().await.is_none());
        });
    }

    #[test]
    fn half_an_answer_does_not_look_like_one() {
        run(async {
            let tray = tray();
            tray.put("a".into()).await;
            tray.end(false);
            assert!(tray.is_broken() && !tray.settled().await);
            let mut reading = tray.take(|_| {});
            assert!(reading.frame().await.unwrap().is_ok());
            assert!(reading.frame().await.unwrap().is_err());
        });
    }

    #[test]
    fn nothing_is_kept_for_those_who_went_away_nor_without_limit() {
        run(async {
            let left = tray();
            drop(left.clone().take(|_| {}));
            assert!(!left.put("a".into()).await);
            let full = tray();
            assert!(full.put(Bytes::from(vec![0; ROOM])).await && !full.put("a".into()).await);
        });
    }

    #[test]
    fn what_hosts_do_not_read_has_a_limit_that_stops_none_who_reads() {
        run(async {
            let (all, piece) = (Rc::default(), || Bytes::from(vec![0; ROOM]));
            let mut taken = Vec::new();
            for _ in 0..ROOM_OF_ALL / ROOM {
                let tray = one_of(&all);
                let reading = tray.clone().take(|_| {});
                assert!(tray.put(piece()).await);
                taken.push((tray, reading));
            }
            assert_eq!(all.bytes.get(), ROOM_OF_ALL);
            // Now they wait, up to as many as may.
            let put = |n: usize| {
                Box::pin({
                    let tray = taken[n].0.clone();
                    async move { tray.put("a".into()).await }
                })
            };
            let mut waiting: Vec<_> = (0..MAX_WAITING).map(put).collect();
            for one in &mut waiting {
                let polled =
                    std::future::poll_fn(|context| Poll::Ready(one.as_mut().poll(context)));
                assert!(polled.await.is_pending());
            }
            assert!(!put(0).await, "one too many is broken off");
            let reads = one_of(&all);
            let mut reading = reads.clone().take(|_| {});
            for _ in 0..100 {
                assert!(reads.put(Bytes::from(vec![0; ROOM_TAKEN])).await);
                assert!(reading.frame().await.unwrap().is_ok());
            }
            drop((waiting, taken, reading));
            assert_eq!((all.bytes.get(), all.waiting.get()), (0, 0));
        });
    }
}
