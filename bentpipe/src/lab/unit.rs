//! Quantities in scenario files, always with their unit: `"1.544Mbit"`, `"250ms"`.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

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
