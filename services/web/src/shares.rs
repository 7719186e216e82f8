//! What one peer, or one host, may take of what this program has for all of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;

use tokio::task::{AbortHandle, spawn_local};
use units::one_host;

/// Places of a kind, by who holds them, a peer or a host. Nobody has more than are free, and where
/// less than a quarter is free four times its square: a dozen that take all they can leave one in
/// forty. Who has none gets one while there is any.
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
        let left = free.checked_sub(weight)?;
        let part = left.min(4 * left * left / self.most.max(1));
        if its + weight > part && its + weight > 1 {
            return None;
        }
        taken.insert(holder.clone(), its + weight);
        Some(Place { places: Rc::clone(self), holder: holder.clone(), weight })
    }
}

#[cfg(test)]
impl<H: Ord> Places<H> {
    pub fn taken_by(&self, holder: &H) -> usize {
        self.taken.borrow().get(holder).copied().unwrap_or(0)
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

/// Places of hosts. In IPv6 a network of 64 bits holds them as one host does, because one may have
/// as many addresses of it as it likes; among its addresses they are divided once more.
pub struct HostPlaces {
    networks: Rc<Places<IpAddr>>,
    hosts: RefCell<BTreeMap<IpAddr, Rc<Places<IpAddr>>>>,
}

/// One of them, until it is dropped: the network's, and the address's in it.
pub struct HostPlace {
    _of_network: Place<IpAddr>,
    _of_host: Option<Place<IpAddr>>,
}

impl HostPlaces {
    /// So many.
    pub fn new(most: usize) -> HostPlaces {
        HostPlaces { networks: Places::new(most), hosts: RefCell::default() }
    }

    /// One of them. `None`: the host, or its network, has its part.
    pub fn take(&self, host: IpAddr) -> Option<HostPlace> {
        let network = one_host(host);
        let _of_network = self.networks.take(&network, 1)?;
        let _of_host = match network.is_ipv6() {
            true => Some(self.in_network(network).take(&host, 1)?),
            false => None,
        };
        Some(HostPlace { _of_network, _of_host })
    }

    fn in_network(&self, network: IpAddr) -> Rc<Places<IpAddr>> {
        let mut all = self.hosts.borrow_mut();
        all.retain(|_, places| Rc::strong_count(places) > 1);
        all.entry(network).or_insert_with(|| Places::new(self.networks.most / 2)).clone()
    }
}

/// Its name.
pub fn holder_of(host: IpAddr) -> Rc<str> {
    one_host(host).to_string().into()
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
        for (peer, most) in [("evil", 128), ("worse", 64), ("worst", 24), ("ship", 12)] {
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
    fn sixty_who_take_all_that_they_can_leave_the_next_one_a_place() {
        let places = Places::new(3000);
        let host = |n: u32| IpAddr::from(n.to_be_bytes());
        let take = |n: u32, most: usize| {
            (0..most).map_while(|_| places.take(&host(n), 1)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = (0..12).map(|n| take(n, 3000)).collect();
        assert_eq!(all[0].len(), 1500);
        let free = 3000 - all.iter().map(Vec::len).sum::<usize>();
        assert!(free >= 75, "{free}");
        assert_eq!(take(12, 6).len(), 6, "what a browser opens");
        all.extend((12..61).map(|n| take(n, 3000)));
        assert!(all.iter().all(|its| !its.is_empty()));
    }

    #[test]
    fn a_host_with_many_addresses_of_its_network_has_the_part_of_one() {
        let places = HostPlaces::new(3000);
        let own = |n: u128| IpAddr::from((0xfd01_u128 << 112 | n).to_be_bytes());
        let take = |host: IpAddr| (0..3000).map_while(|_| places.take(host)).collect::<Vec<_>>();
        let its: Vec<_> = (0..100).map(|n| take(own(n))).collect();
        assert_eq!(its.iter().map(Vec::len).sum::<usize>(), 1500);
        // One address of a network leaves something to the others in it.
        assert_eq!(its[0].len(), 750);
        assert!(its[..30].iter().all(|its| !its.is_empty()));
        for other in ["10.1.0.2", "fd02::1"] {
            assert!(take(other.parse().unwrap()).len() > 100, "{other}");
        }
        drop(its);
        assert_eq!(take("10.1.0.2".parse().unwrap()).len(), 1500);
        assert_eq!(take("::ffff:10.1.0.2".parse().unwrap()).len(), 1500, "the same one");
        drop(places.take("fd03::1".parse().unwrap()));
        assert!(places.networks.taken.borrow().is_empty() && places.hosts.borrow().len() == 1);
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
