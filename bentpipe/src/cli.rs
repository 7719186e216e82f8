//! The command line of `bentpipe`.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use console::logging::{self, Level};
use console::{Global, manual};

use crate::{
    check, cost, doctor, down, file_keeper, keeper, keygen, line, log, path, plan, rate, reload,
    status, test, tune, up, usage, watch, web,
};

/// Makes ordinary TCP/IP run over a satellite link at the link's own limit.
///
/// One program runs at both ends of the link; each end has a key, a list of peers and a
/// description of the link. Start with `bentpipe keygen`.
#[derive(Parser, Debug)]
#[command(name = "bentpipe", version, propagate_version = true)]
#[command(subcommand_help_heading = "Commands (the first ten are what every node needs)")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// The commands: first the ten that every node needs, in the order in which a user meets them.
/// Each is a module of the same name, whose `Args` describe it.
#[derive(Subcommand, Debug)]
#[allow(clippy::large_enum_variant)] // there is one, and it lives as long as the program
#[allow(missing_docs)] // a line here would hide what `Args` say of the command in `--help`
pub enum Command {
    Keygen(keygen::Args),
    Check(check::Args),
    Doctor(doctor::Args),
    Up(up::Args),
    Status(status::Args),
    Test(test::Args),
    Watch(watch::Args),
    Log(log::Args),
    Usage(usage::Args),
    Reload(reload::Args),
    Plan(plan::Args),
    Rate(rate::Args),
    Path(path::Args),
    Link(line::Args),
    Cost(cost::Args),
    Web(web::Args),
    Down(down::Args),
    Tune(tune::Args),
    #[command(hide = true)]
    Keeper(keeper::Args),
    #[command(hide = true)]
    FileKeeper(file_keeper::Args),
    #[command(hide = true)]
    Manual(manual::Args),
}

/// The whole command line, for whoever describes it.
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    logging::init(global.level(Level::Info), global.json);
    let done = match command {
        Command::Up(args) => up::run(args, &global),
        Command::Down(args) => down::run(args, &global),
        Command::Keygen(args) => keygen::run(args, &global),
        Command::Check(args) => check::run(args, &global),
        Command::Doctor(args) => doctor::run(args, &global),
        Command::Plan(args) => plan::run(args, &global),
        Command::Tune(args) => tune::run(args, &global),
        Command::Status(args) => status::run(args, &global),
        Command::Watch(args) => watch::run(args, &global),
        Command::Usage(args) => usage::run(args, &global),
        Command::Log(args) => log::run(args, &global),
        Command::Test(args) => test::run(args, &global),
        Command::Rate(args) => rate::run(args, &global),
        Command::Path(args) => path::run(args, &global),
        Command::Link(args) => line::run(args, &global),
        Command::Cost(args) => cost::run(&args, &global),
        Command::Web(args) => web::run(args, &global),
        Command::Reload(args) => reload::run(args, &global),
        Command::Keeper(args) => keeper::run(args, &global),
        Command::FileKeeper(args) => file_keeper::run(&args, &global),
        Command::Manual(args) => manual::run(args, command_line()),
    };
    done.unwrap_or_else(|report| console::failed("bentpipe", &report))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_ten_commands_that_every_node_needs_come_first_in_help() {
        let help = Cli::command().render_help().to_string();
        let (_, list) = help.split_once("Commands (the first ten").expect("a heading");
        let named: Vec<&str> =
            list.lines().skip(1).map_while(|line| line.split_whitespace().next()).collect();
        let first = "keygen check doctor up status test watch log usage reload";
        assert_eq!(named[..10].join(" "), first, "{help}");
        let shown = command_line().get_subcommands().filter(|sub| !sub.is_hide_set()).count();
        let listed = named.iter().filter(|name| **name != "help").count();
        assert_eq!(listed, shown, "{help}");
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
}
