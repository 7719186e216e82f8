//! What becomes of the links, and where the peers are.

use std::net::SocketAddr;

use link::PeerId;
use link::endpoint::{LinkEvent, Rekey};
use link::keys::PublicKey;
use link::session::PathHealth;
use relay::{Caller, NotPassed, ResetReason, Target};
use units::{BitRate, Duration, Instant};

use super::Shard;
use crate::human::lasting;
use crate::up::disagreements;
use crate::up::modem_rate;
use crate::up::names::Purpose;
use crate::up::peer_table::KnownPeer;
use crate::up::peers;
use crate::up::turns::Turns;

/// A name that did not resolve is asked again after this.
const NAME_RETRY: Duration = Duration::from_secs(10);
/// So is one whose address does not answer.
const NAME_AGE: Duration = Duration::from_secs(60);
/// So long the first time at each of several addresses: three handshakes.
const NAME_TURN: Duration = Duration::from_secs(15);
/// Addresses of a server's name that are tried.
const TRIED: usize = 4;

impl Shard {
    /// Tells of streams that were reset because what their peer sent cannot be undone.
    pub(super) fn tell_bad_streams(&mut self, now: Instant) {
        let Some(bad) = self.relay.poll_bad_stream(now) else { return };
        let name = self.known(bad.peer).map(|p| p.config.name.clone()).unwrap_or_default();
        let client = bad.host.map_or_else(|| "unknown".to_owned(), |host| host.to_string());
        crate::log!(
            Warn,
            "a stream was reset: what came of it cannot be undone",
            peer = name,
            client = client,
            port = bad.port,
            why = bad.why,
            others = bad.others
        );
    }

    /// Tells of packets of peers that did not pass, and what would let them.
    pub(super) fn tell_refused_packets(&mut self, now: Instant) {
        let Some(refused) = self.relay.poll_refused_packet(now) else { return };
        let why = match refused.why {
            NotPassed::Foreign => {
                "a peer's packet was dropped: its source is not in the peer's `routes` here"
            }
            NotPassed::Denied => {
                "a peer's packet was refused: it answers nothing that began here, and `allow` does \
                 not list where it goes, or `deny` does"
            }
        };
        let name = self.known(refused.peer).map(|p| p.config.name.clone()).unwrap_or_default();
        crate::log!(
            Warn,
            why,
            peer = name,
            from = refused.from,
            to = refused.to,
            protocol = refused.protocol,
            others = refused.others
        );
    }

    /// Tells of connections that peers asked for and did not get, and what would let them.
    pub(super) fn tell_refused_connections(&mut self, now: Instant) {
        let Some(refused) = self.relay.poll_refused_connection(now) else { return };
        let name = self.known(refused.peer).map(|p| p.config.name.clone()).unwrap_or_default();
        crate::log!(
            Warn,
            "a peer's connection was refused: its `allow` here does not list where it goes, or \
             `deny` does",
            peer = name,
            from = refused.client.map_or_else(|| "unknown".to_owned(), |c| c.to_string()),
            to = match refused.to {
                Target::Address(to) => to.to_string(),
                Target::Name(name, port) => format!("{name}:{port}"),
                Target::Service(name, _) => format!("the service {name}"),
            },
            others = refused.others
        );
    }

    /// Tells what of the peer's file and ours cannot both be right, once until it changes.
    fn tell_disagreements(&mut self, id: PeerId) {
        let Some(session) = self.relay.endpoint.session(id) else { return };
        let found = session.disagreements();
        let Some(peer) = self.known(id) else { return };
        if std::mem::replace(&mut peer.told, found) != found {
            for sentence in disagreements::sentences(&found) {
                crate::log!(Warn, sentence, peer = peer.config.name);
            }
        }
    }

    /// Tells that sessions with a peer are begun from two places in turn.
    fn tell_twins(&mut self, now: Instant, id: PeerId) {
        let paths = self.relay.endpoint.paths(now, id);
        let first = paths.iter().find(|path| path.id.is_first());
        let Some(from) = first.and_then(|path| path.remote?.addr) else { return };
        let Some(peer) = self.known(id) else { return };
        if peer.twins.on_session(now, from)
            && let Some([one, other]) = peer.twins.seen(now)
        {
            crate::log!(
                Warn,
                "two nodes seem to use the key of this peer: each ends the other's session",
                peer = peer.config.name,
                one = one,
                other = other,
                mend = "give each node a private key of its own, and a [[peer]] here"
            );
        }
    }

