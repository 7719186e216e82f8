//! `bentpipe log`: the outages of the links, and of the gateway itself.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use console::{Global, print, print_json};
use miette::miette;
use units::Duration;

use crate::admin::{self, Answer, Outage, Request};
use crate::calendar;
use crate::human::span;

/// Shows every outage of the links that is kept: beginning, end, length and cause.
///
/// The gateway's own absences are among them, as far as they can be known: after a crash its
/// last sign of life, which is up to a minute older, stands for the beginning. Times are UTC.
///
/// Examples: bentpipe log; bentpipe log shore; bentpipe log --json
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's control socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Only this peer's, and the gateway's own.
    #[arg(value_name = "PEER")]
    peer: Option<String>,
}

/// A gateway answers between two rounds of its loop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the gateway and prints its answer.
///
/// # Errors
/// One sentence: no gateway answers.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let socket = args.socket.unwrap_or_else(admin::default_socket);
    let request = Request::Log { peer: args.peer };
    let Answer::Log(outages) = admin::request(&socket, &request, PATIENCE)? else {
        return Err(miette!("the gateway gave another answer: it is of another version"));
    };
    match global.json {
        true => print_json(&outages)?,
        false => print(&text(&outages, calendar::milliseconds()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(outages: &[Outage], now_ms: u64) -> String {
    if outages.is_empty() {
        return "no outages\n".to_owned();
    }
    let peer = |outage: &Outage| outage.peer.clone().unwrap_or_else(|| "gateway".to_owned());
    let width = outages.iter().map(|o| peer(o).chars().count()).max().unwrap_or(0).max(4);
    let mut out = format!("{:<width$}  {:<19}  {:<19}  LENGTH  CAUSE\n", "PEER", "BEGAN", "ENDED");
    for outage in outages {
        let ended = outage.ended_ms.map_or("goes on".to_owned(), calendar::time);
        let _ = writeln!(
            out,
            "{:<width$}  {}  {ended:<19}  {:<6}  {}",
            peer(outage),
            calendar::time(outage.began_ms),
            span(outage.length_ms(now_ms)),
            outage.words()
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::Cause;

    #[test]
    fn each_outage_is_a_line_with_its_times_its_length_and_its_cause() {
        let began_ms = 1_790_000_000_000;
        let over = Outage {
            peer: None,
            began_ms,
            ended_ms: Some(began_ms + 61_000),
            cause: Cause::GatewayKilled,
            why: String::new(),
        };
        let open = Outage {
            peer: Some("shore".to_owned()),
            ended_ms: None,
            cause: Cause::NoSession,
            why: "nothing came back".to_owned(),
            ..over.clone()
        };
        let told = text(&[over, open], began_ms + 5_000);
        assert_eq!(
            told.lines().collect::<Vec<_>>(),
            [
                "PEER     BEGAN                ENDED                LENGTH  CAUSE",
                "gateway  2026-09-21 14:13:20  2026-09-21 14:14:21  1m01s   this gateway was \
                 killed, or crashed, or had no power",
                "shore    2026-09-21 14:13:20  goes on              5s      no session: handshakes \
                 fail (nothing came back)",
            ]
        );
        assert_eq!(text(&[], 0), "no outages\n");
    }
}
