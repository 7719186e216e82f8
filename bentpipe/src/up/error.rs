//! Why the gateway cannot run.

use os::OsError;
use os::tun::TunError;

use crate::admin::AdminError;

/// Why the gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The system refuses something.
    #[error(transparent)]
    Os(#[from] OsError),
    /// The admin socket.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A peer's key.
    #[error("peer {0}: {1}")]
    Peer(String, relay::TunnelError),
    /// Somebody took the TUN device away.
    #[error("the TUN device is gone ({0}): start the gateway again")]
    TunGone(TunError),
    /// A shard has no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A shard's thread, or that of one-sided links, has ended.
    #[error("a thread has ended: start the gateway again")]
    ShardGone,
}
