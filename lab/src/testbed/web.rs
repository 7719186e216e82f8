//! The service `bentpipe-web` at both gateways of an experiment, alone or with what else a browser
//! needs of them.

use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use control::{ServiceState, ServiceStatus};

use super::gateway::{self, Pair};
use super::topology::Topology;

/// Until the services have said hello, and until what they still say has crossed.
const START: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(3);
/// Whom the service runs as where it has an authority, whose key is his: a number that belongs to
/// nobody.
const USER: u32 = 64_322;

static MADE: AtomicU64 = AtomicU64::new(0);

/// The programs where every user may run them; gone when dropped.
pub struct Program(PathBuf);

impl Program {
    /// Has both gateways of the pair start `bentpipe-web`.
    ///
    /// # Errors
    /// A sentence.
    pub fn for_pair(pair: &mut Pair) -> Result<Program, String> {
        let program = Program::copy(&["bentpipe-web"])?;
        let command = program.path("bentpipe-web");
        pair.node += &format!("[service.web]\ncommand = [{command:?}]\n");
        pair.peer += "[[peer.rule]]\nports = [80]\nvia = \"web\"\n";
        Ok(program)
    }

    /// Has both start `bentpipe-web` and `bentpipe-names`. HTTPS is opened if `inspects`; servers'
    /// certificates are then of an authority in `trust`.
    ///
    /// # Errors
    /// A sentence.
    pub fn for_browser(pair: &mut Pair, trust: &Path, inspects: bool) -> Result<Program, String> {
        let program = Program::copy(&["bentpipe-web", "bentpipe-names"])?;
        let [web, names] = ["bentpipe-web", "bentpipe-names"].map(|name| program.path(name));
        let mut words = vec![web, "--trust".into(), trust.display().to_string()];
        let (mut user, mut ports) = (String::new(), "80");
        if inspects {
            program.make_authority()?;
            words.extend(["--inspect".into(), program.authority().display().to_string()]);
            user = format!("user = \"{USER}\"\n");
            ports = "80, 443";
        }
        pair.node += &format!(
            "[service.web]\ncommand = {words:?}\n{user}[service.names]\ncommand = [{names:?}]\n"
        );
        pair.peer += &format!(
            "[[peer.rule]]\nports = [{ports}]\nvia = \"web\"\n\
             [[peer.rule]]\nports = [53]\nvia = \"names\"\n"
        );
        Ok(program)
    }

    /// The directory of the authority by which HTTPS is opened.
    pub fn authority(&self) -> PathBuf {
        self.0.join("ca")
    }

    fn make_authority(&self) -> Result<(), String> {
        let dir = self.authority();
        let made = Command::new(self.path("bentpipe-web")).arg("ca").arg(&dir).output();
        let made = made.map_err(|e| format!("bentpipe-web does not start: {e}"))?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned());
        }
        let files = fs::read_dir(&dir).map_err(|e| e.to_string())?;
        let files: io::Result<Vec<_>> = files.map(|file| file.map(|f| f.path())).collect();
        let files = files.map_err(|e| e.to_string())?;
        files.into_iter().chain([dir]).try_for_each(|path| {
            let given = chown(&path, Some(USER), Some(USER));
            given.map_err(|e| format!("cannot give {} away: {e}", path.display()))
        })
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn copy(names: &[&str]) -> Result<Program, String> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let to = std::env::temp_dir().join(format!("bplab-web-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&to);
        fs::create_dir(&to).map_err(|e| format!("cannot make {}: {e}", to.display()))?;
        let program = Program(to);
        for name in names {
            let from = gateway::program().map_err(|e| e.to_string())?.with_file_name(name);
            fs::copy(&from, program.0.join(name)).map_err(|e| {
                format!("cannot copy {}: {e}; `make build` makes it", from.display())
            })?;
        }
        Ok(program)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What both gateways tell of their services.
///
/// # Errors
/// If one does not answer.
pub fn services(topology: &Topology) -> Result<Vec<ServiceStatus>, String> {
    let gateways = topology.gateways.iter().flatten();
    let all: io::Result<Vec<_>> = gateways.map(|g| g.status().map(|s| s.services)).collect();
    all.map(|all| all.into_iter().flatten().collect()).map_err(|e| e.to_string())
}

/// Waits until so many services run, and a little longer.
///
/// # Errors
/// If they do not.
pub fn wait_for(topology: &Topology, wanted: usize) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let services = services(topology)?;
        let running = |s: &ServiceStatus| s.state == ServiceState::Running;
        if services.len() == wanted && services.iter().all(running) {
            break;
        }
        if begin.elapsed() > START {
            return Err(format!("bentpipe-web does not run: {services:?}"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(SETTLE);
    Ok(())
}
