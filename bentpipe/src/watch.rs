//! `bentpipe watch`: what happens at the running gateway, as it happens.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use console::{Global, print, print_json};
use units::Duration;

use crate::admin::{
    self, Event, Flow, Notice, Outage, RekeyState, Request, Status, UsageRow, Way, mbits,
};
use crate::calendar;
use crate::human::{bytes, grouped, lasting, span};

/// Prints what happens at the running gateway, as it happens.
///
/// Links that come up, fall silent and come back, outages with their causes, rates, split
/// connections with their bytes, and what hosts had. It begins with how things stand, and goes
/// on until it is interrupted or the gateway ends.
///
/// Examples: bentpipe watch; bentpipe watch shore --no-flows; bentpipe watch --json
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's control socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Leave out split connections.
    #[arg(long)]
    no_flows: bool,
    /// Only this peer's events, and the gateway's own.
    #[arg(value_name = "PEER")]
    peer: Option<String>,
}

/// A gateway answers between two rounds of its loop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints events until there are no more.
///
/// # Errors
/// One sentence: no gateway answers, it has no such peer, or too many watch already.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let socket = args.socket.unwrap_or_else(admin::default_socket);
    let request = Request::Watch { peer: args.peer, flows: !args.no_flows };
    let mut watcher = admin::watch(&socket, &request, PATIENCE)?;
    loop {
        let notice = match watcher.next_notice() {
            Err(e) if e.kind() == ErrorKind::ConnectionReset => None,
            told => told.map_err(|e| miette::miette!("the gateway: {e}"))?,
        };
        let Some(notice) = notice else {
            if !global.json {
                print("the gateway has ended\n")?;
            }
            return Ok(ExitCode::SUCCESS);
        };
        match global.json {
            true => print_json(&notice)?,
            false => print(&text(&notice))?,
        }
        if matches!(notice.event, Event::Dropped { .. }) {
            return Ok(ExitCode::FAILURE);
        }
    }
}

/// An event in plain words; nothing for one that this program does not know.
pub fn text(notice: &Notice) -> String {
    let words = words(notice);
    let who = notice.peer.as_ref().map_or(String::new(), |peer| format!("{peer}: "));
    let time = calendar::time(notice.at_ms);
    words.into_iter().map(|words| format!("{time}  {who}{words}\n")).collect()
}

fn words(notice: &Notice) -> Vec<String> {
    let one = |words: String| vec![words];
    match &notice.event {
        Event::Snapshot { status, outages, .. } => snapshot(notice.at_ms, status, outages),
        Event::LinkUp { address, cipher, rtt_us, anew } => {
            let anew = if *anew { "; the peer began anew" } else { "" };
            let address = address.as_deref().unwrap_or("an unknown address");
            let rtt = lasting(Duration::from_micros(*rtt_us));
            one(format!("link up, at {address}, {cipher}, answered in {rtt}{anew}"))
        }
        Event::LinkDown { cause } => one(format!("link down: {}", cause.words())),
        Event::LinkMoved { address } => one(format!("the peer is at a new address, {address}")),
        Event::LinkSilent { direction, for_ms } => {
            let what = match direction {
                Way::Receive => "nothing received",
                Way::Transmit => "nothing sent is confirmed",
                Way::Reports => "no reports",
            };
            one(format!("{what} for {}; streams wait", span(*for_ms)))
        }
        Event::LinkBack => one("the peer answers again".to_owned()),
        Event::Path { path, cause } => one(format!("everything goes by {path}: {}", cause.why())),
        Event::Line { line, state, cause } => {
            let line = if line.is_empty() { "the line".to_owned() } else { format!("line {line}") };
            one(format!("{line} is {state}: {cause}"))
        }
        Event::LinkFailing { failing } => one(format!("no session: {}", failing.finding())),
        Event::OutageBegan { outage } => {
            let since = calendar::time(outage.began_ms);
            one(format!("outage since {since}: {}", outage.words()))
        }
        Event::OutageEnded { outage } => {
            let length = span(outage.length_ms(notice.at_ms));
            one(format!("outage over after {length}: {}", outage.words()))
        }
        Event::Rate { current_bps, limit_bps, .. } => {
            let [now, most] = [current_bps, limit_bps].map(|bps| mbits(*bps));
            one(format!("rate {now} of {most} Mbit/s"))
        }
        Event::Rekey { state: RekeyState::InTime } => one("new keys".to_owned()),
        Event::Rekey { state: RekeyState::Overdue } => {
            one("rekey overdue: data passes and no handshake succeeds".to_owned())
        }
        Event::Rekey { state: RekeyState::Erased } => {
            one("keys worn out and erased; streams wait".to_owned())
        }
        Event::FlowOpened { flow } => one(format!("opened  {}", flow_text(flow))),
        Event::FlowClosed { flow } => one(format!(
            "closed  {}: {} sent, {} received in {}",
            flow_text(flow),
            bytes(flow.sent_bytes),
            bytes(flow.received_bytes),
            span(flow.for_ms)
        )),
        // What only keeps the link alive is nothing to read.
        Event::Usage { hosts, .. } if hosts.is_empty() => Vec::new(),
        Event::Usage { hosts, total, .. } => {
            hosts.iter().map(|row| usage(&row.of, row)).chain([usage("all", total)]).collect()
        }
        Event::Missed { events } => {
            one(format!("{} events came too fast and are not told", grouped(*events)))
        }
        Event::Dropped { reason } => one(format!("the gateway tells no more: {reason}")),
        Event::Unknown => Vec::new(),
    }
}

