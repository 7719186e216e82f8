//! The clocks: the steady one, and the calendar for the time that files lay while nothing ran, and
//! for certificates.

use std::time::{Duration, SystemTime};

use bentpipe_web::cache::Now;
use tokio::time::Instant;

/// Since when this program runs.
pub struct Clock(Instant);

impl Clock {
    /// From now on.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// What both say. A calendar before 1970 says 1970.
    pub fn now(&self) -> Now {
        Now { steady: self.0.elapsed(), calendar: calendar() }
    }
}

/// The time since 1970, as this machine believes.
pub fn calendar() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