    pub(super) fn on_link(&mut self, now: Instant, id: PeerId, event: LinkEvent) {
        let key = match self.known(id) {
            Some(peer) => peer.config.public_key,
            None => return,
        };
        self.tell_link(now, id, event);
        let name = self.known(id).map(|p| p.config.name.clone()).unwrap_or_default();
        if let LinkEvent::NothingReceived(since)
        | LinkEvent::TransmitDead(since)
        | LinkEvent::NoAcks(since) = event
            && let Some(peer) = self.known(id)
        {
            peer.silent_since.get_or_insert(since);
        }
        self.look_at_links(now, [id]);
        if let LinkEvent::Moved(_, to) = event {
            self.follow_caller(now, id, to);
        }
        let note = self.notes.entry(key).or_default();
        // To be elsewhere, or to fail again, is not to answer again.
        let is_other = matches!(
            event,
            LinkEvent::Moved(..)
                | LinkEvent::Using(..)
                | LinkEvent::Failing(_)
                | LinkEvent::OverItsPart
                | LinkEvent::Rekey(_)
        );
        if !is_other {
            note.event = Some((now, event));
        }
        match event {
            LinkEvent::Up { resumed: false, cipher, rtt } => {
                let rtt = lasting(rtt);
                crate::log!(Info, "link up", peer = name, cipher = cipher.name(), rtt = rtt);
                note.address = self.relay.endpoint.peer_endpoint(id).or(note.address);
                if let Some(peer) = self.known(id) {
                    peer.turns = Turns::default();
                }
                self.tell_disagreements(id);
                self.tell_twins(now, id);
            }
            LinkEvent::Up { .. } => {
                crate::log!(Debug, "new keys", peer = name);
                self.tell_disagreements(id);
            }
            LinkEvent::Moved(path, to) => {
                crate::log!(
                    Info,
                    "the peer is at a new address",
                    peer = name,
                    address = to,
                    path = path
                );
                // The next start begins with the first path.
                note.address = to.addr.filter(|_| path.is_first()).or(note.address);
            }
            LinkEvent::Using(path, why) => {
                let told = self.relay.endpoint.path_name(id, path);
                let because = self.cause_of(id, path, why).why();
                let path = self.known(id).map(|p| super::paths::name_of(p, path, told));
                crate::log!(
                    Info,
                    "everything goes by another path",
                    peer = name,
                    path = path.unwrap_or_default(),
                    because = because
                );
            }
            LinkEvent::NothingReceived(since) => {
                crate::log!(
                    Warn,
                    "the peer does not answer; its streams wait",
                    peer = name,
                    nothing_received_for = lasting(now.since(since))
                );
                self.ask_for_endpoint(now, id);
            }
            LinkEvent::NoAcks(since) => crate::log!(
                Warn,
                "the peer is heard and sends no reports; its streams wait",
                peer = name,
                nothing_reported_for = lasting(now.since(since))
            ),
            LinkEvent::TransmitDead(since) => crate::log!(
                Warn,
                "transmit dead: the peer is heard but does not hear; its streams wait",
                peer = name,
                nothing_confirmed_for = lasting(now.since(since))
            ),
            LinkEvent::Back => {
                let silent = self.known(id).and_then(|p| p.silent_since.take());
                let outage = lasting(now.since(silent.unwrap_or(now)));
                // A carrier that is given up is silent no more, and nobody answers.
                if self.relay.endpoint.paths(now, id).iter().any(|p| p.is_active && p.is_up) {
                    crate::log!(Info, "the peer answers again", peer = name, outage = outage);
                }
            }
            LinkEvent::Failing(_) => {
                self.tell_failing(now, id);
                self.ask_for_endpoint(now, id);
            }
            LinkEvent::Rekey(rekey) => {
                let Some(told) = rekey_words(rekey) else { return };
                crate::log!(
                    Warn,
                    told,
                    peer = name,
                    mend = "look for a filter or somebody on the path who drops handshakes, \
                            packets of 168 bytes and more"
                );
            }
            LinkEvent::OverItsPart => crate::log!(
                Warn,
                "packets of this peer are dropped: they take more than its part of the processor \
                 while others wait",
                peer = name,
                dropped = self.relay.endpoint.peer_stats(id).over_its_part,
                mend = "look for a fault in its program, or ask who runs it; where it is honest, \
                        give it a node or a shard of its own (`shards`)"
            ),
            LinkEvent::Closed => {
                crate::log!(Info, "the peer ended the session", peer = name);
                // It may be moved meanwhile.
                self.ask_for_endpoint(now, id);
            }
        }
    }

