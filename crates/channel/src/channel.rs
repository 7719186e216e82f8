//! The channel itself: packets go in, wait, are sent, and arrive or are lost.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use units::{BitRate, ByteCount, Duration, Instant, Rng};

use crate::config::{ChannelConfig, ConfigError, HELD_WITHOUT_RATE, OutageMode};
use crate::counters::Counters;
use crate::impairments::{Fate, Impairments, flip_bit};
use crate::outage::Outages;
use crate::policer::Bucket;
use crate::serializer::Serializer;
use crate::series::Series;

/// One direction of a link; see the crate's description.
///
/// The time that the calls are given may not run backwards by more than the caller
/// can bear: a `push` with a time slightly before the last `pop` is taken as what it
/// is, a packet that arrived then.
#[derive(Debug)]
pub struct Channel<T> {
    config: ChannelConfig,
    /// Seeds for the draws of the rate schedule and of the delay schedule.
    seeds: [u64; 2],
    policer: Option<Bucket>,
    serializer: Serializer,
    outages: Outages,
    impairments: Impairments,
    waiting: VecDeque<Waiting<T>>,
    waiting_bytes: ByteCount,
    serializing: Option<Serializing<T>>,
    /// In the order of arrival.
    propagating: VecDeque<Propagating<T>>,
    /// Delayed packets and second copies: they need not arrive in order.
    stragglers: BinaryHeap<Propagating<T>>,
    propagating_bytes: ByteCount,
    last_arrival: Instant,
    serial: u64,
    counters: Counters,
    series: Series,
}

/// A packet at the far end of the channel, or the news that it did not get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival<T> {
    /// When it arrived, or would have.
    pub at: Instant,
    /// When it was pushed.
    pub entered: Instant,
    /// Its length as given.
    pub len: ByteCount,
    /// The payload.
    pub item: T,
    /// What became of it.
    pub fate: Fate,
    /// This is the second copy of a packet that arrived before.
    pub is_copy: bool,
    /// A second copy is still to come: a caller whose payload is a handle keeps what
    /// is behind it.
    pub copy_follows: bool,
}

/// The packet was not taken; here is the payload back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused<T> {
    /// The queue had no room.
    #[error("the queue of the channel is full")]
    Full(T),
    /// The policer's bucket had too little in it.
    #[error("the policer of the channel lets no more pass")]
    Policed(T),
}

#[derive(Debug)]
struct Waiting<T> {
    entered: Instant,
    len: ByteCount,
    item: T,
}

#[derive(Debug)]
struct Serializing<T> {
    start: Instant,
    end: Instant,
    packet: Waiting<T>,
}

#[derive(Debug)]
struct Propagating<T> {
    serial: u64,
    arrival: Arrival<T>,
}

impl<T> Propagating<T> {
    fn key(&self) -> (Instant, u64) {
        (self.arrival.at, self.serial)
    }
}
impl<T> PartialEq for Propagating<T> {
    fn eq(&self, o: &Self) -> bool {
        self.key() == o.key()
    }
}
impl<T> Eq for Propagating<T> {}
impl<T> PartialOrd for Propagating<T> {
    fn partial_cmp(&self, o: &Self) -> Option<Ordering> {
        Some(self.cmp(o))
    }
}
impl<T> Ord for Propagating<T> {
    /// Backwards, so that the heap's greatest is the earliest.
    fn cmp(&self, o: &Self) -> Ordering {
        o.key().cmp(&self.key())
    }
}

/// The series that a channel keeps unless told otherwise: bins of 100 ms, and no more
/// than 4,096 of them (160 kB).
const BIN: Duration = Duration::from_millis(100);
const BINS: usize = 4_096;

impl<T: Clone> Channel<T> {
    /// A channel at time zero; equal seeds and equal calls give equal results.
    pub fn new(config: ChannelConfig, seed: u64) -> Result<Channel<T>, ConfigError> {
        config.validate()?;
        // Apart from the impairments' generators, so that a schedule does not change the losses.
        let seeds = [1, 2].map(|part| Rng::new(seed ^ (part << 62)).next_u64());
        Ok(Channel {
            policer: config.policer.map(|p| Bucket::new(p, Instant::ZERO)),
            serializer: Serializer::new(config.pace(seeds[0])),
            seeds,
            outages: Outages::new(&config.outages)?,
            impairments: Impairments::new(&config, seed),
            config,
            waiting: VecDeque::new(),
            waiting_bytes: ByteCount(0),
            serializing: None,
            propagating: VecDeque::new(),
            stragglers: BinaryHeap::new(),
            propagating_bytes: ByteCount(0),
            last_arrival: Instant::ZERO,
            serial: 0,
            counters: Counters::default(),
            series: Series::new(BIN, BINS),
        })
    }

    /// The same channel with an empty series of `limit` bins of `width`.
    pub fn with_series(mut self, width: Duration, limit: usize) -> Channel<T> {
        self.series = Series::new(width, limit);
        self
    }

