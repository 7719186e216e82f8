//! `bentpipe status`: what the running gateway does.

pub mod glossary;

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use console::{Global, print, print_json};
use miette::miette;
use units::BitRate;

use crate::admin::{
    self, CompressedBytes, Compression, Dead, Deduplication, Direction, HostAccount, LineReport,
    LinkState, LinkStatus, NodeStatus, OneSidedStatus, RekeyState, ServiceStatus, Status,
    TelephoneReport, Way,
};
use crate::human::{bytes, grouped, memory, span};

/// Shows what the running gateway does: links, rates, streams, memory.
///
/// Examples: bentpipe status; bentpipe status ship; bentpipe status --json
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's admin socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Show it again and again, every so many seconds: on a terminal in place of the last, in
    /// a pipe one after the other, with --json one document a line.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    watch: Option<u64>,
    /// Say what counters of dropped packets, losses and handshakes mean, and nothing else.
    #[arg(long, conflicts_with = "watch")]
    explain: bool,
    /// Show only this peer, with every counter.
    #[arg(value_name = "PEER")]
    peer: Option<String>,
}

/// Up to so many peers are shown with every counter.
const IN_DETAIL: usize = 4;
/// Of a single peer's hosts and streams so many are shown; `--json` has more.
const MOST_SHOWN: usize = 8;

/// Home, and clear from there to the end: what is shown does not flicker.
const REDRAW: &str = "\x1b[H\x1b[J";
/// The whole screen at first.
const CLEAR: &str = "\x1b[2J";

/// Asks the gateway and prints its answer, once or until nobody reads it.
///
/// # Errors
/// One sentence: no gateway answers, or it has no such peer.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    if args.explain {
        explain(global)?;
        return Ok(ExitCode::SUCCESS);
    }
    let socket = args.socket.clone().unwrap_or_else(admin::default_socket);
    let Some(seconds) = args.watch else {
        show(&ask(&socket, args.peer.as_deref())?, "", global)?;
        return Ok(ExitCode::SUCCESS);
    };
    let redraws = std::io::stdout().is_terminal() && !global.json;
    let mut before = if redraws { CLEAR } else { "" };
    loop {
        // A gateway that is restarted is waited for; what was wrong from the first is said.
        match ask(&socket, args.peer.as_deref()) {
            Ok(status) if redraws => show(&status, &format!("{before}{REDRAW}"), global)?,
            Ok(status) => show(&status, before, global)?,
            Err(e) if before == CLEAR || before.is_empty() => return Err(e),
            Err(e) => console::show("bentpipe", &*e),
        }
        before = if redraws { REDRAW } else { "\n" };
        std::thread::sleep(std::time::Duration::from_secs(seconds));
    }
}

fn ask(socket: &Path, peer: Option<&str>) -> miette::Result<Status> {
    let mut status = admin::status(socket)?;
    if let Some(name) = peer {
        status.links.retain(|link| link.peer == *name);
        status.one_sided.retain(|link| link.peer == *name);
        if status.links.is_empty() && status.one_sided.is_empty() {
            return Err(miette!("the running gateway has no peer \"{name}\""));
        }
    }
    Ok(status)
}

/// Shows one answer behind `before`, which JSON does not have.
fn show(status: &Status, before: &str, global: &Global) -> miette::Result<()> {
    match global.json {
        true => print_json(status),
        false => print(&(before.to_owned() + &render(status))),
    }
}

fn explain(global: &Global) -> miette::Result<()> {
    match global.json {
        true => {
            let all: std::collections::BTreeMap<_, _> = glossary::all().collect();
            print_json(&all)
        }
        false => print(&glossary::render()),
    }
}

/// The status as text: a table of the links, then each in detail if they are few.
pub fn render(status: &Status) -> String {
    let mut out = String::new();
    write_node(&mut out, &status.node);
    status.services.iter().for_each(|service| write_service(&mut out, service));
    if status.links.is_empty() && status.one_sided.is_empty() {
        out.push_str("\nno peers\n");
        return out;
    }
    if !status.links.is_empty() {
        out.push('\n');
        write_table(&mut out, &status.links);
    }
    if status.links.len() <= IN_DETAIL {
        for link in &status.links {
            write_link(&mut out, link, status.links.len() == 1, &status.node);
        }
    }
    status.one_sided.iter().for_each(|link| write_one_sided(&mut out, link));
    status.telephones.iter().for_each(|line| write_telephone(&mut out, line));
    out
}

/// Writing to a String does not fail.
macro_rules! put {
    ($out:expr, $($format:tt)*) => {{ let _ = writeln!($out, $($format)*); }};
}

