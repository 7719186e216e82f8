//! A configuration as a person (or a program) reads it back.

use std::fmt::{self, Display};

use dial::manager::Order;
use link::session::{ClassConfig, RateMode};
use relay::{Open, Share};
use serde_json::{Value, json};
use units::{BitRate, IpPrefix};

use console::human::memory;

use crate::Line;

use super::{
    Carrier, Config, LinkSettings, Node, OnFailure, OnStop, Peer, Queue, Source, SplitLink,
};

impl Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.node;
        let mut row = |name: &str, value: &dyn Display| writeln!(f, "  {name:<12} {value}");
        row("public key", &node.private_key.public())?;
        row("listen", &node.listen)?;
        match &node.tun {
            Some(tun) => row("tun", tun)?,
            None => row("tun", &"none: nothing is intercepted")?,
        }
        if !node.lan.is_empty() {
            row("lan", &node.lan.join(", "))?;
        }
        if !node.direct.is_empty() {
            let list: Vec<String> = node.direct.iter().map(ToString::to_string).collect();
            row("direct", &format!("{}: past the link", list.join(", ")))?;
        }
        if !node.dns.is_empty() {
            let list: Vec<String> = node.dns.iter().map(ToString::to_string).collect();
            row("dns", &format!("{}: asked by hosts that ask this node", list.join(", ")))?;
        }
        if node.own {
            row("own", &"this node's own TCP towards the routes is split, too")?;
        }
        if let Some(proxy) = node.proxy {
            row("proxy", &format!("{proxy} (SOCKS5 and HTTP CONNECT)"))?;
        }
        if node.on_stop == OnStop::Release {
            row("on stop", &"release: after an end in order hosts' traffic flows in clear")?;
        }
        row("memory", &memory(node.memory.0))?;
        if self.peers.iter().any(|peer| peer.dedup != Share::Off) {
            row("dedup", &chunks(node))?;
        }
        if node.shards > 1 {
            row("shards", &format!("{} threads with peers each", node.shards))?;
        }
        for service in &node.services {
            row("service", &format!("{}: {}", service.name, service.command.join(" ")))?;
        }
        for telephone in &node.telephones {
            let device = telephone.modem.device.display();
            row("telephone", &format!("{}: {device}, answers every peer", telephone.name))?;
        }
        self.peers.iter().try_for_each(|peer| write_peer(f, peer, node.tun.is_some()))?;
        self.split.iter().try_for_each(|link| write_split(f, link))
    }
}

/// `intercepts`: the node takes hosts' traffic, which is to go somewhere when it fails.
fn write_peer(f: &mut fmt::Formatter<'_>, peer: &Peer, intercepts: bool) -> fmt::Result {
    writeln!(f, "\npeer {}", peer.name)?;
    let mut row = |name: &str, value: &dyn Display| writeln!(f, "  {name:<12} {value}");
    row("public key", &peer.public_key)?;
    if peer.preshared_key.is_some() {
        row("pre-shared", &"yes")?;
    }
    match &peer.endpoint {
        Some(endpoint) => row("endpoint", endpoint)?,
        None => row("endpoint", &without_endpoint(peer))?,
    }
    row("routes", &list(&peer.routes))?;
    row("link", &Described { link: &peer.link, profile: peer.profile })?;
    for carrier in &peer.carriers {
        row("carrier", &of_carrier(carrier))?;
    }
    if let Some(line) = &peer.line {
        for at in (0..line.lines.len()).filter(|_| line.raises) {
            row("line", &of_line(line, at))?;
        }
        if let Some(prices) = of_prices(line) {
            row("prices", &prices)?;
        }
    }
    if let Some(keepalive) = peer.keepalive {
        row("keepalive", &keepalive)?;
    }
    if intercepts {
        row("on failure", &on_failure(peer))?;
    }
    row("open", &open(peer))?;
    row("source", &source(peer))?;
    if peer.refuse_quic {
        row("quic", &"refused")?;
    }
    if !peer.allow.is_empty() {
        row("allow", &list(&peer.allow))?;
    }
    if !peer.deny.is_empty() {
        row("deny", &list(&peer.deny))?;
    }
    if let Some(buffer) = peer.stream_buffer {
        row("buffer", &format!("{buffer} a stream"))?;
    }
    if !peer.compress {
        row("compress", &"off")?;
    }
    row("dedup", &dedup(peer.dedup))?;
    for (name, class) in peer.traffic.names.iter().zip(&peer.traffic.classes) {
        if *class != ClassConfig::default() {
            row("class", &described(name, class))?;
        }
    }
    if !peer.traffic.rules.is_empty() {
        row("rules", &peer.traffic.rules.len())?;
    }
    Ok(())
}

fn write_split(f: &mut fmt::Formatter<'_>, split: &SplitLink) -> fmt::Result {
    writeln!(f, "\npeer {}", split.name)?;
    let mut row = |name: &str, value: &dyn Display| writeln!(f, "  {name:<12} {value}");
    row("mode", &"split: TCP is split here alone; nothing of ours at the far end")?;
    row("device", &split.device)?;
    row("routes", &list(&split.routes))?;
    row("link", &Described { link: &split.link, profile: split.profile })?;
    let source = match split.source {
        Source::Keep => "keep: servers see the hosts' addresses",
        Source::Nat => "nat: servers see this node's address",
    };
    row("source", &source)
}

