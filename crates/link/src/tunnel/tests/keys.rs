//! The end of keys (L-PP-6, L-PP-8): in use without a renewal, worn by packets, old, distrusted.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Somebody on the path drops all handshakes; the nodes talk every ten seconds.
fn talk_without_handshakes(w: &mut World, time: Duration) {
    let end = w.now + time;
    while w.now < end {
        w.pass(Duration::from_secs(10));
        w.drain();
        w.net.retain(|p| p.bytes[0] & 0x80 != 0);
        w.probe_without_handshakes();
    }
}

impl World {
    fn probe_without_handshakes(&mut self) {
        let probes = [self.a.seal(self.now, b"probe"), self.b.seal(self.now, b"probe")];
        self.net.extend(probes.into_iter().flatten());
        while let Some(packet) = self.net.pop_front() {
            if packet.bytes[0] & 0x80 != 0 {
                self.deliver(&packet);
            }
        }
    }

    fn rekey(&self) -> [Rekey; 2] {
        [self.a.tunnel.rekey(self.now), self.b.tunnel.rekey(self.now)]
    }
}

/// Who drops handshakes cannot keep a key in use for ever.
#[test]
fn an_hour_of_use_without_a_renewal_is_the_end_and_is_told_long_before() {
    let mut w = World::established();
    w.assert_talking();
    talk_without_handshakes(&mut w, MINUTE.times(29));
    assert_eq!(w.a.tunnel.renew, None);
    talk_without_handshakes(&mut w, MINUTE.times(2));
    assert!(w.a.tunnel.renew.is_some(), "the initiator renews after half of it");
    talk_without_handshakes(&mut w, MINUTE.times(13));
    assert_eq!(w.rekey(), [Rekey::InTime; 2]);
    talk_without_handshakes(&mut w, MINUTE.times(2));
    assert_eq!(w.rekey(), [Rekey::Overdue; 2]);
    let received = w.b.received.len();
    talk_without_handshakes(&mut w, MINUTE.times(13));
    assert!(w.b.received.len() > received + 70, "packets pass until then");
    let late = w.a.seal(w.now, b"late").expect("keys");
    talk_without_handshakes(&mut w, MINUTE.times(2));
    assert_eq!(w.rekey(), [Rekey::Erased; 2]);
    assert!(w.a.seal(w.now, b"no").is_none() && w.b.seal(w.now, b"no").is_none());
    w.deliver(&late);
    assert_eq!(w.b.packet_drops.last(), Some(&PacketError::UnknownIndex), "no key is left");

    let numbers = w.a.tunnel.next_number(PathId::FIRST);
    w.pass(MINUTE);
    w.settle();
    assert_eq!(w.rekey(), [Rekey::InTime; 2]);
    assert_eq!((w.a.sessions, w.b.sessions), (1, 1), "the session goes on");
    assert!(w.a.tunnel.next_number(PathId::FIRST) > numbers, "and so do its numbers");
    w.assert_talking();
}

/// RFC 9001, section 6.6.
#[test]
fn aes_keys_seal_no_more_than_8_million_packets() {
    let mut w = World::established();
    let worn = |w: &mut World, sealed| {
        w.a.tunnel.keys.current_mut().expect("keys").pretend_sealed(sealed);
        let sealed = w.a.seal(w.now, b"one more").is_some();
        w.a.drain(w.now, &mut w.net);
        w.net.clear();
        sealed
    };
    assert!(worn(&mut w, (1 << 22) + (1 << 21) - 2));
    assert_eq!(w.rekey()[0], Rekey::InTime);
    assert!(worn(&mut w, (1 << 22) + (1 << 21) - 1));
    assert_eq!(w.rekey()[0], Rekey::Overdue);
    assert!(worn(&mut w, (1 << 23) - 1), "the last");
    assert_eq!(w.rekey()[0], Rekey::Erased);
    assert!(w.a.seal(w.now, b"another").is_none());
    w.pass(MINUTE);
    w.settle();
    w.assert_talking();
    assert_eq!(w.a.sessions, 1);
}

/// A line that is raised after hours carries data in its first packet; one that was down for
/// more than a day makes a handshake first.
#[test]
fn darkness_wears_no_key_and_a_day_ends_it() {
    let mut w = World::established();
    w.assert_talking();
    w.pass(HOUR.times(20));
    let first = w.a.seal(w.now, b"data at once").expect("keys");
    w.deliver(&first);
    assert_eq!(w.b.received.last().map(|(_, p)| &p[..]), Some(&b"data at once"[..]));
    w.run();
    w.assert_talking();

    w.pass(HOUR.times(25));
    w.lose_all();
    assert!(w.a.seal(w.now, b"too old").is_none() && w.b.seal(w.now, b"too old").is_none());
    assert_eq!(w.rekey(), [Rekey::InTime; 2], "nothing waits, so nothing is overdue");
    assert!(w.a.indices.is_empty() && w.b.indices.is_empty(), "every key is erased");
    let handshakes = w.log.len();
    w.drain();
    assert_eq!(w.log.len(), handshakes, "and no new one is fetched before it is needed");
    w.settle();
    w.assert_talking();
    assert_eq!((w.a.sessions, w.b.sessions), (1, 1));
}

