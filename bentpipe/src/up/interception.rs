//! Interception while the gateway runs: kept whole, and opened for peers whose traffic
//! may go in clear while they do not answer.
//!
//! With `on_failure = "wire"` traffic flows by the system's ordinary routes where a
//! gateway of the pair is dead. Where both are, their routes are gone and nothing is to
//! be done. Where one is, the living one must give way, too: packets arrive past the
//! tunnel, and as long as the way back led into it, they would never be answered.

use os::OsError;
use os::intercept::{Intercept, InterceptConfig, Repaired};
use os::poll::Interest;
use units::Instant;

use super::driver::{Driver, INTERCEPT};
use super::rules::{intercept_config, past_the_tunnel};

impl Driver {
    /// When [`Driver::follow_silence`] is to be called.
    pub(super) fn silence_timeout(&self) -> Option<Instant> {
        self.intercept.as_ref()?;
        let listens = self.mending.listens_at();
        self.mending.next(self.everyone.due()).into_iter().chain(listens).min()
    }

    /// Opens the routes to peers that have not answered for a while and whose traffic may
    /// go in clear, and takes back those to peers that answer again.
    pub(super) fn follow_silence(&mut self, now: Instant) {
        if self.mending.listens_again(now) {
            self.watch_interception();
        }
        let due = self.intercept.as_ref().and_then(|_| self.mending.next(self.everyone.due()));
        if due.is_none_or(|at| at > now) {
            return;
        }
        let before: Vec<bool> = self.everyone.iter().map(|p| p.clear.is()).collect();
        if self.mending.again_at().is_some() {
            self.mend_interception(now);
            if self.mending.again_at().is_some_and(|at| at > now) {
                return;
            }
        }
        if let Err(e) = self.update_interception(now) {
            crate::log!(Error, "the routes cannot be changed", error = e);
            return;
        }
        for (peer, was) in self.everyone.iter().zip(before) {
            let name = &peer.config.name;
            match (was, peer.clear.is()) {
                (false, true) => {
                    crate::log!(
                        Warn,
                        "the peer does not answer; its traffic goes in clear",
                        peer = name
                    );
                }
                (true, false) => {
                    crate::log!(
                        Info,
                        "the peer's traffic goes through the link again",
                        peer = name
                    );
                }
                _ => {}
            }
        }
    }

    /// Makes rules and routes follow the configuration and the peers' silence.
    pub(super) fn update_interception(&mut self, now: Instant) -> Result<(), OsError> {
        self.mending.begin(now);
        for peer in self.everyone.iter_mut() {
            peer.clear.follow(now, peer.config.on_failure);
        }
        let in_the_tunnel = self.everyone.iter().filter(|p| !p.clear.is()).map(|p| &*p.config);
        // Devices and the listener's port stay as they were installed.
        let base = InterceptConfig {
            direct: past_the_tunnel(&self.config),
            dns: self.config.node.dns.clone(),
            carrier_ports: self.shard.carrier.ports(),
            ..InterceptConfig::new("", 0)
        };
        let config = intercept_config(in_the_tunnel, base);
        let done = self.intercept.as_mut().map_or(Ok(()), |i| i.update(&config));
        self.watch_interception();
        self.mending.note(now, &done);
        done
    }

    /// A helper of the interception has died, or the system's rules, routes or addresses have
    /// changed.
    pub(super) fn mend_interception(&mut self, now: Instant) {
        let Some(intercept) = &mut self.intercept else { return };
        match intercept.repair() {
            Ok(Repaired::Child) => {
                crate::log!(Warn, "a helper of the interception died and was started again");
                self.listen_later(now);
            }
            Ok(Repaired::Nothing) => self.listen_later(now),
            Ok(Repaired::PutBack(removed)) => self.on_rival(now, removed),
            Err(e) => {
                crate::log!(Error, "interception cannot be mended", error = e);
                // Else the poller would tell of the death again and again until then.
                let _ = self.shard.poller.remove(intercept);
                self.mending.note(now, &Err(e));
            }
        }
    }

    /// Another program removed rules and routes, which were put back. One that goes on doing so
    /// is answered ever more rarely.
    fn on_rival(&mut self, now: Instant, removed: usize) {
        crate::log!(
            Warn,
            "another program removed rules and routes of the interception; they were put back",
            removed = removed
        );
        if !self.mending.on_rival(now) {
            self.listen_later(now);
            return;
        }
        if let Some(intercept) = &self.intercept {
            let _ = self.shard.poller.remove(intercept);
        }
    }

    /// The poller tells nothing of the interception for a while; the system keeps its news.
    fn listen_later(&mut self, now: Instant) {
        if let Some(intercept) = &self.intercept {
            let _ = self.shard.poller.remove(intercept);
        }
        self.mending.on_looked(now, self.shard.clock.now());
    }

    /// Its helpers are others after each change.
    fn watch_interception(&self) {
        if let Some(intercept) = &self.intercept {
            let _ = self.shard.poller.remove(intercept);
            let _ = self.shard.poller.add(intercept, INTERCEPT, Interest::READ);
        }
    }

    /// Warns of what will keep hosts' traffic from flowing.
    pub(super) fn interception_warnings(&self) {
        for warning in self.intercept.iter().flat_map(Intercept::warnings) {
            crate::log!(Warn, warning);
        }
    }
}
