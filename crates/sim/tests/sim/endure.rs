//! What a link must endure (R-VIRTUAL, R-SEMANTICS): darkness, one dead direction, new
//! addresses, bad channels, clocks that leap, a restart. The simulator itself checks every
//! byte, end and reset; here it is checked that nothing was lost that need not be, and how
//! soon things go on.

use channel::GilbertElliott;
use sim::plan::{Answer, Connection, Fault, FaultKind, Host, THREE_DAYS, Way};
use sim::{LinkState, Plan, Report};
use units::{BitRate, ByteCount, Duration, Instant, Ratio};

const RTT: Duration = Duration::from_millis(600);
const BOTH: Way = Way { sender: 0, both: true };
/// What is on its way when a fault begins takes tens of seconds.
const DOWN: u64 = 4_000_000;
const UP: u64 = 400_000;

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn fault(from: u64, until: u64, kind: FaultKind) -> Fault {
    Fault { from: at(from), until: at(until), kind }
}

fn host(bytes: u64) -> Host {
    Host {
        bytes,
        pace: None,
        after: 0,
        after_end: false,
        resets: false,
        resets_at: None,
        socket: 256 << 10,
        reads: None,
        pause: None,
    }
}

/// 2 Mbit/s down, 256 kbit/s up; downloads and uploads that begin within the first seconds.
/// How drivers work and whether clocks agree is as the seed says.
fn plan(seed: u64, faults: Vec<Fault>) -> Plan {
    let heal_at = faults.iter().map(|f| f.until).max().expect("there are faults");
    let connection = |n: u64, [up, down]: [u64; 2]| Connection {
        at: at(500 + 200 * n),
        node: 0,
        sure: false,
        name: None,
        answer: (Answer::Accept, Duration::from_millis(5)),
        hosts: [host(up), host(down)],
    };
    Plan {
        rates: [BitRate::from_kbps(256), BitRate::from_kbps(2_000)],
        delays: [RTT.divided_by(2); 2],
        second: None,
        promised_rtt: RTT,
        mtus: [1500; 2],
        packets: [1500; 2],
        overhead: 0,
        memories: [ByteCount(16 << 20); 2],
        stream_buffer: None,
        max_streams: [1000; 2],
        keepalives: [None; 2],
        hub_knows: true,
        faults,
        heal_at,
        connections: (0..4)
            .zip([[UP, 0], [500, DOWN]].into_iter().cycle())
            .map(|(n, bytes)| connection(n, bytes))
            .collect(),
        datagrams: Vec::new(),
        ..Plan::of_seed(seed)
    }
}

/// Everything arrives whole and every connection ends in good order.
fn unharmed(plan: &Plan) -> Report {
    let report = sim::run_with(plan, None).unwrap_or_else(|e| panic!("{:?}: {e}", plan.faults));
    // Two more are opened at the end, to see that it can be done.
    let all = plan.connections.len() as u64 + 2;
    assert_eq!((report.finished, report.resets), (all, 0), "{:?}", plan.faults);
    report
}

/// When a node said so first, at or after `from`; in milliseconds from then.
fn found(report: &Report, node: usize, state: LinkState, from: u64) -> Option<u64> {
    let is_it = |n: &&sim::LinkNews| n.node == node && n.state == state && n.at_ms >= from;
    report.news.iter().find(is_it).map(|n| n.at_ms - from)
}

/// L-LO-5, L-LO-6, L-SE-5: however long it was dark, a probe leaves every max(2 s, 2 RTT).
/// The first after the return takes half a round trip, the answer another half, and what
/// then is sent half of one more: two round trips and the interval, with a driver that is
/// late and a packet on the line counted in.
#[test]
fn streams_go_on_soon_after_an_outage_of_any_length() {
    let bound = RTT.times(2).as_millis() + 2_000;
    for minutes in [1, 10, 60] {
        for kind in [FaultKind::Outage(BOTH), FaultKind::Hold(BOTH)] {
            for seed in 0..4 {
                let back = 6_000 + minutes * 60_000;
                let report = unharmed(&plan(seed, vec![fault(6_000, back, kind)]));
                let resumed = report.resumed_ms[0];
                assert!(resumed <= bound, "{kind:?} of {minutes} min: after {resumed} ms");
                for node in 0..2 {
                    let lost = found(&report, node, LinkState::NothingReceived, 6_000);
                    assert!(lost.is_some_and(|ms| ms < 5_000), "node {node}: {lost:?} ms");
                    let again = found(&report, node, LinkState::Back, back);
                    assert!(again.is_some_and(|ms| ms <= bound), "node {node}: {again:?} ms");
                }
            }
        }
    }
}

