//! What a tariff comes to: steps, minimums, blocks, nights and flat prices.

use super::*;
use proptest::prelude::*;

/// Monday, 23 November 2026, 00:00.
const MONDAY: Wall = Wall(1_795_392_000);

fn money(text: &str) -> Money {
    text.parse().expect("an amount")
}
fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
fn call(start: Wall, elapsed: Duration, bytes: u64) -> Call {
    Call { start, elapsed, bytes: ByteCount(bytes), bytes_before: ByteCount(0) }
}
fn band(when: &str, price: &str) -> Band {
    Band { when: when.parse().expect("a window"), per_minute: money(price) }
}
fn tariff(rates: Rates) -> Result<Tariff, TariffError> {
    Tariff::new("USD".parse().expect("a currency"), vec![("".into(), rates)])
}

#[test]
fn a_step_that_has_begun_is_paid_and_a_call_has_its_minimum() {
    let rates = Rates::per_minute(money("3.00"), seconds(30), seconds(60));
    for (elapsed, price) in [
        (Duration::ZERO, "3.00"),
        (seconds(60), "3.00"),
        (seconds(60) + Duration::from_nanos(1), "4.50"),
        (seconds(90), "4.50"),
        (seconds(600), "30.00"),
    ] {
        assert_eq!(rates.price(&call(MONDAY, elapsed, 9_999)), money(price), "{elapsed}");
    }
    assert_eq!(rates.paid_until(MONDAY, Duration::ZERO), Some(seconds(60)));
    assert_eq!(rates.paid_until(MONDAY, seconds(61)), Some(seconds(90)));
    assert_eq!(rates.next_step(MONDAY, seconds(61)), money("1.50"));
}

#[test]
fn each_step_has_the_price_of_the_time_it_began_in() {
    let rates = Rates {
        bands: vec![band("08:00-20:00", "3.00"), band("20:00-08:00", "1.00")],
        ..Rates::default()
    };
    // 19:58:30: two steps begin before eight in the evening, then it is cheap.
    let start = Wall(MONDAY.0 + 20 * 3_600 - 90);
    assert_eq!(rates.price(&call(start, seconds(120), 0)), money("6.00"));
    assert_eq!(rates.price(&call(start, seconds(121), 0)), money("7.00"));
    assert_eq!(rates.next_step(start, seconds(100)), money("1.00"));
}

#[test]
fn a_free_night_has_no_next_step_until_the_morning() {
    let rates = Rates {
        bands: vec![band("08:00-20:00", "3.00"), band("20:00-08:00", "0")],
        ..Rates::default()
    };
    let start = Wall(MONDAY.0 + 23 * 3_600);
    assert_eq!(rates.price(&call(start, seconds(3_600), 0)), Money::ZERO);
    assert_eq!(rates.paid_until(start, seconds(60)), Some(seconds(9 * 3_600)));
    let free = Rates { bands: vec![band("00:00-24:00", "0")], ..Rates::default() };
    assert_eq!(free.paid_until(start, seconds(60)), None);
}

#[test]
fn the_lead_is_billed_though_the_carrier_was_not_there_yet() {
    let rates =
        Rates { lead: seconds(10), ..Rates::per_minute(money("6.00"), seconds(60), seconds(0)) };
    assert_eq!(rates.price(&call(MONDAY, seconds(50), 0)), money("6.00"));
    assert_eq!(rates.price(&call(MONDAY, seconds(51), 0)), money("12.00"));
    assert_eq!(rates.paid_until(MONDAY, seconds(5)), Some(seconds(50)));
}

