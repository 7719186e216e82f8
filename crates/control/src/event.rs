//! What happens at a gateway, as a watcher hears of it.

use serde::{Deserialize, Serialize};

use crate::{Failing, PathCause, RekeyState, Status, UsageRow, Way};

/// The version of the events, told in the snapshot (CT-1). It grows when an event changes its
/// meaning, not when one is added.
pub const VERSION: u64 = 1;

/// One line of `watch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// When, by the gateway's wall clock: milliseconds since 1970, UTC.
    pub at_ms: u64,
    /// The peer's name; `None`: it is of the gateway itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened. Further ones will come: services have none yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// How things stand. The first line; what follows is news.
    Snapshot {
        /// [`VERSION`] of the gateway.
        version: u64,
        /// As [`Request::Status`](crate::Request::Status) has it.
        status: Box<Status>,
        /// Outages that have not ended.
        #[serde(default)]
        outages: Vec<Outage>,
    },
    /// A session with the peer began.
    LinkUp {
        /// The peer's address.
        #[serde(default)]
        address: Option<String>,
        /// The cipher.
        cipher: String,
        /// How long the peer took to answer.
        rtt_us: u64,
        /// The session before had not been ended: the peer began anew, and connections were cut.
        #[serde(default)]
        anew: bool,
    },
    /// The session is over: the peer ended it, or it is no longer in the file.
    LinkDown {
        /// [`Cause::Closed`], [`Cause::Removed`], or a later one.
        cause: Cause,
    },
    /// The peer is at another address.
    LinkMoved {
        /// The new one.
        address: String,
    },
    /// Everything goes by another path of the link.
    Path {
        /// The carrier's name in the file, or the path's number.
        path: String,
        /// Why: what speaks for it, or against the one before.
        cause: PathCause,
    },
    /// A line is raised, is up, or is down; or a call on a telephone line began or is over.
    Line {
        /// Its carrier's name, or the telephone line's; empty: the peer has one line and no
        /// carriers.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        line: String,
        /// down, dialling, rising or up.
        state: String,
        /// What raised it, or why it is down.
        cause: String,
    },
    /// A direction of the link is dead; its streams wait.
    LinkSilent {
        /// Which direction.
        direction: Way,
        /// For how long already.
        for_ms: u64,
    },
    /// Both directions work again.
    LinkBack,
    /// Handshakes come to nothing, or more is known of why.
    LinkFailing {
        /// What is known.
        failing: Box<Failing>,
    },
    /// An outage began.
    OutageBegan {
        /// Without its end.
        outage: Outage,
    },
    /// An outage is over.
    OutageEnded {
        /// With its end.
        outage: Outage,
    },
    /// The sending rate of the link is another by 5 % or more, or its limit is another.
    Rate {
        /// The rate in force.
        current_bps: u64,
        /// The most that it may be.
        limit_bps: u64,
        /// What the link is known to carry.
        capacity_bps: u64,
    },
    /// The keys of a link were replaced, or are not in time.
    Rekey {
        /// Whether they are.
        state: RekeyState,
    },
    /// A split connection began.
    FlowOpened {
        /// Without bytes.
        flow: Flow,
    },
    /// A split connection is over.
    FlowClosed {
        /// With its bytes and its length.
        flow: Flow,
    },
    /// What hosts had today, those to which something was added since the last such event.
    Usage {
        /// The day (UTC), as `2026-11-24`.
        day: String,
        /// A peer's hosts, 128 at most; those with the most bytes today.
        hosts: Vec<UsageRow>,
        /// The peer's sum of the day.
        total: Box<UsageRow>,
    },
    /// Events that were not told, because too many came at once.
    Missed {
        /// How many.
        events: u64,
    },
    /// The last line: nothing more is told to this watcher.
    Dropped {
        /// Why, in a sentence.
        reason: String,
    },
    /// One that this program does not know.
    #[serde(other)]
    Unknown,
}

/// A time in which a link carried nothing, or the gateway did not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outage {
    /// The peer's name; `None`: the gateway itself was down, and all links with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Its beginning, by the gateway's wall clock: milliseconds since 1970, UTC.
    pub began_ms: u64,
    /// Its end; `None`: it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// What was the matter, as far as this end knows.
    pub cause: Cause,
    /// The same in words, where more is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Outage {
    /// How long it lasted, or lasts at `now_ms`.
    pub fn length_ms(&self, now_ms: u64) -> u64 {
        self.ended_ms.unwrap_or(now_ms).saturating_sub(self.began_ms)
    }

    /// Its cause in plain words, and what more is known of it.
    pub fn words(&self) -> String {
        match self.why.as_str() {
            "" => self.cause.words().to_owned(),
            why => format!("{} ({why})", self.cause.words()),
        }
    }
}

