//! A node that has thousands to call.

use super::*;

/// Peers whose addresses are known.
const KNOWN: u8 = 200;

fn hub() -> (Endpoint, Vec<PeerId>) {
    let (mut hub, first) = node(1, 2, Some(addr(2)));
    let more = (3..KNOWN + 2).map(|n| {
        let config = PeerConfig {
            public_key: *PrivateKey::from_bytes([n; 32]).public(),
            preshared_key: PresharedKey::NONE,
            endpoint: Some(addr(n)),
            link: link(),
            keepalive: None,
        };
        hub.add_peer(Instant::ZERO, config).expect("another key")
    });
    let more: Vec<_> = more.collect();
    (hub, [vec![first], more].concat())
}

/// Those that are called until then, with when.
fn calls(now: &mut Instant, hub: &mut Endpoint, until: Instant) -> Vec<(Instant, Remote)> {
    let mut all = Vec::new();
    loop {
        all.extend(sent(*now, hub).into_iter().map(|(to, _)| (*now, to)));
        match hub.poll_timeout(*now) {
            Some(at) if at <= until => *now = at,
            _ => return all,
        }
        hub.handle_timeout(*now);
    }
}

#[test]
fn those_whom_nobody_waits_for_are_called_in_turns() {
    let (mut hub, _) = hub();
    let mut now = Instant::ZERO;
    let all = calls(&mut now, &mut hub, Instant::ZERO + Duration::from_millis(900));
    let called: std::collections::BTreeSet<_> = all.iter().map(|(_, to)| *to).collect();
    assert_eq!((all.len(), called.len()), (KNOWN.into(), KNOWN.into()), "each once");
    assert_eq!(all[0].0, Instant::ZERO, "the first at once");
    for (n, (at, _)) in all.iter().enumerate() {
        assert_eq!(*at, Instant::ZERO + Duration::from_millis(2 * n as u64));
    }
}

#[test]
fn who_is_waited_for_needs_no_turn() {
    let (mut hub, peers) = hub();
    let mut now = Instant::ZERO;
    let last = *peers.last().expect("there are some");
    sent(now, &mut hub);
    now += Duration::from_millis(1);
    let origin =
        Origin { client: None, target: Target::Address(([192, 0, 2, 80], 80).into()), dscp: 0 };
    let session = hub.session_mut(last).expect("a session");
    let stream = session.open(now, origin).expect("a stream");
    session.write(now, stream, b"hello");
    let first = calls(&mut now, &mut hub, Instant::from_nanos(1_500_000));
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(first[0], (Instant::from_nanos(1_000_000), addr(KNOWN + 1)));
}
