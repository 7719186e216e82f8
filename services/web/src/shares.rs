//! What one peer, or one host, may take of what this program has for all of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tokio::task::{AbortHandle, spawn_local};

/// Places of a kind, by who holds them. A holder, which is a peer or a host, has no more of them
/// than are free, so that some are left for whoever comes next.
pub struct Places<H: Ord = Rc<str>> {
    most: usize,
    taken: RefCell<BTreeMap<H, usize>>,
}

/// One of them, until it is dropped.
pub struct Place<H: Ord = Rc<str>> {
    places: Rc<Places<H>>,
    holder: H,
    weight: usize,
}

impl<H: Ord + Clone> Places<H> {
    /// So many.
    pub fn new(most: usize) -> Rc<Places<H>> {
        Rc::new(Places { most, taken: RefCell::default() })
    }

    /// One that counts for so many. `None`: the holder has its part.
    pub fn take(self: &Rc<Places<H>>, holder: &H, weight: usize) -> Option<Place<H>> {
        let mut taken = self.taken.borrow_mut();
        let free = self.most.saturating_sub(taken.values().sum());
        let its = taken.get(holder).copied().unwrap_or(0);
        if its + 2 * weight > free {
            return None;
        }
        taken.insert(holder.clone(), its + weight);
        Some(Place { places: Rc::clone(self), holder: holder.clone(), weight })
    }
}

impl<H: Ord> Drop for Place<H> {
    fn drop(&mut self) {
        let mut taken = self.places.taken.borrow_mut();
        if let Some(its) = taken.get_mut(&self.holder) {
            *its -= self.weight;
            if *its == 0 {
                taken.remove(&self.holder);
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
    fn hosts_have_their_parts_as_peers_do() {
        let places = Places::new(3000);
        let host = |n: u8| std::net::IpAddr::from([10, 1, 0, n]);
        let its: Vec<_> = (0..3000).map_while(|_| places.take(&host(2), 1)).collect();
        assert_eq!(its.len(), 1500);
        assert!(places.take(&host(2), 1).is_none() && places.take(&host(3), 1).is_some());
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
