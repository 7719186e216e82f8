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

use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use units::IpPrefix;

use super::children::Watchdog;
use super::nft::{Table, list, without_covered};
use super::watch::Watch;
use super::{listen, lock_within, own, satisfy_loose_filter};
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
        let watch = Watch::open()?;
        let watchdog = Watchdog::start(&after_death(), &lock)?;
        install_routes(config)?;
        let table = Table::create(|name| ruleset(name, config))?;
        let news = listen(&table, &watchdog, &watch)?;
        Ok(OneSided { config: config.clone(), syns, table, watchdog, watch, news, lock })
    }

    /// The devices that SYNs are read from, and that they, or a refusal, are written back to:
    /// of connections towards the link, and from it.
    pub fn syns(&self) -> &[Tun; 2] {
        &self.syns
    }

    /// Makes whole what somebody broke, and follows this host's own routes. True if a child had
    /// died. Call it when the poller says that this is readable.
    ///
    /// # Errors
    /// One sentence: it cannot be mended.
    pub fn repair(&mut self) -> Result<bool, OsError> {
        let children = [self.watchdog.is_alive(), self.table.is_alive()];
        let news = self.watch.any_news();
        if !children[0] {
            self.watchdog = Watchdog::start(&after_death(), &self.lock)?;
        }
        if !children[1] {
            let config = &self.config;
            self.table = Table::create(|name| ruleset(name, config))?;
        }
        if news || children != [true; 2] {
            install_routes(&self.config)?;
            // What that itself has caused is no news.
            self.watch.any_news();
        }
        self.news = listen(&self.table, &self.watchdog, &self.watch)?;
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
        for table in [LOCAL_TABLE, SYN_TABLE[0], SYN_TABLE[1], LEG_TABLE] {
            let _ = writeln!(script, "ip {flag} route flush table {table}");
        }
    }
    script
}

fn rules(config: &OneSidedConfig) -> Vec<String> {
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
    rules
}

/// Rules and routes, in place of those that were there of ours.
fn install_routes(config: &OneSidedConfig) -> Result<(), OsError> {
    for (family, flag) in [(Family::V4, "-4"), (Family::V6, "-6")] {
        let Ok(main) = settings::routes(family) else {
            continue; // No IPv6 here.
        };
        let mut batch = String::new();
        let mut routes = vec![format!("local default dev lo table {LOCAL_TABLE}")];
        for (device, table) in DEVICES.iter().zip(SYN_TABLE) {
            routes.push(format!("default dev {device} table {table}"));
        }
        routes.extend(main.iter().map(|route| leg_route(route, family, config)));
        for route in routes {
            let _ = writeln!(batch, "route replace {route} proto {PROTOCOL}");
        }
        let _ = writeln!(batch, "rule flush protocol {PROTOCOL}");
        for (priority, rule) in (PRIORITY..).zip(rules(config)) {
            let _ =
                writeln!(batch, "rule add priority {priority} from all {rule} protocol {PROTOCOL}");
        }
        let mut ip = Command::new("ip");
        command::run(ip.args([flag, "-batch", "-"]), &batch)
            .map_err(|e| e.mend("run as root or grant CAP_NET_ADMIN"))?;
    }
    Ok(())
}

/// A route of `main` as it stands in the table for sockets towards the links.
fn leg_route(route: &str, family: Family, config: &OneSidedConfig) -> String {
    const KEPT: [&str; 4] = ["via", "dev", "src", "metric"];
    let mut words = route.split_whitespace();
    let mut out = words.next().unwrap_or_default().to_owned();
    let mut device = "";
    while let Some(word) = words.next() {
        match word {
            "onlink" => out += " onlink",
            _ if KEPT.contains(&word) => {
                let value = words.next().unwrap_or_default();
                if word == "via" && matches!(value, "inet" | "inet6") {
                    let address = words.next().unwrap_or_default();
                    let _ = write!(out, " via {value} {address}");
                    continue;
                }
                if word == "dev" {
                    device = value;
                }
                let _ = write!(out, " {word} {value}");
            }
            _ => {}
        }
    }
    let link = config.links.iter().find(|link| link.device == device);
    let metrics = link.map_or_else(String::new, |link| link.metrics(family));
    format!("{out} table {LEG_TABLE}{metrics}")
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
mod tests {
    use super::*;

    #[test]
    fn routes_to_the_link_carry_its_metrics_and_others_do_not() {
        let link = OneSidedLink {
            device: "sat0".into(),
            routes: vec!["0.0.0.0/0".parse().unwrap()],
            initial_windows: [30, 60],
            least_rto: units::Duration::from_millis(300),
            packets: [1000, 1500],
        };
        let config =
            OneSidedConfig { lan: vec![], own: false, listener_port: 1, links: vec![link] };
        let there = "default via 10.0.0.1 dev sat0 proto 3 scope 0 initcwnd 9 rto_min lock 3s";
        let metrics = "initcwnd 30 initrwnd 60 rto_min 300ms";
        assert_eq!(
            leg_route(there, Family::V4, &config),
            format!("default via 10.0.0.1 dev sat0 table 25193 {metrics} mtu 1000 advmss 1460")
        );
        assert_eq!(
            leg_route("default dev sat0", Family::V6, &config),
            format!("default dev sat0 table 25193 {metrics} advmss 1440")
        );
        let here = "10.2.0.0/24 dev lan0 proto 2 scope 253 src 10.2.0.1";
        let same = "10.2.0.0/24 dev lan0 src 10.2.0.1 table 25193";
        assert_eq!(leg_route(here, Family::V4, &config), same);
    }
}
