//! What one direction of a link is like, as files and the command line write it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use units::{BitRate, ByteCount, Duration, ParseUnitError, Ratio};

use crate::outage::Outage;
use crate::policer::Policer;
use crate::schedule::{Schedule, Scheduled};
use crate::serializer::Pace;
use crate::text;

/// One direction of a link, as scenario files and the command line write it:
///
/// ```toml
/// rate  = "20Mbit"
/// delay = "270ms"
/// queue = "500ms"
/// ber   = 1e-7
/// burst = { p = 0.001, r = 0.25 }
/// outages = ["10s-12s", "1min-90s"]
/// ```
///
/// Every key may be left out; the default is an ideal wire. Memory: a packet is held
/// while it waits and while it flies, so `rate × delay` plus the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelConfig {
    /// Bits per second, counted on IP packets. `None`: as fast as it comes.
    #[serde(with = "text::maybe", skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
    /// The rate as it changes with time. It stands above `rate`, which may remain as what the
    /// link is called. Rates from 1 kbit/s.
    #[serde(with = "text::maybe", skip_serializing_if = "Option::is_none")]
    pub rate_schedule: Option<Schedule<BitRate>>,
    /// One-way delay after the last bit has been sent; at most an hour.
    #[serde(with = "text::unit", skip_serializing_if = "text::is_zero")]
    pub delay: Duration,
    /// The delay as it changes with time, above `delay`. A packet has the delay of the moment at
    /// which its last bit has been sent, and never arrives before one that was sent earlier.
    #[serde(with = "text::maybe", skip_serializing_if = "Option::is_none")]
    pub delay_schedule: Option<Schedule<Duration>>,
    /// Drops at once what exceeds a token bucket, before the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policer: Option<Policer>,
    /// What may wait before the line, the packet on the line not counted. 500 ms of
    /// the rate in force unless given. Without a rate nothing ever waits, save in an outage
    /// that holds.
    #[serde(with = "text::unit")]
    pub queue: QueueLimit,
    /// Bit-error ratio: a packet of n bytes is lost with probability
    /// 1 − (1 − ber)^(8n).
    #[serde(with = "text::share", skip_serializing_if = "text::never")]
    pub ber: Ratio,
    /// Losses that come in bursts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<GilbertElliott>,
    /// Probability that a packet is lost, each for itself.
    #[serde(with = "text::share", skip_serializing_if = "text::never")]
    pub loss: Ratio,
    /// The longest packet in bytes that gets through: longer ones vanish in silence after the
    /// line, as behind a router whose ICMP is filtered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Times without a link, counted from the start.
    #[serde(with = "text::list", skip_serializing_if = "Vec::is_empty")]
    pub outages: Vec<Outage>,
    /// What an outage does to packets.
    pub outage_mode: OutageMode,
    /// Probability that a packet makes a detour of `reorder_delay`.
    #[serde(with = "text::share", skip_serializing_if = "text::never")]
    pub reorder: Ratio,
    /// The detour's extra delay; packets behind it overtake.
    #[serde(with = "text::unit", skip_serializing_if = "text::is_zero")]
    pub reorder_delay: Duration,
    /// Probability that a packet arrives twice. The copy does not use the line.
    #[serde(with = "text::share", skip_serializing_if = "text::never")]
    pub duplicate: Ratio,
    /// How long after the first the second copy arrives.
    #[serde(with = "text::unit", skip_serializing_if = "text::is_zero")]
    pub duplicate_delay: Duration,
    /// Probability that a packet arrives with one random bit flipped.
    #[serde(with = "text::share", skip_serializing_if = "text::never")]
    pub corrupt: Ratio,
}

impl Default for ChannelConfig {
    fn default() -> ChannelConfig {
        ChannelConfig {
            rate: None,
            rate_schedule: None,
            delay: Duration::ZERO,
            delay_schedule: None,
            policer: None,
            queue: QueueLimit::Time(Duration::from_millis(500)),
            ber: Ratio::ZERO,
            burst: None,
            loss: Ratio::ZERO,
            mtu: None,
            outages: Vec::new(),
            outage_mode: OutageMode::default(),
            reorder: Ratio::ZERO,
            reorder_delay: Duration::ZERO,
            duplicate: Ratio::ZERO,
            duplicate_delay: Duration::ZERO,
            corrupt: Ratio::ZERO,
        }
    }
}

/// How much may wait before the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    /// So many bytes (`"64kB"`).
    Bytes(ByteCount),
    /// As many bytes as the line sends in this time (`"500ms"`).
    Time(Duration),
}

impl QueueLimit {
    /// The limit in bytes on a line of `rate`.
    pub fn bytes(self, rate: Option<BitRate>) -> ByteCount {
        match (self, rate) {
            (QueueLimit::Bytes(n), _) => n,
            (QueueLimit::Time(t), Some(rate)) => rate.bytes_in(t),
            (QueueLimit::Time(_), None) => HELD_WITHOUT_RATE,
        }
    }
}

