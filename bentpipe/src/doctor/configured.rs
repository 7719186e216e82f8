//! What a configuration asks of this machine.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::Path;
use std::process::Command;

use units::IpPrefix;

use super::check::{Check, State};
use super::host::sysctl;
use super::links;
use super::programs;
use super::return_route::{self, way_to};
use crate::admin::{self, Status};
use crate::config::{Carrier, Config, Node, Peer, Source};
use crate::host::{Host, HostPort};

pub(super) fn checks(file: &Path) -> Vec<Check> {
    let config = match Config::load(file) {
        Ok(config) => config,
        Err(e) => {
            let mend = format!("`bentpipe check {}` shows where", file.display());
            return vec![Check::fail("configuration", e.to_string(), mend)];
        }
    };
    let about = match config.peers.as_slice() {
        [one] => format!("{} is valid, its peer is {}", file.display(), one.name),
        peers => format!("{} is valid, with {} peers", file.display(), peers.len()),
    };
    let mut checks = vec![Check::ok("configuration", about)];
    let status = admin::status(&config.node.admin_socket());
    let running = status.is_ok();
    checks.push(listen_port(&config.node, running));
    checks.extend(admin_socket(&config.node, &status));
    checks.extend(config.node.lan.iter().map(|lan| interface("lan", lan)));
    checks.extend(routes_to_lans(&config));
    checks.extend(forwarding(&config));
    checks.extend(forwarder(&config));
    for peer in &config.peers {
        checks.extend(peer.endpoint.as_ref().map(|e| endpoint(peer, e)));
        let endpoint = peer.endpoint.as_ref().and_then(HostPort::ip);
        let way = endpoint.and_then(|addr| way_to(addr.ip()));
        checks.extend(way.and_then(|way| lan_that_leads_out(&config.node.lan, &peer.name, &way)));
        if peer.source == Source::Keep {
            checks.extend(return_route::checks(peer, running));
        }
    }
    checks.extend(config.split.iter().map(|link| interface("device", &link.device)));
    checks.extend(config.peers.iter().flat_map(|peer| &peer.carriers).filter_map(carrier));
    checks.extend(modems(&config));
    checks.extend(programs::checks(&config));
    checks.extend(links::checks(file, &status));
    checks
}

fn listen_port(node: &Node, running: bool) -> Check {
    let check = "listen";
    if running {
        return Check::ok(check, format!("a gateway runs on {}", node.listen));
    }
    match UdpSocket::bind(node.listen) {
        Ok(_) => Check::ok(check, format!("{} is free", node.listen)),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Check::fail(
            check,
            format!("another program has UDP {}", node.listen),
            format!(
                "`ss -lunp sport = :{}` shows which; stop it or choose another port",
                node.listen.port()
            ),
        ),
        Err(e) => Check::fail(
            check,
            format!("cannot listen on UDP {}: {}", node.listen, crate::human::reason(&e)),
            "`ip address` shows the addresses there are",
        ),
    }
}

/// Where no gateway answers, whether this user's could be asked.
fn admin_socket(node: &Node, status: &miette::Result<Status>) -> Option<Check> {
    let is_free = status.as_ref().is_err_and(|e| e.is::<admin::NoGateway>());
    let e = is_free.then(|| admin::Server::try_place(&node.admin_socket()).err())??;
    let text = e.to_string();
    let (finding, mend) = text.split_once("; ").unwrap_or((&text, "give it another place"));
    Some(Check::fail("admin", finding, mend))
}

/// The interface of a carrier, which may come and go: nothing is sent by it meanwhile.
fn carrier(carrier: &Carrier) -> Option<Check> {
    let found = interface("carrier", carrier.binding.interface.as_ref()?);
    Some(match found.state {
        State::Fail => Check::warn(
            found.check,
            format!("{}: {}", carrier.name, found.finding),
            "nothing goes by it until it comes; if it never does, `ip link` shows the names",
        ),
        _ => Check { finding: format!("{}: {}", carrier.name, found.finding), ..found },
    })
}

/// The serial lines of modems: those of peers' lines, and the node's telephones.
fn modems(config: &Config) -> Vec<Check> {
    let lines = |peer: &Peer| {
        let lines = peer.line.iter().flat_map(|line| line.lines.clone());
        let name = peer.name.clone();
        lines.filter_map(move |line| Some((name.clone(), line.modem?.device))).collect::<Vec<_>>()
    };
    let telephones = config.node.telephones.iter();
    let telephones = telephones.map(|line| (line.name.clone(), line.modem.device.clone()));
    let all = config.peers.iter().flat_map(|peer| lines(peer)).chain(telephones);
    all.map(|(of, device)| modem(&of, &device)).collect()
}

