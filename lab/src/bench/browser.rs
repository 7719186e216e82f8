//! A real browser loads a page of sixty objects from six hosts, with and without gateways that have
//! `bentpipe-web` and `bentpipe-names`, over HTTP, over HTTPS, and over HTTPS that is inspected.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use os::OsError;

use super::checked::Checked;
use super::setup::link;
use crate::testbed::gateway::Pair;
use crate::testbed::measure::median;
use crate::testbed::progress::{Board, Row};
use crate::testbed::topology::{LAN, LINK_B, Plan, SATELLITE, SERVER, Topology};
use crate::testbed::traffic::chromium::{self, Loaded};
use crate::testbed::traffic::dns;
use crate::testbed::traffic::six_hosts::{self, OBJECTS, Site};
use crate::testbed::web::{self, Program};

const RATE: u64 = 2_000_000;
const DELAY_MS: u64 = 300;
/// Loads of which a figure is the median.
const RUNS: u64 = 5;
/// Images that the page's text names.
const SHOWN: usize = 36;
/// Until what is still said of a page has crossed.
const SETTLE: Duration = Duration::from_secs(3);
/// Loads of the three beds.
const LOADS: u64 = 2 * RUNS + (1 + 3 * RUNS) + (1 + 2 * RUNS);

/// No page of another number has any of its bytes.
static PAGES: AtomicU64 = AtomicU64::new(0);

/// How a page is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Http,
    Https,
}

impl Way {
    fn name(self) -> &'static str {
        if self == Way::Http { "HTTP" } else { "HTTPS" }
    }

    /// What browsers call it.
    fn protocol(self) -> &'static str {
        if self == Way::Http { "http/1.1" } else { "h2" }
    }
}

/// How much sooner a page must be there.
const HTTP: f64 = 4.0;
const CARRIED: f64 = 2.0;
const INSPECTED: f64 = 4.0;

/// The load event without and with gateways; each page is new to browser, caches and servers.
pub fn browser(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("page loads", LOADS);
    row.begin();
    let bed = Bed::build(None)?;
    let plain = [bed.loads(Way::Http, &row)?, bed.loads(Way::Https, &row)?];
    drop(bed);
    let bed = Bed::build(Some(false))?;
    let mut told = vec![bed.first(Way::Http, &row)?];
    let carried = [bed.loads(Way::Http, &row)?, bed.loads(Way::Https, &row)?];
    let unknown = bed.loads_of_new_names(Way::Http, &row)?;
    told.push(Checked::told("HTTP, nobody has heard the hosts' names either", spread(&unknown)));
    drop(bed);
    let bed = Bed::build(Some(true))?;
    told.push(bed.first(Way::Https, &row)?);
    let inspected = bed.loads(Way::Https, &row)?;
    let unknown = bed.loads_of_new_names(Way::Https, &row)?;
    told.push(Checked::told("HTTPS, inspected, nor these", spread(&unknown)));
    row.end("done".into());
    let gain = |what: &str, plain: &[f64], with: &[f64], least: f64| {
        let (before, after) = (middle(plain), middle(with));
        let gain = before / after;
        let measured = format!("{gain:.1} times: {} → {}", spread(plain), spread(with));
        let asked = format!("≥ {least} times sooner");
        let value = Some(gain);
        Checked { value, ..Checked::asked(what, &asked, measured, gain >= least) }
    };
    let mut checks = vec![
        gain("load event of 60 objects from six hosts, HTTP", &plain[0], &carried[0], HTTP),
        gain("the same, HTTPS, not inspected", &plain[1], &carried[1], CARRIED),
        gain("the same, HTTPS, inspected", &plain[1], &inspected, INSPECTED),
    ];
    checks.append(&mut told);
    Ok(checks)
}

fn middle(times: &[f64]) -> f64 {
    median(times.iter().copied()).unwrap_or(f64::NAN)
}

fn spread(times: &[f64]) -> String {
    let low = times.iter().copied().fold(f64::INFINITY, f64::min);
    let high = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.2} s ({low:.2}–{high:.2})", middle(times))
}

