//! Pages that hosts load, told as a line each.
//!
//! What belongs to a page its objects' `Referer` says. A page is told when it has rested for a
//! while.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bentpipe_web::cache::{Digest, digest_of, is_secure, origin_of, plain_uri};
use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use crate::body::{Body, Broken};
use crate::hosts::Hosts;

/// A page without news for so long is loaded.
const REST: Duration = Duration::from_secs(2);
/// Pages that are loaded at once; the oldest is told early.
const PAGES: usize = 256;
/// Names of a page and of its parts that name objects themselves.
const NAMES: usize = 32;
/// Bytes of a name in the log.
const SHOWN: usize = 200;

/// Where an answer came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// It was kept here.
    Memory,
    /// It had come ahead of its request.
    Pushed,
    /// It was asked for.
    #[default]
    Link,
}

/// A name of [`plain_uri`]'s of any length, which hosts choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    whole: Digest,
    origin: Digest,
}

impl Name {
    fn of(name: &str) -> Name {
        Name { whole: digest_of(name.as_bytes()), origin: digest_of(origin_of(name).as_bytes()) }
    }
}

/// A name as the log tells it.
fn shown(name: &str) -> String {
    let name = match is_secure(name) {
        // Of HTTPS nothing is written down beyond the name of the host (docs/web.md).
        true => origin_of(name),
        false => name.split('?').next().unwrap_or(""),
    };
    name.chars().take(SHOWN).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A page while it is loaded.
#[derive(Debug)]
struct Load {
    number: u64,
    host: IpAddr,
    /// As the log tells it.
    shown: String,
    /// Its own, and those of its parts that name objects themselves.
    names: Vec<Name>,
    begun: Instant,
    news: Instant,
    under_way: usize,
    objects: usize,
    bytes: u64,
    from: [usize; 3],
}

impl Load {
    #[cfg(test)]
    fn names_take(&self) -> usize {
        self.shown.len() + self.names.len() * size_of::<Name>()
    }

    fn line(&self) -> String {
        let [memory, pushed, link] = self.from;
        let took = self.news.duration_since(self.begun);
        format!(
            "page {}: {} objects, {} bytes in {}.{:03} s; {memory} from memory, {pushed} pushed, {link} over \
             the link",
            self.shown,
            self.objects,
            self.bytes,
            took.as_secs(),
            took.subsec_millis(),
        )
    }
}

/// All pages that are loaded.
#[derive(Default)]
pub struct Loads(RefCell<Inside>);

#[derive(Default)]
struct Inside {
    loads: VecDeque<Load>,
    last: u64,
    /// To be told.
    lines: Vec<String>,
}

/// A request whose answer may be part of a page, or one.
pub struct Asked {
    loads: Rc<Loads>,
    hosts: Rc<Hosts>,
    host: IpAddr,
    name: Name,
    shown: String,
    /// Its scheme and host.
    origin: String,
    /// The page whose part it is.
    of: Option<u64>,
    may_be_page: bool,
    begun: Instant,
}

impl Loads {
    /// A host asks for something.
    pub fn ask<B>(
        self: &Rc<Loads>,
        hosts: &Rc<Hosts>,
        host: IpAddr,
        request: &Request<B>,
    ) -> Asked {
        let name = plain_uri(request.uri());
        let referer = referer(request.headers());
        let mut inside = self.0.borrow_mut();
        let load = referer.and_then(|referer| inside.find(host, referer));
        let of = load.map(|load| {
            load.under_way += 1;
            load.number
        });
        let may_be_page = *request.method() == Method::GET;
        let (loads, hosts) = (Rc::clone(self), Rc::clone(hosts));
        let (shown, origin, begun) = (shown(&name), origin_of(&name).to_owned(), Instant::now());
        let name = Name::of(&name);
        Asked { loads, hosts, host, name, shown, origin, of, may_be_page, begun }
    }

    /// The lines of pages that are loaded.
    pub fn told(&self) -> Vec<String> {
        let mut inside = self.0.borrow_mut();
        let (loads, mut lines) = (std::mem::take(&mut inside.loads), vec![]);
        lines.append(&mut inside.lines);
        for load in loads {
            match load.under_way == 0 && load.news.elapsed() >= REST {
                true => lines.push(load.line()),
                false => inside.loads.push_back(load),
            }
        }
        lines
    }
}

fn referer(fields: &HeaderMap) -> Option<Name> {
    let uri: Uri = fields.get(header::REFERER)?.to_str().ok()?.parse().ok()?;
    uri.authority()?;
    Some(Name::of(&plain_uri(&uri)))
}

impl Inside {
    /// The page that this names, or the newest of the same site: a `Referer` may name that alone.
    fn find(&mut self, host: IpAddr, referer: Name) -> Option<&mut Load> {
        let its = |load: &Load| load.host == host;
        let names = |load: &Load| load.names.contains(&referer);
        let site = |load: &Load| load.names.iter().any(|name| name.origin == referer.origin);
        let newest = |suits: &dyn Fn(&Load) -> bool| {
            self.loads.iter().rposition(|load| its(load) && suits(load))
        };
        let at = newest(&names).or_else(|| newest(&site))?;
        self.loads.get_mut(at)
    }

    fn begin(&mut self, host: IpAddr, name: Name, shown: String, begun: Instant) -> u64 {
        if self.loads.len() >= PAGES
            && let Some(oldest) = self.loads.pop_front()
        {
            self.lines.push(oldest.line());
        }
        self.last += 1;
        self.loads.push_back(Load {
            number: self.last,
            host,
            shown,
            names: vec![name],
            begun,
            news: begun,
            under_way: 1,
            objects: 0,
            bytes: 0,
            from: [0; 3],
        });
        self.last
    }

    fn of(&mut self, number: Option<u64>) -> Option<&mut Load> {
        self.loads.iter_mut().find(|load| Some(load.number) == number)
    }
}

impl Asked {
    /// Counts its answer.
    pub fn answered(mut self, answer: Response<Body>) -> Response<Body> {
        let source: Source = answer.extensions().get().copied().unwrap_or_default();
        let of_type = |kind| {
            let told = answer.headers().get(header::CONTENT_TYPE);
            told.is_some_and(|told| told.as_bytes().starts_with(kind))
        };
        let mut inside = self.loads.0.borrow_mut();
        let is_html = of_type(b"text/html");
        if self.of.is_none() && self.may_be_page && is_html && answer.status() == StatusCode::OK {
            let shown = std::mem::take(&mut self.shown);
            self.of = Some(inside.begin(self.host, self.name, shown, self.begun));
        }
        if let Some(load) = inside.of(self.of) {
            load.objects += 1;
            load.from[source as usize] += 1;
            let may_name = is_html || of_type(b"text/css");
            if may_name && load.names.len() < NAMES && !load.names.contains(&self.name) {
                load.names.push(self.name);
            }
        }
        drop(inside);
        answer.map(|body| Box::pin(Counting { body, asked: self }) as Body)
    }

    fn read(&self, bytes: usize) {
        self.hosts.read(&self.origin, bytes as u64);
        if let Some(load) = self.loads.0.borrow_mut().of(self.of) {
            load.bytes += bytes as u64;
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(load) = self.loads.0.borrow_mut().of(self.of) {
            load.under_way -= 1;
            load.news = Instant::now();
        }
    }
}

/// A body whose bytes are counted.
struct Counting {
    body: Body,
    asked: Asked,
}

impl HttpBody for Counting {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = ready!(self.body.as_mut().poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.asked.read(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::body::whole;

    fn load(loads: &Rc<Loads>, uri: &str, referer: &str, kind: &str, source: Source) {
        let (hosts, host) = (Rc::default(), IpAddr::from([10, 1, 0, 2]));
        let request = Request::get(uri).header("referer", referer).body(()).unwrap();
        let asked = loads.ask(&hosts, host, &request);
        let mut answer = Response::new(whole("12345".into()));
        answer.headers_mut().insert("content-type", kind.parse().unwrap());
        answer.extensions_mut().insert(source);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(asked.answered(answer).into_body().collect()).unwrap();
        assert_eq!(hosts.best(9)[0].1.total_bytes, 5);
    }

    fn rest(loads: &Loads) {
        let then = Instant::now().checked_sub(REST).expect("a clock that ran for two seconds");
        for load in &mut loads.0.borrow_mut().loads {
            (load.begun, load.news) = (then, then);
        }
    }

    #[test]
    fn a_page_and_what_it_and_its_sheets_name_is_one_line_without_its_query() {
        let loads = Rc::new(Loads::default());
        let page = "http://A.test/x?secret=1";
        load(&loads, page, "http://search.test/", "text/html", Source::Link);
        load(&loads, "http://a.test/a.css", page, "text/css", Source::Pushed);
        load(&loads, "http://b.test/f", "http://a.test/a.css", "font/woff2", Source::Pushed);
        load(&loads, "http://b.test/i", "http://a.test/", "image/png", Source::Memory);
        load(&loads, "http://c.test/i", "http://c.test/", "image/png", Source::Link);
        let secret = "https://s.test/secret?more";
        load(&loads, secret, "", "text/html", Source::Link);
        load(&loads, "https://s.test/i", secret, "image/png", Source::Pushed);
        assert!(loads.told().is_empty(), "it may go on");
        rest(&loads);
        let told = loads.told();
        assert_eq!(
            told,
            [
                "page a.test/x: 4 objects, 20 bytes in 0.000 s; 1 from memory, 2 pushed, 1 over the \
                 link",
                "page https://s.test: 2 objects, 10 bytes in 0.000 s; 0 from memory, 1 pushed, 1 over \
                 the link",
            ]
        );
        assert!(loads.told().is_empty());
    }

    #[test]
    fn names_of_any_length_take_little() {
        let loads = Rc::new(Loads::default());
        let long = "x".repeat(6_000);
        for n in 0..PAGES {
            let page = format!("http://a{n}.test/{long}");
            load(&loads, &page, "", "text/html", Source::Link);
            for _ in 0..NAMES {
                let sheet = format!("http://a{n}.test/s/{long}");
                load(&loads, &sheet, &page, "text/css", Source::Link);
            }
        }
        let inside = loads.0.borrow();
        assert!(inside.loads.iter().all(|load| load.objects == 1 + NAMES));
        let kept: usize = inside.loads.iter().map(Load::names_take).sum();
        assert!(kept < 1 << 20, "{kept}");
    }

    #[test]
    fn so_many_pages_are_followed_at_once() {
        let loads = Rc::new(Loads::default());
        for n in 0..2 * PAGES {
            load(&loads, &format!("http://a{n}.test/"), "", "text/html", Source::Link);
        }
        let followed = loads.0.borrow().loads.len();
        assert_eq!((followed, loads.told().len()), (PAGES, PAGES));
    }
}
