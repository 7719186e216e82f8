//! Where a node's peers come from. The gateway knows a [`PeerSource`] only: it reads all peers at
//! the start, and on reload it is told how the source's peers differ from those in force. The
//! configuration file ([`PeerFile`]) is one source; what a fleet of hubs shares would be another.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::config::{Changes, Config, ConfigError};
use crate::file_keeper::FileKeeper;

/// Yields a node's peers and their changes. A source is asked on the gateway's own thread, at the
/// start and on reload only, so it has to answer at once.
pub(super) trait PeerSource {
    /// What messages call it.
    fn name(&self) -> String;

    /// All peers as they are now, and the settings of the node that shares its memory among them.
    ///
    /// # Errors
    /// If the source cannot be read or says what cannot be.
    fn read(&self) -> Result<Config, ConfigError>;

    /// Whether the source can be read again with the rights that the process has now.
    ///
    /// # Errors
    /// Why it cannot, in one line.
    fn is_readable(&self) -> Result<(), String>;

    /// The process goes on as a user who may not read what root could: this opens it from now on.
    fn open_by(&mut self, keeper: Rc<FileKeeper>);

    /// The peers as they are now, and how they differ from those in force.
    ///
    /// # Errors
    /// In one line, why those in force stay so.
    fn update(&self, in_force: &Config) -> Result<PeerUpdate, String> {
        let mut new = self.read().map_err(|e| {
            format!("{} stays in force as it was: {}", self.name(), e.in_one_line())
        })?;
        let changes = in_force.changes(&new);
        in_force.keep_fixed(&mut new);
        Ok(PeerUpdate { new, changes })
    }
}

/// What a source has now.
#[derive(Debug)]
pub(super) struct PeerUpdate {
    /// To be in force; what waits for a restart is as before.
    pub new: Config,
    pub changes: Changes,
}

/// The peers of the configuration file.
#[derive(Debug)]
pub(super) struct PeerFile {
    path: PathBuf,
    keeper: Option<Rc<FileKeeper>>,
}

impl PeerFile {
    pub fn new(path: &Path) -> PeerFile {
        PeerFile { path: path.to_owned(), keeper: None }
    }

    /// The file, which the user whom the process has become may own himself.
    fn open(&self) -> io::Result<File> {
        match (File::open(&self.path), &self.keeper) {
            (Err(e), Some(keeper)) if e.kind() == ErrorKind::PermissionDenied => keeper.open(),
            (opened, _) => opened,
        }
    }
}

impl PeerSource for PeerFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&self) -> Result<Config, ConfigError> {
        let file = self.open().map_err(|e| ConfigError::unreadable(&self.path, &e))?;
        Config::load_from(file, &self.path)
    }

    fn is_readable(&self) -> Result<(), String> {
        match &self.keeper {
            // Key files that it names are not the keeper's.
            Some(_) => self.read().map(drop).map_err(|e| e.in_one_line()),
            None => self.open().map(drop).map_err(|e| e.to_string()),
        }
    }

    fn open_by(&mut self, keeper: Rc<FileKeeper>) {
        self.keeper = Some(keeper);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::keys::PrivateKey;

    /// A file of a node that has these peers.
    fn text(peers: &[(u8, &str)]) -> String {
        let key = |n: u8| PrivateKey::from_bytes([n; 32]);
        let mut text = format!("[node]\nprivate_key = \"{}\"\n", key(99).to_base64());
        for (n, name) in peers {
            let key = key(*n);
            let public = key.public();
            text += &format!(
                "[[peer]]\nname = \"{name}\"\npublic_key = \"{public}\"\n\
                 profile = \"leo\"\nend = \"hub\"\n"
            );
        }
        text
    }

    #[test]
    fn a_file_yields_its_peers_and_then_what_has_changed() {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = std::env::temp_dir().join(format!("bentpipe-peers-{}", std::process::id()));
        let write = |text: &str| {
            use std::io::Write as _;
            let _ = std::fs::remove_file(&path);
            let file =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a file");
        };
        let source = PeerFile::new(&path);
        assert!(source.read().is_err() && source.is_readable().is_err(), "there is none yet");
        write(&text(&[(1, "ship"), (2, "yacht"), (3, "island")]));
        assert!(source.is_readable().is_ok());
        let first = source.read().expect("a file");
        assert_eq!(first.peers.len(), 3);

        // One stays, one has another name, one goes, one comes.
        write(&text(&[(1, "ship"), (2, "ketch"), (4, "plane")]));
        let PeerUpdate { new, changes } = source.update(&first).expect("an update");
        let names = |peers: &[std::sync::Arc<crate::config::Peer>]| {
            peers.iter().map(|peer| peer.name.clone()).collect::<Vec<_>>()
        };
        let [added, changed, removed] =
            [&changes.added, &changes.changed, &changes.removed].map(|peers| names(peers));
        assert_eq!(
            (added, changed, removed),
            (vec!["plane".to_owned()], vec!["ketch".to_owned()], vec!["island".to_owned()])
        );
        assert_eq!(names(&new.peers), ["ship", "ketch", "plane"]);

        // What cannot be read changes nothing, and says where.
        write("[node]\nprivate_key = 5\n");
        let why = source.update(&first).map(|_| ()).expect_err("no configuration");
        let opening = format!("{} stays in force as it was: ", path.display());
        assert!(why.starts_with(&opening) && !why.contains('\n'), "{why}");
        let _ = std::fs::remove_file(&path);
    }
}
