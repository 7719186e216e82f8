//! Sockets whose flow is over, while the kernel has bytes of theirs that the host has not
//! acknowledged: a reset now would throw them away, and so would the end of the interception.

use std::collections::VecDeque;

use os::tcp::Stream;
use units::{Duration, Instant};

use super::patience::{Patience, RESET};

/// How often it is looked what hosts have acknowledged.
const LOOK: Duration = Duration::from_millis(100);
/// The most sockets that are kept. Beyond it the oldest goes, as if its host took nothing.
const MOST: usize = 4096;

/// The sockets, the oldest first. One that is dropped resets, or ends, as it was told to.
#[derive(Default)]
pub struct Lingering {
    sockets: VecDeque<(Stream, Patience)>,
    look_at: Option<Instant>,
}

impl Lingering {
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Keeps the socket until its host has everything, or takes nothing for five seconds.
    pub fn add(&mut self, now: Instant, stream: Stream) {
        let left = stream.under_way();
        if left == 0 {
            return;
        }
        if self.sockets.len() >= MOST {
            self.sockets.pop_front();
        }
        self.sockets.push_back((stream, Patience::begin(now, RESET, left as u64)));
        self.look_at.get_or_insert(now + LOOK);
    }

    /// When [`Lingering::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.look_at
    }

    /// Lets go of sockets whose host has everything, or takes nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        self.sockets.retain_mut(|(stream, patience)| {
            let left = stream.under_way();
            left > 0 && !patience.is_over(now, left as u64)
        });
        self.look_at = (!self.sockets.is_empty()).then_some(now + LOOK);
    }
}
