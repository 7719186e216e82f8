//! The program: a thin shell around the library crate of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    bentpipe_lab::cli::main()
}
