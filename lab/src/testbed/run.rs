//! Runs experiments: builds the network, lets real hosts do the work, notes what
//! happened; many at once as far as this machine can carry them.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use control::LinkStatus;
use os::netns::NetNs;
use units::BitRate;

use super::gateway::{Gateway, Pair};
use super::measure::Outcome;
use super::progress::{Board, Row};
use super::results::{Load, Results, Run};
use super::scenario::Scenario;
use super::topology::{HOST, Plan, Topology};
use super::traffic::browser::{Browser, Got};
use super::traffic::ping::{self, Pings};
use super::traffic::site;
use super::traffic::{self, Page, Server, Wanted, ftp, udp};
use super::way::{Pairing, Way, Work};
use super::web::{self, Program};

/// What a two-core machine carries with all hosts, gateways and emulators on it and
/// processors idle enough that timings mean something; the sum over all links that run
/// at once stays below.
const AT_ONCE: BitRate = BitRate::from_kbps(120_000);
/// Emulated links at once, however slow: each takes threads that keep real time, and has
/// gateways around it.
const MOST_AT_ONCE: usize = 24;
/// Between the work before and the work itself the link falls idle.
const PAUSE: Duration = Duration::from_millis(1_500);

/// One experiment: a network and what it carries.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The network.
    pub plan: Plan,
    /// What is carried first, on the idle link.
    pub before: Option<Work>,
    /// What is carried.
    pub work: Work,
    /// Between which nodes; B to A if empty.
    pub pairs: Vec<Pairing>,
    /// A ping from client to server beside it.
    pub ping: bool,
    /// How long the link lies idle first, so that nothing of its beginning is left.
    pub settle: Duration,
    /// Files are text, not noise.
    pub text: bool,
    /// The gateways run `bentpipe-web`.
    pub web: bool,
    /// Clients and servers speak with headers as long as those of the web.
    pub headers: bool,
}

impl Experiment {
    /// The experiment of one way of a scenario.
    pub fn new(scenario: &Scenario, way: &Way, seed: u64) -> Experiment {
        Experiment {
            plan: Plan {
                link: scenario.link_of(way),
                legs: way.legs.unwrap_or(scenario.legs),
                hosts: way.hosts.over(&scenario.hosts),
                mesh: scenario.mesh,
                seed,
                gateways: way.gateways.then(|| Pair {
                    unsplit: way.unsplit,
                    alone: way.alone,
                    compress: way.compress,
                    told: scenario.told.clone(),
                    ..Pair::default()
                }),
            },
            before: scenario.before,
            work: way.work.unwrap_or(scenario.work),
            pairs: way.pairs.clone(),
            ping: scenario.ping,
            settle: Duration::ZERO,
            text: scenario.text,
            web: way.web,
            headers: false,
        }
    }

    /// Bytes of content that it carries.
    pub fn bytes(&self) -> u64 {
        let rate = self.plan.link.down.rate;
        self.work.bytes(rate).0 + self.before.map_or(0, |w| w.bytes(rate).0)
    }

    /// Builds the network, does the work and takes everything down again. `row` is told
    /// of progress.
    pub fn run(&self, row: &Row) -> Result<Run, String> {
        let mut plan = self.plan.clone();
        let pair = plan.gateways.as_mut().filter(|_| self.web);
        let _program = pair.map(Program::for_pair).transpose()?;
        let topology = Topology::build(&plan).map_err(|e| e.to_string())?;
        if self.web {
            web::wait_for(&topology, 2)?;
        }
        thread::sleep(self.settle);
        row.begin();
        let before = match self.before {
            Some(work) => {
                let outcome = self.carry(&topology, work, row)?;
                thread::sleep(PAUSE);
                Some(outcome)
            }
            None => None,
        };
        let loads = |t: &Topology| t.gateways.as_ref().map(|g| [g[0].load(), g[1].load()]);
        let start = loads(&topology);
        let work = self.carry(&topology, self.work, row)?;
        let gateways = start.zip(loads(&topology)).map(|(start, end)| {
            let [a, b] = start;
            let [c, d] = end;
            [used(a, c), used(b, d)]
        });
        let mut problems = topology.problems();
        let nodes = self.pairings().into_iter().flat_map(|p| [p.sender, p.receiver]);
        problems.extend(nodes.filter_map(|node| topology.gateway(node)).find_map(idle));
        Ok(Run { work, before, gateways, problems })
    }

