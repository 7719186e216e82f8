//! A gateway under a flood of initiations from a third host: right in their first mac,
//! and each from another address.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use link::cookie::MacKeys;
use link::keys::PublicKey;
use os::OsError;
use os::netns::{NetNs, veth};

use super::checked::Checked;
use super::setup::link;
use super::setup::{build, memories};
use crate::testbed::gateway;
use crate::testbed::measure::median;
use crate::testbed::progress::Board;
use crate::testbed::topology::{PREFIX, SERVER, Topology};
use crate::testbed::traffic::{self, Server, Wanted};

/// Initiations a second that are asked for.
const ASKED: u64 = 50_000;
/// What is offered: a little more, for the moments in which the attacker must wait.
const OFFERED: u64 = 52_000;
/// The attacker's tick.
const TICK: Duration = Duration::from_millis(1);
/// An initiation of the usual length, and its two macs (spec, "Handshake").
const INITIATION: usize = 168;
const MACS: usize = 32;
/// Addresses from which the flood comes: a host has so many sockets.
const SOURCES: usize = 256;
/// The hub on the attacker's cable.
const HUB: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Bytes that one transfer takes, and how many there are without and with a flood.
const BYTES: u64 = 6_000_000;
const TRANSFERS: u64 = 3;

/// What existing links keep of their throughput, and what it costs in memory.
pub fn flood(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("a flood of initiations", 2 * TRANSFERS * BYTES);
    let topology = build(&link(20_000_000, 2_000_000, 300), 1)?;
    let attacker = attach(&topology).map_err(|e| format!("no attacker: {e}"))?;
    let [_, hub] = topology.gateways.as_ref().ok_or("there are no gateways")?;
    let key: PublicKey = hub
        .status()
        .map_err(|e| e.to_string())?
        .node
        .public_key
        .parse()
        .map_err(|_| "the hub does not say its key".to_owned())?;
    let _server = topology
        .server
        .run(|| Server::start(SERVER[0], topology.origin))
        .map_err(|e| format!("the server does not start: {e}"))?;
    row.begin();
    let transfer = |seed| {
        let (address, wanted) =
            (SocketAddr::new(SERVER[0], traffic::PORT), Wanted::whole(seed, BYTES));
        let got =
            topology.client.run(|| traffic::fetch(address, wanted, topology.origin, &row.done));
        got.map(|f| f.complete).map_err(|e| format!("the client failed: {e}"))
    };
    let several = |from: u64| -> Result<f64, String> {
        let times: Result<Vec<f64>, String> = (from..from + TRANSFERS).map(transfer).collect();
        median(times?).ok_or_else(|| "nothing was measured".into())
    };
    let calm = several(0)?;
    let before = memories(&topology)?[1];
    let (cpu, refused) = (load(hub)?, dropped(hub)?);
    let mut flood = Flood::start(&attacker, &key).map_err(|e| format!("no flood: {e}"))?;
    let begun = Instant::now();
    let stormy = several(TRANSFERS)?;
    let seconds = begun.elapsed().as_secs_f64();
    let offered = flood.stop() as f64 / seconds;
    let (cpu, refused) = (load(hub)? - cpu, dropped(hub)? - refused);
    let after = memories(&topology)?[1];
    let share = calm / stormy * 100.0;
    row.end(format!("{share:.0} % kept"));

    let grown = after.saturating_sub(before) as f64 / 1e6;
    Ok(vec![
        Checked::asked(
            "initiations offered to the hub, each from another port or address",
            "≥ 50,000 a second",
            format!("{offered:.0} a second"),
            offered >= ASKED as f64,
        ),
        Checked::asked(
            "20/2 Mbit/s, 600 ms: throughput that a link keeps meanwhile",
            "≥ 90 %",
            format!("{share:.1} %"),
            share >= 90.0,
        ),
        Checked::asked(
            "memory of the hub, before and after",
            "≤ 1 MB more",
            format!("{:.1} → {:.1} MB", before as f64 / 1e6, after as f64 / 1e6),
            grown <= 1.0,
        ),
        Checked::told(
            "the hub looked at and refused",
            format!("{:.0} a second", refused as f64 / seconds),
        ),
        Checked::told("processor of the hub", format!("{:.0} % of a core", cpu / seconds * 100.0)),
    ])
}

fn load(gateway: &gateway::Gateway) -> Result<f64, String> {
    gateway.load().map(|l| l.cpu).map_err(|e| e.to_string())
}

fn dropped(gateway: &gateway::Gateway) -> Result<u64, String> {
    let status = gateway.status().map_err(|e| e.to_string())?;
    Ok(status.node.dropped.values().sum())
}

/// A host on a cable of its own to the hub, which has 65,536 addresses more.
fn attach(topology: &Topology) -> Result<NetNs, OsError> {
    let attacker = NetNs::unique(PREFIX, "attacker")?;
    veth(&attacker, "eth0", &topology.gwb, "storm")?;
    attacker.address("eth0", "198.18.0.2/24")?;
    topology.gwb.address("storm", &format!("{HUB}/24"))?;
    attacker.ip("route add local 198.19.0.0/16 dev lo")?;
    topology.gwb.route("198.19.0.0/16 via 198.18.0.2")?;
    Ok(attacker)
}

/// Initiations, sent by a thread until stopped.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flood {
    fn start(attacker: &NetNs, hub: &PublicKey) -> io::Result<Flood> {
        let sockets: io::Result<Vec<UdpSocket>> = attacker.run(|| {
            (0..SOURCES)
                .map(|n| {
                    let socket = UdpSocket::bind((Ipv4Addr::new(198, 19, n as u8, 7), 0))?;
                    socket.connect((HUB, gateway::PORT))?;
                    socket.set_nonblocking(true)?;
                    Ok(socket)
                })
                .collect()
        });
        let (sockets, macs) = (sockets?, MacKeys::of(hub));
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (stop.clone(), sent.clone());
        let thread = thread::spawn(move || storm(&sockets, &macs, &stopped, &count));
        Ok(Flood { stop, sent, thread: Some(thread) })
    }

    /// How many were sent in all.
    fn stop(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop();
    }
}

fn storm(sockets: &[UdpSocket], macs: &MacKeys, stop: &AtomicBool, sent: &AtomicU64) {
    let begin = Instant::now();
    let mut packet = [0x5a; INITIATION];
    packet[..2].copy_from_slice(&[1, 1]);
    packet[INITIATION - MACS / 2..].fill(0);
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let due = begin.elapsed().as_micros() as u64 * OFFERED / 1_000_000;
        while number < due {
            packet[2..10].copy_from_slice(&number.to_be_bytes());
            let mac1 = macs.mac1(&packet[..INITIATION - MACS]);
            packet[INITIATION - MACS..INITIATION - MACS / 2].copy_from_slice(&mac1);
            // What the cable has no room for did not come.
            if sockets[number as usize % sockets.len()].send(&packet).is_ok() {
                sent.fetch_add(1, Ordering::Relaxed);
            }
            number += 1;
        }
        thread::sleep(TICK);
    }
}
