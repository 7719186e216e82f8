//! The telephone company's own view of each call, and its price.

use dial::calendar::{Month, Wall};
use units::{Duration, Instant};

/// What the line costs, in millionths of the currency.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prices {
    pub per_call: u64,
    pub per_minute: u64,
    pub increment_ms: u64,
    pub minimum_ms: u64,
    pub per_megabyte: u64,
    pub block: u64,
}

impl Prices {
    /// The price of a call that lasted so long and carried so many bytes.
    pub fn of(&self, lasted: Duration, bytes: u64) -> u64 {
        let mut price = self.per_call;
        if self.per_minute > 0 {
            let billed = lasted.max(Duration::from_millis(self.minimum_ms));
            let step = Duration::from_millis(self.increment_ms).as_nanos();
            let steps = billed.as_nanos().div_ceil(step).max(1);
            price += (u128::from(steps) * u128::from(step) * u128::from(self.per_minute)
                / 60_000_000_000) as u64;
        }
        price + self.of_bytes(bytes)
    }

    fn of_bytes(&self, bytes: u64) -> u64 {
        let billed = u128::from(bytes.div_ceil(self.block.max(1)) * self.block.max(1));
        (billed * u128::from(self.per_megabyte) / 1_000_000) as u64
    }

    /// What a call costs when it is answered.
    pub fn first(&self) -> u64 {
        self.of(Duration::ZERO, 0)
    }

    /// What one more block of bytes costs.
    pub fn block_price(&self) -> u64 {
        self.of_bytes(1)
    }
}

/// A call as the exchange saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metered {
    pub start: Wall,
    pub answered: Instant,
    pub ended: Option<Instant>,
    pub bytes: u64,
}

/// All calls of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    pub prices: Prices,
    pub calls: Vec<Metered>,
}

impl Meter {
    /// What a call costs by now.
    pub fn price(&self, now: Instant, call: &Metered) -> u64 {
        self.prices.of(call.ended.unwrap_or(now).since(call.answered), call.bytes)
    }

    /// What the calls of a month cost by now.
    pub fn spent(&self, now: Instant, month: Month) -> u64 {
        let of_month = self.calls.iter().filter(|c| c.start.day().month() == month);
        of_month.map(|call| self.price(now, call)).sum()
    }

    /// Bytes cross in the call that goes on.
    pub fn count(&mut self, bytes: u64) {
        if let Some(call) = self.calls.last_mut().filter(|c| c.ended.is_none()) {
            call.bytes += bytes;
        }
    }
}
