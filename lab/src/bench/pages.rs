//! Five published pages with `bentpipe-web` at both ends, as three kinds of browser load them
//! (R-WEB-PUSH, R-WEB-PIPE).
//!
//! Source: the ITU's handbook on satellite communications, section 6.3, table 23. How the bytes
//! of a page divide into objects is not told there: a page here is a text, a style sheet and
//! images of one to five parts.

mod browser;

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use control::{ServiceState, ServiceStatus};
use units::Rng;

use self::browser::{Browser, read_head};
use super::Checked;
use super::table::link;
use crate::testbed::gateway::{self, Pair};
use crate::testbed::progress::Board;
use crate::testbed::topology::{Plan, SERVER, Topology};

/// Objects and bytes of each page, and the best published time to load it, s.
const PAGES: [(usize, usize, &str); 5] = [
    (30, 212_207, "4.4 s"),
    (21, 80_333, "3.2 s"),
    (33, 176_105, "4.3 s"),
    (16, 393_672, "4.9 s"),
    (8, 72_103, "3.8 s"),
];
const RATE: u64 = 2_000_000;
const DELAY_MS: u64 = 270;
/// A tenth above what the link allows.
const MARGIN: f64 = 1.1;
/// Until the services have said hello, and until what they still say has crossed.
const START: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(3);

/// Each page by each browser, over a link that carried nothing of it before.
pub fn web_pages(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("web pages", PAGES.len() as u64 * 6);
    row.begin();
    let mut checks = Vec::new();
    for with_service in [false, true] {
        let bed = Bed::build(with_service)?;
        if with_service {
            // Until the windows of its streams are known the hub sends 64 KiB on each.
            let time = bed.load_as(0, Browser::Kept, "first")?;
            let what = "the first page after the start, 30 objects, 212207 bytes";
            checks.push(Checked::told(what, format!("{time:.2} s")));
        }
        for (n, (objects, bytes, published)) in PAGES.into_iter().enumerate() {
            let limit = 2e-3 * DELAY_MS as f64 + bytes as f64 * 8.0 / RATE as f64;
            for browser in Browser::ALL {
                let time = bed.load(n, browser)?;
                row.done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let what = format!("{objects} objects, {bytes} bytes, {}", browser.name());
                let measured = format!("{time:.2} s");
                checks.push(match with_service {
                    false => Checked::told(&format!("without the service: {what}"), measured),
                    true => Checked {
                        limit: format!("{limit:.2} s"),
                        best: published.into(),
                        value: Some(time),
                        ..Checked::asked(
                            &what,
                            &format!("≤ {:.2} s", limit * MARGIN),
                            measured,
                            time <= limit * MARGIN,
                        )
                    },
                });
            }
        }
        checks.extend(bed.told()?);
    }
    row.end("done".into());
    Ok(checks)
}

struct Bed {
    topology: Topology,
    with_service: bool,
    _program: Program,
}

impl Bed {
    fn build(with_service: bool) -> Result<Bed, String> {
        let program = Program::copy()?;
        let mut pair = Pair::default();
        if with_service {
            let command = program.0.join("bentpipe-web").display().to_string();
            pair.node = format!("[service.web]\ncommand = [{command:?}]\n");
            pair.peer = "[[peer.rule]]\nports = [80]\nvia = \"web\"\n".into();
        }
        let link = link(RATE, RATE, DELAY_MS);
        let plan = Plan { link, seed: 1, gateways: Some(pair), ..Plan::default() };
        let topology = Topology::build(&plan).map_err(|e| e.to_string())?;
        let at = SocketAddr::new(SERVER[0], 80);
        let listener = topology.server.run(|| TcpListener::bind(at));
        let listener = listener.map_err(|e| format!("the server does not start: {e}"))?;
        // It ends with the process: the bench's last rows do not share its namespace.
        thread::spawn(move || serve(&listener));
        let bed = Bed { topology, with_service, _program: program };
        bed.wait_for_services()?;
        Ok(bed)
    }

    fn services(&self) -> Result<Vec<ServiceStatus>, String> {
        let gateways = self.topology.gateways.iter().flatten();
        let all: io::Result<Vec<_>> = gateways.map(|g| g.status().map(|s| s.services)).collect();
        all.map(|all| all.into_iter().flatten().collect()).map_err(|e| e.to_string())
    }

    fn wait_for_services(&self) -> Result<(), String> {
        let begin = Instant::now();
        while self.with_service {
            let services = self.services()?;
            if services.len() == 2 && services.iter().all(|s| s.state == ServiceState::Running) {
                break;
            }
            if begin.elapsed() > START {
                return Err(format!("bentpipe-web does not run: {services:?}"));
            }
            thread::sleep(Duration::from_millis(50));
        }
        thread::sleep(SETTLE);
        Ok(())
    }

    /// Seconds until a browser has all of the page.
    fn load(&self, page: usize, browser: Browser) -> Result<f64, String> {
        // Each browser has a page of its own, so that nothing of it crossed before.
        self.load_as(page, browser, &browser.number().to_string())
    }