/// Why a link carries nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Nothing is received.
    Silent,
    /// The peer is heard, and confirms nothing of what is sent.
    TransmitDead,
    /// The peer is heard, and sends no reports.
    NoReports,
    /// The peer ended the session in order, as when it is stopped.
    Closed,
    /// The peer began anew without having ended its session: it crashed, say.
    Restarted,
    /// Handshakes come to nothing.
    NoSession,
    /// The keys were worn out before a handshake succeeded.
    KeysErased,
    /// The peer was taken out of the file.
    Removed,
    /// This gateway was stopped.
    GatewayStopped,
    /// This gateway was killed, crashed, or lost its power. It was alive at the beginning that
    /// is told, and for up to a minute after it.
    GatewayKilled,
    /// One that this program does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Cause {
    /// The cause in plain words.
    pub fn words(self) -> &'static str {
        match self {
            Cause::Silent => "nothing received",
            Cause::TransmitDead => "transmit dead: the peer is heard but does not hear",
            Cause::NoReports => "the peer is heard and sends no reports",
            Cause::Closed => "the peer ended the session",
            Cause::Restarted => "the peer began anew",
            Cause::NoSession => "no session: handshakes fail",
            Cause::KeysErased => "keys worn out before a handshake succeeded",
            Cause::Removed => "taken out of the file",
            Cause::GatewayStopped => "this gateway was stopped",
            Cause::GatewayKilled => "this gateway was killed, or crashed, or had no power",
            Cause::Unknown => "unknown",
        }
    }
}

/// One split connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flow {
    /// Names it while it lasts; later ones may have the same.
    pub id: String,
    /// The client's address, or `other` where it is not known.
    pub client: String,
    /// Where it leads: an address or a name, and a port; or `service NAME`.
    pub server: String,
    /// Its class's name.
    pub class: String,
    /// Its client is on this side of the link.
    pub from_here: bool,
    /// Content that the host here has sent.
    pub sent_bytes: u64,
    /// Content that the host here was given.
    pub received_bytes: u64,
    /// Since it began.
    pub for_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(peer: Option<&str>, event: Event) -> Notice {
        Notice { at_ms: 1_790_000_000_000, peer: peer.map(str::to_owned), event }
    }

    #[test]
    fn a_line_has_its_time_its_peer_its_name_and_its_fields_side_by_side() {
        let up = Event::LinkUp {
            address: Some("192.0.2.2:4500".to_owned()),
            cipher: "AES-256-GCM".to_owned(),
            rtt_us: 600_000,
            anew: false,
        };
        let text = r#"{"at_ms":1790000000000,"peer":"ship","event":"link_up","address":"192.0.2.2:4500","cipher":"AES-256-GCM","rtt_us":600000,"anew":false}"#;
        assert_eq!(serde_json::to_string(&notice(Some("ship"), up.clone())).unwrap(), text);
        assert_eq!(serde_json::from_str::<Notice>(text).unwrap(), notice(Some("ship"), up));
    }

    #[test]
    fn every_event_reads_as_it_was_written() {
        let outage = Outage {
            peer: Some("ship".to_owned()),
            began_ms: 5,
            ended_ms: Some(9),
            cause: Cause::TransmitDead,
            why: String::new(),
        };
        let flow = Flow { id: "0.7".to_owned(), sent_bytes: 7, from_here: true, ..Flow::default() };
        let snapshot =
            Event::Snapshot { version: VERSION, status: Box::default(), outages: Vec::new() };
        for event in [
            snapshot,
            Event::LinkDown { cause: Cause::Closed },
            Event::LinkMoved { address: "[::1]:1".to_owned() },
            Event::LinkSilent { direction: Way::Receive, for_ms: 1 },
            Event::LinkBack,
            Event::Path { path: "lte".to_owned(), cause: PathCause::Silent },
            Event::LinkFailing { failing: Box::default() },
            Event::Line { line: String::new(), state: "down".into(), cause: "idle".into() },
            Event::OutageBegan { outage: Outage { ended_ms: None, ..outage.clone() } },
            Event::OutageEnded { outage },
            Event::Rate { current_bps: 1, limit_bps: 2, capacity_bps: 3 },
            Event::Rekey { state: RekeyState::Overdue },
            Event::FlowOpened { flow: flow.clone() },
            Event::FlowClosed { flow },
            Event::Usage { day: "2026-11-24".to_owned(), hosts: vec![], total: Box::default() },
            Event::Missed { events: 3 },
            Event::Dropped { reason: "it does not read".to_owned() },
        ] {
            let written = notice(None, event);
            let text = serde_json::to_string(&written).unwrap();
            assert_eq!(serde_json::from_str::<Notice>(&text).unwrap(), written, "{text}");
        }
    }

    /// CT-1.
    #[test]
    fn what_a_newer_gateway_tells_is_taken_and_not_misunderstood() {
        let text = r#"{"at_ms":1,"event":"path_up","path":3,"carrier":{"kind":"lte"}}"#;
        assert_eq!(serde_json::from_str::<Notice>(text).unwrap().event, Event::Unknown);
        let text = r#"{"at_ms":1,"event":"path","path":"lte","cause":"eclipse"}"#;
        let path = Event::Path { path: "lte".to_owned(), cause: PathCause::Unknown };
        assert_eq!(serde_json::from_str::<Notice>(text).unwrap().event, path);
        let text = r#"{"at_ms":1,"event":"link_back","more":[1,2]}"#;
        assert_eq!(serde_json::from_str::<Notice>(text).unwrap().event, Event::LinkBack);
        let text = r#"{"cause":"eclipse","began_ms":4}"#;
        let outage: Outage = serde_json::from_str(text).unwrap();
        assert_eq!((outage.cause, outage.length_ms(10)), (Cause::Unknown, 6));
    }
}