/// How a peer is reached whose file names no address.
fn without_endpoint(peer: &Peer) -> &'static str {
    let modems = || peer.line.iter().flat_map(|line| &line.lines).filter(|l| l.modem.is_some());
    if modems().any(|line| line.calls()) {
        "none: it is called by its line"
    } else if peer.carriers.iter().any(|carrier| carrier.endpoint.is_some()) {
        "none: it is reached by its carriers"
    } else if modems().next().is_some() {
        "none: it must call by its line"
    } else {
        "none: it must call this node"
    }
}

/// What raises the line in this place, and what it costs.
fn of_line(lines: &Line, at: usize) -> String {
    let line = &lines.lines[at];
    let raised = match (&line.raise, &line.modem) {
        (Some(command), _) => format!("raised by \"{command}\""),
        (None, Some(modem)) => format!("a modem at {}", modem.device.display()),
        (None, None) => "there by itself".to_owned(),
    };
    let own = &lines.manager.carriers[at];
    let raised = match line.carrier {
        Some(_) => format!("carrier \"{}\", {raised}", own.name),
        None => raised,
    };
    let tariff = &own.tariff;
    let priced = match *tariff == dial::tariff::Tariff::free() {
        true => "free".to_owned(),
        false => format!("paid in {}", tariff.currency()),
    };
    format!("{raised}, dropped after {} without use, {priced}", own.idle)
}

/// Which carriers beside a line have prices, and whether these decide.
fn of_prices(line: &Line) -> Option<String> {
    let paid = |c: &&dial::manager::CarrierConfig| {
        c.tariff.zones().any(|zone| *c.tariff.rates(zone) != dial::tariff::Rates::default())
    };
    let paid: Vec<&str> =
        line.manager.carriers[line.lines.len()..].iter().filter(paid).map(|c| &*c.name).collect();
    let order = match line.manager.order {
        Order::Cost => "the cheapest that works carries all",
        Order::Priority => "only counted",
    };
    let currency = line.manager.currency;
    match (paid.is_empty(), line.manager.order) {
        (true, Order::Priority) => None,
        (true, Order::Cost) => Some(order.to_owned()),
        (false, _) => Some(format!("{} in {currency}; {order}", paid.join(", "))),
    }
}

fn of_carrier(carrier: &Carrier) -> String {
    let Carrier { name, endpoint, binding, link, priority, probe } = carrier;
    let interface = binding.interface.as_ref().map(|i| format!(" by {i}"));
    let source = binding.source.map(|s| format!(" from {s}"));
    let to = endpoint.as_ref().map(|e| format!(" to {e}"));
    let way: String = [interface, source, to].into_iter().flatten().collect();
    let asked = match probe {
        Some(time) => format!("asked every {time}"),
        None => "silent while it stands by".to_owned(),
    };
    format!("{name}{way}, priority {priority}, {asked}: {}", Described { link, profile: None })
}

fn chunks(node: &Node) -> String {
    let chunks = &node.chunks;
    let dir = chunks.dir.as_ref().map(|dir| dir.display().to_string());
    let dir = dir.unwrap_or_else(|| "the state directory".to_owned());
    let disk = match chunks.disk.0 {
        0 => "none on disk".to_owned(),
        n => format!("{} on disk in {dir}", memory(n)),
    };
    format!("{} in memory, {disk}, for all peers", memory(chunks.memory.0))
}

fn dedup(share: Share) -> &'static str {
    match share {
        Share::Host => "host: what a host had before does not cross again",
        Share::Lan => "lan: what any host had before does not cross again",
        Share::Off => "off",
    }
}

fn described(name: &str, class: &ClassConfig) -> String {
    let share = class.share.map(|share| format!(", {share} % of the link"));
    let cap = class.cap.map(|cap| format!(", at most {cap}"));
    let hold = class.hold.map(|hold| format!(", packets held up to {hold}"));
    [Some(name.to_owned()), share, cap, hold].into_iter().flatten().collect()
}

struct Described<'a> {
    link: &'a LinkSettings,
    profile: Option<&'static str>,
}

impl Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkSettings { send, receive, delay, ber, loss, mtu, .. } = self.link;
        write!(f, "send {send}, receive {receive}, {delay} one way, mtu {mtu}")?;
        if ber.as_f64() > 0.0 {
            write!(f, ", ber {:e}", round(ber.as_f64()))?;
        }
        if loss.as_f64() > 0.0 {
            write!(f, ", loss {}", round(loss.as_f64()))?;
        }
        match self.link.queue {
            Some(Queue::Bytes(n)) => write!(f, ", queue {n}")?,
            Some(Queue::Time(t)) => write!(f, ", queue {t}")?,
            None => {}
        }
        match self.link.rate {
            RateMode::Fixed => {}
            RateMode::Reported => write!(f, ", rate reported")?,
            RateMode::Learned => write!(f, ", rate learned")?,
        }
        if !self.link.headers {
            write!(f, ", headers as they are")?;
        }
        match self.profile {
            Some(name) => write!(f, " (profile {name})"),
            None => Ok(()),
        }
    }
}

