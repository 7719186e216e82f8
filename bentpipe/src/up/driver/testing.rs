//! Self-tests that clients of the admin API have asked for: each is told how far its test is,
//! and the test ends when its client goes away.

use std::sync::mpsc::{TryRecvError, channel};

use link::keys::PublicKey;
use units::Instant;

use super::{Driver, RunningTest};
use crate::admin::Answer;
use crate::up::self_test::{Listener, MOST_ASKED, TestNews, Wanted};
use crate::up::shard::inbox::Order;

/// A test that was asked for and is within its bounds.
pub struct AskedTest {
    shard: usize,
    peer: PublicKey,
    wanted: Wanted,
}

impl Driver {
    /// What is to be done for a test of the link to the peer called `name`.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn test_of(
        &self,
        name: &str,
        wanted: Result<Wanted, String>,
    ) -> Result<AskedTest, String> {
        let wanted = wanted?;
        let peer = self.everyone.called(name);
        let peer = peer.ok_or_else(|| format!("there is no peer \"{name}\""))?;
        if self.draining.is_some() {
            return Err("the gateway ends".to_owned());
        }
        if self.tests.len() >= MOST_ASKED {
            return Err(format!("{MOST_ASKED} tests are under way: try again later"));
        }
        Ok(AskedTest { shard: peer.shard, peer: peer.config.public_key, wanted })
    }

    /// Begins it for the client of `token`, who waits.
    pub(super) fn begin_test(&mut self, now: Instant, token: u64, test: AskedTest) {
        let (to, news) = channel();
        if let Some(admin) = &mut self.admin {
            admin.follow_until(token, now + test.wanted.longest());
        }
        self.tests.push(RunningTest { token, news });
        let AskedTest { shard, peer, wanted } = test;
        let listener = Listener { news: to, waker: self.others.waker_of_first() };
        match shard {
            0 => self.shard.test(now, &peer, wanted, listener),
            other => self.others.order(other, Order::Test(peer, wanted, listener)),
        }
    }

    /// Ends the tests whose clients are gone, and tells the others what is new.
    pub(super) fn follow_tests(&mut self) {
        let Some(admin) = &mut self.admin else { return };
        let poller = &self.shard.poller;
        self.tests.retain(|test| {
            loop {
                if !admin.is_waiting(test.token) {
                    return false;
                }
                let answer = match test.news.try_recv() {
                    Ok(TestNews::Progress(progress)) => {
                        admin.tell(poller, test.token, &Answer::Testing(progress));
                        continue;
                    }
                    Ok(TestNews::Done(found)) => Answer::Tested(found),
                    Ok(TestNews::Failed(why)) => Answer::Error(why),
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => {
                        Answer::Error("the peer is no longer in the file".to_owned())
                    }
                };
                admin.answer_later(poller, test.token, &answer);
                return false;
            }
        });
    }
}