/// Bounds what waits and what flies where no rate does: 256 MB.
pub(crate) const HELD_WITHOUT_RATE: ByteCount = ByteCount(256_000_000);

/// No real link is slower to cross; a larger value is a slip of the unit.
const LONGEST_DELAY: Duration = Duration::from_secs(3_600);

impl FromStr for QueueLimit {
    type Err = ParseUnitError;
    /// A size (`"64kB"`) or a time (`"500ms"`).
    fn from_str(s: &str) -> Result<QueueLimit, ParseUnitError> {
        let time = s.parse().map(QueueLimit::Time);
        time.or_else(|_| s.parse().map(QueueLimit::Bytes))
    }
}

impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueLimit::Bytes(n) => write!(f, "{}B", n.0),
            QueueLimit::Time(t) => write!(f, "{t}"),
        }
    }
}

/// What an outage does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutageMode {
    /// The line goes on sending and everything it sends is lost: a faded radio path.
    #[default]
    Lose,
    /// The line stops and packets wait in the queue: a modem that knows. A packet
    /// that would not be over before a planned outage waits for its end.
    Hold,
}

/// The Gilbert–Elliott process (Gilbert 1960, Elliott 1963; parameters as in
/// Haßlinger and Hohlfeld 2008). Per packet: it is lost according to the state, then
/// the state may change. A burst lasts 1/r packets on average and the long-run loss is
/// (p·(1 − h) + r·(1 − k)) ÷ (p + r). The first packet meets the good state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GilbertElliott {
    /// Probability of going from the good state to the bad one.
    #[serde(with = "text::share")]
    pub p: Ratio,
    /// Probability of going from the bad state to the good one.
    #[serde(with = "text::share")]
    pub r: Ratio,
    /// Probability that a packet survives the bad state; 0 unless given.
    #[serde(with = "text::share", default)]
    pub h: Ratio,
    /// Probability that a packet survives the good state; 1 unless given.
    #[serde(with = "text::share", default = "always")]
    pub k: Ratio,
}

fn always() -> Ratio {
    Ratio::ONE
}

/// Why a configuration cannot be a channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A rate of zero.
    #[error("rate = \"0bit\" would never send anything; leave rate out for no limit")]
    NoRate,
    /// A schedule with a rate that no link has.
    #[error(
        "rate_schedule has {given}, which is less than 1kbit; check its unit, or plan an outage"
    )]
    SlowSchedule {
        /// What it says.
        given: BitRate,
    },
    /// A policer that nothing passes.
    #[error("policer.rate = \"0bit\" lets nothing pass; leave policer out for no limit")]
    NoPolicedRate,
    /// A bucket that no packet fits into, or none at all.
    #[error("policer.burst = \"{0}\" is not between 1500B, one packet, and 1GB")]
    Burst(ByteCount),
    /// A delay that no link has.
    #[error("{key} = \"{given}\" is more than an hour; check its unit")]
    LongDelay {
        /// The key in the file.
        key: &'static str,
        /// What it says.
        given: Duration,
    },
    /// An outage that does not end after it begins.
    #[error("the outage \"{0}\" does not end after it begins")]
    Outage(Outage),
    /// A bad state that is never left.
    #[error("burst.r = 0 would never leave the bad state; the mean burst is 1/r packets")]
    EndlessBurst,
    /// Probability without the extra delay that would make it visible.
    #[error("reorder needs reorder_delay: how much later does such a packet arrive?")]
    ReorderWithoutDelay,
}

impl ChannelConfig {
    /// How fast the line sends; `seed` is that of the schedule's draws.
    pub(crate) fn pace(&self, seed: u64) -> Pace {
        match (&self.rate_schedule, self.rate) {
            (Some(schedule), _) => Pace::Scheduled(schedule.clone(), seed),
            (None, Some(rate)) => Pace::Fixed(rate),
            (None, None) => Pace::Unlimited,
        }
    }

    /// Checks what the types do not: rates above zero, delays within an hour, outages
    /// that end, bursts that end, a bucket that holds a packet.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.rate == Some(BitRate::from_bps(0)) {
            return Err(ConfigError::NoRate);
        }
        check_delay("delay", self.delay)?;
        check_delay("reorder_delay", self.reorder_delay)?;
        check_delay("duplicate_delay", self.duplicate_delay)?;
        check_schedule("rate_schedule", &self.rate_schedule)?;
        check_schedule("delay_schedule", &self.delay_schedule)?;
        if let Some(policer) = self.policer {
            check_policer(policer)?;
        }
        if let Some(&bad) = self.outages.iter().find(|o| o.start >= o.end) {
            return Err(ConfigError::Outage(bad));
        }
        if self.burst.is_some_and(|b| b.r == Ratio::ZERO && b.p != Ratio::ZERO) {
            return Err(ConfigError::EndlessBurst);
        }
        if self.reorder != Ratio::ZERO && self.reorder_delay == Duration::ZERO {
            return Err(ConfigError::ReorderWithoutDelay);
        }
        Ok(())
    }
}

