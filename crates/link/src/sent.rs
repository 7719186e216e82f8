//! What was sent and is not settled: which frames each packet carried, what the
//! peer's reports say of it, and when it is deemed lost (R-ARQ).
//!
//! A packet is lost when one that left at least the reordering window later has
//! arrived (the time threshold of RFC 8985). The window starts at zero, because
//! most satellite links do not reorder, and grows when a packet deemed lost turns
//! up after all.

use std::collections::VecDeque;
use std::ops::Range;

use squeeze::headers::Token;
use units::{Duration, Instant};

use crate::loss_by_size::LossBySize;
use crate::numbers::Numbers;
use crate::path::PathId;
use crate::path_mtu::Evidence;
use crate::rate::Told;
use crate::repair::MAX_WINDOW;
use crate::rtt::Rtt;
use crate::wire::{StateFrame, StreamId};

/// What the encoding of a report's delay may add to it.
const ROUNDING: Duration = Duration::from_millis(1);

/// With more in flight than this what is lost is looked for once in [`LOOKING_PAUSE`] only: each
/// look may go through all of it, and a peer can have one for each of its packets.
const MANY_IN_FLIGHT: usize = 32_768;
/// So it is where the last look went through so many packets of which no report has spoken: honest
/// peers speak of everything, unless reports are lost.
const MANY_UNSPOKEN: usize = 2_048;
const LOOKING_PAUSE: Duration = Duration::from_millis(20);
/// Packets that are declared lost at once, and that one look goes through; the rest follows.
const AT_ONCE: usize = 8_192;
const MOST_STEPS: usize = 16_384;

/// Packets that are forgotten at one moment; the rest follows.
const MOST_FORGOTTEN: usize = 10_000;

/// L-LO-8: frames that are kept for each packet that may be. A packet of data has one to three; one
/// of answers to a peer that opens and ends streams has a hundred.
const FRAMES_EACH: usize = 2;

/// What a packet carried that must arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SentFrame {
    Stream {
        id: StreamId,
        range: Range<u64>,
        fin: bool,
    },
    Open(StreamId),
    Accepted(StreamId),
    Reset(StreamId),
    Credit(StreamId, u64),
    /// What was said of a path, in this version.
    Path(PathId, u64),
    /// A wish to use a path, with its sequence number.
    Use(u64),
    /// A header that others of its flow are told by once it has arrived.
    Reference(Token),
}

impl SentFrame {
    /// The stream it belongs to.
    pub fn stream(&self) -> Option<StreamId> {
        Some(match *self {
            SentFrame::Stream { id, .. }
            | SentFrame::Open(id)
            | SentFrame::Accepted(id)
            | SentFrame::Reset(id)
            | SentFrame::Credit(id, _) => id,
            SentFrame::Reference(_) | SentFrame::Path(..) | SentFrame::Use(_) => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InFlight,
    /// A probe of the path's MTU, of which nothing has been heard.
    Probing,
    /// Deemed lost at this time; kept a while to notice that it was only late.
    Lost(Instant),
    Settled,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    sent: Instant,
    state: State,
    frames: u16,
    /// As the link counts it.
    size: u16,
    /// How many numbers later the last REPAIR packet left that covers it; 0: none did.
    repair: u16,
    first_frame: u64,
    /// Link bytes sent up to this packet and with it.
    through: u64,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Arrived,
    Lost,
}

/// What a report told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// Something arrived that calls for a report and was not known to have.
    pub progress: bool,
    /// Of the newest packet that arrived, if that is news.
    pub told: Option<Told>,
}

/// Counts for `status`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentCounts {
    pub arrived: u64,
    pub lost: u64,
    pub late: u64,
    /// Of those lost, packets that the path did not take for their size.
    pub too_long: u64,
    /// Of those lost, what an outage took: more than [`OUTAGE`] in a row.
    pub in_outages: u64,
    /// Of these, what was lost while nothing at all arrived.
    pub in_the_dark: u64,
}

/// More packets lost in a row are an outage, whatever the losses are like otherwise.
const OUTAGE: u64 = 32;

/// Packets lost one after the other, but for those that call for no report.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    newest: u64,
    len: u64,
}

