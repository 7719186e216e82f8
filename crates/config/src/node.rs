//! The `[node]` table: what is the node's own, and shared by its peers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use link::endpoint::MAX_KEY_LIFETIME;
use link::keys::PrivateKey;
use units::{ByteCount, Duration, IpPrefix};

use super::problem::Problem;
use super::reader::{At, Section};
use super::secret;
use super::service::Service;
use super::telephone::Telephone;
use console::logging::Level;

/// This node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Who this node is.
    pub private_key: PrivateKey,
    /// Where peers reach it. Default `0.0.0.0:4500`.
    pub listen: SocketAddr,
    /// The TUN device; `None` when nothing is intercepted and only the proxy and the
    /// far ends of peers' connections are served, which needs no root. Default
    /// `bentpipe0` where `lan` or `own` is given.
    pub tun: Option<String>,
    /// Interfaces whose TCP is split.
    pub lan: Vec<String>,
    /// Networks that hosts reach past the link although a peer's shorter prefix leads into it,
    /// beside those that this node is in. Default none.
    pub direct: Vec<IpPrefix>,
    /// The name servers that hosts ask by asking this node, one of a family at most. Default none:
    /// nobody here answers for the gateway.
    pub dns: Vec<IpAddr>,
    /// This node's own TCP towards the peers' routes is split, and its other packets for
    /// them cross the link. Default false.
    pub own: bool,
    /// Where the explicit proxy (SOCKS5 and HTTP CONNECT) listens, if at all.
    pub proxy: Option<SocketAddr>,
    /// The admin socket; see [`Node::admin_socket`].
    pub admin: Option<PathBuf>,
    /// Memory for all buffers together, at least 1 MiB. Default 256 MiB.
    pub memory: ByteCount,
    /// What of its peers' streams is kept, so that it need not come again.
    pub chunks: Chunks,
    /// Threads that have peers each, 1 to 64. Default 1.
    pub shards: u32,
    /// How long a session key may be in use before it is erased: 2 minutes to 1 hour, which is
    /// the default. A handshake replaces it after half of that.
    pub key_lifetime: Duration,
    /// What is logged. Default info.
    pub log: Level,
    /// The user to run as once everything is open; `None` stays the user that started
    /// the program, with only the rights it needs.
    pub user: Option<String>,
    /// Whether what `on_failure = "block"` blocks stays blocked after an end in order.
    pub on_stop: OnStop,
    /// Programs that it starts.
    pub services: Vec<Service>,
    /// Lines at which it answers whichever of its peers calls.
    pub telephones: Vec<Telephone>,
}

/// What becomes of traffic that is to be blocked without the gateway when it ends in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStop {
    /// The same as after any other end: it stays blocked.
    #[default]
    Block,
    /// It flows by the system's other routes, in clear.
    Release,
}

/// The stores of chunks, for all peers together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Bytes in memory, beside `memory`: half for the stores, half for what may be asked for
    /// again. Default 32 MiB.
    pub memory: ByteCount,
    /// Bytes in files. Default 1 GiB; 0: none.
    pub disk: ByteCount,
    /// The file says how many; else the disk must have room.
    pub disk_given: bool,
    /// Where the files are; `None`: in the state directory.
    pub dir: Option<PathBuf>,
}

const DEFAULT_CHUNK_MEMORY: ByteCount = ByteCount(32 << 20);
const DEFAULT_CHUNK_DISK: ByteCount = ByteCount(1 << 30);
/// Less holds not even a few chunks.
const MIN_CHUNK_MEMORY: ByteCount = ByteCount(1 << 20);

/// Memory that runs a slow link; below it not even one stream's buffers fit.
const MIN_MEMORY: ByteCount = ByteCount(1 << 20);
const DEFAULT_MEMORY: ByteCount = ByteCount(256 << 20);
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 4500);
const DEFAULT_TUN: &str = "bentpipe0";
/// Shorter ones than this are renewed more often than WireGuard's (every 2 minutes).
const MIN_KEY_LIFETIME: Duration = Duration::from_secs(120);
/// More threads than any hub has processors to spare for.
const MAX_SHARDS: u64 = 64;
/// Linux's IFNAMSIZ, less the terminating zero.
const MAX_INTERFACE: usize = 15;
/// Linux's `sun_path`, less the terminating zero.
const MAX_SOCKET_PATH: usize = 107;

impl Node {
    /// The admin socket's path: as configured, or the default of the running user.
    pub fn admin_socket(&self) -> PathBuf {
        self.admin.clone().unwrap_or_else(crate::socket::default_socket)
    }
}