    /// The peer's name may lead elsewhere now.
    fn ask_for_endpoint(&mut self, now: Instant, id: PeerId) {
        if let Some(peer) = self.known(id) {
            peer.resolve_at = peers::named_endpoint(&peer.config).map(|_| now);
        }
    }

    /// Modems have said what they carry.
    pub(in crate::up) fn on_modems(&mut self, now: Instant) {
        self.modems.waker.clear();
        while let Some(report) = self.modems.next() {
            let peer = self.peers.with_key(&report.peer);
            let Some(peer) = peer.map(|p| &p.config) else { continue };
            match report.rate.and_then(|rate| modem_rate::reported_rate(peer, rate.as_bps())) {
                Ok(rate) => {
                    crate::log!(Debug, "the modem's rate changed", peer = peer.name, rate = rate);
                    self.set_rate(now, &report.peer, rate);
                }
                Err(why) => {
                    let name = &peer.name;
                    crate::log!(Warn, "the modem's rate is not known", peer = name, why = why);
                }
            }
        }
    }

    /// A peer's modem carries so much now: its link has this rate, but at most the configured one.
    pub(in crate::up) fn set_rate(&mut self, now: Instant, peer: &PublicKey, rate: BitRate) {
        let Some(known) = self.peers.with_key_mut(peer) else { return };
        known.reported = Some(rate);
        if let Some(session) = self.relay.endpoint.session_mut(known.id) {
            session.set_send_rate(now, rate.min(known.config.link.send));
        }
    }

    pub(super) fn resolve_endpoints(&mut self, now: Instant) {
        if self.peers.due().is_none_or(|at| at > now) {
            return;
        }
        for key in self.peers.due_by(now) {
            let Some(peer) = self.peers.with_key_mut(&key) else { continue };
            let id = peer.id;
            let named = peers::named_endpoint(&peer.config);
            // Asked again until there is a session.
            peer.resolve_at = named.map(|_| now + NAME_RETRY);
            if let Some((name, port)) = named {
                self.names.ask(id, Purpose::Endpoint(key), name, port);
            }
        }
    }

    pub(super) fn on_names(&mut self, now: Instant) {
        self.names.waker.clear();
        while let Some(answer) = self.names.next() {
            match answer.purpose {
                Purpose::Endpoint(key) => self.on_endpoint(now, &key, &answer.addresses),
                Purpose::Addresses(of) => self.tell_addresses(now, of, &answer.addresses),
                // Its client has gone meanwhile.
                Purpose::Server(caller, _) if self.relay.caller_peer(caller).is_none() => {}
                Purpose::Server(caller, source) => {
                    let fits = |to: &SocketAddr| source.is_none_or(|s| s.is_ipv4() == to.is_ipv4());
                    let fitting = answer.addresses.iter().copied().filter(fits);
                    let permitted = fitting.filter(|a| self.relay.permits(caller, a.ip()));
                    let permitted: Vec<SocketAddr> = permitted.take(TRIED).collect();
                    let outcome = match permitted.first() {
                        Some(to) if self.relay.leads_to(now, caller, to.ip()) => match caller {
                            Caller::Flow(flow) => {
                                self.connect_to_one_of(now, flow, &permitted, source)
                            }
                            Caller::Service(id) => self.dial(id, *to, source),
                        },
                        Some(_) => Err(ResetReason::Exhausted),
                        None if answer.addresses.is_empty() => Err(ResetReason::NoSuchName),
                        None => {
                            let to = answer.addresses[0];
                            self.relay.on_denied(caller, source, Target::Address(to));
                            Err(ResetReason::Denied)
                        }
                    };
                    match (outcome, caller) {
                        (Ok(()), _) => {}
                        (Err(reason), Caller::Flow(flow)) => {
                            self.relay.connect_failed(now, flow, reason);
                        }
                        (Err(reason), Caller::Service(id)) => self.refuse_dial(now, id, reason),
                    }
                }
            }
        }
    }

