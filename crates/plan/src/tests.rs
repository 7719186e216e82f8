//! Against the figures that the sources print and those that this project measured (README).

use dial::calendar::Wall;
use dial::money::Money;
use dial::tariff::Rates;
use units::{BitRate, ByteCount, Duration, Ratio};

use crate::arithmetic::{self as formulas, Survival};
use crate::{Direction, Link, Plan, Value};

fn link(kbps: u64, delay_us: u64) -> Link {
    Link {
        send: BitRate::from_kbps(kbps),
        receive: BitRate::from_kbps(kbps),
        delay: Duration::from_micros(delay_us),
        ber: Ratio::ZERO,
        loss: Ratio::ZERO,
        mtu: 1500,
        framing: 0,
        queue: None,
    }
}

fn plan(link: Link) -> Direction {
    Plan::of(link).send
}

/// 2,400 bit/s asynchronous 8N1: ten bits a byte.
fn mini_m() -> Link {
    let rate = BitRate::from_bps(1_920);
    Link { send: rate, receive: rate, ..link(0, 997_500) }
}

fn is_within(permille: u64, found: u64, expected: u64) {
    assert!(found.abs_diff(expected) * 1000 <= expected * permille, "{found} is not {expected}");
}

#[test]
fn mini_m_has_an_mtu_of_500_and_waits_5_s_as_the_coast_guard_found_best() {
    let best = plan(mini_m());
    assert_eq!(best.tcp_packet, 500);
    assert_eq!(best.initial_rto, Duration::from_secs(5));
    // With the defaults, 1,500 bytes and 3 s, every first packet is sent twice.
    let long = BitRate::from_bps(1_920).time_for(ByteCount(1500));
    assert!(long > Duration::from_secs(3));
}

#[test]
fn mini_m_answers_a_ping_in_the_2720_ms_that_table_3_measured() {
    // 56 bytes and 31 of overhead, both ways: 725 ms at 2,400 bit/s.
    let both = BitRate::from_bps(1_920).time_for(ByteCount(87)).times(2);
    assert_eq!(both, Duration::from_millis(725));
    assert_eq!(both + Duration::from_micros(997_500).times(2), Duration::from_millis(2_720));
}

#[test]
fn inmarsat_b_sends_1600_bytes_in_200_ms_so_that_1500_are_no_problem() {
    assert_eq!(BitRate::from_kbps(64).bytes_in(formulas::ON_THE_LINE), ByteCount(1600));
    let best = plan(link(64, 442_000));
    assert_eq!(best.tcp_packet, 1500);
    // 442 + 187.5 + 442 + 5 ms (an ACK of 40 bytes), "much less than 3000 ms".
    assert_eq!(best.round_trip, Duration::from_micros(1_076_500));
    assert_eq!(best.initial_rto, Duration::from_secs(2));
    // 10^-6 is "roughly 1 error every 15 s".
    let errors = Survival { ber: Ratio::from_f64(1e-6), loss: Ratio::ZERO }.lost(1500);
    let seconds = 0.1875 / errors.as_f64();
    assert!((15.0..16.0).contains(&seconds), "{seconds}");
}

#[test]
fn a_window_of_8_kb_carries_320_and_91_kbit_as_the_itu_measured() {
    let limit = |ms| formulas::window_limit(ByteCount(8_000), Duration::from_millis(ms)).as_bps();
    assert_eq!(limit(200), 320_000);
    assert_eq!(limit(700) / 1000, 91);
}

#[test]
fn routers_before_an_oc3_need_3187_packets_as_the_itu_reckons() {
    // 135 Mbit/s × 540 ms in packets of 1,430 bytes: 6,374 printed, 6,372 by this arithmetic.
    let window = BitRate::from_mbps(135).bytes_in(Duration::from_millis(540));
    is_within(1, window.0 / 1430, 6_374);
    is_within(1, formulas::router_buffer(window).0 / 1430, 3_187);
    // "About 6 Mbytes" are enough for the 95 % that IP over ATM left in section 4.2.
    let limit = formulas::window_limit(ByteCount(6 << 20), Duration::from_millis(540));
    assert!(limit > BitRate::from_mbps(92));
}

#[test]
fn packets_and_efficiency_under_bit_errors_are_those_of_the_derivation() {
    let efficiency = |ber: f64| {
        let best = plan(Link { ber: Ratio::from_f64(ber), ..link(1_000_000, 300_000) });
        (best.packet, best.with_pair.as_bps() / 1_000_000)
    };
    // h = 52: 830 bytes and 0.877, the MTU and 0.954, 0.965.
    let (packet, share) = efficiency(1e-5);
    is_within(10, packet.into(), 830);
    assert_eq!(share, 877);
    assert_eq!(efficiency(1e-6), (1500, 953));
    assert_eq!(efficiency(0.0), (1500, 965));
}

#[test]
fn memory_of_a_stream_is_that_of_the_derivation() {
    let buffer = |bps, ms, loss| {
        let (rate, rtt) = (BitRate::from_bps(bps), Duration::from_millis(ms));
        formulas::stream_buffer(rate, rtt, Ratio::from_f64(loss), 1500).0
    };
    // 75 MB, and 600 bytes for each round trip of 2 s at 2,400 bit/s; an eighth for reports.
    is_within(70, buffer(500_000_000, 600, 0.0), 75_000_000);
    assert_eq!(buffer(2_400, 2_000, 0.0), 2 * 600 + 75);
    // 1,000 packets, of which 1 in 100 is lost: at worst one is lost twice.
    is_within(10, buffer(20_000_000, 600, 0.01), 1_500_000 * 3 + 187_500);
}

