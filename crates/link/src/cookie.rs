//! What a node spends on strangers: the macs at the end of handshake messages, cookies,
//! and the measure of load.
//!
//! mac1 proves that the sender knows our public key, for the cost of one hash. Past a
//! configured rate of initiations a handshake costs its sender a cookie first: 16 bytes
//! that only who receives at the source address can know, in a reply shorter than the
//! question. Only then, and within the source's share, do we spend curve arithmetic
//! (the idea is WireGuard's: Donenfeld 2017, section 5.4.7).

use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use units::{Duration, Instant};

use crate::handshake::{
    COOKIE_REPLY, COOKIE_REPLY_LEN, HandshakeError, MACS_LEN, Message, RESPONSE, VERSION, be32,
    check_form, macs_of,
};
use crate::keys::{Entropy, PublicKey, Secret, equal, hash, mac16, mac32};
use crate::seal::TAG_LEN;

/// Bytes of a cookie.
pub const COOKIE_LEN: usize = 16;
/// Age at which the secret behind the cookies is replaced; the one before it still counts.
pub const COOKIE_ROTATION: Duration = Duration::from_secs(120);

const LABEL_MAC1: &[u8] = b"bentpipe 1 mac1 ";
const LABEL_COOKIE: &[u8] = b"bentpipe 1 cookie";
const LABEL_SECRET: &[u8] = b"bentpipe 1 cookie secret";
const NONCE_LEN: usize = 24;
/// How long a burst of initiations may last before it counts as load, and how long load
/// is remembered.
const LOAD_MEMORY: Duration = Duration::from_secs(1);
/// Responses that are taken in a second without cookies: twice as many as a node asks for where
/// nobody waits for them (`endpoint::calls`). Only who hits the index of an initiation under way
/// costs anything by one.
const RESPONSES_PER_SECOND: u32 = 1_000;
/// Handshakes that one source with a cookie may make under load.
const SOURCE_RATE: u64 = 5;
const SOURCE_BURST: u64 = 5;
/// Sources are told apart by a keyed hash into this many counters; those that share one
/// share its rate, which bounds the memory (4 kB) and the whole rate under load.
const SOURCES: usize = 512;
/// What all sources of one prefix (an IPv4 /24, an IPv6 /48) may make together, so that who
/// holds a prefix fills few of the counters of sources: a /48 has 65,536 sources.
const PREFIX_RATE: u64 = 50;
const PREFIX_BURST: u64 = 50;
/// Prefixes are told apart as sources are.
const PREFIXES: usize = 512;

/// Proof of receiving at an address.
#[derive(Clone, Copy)]
pub struct Cookie([u8; COOKIE_LEN]);

impl Cookie {
    pub(crate) const fn from_bytes(bytes: [u8; COOKIE_LEN]) -> Cookie {
        Cookie(bytes)
    }
    pub(crate) const fn as_bytes(&self) -> &[u8; COOKIE_LEN] {
        &self.0
    }
}

/// The two keys that follow from a node's public key: who knows it can address the node.
pub struct MacKeys {
    mac1: [u8; 32],
    cookie: [u8; 32],
}

impl MacKeys {
    /// Those of the node with this key.
    pub fn of(node: &PublicKey) -> MacKeys {
        MacKeys {
            mac1: hash(&[LABEL_MAC1, node.as_bytes()]),
            cookie: hash(&[LABEL_COOKIE, node.as_bytes()]),
        }
    }

    /// The first mac of a handshake message to this node: that of all before the macs.
    pub fn mac1(&self, covered: &[u8]) -> [u8; 16] {
        mac16(&self.mac1, &[covered])
    }

    /// Fills in the macs of a message to this node. Answers mac1, to which a cookie
    /// reply will refer.
    pub(crate) fn sign(&self, message: &mut Message, cookie: Option<&Cookie>) -> [u8; 16] {
        let bytes = message.as_mut();
        let (covered, macs) = bytes.split_at_mut(bytes.len() - MACS_LEN);
        let mac1 = self.mac1(covered);
        macs[..16].copy_from_slice(&mac1);
        if let Some(cookie) = cookie {
            macs[16..].copy_from_slice(&mac2(cookie, covered, &mac1));
        }
        mac1
    }

    /// Opens this node's cookie reply to the message whose mac1 we keep.
    pub(crate) fn open_reply(&self, mac1: &[u8; 16], reply: &[u8]) -> Option<Cookie> {
        let nonce = reply.get(6..6 + NONCE_LEN)?;
        let mut sealed: [u8; COOKIE_LEN + TAG_LEN] = reply.get(6 + NONCE_LEN..)?.try_into().ok()?;
        let cookie =
            self.reply_key(nonce).open_in_place(zero_nonce(), Aad::from(mac1), &mut sealed).ok()?;
        Some(Cookie(cookie.try_into().ok()?))
    }

