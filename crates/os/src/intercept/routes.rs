//! Rules and routes: what there should be, and `ip -batch` to make it so.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use units::IpPrefix;

use super::config::{InterceptConfig, Marks};
use super::{guard, own, refusal};
use crate::OsError;
use crate::addresses::networks;
use crate::command;
use crate::tun;

/// Our number in the `proto` field of rules and routes; unassigned in
/// `/etc/iproute2/rt_protos` and in the kernel's `rtnetlink.h`.
pub(super) const PROTOCOL: u8 = 143;
/// Table of the peers' prefixes of length L: this + L (up to 128).
const TABLE: u32 = 25_200;
/// Where marked packets are delivered here.
const LOCAL_TABLE: u32 = TABLE + 200;
/// Where marked SYNs go to the syn device.
const SYN_TABLE: u32 = TABLE + 201;
/// Where a route says when and how the program ended.
const NOTE_TABLE: u32 = TABLE + 202;
/// Priorities of our rules start here, before `main` at 32,766.
const PRIORITY: u32 = 25_200;
/// Rules for the prefixes start here, two for each length.
const PREFIX_PRIORITY: u32 = PRIORITY + 10;
/// After `main` and `default`: what this node itself finds no other way for.
const LAST_PRIORITY: u32 = 32_800;
/// Before others' rules, but for those that have 1 to 8; by its text it is the last of ours, and so
/// put in force last.
const GUARD_PRIORITY: u32 = 9;
/// Metric of the route that blocks; any route into the tunnel is better.
const BLOCK_METRIC: u32 = 9_999;

/// Everything that should be there, per family, as `ip` prints it.
#[derive(PartialEq, Eq)]
pub(super) struct Plan {
    v4: Family,
    v6: Family,
    /// What tells hosts, and blocks without rules, when the program is gone.
    refusal: String,
}

#[derive(PartialEq, Eq)]
struct Family {
    /// "-4" or "-6".
    flag: &'static str,
    /// `priority: selector … proto 143`
    rules: BTreeSet<String>,
    /// `[type] prefix [dev name] table N metric M`
    routes: BTreeSet<String>,
    /// Of the rules, those that lead to a route that blocks: they outlive the program.
    blocking: BTreeSet<String>,
}

impl Plan {
    /// For the networks and gateways that this host has now.
    pub fn of(config: &InterceptConfig) -> Result<Plan, OsError> {
        let v6 = if has_ipv6() { gateways("-6", config)? } else { BTreeSet::new() };
        Ok(Plan::new(config, &networks()?, &[gateways("-4", config)?, v6]))
    }

    /// `gateways`: the interfaces that [`bound_rules`] are for, of IPv4 and of IPv6.
    fn new(
        config: &InterceptConfig,
        networks: &[(String, IpPrefix)],
        gateways: &[BTreeSet<String>; 2],
    ) -> Plan {
        let direct = bypassing(config, networks);
        let sources = [true, has_source_v6(config, networks)];
        let family = |v4: bool| {
            let at = usize::from(!v4);
            Family::new(config, (&direct, &gateways[at], sources[at]), v4)
        };
        // What goes in clear does so only outside of prefixes that block.
        let blocked = config.routes.iter().filter(|p| config.blocks(p)).copied().collect();
        let blocking = InterceptConfig { routes: blocked, ..config.clone() };
        let by_destination = guard::by_destination(&blocking, &direct, refusal::ASKS);
        let refusal = refusal::ruleset(&by_destination);
        Plan { v4: family(true), v6: family(false), refusal }
    }

    /// How many of its rules and routes are not in force.
    pub fn missing(&self) -> Result<usize, OsError> {
        let present = Plan::present()?;
        let count = |plan: &Family, present: &Family| match plan.flag == "-6" && !has_ipv6() {
            true => 0,
            false => {
                plan.rules.difference(&present.rules).count()
                    + plan.routes.difference(&present.routes).count()
            }
        };
        Ok(count(&self.v4, &present.v4) + count(&self.v6, &present.v6))
    }

    /// Makes rules and routes of ours what it says. Where a family fails the other one is put back
    /// all the same.
    pub fn put_back(&self) -> Result<(), OsError> {
        let families = [&self.v4, &self.v6].into_iter();
        let there = families.filter(|family| family.flag != "-6" || has_ipv6());
        let done: Vec<_> = there.map(install_family).collect();
        done.into_iter().collect()
    }

    /// The same after a change that failed, which is what is told.
    pub fn put_back_or_leave(&self) {
        // What refuses to go in seldom refuses to go out.
        let _ = self.put_back();
    }

