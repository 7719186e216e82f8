//! Lines of peers that were taken out of the file, while they are dropped and booked. Commands,
//! modems and disks may take their time, and others' packets do not wait for them; a peer that is
//! put back does, and so does the end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use link::keys::PublicKey;

/// Those of all shards.
#[derive(Clone, Default)]
pub struct LeavingLines(Arc<Mutex<Vec<Leaving>>>);

/// A peer's lines, and the thread that ends them.
struct Leaving {
    peer: PublicKey,
    thread: JoinHandle<()>,
}

impl LeavingLines {
    fn each(&self) -> MutexGuard<'_, Vec<Leaving>> {
        let mut each = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        each.retain(|leaving| !leaving.thread.is_finished());
        each
    }

    /// The lines of the peer with this key end by `finish`.
    pub fn begin(&self, peer: PublicKey, finish: impl FnOnce() + Send + 'static) {
        match Builder::new().name("line".into()).spawn(finish) {
            Ok(thread) => self.each().push(Leaving { peer, thread }),
            // The mark of a line that may be up stays, and the next start drops it.
            Err(why) => crate::log!(Error, "a line may still be up", peer_key = peer, why = why),
        }
    }

    /// Do lines of the peer with this key not have ended yet?
    pub fn has(&self, peer: &PublicKey) -> bool {
        self.each().iter().any(|leaving| leaving.peer == *peer)
    }

    /// Waits until all have ended.
    pub fn wait(&self) {
        let each = std::mem::take(&mut *self.each());
        if !each.is_empty() {
            crate::log!(Info, "lines are being dropped", peers = each.len());
        }
        for leaving in each {
            let _ = leaving.thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_line_is_known_until_it_has_ended_and_is_waited_for() {
        let key = |n| *link::keys::PrivateKey::from_bytes([n; 32]).public();
        let leaving = LeavingLines::default();
        let (end, ended) = channel::<()>();
        let (booked, has_booked) = channel();
        leaving.begin(key(1), move || {
            let _ = ended.recv();
            booked.send(()).expect("the test waits");
        });
        assert!(leaving.has(&key(1)) && !leaving.has(&key(2)));
        drop(end);
        leaving.clone().wait();
        assert!(has_booked.try_recv().is_ok() && !leaving.has(&key(1)));
    }
}
