//! A test that the operator asks for: the round trip without load, then each direction on a
//! stream of its own.

use link::PeerId;
use link::session::RecvState;
use relay::self_test::{Counted, Part, Report, Request, Sent, origin};
use relay::{FlowId, Relay, ResetReason};
use units::{Duration, Instant};

use super::parts::{Counting, Sending, Tail};
use super::{GRACE, NewTest, TestNews, Tools, Turn, other, works};
use crate::admin::{LinkTest, Spread, TestProgress, TestedDirection};

/// How often whoever asked is told how far it is.
const TELL: Duration = Duration::from_secs(1);
/// The round trip without load is measured for so long, and for four round trips.
const IDLE: Duration = Duration::from_secs(1);
/// The longest, and the shortest time from one question to the next.
const LONGEST_IDLE: Duration = Duration::from_secs(8);
const ASK: Duration = Duration::from_millis(100);
/// What a question and its answer are on the link, about.
const QUESTION: units::ByteCount = units::ByteCount(100);

/// A test under way.
pub struct Asked {
    pub new: NewTest,
    stage: Stage,
    stage_began: Instant,
    rtts: RoundTrips,
    /// Link bytes out and in when it began, and at the last news.
    began: [u64; 2],
    told: ([u64; 2], Instant),
    found: LinkTest,
}

enum Stage {
    /// Questions measure the round trip.
    Idle { until: Instant, ask_at: Instant },
    /// A direction.
    Load(Box<Load>),
}

struct Load {
    flow: FlowId,
    part: Measured,
    deadline: Instant,
    /// What the peer says; it ends with its report.
    tail: Tail<{ Report::LEN }>,
    ask_at: Instant,
}

enum Measured {
    Sending(Sending),
    Counting(Counting),
}

/// Round trips as the session measures them.
struct RoundTrips {
    peer: PeerId,
    seen: u64,
    /// Those before are of packets that left before.
    from: Instant,
    samples: Vec<u64>,
}

impl RoundTrips {
    fn begin(relay: &Relay, peer: PeerId, from: Instant) -> RoundTrips {
        let seen = relay.endpoint.session(peer).map_or(0, |s| s.newest_rtt().0);
        RoundTrips { peer, seen, from, samples: Vec::new() }
    }

    /// To be called at each tick: takes one of those that were measured meanwhile.
    fn look(&mut self, now: Instant, relay: &Relay) {
        let Some(session) = relay.endpoint.session(self.peer) else { return };
        let (count, newest) = session.newest_rtt();
        if count > std::mem::replace(&mut self.seen, count) && now >= self.from {
            self.samples.push(newest.as_micros());
        }
    }
}

impl Asked {
    pub fn new(now: Instant, relay: &Relay, new: NewTest) -> Asked {
        let rtt = rtt(relay, new.peer);
        let idle = (IDLE + rtt.times(4)).min(LONGEST_IDLE);
        let bytes = link_bytes(relay, new.peer);
        let found = LinkTest {
            peer: new.name.clone(),
            seconds: new.wanted.time.as_millis() / 1000,
            ..LinkTest::default()
        };
        Asked {
            stage: Stage::Idle { until: now + idle, ask_at: now },
            stage_began: now,
            rtts: RoundTrips::begin(relay, new.peer, now),
            began: bytes,
            // At once.
            told: (bytes, Instant::ZERO),
            found,
            new,
        }
    }

    pub fn peer(&self) -> PeerId {
        self.new.peer
    }

    pub fn flow(&self) -> Option<FlowId> {
        match &self.stage {
            Stage::Idle { .. } => None,
            Stage::Load(load) => Some(load.flow),
        }
    }

