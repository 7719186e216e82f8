//! Two ways between the gateways: one dies in mid-transfer and comes back, or both are used at
//! once.
//!
//! ```text
//!  client ── a ══ first carrier ══ b ── server
//!            ╚═══ second carrier ══╝
//! ```

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use link::keys::PrivateKey;
use os::proc::entropy;

use super::checked::Checked;
use super::setup::link;
use crate::emulate::{Direction, EmulatorHandle};
use crate::testbed::gateway::{Gateway, PORT};
use crate::testbed::measure::median;
use crate::testbed::progress::{Board, Row};
use crate::testbed::topology::{LAN, LINK_B, Plan, SERVER, Topology, configure, emulated};
use crate::testbed::traffic::{self, Server, Wanted};
use crate::testbed::way::LinkSetup;

type Measured = Result<Vec<Checked>, String>;

/// A transfer from a satellite to a thin line, which takes 16 s there and back on 20 Mbit/s.
const BYTES: u64 = 20_000_000;
/// Seconds after its first byte at which the satellite dies and returns.
const DIES: f64 = 2.5;
const RETURNS: f64 = 12.0;
/// Bytes in these that are data, and no probes.
const DATA: u64 = 20_000;
const MOST_RUNS: u64 = 3;

/// Failover of 20 MB from 20 Mbit/s at 600 ms to 5 Mbit/s at 80 ms, and back.
pub fn failover(board: &Board, seeds: u64) -> Measured {
    let runs = seeds.min(MOST_RUNS);
    let row = board.row("failover", runs * BYTES);
    row.begin();
    let mut times = Vec::new();
    for seed in 1..=runs {
        let links = [link(20_000_000, 2_000_000, 300), link(5_000_000, 1_000_000, 40)];
        times.push(Two::build(&links, "", seed)?.fail_over(seed, &row)?);
    }
    row.end("done".into());
    let middle = |of: fn(&[f64; 3]) -> f64| median(times.iter().map(of)).ok_or("nothing measured");
    let (moved, stalled, back) = (middle(|t| t[0])?, middle(|t| t[1])?, middle(|t| t[2])?);
    let what = "20 MB, 20/2 Mbit/s, 600 ms to 5/1 Mbit/s, 80 ms and back, every byte checked";
    // The last report comes 0.3 s after the death; it is known when 3 RTT without one are over.
    let check = |what: &str, asked: &str, value: f64, most: f64| Checked {
        value: Some(value),
        ..Checked::asked(what, asked, format!("{value:.2} s"), value <= most)
    };
    Ok(vec![
        check(&format!("{what}: from the death to data on the other"), "≤ 3.1 s", moved, 3.1),
        Checked::told("the longest time without a byte for the client", format!("{stalled:.2} s")),
        check("from its return to data on the first again", "≤ 2 s", back, 2.0),
    ])
}

/// The stream on both carriers, and how long it flows before it is looked at and while it is, s.
const LONG: u64 = 60_000_000;
const WARM: f64 = 3.0;
const LOOKED_AT: f64 = 10.0;
/// Small requests, one after the other.
const SMALL: usize = 21;
const SMALL_BYTES: u64 = 1_000;

/// 20 Mbit/s at 600 ms and 10 Mbit/s at 50 ms at once: one stream, and small requests beside it.
pub fn two_carriers(board: &Board, seeds: u64) -> Measured {
    let runs = seeds.min(MOST_RUNS);
    let row = board.row("two carriers", runs * LONG);
    row.begin();
    let mut all = Vec::new();
    for seed in 1..=runs {
        let links = [link(20_000_000, 2_000_000, 300), link(10_000_000, 2_000_000, 25)];
        all.push(Two::build(&links, "carriers = \"all\"", seed)?.share(seed, &row)?);
    }
    row.end("done".into());
    let middle = |of: fn(&[f64; 3]) -> f64| median(all.iter().map(of)).ok_or("nothing measured");
    let (share, idle, beside) = (middle(|t| t[0])?, middle(|t| t[1])?, middle(|t| t[2])?);
    let first_byte = |what: &str, ms: f64| Checked {
        value: Some(ms),
        ..Checked::asked(what, "≤ 65 ms", format!("{ms:.1} ms"), ms <= 65.0)
    };
    Ok(vec![
        Checked {
            value: Some(share),
            ..Checked::asked(
                "20 Mbit/s, 600 ms and 10 Mbit/s, 50 ms at once: one stream, of the sum",
                "≥ 85 %",
                format!("{share:.1} %"),
                share >= 85.0,
            )
        },
        first_byte("1 kB, first byte after the request, median of 21", idle),
        first_byte("the same beside the stream", beside),
    ])
}

