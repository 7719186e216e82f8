//! Which questions go together: learned from what peers ask one after another (N-X-4).

use std::collections::{BTreeMap, VecDeque};

use units::Shares;

use crate::Key;

/// Questions that follow another within so many milliseconds go together with it.
const TOGETHER: u64 = 3_000;
/// Followers of a question. A browser asks three of a host, so that a page has eight. The peer that
/// taught the most of them loses its oldest.
pub(super) const MOST_FOLLOWERS: usize = 24;
/// Memory of all that is learned. The peer that taught the most loses its oldest.
pub(super) const MOST_LEARNED: usize = 32 << 20;
/// A question to which no follower was added for so long leads no more, in milliseconds.
pub(super) const LEADS: u64 = 24 * 3_600_000;
/// Questions of a peer that are remembered for that, and how many of them are learned within a
/// second: each is compared with all that are remembered.
pub(super) const MOST_RECENT: usize = 32;
pub(super) const MOST_LEARNS: u32 = 32;
/// Peers that are remembered to have taught a follower, beside the first.
const MOST_TEACHERS: usize = 7;
/// A second, in milliseconds.
const SECOND: u64 = 1_000;
/// What a leader and a follower take beside their bytes.
const OVERHEAD: usize = 200;
/// The same of one more peer that taught it.
const OF_TEACHER: usize = 70;

/// Followers of a question.
struct Leader {
    /// Older ones have lower numbers.
    number: u64,
    /// When a follower was learned last.
    learned: u64,
    /// Oldest first.
    followers: Vec<Follower>,
}

#[derive(Clone)]
struct Follower {
    /// The peer that taught it first.
    by: String,
    /// Others that did.
    also: Vec<String>,
    key: Key,
}

/// What a peer asked lately.
#[derive(Default)]
struct Recent {
    /// When, and what.
    asked: VecDeque<(u64, Key)>,
    /// When the second began in which so many were learned.
    began: u64,
    learns: u32,
}

/// See the module.
#[derive(Default)]
pub struct Together {
    leaders: BTreeMap<Key, Leader>,
    /// The leaders by their numbers.
    names: BTreeMap<u64, Key>,
    /// Bytes that each peer has taught of each leader, by its number.
    taught: Shares<String, (), (u64, String)>,
    last: u64,
    recent: BTreeMap<String, Recent>,
    /// How often something was found to follow something, for tests.
    #[cfg(test)]
    pub(super) follows: usize,
}

impl Together {
    /// What a peer's host asked at this time was answered. The names of questions that no server
    /// answers are not learned: they cost their host nothing.
    pub fn learn(&mut self, now: u64, at: u64, peer: &str, key: &Key) {
        let recent = self.recent.entry(peer.to_owned()).or_default();
        if now.saturating_sub(recent.began) >= SECOND {
            (recent.began, recent.learns) = (now, 0);
        }
        if recent.learns >= MOST_LEARNS {
            return;
        }
        recent.learns += 1;
        let asked = &mut recent.asked;
        // Of two that were asked at once the second may have been answered first.
        let before = now.saturating_sub(2 * TOGETHER);
        asked.retain(|(at, other)| *at >= before && other != key);
        let near = asked.iter().filter(|(of, k)| k.0 == key.0 && of.abs_diff(at) <= TOGETHER);
        let pairs: Vec<(bool, Key)> = near.map(|(of, k)| (*of <= at, k.clone())).collect();
        asked.push_back((at, key.clone()));
        if asked.len() > MOST_RECENT {
            asked.pop_front();
        }
        for (was_first, other) in pairs {
            match was_first {
                true => self.follow(now, peer, &other, key),
                false => self.follow(now, peer, key, &other),
            }
        }
    }