fn write_node(out: &mut String, node: &NodeStatus) {
    put!(
        out,
        "bentpipe {}, up {}, memory {} (buffers {} of {})",
        node.version,
        span(node.uptime_ms),
        bytes(node.memory_bytes),
        bytes(node.buffered_bytes),
        memory(node.buffer_limit_bytes),
    );
    put!(out, "  public key   {}", node.public_key);
    put!(out, "  listen       {}", node.listen);
    if let Some(tun) = &node.tun {
        let own = node.own.then_some("this node");
        let whose: Vec<&str> = node.lan.iter().map(String::as_str).chain(own).collect();
        let whose = if whose.is_empty() { "no interface".into() } else { whose.join(", ") };
        put!(out, "  tun          {tun}, splits the TCP of {whose}");
    }
    if let Some(proxy) = &node.proxy {
        put!(out, "  proxy        {proxy}");
    }
    if let Some(why) = &node.trouble {
        put!(out, "  routes       as they were, and tried again: {why}");
    }
    if node.shards > 1 {
        put!(out, "  shards       {}", node.shards);
    }
    for stranger in &node.strangers {
        put!(
            out,
            "  stranger     {}, from {}; {} times, {} ago",
            stranger.finding(),
            stranger.address,
            grouped(stranger.count),
            span(stranger.ago_ms)
        );
    }
    write_drops(out, &node.dropped);
}

fn write_service(out: &mut String, service: &ServiceStatus) {
    let mut line = format!("{}: {}", service.name, service.state.words());
    if let Some(ms) = service.running_ms {
        let _ = write!(line, " for {}", span(ms));
    }
    if service.failures > 0 {
        let starts = if service.keeps_failing() { "fails over and over" } else { "has failed" };
        let _ = write!(line, "; it {starts}: {}", service.end_in_words());
    }
    if let Some(ms) = service.next_start_ms.filter(|_| service.failures > 0) {
        let _ = write!(line, "; started again in {}", span(ms));
    }
    put!(out, "  service      {line}");
}

fn write_drops(out: &mut String, dropped: &std::collections::BTreeMap<String, u64>) {
    let reasons: Vec<String> = dropped
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(why, n)| format!("{} {why}", grouped(*n)))
        .collect();
    if !reasons.is_empty() {
        put!(out, "  dropped      {}", reasons.join(", "));
    }
}

fn write_table(out: &mut String, links: &[LinkStatus]) {
    let head = ["PEER", "STATE", "ENDPOINT", "SEND", "RECEIVE", "RTT", "LOSS", "STREAMS"];
    let rows: Vec<[String; 8]> = links.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|r| r[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 8] = std::array::from_fn(width);
    let mut line = |cells: [&str; 8]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        put!(out, "{}", padded.join("  ").trim_end());
    };
    line(head);
    for row in &rows {
        line(std::array::from_fn(|i| row[i].as_str()));
    }
}

fn row(link: &LinkStatus) -> [String; 8] {
    [
        link.peer.clone(),
        link.state.words().to_owned(),
        link.endpoint.clone().unwrap_or_else(|| "-".to_owned()),
        rate(&link.send),
        rate(&link.receive),
        link.rtt_us.map_or("-".to_owned(), round_trip),
        percent(link.send.loss_ppm.max(link.receive.loss_ppm)),
        grouped(link.streams_open),
    ]
}

