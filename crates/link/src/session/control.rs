//! Streams with control frames to be sent, in order.

use std::collections::VecDeque;

use super::schedule::{ClassId, Schedule};
use crate::wire::StreamId;

/// What streams have to say beside their bytes. Each goes the way of the stream's class.
#[derive(Default, Debug)]
pub(super) struct Control {
    queue: VecDeque<(ClassId, StreamId)>,
    /// How many, by class.
    counts: [u32; ClassId::MAX],
}

impl Control {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn push(&mut self, class: ClassId, id: StreamId) {
        self.counts[class.index()] += 1;
        self.queue.push_back((class, id));
    }

    /// Is there something for this way?
    pub fn has(&self, schedule: &Schedule, way: usize) -> bool {
        if self.queue.is_empty() {
            return false;
        }
        let waits = |class: &ClassId| self.counts[class.index()] > 0;
        let mut all = (0..ClassId::MAX).map(ClassId::from_index).filter(waits);
        match schedule.is_parted() {
            false => schedule.way(ClassId::CONTROL) == way,
            true => all.any(|class| schedule.way(class) == way),
        }
    }

    /// The first for this way, and its place.
    pub fn next(&self, schedule: &Schedule, way: usize) -> Option<(usize, StreamId)> {
        if !self.has(schedule, way) {
            return None;
        }
        let goes = |(class, _): &(ClassId, StreamId)| schedule.way(*class) == way;
        let place = self.queue.iter().position(goes)?;
        Some((place, self.queue[place].1))
    }

    /// What was in this place has left.
    pub fn remove(&mut self, place: usize) {
        if let Some((class, _)) = self.queue.remove(place) {
            self.counts[class.index()] -= 1;
        }
    }

    /// Gives back what the queue took, if nothing waits.
    pub fn shrink(&mut self) {
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
    }
}
