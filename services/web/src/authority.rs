//! The operator's authority in files: made, and read again.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bentpipe_web::inspect::bypass::{Bypass, SHIPPED};
use bentpipe_web::inspect::certificate::{Authority, Serial, new_authority};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::clock::calendar;

/// In the directory that `--inspect` names: the authority, those above it, its key, and the list.
const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca.key";
const BYPASS: &str = "bypass";

/// Bytes of such a file.
const LONGEST: u64 = 1 << 20;

/// Nobody else's number for a certificate.
pub fn serial() -> Result<Serial, String> {
    let mut serial = Serial::default();
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| "there is no randomness")?;
    Ok(serial)
}

/// Reads the authority in this directory, and its list of names that are never opened.
///
/// # Errors
/// What is missing or wrong, where, and what to do.
pub fn load(dir: &Path) -> Result<(Authority, Bypass), String> {
    let path = |name: &str| dir.join(name);
    let pem = read(&path(CERTIFICATE))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let wrong = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let chain = chain.map_err(|why| wrong(&path(CERTIFICATE), &why))?;
    let key = PrivateKeyDer::from_pem_slice(&read_secret(&path(KEY))?)
        .map_err(|why| wrong(&path(KEY), &why))?;
    let authority =
        Authority::new(chain, &key, calendar()).map_err(|why| wrong(&path(CERTIFICATE), &why))?;
    let bypass = match bypass_stamp(dir) {
        Some(_) => read_bypass(dir)?,
        None => Bypass::parse(SHIPPED).map_err(|why| why.to_string())?,
    };
    Ok((authority, bypass))
}

/// What changes when somebody writes the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    file: u64,
    length: u64,
    /// Also of its rights, and where its time of writing is set back.
    changed: (i64, i64),
}

/// That of the list in this directory; `None` if there is none.
pub fn bypass_stamp(dir: &Path) -> Option<Stamp> {
    let about = dir.join(BYPASS).metadata().ok()?;
    let changed = (about.ctime(), about.ctime_nsec());
    Some(Stamp { file: about.ino(), length: about.len(), changed })
}

/// Reads the list in this directory.
///
/// # Errors
/// Which line is wrong.
pub fn read_bypass(dir: &Path) -> Result<Bypass, String> {
    let list = dir.join(BYPASS);
    let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", list.display());
    let text = String::from_utf8(read(&list)?).map_err(|_| wrong(&"no text"))?;
    Bypass::parse(&text).map_err(|why| wrong(&why))
}

fn open(path: &Path) -> Result<File, String> {
    File::open(path).map_err(|why| {
        let dir = path.parent().unwrap_or(path).display();
        format!(
            "{} cannot be read: {why}; `bentpipe-web ca {dir}`, as the service's user, makes it",
            path.display()
        )
    })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(LONGEST).read_to_end(&mut bytes);
    read.map_err(|why| format!("{} cannot be read: {why}", path.display()))?;
    Ok(bytes)
}

/// Reads what nobody else may read.
fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let about = open(path)?.metadata();
    let mode = about.map_err(|why| format!("{}: {why}", path.display()))?.mode();
    if mode & 0o077 != 0 {
        return Err(format!(
            "{0} is open to others than its owner (mode {1:03o}): whoever reads it can pass for any \
             site. chmod 600 {0}, and make a new authority if somebody may have read it",
            path.display(),
            mode & 0o777,
        ));
    }
    read(path)
}

