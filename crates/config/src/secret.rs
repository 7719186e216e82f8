//! Key files, and keeping keys off the screen.

use std::fmt::Display;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use link::keys::{KeyError, PresharedKey, PrivateKey, PublicKey};

use super::problem::Problem;
use super::reader::{At, FromValue, Section, Wrong};
use console::human::reason;

/// A key file holds 44 characters; this leaves room for space around them.
const MAX_KEY_FILE: u64 = 1024;

impl FromValue for PrivateKey {
    const WANTED: &'static str = "a private key in quotes, as `bentpipe keygen` prints it";
    fn from_text(text: &str) -> Result<PrivateKey, Wrong> {
        read_key(text)
    }
}

impl FromValue for PublicKey {
    const WANTED: &'static str = "a public key in quotes, as `bentpipe keygen` prints it";
    fn from_text(text: &str) -> Result<PublicKey, Wrong> {
        read_key(text)
    }
}

impl FromValue for PresharedKey {
    const WANTED: &'static str = "a key in quotes, as `bentpipe keygen --psk` prints it";
    fn from_text(text: &str) -> Result<PresharedKey, Wrong> {
        read_key(text)
    }
}

fn read_key<K: FromStr<Err = KeyError>>(text: &str) -> Result<K, Wrong> {
    text.parse::<K>().map_err(|e| Wrong::new(e.to_string()))
}

/// A key given as `key = "…"` or, from a file of its own, as `key_file = "…"`.
/// `dir` is where relative names start.
pub(super) fn read<K>(
    section: &mut Section<'_>,
    key: &'static str,
    key_file: &'static str,
    dir: &Path,
) -> Option<At<K>>
where
    K: FromValue + FromStr,
    K::Err: Display,
{
    let inline = section.get::<K>(key);
    let file = section.get::<String>(key_file);
    if section.has(key)
        && let Some(file) = &file
    {
        let message = format!("{} has both {key} and {key_file}", section.title());
        section.problems().add(Problem::at(file.span.clone(), message).help("keep one of them"));
        return None;
    }
    let Some(file) = file else { return inline };
    let path = dir.join(&file.value);
    match load::<K>(&path) {
        Ok(key) => Some(At { value: key, span: file.span }),
        Err(wrong) => {
            let problem = Problem::at(file.span, wrong.message);
            section.problems().add(match wrong.help {
                Some(help) => problem.help(help),
                None => problem,
            });
            None
        }
    }
}

/// The key in the file `path`, which only its owner may be able to read.
fn load<K>(path: &Path) -> Result<K, Wrong>
where
    K: FromStr,
    K::Err: Display,
{
    let name = path.display();
    let unreadable =
        |e: std::io::Error| Wrong::new(format!("cannot read the key file {name}: {}", reason(&e)));
    let file = fs::File::open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if let Some(wrong) = mode_fault(path, about.mode()) {
        return Err(wrong);
    }
    let mut text = String::new();
    file.take(MAX_KEY_FILE + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_KEY_FILE {
        return Err(Wrong::new(format!("the key file {name} holds more than a key")));
    }
    text.trim().parse::<K>().map_err(|e| Wrong::new(format!("the key file {name} holds {e}")))
}

/// What is wrong with the permission bits `mode` of a file with a secret in it.
pub(super) fn mode_fault(path: &Path, mode: u32) -> Option<Wrong> {
    (mode & 0o077 != 0).then(|| {
        Wrong::new(format!(
            "{} is open to others than its owner (mode {:04o})",
            path.display(),
            mode & 0o7777
        ))
        .help(format!("chmod 600 {}", shell_word(path)))
    })
}

/// The path as a shell reads it.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// The directory that relative names in the file `path` start from.
pub(super) fn dir_of(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Shortest run of base64 letters that may be (most of) a key.
const SUSPECT: usize = 16;

/// The text with what may be a secret key replaced by stars, byte for byte, so that
/// places stay right: messages quote lines of the file.
pub(super) fn mask(text: &str) -> String {
    text.split_inclusive('\n').map(mask_line).collect()
}

fn mask_line(line: &str) -> String {
    // Padding is no secret, and "=" ends a name.
    let base64 = |b: &u8| b.is_ascii_alphanumeric() || *b == b'+' || *b == b'/';
    let mut masked = line.as_bytes().to_vec();
    let mut at = 0;
    while at < masked.len() {
        let run = masked[at..].iter().take_while(|b| base64(b)).count();
        if run >= suspect_length(&line[..at]) {
            masked[at..at + run].fill(b'*');
        }
        // A run is ASCII, so the next byte starts a character or lies within one.
        at += run.max(1);
        while !line.is_char_boundary(at) {
            at += 1;
        }
    }
    // Only whole ASCII bytes were replaced, so this stays UTF-8.
    String::from_utf8(masked).unwrap_or_default()
}

/// How long a run of base64 letters after `before` must be to be taken for a secret.
fn suspect_length(before: &str) -> usize {
    let name_letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name = before.rsplit_once('=').map_or("", |(left, _)| {
        let left = left.trim_end();
        &left[left.trim_end_matches(name_letter).len()..]
    });
    let name = name.to_ascii_lowercase();
    if name.contains("pub") || name.ends_with("_file") {
        usize::MAX
    } else if ["priv", "psk", "shared", "secret"].iter().any(|word| name.contains(word)) {
        SUSPECT
    } else {
        40
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

    #[test]
    fn private_keys_are_masked_and_public_ones_are_not() {
        let text = format!("private_key = \"{KEY}\"\npublic_key = \"{KEY}\"\nname = \"x\"\n");
        let masked = mask(&text);
        assert_eq!(masked.len(), text.len());
        assert_eq!(masked.matches(KEY).count(), 1);
        assert!(masked.contains(&format!("public_key = \"{KEY}\"")));
    }

    #[test]
    fn a_key_is_masked_under_a_misspelt_name_and_with_a_quote_missing() {
        for line in [
            format!("privatekey = \"{KEY}"),
            format!("pre-shared = {KEY}"),
            format!("key = \"{KEY}\""),
            format!("psk = \"{}\"", &KEY[..20]),
            format!("peer = {{ public_key = \"x\", preshared_key = \"{KEY}\" }}"),
            format!("é private_key={KEY}"),
            KEY.to_owned(),
        ] {
            assert!(!mask(&line).contains(&KEY[..16]), "{line}");
        }
    }

    #[test]
    fn file_modes_that_let_others_in_are_named_with_their_cure() {
        let wrong = mode_fault(Path::new("/etc/a key"), 0o100_640).expect("a fault");
        assert!(wrong.message.contains("(mode 0640)"));
        assert_eq!(wrong.help.as_deref(), Some("chmod 600 '/etc/a key'"));
        assert!(mode_fault(Path::new("/k"), 0o100_600).is_none());
        assert!(mode_fault(Path::new("/k"), 0o100_400).is_none());
    }
}