    /// Is this what a program left that ended, and not what one that runs has?
    pub fn is_left(&self) -> bool {
        let note = format!(" table {NOTE_TABLE} ");
        self.v4.routes.iter().any(|route| route.contains(&note))
    }

    /// What there is of ours.
    fn present() -> Result<Plan, OsError> {
        let family = |flag| -> Result<Family, OsError> {
            let (rules, routes) = match flag == "-6" && !has_ipv6() {
                true => (BTreeSet::new(), BTreeSet::new()),
                false => (present_rules(flag, PROTOCOL)?, present_routes(flag)?),
            };
            Ok(Family { flag, rules, routes, blocking: BTreeSet::new() })
        };
        Ok(Plan { v4: family("-4")?, v6: family("-6")?, refusal: String::new() })
    }

    /// The shell commands that the watchdog runs when the program is gone. Routes into
    /// the devices are gone by then. `$how` is "unreachable" after an end in order and
    /// "blackhole" after any other: a route of that type, whose metric is the time in
    /// seconds since 1970, notes it. By a rule that leads to it the table that tells hosts
    /// ([`refusal`]) knows that nobody has removed rules.
    pub fn after_death(&self) -> String {
        let blocks = [&self.v4, &self.v6].iter().any(|family| !family.blocking.is_empty());
        let mut script = String::new();
        for family in [&self.v4, &self.v6] {
            // What has gone meanwhile keeps nothing else from going.
            script += &format!("ip {} -force -batch - <<END\n", family.flag);
            // By their whole text: several rules have one priority, and some of them stay.
            for rule in family.rules.difference(&family.blocking) {
                script += &rule_command("delete", rule);
            }
            for table in [LOCAL_TABLE, SYN_TABLE] {
                script += &format!("route flush table {table} protocol {PROTOCOL}\n");
            }
            // Another program may have removed them before the end.
            for rule in &family.blocking {
                script += &rule_command("add", rule);
            }
            if blocks {
                let guard = Marks::default().guard;
                script += &format!(
                    "route add $how default table {NOTE_TABLE} metric $(date +%s) proto {PROTOCOL}\n\
                     rule add priority {GUARD_PRIORITY} fwmark {guard:#x} lookup {NOTE_TABLE} \
                     proto {PROTOCOL}\n"
                );
            }
            script += "END\n";
        }
        if blocks {
            script += &refusal::script(&self.refusal);
        }
        script
    }

    /// The table that [`Plan::after_death`] puts in force.
    pub fn refusal(&self) -> &str {
        &self.refusal
    }
}

impl Family {
    /// Of the host: the networks that bypass the tunnel, the interfaces with a gateway, and
    /// whether it has an address that somebody beyond its own networks can answer to.
    fn new(
        config: &InterceptConfig,
        (direct, gateways, has_source): (&[IpPrefix], &BTreeSet<String>, bool),
        v4: bool,
    ) -> Family {
        let mine = |p: &&IpPrefix| p.is_v4() == v4;
        let all: Vec<IpPrefix> = config.routes.iter().filter(mine).copied().collect();
        let blocked: Vec<IpPrefix> = all.iter().filter(|p| config.blocks(p)).copied().collect();
        let direct: Vec<IpPrefix> = direct.iter().filter(mine).copied().collect();
        let mut rules = host_rules(&all, &direct, &config.direct);
        let mut blocking = host_rules(&blocked, &direct, &config.direct);
        blocking.extend(refusal_rules(config, &blocked));
        rules.extend(refusal_rules(config, &blocked));
        rules.extend(own_rules(config, &all, has_source));
        rules.extend(bound_rules(config, &all, gateways));
        rules.extend(marking_rules(config));
        if !blocked.is_empty() && guard::is_possible() {
            let (mark, at) = (config.marks.guard, GUARD_PRIORITY);
            let guard = format!("{at}: from all fwmark {mark:#x} lookup {SYN_TABLE}");
            rules.insert(format!("{guard} proto {PROTOCOL}"));
        }
        let routes = routes(config, &all, &blocked);
        Family { flag: if v4 { "-4" } else { "-6" }, rules, routes, blocking }
    }

    fn empty(flag: &'static str) -> Family {
        let none = BTreeSet::new;
        Family { flag, rules: none(), routes: none(), blocking: none() }
    }
}