#[test]
fn bytes_are_billed_in_blocks_that_have_begun() {
    let rates = Rates::per_megabyte(money("5.00"), ByteCount(10_000));
    for (bytes, price) in [(0, "0"), (1, "0.05"), (10_000, "0.05"), (10_001, "0.10")] {
        assert_eq!(rates.price(&call(MONDAY, seconds(9_999), bytes)), money(price), "{bytes}");
    }
    let left =
        |bytes, budget: &str| rates.bytes_within(&call(MONDAY, seconds(1), bytes), money(budget));
    assert_eq!(left(1, "0.04"), Some(ByteCount(9_999)));
    assert_eq!(left(1, "0.05"), Some(ByteCount(19_999)));
    assert_eq!(left(10_000, "0"), Some(ByteCount(0)));
    assert_eq!(Rates::default().bytes_within(&call(MONDAY, seconds(1), 1), Money::ZERO), None);
}

#[test]
fn a_flat_price_includes_its_fair_use_over_all_calls_of_the_month() {
    let flat =
        |beyond| Some(Flat { per_month: money("99"), fair_use: ByteCount(1_000_000), beyond });
    let rates =
        Rates { flat: flat(Beyond::Charged), ..Rates::per_megabyte(money("2"), ByteCount(1)) };
    let mut second = call(MONDAY, seconds(60), 300_000);
    assert_eq!(rates.price(&second), Money::ZERO);
    second.bytes_before = ByteCount(900_000);
    assert_eq!(rates.price(&second), money("0.40"));
    second.bytes_before = ByteCount(5_000_000);
    assert_eq!(rates.price(&second), money("0.60"));
    let slow = Rates { flat: flat(Beyond::Slow), ..rates };
    assert_eq!(slow.price(&second), Money::ZERO);
    assert_eq!(slow.bytes_within(&second, Money::ZERO), None);
}

#[test]
fn zones_have_their_own_prices_and_the_first_is_for_all_others() {
    let minute = |p: &str| Rates::per_minute(money(p), seconds(60), seconds(0));
    let zones = vec![("home".into(), minute("1")), ("roaming".into(), minute("4"))];
    let tariff = Tariff::new("EUR".parse().unwrap(), zones).unwrap();
    let price = |zone| tariff.rates(zone).price(&call(MONDAY, seconds(1), 0));
    assert_eq!((price("home"), price("roaming"), price("")), (money("1"), money("4"), money("1")));
}

#[test]
fn a_tariff_that_cannot_be_meant_is_refused_with_the_mend() {
    let says = |rates: Rates| tariff(rates).expect_err("wrong").to_string();
    let gap = Rates { bands: vec![band("08:00-20:00", "3")], ..Rates::default() };
    assert!(says(gap).starts_with("no minute price holds at mon 00:00; add a price"));
    let twice =
        Rates { bands: vec![band("00:00-24:00", "3"), band("sun", "1")], ..Rates::default() };
    assert!(says(twice).starts_with("several minute prices hold at sun 00:00; "));
    let fast = Rates::per_minute(money("1"), Duration::ZERO, seconds(0));
    assert!(says(fast).contains("increment 0s is too short"));
    let none = Rates::per_megabyte(money("1"), ByteCount(0));
    assert!(says(none).contains("block of no bytes"));
    let flat = Flat { per_month: money("9"), fair_use: ByteCount(1), beyond: Beyond::Charged };
    assert!(says(Rates { flat: Some(flat), ..Rates::default() }).contains("megabyte has no price"));
}

/// A second way to the same price: one step after the other.
fn step_by_step(rates: &Rates, call: &Call) -> u128 {
    let billed = (call.elapsed + rates.lead).max(rates.minimum);
    let steps = billed.as_nanos().div_ceil(rates.increment.as_nanos()).max(1);
    let begin = call.start.0 - rates.lead.as_nanos() / 1_000_000_000;
    (0..steps)
        .map(|i| {
            let at = Wall(begin).after(rates.increment.times(i));
            let band = rates.bands.iter().find(|b| Hours(vec![b.when]).contains(at));
            u128::from(band.expect("no gap").per_minute.as_micros())
                * u128::from(rates.increment.as_nanos())
        })
        .sum()
}