/// Client, link and server, and what the browser trusts. Programs are dropped before the network.
struct Bed {
    site: Site,
    trust: String,
    resolver: PathBuf,
    topology: Topology,
    _program: Option<Program>,
}

impl Bed {
    /// Without gateways, or with such as inspect HTTPS or do not.
    fn build(inspects: Option<bool>) -> Result<Bed, String> {
        let mut site = Site::make()?;
        let mut pair = Pair {
            compress: true,
            further: Some(six_hosts::NETWORK),
            resolver: Some(SERVER[0]),
            ..Pair::default()
        };
        let program = inspects
            .map(|inspects| Program::for_browser(&mut pair, &site.authority(), inspects))
            .transpose()?;
        let trust = match &program {
            Some(program) if inspects == Some(true) => program.authority().join("ca.pem"),
            _ => site.authority(),
        };
        let gateways = program.is_some().then_some(pair);
        let services = if gateways.is_some() { 4 } else { 0 };
        let plan = Plan { link: link(RATE, RATE, DELAY_MS), seed: 1, gateways, ..Plan::default() };
        let topology = Topology::build(&plan).map_err(|e| e.to_string())?;
        lay(&topology).map_err(|e| e.to_string())?;
        let served = topology.server.run(|| dns::serve(SERVER[0], &six_hosts::hosts()));
        served.map_err(|e| format!("the DNS server does not start: {e}"))?;
        site.serve(&topology.server)?;
        web::wait_for(&topology, services)?;
        let resolver = site.resolver(SERVER[0]).map_err(|e| e.to_string())?;
        let trust = chromium::fingerprint(&trust)?;
        Ok(Bed { site, trust, resolver, topology, _program: program })
    }

    /// The first page after the start, while nothing is known of the link and of names.
    fn first(&self, way: Way, row: &Row) -> Result<Checked, String> {
        let time = self.load(way, "", row)?;
        Ok(Checked::told(
            &format!("the first page after the start, {}", way.name()),
            format!("{time:.2} s"),
        ))
    }

    /// Several pages whose hosts have the same names.
    fn loads(&self, way: Way, row: &Row) -> Result<Vec<f64>, String> {
        (0..RUNS).map(|_| self.load(way, "", row)).collect()
    }

    /// Several pages of which nobody has heard the hosts' names either.
    fn loads_of_new_names(&self, way: Way, row: &Row) -> Result<Vec<f64>, String> {
        (0..RUNS)
            .map(|n| self.load(way, &format!("-{}{n}", way.name().to_ascii_lowercase()), row))
            .collect()
    }

    /// Seconds until a browser's load event.
    fn load(&self, way: Way, names: &str, row: &Row) -> Result<f64, String> {
        let number = PAGES.fetch_add(1, Ordering::Relaxed);
        let url = self.site.page(number, names, way == Way::Https).map_err(|e| e.to_string())?;
        let loaded = chromium::load(&self.topology.client, &self.resolver, &self.trust, &url)?;
        row.done.fetch_add(1, Ordering::Relaxed);
        let Loaded { time, objects, shown, protocol } = &loaded;
        if (*objects, *shown, protocol.as_str()) != (OBJECTS, SHOWN, way.protocol()) {
            return Err(format!(
                "{url}: {loaded:?}, not {OBJECTS} objects, {SHOWN} of them images"
            ));
        }
        thread::sleep(SETTLE);
        Ok(*time)
    }
}

/// The six hosts at the server, and the way to them.
fn lay(topology: &Topology) -> Result<(), OsError> {
    let net = six_hosts::NETWORK;
    for (_, at) in six_hosts::hosts().iter() {
        topology.server.ip(&format!("address add {at}/32 dev lo"))?;
    }
    topology.gwa.route(&format!("{net} via {} dev {SATELLITE}", LINK_B[0]))?;
    topology.gwb.route(&format!("{net} via {} dev {LAN}", SERVER[0]))
}