/// Ratios are kept in binary; six digits are what people wrote.
fn round(x: f64) -> f64 {
    format!("{x:.6e}").parse().unwrap_or(x)
}

fn list(prefixes: &[IpPrefix]) -> String {
    if prefixes.is_empty() {
        return "none".to_owned();
    }
    prefixes.iter().map(IpPrefix::to_string).collect::<Vec<_>>().join(", ")
}

fn on_failure(peer: &Peer) -> &'static str {
    match peer.on_failure {
        OnFailure::Block => {
            "block: without the gateway hosts' traffic is blocked, until `bentpipe down FILE`"
        }
        OnFailure::Wire => {
            "wire: without the gateway traffic goes by the ordinary routes, in clear"
        }
    }
}

fn open(peer: &Peer) -> String {
    match peer.open {
        Open::Fast => "fast: clients are answered at once".into(),
        Open::Sure => "sure: clients are answered when the server is reached".into(),
        Open::Auto => {
            let ports: Vec<String> = peer.fast_ports.iter().map(u16::to_string).collect();
            let ports = if ports.is_empty() { "none".into() } else { ports.join(", ") };
            format!("auto: at once where servers answer lately; fast ports {ports}")
        }
    }
}

fn source(peer: &Peer) -> &'static str {
    match peer.source {
        Source::Nat => "nat: servers see this node's address",
        Source::Keep => "keep: servers see the clients' addresses",
    }
}

impl Config {
    /// The same for machines; keys are left out but for the public ones.
    pub fn to_json(&self) -> Value {
        let node = &self.node;
        json!({
            "node": {
                "public_key": node.private_key.public().to_string(),
                "listen": node.listen,
                "tun": node.tun,
                "lan": node.lan,
                "direct": node.direct.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "dns": node.dns,
                "own": node.own,
                "proxy": node.proxy,
                "memory_bytes": node.memory.0,
                "dedup_memory_bytes": node.chunks.memory.0,
                "dedup_disk_bytes": node.chunks.disk.0,
                "dedup_dir": node.chunks.dir,
                "shards": node.shards,
                "key_lifetime_ms": node.key_lifetime.as_millis(),
                "log": node.log.name(),
                "user": node.user,
                "on_stop": match node.on_stop {
                    OnStop::Block => "block",
                    OnStop::Release => "release",
                },
            },
            "peers": self.peers.iter().map(|peer| peer_json(peer)).collect::<Vec<_>>(),
        })
    }
}

fn peer_json(peer: &Peer) -> Value {
    let texts = |list: &[IpPrefix]| list.iter().map(IpPrefix::to_string).collect::<Vec<_>>();
    json!({
        "name": peer.name,
        "public_key": peer.public_key.to_string(),
        "preshared_key": peer.preshared_key.is_some(),
        "endpoint": peer.endpoint.as_ref().map(ToString::to_string),
        "routes": texts(&peer.routes),
        "profile": peer.profile,
        "link": {
            "send_bps": peer.link.send.as_bps(),
            "receive_bps": peer.link.receive.as_bps(),
            "delay_us": peer.link.delay.as_micros(),
            "ber": round(peer.link.ber.as_f64()),
            "loss": round(peer.link.loss.as_f64()),
            "mtu": peer.link.mtu,
            "headers": if peer.link.headers { "on" } else { "off" },
            "rate": match peer.link.rate {
                RateMode::Fixed => "fixed",
                RateMode::Reported => "reported",
                RateMode::Learned => "learned",
            },
        },
        "keepalive_ms": peer.keepalive.map(|k| k.as_millis()),
        "on_failure": match peer.on_failure {
            OnFailure::Block => "block",
            OnFailure::Wire => "wire",
        },
        "open": match peer.open {
            Open::Fast => "fast",
            Open::Sure => "sure",
            Open::Auto => "auto",
        },
        "fast_ports": peer.fast_ports,
        "connects": peer.connects,
        "quic": if peer.refuse_quic { "refuse" } else { "carry" },
        "source": match peer.source {
            Source::Nat => "nat",
            Source::Keep => "keep",
        },
        "allow": texts(&peer.allow),
        "deny": texts(&peer.deny),
        "classes": peer.traffic.names.iter().zip(&peer.traffic.classes).map(|(name, class)| {
            json!({
                "name": name,
                "share": class.share,
                "cap_bps": class.cap.map(BitRate::as_bps),
                "hold_us": class.hold.map(|hold| hold.as_micros()),
            })
        }).collect::<Vec<_>>(),
        "rules": peer.traffic.rules.len(),
        "compress": if peer.compress { "auto" } else { "off" },
        "dedup": match peer.dedup {
            Share::Host => "host",
            Share::Lan => "lan",
            Share::Off => "off",
        },
        "stream_buffer_bytes": peer.stream_buffer.map(|b| b.0),
    })
}
