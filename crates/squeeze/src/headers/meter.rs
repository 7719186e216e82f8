//! The processor's time that payloads take.

use units::Duration;

use crate::stream::Stopwatch;

/// Adds up the time of pieces of work; without a stopwatch none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    pub stopwatch: Option<Stopwatch>,
    pub spent: Duration,
}

impl Meter {
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let Some(now) = self.stopwatch else { return work() };
        let begin = now();
        let made = work();
        self.spent += now().since(begin);
        made
    }
}