pub(crate) fn check_delay(key: &'static str, given: Duration) -> Result<(), ConfigError> {
    if given > LONGEST_DELAY { Err(ConfigError::LongDelay { key, given }) } else { Ok(()) }
}

fn check_schedule<T: Scheduled>(
    key: &'static str,
    schedule: &Option<Schedule<T>>,
) -> Result<(), ConfigError> {
    schedule.as_ref().map_or(Ok(()), |s| s.validate(key))
}

fn check_policer(policer: Policer) -> Result<(), ConfigError> {
    if policer.rate == BitRate::from_bps(0) {
        return Err(ConfigError::NoPolicedRate);
    }
    if !(1_500..=1_000_000_000).contains(&policer.burst.0) {
        return Err(ConfigError::Burst(policer.burst));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
        rate = "23.58Mbit"
        rate_schedule = "0s 40Mbit, 10s to 8Mbit, repeat 30s"
        delay_schedule = "25ms-60ms every 50ms"
        policer = { rate = "2Mbit", burst = "1MB" }
        delay = "270ms"
        queue = "64kB"
        ber = 1e-7
        burst = { p = 0.001, r = "25%" }
        loss = "0.1%"
        mtu = 1280
        outages = ["10s-12s", "1min-90s"]
        outage_mode = "hold"
        reorder = 0.01
        reorder_delay = "20ms"
        duplicate = 0.02
        corrupt = 1
    "#;

    #[test]
    fn a_full_configuration_is_read() {
        let config: ChannelConfig = toml::from_str(FULL).unwrap();
        assert_eq!(config.rate, Some(BitRate::from_bps(23_580_000)));
        assert_eq!(config.queue, QueueLimit::Bytes(ByteCount(64_000)));
        assert_eq!(config.burst.unwrap().k, Ratio::ONE);
        assert_eq!(config.burst.unwrap().r, Ratio::from_f64(0.25));
        assert_eq!(config.mtu, Some(1280));
        assert_eq!(config.outages.len(), 2);
        assert_eq!(config.corrupt, Ratio::ONE);
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let config: ChannelConfig = toml::from_str(FULL).unwrap();
        let json = serde_json::to_string(&config).unwrap();
        assert!(json.contains(r#""ber":1e-7"#), "{json}");
        assert_eq!(serde_json::from_str::<ChannelConfig>(&json).unwrap(), config);
    }

    #[test]
    fn wrong_keys_units_and_values_are_refused() {
        for wrong in [
            "rat = \"1Mbit\"",
            "rate = \"1Mb\"",
            "rate = 1000",
            "delay = \"270\"",
            "loss = 1.5",
            "loss = -0.1",
            "loss = \"120%\"",
            "ber = nan",
            "queue = \"much\"",
            "outages = [\"12s\"]",
            "rate_schedule = \"1s 40Mbit\"",
            "delay_schedule = \"0s 40Mbit\"",
            "policer = { rate = \"2Mbit\" }",
            "burst = { p = 0.1 }",
            "burst = { p = 0.1, r = 0.1, q = 1 }",
        ] {
            assert!(toml::from_str::<ChannelConfig>(wrong).is_err(), "{wrong} was taken");
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for (wrong, why) in [
            ("rate = \"0bit\"", ConfigError::NoRate),
            ("burst = { p = 0.1, r = 0 }", ConfigError::EndlessBurst),
            ("reorder = 0.1", ConfigError::ReorderWithoutDelay),
            (
                "rate_schedule = \"0s 40bit\"",
                ConfigError::SlowSchedule { given: BitRate::from_bps(40) },
            ),
            ("policer = { rate = \"0bit\", burst = \"1MB\" }", ConfigError::NoPolicedRate),
            ("policer = { rate = \"1Mbit\", burst = \"1B\" }", ConfigError::Burst(ByteCount(1))),
        ] {
            let config: ChannelConfig = toml::from_str(wrong).unwrap();
            assert_eq!(config.validate(), Err(why));
        }
        for (slow, key) in [
            ("delay = \"270min\"", "delay"),
            ("delay_schedule = \"1s-270min every 1s\"", "delay_schedule"),
        ] {
            let slow: ChannelConfig = toml::from_str(slow).unwrap();
            assert!(
                matches!(slow.validate(), Err(ConfigError::LongDelay { key: k, .. }) if k == key)
            );
        }
    }
}