fn snapshot(now_ms: u64, status: &Status, outages: &[Outage]) -> Vec<String> {
    let mut lines =
        vec![format!("bentpipe {}, up {}", status.node.version, span(status.node.uptime_ms))];
    for link in &status.links {
        let state = link.state.words();
        let at = link.endpoint.as_ref().map_or(String::new(), |a| format!(" at {a}"));
        let streams = grouped(link.streams_open);
        lines.push(format!("{}: {state}{at}, {streams} streams open", link.peer));
    }
    for outage in outages {
        let peer = outage.peer.as_deref().unwrap_or("this gateway");
        let length = span(outage.length_ms(now_ms));
        lines.push(format!("{peer}: outage for {length}: {}", outage.words()));
    }
    lines
}

fn flow_text(flow: &Flow) -> String {
    format!("{} to {}, {}", flow.client, flow.server, flow.class)
}

fn usage(of: &str, row: &UsageRow) -> String {
    let [sent, received] = [row.bytes.sent(), row.bytes.received()].map(bytes);
    format!("today   {of}: {sent} sent, {received} received")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{Cause, LinkState, LinkStatus};

    fn told(peer: Option<&str>, event: Event) -> String {
        text(&Notice { at_ms: 1_790_000_000_000, peer: peer.map(str::to_owned), event })
    }

    #[test]
    fn events_read_as_sentences_with_their_time_and_peer() {
        let up = Event::LinkUp {
            address: Some("192.0.2.2:4500".to_owned()),
            cipher: "AES-256-GCM".to_owned(),
            rtt_us: 612_000,
            anew: false,
        };
        assert_eq!(
            told(Some("shore"), up),
            "2026-09-21 14:13:20  shore: link up, at 192.0.2.2:4500, AES-256-GCM, answered in \
             612ms\n"
        );
        let outage = Outage {
            peer: Some("shore".to_owned()),
            began_ms: 1_789_999_940_000,
            ended_ms: Some(1_790_000_000_000),
            cause: Cause::Silent,
            why: String::new(),
        };
        assert_eq!(
            told(Some("shore"), Event::OutageEnded { outage }),
            "2026-09-21 14:13:20  shore: outage over after 1m00s: nothing received\n"
        );
        let flow = Flow {
            client: "10.1.0.2".to_owned(),
            server: "192.0.2.80:443".to_owned(),
            class: "normal".to_owned(),
            sent_bytes: 1_200,
            received_bytes: 4_500_000,
            for_ms: 3_000,
            ..Flow::default()
        };
        assert_eq!(
            told(Some("shore"), Event::FlowClosed { flow }),
            "2026-09-21 14:13:20  shore: closed  10.1.0.2 to 192.0.2.80:443, normal: 1.2kB sent, \
             4.5MB received in 3s\n"
        );
        let (line, state, cause) = (String::new(), "down".to_owned(), "idle".to_owned());
        assert_eq!(
            told(Some("shore"), Event::Line { line, state, cause }),
            "2026-09-21 14:13:20  shore: the line is down: idle\n"
        );
        assert_eq!(
            told(Some("shore"), Event::Rekey { state: RekeyState::Overdue }),
            "2026-09-21 14:13:20  shore: rekey overdue: data passes and no handshake succeeds\n"
        );
        assert_eq!(told(None, Event::Unknown), "", "what a newer gateway tells is passed over");
    }

    #[test]
    fn the_first_lines_say_how_things_stand() {
        let link = LinkStatus {
            peer: "shore".to_owned(),
            state: LinkState::Up,
            endpoint: Some("192.0.2.2:4500".to_owned()),
            streams_open: 3,
            ..LinkStatus::default()
        };
        let status = Box::new(Status { links: vec![link], ..Status::default() });
        let lines = told(None, Event::Snapshot { version: 1, status, outages: vec![] });
        assert!(lines.ends_with("shore: up at 192.0.2.2:4500, 3 streams open\n"), "{lines}");
    }
}
