//! What was there before: written first, put back from the file.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use miette::miette;
use os::OsError;
use os::settings::{self, Family};
use serde::{Deserialize, Serialize};

use crate::human::reason;
use crate::state_directory::write_whole;

/// What is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Setting {
    /// A route of table `main`.
    Route {
        /// Of IPv6.
        v6: bool,
    },
    /// A kernel parameter.
    Parameter {
        /// Its name.
        key: String,
    },
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Route { v6: false } => f.write_str("route"),
            Setting::Route { v6: true } => f.write_str("route of IPv6"),
            Setting::Parameter { key } => f.write_str(key),
        }
    }
}

/// One setting, before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Which.
    pub setting: Setting,
    /// What was there.
    pub before: String,
    /// What is wanted.
    pub after: String,
    /// Why.
    pub why: String,
}

impl Change {
    /// Sets what is wanted.
    pub fn make(&self) -> Result<(), OsError> {
        self.set(&self.after)
    }

    fn set(&self, value: &str) -> Result<(), OsError> {
        match &self.setting {
            Setting::Route { v6 } => settings::replace_route(family(*v6), value),
            Setting::Parameter { key } => settings::set_sysctl(key, value),
        }
    }

    /// Puts back what was there. False: somebody else has changed it since, so it stays.
    fn unmake(&self) -> Result<bool, OsError> {
        if self.is(&self.before)? {
            return Ok(true); // It was never changed: the program ended before.
        }
        if !self.is(&self.after)? {
            return Ok(false);
        }
        self.set(&self.before).map(|()| true)
    }

    fn is(&self, value: &str) -> Result<bool, OsError> {
        Ok(match &self.setting {
            Setting::Parameter { key } => settings::sysctl(key).as_deref() == Some(value),
            Setting::Route { v6 } => {
                let routes = settings::routes(family(*v6))?;
                routes.iter().any(|route| sorted(route) == sorted(value))
            }
        })
    }
}

fn family(v6: bool) -> Family {
    if v6 { Family::V6 } else { Family::V4 }
}

/// The kernel prints a route's words in an order of its own.
fn sorted(route: &str) -> Vec<&str> {
    let mut words: Vec<&str> = route.split_whitespace().filter(|word| *word != "lock").collect();
    words.sort_unstable();
    words
}

/// Everything that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The link.
    pub name: String,
    /// The boot and namespace in which it holds.
    lifetime: String,
    /// In the order in which they are made.
    pub changes: Vec<Change>,
}

impl Saved {
    /// Changes for the link `name` that are about to be made here.
    pub fn new(name: String, changes: Vec<Change>) -> Saved {
        Saved { name, lifetime: settings::lifetime(), changes }
    }

    /// What is noted in `file`; none if there is none, or the system has been started anew since.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(file: &Path) -> miette::Result<Option<Saved>> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(miette!("cannot read {}: {}", file.display(), reason(&e))),
        };
        let saved: Saved = serde_json::from_str(&text).map_err(|e| {
            miette!(
                help = "if nothing is tuned, delete it",
                "{} is not what `bentpipe tune` writes: {e}",
                file.display()
            )
        })?;
        Ok((saved.lifetime == settings::lifetime()).then_some(saved))
    }

    /// Notes it in `file`, which is there whole or not at all, also after a power cut.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn store(&self, file: &Path) -> miette::Result<()> {
        let whole = serde_json::to_vec_pretty(self).map_err(std::io::Error::from);
        let written = whole.and_then(|whole| write_whole(file, &whole));
        written.map_err(|e| miette!("cannot write {}: {}", file.display(), reason(&e)))
    }

    /// Puts everything back, the last first. What the system refused stays noted in `file`, to be
    /// tried again; without any the file is removed. Answers what is not as it was, and why.
    ///
    /// # Errors
    /// The file cannot be written or removed.
    pub fn put_back(&mut self, file: &Path) -> miette::Result<Vec<String>> {
        let (mut left, mut failed) = (Vec::new(), Vec::new());
        for change in self.changes.drain(..).rev() {
            let Change { setting, before, .. } = &change;
            match change.unmake() {
                Ok(true) => {}
                Ok(false) => left.push(format!(
                    "somebody changed this since, so it stays: {setting} (before: {before})"
                )),
                Err(e) => {
                    left.push(format!("not put back: {setting} (before: {before}): {e}"));
                    failed.push(change);
                }
            }
        }
        failed.reverse();
        self.changes = failed;
        if self.changes.is_empty() {
            remove(file)?;
        } else {
            self.store(file)?;
        }
        Ok(left)
    }
}

/// Nothing is tuned any more.
fn remove(file: &Path) -> miette::Result<()> {
    match fs::remove_file(file) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(miette!("cannot remove {}: {}", file.display(), reason(&e)))
        }
        _ => Ok(()),
    }
}