fn write_link(out: &mut String, link: &LinkStatus, in_full: bool, node: &NodeStatus) {
    put!(out, "\npeer {}", link.peer);
    put!(out, "  public key   {}", link.public_key);
    if node.shards > 1 {
        put!(out, "  shard        {}", link.shard);
    }
    if let Some(failing) = &link.failing {
        put!(out, "  no session   {}", failing.finding());
        put!(out, "               → {}", failing.mend(&node.public_key));
    }
    if let Some([one, other]) = &link.twins {
        put!(
            out,
            "  ! two nodes seem to use the key of {}: from {one} and from {other}",
            link.peer
        );
    }
    match link.heard_ms {
        Some(ms) if link.state == LinkState::Departed => {
            put!(
                out,
                "  last heard   {} ago; it ended in order, and calls when it is back",
                span(ms)
            );
        }
        Some(ms) => put!(out, "  last heard   {} ago", span(ms)),
        None => put!(out, "  last heard   never"),
    }
    match link.dead {
        Some(Dead { direction: Way::Transmit, for_ms }) => put!(
            out,
            "  transmit dead: the peer is heard, and has confirmed nothing for {}",
            span(for_ms)
        ),
        Some(Dead { direction: Way::Reports, for_ms }) => {
            put!(out, "  no reports   for {}, though the peer is heard", span(for_ms));
        }
        Some(Dead { direction: Way::Receive, for_ms }) => {
            put!(out, "  nothing received for {}, though an answer is due", span(for_ms));
        }
        None => {}
    }
    match link.rekey {
        RekeyState::InTime => {}
        RekeyState::Overdue => put!(
            out,
            "  rekey overdue: no handshake succeeds; without one the keys are erased at their end"
        ),
        RekeyState::Erased => {
            put!(out, "  keys erased  at their end; nothing passes until a handshake succeeds");
        }
    }
    for sentence in &link.disagreements {
        put!(out, "  warning      {sentence}");
    }
    if let Some(bytes) = link.path_mtu {
        put!(out, "  path MTU     {bytes} bytes");
    }
    for path in &link.paths {
        put!(out, "  path         {path}");
    }
    if let Some(why) = &link.books_unwritten {
        put!(out, "  books        cannot be written: {why}; kept in memory until they can be");
    }
    write_line(out, link);
    if let Some(budget) = link.line.iter().find_map(|line| line.budget.as_ref()) {
        put!(out, "  budget       {budget}");
    }
    for host in link.line.iter().flat_map(|line| &line.hosts) {
        put!(out, "  budget       {host}");
    }
    write_rate(out, link);
    let lost = format!(", {} lost lately", percent(link.send.loss_ppm));
    write_direction(out, "sent", &link.send, &lost);
    write_direction(out, "received", &link.receive, "");
    put!(
        out,
        "  sent again   {} packets, {}; repaired {}",
        grouped(link.retransmitted_packets),
        bytes(link.retransmitted_bytes),
        grouped(link.repaired_packets)
    );
    put!(
        out,
        "  streams      {} open, {} in all",
        grouped(link.streams_open),
        grouped(link.streams_total)
    );
    write_compression(out, &link.compression, in_full);
    write_dedup(out, &link.dedup);
    put!(
        out,
        "  datagrams    {} sent, {} received",
        grouped(link.datagrams.sent),
        grouped(link.datagrams.received)
    );
    let saved = (link.datagrams.bytes_saved_sent, link.datagrams.bytes_saved_received);
    if saved != (0, 0) || link.datagrams.cpu_us > 0 {
        put!(
            out,
            "               {} of their bytes saved sending, {} receiving; {} of processor time",
            bytes(saved.0),
            bytes(saved.1),
            round_trip(link.datagrams.cpu_us)
        );
    }
    write_hosts(out, &link.hosts, in_full);
    put!(
        out,
        "  handshakes   {} completed, {} unanswered or refused",
        grouped(link.handshakes.completed),
        grouped(link.handshakes.failed)
    );
    write_drops(out, &link.dropped);
}

fn write_telephone(out: &mut String, line: &TelephoneReport) {
    let state = match (line.call_ms, &line.peer) {
        (Some(ms), Some(peer)) => format!("{peer} called {} ago", span(ms)),
        (Some(ms), None) => format!("somebody called {} ago", span(ms)),
        (None, _) if line.ready => "waits for a call".to_owned(),
        (None, _) => "its modem does not answer".to_owned(),
    };
    put!(out, "\ntelephone {} at {}: {state}", line.name, line.device);
    put!(
        out,
        "  calls        {} answered, {} of strangers",
        grouped(line.calls),
        grouped(line.strangers)
    );
    if !line.cause.is_empty() {
        put!(out, "  last         {}", line.cause);
    }
}

/// A link without a gateway at its far end has no session, and so no state.
fn write_one_sided(out: &mut String, link: &OneSidedStatus) {
    put!(out, "\npeer {}, split at this end alone (mode = \"split\")", link.peer);
    put!(out, "  device       {}, for {}", link.device, link.routes.join(", "));
    if !link.congestion.is_empty() {
        put!(out, "  congestion   {}", link.congestion);
    }
    put!(
        out,
        "  connections  {} open, {} in all",
        grouped(link.connections_open),
        grouped(link.connections_total)
    );
}

fn write_compression(out: &mut String, c: &Compression, in_full: bool) {
    if c.total.sent + c.total.received == 0 {
        return;
    }
    put!(out, "  compression  {}", squeezed(&c.total));
    for (name, bytes) in &c.classes {
        put!(out, "    class {name}: {}", squeezed(bytes));
    }
    if !in_full {
        return;
    }
    for h in c.hosts.iter().take(MOST_SHOWN) {
        put!(out, "    host {}: {}", h.host, squeezed(&h.bytes));
    }
    for s in c.streams.iter().take(MOST_SHOWN) {
        put!(out, "    stream of {} to port {}: {}", s.host, s.port, squeezed(&s.bytes));
    }
}

