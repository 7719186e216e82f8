//! How quantities look in scenario files and on the command line.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserializer, Serializer};
use units::{Duration, Ratio};

/// Reads a probability: a number from 0 to 1 (`"0.001"`, `"1e-6"`) or a percentage
/// (`"0.1%"`).
pub fn parse_ratio(s: &str) -> Result<Ratio, String> {
    let wrong = || format!("\"{s}\" is not a probability such as \"0.001\", \"1e-6\" or \"0.1%\"");
    let (number, scale) = match s.trim().strip_suffix('%') {
        Some(percent) => (percent, 0.01),
        None => (s.trim(), 1.0),
    };
    let value = number.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    ratio(value).ok_or_else(wrong)
}

fn ratio(value: f64) -> Option<Ratio> {
    (0.0..=1.0).contains(&value).then(|| Ratio::from_f64(value))
}

/// A type that is written as a string with its unit.
pub(crate) mod unit {
    use super::*;

    pub(crate) fn serialize<T: fmt::Display, S: Serializer>(
        v: &T,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        s.collect_str(v)
    }

    pub(crate) fn deserialize<'de, T, D>(d: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: fmt::Display>,
        D: Deserializer<'de>,
    {
        d.deserialize_str(FromText(PhantomData))
    }
}

/// As `unit`, where the key may be left out.
pub(crate) mod maybe {
    use super::*;

    pub(crate) fn serialize<T: fmt::Display, S: Serializer>(
        v: &Option<T>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        match v {
            Some(v) => s.collect_str(v),
            None => s.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, T, D>(d: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: fmt::Display>,
        D: Deserializer<'de>,
    {
        unit::deserialize(d).map(Some)
    }
}

/// A number of bytes, to the byte.
pub(crate) mod bytes {
    use super::*;
    use units::ByteCount;

    pub(crate) fn serialize<S: Serializer>(v: &ByteCount, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{}B", v.0))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<ByteCount, D::Error> {
        unit::deserialize(d)
    }
}

/// A list of things that are written as strings.
pub(crate) mod list {
    use super::*;
    use serde::Deserialize;
    use serde::ser::SerializeSeq;

    pub(crate) fn serialize<T: fmt::Display, S: Serializer>(
        v: &[T],
        s: S,
    ) -> Result<S::Ok, S::Error> {
        let mut seq = s.serialize_seq(Some(v.len()))?;
        for item in v {
            seq.serialize_element(&item.to_string())?;
        }
        seq.end()
    }

    pub(crate) fn deserialize<'de, T, D>(d: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: fmt::Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(d)?;
        texts.iter().map(|t| t.parse().map_err(D::Error::custom)).collect()
    }
}

/// A probability, as a number or a string with a percent sign.
pub(crate) mod share {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(v: &Ratio, s: S) -> Result<S::Ok, S::Error> {
        // Nine digits hide the rounding of the fixed-point form: 1e-7 stays 1e-7.
        let text = format!("{:.8e}", v.as_f64());
        s.serialize_f64(text.parse().unwrap_or_default())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Ratio, D::Error> {
        d.deserialize_any(FromShare)
    }
}

struct FromText<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for FromText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string with a unit")
    }

    fn visit_str<E: Error>(self, s: &str) -> Result<T, E> {
        s.parse().map_err(E::custom)
    }
}

struct FromShare;

impl Visitor<'_> for FromShare {
    type Value = Ratio;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a probability from 0 to 1, or a string such as \"0.1%\"")
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Ratio, E> {
        ratio(v).ok_or_else(|| E::invalid_value(Unexpected::Float(v), &self))
    }

    fn visit_i64<E: Error>(self, v: i64) -> Result<Ratio, E> {
        self.visit_f64(v as f64)
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<Ratio, E> {
        self.visit_f64(v as f64)
    }

    fn visit_str<E: Error>(self, s: &str) -> Result<Ratio, E> {
        parse_ratio(s).map_err(E::custom)
    }
}

pub(crate) fn is_zero(d: &Duration) -> bool {
    *d == Duration::ZERO
}

pub(crate) fn never(p: &Ratio) -> bool {
    *p == Ratio::ZERO
}
