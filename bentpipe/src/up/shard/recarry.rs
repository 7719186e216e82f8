//! The file names other carriers of a peer than before: paths come, go and change while the session
//! goes on.

use std::borrow::Cow;
use std::sync::Arc;

use link::{PathId, PeerId, Remote};
use os::OsError;
use units::Instant;

use super::{MORE_UDP, Shard, UDP};
use crate::config::host::HostPort;
use crate::config::{Binding, Carrier, LinkSettings, Peer};
use crate::up::peers;

/// The peer's carriers; of one without such tables, the one that it is itself.
fn carriers_of(peer: &Peer) -> Cow<'_, [Carrier]> {
    if !peer.carriers.is_empty() {
        return Cow::Borrowed(&peer.carriers);
    }
    Cow::Owned(vec![Carrier {
        name: String::new(),
        endpoint: peer.endpoint.clone(),
        binding: Binding::default(),
        link: peer.link.clone(),
        priority: 0,
        probe: None,
    }])
}

/// Which of the carriers before each of those after is, by their places: one of the same name, else
/// one that goes the same way. One whose path would have to be told something else than rates is
/// another.
fn pairs(before: &[Carrier], after: &[Carrier]) -> Vec<Option<usize>> {
    let mut left: Vec<usize> = (0..before.len()).collect();
    let mut pairs = vec![None; after.len()];
    let by_name = |a: &Carrier, b: &Carrier| a.name == b.name;
    let by_way = |a: &Carrier, b: &Carrier| a.binding == b.binding && a.endpoint == b.endpoint;
    for is in [by_name, by_way] {
        for (pair, new) in pairs.iter_mut().zip(after).filter(|(pair, _)| pair.is_none()) {
            let same =
                |at: &usize| is(&before[*at], new) && before[*at].link.is_one_path(&new.link);
            *pair = left.iter().position(same).map(|n| left.remove(n));
        }
    }
    pairs
}

/// The link of the carrier whose path sessions begin with; `None` where that carrier is gone.
pub(super) fn first_link<'a>(peer: &'a Peer, paths: &[Option<PathId>]) -> Option<&'a LinkSettings> {
    if peer.carriers.is_empty() {
        return Some(&peer.link);
    }
    let at = paths.iter().position(|path| *path == Some(PathId::FIRST))?;
    peer.carriers.get(at).map(|carrier| &carrier.link)
}

impl Shard {
    /// Where a carrier's packets leave, and where they go.
    pub(super) fn place_of(&self, way: &Carrier) -> Option<Remote> {
        let carrier = self.carrier.id_of(&way.binding)?;
        let addr = way.endpoint.as_ref().and_then(HostPort::ip)?;
        Some(Remote { carrier, addr: Some(addr) })
    }

    /// Opens the sockets that the peer's carriers need and that are not there yet.
    fn bind_more(&mut self, peer: &Arc<Peer>) -> Result<(), OsError> {
        let known = self.carrier.sockets();
        let bound = self.carrier.bind(std::slice::from_ref(peer));
        self.carrier.watch_from(known, &self.poller, UDP, MORE_UDP)?;
        bound?;
        Ok(())
    }

    /// The peer has other carriers from now on, and had these paths. Answers the path of each,
    /// and what could not be done.
    ///
    /// # Errors
    /// If the system refuses a socket. Then everything is as it was.
    pub(super) fn change_carriers(
        &mut self,
        now: Instant,
        id: PeerId,
        (old, paths): (&Peer, &[Option<PathId>]),
        new: &Arc<Peer>,
    ) -> Result<(Vec<Option<PathId>>, Option<String>), OsError> {
        if old.spread != new.spread {
            self.relay.endpoint.set_spread(now, id, new.spread);
        }
        if old.carriers == new.carriers {
            return Ok((paths.to_vec(), None));
        }
        self.bind_more(new)?;
        let (before, after) = (carriers_of(old), carriers_of(new));
        let pairs = pairs(&before, &after);
        let path_at = |at: usize| match old.carriers.is_empty() {
            true => Some(PathId::FIRST),
            false => paths.get(at).copied().flatten(),
        };
        let mut opened = Vec::new();
        for (way, pair) in after.iter().zip(&pairs) {
            let before = pair.and_then(|at| Some((&before[at], path_at(at)?)));
            opened.push(match before {
                Some((was, path)) => Some(self.change_path(now, (id, path), was, way)),
                None => self.open_path(now, id, new, (way, self.place_of(way))),
            });
        }
        // First what comes, so that there is a way for what is under way.
        let stays = |at: &usize| pairs.contains(&Some(*at));
        for path in (0..before.len()).filter(|at| !stays(at)).filter_map(path_at) {
            self.relay.endpoint.remove_path(now, id, path);
        }
        self.follow_links_of(now, (id, new, &opened), None);
        let full = |(way, path): (&Carrier, &Option<PathId>)| {
            (path.is_none() && self.place_of(way).is_some()).then(|| {
                format!(
                    "carrier \"{}\" of peer \"{}\" is not used before the next start: its session has had as many paths as it may",
                    way.name, new.name
                )
            })
        };
        let trouble = after.iter().zip(&opened).find_map(full);
        Ok((opened, trouble))
    }