/// A node and the places that later checks point to.
pub(super) struct NodeDraft {
    pub node: Node,
    pub listen: Option<At<SocketAddr>>,
    pub proxy: Option<At<SocketAddr>>,
    /// Where `lan` stands.
    pub lan: Option<Range<usize>>,
    /// Where `dns` stands.
    pub dns: Option<Range<usize>>,
    pub key_is_inline: bool,
}

pub(super) fn read(mut section: Section<'_>, dir: &Path) -> Option<NodeDraft> {
    let key = secret::read::<PrivateKey>(&mut section, "private_key", "private_key_file", dir);
    let key_is_inline = section.has("private_key");
    if !key_is_inline && !section.has("private_key_file") {
        section.lacks("private_key", "run `bentpipe keygen` and paste the line it prints");
    }
    let listen = read_socket(&mut section, "listen");
    let lan_span = section.span_of("lan");
    let lan = read_lan(&mut section);
    let direct = read_direct(&mut section);
    let dns_span = section.span_of("dns");
    let dns = read_dns(&mut section, lan.is_empty());
    let tun = section.get::<String>("tun").filter(|tun| interface_ok(&section, "tun", tun));
    let own = section.get::<bool>("own").is_some_and(|own| own.value);
    let proxy = read_socket(&mut section, "proxy");
    let admin = read_admin(&mut section, dir);
    let memory = read_memory(&mut section);
    let chunks = read_chunks(&mut section, dir);
    let shards = read_shards(&mut section);
    let key_lifetime = read_key_lifetime(&mut section);
    let log = section.get::<Level>("log").map_or(Level::Info, |l| l.value);
    let user = section.get::<String>("user").map(|u| u.value);
    let ends = [("block", OnStop::Block), ("release", OnStop::Release)];
    let on_stop = section.word("on_stop", &ends).map_or_else(OnStop::default, |o| o.value);

    if let Some(tun) = &tun
        && lan.contains(&tun.value)
    {
        let message = format!("{} is both the tun device and a lan interface", tun.value);
        section.problems().add(Problem::at(tun.span.clone(), message));
    }
    section.finish();
    let default_tun = (own || !lan.is_empty()).then(|| DEFAULT_TUN.to_owned());
    let node = Node {
        private_key: key?.value,
        listen: listen.as_ref().map_or(DEFAULT_LISTEN, |l| l.value),
        tun: tun.map(|t| t.value).or(default_tun),
        lan,
        direct,
        dns,
        own,
        proxy: proxy.as_ref().map(|p| p.value),
        admin,
        memory,
        chunks,
        shards,
        key_lifetime,
        log,
        user,
        on_stop,
        services: Vec::new(),
        telephones: Vec::new(),
    };
    Some(NodeDraft { node, listen, proxy, lan: lan_span, dns: dns_span, key_is_inline })
}

fn read_socket(section: &mut Section<'_>, key: &'static str) -> Option<At<SocketAddr>> {
    let addr = section.get::<SocketAddr>(key)?;
    if addr.value.port() == 0 {
        let message = format!("{key} in {} has port 0", section.title());
        let help = format!("write a port that others can know, such as {}:4500", addr.value.ip());
        section.problems().add(Problem::at(addr.span, message).help(help));
        return None;
    }
    Some(addr)
}

fn read_lan(section: &mut Section<'_>) -> Vec<String> {
    let given = section.list::<String>("lan").unwrap_or_default();
    let mut lan: Vec<String> = Vec::new();
    for name in given {
        if !interface_ok(section, "lan", &name) {
            continue;
        }
        if lan.contains(&name.value) {
            let message = format!("{} is twice in lan", name.value);
            section.problems().add(Problem::at(name.span, message));
            continue;
        }
        lan.push(name.value);
    }
    lan
}

/// `direct`: not everything, which would be no gateway.
fn read_direct(section: &mut Section<'_>) -> Vec<IpPrefix> {
    let given = section.list::<IpPrefix>("direct").unwrap_or_default();
    for all in given.iter().filter(|p| p.value.len() == 0) {
        let message = format!("direct lists {}, and so nothing would cross the link", all.value);
        let help = "list the networks that hosts reach without it, such as \"10.20.0.0/16\"";
        section.problems().add(Problem::at(all.span.clone(), message).help(help));
    }
    given.into_iter().map(|p| p.value).collect()
}

