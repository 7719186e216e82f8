//! Why a link has no session: what a node knows of handshakes that come to nothing, and the
//! words for it. The log, `bentpipe status` and `bentpipe doctor` say the same.

use serde::{Deserialize, Serialize};

use units::human::{grouped, span};

/// What is known of why handshakes fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Nothing comes back.
    #[default]
    Silence,
    /// The system does not send there: `said` says why.
    NotSent,
    /// A router or the host there has said why packets do not arrive: `said`, by `said_by`.
    NotArrived,
    /// The peer initiates and takes none of the answers.
    AnswersNotTaken,
    /// Its answers do not authenticate.
    AnswersForged,
    /// It has no cipher in common with this node.
    NoCommonCipher,
    /// At its address there is a node with another key, `public_key`.
    OtherNode,
    /// From its address come initiations for another public key than this node's.
    OtherKey,
    /// From its address come initiations of another version of the protocol.
    OtherVersion,
}

/// Handshakes with a peer have failed for at least ten seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failing {
    /// Why, as far as is known.
    pub reason: Reason,
    /// For how long.
    pub for_ms: u64,
    /// Initiations that this node sent meanwhile.
    pub initiations: u64,
    /// Initiations of the peer that it answered meanwhile.
    pub answered: u64,
    /// Where initiations go to, or else come from.
    pub address: Option<String>,
    /// What ICMP or the system said, and who said it.
    pub said: Option<String>,
    /// See `said`.
    pub said_by: Option<String>,
    /// The key of the node that is there.
    pub public_key: Option<String>,
    /// The file has no `endpoint`: where the peer is, only its calls have told.
    pub only_called: bool,
}

/// A node that called lately and is no peer, or calls somebody else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stranger {
    /// [`Reason::OtherNode`], [`Reason::OtherKey`] or [`Reason::OtherVersion`].
    pub reason: Reason,
    /// Its key, where it is known.
    pub public_key: Option<String>,
    /// Where it called from last. Anybody can forge it, except beside a key.
    pub address: String,
    /// How often.
    pub count: u64,
    /// Since the last time.
    pub ago_ms: u64,
}

impl Failing {
    /// What is known, for a node with this public key: a sentence without its end.
    pub fn finding(&self) -> String {
        let at = self.address.as_deref().unwrap_or("an unknown address");
        let asked = format!(
            "{} initiation{} in {}",
            grouped(self.initiations),
            if self.initiations == 1 { "" } else { "s" },
            span(self.for_ms)
        );
        let said = self.said.as_deref().unwrap_or("something else");
        let key = self.public_key.as_deref().unwrap_or("unknown");
        match self.reason {
            Reason::Silence => format!("nothing came back from {at} to {asked}"),
            Reason::NotSent => format!("this host cannot send to {at}: {said} ({asked})"),
            Reason::NotArrived => format!(
                "nothing came back from {at} to {asked}, and {} says: {said}",
                self.said_by.as_deref().unwrap_or("a router")
            ),
            Reason::AnswersNotTaken => format!(
                "the peer calls from {at} and has taken none of {} answers in {}",
                grouped(self.answered),
                span(self.for_ms)
            ),
            Reason::AnswersForged => {
                format!("answers come from {at}, and do not authenticate ({asked})")
            }
            Reason::NoCommonCipher => "the peer offers no cipher that this node has".to_owned(),
            Reason::OtherNode => format!(
                "at {at} there is another node than the file says: it calls with public key {key}"
            ),
            Reason::OtherKey => {
                format!("the node at {at} calls, and for another public key than this node's")
            }
            Reason::OtherVersion => {
                format!("the node at {at} speaks another version of the link protocol")
            }
        }
    }

