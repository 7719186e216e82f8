//! What the operator asks for, by signal or by the admin API, and the end.

use os::poll::Signal;
use relay::ResetReason;
use units::{Duration, Instant};

use super::Driver;
use crate::admin;
use crate::up::proxy::Proxy;
use crate::up::roster::KnownPeer;

/// How long the peers are told that this node goes, at the most.
const FAREWELL: Duration = Duration::from_millis(300);
/// How often it is looked whether they have been told.
const FAREWELL_STEP: std::time::Duration = std::time::Duration::from_millis(10);
/// How long open connections may go on after SIGTERM.
const DRAIN: Duration = Duration::from_secs(10);

impl Driver {
    pub(super) fn on_signals(&mut self, now: Instant) {
        while let Some(signal) = self.signals.next_signal() {
            match signal {
                Signal::HangUp => {
                    if let Err(why) = self.reload(now) {
                        crate::log!(Error, why);
                    }
                }
                Signal::Terminate | Signal::Interrupt => self.stop(now),
                Signal::User1 => {}
            }
        }
    }

    pub(super) fn on_admin(&mut self, now: Instant, token: u64) {
        let Some(mut admin) = self.admin.take() else { return };
        let (mut reload, mut stop) = (false, false);
        let mut rates = Vec::new();
        let this = &*self;
        admin.handle(&this.poller, token, now, &mut |request| match request {
            admin::Request::Status => admin::Answer::Status(Box::new(this.status(now))),
            admin::Request::Reload => {
                reload = true;
                admin::Answer::Done
            }
            admin::Request::Stop => {
                stop = true;
                admin::Answer::Done
            }
            admin::Request::Rate { peer, bps } => match this.reported_rate(&peer, bps) {
                Ok(rate) => {
                    rates.push(rate);
                    admin::Answer::Done
                }
                Err(why) => admin::Answer::Error(why),
            },
        });
        self.admin = Some(admin);
        if reload && let Err(why) = self.reload(now) {
            crate::log!(Error, why);
        }
        if stop {
            self.stop(now);
        }
    }

    /// Takes nothing new; what is open may go on for a while. The second time: at once.
    fn stop(&mut self, now: Instant) {
        if self.draining.is_some() {
            self.draining = Some(now);
            return;
        }
        crate::log!(Info, "ending", open_connections = self.connections.len());
        self.draining = Some(now + DRAIN);
        self.listeners = None;
        self.relay.give_up_openings(now);
        for flow in self.proxy.take().iter().flat_map(Proxy::waiting) {
            self.relay.local_reset(now, flow, ResetReason::ShuttingDown);
        }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.draining.is_some_and(|end| {
            let quiet = self.connections.len() == 0
                && self
                    .peers
                    .iter()
                    .all(|p| self.relay.endpoint.session(p.id).is_none_or(|s| s.is_quiet()));
            quiet || end <= now
        })
    }

    /// Resets what is left, tells the peers, and takes everything out of the kernel.
    pub(super) fn end(&mut self) {
        let now = self.clock.now();
        self.connections.abort_all();
        self.chunks.finish(now, &mut self.relay);
        self.relay.endpoint.close_all(ResetReason::ShuttingDown);
        self.say_farewell(now);
        if let Some(intercept) = self.intercept.take()
            && let Err(e) = intercept.remove()
        {
            crate::log!(Error, "interception was not fully removed", error = e);
        }
        crate::log!(Info, "bentpipe has ended");
    }

    /// Sends the copies of CLOSE, which are spread over a little time.
    fn say_farewell(&mut self, begin: Instant) {
        let mut now = begin;
        loop {
            self.carrier.send(&self.clock, &mut self.relay);
            let told = |p: &KnownPeer| {
                let endpoint = &self.relay.endpoint;
                let closing = endpoint.session(p.id).is_some_and(|s| s.is_closing());
                !closing || !endpoint.is_established(p.id)
            };
            if self.peers.iter().all(told) || now.since(begin) >= FAREWELL {
                return;
            }
            std::thread::sleep(FAREWELL_STEP);
            now = self.clock.now();
            self.relay.handle_timeout(now);
        }
    }
}
