//! What a channel does to packets, one property at a time.

use channel::{Arrival, Channel, ChannelConfig, Fate, LossCause, OutageMode, QueueLimit, Refused};
use units::{BitRate, ByteCount, Duration, Instant, Ratio};

const FULL: ByteCount = ByteCount(1_500);

fn ms(n: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(n)
}

/// 12 Mbit/s: a packet of 1,500 bytes takes exactly one millisecond.
fn one_a_millisecond() -> ChannelConfig {
    ChannelConfig {
        rate: Some(BitRate::from_mbps(12)),
        queue: QueueLimit::Bytes(ByteCount(1_000_000)),
        ..ChannelConfig::default()
    }
}

/// Pops everything, each packet at the time that the channel named.
fn drain<T: Clone>(channel: &mut Channel<T>) -> Vec<Arrival<T>> {
    let mut arrivals = Vec::new();
    while let Some(at) = channel.next_time() {
        while let Some(arrival) = channel.pop(at) {
            assert_eq!(arrival.at, at, "a packet came late");
            arrivals.push(arrival);
        }
    }
    assert_eq!(channel.held(), 0);
    arrivals
}

fn push_all(channel: &mut Channel<u64>, n: u64) {
    for i in 0..n {
        channel.push(Instant::ZERO, FULL, i).unwrap();
    }
}

#[test]
fn a_full_queue_hands_the_packet_back_and_the_one_on_the_line_does_not_count() {
    let limit = QueueLimit::Time(Duration::from_millis(2));
    let config = ChannelConfig { queue: limit, ..one_a_millisecond() };
    let mut channel = Channel::new(config, 1).unwrap();
    push_all(&mut channel, 3);
    assert_eq!(channel.push(Instant::ZERO, FULL, 3), Err(Refused::Full(3)));
    assert!(channel.push(ms(1), FULL, 4).is_ok());
    let items: Vec<u64> = drain(&mut channel).iter().map(|a| a.item).collect();
    assert_eq!(items, [0, 1, 2, 4]);
    assert_eq!(channel.counters().queue_drops.packets, 1);
}

#[test]
fn a_queue_of_nothing_still_lets_an_idle_line_send() {
    let config = ChannelConfig { queue: QueueLimit::Bytes(ByteCount(0)), ..one_a_millisecond() };
    let mut channel = Channel::new(config, 1).unwrap();
    assert!(channel.push(Instant::ZERO, FULL, 0).is_ok());
    assert!(channel.push(Instant::ZERO, FULL, 1).is_err());
    assert!(channel.push(ms(1), FULL, 2).is_ok());
}

#[test]
fn empty_packets_fill_the_queue_too() {
    let config = ChannelConfig { queue: QueueLimit::Bytes(ByteCount(10)), ..one_a_millisecond() };
    let mut channel = Channel::new(config, 1).unwrap();
    let taken = (0..1_000).filter(|i| channel.push(Instant::ZERO, ByteCount(0), *i).is_ok());
    assert_eq!(taken.count(), 11);
}

#[test]
fn a_saturated_line_has_no_rate_error_at_all() {
    let rate = BitRate::from_bps(6_543_217);
    let config = ChannelConfig { rate: Some(rate), ..one_a_millisecond() };
    let mut channel = Channel::new(config, 1).unwrap();
    let (mut last, mut bytes) = (Instant::ZERO, 0u64);
    for i in 0..200_000u64 {
        let len = 40 + i * 7 % 1_461;
        // Just before the line would run dry, so that it never does.
        while channel.waiting() > ByteCount(10_000) {
            let at = channel.next_time().unwrap();
            while let Some(arrival) = channel.pop(at) {
                last = arrival.at;
            }
        }
        channel.push(last, ByteCount(len), i).unwrap();
        bytes += len;
    }
    last = drain(&mut channel).last().unwrap().at;
    assert_eq!(last.as_nanos() as u128, (bytes as u128 * 8_000_000_000).div_ceil(6_543_217));
}

#[test]
fn a_step_of_the_rate_holds_for_what_waits() {
    let mut channel = Channel::new(one_a_millisecond(), 1).unwrap();
    push_all(&mut channel, 4);
    channel.set_rate(ms(1), Some(BitRate::from_mbps(6))).unwrap();
    let times: Vec<Instant> = drain(&mut channel).iter().map(|a| a.at).collect();
    // The second was on the line already: 1, 2, then two milliseconds each.
    assert_eq!(times, [ms(1), ms(2), ms(4), ms(6)]);
}

