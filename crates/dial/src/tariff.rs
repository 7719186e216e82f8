//! What a call costs: [`Tariff`], its zones, and the price of a call at any moment.

use std::fmt;

use units::{ByteCount, Duration};

use crate::calendar::{Hours, Wall, Window};
use crate::money::{Currency, Money};

/// A carrier's prices, in each zone that it may be used in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tariff {
    currency: Currency,
    /// The first holds where no zone is named.
    zones: Vec<(String, Rates)>,
}

/// The prices of one zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rates {
    /// For each call that is answered.
    pub per_call: Money,
    /// A minute's price by the time of the day; together they cover the week. None: time costs
    /// nothing.
    pub bands: Vec<Band>,
    /// Time is billed in steps of this length; a step that has begun is paid for, at the price
    /// of the time it began.
    pub increment: Duration,
    /// A call is billed for at least so long.
    pub minimum: Duration,
    /// How long before the carrier is there the call is billed already (modems that train after
    /// the exchange has answered).
    pub lead: Duration,
    /// For 1,000,000 bytes, both directions together; zero: bytes cost nothing.
    pub per_megabyte: Money,
    /// Bytes are billed in blocks of this size, begun ones whole.
    pub block: ByteCount,
    /// A monthly price that includes bytes.
    pub flat: Option<Flat>,
}

/// A minute's price at some times of the week.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Band {
    /// When.
    pub when: Window,
    /// How much.
    pub per_minute: Money,
}

/// A monthly price with what it includes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flat {
    /// Each month, used or not.
    pub per_month: Money,
    /// Bytes of a month that are included.
    pub fair_use: ByteCount,
    /// What comes after them.
    pub beyond: Beyond,
}

/// What follows on the fair use of a flat price.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beyond {
    /// Bytes cost what [`Rates::per_megabyte`] says.
    Charged,
    /// The carrier gets slow: others are preferred.
    Slow,
    /// The carrier is not used until the next month.
    Stopped,
}

/// A call as far as it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// When the carrier was there.
    pub start: Wall,
    /// How long it has been since.
    pub elapsed: Duration,
    /// What crossed, both ways.
    pub bytes: ByteCount,
    /// What had crossed on this carrier in the same month before.
    pub bytes_before: ByteCount,
}

impl Call {
    /// A call at its very beginning.
    pub fn beginning(start: Wall, bytes_before: ByteCount) -> Call {
        Call { start, elapsed: Duration::ZERO, bytes: ByteCount(0), bytes_before }
    }
}

impl Default for Rates {
    /// Everything is free.
    fn default() -> Rates {
        Rates {
            per_call: Money::ZERO,
            bands: Vec::new(),
            increment: Duration::from_secs(60),
            minimum: Duration::ZERO,
            lead: Duration::ZERO,
            per_megabyte: Money::ZERO,
            block: ByteCount(1),
            flat: None,
        }
    }
}

impl Rates {
    /// The same price for a minute at all times.
    pub fn per_minute(price: Money, increment: Duration, minimum: Duration) -> Rates {
        let bands = vec![Band { when: Window::ALWAYS, per_minute: price }];
        Rates { bands, increment, minimum, ..Rates::default() }
    }
    /// A price for bytes only.
    pub fn per_megabyte(price: Money, block: ByteCount) -> Rates {
        Rates { per_megabyte: price, block, ..Rates::default() }
    }

    /// Does anything cost something but the month itself?
    pub fn charges(&self) -> bool {
        !self.per_megabyte.is_zero() || !self.per_call.is_zero() || !self.bands.is_empty()
    }

