//! What a seed means: the line and its prices, rules, and what hosts want.

use dial::calendar::{Hours, Wall};
use dial::manager::{Budget, CarrierConfig, ManagerConfig, Redial};
use dial::money::Money;
use dial::rules::{Action, Match, Rule, Rules};
use dial::tariff::{Rates, Tariff};
use units::{BitRate, ByteCount, Duration, Instant, Ratio, Rng};

use super::meter::Prices;
use crate::net::Demand;

/// Monday, 30 November 2026, 18:00: a month ends six hours later.
const EVENING: Wall = Wall(1_795_996_800 + 64_800);
/// Monday, 23 November 2026, 12:00.
const NOON: Wall = Wall(1_795_392_000 + 43_200);

/// What a connection is to the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Raises the line at once.
    Urgent,
    /// Is gathered.
    Mail,
    /// Never raises it.
    Noise,
    /// Raises it at once, and may be bound to one carrier.
    Bulk,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Urgent, Kind::Mail, Kind::Noise, Kind::Bulk];

    /// The first of its servers' ports.
    pub fn port(self) -> u16 {
        1_000 * (1 + self as u16)
    }
    pub fn of_port(port: u16) -> Kind {
        Kind::ALL[usize::from(port / 1_000).clamp(1, 4) - 1]
    }
}

