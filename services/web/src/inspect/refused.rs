//! Names that could not be opened a moment ago, and servers whose connections users log in: they
//! are left alone for an hour.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use units::{Shares, host_in_network};

/// How long a name is left alone.
pub const LIFE: Duration = Duration::from_secs(3600);
/// Names that are remembered, and those that one host can have remembered.
const MAX_NAMES: usize = 4096;
const MAX_EACH: usize = 256;

/// Why it could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// A host's program ended the handshake; in its own words.
    Client(String),
    /// The server wants a certificate of the user's.
    Papers,
    /// A host asked for a WebSocket. Only who speaks nothing but HTTP/1.1 is left alone.
    WebSocket,
    /// The server takes all that comes on a connection for what one user asks.
    Login,
}

impl Why {
    /// For people.
    pub fn text(&self) -> String {
        match self {
            Why::Client(said) => format!("the program refused our certificate ({said})"),
            Why::Papers => "the server wants a certificate of the user's".to_owned(),
            Why::WebSocket => "it is used for WebSockets".to_owned(),
            Why::Login => "its users log in by connection".to_owned(),
        }
    }
}

/// The hosts' names.
#[derive(Debug, Default)]
pub struct Refused {
    all: BTreeMap<(IpAddr, String), (Duration, Why)>,
    /// Whose they are: of a network of IPv6 one host may have as many addresses as it likes. Those
    /// that end first give way first.
    shares: Shares<IpAddr, IpAddr, Entry>,
}

/// Until when, which name, and whose.
type Entry = (Duration, String, IpAddr);

impl Refused {
    /// Leaves the name alone, for this host.
    pub fn note(&mut self, host: IpAddr, name: &str, why: Why, now: Duration) {
        let over = self.all.iter().filter(|(_, (until, _))| *until <= now);
        for (host, name) in over.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.forget(host, &name);
        }
        self.forget(host, name);
        let of_host = self.all.range((host, String::new())..).take_while(|((h, _), _)| *h == host);
        let oldest = match of_host.clone().count() >= MAX_EACH {
            true => of_host.min_by_key(|(_, (until, _))| *until).map(|(key, _)| key.clone()),
            false if self.all.len() >= MAX_NAMES => {
                self.shares.gives_way().map(|(_, name, host)| (*host, name.clone()))
            }
            false => None,
        };
        if let Some((host, name)) = oldest {
            self.forget(host, &name);
        }
        let until = now + LIFE;
        self.shares.add(&host_in_network(host), (until, name.to_owned(), host), 1);
        self.all.insert((host, name.to_owned()), (until, why));
    }

    fn forget(&mut self, host: IpAddr, name: &str) {
        if let Some((until, _)) = self.all.remove(&(host, name.to_owned())) {
            self.shares.remove(&host_in_network(host), &(until, name.to_owned(), host));
        }
    }

    /// Why this name is left alone for this host.
    pub fn why(&self, host: IpAddr, name: &str, is_old: bool, now: Duration) -> Option<&Why> {
        let (until, why) = self.all.get(&(host, name.to_owned()))?;
        (now < *until && (is_old || *why != Why::WebSocket)).then_some(why)
    }

    /// All that hold, with the time that is left.
    pub fn all(&self, now: Duration) -> impl Iterator<Item = (IpAddr, &str, Duration, &Why)> {
        self.all.iter().filter_map(move |((host, name), (until, why))| {
            let left = until.checked_sub(now).filter(|left| !left.is_zero())?;
            Some((*host, name.as_str(), left, why))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: [IpAddr; 2] =
        [IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)];

    #[test]
    fn a_name_is_left_alone_for_an_hour_and_for_the_host_that_refused_it() {
        let (mut refused, now) = (Refused::default(), Duration::from_secs(5));
        let why = Why::Client("unknown ca".into());
        refused.note(HOSTS[0], "a.test", why.clone(), now);
        assert_eq!(refused.why(HOSTS[0], "a.test", false, now), Some(&why));
        assert_eq!(refused.why(HOSTS[1], "a.test", false, now), None);
        assert_eq!(refused.why(HOSTS[0], "b.test", false, now), None);
        assert_eq!(refused.why(HOSTS[0], "a.test", false, now + LIFE), None);
        refused.note(HOSTS[0], "w.test", Why::WebSocket, now);
        assert_eq!(refused.why(HOSTS[0], "w.test", true, now), Some(&Why::WebSocket));
        assert_eq!(refused.why(HOSTS[0], "w.test", false, now), None, "HTTP/2 is opened as ever");
        assert_eq!(refused.all(now).count(), 2);
        assert_eq!(refused.all(now + LIFE).count(), 0);
    }

    #[test]
    fn a_host_that_makes_up_names_takes_no_other_hosts_places() {
        let (mut refused, second) = (Refused::default(), Duration::from_secs(1));
        refused.note(HOSTS[1], "a.test", Why::Papers, second);
        for n in 0..2 * MAX_NAMES as u32 {
            refused.note(HOSTS[0], &format!("{n}.test"), Why::Papers, (n / 10 + 2) * second / 10);
        }
        assert_eq!(refused.all.len(), MAX_EACH + 1);
        assert!(refused.why(HOSTS[1], "a.test", false, 90 * second).is_some());
        for n in 0..2 * MAX_NAMES as u32 {
            refused.note(IpAddr::V4(n.into()), "a.test", Why::Papers, 90 * second);
        }
        assert!(refused.all.len() <= MAX_NAMES);
        assert_eq!(refused.shares.sum(), refused.all.len());
    }

    #[test]
    fn a_host_with_many_addresses_takes_no_other_hosts_places() {
        let (mut refused, second) = (Refused::default(), Duration::from_secs(1));
        let others = ["10.1.0.2", "fd02::1"].map(|host| host.parse::<IpAddr>().unwrap());
        for host in others {
            refused.note(host, "bank.test", Why::Login, second);
        }
        for n in 0..10_000_u128 {
            let own = IpAddr::from(((0xfd01_u128 << 112) + n / 200).to_be_bytes());
            refused.note(own, &format!("{n}.test"), Why::Papers, 2 * second);
        }
        assert_eq!(refused.all.len(), MAX_NAMES);
        assert!(others.iter().all(|host| refused.why(*host, "bank.test", true, second).is_some()));
    }
}