    /// What clients offer as a receive window at most.
    fn window(&self) -> Option<u32> {
        self.plan.hosts.window.map(|w| u32::try_from(w.0).unwrap_or(u32::MAX))
    }

    fn pairings(&self) -> Vec<Pairing> {
        if self.pairs.is_empty() { vec![Pairing::USUAL] } else { self.pairs.clone() }
    }

    /// Does the work between all pairs at once.
    fn carry(&self, topology: &Topology, work: Work, row: &Row) -> Result<Outcome, String> {
        let all: Vec<Result<Outcome, String>> = thread::scope(|scope| {
            let one = |pair| {
                move || match work {
                    Work::Web { objects, bytes, browser } => {
                        self.load_page(topology, pair, (objects, bytes.0), browser, row)
                    }
                    _ => self.carry_between(topology, pair, work, row),
                }
            };
            let threads: Vec<_> =
                self.pairings().into_iter().map(|pair| scope.spawn(one(pair))).collect();
            let failed = |_| Err("the thread of a pair failed".to_owned());
            threads.into_iter().map(|t| t.join().unwrap_or_else(failed)).collect()
        });
        Outcome::together(all.into_iter().collect::<Result<_, _>>()?)
            .ok_or_else(|| "nothing was carried".to_owned())
    }

    fn carry_between(
        &self,
        topology: &Topology,
        pair: Pairing,
        work: Work,
        row: &Row,
    ) -> Result<Outcome, String> {
        let origin = topology.origin;
        let Pairing { sender, receiver } = pair;
        let ipv6 = self.plan.hosts.ipv6 == Some(true);
        let host = |node| topology.host(node, ipv6).ok_or("there is no such node");
        let ((sending, ip), (receiving, own)) = (host(sender)?, host(receiver)?);
        let server = sending
            .run(|| Server::start(ip, origin))
            .map_err(|e| format!("the server does not start: {e}"))?;
        let by_ftp = matches!(work, Work::File { ftp: true, .. })
            .then(|| sending.run(|| ftp::Server::start(ip, origin)))
            .transpose()
            .map_err(|e| format!("the server of FTP does not start: {e}"))?;
        let address = SocketAddr::new(ip, traffic::PORT);
        let seed = self.plan.seed;
        let window = self.window();
        let wanted =
            Wanted { window, text: self.text, headers: self.headers, ..Wanted::whole(seed, 0) };
        let alone = |fetched| (fetched, Vec::new());
        let carry = || match work {
            Work::File { bytes, at_most, ftp } => {
                let at_most = at_most.map_or(Duration::MAX, |d| d.to_std());
                let wanted = Wanted { bytes: bytes.0, at_most, ..wanted };
                let fetched = match ftp {
                    true => ftp::fetch(ip, wanted, origin, &row.done),
                    false => traffic::fetch(address, wanted, origin, &row.done),
                };
                fetched.map(alone)
            }
            Work::Streams { count, time, pace, .. } => {
                let (time, pace) = (time.to_std(), pace.map_or(0, BitRate::as_bps));
                let wanted = Wanted { pace, ..wanted };
                traffic::fetch_streams(address, wanted, count, time, origin, &row.done)
            }
            Work::Web { .. } => Err(std::io::Error::other("a browser loads pages")),
            Work::Page { html, objects, object, connections } => {
                let (html, object, text) = (html.0, object.0, self.text);
                let page = Page { seed, html, objects, object, connections, window, text };
                traffic::fetch_page(address, page, origin, &row.done).map(alone)
            }
        };
        let beside = match work {
            Work::Streams { udp: Some(rate), time, .. } => Some((rate.as_bps(), time.to_std())),
            _ => None,
        };
        let over = AtomicBool::new(false);
        let (client, udp, pings) = thread::scope(|scope| {
            let over = &over;
            let pings = self.ping.then(|| {
                scope.spawn(move || ping_beside([(receiving, own), (sending, ip)], origin, over))
            });
            let udp = beside.map(|(rate, time)| {
                scope.spawn(move || udp_beside([(sending, ip), (receiving, own)], rate, time))
            });
            let client = receiving.run(carry);
            over.store(true, Ordering::Relaxed);
            let failed = |what: &str| std::io::Error::other(format!("the {what}'s thread failed"));
            let udp = udp.map(|udp| udp.join().unwrap_or_else(|_| Err(failed("UDP stream"))));
            (client, udp, pings.map(|p| p.join().unwrap_or_else(|_| Err(failed("ping")))))
        });
        let udp = udp.transpose().map_err(|e| format!("the UDP stream failed: {e}"))?;
        let pings = pings.transpose().map_err(|e| format!("the ping failed: {e}"))?;
        let pings = pings.unwrap_or_default();
        let mut served = server.stop();
        served.extend(by_ftp.into_iter().flat_map(ftp::Server::stop));
        let client = client.map_err(|e| format!("the client failed: {e}"))?;
        let (down, up) = topology.link_use(sender, receiver);
        let (from, to) = (client.0.started, client.0.started + client.0.complete);
        let rate = topology.rate((sender, receiver), from, to).map_or(0, BitRate::as_bps);
        let (ping, ping_lost) = (pings.round_trips, pings.lost);
        let outcome = Outcome::new(seed, rate, client, &served, down, up);
        Ok(Outcome { udp, ping, ping_lost, ..outcome })
    }

