//! The messages (spec/service.md, "Messages").

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use units::{IpPrefix, ParsePrefixError, embedded_v4, local_nat64_v4};

/// Addresses of a name that are told.
pub const MAX_ADDRESSES: usize = 64;

/// What a gateway says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The first message: what the gateway speaks, and the service's name in its file.
    Hello {
        /// [`crate::VERSION`].
        version: u32,
        /// The name.
        service: String,
    },
    /// A host's connection that a rule gives to the service. With its socket; the bytes are what
    /// was read of it.
    Accepted(Accepted),
    /// The peer's service of the same name opened a stream. With its socket, and its preface.
    Incoming(Incoming),
    /// A host's datagram that a rule gives to the service: the bytes.
    Datagram {
        /// The peer behind which the server is.
        peer: String,
        /// The host.
        client: SocketAddr,
        /// To where it was sent.
        server: SocketAddr,
    },
    /// The answer to [`Request::Open`]. With the stream's socket.
    Opened {
        /// Which request.
        request: u64,
        /// Names the stream.
        id: u64,
    },
    /// The answer to [`Request::Connect`]. With the connection's socket.
    Connected {
        /// Which request.
        request: u64,
        /// The gateway's end, or the client's where it keeps sources.
        local: SocketAddr,
        /// The server: of a name, the address that was taken.
        server: SocketAddr,
    },
    /// The answer to [`Request::Resolve`]: the addresses that the name has at this node.
    Resolved {
        /// Which request.
        request: u64,
        /// Some of them, [`MAX_ADDRESSES`] at most.
        addresses: Vec<IpAddr>,
    },
    /// The request came to nothing.
    Failed {
        /// Which request.
        request: u64,
        /// Why.
        reason: Reason,
    },
    /// A stream was reset by the other end or with the link; so is its socket, or in a moment.
    Reset {
        /// Which stream.
        id: u64,
        /// Why.
        reason: Reason,
    },
    /// What a link is now.
    Link(Link),
    /// Another service of this node says something that may help: the bytes. It is believed no more
    /// than a host.
    Hinted {
        /// That service.
        service: String,
        /// The peer that it is about.
        peer: String,
    },
    /// The gateway's file lets less be reached for a peer than before: connections to servers at
    /// these addresses that were made for it are to end.
    Narrowed {
        /// The peer.
        peer: String,
        /// The addresses.
        denied: Denied,
    },
    /// What the operator wants of the service, as he wrote it.
    Command {
        /// Any number that no open command has.
        request: u64,
        /// The words.
        words: Vec<String>,
    },
    /// Is it still there? To be answered with [`Request::Pong`].
    Ping,
    /// Take nothing new, finish what is open, and end.
    Stop,
    /// Of a later version: pass it over.
    #[serde(other)]
    Unknown,
}

/// A host's connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Names the connection.
    pub id: u64,
    /// The host.
    pub client: SocketAddr,
    /// Where it meant to connect to.
    pub server: SocketAddr,
    /// The peer behind which that is.
    pub peer: String,
    /// The class that the peer's rules give it.
    pub class: String,
    /// The code point of its SYN, 0 … 63.
    #[serde(default)]
    pub dscp: u8,
    /// The server's name, where a client of the node's proxy told no address: that of `server` is
    /// unspecified then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A stream of the peer's service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incoming {
    /// Names the stream.
    pub id: u64,
    /// The peer.
    pub peer: String,
    /// The host that it is for, if the peer's service said so and the host is the peer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<SocketAddr>,
}

/// What a link is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The peer.
    pub peer: String,
    /// Can it be used?
    pub state: LinkState,
    /// What may be sent, in bits per second.
    pub rate: u64,
    /// The round trip, in microseconds.
    pub rtt_us: u64,
    /// The peer has the service of this name, as far as is known.
    pub service: bool,
    /// What 1,000,000 bytes cost, in millionths of the tariff's currency; `None`: nothing, as far
    /// as this node's file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<u64>,
    /// Its minutes cost money, and so does the time that bytes take.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub billed_by_time: bool,
    /// QUIC towards this peer is refused: hosts are to take TCP.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuses_quic: bool,
    /// Streams over this link are not compressed: what is to be short a service packs itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncompressed: bool,
}