    /// The second goes together with the first, as the peer has taught. What another taught before
    /// stays the other's.
    pub fn follow(&mut self, now: u64, peer: &str, leader: &Key, key: &Key) {
        #[cfg(test)]
        {
            self.follows += 1;
        }
        let Together { leaders, names, last, .. } = self;
        let it = leaders.entry(leader.clone()).or_insert_with(|| {
            *last += 1;
            names.insert(*last, leader.clone());
            Leader { number: *last, learned: now, followers: Vec::new() }
        });
        it.learned = now;
        match it.followers.iter().position(|follower| follower.key == *key) {
            Some(at) if it.followers[at].by == peer => return it.followers[at..].rotate_left(1),
            Some(at) => {
                let also = &mut it.followers[at].also;
                if also.len() == MOST_TEACHERS || also.iter().any(|other| other == peer) {
                    return;
                }
                also.push(peer.to_owned());
                let by = it.followers[at].by.clone();
                self.weigh(leader, &by);
                return self.shrink();
            }
            None => {
                let (by, key) = (peer.to_owned(), key.clone());
                it.followers.push(Follower { by, also: Vec::new(), key });
            }
        }
        let displaced = it.displaces();
        self.weigh(leader, peer);
        if let Some(other) = displaced.filter(|other| other != peer) {
            self.weigh(leader, &other);
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.taught.sum() > MOST_LEARNED
            && let Some((number, peer)) = self.taught.gives_way().cloned()
        {
            self.forget(number, &peer);
        }
    }

    /// What follows a question: what this peer has taught itself, and what two others have. Nobody
    /// alone chooses what crosses another's link.
    pub fn followers(&mut self, now: u64, leader: &Key, peer: &str) -> (Vec<Key>, Vec<Key>) {
        let Some(it) = self.leaders.get(leader) else { return Default::default() };
        if now.saturating_sub(it.learned) > LEADS {
            let (number, followers) = (it.number, it.followers.clone());
            followers.iter().for_each(|follower| self.forget(number, &follower.by));
            return Default::default();
        }
        let keys = |all: Vec<&Follower>| all.iter().map(|follower| follower.key.clone()).collect();
        let known = it.followers.iter().filter(|f| f.is_of(peer) || !f.also.is_empty());
        let (own, others) = known.partition(|follower| follower.is_of(peer));
        (keys(own), keys(others))
    }

    /// The peer's half has gone.
    pub fn on_lost(&mut self, peer: &str) {
        self.recent.remove(peer);
    }

    /// Forgets what the peer has taught of the leader with this number.
    fn forget(&mut self, number: u64, peer: &str) {
        let Some(leader) = self.names.get(&number).cloned() else { return };
        if let Some(it) = self.leaders.get_mut(&leader) {
            it.followers.retain(|follower| follower.by != peer);
            self.weigh(&leader, peer);
        }
        if self.leaders.get(&leader).is_some_and(|it| it.followers.is_empty()) {
            self.leaders.remove(&leader);
            self.names.remove(&number);
        }
    }

    /// Counts again what the peer has taught of a leader.
    fn weigh(&mut self, leader: &Key, peer: &str) {
        let Some(it) = self.leaders.get(leader) else { return };
        let (holder, name) = ((peer.to_owned(), ()), (it.number, peer.to_owned()));
        self.taught.remove(&holder, &name);
        let its = it.followers.iter().filter(|follower| follower.by == peer);
        let followers: usize = its.map(Follower::weight).sum();
        if followers > 0 {
            self.taught.add(&holder, name, followers + OVERHEAD + 2 * leader.1.len());
        }
    }
}

impl Leader {
    /// If there are too many followers the oldest of the peer that taught the most goes; whose it
    /// was.
    fn displaces(&mut self) -> Option<String> {
        if self.followers.len() <= MOST_FOLLOWERS {
            return None;
        }
        let taught = |by: &str| self.followers.iter().filter(|it| it.by == by).count();
        let most = self.followers.iter().map(|it| taught(&it.by)).max();
        let oldest = self.followers.iter().position(|it| Some(taught(&it.by)) == most);
        oldest.map(|at| self.followers.remove(at).by)
    }
}

impl Follower {
    /// Memory that it takes, about.
    fn weight(&self) -> usize {
        let also = self.also.iter().map(|peer| OF_TEACHER + peer.len());
        OVERHEAD + self.key.1.len() + also.sum::<usize>()
    }

    fn is_of(&self, peer: &str) -> bool {
        self.by == peer || self.also.iter().any(|other| other == peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("10.2.0.2:53".parse().unwrap(), name.into())
    }

    fn held(together: &Together) -> usize {
        let of = |(leader, it): (&Key, &Leader)| {
            leader.1.len() + it.followers.iter().map(|it| it.key.1.len()).sum::<usize>()
        };
        together.leaders.iter().map(of).sum()
    }

    #[test]
    fn long_questions_without_end_take_bounded_memory_and_what_others_taught_stays() {
        let mut together = Together::default();
        together.follow(0, "ship", &key("page"), &key("image"));
        for n in 0..4_000 {
            let at = 40 * n;
            together.learn(at, at, "evil", &key(&format!("{n:0512}")));
        }
        assert!(together.taught.sum() <= MOST_LEARNED && held(&together) <= MOST_LEARNED);
        assert_eq!(together.followers(500, &key("page"), "ship").0, [key("image")]);
    }

    #[test]
    fn followers_of_anothers_leader_are_his_who_taught_them() {
        let mut together = Together::default();
        together.follow(0, "ship", &key("page"), &key("image"));
        for n in 0..2 * MOST_FOLLOWERS {
            together.follow(500, "evil", &key("page"), &key(&format!("n{n}")));
        }
        assert_eq!(together.leaders[&key("page")].followers.len(), MOST_FOLLOWERS);
        assert_eq!(together.followers(500, &key("page"), "ship").0, [key("image")]);
    }

    #[test]
    fn what_follows_is_what_the_peer_itself_has_taught_or_two_others_have() {
        let mut together = Together::default();
        for (peer, names) in [
            ("evil", &["made up", "image"][..]),
            ("boat", &["image", "map"]),
            ("ship", &["map", "mail"]),
        ] {
            names.iter().for_each(|name| together.follow(0, peer, &key("page"), &key(name)));
        }
        for (peer, own, others) in [
            ("evil", &["made up", "image"][..], &["map"][..]),
            ("boat", &["image", "map"], &[]),
            ("ship", &["map", "mail"], &["image"]),
            ("other", &[], &["image", "map"]),
        ] {
            let keys = |names: &[&str]| names.iter().map(|name| key(name)).collect::<Vec<_>>();
            let followers = together.followers(1, &key("page"), peer);
            assert_eq!(followers, (keys(own), keys(others)), "{peer}");
        }
    }

    #[test]
    fn a_question_to_which_nothing_was_added_for_a_day_leads_no_more() {
        let mut together = Together::default();
        together.follow(5, "ship", &key("page"), &key("image"));
        assert_eq!(together.followers(5 + LEADS, &key("page"), "ship").0, [key("image")]);
        assert_eq!(together.followers(6 + LEADS, &key("page"), "ship"), Default::default());
        assert_eq!(
            (together.leaders.len(), together.names.len(), together.taught.sum()),
            (0, 0, 0)
        );
    }
}