    /// A peer's endpoint is a name, which has these addresses.
    fn on_endpoint(&mut self, now: Instant, key: &PublicKey, addresses: &[SocketAddr]) {
        let listen = self.config.node.listen;
        let fitting = addresses.iter().copied().filter(|to| reaches(listen, *to));
        let fitting: Vec<SocketAddr> = fitting.collect();
        let Some(peer) = self.peers.with_key_mut(key) else { return };
        let (id, name) = (peer.id, peer.config.name.clone());
        let endpoint = &self.relay.endpoint;
        let (has_keys, at) = (endpoint.is_established(id), endpoint.peer_endpoint(id));
        // Where it answers from counts for more than a name.
        if has_keys && endpoint.health(id) == PathHealth::Alive {
            (peer.resolve_at, peer.turns) = (None, Turns::default());
            return;
        }
        // One that nobody calls is asked for again when somebody does.
        let calls = endpoint.is_calling(id) || peer.config.keepalive.is_some();
        let is_wanted = has_keys || calls || at.is_none();
        let wait = match fitting.len() {
            0 => NAME_RETRY,
            2.. if !peer.turns.are_over() => NAME_TURN,
            _ => NAME_AGE,
        };
        peer.resolve_at = is_wanted.then(|| now + wait);
        match peer.turns.next(&fitting, at) {
            Some(address) => {
                self.relay.endpoint.set_endpoint(now, id, address);
                crate::log!(Debug, "the endpoint's name was resolved", peer = name);
            }
            None if addresses.is_empty() => {
                crate::log!(Warn, "the endpoint's name has no address", peer = name);
            }
            None => crate::log!(
                Warn,
                "the endpoint's name has no address of the family of `listen`",
                peer = name,
                listen = listen,
                mend = "listen = \"[::]:4500\" reaches both"
            ),
        }
    }

    fn known(&mut self, id: PeerId) -> Option<&mut KnownPeer> {
        self.peers.with_id_mut(id)
    }
}

/// Can a socket that listens there send to this address? One of `[::]` sends to both families.
fn reaches(listen: SocketAddr, to: SocketAddr) -> bool {
    match listen.is_ipv4() {
        true => to.ip().to_canonical().is_ipv4(),
        false => to.is_ipv6() || listen.ip().is_unspecified(),
    }
}

/// What the log says of keys that are not replaced in time.
pub(super) fn rekey_words(rekey: Rekey) -> Option<&'static str> {
    match rekey {
        Rekey::InTime => None,
        Rekey::Overdue => Some(
            "rekey overdue: data passes and no handshake has succeeded for long; \
             soon the keys are erased and nothing passes any more",
        ),
        Rekey::Erased => {
            Some("the keys are worn out and erased; streams wait until a handshake succeeds")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_sends_to_its_own_family_and_that_of_everything_to_both() {
        let [v4, v6, mapped] = ["192.0.2.1:4500", "[2001:db8::1]:4500", "[::ffff:192.0.2.1]:4500"]
            .map(|a| a.parse().unwrap());
        for (listen, reached) in [
            ("0.0.0.0:4500", [true, false, true]),
            ("192.0.2.9:4500", [true, false, true]),
            ("[::]:4500", [true, true, true]),
            ("[2001:db8::9]:4500", [false, true, true]),
        ] {
            let listen = listen.parse().unwrap();
            assert_eq!([v4, v6, mapped].map(|to| reaches(listen, to)), reached, "{listen}");
        }
    }
}