/// L-LO-7. The two sides say what each can know, and streams wait for neither longer than
/// after darkness both ways.
#[test]
fn one_dead_direction_is_told_apart_at_both_ends() {
    for dead in 0..2 {
        for seconds in [30, 600] {
            for seed in 0..4 {
                let (begin, end) = (6_000, 6_000 + seconds * 1_000);
                let kind = FaultKind::Outage(Way { sender: dead, both: false });
                let report = unharmed(&plan(seed, vec![fault(begin, end, kind)]));
                let news = &report.news;
                let transmit = found(&report, dead, LinkState::TransmitDead, begin);
                assert!(transmit.is_some_and(|ms| ms < 10_000), "{transmit:?}: {news:?}");
                let received = found(&report, 1 - dead, LinkState::NothingReceived, begin);
                assert!(received.is_some_and(|ms| ms < 6_000), "{received:?}: {news:?}");
                let wrong = found(&report, 1 - dead, LinkState::TransmitDead, begin);
                assert_eq!(wrong, None, "its transmitter works: {news:?}");
                for node in 0..2 {
                    let back = found(&report, node, LinkState::Back, end);
                    assert!(back.is_some_and(|ms| ms <= 3_200), "node {node}: {back:?}: {news:?}");
                }
            }
        }
    }
}

/// L-LO-10: packets are few there. In doubt one asks as often as eight questions fit in, until
/// there are 36: here 19 s, after the time until it is in doubt, in packets of 1.25 s.
#[test]
fn a_dead_direction_of_a_thin_link_is_told_as_well() {
    let (begin, end, rate) = (30_000, 630_000, BitRate::from_bps(9_600));
    for dead in 0..2 {
        for seed in 0..4 {
            let kind = FaultKind::Outage(Way { sender: dead, both: false });
            let mut plan = plan(seed, vec![fault(begin, end, kind)]);
            plan.rates = [rate; 2];
            for (n, connection) in plan.connections.iter_mut().enumerate() {
                connection.hosts = [[20_000, 0], [500, 20_000]][n % 2].map(host);
            }
            let report = unharmed(&plan);
            let news = &report.news;
            let transmit = found(&report, dead, LinkState::TransmitDead, begin);
            assert!(transmit.is_some_and(|ms| ms < 50_000), "{transmit:?}: {news:?}");
            let received = found(&report, 1 - dead, LinkState::NothingReceived, begin);
            assert!(received.is_some_and(|ms| ms < 12_000), "{received:?}: {news:?}");
            let wrong = found(&report, 1 - dead, LinkState::TransmitDead, begin);
            assert_eq!(wrong, None, "its transmitter works: {news:?}");
            for node in 0..2 {
                let back = found(&report, node, LinkState::Back, end);
                assert!(back.is_some_and(|ms| ms <= 6_000), "node {node}: {back:?}: {news:?}");
            }
        }
    }
}

/// L-LO-7: losses of half of all packets are no dead direction, in 79 minutes of them.
#[test]
fn no_direction_is_called_dead_that_is_only_bad() {
    for seed in 0..24 {
        let half = FaultKind::Loss(BOTH, Ratio::from_f64(0.5));
        let report = unharmed(&plan(seed, vec![fault(3_000, 200_000, half)]));
        let dead = report.news.iter().filter(|n| n.state == LinkState::TransmitDead).count();
        assert_eq!(dead, 0, "seed {seed}: {:?}", report.news);
    }
}

/// L-AC-1, L-AC-2: the new address is heard, asked, and answers.
#[test]
fn a_node_that_moves_in_mid_transfer_is_followed_within_three_round_trips() {
    for seed in 0..8 {
        let report = unharmed(&plan(seed, vec![fault(6_000, 6_001, FaultKind::Move(0))]));
        let moved = found(&report, 1, LinkState::Moved, 6_000);
        assert!(moved.is_some_and(|ms| ms <= 3 * 600), "{moved:?} ms");
    }
}

/// Neither is where the other looks for it: the hub's name is resolved again after 5 s.
#[test]
fn two_nodes_that_move_at_once_find_each_other_by_the_hubs_name() {
    for seed in 0..8 {
        let moves =
            vec![fault(6_000, 6_001, FaultKind::Move(0)), fault(6_000, 11_000, FaultKind::Move(1))];
        let report = unharmed(&plan(seed, moves));
        let moved = found(&report, 1, LinkState::Moved, 11_000);
        assert!(moved.is_some_and(|ms| ms <= 2_000 + 3 * 600), "{moved:?} ms: {:?}", report.news);
    }
}

