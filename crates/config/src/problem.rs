//! What is wrong with a configuration file, and where.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, Severity, SourceCode, SourceSpan};
use serde::Serialize;

use super::secret;

/// One thing wrong (or doubtful) at one place of the file.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What is wrong, in one sentence.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
    labels: Vec<(Range<usize>, String)>,
    doubt: bool,
    source: Option<Arc<NamedSource<String>>>,
}

impl Problem {
    /// A problem with the bytes `span` of the file.
    pub(super) fn at(span: Range<usize>, message: impl Into<String>) -> Problem {
        Problem {
            message: message.into(),
            help: None,
            labels: vec![(span, "here".to_owned())],
            doubt: false,
            source: None,
        }
    }

    /// The words under the carets.
    pub(super) fn label(mut self, text: impl Into<String>) -> Problem {
        self.labels[0].1 = text.into();
        self
    }

    /// A second place that the first one contradicts.
    pub(super) fn also(mut self, span: Range<usize>, text: impl Into<String>) -> Problem {
        self.labels.push((span, text.into()));
        self
    }

    /// What to do.
    pub(super) fn help(mut self, text: impl Into<String>) -> Problem {
        self.help = Some(text.into());
        self
    }

    fn start(&self) -> usize {
        self.labels[0].0.start
    }

    /// Line and column, counted from 1, of the problem's first byte.
    pub fn line_and_column(&self) -> (usize, usize) {
        let text = self.source.as_ref().map_or("", |s| s.inner().as_str());
        let before = text.get(..self.start().min(text.len())).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
impl std::error::Error for Problem {}

impl Diagnostic for Problem {
    fn severity(&self) -> Option<Severity> {
        Some(if self.doubt { Severity::Warning } else { Severity::Error })
    }
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|h| Box::new(h) as Box<dyn fmt::Display>)
    }
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|s| s as &dyn SourceCode)
    }
    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(self.labels.iter().enumerate().map(|(i, (span, text))| {
            let at = SourceSpan::from(span.clone());
            if i == 0 {
                LabeledSpan::new_primary_with_span(Some(text.clone()), at)
            } else {
                LabeledSpan::new_with_span(Some(text.clone()), at)
            }
        })))
    }
}

/// Collects problems while a file is read, so that one run shows them all.
#[derive(Default)]
pub(super) struct Problems {
    found: RefCell<Vec<Problem>>,
}

impl Problems {
    /// The file is wrong.
    pub fn add(&self, problem: Problem) {
        self.found.borrow_mut().push(problem);
    }

    /// The file can be used, but its owner should look.
    pub fn doubt(&self, problem: Problem) {
        self.found.borrow_mut().push(Problem { doubt: true, ..problem });
    }

    /// Errors and warnings, each in the order of the file.
    pub fn finish(self, source: &Arc<NamedSource<String>>) -> (Vec<Problem>, Vec<Problem>) {
        let mut found = self.found.into_inner();
        found.sort_by_key(Problem::start);
        for problem in &mut found {
            problem.source = Some(source.clone());
            // A key pasted where a name belongs is repeated by the message.
            problem.message = secret::mask(&problem.message);
            problem.help = problem.help.as_deref().map(secret::mask);
        }
        found.into_iter().partition(|p| !p.doubt)
    }
}

/// A configuration that cannot be used.
#[derive(Debug)]
pub enum ConfigError {
    /// The file could not be read, or holds keys that others can read.
    File(String, Option<String>),
    /// The file is wrong in these places, at least one.
    Content {
        /// The file's name as given.
        file: String,
        /// In the order of the file.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// The file cannot be read, and why.
    pub fn unreadable(path: &Path, error: &std::io::Error) -> ConfigError {
        let why = console::human::reason(error);
        ConfigError::File(format!("cannot read {}: {why}", path.display()), None)
    }

    /// The first problems, each with its place and help, on one line: for a log.
    pub fn in_one_line(&self) -> String {
        const SHOWN: usize = 3;
        let ConfigError::Content { file, problems } = self else { return self.to_string() };
        let told = |p: &Problem| {
            let (line, column) = p.line_and_column();
            let help = p.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
            format!("{file}:{line}:{column}: {p}{help}")
        };
        let mut all: Vec<String> = problems.iter().take(SHOWN).map(told).collect();
        if problems.len() > SHOWN {
            all.push(format!("and {} more", problems.len() - SHOWN));
        }
        all.join("; ")
    }

    /// The same for machines: file, and for each problem line, column, message, help.
    pub fn to_report(&self) -> Report {
        match self {
            ConfigError::File(message, help) => Report {
                ok: false,
                file: None,
                problems: vec![Entry {
                    line: None,
                    column: None,
                    message: message.clone(),
                    help: help.clone(),
                }],
            },
            ConfigError::Content { file, problems } => Report {
                ok: false,
                file: Some(file.clone()),
                problems: problems.iter().map(Entry::from).collect(),
            },
        }
    }
}

/// What `check --json` prints.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether the file can be used.
    pub ok: bool,
    /// The file's name as given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Errors, or warnings if `ok`.
    pub problems: Vec<Entry>,
}

/// One problem of a [`Report`].
#[derive(Debug, Serialize)]
pub struct Entry {
    /// Counted from 1.
    pub line: Option<usize>,
    /// Counted from 1, in characters.
    pub column: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl From<&Problem> for Entry {
    fn from(p: &Problem) -> Entry {
        let (line, column) = p.line_and_column();
        Entry {
            line: Some(line),
            column: Some(column),
            message: p.message.clone(),
            help: p.help.clone(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::File(message, _) => f.write_str(message),
            ConfigError::Content { file, problems } => match problems.as_slice() {
                [one] => {
                    let (line, column) = one.line_and_column();
                    write!(f, "{file}:{line}:{column}: {one}")
                }
                many => write!(f, "{file} has {} problems", many.len()),
            },
        }
    }
}
impl std::error::Error for ConfigError {}

impl Diagnostic for ConfigError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        match self {
            ConfigError::File(_, Some(help)) => Some(Box::new(help)),
            _ => None,
        }
    }
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        match self {
            ConfigError::File(..) => None,
            ConfigError::Content { problems, .. } => {
                Some(Box::new(problems.iter().map(|p| p as &dyn Diagnostic)))
            }
        }
    }
}
