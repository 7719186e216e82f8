//! Two gateways that have nothing but modems between them, hosts behind both, and the meter of the
//! telephone network.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use control::{LineCommand, LineReport};
use exchange::{CallEnd, ExchangeConfig, LineConfig};
use link::keys::PrivateKey;
use os::netns::NetNs;
use os::proc::entropy;

use crate::modem::Modems;
use crate::testbed::gateway::Gateway;
use crate::testbed::topology::{Plan, SATELLITE, Topology, configure};

/// How long both ends may take to hang up.
const END: Duration = Duration::from_secs(60);
/// Between two looks at what is expected.
const LOOK: Duration = Duration::from_millis(10);
/// The peer's name in both files.
const PEER: &str = "far";

/// A directory for modems that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Directory(pub PathBuf);

impl Directory {
    /// The one that belongs to a host.
    pub fn of(host: &NetNs) -> Directory {
        Directory(std::env::temp_dir().join(format!("{}-modems", host.name())))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The pair. Fields are dropped from the top: programs before the network that they run in.
pub struct Called {
    /// The gateway that dials, on the client's side.
    pub caller: Gateway,
    _answerer: Gateway,
    /// Their modems and the meter.
    pub modems: Modems,
    /// When the meter's clock began.
    pub metered_from: Instant,
    _dir: Directory,
    /// The network around them.
    pub topology: Topology,
}

/// Modems of a ship, 100, and a shore, 200, on such a network.
fn numbered(network: ExchangeConfig) -> ExchangeConfig {
    let line = |name: &str, number: &str| LineConfig { name: name.into(), number: number.into() };
    ExchangeConfig { lines: vec![line("ship", "100"), line("shore", "200")], ..network }
}

/// What a file says of a link over such a network: ten bits carry a byte.
fn link(network: &ExchangeConfig) -> String {
    let (rate, delay) = (network.rate.as_bps() * 8 / 10, network.delay);
    format!("{{ send = \"{rate}bit\", receive = \"{rate}bit\", delay = \"{delay}\", mtu = 500 }}")
}

/// Modems without gateways, behind links in `dir`.
///
/// # Errors
/// If there are no ptys.
pub fn modems(network: ExchangeConfig, dir: &Path) -> Result<Modems, String> {
    fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    Modems::start(numbered(network), 1, Some(dir)).map_err(|e| e.to_string())
}

impl Called {
    /// Builds it; no call is made yet. `peer` is added to the caller's `[[peer]]`, `line` to its
    /// `[peer.line]`.
    ///
    /// # Errors
    /// If a network, a modem or a gateway cannot be had.
    pub fn start(network: ExchangeConfig, peer: &str, line: &str) -> Result<Called, String> {
        let topology = Topology::build(&Plan::default()).map_err(|e| e.to_string())?;
        for gateway in [&topology.gwa, &topology.gwb] {
            let down = format!("link set {SATELLITE} down\n");
            configure(gateway, &down).map_err(|e| e.to_string())?;
        }
        let dir = Directory::of(&topology.gwa);
        let (metered_from, facts) = (Instant::now(), link(&network));
        let modems = modems(network, &dir.0)?;
        let key = || entropy().map(PrivateKey::generate).map_err(|e| e.to_string());
        let (ship, shore) = (key()?, key()?);
        let file = |own: &PrivateKey, far: &PrivateKey, behind: &str, peer: &str, line: &str| {
            format!(
                "[node]\nprivate_key = \"{}\"\nlisten = \"0.0.0.0:4500\"\nlan = [\"lan\"]\n\
                 admin = \"admin.sock\"\n[[peer]]\nname = \"{PEER}\"\npublic_key = \"{}\"\n\
                 routes = [\"{behind}\"]\nlink = {facts}\n{peer}[peer.line]\n{line}",
                own.to_base64(),
                far.public(),
            )
        };
        let serial = |at: usize| format!("serial = \"{}\"\n", modems.paths()[at].display());
        let calls = serial(0) + "numbers = [\"200\"]\n" + line;
        let answers = serial(1) + "answer = true\nidle = \"5min\"\n";
        let allow = "allow = [\"10.77.3.0/24\"]\n";
        let answerer = file(&shore, &ship, "10.77.1.0/24", allow, &answers);
        let caller = file(&ship, &shore, "10.77.3.0/24", peer, &calls);
        let start = |side, host, file: &str| -> Result<Gateway, String> {
            let mut gateway = Gateway::start(side, host, file).map_err(|e| e.to_string())?;
            gateway.wait_until_ready().map_err(|e| e.to_string())?;
            Ok(gateway)
        };
        let answerer = start("server", &topology.gwb, &answerer)?;
        let caller = start("client", &topology.gwa, &caller)?;
        Ok(Called { caller, _answerer: answerer, modems, metered_from, _dir: dir, topology })
    }

    /// What the caller says of its line.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn line(&self) -> Result<LineReport, String> {
        let status = self.caller.status().map_err(|e| e.to_string())?;
        let link = status.links.into_iter().next().ok_or("the caller has no peer")?;
        link.line.ok_or_else(|| "the caller has no line".to_owned())
    }

    /// As `bentpipe link` of the caller.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn command(&self, command: LineCommand) -> Result<(), String> {
        self.caller.command_line(PEER, command).map_err(|e| e.to_string())
    }

    /// Waits until there were so many calls with carrier; when that was seen.
    ///
    /// # Errors
    /// If there are fewer after `patience`.
    pub fn wait_for_carrier(&self, calls: usize, patience: Duration) -> Result<Instant, String> {
        wait_for("carrier", patience, || Ok(self.modems.calls().len() >= calls))
    }

    /// Waits until the caller's line is in this state; when that was seen.
    ///
    /// # Errors
    /// If it is not after `patience`.
    pub fn wait_for_state(&self, state: &str, patience: Duration) -> Result<Instant, String> {
        wait_for(state, patience, || Ok(self.line()?.state == state))
    }

    /// Hangs up, and waits until both ends and the meter know it: from now on nothing is paid for.
    ///
    /// # Errors
    /// If a call goes on.
    pub fn hang_up(&self) -> Result<(), String> {
        self.command(LineCommand::Down)?;
        let is_over = || Ok(self.modems.calls().iter().all(|call| call.why != CallEnd::None));
        wait_for("the end of the call", END, is_over)?;
        self.wait_for_state("down", END).map(|_| ())
    }
}

fn wait_for(
    what: &str,
    patience: Duration,
    is_there: impl Fn() -> Result<bool, String>,
) -> Result<Instant, String> {
    let begin = Instant::now();
    while !is_there()? {
        if begin.elapsed() > patience {
            return Err(format!("no {what} within {} s", patience.as_secs()));
        }
        thread::sleep(LOOK);
    }
    Ok(Instant::now())
}
