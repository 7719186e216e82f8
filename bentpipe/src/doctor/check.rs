//! What the doctor says of one thing.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// It works with less: slower, or not for everybody.
    Warn,
    /// It will not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What, in a word or two.
    pub check: &'static str,
    /// How bad.
    pub state: State,
    /// What was found.
    pub finding: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Check {
    pub(super) fn ok(check: &'static str, finding: impl Into<String>) -> Check {
        Check { check, state: State::Ok, finding: finding.into(), mend: None }
    }
    pub(super) fn warn(
        check: &'static str,
        finding: impl Into<String>,
        mend: impl Into<String>,
    ) -> Check {
        Check { check, state: State::Warn, finding: finding.into(), mend: Some(mend.into()) }
    }
    pub(super) fn fail(
        check: &'static str,
        finding: impl Into<String>,
        mend: impl Into<String>,
    ) -> Check {
        Check { check, state: State::Fail, finding: finding.into(), mend: Some(mend.into()) }
    }
    /// An error that already says what to do, behind its last semicolon.
    pub(super) fn failed(check: &'static str, e: &os::OsError) -> Check {
        let text = e.to_string();
        let (finding, mend) = match text.rsplit_once("; ") {
            Some((finding, mend)) => (finding.to_owned(), Some(mend.to_owned())),
            None => (text, None),
        };
        Check { check, state: State::Fail, finding, mend }
    }
}
