//! What the counters of drops mean: for `bentpipe status --explain`, and word for word in
//! docs/operators-guide.md, which a test compares.

/// Where a counter is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Under the node: packets that belong to no link, and what the node refuses.
    Node,
    /// Under a peer.
    Link,
}

/// A counter's name, where it stands, and what it counts.
pub type Entry = (&'static str, Place, &'static str);

/// Figures beside the counters, by the name that the text gives them.
pub const FIGURES: &[(&str, &str)] = &[
    (
        "LOSS",
        "packets whose content had to be sent again, of those that this node sent over the last minute in which the link was up, more on a quiet one; not what repair mended, and not what an outage swallowed; of the other direction the peer's status tells",
    ),
    (
        "unanswered or refused",
        "handshakes that were begun anew because nothing, or nothing usable, came back: a few at a first start, until the other end runs too, and one for every few seconds of an outage are no fault",
    ),
];

/// All of them, by name.
pub const DROPS: &[Entry] = &[
    (
        "between two sockets",
        Place::Node,
        "segments of a connection just being made that the kernel found no socket for; hosts send them again",
    ),
    (
        "block cut off",
        Place::Link,
        "a stream was reset: the peer ended it in the middle of a compressed block",
    ),
    (
        "block that does not decompress",
        Place::Link,
        "a stream was reset: a compressed block of the peer's is not what its head promises; look for faulty memory",
    ),
    (
        "block with a bad head",
        Place::Link,
        "a stream was reset: the head of a compressed block means nothing; the ends may run versions that do not fit",
    ),
    (
        "budget used up",
        Place::Node,
        "packets and connections of hosts whose month's budget (`host_budget`) is used up: refused as on a dead net",
    ),
    (
        "connection gave way",
        Place::Node,
        "connections that were reset while all places for connections with a peer were taken: their host had the most, and another with fewer asked for one; or whose hosts did not read while what is kept to decompress for them was needed for others",
    ),
    (
        "connection over budget",
        Place::Node,
        "connections that were reset because their host's budget for the month (`host_budget`) was used up, or because all went over to a carrier that costs",
    ),
    (
        "connection refused",
        Place::Link,
        "connections of the peer's clients beyond what `connects` allows in a second, to one destination, or without an answer, that waited for half a minute in vain: a scan or a flood, or `connects` is too small",
    ),
    (
        "contradicting repair",
        Place::Link,
        "REPAIR packets of the peer that do not agree with what arrived: its program is faulty, \
         or hostile; what was kept for repair is forgotten",
    ),
    (
        "datagram",
        Place::Link,
        "packets that are not split and found their queue full or could not be put together: the link was slower than what hosts sent",
    ),
    (
        "datagram denied",
        Place::Node,
        "packets of a peer to where its `allow` and `deny` do not let it begin, and that answer nothing that began here",
    ),
    (
        "datagram queue full",
        Place::Node,
        "packets of hosts here for which their link's queue had no room: they send more than it carries; each is in its link's `datagram`, too",
    ),
    (
        "decompression bomb",
        Place::Link,
        "a stream was reset: the peer sent a block that would grow more than a hundredfold",
    ),
    (
        "destination denied",
        Place::Node,
        "connections and names that a peer asked for and its `allow` does not list, or its `deny` does",
    ),
    (
        "family not taken there",
        Place::Node,
        "packets and connections of hosts here in an address family that the peer's `routes` lack: refused at once",
    ),
    (
        "flow forgotten",
        Place::Node,
        "exchanges of packets that are not split and were forgotten early, for want of room: answers to them are denied",
    ),
    ("foreign datagram", Place::Node, "packets of a peer whose source is not among its `routes`"),
    (
        "forged",
        Place::Node,
        "packets that do not authenticate: damaged or forged, or left over from a session that is gone",
    ),
    (
        "handshake refused",
        Place::Node,
        "initiations that crossed one of this node's, and a few others that do no harm",
    ),
    (
        "history beyond the offer",
        Place::Link,
        "a stream was reset: the peer referred to more of the past than this node keeps",
    ),
    (
        "item that means nothing",
        Place::Link,
        "a stream was reset: the peer referred to content in a way that means nothing",
    ),
    (
        "key worn out",
        Place::Node,
        "packets under a key that met too many forgeries: a new one is agreed at once",
    ),
    (
        "malformed",
        Place::Node,
        "packets in no form of the protocol: scanners, and programs that use the same port",
    ),
    (
        "message about chunks",
        Place::Link,
        "messages about chunks that mean nothing: the ends may run versions that do not fit",
    ),
    (
        "no cookie",
        Place::Node,
        "initiations without a cookie while many come, or too many of one peer: honest nodes try again with one",
    ),
    (
        "no place for a connection",
        Place::Node,
        "connections that were refused because all places with a peer were taken, and their host had no fewer than others: `memory` is too small, or hosts never close what they open",
    ),
    (
        "opening gave way",
        Place::Node,
        "SYNs that waited for the far side and gave way to others, or came faster than their host's part of the link: a scan or forged sources in a LAN; hosts send them again",
    ),
    (
        "over its part",
        Place::Link,
        "packets of the peer that were dropped unopened: packets waited for the processor, and it took more of that than its part; its program is faulty or hostile, or this machine is too slow for its peers",
    ),
    (
        "path down",
        Place::Node,
        "initiations that came by a path which was put down here: they are not answered",
    ),
    (
        "quic refused",
        Place::Node,
        "first packets of QUIC connections of hosts here, where the peer's file says `quic = \"refuse\"`: browsers use TCP then",
    ),
    (
        "repair too dear",
        Place::Link,
        "short REPAIR packets of the peer that would have taken more work than their bytes earn: \
         its program is faulty, or hostile",
    ),
    ("replayed", Place::Node, "packets that came before: networks repeat some, and attackers"),
    (
        "shard busy",
        Place::Node,
        "packets and initiations for which another shard had no room: this machine is too busy",
    ),
    (
        "source limit",
        Place::Node,
        "initiations of an address that sent more than its share under load",
    ),
    ("too old", Place::Node, "packets that came later than can be told from repeated ones"),
    (
        "unknown index",
        Place::Node,
        "packets of a session that this node does not know, as after its restart: their sender finds out by itself",
    ),
    (
        "unknown path",
        Place::Node,
        "packets of a path that this node does not know, as after its restart",
    ),
    (
        "unknown peer",
        Place::Node,
        "initiations of a node that is in no `[[peer]]`: its key is told in the log and as a stranger",
    ),
    ("unknown version", Place::Node, "initiations of another version of the protocol"),
    ("unroutable packet", Place::Node, "packets of hosts for which no peer has a route"),
    ("unsolicited", Place::Node, "answers that nobody asked for: late ones, or forged"),
    (
        "violation",
        Place::Link,
        "frames of the peer's that break the protocol: the ends may run versions that do not fit",
    ),
    (
        "wrong mac1",
        Place::Node,
        "initiations for another public key than this node's: a wrong `public_key` in a peer's file, or scanners",
    ),
];

