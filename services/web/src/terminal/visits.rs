//! Who is still there: hosts' connections, and the pages that they are looking at.
//!
//! What is pushed for a page that its user has left crosses in vain. A host has left all its pages
//! when it has no connection any more, and one of them when the connection on which the page was
//! asked for, or one of its objects, asks for another page.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use http::Request;
use http::header::{self, HeaderName};
use tokio::task::spawn_local;

/// Browsers of old end each connection with its answer, and come back for the objects.
const GRACE: Duration = Duration::from_secs(2);
/// What a browser says it wants the answer for.
const DESTINATION: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Behind which peer its servers are, and the host.
pub type Host = (Rc<str>, IpAddr);

/// Which connection a request came on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct On(u64);

/// Hosts' connections.
#[derive(Default)]
pub struct Visits {
    hosts: RefCell<BTreeMap<Host, usize>>,
    pages: RefCell<BTreeMap<On, u64>>,
    last: Cell<u64>,
}

impl Visits {
    fn begin(&self, host: Host) -> On {
        *self.hosts.borrow_mut().entry(host).or_default() += 1;
        self.last.set(self.last.get() + 1);
        On(self.last.get())
    }

    /// Is it the last one of its host?
    fn end(&self, host: &Host, on: On) -> bool {
        self.pages.borrow_mut().remove(&on);
        let mut hosts = self.hosts.borrow_mut();
        let Some(open) = hosts.get_mut(host) else { return true };
        *open -= 1;
        let is_last = *open == 0;
        if is_last {
            hosts.remove(host);
        }
        is_last
    }

    /// This request shows that its user looks at this page.
    pub fn looks_at<B>(&self, request: &Request<B>, page: u64) {
        if let Some(on) = request.extensions().get::<On>() {
            self.pages.borrow_mut().insert(*on, page);
        }
    }

    /// A page is asked for that no other one announced; the page that its user leaves for it.
    pub fn leaves<B>(&self, request: &Request<B>, page: u64) -> Option<u64> {
        let on = request.extensions().get::<On>()?;
        let mut pages = self.pages.borrow_mut();
        if !is_document(request) {
            pages.entry(*on).or_insert(page);
            return None;
        }
        pages.insert(*on, page)
    }
}

/// Does a browser show it as a page of its own?
fn is_document<B>(request: &Request<B>) -> bool {
    let fields = request.headers();
    match fields.get(DESTINATION) {
        Some(destination) => destination == "document",
        None => {
            let accept = fields.get(header::ACCEPT).and_then(|a| a.to_str().ok());
            accept.is_some_and(|accept| accept.contains("text/html"))
        }
    }
}

/// A host's connection, until it is dropped.
pub struct Visit {
    visits: Rc<Visits>,
    host: Host,
    on: On,
    /// Called where it was the host's last one, and none has come for a while.
    gone: Option<Box<dyn FnOnce()>>,
}

impl Visit {
    /// One more.
    pub fn new(visits: &Rc<Visits>, host: Host, gone: impl FnOnce() + 'static) -> Visit {
        let on = visits.begin(host.clone());
        Visit { visits: Rc::clone(visits), host, on, gone: Some(Box::new(gone)) }
    }

    /// Notes that a request came on it.
    pub fn mark<B>(&self, request: &mut Request<B>) {
        request.extensions_mut().insert(self.on);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let (true, Some(gone)) = (self.visits.end(&self.host, self.on), self.gone.take()) {
            let (visits, host) = (Rc::clone(&self.visits), self.host.clone());
            spawn_local(async move {
                tokio::time::sleep(GRACE).await;
                if !visits.hosts.borrow().contains_key(&host) {
                    gone();
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(on: On, name: &'static str, value: &'static str) -> Request<()> {
        let mut request = Request::builder().header(name, value).body(()).unwrap();
        request.extensions_mut().insert(on);
        request
    }

    #[test]
    fn a_page_is_left_for_another_on_the_same_connection_and_not_for_its_own_parts() {
        let visits = Visits::default();
        let host = (Rc::from("shore"), IpAddr::from([10, 1, 0, 2]));
        let [one, two] = [(); 2].map(|()| visits.begin(host.clone()));
        let html = |on| request(on, "accept", "text/html,*/*;q=0.8");
        assert_eq!(visits.leaves(&html(one), 1), None);
        assert_eq!(visits.leaves(&html(two), 2), None, "another window's");
        assert_eq!(visits.leaves(&request(one, "accept", "text/css"), 3), None);
        assert_eq!(visits.leaves(&request(one, "sec-fetch-dest", "iframe"), 4), None);
        assert_eq!(visits.leaves(&request(one, "sec-fetch-dest", "document"), 5), Some(1));
        visits.looks_at(&request(two, "accept", "image/*"), 5);
        assert_eq!(visits.leaves(&html(two), 6), Some(5));
        assert_eq!([visits.end(&host, one), visits.end(&host, two)], [false, true]);
        assert!(visits.pages.borrow().is_empty() && visits.hosts.borrow().is_empty());
    }
}
