//! What hosts were asked for, what the cache saved, and what was pushed, by the host that was
//! asked.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use bentpipe_web::cache::{Key, Stored, host_of};
use serde::Serialize;

/// Hosts that are told apart; those beyond are told together.
const MAX_HOSTS: usize = 512;
/// A name's bytes; hosts of the LAN choose them.
const LONGEST: usize = 255;
/// All beyond.
const OTHERS: &str = "others";

/// Counts for each host.
#[derive(Default)]
pub struct Hosts(RefCell<BTreeMap<String, Saved>>);

/// What was saved for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Saved {
    /// Requests for it.
    pub requests: u64,
    /// Those that did not touch the link.
    pub hits: u64,
    /// Those for which a 304 was enough.
    pub validated: u64,
    /// Bytes of bodies that did not cross the link.
    pub bytes: u64,
    /// Milliseconds that these answers took when they crossed it.
    pub saved_ms: u64,
    /// Bytes of all bodies that were given to its readers.
    pub total_bytes: u64,
    /// Objects of its that came ahead of their requests and were asked for.
    pub push_used: u64,
    /// Those that nobody asked for.
    pub push_wasted: u64,
}

impl Hosts {
    fn change(&self, key: &Key, with: impl FnOnce(&mut Saved)) {
        self.change_host(key.host(), with);
    }

    fn change_host(&self, host: &str, with: impl FnOnce(&mut Saved)) {
        let mut hosts = self.0.borrow_mut();
        if let Some(it) = hosts.get_mut(host) {
            return with(it);
        }
        let room = hosts.len() < MAX_HOSTS && host.len() <= LONGEST;
        let name = if room { host } else { OTHERS };
        with(hosts.entry(name.to_owned()).or_default());
    }

    /// Bytes of the object of this name were given to a reader.
    pub fn read(&self, name: &str, bytes: u64) {
        self.change_host(host_of(name), |it| it.total_bytes += bytes);
    }

    /// The object of this name was pushed, and asked for or not.
    pub fn pushed(&self, name: &str, is_used: bool) {
        self.change_host(host_of(name), |it| match is_used {
            true => it.push_used += 1,
            false => it.push_wasted += 1,
        });
    }

    /// A request.
    pub fn request(&self, key: &Key) {
        self.change(key, |it| it.requests += 1);
    }

    /// It was answered with what is kept.
    pub fn hit(&self, key: &Key, stored: &Stored) {
        self.change(key, |it| {
            it.hits += 1;
            it.bytes += stored.length;
            it.saved_ms += millis(stored.took);
        });
    }

    /// What is kept was found to hold.
    pub fn validated(&self, key: &Key, stored: &Stored) {
        self.change(key, |it| {
            it.validated += 1;
            it.bytes += stored.length;
        });
    }

    /// The `most` that saved the most bytes, or had the most.
    pub fn best(&self, most: usize) -> Vec<(String, Saved)> {
        let hosts = self.0.borrow();
        let mut all: Vec<_> = hosts.iter().map(|(name, it)| (name.clone(), *it)).collect();
        all.sort_by_key(|(_, it)| std::cmp::Reverse((it.bytes, it.total_bytes, it.requests)));
        all.truncate(most);
        all
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}
