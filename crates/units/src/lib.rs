//! The quantities everything else is written in, and the Internet checksum.
//!
//! Integers only: a decision that depends on floating point does not replay
//! exactly. Units multiply where it makes sense (`BitRate × Duration` is a
//! `ByteCount`, `ByteCount ÷ BitRate` is a `Duration`) and nowhere else. All
//! arithmetic saturates: a peer that sends absurd numbers gets absurd results,
//! never a panic.

mod checksum;
pub mod human;
mod prefix;
mod private;
mod rate;
mod rng;
mod shares;
mod time;
pub mod varint;

pub use checksum::internet_sum;
pub use prefix::{IpPrefix, ParsePrefixError};
pub use private::{embedded_v4, is_private, local_nat64_v4};
pub use rate::{BitRate, ByteCount, ParseUnitError, Ratio};
pub use rng::Rng;
pub use shares::{HostShares, Shares, host_in_network, one_host};
pub use time::{Duration, Instant};
