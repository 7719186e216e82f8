//! Names that the hub looks up, so that nobody's answers pass for those of another's host.

use std::cell::{Cell, RefCell};
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

/// So many requests in a row waited in vain: others do not wait before a look-up has an answer.
const IN_VAIN: u32 = 3;

/// What is known of names, and which are being looked up.
pub struct Verifying {
    book: RefCell<Book>,
    under_way: RefCell<BTreeMap<String, LookUp>>,
    places: Rc<Places>,
    in_vain: Cell<u32>,
    started: Instant,
}

struct LookUp {
    done: Rc<Notify>,
    /// For whom, and its place.
    asker: Asker,
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

    /// These are addresses of the host.
    pub fn note(&self, host: &str, addresses: &[IpAddr]) {
        self.book.borrow_mut().note(host, addresses, self.started.elapsed());
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
        let in_vain = &self.verifying.in_vain;
        if in_vain.get() >= IN_VAIN {
            return false;
        }
        if timeout(PATIENCE, done.notified()).await.is_err() {
            in_vain.set(in_vain.get() + 1);
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
        let mut under_way = self.verifying.under_way.borrow_mut();
        if let Some(it) = under_way.get(&host) {
            return Some(Rc::clone(&it.done));
        }
        let asker = (peer, one_host(from));
        if under_way.values().filter(|it| it.asker == asker).count() >= OF_HOST {
            return None;
        }
        let place = self.verifying.places.take(&asker.0, 1)?;
        let done = Rc::new(Notify::new());
        let it = LookUp { done: Rc::clone(&done), asker: asker.clone(), _place: place };
        under_way.insert(host.clone(), it);
        Local::spawn(self.clone().look_up(asker, host));
        Some(done)
    }

    async fn look_up(self: Rc<Hub>, (peer, from): Asker, host: String) {
        let it = &self.verifying;
        match self.gateway.resolve(&peer, from, &host).await {
            Ok(addresses) => {
                it.in_vain.set(0);
                it.note(&host, &addresses);
            }
            // That says nothing of the name.
            Err(Reason::Exhausted | Reason::ShuttingDown | Reason::NoSuchPeer) => {}
            Err(_) => it.note(&host, &[]),
        }
        if let Some(it) = it.under_way.borrow_mut().remove(&host) {
            it.done.notify_waiters();
        }
    }
}
