//! A `[[peer]]` table: one node at the other end of a link, and what it may do.

use std::ops::Range;
use std::path::Path;

use dial::manager::Order;
use dial::money::Money;
use link::keys::{PresharedKey, PublicKey};
use relay::{DEFAULT_CONNECTS, Open, Share};
use units::{ByteCount, Duration, IpPrefix};

use super::carrier::{self, Carrier};
use super::line::{self, Line, Prices};
use super::link::{self as link_table, LinkSettings};
use super::problem::Problem;
use super::reader::{At, Section};
use super::secret;
use super::traffic::{self, Traffic};
use crate::host::HostPort;

/// The node at the other end of a link.
#[derive(Clone, Debug)]
pub struct Peer {
    /// What people call it; the first eight letters of its key unless given.
    pub name: String,
    /// Who it is.
    pub public_key: PublicKey,
    /// A secret mixed into the handshake besides the keys.
    pub preshared_key: Option<PresharedKey>,
    /// Where it is reached first; `None` at a hub that waits for its terminals.
    pub endpoint: Option<HostPort>,
    /// What lives behind it: it receives and sends for these prefixes only.
    pub routes: Vec<IpPrefix>,
    /// The profile that `link` was built on.
    pub profile: Option<&'static str>,
    /// What the link can do.
    pub link: LinkSettings,
    /// The ways to it, the first of which `endpoint` and `link` are those of; none: one, by
    /// the node's own socket.
    pub carriers: Vec<Carrier>,
    /// All paths to the peer that work carry what this node sends, not the best alone.
    pub spread: bool,
    /// What manages its link, where that is not always up: its lines.
    pub line: Option<Line>,
    /// How often something is sent on a silent link; `None` (the default) is never.
    pub keepalive: Option<Duration>,
    /// What becomes of its traffic while no gateway runs.
    pub on_failure: OnFailure,
    /// When a client's SYN is answered.
    pub open: Open,
    /// With `open = "auto"`, ports at which an answer is expected of every server.
    pub fast_ports: Vec<u16>,
    /// Connections that it may cause here in a second.
    pub connects: u32,
    /// QUIC to servers behind it is refused.
    pub refuse_quic: bool,
    /// What servers see as the source of its clients' connections.
    pub source: Source,
    /// Prefixes of ours that its clients may reach although they are private.
    pub allow: Vec<IpPrefix>,
    /// Prefixes that its clients may not reach.
    pub deny: Vec<IpPrefix>,
    /// Bytes buffered for one stream, each way; `None` follows from the link.
    pub stream_buffer: Option<ByteCount>,
    /// Streams are compressed where that pays, if the peer takes it.
    pub compress: bool,
    /// What streams share chunks with; off: the link does not deduplicate at all.
    pub dedup: Share,
    /// What kinds of traffic may have of the link, and which is which.
    pub traffic: Traffic,
}

/// What becomes of a peer's traffic while no gateway runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It stops: nothing leaves in clear.
    #[default]
    Block,
    /// It goes by the ordinary routes, in clear.
    Wire,
}

/// What servers see as the source of a peer's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// This node's own address.
    #[default]
    Nat,
    /// The client's address, which needs return routes through this node.
    Keep,
}

impl PartialEq for Peer {
    fn eq(&self, other: &Peer) -> bool {
        let psk = |p: &Peer| p.preshared_key.as_ref().map(PresharedKey::to_base64);
        psk(self) == psk(other)
            && self.name == other.name
            && self.public_key == other.public_key
            && self.endpoint == other.endpoint
            && self.routes == other.routes
            && self.profile == other.profile
            && self.link == other.link
            && self.carriers == other.carriers
            && self.spread == other.spread
            && self.line == other.line
            && self.keepalive == other.keepalive
            && self.on_failure == other.on_failure
            && self.open == other.open
            && self.fast_ports == other.fast_ports
            && self.connects == other.connects
            && self.refuse_quic == other.refuse_quic
            && self.source == other.source
            && self.allow == other.allow
            && self.deny == other.deny
            && self.stream_buffer == other.stream_buffer
            && self.compress == other.compress
            && self.dedup == other.dedup
            && self.traffic == other.traffic
    }
}