#[test]
fn bad_channels_delay_but_harm_nothing() {
    let share = Ratio::from_f64;
    let detour = Duration::from_millis(150);
    let loss = FaultKind::Loss(BOTH, share(0.5));
    let reordering = FaultKind::Reordering(BOTH, share(0.25), detour);
    let duplication = FaultKind::Duplication(BOTH, share(0.1), detour);
    let corruption = FaultKind::Corruption(BOTH, share(0.01));
    let bursts = FaultKind::Bursts(
        BOTH,
        GilbertElliott { p: share(0.01), r: share(0.05), h: share(0.1), k: Ratio::ONE },
    );
    let alone = [loss, reordering, duplication, corruption, bursts].map(|kind| vec![kind]);
    let together = vec![loss, reordering, duplication, corruption];
    for kinds in alone.into_iter().chain([together]) {
        for seed in 0..3 {
            let faults = kinds.iter().map(|kind| fault(1, 300_000, *kind)).collect();
            let report = unharmed(&plan(seed, faults));
            assert_eq!(report.converged_after_ms, 0, "{kinds:?}: it was over before they were");
        }
    }
}

/// L-CL-1, L-CL-2: three days of difference, either way, and leaps in mid-transfer. Keys
/// are old then and are renewed; nothing else may come of it.
#[test]
fn clocks_that_are_three_days_off_or_leap_change_nothing() {
    for seed in 0..4 {
        for clocks in [[Duration::ZERO, THREE_DAYS], [THREE_DAYS, Duration::ZERO]] {
            for node in 0..2 {
                let leap = fault(6_000, 6_001, FaultKind::Leap(node, THREE_DAYS));
                unharmed(&Plan { clocks, ..plan(seed, vec![leap]) });
                // In the dark, both, one after the other.
                let faults = vec![
                    fault(6_000, 66_000, FaultKind::Outage(BOTH)),
                    fault(20_000, 20_001, FaultKind::Leap(node, THREE_DAYS)),
                    fault(40_000, 40_001, FaultKind::Leap(1 - node, THREE_DAYS)),
                ];
                let report = unharmed(&Plan { clocks, ..plan(seed, faults) });
                // As after any darkness, and a handshake goes first (L-PP-9).
                assert!(report.resumed_ms[0] <= 4_200, "after {} ms", report.resumed_ms[0]);
            }
        }
    }
}

/// L-SE-3, L-ST-5: a node that forgot everything, and whose clock is now three days
/// behind the peer's, or ahead, makes a handshake; streams of before are reset at both
/// ends, and none goes on as another.
#[test]
fn a_node_that_restarts_resets_its_orphans_and_splices_none() {
    for seed in 0..4 {
        for clocks in [[Duration::ZERO, THREE_DAYS], [THREE_DAYS, Duration::ZERO]] {
            for node in 0..2 {
                let restart = fault(6_000, 9_000, FaultKind::Restart(node));
                let mut plan = Plan { clocks, heal_at: at(20_000), ..plan(seed, vec![restart]) };
                // Fresh ones, which the new session numbers as the old one did its own.
                let first = plan.connections.len() as u64;
                let late =
                    |n: u64| Connection { at: at(12_000 + n), ..plan.connections[1].clone() };
                let more: Vec<Connection> = (0..first).map(late).collect();
                plan.connections.extend(more);
                let report = sim::run_with(&plan, None).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(report.finished, first + 2, "those of afterwards, and no others");
                assert_eq!(report.resets, 2 * first, "both ends of each that was open");
            }
        }
    }
}

/// L-PP-8: who drops all handshakes cannot keep keys in use for ever. The streams wait, and go
/// on under the first keys that come through.
#[test]
fn streams_survive_keys_that_nothing_replaced_in_time() {
    for seed in 0..4 {
        let faults = vec![fault(5_000, 300_000, FaultKind::NoHandshakes)];
        let mut plan = Plan { key_lifetime: Duration::from_secs(120), ..plan(seed, faults) };
        for connection in &mut plan.connections {
            for host in &mut connection.hosts {
                host.pace = Some(BitRate::from_bps(16 * host.bytes / 300));
            }
        }
        let report = unharmed(&plan);
        let erased = report.news.iter().filter(|l| l.state == LinkState::KeysErased);
        let at: Vec<u64> = erased.map(|l| l.at_ms).collect();
        assert!(at.iter().all(|at| (120_000..150_000).contains(at)), "{at:?}");
        assert!(!at.is_empty(), "an end's keys were worn out first");
    }
}
