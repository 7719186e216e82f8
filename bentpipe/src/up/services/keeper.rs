//! The keeper's process, which starts services, and how each is to be started.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use link::keys::PublicKey;
use os::OsError;
use os::seqpacket::SeqPacket;
use service::packet;

use crate::config::Service;
use crate::keeper::{Order, Spec};

/// The users that services have who are given none: 60,706 to 61,183 belong to nobody by the habit
/// of Linux systems.
const USERS: Range<u32> = 60_706..61_184;

/// The program that starts services, as long as this is held.
pub struct Keeper {
    /// Killed when dropped would be too late for its children: its socket's end ends them.
    _child: Child,
    pub socket: SeqPacket,
}

impl Keeper {
    /// Starts it.
    ///
    /// # Errors
    /// If the system has no more processes or descriptors.
    pub fn start() -> Result<Keeper, OsError> {
        let failed = |e| OsError::new("start the keeper of services", e);
        let (ours, theirs) = SeqPacket::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bentpipe");
        command.arg("keeper").stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = command.spawn().map_err(failed)?;
        Ok(Keeper { _child: child, socket: ours })
    }

    /// Tells it what to do.
    ///
    /// # Errors
    /// If it does not take that.
    pub fn say(&self, order: &Order, sockets: &[BorrowedFd<'_>]) -> Result<(), OsError> {
        let packet = packet::encode(order, b"").map_err(|_| {
            OsError::refused("a service's command and paths are longer than 4,000 bytes")
        })?;
        self.socket
            .send(&[io::IoSlice::new(&packet)], sockets, false)
            .map_err(|e| OsError::new("tell the keeper of services", e))
    }
}

/// A user for each service of this node, for those that are given none. A service keeps the one
/// whose directory it has, whatever other services the file names since. Services of two nodes on
/// one machine hardly ever have the same.
pub fn users(services: &[Service], node: &PublicKey) -> Vec<u32> {
    let owner = |service: &Service| {
        let about = std::fs::metadata(service.directory.as_ref()?).ok()?;
        Some(about.uid()).filter(|uid| USERS.contains(uid))
    };
    let kept: Vec<Option<u32>> = services.iter().map(owner).collect();
    let mut taken: BTreeSet<u32> = kept.iter().flatten().copied().collect();
    let chosen = services.iter().zip(kept).map(|(service, kept)| {
        kept.unwrap_or_else(|| {
            let mut hasher = DefaultHasher::new();
            (node.to_string(), &service.name).hash(&mut hasher);
            let first = (hasher.finish() % USERS.len() as u64) as u32;
            let each = USERS.skip(first as usize).chain(USERS);
            let user = each.into_iter().find(|user| !taken.contains(user));
            let user = user.unwrap_or(USERS.start + first);
            taken.insert(user);
            user
        })
    });
    chosen.collect()
}

/// How a service is to be started, as `number` where it is given no user.
pub fn spec(config: &Service, number: u32) -> Result<Spec, OsError> {
    let user = config.user.as_deref().map(os::proc::find_user).transpose()?;
    if let Some(user) = user.as_ref().filter(|user| user.is_root()) {
        let message = format!("the service {} would run as root: {user:?}", config.name);
        return Err(OsError::refused(message).mend("give it a user of its own, or none"));
    }
    let user = match user {
        Some(user) => Some(user.numbers()),
        None => os::proc::is_root().then_some((number, number)),
    };
    if let Some(directory) = &config.directory {
        make_directory(directory, user)?;
    }
    Ok(Spec {
        name: config.name.clone(),
        command: config.command.clone(),
        user,
        memory: config.memory.0,
        descriptors: config.descriptors,
        directory: config.directory.clone(),
        reads: config.reads.clone(),
    })
}

/// Makes a service's directory, which others may enter and not read, where there is none. One that
/// is there is left as it is: whose it is the operator has decided.
fn make_directory(directory: &Path, user: Option<(u32, u32)>) -> Result<(), OsError> {
    let cannot = |e| {
        let what = format!("make {} for a service", directory.display());
        OsError::new(what, e).mend("make it for the service's user, or name another directory")
    };
    if directory.exists() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent).map_err(cannot)?;
    }
    // The keeper, who has given up reading what is others', enters it before it becomes that user.
    std::fs::DirBuilder::new().mode(0o711).create(directory).map_err(cannot)?;
    let (user, group) = user.unzip();
    std::os::unix::fs::chown(directory, user, group).map_err(|e| {
        // Else the next start would take it for one that the operator made so.
        let _ = std::fs::remove_dir(directory);
        cannot(e)
    })
}

#[cfg(test)]
mod tests {
    use link::keys::PrivateKey;

    use super::*;

    fn service(name: &str, directory: Option<&Path>) -> Service {
        Service {
            name: name.to_owned(),
            command: vec!["/bin/true".to_owned()],
            user: None,
            memory: units::ByteCount(64 << 20),
            descriptors: 64,
            directory: directory.map(Path::to_owned),
            reads: Vec::new(),
        }
    }

    #[test]
    fn a_service_keeps_the_user_of_its_directory_whatever_others_there_are() {
        let [here, there] = [1, 2].map(|n| *PrivateKey::from_bytes([n; 32]).public());
        let names: Vec<Service> = (0..16).map(|n| service(&format!("s{n}"), None)).collect();
        let each = users(&names, &here);
        assert!(each.iter().all(|user| USERS.contains(user)), "{each:?}");
        assert_eq!(each.iter().collect::<BTreeSet<_>>().len(), 16, "each its own");
        assert_ne!(each, users(&names, &there), "nodes of one machine");
        let dir = std::env::temp_dir().join(format!("bentpipe-users-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        if os::proc::is_root() {
            // What would be the first one's is the web's already.
            std::os::unix::fs::chown(&dir, Some(each[0]), Some(each[0])).expect("given");
            let with = [service("s0", None), service("web", Some(&dir))];
            let with = users(&with, &here);
            assert_eq!(with[1], each[0]);
            assert_ne!(with[0], each[0]);
        }
        std::fs::remove_dir(&dir).expect("it is there");
    }
}
