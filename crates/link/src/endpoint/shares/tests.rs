//! A shard in virtual time: packets wait in one queue, of which each turn takes a batch. A little
//! of their cost comes as they are taken and the rest at the end of the turn, as in the program.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const TAKING: Duration = Duration::from_micros(3);
const DROPPING: Duration = Duration::from_micros(1);
/// One call to the kernel takes so many at most, and the socket holds so many.
const BATCH: usize = 700;
const QUEUE: usize = 3_000;

#[derive(Clone, Copy, Debug)]
struct Sender {
    every: Duration,
    cost: Duration,
}

fn sender(every_us: u64, cost_us: u64) -> Sender {
    Sender { every: Duration::from_micros(every_us), cost: Duration::from_micros(cost_us) }
}

/// What became of a sender's packets.
#[derive(Clone, Debug, Default)]
struct Had {
    sent: u64,
    dropped: u64,
    overflowed: u64,
    waited: Vec<Duration>,
    told: u64,
}

impl Had {
    fn p99(&self) -> Duration {
        let mut waited = self.waited.clone();
        waited.sort_unstable();
        waited[waited.len() - 1 - waited.len() / 100]
    }
}

fn peer(n: usize) -> PeerId {
    PeerId::from_index(n)
}

fn run(senders: &[Sender], seconds: u64) -> Vec<Had> {
    let begin = Instant::ZERO + Duration::from_secs(100);
    let end = begin + Duration::from_secs(seconds);
    let mut had = vec![Had::default(); senders.len()];
    let (mut shares, mut now) = (Shares::default(), begin);
    let mut next: Vec<Instant> =
        senders.iter().enumerate().map(|(n, s)| begin + s.every + TAKING.times(n as u64)).collect();
    let mut queue: VecDeque<(Instant, usize)> = VecDeque::new();
    while now < end {
        let mut came: Vec<(Instant, usize)> = Vec::new();
        for (n, sender) in senders.iter().enumerate() {
            while next[n] <= now {
                came.push((next[n], n));
                next[n] += sender.every;
            }
        }
        came.sort_unstable();
        for (at, n) in came {
            had[n].sent += 1;
            match queue.len() < QUEUE {
                true => queue.push_back((at, n)),
                false => had[n].overflowed += 1,
            }
        }
        shares.begin_turn(now);
        let mut rest = vec![Duration::ZERO; senders.len()];
        for (arrived, n) in queue.drain(..queue.len().min(BATCH)) {
            match shares.admit(now, arrived, peer(n)) {
                Verdict::Drop { tell } => {
                    now += DROPPING;
                    had[n].dropped += 1;
                    had[n].told += u64::from(tell);
                }
                Verdict::Take => {
                    shares.on_authentic(now, arrived, peer(n));
                    had[n].waited.push(now.since(arrived));
                    now += TAKING;
                    shares.charge(peer(n), TAKING);
                    rest[n] += senders[n].cost;
                }
            }
        }
        for (n, rest) in rest.into_iter().enumerate() {
            now += rest;
            shares.charge(peer(n), rest);
        }
        let soonest = next.iter().copied().min().unwrap_or(end);
        now = if queue.is_empty() { now.max(soonest) } else { now };
    }
    had
}

#[test]
fn one_that_takes_the_whole_shard_leaves_the_others_all_of_theirs() {
    // A bulk transfer, and keystrokes; beside them ever more packets that cost ever more.
    let honest = [sender(560, 15), sender(200_000, 50)];
    for (every, cost) in [(560, 1_000), (500, 600), (100, 300), (20, 50), (10, 1_000)] {
        let all = [&honest[..], &[sender(every, cost)]].concat();
        let had = run(&all, 60);
        for had in &had[..2] {
            assert_eq!(had.dropped, 0, "every {every} µs {cost} µs");
            // The first turn, before anything is known, takes up to 0.7 s: the socket overflows.
            assert!(had.overflowed * 60 <= had.sent, "{} of {}", had.overflowed, had.sent);
            assert!(had.p99() <= Duration::from_millis(40), "{} µs", had.p99().as_micros());
        }
        let hostile = &had[2];
        let taken = hostile.sent - hostile.dropped - hostile.overflowed;
        assert!(hostile.dropped > 0 && hostile.told <= 2, "{} told", hostile.told);
        let part = taken as f64 * cost as f64 / 60e6;
        assert!(part > 0.5, "it has what the others leave: {part}");
    }
}