    /// When it is to have a turn at the latest, beside the ticks.
    pub fn ends(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Idle { until, .. } => Some(*until),
            Stage::Load(load) => match &load.part {
                Measured::Sending(sending) => sending.ends(),
                Measured::Counting(counting) => counting.ends(),
            },
        }
    }

    /// It is over.
    pub fn end(self, now: Instant, relay: &mut Relay, news: TestNews) {
        if let Some(flow) = self.flow() {
            relay.local_reset(now, flow, ResetReason::HostReset);
        }
        self.new.listener.tell(news);
    }

    pub fn turn(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        tools: &mut Tools,
        tick: bool,
    ) -> Turn<TestNews> {
        if tick {
            self.rtts.look(now, relay);
            let name = &self.new.name;
            if !works(relay, self.new.peer) {
                let why = format!("the link to {name} failed during the test");
                return Turn::Over(TestNews::Failed(why));
            }
            if !self.tell_progress(now, relay) {
                return Turn::Over(TestNews::Failed("nobody listens".to_owned()));
            }
            self.ask(now, relay);
        }
        match &mut self.stage {
            Stage::Idle { until, .. } if now < *until => Turn::Rests,
            Stage::Idle { .. } => {
                self.found.rtt_idle = Spread::of(std::mem::take(&mut self.rtts.samples));
                self.begin_next(now, relay)
            }
            Stage::Load(load) => match load.turn(now, relay, tools, tick) {
                Turn::Rests => Turn::Rests,
                Turn::HasMore => Turn::HasMore,
                Turn::Over(Err(why)) => {
                    Turn::Over(TestNews::Failed(format!("{} {why}", self.new.name)))
                }
                Turn::Over(Ok(report)) => {
                    self.note(now, relay, report);
                    self.begin_next(now, relay)
                }
            },
        }
    }

    /// Begins the next direction, if there is one.
    fn begin_next(&mut self, now: Instant, relay: &mut Relay) -> Turn<TestNews> {
        let wanted = &self.new.wanted;
        let part = if wanted.send && self.found.send.is_none() {
            Part::Send
        } else if wanted.receive && self.found.receive.is_none() {
            Part::Count
        } else {
            return Turn::Over(TestNews::Done(Box::new(self.finish(relay))));
        };
        let Some(load) = Load::begin(now, relay, self.new.peer, part, wanted.time) else {
            let why = "there is no memory for another stream".to_owned();
            return Turn::Over(TestNews::Failed(why));
        };
        self.stage = Stage::Load(Box::new(load));
        self.stage_began = now;
        self.told = (link_bytes(relay, self.new.peer), now);
        // What comes in the first round trip left before the load was there.
        let from = now + rtt(relay, self.new.peer).times(2);
        self.rtts = RoundTrips::begin(relay, self.new.peer, from);
        Turn::HasMore
    }

    /// A direction has been measured.
    fn note(&mut self, now: Instant, relay: &mut Relay, report: Report) {
        let Stage::Load(load) = &self.stage else { return };
        relay.closed(now, load.flow);
        let samples = std::mem::take(&mut self.rtts.samples);
        let [out, into] = self.new.configured_bps;
        match &load.part {
            Measured::Sending(sending) => {
                let sent = sending.looks.sent(relay);
                let direction = direction(out, &report.counted, &sent, samples);
                let queue = sending.looks.queue();
                let cap_bps = self.new.cap_bps;
                self.found.send = Some(TestedDirection { cap_bps, queue, ..direction });
            }
            Measured::Counting(counting) => {
                let counted = counting.counted.unwrap_or_default();
                self.found.receive = Some(direction(into, &counted, &report.sent, samples));
            }
        }
    }

    fn finish(&mut self, relay: &Relay) -> LinkTest {
        let [out, into] = link_bytes(relay, self.new.peer);
        let mut found = std::mem::take(&mut self.found);
        found.link_bytes_sent = out.saturating_sub(self.began[0]);
        found.link_bytes_received = into.saturating_sub(self.began[1]);
        found.problems = found.find_problems();
        found
    }

    /// False if nobody listens any more.
    fn tell_progress(&mut self, now: Instant, relay: &Relay) -> bool {
        let (then, at) = self.told;
        if now.since(at) < TELL && at > Instant::ZERO {
            return true;
        }
        let bytes = link_bytes(relay, self.new.peer);
        let since = |way: usize| {
            let bits = bytes[way].saturating_sub(then[way]).saturating_mul(8_000);
            bits / now.since(at).as_millis().max(1)
        };
        let (phase, carried_bps) = match &self.stage {
            Stage::Idle { .. } => ("idle", 0),
            Stage::Load(load) => match load.part {
                Measured::Counting(_) => ("receive", since(1)),
                Measured::Sending(_) => ("send", since(0)),
            },
        };
        self.told = (bytes, now);
        let wanted = &self.new.wanted;
        let most = |way: usize, is_wanted: bool| {
            let bytes = self.new.configured_bps[way] / 8;
            if is_wanted { bytes.saturating_mul(wanted.time.as_millis()) / 1000 } else { 0 }
        };
        self.new.listener.tell(TestNews::Progress(TestProgress {
            phase: phase.to_owned(),
            elapsed_ms: now.since(self.stage_began).as_millis(),
            carried_bps,
            most_bytes_sent: most(0, wanted.send),
            prices: None,
            most_bytes_received: most(1, wanted.receive),
        }))
    }

    /// Asks the peer for a sign of life where nothing else measures the round trip: eight times
    /// in one, and for no more than a twentieth of the link.
    fn ask(&mut self, now: Instant, relay: &mut Relay) {
        let ask_at = match &mut self.stage {
            Stage::Idle { ask_at, .. } => ask_at,
            // What is sent measures it.
            Stage::Load(load) if matches!(load.part, Measured::Sending(_)) => return,
            Stage::Load(load) => &mut load.ask_at,
        };
        if *ask_at > now {
            return;
        }
        let slower = *self.new.configured_bps.iter().min().unwrap_or(&0);
        let takes = units::BitRate::from_bps(slower.max(1)).time_for(QUESTION);
        let between = ASK.max(rtt(relay, self.new.peer).divided_by(8)).max(takes.times(20));
        *ask_at = now + between;
        if let Some(session) = relay.endpoint.session_mut(self.new.peer) {
            session.ping();
        }
    }
}

