//! Commands of the configuration file, run by a shell: of lines, and of what modems carry. They
//! block.

use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration as StdDuration, Instant as StdInstant};

/// How often a running command is looked at.
const LOOK: StdDuration = StdDuration::from_millis(20);
/// More is not read: a rate takes a line.
const MOST: u64 = 4096;

/// The first line of what is read, of which there is little.
pub fn first_line(from: impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    from.take(MOST).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().next().unwrap_or("").trim().to_owned())
}

/// How messages call a command: its program, because arguments and variables may be secrets.
pub fn name_of(command: &str) -> String {
    let is_variable = |word: &&str| {
        let name = word.split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    // What is quoted may have spaces in it.
    let is_quoted = |word: &str| word.contains(['\'', '"', '\\', '$', '`']);
    if command.split_whitespace().take_while(is_variable).any(is_quoted) {
        return "sh …".to_owned();
    }
    let mut words = command.split_whitespace().skip_while(is_variable);
    let program = words.next().unwrap_or("sh");
    if program.contains('=') {
        return "sh …".to_owned();
    }
    match words.next() {
        Some(_) => format!("{program} …"),
        None => program.to_owned(),
    }
}

/// The first line that a command prints, if it ends well and in time. It is ended when nobody holds
/// the other end of `held`.
pub fn output_of(
    command: &str,
    patience: StdDuration,
    held: &Receiver<()>,
) -> Result<String, String> {
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
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const PATIENCE: StdDuration = StdDuration::from_secs(10);

    #[test]
    fn messages_name_no_arguments() {
        assert_eq!(name_of("snmpget -c SECRET 10.0.0.1 rate"), "snmpget …");
        assert_eq!(name_of("KEY=SECRET /usr/bin/rate"), "/usr/bin/rate");
        assert_eq!(name_of("KEY=SECRET"), "sh");
        assert_eq!(name_of("KEY='MY SECRET' snmpget"), "sh …");
        assert_eq!(name_of("(KEY=SECRET snmpget)"), "sh …");
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
}
