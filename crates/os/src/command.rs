//! Runs the system's own tools (`ip`, `nft`) and turns their complaints into errors.

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use crate::OsError;

/// Runs `command` with `input` on its standard input; its output if it succeeded.
pub(crate) fn run(command: &mut Command, input: &str) -> Result<String, OsError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = feed(command, input).map_err(|e| start_error(&name, e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|l| !l.trim().is_empty()).unwrap_or("it gave no reason").trim();
    let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    Err(OsError::refused(format!("`{name} {}` failed: {line}", args.join(" "))))
}

/// A missing tool is the usual reason, and the package that has it the remedy.
pub(crate) fn start_error(name: &str, e: io::Error) -> OsError {
    let package = if name.ends_with("nft") { "nftables" } else { "iproute2" };
    let missing = e.kind() == io::ErrorKind::NotFound;
    let error = OsError::new(format!("run `{name}`"), e);
    if missing { error.mend(format!("install it: `apt install {package}`")) } else { error }
}

fn feed(command: &mut Command, input: &str) -> io::Result<Output> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that has already failed does not read; its own words say more.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
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
        assert_eq!(run(&mut Command::new("cat"), "x\n").unwrap(), "x\n");
    }
}