/// `dns`: name servers that a question can be sent on to, one of a family.
fn read_dns(section: &mut Section<'_>, no_lan: bool) -> Vec<IpAddr> {
    let mut dns: Vec<IpAddr> = Vec::new();
    for At { value, span } in section.list::<IpAddr>("dns").unwrap_or_default() {
        let fault = if no_lan {
            Some((
                "hosts can ask this node for names only where it has a `lan`".to_owned(),
                "name the hosts' interface in `lan`",
            ))
        } else if dns.iter().any(|before| before.is_ipv4() == value.is_ipv4()) {
            Some((
                format!("{value} is a second name server of its family"),
                "give one with an IPv4 and one with an IPv6 address at most",
            ))
        } else if no_server(value) {
            Some((
                format!("{value} is no name server behind a peer"),
                "give the address of one that the hub can reach",
            ))
        } else {
            None
        };
        match fault {
            Some((message, help)) => {
                let message = format!("dns in {}: {message}", section.title());
                section.problems().add(Problem::at(span, message).help(help));
            }
            None => dns.push(value),
        }
    }
    dns
}

/// An address of this host, of nobody, of many, or of one link alone.
fn no_server(addr: IpAddr) -> bool {
    let of_one_link = matches!(addr, IpAddr::V6(ip) if ip.is_unicast_link_local());
    addr.is_loopback() || addr.is_unspecified() || addr.is_multicast() || of_one_link
}

/// The kernel's own rule for interface names (`dev_valid_name`).
pub(super) fn interface_ok(section: &Section<'_>, key: &str, name: &At<String>) -> bool {
    let text = &name.value;
    let ok = text.len() <= MAX_INTERFACE
        && text != "."
        && text != ".."
        && !text.chars().any(|c| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    if !ok {
        let message = format!(
            "{key} in {}: \"{text}\" is no interface name: at most {MAX_INTERFACE} bytes, \
             without spaces, \"/\" or \":\"",
            section.title()
        );
        section.problems().add(Problem::at(name.span.clone(), message));
    }
    ok
}

fn read_admin(section: &mut Section<'_>, dir: &Path) -> Option<PathBuf> {
    let path = section.get::<String>("admin")?;
    let full = dir.join(&path.value);
    if full.as_os_str().len() > MAX_SOCKET_PATH {
        let message = format!(
            "admin in {}: a socket's path has at most {MAX_SOCKET_PATH} bytes",
            section.title()
        );
        section.problems().add(Problem::at(path.span, message));
        return None;
    }
    Some(full)
}

fn read_chunks(section: &mut Section<'_>, dir: &Path) -> Chunks {
    let memory = section.get::<ByteCount>("dedup_memory");
    if let Some(memory) = memory.as_ref().filter(|m| m.value < MIN_CHUNK_MEMORY) {
        let message = format!("dedup_memory in {} is below 1MiB", section.title());
        let help = "write dedup = \"off\" for the peers that are not to have any";
        section.problems().add(Problem::at(memory.span.clone(), message).help(help));
    }
    let disk = section.get::<ByteCount>("dedup_disk");
    let place = section.get::<String>("dedup_dir");
    Chunks {
        memory: memory.map_or(DEFAULT_CHUNK_MEMORY, |m| m.value),
        disk: disk.as_ref().map_or(DEFAULT_CHUNK_DISK, |d| d.value),
        disk_given: disk.is_some(),
        dir: place.map(|p| dir.join(p.value)),
    }
}

fn read_memory(section: &mut Section<'_>) -> ByteCount {
    let Some(memory) = section.get::<ByteCount>("memory") else { return DEFAULT_MEMORY };
    if memory.value < MIN_MEMORY {
        let message = format!("memory in {} is below 1MiB", section.title());
        let help = "the default, 256MiB, carries 500Mbit at 600 ms twice over";
        section.problems().add(Problem::at(memory.span, message).help(help));
    }
    memory.value
}

fn read_key_lifetime(section: &mut Section<'_>) -> Duration {
    let Some(given) = section.get::<Duration>("key_lifetime") else { return MAX_KEY_LIFETIME };
    if !(MIN_KEY_LIFETIME..=MAX_KEY_LIFETIME).contains(&given.value) {
        let message = format!("key_lifetime in {} is not between 2min and 1h", section.title());
        let help = "leave it out for 1h; handshakes replace keys after half of it";
        section.problems().add(Problem::at(given.span, message).help(help));
    }
    given.value
}

/// A number, or "auto": one for each processor that this program may use.
fn read_shards(section: &mut Section<'_>) -> u32 {
    let shards = if section.is_word("shards", "auto") {
        let _ = section.get::<String>("shards");
        std::thread::available_parallelism().map_or(1, |n| (n.get() as u64).min(MAX_SHARDS))
    } else {
        let given = section.number("shards", 1..=MAX_SHARDS, "threads (or \"auto\")");
        given.map_or(1, |n| n.value)
    };
    shards as u32
}
