//! What every program of the project says, and how: options that all commands take, results
//! on standard output, errors and the log on standard error, figures as people read them,
//! manual pages and completions.
//!
//! A program parses its command line into its own type, which flattens [`Global`], calls
//! [`logging::init`], runs the command, and gives the error that comes back to [`failed`].

pub mod human;
pub mod logging;
pub mod manual;

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, IntoDiagnostic as _, Severity, SourceCode,
};
use serde::Serialize;

use logging::Level;

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

/// Shows an error or a warning of `program` on standard error: one sentence and what to do,
/// or the place in a file. With `--json` they are lines as those of the log.
pub fn show(program: &str, diagnostic: &dyn Diagnostic) {
    let mut text = String::new();
    let has_places = diagnostic.source_code().is_some() || diagnostic.related().is_some();
    // What stands for one problem alone says it twice.
    let alone =
        diagnostic.related().and_then(|mut all| all.next().filter(|_| all.next().is_none()));
    if let Some(problem) =
        alone.filter(|p| diagnostic.source_code().is_none() && p.source_code().is_some())
    {
        return show(program, problem);
    }
    if logging::is_json() {
        return log_all(diagnostic, None);
    }
    if has_places {
        // Rendering into a String does not fail.
        let _ = report_handler().render_report(&mut text, diagnostic);
    } else {
        text = format!("{program}: {diagnostic}\n");
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

/// The diagnostic and all that it consists of, each as a line of the log; `file`: of whoever it is
/// a part.
fn log_all(diagnostic: &dyn Diagnostic, file: Option<&dyn SourceCode>) {
    let file = diagnostic.source_code().or(file);
    let level = match diagnostic.severity() {
        Some(Severity::Warning) => Level::Warn,
        Some(Severity::Advice) => Level::Info,
        _ => Level::Error,
    };
    let causes = std::iter::successors(diagnostic.source(), |e| e.source());
    let because = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    let help = diagnostic.help().map(|help| help.to_string());
    let place = diagnostic.labels().and_then(|mut labels| labels.next());
    let place = file.zip(place).and_then(|(file, at)| file.read_span(at.inner(), 0, 0).ok());
    let (line, column) = place.as_ref().map_or((0, 0), |at| (at.line() + 1, at.column() + 1));
    let name = place.as_ref().and_then(|at| at.name()).unwrap_or_default();
    let mut fields: Vec<(&str, &dyn Display)> = Vec::new();
    if !because.is_empty() {
        fields.push(("because", &because));
    }
    if let Some(help) = &help {
        fields.push(("help", help));
    }
    if place.is_some() {
        fields.extend([("file", &name as _), ("line", &line as _), ("column", &column as _)]);
    }
    logging::write(level, &diagnostic.to_string(), &fields);
    for part in diagnostic.related().into_iter().flatten() {
        log_all(part, file);
    }
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
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        done => done.into_diagnostic(),
    }
}

/// Who reads what is printed has enough, as `head` has: no fault, and nothing more to say.
#[derive(Debug)]
struct NobodyReads;

impl std::fmt::Display for NobodyReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}
impl std::error::Error for NobodyReads {}
impl Diagnostic for NobodyReads {}

/// The end of a program whose command failed: it says why, unless nobody reads any more.
pub fn failed(program: &str, report: &miette::Report) -> ExitCode {
    if report.is::<NobodyReads>() {
        return ExitCode::SUCCESS;
    }
    show(program, &**report);
    ExitCode::FAILURE
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
    fn verbosity_moves_the_configured_level() {
        let global = Global { verbose: 1, ..Global::default() };
        assert_eq!(global.level(Level::Info), Level::Debug);
        let global = Global { quiet: 2, ..Global::default() };
        assert_eq!(global.level(Level::Info), Level::Error);
    }
}