#[test]
fn a_shorter_delay_lets_nobody_overtake() {
    let slow = ChannelConfig { delay: Duration::from_millis(100), ..one_a_millisecond() };
    let mut channel = Channel::new(slow.clone(), 1).unwrap();
    push_all(&mut channel, 2);
    let fast = ChannelConfig { delay: Duration::from_millis(10), ..slow };
    channel.reconfigure(ms(1), fast).unwrap();
    let arrivals = drain(&mut channel);
    assert_eq!(
        arrivals.iter().map(|a| (a.item, a.at)).collect::<Vec<_>>(),
        [(0, ms(101)), (1, ms(101))]
    );
}

#[test]
fn a_fade_loses_what_the_line_sends_meanwhile() {
    let outages = vec!["2ms-4ms".parse().unwrap()];
    let mut channel = Channel::new(ChannelConfig { outages, ..one_a_millisecond() }, 1).unwrap();
    push_all(&mut channel, 6);
    let lost: Vec<bool> =
        drain(&mut channel).iter().map(|a| a.fate == Fate::Lost(LossCause::Outage)).collect();
    // The second ends at the first moment without a link.
    assert_eq!(lost, [false, true, true, true, false, false]);
    assert_eq!(channel.counters().lost_outage.packets, 3);
}

#[test]
fn a_modem_that_knows_holds_packets_and_loses_none() {
    let config = ChannelConfig {
        outages: vec!["2500us-40ms".parse().unwrap()],
        outage_mode: OutageMode::Hold,
        ..one_a_millisecond()
    };
    let mut channel = Channel::new(config, 1).unwrap();
    push_all(&mut channel, 4);
    let times: Vec<Instant> = drain(&mut channel).iter().map(|a| a.at).collect();
    assert_eq!(times, [ms(1), ms(2), ms(41), ms(42)]);
}

#[test]
fn an_outage_by_hand_loses_or_holds_until_it_is_over() {
    for mode in [OutageMode::Lose, OutageMode::Hold] {
        let config = ChannelConfig { outage_mode: mode, ..one_a_millisecond() };
        let mut channel = Channel::new(config, 1).unwrap();
        push_all(&mut channel, 3);
        channel.set_outage(ms(1), true);
        assert!(channel.in_manual_outage());
        assert_eq!(channel.pop(ms(1)).unwrap().fate, Fate::Delivered);
        while channel.pop(ms(10)).is_some() {}
        channel.set_outage(ms(10), false);
        channel.push(ms(10), FULL, 3).unwrap();
        let lost = if mode == OutageMode::Lose { 2 } else { 0 };
        drain(&mut channel);
        assert_eq!(channel.counters().lost_outage.packets, lost);
        assert_eq!(channel.counters().delivered.packets, 4 - lost);
    }
}

#[test]
fn a_detour_lets_later_packets_overtake() {
    let config = ChannelConfig {
        reorder: Ratio::from_f64(0.1),
        reorder_delay: Duration::from_micros(2_500),
        ..one_a_millisecond()
    };
    let mut channel = Channel::new(config, 5).unwrap();
    push_all(&mut channel, 500);
    let items: Vec<u64> = drain(&mut channel).iter().map(|a| a.item).collect();
    let late = items.windows(2).filter(|w| w[1] < w[0]).count() as u64;
    assert!(late > 0);
    let furthest = items.iter().zip(0u64..).map(|(item, i)| i.abs_diff(*item)).max();
    assert!(furthest.unwrap() <= 2 + late, "2.5 ms are overtaken by two packets");
    let mut sorted = items;
    sorted.sort();
    assert_eq!(sorted, (0..500).collect::<Vec<_>>());
}

#[test]
fn a_second_copy_follows_the_first_and_says_so() {
    let config = ChannelConfig {
        duplicate: Ratio::ONE,
        duplicate_delay: Duration::from_micros(1_500),
        ..one_a_millisecond()
    };
    let mut channel = Channel::new(config, 5).unwrap();
    push_all(&mut channel, 2);
    let seen: Vec<_> =
        drain(&mut channel).iter().map(|a| (a.item, a.is_copy, a.copy_follows)).collect();
    assert_eq!(seen, [(0, false, true), (1, false, true), (0, true, false), (1, true, false)]);
    assert_eq!(channel.counters().delivered.packets, 2);
    assert_eq!(channel.counters().duplicated.packets, 2);
}