/// Everything about a run that is decided before it starts.
#[derive(Clone, Debug)]
pub struct CallPlan {
    /// What draws follow from.
    pub seed: u64,
    pub(super) manager: ManagerConfig,
    pub(super) prices: Prices,
    /// What the month may cost.
    pub(super) stop: Option<u64>,
    pub(super) wall: Wall,
    /// When the carrier beside the line is dark; `None`: there is none.
    pub(super) beside: Option<Vec<[Instant; 2]>>,
    /// The carrier that bulk is bound to.
    pub(super) bound: Option<u16>,
    pub(super) quiet_raises: bool,
    /// The line's.
    pub(super) rate: BitRate,
    pub(super) delay: Duration,
    pub(super) loss: Ratio,
    /// In hundredths: calls that are not answered, that drop, that fall silent.
    pub(super) fails: u64,
    pub(super) drops: u64,
    pub(super) silences: u64,
    pub(super) demands: Vec<(Kind, Demand)>,
    /// When the modem begins to work and the line is held.
    pub(super) heal_at: Instant,
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

impl CallPlan {
    /// The run that `seed` means.
    pub fn of_seed(seed: u64) -> CallPlan {
        let mut rng = Rng::new(seed ^ 0xca11_5eed);
        let hours = rng.between(2, 8);
        let length = hours * 3_600;
        let has_beside = rng.below(3) == 0;
        let bound = (rng.below(2) == 0 && has_beside).then_some(1);
        let prices = draw_prices(&mut rng);
        let rate = BitRate::from_bps([2_400, 9_600, 64_000][rng.below(3) as usize]);
        let quiet_raises = rng.below(2) == 0;
        let mut manager = draw_manager(&mut rng, (prices, rate), has_beside, bound, quiet_raises);
        let stop = (rng.below(2) == 0).then(|| prices.first().max(100_000) * rng.between(1, 20));
        manager.budget =
            stop.map(|stop| Budget { stop: Money::from_micros(stop), warn_percent: 80 });
        if rng.below(5) == 0 {
            let stop = Money::from_micros(prices.first().max(100_000) * rng.between(1, 10));
            let all = "10.0.0.0/8".parse().expect("a prefix");
            manager.host_budgets = vec![(all, Budget { stop, warn_percent: 80 })];
        }
        let dark = |rng: &mut Rng| {
            let from = Instant::ZERO + seconds(rng.below(length));
            [from, from + seconds(rng.between(10, 3_600))]
        };
        let beside = has_beside.then(|| (0..rng.between(1, 4)).map(|_| dark(&mut rng)).collect());
        let mut demands: Vec<_> =
            (0..rng.between(3, 12)).map(|_| draw_demand(&mut rng, length, rate)).collect();
        demands.sort_by_key(|(_, demand)| demand.at);
        CallPlan {
            seed,
            manager,
            prices,
            stop,
            wall: if rng.below(3) == 0 { EVENING } else { NOON },
            beside,
            bound,
            quiet_raises,
            rate,
            delay: Duration::from_millis(rng.between(50, 700)),
            loss: Ratio::from_f64(rng.below(3) as f64 * 0.01),
            fails: rng.below(70),
            drops: rng.below(70),
            silences: rng.below(20),
            demands,
            heal_at: Instant::ZERO + seconds(length),
        }
    }
}

fn draw_prices(rng: &mut Rng) -> Prices {
    let by_time = rng.below(3) > 0;
    let by_bytes = !by_time || rng.below(4) == 0;
    Prices {
        per_call: rng.below(2) * 150_000,
        per_minute: if by_time { 60_000 * rng.between(1, 60) } else { 0 },
        increment_ms: [1_000, 6_000, 60_000][rng.below(3) as usize],
        minimum_ms: [0, 30_000, 60_000][rng.below(3) as usize],
        per_megabyte: if by_bytes { 1_000_000 * rng.between(1, 30) } else { 0 },
        block: [1_000, 5_000, 10_000][rng.below(3) as usize],
    }
}

fn draw_demand(rng: &mut Rng, length: u64, rate: BitRate) -> (Kind, Demand) {
    let kind = Kind::ALL[rng.below(4) as usize];
    let begin = Instant::ZERO + seconds(1) + Duration::from_millis(rng.below(length * 1_000));
    // Up to two minutes of the line each way.
    let most = rate.bytes_in(seconds(120)).0.min(60_000);
    let demand = Demand::fetch(begin, [0, 1], rng.between(1, most), rng.between(1, most));
    (kind, demand)
}

fn draw_manager(
    rng: &mut Rng,
    (prices, rate): (Prices, BitRate),
    has_beside: bool,
    bound: Option<u16>,
    quiet_raises: bool,
) -> ManagerConfig {
    let mut rates = Rates {
        per_call: Money::from_micros(prices.per_call),
        per_megabyte: Money::from_micros(prices.per_megabyte),
        block: ByteCount(prices.block),
        ..Rates::default()
    };
    if prices.per_minute > 0 {
        let step = Duration::from_millis(prices.increment_ms);
        let minimum = Duration::from_millis(prices.minimum_ms);
        let timed = Rates::per_minute(Money::from_micros(prices.per_minute), step, minimum);
        rates = Rates {
            per_call: rates.per_call,
            per_megabyte: rates.per_megabyte,
            block: rates.block,
            ..timed
        };
    }
    let currency = "USD".parse().expect("a currency");
    let tariff = Tariff::new(currency, vec![(String::new(), rates)]).expect("prices");
    let min_call = seconds(rng.below(2) * 45);
    // The manager is told of bytes ten times a second, and a modem needs up to a second and a half
    // to hang up.
    let under_way = ByteCount(2 * rate.bytes_in(seconds(2)).0 + 4_000);
    let line = CarrierConfig {
        rate,
        under_way,
        min_call,
        max_call: (rng.below(3) == 0).then(|| min_call + seconds(rng.between(30, 600))),
        redial: Redial {
            rest: seconds(rng.between(60, 1_800)),
            attempts: rng.between(1, 8) as u32,
            ..Redial::default()
        },
        ..CarrierConfig::new("line", true, tariff)
    };
    let sat = CarrierConfig { priority: 10, ..CarrierConfig::new("sat", false, Tariff::free()) };
    let carriers = if has_beside { vec![line, sat] } else { vec![line] };
    let quiet =
        if rng.below(3) == 0 { vec!["20:00-23:00".parse().expect("hours")] } else { Vec::new() };
    let mut config = ManagerConfig::new("shore", carriers, draw_rules(rng, bound, quiet_raises));
    config.carriers[0].quiet = Hours(quiet);
    config
}

fn draw_rules(rng: &mut Rng, bound: Option<u16>, quiet_raises: bool) -> Rules {
    let of = |kind: Kind| {
        let ports = vec![kind.port()..=kind.port() + 999];
        Match { protocol: Some(6), ports, ..Match::default() }
    };
    let amount = (rng.below(2) == 0).then(|| ByteCount(rng.between(1_000, 20_000)));
    let age = Some(seconds(rng.between(60, 3_600)));
    let mut urgent = Rule::new("urgent", of(Kind::Urgent), Action::Raise);
    urgent.through_quiet = quiet_raises;
    let mail = Rule::new("mail", of(Kind::Mail), Action::Batch { amount, age, hours: None });
    let noise = Rule::new("noise", of(Kind::Noise), Action::Never);
    let mut bulk = Rule::new("bulk", of(Kind::Bulk), Action::Raise);
    bulk.carriers = bound.map(|n| ["line", "sat"][usize::from(n)].into()).into_iter().collect();
    // The link's own packets neither raise nor hold the line.
    Rules::new(vec![urgent, mail, noise, bulk], Vec::new(), Action::Never).expect("rules")
}
