//! How two ends of a dialled line agree, step by step: the link (RFC 1661), who calls (RFC 1994),
//! addresses (RFC 1332). Each asks for what a computer of around 1999 that dials into another does,
//! and is refused what that does not have: a call back, name servers of two kinds, compression.
//!
//! Sans-IO: packets and time go in, packets come out.

use std::collections::VecDeque;

use units::{Duration, Instant};

use super::protocol::{CCP, CHAP, IPCP, LCP};

/// An unanswered request is sent again (RFC 1661, 4.6).
const RESTART: Duration = Duration::from_secs(3);
/// So often at most (RFC 1661, 4.6: Max-Configure).
const MOST_TRIES: u32 = 10;

const REQUEST: u8 = 1;
const ACK: u8 = 2;
const NAK: u8 = 3;
const REJECT: u8 = 4;
const PROTOCOL_REJECT: u8 = 8;
/// Codes of RFC 1994.
const CHALLENGE: u8 = 1;
const RESPONSE: u8 = 2;
const SUCCESS: u8 = 3;

/// Which end one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It dials, proves who it is and takes the address that it is given.
    Caller,
    /// It answers.
    Answerer,
}

/// An answer that somebody waits for.
#[derive(Debug, Default)]
struct Pending {
    due: Option<Instant>,
    tries: u32,
}

/// One of the two agreements that both ends have to ask for.
#[derive(Debug, Default)]
struct Agreement {
    id: u8,
    /// What was refused so far: what is asked for follows from that.
    round: usize,
    /// The peer has agreed to ours, and we to the peer's.
    ours: bool,
    theirs: bool,
    pending: Pending,
}

impl Agreement {
    fn stands(&self) -> bool {
        self.ours && self.theirs
    }
}

/// One end.
#[derive(Debug)]
pub struct Negotiation {
    role: Role,
    link: Agreement,
    addresses: Agreement,
    /// The proof: it was given, and taken.
    proven: bool,
    proof: Pending,
    out: VecDeque<(u16, Vec<u8>)>,
    failed: bool,
}

/// Asks for no escapes, a magic number, a short protocol and no address: what all have.
const PLAIN: &[u8] = &[2, 6, 0, 0, 0, 0, 5, 6, 0x12, 0x34, 0x56, 0x78, 7, 2, 8, 2];
/// And to be called back, which is refused.
const CALL_BACK: &[u8] = &[13, 3, 6];
/// And a proof by CHAP with MD5.
const PROOF: &[u8] = &[3, 5, 0xc2, 0x23, 5];
/// An address, two name servers, two more for NetBIOS; all to be named by the other end.
const ADDRESS: &[u8] = &[3, 6, 0, 0, 0, 0];
const SERVERS: &[u8] = &[129, 6, 0, 0, 0, 0, 131, 6, 0, 0, 0, 0];
const NETBIOS: &[u8] = &[130, 6, 0, 0, 0, 0, 132, 6, 0, 0, 0, 0];
/// What the other end names.
const NAMED: &[u8] = &[3, 6, 10, 77, 4, 1];
const NAMED_SERVERS: &[u8] = &[129, 6, 10, 77, 4, 2, 131, 6, 10, 77, 4, 2];

impl Negotiation {
    /// There is carrier.
    pub fn begin(now: Instant, role: Role) -> Negotiation {
        let mut negotiation = Negotiation {
            role,
            link: Agreement::default(),
            addresses: Agreement::default(),
            proven: false,
            proof: Pending::default(),
            out: VecDeque::new(),
            failed: false,
        };
        negotiation.request(now, LCP);
        negotiation
    }

    /// The link is agreed on: frames are short from now on.
    pub fn is_linked(&self) -> bool {
        self.link.stands()
    }

    /// The network is there.
    pub fn is_open(&self) -> bool {
        self.link.stands() && self.proven && self.addresses.stands()
    }

    /// The peer did not answer, however often it was asked.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The next packet to send: its protocol and content.
    pub fn poll(&mut self) -> Option<(u16, Vec<u8>)> {
        self.out.pop_front()
    }

