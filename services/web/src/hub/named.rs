//! Where the names lead that clients of the terminal's proxy said in place of an address.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use service::message::Denied;

use super::lately::Lately;

/// So long the address that answered is asked again.
const HOLDS: Duration = Duration::from_secs(60);
/// Servers that are remembered.
const MOST: usize = 4096;

/// A peer, and the scheme, host and port that one of its hosts named.
pub type Name = (Rc<str>, (bool, String, u16));

/// Which addresses names had.
pub struct Named(RefCell<Lately<(bool, String, u16), SocketAddr>>);

impl Default for Named {
    fn default() -> Named {
        Named(Lately::new(MOST, HOLDS).into())
    }
}

impl Named {
    /// The address that answered to it lately.
    pub fn find(&self, name: &Name) -> Option<SocketAddr> {
        self.0.borrow().find(name).copied()
    }

    /// This one answers to it.
    pub fn keep(&self, name: Name, to: SocketAddr) {
        self.0.borrow_mut().keep(name, to);
    }

    /// The peer may not reach these servers any more.
    pub fn narrow(&self, peer: &str, denied: &Denied) {
        self.0.borrow_mut().retain(|name, at| *name.0 != *peer || !denied.holds(at.ip()));
    }

    /// It did not answer.
    pub fn forget(&self, to: SocketAddr) {
        self.0.borrow_mut().retain(|_, at| *at != to);
    }
}
