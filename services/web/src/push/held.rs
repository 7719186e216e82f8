//! What a terminal has of each host, so that it is not pushed again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::fields::{MAX_HELD, hash};
use crate::cache::Key;

/// Hosts that are remembered.
const MAX_HOSTS: usize = 1024;

type Site = (String, SocketAddr, String);

/// Hashes of the names of what is fresh, by host, and until when.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<Site, BTreeMap<u32, Duration>>);

fn site(key: &Key) -> Site {
    (key.peer().to_owned(), key.server(), key.origin().to_owned())
}

impl Held {
    /// The terminal has this, fresh until then.
    pub fn note(&mut self, key: &Key, until: Duration) {
        let site = site(key);
        if self.0.len() >= MAX_HOSTS && !self.0.contains_key(&site) {
            // Whichever: what is forgotten is pushed once more.
            self.0.pop_first();
        }
        let names = self.0.entry(site).or_default();
        if names.len() >= MAX_HELD
            && let Some(next) = names.iter().min_by_key(|(_, until)| **until).map(|(h, _)| *h)
        {
            names.remove(&next);
        }
        names.insert(hash(key.uri()), until);
    }

    /// What is fresh of the host of this page.
    pub fn of(&mut self, page: &Key, now: Duration) -> BTreeSet<u32> {
        let Some(names) = self.0.get_mut(&site(page)) else { return BTreeSet::new() };
        names.retain(|_, until| now < *until);
        names.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fresh_of_a_host_is_known_and_there_is_a_limit_to_it() {
        let key =
            |uri: &str| Key::new("shore", "10.2.0.2:80".parse().unwrap(), &uri.parse().unwrap());
        let (mut held, second) = (Held::default(), Duration::from_secs(1));
        held.note(&key("http://a/x"), 2 * second);
        held.note(&key("http://a/y"), 9 * second);
        held.note(&key("http://b/x"), 9 * second);
        assert_eq!(held.of(&key("http://a/page"), second), ["a/x", "a/y"].map(hash).into());
        assert_eq!(held.of(&key("http://a/page"), 2 * second), [hash("a/y")].into());
        for n in 0..2 * MAX_HELD {
            held.note(&key(&format!("http://a/{n}")), 10 * second);
            held.note(&key(&format!("http://{n}/")), 10 * second);
        }
        assert_eq!(held.of(&key("http://a/"), second).len(), MAX_HELD);
        for n in 0..2 * MAX_HOSTS {
            held.note(&key(&format!("http://{n}/")), 10 * second);
        }
        assert_eq!(held.0.len(), MAX_HOSTS);
    }
}
