//! Interception for links without a gateway at the far end: TCP is split here alone, and crosses
//! the link as the kernel's own TCP (R-SPLIT-2).
//!
//! It differs from interception for peers ([`super`]) in three ways. There is no tunnel: a
//! connection is taken if this host's own routes lead it to the link's device, and everything that
//! is not TCP is never touched. Both directions are taken: hosts' connections towards the link's
//! prefixes (by the *out* device of SYNs), and connections that come from there to hosts behind
//! this one (by the *in* device). And nothing is blocked afterwards: without the program hosts'
//! packets go as they always did.
//!
//! The sockets towards the link have a mark, [`LEG`]. It keeps them from being taken themselves,
//! and leads into a table that is a copy of `main` whose routes to the link carry the metrics
//! that no socket option sets: initial windows, the least timeout, packet sizes. The listener has
//! the mark, too, so that a connection from the link has these metrics from its SYN on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use units::IpPrefix;

use super::children::Watchdog;
use super::nft::{Table, list, without_covered};
use super::watch::Watch;
use super::{listen, lock_within, own, routes, satisfy_loose_filter};
use crate::OsError;
use crate::command;
use crate::poll::Poller;
use crate::settings::{self, Family};
use crate::tun::{self, Tun};

/// The mark of sockets towards such a link: give it to [`crate::tcp::TcpOptions::mark`], also of
/// the listener.
pub const LEG: u32 = 0x6270_0010;
const LOCAL: u32 = 0x6270_0011;
const SYN: [u32; 2] = [0x6270_0012, 0x6270_0013];
const OWN: u32 = 0x6270_0014;
/// The devices of SYNs: of connections towards the link, and from it.
const DEVICES: [&str; 2] = ["bp-split-out", "bp-split-in"];
/// As [`super::routes::PROTOCOL`], for rules and routes of this kind.
const PROTOCOL: u8 = 144;
/// Priorities of the rules, and tables: before those for peers.
const PRIORITY: u32 = 25_100;
const LOCAL_TABLE: u32 = 25_190;
const SYN_TABLE: [u32; 2] = [25_191, 25_192];
const LEG_TABLE: u32 = 25_193;
const TABLES: [u32; 4] = [LOCAL_TABLE, SYN_TABLE[0], SYN_TABLE[1], LEG_TABLE];
const LOCK: &str = "bentpipe-one-sided";

/// A link without a gateway at its far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneSidedLink {
    /// The interface towards it.
    pub device: String,
    /// What lives beyond it.
    pub routes: Vec<IpPrefix>,
    /// Segments that may be sent at once at the beginning, and may come.
    pub initial_windows: [u32; 2],
    /// What a retransmission timer adds to the round trip at least.
    pub least_rto: units::Duration,
    /// The largest packets that are sent, and that shall come.
    pub packets: [u16; 2],
}

/// What to intercept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneSidedConfig {
    /// The interfaces of hosts.
    pub lan: Vec<String>,
    /// This host's own connections are split, too.
    pub own: bool,
    /// The port of the [`crate::tcp::TransparentListener`].
    pub listener_port: u16,
    /// The links.
    pub links: Vec<OneSidedLink>,
}

/// Interception in force; a drop takes everything away, and so does every other end.
pub struct OneSided {
    config: OneSidedConfig,
    syns: [Tun; 2],
    // In this order: first nothing new is taken, then the routes go.
    table: Table,
    watchdog: Watchdog,
    watch: Watch,
    news: Poller,
    /// Something was told that could not be followed yet.
    behind: bool,
    lock: UnixListener,
}

impl OneSided {
    /// Puts it in force in the calling thread's network namespace. The listener must be bound.
    ///
    /// # Errors
    /// One sentence; then everything is as it was before.
    pub fn install(config: &OneSidedConfig) -> Result<OneSided, OsError> {
        for device in config.links.iter().map(|link| &link.device).chain(&config.lan) {
            tun::check_name(device)?;
            tun::index_of(device).map_err(|e| {
                OsError::new(format!("split the TCP of {device}"), e)
                    .mend("`ip link` shows the interfaces that exist")
            })?;
        }
        let lock = lock_within(LOCK, Duration::from_secs(15))?;
        let syns = [Tun::open(DEVICES[0], 1500)?, Tun::open(DEVICES[1], 1500)?];
        for device in DEVICES {
            satisfy_loose_filter(device)?;
        }
        own::accept_own_addresses(&syns[0])?;
        let watch = Watch::with_main(PROTOCOL)?;
        let watchdog = Watchdog::start(&after_death(), &lock)?;
        install_routes(config, true)?;
        let table = Table::create(|name| ruleset(name, config))?;
        let news = listen(&table, &watchdog, &watch)?;
        let config = config.clone();
        Ok(OneSided { config, syns, table, watchdog, watch, news, behind: false, lock })
    }