impl Row {
    /// Packet `number` is lost; answers how many more an outage took.
    fn on_lost(&mut self, number: u64) -> u64 {
        self.len =
            if (1..=2).contains(&number.wrapping_sub(self.newest)) { self.len + 1 } else { 1 };
        self.newest = number;
        match self.len {
            0..=OUTAGE => 0,
            n if n == OUTAGE + 1 => n,
            _ => 1,
        }
    }
}

pub(crate) struct Sent {
    /// The packet number of `packets[0]`: all below is settled.
    base: u64,
    packets: VecDeque<Packet>,
    frames: VecDeque<SentFrame>,
    first_frame: u64,
    /// Numbers from `base` up that reports have told of already.
    told: Numbers,
    /// Numbers from `base` up that a report has spoken of, whether they had arrived or not.
    spoken: Numbers,
    /// What the report in hand tells anew; kept for its memory.
    news: Vec<Range<u64>>,
    /// The highest number that the peer has told to have received.
    confirmed: Option<u64>,
    /// When all was given up that was in flight.
    given_up: Option<Instant>,
    /// A probe of the path's MTU was given up with the packets around it.
    probes_given_up: bool,
    /// No packet below is in flight.
    scan_from: u64,
    /// When lost packets were last looked for, and where that look ended before it had seen all.
    looked: Instant,
    look_on: Option<u64>,
    /// Packets that were forgotten at that moment.
    forgotten: (Instant, usize),
    /// Packets that the last look went through in vain, as no report has spoken of them.
    unspoken: usize,
    in_flight: usize,
    /// When the newest packet known to have arrived left.
    newest_arrived: Option<(u64, Instant)>,
    /// When the last report came.
    reported: Instant,
    /// When the first one after a pause came.
    resumed: Instant,
    reorder_window: Duration,
    last_late: Instant,
    /// Link bytes sent, and those of them that arrived.
    sent_bytes: u64,
    arrived_bytes: u64,
    pub counts: SentCounts,
    row: Row,
    dark: Row,
    /// What became of packets, by size.
    pub evidence: Evidence,
    /// What was lost of which length.
    pub by_size: LossBySize,
}

/// Lost packets are remembered this many round trips, to notice late arrivals.
const REMEMBER_LOST_RTTS: u64 = 1;
/// After this many round trips a packet is lost of which no report has spoken.
const UNSPOKEN_RTTS: u64 = 4;
/// Where something arrives a peer reports once in a round trip at least: without a report for so
/// many, with a margin, those that spoke of the packet were lost themselves ...
const PAUSE_RTTS: u64 = 2;
/// ... and it is lost only so many round trips after the next.
const RESUMED_RTTS: u64 = 2;
/// After this many round trips without a late packet the window halves.
const FORGET_REORDERING_RTTS: u64 = 16;

impl Sent {
    pub fn new() -> Sent {
        Sent {
            base: 0,
            packets: VecDeque::new(),
            frames: VecDeque::new(),
            first_frame: 0,
            told: Numbers::default(),
            spoken: Numbers::default(),
            news: Vec::new(),
            confirmed: None,
            given_up: None,
            probes_given_up: false,
            scan_from: 0,
            looked: Instant::ZERO,
            look_on: None,
            forgotten: (Instant::ZERO, 0),
            unspoken: 0,
            in_flight: 0,
            newest_arrived: None,
            reported: Instant::ZERO,
            resumed: Instant::ZERO,
            reorder_window: Duration::ZERO,
            last_late: Instant::ZERO,
            sent_bytes: 0,
            arrived_bytes: 0,
            counts: SentCounts::default(),
            row: Row::default(),
            dark: Row::default(),
            evidence: Evidence::none(),
            by_size: LossBySize::default(),
        }
    }

    /// The number that the next packet will have.
    pub fn next_number(&self) -> u64 {
        self.base + self.packets.len() as u64
    }

    /// All numbers below are settled.
    pub fn floor(&self) -> u64 {
        self.base
    }

