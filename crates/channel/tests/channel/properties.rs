//! What holds for every configuration and every arrival pattern.

use channel::{Arrival, Channel, ChannelConfig, Counters, GilbertElliott, OutageMode};
use channel::{Outage, Policer, QueueLimit, Schedule};
use proptest::prelude::*;
use units::{BitRate, ByteCount, Duration, Instant, Ratio};

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Push(u64),
    Rate(u64),
    Outage(bool),
}

fn share() -> impl Strategy<Value = Ratio> {
    prop_oneof![Just(Ratio::ZERO), (0.0..0.5f64).prop_map(Ratio::from_f64), Just(Ratio::ONE)]
}

fn burst() -> impl Strategy<Value = Option<GilbertElliott>> {
    let r = (0.01..1.0f64).prop_map(Ratio::from_f64);
    proptest::option::of((share(), r, share(), share()).prop_map(|(p, r, h, k)| GilbertElliott {
        p,
        r,
        h,
        k,
    }))
}

fn queue() -> impl Strategy<Value = QueueLimit> {
    prop_oneof![
        (0..50_000u64).prop_map(|n| QueueLimit::Bytes(ByteCount(n))),
        (0..500u64).prop_map(|n| QueueLimit::Time(Duration::from_millis(n))),
    ]
}

fn outages() -> impl Strategy<Value = Vec<Outage>> {
    let one = (0..400u64, 1..100u64).prop_map(|(start, length)| {
        let start = Instant::ZERO + Duration::from_millis(start);
        Outage { start, end: start + Duration::from_millis(length) }
    });
    proptest::collection::vec(one, 0..4)
}

/// Steps, ramps that repeat, and draws, between 10 kbit/s and 50 Mbit/s or 0 and 600 ms.
fn schedule(unit: &'static str, low: u64, high: u64) -> impl Strategy<Value = String> {
    (low..high, low..high, 1..300u64, 1..300u64, 0..4u8).prop_map(move |(a, b, t, more, kind)| {
        let (low, high, end) = (a.min(b), a.max(b), t + more);
        match kind {
            0 => format!("0s {a}{unit}, {t}ms {b}{unit}"),
            1 => format!("0s {a}{unit}, {t}ms to {b}{unit}, repeat {end}ms"),
            2 => format!("0s {a}{unit}, {t}ms {b}{unit}, {end}ms to {a}{unit}, repeat {end}ms"),
            _ => format!("{low}{unit}-{high}{unit} every {t}ms"),
        }
    })
}

fn policer() -> impl Strategy<Value = Option<Policer>> {
    let one = (1_000..50_000_000u64, 1_500..100_000u64);
    proptest::option::of(one.prop_map(|(rate, burst)| Policer {
        rate: BitRate::from_bps(rate),
        burst: ByteCount(burst),
    }))
}

prop_compose! {
    fn config()(
        rate in proptest::option::of(1_000..50_000_000u64),
        delay in 0..600u64,
        queue in queue(),
        ber in 0.0..1e-4f64,
        (burst, outages, hold, mtu) in
            (burst(), outages(), any::<bool>(), proptest::option::of(128..1_500u16)),
        (loss, reorder, duplicate, corrupt) in (share(), share(), share(), share()),
        (reorder_delay, duplicate_delay) in (1..50_000u64, 0..50_000u64),
        rate_schedule in proptest::option::of(schedule("kbit", 10, 50_000)),
        delay_schedule in proptest::option::of(schedule("ms", 0, 600)),
        policer in policer(),
    ) -> ChannelConfig {
        ChannelConfig {
            rate: rate.map(BitRate::from_bps),
            rate_schedule: rate_schedule.map(|s| s.parse().unwrap()),
            delay: Duration::from_millis(delay),
            delay_schedule: delay_schedule.map(|s| s.parse().unwrap()),
            policer,
            queue,
            mtu,
            ber: Ratio::from_f64(ber),
            burst,
            loss,
            outages,
            outage_mode: if hold { OutageMode::Hold } else { OutageMode::Lose },
            reorder,
            reorder_delay: Duration::from_micros(reorder_delay),
            duplicate,
            duplicate_delay: Duration::from_micros(duplicate_delay),
            corrupt,
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..20_000u64).prop_map(Step::Wait),
        12 => (0..2_000u64).prop_map(Step::Push),
        1 => (1_000..50_000_000u64).prop_map(Step::Rate),
        1 => any::<bool>().prop_map(Step::Outage),
    ];
    proptest::collection::vec(step, 1..200)
}

