//! What the operator asks for, by signal or by the admin API, and the end.

use dial::manager::CarrierId;
use os::poll::Signal;
use units::{Duration, Instant};

use super::{Driver, UpError, watching};
use crate::admin::{self, LineCommand};
use crate::config::{OnFailure, OnStop};
use crate::up::kept::Range;
use crate::up::modem_rate;
use crate::up::one_sided::OneSidedLinks;
use crate::up::self_test::Wanted;
use crate::up::services::commands::Asker;
use crate::up::shard::inbox::Order;
use crate::up::shard::paths::Which;

/// How long open connections may go on after SIGTERM.
const DRAIN: Duration = Duration::from_secs(10);
/// How long a client waits for a service's answer. Services have less.
const COMMAND: Duration = Duration::from_secs(10);

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
        let (mut reload, mut stop, mut ask) = (false, false, false);
        let (mut rates, mut paths, mut lines) = (Vec::new(), Vec::new(), Vec::new());
        let (mut test, mut wanted, mut command) = (None, None, None);
        let this = &*self;
        admin.handle(&this.shard.poller, token, now, &mut |request| {
            Some(match request {
                admin::Request::Status if this.others.is_empty() => {
                    admin::Answer::Status(Box::new(this.status(now, Vec::new())))
                }
                admin::Request::Status => {
                    ask = true;
                    return None;
                }
                admin::Request::Reload => {
                    reload = true;
                    return None;
                }
                admin::Request::Stop => {
                    stop = true;
                    admin::Answer::Done
                }
                admin::Request::Test { peer, seconds, send, receive, raise } => {
                    let wanted = Wanted::checked(seconds, send, receive);
                    match this.test_of(&peer, wanted.map(|w| Wanted { raise, ..w })) {
                        Ok(wanted) => {
                            test = Some(wanted);
                            return None;
                        }
                        Err(why) => admin::Answer::Error(why),
                    }
                }
                admin::Request::Path { peer, path, command } => {
                    match this.path_of(now, &peer, &path, command) {
                        Ok((shard, key, which)) => {
                            paths.push((shard, key, which, command));
                            admin::Answer::Done
                        }
                        Err(why) => admin::Answer::Error(why),
                    }
                }
                admin::Request::Line { peer, line, command } => {
                    match this.line_of(now, &peer, line.as_deref(), &command) {
                        Ok((shard, key, which)) => {
                            lines.push((shard, key, which, command));
                            admin::Answer::Done
                        }
                        Err(why) => admin::Answer::Error(why),
                    }
                }
                admin::Request::Watch { peer, flows } => match this.watch_of(peer, flows) {
                    Ok(watch) => {
                        wanted = Some(watch);
                        return None;
                    }
                    Err(why) => admin::Answer::Error(why),
                },
                admin::Request::Service { service, words } => {
                    command = Some((service, words));
                    return None;
                }
                admin::Request::Usage { by, peer, from, to } => {
                    match Range::checked(from, to, peer) {
                        Ok(range) => {
                            wanted = Some(watching::Wanted::Usage { by, range });
                            return None;
                        }
                        Err(why) => admin::Answer::Error(why),
                    }
                }
                admin::Request::Log { peer } => match this.log_of(peer.as_deref()) {
                    Ok(log) => admin::Answer::Log(log),
                    Err(why) => admin::Answer::Error(why),
                },
                admin::Request::Rate { peer, bps } => match this.rate_of(&peer, bps) {
                    Ok(rate) => {
                        rates.push(rate);
                        admin::Answer::Done
                    }
                    Err(why) => admin::Answer::Error(why),
                },
            })
        });
        self.admin = Some(admin);
        for (shard, peer, rate) in rates {
            match shard {
                0 => self.shard.set_rate(now, &peer, rate),
                other => self.others.order(other, Order::Rate(peer, rate)),
            }
        }
        for (shard, peer, which, command) in paths {
            match shard {
                0 => {
                    if let Err(why) = self.shard.set_path(now, &peer, which, command) {
                        crate::log!(Warn, why);
                    }
                }
                other => self.others.order(other, Order::Path(peer, which, command)),
            }
        }
        for (shard, peer, which, command) in lines {
            match shard {
                0 => self.shard.command_line(now, &peer, which.as_deref(), command),
                other => self.others.order(other, Order::Line(peer, which, command)),
            }
        }
        // A client's place must not be another's before its test has ended.
        self.follow_tests();
        if let Some(test) = test {
            self.begin_test(now, token, test);
        }
        if let Some(wanted) = wanted {
            self.begin_wanted(now, token, wanted);
        }
        if let Some((service, words)) = command {
            self.begin_command(now, token, &service, words);
        }
        if ask {
            self.others.ask();
        }
        if reload {
            let answer = match self.reload(now) {
                Ok(needs_restart) => admin::Answer::Reloaded { needs_restart },
                Err(why) => {
                    crate::log!(Error, why);
                    admin::Answer::Error(why)
                }
            };
            if let Some(admin) = &mut self.admin {
                admin.answer_later(&self.shard.poller, token, &answer);
            }
        }
        if stop {
            self.stop(now);
        }
    }

    /// Gives a service the command of the client of `token`, who has its answer for himself.
    fn begin_command(&mut self, now: Instant, token: u64, service: &str, words: Vec<String>) {
        let Some(admin) = &mut self.admin else { return };
        admin.follow_until(token, now + COMMAND);
        let asker = Asker { token, serial: admin.serial(token) };
        if let Err(why) = self.services.command(now, service, words, asker) {
            self.answer_command(asker, &admin::Answer::Error(why));
        }
    }

    /// The client who asked may have gone, and another have its number.
    pub(super) fn answer_command(&mut self, asker: Asker, answer: &admin::Answer) {
        if let Some(admin) = self.admin.as_mut().filter(|a| a.serial(asker.token) == asker.serial) {
            admin.answer_later(&self.shard.poller, asker.token, answer);
        }
    }

    /// The other shards have told their parts of the status.
    pub(super) fn answer_status(
        &mut self,
        now: Instant,
        parts: Vec<crate::up::shard::report::Part>,
    ) {
        let status = self.status(now, parts);
        self.answer_watchers(now, &status);
        let answer = admin::Answer::Status(Box::new(status));
        if let Some(admin) = &mut self.admin {
            admin.answer_those_who_wait(&self.shard.poller, &answer);
        }
    }

    /// The shard, the key and the rate of the link to the peer called `name` when its modem
    /// carries `bps`.
    fn rate_of(
        &self,
        name: &str,
        bps: u64,
    ) -> Result<(usize, link::keys::PublicKey, units::BitRate), String> {
        let peer = self.everyone.called(name);
        let peer = peer.ok_or_else(|| format!("there is no peer \"{name}\""))?;
        let rate = modem_rate::reported_rate(&peer.config, bps)?;
        Ok((peer.shard, peer.config.public_key, rate))
    }

    /// The shard, the key and the path that `path` is to the peer called `name`. The first
    /// shard knows its paths; a path of another's that is not there is told in the log.
    fn path_of(
        &self,
        now: Instant,
        name: &str,
        path: &str,
        command: admin::PathCommand,
    ) -> Result<(usize, link::keys::PublicKey, Which), String> {
        let peer = self.everyone.called(name);
        let peer = peer.ok_or_else(|| format!("there is no peer \"{name}\""))?;
        let which = match command {
            admin::PathCommand::Auto => Which::Number(link::PathId::FIRST),
            _ => Which::of(&peer.config, path)?,
        };
        if peer.shard == 0 {
            let found = self.shard.find_path(&peer.config.public_key, which)?;
            self.shard.may_set(now, found, command)?;
        }
        Ok((peer.shard, peer.config.public_key, which))
    }

    /// The shard and key of a peer whose link is not always up, and which of its lines is meant.
    fn line_of(
        &self,
        now: Instant,
        name: &str,
        which: Option<&str>,
        command: &LineCommand,
    ) -> Result<(usize, link::keys::PublicKey, Option<String>), String> {
        let peer = self.everyone.called(name);
        let peer = peer.ok_or_else(|| format!("there is no peer \"{name}\""))?;
        let is_missing =
            peer.shard == 0 && !self.shard.lines.iter().any(|line| line.is_of(&peer.config));
        if peer.config.line.is_some() && is_missing {
            return Err(format!("the line of \"{name}\" could not be opened: see the log"));
        }
        let is_zone = matches!(command, LineCommand::Zone(_));
        let line = peer.config.line.as_ref().filter(|line| line.raises || is_zone);
        let Some(line) = line else {
            return Err(format!(
                "the link to \"{name}\" is always up: its table in the file has no [peer.line], \
                 or had none when the gateway started"
            ));
        };
        let zones = || line.manager.carriers.iter().flat_map(|c| c.tariff.zones());
        if let LineCommand::Zone(zone) = command
            && !zones().any(|of| of == zone)
        {
            let known: Vec<&str> = zones().filter(|of| !of.is_empty()).collect();
            return Err(match known.is_empty() {
                true => format!("the tariff of \"{name}\" has no zones"),
                false => format!(
                    "the tariff of \"{name}\" has no zone \"{zone}\"; it has {}",
                    known.join(", ")
                ),
            });
        }
        let which = which.filter(|_| !is_zone);
        if let Some(which) = which.filter(|which| !line.names().any(|name| **name == **which)) {
            let known: Vec<&str> = line.names().map(|name| &**name).collect();
            return Err(format!(
                "peer \"{name}\" has no line \"{which}\"; it has {}",
                known.join(", ")
            ));
        }
        let is_raise = matches!(command, LineCommand::Up | LineCommand::Hold);
        let place = which.and_then(|which| line.names().position(|name| **name == *which));
        let mut known = self.shard.lines.iter().filter(|line| line.is_of(&peer.config));
        if let Some(known) = known.next().filter(|_| is_raise) {
            known.may_raise(now, place.map(CarrierId))?;
        }
        Ok((peer.shard, peer.config.public_key, which.map(str::to_owned)))
    }

    /// Takes nothing new; what is open may go on for a while. The second time: at once.
    fn stop(&mut self, now: Instant) {
        if self.draining.is_some() {
            crate::log!(Info, "ending at once");
            self.draining = Some(now);
            return;
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let one_sided = self.one_sided.as_ref().map_or(0, OneSidedLinks::open_connections);
        let open_connections = self.shard.connections.len() as u64 + one_sided;
        crate::log!(Info, "ending", open_connections = open_connections);
        self.draining = Some(now + DRAIN);
        self.listeners = None;
        self.proxy = None;
        self.services.stop();
        self.one_sided.iter().for_each(OneSidedLinks::drain);
        self.others.order_all(|| Order::Stop);
        self.shard.stop(now);
    }

    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let Some(end) = self.draining else { return false };
        let one_sided = || self.one_sided.as_ref().map_or(0, OneSidedLinks::open_connections);
        end <= now || (one_sided() == 0 && self.shard.is_quiet() && self.others.are_quiet())
    }

    /// Takes everything out of the kernel but what is to be blocked without the gateway.
    fn stop_intercepting(&mut self) {
        let Some(intercept) = self.intercept.take() else { return };
        if self.config.node.on_stop == OnStop::Block {
            intercept.stop();
            if self.config.peers.iter().any(|p| p.on_failure == OnFailure::Block) {
                let mend = format!("bentpipe down {}", self.path.display());
                crate::log!(Info, "hosts' traffic for the peers stays blocked", until = mend);
            }
        } else if let Err(e) = intercept.remove() {
            crate::log!(Error, "interception was not fully removed", error = e);
        }
    }

    /// Resets what is left, tells the peers, and ends the interception.
    pub(super) fn end(&mut self) -> Result<(), UpError> {
        self.others.order_all(|| Order::End);
        self.shard.end();
        let (mut others, outcome) = self.others.join();
        self.shard.leaving_lines.wait();
        let now = self.shard.clock.now();
        // What they told in their last turn, and what they did not come to tell.
        while let Some(news) = self.others.next_news() {
            self.follow(now, news);
        }
        for number in 0..=others.len() {
            let shard = number.checked_sub(1).map_or(&mut self.shard, |n| &mut others[n]);
            shard.tell_usage(Instant::FAR_FUTURE);
            if let Some(news) = shard.take_news() {
                self.follow(now, news);
            }
        }
        self.store.save(Instant::FAR_FUTURE);
        self.kept.finish();
        // Devices vanish when the last descriptor is closed.
        for shard in others.iter_mut().chain([&mut self.shard]) {
            shard.syns = None;
        }
        self.stop_intercepting();
        // All at once, so that a disk that does not answer is waited for once.
        let all = others.iter_mut().chain([&mut self.shard]);
        let finishing: Vec<_> = all.map(|shard| shard.save()).collect();
        let begin = std::time::Instant::now();
        finishing.into_iter().for_each(|thread| thread.wait(begin));
        if let Some(keeper) = &self.file_keeper {
            keeper.remove_socket();
        }
        crate::log!(Info, "bentpipe has ended");
        outcome
    }
}