    /// What is paid for a call, its minutes and its bytes, such as `2.40 USD a minute, in steps of
    /// 60s`; of minutes the dearest. `None`: nothing is.
    pub fn words(&self, currency: Currency) -> Option<String> {
        let mut words = Vec::new();
        if !self.per_call.is_zero() {
            words.push(format!("{} {currency} a call", self.per_call));
        }
        let dearest = self.bands.iter().map(|band| band.per_minute).max();
        if let Some(minute) = dearest.filter(|price| !price.is_zero()) {
            let most = if self.bands.len() > 1 { "up to " } else { "" };
            words.push(format!(
                "{most}{minute} {currency} a minute, in steps of {}",
                self.increment
            ));
        }
        if !self.per_megabyte.is_zero() {
            words.push(format!("{} {currency} a megabyte", self.per_megabyte));
        }
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// Does a minute cost something at any time of the week?
    pub fn bills_time(&self) -> bool {
        self.bands.iter().any(|band| !band.per_minute.is_zero())
    }

    /// How long until a call that begins then has another price of a minute than one at `wall`.
    /// `None`: it has the same price at all times.
    pub fn next_prices(&self, wall: Wall) -> Option<Duration> {
        if self.bands.len() < 2 {
            return None;
        }
        let now = Wall(wall.0.saturating_sub(self.lead.as_nanos() / 1_000_000_000));
        let band = self.bands.iter().find(|b| Hours(vec![b.when]).contains(now))?;
        Hours(vec![band.when]).next_edge(now)
    }

    /// What the call costs so far. A call that exists has begun its first step of time.
    pub fn price(&self, call: &Call) -> Money {
        let time = self.time_price(call.start, self.steps(call.elapsed));
        self.per_call.plus(time).plus(self.bytes_price(call))
    }

    /// After how long (since the carrier was there) the call will cost more than it does at
    /// `elapsed` if no more bytes cross: the moment up to which time is paid. `None`: never.
    pub fn paid_until(&self, start: Wall, elapsed: Duration) -> Option<Duration> {
        let steps = self.steps(elapsed);
        // Free steps may follow; a week has all prices that there are.
        let week = 7 * 86_400_000_000_000 / self.increment.as_nanos().max(1) + 2;
        let mut at = steps;
        while at < steps + week && !self.bands.is_empty() {
            let (run, band) = self.run(start, at)?;
            if !band.per_minute.is_zero() {
                return Some(self.increment.times(at) - self.lead);
            }
            at += run;
        }
        None
    }

    /// What the next paid step of time adds.
    pub fn next_step(&self, start: Wall, elapsed: Duration) -> Money {
        let Some(until) = self.paid_until(start, elapsed) else { return Money::ZERO };
        let before = self.time_price(start, self.steps(elapsed));
        let after = self.time_price(start, self.steps(until + Duration::from_nanos(1)));
        after.minus(before)
    }

    /// How many more bytes cross before the call costs more than `budget` beyond what it costs
    /// now. `None`: bytes cost nothing.
    pub fn bytes_within(&self, call: &Call, budget: Money) -> Option<ByteCount> {
        if self.per_megabyte.is_zero() {
            return None;
        }
        let block = self.block.0.max(1);
        let charged = self.charged(call);
        let paid = charged.div_ceil(block).saturating_mul(block);
        let price = self.per_megabyte.scaled(u128::from(block), 1_000_000).as_micros();
        let blocks = budget.as_micros().checked_div(price).unwrap_or(u64::MAX);
        let more = blocks.saturating_mul(block).saturating_add(paid - charged);
        let free = self.free_left(call)?;
        Some(ByteCount(more.saturating_add(free)))
    }

    /// Steps of time that have begun after `elapsed`.
    fn steps(&self, elapsed: Duration) -> u64 {
        if self.bands.is_empty() {
            return 0;
        }
        let billed = (elapsed + self.lead).max(self.minimum);
        billed.as_nanos().div_ceil(self.increment.as_nanos().max(1)).max(1)
    }

    /// The price of the first `steps` steps of time. Rounded once, at the end.
    fn time_price(&self, start: Wall, steps: u64) -> Money {
        let (mut at, mut sum) = (0, 0_u128);
        while at < steps {
            let Some((run, band)) = self.run(start, at) else { break };
            let run = run.min(steps - at);
            let per_step = u128::from(band.per_minute.as_micros())
                .saturating_mul(u128::from(self.increment.as_nanos()));
            sum = sum.saturating_add(per_step.saturating_mul(u128::from(run)));
            at += run;
        }
        Money::from_micros(1).scaled(sum, 60_000_000_000)
    }

    /// The price that the step `at` begins in, and how many steps begin in it without a break
    /// (at least one).
    fn run(&self, start: Wall, at: u64) -> Option<(u64, &Band)> {
        // The lead lies before the start of the call as we know it.
        let begin = Wall(start.0.saturating_sub(self.lead.as_nanos() / 1_000_000_000));
        let into = self.increment.times(at);
        let wall = begin.after(into);
        let band = self.bands.iter().find(|b| Hours(vec![b.when]).contains(wall))?;
        let edge = Hours(vec![band.when]).next_edge(wall)?;
        // `wall` is rounded down to the second, and so is where the step begins in it.
        let since_second = Duration::from_nanos(into.as_nanos() % 1_000_000_000);
        let left = (edge - since_second).as_nanos();
        // A window that never ends has edges too, where it begins anew.
        Some((left.div_ceil(self.increment.as_nanos().max(1)).max(1), band))
    }

    fn bytes_price(&self, call: &Call) -> Money {
        let block = self.block.0.max(1);
        let billed = u128::from(self.charged(call).div_ceil(block)) * u128::from(block);
        self.per_megabyte.scaled(billed, 1_000_000)
    }

    /// Bytes of the call that cost.
    fn charged(&self, call: &Call) -> u64 {
        let Some(flat) = self.flat else { return call.bytes.0 };
        match flat.beyond {
            Beyond::Charged => {
                let free = flat.fair_use.0.saturating_sub(call.bytes_before.0);
                call.bytes.0.saturating_sub(free)
            }
            Beyond::Slow | Beyond::Stopped => 0,
        }
    }

    /// Bytes that are still included; `None`: all are.
    fn free_left(&self, call: &Call) -> Option<u64> {
        match self.flat {
            None => Some(0),
            Some(Flat { fair_use, beyond: Beyond::Charged, .. }) => {
                Some(fair_use.0.saturating_sub(call.bytes_before.0.saturating_add(call.bytes.0)))
            }
            Some(_) => None,
        }
    }

    fn check(&self, zone: &str) -> Result<(), TariffError> {
        let wrong = |what: String, mend: &str| {
            Err(TariffError { zone: zone.to_owned(), what, mend: mend.to_owned() })
        };
        if !self.bands.is_empty() {
            if self.increment < Duration::from_millis(100) {
                return wrong(
                    format!("the increment {} is too short", self.increment),
                    "bill in steps of at least \"100ms\", such as \"1s\", \"6s\" or \"60s\"",
                );
            }
            let windows: Vec<Window> = self.bands.iter().map(|b| b.when).collect();
            match Hours::fault(&windows) {
                Some((0, when)) => {
                    return wrong(
                        format!("no minute price holds at {when}"),
                        "add a price for that time, or one without a time for all of the week",
                    );
                }
                Some((_, when)) => {
                    return wrong(
                        format!("several minute prices hold at {when}"),
                        "let each time of the week have one price: end one where the other begins",
                    );
                }
                None => {}
            }
        }
        if !self.per_megabyte.is_zero() && self.block.0 == 0 {
            return wrong("a block of no bytes".into(), "write \"1B\" where every byte is billed");
        }
        let charged = self.flat.is_some_and(|f| f.beyond == Beyond::Charged);
        if charged && self.per_megabyte.is_zero() {
            return wrong(
                "what comes beyond the fair use is charged, but a megabyte has no price".into(),
                "give the price of a megabyte, or say that the carrier is slow or stopped then",
            );
        }
        Ok(())
    }
}

/// Why a tariff cannot be what is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TariffError {
    /// The zone it is about; empty where there is no other.
    pub zone: String,
    /// What is wrong.
    pub what: String,
    /// How to mend it.
    pub mend: String,
}
impl fmt::Display for TariffError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.zone.is_empty() {
            write!(f, "zone \"{}\": ", self.zone)?;
        }
        write!(f, "{}; {}", self.what, self.mend)
    }
}
impl std::error::Error for TariffError {}