fn marking_rules(config: &InterceptConfig) -> BTreeSet<String> {
    let (local, syn, device) = (config.marks.local, config.marks.syn, config.syn_device());
    let rules = [
        // Where the kernel checks sources by mark (src_valid_mark), the check asks for the
        // way back as if the packet came from where it goes to: from lo for one that is
        // delivered here. It must find that way, not our own delivery.
        format!("from all fwmark {local:#x} iif lo lookup main"),
        format!("from all fwmark {syn:#x} iif {device} lookup main"),
        format!("from all fwmark {local:#x} lookup {LOCAL_TABLE}"),
        format!("from all fwmark {syn:#x} lookup {SYN_TABLE}"),
    ];
    let rules = rules.into_iter().chain(own::rules(config, LOCAL_TABLE));
    (PRIORITY..).zip(rules).map(|(at, rule)| format!("{at}: {rule} proto {PROTOCOL}")).collect()
}

/// What hosts send, and others that this node routes for: into the tunnel, but for networks that
/// are longer and bypass it. Where the peer's routes block, these rules outlive the program.
/// `named`: of those networks, the ones that the file names, which any route may lead to. The
/// others are this host's own, and reached by their own routes alone: of an interface that is down
/// there are none, and a default route would lead its network's traffic out in clear.
fn host_rules(prefixes: &[IpPrefix], direct: &[IpPrefix], named: &[IpPrefix]) -> BTreeSet<String> {
    let mut rules = BTreeSet::new();
    for (_, at, table) in prefixes.iter().map(places) {
        // What this node sends itself comes from lo, as the kernel sees it.
        rules.insert(format!("{}: not from all iif lo lookup {table}", at + 1));
    }
    // Before the next shorter length, and only where there is a shorter one.
    let shorter = |direct: &&IpPrefix| prefixes.iter().any(|p| p.len() < direct.len());
    for prefix in direct.iter().filter(shorter) {
        let at = places(prefix).1 + 2;
        let own = match named.contains(prefix) {
            true => String::new(),
            false => format!(" suppress_prefixlength {}", prefix.len() - 1),
        };
        rules.insert(format!("{at}: from all to {} lookup main{own}", in_a_rule(prefix)));
    }
    rules.into_iter().map(|rule| format!("{rule} proto {PROTOCOL}")).collect()
}

/// By these [`refusal`] learns which of hosts' packets meet a route that blocks.
fn refusal_rules(config: &InterceptConfig, blocked: &[IpPrefix]) -> BTreeSet<String> {
    let mark = config.marks.inward;
    let rule = |(_, at, table): (u32, u32, u32)| {
        format!("{}: from all fwmark {mark:#x} lookup {table} proto {PROTOCOL}", at + 1)
    };
    blocked.iter().map(places).map(rule).collect()
}

/// The networks whose traffic bypasses the tunnel where a shorter prefix leads into it: those
/// that the file names, and those that this host is in. Others' routes do not count, however long
/// they are: who answers DHCP or sends router advertisements on any side makes them (TunnelVision,
/// CVE-2024-3661). For the same reason a public network counts on a LAN's interface only: others
/// may claim any (TunnelCrack, CVE-2023-36672), and a private one not inside what the file says is
/// a peer's. Where the file names no LAN, and this host's own traffic is not split, other
/// interfaces may be LANs: a hub's.
pub fn bypassing(config: &InterceptConfig, networks: &[(String, IpPrefix)]) -> Vec<IpPrefix> {
    let ours = [config.tun.clone(), config.syn_device(), "lo".to_owned()];
    let connected = networks.iter().filter(|(device, network)| {
        let is_lan = config.lan.contains(device);
        !ours.contains(device) && (is_lan || is_private(network) && !is_usurped(network, config))
    });
    let connected = connected.map(|(_, network)| *network);
    connected.chain(config.direct.iter().copied()).filter(|p| p.len() > 0).collect()
}

/// The same, of the networks that this host has now: those that the file names where they cannot
/// be listed.
pub(super) fn bypassing_now(config: &InterceptConfig) -> Vec<IpPrefix> {
    bypassing(config, &networks().unwrap_or_default())
}

