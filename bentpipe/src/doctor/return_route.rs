//! Whether answers to a peer's hosts come back through this node (`source = "keep"`).
//!
//! An echo request is sent to the next router as if by one of the peer's hosts: it is
//! written into a TUN device, and the answer, if the router sends it here, is routed
//! into that device again.

use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;

use os::intercept::Marks;
use os::poll::{Clock, Events, Interest, Poller};
use os::proc::{Right, has_right};
use os::tun::Tun;
use units::{Duration, IpPrefix, internet_sum};

use super::check::Check;
use crate::config::Peer;

const CHECK: &str = "return route";
const TUN: &str = "bpdoctor0";
/// Requests sent, and how long each is waited for.
const TRIES: u32 = 3;
const PATIENCE: Duration = Duration::from_millis(500);

/// One check for each family that the peer has a prefix of.
pub(super) fn checks(peer: &Peer, running: bool) -> Vec<Check> {
    let not_probed = |why: &str, mend: &str| {
        vec![Check::warn(CHECK, format!("{}: not probed {why}", peer.name), mend)]
    };
    if running {
        return not_probed("while the gateway runs", "stop it and ask again");
    }
    if !has_right(Right::NetAdmin) {
        return not_probed("without root", "sudo bentpipe doctor FILE");
    }
    let of = |v4: bool| peer.routes.iter().find(|p| p.is_v4() == v4 && p.len() > 0);
    [of(true), of(false)].into_iter().flatten().map(|prefix| check(peer, *prefix)).collect()
}

