//! A real browser, headless Chromium, that loads a page and tells when it had all of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use os::netns::NetNs;
use os::proc::{die_with_parent, reset_signals};

use crate::testbed::gateway::resolving;

/// Seconds until a load has failed.
const PATIENCE: &str = "90";

static STARTED: AtomicU64 = AtomicU64::new(0);

/// What a page told (`six_hosts`).
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// From entering its address to its load event, s.
    pub time: f64,
    /// Objects, with the page's text.
    pub objects: usize,
    /// Images in its text that can be shown.
    pub shown: usize,
    /// What the text came by, as browsers call it: `http/1.1`, `h2`.
    pub protocol: String,
}

/// The fingerprint of the key of the last certificate in a file, by which a browser is told to
/// trust it.
///
/// # Errors
/// A sentence.
pub fn fingerprint(certificate: &Path) -> Result<String, String> {
    const SCRIPT: &str = "openssl x509 -in \"$1\" -pubkey -noout | openssl pkey -pubin -outform der | \
                          openssl dgst -sha256 -binary | base64";
    let told = Command::new("sh").args(["-c", SCRIPT, "sh"]).arg(certificate).output();
    let told = told.map_err(|e| format!("no shell: {e}"))?;
    match (String::from_utf8_lossy(&told.stdout).trim(), told.status.success()) {
        (text, true) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("openssl: {}", String::from_utf8_lossy(&told.stderr))),
    }
}

/// Loads a page in a browser that has never been used: it keeps nothing, and has no connection. It
/// asks the DNS server that `resolver` names, and trusts the authority of this fingerprint.
///
/// # Errors
/// A sentence, also if the page tells nothing.
pub fn load(ns: &NetNs, resolver: &Path, trust: &str, url: &str) -> Result<Loaded, String> {
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let home = Home(std::env::temp_dir().join(format!("{}-browser-{number}", ns.name())));
    let _ = fs::remove_dir_all(&home.0);
    fs::create_dir(&home.0).map_err(|e| format!("cannot make {}: {e}", home.0.display()))?;
    let mut command = resolving(ns, resolver, "timeout".as_ref());
    command.args([PATIENCE, "chromium-headless-shell", "--no-sandbox", "--disable-gpu"]);
    // Nothing else than the page, and nothing by QUIC, which neither way carries any faster.
    command.args([
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-quic",
    ]);
    // An address is taken as it is written.
    command.arg("--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable");
    command.args(["--no-first-run", "--disable-extensions", "--dump-dom", "--timeout=80000"]);
    command.arg(format!("--user-data-dir={}/profile", home.0.display()));
    command.arg(format!("--ignore-certificate-errors-spki-list={trust}")).arg(url);
    command.env("HOME", &home.0).stdin(Stdio::null());
    let shown = die_with_parent(reset_signals(&mut command)).output();
    let shown = shown.map_err(|e| format!("no browser: {e}"))?;
    let text = String::from_utf8_lossy(&shown.stdout);
    told(&text).ok_or_else(|| {
        let said = String::from_utf8_lossy(&shown.stderr).into_owned();
        let lines: Vec<&str> = said.lines().rev().take(5).collect();
        format!("chromium-headless-shell does not load {url} ({}): {lines:?}", shown.status)
    })
}

/// Where it keeps what it will forget.
struct Home(PathBuf);

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Behind the page's own script, which has the same word in it.
fn told(text: &str) -> Option<Loaded> {
    let told = text.split("id=\"told\">loaded ").nth(1)?.split('<').next()?;
    let mut words = told.split(' ');
    let milliseconds: f64 = words.next()?.parse().ok()?;
    let (objects, shown) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let protocol = words.next()?.to_owned();
    (words.next() == Some("end")).then_some(Loaded {
        time: milliseconds / 1e3,
        objects,
        shown,
        protocol,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_tells_is_read_and_a_page_that_tells_nothing_is_none() {
        let text = "<p id=\"told\">loaded 1234.5 60 36 http/1.1 end</p><script>'loaded'</script>";
        let loaded = Loaded { time: 1.2345, objects: 60, shown: 36, protocol: "http/1.1".into() };
        assert_eq!(told(text), Some(loaded));
        for wrong in ["", "<p id=\"told\"></p>", "<p id=\"told\">loaded 12 60 36 h2</p>"] {
            assert_eq!(told(wrong), None);
        }
    }
}
