//! When this node calls those whom nobody waits for: a hub that starts knows where thousands of
//! terminals were, and some machines sleep and wake.
//!
//! All at once their answers would not fit the hub's socket, and none would be taken before the
//! others' arithmetic was done, so that all would be called again. So they have turns. What a
//! host waits for has none and leaves at once.

use units::{Duration, Instant};

/// From one turn to the next: 500 a second take a tenth of a processor at this node.
const SPACING: Duration = Duration::from_millis(2);

/// The turns that were given.
#[derive(Default)]
pub(super) struct Calls {
    next: Instant,
}

impl Calls {
    /// The next that nobody has.
    pub fn next_turn(&mut self, now: Instant) -> Instant {
        let turn = self.next.max(now);
        self.next = turn + SPACING;
        turn
    }
}