/// The way that the carrier's own packets take: `203.0.113.7 via 192.0.2.1 dev eth0`.
pub(super) fn way_to(ip: IpAddr) -> Option<String> {
    let mark = format!("{:#x}", Marks::default().carrier);
    let get = Command::new("ip").args(["route", "get", &ip.to_string(), "mark", &mark]).output();
    let output = get.ok().filter(|o| o.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    if ["unreachable", "blackhole", "prohibit"].contains(words.first()?) {
        return None;
    }
    let mut way = ip.to_string();
    for pair in words.windows(2).filter(|pair| ["via", "dev"].contains(&pair[0])) {
        way += &format!(" {} {}", pair[0], pair[1]);
    }
    Some(way)
}

fn check(peer: &Peer, prefix: IpPrefix) -> Check {
    let name = &peer.name;
    let Some(router) = next_router(peer, prefix.is_v4()) else {
        return Check::warn(
            CHECK,
            format!("{name}: no router stands between this node and its servers"),
            format!("every server needs a route to {prefix} by this node"),
        );
    };
    let own = way_to(router).and_then(|way| way.rsplit(' ').next().map(str::to_owned));
    match answers(TUN, prefix, router) {
        Ok(true) => Check::ok(CHECK, format!("{name}: {router} sends {prefix} here")),
        Ok(false) => Check::warn(
            CHECK,
            format!("{name}: {router} does not send answers to {prefix} here"),
            format!(
                "add a route to {prefix} on {router}, by this node's address on {}, or set \
                 source = \"nat\"",
                own.unwrap_or_else(|| "its side".into())
            ),
        ),
        Err(e) => Check::failed(CHECK, &e),
    }
}

/// The router towards the ranges that the peer may reach, or towards everything.
fn next_router(peer: &Peer, v4: bool) -> Option<IpAddr> {
    let everything = if v4 { "192.0.2.1" } else { "2001:db8::1" };
    let allowed = peer.allow.iter().filter(|p| p.is_v4() == v4).map(IpPrefix::addr);
    let everything: Option<IpAddr> = everything.parse().ok();
    allowed.chain(everything).find_map(|to| {
        let way = way_to(to)?;
        way.split_once("via ")?.1.split(' ').next()?.parse().ok()
    })
}

/// True if `router` answers a host of `prefix` by way of this node; `device` is made for it.
fn answers(device: &str, prefix: IpPrefix, router: IpAddr) -> Result<bool, os::OsError> {
    let host = host_of(prefix);
    let tun = Tun::open(device, 1500)?;
    let family = if prefix.is_v4() { "-4" } else { "-6" };
    let route = ["route", "add", &host.to_string(), "dev", device];
    // Gone with the device. If it cannot be added, no answer will come.
    let _ = Command::new("ip").arg(family).args(route).output();
    let mut poller = Poller::new()?;
    poller.add(&tun, 0, Interest::READ)?;
    let (clock, mut events, mut packet) = (Clock::start(), Events::with_capacity(1), [0; 1500]);
    for number in 0..TRIES {
        if tun.write(&echo_request(host, router, number as u16)).is_err() {
            return Ok(false);
        }
        let end = clock.now() + PATIENCE;
        while clock.now() < end {
            poller.wait(&mut events, Some(end.since(clock.now())))?;
            while let Ok(n) = tun.read(&mut packet) {
                if is_from(&packet[..n], router) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// The first address of a block that a host may have.
fn host_of(prefix: IpPrefix) -> IpAddr {
    match prefix.addr() {
        IpAddr::V4(ip) if prefix.len() < 31 => IpAddr::V4((ip.to_bits() | 1).into()),
        IpAddr::V6(ip) if prefix.len() < 127 => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() | 1)),
        only => only,
    }
}

fn is_from(packet: &[u8], sender: IpAddr) -> bool {
    match sender {
        IpAddr::V4(ip) => packet.first() == Some(&0x45) && packet.get(12..16) == Some(&ip.octets()),
        IpAddr::V6(ip) => {
            packet.first().is_some_and(|b| b >> 4 == 6) && packet.get(8..24) == Some(&ip.octets())
        }
    }
}

/// An echo request (RFC 792, RFC 4443) with eight bytes of data.
fn echo_request(from: IpAddr, to: IpAddr, number: u16) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0xbe, 0x27, 0, 0];
    icmp[6..8].copy_from_slice(&number.to_be_bytes());
    icmp.extend(b"bentpipe");
    let length = icmp.len() as u16;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let sum = internet_sum(&[&icmp]);
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut packet = vec![0x45, 0, 0, 20 + length as u8, 0, 0, 0, 0, 64, 1, 0, 0];
            packet.extend([from.octets(), to.octets()].concat());
            let sum = internet_sum(&[&packet]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            [packet, icmp].concat()
        }
        (from, to) => {
            let six = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            let (from, to) = (six(from), six(to));
            icmp[0] = 128;
            let sum = internet_sum(&[&from, &to, &length.to_be_bytes(), &[0, 58], &icmp]);
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut packet = vec![0x60, 0, 0, 0, 0, length as u8, 58, 64];
            packet.extend([from, to].concat());
            [packet, icmp].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use os::netns::{NetNs, root, veth};

    #[test]
    fn a_router_that_knows_the_way_back_is_told_from_one_that_does_not() {
        if !root() {
            return;
        }
        let hub = NetNs::unique("bpdoctor", "hub").unwrap();
        let router = NetNs::unique("bpdoctor", "router").unwrap();
        veth(&hub, "wan0", &router, "eth0").unwrap();
        for (ns, device, host) in [(&hub, "wan0", 1), (&router, "eth0", 2)] {
            ns.address(device, &format!("10.5.0.{host}/24")).unwrap();
            ns.address(device, &format!("fd05::{host}/64")).unwrap();
        }
        hub.make_router().unwrap();
        router.route("10.99.0.0/16 via 10.5.0.1").unwrap();
        router.route("fd99::/32 via fd05::1").unwrap();
        // A device of its own for each: another test's child holds a closed one for as long
        // as it takes from its fork to its exec.
        let probe = |device: &str, prefix: &str, router: &str| {
            let (prefix, router) = (prefix.parse().unwrap(), router.parse().unwrap());
            hub.run(|| answers(device, prefix, router).unwrap())
        };
        assert!(probe("bpdoctor1", "10.99.0.0/16", "10.5.0.2"));
        assert!(probe("bpdoctor2", "fd99::/32", "fd05::2"));
        assert!(!probe("bpdoctor3", "10.98.0.0/16", "10.5.0.2"));
        assert!(!probe("bpdoctor4", "fd98::/32", "fd05::2"));
    }

    #[test]
    fn the_probes_host_is_one_that_may_exist() {
        let host = |prefix: &str| host_of(prefix.parse().unwrap()).to_string();
        assert_eq!(host("10.2.0.0/24"), "10.2.0.1");
        assert_eq!(host("10.2.0.7/32"), "10.2.0.7");
        assert_eq!(host("2001:db8::/32"), "2001:db8::1");
    }
}