/// Is there a serial line? Whether a modem answers on it only the gateway can ask.
fn modem(of: &str, device: &Path) -> Check {
    use std::os::unix::fs::FileTypeExt as _;
    let (check, shown) = ("modem", device.display());
    match fs::metadata(device) {
        Ok(about) if about.file_type().is_char_device() => {
            Check::ok(check, format!("{of}: {shown} is there"))
        }
        Ok(_) => Check::fail(
            check,
            format!("{of}: {shown} is no serial line"),
            "name the modem's device in `serial`; `ls /dev/serial/by-id` shows what there is",
        ),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Check::fail(
            check,
            format!("{of}: there is no {shown}"),
            "plug the modem in, or name its device in `serial`; `ls /dev/serial/by-id` shows what \
             there is",
        ),
        Err(e) => Check::fail(
            check,
            format!("{of}: {shown} cannot be looked at: {}", crate::human::reason(&e)),
            "run doctor as the gateway's user, root mostly",
        ),
    }
}

/// The interface that the key `check` of the file names.
fn interface(check: &'static str, name: &str) -> Check {
    let show = Command::new("ip").args(["link", "show", "dev", name]).output();
    let Some(output) = show.ok().filter(|o| o.status.success()) else {
        return Check::fail(check, format!("there is no interface {name}"), "`ip link` shows them");
    };
    // 2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 …
    let text = String::from_utf8_lossy(&output.stdout);
    let flags = text.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    let has = |flag| flags.is_some_and(|(flags, _)| flags.split(',').any(|f| f == flag));
    match (has("UP"), has("LOWER_UP")) {
        (true, true) => Check::ok(check, format!("{name} is up")),
        (true, false) => Check::warn(check, format!("{name} has no carrier"), "look at its cable"),
        (false, _) => {
            Check::warn(check, format!("{name} is down"), format!("ip link set {name} up"))
        }
    }
}

/// Hosts come in by an interface of `lan`; that of the way to a peer is mostly the other one.
fn lan_that_leads_out(lan: &[String], peer: &str, way: &str) -> Option<Check> {
    let (_, device) = way.rsplit_once(" dev ")?;
    lan.iter().any(|name| name == device).then(|| {
        Check::warn(
            "lan",
            format!("{device} is in `lan`, and is the way to {peer}, too"),
            "write the interface that the hosts are on; it is right where both are on one network",
        )
    })
}

/// A network of this machine's hosts that a peer is said to have: they reach each other, and the
/// peer is never sent anything for it.
fn routes_to_lans(config: &Config) -> Vec<Check> {
    let mut found = Vec::new();
    for lan in &config.node.lan {
        let networks = networks_of(lan);
        for peer in &config.peers {
            let both = peer.routes.iter().find(|route| networks.iter().any(|n| n.covers(route)));
            found.extend(both.map(|route| {
                Check::warn(
                    "routes",
                    format!("{}: {route} is the network of {lan}, not the peer's", peer.name),
                    "list what is behind the peer; what is here belongs into the peer's file",
                )
            }));
        }
    }
    found
}

/// The networks that an interface is in.
fn networks_of(interface: &str) -> Vec<IpPrefix> {
    let show = Command::new("ip").args(["-o", "address", "show", "dev", interface]).output();
    let text = show.map(|output| output.stdout).unwrap_or_default();
    // 2: eth0    inet 10.5.0.1/24 brd 10.5.0.255 scope global eth0 …
    let network = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|w| !w.starts_with("inet"));
        let (addr, len) = words.nth(1)?.split_once('/')?;
        Some(IpPrefix::new(addr.parse().ok()?, len.parse().ok()?))
    };
    String::from_utf8_lossy(&text).lines().filter_map(network).collect()
}

/// Without forwarding the hosts of a lan are not served: worse than a warning then.
fn forwarding(config: &Config) -> impl Iterator<Item = Check> {
    let families = [("net.ipv4.ip_forward", true), ("net.ipv6.conf.all.forwarding", false)];
    families.into_iter().filter_map(|(key, is_v4)| {
        let routes = config.peers.iter().flat_map(|peer| &peer.routes);
        let is_routed = is_v4 || routes.into_iter().any(|prefix| !prefix.is_v4());
        let off = !config.node.lan.is_empty() && sysctl(key).as_deref() == Some("0");
        let family = if is_v4 { "IPv4" } else { "IPv6" };
        (off && is_routed).then(|| {
            Check::fail(
                "lan",
                format!("hosts send {family} to this machine, and it forwards none"),
                format!("sysctl -w {key}=1"),
            )
        })
    })
}

