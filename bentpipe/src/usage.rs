//! `bentpipe usage`: what crossed, by host, peer or day.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use console::{Global, print, print_json};
use miette::miette;
use units::Duration;

use crate::admin::{self, Answer, By, Request, UsageBytes, UsageReport};
use crate::human::bytes;

/// Shows what crossed, by host, peer or day; it counts on over restarts.
///
/// Bytes of hosts are those of split connections and of packets; bytes of the link, which a
/// provider bills, are told by peer and day. Days are those of UTC.
///
/// Examples: bentpipe usage; bentpipe usage --by day --from 2026-11-01; bentpipe usage --csv
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's control socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// A row for each of these.
    #[arg(long, value_enum, default_value_t = Rows::Host)]
    by: Rows,
    /// Only this peer's.
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// The first day, as 2026-11-24; without it the first that is kept.
    #[arg(long, value_name = "DAY")]
    from: Option<String>,
    /// The last day; without it today.
    #[arg(long, value_name = "DAY")]
    to: Option<String>,
    /// Comma-separated values, in bytes.
    #[arg(long)]
    csv: bool,
}

/// What rows are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rows {
    /// Hosts.
    Host,
    /// Peers.
    Peer,
    /// Days.
    Day,
}

/// Hundreds of days are read from the disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks the gateway and prints its answer.
///
/// # Errors
/// One sentence: no gateway answers, or a day is none.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let socket = args.socket.unwrap_or_else(admin::default_socket);
    let by = match args.by {
        Rows::Host => By::Host,
        Rows::Peer => By::Peer,
        Rows::Day => By::Day,
    };
    // Days that were chosen may be without any of his.
    let of = args.peer.clone().filter(|_| args.from.is_none() && args.to.is_none());
    let request = Request::Usage { by, peer: args.peer, from: args.from, to: args.to };
    let Answer::Usage(report) = admin::request(&socket, &request, PATIENCE)? else {
        return Err(miette!("the gateway gave another answer: it is of another version"));
    };
    // Peers of earlier times have theirs.
    if let Some(peer) = of.filter(|_| report.total == UsageBytes::default()) {
        let status = admin::status(&socket)?;
        if !status.links.iter().any(|link| link.peer == peer) {
            return Err(miette!(
                help = "`bentpipe status` names the peers",
                "there is no peer \"{peer}\", and nothing is kept of one"
            ));
        }
    }
    if !report.unread.is_empty() && !global.json {
        let days = report.unread.join(", ");
        crate::log!(Warn, "files of days cannot be read and are not counted", days = days);
    }
    match (global.json, args.csv) {
        (true, _) => print_json(&report)?,
        (false, true) => print(&csv(&report))?,
        (false, false) => print(&table(&report))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn name(by: By) -> &'static str {
    match by {
        By::Host => "host",
        By::Peer => "peer",
        By::Day => "day",
    }
}

fn table(report: &UsageReport) -> String {
    if report.from.is_empty() {
        return "nothing is kept of these days\n".to_owned();
    }
    let has_link = report.by != By::Host;
    let mut lines = vec![cells(&name(report.by).to_uppercase(), HEAD.map(str::to_owned), true)];
    for (of, had) in
        report.rows.iter().map(|row| (&*row.of, &row.bytes)).chain([("all", &report.total)])
    {
        let numbers = [had.sent(), had.received(), had.link_bytes_sent, had.link_bytes_received];
        lines.push(cells(of, numbers.map(bytes), has_link || of == "all"));
    }
    let widths: [usize; 5] = std::array::from_fn(|column| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
    });
    let mut out = format!("{} to {}\n", report.from, report.to);
    for line in &lines {
        let padded: Vec<String> =
            line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(out, "{}", padded.join("  ").trim_end());
    }
    out
}

const HEAD: [&str; 4] = ["SENT", "RECEIVED", "LINK SENT", "LINK RECEIVED"];

fn cells(of: &str, numbers: [String; 4], has_link: bool) -> [String; 5] {
    let [sent, received, link_sent, link_received] = numbers;
    let link = |text: String| if has_link { text } else { "-".to_owned() };
    [of.to_owned(), sent, received, link(link_sent), link(link_received)]
}

fn csv(report: &UsageReport) -> String {
    let mut out = format!(
        "{},stream_bytes_sent,stream_bytes_received,packet_bytes_sent,packet_bytes_received,\
         packets_sent,packets_received,link_bytes_sent,link_bytes_received\n",
        name(report.by)
    );
    for row in &report.rows {
        let UsageBytes {
            stream_bytes_sent,
            stream_bytes_received,
            packet_bytes_sent,
            packet_bytes_received,
            packets_sent,
            packets_received,
            link_bytes_sent,
            link_bytes_received,
        } = row.bytes;
        // What a host has of the link's own bytes is not known.
        let link = |n: u64| if report.by == By::Host { String::new() } else { n.to_string() };
        let _ = writeln!(
            out,
            "{},{stream_bytes_sent},{stream_bytes_received},{packet_bytes_sent},\
             {packet_bytes_received},{packets_sent},{packets_received},{},{}",
            quoted(&row.of),
            link(link_bytes_sent),
            link(link_bytes_received)
        );
    }
    out
}

/// A field as RFC 4180 has it.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::UsageRow;

    fn report(by: By) -> UsageReport {
        let had = UsageBytes {
            stream_bytes_sent: 1_200,
            packet_bytes_received: 4_500_000,
            link_bytes_sent: 900,
            ..UsageBytes::default()
        };
        UsageReport {
            by,
            from: "2026-11-01".to_owned(),
            to: "2026-11-24".to_owned(),
            rows: vec![UsageRow { of: "10.1.0.2".to_owned(), bytes: had }],
            total: had,
            ..UsageReport::default()
        }
    }

    #[test]
    fn a_table_has_the_days_a_row_for_each_and_the_sum() {
        let told = table(&report(By::Host));
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(
            lines,
            [
                "2026-11-01 to 2026-11-24",
                "HOST      SENT   RECEIVED  LINK SENT  LINK RECEIVED",
                "10.1.0.2  1.2kB  4.5MB     -          -",
                "all       1.2kB  4.5MB     900B       0B",
            ]
        );
        assert!(table(&UsageReport::default()).starts_with("nothing is kept"));
    }

    #[test]
    fn csv_is_in_bytes_and_does_not_claim_what_is_not_known() {
        let told = csv(&report(By::Host));
        assert!(told.lines().nth(1).is_some_and(|l| l == "10.1.0.2,1200,0,0,4500000,0,0,,"));
        let told = csv(&report(By::Peer));
        assert!(told.starts_with("peer,") && told.ends_with(",900,0\n"), "{told}");
        assert_eq!(quoted("a \"b\", c"), "\"a \"\"b\"\", c\"");
    }
}