    /// A browser loads a page.
    fn load_page(
        &self,
        topology: &Topology,
        pair: Pairing,
        (objects, bytes): (u32, u64),
        browser: Browser,
        row: &Row,
    ) -> Result<Outcome, String> {
        let ipv6 = self.plan.hosts.ipv6 == Some(true);
        let host = |node| topology.host(node, ipv6).ok_or("there is no such node");
        let ((sending, ip), (receiving, _)) = (host(pair.sender)?, host(pair.receiver)?);
        let at = SocketAddr::new(ip, traffic::PORT);
        let listening = sending.run(|| TcpListener::bind(at).and_then(nonblocking));
        let listener = listening.map_err(|e| format!("the server does not start: {e}"))?;
        let seed = self.plan.seed;
        let page = site::bodies(objects as usize, bytes as usize, seed);
        let stop = AtomicBool::new(false);
        let load = || -> std::io::Result<_> {
            let before = packets_here()?;
            let started = topology.origin.elapsed().as_secs_f64();
            let got = browser.load(at, "/0-page/", self.window())?;
            let complete = topology.origin.elapsed().as_secs_f64() - started;
            Ok((got, packets_here()? - before, started, complete))
        };
        let loaded = thread::scope(|scope| {
            scope.spawn(|| site::serve(&listener, vec![page], &stop));
            let loaded = receiving.run(load);
            stop.store(true, Ordering::Relaxed);
            loaded
        });
        let (got, packets, started, complete) =
            loaded.map_err(|e| format!("the browser failed: {e}"))?;
        row.done.fetch_add(got.bytes, Ordering::Relaxed);
        let client = traffic::Fetched {
            started,
            connected: got.first_byte,
            first_byte: got.first_byte,
            complete,
            bytes: got.bytes as u64,
            asked: bytes,
            received: came(&got, started),
        };
        let (down, up) = topology.link_use(pair.sender, pair.receiver);
        let rate = topology.rate((pair.sender, pair.receiver), started, started + complete);
        let rate = rate.map_or(0, BitRate::as_bps);
        let outcome = Outcome::new(seed, rate, (client, Vec::new()), &[], down, up);
        let connections = Some(got.connections as u64);
        Ok(Outcome { connections, packets: Some(packets), elements: got.elements, ..outcome })
    }