/// Plays the steps and drains; what arrived, in order, and the counters.
fn play(config: &ChannelConfig, steps: &[Step], seed: u64) -> (Vec<Arrival<u64>>, Counters) {
    let mut channel = Channel::new(config.clone(), seed).unwrap();
    let (mut now, mut arrivals) = (Instant::ZERO, Vec::new());
    for (step, serial) in steps.iter().zip(0u64..) {
        match step {
            Step::Wait(us) => now += Duration::from_micros(*us),
            Step::Push(len) => {
                let _ = channel.push(now, ByteCount(*len), serial);
            }
            Step::Rate(bps) if config.rate.is_some() => {
                channel.set_rate(now, Some(BitRate::from_bps(*bps))).unwrap();
            }
            Step::Rate(_) => {}
            Step::Outage(on) => channel.set_outage(now, *on),
        }
        arrivals.extend(std::iter::from_fn(|| channel.pop(now)));
    }
    channel.set_outage(now, false);
    while let Some(at) = channel.next_time() {
        assert!(channel.held() > 0);
        arrivals.extend(std::iter::from_fn(|| channel.pop(at)));
    }
    assert_eq!(channel.held(), 0, "next_time forgot a packet");
    (arrivals, *channel.counters())
}

fn originals(arrivals: &[Arrival<u64>]) -> impl Iterator<Item = &Arrival<u64>> {
    arrivals.iter().filter(|a| !a.is_copy)
}

