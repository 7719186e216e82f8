//! The configuration file, in a WireGuard user's habit.
//!
//! A file is read whole: every table becomes a typed draft that remembers where in the
//! file its values stood, the drafts are checked against each other, and all problems
//! are reported at once, each with its place and the nearest thing that was probably
//! meant. A [`Config`] that exists is valid.
//!
//! Keys never show in messages: quoted lines have them replaced by stars.

mod carrier;
mod cross;
pub mod host;
mod line;
mod link;
mod node;
mod peer;
mod problem;
mod profile;
mod reader;
#[cfg(test)]
mod reload_tests;
mod secret;
mod service;
pub mod socket;
mod split;
mod suggest;
mod summary;
mod telephone;
#[cfg(test)]
mod tests;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use miette::NamedSource;
use relay::Share;
use toml::Spanned;
use toml::de::DeTable;

pub use self::carrier::{Binding, Carrier};
pub use self::line::{Clock, LINK_CLASS, Line, Raised, SerialModem};
pub use self::link::{LinkSettings, Modem, ModemSource, Overhead, Queue, rate_of};
pub use node::{Node, OnStop};
pub use peer::{OnFailure, Peer, Source};
pub use problem::{ConfigError, Entry, Problem, Report};
pub use profile::Profile;
pub use service::Service;
pub use split::SplitLink;
pub use telephone::Telephone;
pub use traffic::Traffic;

use problem::Problems;
use reader::Section;

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub node: Node,
    /// Its peers, in the order of the file.
    pub peers: Vec<Arc<Peer>>,
    /// Links with nothing of ours at their far end.
    pub split: Vec<SplitLink>,
    /// Of a part of a node's peers: the prefixes of the others.
    pub elsewhere: Vec<units::IpPrefix>,
    /// What the owner of the file should look at.
    pub warnings: Vec<Problem>,
}

/// How a new file differs from the one in force, for a reload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Names of keys that only a restart can change.
    pub needs_restart: Vec<&'static str>,
    /// Peers, by public key, that are new.
    pub added: Vec<Arc<Peer>>,
    /// Peers that are the same node with other settings.
    pub changed: Vec<Arc<Peer>>,
    /// Peers that are gone.
    pub removed: Vec<Arc<Peer>>,
}

/// The largest file that is read: 4,096 peers of a page each.
const MAX_FILE: u64 = 16 << 20;
/// Syntax errors shown; those after the first few are mostly its consequences.
const MAX_SYNTAX_ERRORS: usize = 5;

impl Config {
    /// Reads the file `path`. Key files named in it are relative to its directory.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let file = fs::File::open(path).map_err(|e| ConfigError::unreadable(path, &e))?;
        Config::load_from(file, path)
    }

    /// Reads the file `path` that somebody else has opened. Key files that are named in it are
    /// opened here.
    pub fn load_from(file: fs::File, path: &Path) -> Result<Config, ConfigError> {
        let unreadable = |e: std::io::Error| ConfigError::unreadable(path, &e);
        let about = file.metadata().map_err(unreadable)?;
        if about.is_dir() {
            let message = format!("{} is a directory, not a configuration file", path.display());
            return Err(ConfigError::File(message, None));
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        let text = as_text(path, bytes)?;
        parse(&text, path, Some(about.mode()))
    }

    /// Reads `text` as if it were the file `path`, whatever that file's permissions.
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        parse(text, path, None)
    }

    /// The peer called `name`.
    pub fn peer(&self, name: &str) -> Option<&Peer> {
        self.peers.iter().find(|p| p.name == name).map(|p| &**p)
    }

    /// What must be done to get from `self` to `new`.
    pub fn changes(&self, new: &Config) -> Changes {
        // A hub has thousands of peers: each is looked up by its key.
        let mut left: BTreeMap<_, _> = self.peers.iter().map(|p| (&p.public_key, p)).collect();
        let (mut added, mut changed) = (Vec::new(), Vec::new());
        let mut fixed = BTreeSet::new();
        for peer in &new.peers {
            match left.remove(&peer.public_key) {
                None => added.push(peer.clone()),
                Some(old) if old != peer => {
                    fixed.extend(old.fixed_differences(peer));
                    changed.push(peer.clone());
                }
                Some(_) => {}
            }
        }
        let gone = |old: &&Arc<Peer>| left.contains_key(&old.public_key);
        let removed = self.peers.iter().filter(gone).cloned().collect();
        let mut needs_restart = self.node.fixed_differences(&new.node);
        needs_restart.extend(fixed);
        if self.split != new.split {
            needs_restart.push("peers with mode = \"split\"");
        }
        Changes { needs_restart, added, changed, removed }
    }

    /// Gives `new` the values that a restart alone can change as they are in `self`, which runs:
    /// [`Config::changes`] to the same file then names them again, until the restart.
    pub fn keep_fixed(&self, new: &mut Config) {
        self.node.keep_fixed(&mut new.node);
        // Links without a gateway at their far end stay as they were installed.
        new.split.clone_from(&self.split);
        let old: BTreeMap<_, _> = self.peers.iter().map(|peer| (&peer.public_key, peer)).collect();
        for peer in &mut new.peers {
            let Some(old) = old.get(&peer.public_key) else { continue };
            if *old != peer && old.fixed_differences(peer).next().is_some() {
                let mut kept = Peer::clone(peer);
                old.keep_fixed(&mut kept);
                *peer = Arc::new(kept);
            }
        }
    }
}

