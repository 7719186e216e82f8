//! Transparent interception: the hosts' connections come to us with their own
//! addresses, and everything else that is meant for a peer comes as packets.
//!
//! # How a connection opens
//!
//! ```text
//!            1 SYN                      2 read            5 connection
//!  client ─────────► lan ─► (mark, rule) ─► syn device ─► program ◄──── TPROXY listener
//!                                               ▲           │                 ▲
//!                                               └───────────┘                 │
//!                                           3 the same SYN back ─► prerouting ┘ 4
//! ```
//!
//! 1. A SYN from a `lan` interface whose route leads into the tunnel is marked, and the
//!    mark routes it into a second TUN device, the *syn device* ([`Intercept::syns`]).
//!    Nothing else ever comes out of it, and no other SYN: not the node's own unless they are
//!    to be split, not one that a peer sent as a datagram, not one from an interface that is not
//!    split.
//! 2. The program reads the SYN and decides: answer now, ask the far side first, refuse,
//!    or carry it as a datagram.
//! 3. To accept, it writes the very same packet back into the syn device. To refuse, it
//!    writes a reset or an ICMP error there, in the server's name.
//! 4. SYNs (only) from the syn device meet TPROXY: the listener's socket answers as the
//!    server, and the client sees an ordinary handshake. A SYN sent again by the client
//!    takes the same way and must be put back again.
//! 5. Later segments find that socket by `socket transparent` on whatever interface they
//!    come, and are delivered here. So are the answers to connections that the program
//!    makes with a foreign source address ([`crate::tcp::connect`]).
//!
//! Connections of this host's own take the same way where they are to be split (`own`).
//!
//! TCP that has no socket here, and all other packets to the peers' prefixes, are routed
//! into the tunnel device itself and cross the link as they are.
//!
//! # How routes are chosen
//!
//! A prefix of length L of a peer stands in a table of its own for that length; for each
//! length, longest first, rules say: this host's own networks that are longer than L, and those
//! that the file names (`direct`), go by `main`, everything else by the peer's. Together this is
//! the longest-prefix match over both, so that the LANs stay as they are even when a peer has
//! `0.0.0.0/0`. Other routes of `main`, which whoever answers DHCP may make, do not count for
//! hosts. The carrier's own packets have a mark that skips the peers' tables.
//!
//! Default routes (`0.0.0.0/0`, `::/0`) are for what this host routes for others. What it
//! sends itself takes its own routes as if there were no tunnel, so that whoever reaches it
//! from outside is answered outside. Answers to what came out of the tunnel go back into
//! it, by a mark, and so does what this host knows no other way for.
//!
//! With `own` default routes are for what this host begins itself, too. Who reaches it from outside
//! is still answered outside, by a mark (`visitors`). A program that binds itself to an interface
//! with a gateway stays outside, by a rule for that interface, which follows the routes of `main`.
//!
//! A host whose IPv6 addresses are link-local hears at once that there is no way behind the tunnel.
//!
//! # What happens afterwards
//!
//! The nftables table is owned by a child and dies with it. Routes into the tunnel die
//! with the device. What the kernel would keep (rules, local routes) carries our own
//! protocol number and is removed by a watchdog child when the pipe to it closes, also
//! after `kill -9`, and is swept at the next start. With [`OnFailure::Block`] an
//! unreachable route behind each of the peers' prefixes, and the rules that lead hosts'
//! packets to it, stay after every end, so that nothing of theirs leaves in clear: until the
//! next start, which puts its own in force before it takes them away, or [`release`]. They
//! are there from the start on, behind the routes into the tunnel, so that there is no
//! moment without; where another program removes the rules while this one runs, the table drops
//! hosts' packets until they are back (`guard`). After the end a table that belongs to nobody does
//! so, and tells hosts at once (`refusal`). What this host sends itself is not blocked.

mod children;
mod config;
mod guard;
mod nft;
mod one_sided;
mod own;
mod refusal;
mod routes;
mod visitors;
mod watch;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use units::IpPrefix;

use crate::OsError;
use crate::command;
use crate::error::OrCannot;
use crate::poll::{Interest, Poller};
use crate::tun::Tun;
use children::Watchdog;
use nft::Table;
use routes::Plan;
use watch::Watch;

pub use config::{InterceptConfig, Marks, OnFailure};
pub use one_sided::{LEG, OneSided, OneSidedConfig, OneSidedLink};
pub use routes::{Blocked, Ended, blocked, bypassing, sweep};

