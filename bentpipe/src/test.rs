//! `bentpipe test`: what a link carries, measured by its own gateways.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use console::{Global, print, print_json};
use miette::miette;
use units::Duration;

use crate::admin::{
    self, Answer, LinkTest, Request, Spread, TestProgress, TestedDirection, mbits, percent,
};
use crate::human;

/// Measures the link to a peer, with random bytes between the two running gateways.
///
/// Each direction is measured for some seconds: what arrives of the rate in the file, the round
/// trip without load and under it, queueing, loss and repair; and what is wrong is said in
/// words. The bytes travel as a bulk stream of the link does, and give way as one does; they
/// cost what they cost: a test of 10 s on 20 Mbit/s sends 25 MB. It ends with Ctrl-C, here and
/// at the peer.
///
/// A link that is raised, or whose bytes have prices, is measured with --raise alone: the line is
/// raised, and the measurement begins when it is up.
///
/// The result is 1 where something is wrong, or there was no test.
///
/// Examples: bentpipe test shore; bentpipe test shore --receive --for 5; bentpipe test shore --json
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's admin socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The peer's name.
    peer: String,
    /// How long each direction is measured, 1 to 60.
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Measure only what this node sends.
    #[arg(long, conflicts_with = "receive")]
    send: bool,
    /// Measure only what this node receives.
    #[arg(long)]
    receive: bool,
    /// Measure a link whose line or traffic costs, and raise the line if it is down. Without this
    /// such a link is not tested.
    #[arg(long)]
    raise: bool,
}

/// A gateway that tests tells something once a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// Has the gateway test the link and shows what it found.
///
/// # Errors
/// One sentence: nothing runs there, there is no such peer, or the link cannot be tested.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let socket = args.socket.unwrap_or_else(admin::default_socket);
    let both = !args.send && !args.receive;
    let request = Request::Test {
        peer: args.peer,
        seconds: args.seconds,
        send: args.send || both,
        receive: args.receive || both,
        raise: args.raise,
    };
    let is_terminal = std::io::stderr().is_terminal();
    let (mut told_cost, mut told_line) = (false, false);
    let answer = admin::request_following(&socket, &request, PATIENCE, &mut |progress| {
        let told = if progress.phase == "line" { &mut told_line } else { &mut told_cost };
        if !global.json && !std::mem::replace(told, true) {
            eprintln!("{}", cost(progress));
        }
        if is_terminal {
            // On one line, which the next replaces.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", line_of(progress));
        }
    });
    if is_terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let Answer::Tested(found) = answer? else {
        return Err(miette!("the gateway gave another answer: it is of another version"));
    };
    match global.json {
        true => print_json(&found)?,
        false => print(&text(&found))?,
    }
    Ok(if found.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cost(progress: &TestProgress) -> String {
    if progress.phase == "line" {
        let prices = progress.prices.as_deref().unwrap_or("what the file does not say");
        return format!("the line is raised for the test; it costs {prices}");
    }
    let [sent, received] =
        [progress.most_bytes_sent, progress.most_bytes_received].map(human::bytes);
    format!("the test sends up to {sent} and receives up to {received}")
}

fn line_of(progress: &TestProgress) -> String {
    let elapsed = human::span(progress.elapsed_ms);
    match progress.phase.as_str() {
        "line" => format!("the line is raised … {elapsed}"),
        "idle" => format!("round trip without load … {elapsed}"),
        phase => format!("{phase} … {elapsed}, {} Mbit/s", mbits(progress.carried_bps)),
    }
}

fn text(found: &LinkTest) -> String {
    let mut text = format!("link to {}, {} s each way\n", found.peer, found.seconds);
    text += &format!("  round trip  {} without load\n", times(&found.rtt_idle));
    for (name, way) in [("send", &found.send), ("receive", &found.receive)] {
        text += &way.as_ref().map(|way| direction(name, way)).unwrap_or_default();
    }
    let [sent, received] = [found.link_bytes_sent, found.link_bytes_received].map(human::bytes);
    text += &format!("  the link carried {sent} out and {received} in meanwhile\n");
    for problem in &found.problems {
        text += &format!("  ! {problem}\n");
    }
    if found.problems.is_empty() {
        text += "  as the file says\n";
    }
    text
}

fn direction(name: &str, way: &TestedDirection) -> String {
    let cap = way.cap_bps.map(|cap| format!(", bulk at most {}", mbits(cap)));
    format!(
        "  {name:<10}  {} of {} Mbit/s ({:.1} %{}), {} with headers, repair and other traffic\n\
         {:14}round trip {}, queue {}, {} % lost, {} % repair\n",
        mbits(way.goodput_bps),
        mbits(way.configured_bps),
        way.share * 100.0,
        cap.unwrap_or_default(),
        mbits(way.carried_bps),
        "",
        times(&way.rtt),
        span(&way.queue),
        percent(way.loss_ppm),
        percent(way.repair_ppm),
    )
}

/// Nobody measured what has no samples.
fn times(spread: &Spread) -> String {
    if spread.samples == 0 { "not measured".to_owned() } else { span(spread) }
}

fn span(spread: &Spread) -> String {
    let [median, p95] = [spread.median_us, spread.p95_us].map(|us| us.div_ceil(100));
    let ms = |tenths: u64| format!("{}.{}", tenths / 10, tenths % 10);
    format!("{} ms (95 %: {} ms)", ms(median), ms(p95))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_told_in_a_few_lines_and_what_is_wrong_at_their_end() {
        let spread = Spread { median_us: 602_340, p95_us: 610_000, samples: 9 };
        let way = TestedDirection {
            configured_bps: 20_000_000,
            goodput_bps: 18_900_000,
            share: 0.945,
            carried_bps: 19_700_000,
            rtt: spread,
            loss_ppm: 1_234,
            ..TestedDirection::default()
        };
        let mut found = LinkTest {
            peer: "shore".to_owned(),
            seconds: 10,
            receive: Some(way),
            link_bytes_received: 24_700_000,
            ..LinkTest::default()
        };
        let told = text(&found);
        assert_eq!(
            told.lines().collect::<Vec<_>>(),
            [
                "link to shore, 10 s each way",
                "  round trip  not measured without load",
                "  receive     18.9 of 20 Mbit/s (94.5 %), 19.7 with headers, repair and other \
                 traffic",
                "              round trip 602.4 ms (95 %: 610.0 ms), queue 0.0 ms (95 %: 0.0 ms), \
                 0.12 % lost, 0.00 % repair",
                "  the link carried 0B out and 24.7MB in meanwhile",
                "  as the file says",
            ]
        );
        found.problems = vec!["it is slow".to_owned()];
        assert!(text(&found).ends_with("  ! it is slow\n"));
    }

    #[test]
    fn how_far_it_is_fits_one_line_and_the_cost_is_told_first() {
        let progress = TestProgress {
            phase: "receive".to_owned(),
            elapsed_ms: 3_000,
            carried_bps: 19_700_000,
            most_bytes_sent: 0,
            most_bytes_received: 25_000_000,
            prices: None,
        };
        let prices = Some("2.40 USD a minute".to_owned());
        let line = TestProgress { phase: "line".to_owned(), prices, ..TestProgress::default() };
        let told = "the line is raised for the test; it costs 2.40 USD a minute";
        assert_eq!(cost(&line), told);
        assert_eq!(line_of(&line), "the line is raised … 0ms");
        assert_eq!(line_of(&progress), "receive … 3s, 19.7 Mbit/s");
        assert_eq!(cost(&progress), "the test sends up to 0B and receives up to 25.0MB");
    }
}
