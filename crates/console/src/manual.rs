//! `manual DIR`, which every program has: manual pages and completions, for packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::Shell;
use miette::{IntoDiagnostic as _, WrapErr as _};

/// Writes manual pages and completions, for those who build packages.
///
/// The pages go into man1/ of the directory, the completions of bash, zsh and fish into
/// completions/.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory; it is made.
    dir: PathBuf,
}

/// Writes those of the program with this command line.
///
/// # Errors
/// If the directory cannot be written.
pub fn run(args: Args, mut command: clap::Command) -> miette::Result<ExitCode> {
    let (pages, completions) = (args.dir.join("man1"), args.dir.join("completions"));
    for dir in [&pages, &completions] {
        fs::create_dir_all(dir).into_diagnostic().wrap_err_with(|| cannot_write(dir))?;
    }
    clap_mangen::generate_to(command.clone(), &pages)
        .into_diagnostic()
        .wrap_err_with(|| cannot_write(&pages))?;
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, &name, &completions)
            .into_diagnostic()
            .wrap_err_with(|| cannot_write(&completions))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn cannot_write(dir: &Path) -> String {
    format!("cannot write into {}", dir.display())
}
