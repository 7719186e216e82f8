//! What the documentation prints, for tests that run it: as it stands there, but for keys,
//! addresses, interfaces and paths, in whose place a test puts its own.

use crate::gateway::Keys;

pub const README: &str = include_str!("../../../README.md");
pub const GUIDE: &str = include_str!("../../../docs/operators-guide.md");
pub const COMPRESSION: &str = include_str!("../../../docs/compression.md");
pub const DEDUPLICATION: &str = include_str!("../../../docs/deduplication.md");
pub const FTP: &str = include_str!("../../../docs/ftp.md");
pub const NAMES: &str = include_str!("../../../docs/names.md");
pub const SERVICES: &str = include_str!("../../../docs/services.md");
pub const WEB: &str = include_str!("../../../docs/web.md");

/// The first block in this language that a page prints behind these words.
pub fn block<'a>(page: &'a str, words: &str, language: &str) -> &'a str {
    let (_, rest) = page.split_once(words).unwrap_or_else(|| panic!("no page says \"{words}\""));
    let begin = format!("```{language}\n");
    let (_, rest) = rest.split_once(&begin).expect("a block behind the words");
    let (text, _) = rest.split_once("```").expect("its end");
    text
}

/// The example of a configuration that a page prints behind these words.
pub fn toml<'a>(page: &'a str, words: &str) -> &'a str {
    block(page, words, "toml")
}

/// The text with `new` wherever it says `old`, which it has to: where a page changes, the tests
/// that run it are to be looked at.
pub fn put(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "\"{old}\" is not in:\n{text}");
    text.replace(old, new)
}

/// The example behind these words with keys in it.
pub fn file(page: &str, words: &str, own: &Keys, peer: &Keys) -> String {
    let text = toml(page, words)
        .replace("«private key»", &own.private)
        .replace("«public key of shore»", &peer.public)
        .replace("«public key of ship»", &peer.public)
        .replace("«public key of yacht»", &Keys::new().public);
    assert!(!text.contains('«'), "{text}");
    text
}

/// The commands of the program `bentpipe` that a page prints behind these words: their words,
/// without the program's name.
pub fn commands<'a>(page: &'a str, words: &str) -> Vec<Vec<&'a str>> {
    let lines = block(page, words, "sh").lines().filter_map(|line| line.strip_prefix("bentpipe "));
    let words = |line: &'a str| line.split('#').next().unwrap_or("").split_whitespace().collect();
    lines.map(words).collect()
}
