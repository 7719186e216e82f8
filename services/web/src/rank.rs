//! Which of the answers on one exchange go first: what lays out a page before what fills it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::body::{Body, Broken};

/// Bodies that only fill a page and have bytes in the exchange's own queue at once. What lays out
/// the page waits behind no more than these.
const FILLING: usize = 3;
/// A piece that has not left after this time holds up nobody any more: its host does not read.
const PATIENCE: Duration = Duration::from_secs(4);

/// Does this content fill a page that others lay out? Pictures, sound and what is stored do; text,
/// styles, scripts and fonts do not, and nor does what does not say what it is.
pub fn fills(fields: &HeaderMap) -> bool {
    let Some(Ok(kind)) = fields.get(header::CONTENT_TYPE).map(|kind| kind.to_str()) else {
        return false;
    };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.split_once('/') {
        Some(("image" | "video" | "audio", _)) => true,
        Some(("application", kind)) => {
            !["javascript", "json", "xml", "wasm", "font"].iter().any(|word| kind.contains(word))
        }
        _ => false,
    }
}

/// The bodies of one exchange.
#[derive(Clone, Default)]
pub struct Ranks(Rc<RefCell<Queue>>);

#[derive(Default)]
struct Queue {
    /// Bodies whose last piece has not left yet, and since when it is on its way.
    laying_out: BTreeSet<(Instant, u64)>,
    filling: BTreeSet<(Instant, u64)>,
    /// Who waits, in the order in which they came.
    waiting: BTreeMap<u64, Waker>,
    last: u64,
}

impl Queue {
    /// So many bodies that only fill pages may send a piece.
    fn room(&self) -> usize {
        let now = Instant::now();
        let holds_up = |(since, _): &&(Instant, u64)| now.duration_since(*since) < PATIENCE;
        if self.laying_out.last().as_ref().is_some_and(holds_up) {
            return 0;
        }
        FILLING.saturating_sub(self.filling.iter().rev().take_while(holds_up).take(FILLING).count())
    }

    /// The next ones that wait may look again.
    fn next(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for _ in 0..self.room() {
            let Some((_, waker)) = self.waiting.pop_first() else { return };
            waker.wake();
        }
    }
}

impl Ranks {
    /// The body, which takes its turn.
    pub fn rank(&self, body: Body, fills: bool) -> Body {
        let queue = Rc::clone(&self.0);
        let id = {
            let mut queue = queue.borrow_mut();
            queue.last += 1;
            queue.last
        };
        Box::pin(Ranked { body, queue, fills, id, sent: None, again: None })
    }
}

struct Ranked {
    body: Body,
    queue: Rc<RefCell<Queue>>,
    fills: bool,
    id: u64,
    /// When its last piece set out; it is asked for the next one when there is room.
    sent: Option<Instant>,
    /// It waits, and looks again then by itself.
    again: Option<Pin<Box<Sleep>>>,
}

impl Ranked {
    /// Its last piece has left, or nobody wants it any more.
    fn leave(&mut self) {
        if let Some(since) = self.sent.take() {
            let mut queue = self.queue.borrow_mut();
            let on_the_way = if self.fills { &mut queue.filling } else { &mut queue.laying_out };
            on_the_way.remove(&(since, self.id));
        }
    }

    fn enter(&mut self) {
        let now = Instant::now();
        self.sent = Some(now);
        let mut queue = self.queue.borrow_mut();
        let on_the_way = if self.fills { &mut queue.filling } else { &mut queue.laying_out };
        on_the_way.insert((now, self.id));
    }

    /// Is it its turn? If not, it is woken when it is.
    fn has_turn(&mut self, context: &mut Context<'_>) -> bool {
        if !self.fills || self.queue.borrow().room() > 0 {
            self.stop_waiting();
            return true;
        }
        self.queue.borrow_mut().waiting.insert(self.id, context.waker().clone());
        let again = self.again.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        while again.as_mut().poll(context).is_ready() {
            again.as_mut().reset(Instant::now() + PATIENCE);
        }
        false
    }