    /// Links that it emulates: in a mesh every node has one to every other.
    fn links(&self) -> usize {
        let nodes = 2 + self.plan.mesh;
        nodes * (nodes - 1) / 2
    }

    fn weight(&self) -> u64 {
        let rate = |c: &channel::ChannelConfig| {
            let highest = c.rate_schedule.as_ref().map(|s| s.highest());
            highest.or(c.rate).unwrap_or(AT_ONCE).as_bps()
        };
        (rate(&self.plan.link.down) + rate(&self.plan.link.up)).min(AT_ONCE.as_bps())
    }
}

fn nonblocking(listener: TcpListener) -> std::io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Bytes over time as whole objects came, if each had the same length: of which object was how
/// long only their sum is known.
fn came(got: &Got, started: f64) -> traffic::Samples {
    let mut times: Vec<f64> = got.elements.iter().map(|(_, came)| started + came).collect();
    times.sort_by(f64::total_cmp);
    let each = got.bytes as f64 / times.len().max(1) as f64;
    times.iter().zip(1..).map(|(at, n)| (*at, each * f64::from(n))).collect()
}

/// Packets that this host's interface has sent and received.
fn packets_here() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix(HOST)?.strip_prefix(':'));
    let fields: Vec<u64> =
        line.unwrap_or("").split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // Received: bytes, packets, and six more; then what was sent.
    match (fields.get(1), fields.get(9)) {
        (Some(received), Some(sent)) => Ok(received + sent),
        _ => Err(std::io::Error::other(format!("no device {HOST} in {text}"))),
    }
}

/// A UDP stream from the server to the client; answers what arrived, bit/s.
fn udp_beside(
    [(server, ip), (client, own)]: [(&NetNs, IpAddr); 2],
    rate: u64,
    time: Duration,
) -> std::io::Result<f64> {
    let to = SocketAddr::new(own, udp::PORT);
    let receiver = client.run(|| UdpSocket::bind(to))?;
    let sender = server.run(|| UdpSocket::bind((ip, 0)))?;
    udp::stream(&sender, &receiver, to, rate, time)
}

/// Pings from the client to the server until `over` says so.
fn ping_beside(
    [(client, own), (server, ip)]: [(&NetNs, IpAddr); 2],
    origin: Instant,
    over: &AtomicBool,
) -> std::io::Result<Pings> {
    let to = SocketAddr::new(ip, ping::PORT);
    let far = server.run(|| UdpSocket::bind(to))?;
    let near = client.run(|| UdpSocket::bind((own, 0)))?;
    ping::ping(&near, &far, to, origin, over)
}

/// Says so if the experiment's packets went past a gateway.
fn idle(gateway: &Gateway) -> Option<String> {
    let links = gateway.status().ok()?.links;
    if links.is_empty() {
        // One gateway alone has no links to gateways, and tells of none.
        return None;
    }
    let packets = |l: &LinkStatus| l.datagrams.sent + l.datagrams.received;
    let carried = links.iter().any(|l| l.streams_total + packets(l) > 0);
    (!carried).then(|| format!("the gateway on the {}'s side carried nothing", gateway.side()))
}

fn used(start: std::io::Result<Load>, end: std::io::Result<Load>) -> Load {
    match (start, end) {
        (Ok(start), Ok(end)) => Load { cpu: end.cpu - start.cpu, memory: end.memory },
        _ => Load::default(),
    }
}

/// Lets experiments in as long as the machine can carry them.
#[derive(Debug)]
pub struct Gate {
    at_once: u64,
    inside: Mutex<(u64, usize)>,
    left: Condvar,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new(AT_ONCE)
    }
}

impl Gate {
    /// A gate for links that together carry `at_once`; a faster one passes alone.
    pub fn new(at_once: BitRate) -> Gate {
        Gate { at_once: at_once.as_bps(), inside: Mutex::default(), left: Condvar::new() }
    }

