//! For whom an answer is kept, so that nobody's answers displace those of others who have less.

use std::net::IpAddr;
use std::rc::Rc;

use units::{Shares, host_in_network, one_host};

use super::Digest;

/// Who asked for an answer. It counts for him, whoever else is given it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// It was on disk when the program started, and nobody was given it since.
    Nobody,
    /// A host of the terminal's.
    Host(IpAddr),
    /// A peer of the hub's.
    Peer(Rc<str>),
}

impl Holder {
    /// As what it counts for what is on its way: in IPv6 one host has as many addresses as it
    /// likes.
    pub fn as_one(&self) -> Holder {
        match self {
            Holder::Host(host) => Holder::Host(one_host(*host)),
            other => other.clone(),
        }
    }

    /// Its network, and itself.
    pub(super) fn in_group(&self) -> (Holder, Holder) {
        match self {
            Holder::Host(host) => {
                let (network, host) = host_in_network(*host);
                (Holder::Host(network), Holder::Host(host))
            }
            other => (other.clone(), other.clone()),
        }
    }
}

/// Of answers to one target, the oldest first: which gives way. It is the oldest of the holder with
/// the most of them.
pub(super) fn oldest_of_most<'a>(
    holders: impl Iterator<Item = &'a Holder> + Clone,
) -> Option<usize> {
    let of =
        |holder: &Holder| holders.clone().filter(|other| other.as_one() == holder.as_one()).count();
    let most = holders.clone().map(of).max()?;
    holders.clone().position(|holder| of(holder) == most)
}

/// Names an answer in a book by its last use: greater ones were used later.
pub(super) type Use = (u64, Digest, u64);

/// Answers by holder, each holder's by their last use.
pub(super) type Holdings = Shares<Holder, Holder, Use>;