    /// When to call [`Negotiation::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let all = [&self.link.pending, &self.addresses.pending, &self.proof];
        all.into_iter().filter_map(|pending| pending.due).min()
    }

    /// Sends again what was not answered.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |pending: &Pending| pending.due.is_some_and(|due| due <= now);
        if is_due(&self.link.pending) {
            self.request(now, LCP);
        }
        if is_due(&self.addresses.pending) {
            self.request(now, IPCP);
        }
        if is_due(&self.proof) {
            self.challenge(now);
        }
    }

    /// A packet of the peer's.
    pub fn handle(&mut self, now: Instant, protocol: u16, packet: &[u8]) {
        let Some((code, id, options)) = parse(packet) else { return };
        // Who speaks of addresses has taken the proof, though it is not heard to say so.
        if protocol == IPCP && self.role == Role::Caller && self.link.stands() {
            self.prove(now);
        }
        match protocol {
            LCP | IPCP => self.on_agreement(now, protocol, code, id, options),
            CHAP => self.on_proof(now, code, id),
            // Nobody here compresses.
            CCP if code == REQUEST => {
                self.say(LCP, PROTOCOL_REJECT, id, &[&CCP.to_be_bytes(), packet].concat());
            }
            _ => {}
        }
    }

    fn on_agreement(&mut self, now: Instant, protocol: u16, code: u8, id: u8, options: &[u8]) {
        if code == REQUEST {
            let (code, answer) = self.judge(protocol, options);
            self.say(protocol, code, id, &answer);
            self.agreement(protocol).theirs |= code == ACK;
        } else {
            let agreement = self.agreement(protocol);
            if id != agreement.id || agreement.ours {
                return;
            }
            match code {
                ACK => (agreement.ours, agreement.pending) = (true, Pending::default()),
                NAK | REJECT => {
                    agreement.round += 1;
                    agreement.pending.tries = 0;
                    return self.request(now, protocol);
                }
                _ => return,
            }
        }
        self.go_on(now, protocol);
    }

    /// An agreement may stand now: the next begins.
    fn go_on(&mut self, now: Instant, protocol: u16) {
        if protocol == LCP && self.link.stands() && self.role == Role::Answerer && !self.proven {
            self.challenge(now);
        }
    }

    fn on_proof(&mut self, now: Instant, code: u8, id: u8) {
        match (self.role, code) {
            (Role::Caller, CHALLENGE) if self.link.stands() => {
                // 16 bytes of a hash, and a name. The lab has no secrets.
                self.say(CHAP, RESPONSE, id, &[&[16][..], &[0x5a; 16], b"cutter"].concat());
            }
            (Role::Answerer, RESPONSE) => {
                self.say(CHAP, SUCCESS, id, b"Welcome");
                self.prove(now);
            }
            (Role::Caller, SUCCESS) => self.prove(now),
            _ => {}
        }
    }

    fn prove(&mut self, now: Instant) {
        self.proof = Pending::default();
        if !std::mem::replace(&mut self.proven, true) {
            if self.role == Role::Caller {
                // Compression of a kind that nobody has.
                self.say(CCP, REQUEST, 1, &[18, 6, 0, 0, 0, 1]);
            }
            self.request(now, IPCP);
        }
    }

    fn challenge(&mut self, now: Instant) {
        if again(&mut self.proof, now) {
            self.say(CHAP, CHALLENGE, 1, &[&[16][..], &[0xa5; 16], b"shore"].concat());
        } else {
            self.failed = true;
        }
    }

    fn request(&mut self, now: Instant, protocol: u16) {
        let role = self.role;
        let agreement = self.agreement(protocol);
        if !again(&mut agreement.pending, now) {
            self.failed = true;
            return;
        }
        agreement.id = agreement.id.wrapping_add(1);
        let (id, round) = (agreement.id, agreement.round);
        let options = match (protocol, role, round) {
            (LCP, Role::Caller, 0) => [PLAIN, CALL_BACK].concat(),
            (LCP, Role::Caller, _) => PLAIN.to_vec(),
            (LCP, Role::Answerer, _) => [PROOF, PLAIN].concat(),
            (_, Role::Caller, 0) => [ADDRESS, SERVERS, NETBIOS].concat(),
            (_, Role::Caller, 1) => [ADDRESS, SERVERS].concat(),
            (_, Role::Caller, _) => [NAMED, NAMED_SERVERS].concat(),
            (_, Role::Answerer, _) => vec![3, 6, 10, 77, 4, 2],
        };
        self.say(protocol, REQUEST, id, &options);
    }

    /// What the peer's request is answered: all of it, what is refused of it, or what is named.
    fn judge(&self, protocol: u16, options: &[u8]) -> (u8, Vec<u8>) {
        let refused = match protocol {
            LCP => CALL_BACK,
            _ => NETBIOS,
        };
        if find(options, refused) {
            return (REJECT, refused.to_vec());
        }
        if protocol == IPCP && self.role == Role::Answerer && find(options, ADDRESS) {
            return (NAK, [NAMED, NAMED_SERVERS].concat());
        }
        (ACK, options.to_vec())
    }

    fn agreement(&mut self, protocol: u16) -> &mut Agreement {
        if protocol == LCP { &mut self.link } else { &mut self.addresses }
    }

    fn say(&mut self, protocol: u16, code: u8, id: u8, content: &[u8]) {
        let length = (content.len() + 4) as u16;
        let mut packet = vec![code, id];
        packet.extend(length.to_be_bytes());
        packet.extend(content);
        self.out.push_back((protocol, packet));
    }
}