impl Node {
    /// Keys whose values differ and that a running program cannot change.
    fn fixed_differences(&self, new: &Node) -> Vec<&'static str> {
        let differs = [
            ("private_key", self.private_key != new.private_key),
            ("listen", self.listen != new.listen),
            ("tun", self.tun != new.tun),
            ("lan", self.lan != new.lan),
            ("own", self.own != new.own),
            ("proxy", self.proxy != new.proxy),
            ("admin", self.admin != new.admin),
            ("memory", self.memory != new.memory),
            ("dedup_memory", self.chunks.memory != new.chunks.memory),
            ("dedup_disk", self.chunks.disk != new.chunks.disk),
            ("dedup_dir", self.chunks.dir != new.chunks.dir),
            ("user", self.user != new.user),
            ("shards", self.shards != new.shards),
            ("key_lifetime", self.key_lifetime != new.key_lifetime),
            ("service", self.services != new.services),
            ("telephone", self.telephones != new.telephones),
        ];
        differs.iter().filter_map(|(name, differs)| differs.then_some(*name)).collect()
    }

    /// `new` with the values of those keys as they are here.
    fn keep_fixed(&self, new: &mut Node) {
        let Node { log, on_stop, ref direct, ref dns, .. } = *new;
        let (direct, dns) = (direct.clone(), dns.clone());
        *new = Node { log, on_stop, direct, dns, ..self.clone() };
    }
}

impl Peer {
    /// Are all ways to the peer modems on serial lines? Then it is nowhere else: no address of a
    /// network is its.
    pub fn is_at_lines_alone(&self) -> bool {
        let lines = self.line.as_ref().map_or(&[][..], |line| &line.lines);
        let is_modem = |line: &Raised| line.modem.is_some();
        if self.carriers.is_empty() {
            return self.endpoint.is_none() && !lines.is_empty() && lines.iter().all(is_modem);
        }
        let has_modem = |at| lines.iter().any(|line| line.carrier == Some(at) && is_modem(line));
        (0..self.carriers.len()).all(has_modem)
    }

    /// The same of a peer: what is settled with the session.
    fn fixed_differences(&self, new: &Peer) -> impl Iterator<Item = &'static str> + use<> {
        let psk = |p: &Peer| p.preshared_key.as_ref().map(|key| key.to_base64());
        let (a, b) = (&self.link, &new.link);
        // Carriers come and go in a session; the one link of a peer without them stays.
        let alone = self.carriers.is_empty() && new.carriers.is_empty();
        let is_managed = self.line.is_some() || new.line.is_some();
        let is_other_line = match (&self.line, &new.line) {
            (Some(old), Some(new)) => old.needs_restart_for(new),
            (old, new) => old.is_some() || new.is_some(),
        };
        let differs = [
            ("carrier of a peer", is_managed && self.carriers != new.carriers),
            ("compress of a peer", self.compress != new.compress),
            ("line of a peer", is_other_line),
            ("dedup of a peer", (self.dedup == Share::Off) != (new.dedup == Share::Off)),
            ("keepalive of a peer", self.keepalive != new.keepalive),
            ("preshared_key of a peer", psk(self) != psk(new)),
            ("stream_buffer of a peer", self.stream_buffer != new.stream_buffer),
            ("ber of a link", alone && a.ber != b.ber),
            ("delay of a link", alone && a.delay != b.delay),
            ("headers of a link", a.headers != b.headers),
            ("mtu of a link", alone && a.mtu != b.mtu),
            ("overhead of a link", alone && a.overhead != b.overhead),
            ("queue of a link", alone && a.queue != b.queue),
        ];
        differs.into_iter().filter_map(|(name, differs)| differs.then_some(name))
    }

    /// `new` with the values of those keys as they are here: each has its line in both functions.
    fn keep_fixed(&self, new: &mut Peer) {
        let alone = self.carriers.is_empty() && new.carriers.is_empty();
        if (self.line.is_some() || new.line.is_some()) && self.carriers != new.carriers {
            // A peer's own link and address are those of its first carrier.
            new.carriers.clone_from(&self.carriers);
            new.endpoint.clone_from(&self.endpoint);
            new.link = self.link.clone();
        }
        new.line = match (&self.line, &new.line) {
            (Some(old), Some(new)) => Some(old.while_running(new)),
            (old, _) => old.clone(),
        };
        if (self.dedup == Share::Off) != (new.dedup == Share::Off) {
            new.dedup = self.dedup;
        }
        new.compress = self.compress;
        new.keepalive = self.keepalive;
        new.preshared_key.clone_from(&self.preshared_key);
        new.stream_buffer = self.stream_buffer;
        let (a, b) = (&self.link, &mut new.link);
        b.headers = a.headers;
        if alone {
            (b.ber, b.delay, b.mtu, b.overhead, b.queue) =
                (a.ber, a.delay, a.mtu, a.overhead, a.queue);
        }
    }
}