proptest! {
    #[test]
    fn the_price_is_the_sum_of_its_steps(
        start in 0_u64..14 * 86_400, elapsed in 0_u64..200_000_000_000_000,
        increment in 100_u64..600_000, minimum in 0_u64..300, lead in 0_u64..20,
        edges in (0_u16..24, 1_u16..24),
    ) {
        let (from, to) = (edges.0, (edges.0 + edges.1) % 24);
        let rates = Rates {
            bands: vec![
                band(&format!("{from:02}:00-{to:02}:00"), "3.37"),
                band(&format!("{to:02}:00-{from:02}:00"), "0.91"),
            ],
            increment: Duration::from_millis(increment.max(elapsed / 1_000_000 / 3_000)),
            minimum: seconds(minimum),
            lead: seconds(lead),
            ..Rates::default()
        };
        let call = call(Wall(MONDAY.0 + start), Duration::from_nanos(elapsed), 0);
        let exact = step_by_step(&rates, &call);
        let price = u128::from(rates.price(&call).as_micros());
        prop_assert_eq!(price, (exact + 30_000_000_000) / 60_000_000_000);
    }

    #[test]
    fn time_is_paid_up_to_the_told_moment_and_costs_more_after_it(
        start in 0_u64..7 * 86_400, elapsed in 0_u64..5_000, increment in 1_u64..400, lead in 0_u64..20,
    ) {
        let rates = Rates { lead: seconds(lead),
            ..Rates::per_minute(money("2.40"), seconds(increment), seconds(45)) };
        let (start, elapsed) = (Wall(MONDAY.0 + start), seconds(elapsed));
        let price = |elapsed| rates.price(&call(start, elapsed, 0));
        let until = rates.paid_until(start, elapsed).expect("time costs");
        prop_assert!(until >= elapsed);
        prop_assert_eq!(price(until), price(elapsed));
        let after = price(until + Duration::from_nanos(1));
        let step = rates.next_step(start, elapsed);
        // Each price is rounded once, so that a step may be a millionth off.
        let told = price(elapsed).plus(step).as_micros();
        prop_assert!(after > price(until) && after.as_micros().abs_diff(told) <= 1);
    }

    #[test]
    fn bytes_within_a_budget_stay_within_it_and_one_more_does_not(
        bytes in 0_u64..5_000_000, before in 0_u64..3_000_000, block in 1_u64..200_000,
        budget in 0_u64..50_000_000, fair_use in prop::option::of(0_u64..4_000_000),
    ) {
        let flat = fair_use.map(|n| Flat {
            per_month: Money::ZERO, fair_use: ByteCount(n), beyond: Beyond::Charged });
        let rates = Rates { flat, ..Rates::per_megabyte(money("7"), ByteCount(block)) };
        let mut call = call(MONDAY, seconds(1), bytes);
        call.bytes_before = ByteCount(before);
        let now = rates.price(&call);
        let more = rates.bytes_within(&call, Money::from_micros(budget)).expect("bytes cost");
        call.bytes.0 += more.0;
        prop_assert!(rates.price(&call).minus(now).as_micros() <= budget);
        call.bytes.0 += 1;
        prop_assert!(rates.price(&call).minus(now).as_micros() > budget);
    }
}

#[test]
fn prices_are_told_in_words_and_nothing_where_nothing_is_paid() {
    let usd = "USD".parse().unwrap();
    let price = |text: &str| text.parse::<Money>().unwrap();
    let step = Duration::from_secs(60);
    let mut rates = Rates::per_minute(price("2.40"), step, Duration::ZERO);
    assert_eq!(rates.words(usd).unwrap(), "2.40 USD a minute, in steps of 60s");
    (rates.per_call, rates.per_megabyte) = (price("0.50"), price("7"));
    rates.bands.clear();
    assert_eq!(rates.words(usd).unwrap(), "0.50 USD a call, 7.00 USD a megabyte");
    assert_eq!(Rates::default().words(usd), None);
}
