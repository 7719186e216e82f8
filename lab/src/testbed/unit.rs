//! Quantities in scenario files, always with their unit: `"1.544Mbit"`, `"250ms"`.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};
use units::Ratio;

/// Reads a text that parses as `T`.
pub fn one<'de, T, D>(d: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    String::deserialize(d)?.parse().map_err(de::Error::custom)
}

/// Reads a text that parses as `T`, where the key may also be left out (with
/// `#[serde(default)]`).
pub fn maybe<'de, T, D>(d: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    one(d).map(Some)
}

/// Reads a list of texts that parse as `T`.
pub fn list<'de, T, D>(d: D) -> Result<Vec<T>, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    let all = Vec::<String>::deserialize(d)?;
    all.iter().map(|s| s.parse().map_err(de::Error::custom)).collect()
}

/// Reads a probability: `"0.001"`, `"1e-6"` or `"0.1%"`.
pub fn share<'de, D: Deserializer<'de>>(d: D) -> Result<Ratio, D::Error> {
    channel::parse_ratio(&String::deserialize(d)?).map_err(de::Error::custom)
}

/// Reads a probability, where the key may also be left out (with `#[serde(default)]`).
pub fn maybe_share<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Ratio>, D::Error> {
    share(d).map(Some)
}