/// Interception in force. Dropping it leaves things as a crash would (see
/// [`OnFailure`]); [`Intercept::remove`] takes everything away.
pub struct Intercept {
    config: InterceptConfig,
    syns: Tun,
    // Dropped in this order: first nothing new is taken, then the routes go.
    table: Table,
    watchdog: Watchdog,
    watch: Watch,
    /// Rules and routes as they should be.
    plan: Plan,
    /// Watches both children and the system; readable when one has died or it has changed.
    news: Poller,
    warnings: Vec<String>,
    /// Something was told that could not be followed yet.
    behind: bool,
    /// [`VALID_MARK`] was off before.
    sets_valid_mark: bool,
    /// Bound while this or its watchdog lives, so that two do not fight in one namespace.
    lock: UnixListener,
}

impl Intercept {
    /// Puts interception in force in the calling thread's network namespace, and sweeps
    /// what an earlier run left. The tunnel device must be open and the listener bound.
    ///
    /// # Errors
    /// One sentence; then everything is as it was before.
    pub fn install(config: &InterceptConfig) -> Result<Intercept, OsError> {
        config.check()?;
        let lock = lock_within(LOCK, Duration::from_secs(15))?;
        let syns = Tun::open(&config.syn_device(), 1500)?;
        for device in [syns.name(), &config.tun] {
            satisfy_loose_filter(device)?;
        }
        own::accept_own_addresses(&syns)?;
        let watch = match config.own {
            true => Watch::with_main(routes::PROTOCOL)?,
            false => Watch::open(routes::PROTOCOL)?,
        };
        let plan = Plan::of(config)?;
        let sets_valid_mark = strict_filters_ignore_marks(&config.tun);
        let watchdog = Watchdog::start(&after_death(&plan, sets_valid_mark), &lock)?;
        let (table, news) = match build(config, &plan, &watchdog, &watch) {
            Ok(built) => built,
            Err(e) => {
                // There is nothing yet that it would have to take away.
                watchdog.dismiss();
                return Err(e);
            }
        };
        if sets_valid_mark {
            let _ = fs::write(VALID_MARK, "1");
        }
        let config = config.clone();
        let mut warnings = if config.forwards() { forwarding_warnings() } else { Vec::new() };
        match routes::passed_over(&config) {
            Ok(routes) => warnings.extend(passed_over_warning(&routes)),
            // All is in force: a start does not fail for want of a warning.
            Err(e) => warnings.push(format!(
                "not looked for routes of this host that go into the tunnel now: {e}"
            )),
        }
        Ok(Intercept {
            config,
            syns,
            table,
            watchdog,
            watch,
            plan,
            news,
            warnings,
            behind: false,
            sets_valid_mark,
            lock,
        })
    }

    /// The device that intercepted SYNs are read from, and that they, or a refusal, are
    /// written back to.
    pub fn syns(&self) -> &Tun {
        &self.syns
    }

    /// What will keep hosts' traffic from flowing, each with its remedy.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Changes the peers' prefixes. Traffic for those that stay is not disturbed.
    pub fn update_routes(
        &mut self,
        routes: &[IpPrefix],
        masquerade: &[IpPrefix],
    ) -> Result<(), OsError> {
        let (routes, masquerade) = (routes.to_vec(), masquerade.to_vec());
        self.update(&InterceptConfig { routes, masquerade, ..self.config.clone() })
    }

    /// Changes the peers' prefixes, the ports of their carriers and what becomes of them when the
    /// program is gone. Devices, the listener's port, marks and [`InterceptConfig::own`] stay as
    /// they were installed.
    ///
    /// # Errors
    /// One sentence; then what was in force is in force.
    pub fn update(&mut self, new: &InterceptConfig) -> Result<(), OsError> {
        let mut config = self.config.clone();
        config.routes.clone_from(&new.routes);
        config.carrier_ports.clone_from(&new.carrier_ports);
        config.direct.clone_from(&new.direct);
        config.masquerade.clone_from(&new.masquerade);
        config.dns.clone_from(&new.dns);
        config.in_clear.clone_from(&new.in_clear);
        config.on_failure = new.on_failure;
        config.onward = new.onward;
        let plan = Plan::of(&config)?;
        let watchdog = self.new_watchdog(&plan)?;
        match self.change(&plan, &config, &watchdog) {
            Ok(news) => {
                (self.news, self.plan) = (news, plan);
                self.config = config;
                std::mem::replace(&mut self.watchdog, watchdog).dismiss();
                Ok(())
            }
            Err(e) => {
                // Its work would be to take away what stays.
                watchdog.dismiss();
                Err(e)
            }
        }
    }

