//! `bentpipe-lab run cg-mini-m`: the Coast Guard's tests of a dialled Inmarsat Mini-M, repeated.
//!
//! Hosts that dial as they did then ([`crate::ppp`]), and gateways that call
//! ([`crate::called`]), each on a telephone network of their own and all at once. What the source
//! printed stands beside what is measured: *Use of TCP/IP over satellite* (U.S. Coast Guard, about
//! 1999), "Small cutter", tables 2 and 3 and figure 7.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use control::LineCommand;
use exchange::ExchangeConfig;
use os::netns::NetNs;
use serde::{Deserialize, Serialize};
use units::Rng;

use crate::called::{self, Called, Directory};
use crate::plot::{LineChart, Series};
use crate::ppp::line::{DEVICE, Line, Step};
use crate::testbed::progress::{Board, Row};
use crate::testbed::topology::{CLIENT, PREFIX, SERVER, configure, quiet, set_tcp};
use crate::testbed::way::HostTcp;

/// Its name among the experiments.
pub const NAME: &str = "cg-mini-m";
/// Its title.
pub const TITLE: &str = "A small cutter's Mini-M call: 2,400 bit/s, 997.5 ms";
/// The file, in bytes.
const FILE: usize = 10_000;
/// Packets in a row, of figure 7.
const TRAINS: [usize; 5] = [1, 2, 4, 8, 16];
/// Bytes of such a packet with its headers: those of a full one of the source's line.
const PACKET: usize = 500;
/// Headers of IPv4 and UDP, as long as those of IPv4 and ICMP.
const HEADERS: usize = 28;
/// Content of a ping (table 3).
const PING: usize = 56;
const PINGS: u8 = 5;
/// What plain TCP is tried with: bytes, seconds. The source found the first pair the better one.
const PLAIN: [(u16, u32); 4] = [(500, 5), (500, 3), (1500, 5), (1500, 3)];
/// Dollars a minute, in steps of 6 s: the tariff of `bentpipe-lab day`.
const CENTS_A_STEP: u64 = 24;
const STEP: f64 = 6.0;
/// The port of servers here.
const PORT: u16 = 7_000;
/// Longer than anything takes on such a line.
const PATIENCE: Duration = Duration::from_secs(600);
/// A connection of plain TCP is closed at both ends within this time.
const CLOSES: Duration = Duration::from_secs(15);
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 4, 1), Ipv4Addr::new(10, 77, 4, 2)];

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Plain TCP over the line, one for each pair of MTU and RTO.
    pub plain: Vec<Plain>,
    /// Gateways.
    pub gateways: Gateways,
}

/// Hosts that dial and speak TCP over it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plain {
    /// Bytes of the largest packet.
    pub mtu: u16,
    /// The least retransmission timeout, s.
    pub rto_s: u32,
    /// From dialling to carrier, s.
    pub physical_s: f64,
    /// From carrier to the network, s.
    pub network_s: f64,
    /// The file, from the connection's beginning to its last byte, s.
    pub file_s: f64,
    /// Segments with data that were sent again.
    pub retransmitted: u64,
    /// Of the first pair only.
    pub measured: Option<Measured>,
}

/// Latency and throughput.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The round trip of 56 bytes, the median, s.
    pub ping_s: f64,
    /// Packets in a row, and bits of them a second until the last was there.
    pub trains: Vec<(usize, f64)>,
}

/// Gateways on such a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gateways {
    /// From dialling to carrier, s.
    pub physical_s: f64,
    /// From carrier to the network in the first call that the two ever have, s.
    pub first_network_s: f64,
    /// From that carrier to the last byte of a file that was waiting, s.
    pub first_file_s: f64,
    /// The same of a later call.
    pub later_network_s: f64,
    /// The same of a later call.
    pub later_file_s: f64,
    /// Latency and throughput.
    pub measured: Measured,
}