/// Whether a link can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// It carries both ways.
    Up,
    /// There is a session, and a direction that does not carry now.
    Silent,
    /// There is no session.
    Down,
    /// Of a later version.
    #[serde(other)]
    Unknown,
}

/// Addresses of servers that a peer may not reach any more, in blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<String>", try_from = "Vec<String>")]
pub struct Denied(pub Vec<IpPrefix>);

impl Denied {
    /// Is this address one of them, or does it lead to one, as that of a NAT64 does?
    pub fn holds(&self, addr: IpAddr) -> bool {
        let inner = match addr {
            IpAddr::V6(v6) => Some(embedded_v4(v6).chain(local_nat64_v4(v6)).map(IpAddr::from)),
            IpAddr::V4(_) => None,
        };
        let mut all = std::iter::once(addr).chain(inner.into_iter().flatten());
        all.any(|addr| self.0.iter().any(|block| block.contains(addr)))
    }
}

impl From<Denied> for Vec<String> {
    fn from(denied: Denied) -> Vec<String> {
        denied.0.iter().map(IpPrefix::to_string).collect()
    }
}

impl TryFrom<Vec<String>> for Denied {
    type Error = ParsePrefixError;

    fn try_from(blocks: Vec<String>) -> Result<Denied, ParsePrefixError> {
        Ok(Denied(blocks.iter().map(|block| block.parse()).collect::<Result<_, _>>()?))
    }
}

/// What a service says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Request {
    /// The first message, in answer to the gateway's.
    Hello {
        /// [`crate::VERSION`].
        version: u32,
        /// It takes datagrams, too.
        #[serde(default)]
        datagrams: bool,
        /// It has answers without the link: it takes what hosts want while that is down, too.
        #[serde(default)]
        offline: bool,
        /// It answers [`Event::Ping`].
        #[serde(default)]
        pings: bool,
        /// It takes clients of the node's proxy.
        #[serde(default)]
        proxied: bool,
    },
    /// The answer to [`Event::Ping`].
    Pong,
    /// A datagram to the client of one that was given, from its server: the bytes, 1,232 at most.
    Answer {
        /// As it was told.
        client: SocketAddr,
        /// As it was told.
        server: SocketAddr,
    },
    /// A datagram that the service does not want: the gateway carries it as ever.
    Onward {
        /// As it was told.
        client: SocketAddr,
        /// As it was told.
        server: SocketAddr,
    },
    /// A stream to the peer's service of the same name. The bytes are its preface.
    Open {
        /// Any number that no open request has.
        request: u64,
        /// The peer.
        peer: String,
        /// A class of the peer's; else what its rules say of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<String>,
        /// The host that it is for: a link divides what it has by hosts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<SocketAddr>,
    },
    /// A connection to a server, for a peer, within what the file permits it.
    Connect {
        /// Any number that no open request has.
        request: u64,
        /// The peer for whose hosts it is.
        peer: String,
        /// An address or a name, and a port.
        target: String,
        /// The host that it is for: what servers see where the file says `source = "keep"`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<SocketAddr>,
    },
    /// The addresses of a name, as this node's resolver tells them; nothing is connected.
    Resolve {
        /// Any number that no open request has.
        request: u64,
        /// The peer for whose hosts it is.
        peer: String,
        /// The name.
        name: String,
    },
    /// A connection to the client of one that was given, from its server's address, as protocols
    /// want it whose servers connect back. With the socket of the one that was given.
    Back {
        /// Any number that no open request has.
        request: u64,
        /// The client's port.
        port: u16,
    },
    /// A connection that the service does not want: the gateway splits it as a plain stream.
    /// With its socket; the bytes are what was read of it.
    Pass {
        /// As it was told.
        #[serde(default)]
        dscp: u8,
    },
    /// What waits at the service for a link. 0 bytes: nothing any more.
    Waiting {
        /// The peer.
        peer: String,
        /// The class.
        class: String,
        /// How much.
        bytes: u64,
        /// 0: it can wait for any link, … 255: it cannot wait.
        #[serde(default)]
        urgency: u8,
        /// How long the oldest of it has waited, in milliseconds.
        #[serde(default)]
        oldest_ms: u64,
    },
    /// Counters for `bentpipe status`, since the service's start.
    Stats {
        /// By name, 64 at most.
        counters: BTreeMap<String, u64>,
    },
    /// The answer to [`Event::Command`]: the bytes are JSON, or a sentence that says why not.
    Told {
        /// Which command.
        request: u64,
        /// Nothing came of it.
        #[serde(default)]
        failed: bool,
    },
    /// Something for another service of this node: the bytes. Lost where that does not run or has
    /// too much unread.
    Hint {
        /// That service.
        service: String,
        /// The peer that it is about.
        peer: String,
    },
    /// Give me nothing new: I finish what is open, and end.
    Stop,
    /// Of a later version: pass it over.
    #[serde(other)]
    Unknown,
}