/// A peer and the places that later checks point to.
pub(super) struct PeerDraft {
    pub peer: Peer,
    pub key: Range<usize>,
    pub name: Option<Range<usize>>,
    pub endpoint: Option<Range<usize>>,
    pub routes: Vec<At<IpPrefix>>,
    pub link: Range<usize>,
    /// The devices of its lines' modems, in their order.
    pub devices: Vec<Range<usize>>,
    /// The services that its rules give connections to.
    pub services: Vec<At<String>>,
    pub psk_is_inline: bool,
}

/// A NAT forgets a mapping no later than this (RFC 4787 asks for 2 minutes at least;
/// some keep days).
const KEEPALIVE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(86_400);
/// Below, one page of one host would be refused; above, nothing is limited.
const CONNECTS: std::ops::RangeInclusive<u64> = 50..=1_000_000;
const MIN_STREAM_BUFFER: ByteCount = ByteCount(4096);
const MAX_NAME: usize = 64;
/// HTTP and HTTPS: most of all connections, and where a round trip more is felt.
const WEB: [u16; 2] = [80, 443];
/// Where a list of routes stops being one that a person wrote.
const MAX_PREFIXES: usize = 4096;

pub(super) fn read(mut section: Section<'_>, dir: &Path) -> Option<PeerDraft> {
    let name = read_name(&mut section);
    if let Some(name) = &name {
        section.set_title(format!("peer \"{}\"", name.value));
    }
    // A reload that makes another mode of it is told by `split`.
    match section.has("mode") {
        true => drop(section.word("mode", &[("pair", ()), ("split", ())])),
        false => section.know(["mode"].into_iter()),
    }
    let key = section.get::<PublicKey>("public_key");
    if !section.has("public_key") {
        section.lacks("public_key", "paste the line that `bentpipe keygen` printed at the peer");
    }
    let psk =
        secret::read::<PresharedKey>(&mut section, "preshared_key", "preshared_key_file", dir);
    let psk_is_inline = section.has("preshared_key");
    let endpoint = section.get::<HostPort>("endpoint");
    let routes = read_prefixes(&mut section, "routes");
    let spread = section.word("carriers", &[("all", true), ("one", false)]);
    let orders = [("priority", Order::Priority), ("cost", Order::Cost)];
    let order = section.word("order", &orders);
    let budget = section.get::<Money>("budget");
    let line = line::read(&mut section, dir);
    let devices = line.as_ref().map(line::LineDrafts::device_spans).unwrap_or_default();
    let modems = line.as_ref().map(line::LineDrafts::modem_carriers).unwrap_or_default();
    let mut carriers = carrier::read(&mut section, &modems);
    // What the first carrier says of its link stands for the peer's, if that says nothing.
    let link = match carriers.first_link() {
        Some(first) if !section.has("link") && !section.has("profile") => Some(first),
        Some(first) => {
            carriers.refuse_two_links(&section);
            Some(first)
        }
        None => link_table::read(&mut section),
    };
    carriers.refuse_names(&section, endpoint.as_ref());
    let keepalive = read_keepalive(&mut section);
    let on_failure =
        section.word("on_failure", &[("block", OnFailure::Block), ("wire", OnFailure::Wire)]);
    let ways = [("fast", Open::Fast), ("sure", Open::Sure), ("auto", Open::Auto)];
    let open = section.word("open", &ways);
    let fast_ports = read_fast_ports(&mut section, open.as_ref().map(|o| o.value));
    let connects = section.number("connects", CONNECTS, "connections a second");
    let quic = section.word("quic", &[("carry", false), ("refuse", true)]);
    let source = section.word("source", &[("nat", Source::Nat), ("keep", Source::Keep)]);
    let allow = read_prefixes(&mut section, "allow");
    let deny = read_prefixes(&mut section, "deny");
    let stream_buffer = read_stream_buffer(&mut section);
    let compress = section.word("compress", &traffic::COMPRESS);
    let dedup = section.word("dedup", &traffic::DEDUP);
    let (traffic, services) = traffic::read(&mut section, &carriers.names());
    refuse_contradictions(&section, &allow, &deny);
    doubt_one_way_families(&section, &routes, &allow);

    let title = name.as_ref().map(|n| n.value.clone()).or(key.as_ref().map(|k| short(&k.value)));
    let endpoint_value = endpoint.as_ref().map(|e| e.value.clone());
    let link_value = link.as_ref().map(|link| &link.settings);
    let prices = Prices {
        tariffs: carriers.tariffs(),
        order: order.as_ref().map_or_else(Order::default, |order| order.value),
        budget: budget.as_ref().map(|budget| budget.value),
    };
    let (order, budget) = (order.map(|o| ("order", o.span)), budget.map(|b| ("budget", b.span)));
    let needless = order.into_iter().chain(budget).filter(|_| line.is_none() && !prices.any());
    for (key, span) in needless {
        let message = format!("{key} in {} needs prices", section.title());
        let help = "give the carriers a `tariff`, or leave it out";
        section.problems().add(Problem::at(span, message).help(help));
    }
    let carriers = link_value.map(|link| carriers.finish(endpoint_value.as_ref(), link));
    let carriers = carriers.unwrap_or_default();
    let line = match (line, link.as_ref(), title) {
        (Some(draft), Some(link), Some(name)) => {
            draft.finish(&section, &name, &link.settings, &carriers, prices)
        }
        (None, Some(_), Some(name)) if prices.any() => prices.finish(&section, &name, &carriers),
        _ => None,
    };
    section.finish();

    let (key, link) = (key?, link?);
    let first = carriers.first().and_then(|first| first.endpoint.clone());
    let peer = Peer {
        name: name.as_ref().map_or_else(|| short(&key.value), |n| n.value.clone()),
        public_key: key.value,
        preshared_key: psk.map(|p| p.value),
        endpoint: first.or(endpoint_value),
        carriers,
        spread: spread.is_some_and(|s| s.value),
        line,
        routes: values(&routes),
        profile: link.profile,
        link: link.settings,
        keepalive,
        on_failure: on_failure.map_or_else(OnFailure::default, |o| o.value),
        open: open.map_or_else(Open::default, |o| o.value),
        fast_ports,
        connects: connects.map_or(DEFAULT_CONNECTS, |n| n.value as u32),
        refuse_quic: quic.is_some_and(|q| q.value),
        source: source.map_or_else(Source::default, |s| s.value),
        allow: values(&allow),
        deny: values(&deny),
        stream_buffer,
        compress: compress.is_none_or(|c| c.value),
        dedup: dedup.map_or_else(Share::default, |d| d.value),
        traffic,
    };
    Some(PeerDraft {
        peer,
        key: key.span,
        name: name.map(|n| n.span),
        endpoint: endpoint.map(|e| e.span),
        routes,
        link: link.span,
        devices,
        services,
        psk_is_inline,
    })
}