    /// A packet of `len` bytes comes at `now`. It is taken, or handed back because
    /// the queue is full or the policer says no. A length of 0 counts as 1, so that
    /// nothing is free.
    pub fn push(&mut self, now: Instant, len: ByteCount, item: T) -> Result<(), Refused<T>> {
        let len = len.max(ByteCount(1));
        self.advance(now);
        self.counters.offered.add(len);
        if self.policer.as_mut().is_some_and(|p| !p.passes(now, len)) {
            self.counters.policed.add(len);
            self.series.refused(now, len);
            return Err(Refused::Policed(item));
        }
        let (rate, _) = self.serializer.pace().at(now);
        let queue_limit = self.config.queue.bytes(rate);
        let must_wait = self.serializing.is_some() || !self.waiting.is_empty() || self.is_stopped();
        let no_room = must_wait && self.waiting_bytes + len > queue_limit;
        let beyond_limit = rate.is_none() && self.propagating_bytes + len > HELD_WITHOUT_RATE;
        if no_room || beyond_limit {
            self.counters.queue_drops.add(len);
            self.series.refused(now, len);
            self.series.queue(now, self.waiting_bytes);
            return Err(Refused::Full(item));
        }
        self.waiting_bytes += len;
        self.waiting.push_back(Waiting { entered: now, len, item });
        self.advance(now);
        self.series.queue(now, self.waiting_bytes);
        Ok(())
    }

    /// The next packet that has arrived by `now`, the lost ones included at the time
    /// when they would have. Call it until it says `None`.
    pub fn pop(&mut self, now: Instant) -> Option<Arrival<T>> {
        self.advance(now);
        let straggler = match (self.propagating.front(), self.stragglers.peek()) {
            (Some(first), Some(straggler)) => straggler.key() < first.key(),
            (None, straggler) => straggler.is_some(),
            (Some(_), None) => false,
        };
        let propagating = if straggler {
            if self.stragglers.peek()?.arrival.at > now {
                return None;
            }
            self.stragglers.pop()?
        } else {
            if self.propagating.front()?.arrival.at > now {
                return None;
            }
            self.propagating.pop_front()?
        };
        self.arrive(&propagating.arrival);
        Some(propagating.arrival)
    }

    /// The earliest time at which `pop` can have something. It may come up empty then,
    /// if the packet that was being serialized turns out to be delayed further; ask again.
    pub fn next_time(&self) -> Option<Instant> {
        let serializing = self.serializing.as_ref().map(|p| p.end + self.delay_at(p.end));
        let propagating = self.propagating.front().map(|f| f.arrival.at);
        let straggling = self.stragglers.peek().map(|f| f.arrival.at);
        [serializing, propagating, straggling].into_iter().flatten().min()
    }

