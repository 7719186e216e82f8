//! What a terminal has of each host, so that it is not pushed again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::fields::{MAX_HELD, hash};
use crate::cache::{Digest, Key};

/// Hosts that are remembered.
const MAX_HOSTS: usize = 1024;

type Site = (String, SocketAddr, String);

/// What is known of one answer.
#[derive(Debug)]
struct Kept {
    /// What the store names it by.
    digest: Digest,
    /// It is fresh until then.
    until: Duration,
    mark: Option<u32>,
}

/// Hashes of the names of what is kept, by host.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<Site, BTreeMap<u32, Kept>>);

fn site(key: &Key) -> Site {
    (key.peer().to_owned(), key.server(), key.origin().to_owned())
}

impl Held {
    /// The terminal has this, with this mark, fresh until then.
    pub fn note(&mut self, key: &Key, mark: Option<u32>, until: Duration) {
        let site = site(key);
        if self.0.len() >= MAX_HOSTS && !self.0.contains_key(&site) {
            // Whichever: what is forgotten is pushed once more.
            self.0.pop_first();
        }
        let names = self.0.entry(site).or_default();
        if names.len() >= MAX_HELD
            && let Some(next) = names.iter().min_by_key(|(_, it)| it.until).map(|(h, _)| *h)
        {
            names.remove(&next);
        }
        names.insert(hash(key.uri()), Kept { digest: key.digest(), until, mark });
    }

    /// The names of what is fresh of the host of this page, and the marks of what is not any more.
    /// What the store has given up since, however that came, `is_kept` no more.
    pub fn of(
        &mut self,
        page: &Key,
        now: Duration,
        is_kept: impl Fn(Digest) -> bool,
    ) -> (BTreeSet<u32>, BTreeSet<u32>) {
        let Some(names) = self.0.get_mut(&site(page)) else { return Default::default() };
        names.retain(|_, it| (now < it.until || it.mark.is_some()) && is_kept(it.digest));
        let (mut fresh, mut stale) = (BTreeSet::new(), BTreeSet::new());
        for (name, it) in names {
            match it.mark {
                _ if now < it.until => drop(fresh.insert(*name)),
                mark => stale.extend(mark),
            }
        }
        (fresh, stale)
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
        held.note(&key("http://a/x"), Some(7), 2 * second);
        held.note(&key("http://a/y"), None, 9 * second);
        held.note(&key("http://b/x"), None, 9 * second);
        let mut of = |now| held.of(&key("http://a/page"), now, |_| true);
        assert_eq!(of(second), (["a/x", "a/y"].map(hash).into(), [].into()));
        assert_eq!(of(2 * second), ([hash("a/y")].into(), [7].into()), "it may be the same still");
        assert_eq!(of(9 * second), ([].into(), [7].into()));
        for n in 0..2 * MAX_HELD {
            held.note(&key(&format!("http://a/{n}")), None, 10 * second);
            held.note(&key(&format!("http://{n}/")), None, 10 * second);
        }
        assert_eq!(held.of(&key("http://a/"), second, |_| true).0.len(), MAX_HELD);
        for n in 0..2 * MAX_HOSTS {
            held.note(&key(&format!("http://{n}/")), None, 10 * second);
        }
        assert_eq!(held.0.len(), MAX_HOSTS);
    }
    #[test]
    fn what_was_given_up_is_neither_fresh_nor_stale() {
        let key =
            |uri: &str| Key::new("shore", "10.2.0.2:80".parse().unwrap(), &uri.parse().unwrap());
        let (mut held, second) = (Held::default(), Duration::from_secs(1));
        held.note(&key("http://a/kept"), None, 9 * second);
        held.note(&key("http://a/purged"), None, 9 * second);
        held.note(&key("http://a/stale"), Some(7), second);
        let kept = key("http://a/kept").digest();
        let mut of = |now| held.of(&key("http://a/page"), now, |digest| digest == kept);
        assert_eq!(of(2 * second), ([hash("a/kept")].into(), [].into()));
    }
}