/// Enough of a key to know a peer by.
pub(super) fn short(key: &PublicKey) -> String {
    key.to_string().chars().take(8).collect()
}

fn values(list: &[At<IpPrefix>]) -> Vec<IpPrefix> {
    list.iter().map(|at| at.value).collect()
}

pub(super) fn read_name(section: &mut Section<'_>) -> Option<At<String>> {
    let name = section.get::<String>("name")?;
    if name.value.len() > MAX_NAME || name.value.chars().any(char::is_control) {
        let message = format!("name: at most {MAX_NAME} bytes, without control characters");
        section.problems().add(Problem::at(name.span, message));
        return None;
    }
    Some(name)
}

pub(super) fn read_prefixes(section: &mut Section<'_>, key: &'static str) -> Vec<At<IpPrefix>> {
    let list = section.list::<IpPrefix>(key).unwrap_or_default();
    if list.len() > MAX_PREFIXES {
        let message = format!("{key} in {} has over {MAX_PREFIXES} prefixes", section.title());
        section.problems().add(Problem::at(section.span(), message));
        return Vec::new();
    }
    list
}

fn read_keepalive(section: &mut Section<'_>) -> Option<Duration> {
    if section.is_word("keepalive", "off") {
        section.get::<String>("keepalive");
        return None;
    }
    if section.is_number("keepalive") {
        let seconds = section.number("keepalive", 0..=u64::MAX, "seconds")?;
        let message = format!("keepalive in {} is a time and needs a unit", section.title());
        let help = format!("write keepalive = \"{}s\"", seconds.value);
        section.problems().add(Problem::at(seconds.span, message).help(help));
        return None;
    }
    let keepalive = section.get::<Duration>("keepalive")?;
    if !KEEPALIVE.contains(&keepalive.value) {
        let message = format!("keepalive in {} is not between 1s and 24h", section.title());
        let help = "leave it out (or write \"off\") unless this node is behind NAT; then \"25s\"";
        section.problems().add(Problem::at(keepalive.span, message).help(help));
        return None;
    }
    Some(keepalive.value)
}