fn write_hosts(out: &mut String, hosts: &[HostAccount], in_full: bool) {
    for h in hosts.iter().take(MOST_SHOWN).filter(|_| in_full) {
        put!(
            out,
            "  host         {}: {} sent, {} received, of it {} and {} not split",
            h.host,
            bytes(h.stream_bytes_sent + h.packet_bytes_sent),
            bytes(h.stream_bytes_received + h.packet_bytes_received),
            bytes(h.packet_bytes_sent),
            bytes(h.packet_bytes_received)
        );
    }
}

fn write_dedup(out: &mut String, d: &Deduplication) {
    if d.chunks + d.referred + d.quarantined_files == 0 {
        return;
    }
    put!(
        out,
        "  chunks       {} held, {} in memory, {} on disk; {} referred to, {} wanted, {} gone{}",
        grouped(d.chunks),
        bytes(d.memory_bytes),
        bytes(d.disk_bytes),
        grouped(d.referred),
        grouped(d.wanted),
        grouped(d.gone),
        match d.quarantined_files {
            0 => String::new(),
            n => format!("; {} files put aside", grouped(n)),
        }
    );
}

fn squeezed(c: &CompressedBytes) -> String {
    // Streams that are not deduplicated have nothing to tell of it.
    let chunks = |before: u64, after: u64| match after < before {
        true => format!("{} without what crossed before, ", bytes(after)),
        false => String::new(),
    };
    format!(
        "{} sent as {}{}, {} received as {}{}; {} of processor time",
        bytes(c.sent),
        chunks(c.sent, c.sent_deduplicated),
        bytes(c.sent_as),
        bytes(c.received),
        chunks(c.received, c.received_deduplicated),
        bytes(c.received_as),
        round_trip(c.cpu_us)
    )
}

/// The lines, as `bentpipe link why` tells of them; budgets have rows of their own.
fn write_line(out: &mut String, link: &LinkStatus) {
    let Some(line) = &link.line else { return };
    let without_budget = |line: &LineReport| LineReport { budget: None, ..line.clone() };
    let shown = LineReport {
        hosts: Vec::new(),
        lines: line.lines.iter().map(without_budget).collect(),
        ..without_budget(line)
    };
    for (n, row) in shown.to_string().lines().enumerate() {
        put!(out, "  {:<12} {row}", if n == 0 { "line" } else { "" });
    }
}

fn write_rate(out: &mut String, link: &LinkStatus) {
    let r = &link.rate;
    if r.mode.is_empty() {
        return; // an older gateway
    }
    let mut line = format!("  rate         {}, {}", r.mode, three_digits(r.current_bps));
    if r.limit_bps != link.send.configured_bps {
        let _ = write!(line, " of the reported {}", BitRate::from_bps(r.limit_bps));
    }
    if r.capacity_bps != r.limit_bps {
        let _ = write!(line, ", the link carries {}", three_digits(r.capacity_bps));
    }
    put!(
        out,
        "{line}; {} delivered, {} queued",
        three_digits(r.delivery_bps),
        round_trip(r.queueing_us)
    );
}

/// `lost` ends the line: only the sender knows what was lost, the peer's `status` says it
/// of the other direction.
fn write_direction(out: &mut String, name: &str, d: &Direction, lost: &str) {
    let mut line = format!(
        "  {name:<12} {} of the hosts in {} on the link",
        bytes(d.lan_bytes),
        bytes(d.link_bytes)
    );
    if d.lan_bytes > 0 && d.link_bytes > 0 {
        // Per mille in u128, so that no counter overflows.
        let mille = u128::from(d.link_bytes) * 1000 / u128::from(d.lan_bytes);
        let _ = write!(line, " ({}.{} %)", mille / 10, mille % 10);
    }
    put!(out, "{line}, {} packets{lost}", grouped(d.packets));
}

fn rate(d: &Direction) -> String {
    let measured = three_digits(d.measured_bps);
    format!("{measured} of {}", BitRate::from_bps(d.configured_bps))
}

/// Three digits are all that a measured rate is good for.
fn three_digits(bps: u64) -> BitRate {
    let digits = bps.checked_ilog10().map_or(1, |n| n + 1);
    let unit = 10u64.pow(digits.saturating_sub(3));
    BitRate::from_bps(bps / unit * unit)
}

fn round_trip(us: u64) -> String {
    if us < 10_000 {
        format!("{}.{}ms", us / 1000, us % 1000 / 100)
    } else {
        format!("{}ms", us / 1000)
    }
}

fn percent(ppm: u64) -> String {
    format!("{}.{:02}%", ppm / 10_000, ppm % 10_000 / 100)
}

#[cfg(test)]
mod tests;