    fn seal_reply(&self, nonce: &[u8; NONCE_LEN], mac1: &[u8; 16], cookie: Cookie, out: &mut [u8]) {
        let (text, tag) = out.split_at_mut(COOKIE_LEN);
        text.copy_from_slice(&cookie.0);
        let sealed =
            self.reply_key(nonce).seal_in_place_separate_tag(zero_nonce(), Aad::from(mac1), text);
        tag.copy_from_slice(sealed.expect("16 bytes are not too long").as_ref());
    }

    /// A key for one reply: random nonces of 24 bytes never meet.
    fn reply_key(&self, nonce: &[u8]) -> LessSafeKey {
        let key = Secret::new(mac32(&self.cookie, &[nonce]));
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_bytes());
        LessSafeKey::new(key.expect("the key has its length"))
    }
}

/// One node's gate for handshake messages.
pub struct Guard {
    keys: MacKeys,
    secrets: Secrets,
    entropy: Entropy,
    /// Initiations, and responses.
    load: Load,
    responses: Load,
    sources: Box<[Meter; SOURCES]>,
    prefixes: Box<[Meter; PREFIXES]>,
    source_key: [u8; 32],
}

/// What [`Guard::admit`] made of a message.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // it lives on the stack for the time of one packet
pub enum Verdict {
    /// Worth the arithmetic.
    Admitted,
    /// Dropped; send this cookie reply to the source, if there is one.
    Refused(HandshakeError, Option<Message>),
}

impl Guard {
    /// The gate of the node with this public key. It counts as under load when more
    /// than `initiations_per_second` (at least 1) good initiations arrive. All
    /// with the same secret `root` take each other's cookies, as those of a node's shards do.
    pub fn new(
        local: &PublicKey,
        initiations_per_second: u32,
        root: [u8; 32],
        mut entropy: Entropy,
    ) -> Guard {
        Guard {
            keys: MacKeys::of(local),
            secrets: Secrets::new(root),
            load: Load::new(initiations_per_second),
            responses: Load::new(RESPONSES_PER_SECOND),
            sources: Box::new([Meter::default(); SOURCES]),
            prefixes: Box::new([Meter::default(); PREFIXES]),
            source_key: entropy.bytes32(),
            entropy,
        }
    }

    /// Whether cookies are demanded of those who call.
    pub fn under_load(&self, now: Instant) -> bool {
        self.load.over(now)
    }

    /// Judges an initiation, or a response whose receiver index is ours, by one hash
    /// or two (L-CK-1, L-CK-2, L-CK-3). Never hand a response to it that no tunnel waits for:
    /// strangers' responses must not count as load.
    pub fn admit(&mut self, now: Instant, from: SocketAddr, packet: &[u8]) -> Verdict {
        let mac1 = match self.check_mac1(packet) {
            Ok(mac1) => mac1,
            Err(why) => return Verdict::Refused(why, None),
        };
        // Those who call cannot make it dear to answer this node, nor the other way round.
        let load = match packet[0] {
            RESPONSE => &mut self.responses,
            _ => &mut self.load,
        };
        if !load.count(now) {
            return Verdict::Admitted;
        }
        let (covered, macs) = packet.split_at(packet.len() - MACS_LEN);
        // Zeros say that the sender has no cookie: most of a flood costs no hash more.
        let claimed = macs[16..] != [0; 16];
        let proven = claimed
            && self
                .cookies(now, from)
                .iter()
                .any(|cookie| equal(&mac2(cookie, covered, &mac1), &macs[16..]));
        if !proven {
            let reply = self.reply(now, from, be32(&packet[2..6]), &mac1);
            return Verdict::Refused(HandshakeError::NoCookie, Some(reply));
        }
        match self.take_share(now, from) {
            true => Verdict::Admitted,
            false => Verdict::Refused(HandshakeError::SourceLimit, None),
        }
    }

    /// Whether `cookie` is one that we gave to `from` in the last two to four minutes.
    pub(crate) fn gave(&mut self, now: Instant, from: SocketAddr, cookie: &Cookie) -> bool {
        self.cookies(now, from).iter().any(|ours| equal(&ours.0, &cookie.0))
    }

    /// A cookie for `from`, in answer to the message that this mac1 ended. Shorter than
    /// any message it answers (L-CK-4).
    pub(crate) fn reply(
        &mut self,
        now: Instant,
        from: SocketAddr,
        receiver: u32,
        mac1: &[u8; 16],
    ) -> Message {
        let [cookie, _] = self.cookies(now, from);
        let mut nonce = [0; NONCE_LEN];
        self.entropy.fill(&mut nonce);
        let mut message = Message::zeroed(COOKIE_REPLY_LEN);
        let bytes = message.as_mut();
        bytes[..2].copy_from_slice(&[COOKIE_REPLY, VERSION]);
        bytes[2..6].copy_from_slice(&receiver.to_be_bytes());
        bytes[6..6 + NONCE_LEN].copy_from_slice(&nonce);
        self.keys.seal_reply(&nonce, mac1, cookie, &mut bytes[6 + NONCE_LEN..]);
        message
    }