impl Event {
    /// Does a socket come with it?
    pub fn has_socket(&self) -> bool {
        use Event::*;
        matches!(self, Accepted(_) | Incoming(_) | Opened { .. } | Connected { .. })
    }
}

impl Request {
    /// Does a socket come with it?
    pub fn has_socket(&self) -> bool {
        matches!(self, Request::Pass { .. } | Request::Back { .. })
    }
}

/// Why something came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum Reason {
    /// The other host, or the other service, reset it.
    HostReset,
    /// The server refused.
    Refused,
    /// No way leads there.
    Unreachable,
    /// No answer came in time.
    TimedOut,
    /// The file does not permit it.
    Denied,
    /// The name does not resolve.
    NoSuchName,
    /// No memory, descriptors or room are left for it.
    Exhausted,
    /// The peer restarted.
    PeerRestarted,
    /// One of the two ends.
    ShuttingDown,
    /// The protocol of the link was broken.
    Protocol,
    /// The peer has no such service, or it does not run.
    NoSuchService,
    /// The file has no such peer, or there is no session with it.
    NoSuchPeer,
    /// The request cannot be understood.
    Invalid,
    /// An ICMP "destination unreachable" with this code.
    Icmp(u8),
    /// An ICMPv6 "destination unreachable" with this code.
    Icmpv6(u8),
    /// Of a later version.
    Other(String),
}

impl Reason {
    /// Those without a code, and their names.
    pub const PLAIN: [(Reason, &'static str); 13] = [
        (Reason::HostReset, "host-reset"),
        (Reason::Refused, "refused"),
        (Reason::Unreachable, "unreachable"),
        (Reason::TimedOut, "timed-out"),
        (Reason::Denied, "denied"),
        (Reason::NoSuchName, "no-such-name"),
        (Reason::Exhausted, "exhausted"),
        (Reason::PeerRestarted, "peer-restarted"),
        (Reason::ShuttingDown, "shutting-down"),
        (Reason::Protocol, "protocol"),
        (Reason::NoSuchService, "no-such-service"),
        (Reason::NoSuchPeer, "no-such-peer"),
        (Reason::Invalid, "invalid"),
    ];
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Icmp(code) => write!(f, "icmp-{code}"),
            Reason::Icmpv6(code) => write!(f, "icmpv6-{code}"),
            Reason::Other(text) => f.write_str(text),
            plain => {
                let of = Reason::PLAIN.iter().find(|(reason, _)| reason == plain);
                f.write_str(of.map_or("", |(_, name)| name))
            }
        }
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> String {
        reason.to_string()
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Reason {
        let code = |prefix| text.strip_prefix(prefix).and_then(|n| n.parse::<u8>().ok());
        if let Some((reason, _)) = Reason::PLAIN.iter().find(|(_, name)| *name == text) {
            return reason.clone();
        }
        match (code("icmp-"), code("icmpv6-")) {
            (Some(code), _) => Reason::Icmp(code),
            (_, Some(code)) => Reason::Icmpv6(code),
            _ => Reason::Other(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_denied_with_the_ipv4_address_that_it_leads_to() {
        let text = r#"["10.2.128.0/17","2001:db8::/32"]"#;
        let denied: Denied = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&denied).unwrap(), text);
        let holds = |addr: &str| denied.holds(addr.parse().unwrap());
        for addr in ["10.2.128.1", "::ffff:10.2.128.1", "64:ff9b::10.2.128.1", "2001:db8::1"] {
            assert!(holds(addr), "{addr}");
        }
        for addr in ["10.2.1.1", "64:ff9b::10.2.1.1", "2001:db9::1"] {
            assert!(!holds(addr), "{addr}");
        }
        assert!(serde_json::from_str::<Denied>(r#"["10.2.128.1/17"]"#).is_err());
    }
}