fn read_fast_ports(section: &mut Section<'_>, open: Option<Open>) -> Vec<u16> {
    if section.has("fast_ports") && open.is_some_and(|o| o != Open::Auto) {
        let message = format!("fast_ports in {} mean nothing without auto", section.title());
        let help = "leave them out, or write open = \"auto\", which is the default";
        section.problems().add(Problem::at(section.span(), message).help(help));
    }
    let ports = section.numbers("fast_ports", 1..=65_535, "ports");
    ports.map_or(WEB.to_vec(), |list| list.into_iter().map(|n| n as u16).collect())
}

fn read_stream_buffer(section: &mut Section<'_>) -> Option<ByteCount> {
    let size = section.get::<ByteCount>("stream_buffer")?;
    if size.value < MIN_STREAM_BUFFER {
        let message = format!("stream_buffer in {} is below 4KiB", section.title());
        let help = "leave it out: it then follows from the link's rate and delay";
        section.problems().add(Problem::at(size.span, message).help(help));
        return None;
    }
    Some(size.value)
}

/// What clients may reach in a family that none of their own prefixes has nobody reaches by
/// packets or split TCP: an answer would have no way back.
fn doubt_one_way_families(section: &Section<'_>, routes: &[At<IpPrefix>], allow: &[At<IpPrefix>]) {
    for (is_v4, family) in [(true, "IPv4"), (false, "IPv6")] {
        let allowed = allow.iter().find(|prefix| prefix.value.is_v4() == is_v4);
        let Some(allowed) = allowed.filter(|_| !routes.is_empty()) else { continue };
        if routes.iter().all(|prefix| prefix.value.is_v4() != is_v4) {
            let message = format!(
                "allow in {} lists {}, but its routes have no {family}: {family} would go one way \
                 only, and is refused",
                section.title(),
                allowed.value
            );
            section.problems().doubt(
                Problem::at(allowed.span.clone(), message)
                    .help(format!("add the {family} prefix behind the peer to routes")),
            );
        }
    }
}

fn refuse_contradictions(section: &Section<'_>, allow: &[At<IpPrefix>], deny: &[At<IpPrefix>]) {
    for denied in deny {
        if let Some(allowed) = allow.iter().find(|a| a.value == denied.value) {
            let message =
                format!("{} of {} is both allowed and denied", denied.value, section.title());
            section.problems().add(
                Problem::at(denied.span.clone(), message)
                    .label("denied here")
                    .also(allowed.span.clone(), "allowed here"),
            );
        }
    }
}
