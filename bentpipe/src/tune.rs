//! `bentpipe tune`: a host without a gateway has its own TCP fitted to a link (R-TUNE), and
//! unfitted again.
//!
//! What there was is written to a file before the first change, and put back from it: also after
//! a crash in the middle. Whatever somebody else changed meanwhile stays as it is. Settings end
//! with the boot, so a file of an earlier one is void.

mod state;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use ::plan::{Direction, Plan};
use miette::miette;
use os::OsError;
use os::settings::{self, Family};
use serde_json::json;

use crate::state_directory::state_directory;
use crate::which_link::Which;
use console::{Global, print, print_json};
use state::{Change, Saved, Setting};

/// Fits this host's own TCP to a link where no gateway does, and puts everything back.
///
/// Routes get initial windows, timeouts, packet sizes and a congestion control; the kernel gets
/// buffers. For hosts beside a gateway nothing of it is needed.
///
/// Examples: bentpipe tune --show geo-20-2; bentpipe tune --apply geo-20-2 --device wwan0;
/// bentpipe tune --undo
#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("deed").required(true)))]
pub struct Args {
    /// Change what the link calls for.
    #[arg(long, group = "deed", requires = "what")]
    apply: bool,
    /// Put back what was there before.
    #[arg(long, group = "deed")]
    undo: bool,
    /// Say what would be changed, and what is.
    #[arg(long, group = "deed")]
    show: bool,
    #[command(flatten)]
    which: Which,
    /// The interface towards the link; by default that of the default route.
    #[arg(long)]
    device: Option<String>,
    /// Where it is noted what was there.
    #[arg(long, value_name = "PATH")]
    state: Option<PathBuf>,
}

/// Does it.
///
/// # Errors
/// One sentence: there is no such link or device, or a right is missing. What had been changed
/// until then was put back.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let file = args.file()?;
    let saved = Saved::load(&file)?;
    if args.undo {
        return undo(&file, saved, global);
    }
    let which = &args.which;
    if !which.is_given() {
        return show(&[], saved.as_ref(), global);
    }
    let described = which.find()?;
    let plan = Plan::of(which.of_host(&described));
    if args.show {
        let changes = changes(&plan, &args.device()?)?;
        return show(&changes, saved.as_ref(), global);
    }
    let device = args.device()?;
    if let Some(mut before) = saved {
        tell(&before.put_back(&file)?, global);
        // What is there now would be taken for what was there first.
        if !before.changes.is_empty() {
            return Err(miette!(
                help = "mend what it says above, and try again",
                "nothing is tuned: what was changed for {} could not all be put back",
                before.name
            ));
        }
    }
    let changes = changes(&plan, &device)?;
    let mut saved = Saved::new(described.name, changes.clone());
    saved.store(&file)?;
    for change in &changes {
        if let Err(e) = change.make() {
            tell(&saved.put_back(&file)?, global);
            return Err(said(e));
        }
    }
    show(&changes, Some(&saved), global)
}