fn as_text(path: &Path, bytes: Vec<u8>) -> Result<String, ConfigError> {
    let name = path.display();
    if bytes.len() as u64 > MAX_FILE {
        let message = format!("{name} is larger than {} MiB", MAX_FILE >> 20);
        return Err(ConfigError::File(message, None));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        ConfigError::File(format!("{name} is not UTF-8 text (byte {at})"), None)
    })
}

fn parse(text: &str, path: &Path, mode: Option<u32>) -> Result<Config, ConfigError> {
    let name = path.display().to_string();
    let source = Arc::new(NamedSource::new(&name, secret::mask(text)).with_language("toml"));
    let problems = Problems::default();
    let (table, errors) = DeTable::parse_recoverable(text);
    let config = if errors.is_empty() {
        read(&table, path, mode, &problems)
    } else {
        for e in errors.iter().take(MAX_SYNTAX_ERRORS) {
            let span = e.span().unwrap_or(0..0);
            problems.add(Problem::at(span, format!("not TOML: {}", e.message())));
        }
        None
    };
    let (errors, warnings) = problems.finish(&source);
    match config {
        Some(config) if errors.is_empty() => Ok(Config { warnings, ..config }),
        _ => Err(ConfigError::Content { file: name, problems: errors }),
    }
}

/// Reads all tables, then checks them together; `None` only if a problem was added.
fn read(
    root: &Spanned<DeTable<'_>>,
    path: &Path,
    mode: Option<u32>,
    problems: &Problems,
) -> Option<Config> {
    let dir = secret::dir_of(path);
    // The root's span is the whole file; what is missing is best shown at its start.
    let mut section = Section::new("the file", root.get_ref(), 0..0, problems);
    let node = match section.table("node", "[node]".to_owned()) {
        Some(table) => node::read(table, &dir),
        None => {
            if !section.has("node") {
                section.lacks("[node] table", "start it with [node] and private_key = \"…\"");
            }
            None
        }
    };
    let services = service::read(section.named_tables("service"), &dir);
    let telephones = telephone::read(section.tables("telephone"));
    let mut peers = Vec::new();
    let mut links = Vec::new();
    for table in section.tables("peer") {
        match table.is_word("mode", "split") {
            true => links.extend(split::read(table)),
            false => peers.extend(peer::read(table, &dir)),
        }
    }
    section.finish();
    cross::check(node.as_ref(), &peers, problems);
    split::check(node.as_ref(), &links, &peers, problems);
    cross::refuse_unknown_services(&services, &peers, problems);
    let shards = node.as_ref().map_or(1, |draft| draft.node.shards);
    telephone::check(&telephones, &peers, shards, problems);
    let node = node?;
    let secret_inside = node.key_is_inline || peers.iter().any(|p| p.psk_is_inline);
    if secret_inside && let Some(wrong) = mode.and_then(|mode| secret::mode_fault(path, mode)) {
        let message = format!("{}, and it holds a key", wrong.message);
        let problem = Problem::at(0..0, message).label("this file");
        problems.doubt(problem.help(wrong.help.unwrap_or_default()));
    }
    Some(Config {
        node: Node {
            services,
            telephones: telephones.into_iter().map(|draft| draft.telephone).collect(),
            ..node.node
        },
        peers: peers.into_iter().map(|draft| Arc::new(draft.peer)).collect(),
        split: links.into_iter().map(|draft| draft.link).collect(),
        elsewhere: Vec::new(),
        warnings: Vec::new(),
    })
}

/// For the fuzzers: texts that may be files, two with a zero between them as before and after a
/// reload. What is read once means the same when it is read again.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Other files are not the fuzzer's.
    if text.contains("_file") {
        return;
    }
    let read = |text| Config::parse(text, Path::new("/nonexistent/fuzzed.toml"));
    let configs: Vec<_> = text.splitn(2, '\0').map(read).collect();
    for config in configs.iter().flatten() {
        assert_eq!(config.changes(config), Changes::default());
    }
    if let [Ok(before), Ok(after)] = &configs[..] {
        before.changes(after);
    }
    for error in configs.iter().filter_map(|c| c.as_ref().err()) {
        assert!(!error.to_string().is_empty());
    }
}
