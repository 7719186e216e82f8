//! The service `bentpipe-web` at both gateways of an experiment.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use control::{ServiceState, ServiceStatus};

use super::gateway::{self, Pair};
use super::topology::Topology;

/// Until the services have said hello, and until what they still say has crossed.
const START: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(3);

static MADE: AtomicU64 = AtomicU64::new(0);

/// The program where every user may run it; gone when dropped.
pub struct Program(PathBuf);

impl Program {
    /// Has both gateways of the pair start it.
    ///
    /// # Errors
    /// A sentence.
    pub fn for_pair(pair: &mut Pair) -> Result<Program, String> {
        let program = Program::copy()?;
        let command = program.0.join("bentpipe-web").display().to_string();
        pair.node += &format!("[service.web]\ncommand = [{command:?}]\n");
        pair.peer += "[[peer.rule]]\nports = [80]\nvia = \"web\"\n";
        Ok(program)
    }

    fn copy() -> Result<Program, String> {
        let from = gateway::program().map_err(|e| e.to_string())?.with_file_name("bentpipe-web");
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("bplab-web-{}-{number}", std::process::id());
        let to = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&to);
        let copied = fs::create_dir(&to).and_then(|()| fs::copy(&from, to.join("bentpipe-web")));
        let program = Program(to);
        let why = |e| format!("cannot copy {}: {e}; `make build` makes it", from.display());
        copied.map(|_| program).map_err(why)
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