#[test]
fn a_corrupted_packet_differs_in_one_bit() {
    let config = ChannelConfig { corrupt: Ratio::ONE, ..one_a_millisecond() };
    let mut channel = Channel::new(config, 9).unwrap();
    channel.push(Instant::ZERO, FULL, vec![0u8; 1_500]).unwrap();
    let bytes = channel.pop_bytes(ms(1)).unwrap();
    assert_eq!(bytes.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
    assert_eq!(channel.counters().corrupted.packets, 1);
}

#[test]
fn an_endless_flood_without_a_rate_is_bounded() {
    let config = ChannelConfig { delay: Duration::from_secs(3_600), ..ChannelConfig::default() };
    let mut channel = Channel::new(config, 1).unwrap();
    let big = ByteCount(1_000_000);
    let taken = (0..1_000).filter(|i| channel.push(Instant::ZERO, big, *i).is_ok()).count();
    assert_eq!(taken, 256);
}

#[test]
fn switching_duplication_on_leaves_the_losses_as_they_were() {
    let lossy = ChannelConfig { loss: Ratio::from_f64(0.2), ..one_a_millisecond() };
    let doubled = ChannelConfig { duplicate: Ratio::from_f64(0.5), ..lossy.clone() };
    let lost = |config| {
        let mut channel = Channel::new(config, 77).unwrap();
        push_all(&mut channel, 300);
        let arrivals = drain(&mut channel);
        let lost = arrivals.into_iter().filter(|a| matches!(a.fate, Fate::Lost(_)));
        lost.map(|a| a.item).collect::<Vec<_>>()
    };
    assert_eq!(lost(lossy), lost(doubled));
}

#[test]
fn the_series_adds_up_to_the_counters() {
    let config = ChannelConfig { ber: Ratio::from_f64(1e-5), ..one_a_millisecond() };
    let mut channel = Channel::new(config, 3).unwrap().with_series(Duration::from_millis(7), 20);
    push_all(&mut channel, 600);
    drain(&mut channel);
    let bins = channel.series().bins();
    assert_eq!(bins.iter().map(|b| b.sent_bytes).sum::<u64>(), channel.counters().sent.bytes);
    assert_eq!(bins.iter().map(|b| b.lost_bytes).sum::<u64>(), channel.counters().lost().bytes);
    assert_eq!(bins.iter().map(|b| b.busy_ns).sum::<u64>(), 600_000_000);
    assert_eq!(bins[0].busy_ns, channel.series().width().as_nanos(), "the line was always busy");
}

#[test]
fn a_packet_behind_a_shorter_delay_waits_for_the_one_before_it() {
    let delay_schedule = Some("0s 60ms, 10ms 25ms, 60ms 60ms".parse().unwrap());
    let config = ChannelConfig { delay_schedule, ..ChannelConfig::default() };
    let mut channel = Channel::new(config, 1).unwrap();
    for (serial, at) in [0, 5, 10, 20, 50, 60].into_iter().enumerate() {
        channel.push(ms(at), FULL, serial).unwrap();
    }
    let arrivals: Vec<_> = drain(&mut channel).iter().map(|a| (a.item, a.at)).collect();
    let expected = [60, 65, 65, 65, 75, 120].map(ms).into_iter().enumerate();
    assert_eq!(arrivals, expected.collect::<Vec<_>>());
}

#[test]
fn a_policed_packet_is_handed_back_at_once_and_leaves_the_line_alone() {
    let policer = Some(channel::Policer { rate: BitRate::from_mbps(6), burst: ByteCount(1_500) });
    let mut channel = Channel::new(ChannelConfig { policer, ..one_a_millisecond() }, 1).unwrap();
    let taken: Vec<bool> = (0..6).map(|i| channel.push(ms(i), FULL, i).is_ok()).collect();
    assert_eq!(taken, [true, false, true, false, true, false]);
    assert_eq!(channel.push(ms(5), FULL, 9), Err(Refused::Policed(9)));
    let times: Vec<Instant> = drain(&mut channel).iter().map(|a| a.at).collect();
    assert_eq!(times, [ms(1), ms(3), ms(5)]);
    let counters = channel.counters();
    assert_eq!([counters.policed.packets, counters.queue_drops.packets], [4, 0]);
}

#[test]
fn a_step_by_hand_ends_a_schedule_and_a_schedule_leaves_the_losses_as_they_were() {
    let lossy = ChannelConfig { loss: Ratio::from_f64(0.2), ..one_a_millisecond() };
    let lost = |config| {
        let mut channel = Channel::new(config, 77).unwrap();
        push_all(&mut channel, 300);
        let arrivals = drain(&mut channel);
        let lost = arrivals.into_iter().filter(|a| matches!(a.fate, Fate::Lost(_)));
        lost.map(|a| a.item).collect::<Vec<_>>()
    };
    let rate_schedule = Some("1Mbit-20Mbit every 5ms".parse().unwrap());
    let changing = ChannelConfig { rate_schedule, ..lossy.clone() };
    assert_eq!(lost(lossy), lost(changing.clone()));
    let mut channel = Channel::<u64>::new(changing, 1).unwrap();
    channel.set_rate(ms(1), Some(BitRate::from_mbps(8))).unwrap();
    assert_eq!(channel.config().rate_schedule, None);
    assert_eq!(channel.capacity(ms(1), ms(1_001)), Some(ByteCount(1_000_000)));
}
