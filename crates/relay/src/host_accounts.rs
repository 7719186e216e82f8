//! What each host has sent and received, of all traffic: split connections and packets.
//!
//! What is new is booked apart, so that who follows it (the usage of a day) looks only at hosts
//! that had something since, and never at all of them.
//!
//! A host has an account under its peer and its address. An account takes a place, and who can
//! make up addresses (a scan, forged sources) could take all memory: so each peer has a number
//! of places, and when twice as many are taken those with the least bytes are told together.
//! That is done for many at once, so that a packet of a new host costs no more than others.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::AddAssign;

use link::PeerId;

/// Accounts of one peer after those with the least bytes were taken together, and of all peers.
const MOST: usize = 1024;
const MOST_OF_ALL: usize = 65_536;
/// However many peers there are.
const LEAST: usize = 64;

/// Bytes of one kind of traffic, as the hosts see them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// From this node to the peer.
    pub sent: u64,
    /// From the peer.
    pub received: u64,
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, more: Bytes) {
        self.sent += more.sent;
        self.received += more.received;
    }
}

/// One host's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTraffic {
    /// Content of split connections.
    pub streams: Bytes,
    /// IP packets that are not split, with their headers.
    pub packets: Bytes,
    /// How many these are.
    pub packet_count: Bytes,
}

impl HostTraffic {
    /// All its bytes.
    pub fn bytes(&self) -> u64 {
        let Bytes { sent, received } = self.streams;
        sent + received + self.packets.sent + self.packets.received
    }
}

impl AddAssign for HostTraffic {
    fn add_assign(&mut self, more: HostTraffic) {
        self.streams += more.streams;
        self.packets += more.packets;
        self.packet_count += more.packet_count;
    }
}

/// A peer's accounts: by host; `None`: hosts that are not known, and the least of many.
pub type ByHost = BTreeMap<Option<IpAddr>, HostTraffic>;

/// All accounts of a node, since it started.
#[derive(Debug, Default)]
pub(crate) struct HostAccounts {
    /// Without `news`.
    told: Accounts,
    /// Since [`HostAccounts::take_news`].
    news: Accounts,
}

#[derive(Debug, Default)]
struct Accounts {
    peers: BTreeMap<PeerId, ByHost>,
}

impl HostAccounts {
    /// Bytes of a split connection passed.
    pub fn on_stream(&mut self, peer: PeerId, host: Option<IpAddr>, streams: Bytes) {
        if streams != Bytes::default() {
            self.news.add(peer, host, HostTraffic { streams, ..HostTraffic::default() });
        }
    }

    /// A packet of so many bytes was taken for the peer.
    pub fn on_packet_sent(&mut self, peer: PeerId, host: IpAddr, len: usize) {
        let of = |sent| Bytes { sent, received: 0 };
        let (packets, packet_count) = (of(len as u64), of(1));
        let more = HostTraffic { packets, packet_count, ..Default::default() };
        self.news.add(peer, Some(host), more);
    }

    /// A packet of so many bytes came from the peer and passed.
    pub fn on_packet_received(&mut self, peer: PeerId, host: IpAddr, len: usize) {
        let of = |received| Bytes { sent: 0, received };
        let (packets, packet_count) = (of(len as u64), of(1));
        let more = HostTraffic { packets, packet_count, ..Default::default() };
        self.news.add(peer, Some(host), more);
    }

    /// Did anything ever come from the host, as far as it has an account of its own?
    pub fn has_heard(&self, peer: PeerId, host: IpAddr) -> bool {
        let host = Some(host.to_canonical());
        let its = |accounts: &Accounts| {
            let its = accounts.peers.get(&peer).and_then(|hosts| hosts.get(&host));
            its.is_some_and(|its| its.packets.received > 0 || its.streams.received > 0)
        };
        its(&self.news) || its(&self.told)
    }

    /// What each host had since this was asked last.
    pub fn take_news(&mut self) -> BTreeMap<PeerId, ByHost> {
        let news = std::mem::take(&mut self.news.peers);
        for (peer, hosts) in &news {
            hosts.iter().for_each(|(host, traffic)| self.told.add(*peer, *host, *traffic));
        }
        news
    }

    /// The accounts of a peer.
    pub fn of(&self, peer: PeerId) -> Option<ByHost> {
        let (told, news) = (self.told.peers.get(&peer), self.news.peers.get(&peer));
        let mut all = told.or(news)?.clone();
        for (host, traffic) in told.and(news).into_iter().flatten() {
            *all.entry(*host).or_default() += *traffic;
        }
        Some(all)
    }

    /// The peer is no more.
    pub fn forget_peer(&mut self, peer: PeerId) {
        self.told.peers.remove(&peer);
        self.news.peers.remove(&peer);
    }
}

