//! What only shows when the tables are seen together.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use units::{ByteCount, IpPrefix};

use super::node::NodeDraft;
use super::peer::PeerDraft;
use super::problem::{Problem, Problems};
use super::reader::At;
use super::service::Service;
use crate::host::Host;
use console::human::memory;

/// Checks the node's keys and peers against each other.
pub(super) fn check(node: Option<&NodeDraft>, peers: &[PeerDraft], problems: &Problems) {
    refuse_same_keys(node, peers, problems);
    refuse_same_names(peers, problems);
    refuse_same_routes(peers, problems);
    peers.iter().for_each(|draft| doubt_own_routes(draft, problems));
    if let Some(node) = node {
        refuse_unreachable_endpoints(node, peers, problems);
        doubt_small_memory(node, peers, problems);
        doubt_idle_lan(node, peers, problems);
        doubt_lost_questions(node, peers, problems);
        doubt_open_proxy(node, problems);
        doubt_idle_proxy(node, peers, problems);
    }
}

/// Rules give connections to services of the file.
pub(super) fn refuse_unknown_services(
    services: &[Service],
    peers: &[PeerDraft],
    problems: &Problems,
) {
    for draft in peers {
        let is_unknown = |via: &&At<String>| services.iter().all(|s| s.name != via.value);
        for At { value: via, span } in draft.services.iter().filter(is_unknown) {
            let name = &draft.peer.name;
            let message = format!(
                "a rule of peer \"{name}\" gives connections to the service \"{via}\", which the \
                 file does not have"
            );
            let help = format!("add [service.{via}] with its command");
            problems.add(Problem::at(span.clone(), message).help(help));
        }
    }
}

fn refuse_same_keys(node: Option<&NodeDraft>, peers: &[PeerDraft], problems: &Problems) {
    let mut seen: BTreeMap<[u8; 32], &PeerDraft> = BTreeMap::new();
    for draft in peers {
        let name = &draft.peer.name;
        if node.is_some_and(|n| *n.node.private_key.public() == draft.peer.public_key) {
            problems.add(
                Problem::at(draft.key.clone(), format!("peer \"{name}\" has this node's own key"))
                    .help("paste the public_key that `bentpipe keygen` printed at the other end"),
            );
        }
        match seen.get(draft.peer.public_key.as_bytes()) {
            Some(first) => problems.add(
                Problem::at(
                    draft.key.clone(),
                    format!("peer \"{name}\" has the same key as peer \"{}\"", first.peer.name),
                )
                .also(first.key.clone(), "first here")
                .help("every node has a key of its own; one peer may have many routes"),
            ),
            None => {
                seen.insert(*draft.peer.public_key.as_bytes(), draft);
            }
        }
    }
}

fn refuse_same_names(peers: &[PeerDraft], problems: &Problems) {
    let mut seen: BTreeMap<&str, Range<usize>> = BTreeMap::new();
    for draft in peers {
        let Some(span) = &draft.name else { continue };
        match seen.get(draft.peer.name.as_str()) {
            Some(first) => problems.add(
                Problem::at(span.clone(), format!("two peers are named \"{}\"", draft.peer.name))
                    .also(first.clone(), "first here"),
            ),
            None => {
                seen.insert(&draft.peer.name, span.clone());
            }
        }
    }
}

/// A prefix leads to one peer; a longer one inside it may lead to another.
fn refuse_same_routes(peers: &[PeerDraft], problems: &Problems) {
    let mut seen: BTreeMap<IpPrefix, (&str, Range<usize>)> = BTreeMap::new();
    for draft in peers {
        for route in &draft.routes {
            match seen.get(&route.value) {
                Some((first, span)) => problems.add(
                    Problem::at(
                        route.span.clone(),
                        format!(
                            "{} is a route of peer \"{first}\" already: it would not be known \
                             which peer may send for it",
                            route.value
                        ),
                    )
                    .also(span.clone(), "first here")
                    .help("give each prefix to one peer; a longer prefix wins over a shorter"),
                ),
                None => {
                    seen.insert(route.value, (&draft.peer.name, route.span.clone()));
                }
            }
        }
    }
}

/// `routes` is what is behind the peer, `allow` what the peer may reach behind this node.
fn doubt_own_routes(draft: &PeerDraft, problems: &Problems) {
    let is_default = |prefix: &IpPrefix| prefix.len() == 0;
    for route in draft.routes.iter().filter(|route| !is_default(&route.value)) {
        if draft.peer.allow.contains(&route.value) {
            let message = format!(
                "{} is in both routes and allow of peer \"{}\": it cannot be behind the peer and \
                 behind this node",
                route.value, draft.peer.name
            );
            let help = "routes lists the networks behind the peer, allow those behind this node \
                        that the peer may connect to";
            problems.doubt(Problem::at(route.span.clone(), message).help(help));
        }
    }
}