fn again(pending: &mut Pending, now: Instant) -> bool {
    pending.tries += 1;
    let may = pending.tries <= MOST_TRIES;
    pending.due = may.then_some(now + RESTART);
    may
}

fn find(options: &[u8], wanted: &[u8]) -> bool {
    options.windows(wanted.len()).any(|part| part == wanted)
}

/// Code, number and content, which is as long as it says.
fn parse(packet: &[u8]) -> Option<(u8, u8, &[u8])> {
    let [code, id, high, low, ..] = *packet else { return None };
    let length = usize::from(u16::from_be_bytes([high, low]));
    Some((code, id, packet.get(4..length)?))
}

#[cfg(test)]
mod tests {
    use units::Rng;

    use super::*;

    /// Two ends with this much time from one to the other; how long until both are open.
    fn between(way: Duration, mut is_lost: impl FnMut() -> bool) -> Option<Duration> {
        let mut now = Instant::ZERO;
        let mut ends = [Role::Caller, Role::Answerer].map(|role| Negotiation::begin(now, role));
        let mut flying: VecDeque<(Instant, usize, u16, Vec<u8>)> = VecDeque::new();
        loop {
            for (at, end) in ends.iter_mut().enumerate() {
                while let Some((protocol, packet)) = end.poll() {
                    if !is_lost() {
                        flying.push_back((now + way, 1 - at, protocol, packet));
                    }
                }
            }
            if ends.iter().all(Negotiation::is_open) {
                return Some(now.since(Instant::ZERO));
            }
            let timeouts = ends.iter().filter_map(Negotiation::poll_timeout);
            now = timeouts.chain(flying.front().map(|f| f.0)).min()?;
            while let Some((_, to, protocol, packet)) = flying.pop_front_if(|f| f.0 <= now) {
                ends[to].handle(now, protocol, &packet);
            }
            ends.iter_mut().for_each(|end| end.handle_timeout(now));
        }
    }

    #[test]
    fn both_ends_agree_in_turns_and_what_is_lost_is_said_again() {
        let way = Duration::from_secs(1);
        // LCP in two turns, the proof in one and a half, addresses in three.
        let time = between(way, || false).expect("an end");
        assert!((Duration::from_secs(12)..=Duration::from_secs(14)).contains(&time), "{time}");
        let mut rng = Rng::new(3);
        for _ in 0..20 {
            let time = between(way, || rng.below(4) == 0).expect("an end");
            assert!(time < Duration::from_secs(120), "{time}");
        }
        assert_eq!(between(way, || true), None, "after ten tries an end");
    }

    #[test]
    fn whatever_comes_is_no_reason_to_panic() {
        let mut rng = Rng::new(9);
        let mut end = Negotiation::begin(Instant::ZERO, Role::Answerer);
        for _ in 0..20_000 {
            let packet: Vec<u8> = (0..rng.below(24)).map(|_| rng.below(8) as u8).collect();
            let protocol = [LCP, IPCP, CHAP, CCP, 7][rng.below(5) as usize];
            end.handle(Instant::ZERO, protocol, &packet);
            while end.poll().is_some() {}
        }
    }
}
