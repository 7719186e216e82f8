//! An answer that comes ahead of its request: bytes that wait, and go on coming while they are read.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::{Body as HttpBody, Frame};
use tokio::sync::Notify;

use crate::body::Broken;

/// Bytes that wait for a host; of an answer that no host has taken, and of one that is being read.
const ROOM: usize = 4 << 20;
const ROOM_TAKEN: usize = 256 << 10;

/// The answer.
pub struct Tray {
    pub status: StatusCode,
    pub fields: HeaderMap,
    inside: RefCell<Inside>,
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
    pub fn new(status: StatusCode, fields: HeaderMap) -> Tray {
        Tray { status, fields, inside: RefCell::default(), news: Notify::new() }
    }

    /// Puts more in it, when there is room; false if nobody will read it.
    pub async fn put(&self, bytes: Bytes) -> bool {
        loop {
            {
                let mut it = self.inside.borrow_mut();
                if it.is_left || (!it.is_taken && it.waiting + bytes.len() > ROOM) {
                    return false;
                }
                if it.waiting < ROOM_TAKEN || !it.is_taken {
                    it.waiting += bytes.len();
                    it.chunks.push_back(bytes);
                    if let Some(reader) = it.reader.take() {
                        reader.wake();
                    }
                    return true;
                }
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
        self.inside.borrow_mut().is_taken = true;
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
        Rc::new(Tray::new(StatusCode::OK, HeaderMap::new()))
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
}
