//! Names that the hub looks up, so that nobody's answers pass for those of another's host.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use bentpipe_web::headers::Way;
use bentpipe_web::verified::{Book, Verdict};
use http::{HeaderMap, Uri};
use service::Reason;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use units::one_host;

use super::Hub;
use crate::local::Local;
use crate::shares::{Place, Places};

/// A request waits so long at most; what is found later helps the next one.
const PATIENCE: Duration = Duration::from_secs(1);
/// Names that are looked up at once, of all and for one host behind a peer; hosts of others are not
/// verified for now.
const AT_ONCE: usize = 64;
const OF_HOST: usize = 8;

/// So many requests of a peer in a row waited in vain: its others do not wait before one of its
/// look-ups has an answer.
const IN_VAIN: u32 = 3;

/// What is known of names, and which are being looked up.
pub struct Verifying {
    book: RefCell<Book>,
    /// By the peer, whose look-ups wait for each other at the gateway, and the name.
    under_way: RefCell<BTreeMap<(Rc<str>, String), LookUp>>,
    places: Rc<Places>,
    in_vain: RefCell<BTreeMap<Rc<str>, u32>>,
    started: Instant,
}

struct LookUp {
    done: Rc<Notify>,
    /// For whom, and its place.
    from: IpAddr,
    _place: Place,
}

/// A host behind a peer.
type Asker = (Rc<str>, IpAddr);

impl Default for Verifying {
    fn default() -> Verifying {
        let (book, under_way, in_vain) = Default::default();
        Verifying {
            book,
            under_way,
            places: Places::new(AT_ONCE),
            in_vain,
            started: Instant::now(),
        }
    }
}

impl Verifying {
    fn judge(&self, uri: &Uri, to: SocketAddr) -> Verdict {
        self.book.borrow_mut().judge(uri, to, self.started.elapsed())
    }

    /// These are addresses of the host, which one behind the peer named.
    pub fn note(&self, peer: &str, host: &str, addresses: &[IpAddr]) {
        self.book.borrow_mut().note(peer, host, addresses, self.started.elapsed());
    }

    /// Does a request of the peer's wait for a look-up?
    fn waits(&self, peer: &Rc<str>) -> bool {
        self.in_vain.borrow().get(peer).is_none_or(|times| *times < IN_VAIN)
    }

    fn waited_in_vain(&self, peer: &Rc<str>) {
        *self.in_vain.borrow_mut().entry(peer.clone()).or_default() += 1;
    }

    /// The look-up of a name for the peer, and whether it is to begin now; `None` if there are too
    /// many.
    fn begin(&self, (peer, from): &Asker, host: &str) -> Option<(Rc<Notify>, bool)> {
        let mut under_way = self.under_way.borrow_mut();
        let key = (peer.clone(), host.to_owned());
        if let Some(it) = under_way.get(&key) {
            return Some((Rc::clone(&it.done), false));
        }
        let of_host = under_way.iter().filter(|((of, _), it)| of == peer && it.from == *from);
        if of_host.count() >= OF_HOST {
            return None;
        }
        let (from, _place) = (*from, self.places.take(peer, 1)?);
        let done = Rc::new(Notify::new());
        under_way.insert(key, LookUp { done: Rc::clone(&done), from, _place });
        Some((done, true))
    }

    /// A look-up is through.
    fn end(&self, peer: &Rc<str>, host: String, told: Result<Vec<IpAddr>, Reason>) {
        match told {
            Ok(addresses) => {
                self.in_vain.borrow_mut().remove(peer);
                self.note(peer, &host, &addresses);
            }
            // That says nothing of the name.
            Err(Reason::Exhausted | Reason::ShuttingDown | Reason::NoSuchPeer) => {}
            Err(_) => self.note(peer, &host, &[]),
        }
        if let Some(it) = self.under_way.borrow_mut().remove(&(peer.clone(), host)) {
            it.done.notify_waiters();
        }
    }

    /// Tells the terminal which other addresses the host has, where `to` is one of them.
    pub fn tell(&self, uri: &Uri, to: SocketAddr, fields: &mut HeaderMap) {
        if self.judge(uri, to) == Verdict::Is {
            self.book.borrow().tell(uri, to, fields);
        }
    }
}

impl Hub {
    /// Is the server at `to` one of the host that the URI names, as this node sees it?
    pub async fn is_verified(self: &Rc<Hub>, peer: &Rc<str>, uri: &Uri, way: Way) -> bool {
        let to = way.to;
        let host = match self.verifying.judge(uri, to) {
            Verdict::LookUp(host) => host,
            verdict => return verdict == Verdict::Is,
        };
        let Some(done) = self.begin_look_up((peer.clone(), way.from), host) else { return false };
        if !self.verifying.waits(peer) {
            return false;
        }
        if timeout(PATIENCE, done.notified()).await.is_err() {
            self.verifying.waited_in_vain(peer);
        }
        self.verifying.judge(uri, to) == Verdict::Is
    }

    /// Begins to find out.
    pub fn look_up_meanwhile(self: &Rc<Hub>, peer: &Rc<str>, uri: &Uri, way: Way) {
        if let Verdict::LookUp(host) = self.verifying.judge(uri, way.to) {
            self.begin_look_up((peer.clone(), way.from), host);
        }
    }

    /// Told when the look-up is through; `None` if there are too many.
    fn begin_look_up(self: &Rc<Hub>, (peer, from): Asker, host: String) -> Option<Rc<Notify>> {
        let asker = (peer, one_host(from));
        let (done, is_new) = self.verifying.begin(&asker, &host)?;
        if is_new {
            Local::spawn(self.clone().look_up(asker, host));
        }
        Some(done)
    }

    async fn look_up(self: Rc<Hub>, (peer, from): Asker, host: String) {
        let told = self.gateway.resolve(&peer, from, &host).await;
        self.verifying.end(&peer, host, told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(peer: &str, host: u8) -> Asker {
        (peer.into(), [10, 1, 0, host].into())
    }

    #[test]
    fn names_that_one_peer_looks_up_hold_up_no_other_peer() {
        let it = Verifying::default();
        let begins = |peer, host, name: &str| it.begin(&asker(peer, host), name).map(|new| new.1);
        assert_eq!(begins("evil", 1, "bank.test"), Some(true));
        assert_eq!(begins("evil", 2, "bank.test"), Some(false), "it is under way");
        assert_eq!(begins("ship", 1, "bank.test"), Some(true), "the other may wait for long");
        for n in 0..OF_HOST {
            begins("evil", 1, &format!("n{n}.test"));
        }
        assert_eq!(begins("evil", 1, "more.test"), None);
        assert_eq!(begins("evil", 2, "more.test"), Some(true));
        let (evil, ship): (Rc<str>, Rc<str>) = ("evil".into(), "ship".into());
        (0..IN_VAIN).for_each(|_| it.waited_in_vain(&evil));
        assert!(!it.waits(&evil) && it.waits(&ship));
        it.end(&ship, "bank.test".into(), Ok(vec![]));
        assert!(!it.waits(&evil), "that was no answer to it");
        it.end(&evil, "more.test".into(), Ok(vec![]));
        assert!(it.waits(&evil));
        assert_eq!(begins("ship", 1, "bank.test"), Some(true), "the one before is through");
    }
}
