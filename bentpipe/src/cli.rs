//! The command line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use console::logging::{self, Level};
use console::{Global, manual};

use crate::{
    bench, check, demo, doctor, down, emulate, keygen, lab, rate, reload, sim, status, test, up,
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
    Manual(manual::Args),
    Sim(sim::Args),
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
        Command::Manual(args) => manual::run(args, command_line()),
        Command::Sim(args) => sim::run(args, &global),
    };
    done.unwrap_or_else(|report| {
        console::show("bentpipe", &*report);
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

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_of_every_command_is_short_and_long_and_has_an_example() {
        for sub in command_line().get_subcommands().filter(|sub| !sub.is_hide_set()) {
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
}
