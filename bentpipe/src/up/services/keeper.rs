//! The keeper's process, which starts services, and how each is to be started.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use os::OsError;
use os::seqpacket::SeqPacket;
use service::packet;

use crate::config::Service;
use crate::keeper::{Order, Spec};

/// The first user of those that services have who are given none: 60,706 to 61,183 belong to
/// nobody by the habit of Linux systems.
const FIRST_USER: u32 = 60_706;

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

/// How the service at place `n` is to be started.
pub fn spec(config: &Service, n: u32) -> Result<Spec, OsError> {
    let user = config.user.as_deref().map(os::proc::find_user).transpose()?;
    if let Some(user) = user.as_ref().filter(|user| user.is_root()) {
        let message = format!("the service {} would run as root: {user:?}", config.name);
        return Err(OsError::refused(message).mend("give it a user of its own, or none"));
    }
    let user = match user {
        Some(user) => Some(user.numbers()),
        None => os::proc::is_root().then_some((FIRST_USER + n, FIRST_USER + n)),
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
