//! The control socket (spec/control.md): a unix stream socket that only the owner can open.
//!
//! What is said over it is in the crate `control`; [`Server`] is the gateway's end. Here is also
//! what a person hears who asks a gateway that does not answer.

mod server;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use config::socket::roots_socket;
use miette::miette;
use units::Duration;

use crate::blocked;

pub use config::socket::default_socket;
pub use control::client::{Watcher, ask, ask_following};
pub use control::*;
pub use server::Server;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use server::fuzz;

/// Why the admin socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Another program answers there.
    #[error(
        "another gateway answers on {0}: stop it, or give this one a socket of its own with \
         admin = \"…\" in [node]"
    )]
    InUse(PathBuf),
    /// Something that is no socket is in the way.
    #[error("{0} is in the way of the admin socket and is not a socket: move it elsewhere")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error(
        "cannot open the admin socket {0}: {1}; give it a place of yours with admin = \"…\" in [node]"
    )]
    Io(PathBuf, io::Error),
}

/// Nothing listens on the control socket.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("{finding}")]
pub struct NoGateway {
    finding: String,
    #[help]
    help: &'static str,
    /// Root's may run all the same, whose socket is elsewhere.
    pub is_roots_elsewhere: bool,
}

/// Bytes of memory that this process has in use, or `None` without `/proc`.
pub fn resident_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

/// The status of the gateway behind `socket`, for a person.
///
/// # Errors
/// As [`request`] has.
pub fn status(socket: &Path) -> miette::Result<Status> {
    /// A gateway answers between two rounds of its loop.
    const PATIENCE: Duration = Duration::from_secs(10);
    match request(socket, &Request::Status, PATIENCE)? {
        Answer::Status(status) => Ok(*status),
        _ => Err(miette!("the gateway behind {} gave another answer", socket.display())),
    }
}

/// Asks the gateway behind `socket` for a person, who is told in one sentence what is wrong:
/// nothing runs there, it is not theirs to ask, it does not answer in `patience`, it refuses.
///
/// # Errors
/// That sentence.
pub fn request(socket: &Path, request: &Request, patience: Duration) -> miette::Result<Answer> {
    request_following(socket, request, patience, &mut |_| {})
}

/// The same of a request that takes long: `tell` hears how far it is, and `patience` is for each
/// news.
///
/// # Errors
/// That sentence.
pub fn request_following(
    socket: &Path,
    request: &Request,
    patience: Duration,
    tell: &mut dyn FnMut(&TestProgress),
) -> miette::Result<Answer> {
    match ask_following(socket, request, patience, tell) {
        Ok(Answer::Error(why)) => Err(miette!("{why}")),
        Ok(answer) => Ok(answer),
        Err(e) => Err(explained(&e, socket, patience)),
    }
}

/// Watches the gateway behind `socket`, for a person.
///
/// # Errors
/// As [`request`] has.
pub fn watch(socket: &Path, request: &Request, patience: Duration) -> miette::Result<Watcher> {
    Watcher::open(socket, request, patience).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => miette!("{e}"),
        _ => explained(&e, socket, patience),
    })
}

fn explained(e: &io::Error, socket: &Path, patience: Duration) -> miette::Report {
    let name = socket.display();
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => no_gateway(socket).into(),
        ErrorKind::PermissionDenied => miette!(
            help = "ask as root, or as the user who started it",
            "{name} belongs to another user"
        ),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            miette!("the gateway behind {name} has not answered for {patience}")
        }
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => miette!(
            help = "`bentpipe status` says whether it runs again, its log why it ended",
            "the gateway behind {name} ended before it had answered"
        ),
        _ => miette!("cannot ask the gateway behind {name}: {e}"),
    }
}

fn no_gateway(socket: &Path) -> NoGateway {
    let name = socket.display();
    let nothing = format!("no gateway runs here: nothing listens on {name}");
    let mut is_roots_elsewhere = false;
    let (finding, help) = match blocked::blocked_now() {
        Some(blocked) => (
            format!("{nothing}; {blocked}"),
            "start it with `bentpipe up FILE`; `bentpipe down FILE` lets the traffic flow in clear",
        ),
        None if socket != roots_socket() && roots_socket().exists() => {
            is_roots_elsewhere = true;
            (
                format!(
                    "no gateway of this user's runs here: nothing listens on {name}; one of \
                     root's has {}",
                    roots_socket().display()
                ),
                "ask root's: `sudo bentpipe status`",
            )
        }
        None => {
            (nothing, "start one with `bentpipe up FILE`, or name its socket with --socket PATH")
        }
    };
    NoGateway { finding, help, is_roots_elsewhere }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_running_is_said_in_one_sentence() {
        let e = status(Path::new("/nonexistent/bentpipe.sock")).expect_err("nothing there");
        assert_eq!(
            e.to_string(),
            "no gateway runs here: nothing listens on /nonexistent/bentpipe.sock"
        );
    }
}
