//! What two peers know and nobody else: the key of chunk ids, of boundaries, of files.

use std::net::IpAddr;

use blake2::Blake2sMac;
use blake2::digest::consts::{U8, U16, U32};
use blake2::digest::{KeyInit, Mac};

/// A chunk's name by its content: keyed BLAKE2s (RFC 7693) with 16 bytes. Who does not have
/// the key can neither tell from an id what it names nor make two contents of one id.
pub(super) type Id = [u8; 16];
/// What of an id travels with a reference.
pub(super) type Tag = [u8; TAG];
pub(super) const TAG: usize = 8;

/// The keys of one pair of peers.
pub struct Keys {
    /// Keyed already: a clone is cheaper than the key's own block.
    id: Blake2sMac<U16>,
    file: Blake2sMac<U8>,
    /// A random number for each byte: where chunks end.
    pub(super) gear: [u64; 256],
}

/// Whose content a chunk is: only who has the same scope may refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One host of the LAN, as OPEN names it.
    Host(IpAddr),
    /// All hosts behind the two peers.
    Lan,
}

impl Keys {
    /// Keys from `secret`: 32 bytes that the two peers share for as long as their stores are
    /// to last, such as a hash of the X25519 secret of their static keys.
    pub fn new(secret: &[u8; 32]) -> Keys {
        let part = |label: &[u8], n: u8| -> [u8; 32] {
            let mut mac = Blake2sMac::<U32>::new_from_slice(secret).expect("a key of 32 bytes");
            mac.update(b"bentpipe 1 chunks ");
            mac.update(label);
            mac.update(&[n]);
            mac.finalize().into_bytes().into()
        };
        let mut gear = [0; 256];
        for (n, four) in gear.chunks_mut(4).enumerate() {
            let random = part(b"boundary", n as u8);
            for (number, bytes) in four.iter_mut().zip(random.chunks(8)) {
                *number = u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
            }
        }
        let keyed = "BLAKE2s takes 32-byte keys";
        Keys {
            id: Blake2sMac::new_from_slice(&part(b"id", 0)).expect(keyed),
            file: Blake2sMac::new_from_slice(&part(b"file", 0)).expect(keyed),
            gear,
        }
    }

    /// The id of a chunk.
    pub(super) fn id(&self, content: &[u8]) -> Id {
        let mut hash = self.hasher();
        hash.update(content);
        hash.finish()
    }

    /// The id of a chunk that comes in pieces.
    pub(super) fn hasher(&self) -> Hasher {
        Hasher(self.id.clone())
    }

    /// What shows that bytes in a file are those that were written there.
    pub(super) fn check(&self, parts: &[&[u8]]) -> [u8; 8] {
        let mut mac = self.file.clone();
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }

    /// A scope as the catalogue keeps it.
    pub(super) fn scope(&self, scope: Scope) -> u64 {
        u64::from_be_bytes(match scope {
            Scope::Lan => self.check(&[b"lan"]),
            Scope::Host(IpAddr::V4(a)) => self.check(&[b"host", &a.to_ipv6_mapped().octets()]),
            Scope::Host(IpAddr::V6(a)) => self.check(&[b"host", &a.octets()]),
        })
    }
}

/// An id on the way.
#[derive(Clone)]
pub(super) struct Hasher(Blake2sMac<U16>);

impl Hasher {
    pub fn update(&mut self, content: &[u8]) {
        self.0.update(content);
    }

    pub fn finish(self) -> Id {
        self.0.finalize().into_bytes().into()
    }
}

/// What of an id travels.
pub(super) fn tag(id: &Id) -> Tag {
    id[..TAG].try_into().expect("an id is longer than its tag")
}
