//! What can be asked, and what is answered.

use serde::{Deserialize, Serialize};

use crate::{By, LineCommand, LinkTest, Outage, PathCommand, Status, TestProgress, UsageReport};

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// A [`Status`].
    Status,
    /// Read the configuration file again, as SIGHUP does: answered with
    /// [`Answer::Reloaded`], or with an error, and then the old one stays in force.
    Reload,
    /// The modem of a peer's link carries another rate now: answered with
    /// [`Answer::Done`], or with an error if there is no such peer or its rate is not
    /// `reported`.
    Rate {
        /// The peer's name.
        peer: String,
        /// Bits per second of link packets; more than the configured rate counts as that.
        bps: u64,
    },
    /// Something for one of the paths to a peer: answered with [`Answer::Done`], or with an
    /// error if there is no such peer or path.
    Path {
        /// The peer's name.
        peer: String,
        /// The carrier's name, or the path's number; empty for [`PathCommand::Auto`].
        path: String,
        /// What becomes of it.
        command: PathCommand,
    },
    /// Something for a peer's lines: answered with [`Answer::Done`], or with an error if there is
    /// no such peer or line, or its link is always up.
    Line {
        /// The peer's name.
        peer: String,
        /// One of its lines alone, by its carrier's name; none: all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        line: Option<String>,
        /// What becomes of it.
        command: LineCommand,
    },
    /// Test the link to a peer: answered with [`Answer::Testing`] once a second, then with
    /// [`Answer::Tested`]. It ends when the client goes away.
    Test {
        /// The peer's name.
        peer: String,
        /// For how long each direction is measured, 1 … 60.
        seconds: u64,
        /// Measure what this node sends.
        send: bool,
        /// Measure what it receives.
        receive: bool,
        /// Measure also where that costs, and raise the line for it if it is down.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        raise: bool,
    },
    /// Tell what happens from now on: answered with one [`Notice`](crate::Notice) a line,
    /// a snapshot first, until one of the two goes away.
    Watch {
        /// Only this peer's events, and the gateway's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
        /// Tell of each split connection, too.
        #[serde(default = "yes")]
        flows: bool,
    },
    /// What crossed: answered with [`Answer::Usage`].
    Usage {
        /// What rows are summed by.
        #[serde(default)]
        by: By,
        /// Only this peer's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
        /// The first day, as `2026-11-24` (UTC), and the last; all that are kept without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// See `from`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// The outages that are kept: answered with [`Answer::Log`].
    Log {
        /// Only this peer's, and the gateway's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
    },
    /// A command to one of the gateway's services: answered with [`Answer::Service`], or with an
    /// error if there is no such service, or it does not run, know the command or answer.
    Service {
        /// The service's name in the file.
        service: String,
        /// The command.
        words: Vec<String>,
    },
    /// Finish what is under way and end, as SIGTERM does.
    Stop,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::Reload`]: the file is in force.
    Reloaded {
        /// Keys that were changed and take effect only after a restart.
        needs_restart: Vec<String>,
    },
    /// To [`Request::Test`]: how far it is. More follows.
    Testing(TestProgress),
    /// To [`Request::Test`]: what it found.
    Tested(Box<LinkTest>),
    /// To [`Request::Usage`].
    Usage(Box<UsageReport>),
    /// To [`Request::Log`]: in the order of their beginnings.
    Log(Vec<Outage>),
    /// To [`Request::Service`]: what the service says.
    Service(serde_json::Value),
    /// The request was carried out.
    Done,
    /// It was not; why, in one sentence.
    Error(String),
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkState;

    #[test]
    fn requests_and_answers_read_as_documented() {
        assert_eq!(serde_json::to_string(&Request::Status).unwrap(), r#"{"request":"status"}"#);
        let rate = Request::Rate { peer: "ship".to_owned(), bps: 8_000_000 };
        let text = r#"{"request":"rate","peer":"ship","bps":8000000}"#;
        assert_eq!(serde_json::to_string(&rate).unwrap(), text);
        let (peer, seconds) = ("ship".to_owned(), 10);
        let test = Request::Test { peer, seconds, send: true, receive: false, raise: false };
        let text = r#"{"request":"test","peer":"ship","seconds":10,"send":true,"receive":false}"#;
        assert_eq!(serde_json::to_string(&test).unwrap(), text);
        let watch = Request::Watch { peer: None, flows: true };
        assert_eq!(serde_json::from_str::<Request>(r#"{"request":"watch"}"#).unwrap(), watch);
        let usage = Request::Usage { by: By::Host, peer: None, from: None, to: None };
        assert_eq!(serde_json::from_str::<Request>(r#"{"request":"usage"}"#).unwrap(), usage);
        let words = vec!["purge".to_owned(), "http://a/".to_owned()];
        let command = Request::Service { service: "web".to_owned(), words };
        let text = r#"{"request":"service","service":"web","words":["purge","http://a/"]}"#;
        assert_eq!(serde_json::to_string(&command).unwrap(), text);
        assert_eq!(serde_json::to_string(&Answer::Done).unwrap(), r#""done""#);
        let error = Answer::Error("no".to_owned());
        assert_eq!(serde_json::to_string(&error).unwrap(), r#"{"error":"no"}"#);
    }

    #[test]
    fn an_answer_of_a_newer_or_older_program_is_understood() {
        let text = r#"{"status":{"node":{"version":"9","new":1},"links":[{"peer":"x"}],"more":2}}"#;
        let Answer::Status(status) = serde_json::from_str(text).unwrap() else {
            panic!("a status");
        };
        assert_eq!(status.node.version, "9");
        assert_eq!(status.links[0].state, LinkState::Down);
    }
}