/// An interface whose TCP is split, and nowhere to send it.
fn doubt_idle_lan(node: &NodeDraft, peers: &[PeerDraft], problems: &Problems) {
    let Some(lan) = node.lan.as_ref().filter(|_| !node.node.lan.is_empty()) else { return };
    if !peers.is_empty() && peers.iter().all(|draft| draft.peer.routes.is_empty()) {
        let message = "lan is given and no peer has routes: nothing of the LAN goes through a link";
        let help = "write routes = [\"0.0.0.0/0\", \"::/0\"] in the peer for everything, or the \
                    networks behind it";
        problems.doubt(Problem::at(lan.clone(), message).help(help));
    }
}

/// The proxy asks nobody for a password.
fn doubt_lost_questions(node: &NodeDraft, peers: &[PeerDraft], problems: &Problems) {
    let routes = || peers.iter().flat_map(|draft| &draft.peer.routes);
    for server in node.node.dns.iter().filter(|server| !routes().any(|r| r.contains(**server))) {
        let message = format!(
            "dns takes hosts' questions to {server}, which no peer's routes lead to: they leave past \
             the link"
        );
        let help = format!("add \"{server}\" to the routes of the peer that it is behind");
        problems.doubt(Problem::at(node.dns.clone().unwrap_or(0..0), message).help(help));
    }
}

fn doubt_open_proxy(node: &NodeDraft, problems: &Problems) {
    let Some(proxy) = &node.proxy else { return };
    let is_open = match proxy.value.ip().to_canonical() {
        IpAddr::V4(ip) => {
            let shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            !(ip.is_loopback() || ip.is_private() || ip.is_link_local() || shared)
        }
        IpAddr::V6(ip) => !(ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()),
    };
    if is_open {
        let message =
            format!("whoever reaches {} may use the proxy: it asks for no password", proxy.value);
        let help = format!(
            "let it listen on an address of the LAN, or on 127.0.0.1:{}, unless a filter keeps \
             others out",
            proxy.value.port()
        );
        problems.doubt(Problem::at(proxy.span.clone(), message).help(help));
    }
}

/// The proxy asks the peer whose routes hold the address that its client wants.
fn doubt_idle_proxy(node: &NodeDraft, peers: &[PeerDraft], problems: &Problems) {
    let Some(proxy) = &node.proxy else { return };
    if !peers.is_empty() && peers.iter().all(|draft| draft.peer.routes.is_empty()) {
        let message = "proxy is given and no peer has routes: the proxy refuses every address";
        let help = "write routes = [\"0.0.0.0/0\", \"::/0\"] in the peer that has the Internet";
        problems.doubt(Problem::at(proxy.span.clone(), message).help(help));
    }
}

fn refuse_unreachable_endpoints(node: &NodeDraft, peers: &[PeerDraft], problems: &Problems) {
    let listen = node.node.listen;
    for draft in peers {
        let (Some(endpoint), Some(span)) = (&draft.peer.endpoint, &draft.endpoint) else {
            continue;
        };
        let Host::Ip(ip) = endpoint.host else { continue };
        let name = &draft.peer.name;
        if ip.is_unspecified() || ip.is_multicast() {
            let message = format!("the endpoint of peer \"{name}\" is not an address of a node");
            problems.add(Problem::at(span.clone(), message));
        } else if SocketAddr::new(ip, endpoint.port) == listen {
            let message = format!("the endpoint of peer \"{name}\" is where this node listens");
            problems.add(Problem::at(span.clone(), message));
        } else if ip.is_ipv6() && listen.is_ipv4() {
            let problem = Problem::at(
                span.clone(),
                format!("the endpoint of peer \"{name}\" is IPv6, but this node listens on IPv4"),
            );
            problems.add(with_listen(problem, node).help("write listen = \"[::]:4500\""));
        } else if ip.is_ipv4() && listen.is_ipv6() && !listen.ip().is_unspecified() {
            let problem = Problem::at(
                span.clone(),
                format!("the endpoint of peer \"{name}\" is IPv4, but this node listens on IPv6"),
            );
            problems.add(with_listen(problem, node).help("write listen = \"0.0.0.0:4500\""));
        }
    }
}

fn with_listen(problem: Problem, node: &NodeDraft) -> Problem {
    match &node.listen {
        Some(listen) => problem.also(listen.span.clone(), "listens here"),
        None => problem,
    }
}

/// A link that is to stay full needs its bandwidth–delay product for what is under way
/// and as much again for what waits behind a loss.
fn doubt_small_memory(node: &NodeDraft, peers: &[PeerDraft], problems: &Problems) {
    let Some(largest) = peers.iter().max_by_key(|d| d.peer.link.bandwidth_delay_product()) else {
        return;
    };
    let bdp = largest.peer.link.bandwidth_delay_product();
    let needed = bdp + bdp;
    if needed > node.node.memory {
        problems.doubt(
            Problem::at(
                largest.link.clone(),
                format!(
                    "the link to peer \"{}\" needs {} of buffers to stay full, and memory is {}",
                    largest.peer.name,
                    memory(needed.0),
                    memory(node.node.memory.0)
                ),
            )
            .help(format!("write memory = \"{}MiB\" in [node]", mib(needed))),
        );
    }
}

fn mib(size: ByteCount) -> u64 {
    size.0.div_ceil(1 << 20)
}
