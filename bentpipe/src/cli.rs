//! The command line.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, IntoDiagnostic as _};
use serde::Serialize;

use crate::logging::{self, Level};
use crate::{
    bench, check, demo, doctor, down, emulate, keeper, keygen, lab, manual, rate, reload, sim,
    status, test, up,
};

/// Makes ordinary TCP/IP run over a satellite link at the link's own limit.
///
/// One program runs at both ends of the link; each end has a key, a list of peers and a
/// description of the link. Start with `bentpipe keygen`.
#[derive(Parser, Debug)]
#[command(name = "bentpipe", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options that every command takes.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Global {
    /// Print results and log lines as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Log more; twice for every packet.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log less; twice for errors only.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "verbose")]
    pub quiet: u8,
}

impl Global {
    /// The level `configured`, moved by `-v` and `-q`.
    pub fn level(&self, configured: Level) -> Level {
        configured.shifted(i32::from(self.verbose) - i32::from(self.quiet))
    }
}

/// The commands; each is a module of the same name, whose `Args` describe it.
#[derive(Subcommand, Debug)]
#[allow(clippy::large_enum_variant)] // there is one, and it lives as long as the program
#[allow(missing_docs)] // a line here would hide what `Args` say of the command in `--help`
pub enum Command {
    Up(up::Args),
    Down(down::Args),
    Keygen(keygen::Args),
    Check(check::Args),
    Doctor(doctor::Args),
    Status(status::Args),
    Test(test::Args),
    Rate(rate::Args),
    Reload(reload::Args),
    Emulate(emulate::Args),
    Demo(demo::Args),
    Lab(lab::Args),
    #[command(hide = true)]
    Bench(bench::Args),
    #[command(hide = true)]
    Keeper(keeper::Args),
    #[command(hide = true)]
    Manual(manual::Args),
    Sim(sim::Args),
}

/// The whole command line, for whoever describes it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse_from(name_the_file(std::env::args_os().collect()));
    logging::init(global.level(Level::Info), global.json);
    let done = match command {
        Command::Up(args) => up::run(args, &global),
        Command::Down(args) => down::run(args, &global),
        Command::Keygen(args) => keygen::run(args, &global),
        Command::Check(args) => check::run(args, &global),
        Command::Doctor(args) => doctor::run(args, &global),
        Command::Status(args) => status::run(args, &global),
        Command::Test(args) => test::run(args, &global),
        Command::Rate(args) => rate::run(args, &global),
        Command::Reload(args) => reload::run(args, &global),
        Command::Emulate(args) => emulate::run(args, &global),
        Command::Demo(args) => demo::run(args, &global),
        Command::Lab(args) => lab::run(args, &global),
        Command::Bench(args) => bench::run(args, &global),
        Command::Keeper(args) => keeper::run(args, &global),
        Command::Manual(args) => manual::run(args, &global),
        Command::Sim(args) => sim::run(args, &global),
    };
    done.unwrap_or_else(|report| {
        show(&*report);
        ExitCode::FAILURE
    })
}

/// Experiments write their results to a file: `lab run NAME --json FILE` is understood as
/// `--save FILE`, while `--json` without a file stays what it is for every command.
fn name_the_file(mut args: Vec<OsString>) -> Vec<OsString> {
    let is_option = |arg: &OsString| arg.as_encoded_bytes().starts_with(b"-");
    let command = args.iter().skip(1).find(|arg| !is_option(arg));
    if command.is_none_or(|command| !["lab", "demo", "bench"].iter().any(|c| command == c)) {
        return args;
    }
    for at in 1..args.len() {
        if args[at] == "--json" && args.get(at + 1).is_some_and(|next| !is_option(next)) {
            args[at] = "--save".into();
        } else if let Some(file) = args[at].to_str().and_then(|arg| arg.strip_prefix("--json=")) {
            args[at] = format!("--save={file}").into();
        }
    }
    args
}

/// Shows an error or a warning on standard error: one sentence and what to do, or the
/// place in a file.
pub fn show(diagnostic: &dyn Diagnostic) {
    let mut text = String::new();
    let has_places = diagnostic.source_code().is_some() || diagnostic.related().is_some();
    if has_places {
        // Rendering into a String does not fail.
        let _ = report_handler().render_report(&mut text, diagnostic);
    } else {
        text = format!("bentpipe: {diagnostic}\n");
        let mut cause = diagnostic.source();
        while let Some(e) = cause {
            text.push_str(&format!("  because: {e}\n"));
            cause = e.source();
        }
        if let Some(help) = diagnostic.help() {
            text.push_str(&format!("  help: {help}\n"));
        }
    }
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

fn report_handler() -> GraphicalReportHandler {
    let colour = std::env::var_os("NO_COLOR").is_none();
    let theme = match std::io::stderr().is_terminal() {
        true if colour => GraphicalTheme::unicode(),
        true => GraphicalTheme::unicode_nocolor(),
        // Files and pipes get what every program can show and search.
        false => GraphicalTheme::none(),
    };
    GraphicalReportHandler::new_themed(theme).with_links(false)
}

/// Writes `text` to standard output.
///
/// # Errors
/// If standard output is gone, as when a pager was closed.
pub fn print(text: &str) -> miette::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).into_diagnostic()
}

/// Writes `value` to standard output as JSON, one line.
///
/// # Errors
/// If standard output is gone.
pub fn print_json(value: &impl Serialize) -> miette::Result<()> {
    print(&(serde_json::to_string(value).into_diagnostic()? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_of_every_command_is_short_and_long_and_has_an_example() {
        for sub in command().get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = sub.get_name();
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            assert!((10..90).contains(&about.len()), "{name}: {about}");
            let long = sub.get_long_about().map(ToString::to_string).unwrap_or_default();
            assert!(long.contains(&format!("bentpipe {name}")), "{name}: {long}");
        }
    }

    #[test]
    fn results_of_experiments_go_to_the_file_behind_json() {
        let rewritten = |line: &str| {
            let args = line.split(' ').map(OsString::from).collect();
            let words = name_the_file(args).into_iter().map(|arg| arg.into_string());
            words.collect::<Result<Vec<_>, _>>().expect("UTF-8").join(" ")
        };
        assert_eq!(rewritten("bentpipe lab run x --json f"), "bentpipe lab run x --save f");
        assert_eq!(rewritten("bentpipe -v lab run x --json=f"), "bentpipe -v lab run x --save=f");
        assert_eq!(rewritten("bentpipe demo --json f -q"), "bentpipe demo --save f -q");
        for same in ["bentpipe lab run x --json", "bentpipe lab list --json -v", "bentpipe"] {
            assert_eq!(rewritten(same), same);
        }
        assert_eq!(rewritten("bentpipe check --json f"), "bentpipe check --json f");
    }

    #[test]
    fn verbosity_moves_the_configured_level() {
        let global = Global { verbose: 1, ..Global::default() };
        assert_eq!(global.level(Level::Info), Level::Debug);
        let global = Global { quiet: 2, ..Global::default() };
        assert_eq!(global.level(Level::Info), Level::Error);
    }
}