/// Runs it all on this network; rows are shown on `board`.
///
/// # Errors
/// If a network, a modem or a line cannot be had.
pub fn measure(network: &ExchangeConfig, board: &Board) -> Result<Results, String> {
    let plain = PLAIN.map(|(mtu, rto_s)| {
        let row = board.row(&format!("PPP, MTU {mtu}, RTO {rto_s} s"), 0);
        move || told(&row, || dial(network, mtu, rto_s), |p| format!("{:.1} s", p.file_s))
    });
    let row = board.row("gateways", 0);
    let gateways = move || told(&row, || call(network), |g| format!("{:.1} s", g.later_file_s));
    thread::scope(|scope| {
        let plain = plain.map(|run| scope.spawn(run));
        let gateways = scope.spawn(gateways);
        let broken = |_| Err("a thread of the experiment failed".to_owned());
        let plain = plain.into_iter().map(|p| p.join().unwrap_or_else(broken));
        Ok(Results {
            plain: plain.collect::<Result<_, _>>()?,
            gateways: gateways
                .join()
                .unwrap_or_else(|_| Err("the gateways' thread failed".into()))?,
        })
    })
}

/// Shows that something runs, and what came of it.
fn told<T>(
    row: &Row,
    run: impl FnOnce() -> Result<T, String>,
    summary: impl FnOnce(&T) -> String,
) -> Result<T, String> {
    row.begin();
    let done = run();
    row.end(done.as_ref().map_or_else(Clone::clone, summary));
    done
}

// ---- hosts that dial -----------------------------------------------------------------------

fn dial(network: &ExchangeConfig, mtu: u16, rto_s: u32) -> Result<Plain, String> {
    let said = |e: os::OsError| e.to_string();
    let space = |role: &str| NetNs::unique(PREFIX, &format!("{mtu}-{rto_s}-{role}")).map_err(said);
    let (ship, shore) = (space("ship")?, space("shore")?);
    let dir = Directory::of(&ship);
    let modems = called::modems(network.clone(), &dir.0)?;
    let [near, far, ..] = modems.paths() else { return Err("there are no modems".into()) };
    let answers = Line::start(&shore, far, None, mtu).map_err(said)?;
    let begin = Instant::now();
    let calls = Line::start(&ship, near, Some("200"), mtu).map_err(said)?;
    for (host, [own, peer]) in [(&ship, HOSTS), (&shore, [HOSTS[1], HOSTS[0]])] {
        quiet(host).map_err(said)?;
        as_of_old(host).map_err(said)?;
        // A SYN is sent again after 1 s whatever the route says, and then there is no sample of the
        // round trip. What the route and an earlier connection know of it makes `rto_min` the first
        // timeout of data.
        host.sysctl("net.ipv4.tcp_no_metrics_save", "0").map_err(said)?;
        configure(
            host,
            &format!(
                "link set {DEVICE} up\naddr add {own}/32 dev {DEVICE}\nroute add {peer} dev \
                 {DEVICE} src {own} rto_min {rto_s}s rtt lock 1ms congctl reno initcwnd 2 window \
                 8760\n"
            ),
        )
        .map_err(said)?;
    }
    let carrier = calls.wait_for(Step::Carrier, PATIENCE)?;
    let network_at = calls.wait_for(Step::Network, PATIENCE)?;
    answers.wait_for(Step::Network, PATIENCE)?;
    let io = |e: io::Error| e.to_string();
    let to = IpAddr::from(HOSTS[1]);
    let measured = match (mtu, rto_s) == PLAIN[0] {
        true => Some(line_figures([&ship, &shore], to).map_err(io)?),
        false => None,
    };
    upload([&ship, &shore], to, &[0]).map_err(io)?;
    thread::sleep(CLOSES);
    let before = sent_again(&ship).map_err(io)?;
    let file_s = upload([&ship, &shore], to, &noise(5, FILE)).map_err(io)?.as_secs_f64();
    Ok(Plain {
        mtu,
        rto_s,
        physical_s: carrier.duration_since(begin).as_secs_f64(),
        network_s: network_at.duration_since(carrier).as_secs_f64(),
        file_s,
        retransmitted: sent_again(&ship).map_err(io)? - before,
        measured,
    })
}

/// TCP as computers had it then: no selective acknowledgements, no time stamps, no tail probes.
fn as_of_old(host: &NetNs) -> Result<(), os::OsError> {
    let off = Some(false);
    set_tcp(host, &HostTcp { sack: off, timestamps: off, rack: off, ..HostTcp::default() })?;
    host.sysctl("net.ipv4.tcp_frto", "0")
}

