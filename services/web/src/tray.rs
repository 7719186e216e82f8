//! An answer that comes ahead of its request: bytes that wait, and go on coming while they are
//! read.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper::body::{Body as HttpBody, Frame};
use tokio::sync::Notify;

use crate::body::Broken;
use crate::shares::{HostPlace, HostPlaces};

/// Bytes of an answer that wait for a host.
const ROOM: usize = 4 << 20;
/// So many are taken of an answer that is being read, however much waits of others.
const ROOM_TAKEN: usize = 256 << 10;
/// Bytes of all answers that are being read, beyond which of each only [`ROOM_TAKEN`] are taken.
const ROOM_OF_ALL: usize = 32 << 20;
/// Answers with more than that, which stop their streams: they have part of the room of all that
/// is pushed. What would be one more is broken off, and so is one more of a host that has its part
/// of them: a host that reads nothing leaves half of them to the others.
pub const MAX_WAITING: usize = 8;

/// What waits of all answers that hosts have taken.
pub struct Unread {
    bytes: Cell<usize>,
    waiting: HostPlaces,
}

impl Default for Unread {
    fn default() -> Unread {
        Unread { bytes: Cell::new(0), waiting: HostPlaces::new(MAX_WAITING) }
    }
}

impl Unread {
    fn more(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn less(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// One more answer to this host stops its stream, until this is dropped; `None`: too many do.
    fn wait(&self, host: IpAddr) -> Option<HostPlace> {
        self.waiting.take(host)
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
    taken_by: Option<IpAddr>,
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
            let host = {
                let mut it = self.inside.borrow_mut();
                let (fits, length) = (it.waiting + bytes.len() <= ROOM, bytes.len());
                if it.is_left || (it.taken_by.is_none() && !fits) {
                    return false;
                }
                let fits = fits && self.unread.bytes.get() + length <= ROOM_OF_ALL;
                let waits_for = it.taken_by.filter(|_| !fits && it.waiting >= ROOM_TAKEN);
                let Some(host) = waits_for else {
                    if it.taken_by.is_some() {
                        self.unread.more(length);
                    }
                    it.waiting += length;
                    it.chunks.push_back(bytes);
                    if let Some(reader) = it.reader.take() {
                        reader.wake();
                    }
                    return true;
                };
                host
            };
            waits = waits.or_else(|| self.unread.wait(host));
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
                if it.taken_by.is_some() || it.ended.is_some() {
                    return it.taken_by.is_some();
                }
            }
            self.news.notified().await;
        }
    }

    /// Has a host taken it?
    pub fn is_taken(&self) -> bool {
        self.inside.borrow().taken_by.is_some()
    }

    /// Has its end not come yet?
    pub fn is_coming(&self) -> bool {
        self.inside.borrow().ended.is_none()
    }

    /// Has its end not come in good order?
    pub fn is_broken(&self) -> bool {
        self.inside.borrow().ended == Some(false)
    }