proptest! {
    #[test]
    fn every_packet_is_accounted_for(config in config(), steps in steps(), seed: u64) {
        let (arrivals, counters) = play(&config, &steps, seed);
        let pushed = steps.iter().filter(|s| matches!(s, Step::Push(_))).count() as u64;
        prop_assert_eq!(counters.offered.packets, pushed);
        let refused = counters.policed.bytes + counters.queue_drops.bytes;
        prop_assert_eq!(counters.offered.bytes, counters.sent.bytes + refused);
        prop_assert_eq!(counters.sent.bytes, counters.delivered.bytes + counters.lost().bytes);
        prop_assert_eq!(originals(&arrivals).count() as u64, counters.sent.packets);
        let mut items: Vec<u64> = originals(&arrivals).map(|a| a.item).collect();
        items.sort();
        items.dedup();
        prop_assert_eq!(items.len() as u64, counters.sent.packets);
    }

    #[test]
    fn copies_come_after_the_first_and_only_where_announced(
        config in config(), steps in steps(), seed: u64,
    ) {
        let (arrivals, counters) = play(&config, &steps, seed);
        let mut open = std::collections::BTreeSet::new();
        for arrival in &arrivals {
            if arrival.is_copy {
                prop_assert!(open.remove(&arrival.item));
            } else if arrival.copy_follows {
                open.insert(arrival.item);
            }
        }
        prop_assert!(open.is_empty());
        let copies = arrivals.iter().filter(|a| a.is_copy).count() as u64;
        prop_assert_eq!(counters.duplicated.packets, copies);
    }

    #[test]
    fn without_reordering_packets_keep_their_order(
        config in config(), steps in steps(), seed: u64,
    ) {
        let config = ChannelConfig { reorder: Ratio::ZERO, ..config };
        let (arrivals, _) = play(&config, &steps, seed);
        let items: Vec<u64> = originals(&arrivals).map(|a| a.item).collect();
        prop_assert!(items.is_sorted());
        prop_assert!(originals(&arrivals).map(|a| a.at).is_sorted());
    }

    #[test]
    fn nothing_is_faster_than_the_rate_and_the_delay(
        config in config(), steps in steps(), seed: u64,
    ) {
        let steps: Vec<Step> =
            steps.into_iter().filter(|s| !matches!(s, Step::Rate(_))).collect();
        let (rate_schedule, delay_schedule) = (None, None);
        let config =
            ChannelConfig { reorder: Ratio::ZERO, rate_schedule, delay_schedule, ..config };
        let (arrivals, _) = play(&config, &steps, seed);
        for a in &arrivals {
            let line = config.rate.map_or(Duration::ZERO, |r| r.time_for(a.len));
            // The start may be up to a nanosecond before the rounded end of the last.
            let least = Duration::from_nanos(line.as_nanos().saturating_sub(1)) + config.delay;
            prop_assert!(a.at.since(a.entered) >= least, "{a:?}");
        }
        let Some(rate) = config.rate else { return Ok(()) };
        let sent: Vec<_> = originals(&arrivals).collect();
        let mut bytes = ByteCount(0);
        for pair in sent.windows(2) {
            bytes += pair[1].len;
            let taken = pair[1].at.since(sent[0].at) + Duration::from_nanos(1);
            prop_assert!(taken >= rate.time_for(bytes), "{bytes} in {taken}");
        }
    }

    #[test]
    fn nothing_is_faster_than_the_highest_rate_of_a_schedule(
        config in config(), schedule in schedule("kbit", 10, 50_000), steps in steps(), seed: u64,
    ) {
        let steps: Vec<Step> =
            steps.into_iter().filter(|s| !matches!(s, Step::Rate(_))).collect();
        let schedule: Schedule<BitRate> = schedule.parse().unwrap();
        let highest = schedule.highest();
        let rate_schedule = Some(schedule);
        let config =
            ChannelConfig { reorder: Ratio::ZERO, delay_schedule: None, rate_schedule, ..config };
        let (arrivals, _) = play(&config, &steps, seed);
        for a in &arrivals {
            let line = Duration::from_nanos(highest.time_for(a.len).as_nanos().saturating_sub(1));
            prop_assert!(a.at.since(a.entered) >= line + config.delay, "{a:?}");
        }
        let sent: Vec<_> = originals(&arrivals).collect();
        let mut bytes = ByteCount(0);
        for pair in sent.windows(2) {
            bytes += pair[1].len;
            let taken = pair[1].at.since(sent[0].at) + Duration::from_nanos(1);
            prop_assert!(taken >= highest.time_for(bytes), "{bytes} in {taken}");
        }
    }

    #[test]
    fn a_policer_passes_no_more_than_its_bucket_and_its_rate(
        config in config(), policer in policer(), steps in steps(), seed: u64,
    ) {
        let config = ChannelConfig { policer, ..config };
        let Some(policer) = policer else { return Ok(()) };
        let (_, counters) = play(&config, &steps, seed);
        let waits = steps.iter().map(|s| if let Step::Wait(us) = s { *us } else { 0 });
        let filled = policer.rate.bytes_in(Duration::from_micros(waits.sum()));
        let passed = ByteCount(counters.offered.bytes - counters.policed.bytes);
        prop_assert!(passed <= policer.burst + filled + ByteCount(1), "{passed}");
    }

    #[test]
    fn what_a_saturated_line_carries_is_its_capacity(
        schedule in schedule("kbit", 10, 50_000), seed: u64,
    ) {
        let rate_schedule = Some(schedule.parse().unwrap());
        let queue = QueueLimit::Bytes(ByteCount(10_000_000));
        let config = ChannelConfig { rate_schedule, queue, ..ChannelConfig::default() };
        let mut channel = Channel::new(config, seed).unwrap();
        for serial in 0..2_000u64 {
            channel.push(Instant::ZERO, ByteCount(1_000), serial).unwrap();
        }
        let end = Instant::ZERO + Duration::from_secs(1);
        channel.advance(end);
        let capacity = channel.capacity(Instant::ZERO, end).unwrap().0.min(2_000_000);
        let sent = channel.counters().sent.bytes;
        prop_assert!(sent <= capacity + 1 && capacity - sent <= 1_000, "{sent} of {capacity}");
    }

    #[test]
    fn a_seed_replays_exactly(config in config(), steps in steps(), seed: u64) {
        prop_assert_eq!(play(&config, &steps, seed), play(&config, &steps, seed));
    }

    #[test]
    fn a_modem_that_holds_sends_nothing_in_an_outage(config in config(), steps in steps(), seed: u64) {
        let outage_mode = OutageMode::Hold;
        let delay_schedule = None;
        let config =
            ChannelConfig { outage_mode, reorder: Ratio::ZERO, delay_schedule, ..config };
        let (arrivals, counters) = play(&config, &steps, seed);
        prop_assert_eq!(counters.lost_outage.packets, 0);
        for a in originals(&arrivals) {
            let last_bit = a.at - config.delay;
            let dark = config.outages.iter().find(|o| o.start <= last_bit && last_bit < o.end);
            prop_assert!(dark.is_none(), "{a:?} was sent during {dark:?}");
        }
    }
}