    /// Packets that are kept until they are settled.
    #[cfg(test)]
    pub fn unsettled(&self) -> usize {
        self.packets.len()
    }

    /// What they take of memory.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.packets.capacity() * size_of::<Packet>()
            + self.frames.capacity() * size_of::<SentFrame>()
    }

    /// When the last report came.
    pub fn reported(&self) -> Instant {
        self.reported
    }

    /// Packets in flight that call for a report.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The highest number that the peer is known to have received. Not the same as the
    /// floor, below which much may have been lost.
    pub fn confirmed(&self) -> Option<u64> {
        self.confirmed
    }

    /// Adds a frame to the packet being built.
    pub fn push_frame(&mut self, frame: SentFrame) {
        self.frames.push_back(frame);
    }

    /// The packet being built leaves, `size` bytes as the link counts them. One that calls
    /// for no report is settled at once.
    pub fn push_packet(&mut self, now: Instant, eliciting: bool, size: u64) -> u64 {
        let number = self.next_number();
        self.sent_bytes += size;
        let first_frame =
            self.packets.back().map_or(self.first_frame, |p| p.first_frame + u64::from(p.frames));
        let frames = self.first_frame + self.frames.len() as u64 - first_frame;
        if !eliciting && frames == 0 && self.packets.is_empty() {
            // Nobody will report it, so nothing would ever take it out.
            self.base += 1;
            self.arrived_bytes += size;
            return number;
        }
        self.packets.push_back(Packet {
            sent: now,
            state: if eliciting { State::InFlight } else { State::Settled },
            frames: frames as u16,
            size: size as u16,
            repair: 0,
            first_frame,
            through: self.sent_bytes,
        });
        self.in_flight += usize::from(eliciting);
        number
    }

    /// A probe of the path's MTU leaves. It is not counted: neither its loss nor its bytes
    /// say anything about the link (L-PM-4).
    pub fn push_probe(&mut self, now: Instant) -> u64 {
        let number = self.next_number();
        let first_frame =
            self.packets.back().map_or(self.first_frame, |p| p.first_frame + u64::from(p.frames));
        self.packets.push_back(Packet {
            sent: now,
            state: State::Probing,
            frames: 0,
            size: 0,
            repair: 0,
            first_frame,
            through: self.sent_bytes,
        });
        number
    }

    /// Has nothing been heard of the probe, and has it not been given up?
    pub fn is_probing(&self, number: u64) -> bool {
        self.packet(number).is_some_and(|p| p.state == State::Probing)
    }

    /// The probe is lost.
    pub fn give_up_probe(&mut self, number: u64) {
        if self.is_probing(number) {
            self.packets[(number - self.base) as usize].state = State::Settled;
        }
    }

    /// Was a probe given up, with the packets around it, since this was asked?
    pub fn take_probes_given_up(&mut self) -> bool {
        std::mem::take(&mut self.probes_given_up)
    }

    /// A REPAIR packet leaves that covers these.
    pub fn push_repair(&mut self, now: Instant, covers: Range<u64>, size: u64) -> u64 {
        let number = self.push_packet(now, false, size);
        let first = covers.start.max(number.saturating_sub(MAX_WINDOW as u64)).max(self.base);
        for covered in first..covers.end {
            self.packets[(covered - self.base) as usize].repair = (number - covered) as u16;
        }
        number
    }

    /// The last REPAIR packet that may bring the packet back, and when it left.
    fn last_repair_of(&self, number: u64) -> Option<(u64, Instant)> {
        let repair = number + u64::from(self.packet(number)?.repair);
        let left = self.packet(repair).filter(|_| repair > number)?.sent;
        Some((repair, left))
    }

    /// The first number that left at `since` or later.
    pub fn first_since(&self, since: Instant) -> u64 {
        self.base + self.packets.partition_point(|p| p.sent < since) as u64
    }

    /// When the first packet left that is newer than all that the peer has reported: before,
    /// there was nothing to report.
    fn oldest_unreported(&self, now: Instant) -> Instant {
        let next = self.newest_arrived.map_or(0, |(n, _)| n + 1).max(self.base);
        let mut newer = self.packets.range((next - self.base) as usize..);
        newer.find(|p| p.state == State::InFlight).map_or(now, |p| p.sent)
    }

    /// Takes the peer's report; `aside`: it came by another path, whose delay is none of this
    /// one's. `fate` hears of every frame whose packet newly arrived; what is lost comes from
    /// [`Sent::detect_lost`].
    pub fn handle_state(
        &mut self,
        now: Instant,
        state: &StateFrame<'_>,
        aside: bool,
        rtt: &mut Rtt,
        mut fate: impl FnMut(Fate, &SentFrame),
    ) -> Report {
        if state.hi >= self.next_number() {
            return Report::default(); // A packet that was never sent: the peer is confused.
        }
        self.confirmed = self.confirmed.max(Some(state.hi));
        // A packet may hold very many reports, and the oldest is looked for once.
        let pause = rtt.with_margin().times(PAUSE_RTTS);
        if now.since(self.reported) > pause && now.since(self.oldest_unreported(now)) > pause {
            self.resumed = now;
        }
        self.reported = now;
        // Reports repeat the state, so only what none has told before is looked at: a
        // report costs its ranges and its news, not its span.
        let mut news = std::mem::take(&mut self.news);
        for run in state.received() {
            if *run.end() < self.base {
                break;
            }
            let run = (*run.start()).max(self.base)..*run.end() + 1;
            self.told.missing(run.clone(), &mut news);
            self.told.insert(run);
        }
        let (mut progress, mut is_news) = (false, false);
        for number in news.drain(..).flatten() {
            is_news |= number == state.hi;
            self.arrived_bytes += u64::from(self.packets[(number - self.base) as usize].size);
            progress |= self.arrived(now, number, rtt, &mut fate);
        }
        self.news = news;
        if state.hi >= self.base {
            self.spoken.insert(state.lo.max(self.base)..state.hi + 1);
        }
        // Packets that nobody reports tell by arriving that those before them did not.
        if let Some(packet) = self.packet(state.hi)
            && self.newest_arrived.is_none_or(|(n, _)| n < state.hi)
        {
            self.newest_arrived = Some((state.hi, packet.sent));
        }
        let mut told = None;
        if let Some(&packet) = self.packet(state.hi)
            && is_news
        {
            let since = now.since(packet.sent);
            let sample = since - state.delay.min(since);
            // It cannot have been held for longer than it was away: the clock there leapt, and
            // what is left would pass for the shortest way that there ever was.
            let leapt = state.delay > since + ROUNDING;
            let is_sample = progress && !leapt && !aside;
            if is_sample && self.newest_arrived.is_some_and(|(n, _)| n == state.hi) {
                rtt.on_packet(packet.sent, sample);
            }
            told = (!leapt).then_some(Told {
                number: state.hi,
                sent: packet.sent,
                through: packet.through,
                delivered: self.arrived_bytes,
                arrival: state.arrival,
                // Then the arrival alone tells of a queue.
                rtt: if aside { Duration::MAX } else { sample },
            });
        }
        self.settle(now, rtt);
        Report { progress, told }
    }

    /// Has all of the range arrived, as far as reports tell?
    pub fn all_arrived(&self, range: Range<u64>) -> bool {
        let range = range.start.max(self.base)..range.end;
        let whole = |told: Range<u64>| told.start <= range.start && range.end <= told.end;
        range.is_empty() || self.told.overlapping(&range).any(whole)
    }

    /// Of what the peer has, `bytes` came back by repair: the link did not carry them.
    pub fn discount(&mut self, bytes: u64) {
        self.arrived_bytes = self.arrived_bytes.saturating_sub(bytes);
    }

    /// Link bytes sent so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    fn packet(&self, number: u64) -> Option<&Packet> {
        self.packets.get(usize::try_from(number.checked_sub(self.base)?).ok()?)
    }

    fn arrived(
        &mut self,
        now: Instant,
        number: u64,
        rtt: &Rtt,
        fate: &mut impl FnMut(Fate, &SentFrame),
    ) -> bool {
        let came_back = self.reorder_window == Duration::ZERO && self.spoken.contains(number);
        let packet = &mut self.packets[(number - self.base) as usize];
        match packet.state {
            State::Settled => return false,
            State::Probing => {
                packet.state = State::Settled;
                return true;
            }
            State::InFlight => {
                self.in_flight -= 1;
                // What an earlier report missed was lost, and came back by repair.
                match came_back {
                    true => self.by_size.on_lost(number, packet.size),
                    false => self.by_size.on_arrived(packet.size),
                }
            }
            State::Lost(when) => {
                self.counts.late += 1;
                self.counts.lost -= 1;
                // An outage has not taken more than was lost, or later losses would not count.
                let most = self.counts.lost.saturating_sub(self.counts.too_long);
                self.counts.in_outages = self.counts.in_outages.min(most);
                // What was given up with its path tells nothing of packets that overtake others.
                if self.given_up != Some(when) {
                    let cap = rtt.smoothed().divided_by(2).max(Duration::from_millis(20));
                    let late = now.since(when) + Duration::from_millis(1);
                    self.reorder_window = (self.reorder_window + late).min(cap);
                    self.last_late = now;
                }
            }
        }
        packet.state = State::Settled;
        self.counts.arrived += 1;
        let packet = *packet;
        self.evidence.on_arrived(number, packet.size);
        if self.newest_arrived.is_none_or(|(n, _)| n < number) {
            self.newest_arrived = Some((number, packet.sent));
        }
        for frame in self.frames_of(&packet) {
            fate(Fate::Arrived, frame);
        }
        true
    }

    fn frames_of(&self, packet: &Packet) -> impl Iterator<Item = &SentFrame> + use<'_> {
        let start = (packet.first_frame - self.first_frame) as usize;
        self.frames.range(start..start + usize::from(packet.frames))
    }

    /// Declares lost what is overdue. Answers when to look again, if something is
    /// inside the reordering window.
    pub fn detect_lost(
        &mut self,
        now: Instant,
        rtt: &Rtt,
        mut fate: impl FnMut(Fate, &SentFrame),
    ) -> Option<Instant> {
        let (newest, newest_sent) = self.newest_arrived?;
        let next = self.looked + LOOKING_PAUSE;
        let many = self.packets.len() > MANY_IN_FLIGHT || self.unspoken > MANY_UNSPOKEN;
        if (many || self.look_on.is_some()) && now < next {
            return Some(next);
        }
        self.looked = now;
        let mut left = AT_ONCE;
        self.unspoken = 0;
        // Then time says nothing of what a report may have told that was lost itself.
        let unheard = now.since(self.reported) > rtt.with_margin();
        if now.since(self.last_late) > rtt.smoothed().times(FORGET_REORDERING_RTTS) {
            self.reorder_window = self.reorder_window.divided_by(2);
            self.last_late = now;
        }
        let mut again: Option<Instant> = None;
        let mut undecided = None;
        let first = self.scan_from.max(self.base);
        let mut number = self.look_on.take().map_or(first, |on| on.max(first));
        let (begun, last) = (number, number + MOST_STEPS as u64);
        let all_spoken = std::mem::take(&mut self.spoken);
        let mut ranges = all_spoken.from(number);
        let mut range = ranges.next().unwrap_or(0..0);
        while number < newest {
            if number == last {
                self.look_on = Some(number);
                let next = now + LOOKING_PAUSE;
                again = Some(again.map_or(next, |t| t.min(next)));
                break;
            }
            let packet = self.packets[(number - self.base) as usize];
            if packet.state == State::InFlight {
                // Overdue when a packet sent a window later has arrived, or when the
                // window has passed since it would have been reported. Where repair may
                // bring it back yet, this counts from the last that may. What no report has
                // spoken of (those that did were lost, or cut short) may have arrived: the
                // whole state comes with the next timer of the peer, if it fits.
                let repair = self.last_repair_of(number);
                let (last, sent) = repair.unwrap_or((number, packet.sent));
                while range.end <= number
                    && let Some(next) = ranges.next()
                {
                    range = next;
                }
                let spoken = range.contains(&number);
                let by_order =
                    spoken && last <= newest && sent + self.reorder_window <= newest_sent;
                let rtt = rtt.smoothed();
                let told = if spoken {
                    sent + rtt
                } else {
                    (sent + rtt.times(UNSPOKEN_RTTS)).max(self.resumed + rtt.times(RESUMED_RTTS))
                };
                let by_time = told + self.reorder_window;
                let waits = unheard && (!spoken || repair.is_some());
                if by_order || (now >= by_time && !waits) {
                    if left == 0 {
                        again = Some(now + LOOKING_PAUSE);
                        break;
                    }
                    left -= 1;
                    self.mark_lost(now, number, &mut fate);
                } else {
                    if !waits {
                        again = Some(again.map_or(by_time, |t| t.min(by_time)));
                    }
                    undecided.get_or_insert(number);
                    self.unspoken += usize::from(!spoken);
                    if spoken {
                        break; // All that follows left later.
                    }
                }
            }
            number += 1;
        }
        drop(ranges);
        self.spoken = all_spoken;
        if begun == first {
            self.scan_from = undecided.unwrap_or(number);
        }
        if begun > first && self.look_on.is_none() {
            again = Some(now + LOOKING_PAUSE); // From the first again.
        }
        self.settle(now, rtt);
        again
    }

    fn mark_lost(&mut self, now: Instant, number: u64, fate: &mut impl FnMut(Fate, &SentFrame)) {
        let packet = &mut self.packets[(number - self.base) as usize];
        packet.state = State::Lost(now);
        let packet = *packet;
        self.in_flight -= 1;
        self.counts.lost += 1;
        match self.evidence.on_lost(number, packet.size) {
            true => self.counts.too_long += 1,
            false => self.by_size.on_lost(number, packet.size),
        }
        self.counts.in_outages += self.row.on_lost(number);
        // Where something arrives between, as it does through a policer, it is not dark.
        if number > 0 && self.told.contains(number - 1) {
            self.dark = Row::default();
        }
        self.counts.in_the_dark += self.dark.on_lost(number);
        for frame in self.frames_of(&packet) {
            fate(Fate::Lost, frame);
        }
    }

    /// No report for too long: gives up the newest packet in flight, so that its
    /// frames go again in a probe whose report tells of all the others.
    pub fn give_up_newest(&mut self, now: Instant, mut fate: impl FnMut(Fate, &SentFrame)) {
        let newest = (self.base..self.next_number())
            .rev()
            .find(|n| self.packets[(n - self.base) as usize].state == State::InFlight);
        if let Some(number) = newest {
            self.mark_lost(now, number, &mut fate);
        }
    }

    /// When the oldest packet in flight left.
    pub fn oldest_in_flight(&self) -> Option<Instant> {
        let from = (self.scan_from.max(self.base) - self.base) as usize;
        self.packets.range(from..).find(|p| p.state == State::InFlight).map(|p| p.sent)
    }

    /// Are more than `most` packets unsettled, or more than [`FRAMES_EACH`] frames for each of
    /// `most`?
    pub fn has_more_than(&self, most: usize) -> bool {
        self.packets.len() > most || self.frames.len() > FRAMES_EACH * most
    }

    /// Gives up the oldest packets beyond `most`: a peer that reports nothing, or an outage, is
    /// not to fill the memory. They say nothing about the link.
    pub fn give_up_oldest(&mut self, most: usize, mut fate: impl FnMut(Fate, &SentFrame)) {
        while self.has_more_than(most) {
            self.give_up_front(&mut fate);
        }
        self.told.remove_below(self.base);
        self.spoken.remove_below(self.base);
    }

    /// Is something in flight, and did a packet leave before `then` that is still kept?
    pub fn has_older_than(&self, then: Instant) -> bool {
        self.in_flight > 0 && self.packets.front().is_some_and(|packet| packet.sent < then)
    }

    /// Gives up the packets that left before `then`, but for what is beyond [`AT_ONCE`]. They say
    /// nothing about the link.
    pub fn give_up_before(&mut self, then: Instant, mut fate: impl FnMut(Fate, &SentFrame)) {
        let mut left = AT_ONCE;
        while left > 0 && self.has_older_than(then) {
            self.give_up_front(&mut fate);
            left -= 1;
        }
        self.told.remove_below(self.base);
        self.spoken.remove_below(self.base);
        // What follows is far less, or it would be given up for being too many.
        if self.packets.capacity() > 1024 && self.packets.len() < self.packets.capacity() / 8 {
            self.packets.shrink_to(self.packets.len() * 2);
            self.frames.shrink_to(self.frames.len() * 2);
        }
    }

    fn give_up_front(&mut self, fate: &mut impl FnMut(Fate, &SentFrame)) {
        let packet = self.packets[0];
        if packet.state == State::InFlight {
            self.in_flight -= 1;
            self.counts.lost += 1;
            self.counts.in_outages += 1;
            self.frames_of(&packet).for_each(|frame| fate(Fate::Lost, frame));
        }
        self.probes_given_up |= packet.state == State::Probing;
        self.forget_front();
    }

    /// Gives up all that is in flight: the path is down, or dead. It says nothing about its
    /// losses.
    pub fn give_up_all(&mut self, now: Instant, mut fate: impl FnMut(Fate, &SentFrame)) {
        for at in 0..self.packets.len() {
            let packet = self.packets[at];
            match packet.state {
                State::InFlight => {
                    self.packets[at].state = State::Lost(now);
                    self.counts.lost += 1;
                    self.counts.in_outages += 1;
                    self.frames_of(&packet).for_each(|frame| fate(Fate::Lost, frame));
                }
                State::Probing => {
                    self.packets[at].state = State::Settled;
                    self.probes_given_up = true;
                }
                State::Lost(_) | State::Settled => {}
            }
        }
        self.in_flight = 0;
        self.given_up = Some(now);
        // What leaves from now on is the oldest in flight.
        self.scan_from = self.next_number();
    }

    /// Takes out the oldest packet with its frames.
    fn forget_front(&mut self) {
        let frames = self.packets.pop_front().map_or(0, |packet| packet.frames);
        self.frames.drain(..usize::from(frames));
        self.first_frame += u64::from(frames);
        self.base += 1;
    }

    /// Whether one more may be forgotten at this moment.
    fn may_forget(&mut self, now: Instant) -> bool {
        if self.forgotten.0 != now {
            self.forgotten = (now, 0);
        }
        self.forgotten.1 += 1;
        self.forgotten.1 <= MOST_FORGOTTEN
    }

    fn settle(&mut self, now: Instant, rtt: &Rtt) {
        let keep = rtt.smoothed().times(REMEMBER_LOST_RTTS);
        while let Some(&packet) = self.packets.front() {
            let done = match packet.state {
                State::Settled => true,
                State::Lost(when) => now.since(when) >= keep,
                State::InFlight | State::Probing => false,
            };
            if !done || !self.may_forget(now) {
                break;
            }
            // What nobody reports counts as arrived once all before it is settled.
            if packet.state == State::Settled
                && !self.told.contains(self.base)
                && !self.spoken.contains(self.base)
            {
                self.arrived_bytes += u64::from(packet.size);
            }
            self.forget_front();
        }
        self.told.remove_below(self.base);
        self.spoken.remove_below(self.base);
        // Give memory back after a burst.
        if self.packets.is_empty() && self.packets.capacity() > 1024 {
            self.packets.shrink_to(64);
            self.frames.shrink_to(64);
        }
    }

    /// Gives back what more packets under way took.
    pub fn shrink(&mut self) {
        self.packets.shrink_to_fit();
        self.frames.shrink_to_fit();
        self.told.shrink();
        self.spoken.shrink();
        self.news = Vec::new();
    }

    pub fn reorder_window(&self) -> Duration {
        self.reorder_window
    }
}

#[cfg(test)]
mod tests;