    /// A carrier that stays, with other settings.
    fn change_path(
        &mut self,
        now: Instant,
        (id, path): (PeerId, PathId),
        was: &Carrier,
        is: &Carrier,
    ) -> PathId {
        let (from, to) = (self.place_of(was), self.place_of(is));
        let endpoint = &mut self.relay.endpoint;
        if let Some(to) = to.filter(|to| from != Some(*to)) {
            endpoint.set_path_endpoint(now, id, path, to);
        }
        if (was.priority, was.probe) != (is.priority, is.probe) {
            endpoint.set_path_habits(now, id, path, (is.priority, is.probe));
        }
        if was.name != is.name {
            endpoint.name_path(now, id, path, peers::carrier_name(is));
        }
        let rates = |way: &Carrier| [way.link.send, way.link.receive];
        if !path.is_first() && (rates(was), was.link.rate) != (rates(is), is.link.rate) {
            endpoint.set_path_rates(now, id, path, is.link.rate, rates(is));
        }
        path
    }

    /// A path over a carrier of the peer, if it leads somewhere. A node that is called learns of
    /// paths from whoever calls.
    pub(super) fn open_path(
        &mut self,
        now: Instant,
        id: PeerId,
        peer: &Peer,
        (way, place): (&Carrier, Option<Remote>),
    ) -> Option<PathId> {
        let to = place?;
        let config = peers::path_config(peer, way);
        self.relay.endpoint.add_path(now, id, config, to.carrier, Some(to))
    }
}

#[cfg(test)]
mod tests {
    use units::BitRate;

    use super::*;

    fn carriers(names: &str) -> Vec<Carrier> {
        let link = "link = { send = \"2Mbit\", receive = \"20Mbit\", delay = \"300ms\" }\n";
        let [own, theirs] = [7, 9].map(|n| link::keys::PrivateKey::from_bytes([n; 32]));
        let mut text = format!(
            "[node]\nprivate_key = \"{}\"\n[[peer]]\npublic_key = \"{}\"\n{link}",
            own.to_base64().as_str(),
            theirs.public()
        );
        for name in names.split_whitespace() {
            let source = format!("192.0.2.{}", name.len());
            text += &format!("[[peer.carrier]]\nname = \"{name}\"\nsource = \"{source}\"\n");
        }
        let config = crate::config::Config::parse(&text, std::path::Path::new("/"));
        config.unwrap_or_else(|_| panic!("{text}")).peers[0].carriers.clone()
    }

    #[test]
    fn a_carrier_is_the_same_by_its_name_or_its_way_unless_its_link_is_another() {
        let before = carriers("vsat l-band lt");
        let is = |after: &[Carrier]| pairs(&before, after);
        assert_eq!(is(&carriers("lt vsat")), [Some(2), Some(0)]);
        assert_eq!(is(&carriers("starlink vsat")), [None, Some(0)], "one more and two less");
        assert_eq!(is(&carriers("geo1 lt")), [Some(0), Some(2)], "only its name is another");
        let mut slower = before.clone();
        slower[0].link.send = BitRate::from_mbps(1);
        assert_eq!(is(&slower)[0], Some(0), "rates can be told");
        slower[0].link.mtu = 1_000;
        assert_eq!(is(&slower), [None, Some(1), Some(2)], "a packet size cannot");
    }
}