/// An answered initiation that nothing confirms leaves no key for ever.
#[test]
fn pending_keys_are_erased_after_a_day() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.drain();
    let initiation = w.net.pop_front().expect("an initiation");
    w.deliver(&initiation);
    w.net.clear();
    assert_eq!(w.b.indices.len(), 1);
    w.pass(HOUR.times(24));
    w.b.drain(w.now, &mut w.net);
    assert!(w.b.tunnel.keys.timeout().is_none());
    assert!(w.b.indices.len() <= 1, "one may be that of an initiation of its own");
}

/// Who holds back the first packet of a restarted peer cannot end with it what stands hours later.
#[test]
fn pending_keys_of_another_session_are_erased_after_five_minutes() {
    let mut w = World::established();
    w.assert_talking();
    w.a.restart(1, 9);
    w.a.tunnel.connect(w.now);
    w.drain();
    let initiation = w.net.pop_front().expect("an initiation");
    w.deliver(&initiation);
    w.net.clear();
    assert_eq!(w.b.indices.len(), 2, "what stands, and what is pending");
    for (seconds, left) in [(299, 2), (2, 1)] {
        w.now += Duration::from_secs(seconds);
        w.b.tunnel.keys.expire(w.now, crate::tunnel::MAX_KEY_LIFETIME);
        w.b.drain(w.now, &mut w.net);
        w.net.clear();
        assert_eq!(w.b.indices.len(), left);
    }
}

/// Two machines of one snapshot: neither seals another packet under the keys of both.
#[test]
fn keys_that_a_copy_may_have_seal_nothing_and_the_session_goes_on() {
    let mut w = World::established();
    w.assert_talking();
    let numbers = w.a.tunnel.next_number(PathId::FIRST);
    w.a.tunnel.distrust_keys(w.now);
    assert!(w.a.seal(w.now, b"no").is_none() && !w.a.tunnel.is_established());
    w.run();
    w.assert_talking();
    assert_eq!((w.a.sessions, w.b.sessions), (1, 1));
    assert!(w.a.tunnel.next_number(PathId::FIRST) > numbers);
}

/// A handshake under way has a key that a copy has as well.
#[test]
fn the_answer_to_an_initiation_before_the_copy_is_not_taken() {
    let mut w = World::established();
    w.a.tunnel.renew = Some(w.now);
    w.drain();
    let initiation = w.net.pop_front().expect("an initiation");
    w.deliver(&initiation);
    let response = w.net.pop_front().expect("a response");
    w.a.tunnel.distrust_keys(w.now);
    w.deliver(&response);
    assert_eq!(w.a.handshake_drops, [HandshakeError::Unsolicited]);
    w.pass(MINUTE);
    w.settle();
    w.assert_talking();
    assert_eq!(w.a.sessions, 1);
}

/// L-HS-11: the first packets of a path that comes up are for those who wait.
#[test]
fn a_renewal_waits_a_round_trip_on_a_path_that_comes_up() {
    let mut w = World::established();
    w.assert_talking();
    w.a.tunnel.set_path_up(w.now, PathId::FIRST, false);
    w.pass(HOUR.times(3));
    w.a.tunnel.set_path_up(w.now, PathId::FIRST, true);
    let initiations = |w: &mut World| {
        w.drain();
        w.net.iter().filter(|packet| packet.bytes[0] & 0x80 == 0).count()
    };
    let first = w.a.seal(w.now, b"first").expect("keys");
    w.deliver(&first);
    assert!(w.a.tunnel.renew.is_some(), "the keys are old");
    assert_eq!(initiations(&mut w), 0);
    let rtt = w.a.tunnel.rtt;
    w.pass(rtt - Duration::from_millis(1));
    assert_eq!(initiations(&mut w), 0);
    w.pass(Duration::from_millis(1));
    assert_eq!(initiations(&mut w), 1);
    w.run();
    assert_eq!(w.a.tunnel.renew, None);
    w.assert_talking();
}

/// Parameters that changed while a handshake was under way are told by another.
#[test]
fn parameters_that_change_during_a_handshake_are_told_by_the_next() {
    let told = |node: &Node| {
        node.events.iter().rev().find_map(|event| match event {
            Event::Established { params, .. } => Some(*params),
            _ => None,
        })
    };
    let new = Params::new(b"from now on").expect("it is short");
    for is_initiator in [true, false] {
        let mut w = World::new();
        w.a.tunnel.connect(w.now);
        w.drain();
        let initiation = w.net.pop_front().expect("an initiation");
        let now = w.now;
        if is_initiator {
            w.a.tunnel.set_params(new);
            w.a.tunnel.renew(now);
            w.deliver(&initiation);
        } else {
            w.deliver(&initiation);
            w.b.tunnel.set_params(new);
            w.b.tunnel.renew(now);
        }
        w.run();
        w.pass(MINUTE);
        w.settle();
        let other = if is_initiator { &w.b } else { &w.a };
        assert_eq!(told(other), Some(new), "initiator {is_initiator}");
        assert_eq!((w.a.tunnel.renew, w.b.tunnel.renew), (None, None), "that is all");
        assert_eq!((w.a.sessions, w.b.sessions), (1, 1));
        let handshakes = w.log.iter().filter(|packet| packet.bytes[0] & 0x80 == 0).count();
        assert!(handshakes <= 5, "{handshakes}");
    }
}
