//! The command line of `bentpipe-lab`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use console::logging::{self, Level};
use console::{Global, manual};

use crate::{bench, day, demo, emulate, experiments, load, modem, sim};

/// Measures what bentpipe gains, with real hosts around an emulated satellite link.
///
/// The gateways in between are processes of the program `bentpipe` that lies beside this one, or
/// that BENTPIPE names. Start with `bentpipe-lab demo`.
#[derive(Parser, Debug)]
#[command(name = "bentpipe-lab", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
#[allow(clippy::large_enum_variant)] // there is one, and it lives as long as the program
#[allow(missing_docs)] // a line here would hide what `Args` say of the command in `--help`
pub enum Command {
    Demo(demo::Args),
    List(experiments::ListArgs),
    Run(experiments::RunArgs),
    Report(experiments::ReportArgs),
    Bench(bench::Args),
    Emulate(emulate::Args),
    Modem(modem::Args),
    Sim(sim::Args),
    Load(load::Args),
    Day(day::Args),
    #[command(hide = true)]
    Manual(manual::Args),
}

/// The whole command line, for whoever describes it.
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse_from(name_the_file(std::env::args_os().collect()));
    logging::init(global.level(Level::Info), global.json);
    let done = match command {
        Command::Demo(args) => demo::run(args, &global),
        Command::List(args) => experiments::list(args, &global),
        Command::Run(args) => experiments::run(args, &global),
        Command::Report(args) => experiments::report(args, &global),
        Command::Bench(args) => bench::run(args, &global),
        Command::Emulate(args) => emulate::run(args, &global),
        Command::Modem(args) => modem::run(args, &global),
        Command::Sim(args) => sim::run(args, &global),
        Command::Load(args) => load::run(args, &global),
        Command::Day(args) => day::run(args, &global),
        Command::Manual(args) => manual::run(args, command_line()),
    };
    done.unwrap_or_else(|report| console::failed("bentpipe-lab", &report))
}

/// Experiments write their results to a file: `run NAME --json FILE` is understood as
/// `--save FILE`, while `--json` without a file stays what it is for every command.
fn name_the_file(mut args: Vec<OsString>) -> Vec<OsString> {
    let is_option = |arg: &OsString| arg.as_encoded_bytes().starts_with(b"-");
    let command = args.iter().skip(1).find(|arg| !is_option(arg));
    let saving = ["run", "report", "demo", "bench"];
    if command.is_none_or(|command| !saving.iter().any(|c| command == c)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_bench_is_in_help() {
        let help = Cli::command().render_help().to_string();
        assert!(help.lines().any(|line| line.trim_start().starts_with("bench ")), "{help}");
    }

    #[test]
    fn the_help_of_every_command_is_short_and_long_and_has_an_example() {
        for sub in command_line().get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let name = sub.get_name();
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            assert!((10..90).contains(&about.len()), "{name}: {about}");
            let long = sub.get_long_about().map(ToString::to_string).unwrap_or_default();
            assert!(long.contains(&format!("bentpipe-lab {name}")), "{name}: {long}");
        }
    }

    #[test]
    fn results_of_experiments_go_to_the_file_behind_json() {
        let rewritten = |line: &str| {
            let args = line.split(' ').map(OsString::from).collect();
            let words = name_the_file(args).into_iter().map(|arg| arg.into_string());
            words.collect::<Result<Vec<_>, _>>().expect("UTF-8").join(" ")
        };
        assert_eq!(rewritten("bentpipe-lab run x --json f"), "bentpipe-lab run x --save f");
        assert_eq!(rewritten("bentpipe-lab -v run x --json=f"), "bentpipe-lab -v run x --save=f");
        assert_eq!(rewritten("bentpipe-lab demo --json f -q"), "bentpipe-lab demo --save f -q");
        for same in ["bentpipe-lab run x --json", "bentpipe-lab list --json -v", "bentpipe-lab"] {
            assert_eq!(rewritten(same), same);
        }
        assert_eq!(rewritten("bentpipe-lab sim --json f"), "bentpipe-lab sim --json f");
    }
}
