//! An answer that passes, and is kept when it has come whole.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bentpipe_web::cache::{Asked, Digest, Holder, Stored};
use bentpipe_web::disk::SMALL;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::writer::Job;
use super::{LONGEST, Pending, Store};
use crate::body::{Body, Broken};
use crate::counted::Counted;
use crate::shares::Place;

/// An answer that will be kept.
pub struct Keep {
    store: Rc<Store>,
    stored: Stored,
    asked_at: std::time::Duration,
    /// Its bytes, until they are too many for memory.
    so_far: BytesMut,
    /// Room for these.
    places: Vec<Place<Holder>>,
    holder: Holder,
    length: u64,
    /// A file was begun for it.
    on_disk: bool,
    /// It is kept, or has failed.
    over: bool,
    /// What was kept before of the same.
    before: Option<(Digest, u64)>,
}

impl Store {
    /// Begins to keep an answer, unless it says itself that it is too long. It counts for its
    /// holder, who asked for it.
    pub fn begin(
        self: &Rc<Store>,
        asked: &Asked,
        mut stored: Stored,
        holder: Holder,
    ) -> Option<Keep> {
        if length_of(&stored.fields).is_some_and(|length| length > self.longest()) {
            return None;
        }
        self.last.set(self.last.get() + 1);
        stored.number = self.last.get();
        let (digest, uri) = (stored.digest(), stored.key.uri_digest());
        let pending = Pending { digest, uri, holder: holder.clone() };
        self.pending.borrow_mut().insert(stored.number, pending);
        let (so_far, places, length, on_disk, over, before) = Default::default();
        let (store, asked_at) = (Rc::clone(self), asked.at.steady);
        Some(Keep {
            store,
            stored,
            asked_at,
            so_far,
            places,
            holder,
            length,
            on_disk,
            over,
            before,
        })
    }

    /// The longest body that can be kept now.
    fn longest(&self) -> u64 {
        match self.files.borrow().is_some() {
            true => self.largest,
            false => LONGEST,
        }
    }
}

fn length_of(fields: &HeaderMap) -> Option<u64> {
    fields.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

impl Keep {
    /// When it has come whole, whether it can be kept or not, this older one is forgotten: not
    /// before, else whoever breaks off what he asks for takes it from others.
    pub fn replaces(&mut self, old: &Stored) {
        self.before = Some((old.digest(), old.number));
    }

    /// More of it.
    pub fn append(&mut self, bytes: &Bytes) {
        if self.over {
            return;
        }
        self.length += bytes.len() as u64;
        if self.length > self.store.longest() {
            return self.give_up();
        }
        if self.on_disk {
            return self.grow(bytes.clone());
        }
        let Some(place) = self.store.on_their_way.take(&self.holder.as_one(), bytes.len()) else {
            return self.give_up();
        };
        self.places.push(place);
        self.so_far.extend_from_slice(bytes);
        if self.so_far.len() as u64 > SMALL && self.store.files.borrow().is_some() {
            let begun = self.take_bytes();
            if self.begin_file() {
                let holder = self.holder.clone();
                self.store.index.borrow_mut().begin(self.stored.number, holder);
                self.grow(begun);
            }
        }
    }

    fn take_bytes(&mut self) -> Bytes {
        self.places.clear();
        std::mem::take(&mut self.so_far).freeze()
    }

    fn begin_file(&mut self) -> bool {
        self.on_disk = self.store.order(Job::Begin(self.stored.number));
        if !self.on_disk {
            self.give_up();
        }
        self.on_disk
    }

    /// More of a file whose end is not here.
    fn grow(&mut self, bytes: Bytes) {
        match self.store.grow(self.stored.number, bytes.len()) {
            true => self.write(bytes),
            false => self.give_up(),
        }
    }

    fn write(&mut self, bytes: Bytes) {
        if !self.store.order(Job::Append(self.stored.number, bytes)) {
            Counted::add(&self.store.counted.not_written);
            self.give_up();
        }
    }

    /// It has come whole.
    pub fn finish(&mut self) {
        if let Some((digest, number)) = self.before.take() {
            self.store.forget(digest, number);
        }
        // What was changed meanwhile is obsolete.
        let number = self.stored.number;
        if self.over || !self.store.pending.borrow().contains_key(&number) {
            return;
        }
        let now = self.store.now();
        self.stored.length = self.length;
        self.stored.took = now.steady.saturating_sub(self.asked_at);
        if !self.on_disk {
            let body = self.take_bytes();
            let (digest, stored) = (self.stored.digest(), Arc::new(self.stored.clone()));
            let holder = self.holder.clone();
            self.store.memory.borrow_mut().insert(digest, stored, body.clone(), holder);
            if self.store.files.borrow().is_none() {
                return self.give_up();
            }
            if self.begin_file() {
                self.write(body);
            }
        }
        if !self.over && self.store.order(Job::Finish(Box::new(self.stored.clone()), now)) {
            // It is pending until it is on disk.
            self.over = true;
        }
    }

    /// It does not get to the disk.
    fn give_up(&mut self) {
        if self.over {
            return;
        }
        self.over = true;
        self.take_bytes();
        self.store.pending.borrow_mut().remove(&self.stored.number);
        if self.on_disk {
            self.store.index.borrow_mut().end(self.stored.number);
            self.store.order(Job::Drop(self.stored.number));
        }
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        if !self.over {
            self.give_up();
        }
    }
}

/// What comes from a socket, and is kept when it has come whole.
pub fn kept(body: Body, keep: Keep) -> Body {
    let mut keeping = Keeping { body, keep: Some(keep) };
    keeping.finish_if_whole();
    Box::pin(keeping)
}

struct Keeping {
    body: Body,
    /// Until it is kept, or cannot be.
    keep: Option<Keep>,
}

impl Keeping {
    fn finish_if_whole(&mut self) {
        if self.body.is_end_stream() {
            self.finish();
        }
    }

    fn finish(&mut self) {
        if let Some(mut keep) = self.keep.take() {
            keep.finish();
        }
    }
}

impl HttpBody for Keeping {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(why)) => {
                self.keep = None;
                return Poll::Ready(Some(Err(why)));
            }
            None => {
                self.finish();
                return Poll::Ready(None);
            }
        };
        match frame.data_ref() {
            Some(data) => {
                if let Some(keep) = &mut self.keep {
                    keep.append(data);
                }
                self.finish_if_whole();
            }
            // With trailers it is whole, and not kept.
            None => {
                if let Some(mut keep) = self.keep.take() {
                    keep.give_up();
                    keep.finish();
                }
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