/// What a counter means, if it is known: a newer gateway may have more of them.
pub fn meaning(name: &str) -> Option<&'static str> {
    DROPS.iter().find(|(known, ..)| *known == name).map(|(.., meaning)| *meaning)
}

/// All counters with their meanings, as text.
pub fn render() -> String {
    let width = DROPS.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let mut out = "What is behind \"dropped\". Most of it is harmless and repaired.\n".to_owned();
    for (place, title) in [(Place::Node, "of the node"), (Place::Link, "of a peer")] {
        out.push_str(&format!("\n{title}\n"));
        for (name, _, meaning) in DROPS.iter().filter(|(_, at, _)| *at == place) {
            out.push_str(&format!("  {name:<width$}  {meaning}\n"));
        }
    }
    out.push_str("\nOther figures\n");
    for (name, meaning) in FIGURES {
        out.push_str(&format!("  {name:<width$}  {meaning}\n"));
    }
    out
}

/// Every name and its meaning.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    DROPS.iter().map(|(name, _, meaning)| (*name, *meaning)).chain(FIGURES.iter().copied())
}

/// The rows of the table in the operator's guide.
pub fn rows() -> impl Iterator<Item = String> {
    DROPS.iter().map(|(name, place, meaning)| {
        let place = match place {
            Place::Node => "node",
            Place::Link => "peer",
        };
        format!("| {name} | {place} | {meaning} |")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_there_once() {
        assert!(DROPS.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn the_text_tells_every_counter_under_its_place() {
        let text = render();
        assert!(DROPS.iter().all(|(name, _, meaning)| {
            text.lines().any(|l| l.trim_start().starts_with(name) && l.ends_with(meaning))
        }));
        assert!(text.find("wrong mac1") < text.find("\nof a peer\n"));
        assert!(text.find("violation") > text.find("\nof a peer\n"));
        assert!(meaning("forged").is_some() && meaning("of another age").is_none());
    }
}