fn undo(file: &std::path::Path, saved: Option<Saved>, global: &Global) -> miette::Result<ExitCode> {
    let Some(mut saved) = saved else {
        return Err(miette!("nothing is tuned here: {} is not there", file.display()));
    };
    let left = saved.put_back(file)?;
    let is_done = saved.changes.is_empty();
    if global.json {
        let undone = is_done.then_some(&saved.name);
        print_json(&json!({ "undone": undone, "left": left, "to_undo": saved.changes }))?;
    } else {
        tell(&left, global);
        if left.is_empty() {
            print(&format!("this host is as it was before it was tuned for {}\n", saved.name))?;
        }
    }
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What could not be put back, and why.
fn tell(left: &[String], global: &Global) {
    if !global.json {
        left.iter().for_each(|line| crate::log!(Warn, line));
    }
}

fn show(changes: &[Change], saved: Option<&Saved>, global: &Global) -> miette::Result<ExitCode> {
    if global.json {
        print_json(&json!({
            "changes": changes,
            "tuned_for": saved.map(|s| &s.name),
            "saved": saved.map(|s| &s.changes),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = String::new();
    let list = if changes.is_empty() { saved.map_or(&[][..], |s| &s.changes) } else { changes };
    for Change { setting, before, after, why } in list {
        // Writing to a String does not fail.
        let _ = writeln!(out, "{setting}\n    before  {before}\n    now     {after}\n    {why}");
    }
    out += &match saved {
        Some(saved) => format!("\ntuned for {}; `bentpipe tune --undo` puts it back\n", saved.name),
        None if changes.is_empty() => "nothing is tuned here\n".to_owned(),
        None => "\nnothing is changed yet; --apply does it\n".to_owned(),
    };
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn file(&self) -> miette::Result<PathBuf> {
        let chosen = self.state.clone();
        chosen.or_else(|| state_directory().map(|dir| dir.join("tuned.json"))).ok_or_else(|| {
            miette!(
                help = "name a place with --state, or run as root",
                "there is no place to note what was there"
            )
        })
    }

    /// The chosen device, or that of the default route.
    fn device(&self) -> miette::Result<String> {
        if let Some(device) = &self.device {
            return Ok(device.clone());
        }
        for family in [Family::V4, Family::V6] {
            let routes = settings::routes(family).map_err(said)?;
            let default = routes.iter().find(|route| route.starts_with("default "));
            if let Some(device) = default.and_then(|route| device_of(route)) {
                return Ok(device.to_owned());
            }
        }
        Err(miette!(
            help = "name the interface towards the link with --device",
            "this host has no default route"
        ))
    }
}

fn said(e: OsError) -> miette::Report {
    miette!("{e}")
}

fn device_of(route: &str) -> Option<&str> {
    let mut words = route.split_whitespace();
    words.find(|word| *word == "dev")?;
    words.next()
}

/// Everything to be changed for `plan`, where the link is behind `device`.
fn changes(plan: &Plan, device: &str) -> miette::Result<Vec<Change>> {
    let congestion = plan.send.congestion.name();
    let known = settings::sysctl("net.ipv4.tcp_available_congestion_control").unwrap_or_default();
    // One that is a module and not loaded is loaded by the route that names it, if at all.
    let congestion = known.split(' ').find(|name| *name == congestion);
    let mut all = parameters(plan);
    let mut found = false;
    for family in [Family::V4, Family::V6] {
        for route in settings::routes(family).map_err(said)? {
            if device_of(&route) != Some(device) || is_left_alone(&route) {
                continue;
            }
            found = true;
            let after = tuned_route(&route, family, plan, congestion);
            all.push(Change {
                setting: Setting::Route { v6: family == Family::V6 },
                before: route,
                after,
                why: "initial windows, timeout, packet and congestion control of the plan".into(),
            });
        }
    }
    if !found {
        return Err(miette!(
            help = "`ip route` shows the interfaces that routes lead to",
            "no route leads to the interface \"{device}\""
        ));
    }
    all.retain(|change| change.before != change.after);
    Ok(all)
}

/// Neighbours by link-local address are not behind the link.
fn is_left_alone(route: &str) -> bool {
    route.starts_with("fe80:") || route.starts_with("ff00:")
}

/// A route with what the plan says in place of what it says.
fn tuned_route(route: &str, family: Family, plan: &Plan, congestion: Option<&str>) -> String {
    const OURS: [&str; 8] =
        ["initcwnd", "initrwnd", "rto_min", "mtu", "advmss", "congctl", "window", "quickack"];
    let mut kept = Vec::new();
    let mut words = route.split_whitespace().peekable();
    while let Some(word) = words.next() {
        if !OURS.contains(&word) {
            kept.push(word);
            continue;
        }
        if words.next() == Some("lock") {
            words.next();
        }
    }
    let (send, receive) = (&plan.send, &plan.receive);
    let headers = if family == Family::V6 { 60 } else { 40 };
    let mut route = format!(
        "{} initcwnd {} initrwnd {} rto_min {}ms",
        kept.join(" "),
        send.initial_window,
        receive_window(receive),
        send.least_rto.as_millis(),
    );
    // IPv6 asks for 1,280 bytes of every link: shorter packets are asked of TCP alone.
    if family == Family::V4 || send.tcp_packet >= 1280 {
        let _ = write!(route, " mtu {}", send.tcp_packet);
    }
    let _ = write!(route, " advmss {}", receive.tcp_packet.saturating_sub(headers).max(64));
    if let Some(name) = congestion {
        let _ = write!(route, " congctl {name}");
    }
    route
}

/// Segments that the other end may send at once: all that the link holds.
fn receive_window(receive: &Direction) -> u64 {
    (receive.window.0 / u64::from(receive.mss())).clamp(10, 65_535)
}

/// The kernel's parameters.
fn parameters(plan: &Plan) -> Vec<Change> {
    let mut all = Vec::new();
    let mut set = |key: &str, why: &str, after: &dyn Fn(&str) -> String| {
        // Kernels and namespaces differ in what they have.
        if let Some(before) = settings::sysctl(key) {
            let after = after(&before);
            let setting = Setting::Parameter { key: key.to_owned() };
            all.push(Change { setting, before, after, why: why.to_owned() });
        }
    };
    // Half of a buffer is the kernel's own bookkeeping, and a lost packet waits for a round trip.
    let buffer = |direction: &Direction| direction.window.0.saturating_mul(4).min(1 << 30);
    let most = |bytes: u64| {
        move |before: &str| {
            let mut parts: Vec<u64> = before.split(' ').filter_map(|n| n.parse().ok()).collect();
            if let Some(last) = parts.last_mut() {
                *last = (*last).max(bytes);
            }
            parts.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
        }
    };
    let why = "four windows: the kernel's bookkeeping, and a round trip for what is sent again";
    set("net.ipv4.tcp_rmem", why, &most(buffer(&plan.receive)));
    set("net.ipv4.tcp_wmem", why, &most(buffer(&plan.send)));
    let on = |_: &str| "1".to_owned();
    let off = |_: &str| "0".to_owned();
    set("net.ipv4.tcp_window_scaling", "windows above 64 kB (ITU-R S.1711-1, 4.2)", &on);
    set("net.ipv4.tcp_sack", "several losses in a window cost one round trip", &on);
    set("net.ipv4.tcp_timestamps", "true round trips, also of what was sent twice", &on);
    let why = "a pause does not make the link forget its window";
    set("net.ipv4.tcp_slow_start_after_idle", why, &off);
    let why = "one bad connection does not set the windows of the next ones";
    set("net.ipv4.tcp_no_metrics_save", why, &on);
    all
}