impl Accounts {
    fn add(&mut self, peer: PeerId, host: Option<IpAddr>, more: HostTraffic) {
        let hosts = self.peers.entry(peer).or_default();
        *hosts.entry(host.map(|host| host.to_canonical())).or_default() += more;
        if hosts.len() <= 2 * LEAST {
            return;
        }
        let most = (MOST_OF_ALL / self.peers.len()).clamp(LEAST, MOST);
        if let Some(hosts) = self.peers.get_mut(&peer).filter(|hosts| hosts.len() > 2 * most) {
            take_together(hosts, most);
        }
    }
}

/// Leaves the `most` hosts with the most bytes, beside what is told of the others.
fn take_together(hosts: &mut ByHost, most: usize) {
    let mut others = hosts.remove(&None).unwrap_or_default();
    let mut all: Vec<_> = std::mem::take(hosts).into_iter().collect();
    all.sort_by_key(|(_, traffic)| Reverse(traffic.bytes()));
    for (_, traffic) in all.drain(most.min(all.len())..) {
        others += traffic;
    }
    hosts.extend(all);
    hosts.insert(None, others);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId::from_index(0);

    fn host(n: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + n).to_be_bytes())
    }

    #[test]
    fn all_kinds_of_traffic_of_a_host_are_on_its_account() {
        let mut accounts = HostAccounts::default();
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        accounts.on_stream(PEER, Some(mapped), Bytes { sent: 7, received: 1 });
        accounts.on_packet_sent(PEER, host(1), 60);
        accounts.on_packet_received(PEER, host(1), 1500);
        accounts.on_stream(PEER, None, Bytes { sent: 0, received: 5 });
        accounts.on_stream(PEER, Some(host(2)), Bytes::default());
        let told = accounts.of(PEER).expect("accounts");
        assert_eq!(told.len(), 2, "who sends nothing has none: {told:?}");
        let one = told[&Some(host(1))];
        assert_eq!((one.streams, one.bytes()), (Bytes { sent: 7, received: 1 }, 1568));
        assert_eq!(one.packets, Bytes { sent: 60, received: 1500 });
        assert_eq!(one.packet_count, Bytes { sent: 1, received: 1 });
        assert_eq!(told[&None].streams.received, 5);
        accounts.forget_peer(PEER);
        assert_eq!(accounts.of(PEER), None);
    }

    #[test]
    fn news_have_who_had_something_since_and_the_accounts_do_not_go_back() {
        let mut accounts = HostAccounts::default();
        accounts.on_packet_sent(PEER, host(1), 60);
        accounts.on_packet_sent(PEER, host(2), 60);
        assert_eq!(accounts.take_news()[&PEER].len(), 2);
        accounts.on_stream(PEER, Some(host(2)), Bytes { sent: 5, received: 0 });
        let told = accounts.of(PEER).expect("accounts");
        assert_eq!([1, 2].map(|n| told[&Some(host(n))].bytes()), [60, 65]);
        let news = accounts.take_news();
        assert_eq!(news[&PEER].keys().collect::<Vec<_>>(), [&Some(host(2))]);
        assert_eq!(news[&PEER][&Some(host(2))].bytes(), 5);
        assert!(accounts.take_news().is_empty());
        assert_eq!(accounts.of(PEER), Some(told));
    }

    #[test]
    fn a_scan_takes_no_more_places_than_there_are_and_no_byte_from_the_sum() {
        let mut accounts = HostAccounts::default();
        accounts.on_stream(PEER, Some(host(9_999_999)), Bytes { sent: 1 << 30, received: 0 });
        for n in 0..50_000 {
            accounts.on_packet_sent(PEER, host(n), 60);
            let places = accounts.of(PEER).expect("accounts").len();
            assert!(places <= 2 * MOST + 1, "{places}");
        }
        let told = accounts.of(PEER).expect("accounts");
        let sum: u64 = told.values().map(HostTraffic::bytes).sum();
        assert_eq!(sum, (1 << 30) + 50_000 * 60);
        assert_eq!(told[&Some(host(9_999_999))].streams.sent, 1 << 30, "it has the most bytes");
    }

    #[test]
    fn many_peers_share_the_places() {
        let mut accounts = HostAccounts::default();
        for n in 0..200_000u32 {
            let peer = PeerId::from_index((n % 2_000) as usize);
            accounts.on_packet_received(peer, host(n), 60);
        }
        let places: usize = accounts.news.peers.values().map(BTreeMap::len).sum();
        assert!(places <= 2_000 * (2 * LEAST + 1), "{places}");
        for n in 0..400_000u32 {
            let peer = PeerId::from_index((n % 100) as usize);
            accounts.on_packet_received(peer, host(n), 60);
        }
        let most = accounts.news.peers.values().map(BTreeMap::len).max();
        assert!(most <= Some(2 * LEAST + 1), "{most:?}");
    }
}
