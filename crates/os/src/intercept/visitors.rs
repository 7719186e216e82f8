//! Who reaches this host from outside the link is answered outside, also where this host's own
//! traffic all goes into the link ([`InterceptConfig::own`]).
//!
//! ```text
//!  visitor ──► wan ─► prerouting: it begins here ─► (connection's mark) ─► a socket of this host
//!          ◄── wan ◄─ output: the connection has that mark ─► (carrier's mark) ◄──────┘
//! ```
//!
//! A connection that begins at an address of this host, and not by the tunnel or a LAN, gets
//! [`Marks::outward`](super::Marks::outward). What this host sends on it gets the carrier's mark,
//! and so takes the system's routes as if there were no tunnel. A visitor's packets have that mark
//! too when sources are checked, or a strict filter would expect them from the tunnel.
//!
//! Nobody outside may lead past the link what this host begins, by a forged packet with the
//! addresses and ports that are going to be used. So a SYN of this host's is never an answer; a
//! datagram begins a connection only where a socket waits for it, or whoever forges one for each
//! port would have the next question for a name leave in clear; and of ICMP only questions count,
//! whose answers are told from questions of this host's. Protocols without ports stay out of it.
//!
//! TCP that visitors have open when the gateway starts may be unknown to the kernel's connection
//! tracking, and if this host sends first it looks like this host's. Its addresses are listed.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::config::InterceptConfig;
use super::nft::{PURE_SYN, list};

/// So many connections are listed at most; of more, those that a visitor's packet finds first.
const MOST: usize = 4_096;

/// The chains that do it; none where this host's own traffic is not led into the link, and
/// answers go outside anyway.
pub(super) fn chains(table: &str, config: &InterceptConfig) -> String {
    if !config.own {
        return String::new();
    }
    let (come, go) = (format!("inet {table} visits"), format!("inet {table} visits_answers"));
    let mut text = format!(
        "add chain {come} {{ type filter hook prerouting priority mangle - 1; policy accept; }}; \
         add chain {go} {{ type route hook output priority mangle - 1; policy accept; }}; "
    );
    let (outward, carrier) = (config.marks.outward, config.marks.carrier);
    let others = [config.tun.clone(), config.syn_device(), "lo".into()];
    let others = others.iter().chain(&config.lan).map(|i| format!("\"{i}\"")).collect::<Vec<_>>();
    let mut rule = |chain: &str, rule: String| text += &format!("add rule {chain} {rule}; ");
    rule(&come, format!("iifname {} accept", list(&others)));
    rule(&come, "fib daddr type != local accept".into());
    for question in [
        "meta l4proto tcp",
        "meta l4proto udp socket transparent { 0, 1 }",
        "icmp type echo-request",
        "icmpv6 type echo-request",
    ] {
        // What somebody else has marked is left to his rules.
        rule(&come, format!("ct mark 0 ct direction original {question} ct mark set {outward:#x}"));
    }
    let marked = format!("meta mark 0 ct mark {outward:#x} meta mark set {carrier:#x}");
    rule(&come, marked.clone());
    rule(&go, format!("{PURE_SYN} accept"));
    text += &standing(table, &go, outward, &open());
    text + &format!("add rule {go} {marked}; ")
}

/// A connection: this host's end and the visitor's.
type Ends = (SocketAddr, SocketAddr);

/// Marks the connections that are open now, if this host is the first to send on them.
fn standing(table: &str, go: &str, outward: u32, open: &BTreeSet<Ends>) -> String {
    let mut text = String::new();
    for (v4, ip, kind) in [(true, "ip", "ipv4_addr"), (false, "ip6", "ipv6_addr")] {
        let ends = open.iter().filter(|(here, _)| here.is_ipv4() == v4).map(|(here, there)| {
            format!("{} . {} . {} . {}", here.ip(), here.port(), there.ip(), there.port())
        });
        let ends: Vec<String> = ends.take(MOST).collect();
        if ends.is_empty() {
            continue;
        }
        let set = format!("standing_{ip}");
        text += &format!(
            "add set inet {table} {set} \
             {{ type {kind} . inet_service . {kind} . inet_service; }}; \
             add element inet {table} {set} {}; \
             add rule {go} ct mark 0 {ip} saddr . tcp sport . {ip} daddr . tcp dport @{set} \
             ct mark set {outward:#x}; ",
            list(&ends)
        );
    }
    text
}

/// Visitors' connections in this network namespace.
fn open() -> BTreeSet<Ends> {
    let read = |name: &dyn Display| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    visitors(&["tcp", "tcp6"].map(|name| read(&name).unwrap_or_default()).concat())
}

/// Those at ports that are listened to: others begin here. Lines are as in proc_net_tcp.
fn visitors(lines: &str) -> BTreeSet<Ends> {
    const SYN_SENT: &str = "02";
    const TIME_WAIT: &str = "06";
    const CLOSE: &str = "07";
    const LISTEN: &str = "0A";
    let sockets = lines.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let ends = (address(words.next()?)?, address(words.next()?)?);
        Some((ends, words.next()?))
    });
    let (listening, connected): (Vec<_>, Vec<_>) = sockets.partition(|(_, s)| *s == LISTEN);
    let ports: BTreeSet<u16> = listening.iter().map(|((here, _), _)| here.port()).collect();
    let stands = |state: &str| ![SYN_SENT, TIME_WAIT, CLOSE].contains(&state);
    let visits = connected.into_iter().filter(|((here, _), state)| {
        stands(state) && ports.contains(&here.port()) && !here.ip().is_loopback()
    });
    visits.map(|(ends, _)| ends).collect()
}

/// An address is printed in words of 32 bits, each as this processor reads it.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes = <[u8; 16]>::try_from(words.concat()).ok()?;
            // A socket for both families has IPv4's in IPv6.
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn visitors_are_those_at_ports_that_are_listened_to() {
        let v4 = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let host = v4([192, 0, 2, 1]);
        let mapped =
            |bytes| format!("{:016X}{:08X}{}", 0, u32::from_ne_bytes([0, 0, 255, 255]), v4(bytes));
        let (none, visitor) = (v4([0; 4]), v4([203, 0, 113, 5]));
        let lines = [
            "  sl  local_address rem_address   st tx_queue".to_owned(),
            format!("   0: {none}:0016 {none}:0000 0A 0:0"),
            format!("   1: {host}:0016 {visitor}:C350 01 0:0"),
            format!("   2: {host}:9C40 {visitor}:0016 01 0:0"),
            format!("   3: {host}:0016 {visitor}:C351 06 0:0"),
            format!(
                "   4: {}:0016 {}:C352 08 0:0",
                mapped([192, 0, 2, 1]),
                mapped([203, 0, 113, 6])
            ),
            "   5: nonsense".to_owned(),
        ];
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let wanted = [
            (at("192.0.2.1:22"), at("203.0.113.5:50000")),
            (at("192.0.2.1:22"), at("203.0.113.6:50002")),
        ];
        assert_eq!(visitors(&lines.join("\n")), BTreeSet::from(wanted));
    }

    #[test]
    fn the_kernel_prints_addresses_as_they_are_read_here() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            // Not every system has IPv6.
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let to = listener.local_addr().unwrap();
            let near = TcpStream::connect(to).unwrap();
            let name = if to.is_ipv4() { "tcp" } else { "tcp6" };
            let lines = fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
            let mut words = lines.lines().map(|l| l.split_whitespace().skip(1).take(2));
            let ends = [near.local_addr().ok(), Some(to)];
            assert!(words.any(|w| w.map(address).eq(ends)), "{lines}");
        }
    }
}