    /// Moves packets along up to `now`. `push` and `pop` do so themselves; call it
    /// before reading counters in a quiet moment.
    pub fn advance(&mut self, now: Instant) {
        loop {
            match &self.serializing {
                Some(packet) if packet.end > now => return,
                Some(_) => self.end_serialization(),
                None => {}
            }
            if self.waiting.is_empty() || self.is_stopped() {
                return;
            }
            self.start_next();
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What happened when.
    pub fn series(&self) -> &Series {
        &self.series
    }

    /// The configuration in force.
    pub fn config(&self) -> &ChannelConfig {
        &self.config
    }

    /// Bytes that wait before the line, the packet on it not counted.
    pub fn waiting(&self) -> ByteCount {
        self.waiting_bytes
    }

    /// Packets held anywhere in the channel.
    pub fn held(&self) -> usize {
        let serializing = usize::from(self.serializing.is_some());
        self.waiting.len() + serializing + self.propagating.len() + self.stragglers.len()
    }

    /// A new configuration from `now` on. What is on the line or in flight keeps its
    /// times; nothing overtakes because the delay became shorter; packets above a
    /// smaller queue limit stay.
    pub fn reconfigure(&mut self, now: Instant, config: ChannelConfig) -> Result<(), ConfigError> {
        config.validate()?;
        let outages = Outages::new(&config.outages)?;
        self.advance(now);
        self.serializer.set_pace(config.pace(self.seeds[0]));
        match (&mut self.policer, config.policer) {
            (Some(bucket), Some(policer)) => bucket.change(policer, now),
            (slot, policer) => *slot = policer.map(|p| Bucket::new(p, now)),
        }
        self.outages.replan(outages);
        self.impairments.reconfigure(&config);
        self.config = config;
        self.advance(now);
        Ok(())
    }

    /// A new rate from `now` on, for the packets that are not on the line yet. A schedule
    /// of the rate is over.
    pub fn set_rate(&mut self, now: Instant, rate: Option<BitRate>) -> Result<(), ConfigError> {
        let config = ChannelConfig { rate, rate_schedule: None, ..self.config.clone() };
        self.reconfigure(now, config)
    }

    /// What the line can send from `from` to `to`, outages and all; `None` without a rate.
    pub fn capacity(&self, from: Instant, to: Instant) -> Option<ByteCount> {
        let (mut now, mut bits) = (from, 0u128);
        while now < to {
            let (rate, until) = self.serializer.pace().at(now);
            let until = until.min(to);
            bits += u128::from(rate?.as_bps()) * u128::from(until.since(now).as_nanos());
            now = until;
        }
        self.serializer.pace().at(from).0?;
        Some(ByteCount(u64::try_from(bits / 8_000_000_000).unwrap_or(u64::MAX)))
    }

    /// Begins or ends an outage by hand, beside the planned ones.
    pub fn set_outage(&mut self, now: Instant, on: bool) {
        self.advance(now);
        self.outages.switch(now, on);
        self.advance(now);
    }

    /// Is an outage switched on by hand?
    pub fn in_manual_outage(&self) -> bool {
        self.outages.is_on()
    }

    /// A modem that knows of an outage of unknown end starts nothing.
    fn is_stopped(&self) -> bool {
        self.config.outage_mode == OutageMode::Hold && self.outages.is_on()
    }

    /// The one-way delay of a packet whose last bit is sent at `now`.
    fn delay_at(&self, now: Instant) -> Duration {
        match &self.config.delay_schedule {
            Some(schedule) => schedule.piece(now, self.seeds[1]).0,
            None => self.config.delay,
        }
    }

    fn start_next(&mut self) {
        let Some(packet) = self.waiting.pop_front() else { return };
        self.waiting_bytes -= packet.len;
        let mut earliest = packet.entered;
        if self.config.outage_mode == OutageMode::Hold {
            earliest = self.after_outages(earliest, packet.len);
        }
        let (start, end) = self.serializer.send(earliest, packet.len);
        self.serializing = Some(Serializing { start, end, packet });
    }

    /// The earliest time from which the line can send `len` bytes without meeting an
    /// outage. A packet too long for the gap between two outages waits for a longer gap.
    fn after_outages(&self, mut earliest: Instant, len: ByteCount) -> Instant {
        loop {
            let (start, end) = self.serializer.plan(earliest, len);
            match self.outages.first_touching(start, end) {
                Some(outage) => earliest = outage.end,
                None => return earliest,
            }
        }
    }

    /// The packet is on the line as a whole: the impairments decide what becomes of it.
    fn end_serialization(&mut self) {
        let Some(Serializing { start, end, packet }) = self.serializing.take() else { return };
        let Waiting { entered, len, item } = packet;
        let outage =
            self.config.outage_mode == OutageMode::Lose && self.outages.touches(start, end);
        let verdict = self.impairments.judge(len, outage);
        let lost = matches!(verdict.fate, Fate::Lost(_));
        self.counters.sent.add(len);
        self.series.sent(start, end, len, lost);
        let twice = verdict.twice && !lost;
        let at = end + self.delay_at(end);
        let first = Arrival {
            at,
            entered,
            len,
            item,
            fate: verdict.fate,
            is_copy: false,
            copy_follows: twice,
        };
        if verdict.detour && !lost {
            self.counters.reordered.add(len);
            self.propagate_late(Arrival { at: at + self.config.reorder_delay, ..first }, twice);
        } else {
            let at = at.max(self.last_arrival);
            self.last_arrival = at;
            self.propagate(Arrival { at, ..first }, twice);
        }
    }

    fn propagate(&mut self, arrival: Arrival<T>, twice: bool) {
        let copy = twice.then(|| arrival.clone());
        self.propagating_bytes += arrival.len;
        let serial = self.next_serial();
        self.propagating.push_back(Propagating { serial, arrival });
        self.propagate_copy(copy);
    }

    fn propagate_late(&mut self, arrival: Arrival<T>, twice: bool) {
        let copy = twice.then(|| arrival.clone());
        self.propagating_bytes += arrival.len;
        let serial = self.next_serial();
        self.stragglers.push(Propagating { serial, arrival });
        self.propagate_copy(copy);
    }

    fn propagate_copy(&mut self, copy: Option<Arrival<T>>) {
        let Some(first) = copy else { return };
        let at = first.at + self.config.duplicate_delay;
        let arrival = Arrival { at, is_copy: true, copy_follows: false, ..first };
        self.propagating_bytes += arrival.len;
        let serial = self.next_serial();
        self.stragglers.push(Propagating { serial, arrival });
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn arrive(&mut self, arrival: &Arrival<T>) {
        self.propagating_bytes -= arrival.len;
        let counters = &mut self.counters;
        match arrival.fate {
            Fate::Lost(cause) => counters.lost_to(cause).add(arrival.len),
            _ if arrival.is_copy => counters.duplicated.add(arrival.len),
            Fate::Delivered => counters.delivered.add(arrival.len),
            Fate::Corrupted(_) => {
                counters.delivered.add(arrival.len);
                counters.corrupted.add(arrival.len);
            }
        }
    }
}

impl Channel<Vec<u8>> {
    /// The next packet that has arrived by `now`, as bytes: lost ones are skipped and
    /// corrupted ones have their bit flipped.
    pub fn pop_bytes(&mut self, now: Instant) -> Option<Vec<u8>> {
        loop {
            let mut arrival = self.pop(now)?;
            match arrival.fate {
                Fate::Lost(_) => continue,
                Fate::Corrupted(draw) => flip_bit(&mut arrival.item, draw),
                Fate::Delivered => {}
            }
            return Some(arrival.item);
        }
    }
}
