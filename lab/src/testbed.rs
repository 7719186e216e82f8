//! Real hosts around an emulated link: what the experiments, the demo and the bench are made of.
//!
//! A [`scenario`] is a file with a set-up, ways to run it and the figures that its
//! source printed. [`run`](mod@run) builds a [`topology`] of namespaces for each way,
//! starts the [`gateway`] pair where the way has one, lets [`traffic`] flow through the
//! kernel's own TCP, and [`measure`]s at the client, at the server and on the link.
//! [`results`] stand beside what was published; [`report`] shows them.

pub mod figure;
pub mod gateway;
pub mod measure;
pub mod mesh;
pub mod progress;
pub mod report;
pub mod results;
pub mod rights;
pub mod run;
pub mod scenario;
pub mod sweep;
pub mod topology;
pub mod traffic;
mod unit;
pub mod way;
pub mod web;

use std::fs;
use std::path::Path;

use miette::{Context as _, IntoDiagnostic as _};

/// Writes `value` to `file` as JSON.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json(file: &Path, value: &impl serde::Serialize) -> miette::Result<()> {
    let text = serde_json::to_string(value).into_diagnostic()?;
    fs::write(file, text + "\n")
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot write {}", file.display()))
}
