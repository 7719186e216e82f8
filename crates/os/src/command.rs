//! Runs the system's own tools (`ip`, `nft`) and turns their complaints into errors.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Output, Stdio};

use units::{Duration, Instant};

use crate::OsError;
use crate::poll::Clock;
use crate::sys::{check, set_nonblocking};

/// How long a tool may take. It takes some milliseconds; whoever waits for it does nothing else.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `command` with `input` on its standard input; its output if it succeeded.
pub(crate) fn run(command: &mut Command, input: &str) -> Result<String, OsError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let patience = PATIENCE;
    #[cfg(test)]
    let (mut broken, patience) = crate::faults::tool(command, patience);
    #[cfg(test)]
    let command = broken.as_mut().unwrap_or(command);
    let output = match feed(command, input, patience) {
        Err(e) if e.kind() == ErrorKind::TimedOut => {
            let words = said(command);
            return Err(OsError::refused(format!("`{words}` did not end within {PATIENCE}")));
        }
        other => other.map_err(|e| start_error(&name, e))?,
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let mut lines = complaint.lines().filter(|l| !l.trim().is_empty());
    let line = lines.next().unwrap_or("it gave no reason").trim();
    Err(OsError::refused(format!("`{}` failed: {line}", said(command))))
}

/// The command as it was meant to be typed.
fn said(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A missing tool is the usual reason, and the package that has it the remedy.
pub(crate) fn start_error(name: &str, e: io::Error) -> OsError {
    let package = if name.ends_with("nft") { "nftables" } else { "iproute2" };
    // A name is looked for along PATH: where it is nowhere, and a directory there is closed to
    // whom the child runs as, the kernel's last word is about the directory.
    let denied = e.kind() == io::ErrorKind::PermissionDenied && !name.contains('/');
    let missing = e.kind() == io::ErrorKind::NotFound || denied;
    let error = OsError::new(format!("run `{name}`"), e);
    if missing { error.mend(format!("install it: `apt install {package}`")) } else { error }
}

/// One that does not end in time is killed.
fn feed(command: &mut Command, input: &str, patience: Duration) -> io::Result<Output> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let clock = Clock::start();
    let end = clock.now() + patience;
    let said = converse(&mut child, input.as_bytes(), &clock, end).inspect_err(|_| {
        let _ = child.kill();
    });
    let status = child.wait()?;
    said.map(|[stdout, stderr]| Output { status, stdout, stderr })
}

/// Writes the input and reads both outputs until the child has ended.
fn converse(
    child: &mut Child,
    mut input: &[u8],
    clock: &Clock,
    end: Instant,
) -> io::Result<[Vec<u8>; 2]> {
    let mut said = [Vec::new(), Vec::new()];
    let (mut stdin, mut stdout, mut stderr) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take());
    stdin.iter().try_for_each(|pipe| set_nonblocking(pipe.as_fd()))?;
    while stdout.is_some() || stderr.is_some() || child.try_wait()?.is_none() {
        if input.is_empty() {
            stdin = None;
        }
        let left = end.since(clock.now()).as_millis();
        if left == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        let of =
            |fd: Option<i32>, events| libc::pollfd { fd: fd.unwrap_or(-1), events, revents: 0 };
        let mut polled = [
            of(stdin.as_ref().map(AsRawFd::as_raw_fd), libc::POLLOUT),
            of(stdout.as_ref().map(AsRawFd::as_raw_fd), libc::POLLIN),
            of(stderr.as_ref().map(AsRawFd::as_raw_fd), libc::POLLIN),
        ];
        // Nothing tells of the end of one that has closed its outputs.
        let most = if stdout.is_none() && stderr.is_none() { 5 } else { left.min(1_000) };
        // SAFETY: the array outlives the call, and its length is its own.
        let ready = check(unsafe {
            libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, most as libc::c_int)
        });
        match ready {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        if polled[0].revents != 0
            && let Some(pipe) = &mut stdin
        {
            match pipe.write(input) {
                Ok(n) => input = &input[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // A child that has already failed does not read; its own words say more.
                Err(_) => stdin = None,
            }
        }
        if polled[1].revents != 0 {
            hear(&mut stdout, &mut said[0])?;
        }
        if polled[2].revents != 0 {
            hear(&mut stderr, &mut said[1])?;
        }
    }
    Ok(said)
}

/// Reads what is there; at the end there is no pipe any more.
fn hear(pipe: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<()> {
    let mut buf = [0; 16 << 10];
    if let Some(open) = pipe {
        match open.read(&mut buf)? {
            0 => *pipe = None,
            n => into.extend_from_slice(&buf[..n]),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_tool_is_quoted_and_a_missing_one_named() {
        let e = run(Command::new("ip").arg("nonsense"), "").unwrap_err().to_string();
        assert!(e.starts_with("`ip nonsense` failed: Object"), "{e}");
        let e = run(&mut Command::new("no-such-nft"), "").unwrap_err().to_string();
        assert!(e.ends_with("install it: `apt install nftables`"), "{e}");
        let e = start_error("nft", ErrorKind::PermissionDenied.into()).to_string();
        assert!(e.ends_with("install it: `apt install nftables`"), "{e}");
        assert_eq!(run(&mut Command::new("cat"), "x\n").unwrap(), "x\n");
        let long = "0123456789\n".repeat(100_000);
        assert!(run(&mut Command::new("cat"), &long).unwrap() == long, "more than pipes hold");
    }

    #[test]
    fn a_tool_that_hangs_is_killed() {
        let long = "x".repeat(1 << 20);
        for script in ["exec sleep 60", "exec >&- 2>&-; exec sleep 60", "cat; exec sleep 60"] {
            let mut command = Command::new("sh");
            let e = feed(command.args(["-c", script]), &long, Duration::from_millis(300));
            assert_eq!(e.unwrap_err().kind(), ErrorKind::TimedOut, "{script}");
        }
    }
}
