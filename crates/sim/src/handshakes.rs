//! Handshakes over a link that loses three packets of ten each way (L-HS-8, L-HS-15).

use units::{BitRate, Duration, Instant, Ratio};

use crate::plan::{Answer, Connection, Fault, FaultKind, Host, Plan, Way};
use crate::world::World;

const WITHIN: Duration = Duration::from_secs(15);

/// Two nodes that start at once, 1.5 s of round trip apart, 30 % lost each way.
fn plan(seed: u64, connections: Vec<Connection>) -> Plan {
    let rate = BitRate::from_kbps(256);
    let losses = Fault {
        from: Instant::ZERO,
        until: Instant::ZERO + Duration::from_secs(3_600),
        kind: FaultKind::Loss(Way { sender: 0, both: true }, Ratio::from_f64(0.3)),
    };
    Plan {
        seed,
        hub_knows: false,
        faults: vec![losses],
        heal_at: Instant::ZERO + WITHIN,
        connections,
        ..Plan::quiet([rate; 2], Duration::from_millis(1_500))
    }
}

/// A client that knocks at once.
fn client() -> Connection {
    let host = Host {
        bytes: 1_000,
        pace: None,
        after: 0,
        after_end: false,
        resets: false,
        resets_at: None,
        socket: 64 * 1024,
        reads: None,
        pause: None,
    };
    Connection {
        at: Instant::ZERO + Duration::from_millis(1),
        node: 0,
        sure: false,
        name: None,
        answer: (Answer::Accept, Duration::from_millis(1)),
        hosts: [host; 2],
    }
}

/// When both nodes have the keys of one session, within a minute.
fn times(seeds: std::ops::Range<u64>, connections: &[Connection]) -> Vec<Duration> {
    seeds
        .map(|seed| {
            let plan = plan(seed, connections.to_vec());
            let mut world = World::new(&plan, None);
            let agreed = |w: &World<'_>| {
                let [near, far] = w.nodes.each_ref().map(|n| n.session_names());
                near.is_some() && near == far.map(|(local, remote)| (remote, local))
            };
            let minute = Instant::ZERO + Duration::from_secs(60);
            world.run(minute, agreed).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
            world.now.since(Instant::ZERO)
        })
        .collect()
}

#[test]
fn fifty_of_fifty_handshakes_succeed_within_15_s_where_three_packets_of_ten_are_lost() {
    for connections in [vec![], vec![client()]] {
        let times = times(0..1_000, &connections);
        let late = |of: &[Duration]| of.iter().filter(|t| **t > WITHIN).count();
        assert_eq!(late(&times[..50]), 0, "{:?}", &times[..50]);
        // One in 1,300 was measured with many more.
        assert!(late(&times) <= 3, "{} of {}", late(&times), times.len());
    }
}
