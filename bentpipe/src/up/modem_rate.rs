//! What modems carry (`rate = "reported"`): files are read and commands are run on threads
//! of their own, because both may block.

use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration as StdDuration;

use link::keys::PublicKey;
use link::session::RateMode;
use os::OsError;
use os::poll::Waker;
use units::BitRate;

use super::shell::{first_line, name_of, output_of};
use crate::config::{Modem, ModemSource, Peer, rate_of};

/// A command that says nothing for so long is ended.
const PATIENCE: StdDuration = StdDuration::from_secs(10);
/// What the modem of a peer's link says, when it has changed.
pub struct Report {
    /// Whose.
    pub peer: PublicKey,
    /// The rate, or why there is none, in one sentence.
    pub rate: Result<BitRate, String>,
}

/// A thread for each modem that is asked.
pub struct Modems {
    reports: Receiver<Report>,
    report_to: Sender<Report>,
    pub waker: Waker,
    watched: Vec<(PublicKey, Modem, Sender<()>)>,
    /// Those that run commands, which end with them.
    commanders: Vec<JoinHandle<()>>,
}

impl Drop for Modems {
    fn drop(&mut self) {
        self.watched.clear();
        for thread in self.commanders.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Modems {
    /// None is watched yet.
    pub fn new() -> Result<Modems, OsError> {
        let (report_to, reports) = channel();
        Ok(Modems {
            reports,
            report_to,
            waker: Waker::new()?,
            watched: Vec::new(),
            commanders: Vec::new(),
        })
    }

    /// Watches the modems of these peers and no others.
    pub fn watch(&mut self, peers: &[std::sync::Arc<Peer>]) {
        let wanted: Vec<(PublicKey, &Modem)> =
            peers.iter().filter_map(|p| Some((p.public_key, p.link.modem.as_ref()?))).collect();
        // A thread ends when nobody holds the other end of its channel.
        self.watched.retain(|(key, modem, _)| wanted.contains(&(*key, modem)));
        for (key, modem) in wanted {
            if !self.watched.iter().any(|(k, m, _)| *k == key && m == modem) {
                let (hold, held) = channel();
                let (reports, waker, modem) =
                    (self.report_to.clone(), self.waker.clone(), modem.clone());
                self.watched.push((key, modem.clone(), hold));
                let is_command = matches!(modem.source, ModemSource::Command(_));
                // Without a thread the configured rate stays in force.
                let thread = thread::Builder::new()
                    .name("modem".into())
                    .spawn(move || run(key, &modem, &held, &reports, &waker));
                self.commanders.retain(|thread| !thread.is_finished());
                self.commanders.extend(thread.ok().filter(|_| is_command));
            }
        }
    }

    /// The next report; the waker tells when there is one.
    pub fn next(&mut self) -> Option<Report> {
        self.reports.try_recv().ok()
    }
}

/// The rate that the modem of `peer` reports as `bps`.
pub(super) fn reported_rate(peer: &Peer, bps: u64) -> Result<BitRate, String> {
    if peer.link.rate != RateMode::Reported {
        return Err(format!(
            "the rate of peer \"{}\" is not reported: its link needs rate = \"reported\"",
            peer.name
        ));
    }
    if bps == 0 {
        return Err("a link's rate is above 0".to_owned());
    }
    Ok(BitRate::from_bps(bps))
}

fn run(
    peer: PublicKey,
    modem: &Modem,
    held: &Receiver<()>,
    reports: &Sender<Report>,
    waker: &Waker,
) {
    let mut last = None;
    loop {
        let rate = ask(&modem.source, held);
        if matches!(held.try_recv(), Err(TryRecvError::Disconnected)) {
            return; // Nobody wants to know any more: another one may be asked already.
        }
        if last.as_ref() != Some(&rate) {
            last = Some(rate.clone());
            if reports.send(Report { peer, rate }).is_err() {
                return;
            }
            waker.wake();
        }
        match held.recv_timeout(modem.every.to_std()) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}

fn ask(source: &ModemSource, held: &Receiver<()>) -> Result<BitRate, String> {
    match source {
        ModemSource::File(path) => {
            let cannot = |e| format!("cannot read {}: {e}", path.display());
            let file = File::open(path).map_err(cannot)?;
            let text = first_line(file).map_err(cannot)?;
            rate_of(&text).ok_or_else(|| format!("{} says \"{text}\"", path.display()))
        }
        ModemSource::Command(command) => {
            let name = name_of(command);
            let text = output_of(command, PATIENCE, held).map_err(|e| format!("\"{name}\" {e}"))?;
            rate_of(&text).ok_or_else(|| format!("\"{name}\" says \"{text}\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_prints_the_rate_or_says_why_not() {
        let (_hold, held) = channel();
        let ask = |text: &str| ask(&ModemSource::Command(text.to_owned()), &held);
        assert_eq!(ask("echo 20Mbit; echo more"), Ok(BitRate::from_mbps(20)));
        assert!(ask("exit 3").unwrap_err().contains("failed"));
        assert!(ask("echo no").unwrap_err().contains("says \"no\""));
    }

    #[test]
    fn a_file_that_changes_is_reported_once() {
        let path = std::env::temp_dir().join(format!("bentpipe-modem-{}", std::process::id()));
        let source = ModemSource::File(path.clone());
        let (hold, held) = channel();
        assert!(ask(&source, &held).is_err());
        let modem = Modem { source, every: units::Duration::from_millis(100) };
        let (report_to, reports) = channel();
        let waker = Waker::new().expect("a waker");
        let peer = *link::keys::PrivateKey::from_bytes([7; 32]).public();
        std::fs::write(&path, "20Mbit\n").expect("a file");
        let thread = thread::spawn(move || run(peer, &modem, &held, &report_to, &waker));
        let next = || reports.recv_timeout(StdDuration::from_secs(20)).expect("a report").rate;
        assert_eq!(next(), Ok(BitRate::from_mbps(20)));
        // Replaced whole, so that nothing half-written is seen.
        let new = path.with_extension("new");
        std::fs::write(&new, "8000000").expect("a file");
        std::fs::rename(&new, &path).expect("a move");
        assert_eq!(next(), Ok(BitRate::from_mbps(8)));
        std::fs::remove_file(&path).expect("gone");
        assert!(next().is_err());
        drop(hold);
        thread.join().expect("it ends");
        assert!(reports.recv().is_err(), "nothing is said twice");
    }
}
