//! One direction of a satellite link, as arithmetic.
//!
//! A packet that is pushed into a [`Channel`] goes through five stages:
//!
//! 1. **The policer**, if there is one: what exceeds its token bucket is refused.
//! 2. **The queue** before the line, drop-tail: what does not fit is refused at
//!    once. The packet that is being serialized does not count against the limit.
//! 3. **Serialization**: one packet at a time is put on the line at the configured rate,
//!    which is fixed or follows a schedule. The serializer keeps the fraction of a
//!    nanosecond that a division leaves, so the rate over a long time has no error at all.
//!    A packet that is lost later has used the line all the same.
//! 4. **Impairments**: a packet may be lost to an outage, bit errors, a burst or
//!    independent loss, have one bit flipped, be doubled, or be delayed so that later ones
//!    overtake it. Each of these draws from a generator of its own, so that switching one
//!    on does not change the pattern of the others.
//! 5. **Propagation**: the one-way delay, fixed or by a schedule. Packets arrive in the
//!    order they came, unless reordering (or a late duplicate) is asked for.
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
//! let mut channel = Channel::new(config, 1).unwrap();
//! channel.push(Instant::ZERO, ByteCount(1_500), "hello").unwrap();
//! let at = channel.next_time().unwrap();
//! assert_eq!(at.as_nanos(), 257_772_021);
//! let arrival = channel.pop(at).unwrap();
//! assert_eq!((arrival.item, arrival.fate), ("hello", Fate::Delivered));
//! ```

mod channel;
mod config;
mod counters;
mod impairments;
mod outage;
mod policer;
mod schedule;
mod serializer;
mod series;
mod text;

pub use channel::{Arrival, Channel, Refused};
pub use config::{ChannelConfig, ConfigError, GilbertElliott, OutageMode, QueueLimit};
pub use counters::{Counters, Tally};
pub use impairments::{Fate, LossCause, flip_bit};
pub use outage::Outage;
pub use policer::Policer;
pub use schedule::{Schedule, ScheduleError, Scheduled};
pub use series::{Bin, Series};
pub use text::parse_ratio;
