//! What happens, told: to watchers, to the log of outages, and to the day's accounts.

use control::{Answer, By, Event, Notice, Outage, VERSION};
use units::Instant;

use super::Driver;
use crate::calendar;
use crate::up::kept::{Asked, Range};
use crate::up::shard::inbox::Order;
use crate::up::shard::tidings::Tidings;

/// How long a client waits for a report that is made of many files.
const REPORT: units::Duration = units::Duration::from_secs(60);

/// What a client asked for that needs more than a look.
pub(super) enum Wanted {
    Watch { peer: Option<String>, flows: bool },
    Usage { by: By, range: Range },
}

impl Driver {
    /// The events that a client asks for, if there are such.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn watch_of(&self, peer: Option<String>, flows: bool) -> Result<Wanted, String> {
        match &peer {
            Some(name) if self.everyone.called(name).is_none() => {
                Err(format!("there is no peer \"{name}\""))
            }
            _ => Ok(Wanted::Watch { peer, flows }),
        }
    }

    /// The outages that a client asks for. Peers of earlier times have theirs.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn log_of(&self, peer: Option<&str>) -> Result<Vec<Outage>, String> {
        let log = self.kept.log(peer);
        let is_of = |name: &str| log.iter().any(|outage| outage.peer.as_deref() == Some(name));
        match peer.filter(|name| self.everyone.called(name).is_none() && !is_of(name)) {
            Some(name) => Err(format!("there is no peer \"{name}\", and nothing is kept of one")),
            None => Ok(log),
        }
    }

    /// Begins what the client of `token`, who waits, asked for.
    pub(super) fn begin_wanted(&mut self, now: Instant, token: u64, wanted: Wanted) {
        let Some(admin) = &mut self.admin else { return };
        let poller = &self.shard.poller;
        let done = match wanted {
            Wanted::Watch { peer, flows } => admin.watch(token, peer, flows),
            Wanted::Usage { by, range } => {
                admin.follow_until(token, now + REPORT);
                match self.kept.report(Asked { token, serial: admin.serial(token) }, by, range) {
                    true => Ok(()),
                    false => Err("the disk does not answer: try again later".to_owned()),
                }
            }
        };
        if let Err(why) = done {
            admin.answer_later(poller, token, &Answer::Error(why));
        }
        // Before they are asked how things stand: nothing is to be missed in between.
        self.tell_shards();
        self.ask_for_snapshots(now);
    }

    /// Has the snapshots made that watchers wait for. Where other shards must be asked first, it
    /// is when they have told their parts.
    fn ask_for_snapshots(&mut self, now: Instant) {
        let Some(admin) = &mut self.admin else { return };
        if self.others.is_asked() || !admin.ask_for_snapshots() {
            return;
        }
        match self.others.is_empty() {
            true => self.give_snapshots(&self.status(now, Vec::new())),
            false => self.others.ask(),
        }
    }

    /// Those that were asked for, of this status; and asks for those that came too late for it.
    pub(super) fn answer_watchers(&mut self, now: Instant, status: &control::Status) {
        self.give_snapshots(status);
        self.ask_for_snapshots(now);
    }

    fn give_snapshots(&mut self, status: &control::Status) {
        let Some(mut admin) = self.admin.take() else { return };
        let at_ms = calendar::milliseconds();
        admin.give_snapshots(&self.shard.poller, &|peer| {
            let mut status = Box::new(status.clone());
            status.links.retain(|link| peer.is_none_or(|name| link.peer == name));
            let outages = self.kept.open_outages(peer);
            let event = Event::Snapshot { version: VERSION, status, outages };
            Notice { at_ms, peer: None, event }
        });
        self.admin = Some(admin);
    }

    /// Follows what a shard has told.
    pub(super) fn follow_tidings(&mut self, tidings: Tidings) {
        for (key, notice) in tidings.events {
            let outage = self.kept.follow(&key, &notice);
            self.news.push(notice);
            self.news.extend(outage);
        }
        if tidings.missed > 0 {
            let event = Event::Missed { events: tidings.missed };
            self.news.push(Notice { at_ms: calendar::milliseconds(), peer: None, event });
        }
        for had in &tidings.usage {
            let notice = self.kept.add(had);
            self.news.push(notice);
        }
    }

    /// Tells the watchers what is new.
    pub(super) fn tell_watchers(&mut self, now: Instant) {
        let Some(admin) = &mut self.admin else { return };
        admin.tell_watchers(&self.shard.poller, now, &self.news);
        self.news.clear();
        self.tell_shards();
    }

    /// Tells the shards whether there are watchers, where that is new.
    fn tell_shards(&mut self) {
        let Some(admin) = &self.admin else { return };
        let watched = admin.watched();
        if watched != self.watched {
            self.watched = watched;
            let (any, flows) = watched;
            self.shard.set_watched(any, flows);
            self.others.order_all(|| Order::Watched(any, flows));
        }
    }

    /// The thread that keeps things has made reports.
    pub(super) fn on_kept(&mut self) {
        self.kept.clear();
        while let Some((asked, answer)) = self.kept.next_report() {
            if let Some(admin) = &mut self.admin
                && admin.serial(asked.token) == asked.serial
            {
                admin.answer_later(&self.shard.poller, asked.token, &answer);
            }
        }
    }
}
