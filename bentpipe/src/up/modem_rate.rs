//! What modems carry (`rate = "reported"`): files are read and commands are run on threads
//! of their own, because both may block.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration as StdDuration, Instant as StdInstant};

use link::keys::PublicKey;
use link::session::RateMode;
use os::OsError;
use os::poll::Waker;
use units::BitRate;

use crate::config::{Modem, ModemSource, Peer, rate_of};

/// A command that says nothing for so long is ended.
const PATIENCE: StdDuration = StdDuration::from_secs(10);
/// How often a running command is looked at.
const LOOK: StdDuration = StdDuration::from_millis(20);
/// More is not read: a rate takes a line.
const MOST: u64 = 4096;

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

/// The rate that the link to `peer` has when its modem carries `bps`: at most the
/// configured one.
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
    Ok(BitRate::from_bps(bps).min(peer.link.send))
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
            let text =
                output_of(command, PATIENCE, held).map_err(|e| format!("\"{command}\" {e}"))?;
            rate_of(&text).ok_or_else(|| format!("\"{command}\" says \"{text}\""))
        }
    }
}

fn first_line(from: impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    from.take(MOST).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().next().unwrap_or("").trim().to_owned())
}

/// The first line that a command prints, if it ends well and in time. It is ended when nobody holds
/// the other end of `held`.
fn output_of(command: &str, patience: StdDuration, held: &Receiver<()>) -> Result<String, String> {
    let out = run_through(command, Stdio::piped(), patience, held)?.ok_or("has no output")?;
    let unread = |e| format!("cannot be read: {e}");
    // What it left behind may hold its output open, in a session of its own, too.
    os::poll::set_nonblocking(&out).map_err(unread)?;
    first_line(UntilNow(out)).map_err(unread)
}

/// Runs a command that ends well and in time, whatever it prints. It is ended when nobody holds the
/// other end of `held`.
pub fn run_command(
    command: &str,
    patience: StdDuration,
    held: &Receiver<()>,
) -> Result<(), String> {
    run_through(command, Stdio::null(), patience, held).map(drop)
}

fn run_through(
    command: &str,
    output: Stdio,
    patience: StdDuration,
    held: &Receiver<()>,
) -> Result<Option<ChildStdout>, String> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null());
    // The gateway blocks signals that end programs, of which `kill` and `timeout` are to go on.
    let child =
        os::proc::reset_signals(&mut shell).spawn().map_err(|e| format!("cannot be run: {e}"))?;
    let mut group = Group(child);
    let until = StdInstant::now() + patience;
    while !os::proc::has_ended(&group.0).map_err(|e| format!("cannot be waited for: {e}"))? {
        if StdInstant::now() >= until {
            return Err(format!("has not ended within {} s", patience.as_secs()));
        }
        if matches!(held.recv_timeout(LOOK), Err(RecvTimeoutError::Disconnected)) {
            return Err("was ended with the gateway".to_owned());
        }
    }
    let out = group.0.stdout.take();
    os::proc::end_group(&mut group.0);
    let ended = group.0.wait().map_err(|e| format!("cannot be waited for: {e}"))?;
    match ended.success() {
        true => Ok(out),
        false => Err(format!("failed ({ended})")),
    }
}

/// What has been written so far: what would block is the end.
struct UntilNow(ChildStdout);

impl Read for UntilNow {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buf) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
            read => read,
        }
    }
}

/// A command and all that it started: they end together.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            os::proc::end_group(&mut self.0);
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
    fn what_a_command_starts_ends_with_it_and_it_with_the_gateway() {
        let (hold, held) = channel();
        let began = StdInstant::now();
        // What stays behind in the background has the output open.
        let text = "sleep 1000 & echo $! 20Mbit";
        let said = output_of(text, PATIENCE, &held).expect("an answer");
        let left = said.split(' ').next().expect("a number").to_owned();
        let is_gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{left}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        while !is_gone() {
            assert!(began.elapsed() < PATIENCE, "{left} goes on");
            thread::sleep(LOOK);
        }
        drop(hold);
        assert!(output_of("sleep 1000", PATIENCE, &held).unwrap_err().contains("gateway"));
        assert!(began.elapsed() < PATIENCE);
    }

    #[test]
    fn a_command_may_be_ended_by_signals_that_are_blocked_here() {
        let ended = thread::spawn(|| {
            let _signals = os::poll::Signals::take().expect("signals");
            let (_hold, held) = channel();
            run_command("kill -TERM $$; echo survived", PATIENCE, &held)
        });
        let why = ended.join().expect("it ends").expect_err("it was ended");
        assert!(why.contains("signal: 15"), "{why}");
    }

    #[test]
    fn nobody_waits_for_what_a_command_leaves_behind_or_prints() {
        let (_hold, held) = channel();
        let scratch = std::env::temp_dir().join(format!("bentpipe-left-{}", std::process::id()));
        let file = scratch.display();
        // In a session of its own, as the guide has it: it goes on, and has the output open. The
        // command ends when that session is there.
        let text = format!(
            "rm -f {file}; setsid sh -c 'echo $$ > {file}; exec sleep 100' & \
             until [ -s {file} ]; do sleep 0.01; done; echo 20Mbit"
        );
        assert_eq!(output_of(&text, PATIENCE, &held).as_deref(), Ok("20Mbit"));
        let left = || std::fs::read_to_string(&scratch).expect("a number");
        let end = || Command::new("kill").arg(left().trim()).status().expect("an end");
        assert!(end().success(), "it went on");
        assert_eq!(run_command(&text, PATIENCE, &held), Ok(()));
        assert!(end().success(), "it went on");
        assert_eq!(run_command("head -c 200000 /dev/zero", PATIENCE, &held), Ok(()));
        std::fs::remove_file(&scratch).expect("it is there");
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