/// Segments with data that TCP of a host has sent again: `RetransSegs` (RFC 2012) without SYNs.
fn sent_again(host: &NetNs) -> io::Result<u64> {
    let count = |file: &str, begin: &str, name: &str| -> io::Result<u64> {
        let path = format!("/proc/thread-self/net/{file}");
        let text = host.run(|| fs::read_to_string(path))?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(begin));
        let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        let mut both = names.split(' ').zip(values.split(' '));
        let found = both.find(|(of, _)| *of == name).and_then(|(_, n)| n.parse().ok());
        found.ok_or_else(|| io::Error::other(format!("the kernel does not count {name}")))
    };
    let all = count("snmp", "Tcp: ", "RetransSegs")?;
    Ok(all.saturating_sub(count("netstat", "TcpExt: ", "TCPSynRetrans")?))
}

// ---- gateways ------------------------------------------------------------------------------

fn call(network: &ExchangeConfig) -> Result<Gateways, String> {
    let called = Called::start(network.clone(), "open = \"fast\"\n", "idle = \"2min\"\n")?;
    let hosts = [&called.topology.client, &called.topology.server];
    let to = SERVER[0];
    let io = |e: io::Error| e.to_string();
    // The file itself is what raises the line.
    let one = |number: usize| -> Result<[f64; 3], String> {
        let begin = Instant::now();
        let file = thread::scope(|scope| {
            let file = scope.spawn(move || upload(hosts, to, &noise(number as u64, FILE)));
            let carrier = called.wait_for_carrier(number, PATIENCE)?;
            let up = called.wait_for_state("up", PATIENCE)?;
            let file = file.join().unwrap_or_else(|_| Err(io::Error::other("no file came")));
            let end = begin + file.map_err(io)?;
            Ok::<_, String>([begin, carrier, up, end])
        })?;
        let between = |from: usize, to: usize| file[to].duration_since(file[from]).as_secs_f64();
        Ok([between(0, 1), between(1, 2), between(1, 3)])
    };
    let [physical_s, first_network_s, first_file_s] = one(1)?;
    let measured = line_figures(hosts, to).map_err(io)?;
    called.hang_up()?;
    called.command(LineCommand::Auto)?;
    let [_, later_network_s, later_file_s] = one(2)?;
    called.hang_up()?;
    Ok(Gateways {
        physical_s,
        first_network_s,
        first_file_s,
        later_network_s,
        later_file_s,
        measured,
    })
}

// ---- what crosses --------------------------------------------------------------------------

/// Never the same for two seeds, or gateways would recognise it.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// A file from the first host to the second; how long until it was there as it was sent.
fn upload([from, to]: [&NetNs; 2], at: IpAddr, content: &[u8]) -> io::Result<Duration> {
    let len = content.len();
    let listener = to.run(|| TcpListener::bind((at, PORT)))?;
    let begin = Instant::now();
    let taken = thread::spawn(move || -> io::Result<(Vec<u8>, Instant)> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut all = vec![0; len];
        stream.read_exact(&mut all)?;
        Ok((all, Instant::now()))
    });
    let mut stream = from.run(|| TcpStream::connect((at, PORT)))?;
    stream.write_all(content)?;
    let (came, end) = taken.join().unwrap_or_else(|_| Err(io::Error::other("nobody took it")))?;
    match came == content {
        true => Ok(end.duration_since(begin)),
        false => Err(io::Error::other("another file came than was sent")),
    }
}

/// Table 3 and figure 7.
fn line_figures(hosts: [&NetNs; 2], at: IpAddr) -> io::Result<Measured> {
    let [from, to] = hosts;
    let far = to.run(|| UdpSocket::bind((at, PORT)))?;
    let own: IpAddr = if at == SERVER[0] { CLIENT[0] } else { HOSTS[0].into() };
    let near = from.run(|| UdpSocket::bind((own, 0)))?;
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    }
    let to = SocketAddr::new(at, PORT);
    let mut trips = Vec::new();
    let mut buf = [0; PACKET];
    for number in 0..PINGS {
        let begin = Instant::now();
        near.send_to(&[number; PING], to)?;
        let (n, back) = far.recv_from(&mut buf)?;
        far.send_to(&buf[..n], back)?;
        near.recv(&mut buf)?;
        trips.push(begin.elapsed().as_secs_f64());
    }
    trips.sort_by(f64::total_cmp);
    let mut trains = Vec::new();
    for packets in TRAINS {
        let begin = Instant::now();
        for number in 0..packets {
            let content = noise((packets * 1_000 + number) as u64, PACKET - HEADERS);
            near.send_to(&content, to)?;
        }
        for _ in 0..packets {
            far.recv(&mut buf)?;
        }
        let bits = (packets * PACKET * 8) as f64;
        trains.push((packets, bits / begin.elapsed().as_secs_f64()));
    }
    Ok(Measured { ping_s: trips[trips.len() / 2], trains })
}