    /// Rules and routes as planned, and who is to be watched then; or as they were.
    fn change(
        &mut self,
        plan: &Plan,
        config: &InterceptConfig,
        watchdog: &Watchdog,
    ) -> Result<Poller, OsError> {
        let news = listen(&self.table, watchdog, &self.watch)?;
        routes::install_or_leave(plan)?;
        if let Err(e) = self.table.update(config) {
            self.plan.put_back_or_leave();
            return Err(e);
        }
        Ok(news)
    }

    /// Makes whole what somebody broke: restarts a child that has died, puts back rules and
    /// routes that another program removed, and follows this host's own networks and, with
    /// [`InterceptConfig::own`], its gateways. Call it when the poller says that this is readable.
    pub fn repair(&mut self) -> Result<Repaired, OsError> {
        let children = [self.watchdog.is_alive(), self.table.is_alive()];
        if !self.watch.any_news() && !self.behind && children == [true; 2] {
            return Ok(Repaired::Nothing);
        }
        let died = children != [true; 2];
        // What a watchdog did as it ended is undone, at the next attempt if it fails now.
        let anew = died || self.behind;
        // Until all of it is done; each step may fail.
        self.behind = true;
        // First of all what keeps hosts' packets from leaving in clear, whatever else fails.
        let removed = self.plan.missing();
        let is_short = anew || !matches!(removed, Ok(0));
        let put_back = if is_short { self.plan.put_back() } else { Ok(()) };
        if !children[0] {
            // It has cleaned up as it went, if it ended by itself.
            self.watchdog = self.new_watchdog(&self.plan)?;
            if self.sets_valid_mark {
                let _ = fs::write(VALID_MARK, "1");
            }
        }
        if !children[1] {
            self.table = Table::create(|name| nft::ruleset(name, &self.config))?;
        }
        self.news = listen(&self.table, &self.watchdog, &self.watch)?;
        // One family's rules that cannot be put back keep no child from being there.
        put_back?;
        let removed = removed?;
        if anew {
            refusal::remove()?;
        }
        // The addresses may have changed at the same time.
        let plan = Plan::of(&self.config)?;
        if plan != self.plan {
            let config = self.config.clone();
            self.update(&config)?;
        }
        self.behind = false;
        Ok(match (died, removed) {
            (true, _) => Repaired::Child,
            (false, 0) => Repaired::Nothing,
            (false, removed) => Repaired::PutBack(removed),
        })
    }

    fn new_watchdog(&self, plan: &Plan) -> Result<Watchdog, OsError> {
        Watchdog::start(&after_death(plan, self.sets_valid_mark), &self.lock)
    }

    /// Ends it in order: what is to be blocked without the program is blocked, everything
    /// else is taken away, and [`blocked`] tells since when.
    pub fn stop(mut self) {
        self.watchdog.announce_end();
    }

    /// Takes everything away: afterwards the system's other routes hold.
    pub fn remove(self) -> Result<(), OsError> {
        drop(self);
        routes::sweep()
    }
}

/// Takes away what blocks although no program runs.
///
/// # Errors
/// One sentence: a program runs here, or the right to change routes is missing.
pub fn release() -> Result<(), OsError> {
    let _lock = lock_within(LOCK, Duration::from_secs(3)).map_err(|e| match is_running() {
        true => OsError::refused("a gateway runs here, and blocks or carries hosts' traffic")
            .mend("stop it first"),
        false => e,
    })?;
    routes::sweep()
}

/// Does a program intercept in this network namespace, or clean up after one?
pub fn is_running() -> bool {
    let sockets = fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    sockets.lines().any(|line| line.ends_with(&format!(" @{LOCK}")))
}

/// What there was to repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// Nothing.
    Nothing,
    /// A child had died.
    Child,
    /// So many rules and routes had been removed by another program.
    PutBack(usize),
}

