//! Five published pages with `bentpipe-web` at both ends, as three kinds of browser load them
//! (R-WEB-PUSH, R-WEB-PIPE).
//!
//! Source: the ITU's handbook on satellite communications, section 6.3, table 23. How the bytes
//! of a page divide into objects is not told there: a page here is a text, a style sheet and
//! images of one to five parts.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use super::checked::Checked;
use super::setup::link;
use crate::testbed::gateway::Pair;
use crate::testbed::progress::Board;
use crate::testbed::topology::{Plan, SERVER, Topology};
use crate::testbed::traffic::browser::Browser;
use crate::testbed::traffic::site;
use crate::testbed::way::LinkSetup;
use crate::testbed::web::{self, Program};

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
/// A page that is all fresh must be there by then, s.
const SOON: f64 = 0.1;
/// Until what is still said of a page has crossed.
const SETTLE: Duration = Duration::from_secs(3);

/// Each page by each browser, over a link that carried nothing of it before.
pub fn web_pages(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("web pages", PAGES.len() as u64 * 6);
    row.begin();
    let mut checks = Vec::new();
    for with_service in [false, true] {
        let bed = Bed::of_pages(with_service)?;
        if with_service {
            // Until the windows of its streams are known the hub sends 64 KiB on each.
            let time = bed.load_as(0, Browser::Kept, "first")?;
            let what = "the first page after the start, 30 objects, 212207 bytes";
            checks.push(Checked::told(what, format!("{time:.2} s")));
        }
        for (n, (objects, bytes, published)) in PAGES.into_iter().enumerate() {
            let limit = 2e-3 * DELAY_MS as f64 + bytes as f64 * 8.0 / RATE as f64;
            for browser in Browser::BENCH {
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

/// Each page again, by each browser: all of it fresh, and with its text changed by 2 %.
pub fn web_again(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let loads = PAGES.len() * (2 + 2 * Browser::BENCH.len());
    let row = board.row("web pages again", loads as u64);
    row.begin();
    let bed = Bed::of_pages(true)?;
    let load = |page, browser, name| {
        row.done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        bed.load_and_count(page, browser, name)
    };
    let mut checks = Vec::new();
    for (n, (objects, bytes, _)) in PAGES.into_iter().enumerate() {
        load(n, Browser::Kept, site::FRESH)?;
        let (_, first) = load(n, Browser::Kept, site::NEWS)?;
        for browser in Browser::BENCH {
            let what = format!("{objects} objects, {bytes} bytes, {}", browser.name());
            let (time, crossed) = load(n, browser, site::FRESH)?;
            let measured = format!("{:.0} ms, {crossed} bytes", time * 1e3);
            let is_met = time < SOON && crossed == 0;
            checks.push(Checked {
                value: Some(time * 1e3),
                ..Checked::asked(&format!("fresh: {what}"), "< 100 ms, none", measured, is_met)
            });
            let (time, crossed) = load(n, browser, site::NEWS)?;
            let share = crossed as f64 / first as f64 * 100.0;
            let measured = format!("{share:.1} % of the bytes, {time:.2} s");
            checks.push(Checked {
                value: Some(share),
                ..Checked::asked(&format!("text changed: {what}"), "≤ 5 %", measured, share <= 5.0)
            });
        }
    }
    row.end("done".into());
    Ok(checks)
}

/// A host and a server of pages around a link with gateways.
pub(super) struct Bed {
    pub(super) topology: Topology,
    with_service: bool,
    sizes: Vec<(usize, usize)>,
    _program: Option<Program>,
}

impl Bed {
    fn of_pages(with_service: bool) -> Result<Bed, String> {
        let pages = PAGES.iter().zip(0..);
        let pages =
            pages.map(|(&(objects, bytes, _), n)| site::bodies(objects, bytes, n)).collect();
        let link = link(RATE, RATE, DELAY_MS);
        Bed::build(link, 1, Pair::default(), with_service, pages)
    }

    pub(super) fn build(
        link: LinkSetup,
        seed: u64,
        mut pair: Pair,
        with_service: bool,
        pages: Vec<site::Bodies>,
    ) -> Result<Bed, String> {
        let program = with_service.then(|| Program::for_pair(&mut pair)).transpose()?;
        let plan = Plan { link, seed, gateways: Some(pair), ..Plan::default() };
        let topology = Topology::build(&plan).map_err(|e| e.to_string())?;
        let at = SocketAddr::new(SERVER[0], 80);
        let listener = topology.server.run(|| TcpListener::bind(at));
        let listener = listener.map_err(|e| format!("the server does not start: {e}"))?;
        // It ends with the process: the bench's last rows do not share its namespace.
        let size = |page: &site::Bodies| (page.len(), page.iter().map(Vec::len).sum());
        let sizes = pages.iter().map(size).collect();
        thread::spawn(move || site::serve(&listener, pages, &AtomicBool::new(false)));
        let bed = Bed { topology, with_service, sizes, _program: program };
        web::wait_for(&bed.topology, if with_service { 2 } else { 0 })?;
        Ok(bed)
    }

    /// Seconds until a browser has all of the page.
    fn load(&self, page: usize, browser: Browser) -> Result<f64, String> {
        // Each browser has a page of its own, so that nothing of it crossed before.
        self.load_as(page, browser, &browser.number().to_string())
    }

    /// The same of the page of this name.
    pub(super) fn load_as(&self, page: usize, browser: Browser, name: &str) -> Result<f64, String> {
        let at = SocketAddr::new(SERVER[0], 80);
        let directory = format!("/{page}-{name}/");
        let begin = Instant::now();
        let got = self.topology.client.run(|| browser.load(at, &directory, None));
        let time = begin.elapsed().as_secs_f64();
        let got = got.map_err(|e| format!("{} fails: {e}", browser.name()))?;
        let (objects, bytes) = self.sizes[page];
        match (got.objects, got.bytes) == (objects, bytes) {
            true => {
                thread::sleep(SETTLE);
                Ok(time)
            }
            false => Err(format!("{} got {got:?} of {objects}, {bytes}", browser.name())),
        }
    }

    /// Bytes of link packets that the gateways have sent.
    fn crossed(&self) -> Result<u64, String> {
        let gateways = self.topology.gateways.iter().flatten();
        let sent = gateways.map(|gateway| {
            let status = gateway.status().map_err(|e| e.to_string())?;
            Ok(status.links.iter().map(|link| link.send.link_bytes).sum::<u64>())
        });
        sent.sum()
    }

    /// Loads a page, and tells how many bytes crossed for it.
    fn load_and_count(
        &self,
        page: usize,
        browser: Browser,
        name: &str,
    ) -> Result<(f64, u64), String> {
        let before = self.crossed()?;
        let time = self.load_as(page, browser, name)?;
        Ok((time, self.crossed()? - before))
    }

    fn told(&self) -> Result<Option<Checked>, String> {
        let services = web::services(&self.topology)?;
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