    /// The devices that SYNs are read from, and that they, or a refusal, are written back to:
    /// of connections towards the link, and from it.
    pub fn syns(&self) -> &[Tun; 2] {
        &self.syns
    }

    /// Makes whole what somebody broke, and follows this host's own routes. True if a child had
    /// died. Call it when the poller says that this is readable, and again some time after an
    /// error.
    ///
    /// # Errors
    /// One sentence: something cannot be mended. The next call tries again.
    pub fn repair(&mut self) -> Result<bool, OsError> {
        let children = [self.watchdog.is_alive(), self.table.is_alive()];
        if !self.watch.any_news() && !self.behind && children == [true; 2] {
            return Ok(false);
        }
        // Until all of it is done; each step may fail.
        self.behind = true;
        if !children[0] {
            self.watchdog = Watchdog::start(&after_death(), &self.lock)?;
        }
        if !children[1] {
            let config = &self.config;
            self.table = Table::create(|name| ruleset(name, config))?;
        }
        self.news = listen(&self.table, &self.watchdog, &self.watch)?;
        install_routes(&self.config, false)?;
        self.behind = false;
        Ok(children != [true; 2])
    }
}

impl AsFd for OneSided {
    /// Readable when [`OneSided::repair`] is to be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

/// What the watchdog does when the program is gone.
fn after_death() -> String {
    let mut script = String::new();
    for flag in ["-4", "-6"] {
        let _ = writeln!(script, "ip {flag} rule flush protocol {PROTOCOL}");
        for table in TABLES {
            let _ = writeln!(script, "ip {flag} route flush table {table}");
        }
    }
    script
}

/// The rules as `ip rule` prints them.
fn rules(config: &OneSidedConfig) -> BTreeSet<String> {
    // Checks of sources by mark ask for the way back: as in `routes::marking_rules`.
    let mut rules = vec![format!("fwmark {LOCAL:#x} iif lo lookup main")];
    for (mark, device) in SYN.iter().zip(DEVICES) {
        rules.push(format!("fwmark {mark:#x} iif {device} lookup main"));
    }
    rules.push(format!("fwmark {LOCAL:#x} lookup {LOCAL_TABLE}"));
    for (mark, table) in SYN.iter().zip(SYN_TABLE) {
        rules.push(format!("fwmark {mark:#x} lookup {table}"));
    }
    if config.own {
        rules.push(format!("fwmark {OWN:#x} lookup {LOCAL_TABLE}"));
    }
    rules.push(format!("fwmark {LEG:#x} lookup {LEG_TABLE}"));
    let numbered = (PRIORITY..).zip(rules);
    numbered.map(|(at, rule)| format!("{at}: from all {rule} proto {PROTOCOL}")).collect()
}

/// Makes rules and routes of ours what they should be, as far as that succeeds. What is there
/// already stays untouched, unless it is to be made `anew`: an earlier run's may carry other
/// metrics. What is new comes before the old goes.
fn install_routes(config: &OneSidedConfig, anew: bool) -> Result<(), OsError> {
    let v4 = install_family(Family::V4, config, anew);
    let v6 = if routes::has_ipv6() { install_family(Family::V6, config, anew) } else { Ok(()) };
    v4.and(v6)
}

fn install_family(family: Family, config: &OneSidedConfig, anew: bool) -> Result<(), OsError> {
    let flag = family.flag();
    let (old_rules, new_rules) = (routes::present_rules(flag, PROTOCOL)?, rules(config));
    let (old, new) = (present_routes(family)?, planned_routes(&settings::routes(family)?));
    let mut batch = String::new();
    for (route, way) in new.iter().filter(|(route, way)| anew || old.get(*route) != Some(way)) {
        batch += &replace_command(route, way, family, config);
    }
    for rule in new_rules.difference(&old_rules) {
        batch += &routes::rule_command("add", rule);
    }
    for rule in old_rules.difference(&new_rules) {
        batch += &routes::rule_command("delete", rule);
    }
    for route in old.keys().filter(|route| !new.contains_key(*route)) {
        let _ = writeln!(batch, "route delete {route} proto {PROTOCOL}");
    }
    // One that is refused keeps none of the others from its place.
    let done = command::run(Command::new("ip").args([flag, "-force", "-batch", "-"]), &batch);
    done.map(drop).map_err(|e| e.mend("run as root or grant CAP_NET_ADMIN"))
}

/// Routes in words of `ip route`: type, destination, table and metric, of which there is one
/// each, and where it leads.
type Routes = BTreeMap<String, Way>;

#[derive(Debug, PartialEq, Eq)]
struct Way {
    words: String,
    device: String,
}

/// Ours, where `main` has these routes.
fn planned_routes(main: &[String]) -> Routes {
    let to = |device: &str| Way { words: format!(" dev {device}"), device: device.to_owned() };
    let mut routes: Routes = main.iter().map(|line| read_route(line)).collect();
    routes.insert(format!("local default table {LOCAL_TABLE} metric 1"), to("lo"));
    for (device, table) in DEVICES.iter().zip(SYN_TABLE) {
        routes.insert(format!("default table {table} metric 1"), to(device));
    }
    routes
}

/// Ours as the kernel has them.
fn present_routes(family: Family) -> Result<Routes, OsError> {
    let number = PROTOCOL.to_string();
    let list = ["-d", "-N", "route", "show", "table", "all", "protocol", &number];
    let text = command::run(Command::new("ip").arg(family.flag()).args(list), "")?;
    // The type comes first, as a number.
    let ours = text.lines().filter_map(|line| {
        let (kind, line) = line.split_once(' ')?;
        let (route, way) = read_route(line);
        match kind {
            "1" => Some((route, way)),
            "2" => Some((format!("local {route}"), way)),
            _ => None,
        }
    });
    let in_a_table_of_ours = |route: &str| {
        let table = route.split(' ').skip_while(|word| *word != "table").nth(1);
        table.is_some_and(|number| TABLES.iter().any(|t| t.to_string() == number))
    };
    Ok(ours.filter(|(route, _)| in_a_table_of_ours(route)).collect())
}

/// A printed route as it stands in its table, or, of `main`, in the table for sockets towards the
/// links.
fn read_route(line: &str) -> (String, Way) {
    let mut printed = line.split_whitespace();
    let to = printed.next().unwrap_or_default();
    let (mut table, mut metric) = (LEG_TABLE.to_string(), String::new());
    let mut way = Way { words: String::new(), device: String::new() };
    while let Some(word) = printed.next() {
        if word == "onlink" {
            way.words += " onlink";
            continue;
        }
        if !["table", "metric", "via", "dev", "src"].contains(&word) {
            continue;
        }
        let value = printed.next().unwrap_or_default();
        match word {
            "table" => value.clone_into(&mut table),
            "metric" => metric = format!(" metric {value}"),
            "via" if matches!(value, "inet" | "inet6") => {
                let address = printed.next().unwrap_or_default();
                let _ = write!(way.words, " via {value} {address}");
            }
            _ => {
                if word == "dev" {
                    value.clone_into(&mut way.device);
                }
                let _ = write!(way.words, " {word} {value}");
            }
        }
    }
    (format!("{to} table {table}{metric}"), way)
}

/// Puts the route where the one with its destination, table and metric was, with the metrics of
/// its link.
fn replace_command(route: &str, way: &Way, family: Family, config: &OneSidedConfig) -> String {
    let link = config.links.iter().find(|link| link.device == way.device);
    let metrics = link.map_or_else(String::new, |link| link.metrics(family));
    format!("route replace {route}{}{metrics} proto {PROTOCOL}\n", way.words)
}

impl OneSidedLink {
    /// In words of `ip route`.
    fn metrics(&self, family: Family) -> String {
        let ([send, receive], [out, back]) = (self.initial_windows, self.packets);
        // IPv6 asks for 1,280 bytes of every link: shorter packets are asked of TCP alone.
        let (headers, least) = if family == Family::V4 { (40, 0) } else { (60, 1280) };
        let mtu = if out >= least { format!(" mtu {out}") } else { String::new() };
        format!(
            " initcwnd {send} initrwnd {receive} rto_min {}ms{mtu} advmss {}",
            self.least_rto.as_millis(),
            back.saturating_sub(headers).max(64)
        )
    }
}

const PURE_SYN: &str = "tcp flags & (fin | syn | rst | ack)";
const LISTENERS: [(&str, &str, &str); 2] = [("ipv4", "ip", "127.0.0.1"), ("ipv6", "ip6", "[::1]")];

/// The table: one line, one transaction.
fn ruleset(table: &str, config: &OneSidedConfig) -> String {
    let port = config.listener_port;
    let mut out = format!(
        "add table inet {table} {{ flags owner; }}; \
         add chain inet {table} prerouting \
         {{ type filter hook prerouting priority mangle - 5; policy accept; }}; "
    );
    let mut rule = |text: String| out += &format!("add rule inet {table} prerouting {text}; ");
    let devices = list(&DEVICES.map(|device| format!("\"{device}\"")));
    let to_listener = |from: &str, verb: &str, to: &str| {
        format!("{from} tproxy {verb} to {to}:{port} meta mark set {LOCAL:#x} accept")
    };
    for (family, verb, to) in LISTENERS {
        let from = format!("iifname {devices} meta nfproto {family} {PURE_SYN} == syn");
        rule(to_listener(&from, verb, to));
    }
    if config.own {
        // What the program answers in a server's name to a socket of this host.
        let back = format!("iifname \"{}\" ct mark {OWN:#x}", DEVICES[0]);
        rule(format!("{back} meta mark set {LOCAL:#x} accept"));
    }
    rule(format!("iifname {devices} accept"));
    let lan = list(&config.lan.iter().map(|l| format!("\"{l}\"")).collect::<Vec<_>>());
    for link in &config.links {
        let device = &link.device;
        for (family, verb, to) in LISTENERS {
            let Some(there) = beyond(link, family, "daddr") else { continue };
            let from = beyond(link, family, "saddr").unwrap_or_default();
            // A SYN of a connection that is in TIME_WAIT here: see `nft::ruleset`.
            let leads_there = format!("{there} {PURE_SYN} == syn fib daddr oifname \"{device}\"");
            if !config.lan.is_empty() {
                let sent = format!("iifname {lan} {leads_there}");
                rule(to_listener(&format!("{sent} socket transparent 1"), verb, to));
                rule(format!("{sent} meta mark set {:#x} accept", SYN[0]));
            }
            let comes = format!(
                "iifname \"{device}\" {from} {PURE_SYN} == syn fib daddr type != local \
                 fib daddr oifname != \"{device}\""
            );
            rule(to_listener(&format!("{comes} socket transparent 1"), verb, to));
            rule(format!("{comes} meta mark set {:#x} accept", SYN[1]));
        }
    }
    let ours = format!("socket transparent 1 meta mark set {LOCAL:#x} accept");
    // A socket in TIME_WAIT does not answer for a connection that is new.
    rule(format!("{PURE_SYN} != syn {ours}"));
    rule(format!("meta l4proto {{ icmp, ipv6-icmp }} {ours}"));
    if config.own { out + &own_chain(table, config) } else { out }
}

/// This host's own connections, as in `own`.
fn own_chain(table: &str, config: &OneSidedConfig) -> String {
    let mut out = format!(
        "add chain inet {table} own \
         {{ type route hook output priority mangle - 5; policy accept; }}; "
    );
    let mut rule = |text: String| out += &format!("add rule inet {table} own {text}; ");
    for link in &config.links {
        for (family, ..) in LISTENERS {
            let Some(there) = beyond(link, family, "daddr") else { continue };
            rule(format!(
                "oifname \"{}\" {there} {PURE_SYN} == syn meta mark 0 ct mark set {OWN:#x} \
                 meta mark set {:#x} accept",
                link.device, SYN[0]
            ));
        }
    }
    rule(format!("ct mark {OWN:#x} {PURE_SYN} != syn meta mark 0 meta mark set {OWN:#x} accept"));
    out
}

/// The match for the link's prefixes of a family; `None` if it has none.
fn beyond(link: &OneSidedLink, family: &str, field: &str) -> Option<String> {
    let v4 = family == "ipv4";
    let prefixes = without_covered(link.routes.iter().filter(|p| p.is_v4() == v4));
    let ip = if v4 { "ip" } else { "ip6" };
    match prefixes.as_slice() {
        [] => None,
        // Every address: nft has no set element for that in all of its versions.
        all if all.iter().any(|p| p.len() == 0) => Some(format!("meta nfproto {family}")),
        some => Some(format!("{ip} {field} {}", list(some))),
    }
}

#[cfg(test)]
mod tests;