impl AsFd for Intercept {
    /// Readable when a child has died or the system's rules, routes or addresses have changed:
    /// call [`Intercept::repair`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

/// Table, rules and routes; if one of them fails, none.
fn build(
    config: &InterceptConfig,
    plan: &Plan,
    watchdog: &Watchdog,
    watch: &Watch,
) -> Result<(Table, Poller), OsError> {
    // The table before the routes: without them it does nothing but drop what blocks (`guard`), and
    // if it cannot be made, no route that blocks is left behind.
    let table = Table::create(|name| nft::ruleset(name, config))?;
    let news = listen(&table, watchdog, watch)?;
    // Until the routes lead into the tunnel those of the last run block, and hosts are told; then
    // the table drops what they send until it is gone.
    let before = routes::install_or_leave(plan)?;
    if let Err(e) = refusal::remove() {
        before.put_back_or_leave();
        if before.is_left() {
            refusal::put_back(plan.refusal());
        }
        return Err(e);
    }
    Ok((table, news))
}

fn listen(table: &Table, watchdog: &Watchdog, watch: &Watch) -> Result<Poller, OsError> {
    #[cfg(test)]
    crate::faults::call().or_cannot(|| "watch the helpers".into())?;
    let news = Poller::new()?;
    news.add(&table.death(), 0, Interest::READ)?;
    news.add(&watchdog.death(), 1, Interest::READ)?;
    news.add(watch, 2, Interest::READ)?;
    Ok(news)
}

/// The name of the lock.
const LOCK: &str = "bentpipe-intercept";

/// An abstract Unix socket exists once per network namespace and vanishes with its last
/// holder. A watchdog that is still cleaning up holds it, too: that takes moments.
fn lock_within(name: &str, patience: Duration) -> Result<UnixListener, OsError> {
    let name =
        UnixAddr::from_abstract_name(name).or_cannot(|| "name the lock on interception".into())?;
    let begin = Instant::now();
    loop {
        match UnixListener::bind_addr(&name) {
            Ok(lock) => return Ok(lock),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && begin.elapsed() < patience => {
                thread::sleep(Duration::from_millis(100));
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                return Err(OsError::refused(
                    "another bentpipe already intercepts traffic on this host",
                )
                .mend("stop it first, or run this one in another network namespace"));
            }
            Err(e) => return Err(OsError::new("take the lock on interception", e)),
        }
    }
}

fn forwarding_warnings() -> Vec<String> {
    let off = |path: &str| fs::read_to_string(path).is_ok_and(|v| v.trim() == "0");
    [
        ("/proc/sys/net/ipv4/ip_forward", "IPv4", "net.ipv4.ip_forward"),
        ("/proc/sys/net/ipv6/conf/all/forwarding", "IPv6", "net.ipv6.conf.all.forwarding"),
    ]
    .iter()
    .filter(|(path, ..)| off(path))
    .map(|(_, family, key)| {
        format!("{family} is not forwarded, so hosts' traffic stops here; run `sysctl {key}=1`")
    })
    .collect()
}

fn passed_over_warning(routes: &[String]) -> Option<String> {
    const MOST: usize = 3;
    let first = routes.iter().take(MOST).map(|route| format!("\"{route}\"")).collect::<Vec<_>>();
    let others = routes.len().saturating_sub(MOST);
    let others = if others > 0 { format!(" and {others} more") } else { String::new() };
    let list = first.join(", ") + &others;
    (!routes.is_empty()).then(|| {
        format!(
            "hosts' traffic goes into the link although the system has longer routes: {list}; \
             name in `direct` what is yours and is to be reached past the link"
        )
    })
}

/// Whether reverse-path filters count marks in.
const VALID_MARK: &str = "/proc/sys/net/ipv4/conf/all/src_valid_mark";

/// Where an interface drops packets that a strict reverse-path filter dislikes, the
/// carrier's packets from a far endpoint look wrong once the default route leads into the
/// tunnel. With their mark counted in, the filter sees the way they really take. True where
/// that has to be switched on.
fn strict_filters_ignore_marks(tun: &str) -> bool {
    let says = |path: &Path, what| fs::read_to_string(path).is_ok_and(|v| v.trim() == what);
    let Ok(interfaces) = fs::read_dir("/proc/sys/net/ipv4/conf") else { return false };
    let mut others = interfaces.flatten().filter(|e| e.file_name().to_str() != Some(tun));
    says(Path::new(VALID_MARK), "0") && others.any(|e| says(&e.path().join("rp_filter"), "1"))
}

/// What the watchdog does when the program is gone.
fn after_death(plan: &Plan, sets_valid_mark: bool) -> String {
    let put_back = if sets_valid_mark { format!("echo 0 > {VALID_MARK}\n") } else { String::new() };
    plan.after_death() + &put_back
}

/// A loose filter, the loosest there is where "all" demands one, drops everything that
/// comes from a device without an address, unless this host itself would answer into it. So
/// it gets one that means nothing: the dummy address of RFC 7600, in a scope that keeps it
/// from being a source.
fn satisfy_loose_filter(device: &str) -> Result<(), OsError> {
    let all = fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").unwrap_or_default();
    if all.trim() == "0" {
        return Ok(());
    }
    let words = ["address", "replace", "192.0.0.8/32", "dev", device, "scope", "host"];
    command::run(Command::new("ip").args(words), "").map(drop)
}

#[cfg(test)]
mod tests;
