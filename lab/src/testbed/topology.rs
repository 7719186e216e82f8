//! Client – gateway – satellite – gateway – server, as namespaces on this machine.
//!
//! ```text
//!  client ──── gwa ════ satellite ════ gwb ──── server
//!   10.77.1.2   .1 │ 10.77.2.1    .2 │ .1   10.77.3.2
//!   fd77:1::2       fd77:2::1   ::2         fd77:3::2
//! ```
//!
//! The link and every leg with a delay are emulated; a leg without one is a cable. Each
//! of the four hosts has a kernel of its own as far as TCP can tell. Without gateway
//! programs the two in the middle are plain routers. All names carry this process's
//! number, and everything goes when the topology is dropped.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use channel::ChannelConfig;
use os::OsError;
use os::netns::{NetNs, veth};
use os::port::Port;
use units::{BitRate, ByteCount, Duration, Ratio};

use super::gateway::{self, Gateway, GatewayError, Pair};
use super::measure::LinkUse;
use super::mesh::Mesh;
use super::way::{HostTcp, Legs, LinkSetup, Shape};
use crate::emulate::{Direction, Emulator, EmulatorError, EmulatorHandle, EmulatorOptions};

/// The start of the names of all namespaces made here.
pub const PREFIX: &str = "bplab";
/// Addresses of the client.
pub const CLIENT: [IpAddr; 2] = pair(1, 2);
/// Addresses of the gateway on the client's side, towards the client.
pub const GATEWAY_A: [IpAddr; 2] = pair(1, 1);
/// Addresses of the two gateways on the satellite.
pub const LINK_A: [IpAddr; 2] = pair(2, 1);
/// See [`LINK_A`].
pub const LINK_B: [IpAddr; 2] = pair(2, 2);
/// Addresses of the gateway on the server's side, towards the server.
pub const GATEWAY_B: [IpAddr; 2] = pair(3, 1);
/// Addresses of the server.
pub const SERVER: [IpAddr; 2] = pair(3, 2);

/// The gateways' interface towards their hosts.
pub const LAN: &str = "lan";
/// The gateways' interface towards the satellite.
pub const SATELLITE: &str = "sat";
/// The hosts' only interface.
pub(super) const HOST: &str = "eth0";
const MTU: u16 = 1500;
/// Buffer a byte of receive window: small segments fill a quarter of what they occupy.
const ROOM_FOR_WINDOW: u64 = 4;
/// Width of a bin of the link's utilisation series at first.
const BIN: Duration = Duration::from_millis(50);
/// Topologies made by this process, so that each has names of its own.
static MADE: AtomicU32 = AtomicU32::new(0);

const fn pair(net: u8, host: u8) -> [IpAddr; 2] {
    [
        IpAddr::V4(Ipv4Addr::new(10, 77, net, host)),
        IpAddr::V6(Ipv6Addr::new(0xfd77, net as u16, 0, 0, 0, 0, 0, host as u16)),
    ]
}

/// What to build.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The satellite link; a default one is a cable, as fast as this machine.
    pub link: LinkSetup,
    /// The terrestrial legs.
    pub legs: Legs,
    /// TCP on client and server.
    pub hosts: HostTcp,
    /// Seed of the link's errors.
    pub seed: u64,
    /// Further nodes, each joined to every other.
    pub mesh: usize,
    /// Run the gateway pair, with these settings.
    pub gateways: Option<Pair>,
}

