//! `bentpipe keygen`: the keys of a node.

use std::io::{IsTerminal as _, Read as _};
use std::process::ExitCode;

use console::{Global, print, print_json};
use link::keys::{PresharedKey, PrivateKey};
use miette::{IntoDiagnostic as _, miette};
use serde_json::json;

/// Makes the keys of a node.
///
/// The private line goes into this node's file, the public line into its peers' files.
///
/// Examples: bentpipe keygen; bentpipe keygen --psk; bentpipe keygen --public < private.key
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Read a private key from standard input and print its public key.
    #[arg(long, conflicts_with = "psk")]
    public: bool,
    /// Make a pre-shared key, the same for both ends of one link.
    #[arg(long)]
    psk: bool,
}

/// Longest input that may hold a key, bare or as a line of a configuration.
const MAX_INPUT: u64 = 1024;

/// Prints keys as lines of a configuration.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    if args.public {
        let key = read_private(std::io::stdin().lock())?;
        let public = key.public().to_string();
        say(global, &[("public_key", &public)])?;
    } else if args.psk {
        say(
            global,
            &[(
                "preshared_key",
                &PresharedKey::from_bytes(os::proc::entropy().into_diagnostic()?).to_base64(),
            )],
        )?;
    } else {
        let key = PrivateKey::generate(os::proc::entropy().into_diagnostic()?);
        let public = key.public().to_string();
        say(global, &[("private_key", &key.to_base64()), ("public_key", &public)])?;
    }
    Ok(ExitCode::SUCCESS)
}

fn say(global: &Global, lines: &[(&str, &str)]) -> miette::Result<()> {
    if global.json {
        let object: serde_json::Map<_, _> =
            lines.iter().map(|(name, key)| ((*name).to_owned(), json!(key))).collect();
        return print_json(&object);
    }
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let text: String =
        lines.iter().map(|(name, key)| format!("{name:<width$} = \"{key}\"\n")).collect();
    print(&text)
}

/// A private key, bare as `wg genkey` prints it or as this program's own line.
fn read_private(input: impl std::io::Read) -> miette::Result<PrivateKey> {
    if std::io::stdin().is_terminal() {
        eprintln!("paste the private key and press Enter, then Ctrl-D");
    }
    let mut text = String::new();
    input.take(MAX_INPUT).read_to_string(&mut text).into_diagnostic()?;
    let line = text.lines().map(str::trim).find(|l| !l.is_empty()).unwrap_or("");
    let key = match line.strip_prefix("private_key").map(str::trim_start) {
        Some(rest) => rest.trim_start_matches('=').trim().trim_matches('"'),
        None => line,
    };
    key.parse().map_err(|e| miette!("standard input holds {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_key_is_read_bare_and_as_a_line_of_a_file() {
        let key = PrivateKey::generate([7; 32]);
        let text = key.to_base64();
        for input in [
            text.clone(),
            format!("\n  {text}\n"),
            format!("private_key = \"{text}\"\npublic_key = \"x\"\n"),
            format!("private_key={text}"),
        ] {
            assert_eq!(read_private(input.as_bytes()).expect("a key"), key);
        }
    }

    #[test]
    fn other_input_is_refused_without_repeating_it() {
        let text = PrivateKey::generate([7; 32]).to_base64();
        let half = &text[..20];
        let e = read_private(half.as_bytes()).expect_err("half a key");
        assert!(!e.to_string().contains(half));
    }
}