/// Has this host an IPv6 address that is not its own networks' alone, on any interface?
fn has_source_v6(config: &InterceptConfig, networks: &[(String, IpPrefix)]) -> bool {
    let devices = [config.tun.clone(), config.syn_device()];
    let is_source = |network: &IpPrefix| match network.addr() {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    networks.iter().any(|(device, network)| !devices.contains(device) && is_source(network))
}

/// Is the network, of an interface that the file does not call a LAN, inside a peer's prefix that
/// is not a default route?
fn is_usurped(network: &IpPrefix, config: &InterceptConfig) -> bool {
    let knows_its_lans = !config.lan.is_empty() || config.own;
    knows_its_lans && config.routes.iter().any(|p| p.len() > 0 && p.covers(network))
}

/// Routes of the system that hosts' traffic no longer takes, because a shorter prefix leads into
/// the tunnel, in words of `ip route`.
pub(super) fn passed_over(config: &InterceptConfig) -> Result<Vec<String>, OsError> {
    let direct = bypassing(config, &networks()?);
    let mut found = Vec::new();
    for flag in ["-4", "-6"] {
        if flag == "-6" && !has_ipv6() {
            continue;
        }
        let text = command::run(Command::new("ip").args([flag, "route", "show"]), "")?;
        found.extend(text.lines().filter(|l| is_passed_over(l, config, &direct)).map(words));
    }
    Ok(found)
}

fn is_passed_over(route: &str, config: &InterceptConfig, direct: &[IpPrefix]) -> bool {
    let to = route.split_whitespace().next().unwrap_or_default();
    let Ok(to) = to.parse::<IpPrefix>() else { return false };
    let leads_in = config.routes.iter().any(|p| p.covers(&to) && p.len() < to.len());
    // A public network of this host's on the other side is reached through the link, as ever.
    let expected = route.contains(" proto kernel") && !(is_private(&to) && is_usurped(&to, config));
    leads_in && !direct.iter().any(|d| d.covers(&to)) && !expected
}

/// Private, shared and link-local networks (RFC 1918, 6598, 3927, 4193, 4291).
fn is_private(network: &IpPrefix) -> bool {
    const PRIVATE: [(IpAddr, u8); 7] = [
        (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
        (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
        (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
        (IpAddr::V4(Ipv4Addr::new(100, 64, 0, 0)), 10),
        (IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
        (IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
        (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
    ];
    PRIVATE.iter().any(|(addr, len)| IpPrefix::new(*addr, *len).covers(network))
}

/// A prefix as `ip rule` prints it.
fn in_a_rule(prefix: &IpPrefix) -> String {
    let whole = if prefix.is_v4() { 32 } else { 128 };
    if prefix.len() == whole { prefix.addr().to_string() } else { prefix.to_string() }
}

/// What this node sends itself. A route to somewhere leads there for the node, too: it has
/// no other way. A default route is for hosts: who reaches this node from outside must be
/// answered outside, and the node's own traffic goes where it went before. Two things take
/// it all the same: answers to what came out of the tunnel, by their mark, and what `main`
/// knows no way for.
///
/// A host without an address for it is told at once that there is no way: the kernel would take a
/// link-local address of another interface, to which no answer can come.
fn own_rules(
    config: &InterceptConfig,
    prefixes: &[IpPrefix],
    has_source: bool,
) -> BTreeSet<String> {
    let Marks { carrier, inward, onward, .. } = config.marks;
    let mut rules = BTreeSet::new();
    for prefix in prefixes {
        let (len, at, table) = places(prefix);
        let not_the_carrier = format!("not from all fwmark {carrier:#x} lookup {table}");
        if len > 0 || config.own {
            let to = if len > 0 { format!("to {} ", in_a_rule(prefix)) } else { String::new() };
            let rule = match has_source {
                true => not_the_carrier.clone(),
                false => format!("from all {to}iif lo unreachable"),
            };
            rules.insert(format!("{}: {rule}", at + 1));
        }
        // In the order of their texts, these come before the rule that refuses.
        for mark in [inward, onward].iter().filter(|_| len == 0 || !has_source) {
            rules.insert(format!("{}: from all fwmark {mark:#x} lookup {table}", at + 1));
        }
        if len == 0 && has_source {
            rules.insert(format!("{LAST_PRIORITY}: {not_the_carrier}"));
        }
    }
    rules.into_iter().map(|rule| format!("{rule} proto {PROTOCOL}")).collect()
}

/// Sockets of this host that are bound to an interface with a gateway stay outside the default
/// routes of the tunnel. Without these rules the kernel meets the route that blocks, and takes
/// every destination of such a socket for a neighbour. Hosts' packets never match: the kernel
/// looks them up without an outgoing interface.
fn bound_rules(
    config: &InterceptConfig,
    prefixes: &[IpPrefix],
    gateways: &BTreeSet<String>,
) -> BTreeSet<String> {
    let default = prefixes.iter().map(places).find(|(len, ..)| *len == 0 && config.own);
    let rule = |at: u32, device: &String| {
        format!("{at}: from all oif {device} lookup main proto {PROTOCOL}")
    };
    default.iter().flat_map(|(_, at, _)| gateways.iter().map(|device| rule(*at, device))).collect()
}

/// The interfaces by which `main` has a gateway or a default route, where there may be
/// [`bound_rules`] for them.
fn gateways(flag: &str, config: &InterceptConfig) -> Result<BTreeSet<String>, OsError> {
    if !config.own {
        return Ok(BTreeSet::new());
    }
    let text = command::run(Command::new("ip").args([flag, "route", "show"]), "")?;
    let ours = [config.tun.clone(), config.syn_device()];
    let found = text.lines().filter_map(gateway_device).map(str::to_owned);
    // `ip -batch` would read other names as something else.
    Ok(found.filter(|device| !ours.contains(device) && tun::check_name(device).is_ok()).collect())
}

/// The interface of a printed route, or of a next hop on a line of its own, if it leads to a
/// gateway or everywhere.
fn gateway_device(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let leads_on = words.first() == Some(&"default") || words.contains(&"via");
    let device = words.iter().position(|word| *word == "dev").filter(|_| leads_on)?;
    words.get(device + 1).copied()
}

/// A prefix's length, the priority of its first rule, and its table. Before the rule that leads
/// into the table, at the next number, are those of longer networks that bypass the tunnel.
fn places(prefix: &IpPrefix) -> (u32, u32, u32) {
    let len = u32::from(prefix.len());
    (len, PREFIX_PRIORITY + 2 * (128 - len), TABLE + len)
}

fn routes(config: &InterceptConfig, all: &[IpPrefix], blocked: &[IpPrefix]) -> BTreeSet<String> {
    let (tun, syn) = (&config.tun, config.syn_device());
    let mut routes = BTreeSet::from([
        format!("local default dev lo table {LOCAL_TABLE} metric 1"),
        format!("default dev {syn} table {SYN_TABLE} metric 1"),
    ]);
    routes.extend(all.iter().map(|p| {
        let table = TABLE + u32::from(p.len());
        format!("{} dev {tun} table {table} metric 1", as_printed(p))
    }));
    routes.extend(blocked.iter().map(|p| {
        let table = TABLE + u32::from(p.len());
        format!("unreachable {} table {table} metric {BLOCK_METRIC}", as_printed(p))
    }));
    routes
}

fn as_printed(prefix: &IpPrefix) -> String {
    if prefix.len() == 0 { "default".into() } else { prefix.to_string() }
}

/// Makes rules and routes of ours what the plan says. What is there already stays
/// untouched, and what is new comes before the old goes: nothing leaks in between.
pub(super) fn install(plan: &Plan) -> Result<(), OsError> {
    for family in [&plan.v4, &plan.v6] {
        if family.flag == "-6" && !has_ipv6() {
            continue;
        }
        install_family(family)?;
    }
    Ok(())
}

fn install_family(family: &Family) -> Result<(), OsError> {
    let old_rules = present_rules(family.flag, PROTOCOL)?;
    let old_routes = present_routes(family.flag)?;
    let mut batch = String::new();
    for route in family.routes.difference(&old_routes) {
        batch += &format!("route add {route} proto {PROTOCOL}\n");
    }
    for rule in family.rules.difference(&old_rules) {
        batch += &rule_command("add", rule);
    }
    for rule in old_rules.difference(&family.rules) {
        batch += &rule_command("delete", rule);
    }
    for route in old_routes.difference(&family.routes) {
        batch += &format!("route delete {route} proto {PROTOCOL}\n");
    }
    let done = command::run(Command::new("ip").args([family.flag, "-batch", "-"]), &batch);
    done.map(drop).map_err(|e| e.mend("run as root or grant CAP_NET_ADMIN"))
}

/// Makes rules and routes of ours what the plan says, or, if that fails, leaves what
/// there was; that is returned.
pub(super) fn install_or_leave(plan: &Plan) -> Result<Plan, OsError> {
    let before = Plan::present()?;
    match install(plan) {
        Ok(()) => Ok(before),
        Err(e) => {
            before.put_back_or_leave();
            Err(e)
        }
    }
}

pub(super) fn rule_command(verb: &str, rule: &str) -> String {
    match rule.split_once(": ") {
        Some((priority, selector)) => format!("rule {verb} priority {priority} {selector}\n"),
        None => String::new(),
    }
}

/// The rules of this protocol as the kernel has them, in the plan's form. `ip rule show` ignores
/// a protocol that it is given, so that they are picked out here.
pub(super) fn present_rules(flag: &str, protocol: u8) -> Result<BTreeSet<String>, OsError> {
    let text = command::run(Command::new("ip").args([flag, "rule", "show"]), "")?;
    let ours = format!(" proto {protocol}");
    Ok(text.lines().map(words).filter(|l| l.ends_with(&ours)).collect())
}

/// Our routes as the kernel has them, in the plan's form.
fn present_routes(flag: &str) -> Result<BTreeSet<String>, OsError> {
    let number = PROTOCOL.to_string();
    let list = ["route", "show", "table", "all", "protocol", &number];
    let text = command::run(Command::new("ip").arg(flag).args(list), "")?;
    Ok(text.lines().filter_map(route_as_planned).collect())
}

/// Keeps of a printed route what tells it from others, in the plan's order.
fn route_as_planned(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().peekable();
    let mut out = String::new();
    if let Some(kind @ ("local" | "unreachable" | "blackhole")) = words.peek().copied() {
        out = format!("{kind} ");
        words.next();
    }
    let mut prefix = words.next()?.to_owned();
    if prefix != "default" && !prefix.contains('/') {
        prefix += if prefix.contains(':') { "/128" } else { "/32" };
    }
    let (mut device, mut table, mut metric) = (None, None, None);
    while let Some(word) = words.next() {
        match word {
            "dev" => device = words.next(),
            "table" => table = words.next(),
            "metric" => metric = words.next(),
            _ => {}
        }
    }
    out += &prefix;
    // IPv6 prints the device of an unreachable route, too; it is none.
    if let Some(device) =
        device.filter(|_| !["unreachable", "blackhole"].iter().any(|k| out.starts_with(k)))
    {
        out += &format!(" dev {device}");
    }
    Some(format!("{out} table {} metric {}", table?, metric?))
}

/// One space between words, and nothing about a device that is away just now.
fn words(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().filter(|w| *w != "[detached]").collect();
    words.join(" ")
}

/// How the program ended that left something to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    InOrder,
    /// It was killed or crashed.
    Killed,
}

/// What is blocked for the hosts while no program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The peers' prefixes.
    pub prefixes: Vec<IpPrefix>,
    /// How and when the program ended, in seconds since 1970. `None`: it runs, or its end
    /// could not be noted.
    pub since: Option<(Ended, u64)>,
}

/// Looks whether routes of ours block in this network namespace. Anybody may ask.
///
/// # Errors
/// If `ip` cannot be asked.
pub fn blocked() -> Result<Option<Blocked>, OsError> {
    let present = Plan::present()?;
    let mut blocked = Blocked { prefixes: Vec::new(), since: None };
    for (family, everything) in [(&present.v4, IpPrefix::ALL_V4), (&present.v6, IpPrefix::ALL_V6)] {
        for route in &family.routes {
            let words: Vec<&str> = route.split(' ').collect();
            let [kind @ ("unreachable" | "blackhole"), prefix, "table", table, "metric", metric] =
                words[..]
            else {
                continue;
            };
            if table == NOTE_TABLE.to_string() {
                let ended = if kind == "blackhole" { Ended::Killed } else { Ended::InOrder };
                blocked.since = metric.parse().ok().map(|at| (ended, at));
            } else {
                blocked.prefixes.push(prefix.parse().unwrap_or(everything));
            }
        }
    }
    Ok((!blocked.prefixes.is_empty()).then_some(blocked))
}

pub(super) fn has_ipv6() -> bool {
    std::fs::exists("/proc/sys/net/ipv6").unwrap_or(false)
}

/// Removes every rule and route of ours in this network namespace: what a run that was
/// killed left, and what [`OnFailure::Block`] keeps after one that ended.
pub fn sweep() -> Result<(), OsError> {
    // First what drops without rules: if that fails, what blocks is still told of.
    refusal::remove()?;
    install(&Plan { v4: Family::empty("-4"), v6: Family::empty("-6"), refusal: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(routes: &[&str]) -> InterceptConfig {
        let mut config = InterceptConfig::new("bp0", 1);
        config.routes = routes.iter().map(|r| r.parse().unwrap()).collect();
        config
    }

    #[test]
    fn networks_of_this_host_come_before_shorter_prefixes_of_peers_and_no_route_does() {
        let mut config = config(&["0.0.0.0/0", "10.2.0.0/16", "10.3.0.0/16", "::/0"]);
        config.lan = vec!["lan0".into()];
        config.direct = vec!["198.51.100.7/32".parse().unwrap()];
        let networks: Vec<(String, IpPrefix)> = [
            ("lan0", "10.2.7.0/24"),
            ("lan0", "203.0.113.0/24"),
            ("lan0", "10.0.0.0/8"),
            // Nobody's but the modem's word for these.
            ("wan0", "0.0.0.0/1"),
            ("wan0", "8.8.8.0/24"),
            ("wan0", "10.3.1.0/25"),
            ("wan0", "192.168.100.0/24"),
            ("bp0-syn", "192.168.0.0/24"),
        ]
        .into_iter()
        .map(|(device, prefix)| (device.to_owned(), prefix.parse().unwrap()))
        .collect();
        let none = Default::default();
        let plan = Plan::new(&config, &networks, &none);
        let prefix_rules: Vec<_> = plan.v4.rules.iter().skip(4).map(String::as_str).collect();
        assert_eq!(
            prefix_rules,
            [
                "25404: from all to 198.51.100.7 lookup main proto 143",
                "25420: from all to 10.2.7.0/24 lookup main suppress_prefixlength 23 proto 143",
                "25420: from all to 192.168.100.0/24 lookup main suppress_prefixlength 23 proto 143",
                "25420: from all to 203.0.113.0/24 lookup main suppress_prefixlength 23 proto 143",
                "25435: from all fwmark 0x62700007 lookup 25216 proto 143",
                "25435: not from all fwmark 0x62700003 lookup 25216 proto 143",
                "25435: not from all iif lo lookup 25216 proto 143",
                "25452: from all to 10.0.0.0/8 lookup main suppress_prefixlength 7 proto 143",
                "25467: from all fwmark 0x62700005 lookup 25200 proto 143",
                "25467: from all fwmark 0x62700007 lookup 25200 proto 143",
                "25467: not from all iif lo lookup 25200 proto 143",
                "32800: not from all fwmark 0x62700003 lookup 25200 proto 143",
                "9: from all fwmark 0x62700009 lookup 25401 proto 143",
            ]
        );
        // Without an IPv6 address nothing of this host's own goes there.
        assert_eq!(plan.v6.rules.len(), 8);
        // A hub names no LANs, and may have one there.
        let rule = "25418: from all to 10.3.1.0/25 lookup main suppress_prefixlength 24 proto 143";
        assert!(!plan.v4.rules.contains(rule));
        config.lan.clear();
        assert!(Plan::new(&config, &networks, &none).v4.rules.contains(rule));
        config.own = true;
        assert!(!Plan::new(&config, &networks, &none).v4.rules.contains(rule));
    }

    #[test]
    fn bound_sockets_pass_a_default_route_by_on_interfaces_with_a_gateway_and_nothing_else_does() {
        let mut config = config(&["0.0.0.0/0", "10.2.0.0/16", "fd99::/32"]);
        let gateways = [BTreeSet::from(["wan0".to_owned()]), BTreeSet::from(["wan6".to_owned()])];
        let bound = |config: &InterceptConfig| -> Vec<String> {
            let plan = Plan::new(config, &[], &gateways);
            let all = plan.v4.rules.iter().chain(&plan.v6.rules);
            all.filter(|rule| rule.contains(" oif ")).cloned().collect()
        };
        assert_eq!(bound(&config), [""; 0], "the host's own traffic is not led in");
        config.own = true;
        // Before the rule that leads to the default route, and after those of longer prefixes.
        assert_eq!(bound(&config), ["25466: from all oif wan0 lookup main proto 143"]);
        let plan = Plan::new(&config, &[], &gateways);
        let script = plan.after_death();
        assert!(script.contains("rule delete priority 25466 from all oif wan0"), "{script}");
        config.routes.retain(|p| p.len() > 0);
        assert_eq!(bound(&config), [""; 0], "longer prefixes are reached by the link alone");
    }

    #[test]
    fn a_host_with_link_local_addresses_alone_is_told_that_there_is_no_way() {
        let mut config = config(&["10.2.0.0/16", "::/0", "fd99::/32"]);
        config.own = true;
        let own = |config: &InterceptConfig, networks: &[(&str, &str)]| -> Vec<String> {
            let networks: Vec<(String, IpPrefix)> =
                networks.iter().map(|(d, n)| ((*d).to_owned(), n.parse().unwrap())).collect();
            let plan = Plan::new(config, &networks, &Default::default());
            let is_own = |rule: &&String| {
                rule.contains("unreachable") || rule.contains(" not from all fwmark ")
            };
            plan.v6.rules.iter().filter(is_own).cloned().collect()
        };
        let none = [("lo", "::1/128"), ("wan0", "fe80::/64"), ("bp0", "fd00::/64")];
        let refused = [
            "25403: from all to fd99::/32 iif lo unreachable proto 143",
            "25467: from all iif lo unreachable proto 143",
        ];
        assert_eq!(own(&config, &none), refused);
        let some = [none[0], none[1], ("lo", "2001:db8::1/128")];
        let led_in = [
            "25403: not from all fwmark 0x62700003 lookup 25232 proto 143",
            "25467: not from all fwmark 0x62700003 lookup 25200 proto 143",
            "32800: not from all fwmark 0x62700003 lookup 25200 proto 143",
        ];
        assert_eq!(own(&config, &some), led_in);
        config.own = false;
        assert_eq!(own(&config, &none), refused[..1], "what the system finds no way for has none");
    }

    #[test]
    fn interfaces_with_a_gateway_are_those_of_routes_that_lead_on() {
        for (line, device) in [
            ("default via 192.0.2.1 dev wan0 proto dhcp metric 100", Some("wan0")),
            ("default dev ppp0 scope link", Some("ppp0")),
            ("10.20.0.0/16 via 10.1.0.254 dev lan0", Some("lan0")),
            ("default via inet6 fe80::1 dev wan1", Some("wan1")),
            ("\tnexthop via 192.0.2.1 dev wan2 weight 1", Some("wan2")),
            ("default proto static metric 5", None),
            ("192.0.2.0/24 dev wan0 proto kernel scope link src 192.0.2.9", None),
            ("unreachable default dev lo metric 1024 pref medium", None),
            ("default dev", None),
            ("", None),
        ] {
            assert_eq!(gateway_device(line), device, "{line}");
        }
    }

    #[test]
    fn routes_that_are_passed_over_are_those_of_others_inside_a_peers_prefix() {
        let mut config = config(&["0.0.0.0/0", "10.3.0.0/16"]);
        config.lan = vec!["lan0".into()];
        let direct = ["10.1.0.0/24".parse().unwrap()];
        for (route, is) in [
            ("default via 192.0.2.1 dev wan0", false),
            ("0.0.0.0/1 via 192.0.2.1 dev wan0 proto dhcp", true),
            ("10.20.0.0/16 via 10.1.0.254 dev lan0", true),
            ("198.51.100.7 via 192.0.2.1 dev wan0", true),
            ("10.1.0.128/25 via 10.1.0.254 dev lan0", false),
            ("192.0.2.0/24 dev wan0 proto kernel scope link src 192.0.2.9", false),
            ("10.3.1.0/25 dev wan0 proto kernel scope link src 10.3.1.9", true),
            ("10.4.1.0/25 dev wan0 proto kernel scope link src 10.4.1.9", false),
            ("unreachable 10.0.0.0/8", false),
        ] {
            assert_eq!(is_passed_over(route, &config, &direct), is, "{route}");
        }
    }

    #[test]
    fn printed_routes_are_read_in_the_plans_form() {
        for (printed, read) in [
            (
                "local default dev lo table 25400 scope host metric 1 ",
                "local default dev lo table 25400 metric 1",
            ),
            (
                "10.0.0.1 dev bp0 table 25232 scope link metric 1 linkdown",
                "10.0.0.1/32 dev bp0 table 25232 metric 1",
            ),
            (
                "unreachable default dev lo table 25200 metric 9999 pref medium",
                "unreachable default table 25200 metric 9999",
            ),
        ] {
            assert_eq!(route_as_planned(printed).as_deref(), Some(read));
        }
        assert_eq!(route_as_planned(""), None);
    }

    #[test]
    fn what_blocks_outlives_the_program_and_nothing_else_does() {
        let mut config = config(&["10.0.0.0/8", "10.2.0.0/16"]);
        let plan = |config: &InterceptConfig| Plan::new(config, &[], &Default::default());
        let removed = |config: &InterceptConfig, rule: &str| {
            let script = plan(config).after_death();
            script.contains(&format!("delete priority {rule}"))
        };
        let [longer, shorter] = ["25435: not", "25451: not"].map(|r| r.replace(':', ""));
        let hosts = |rule: &str| format!("{rule} from all iif lo ");
        let own = |rule: &str| format!("{rule} from all fwmark ");
        assert_eq!(plan(&config).v4.routes.len(), 6);
        for rule in [&longer, &shorter] {
            assert!(!removed(&config, &hosts(rule)), "it blocks hosts");
            assert!(removed(&config, &own(rule)), "it would block the node itself");
        }
        config.in_clear = vec!["10.2.0.0/16".parse().unwrap()];
        assert_eq!(plan(&config).v4.routes.len(), 5);
        assert!(removed(&config, &hosts(&longer)) && !removed(&config, &hosts(&shorter)));
        assert!(plan(&config).after_death().contains("$how"));
        config.on_failure = crate::intercept::OnFailure::Wire;
        assert_eq!(plan(&config).v4.routes.len(), 4);
        assert!(removed(&config, &hosts(&longer)) && removed(&config, &hosts(&shorter)));
        assert!(!plan(&config).after_death().contains("$how"), "nothing is blocked");
    }
}