    fn pass<T>(&self, weight: u64, links: usize, work: impl FnOnce() -> T) -> T {
        let lock = || self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |inside: &mut (u64, usize)| {
            let (load, count) = *inside;
            count > 0 && (load + weight > self.at_once || count + links > MOST_AT_ONCE)
        };
        let mut inside = self.left.wait_while(lock(), full).unwrap_or_else(PoisonError::into_inner);
        *inside = (inside.0 + weight, inside.1 + links);
        drop(inside);
        let result = work();
        let mut inside = lock();
        *inside = (inside.0 - weight, inside.1 - links);
        self.left.notify_all();
        result
    }
}

/// Runs several experiments, each on a thread of its own, and returns their runs in
/// the same order.
pub fn run_all(experiments: &[(Experiment, Arc<Row>)], gate: &Gate) -> Vec<Result<Run, String>> {
    thread::scope(|scope| {
        let threads: Vec<_> = experiments
            .iter()
            .map(|(experiment, row)| {
                scope.spawn(move || {
                    gate.pass(experiment.weight(), experiment.links(), || experiment.run(row))
                })
            })
            .collect();
        let outcome = |t: thread::ScopedJoinHandle<'_, Result<Run, String>>| {
            t.join().unwrap_or_else(|_| Err("the experiment's thread failed".into()))
        };
        threads.into_iter().map(outcome).collect()
    })
}

/// Runs all ways of a scenario, each with all its seeds.
pub fn run_scenario(scenario: &Scenario, board: &Board, gate: &Gate) -> Results {
    let ways: Vec<(Way, Vec<Result<Run, String>>)> = thread::scope(|scope| {
        let threads: Vec<_> = scenario
            .ways
            .iter()
            .map(|way| (way, scope.spawn(move || run_way(scenario, way, board, gate))))
            .collect();
        let joined = threads.into_iter().map(|(way, t)| {
            let runs = t.join().unwrap_or_else(|_| vec![Err("a thread failed".into())]);
            (way.clone(), runs)
        });
        joined.collect()
    });
    Results::new(scenario, ways)
}

fn run_way(scenario: &Scenario, way: &Way, board: &Board, gate: &Gate) -> Vec<Result<Run, String>> {
    let seeds = scenario.seeds;
    let first = Experiment::new(scenario, way, 1);
    let row = board.row(&way.title, first.bytes() * seeds);
    if let Some(why) = &way.missing {
        row.end(format!("not run: {why}"));
        return Vec::new();
    }
    let experiments: Vec<_> =
        (1..=seeds).map(|seed| (Experiment::new(scenario, way, seed), row.clone())).collect();
    let runs = run_all(&experiments, gate);
    row.end(summary(&runs));
    runs
}

fn summary(runs: &[Result<Run, String>]) -> String {
    if let Some(Err(why)) = runs.iter().find(|r| r.is_err()) {
        return format!("failed: {why}");
    }
    let good = || runs.iter().flatten();
    let kbps = super::measure::median(good().map(|r| r.work.goodput() / 1e3)).unwrap_or(0.0);
    let time = super::measure::median(good().map(|r| r.work.complete)).unwrap_or(0.0);
    let megabytes = super::measure::median(good().map(|r| r.work.bytes as f64 / 1e6));
    let megabytes = megabytes.unwrap_or(0.0);
    format!("{megabytes:.1} MB in {time:.1} s, {kbps:.0} kbit/s, every byte right")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn the_gate_never_lets_in_more_than_the_machine_carries_and_everybody_in_the_end() {
        let (gate, now, most) = (Gate::default(), AtomicU64::new(0), AtomicU64::new(0));
        let weight = AT_ONCE.as_bps() / 3;
        let visit = || {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(2));
            now.fetch_sub(1, Ordering::SeqCst);
        };
        thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| gate.pass(weight, 1, visit));
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 3);
        // Alone, even a link that is too fast for the machine gets its turn.
        gate.pass(AT_ONCE.as_bps() * 2, 1, visit);
    }
}
