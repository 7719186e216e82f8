//! Streams with control frames to be sent: in order, but for classes that wait for their carriers.

use std::collections::VecDeque;

use super::schedule::{FEW, Schedule};
use crate::traffic::ClassId;
use crate::wire::StreamId;

/// What streams have to say beside their bytes. Each goes the way of the stream's class.
#[derive(Default, Debug)]
pub(super) struct Control {
    /// By class, each with its place in the order of all.
    queues: [VecDeque<(u64, StreamId)>; ClassId::MAX],
    next: u64,
    len: usize,
    /// Of these, those of streams that are gone.
    gone: usize,
}

impl Control {
    pub fn push(&mut self, class: ClassId, id: StreamId) {
        self.queues[class.index()].push_back((self.next, id));
        self.next += 1;
        self.len += 1;
    }

    /// The class of the first for this way.
    fn first(&self, schedule: &Schedule, way: usize) -> Option<ClassId> {
        let all = self.queues.iter().enumerate();
        let here = all.filter(|(class, queue)| {
            !queue.is_empty() && schedule.way(ClassId::from_index(*class)) == way
        });
        let first = here.min_by_key(|(_, queue)| queue.front().map(|(place, _)| *place))?;
        Some(ClassId::from_index(first.0))
    }

    /// Is there something for this way?
    pub fn has(&self, schedule: &Schedule, way: usize) -> bool {
        self.len > 0 && self.first(schedule, way).is_some()
    }

    /// The first for this way, and the class in which it waits.
    pub fn next(&self, schedule: &Schedule, way: usize) -> Option<(ClassId, StreamId)> {
        if self.len == 0 {
            return None;
        }
        let class = self.first(schedule, way)?;
        self.queues[class.index()].front().map(|(_, id)| (class, *id))
    }

    /// The first of this class has left; `is_there`: its stream still is.
    pub fn pop(&mut self, class: ClassId, is_there: bool) {
        if self.queues[class.index()].pop_front().is_some() {
            self.len -= 1;
            self.gone -= usize::from(!is_there).min(self.gone);
        }
    }

    /// A stream that waited here is gone. Its entry goes with others, before they are half of all.
    pub fn on_gone(&mut self, is_there: impl Fn(StreamId) -> bool) {
        self.gone += 1;
        if self.gone > FEW && self.gone > self.len / 2 {
            self.queues.iter_mut().for_each(|queue| queue.retain(|(_, id)| is_there(*id)));
            self.len = self.queues.iter().map(VecDeque::len).sum();
            self.gone = 0;
        }
    }

    /// The stream is in another class from now on.
    pub fn move_to(&mut self, class: ClassId, id: StreamId) {
        for queue in &mut self.queues {
            if let Some(at) = queue.iter().position(|(_, other)| *other == id) {
                queue.remove(at);
                self.len -= 1;
            }
        }
        self.push(class, id);
    }

    /// Gives back what the queues took, if nothing waits.
    pub fn shrink(&mut self) {
        if self.len == 0 {
            self.queues = Default::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer may open streams in a class that has no way, and reset them, without end.
    #[test]
    fn entries_of_streams_that_are_gone_do_not_pile_up() {
        let mut control = Control::default();
        for n in 0..10_000 {
            control.push(ClassId::BULK, StreamId(n));
            control.on_gone(|id| id.0 == 7);
            assert!(control.len <= 2 * FEW, "{}", control.len);
        }
        assert!(control.queues[ClassId::BULK.index()].iter().any(|(_, id)| id.0 == 7));
    }

    #[test]
    fn what_goes_one_way_leaves_in_order_whatever_its_class() {
        let schedule = Schedule::new(&[], 1500);
        let mut control = Control::default();
        for (n, class) in [ClassId::BULK, ClassId::NORMAL, ClassId::BULK].into_iter().enumerate() {
            control.push(class, StreamId(n as u64));
        }
        let mut order = Vec::new();
        while let Some((class, id)) = control.next(&schedule, 0) {
            order.push(id.0);
            control.pop(class, true);
        }
        assert_eq!(order, [0, 1, 2]);
        assert!(!control.has(&schedule, 0));
    }
}