    fn check_mac1(&self, packet: &[u8]) -> Result<[u8; 16], HandshakeError> {
        check_form(packet)?;
        if packet[0] > RESPONSE {
            return Err(HandshakeError::Malformed);
        }
        let (covered, mac1) = macs_of(packet).ok_or(HandshakeError::Malformed)?;
        match equal(&self.keys.mac1(covered), &mac1) {
            true => Ok(mac1),
            false => Err(HandshakeError::Mac1),
        }
    }

    /// The cookies that `from` may hold, the current one first.
    fn cookies(&mut self, now: Instant, from: SocketAddr) -> [Cookie; 2] {
        self.secrets.rotate(now);
        let mut address = [0; 18];
        let ip = match from.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        address[..16].copy_from_slice(&ip.octets());
        address[16..].copy_from_slice(&from.port().to_be_bytes());
        [&self.secrets.current, &self.secrets.before]
            .map(|secret| Cookie(mac16(secret.as_bytes(), &[&address])))
    }

    /// Counts a message of a source (an IPv4 address, or a /64, which one host can fill) and
    /// of its prefix, if both have a share left (L-CK-3, L-CK-7). What one of them refuses
    /// takes nothing from the other: a host leaves its neighbours their part of the prefix's
    /// share, and a prefix leaves the counters of sources to others.
    fn take_share(&mut self, now: Instant, from: SocketAddr) -> bool {
        let slot = |part: &[u8]| {
            let mac = mac16(&self.source_key, &[part]);
            usize::from(u16::from_be_bytes([mac[0], mac[1]]))
        };
        let (source, prefix) = match from.ip().to_canonical() {
            IpAddr::V4(v4) => (slot(&v4.octets()), slot(&v4.octets()[..3])),
            IpAddr::V6(v6) => (slot(&v6.octets()[..8]), slot(&v6.octets()[..6])),
        };
        let mut counted = self.sources[source % SOURCES];
        let within = counted.take(now, SOURCE_RATE, SOURCE_BURST)
            && self.prefixes[prefix % PREFIXES].take(now, PREFIX_RATE, PREFIX_BURST);
        if within {
            self.sources[source % SOURCES] = counted;
        }
        within
    }
}

/// The secrets behind the cookies: one for each two minutes, drawn from what all shards of
/// a node know (L-CK-5). They are drawn on use, so an idle node needs no timer.
struct Secrets {
    root: Secret,
    /// The two minutes that `current` is for, counted from the start of the clock.
    period: u64,
    current: Secret,
    before: Secret,
}

impl Secrets {
    fn new(root: [u8; 32]) -> Secrets {
        let root = Secret::new(root);
        let [current, before] = [1, 0].map(|period| Secrets::of(&root, period));
        Secrets { root, period: 0, current, before }
    }

    /// The secret of a period; they are counted from 1, so that the first has one before it.
    fn of(root: &Secret, count: u64) -> Secret {
        Secret::new(mac32(root.as_bytes(), &[LABEL_SECRET, &count.to_be_bytes()]))
    }

    fn rotate(&mut self, now: Instant) {
        let period = now.as_nanos() / COOKIE_ROTATION.as_nanos();
        if period != self.period {
            self.period = period;
            [self.current, self.before] =
                [period + 1, period].map(|count| Secrets::of(&self.root, count));
        }
    }
}

/// Counts events against a rate: the time at which, at that rate, all so far would be due.
#[derive(Clone, Copy, Default)]
struct Meter {
    due: Instant,
}

impl Meter {
    /// Counts one event if no more than `burst` are ahead of `rate` per second.
    fn take(&mut self, now: Instant, rate: u64, burst: u64) -> bool {
        let interval = Duration::from_secs(1).divided_by(rate);
        let due = self.due.max(now) + interval;
        let within = due.since(now) <= interval.times(burst);
        if within {
            self.due = due;
        }
        within
    }
}

/// Whether handshakes arrive faster than we mean to serve strangers.
struct Load {
    meter: Meter,
    rate: u64,
    until: Instant,
}

impl Load {
    fn new(per_second: u32) -> Load {
        Load { meter: Meter::default(), rate: u64::from(per_second.max(1)), until: Instant::ZERO }
    }

    fn over(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Counts one message. True if we are under load.
    fn count(&mut self, now: Instant) -> bool {
        if !self.meter.take(now, self.rate, self.rate) {
            self.until = now + LOAD_MEMORY;
        }
        self.over(now)
    }
}

fn mac2(cookie: &Cookie, covered: &[u8], mac1: &[u8; 16]) -> [u8; 16] {
    let mut key = [0; 32];
    key[..COOKIE_LEN].copy_from_slice(&cookie.0);
    mac16(&key, &[covered, mac1])
}

fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}
