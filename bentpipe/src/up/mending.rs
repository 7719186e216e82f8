//! When rules and routes are changed: at some distance from one another, and again where a change
//! failed or another program undid it, ever more rarely.

use os::OsError;
use units::{Duration, Instant};

/// Between two changes of the routes: each runs `ip` a few times, and a hub has many
/// peers.
const SPACING: Duration = Duration::from_secs(1);
/// The longest pause before a change that failed is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Between two looks at what there is, so many times what one took.
const PAUSE: u64 = 4;
/// Who removes rules again so soon does so all the time.
const RIVALRY: Duration = Duration::from_secs(10);

/// A change of rules and routes that failed and is to be tried again. What stood before is
/// in force.
#[derive(Clone, Debug)]
struct Again {
    at: Instant,
    pause: Duration,
    why: String,
}

/// The last changes, and the next.
#[derive(Debug, Default)]
pub struct Mending {
    changed_at: Instant,
    /// A change that failed.
    again: Option<Again>,
    /// When what the system tells is listened to again.
    listens_at: Option<Instant>,
    /// When rules and routes were put back last that another program had removed, and the pause
    /// that this called for.
    put_back: (Instant, Duration),
}

impl Mending {
    /// When the next change is to be made, of which one is `due` then for the peers' sake.
    pub fn next(&self, due: Option<Instant>) -> Option<Instant> {
        let due = due.map(|at| at.max(self.changed_at + SPACING));
        // Whatever is due fails like the change before it.
        self.again.as_ref().map(|again| again.at).or(due)
    }

    /// What the system told was looked into from `began` to `now`. A look runs `ip` a few times
    /// and takes seconds where a full table of routes is: addresses that change all the time may
    /// take a fifth of this thread with it, and what is told meanwhile waits.
    pub fn on_looked(&mut self, began: Instant, now: Instant) {
        self.listens_at = Some(now + now.since(began).times(PAUSE));
    }

    /// When to listen again to what the system tells; `None`: one does.
    pub fn listens_at(&self) -> Option<Instant> {
        self.listens_at
    }

    /// Is it time to? Then it is done.
    pub fn listens_again(&mut self, now: Instant) -> bool {
        self.listens_at.take_if(|at| *at <= now).is_some()
    }

    /// When a change that failed is to be tried again.
    pub fn again_at(&self) -> Option<Instant> {
        self.again.as_ref().map(|again| again.at)
    }

    /// Why it failed.
    pub fn trouble(&self) -> Option<&str> {
        self.again.as_ref().map(|again| again.why.as_str())
    }

    /// The routes are changed now.
    pub fn begin(&mut self, now: Instant) {
        self.changed_at = now;
    }

    /// Sees to it that a change that failed is tried again, ever more rarely.
    pub fn note(&mut self, now: Instant, done: &Result<(), OsError>) {
        let before = self.again.take();
        match (done, before) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => crate::log!(Info, "rules and routes are as they should be"),
            (Err(e), before) => {
                let pause = before.map_or(SPACING, |a| (a.pause + a.pause).min(LONGEST_PAUSE));
                self.again = Some(Again { at: now + pause, pause, why: e.to_string() });
            }
        }
    }

    /// What another program had removed was put back. True: it goes on doing so, and is answered
    /// after a pause.
    pub fn on_rival(&mut self, now: Instant) -> bool {
        let (last, pause) = self.put_back;
        let again = now.since(last) < pause + pause + RIVALRY && last > Instant::ZERO;
        let pause = if again { (pause + pause).min(LONGEST_PAUSE) } else { SPACING };
        self.put_back = (now, pause);
        if again {
            let why = "another program removes rules and routes again and again: `ip rule` shows \
                       what is there"
                .to_owned();
            self.again = Some(Again { at: now + pause, pause, why });
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_into_news_that_come_all_the_time_take_a_fifth_of_it() {
        let took = Duration::from_millis(100);
        let (mut mending, mut now, mut looks) = (Mending::default(), Instant::ZERO, 0);
        while now < Instant::ZERO + Duration::from_secs(10) {
            if mending.listens_at().is_none() || mending.listens_again(now) {
                looks += 1;
                mending.on_looked(now, now + took);
                now += took;
            }
            now += Duration::from_millis(1);
        }
        assert!((18..=20).contains(&looks), "{looks} of 100 ms in 10 s");
        // After a quiet while the next are looked into at once.
        assert!(mending.listens_again(now + Duration::from_secs(1)));
        assert_eq!(mending.listens_at(), None);
    }
}
