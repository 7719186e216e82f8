//! Connections to servers that wait for their next request.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Pool, Sender};
use crate::shares::{Place, Places};

/// How long a connection is kept without a request.
const KEPT: Duration = Duration::from_secs(30);
/// Connections to one server for one host, and to all, of which a peer alone may have half.
const EACH: usize = 6;
const ALL: usize = 512;

/// All of them.
pub struct Warm {
    pools: RefCell<BTreeMap<Pool, Vec<Waiting>>>,
    places: Rc<Places>,
}

struct Waiting {
    since: Instant,
    sender: Sender,
    _place: Place,
}

impl Default for Warm {
    fn default() -> Warm {
        Warm { pools: RefCell::default(), places: Places::new(ALL) }
    }
}

impl Warm {
    /// One that waits.
    pub fn take(&self, pool: &Pool) -> Option<Sender> {
        let mut pools = self.pools.borrow_mut();
        let kept = pools.get_mut(pool)?;
        while let Some(Waiting { since, sender, .. }) = kept.pop() {
            if since.elapsed() < KEPT && sender.is_ready() {
                return Some(sender);
            }
        }
        pools.remove(pool);
        None
    }

    /// Keeps one, if its peer has not its part of them.
    pub fn keep(&self, pool: Pool, sender: Sender) {
        let mut pools = self.pools.borrow_mut();
        pools.retain(|_, kept| {
            kept.retain(|it| it.since.elapsed() < KEPT && !it.sender.is_closed());
            !kept.is_empty()
        });
        if pools.get(&pool).is_some_and(|kept| kept.len() >= EACH) {
            return;
        }
        let mut place = self.places.take(&pool.0.0, 1);
        if place.is_none() {
            // It has its part: its oldest is the least likely to be used.
            let its = pools.iter().filter(|(of, _)| of.0.0 == pool.0.0);
            let since =
                |(of, kept): (&Pool, &Vec<Waiting>)| Some((kept.first()?.since, of.clone()));
            let oldest = its.filter_map(since).min_by_key(|(since, _)| *since);
            if let Some((_, of)) = oldest
                && let Some(kept) = pools.get_mut(&of)
            {
                kept.remove(0);
                place = self.places.take(&pool.0.0, 1);
            }
        }
        let Some(place) = place else { return };
        let waiting = Waiting { since: Instant::now(), sender, _place: place };
        pools.entry(pool).or_default().push(waiting);
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_web::headers::Way;
    use hyper::client::conn::http1::handshake;
    use hyper_util::rt::TokioIo;

    use super::*;

    #[test]
    fn a_peer_with_many_warm_connections_leaves_places_to_the_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (warm, mut open) = (Warm::default(), Vec::new());
            let mut keep = async |peer: &str, server: usize| {
                let (ours, theirs) = tokio::io::duplex(64);
                let (sender, connection) = handshake(TokioIo::new(ours)).await.unwrap();
                open.push((connection, theirs));
                let to = ([10, 2, (server / 256) as u8, server as u8], 80).into();
                let way = Way { to, from: [10, 1, 0, 2].into() };
                warm.keep(((peer.into(), way, None), false), sender);
                let pools = warm.pools.borrow();
                let its = pools.iter().filter(|(pool, _)| *pool.0.0 == *peer);
                its.map(|(_, kept)| kept.len()).sum::<usize>()
            };
            for server in 0..2 * ALL {
                keep("evil", server).await;
            }
            assert_eq!(keep("evil", 0).await, ALL / 2);
            for n in 0..2 * EACH {
                assert_eq!(keep("ship", 0).await, EACH.min(n + 1));
            }
        });
    }
}