    fn stop_waiting(&mut self) {
        if self.again.take().is_some() {
            self.queue.borrow_mut().waiting.remove(&self.id);
        }
    }
}

impl HttpBody for Ranked {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.leave();
        let polled = match self.has_turn(context) {
            true => self.body.as_mut().poll_frame(context),
            false => return Poll::Pending,
        };
        if let Poll::Ready(Some(Ok(_))) = &polled {
            self.enter();
        }
        // Who has nothing at the moment leaves the turn to the next.
        self.queue.borrow_mut().next();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Ranked {
    fn drop(&mut self) {
        self.leave();
        self.stop_waiting();
        self.queue.borrow_mut().next();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use http::HeaderValue;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A body that always has more.
    struct Endless;

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = Broken;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"piece")))))
        }
    }

    fn endless(ranks: &Ranks, fills: bool) -> Body {
        ranks.rank(Box::pin(Endless), fills)
    }

    fn polled(body: &mut Body, woken: &Arc<Woken>) -> bool {
        let waker = Waker::from(Arc::clone(woken));
        body.as_mut().poll_frame(&mut Context::from_waker(&waker)).is_ready()
    }

    fn timed(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().build().unwrap().block_on(test);
    }

    #[test]
    fn kinds_that_fill_a_page_are_told_from_those_that_lay_it_out() {
        let of = |kind: &'static str| {
            let mut fields = HeaderMap::new();
            fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            fills(&fields)
        };
        for kind in ["image/png", "IMAGE/svg+xml", "video/mp4", "application/zip", "audio/ogg"] {
            assert!(of(kind), "{kind}");
        }
        for kind in [
            "text/html; charset=utf-8",
            "text/css",
            "application/javascript",
            "application/json",
            "application/xhtml+xml",
            "font/woff2",
            "nonsense",
        ] {
            assert!(!of(kind), "{kind}");
        }
        assert!(!fills(&HeaderMap::new()));
    }

    #[test]
    fn pictures_wait_while_styles_have_bytes_to_send_and_go_on_when_they_have_not() {
        timed(async {
            let (ranks, woken) = (Ranks::default(), Arc::new(Woken::default()));
            let (mut style, mut picture) = (endless(&ranks, false), endless(&ranks, true));
            assert!(polled(&mut picture, &woken) && polled(&mut style, &woken));
            assert!(!polled(&mut picture, &woken), "the style's piece has not left");
            assert!(polled(&mut style, &woken) && !polled(&mut picture, &woken));
            drop(style);
            assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it is its turn");
            assert!(polled(&mut picture, &woken));
        });
    }

    #[test]
    fn few_pictures_have_bytes_on_their_way_and_the_others_follow_in_order() {
        timed(async {
            let (ranks, woken) = (Ranks::default(), Arc::new(Woken::default()));
            let mut all: Vec<_> = (0..6).map(|_| endless(&ranks, true)).collect();
            let sent: Vec<_> = all.iter_mut().map(|body| polled(body, &woken)).collect();
            assert_eq!(sent, [true, true, true, false, false, false]);
            drop(all.remove(5));
            let other = Arc::new(Woken::default());
            assert!(!polled(&mut all[3], &other), "it keeps its place, whoever asks");
            all.remove(0);
            let heard = [&other, &woken].map(|it| it.0.load(Ordering::Relaxed));
            assert_eq!(heard, [1, 0], "the first of those who wait");
            assert!(polled(&mut all[2], &other) && !polled(&mut all[3], &woken));
        });
    }

    #[test]
    fn what_nobody_reads_holds_up_others_for_a_while_only() {
        timed(async {
            let (ranks, woken) = (Ranks::default(), Arc::new(Woken::default()));
            let (mut style, mut picture) = (endless(&ranks, false), endless(&ranks, true));
            assert!(polled(&mut style, &woken) && !polled(&mut picture, &woken));
            sleep(PATIENCE + Duration::from_millis(2)).await;
            assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it looks again");
            assert!(polled(&mut picture, &woken) && polled(&mut picture, &woken));
            assert!(
                polled(&mut style, &woken) && !polled(&mut picture, &woken),
                "it is read again"
            );
        });
    }
}
