//! Where the names lead that clients of the terminal's proxy said in place of an address.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use service::message::Denied;
use tokio::time::Instant;

/// So long the address that answered is asked again.
const HOLDS: Duration = Duration::from_secs(60);
/// Servers that are remembered.
const MOST: usize = 4096;

/// A peer, and the scheme, host and port that one of its hosts named.
pub type Name = (Rc<str>, bool, String, u16);

/// Which addresses names had.
#[derive(Default)]
pub struct Named(RefCell<BTreeMap<Name, (SocketAddr, Instant)>>);

impl Named {
    /// The address that answered to it lately.
    pub fn find(&self, name: &Name) -> Option<SocketAddr> {
        let all = self.0.borrow();
        all.get(name).filter(|(_, since)| since.elapsed() < HOLDS).map(|(to, _)| *to)
    }

    /// This one answers to it.
    pub fn keep(&self, name: Name, to: SocketAddr) {
        let mut all = self.0.borrow_mut();
        if all.len() >= MOST {
            all.retain(|_, (_, since)| since.elapsed() < HOLDS);
        }
        if all.len() < MOST {
            all.insert(name, (to, Instant::now()));
        }
    }

    /// The peer may not reach these servers any more.
    pub fn narrow(&self, peer: &str, denied: &Denied) {
        self.0.borrow_mut().retain(|name, (at, _)| *name.0 != *peer || !denied.holds(at.ip()));
    }

    /// It did not answer.
    pub fn forget(&self, to: SocketAddr) {
        self.0.borrow_mut().retain(|_, (at, _)| *at != to);
    }
}