/// Why a topology could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Namespaces, interfaces, routes, kernel parameters.
    #[error("{0}")]
    Os(#[from] OsError),
    /// A gateway does not start.
    #[error("{0}")]
    Gateway(#[from] GatewayError),
    /// The emulator does not start.
    #[error("the emulated link does not start: {0}")]
    Emulator(#[from] EmulatorError),
}

/// A network that stands. Fields are dropped from the top: programs before the
/// network they run in.
pub struct Topology {
    /// The gateway programs: client's side, server's side.
    pub gateways: Option<[Gateway; 2]>,
    /// The gateways of the further nodes of a mesh.
    mesh_gateways: Vec<Gateway>,
    /// The further nodes of a mesh.
    pub mesh: Option<Mesh>,
    /// The satellite link; its left is the client's side. None for a cable.
    link: Option<EmulatorHandle>,
    legs: Vec<EmulatorHandle>,
    /// The client.
    pub client: NetNs,
    /// The router or gateway on the client's side.
    pub gwa: NetNs,
    /// The router or gateway on the server's side.
    pub gwb: NetNs,
    /// The server.
    pub server: NetNs,
    /// The moment that all times of an experiment refer to: the link's own zero.
    pub origin: Instant,
}

impl Topology {
    /// Gives the client `count` more addresses of its LAN, at most 100. To everybody else they are
    /// as many hosts.
    pub fn client_addresses(&self, count: u8) -> Result<Vec<IpAddr>, OsError> {
        const FIRST: u8 = 101;
        let further: Vec<IpAddr> = (0..count.min(100)).map(|i| pair(1, FIRST + i)[0]).collect();
        let add = |address: &IpAddr| format!("addr replace {address}/24 dev {HOST}\n");
        configure(&self.client, &further.iter().map(add).collect::<String>())?;
        Ok(further)
    }

    /// Builds the network and waits until the gateways, if any, have met.
    pub fn build(plan: &Plan) -> Result<Topology, BuildError> {
        if plan.gateways.is_some() {
            gateway::program()?;
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let space = |role: &str| NetNs::unique(PREFIX, &format!("{number}-{role}"));
        let (client, gwa) = (space("client")?, space("gwa")?);
        let (gwb, server) = (space("gwb")?, space("server")?);
        for host in [&client, &gwa, &gwb, &server] {
            quiet(host)?;
        }
        let mut legs = Vec::new();
        let Legs { client: near, server: far, server_loss } = plan.legs;
        legs.extend(leg((&client, HOST), (&gwa, LAN), near, Ratio::ZERO, plan.seed)?);
        legs.extend(leg((&gwb, LAN), (&server, HOST), far, server_loss, plan.seed)?);
        let link = satellite(&gwa, &gwb, plan)?;
        let age = link.as_ref().map_or(units::Instant::ZERO, EmulatorHandle::now);
        let origin = Instant::now() - age.since(units::Instant::ZERO).to_std();

        configure(&client, &hosts_script(CLIENT, GATEWAY_A, &plan.hosts))?;
        configure(&server, &hosts_script(SERVER, GATEWAY_B, &plan.hosts))?;
        configure(&gwa, &gateway_script(GATEWAY_A, LINK_A, LINK_B, "10.77.3.0/24 fd77:3::/64"))?;
        configure(&gwb, &gateway_script(GATEWAY_B, LINK_B, LINK_A, "10.77.1.0/24 fd77:1::/64"))?;
        for gateway in [&gwa, &gwb] {
            gateway.make_router()?;
            if plan.hosts.ipv6 == Some(true) {
                // A router looks for its neighbours from an address of this kind.
                configure(gateway, &format!("addr add fe80::1/64 dev {LAN} nodad\n"))?;
            }
        }
        for host in [&client, &server] {
            set_tcp(host, &plan.hosts)?;
        }
        if let Some(shape) = plan.hosts.shape {
            set_shape(&server, shape)?;
        }
        let mesh = if plan.mesh > 0 {
            let several = |role: &str| -> Result<Vec<NetNs>, OsError> {
                (0..plan.mesh).map(|i| space(&format!("{role}{i}"))).collect()
            };
            let (nodes, hosts) = (several("node")?, several("host")?);
            Some(Mesh::build([&gwa, &gwb], nodes, hosts, &plan.link, &plan.hosts, plan.seed)?)
        } else {
            None
        };
        let mut topology = Topology {
            gateways: None,
            mesh_gateways: Vec::new(),
            mesh,
            link,
            legs,
            client,
            gwa,
            gwb,
            server,
            origin,
        };
        if let Some(pair) = &plan.gateways {
            let (two, more) = pair.start(&topology, &plan.link)?;
            (topology.gateways, topology.mesh_gateways) = (Some(two), more);
        }
        Ok(topology)
    }

    /// A host by its node: 0 is the client, 1 the server, the others stand behind the further
    /// nodes of a mesh and have IPv4 only. `None` if there is no such node.
    pub fn host(&self, node: usize, ipv6: bool) -> Option<(&NetNs, IpAddr)> {
        match node {
            0 => Some((&self.client, CLIENT[usize::from(ipv6)])),
            1 => Some((&self.server, SERVER[usize::from(ipv6)])),
            _ => self.mesh.as_ref()?.host(node - 2).map(|(host, own)| (host, own.into())),
        }
    }

    /// The gateway of a node.
    pub fn gateway(&self, node: usize) -> Option<&Gateway> {
        match node {
            0 | 1 => self.gateways.as_ref().map(|g| &g[node]),
            _ => self.mesh_gateways.get(node - 2),
        }
    }

    /// The emulated link between two nodes, and its direction from the first to the second.
    fn link(&self, from: usize, to: usize) -> Option<(&EmulatorHandle, Direction)> {
        let (low, high) = (from.min(to), from.max(to));
        let link = match (low, high) {
            (0, 1) => self.link.as_ref()?,
            _ => self.mesh.as_ref()?.link(low, high)?,
        };
        Some((link, if from < to { Direction::Up } else { Direction::Down }))
    }

    /// The satellite link; none for a cable.
    pub fn satellite(&self) -> Option<&EmulatorHandle> {
        self.link.as_ref()
    }

    /// What a link did so far: from the sending node to the receiving one, and back.
    pub fn link_use(&self, from: usize, to: usize) -> (LinkUse, LinkUse) {
        let one = |from, to| match self.link(from, to) {
            Some((link, direction)) => LinkUse::of(&link.series(direction)),
            None => LinkUse::default(),
        };
        (one(from, to), one(to, from))
    }

    /// The rate of the link from one node to another on average between two times, in seconds
    /// since the start; `None` if it has none.
    pub fn rate(&self, (sender, receiver): (usize, usize), from: f64, to: f64) -> Option<BitRate> {
        let at = |t: f64| units::Instant::from_nanos((t * 1e9) as u64);
        let (link, direction) = self.link(sender, receiver)?;
        let bytes = link.capacity(direction, at(from), at(to))?;
        (to > from).then(|| BitRate::from_bps((bytes.0 as f64 * 8.0 / (to - from)).round() as u64))
    }

    /// Processor time of both gateways since their start, s.
    ///
    /// # Errors
    /// If there are none, or they have ended.
    pub fn gateways_cpu(&self) -> Result<f64, String> {
        let gateways = self.gateways.as_ref().ok_or("there are no gateways")?;
        let times = gateways.each_ref().map(|g| g.load().map(|l| l.cpu).map_err(|e| e.to_string()));
        let [a, b] = times;
        Ok(a? + b?)
    }

    /// What went wrong in the emulated link; with problems, figures mean nothing.
    pub fn problems(&self) -> Vec<String> {
        let links = self.link.iter().chain(&self.legs);
        let mesh = self.mesh.iter().flat_map(Mesh::problems);
        links.flat_map(|link| link.report().problems).chain(mesh).collect()
    }
}

/// No packets but those of the experiment: no router solicitations, no link-local
/// addresses; and no memory of earlier connections in TCP.
pub(crate) fn quiet(host: &NetNs) -> Result<(), OsError> {
    for scope in ["all", "default"] {
        host.sysctl(&format!("net.ipv6.conf.{scope}.accept_ra"), "0")?;
        host.sysctl(&format!("net.ipv6.conf.{scope}.router_solicitations"), "0")?;
        host.sysctl(&format!("net.ipv6.conf.{scope}.addr_gen_mode"), "1")?;
        // Groups are reported again at once and not seconds later, amid the experiment.
        host.sysctl(&format!("net.ipv6.conf.{scope}.mldv2_unsolicited_report_interval"), "1")?;
    }
    host.sysctl("net.ipv4.tcp_no_metrics_save", "1")
}

/// The emulated link, or a cable where the plan asks nothing of it.
fn satellite(
    left: &NetNs,
    right: &NetNs,
    plan: &Plan,
) -> Result<Option<EmulatorHandle>, BuildError> {
    if plan.link == LinkSetup::default() {
        veth(left, SATELLITE, right, SATELLITE)?;
        return Ok(None);
    }
    emulated(left, SATELLITE, right, SATELLITE, &plan.link, plan.seed).map(Some)
}

/// A cable, or an emulated leg if it has a delay or losses.
fn leg(
    (left, left_device): (&NetNs, &str),
    (right, right_device): (&NetNs, &str),
    delay: Duration,
    loss: Ratio,
    seed: u64,
) -> Result<Option<EmulatorHandle>, BuildError> {
    if delay == Duration::ZERO && loss == Ratio::ZERO {
        veth(left, left_device, right, right_device)?;
        return Ok(None);
    }
    let one = ChannelConfig { delay, loss, ..ChannelConfig::default() };
    let both = LinkSetup { down: one.clone(), up: one };
    // Not the satellite's own draw.
    emulated(left, left_device, right, right_device, &both, !seed).map(Some)
}

pub(crate) fn emulated(
    left: &NetNs,
    left_device: &str,
    right: &NetNs,
    right_device: &str,
    link: &LinkSetup,
    seed: u64,
) -> Result<EmulatorHandle, BuildError> {
    let port = |host: &NetNs, name: &str| host.run(|| Port::tap(None, name, MTU.into()));
    let (left, right) = (port(left, left_device)?, port(right, right_device)?);
    let options = EmulatorOptions { seed, bin: BIN, ..EmulatorOptions::default() };
    Ok(Emulator::start(left, right, link.up.clone(), link.down.clone(), options)?)
}

/// Runs `ip -batch` inside `host`.
pub(crate) fn configure(host: &NetNs, script: &str) -> Result<(), OsError> {
    let failed = |what: &str| OsError::refused(format!("`ip -batch` in {}: {what}", host.name()));
    let mut child = host
        .command("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| OsError::new("run `ip`", e).mend("install it: `apt install iproute2`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that has already failed does not read; its own words say more.
        let _ = stdin.write_all(script.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| OsError::new("wait for `ip`", e))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Addresses and default routes of a host.
fn hosts_script(own: [IpAddr; 2], router: [IpAddr; 2], tcp: &HostTcp) -> String {
    let mut script = device_script(HOST, own);
    for via in router {
        script += &route_script(via, tcp);
    }
    script
}

/// The same of a host with one address.
pub(super) fn host_script(own: Ipv4Addr, router: Ipv4Addr, tcp: &HostTcp) -> String {
    let device = format!("link set {HOST} mtu {MTU} up\naddr add {own}/24 dev {HOST}\n");
    device + &route_script(router.into(), tcp)
}

/// A default route; what TCP takes from the route goes there.
fn route_script(via: IpAddr, tcp: &HostTcp) -> String {
    let mut metrics = String::new();
    if let Some(ByteCount(mss)) = tcp.mss {
        metrics += &format!(" advmss {mss}");
    }
    if let Some(segments) = tcp.initial_window {
        metrics += &format!(" initcwnd {segments}");
    }
    if let Some(congestion) = &tcp.congestion {
        // By the route, because `tcp_allowed_congestion_control` binds the sysctl.
        metrics += &format!(" congctl {congestion}");
    }
    format!("route add default via {via} dev {HOST}{metrics}\n")
}

/// Addresses of a gateway, the far network's route, and the far gateway's station
/// address: a satellite link resolves no addresses.
fn gateway_script(lan: [IpAddr; 2], own: [IpAddr; 2], far: [IpAddr; 2], behind: &str) -> String {
    let mut script = device_script(LAN, lan);
    script += &format!("link set {SATELLITE} address {}\n", station(own));
    script += &device_script(SATELLITE, own);
    for (via, net) in far.iter().zip(behind.split(' ')) {
        let station = station(far);
        script += &format!("neigh replace {via} lladdr {station} dev {SATELLITE} nud permanent\n");
        script += &format!("route add {net} via {via} dev {SATELLITE}\n");
    }
    script
}

fn device_script(device: &str, own: [IpAddr; 2]) -> String {
    let [v4, v6] = own;
    format!(
        "link set {device} mtu {MTU} up\naddr add {v4}/24 dev {device}\n\
         addr add {v6}/64 dev {device} nodad\n"
    )
}

/// A locally administered station address that ends as the IP address does.
fn station(address: [IpAddr; 2]) -> String {
    let last = match address[0] {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    };
    format!("02:77:00:00:00:{last:02x}")
}

/// Bytes that wait where tokens are missing; more than TCP leaves below itself.
const SHAPED: u64 = 1_000_000;

fn set_shape(host: &NetNs, Shape { rate, bucket }: Shape) -> Result<(), OsError> {
    let (rate, bucket) = (format!("{}bit", rate.as_bps()), bucket.0);
    let limit = (bucket + SHAPED).to_string();
    let words = ["qdisc", "replace", "dev", HOST, "root", "tbf", "rate", &rate];
    let mut tc = host.command("tc");
    let tc = tc.args(words).args(["burst", &bucket.to_string(), "limit", &limit]);
    let output = tc
        .output()
        .map_err(|e| OsError::new("run `tc`", e).mend("install it: `apt install iproute2`"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(OsError::refused(format!(
            "`tc` in {}: {}",
            host.name(),
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

pub(crate) fn set_tcp(host: &NetNs, tcp: &HostTcp) -> Result<(), OsError> {
    let switch = |on: bool| if on { "1" } else { "0" };
    let switches = [
        ("tcp_sack", tcp.sack),
        ("tcp_timestamps", tcp.timestamps),
        ("tcp_window_scaling", tcp.scaling),
    ];
    for (key, on) in switches {
        if let Some(on) = on {
            host.sysctl(&format!("net.ipv4.{key}"), switch(on))?;
        }
    }
    if let Some(on) = tcp.rack {
        // tcp_recovery bit 0 is RACK; tcp_early_retrans 3 is the tail loss probe.
        host.sysctl("net.ipv4.tcp_recovery", switch(on))?;
        host.sysctl("net.ipv4.tcp_early_retrans", if on { "3" } else { "0" })?;
    }
    // Linux's own defaults on machines of today, whatever this kernel was built with.
    let (receive, send) = tcp.buffers.map_or((6_291_456, 4_194_304), |b| (b.0, b.0));
    let mut start = 131_072;
    if let Some(ByteCount(window)) = tcp.window {
        // The client holds its window; the kernel must neither fall short of it, with
        // buffers that segments fill badly, nor tune it upwards.
        start = window * ROOM_FOR_WINDOW;
        host.sysctl("net.ipv4.tcp_moderate_rcvbuf", "0")?;
    }
    host.sysctl("net.ipv4.tcp_rmem", &format!("4096 {start} {}", receive.max(start)))?;
    host.sysctl("net.ipv4.tcp_wmem", &format!("4096 16384 {send}"))?;
    Ok(())
}
