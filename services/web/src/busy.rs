//! What is under way, so that the program ends when nothing is.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Counts what is under way.
#[derive(Clone, Default)]
pub struct Busy(Rc<Inside>);

#[derive(Default)]
struct Inside {
    under_way: Cell<usize>,
    /// When it had nothing under way any more.
    rested: Cell<Option<Instant>>,
    changed: Notify,
}

/// Something that is under way, until it is dropped.
pub struct UnderWay(Rc<Inside>);

impl Busy {
    /// Something more is under way.
    pub fn begin(&self) -> UnderWay {
        self.0.under_way.set(self.0.under_way.get() + 1);
        UnderWay(Rc::clone(&self.0))
    }

    /// Waits until nothing has been under way for so long.
    pub async fn rests(&self, time: Duration) {
        loop {
            let changed = self.0.changed.notified();
            if self.0.under_way.get() > 0 {
                changed.await;
                continue;
            }
            let rested = self.0.rested.get().map_or(time, |since| since.elapsed());
            match time.checked_sub(rested).filter(|left| !left.is_zero()) {
                Some(left) => sleep(left).await,
                None => return,
            }
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let left = self.0.under_way.get() - 1;
        self.0.under_way.set(left);
        if left == 0 {
            self.0.rested.set(Some(Instant::now()));
            self.0.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn it_rests_at_once_where_nothing_was_and_a_while_after_what_was() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (busy, while_) = (Busy::default(), Duration::from_millis(100));
            timeout(Duration::from_secs(20), busy.rests(Duration::MAX)).await.expect("at once");
            let (one, other) = (busy.begin(), busy.begin());
            let mut rests = pin!(busy.rests(while_));
            drop(one);
            assert!(timeout(2 * while_, rests.as_mut()).await.is_err(), "another is under way");
            let ended = Instant::now();
            drop(other);
            timeout(Duration::from_secs(20), rests).await.expect("a while later");
            assert!(ended.elapsed() >= while_);
        });
    }
}