    fn load_as(&self, page: usize, browser: Browser, name: &str) -> Result<f64, String> {
        let at = SocketAddr::new(SERVER[0], 80);
        let directory = format!("/{page}-{name}/");
        let begin = Instant::now();
        let got = self.topology.client.run(|| browser.load(at, &directory));
        let time = begin.elapsed().as_secs_f64();
        let got = got.map_err(|e| format!("{} fails: {e}", browser.name()))?;
        let (objects, bytes, _) = PAGES[page];
        match (got.objects, got.bytes) == (objects, bytes) {
            true => {
                thread::sleep(SETTLE);
                Ok(time)
            }
            false => Err(format!("{} got {got:?} of {objects}, {bytes}", browser.name())),
        }
    }

    fn told(&self) -> Result<Option<Checked>, String> {
        let services = self.services()?;
        let Some(terminal) = services.first().filter(|_| self.with_service) else {
            return Ok(None);
        };
        let of = |name| terminal.counters.get(name).copied().unwrap_or(0);
        let text = format!(
            "{}, {}, {} ({} kB)",
            of("pushed"),
            of("push_used"),
            of("push_wasted"),
            of("push_wasted_bytes") / 1000
        );
        Ok(Some(Checked::told("of it objects pushed, used, wasted", text)))
    }
}

/// The program where every user may run it; gone when dropped.
struct Program(PathBuf);

impl Program {
    fn copy() -> Result<Program, String> {
        let from = gateway::program().map_err(|e| e.to_string())?.with_file_name("bentpipe-web");
        let to = std::env::temp_dir().join(format!("bplab-web-{}", std::process::id()));
        let _ = fs::remove_dir_all(&to);
        let copied = fs::create_dir(&to).and_then(|()| fs::copy(&from, to.join("bentpipe-web")));
        let program = Program(to);
        let why = |e| format!("cannot copy {}: {e}; `make build` makes it", from.display());
        copied.map(|_| program).map_err(why)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An object's bytes: as many as its page has for it, that nothing compresses.
fn object(page: usize, object: usize) -> Vec<u8> {
    let (objects, bytes, _) = PAGES[page];
    let part = |n: usize| n % 5 + 1;
    let parts: usize = (0..objects).map(part).sum();
    let end = |n: usize| bytes * (0..n).map(part).sum::<usize>() / parts;
    let length = end(object + 1) - end(object);
    let mut rng = Rng::new((page * 1000 + object) as u64 + 1);
    (0..length).map(|_| b' ' + (rng.next_u64() % 95) as u8).collect()
}

/// The page's text: the names of all its objects, and padding.
fn text(page: usize) -> Vec<u8> {
    let length = object(page, 0).len();
    let mut text = String::from("<!doctype html><link rel=stylesheet href=\"1.css\">");
    for n in 2..PAGES[page].0 {
        text += &format!("<img src=\"{n}.gif\">");
    }
    text += "<p>";
    let padding = object(page, 0).into_iter().filter(|b| b.is_ascii_alphanumeric()).cycle();
    let missing = length.saturating_sub(text.len());
    text.into_bytes().into_iter().chain(padding.take(missing)).collect()
}

fn serve(listener: &TcpListener) {
    let pages: Arc<Vec<Vec<Vec<u8>>>> = Arc::new(
        (0..PAGES.len())
            .map(|page| {
                (0..PAGES[page].0)
                    .map(|n| if n == 0 { text(page) } else { object(page, n) })
                    .collect()
            })
            .collect(),
    );
    for stream in listener.incoming().flatten() {
        let pages = Arc::clone(&pages);
        // A client that goes away ends its thread.
        thread::spawn(move || serve_one(stream, &pages));
    }
}

/// Answers `/PAGE-BROWSER/OBJECT.ending` on one connection, until its client ends it.
fn serve_one(mut stream: TcpStream, pages: &[Vec<Vec<u8>>]) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    loop {
        let head = read_head(&mut stream).ok()?;
        let mut words = head.split_ascii_whitespace();
        let (target, version) = (words.nth(1)?, words.next()?);
        let (page, rest) = target.strip_prefix('/')?.split_once('-')?;
        let name = rest.split_once('/')?.1;
        let number = name.split('.').next()?.parse().unwrap_or(0);
        let body = pages.get(page.parse::<usize>().ok()?)?.get(number)?;
        let kind = match name.rsplit('.').next()? {
            "css" => "text/css",
            "gif" => "image/gif",
            _ => "text/html",
        };
        let last = version == "HTTP/1.0";
        let close = if last { "Connection: close\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{close}Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).ok()?;
        if last {
            return stream.shutdown(std::net::Shutdown::Write).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_the_published_objects_and_bytes() {
        for (page, (objects, bytes, _)) in PAGES.into_iter().enumerate() {
            let of = |n| if n == 0 { text(page).len() } else { object(page, n).len() };
            assert_eq!((0..objects).map(of).sum::<usize>(), bytes);
        }
    }

    #[test]
    fn every_browser_loads_every_object_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener));
        for browser in Browser::ALL {
            let got = browser.load(at, "/4-0/").unwrap();
            assert_eq!((got.objects, got.bytes), (8, 72_103), "{}", browser.name());
        }
    }
}
