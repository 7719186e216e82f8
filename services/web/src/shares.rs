//! What one peer may take of what this program has for all of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tokio::task::{AbortHandle, spawn_local};

/// Places of a kind. A peer has no more of them than are free, so that some are left for whoever
/// comes next.
pub struct Places {
    most: usize,
    taken: RefCell<BTreeMap<Rc<str>, usize>>,
}

/// One of them, until it is dropped.
pub struct Place {
    places: Rc<Places>,
    peer: Rc<str>,
    weight: usize,
}

impl Places {
    /// So many.
    pub fn new(most: usize) -> Rc<Places> {
        Rc::new(Places { most, taken: RefCell::default() })
    }

    /// One that counts for so many. `None`: the peer has its part.
    pub fn take(self: &Rc<Places>, peer: &Rc<str>, weight: usize) -> Option<Place> {
        let mut taken = self.taken.borrow_mut();
        let free = self.most.saturating_sub(taken.values().sum());
        let its = taken.get(peer).copied().unwrap_or(0);
        if its + 2 * weight > free {
            return None;
        }
        taken.insert(peer.clone(), its + weight);
        Some(Place { places: Rc::clone(self), peer: peer.clone(), weight })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.borrow_mut();
        if let Some(its) = taken.get_mut(&self.peer) {
            *its -= self.weight;
            if *its == 0 {
                taken.remove(&self.peer);
            }
        }
    }
}

/// Streams that peers open. Of each peer the newest few are served: one before them belongs to a
/// service that is gone.
#[derive(Default)]
pub struct Streams(RefCell<BTreeMap<String, VecDeque<AbortHandle>>>);

impl Streams {
    /// Serves one more.
    pub fn serve(&self, peer: &str, most: usize, task: impl Future<Output = ()> + 'static) {
        let handle = spawn_local(task).abort_handle();
        let mut all = self.0.borrow_mut();
        let its = all.entry(peer.to_owned()).or_default();
        its.retain(|stream| !stream.is_finished());
        its.push_back(handle);
        while its.len() > most {
            its.pop_front().iter().for_each(AbortHandle::abort);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[test]
    fn whoever_takes_all_that_he_can_leaves_something_to_the_next() {
        let places = Places::new(256);
        let mut all = Vec::new();
        for (peer, most) in [("evil", 128), ("worse", 64), ("worst", 32), ("ship", 16)] {
            let peer: Rc<str> = peer.into();
            let its: Vec<_> = (0..1000).map_while(|_| places.take(&peer, 1)).collect();
            assert_eq!(its.len(), most);
            all.push(its);
        }
        drop(all);
        assert!(places.taken.borrow().is_empty());
        let peer: Rc<str> = "ship".into();
        assert!(places.take(&peer, 129).is_none() && places.take(&peer, 128).is_some());
    }

    #[test]
    fn of_a_peers_streams_the_newest_are_served() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let (streams, kept) = (Streams::default(), Rc::new(()));
            for peer in ["evil", "ship"] {
                for _ in 0..1000 {
                    let kept = kept.clone();
                    streams.serve(peer, 2, async move {
                        pending::<()>().await;
                        drop(kept);
                    });
                }
            }
            for _ in 0..10_000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(Rc::strong_count(&kept), 1 + 2 * 2);
        });
    }
}
