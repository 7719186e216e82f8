//! The link that a command is told of: a profile, a file like one, or a peer of a configuration;
//! and the facts of a link as [`plan`](::plan) takes them.

use std::path::Path;

use ::plan::Link;
use dial::tariff::Rates;
use link::session::End;
use miette::miette;
use units::ByteCount;

use crate::config::{Config, LinkSettings, Peer, Profile, Queue};
use crate::human;

/// A link that a command is told of.
#[derive(clap::Args, Clone, Debug)]
pub struct Which {
    /// A ready-made profile, a file like one, or a gateway's configuration.
    #[arg(value_name = "PROFILE|FILE")]
    what: Option<String>,
    /// The peer whose link is meant, if the configuration has several.
    #[arg(long)]
    peer: Option<String>,
    /// The end of a profile that this machine is at.
    #[arg(long, value_name = "hub|terminal", value_parser = read_end)]
    end: Option<End>,
    /// What the modem or the router before it holds, such as 64kB or 50ms.
    #[arg(long, value_name = "SIZE|TIME", value_parser = read_queue)]
    queue: Option<Queue>,
}

/// The directions of a profile of which nobody says at which end this is.
const FROM_ABOVE: [&str; 2] = ["forward", "return"];

/// A link and what people call it.
#[derive(Clone, Debug)]
pub struct Described {
    /// The profile, or the peer and its file.
    pub name: String,
    /// One line more.
    pub description: String,
    /// What data from this end and to it is called.
    pub directions: [&'static str; 2],
    /// The facts.
    pub link: Link,
    /// What the configuration says that it costs.
    pub prices: Option<Rates>,
}

impl Which {
    /// The link that is meant.
    ///
    /// # Errors
    /// There is no such profile, file or peer, or the file is wrong.
    pub fn find(&self) -> miette::Result<Described> {
        let names = Profile::names().join(", ");
        let what = self.what.as_ref().ok_or_else(|| {
            miette!(help = format!("profiles: {names}"), "no link is named: PROFILE|FILE")
        })?;
        if let Some(profile) = Profile::find(what) {
            return Ok(self.of_profile(&profile, what));
        }
        let path = Path::new(what);
        if !path.exists() {
            return Err(miette!(
                help = format!("profiles: {names}; a file's name may have a path"),
                "there is no profile \"{what}\", and no such file"
            ));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|e| miette!("cannot read {}: {}", path.display(), human::reason(&e)))?;
        if Profile::is_one(&text) {
            return Ok(self.of_profile(&Profile::parse(&text, path)?, what));
        }
        self.of_config(&Config::load(path)?, what)
    }

    /// Is a link named?
    pub fn is_given(&self) -> bool {
        self.what.is_some()
    }

    /// The link as a host sees it that uses it: a terminal's, unless something else is said.
    pub fn of_host(&self, described: &Described) -> Link {
        let link = described.link;
        match described.directions {
            FROM_ABOVE => Link { send: link.receive, receive: link.send, ..link },
            _ => link,
        }
    }

    /// Without an end a profile is seen from the hub, whose rate is the forward one.
    fn of_profile(&self, profile: &Profile, name: &str) -> Described {
        let (send, receive, directions) = match self.end {
            Some(End::Terminal) => (profile.back, profile.forward, ["sent", "received"]),
            Some(End::Hub) => (profile.forward, profile.back, ["sent", "received"]),
            None => (profile.forward, profile.back, FROM_ABOVE),
        };
        let link = Link {
            send,
            receive,
            delay: profile.delay,
            ber: profile.ber,
            loss: profile.loss,
            mtu: profile.mtu,
            framing: 0,
            queue: self.queue.map(|queue| bytes_of(queue, send)),
        };
        let description = profile.description.clone();
        Described { name: name.to_owned(), description, directions, link, prices: None }
    }

    fn of_config(&self, config: &Config, file: &str) -> miette::Result<Described> {
        let names = || config.peers.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        let peer = match (&self.peer, config.peers.as_slice()) {
            (Some(name), _) => config.peer(name).ok_or_else(|| {
                let help = format!("it has {}", names());
                miette!(help = help, "{file} has no peer \"{name}\"")
            })?,
            (None, [one]) => one,
            (None, []) => return Err(miette!("{file} has no [[peer]], so no link")),
            (None, _) => {
                let help = format!("name one of {} with --peer", names());
                return Err(miette!(help = help, "{file} has several peers"));
            }
        };
        Ok(Described {
            name: format!("{} in {file}", peer.name),
            description: peer.profile.map_or_else(String::new, |p| format!("profile {p}")),
            directions: ["sent", "received"],
            link: link_of(&peer.link, self.queue),
            prices: prices_of(peer),
        })
    }
}

/// The prices of a peer's first carrier, or of its line, in the zone that this begins in.
fn prices_of(peer: &Peer) -> Option<Rates> {
    let line = peer.line.as_ref()?;
    let first = peer.carriers.first().map(|carrier| carrier.name.as_str());
    let mut carriers = line.manager.carriers.iter();
    let carrier = carriers.find(|c| first.is_none_or(|name| *c.name == *name))?;
    let rates = carrier.tariff.rates(&line.zone);
    (*rates != Rates::default()).then(|| rates.clone())
}

/// The facts of a configured link; `queue` goes before the file's.
pub fn link_of(link: &LinkSettings, queue: Option<Queue>) -> Link {
    let mtu = u64::from(link.mtu);
    Link {
        send: link.send,
        receive: link.receive,
        delay: link.delay,
        ber: link.ber,
        loss: link.loss,
        mtu: link.mtu,
        framing: (link.overhead.on_the_line(mtu) - mtu) as u16,
        queue: queue.or(link.queue).map(|queue| bytes_of(queue, link.send)),
    }
}

fn bytes_of(queue: Queue, rate: units::BitRate) -> ByteCount {
    match queue {
        Queue::Bytes(bytes) => bytes,
        Queue::Time(time) => rate.bytes_in(time),
    }
}

fn read_end(text: &str) -> Result<End, String> {
    match text {
        "hub" => Ok(End::Hub),
        "terminal" => Ok(End::Terminal),
        _ => Err("it is hub or terminal".to_owned()),
    }
}

fn read_queue(text: &str) -> Result<Queue, String> {
    let time = text.parse().map(Queue::Time).ok();
    time.or_else(|| text.parse().map(Queue::Bytes).ok())
        .ok_or_else(|| "it is a size such as 64kB or a time such as 50ms".to_owned())
}
