//! Interception while the gateway runs: kept whole, and opened for peers whose traffic
//! may go in clear while they do not answer.
//!
//! With `on_failure = "wire"` traffic flows by the system's ordinary routes where a
//! gateway of the pair is dead. Where both are, their routes are gone and nothing is to
//! be done. Where one is, the living one must give way, too: packets arrive past the
//! tunnel, and as long as the way back led into it, they would never be answered.

use link::endpoint::{LinkEvent, Rekey};
use os::OsError;
use os::intercept::{Intercept, InterceptConfig, Repaired};
use os::poll::Interest;
use units::{Duration, Instant, IpPrefix};

use super::driver::{Driver, INTERCEPT};
use super::peer_table::ListedPeer;
use crate::config::{Config, OnFailure, Peer, Source};

/// How long a peer has been silent before its traffic goes in clear: longer than most
/// fades of a link.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a peer has for its first answer after the start.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);
/// Between two changes of the routes: each runs `ip` a few times, and a hub has many
/// peers.
const SPACING: Duration = Duration::from_secs(1);
/// The longest pause before a change that failed is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Who removes rules again so soon does so all the time.
const RIVALRY: Duration = Duration::from_secs(10);

/// A change of rules and routes that failed and is to be tried again. What stood before is
/// in force.
#[derive(Clone, Debug)]
pub(super) struct Again {
    at: Instant,
    pause: Duration,
    pub why: String,
}

/// Whether a peer's traffic goes in clear.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clear {
    /// From when on it may: the peer does not answer.
    from: Option<Instant>,
    /// It does, as far as the routes go.
    is: bool,
}

impl Clear {
    /// Of a peer that has not answered yet.
    pub fn new(now: Instant) -> Clear {
        Clear { from: Some(now + FIRST_PATIENCE), is: false }
    }

    /// Notes what happened to the link.
    pub fn on_link(&mut self, now: Instant, event: LinkEvent) {
        match event {
            LinkEvent::Up { .. } | LinkEvent::Back => self.from = None,
            LinkEvent::NothingReceived(_) | LinkEvent::TransmitDead(_) | LinkEvent::NoAcks(_) => {
                self.from = Some(now + PATIENCE)
            }
            LinkEvent::Closed => self.from = Some(now),
            LinkEvent::Rekey(Rekey::Erased) => self.from = Some(now + PATIENCE),
            LinkEvent::Moved(..)
            | LinkEvent::Using(..)
            | LinkEvent::Failing(_)
            | LinkEvent::OverItsPart
            | LinkEvent::Rekey(_) => {}
        }
    }
}

impl ListedPeer {
    /// When its traffic is to go another way than it does.
    pub(super) fn clear_due(&self) -> Option<Instant> {
        match self.clear.is {
            true if self.config.on_failure == OnFailure::Wire && self.clear.from.is_some() => None,
            true => Some(Instant::ZERO),
            false => self.clear.from.filter(|_| self.config.on_failure == OnFailure::Wire),
        }
    }

    fn goes_in_clear(&self, now: Instant) -> bool {
        self.config.on_failure == OnFailure::Wire && self.clear.from.is_some_and(|at| at <= now)
    }
}

impl Driver {
    /// When [`Driver::follow_silence`] is to be called.
    pub(super) fn silence_timeout(&self) -> Option<Instant> {
        self.intercept.as_ref()?;
        let due = self.everyone.due().map(|at| at.max(self.routes_changed + SPACING));
        let again = self.again.as_ref().map(|again| again.at);
        // Whatever is due fails like the change before it.
        again.or(due)
    }

    /// Opens the routes to peers that have not answered for a while and whose traffic may
    /// go in clear, and takes back those to peers that answer again.
    pub(super) fn follow_silence(&mut self, now: Instant) {
        if self.silence_timeout().is_none_or(|at| at > now) {
            return;
        }
        let before: Vec<bool> = self.everyone.iter().map(|p| p.clear.is).collect();
        if self.again.is_some() {
            self.mend_interception(now);
            if self.again.as_ref().is_some_and(|again| again.at > now) {
                return;
            }
        }
        if let Err(e) = self.update_interception(now) {
            crate::log!(Error, "the routes cannot be changed", error = e);
            return;
        }
        for (peer, was) in self.everyone.iter().zip(before) {
            let name = &peer.config.name;
            match (was, peer.clear.is) {
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
        self.routes_changed = now;
        for peer in self.everyone.iter_mut() {
            peer.clear.is = peer.goes_in_clear(now);
        }
        let in_the_tunnel = self.everyone.iter().filter(|p| !p.clear.is).map(|p| &*p.config);
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
        self.note(now, &done);
        done
    }

    /// Sees to it that a change that failed is tried again, ever more rarely.
    fn note(&mut self, now: Instant, done: &Result<(), OsError>) {
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

    /// A helper of the interception has died, or the system's rules, routes or addresses have
    /// changed.
    pub(super) fn mend_interception(&mut self, now: Instant) {
        let Some(intercept) = &mut self.intercept else { return };
        match intercept.repair() {
            Ok(Repaired::Child) => {
                crate::log!(Warn, "a helper of the interception died and was started again");
                self.watch_interception();
            }
            // What listens is another after some changes.
            Ok(Repaired::Nothing) => self.watch_interception(),
            Ok(Repaired::PutBack(removed)) => self.on_rival(now, removed),
            Err(e) => {
                crate::log!(Error, "interception cannot be mended", error = e);
                // Else the poller would tell of the death again and again until then.
                let _ = self.shard.poller.remove(intercept);
                self.note(now, &Err(e));
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
        let (last, pause) = self.put_back;
        let again = now.since(last) < pause + pause + RIVALRY && last > Instant::ZERO;
        let pause = if again { (pause + pause).min(LONGEST_PAUSE) } else { SPACING };
        self.put_back = (now, pause);
        if !again {
            self.watch_interception();
            return;
        }
        if let Some(intercept) = &self.intercept {
            let _ = self.shard.poller.remove(intercept);
        }
        let why = "another program removes rules and routes again and again: `ip rule` shows \
                   what is there"
            .to_owned();
        self.again = Some(Again { at: now + pause, pause, why });
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

/// Networks that are reached past the tunnel, also where a shorter prefix leads into it: those
/// that the file names, and those beyond links without a gateway.
pub(super) fn past_the_tunnel(config: &Config) -> Vec<IpPrefix> {
    let beyond = config.split.iter().flat_map(|link| &link.routes).filter(|p| p.len() > 0);
    config.node.direct.iter().chain(beyond).copied().collect()
}

/// `base` with the prefixes of `peers`.
pub(super) fn intercept_config<'a>(
    peers: impl Iterator<Item = &'a Peer> + Clone,
    base: InterceptConfig,
) -> InterceptConfig {
    let prefixes = |wanted: fn(&Peer) -> bool| {
        peers.clone().filter(|p| wanted(p)).flat_map(|p| p.routes.iter().copied()).collect()
    };
    let mut with_routes = peers.clone().filter(|p| !p.routes.is_empty());
    InterceptConfig {
        // What is connected for one may lead behind another.
        onward: with_routes.nth(1).is_some(),
        routes: prefixes(|_| true),
        masquerade: prefixes(|p| p.source == Source::Nat),
        in_clear: prefixes(|p| p.on_failure == OnFailure::Wire),
        ..base
    }
}
