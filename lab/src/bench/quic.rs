//! A QUIC download over a link that loses packets: what hiding the link's losses from it makes
//! of it (R-LLLL, the reliable class).

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Child, Stdio};

use os::netns::NetNs;
use os::proc::{die_with_parent, reset_signals};

use super::checked::Checked;
use super::setup::{link, lossy};
use crate::testbed::gateway::Pair;
use crate::testbed::measure::median;
use crate::testbed::progress::Board;
use crate::testbed::topology::{Plan, SERVER, Topology};

/// Where the program of the two hosts is; `make bench` builds it and sets this.
const PROGRAM: &str = "BENTPIPE_QUIC_HOST";
const SECONDS: u64 = 60;
/// Random losses are much the same over a minute: more runs would take long and tell little.
const MOST_RUNS: u64 = 3;

/// 20/2 Mbit/s, 600 ms of round trip, 1 % lost each way; medians.
pub fn quic(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    let program = std::env::var_os(PROGRAM).ok_or_else(|| {
        format!("{PROGRAM} is not set to the program of lab/quic; `make bench` does that")
    })?;
    let ways = [("QUIC, no gateways", None), ("QUIC, gateways", Some(Pair::default()))];
    let mut got = [0.0; 2];
    for ((name, pair), got) in ways.into_iter().zip(&mut got) {
        let runs: Result<Vec<f64>, String> = (1..=seeds.clamp(1, MOST_RUNS))
            .map(|seed| {
                download(board, name, seed, &program, pair.clone()).map(|bytes| bytes as f64)
            })
            .collect();
        *got = median(runs?).expect("one run at least");
    }
    let [plain, carried] = got;
    let mbit = |bytes: f64| bytes * 8.0 / SECONDS as f64 / 1e6;
    let gain = carried / plain.max(1.0);
    Ok(vec![
        Checked::told("QUIC without gateways, 20 Mbit/s, 1 % lost", rate(mbit(plain))),
        Checked::told("with them, in order as by default", rate(mbit(carried))),
        Checked::asked(
            "gain of the download",
            "≥ 5 times",
            format!("{gain:.1} times"),
            gain >= 5.0,
        ),
    ])
}

fn rate(mbit: f64) -> String {
    format!("{mbit:.2} Mbit/s")
}

/// Bytes that a client gets within the time.
fn download(
    board: &Board,
    name: &str,
    seed: u64,
    program: &OsString,
    gateways: Option<Pair>,
) -> Result<u64, String> {
    let row = board.row(name, SECONDS);
    let link = lossy(link(20_000_000, 2_000_000, 300), 0.01);
    let plan = Plan { link, seed, gateways, ..Plan::default() };
    let topology = Topology::build(&plan).map_err(|e| e.to_string())?;
    let failed = |e: io::Error| format!("{}: {e}", Path::new(program).display());
    let _server = Host::serve(&topology.server, program).map_err(failed)?;
    row.begin();
    let mut client = topology.client.command(&program.to_string_lossy());
    client.args(["get", &at(), &SECONDS.to_string()]).stdin(Stdio::null());
    let output = die_with_parent(reset_signals(&mut client)).output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout);
    let bytes = said.trim().parse().map_err(|_| {
        format!("the QUIC client failed: {}", String::from_utf8_lossy(&output.stderr).trim())
    })?;
    row.end(format!("{bytes} bytes"));
    Ok(bytes)
}

fn at() -> String {
    format!("{}:443", SERVER[0])
}

/// A running server; ends with it.
struct Host(Child);

impl Host {
    /// Starts it and waits until it listens.
    fn serve(host: &NetNs, program: &OsString) -> io::Result<Host> {
        let mut command = host.command(&program.to_string_lossy());
        command.args(["serve", &at()]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = die_with_parent(reset_signals(&mut command)).spawn()?;
        let out = child.stdout.take();
        let server = Host(child);
        out.ok_or(io::ErrorKind::BrokenPipe)?.read_exact(&mut [0])?;
        Ok(server)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