    /// This host takes it; to be called once.
    pub fn take(self: Rc<Tray>, host: IpAddr, read: impl Fn(usize) + 'static) -> Reading {
        let mut it = self.inside.borrow_mut();
        it.taken_by = Some(host);
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

    fn host(n: u8) -> IpAddr {
        IpAddr::from([10, 1, 0, n])
    }

    fn run<T>(what: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(what)
    }

    #[test]
    fn what_is_put_in_is_read_while_more_comes() {
        run(async {
            let tray = tray();
            assert!(tray.put("a".into()).await);
            let mut reading = tray.clone().take(host(1), |_| {});
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
            let mut reading = tray.take(host(1), |_| {});
            assert!(reading.frame().await.unwrap().is_ok());
            assert!(reading.frame().await.unwrap().is_err());
        });
    }

    #[test]
    fn nothing_is_kept_for_those_who_went_away_nor_without_limit() {
        run(async {
            let left = tray();
            drop(left.clone().take(host(1), |_| {}));
            assert!(!left.put("a".into()).await);
            let full = tray();
            assert!(full.put(Bytes::from(vec![0; ROOM])).await && !full.put("a".into()).await);
        });
    }

    /// Answers of 4 MiB that these hosts have taken, all that there is room for and one more.
    async fn taken_by(
        all: &Rc<Unread>,
        hosts: impl Iterator<Item = u8>,
    ) -> Vec<(Rc<Tray>, Reading)> {
        let mut taken = Vec::new();
        for n in hosts {
            let tray = one_of(all);
            let reading = tray.clone().take(host(n), |_| {});
            assert!(tray.put(Bytes::from(vec![0; ROOM])).await);
            taken.push((tray, reading));
        }
        taken
    }

    /// More for a tray: `None` while that waits, else whether it was taken.
    async fn more_for(put: &mut Pin<Box<impl Future<Output = bool>>>) -> Option<bool> {
        std::future::poll_fn(|context| {
            Poll::Ready(match put.as_mut().poll(context) {
                Poll::Ready(put) => Some(put),
                Poll::Pending => None,
            })
        })
        .await
    }

    fn put_in(tray: &Rc<Tray>) -> Pin<Box<impl Future<Output = bool> + use<>>> {
        let tray = Rc::clone(tray);
        Box::pin(async move { tray.put("a".into()).await })
    }

    #[test]
    fn what_hosts_do_not_read_has_a_limit_that_stops_none_who_reads() {
        run(async {
            let all = Rc::default();
            let taken = taken_by(&all, 1..=(ROOM_OF_ALL / ROOM) as u8).await;
            assert_eq!(all.bytes.get(), ROOM_OF_ALL);
            // Now they wait, up to as many as may.
            let mut waiting: Vec<_> = taken.iter().map(|(tray, _)| put_in(tray)).collect();
            assert_eq!(waiting.len(), MAX_WAITING);
            for one in &mut waiting {
                assert_eq!(more_for(one).await, None);
            }
            assert!(!put_in(&taken[0].0).await, "one too many is broken off");
            let reads = one_of(&all);
            let mut reading = reads.clone().take(host(100), |_| {});
            for _ in 0..100 {
                assert!(reads.put(Bytes::from(vec![0; ROOM_TAKEN])).await);
                assert!(reading.frame().await.unwrap().is_ok());
            }
            drop((waiting, taken, reading));
            assert_eq!(all.bytes.get(), 0);
            assert!(
                (1..=MAX_WAITING as u8).map(|n| all.wait(host(n))).all(|place| place.is_some())
            );
        });
    }

    /// What a host does not read is its own loss: of 50 others four may be slower than the link at
    /// any time beside it.
    #[test]
    fn a_host_that_reads_none_of_its_answers_leaves_the_others_half_of_the_places() {
        run(async {
            let all = Rc::default();
            let evil = taken_by(&all, [1; MAX_WAITING].into_iter()).await;
            let mut waiting: Vec<_> = evil.iter().map(|(tray, _)| put_in(tray)).collect();
            let mut of_evil = 0;
            for one in &mut waiting {
                of_evil += usize::from(more_for(one).await.is_none());
            }
            assert_eq!(of_evil, MAX_WAITING / 2);
            for turn in 0..12 {
                let mut slow = Vec::new();
                for n in 0..MAX_WAITING as u8 / 2 {
                    let tray = one_of(&all);
                    let reading = tray.clone().take(host(2 + 4 * turn + n), |_| {});
                    assert!(tray.put(Bytes::from(vec![0; ROOM_TAKEN])).await);
                    let mut put = put_in(&tray);
                    assert_eq!(more_for(&mut put).await, None, "it waits, and is not broken off");
                    slow.push((put, reading));
                }
                for (put, mut reading) in slow {
                    assert!(reading.frame().await.unwrap().is_ok());
                    assert!(put.await, "it goes on");
                }
            }
        });
    }
}
