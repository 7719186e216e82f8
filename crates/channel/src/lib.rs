//! One direction of a satellite link, as arithmetic.
//!
//! A packet that is pushed into a [`Channel`] goes through five places:
//!
//! 1. **The policer**, where there is one: what exceeds its token bucket is refused.
//! 2. **The queue** before the line, drop-tail: what does not fit is refused at
//!    once. The packet on the line does not count against the limit.
//! 3. **The line**, which sends one packet at a time at the configured rate, fixed or by
//!    a schedule. Its
//!    clock keeps the fraction of a nanosecond that a division leaves, so the rate
//!    over a long time has no error at all. What is lost later has used the line.
//! 4. **The sky**, where a packet may meet an outage, bit errors, a burst or plain
//!    bad luck, be flipped in one bit, doubled, or sent on a detour. Each of these
//!    draws from a generator of its own, so that switching one on leaves the
//!    pattern of the others as it was.
//! 5. **The flight**: the one-way delay, fixed or by a schedule. Packets leave in the
//!    order they came,
//!    unless reordering (or a late duplicate) is asked for.
//!
//! The channel does no input or output and reads no clock: `push` and `pop` take
//! the time, [`Channel::next_time`] says when to pop next. It never sees the bytes
//! either. A payload is whatever the caller likes (the simulator's `Vec<u8>`, the
//! emulator's buffer handle), and the length that counts comes beside it, as IP
//! bytes. Everything is decided in integers from a seed, and replays exactly.
//!
//! ```
//! use channel::{Channel, ChannelConfig, Fate};
//! use units::{BitRate, ByteCount, Duration, Instant};
//!
//! let config = ChannelConfig {
//!     rate: Some(BitRate::from_kbps(1_544)),
//!     delay: Duration::from_millis(250),
//!     ..ChannelConfig::default()
//! };
//! let mut sky = Channel::new(config, 1).unwrap();
//! sky.push(Instant::ZERO, ByteCount(1_500), "hello").unwrap();
//! let at = sky.next_time().unwrap();
//! assert_eq!(at.as_nanos(), 257_772_021);
//! let arrival = sky.pop(at).unwrap();
//! assert_eq!((arrival.item, arrival.fate), ("hello", Fate::Delivered));
//! ```

mod channel;
mod config;
mod counters;
mod line;
mod outage;
mod policer;
mod schedule;
mod series;
mod sky;
mod text;

pub use channel::{Arrival, Channel, Refused};
pub use config::{ChannelConfig, ConfigError, GilbertElliott, OutageMode, QueueLimit};
pub use counters::{Counters, Tally};
pub use outage::Outage;
pub use policer::Policer;
pub use schedule::{Schedule, ScheduleError, Scheduled};
pub use series::{Bin, Series};
pub use sky::{Fate, LossCause, flip_bit};
pub use text::parse_ratio;