impl Load {
    fn begin(
        now: Instant,
        relay: &mut Relay,
        peer: PeerId,
        part: Part,
        time: Duration,
    ) -> Option<Load> {
        let flow = relay.open(now, peer, origin())?;
        relay.announce(flow);
        let request = Request { part: other(part), time }.encode();
        // A fresh stream has room for it.
        relay.local_data(now, flow, &request);
        let part = match part {
            Part::Send => Measured::Sending(Sending::begin(now, relay, flow, peer, time)),
            Part::Count => {
                relay.local_end(now, flow);
                Measured::Counting(Counting::new(flow, peer, time))
            }
        };
        let deadline = now + time + GRACE + rtt(relay, peer).times(8);
        Some(Load { flow, part, deadline, tail: Tail::new(), ask_at: now })
    }

    /// The peer's report, or what it does.
    fn turn(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        tools: &mut Tools,
        tick: bool,
    ) -> Turn<Result<Report, &'static str>> {
        let mut more = false;
        match &mut self.part {
            Measured::Sending(sending) => {
                if tick {
                    sending.looks.look(relay);
                }
                more = sending.work(now, relay, tools);
                if sending.is_over(now) {
                    relay.local_end(now, self.flow);
                }
            }
            Measured::Counting(counting) => counting.look(now, relay, false),
        }
        let state = self.tail.take(now, relay, self.flow, u64::MAX);
        if let Measured::Counting(counting) = &mut self.part {
            counting.look(now, relay, state == Some(RecvState::Finished));
        }
        match state {
            Some(RecvState::Finished) => match self.tail.last() {
                Some(report) => Turn::Over(Ok(Report::decode(report))),
                None => Turn::Over(Err("ended the test without a report")),
            },
            _ if now >= self.deadline => Turn::Over(Err("did not report in time")),
            None => Turn::HasMore,
            Some(_) if more => Turn::HasMore,
            Some(_) => Turn::Rests,
        }
    }
}

/// What was found of a direction; its queue as who sends told it.
fn direction(
    configured_bps: u64,
    counted: &Counted,
    sent: &Sent,
    rtts: Vec<u64>,
) -> TestedDirection {
    let per_second = |bytes: u64| {
        let bits = u128::from(bytes) * 8_000_000 / u128::from(counted.time_us.max(1));
        u64::try_from(bits).unwrap_or(u64::MAX)
    };
    let ppm = |part: u64, of: u64| {
        u64::try_from(u128::from(part) * 1_000_000 / u128::from(of.max(1))).unwrap_or(u64::MAX)
    };
    let goodput_bps = per_second(counted.stream_bytes);
    TestedDirection {
        configured_bps,
        cap_bps: None,
        goodput_bps,
        share: ppm(goodput_bps, configured_bps) as f64 / 1e6,
        carried_bps: per_second(counted.link_bytes),
        rtt: Spread::of(rtts),
        queue: Spread { median_us: sent.queue_median_us, p95_us: sent.queue_p95_us, samples: 0 },
        loss_ppm: ppm(sent.lost.min(sent.settled), sent.settled),
        repair_ppm: ppm(sent.repairs, sent.packets),
    }
}

fn rtt(relay: &Relay, peer: PeerId) -> Duration {
    relay.endpoint.session(peer).map_or(Duration::ZERO, |s| s.rtt())
}

fn link_bytes(relay: &Relay, peer: PeerId) -> [u64; 2] {
    let stats = relay.endpoint.peer_stats(peer);
    [stats.bytes_out, stats.bytes_in]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_peer_reports_makes_a_direction() {
        let (most, none) = (u64::MAX, Counted::default());
        let counted = Counted { time_us: 1, stream_bytes: most, link_bytes: most };
        let sent = Sent { settled: 0, lost: most, packets: 0, repairs: most, ..Sent::default() };
        let found = direction(0, &counted, &sent, vec![]);
        assert_eq!((found.goodput_bps, found.loss_ppm), (most, 0));
        assert_eq!(direction(20_000_000, &none, &Sent::default(), vec![]).goodput_bps, 0);
        let counted =
            Counted { time_us: 2_000_000, stream_bytes: 4_750_000, link_bytes: 4_950_000 };
        let sent = Sent { settled: 4_000, lost: 40, packets: 4_100, repairs: 41, ..sent };
        let found = direction(20_000_000, &counted, &sent, vec![600_000]);
        assert_eq!((found.goodput_bps, found.carried_bps), (19_000_000, 19_800_000));
        assert_eq!((found.share, found.loss_ppm, found.repair_ppm), (0.95, 10_000, 10_000));
    }
}