#[test]
fn transfers_with_a_pair_take_as_long_as_the_readme_says_that_the_link_allows() {
    let time = |link: Link, bytes| {
        let goodput = plan(link).with_pair;
        formulas::time_with_pair(ByteCount(bytes), goodput, link.delay.times(2)).as_millis()
    };
    let lossy = |permille: f64, link: Link| Link { loss: Ratio::from_f64(permille / 1e3), ..link };
    is_within(10, time(lossy(1.0, link(20_000, 300_000)), 20_000_000), 8_900);
    is_within(10, time(lossy(10.0, link(20_000, 300_000)), 10 << 20), 5_000);
    is_within(10, time(lossy(1.0, link(155_000, 300_000)), 100_000_000), 5_950);
    // A megabyte at 64 kbit/s: 130 s.
    is_within(10, time(link(64, 300_000), 1_000_000), 130_000);
}

#[test]
fn cubic_is_as_slow_as_the_readme_measured() {
    let time = |kbps, permille: f64, bytes| {
        let loss = Ratio::from_f64(permille / 1e3);
        let best = plan(Link { loss, ..link(kbps, 300_000) });
        let time =
            formulas::time_without(ByteCount(bytes), best.mss(), best.without, best.round_trip);
        time.as_millis()
    };
    is_within(100, time(20_000, 10.0, 10 << 20), 180_000);
    is_within(100, time(155_000, 1.0, 100_000_000), 344_000);
    // The start of a short transfer goes better than the long run.
    is_within(450, time(20_000, 1.0, 20_000_000), 48_000);
}

#[test]
fn a_small_answer_takes_two_round_trips_without_gateways_and_one_with() {
    let best = plan(link(20_000, 300_000));
    let (rtt, tiny) = (Duration::from_millis(600), ByteCount(100));
    is_within(5, formulas::time_with_pair(tiny, best.with_pair, rtt).as_millis(), 600);
    let without = formulas::time_without(tiny, best.mss(), best.without, rtt);
    is_within(5, without.as_millis(), 1_200);
}

#[test]
fn initial_windows_leave_at_the_links_rate_and_never_exceed_what_it_holds() {
    assert_eq!(plan(mini_m()).initial_window, 2);
    assert_eq!(plan(link(64, 442_000)).initial_window, 5);
    assert_eq!(plan(link(128, 442_000)).initial_window, 10);
    for kbps in [1_544, 20_000, 135_000] {
        let best = plan(link(kbps, 300_000));
        let first = u64::from(best.initial_window) * 2885 / 1000 * u64::from(best.tcp_packet);
        assert!(best.initial_window > 10 && first <= best.window.0, "{best:?}");
    }
}

#[test]
fn bulk_is_coded_as_the_link_itself_does() {
    let code = |permille: f64| {
        let loss = Ratio::from_f64(permille / 1e3);
        plan(Link { loss, ..link(45_000, 350_000) }).repair_every
    };
    assert_eq!(code(0.1), None);
    for (permille, redundancy) in [(1.0, 4.0), (10.0, 14.4), (100.0, 120.0)] {
        let every = code(permille).expect("coded");
        is_within(200, 1_000_000 / every, (redundancy * 1000.0) as u64);
    }
}

#[test]
fn every_number_stands_for_both_directions_of_any_link() {
    for kbps in [1, 64, 1_544, 10_000_000] {
        for delay in [0, 300_000, 60_000_000] {
            for (ber, loss) in [(0.0, 0.0), (1e-5, 0.0), (0.01, 0.5)] {
                for mtu in [128, 1500, 9000] {
                    let (ber, loss) = (Ratio::from_f64(ber), Ratio::from_f64(loss));
                    let link = Link { ber, loss, mtu, ..link(kbps, delay) };
                    let plan = Plan::of(Link { receive: BitRate::from_mbps(2), ..link });
                    assert!(plan.send.with_one <= plan.send.rate, "{plan:?}");
                    assert!(plan.send.without <= plan.send.with_one, "{plan:?}");
                    assert_eq!(plan.figures(None).len(), 19);
                }
            }
        }
    }
}

#[test]
fn a_megabyte_costs_its_minutes_and_its_bytes() {
    // The Coast Guard pays "two to ten dollars per minute".
    let plan = Plan::of(link(64, 442_000));
    let price = |rates: Rates, key: &str| {
        let figures = plan.figures(Some((&rates, Wall::default())));
        let figure = figures.into_iter().find(|f| f.key == key).expect(key);
        match figure.values[0] {
            Value::Money(amount) => amount.as_micros(),
            other => panic!("{other:?}"),
        }
    };
    let minute = Duration::from_secs(60);
    let timed = Rates::per_minute(Money::from_cents(200), minute, Duration::ZERO);
    // 130.4 s are three minutes; an hour is sixty.
    assert_eq!(price(timed.clone(), "megabyte_price_with_pair"), 6_000_000);
    assert_eq!(price(timed, "hour_price"), 120_000_000);
    let counted = Rates::per_megabyte(Money::from_cents(700), ByteCount(1));
    // 52 of 1,500 bytes are headers.
    is_within(1, price(counted.clone(), "megabyte_price_with_pair"), 7_000_000 * 1500 / 1448);
    is_within(1, price(counted, "hour_price"), 7_000_000 * 288 / 10);
}