#[test]
fn several_hostile_ones_leave_the_others_theirs_too() {
    let all = [sender(560, 15), sender(100, 300), sender(100, 1_000), sender(300, 400)];
    let had = run(&all, 60);
    assert!(had[0].dropped == 0 && had[0].overflowed * 100 <= had[0].sent, "{:?}", had[0].sent);
    assert!(had[0].p99() <= Duration::from_millis(50), "{} µs", had[0].p99().as_micros());
    assert!(had[1..].iter().all(|had| had.dropped > 0));
}

/// Cheap packets for a second, then a burst of dear ones: the dearest of late counts.
#[test]
fn what_packets_cost_lately_counts_before_it_is_spent() {
    let (mut shares, mut now) = (Shares::default(), Instant::ZERO + Duration::from_secs(100));
    let late = |now: Instant| now - Duration::from_millis(6);
    let turn = |shares: &mut Shares, now: &mut Instant, cost: u64| {
        shares.begin_turn(*now);
        let mut taken = 0;
        for n in 0..500 {
            shares.on_authentic(*now, late(*now), peer(0));
            if shares.admit(*now, *now - Duration::from_micros(n), peer(1)) == Verdict::Take {
                shares.on_authentic(*now, *now, peer(1));
                taken += 1;
            }
        }
        shares.charge(peer(1), Duration::from_micros(cost).times(taken));
        *now += Duration::from_micros(cost).times(taken) + Duration::from_millis(1);
        taken
    };
    assert_eq!(turn(&mut shares, &mut now, 300), 500, "nothing is known yet");
    for _ in 0..2 {
        for _ in 0..500 {
            turn(&mut shares, &mut now, 5);
        }
        assert!(turn(&mut shares, &mut now, 300) <= 100, "25 ms of it");
    }
}

#[test]
fn one_alone_is_never_limited_nor_measured() {
    let had = run(&[sender(100, 1_000)], 30);
    assert_eq!((had[0].dropped, had[0].told), (0, 0));
    let mut shares = Shares::default();
    let now = Instant::ZERO + Duration::from_secs(9);
    shares.on_authentic(now, Instant::ZERO, peer(3));
    assert!(!shares.is_strained());
}

#[test]
fn while_packets_are_taken_in_time_nothing_is_measured_or_dropped() {
    // Nine tenths of the shard, most of it by one.
    let had = run(&[sender(560, 15), sender(100, 80)], 30);
    assert!(had.iter().all(|had| had.dropped + had.overflowed == 0));
    let mut shares = Shares::default();
    let now = Instant::ZERO + Duration::from_secs(9);
    for n in 0..10_000 {
        shares.on_authentic(now, now - Duration::from_millis(4), peer(n % 5));
    }
    assert!(!shares.is_strained() && shares.accounts.is_empty());
}

#[test]
fn strain_is_over_a_minute_after_packets_waited_last() {
    let (mut shares, mut now) = (Shares::default(), Instant::ZERO + Duration::from_secs(9));
    shares.on_authentic(now, now, peer(1));
    shares.on_authentic(now, now - Duration::from_millis(6), peer(2));
    assert!(shares.is_strained());
    now += Duration::from_secs(59);
    shares.begin_turn(now);
    assert!(shares.is_strained());
    shares.begin_turn(now + Duration::from_secs(2));
    assert!(!shares.is_strained() && shares.accounts.is_empty());
}

/// What waited while a turn took long, before anything was known of anybody, is not held against
/// who sent it.
#[test]
fn a_backlog_that_others_caused_is_no_burst() {
    let others = [(358, 713), (1268, 1), (842, 942), (391, 862)];
    let mut all = vec![sender(878, 70)];
    all.extend(others.map(|(every, cost)| sender(every, cost)));
    assert_eq!(run(&all, 5)[0].dropped, 0);
}

proptest! {
    /// Whatever others do: who stays below an eighth of the shard loses nothing by its account.
    #[test]
    fn nobody_below_an_eighth_is_dropped(
        others in prop::collection::vec((20u64..2_000, 1u64..1_000), 1..6),
        (every, part) in (200u64..5_000, 1u64..11)
    ) {
        let modest = sender(every, every * part / 100);
        let mut all = vec![modest];
        all.extend(others.into_iter().map(|(every, cost)| sender(every, cost)));
        let had = run(&all, 5);
        prop_assert_eq!(had[0].dropped, 0);
    }
}