    /// What to do about it. `own` is this node's public key.
    pub fn mend(&self, own: &str) -> String {
        match self.reason {
            Reason::Silence => format!(
                "see that a gateway runs there, that its address and UDP port are these and no \
                 filter drops them, that its file has this node's public key, {own}, and that \
                 the `public_key` of the peer here is the one that `bentpipe check FILE` shows \
                 there; a file with a wrong key makes the log there say so"
            ),
            Reason::NotSent => "`ip route get ADDRESS` shows what this host would do".to_owned(),
            Reason::NotArrived if self.only_called => {
                "start the gateway there, which calls this one, wherever it is; or correct the \
                 filter or route that says so"
                    .to_owned()
            }
            Reason::NotArrived => "start the gateway there, or correct `endpoint` here, or the \
                                   filter or route that says so"
                .to_owned(),
            Reason::AnswersNotTaken => {
                "`preshared_key` must be the same at both ends, or at neither; if it is, answers \
                 do not reach that address"
                    .to_owned()
            }
            Reason::AnswersForged => {
                "`preshared_key` must be the same at both ends, or at neither".to_owned()
            }
            Reason::NoCommonCipher | Reason::OtherVersion => {
                "run the same version of bentpipe at both ends".to_owned()
            }
            Reason::OtherNode => {
                "if it is this peer, that is its `public_key`; if not, correct `endpoint`"
                    .to_owned()
            }
            Reason::OtherKey => format!("in the file there, this node's `public_key` is {own}"),
        }
    }
}

impl Stranger {
    /// What it does, without its counts.
    pub fn finding(&self) -> String {
        let key = self.public_key.as_deref().unwrap_or("unknown");
        match self.reason {
            Reason::OtherNode => {
                format!("a node that the file does not name calls: public key {key}")
            }
            Reason::OtherVersion => {
                "somebody calls with another version of the link protocol".to_owned()
            }
            _ => "somebody calls for another public key than this node's".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(reason: Reason) -> Failing {
        Failing {
            reason,
            for_ms: 23_400,
            initiations: 14,
            answered: 7,
            address: Some("192.0.2.2:4500".into()),
            said: Some("port unreachable".into()),
            said_by: Some("192.0.2.2".into()),
            public_key: Some("KEY=".into()),
            only_called: false,
        }
    }

    #[test]
    fn a_peer_whose_address_only_its_calls_told_is_not_looked_for_in_the_file() {
        let called = Failing { only_called: true, ..failing(Reason::NotArrived) };
        assert!(!called.mend("OWN=").contains("endpoint"), "{}", called.mend("OWN="));
    }

    #[test]
    fn silence_may_be_for_a_wrong_key_at_either_end() {
        let mend = failing(Reason::Silence).mend("OWN=");
        assert!(mend.contains("the `public_key` of the peer here"), "{mend}");
    }

    #[test]
    fn each_reason_says_what_was_seen_and_what_to_look_at() {
        for (reason, finding, mend) in [
            (
                Reason::Silence,
                "nothing came back from 192.0.2.2:4500 to 14 initiations in 23s",
                "this node's public key, OWN=",
            ),
            (
                Reason::NotArrived,
                "nothing came back from 192.0.2.2:4500 to 14 initiations in 23s, and 192.0.2.2 \
                 says: port unreachable",
                "correct `endpoint`",
            ),
            (
                Reason::NotSent,
                "this host cannot send to 192.0.2.2:4500: port unreachable",
                "ip route get",
            ),
            (Reason::AnswersForged, "do not authenticate", "`preshared_key` must be the same"),
            (Reason::AnswersNotTaken, "taken none of 7 answers in 23s", "`preshared_key` must"),
            (Reason::OtherNode, "it calls with public key KEY=", "that is its `public_key`"),
            (Reason::OtherKey, "for another public key", "this node's `public_key` is OWN="),
            (Reason::OtherVersion, "another version", "the same version"),
            (Reason::NoCommonCipher, "no cipher", "the same version"),
        ] {
            let failing = failing(reason);
            assert!(failing.finding().contains(finding), "{}", failing.finding());
            assert!(failing.mend("OWN=").contains(mend), "{}", failing.mend("OWN="));
        }
        let one = Failing { initiations: 1, ..failing(Reason::Silence) };
        assert!(one.finding().contains("1 initiation in"), "{}", one.finding());
    }

    #[test]
    fn a_stranger_is_told_with_its_key_where_it_is_known() {
        let stranger = Stranger {
            reason: Reason::OtherNode,
            public_key: Some("KEY=".into()),
            ..Stranger::default()
        };
        assert!(stranger.finding().ends_with("public key KEY="));
        let other = Stranger { reason: Reason::OtherKey, ..Stranger::default() };
        assert!(other.finding().contains("another public key"));
    }
}
