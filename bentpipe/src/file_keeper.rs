//! The keeper of the file: a small program beside a gateway that goes on as another user.
//!
//! That user reads neither the configuration, which is root's because keys lie in it, nor may he
//! take the control socket out of root's directory. So the gateway starts this program before it
//! becomes that user, and names one file and one socket. It stays root without a single right of
//! root's, opens that file again when the gateway asks, and removes that socket when the gateway
//! ends, also if it is killed. Whoever takes the gateway over can ask for no other file.
//!
//! The two talk by packets of one byte on the keeper's standard input.

use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use console::Global;
use miette::IntoDiagnostic as _;
use os::OsError;
use os::seqpacket::SeqPacket;

/// The gateway asks for the file.
const OPEN: u8 = b'o';
/// It ends: the socket is to be removed.
const REMOVE: u8 = b'r';
/// The answer to both, with the file's descriptor; the number of an error (little-endian) if not.
const DONE: u8 = 0;

/// Opens the gateway's file for the gateway that starts it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file.
    file: PathBuf,
    /// The control socket.
    socket: PathBuf,
    /// The socket's inode, so that a successor's is left alone.
    inode: u64,
}

/// Serves the gateway until it ends.
///
/// # Errors
/// If it was not a gateway that started this.
pub fn run(args: &Args, _global: &Global) -> miette::Result<ExitCode> {
    let gateway = SeqPacket::inherited(0).into_diagnostic()?;
    os::proc::keep_rights(&[]).into_diagnostic()?;
    let mut order = [0; 1];
    loop {
        let is_answered = match gateway.receive(&mut order, true) {
            Ok(got) if got.len == 1 && order[0] == OPEN => open(&gateway, &args.file),
            Ok(got) if got.len == 1 && order[0] == REMOVE => {
                remove(args);
                gateway.send(&[IoSlice::new(&[DONE])], &[], true)
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            _ => break,
        };
        if is_answered.is_err() {
            break;
        }
    }
    remove(args);
    Ok(ExitCode::SUCCESS)
}

fn open(gateway: &SeqPacket, file: &Path) -> io::Result<()> {
    match File::open(file) {
        Ok(file) => gateway.send(&[IoSlice::new(&[DONE])], &[file.as_fd()], true),
        Err(e) => {
            let number = e.raw_os_error().unwrap_or_default().to_le_bytes();
            gateway.send(&[IoSlice::new(&number)], &[], true)
        }
    }
}

fn remove(args: &Args) {
    if fs::symlink_metadata(&args.socket).is_ok_and(|about| about.ino() == args.inode) {
        let _ = fs::remove_file(&args.socket);
    }
}

/// The keeper as the gateway has it.
#[derive(Debug)]
pub struct FileKeeper {
    /// It ends when the socket is closed.
    _child: Child,
    socket: SeqPacket,
}

impl FileKeeper {
    /// Starts it for this file, and the control socket at this path with this inode.
    ///
    /// # Errors
    /// If the system has no more processes or descriptors.
    pub fn start(file: &Path, (socket, inode): (&Path, u64)) -> Result<FileKeeper, OsError> {
        let failed = |e| OsError::new("start the keeper of the file", e);
        let (ours, theirs) = SeqPacket::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bentpipe").arg("file-keeper").arg("--").args([file, socket]);
        command.arg(inode.to_string()).stdin(Stdio::from(OwnedFd::from(theirs)));
        Ok(FileKeeper { _child: command.spawn().map_err(failed)?, socket: ours })
    }

    /// The file as it is now.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(&self) -> io::Result<File> {
        let mut answer = [0; 4];
        self.socket.send(&[IoSlice::new(&[OPEN])], &[], true)?;
        let mut got = self.socket.receive(&mut answer, true)?;
        match (got.len, got.descriptors.pop()) {
            (1, Some(file)) => Ok(File::from(file)),
            (4, None) => Err(io::Error::from_raw_os_error(i32::from_le_bytes(answer))),
            _ => Err(io::Error::other("the keeper of the file has ended")),
        }
    }

    /// Removes the control socket, before systemd ends what is left of the gateway.
    pub fn remove_socket(&self) {
        // Without the keeper the next start replaces the socket.
        if self.socket.send(&[IoSlice::new(&[REMOVE])], &[], true).is_ok() {
            let _ = self.socket.receive(&mut [0; 4], true);
        }
    }
}