/// Dropped from the top: programs before the network they run in.
struct Two {
    _gateways: [Gateway; 2],
    server: Server,
    second: EmulatorHandle,
    near: Topology,
}

impl Two {
    /// The two carriers, with more `words` for the peers' tables.
    fn build(links: &[LinkSetup; 2], words: &str, seed: u64) -> Result<Two, String> {
        let plan = Plan { link: links[0].clone(), seed, ..Plan::default() };
        let near = Topology::build(&plan).map_err(|e| e.to_string())?;
        let second = emulated(&near.gwa, "sat2", &near.gwb, "sat2", &links[1], !seed);
        let second = second.map_err(|e| e.to_string())?;
        for (host, address) in [(&near.gwa, "10.77.8.1"), (&near.gwb, "10.77.8.2")] {
            let script = format!("addr add {address}/24 dev sat2\nlink set sat2 up\n");
            configure(host, &script).map_err(|e| e.to_string())?;
        }
        let gateways = start(&near, links, words)?;
        let server = near.server.run(|| Server::start(SERVER[0], near.origin));
        let server = server.map_err(|e| format!("the server does not start: {e}"))?;
        // Whatever the gateways say to each other at first is said by then.
        thread::sleep(Duration::from_secs(3));
        Ok(Two { _gateways: gateways, server, second, near })
    }

    /// The share of both links that one stream has, %, and the first byte of small requests
    /// before it and beside it, ms.
    fn share(self, seed: u64, row: &Row) -> Result<[f64; 3], String> {
        let address = SocketAddr::new(SERVER[0], traffic::PORT);
        let (origin, none) = (self.near.origin, AtomicUsize::new(0));
        let small = || -> Result<f64, String> {
            let mut times = Vec::new();
            for n in 0..SMALL {
                let wanted = Wanted::whole(seed + n as u64, SMALL_BYTES);
                let fetch = || traffic::fetch(address, wanted, origin, &none);
                let got = self.near.client.run(fetch).map_err(|e| format!("a small one: {e}"))?;
                times.push((got.first_byte - got.connected) * 1e3);
            }
            median(times).ok_or_else(|| "no small one was measured".to_owned())
        };
        let idle = small()?;
        let wanted = Wanted::whole(seed, LONG);
        let (got, beside) = thread::scope(|scope| {
            let client = scope.spawn(|| {
                let fetch = || traffic::fetch(address, wanted, origin, &row.done);
                self.near.client.run(fetch)
            });
            thread::sleep(Duration::from_secs_f64(WARM));
            let beside = small();
            (client.join(), beside)
        });
        let got = got.map_err(|_| "the client panicked")?;
        let got = got.map_err(|e| format!("the client failed: {e}"))?;
        let from = got.started + got.first_byte + WARM;
        let at = |time: f64| got.received.iter().take_while(|(t, _)| *t <= time).last();
        let (first, last) = at(from).zip(at(from + LOOKED_AT)).ok_or("too few bytes came")?;
        let rate = (last.1 - first.1) * 8.0 / (last.0 - first.0);
        let problems = [self.near.problems(), self.second.problems()].concat();
        if let Some(problem) = problems.first() {
            return Err(format!("the emulated links are not to be trusted: {problem}"));
        }
        Ok([rate / 30e6 * 100.0, idle, beside?])
    }

    fn first(&self) -> Result<&EmulatorHandle, String> {
        self.near.satellite().ok_or_else(|| "there is no satellite".to_owned())
    }