// ---- what is shown -------------------------------------------------------------------------

/// What a call costs that carries for so long.
fn dollars(seconds: f64) -> f64 {
    (seconds / STEP).ceil().max(1.0) * CENTS_A_STEP as f64 / 100.0
}

/// The tables.
pub fn text(results: &Results) -> String {
    let Results { plain, gateways: g } = results;
    let mut out = format!("{NAME}: {TITLE}\n\nTable 2: connect times, s\n");
    let mut row = |what: &str, times: [f64; 2]| {
        let [physical, network] = times;
        let total = physical + network;
        let _ = writeln!(out, "{what:<34}{physical:>10.2}{network:>12.2}{total:>10.2}");
    };
    row("published: PPP of Windows NT", [28.28, 22.64]);
    for p in plain {
        row(&format!("PPP, MTU {}, RTO {} s", p.mtu, p.rto_s), [p.physical_s, p.network_s]);
    }
    row("gateways, the first call ever", [g.physical_s, g.first_network_s]);
    row("gateways, a later call", [g.physical_s, g.later_network_s]);
    let first = plain.iter().find_map(|p| p.measured.as_ref());
    let ppp = first.map_or(f64::NAN, |m| m.ping_s * 1e3);
    let ours = g.measured.ping_s * 1e3;
    let _ = writeln!(
        out,
        "\nTable 3: a ping of {PING} bytes, ms\npublished 2720   PPP {ppp:.0}   gateways {ours:.0}\n\n\
         Figure 7: packets of {PACKET} bytes in a row, bit/s of IP; published: \"just under 1600\" at most"
    );
    let trains = first.map_or(&[][..], |m| &m.trains);
    for ((packets, ppp), (_, ours)) in trains.iter().zip(&g.measured.trains) {
        let _ = writeln!(out, "{packets:>4} packets   PPP {ppp:>6.0}   gateways {ours:>6.0}");
    }
    let _ = writeln!(
        out,
        "\nA file of {FILE} bytes, incompressible: s from carrier, s of the file, sent again, USD"
    );
    for p in plain {
        let whole = p.network_s + p.file_s;
        let name = format!("PPP, MTU {}, RTO {} s", p.mtu, p.rto_s);
        let _ = writeln!(
            out,
            "{name:<34}{whole:>8.1}{:>8.1}{:>6}{:>8.2}",
            p.file_s,
            p.retransmitted,
            dollars(whole)
        );
    }
    for (name, file) in [
        ("gateways, the first call ever", g.first_file_s),
        ("gateways, a later call", g.later_file_s),
    ] {
        let _ = writeln!(out, "{name:<34}{file:>8.1}{:>8}{:>6}{:>8.2}", "", "", dollars(file));
    }
    out
}

/// Figure 7.
pub fn drawing(results: &Results) -> LineChart {
    let line = |name: &str, colour, trains: &[(usize, f64)]| Series {
        name: name.to_owned(),
        colour,
        points: trains.iter().map(|(n, rate)| (*n as f64, *rate)).collect(),
    };
    let mut series = vec![line("gateways", 3, &results.gateways.measured.trains)];
    if let Some(measured) = results.plain.iter().find_map(|p| p.measured.as_ref()) {
        series.insert(0, line("PPP", 0, &measured.trains));
    }
    LineChart {
        title: "Packets in a row over a Mini-M call".into(),
        caption: format!("{PACKET} bytes each, 2,400 bit/s in 8N1, 997.5 ms one way"),
        x_label: "packets".into(),
        y_label: "throughput of IP (bit/s)".into(),
        series,
        ..LineChart::default()
    }
}

/// Runs it on the network of the source and shows what came of it.
///
/// # Errors
/// As [`measure`].
pub fn run(quiet: bool) -> Result<Results, String> {
    let board = Board::start(quiet);
    measure(&ExchangeConfig::default(), &board)
}