/// A resolver for the LAN on this machine asks as the machine does: past the link.
fn forwarder(config: &Config) -> Option<Check> {
    let asks_past = !config.node.lan.is_empty() && !config.node.own;
    let udp = ["/proc/net/udp", "/proc/net/udp6"].map(fs::read_to_string);
    let answers_hosts = udp.iter().flatten().any(|table| answers_names(table));
    (asks_past && answers_hosts).then(|| {
        Check::warn(
            "names",
            "a program here answers on UDP port 53, and what it asks itself goes past the link, in \
             clear",
            "stop it and write `dns` with a resolver behind the link, or write `own = true`",
        )
    })
}

/// The port of questions for names, as the kernel's tables write it.
const NAMES_PORT: &str = "0035";

/// If a table of the kernel's UDP sockets has one for names that not only this machine reaches.
fn answers_names(table: &str) -> bool {
    // sl local_address …, an IPv4 address as a word of the machine: `12: 0100007F:0035 …`.
    let locals = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
    locals.filter_map(|local| local.split_once(':')).any(|(address, port)| {
        let loopback = match address.len() {
            8 => address.ends_with("7F"),
            _ => address == "00000000000000000000000001000000",
        };
        port == NAMES_PORT && !loopback
    })
}

fn endpoint(peer: &Peer, endpoint: &HostPort) -> Check {
    let addresses: Vec<IpAddr> = match &endpoint.host {
        Host::Ip(ip) => vec![*ip],
        Host::Name(name) => match (name.as_str(), endpoint.port).to_socket_addrs() {
            Ok(found) => found.map(|a: SocketAddr| a.ip().to_canonical()).collect(),
            Err(_) => {
                return Check::fail(
                    "endpoint",
                    format!("{}: the name {name} does not resolve", peer.name),
                    "look at /etc/resolv.conf, or write the address",
                );
            }
        },
    };
    let ways: Vec<Result<String, IpAddr>> =
        addresses.iter().map(|ip| way_to(*ip).ok_or(*ip)).collect();
    match ways.iter().find_map(|w| w.as_ref().ok()) {
        Some(way) => Check::ok("endpoint", format!("{}: {way}", peer.name)),
        None => Check::fail(
            "endpoint",
            format!("{}: there is no route to {endpoint}", peer.name),
            "add one outside of the tunnel: `ip route add default via …`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::State;

    #[test]
    fn a_modem_that_is_not_plugged_in_is_a_failure() {
        let gone = modem("shore", Path::new("/dev/ttyNONE77"));
        assert_eq!(gone.state, State::Fail);
        assert_eq!(gone.finding, "shore: there is no /dev/ttyNONE77");
        assert!(gone.mend.unwrap().contains("/dev/serial/by-id"));
        assert_eq!(modem("shore", Path::new("/dev/null")).state, State::Ok);
        let file = modem("shore", Path::new("/etc/passwd"));
        assert_eq!(
            (file.state, &*file.finding),
            (State::Fail, "shore: /etc/passwd is no serial line")
        );
    }

    #[test]
    fn a_resolver_that_hosts_reach_is_told_from_one_of_the_machine_alone() {
        let head = "   sl  local_address rem_address   st tx_queue rx_queue\n";
        let table =
            |local: &str| format!("{head}  276: {local} 00000000:0000 07 00000000:00000000\n");
        let zeros = "0".repeat(32);
        assert!(answers_names(&table("00000000:0035")));
        assert!(answers_names(&table("0100000A:0035")));
        assert!(answers_names(&table(&format!("{zeros}:0035"))));
        assert!(!answers_names(&table("3500007F:0035")), "systemd-resolved, 127.0.0.53");
        assert!(!answers_names(&table("00000000000000000000000001000000:0035")));
        assert!(!answers_names(&table("00000000:0043")));
        assert!(!answers_names(head));
    }

    #[test]
    fn interfaces_and_ways_are_found_or_named() {
        assert_eq!(interface("lan", "lo").state, State::Ok);
        let missing = interface("lan", "no-such0");
        assert_eq!(missing.finding, "there is no interface no-such0");
        let way = way_to("127.0.0.1".parse().unwrap());
        assert_eq!(way.as_deref(), Some("127.0.0.1 dev lo"));
        let found = |lan: &str| lan_that_leads_out(&[lan.into()], "shore", "192.0.2.7 dev eth0");
        assert!(found("eth1").is_none());
        assert_eq!(found("eth0").expect("a warning").state, State::Warn);
    }
}
