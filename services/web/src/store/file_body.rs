//! A body, or a part of one, from a file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bentpipe_web::cache::Place;
use bentpipe_web::cache::record::PIECE;
use bentpipe_web::disk::read_piece;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::task::{JoinHandle, spawn_blocking};

use super::Store;
use crate::body::Broken;

/// Pieces of a file, each read by a thread and checked before it is given out.
pub struct FileBody {
    store: Rc<Store>,
    place: Place,
    file: Arc<File>,
    checks: Arc<[u64]>,
    length: u64,
    left: Range<u64>,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl FileBody {
    /// These bytes of a body that is `length` long.
    pub fn new(
        store: Rc<Store>,
        (file, checks, place): (Arc<File>, Arc<[u64]>, Place),
        length: u64,
        left: Range<u64>,
    ) -> FileBody {
        FileBody { store, place, file, checks, length, left, reading: None }
    }

    /// Not before it is wanted: thousands may read slowly.
    fn read(&self) -> JoinHandle<io::Result<Bytes>> {
        let (file, checks, length) =
            (Arc::clone(&self.file), Arc::clone(&self.checks), self.length);
        let n = (self.left.start / PIECE as u64) as usize;
        spawn_blocking(move || read_piece(&file, length, &checks, n))
    }
}

impl HttpBody for FileBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let mut reading = self.reading.take().unwrap_or_else(|| self.read());
        let Poll::Ready(read) = Pin::new(&mut reading).poll(context) else {
            self.reading = Some(reading);
            return Poll::Pending;
        };
        let read = read.map_err(io::Error::other).flatten();
        let piece = match read {
            Ok(piece) => piece,
            Err(why) => {
                self.store.is_damaged(self.place, &why.to_string());
                return Poll::Ready(Some(Err(why.into())));
            }
        };
        let begins = self.left.start - self.left.start % PIECE as u64;
        let from = (self.left.start - begins) as usize;
        let to = piece.len().min((self.left.end - begins) as usize);
        self.left.start = begins + to as u64;
        Poll::Ready(Some(Ok(Frame::data(piece.slice(from..to)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.end - self.left.start)
    }
}