/// Makes an authority in this directory, and says what is to be done with it.
///
/// # Errors
/// If there is one already, or it cannot be written.
pub fn make(dir: &Path) -> Result<String, String> {
    if !dir.exists() {
        let made = DirBuilder::new().mode(0o700).create(dir);
        made.map_err(|why| format!("{} cannot be made: {why}", dir.display()))?;
    }
    let dir = dir.canonicalize().map_err(|why| format!("{}: {why}", dir.display()))?;
    let node = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let [a, b, c, d, ..] = serial()?;
    let name = format!("bentpipe inspection, {} {a:02x}{b:02x}{c:02x}{d:02x}", node.trim());
    let (certificate, key) =
        new_authority(&name, serial()?, calendar()).map_err(|why| why.to_string())?;
    write_new(&dir.join(KEY), 0o600, &key)?;
    write_new(&dir.join(CERTIFICATE), 0o644, &certificate)?;
    if !dir.join(BYPASS).exists() {
        write_new(&dir.join(BYPASS), 0o644, SHIPPED)?;
    }
    Ok(advice(&dir, &name))
}

fn write_new(path: &PathBuf, mode: u32, text: &str) -> Result<(), String> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|why| match why.kind() {
        ErrorKind::AlreadyExists => {
            format!("{} is there already, and stays: name another directory", path.display())
        }
        _ => format!("{} cannot be made: {why}", path.display()),
    })
}

fn advice(dir: &Path, name: &str) -> String {
    let dir = dir.display();
    format!(
        "\"{name}\" is in {dir}:
  ca.pem   its certificate, which devices have to trust
  ca.key   its key: whoever reads it can pass for any site to these devices
  bypass   names that are never opened; edit it

First tell everybody whose device it is what will be read, and have their consent.

Then have the fleet's devices trust ca.pem:
  Debian, Ubuntu  cp ca.pem /usr/local/share/ca-certificates/bentpipe.crt; update-ca-certificates
  Fedora, RHEL    cp ca.pem /etc/pki/ca-trust/source/anchors/bentpipe.pem; update-ca-trust
  Windows         certutil -addstore Root ca.pem, or a group policy
  macOS           security add-trusted-cert -d -r trustRoot \\
                  -k /Library/Keychains/System.keychain ca.pem
  iOS, Android    a profile of the device management
  Firefox         the policy ImportEnterpriseRoots

And switch it on, in the terminal's file (port 443 with \"via\" at the hub's, too):
  command = [\"/usr/bin/bentpipe-web\", \"--inspect\", \"{dir}\"]
  ports   = [80, 443]
"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_authority_is_made_once_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca");
        assert!(make(&ca).unwrap().contains("update-ca-certificates"));
        let (authority, bypass) = load(&ca).unwrap();
        assert_eq!(authority.chain().len(), 1);
        assert_eq!(bypass, Bypass::parse(SHIPPED).unwrap());
        let again = make(&ca).unwrap_err();
        assert!(again.contains("ca.key") && again.contains("there already"), "{again}");
        std::fs::write(ca.join(BYPASS), "a.test mine\n").unwrap();
        assert_eq!(load(&ca).unwrap().1.why("a.test"), Some("mine"));
        std::fs::write(ca.join(BYPASS), "a/b\n").unwrap();
        assert!(load(&ca).unwrap_err().contains("line 1"));
        std::fs::remove_file(ca.join(BYPASS)).unwrap();
        assert!(load(&ca).unwrap().1.why("a.gov").is_some());
    }

    #[test]
    fn a_list_whose_rights_change_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path()).unwrap();
        let list = dir.path().join(BYPASS);
        let before = bypass_stamp(dir.path());
        // The file system's clock has steps.
        for mode in [0o600, 0o644].into_iter().cycle().take(1_000) {
            std::fs::set_permissions(&list, std::fs::Permissions::from_mode(mode)).unwrap();
            if bypass_stamp(dir.path()) != before {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("no change was seen");
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path()).unwrap();
        let key = dir.path().join(KEY);
        for mode in [0o640, 0o604, 0o660, 0o700 | 0o001] {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
            let why = load(dir.path()).unwrap_err();
            assert!(why.contains("chmod 600") && why.contains(&format!("{mode:03o}")), "{why}");
        }
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o400)).unwrap();
        load(dir.path()).unwrap();
        std::fs::remove_file(&key).unwrap();
        assert!(load(dir.path()).unwrap_err().contains("bentpipe-web ca"));
    }
}