impl Tariff {
    /// Prices in `currency`; the first zone holds where none is named.
    pub fn new(currency: Currency, zones: Vec<(String, Rates)>) -> Result<Tariff, TariffError> {
        let wrong = |zone: &str, what: &str, mend: &str| {
            Err(TariffError { zone: zone.into(), what: what.into(), mend: mend.into() })
        };
        if zones.is_empty() {
            return wrong("", "no prices at all", "give the price of a minute or of a megabyte");
        }
        for (at, (name, rates)) in zones.iter().enumerate() {
            if zones[..at].iter().any(|(other, _)| other == name) {
                return wrong(name, "it is there twice", "give each zone a name of its own");
            }
            rates.check(name)?;
        }
        Ok(Tariff { currency, zones })
    }

    /// Everything is free, in no particular currency.
    pub fn free() -> Tariff {
        let currency = "XXX".parse().expect("ISO 4217's \"no currency\"");
        Tariff { currency, zones: vec![(String::new(), Rates::default())] }
    }

    /// What it is counted in.
    pub fn currency(&self) -> Currency {
        self.currency
    }

    /// The prices of `zone`; those of the first zone where it has none of that name.
    pub fn rates(&self, zone: &str) -> &Rates {
        let named = self.zones.iter().find(|(name, _)| name == zone);
        &named.unwrap_or(&self.zones[0]).1
    }

    /// The names of its zones.
    pub fn zones(&self) -> impl Iterator<Item = &str> {
        self.zones.iter().map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests;