    /// From the death to data on the second, the longest pause, from the return to data on the
    /// first, s.
    fn fail_over(self, seed: u64, row: &Row) -> Result<[f64; 3], String> {
        let address = SocketAddr::new(SERVER[0], traffic::PORT);
        let (wanted, origin, over) =
            (Wanted::whole(seed, BYTES), self.near.origin, AtomicBool::new(false));
        let (got, times) = thread::scope(|scope| {
            let client = scope.spawn(|| {
                let fetch = || traffic::fetch(address, wanted, origin, &row.done);
                let got = self.near.client.run(fetch);
                over.store(true, Ordering::Relaxed);
                got
            });
            let begun = self.first().and_then(|first| {
                wait_for(&over, || data(first) > BYTES / 100)?;
                thread::sleep(Duration::from_secs_f64(DIES));
                let before = data(&self.second);
                let death = Instant::now();
                set_dark(first, true);
                wait_for(&over, || data(&self.second) > before + DATA)?;
                let moved = death.elapsed();
                thread::sleep(Duration::from_secs_f64(RETURNS - DIES).saturating_sub(moved));
                let before = data(first);
                let back = Instant::now();
                set_dark(first, false);
                wait_for(&over, || data(first) > before + DATA)?;
                Ok([moved, back.elapsed()])
            });
            (client.join(), begun)
        });
        let got = got
            .map_err(|_| "the client panicked")?
            .map_err(|e| format!("the client failed: {e}"))?;
        let [moved, back] = times?;
        let problems = [self.near.problems(), self.second.problems()].concat();
        if let Some(problem) = problems.first() {
            return Err(format!("the emulated links are not to be trusted: {problem}"));
        }
        drop(self.server);
        let pauses = got.received.windows(2).map(|w| w[1].0 - w[0].0);
        Ok([moved.as_secs_f64(), pauses.fold(0.0, f64::max), back.as_secs_f64()])
    }
}

/// Bytes that were sent towards the client.
fn data(link: &EmulatorHandle) -> u64 {
    link.counters(Direction::Down).offered.bytes
}

fn set_dark(link: &EmulatorHandle, dark: bool) {
    for direction in [Direction::Up, Direction::Down] {
        link.set_outage(direction, dark);
    }
}

/// Waits, looking often, until something is the case.
fn wait_for(over: &AtomicBool, is: impl Fn() -> bool) -> Result<(), String> {
    while !is() {
        if over.load(Ordering::Relaxed) {
            return Err("the transfer was over too soon, or failed".to_owned());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Both gateways, up, of which the client's calls by both carriers.
fn start(near: &Topology, links: &[LinkSetup; 2], words: &str) -> Result<[Gateway; 2], String> {
    let key = || entropy().map(PrivateKey::generate).map_err(|e| e.to_string());
    let keys = [key()?, key()?];
    // `down`: this node sends towards the client.
    let of = |link: &LinkSetup, down: bool| {
        let rate = |c: &channel::ChannelConfig| c.rate.map(|r| r.to_string()).unwrap_or_default();
        let (to, from) = (rate(&link.down), rate(&link.up));
        let (send, receive) = if down { (to, from) } else { (from, to) };
        let delay = link.down.delay;
        format!("link = {{ send = \"{send}\", receive = \"{receive}\", delay = \"{delay}\" }}\n")
    };
    let node = |own: usize, peer: usize, words: &str| {
        format!(
            "[node]\nprivate_key = \"{}\"\nlisten = \"0.0.0.0:{PORT}\"\ntun = \"bentpipe0\"\n\
             admin = \"admin.sock\"\nlog = \"warn\"\ndedup_dir = \"chunks\"\nlan = [\"{LAN}\"]\n\
             [[peer]]\nname = \"far\"\npublic_key = \"{}\"\nopen = \"fast\"\n\
             compress = \"off\"\ndedup = \"off\"\n{words}\n",
            keys[own].to_base64(),
            keys[peer].public()
        )
    };
    let carrier = |name: &str, to: &str, link: &LinkSetup| {
        format!(
            "[[peer.carrier]]\nname = \"{name}\"\nendpoint = \"{to}:{PORT}\"\n{}",
            of(link, false)
        )
    };
    let calls = format!("routes = [\"10.77.3.0/24\"]\n{words}\n")
        + &carrier("satellite", &LINK_B[0].to_string(), &links[0])
        + &carrier("line", "10.77.8.2", &links[1]);
    let called = format!(
        "routes = [\"10.77.1.0/24\"]\nallow = [\"10.77.3.0/24\"]\n{words}\n{}",
        of(&links[0], true)
    );
    let start =
        |side, host, config: &str| Gateway::start(side, host, config).map_err(|e| e.to_string());
    let mut gateways = [
        start("client", &near.gwa, &node(0, 1, &calls))?,
        start("server", &near.gwb, &node(1, 0, &called))?,
    ];
    for gateway in &mut gateways {
        gateway.wait_until_up().map_err(|e| e.to_string())?;
    }
    Ok(gateways)
}
