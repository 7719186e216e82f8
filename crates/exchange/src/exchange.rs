//! The exchange itself: lines, calls, and what crosses.

use std::collections::VecDeque;

use units::{BitRate, ByteCount, Duration, Instant, Rng};

use crate::config::{ExchangeConfig, Faults};
use crate::modem::{Ask, Modem, Result};
use crate::noise::Noise;

/// Why a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEnd {
    /// The caller hung up.
    Caller,
    /// The called line hung up.
    Called,
    /// It dropped, as calls do.
    Dropped,
    /// It goes on.
    None,
}

/// A call that was connected, as the meter has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallRecord {
    /// The line that called.
    pub from: usize,
    /// The line that was called.
    pub to: usize,
    /// CONNECT.
    pub start: Instant,
    /// The end, or the last look at a call that goes on.
    pub end: Instant,
    /// Bytes from the caller, and to it.
    pub bytes: [u64; 2],
    /// Why it ended.
    pub why: CallEnd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The network looks for the line.
    SettingUp {
        until: Instant,
        refusal: Option<Result>,
    },
    Ringing {
        next: Instant,
        rings: u32,
        until: Instant,
    },
    Training {
        until: Instant,
        fails: bool,
    },
    /// `record` is the meter's.
    Up {
        drops: Option<Instant>,
        record: usize,
    },
}

#[derive(Clone, Debug)]
struct Call {
    from: usize,
    /// Known as soon as it rings.
    to: Option<usize>,
    number: String,
    stage: Stage,
}

/// One way of a line's data.
#[derive(Clone, Debug)]
struct Way {
    /// In the modem's buffer: when each byte has left.
    leaving: VecDeque<(Instant, u8)>,
    /// On its way: when each byte arrives.
    arriving: VecDeque<(Instant, u8)>,
    free: Instant,
    noise: Noise,
}

struct Line {
    modem: Modem,
    open: bool,
    call: Option<usize>,
    out: Way,
    /// The far end has gone; the modem notices then.
    loses: Option<Instant>,
}

/// A telephone exchange. See the crate.
pub struct Exchange {
    config: ExchangeConfig,
    lines: Vec<Line>,
    calls: Vec<Option<Call>>,
    records: Vec<CallRecord>,
    rng: Rng,
}

/// A modem that hears no dial tone says so after this time.
const DIALTONE: Duration = Duration::from_secs(2);

impl Exchange {
    /// An exchange whose modems nobody has opened yet.
    pub fn new(config: ExchangeConfig, seed: u64) -> std::result::Result<Exchange, String> {
        config.check()?;
        let mut rng = Rng::new(seed);
        let faults = &config.faults;
        let lines = (0..config.lines.len())
            .map(|_| Line {
                modem: Modem::new(),
                open: false,
                call: None,
                out: Way {
                    leaving: VecDeque::new(),
                    arriving: VecDeque::new(),
                    free: Instant::ZERO,
                    noise: Noise::new(rng.fork(), faults.noise, faults.burst),
                },
                loses: None,
            })
            .collect();
        Ok(Exchange { lines, config, calls: Vec::new(), records: Vec::new(), rng })
    }

    /// Other things go wrong from now on.
    pub fn set_faults(&mut self, now: Instant, faults: Faults) {
        self.advance(now);
        for line in &mut self.lines {
            line.out.noise.set(faults.noise, faults.burst);
        }
        self.config.faults = faults;
    }

    /// A program has opened the line (DTR), or closed it, which hangs up.
    pub fn set_open(&mut self, now: Instant, line: usize, open: bool) {
        self.advance(now);
        self.lines[line].open = open;
        if !open {
            self.hang_up(now, line);
            self.lines[line].modem = Modem::new();
            self.lines[line].loses = None;
        }
    }

    /// How many bytes the modem takes at this moment.
    pub fn room(&self, line: usize) -> usize {
        let line = &self.lines[line];
        match line.modem.data {
            true => self.config.buffer.saturating_sub(line.out.leaving.len()),
            false => self.config.buffer,
        }
    }

    /// A program writes to its modem; [`Exchange::room`] bytes at most are taken.
    pub fn write(&mut self, now: Instant, line: usize, bytes: &[u8]) -> usize {
        self.advance(now);
        for (n, byte) in bytes.iter().enumerate() {
            if self.room(line) == 0 {
                return n;
            }
            match self.lines[line].modem.data {
                true => self.send(now, line, *byte),
                false => self.command(now, line, *byte),
            }
        }
        bytes.len()
    }

    /// What the modem has for its program, `most` bytes at most.
    pub fn read(&mut self, now: Instant, line: usize, most: usize) -> Vec<u8> {
        self.advance(now);
        let queue = &mut self.lines[line].modem.to_program;
        let n = most.min(queue.len());
        queue.drain(..n).collect()
    }

    /// The modem has carrier (DCD).
    pub fn carrier(&self, line: usize) -> bool {
        let call = self.lines[line].call.and_then(|at| self.calls[at].as_ref());
        call.is_some_and(|c| matches!(c.stage, Stage::Up { .. }))
    }

    /// All calls that were connected, in their order. A call that goes on has the bytes so far.
    pub fn calls(&self) -> &[CallRecord] {
        &self.records
    }

    /// All calls drop, as when the satellite is lost.
    pub fn drop_all(&mut self, now: Instant) {
        self.advance(now);
        for at in 0..self.calls.len() {
            if self.is_up(at) {
                self.end(now, at, CallEnd::Dropped);
            }
        }
    }

    /// When something happens by itself. `None`: nothing will.
    pub fn next_time(&self) -> Option<Instant> {
        let calls = self.calls.iter().flatten().map(|call| match call.stage {
            Stage::SettingUp { until, .. } | Stage::Training { until, .. } => until,
            Stage::Ringing { next, until, .. } => next.min(until),
            Stage::Up { drops, .. } => drops.unwrap_or(Instant::FAR_FUTURE),
        });
        let lines = self.lines.iter().flat_map(|line| {
            let first = |queue: &VecDeque<(Instant, u8)>| queue.front().map(|(at, _)| *at);
            let out = &line.out;
            [first(&out.leaving), first(&out.arriving), line.loses, line.modem.escapes_at()]
        });
        let next = calls.chain(lines.flatten()).min()?;
        (next < Instant::FAR_FUTURE).then_some(next)
    }

    /// Does all that is due by `now`, in the order of time.
    pub fn advance(&mut self, now: Instant) {
        while let Some(at) = self.next_time().filter(|at| *at <= now) {
            for line in 0..self.lines.len() {
                self.move_bytes(at, line);
                self.look_at_line(at, line);
            }
            for call in 0..self.calls.len() {
                self.look_at_call(at, now, call);
            }
        }
    }

    fn is_up(&self, at: usize) -> bool {
        self.calls[at].as_ref().is_some_and(|c| matches!(c.stage, Stage::Up { .. }))
    }

    /// The line at the other end of a call that is up.
    fn other_end(&self, line: usize) -> Option<usize> {
        let call = self.calls[self.lines[line].call?].as_ref()?;
        if !matches!(call.stage, Stage::Up { .. }) {
            return None;
        }
        if call.from == line { call.to } else { Some(call.from) }
    }

    fn byte_time(&self) -> Duration {
        ten_bits(self.config.rate)
    }

    fn send(&mut self, now: Instant, line: usize, byte: u8) {
        let time = self.byte_time();
        let line = &mut self.lines[line];
        line.modem.watch(now, byte);
        line.out.free = line.out.free.max(now) + time;
        line.out.leaving.push_back((line.out.free, byte));
    }

    fn move_bytes(&mut self, now: Instant, line: usize) {
        let delay = self.config.delay;
        let record = self.lines[line].call.and_then(|at| self.record_of(at));
        let way = &mut self.lines[line].out;
        while let Some((at, byte)) = way.leaving.pop_front_if(|(at, _)| *at <= now) {
            let arriving = &mut way.arriving;
            way.noise.pass(byte, |byte| arriving.push_back((at + delay, byte)));
            if let Some(record) = record {
                let record = &mut self.records[record];
                record.bytes[usize::from(record.from != line)] += 1;
                record.end = at;
            }
        }
        let other = self.other_end(line);
        while let Some((_, byte)) = self.lines[line].out.arriving.pop_front_if(|(at, _)| *at <= now)
        {
            if let Some(to) = other {
                self.lines[to].modem.to_program.push_back(byte);
            }
        }
    }

    fn record_of(&self, call: usize) -> Option<usize> {
        match self.calls[call].as_ref()?.stage {
            Stage::Up { record, .. } => Some(record),
            _ => None,
        }
    }

    fn look_at_line(&mut self, now: Instant, line: usize) {
        let modem = &mut self.lines[line].modem;
        if modem.escapes_at().is_some_and(|at| at <= now) {
            modem.escape();
        }
        if self.lines[line].loses.is_some_and(|at| at <= now) {
            self.lines[line].loses = None;
            self.lines[line].modem.hung_up();
            self.lines[line].modem.say(Result::NoCarrier);
        }
    }

    fn command(&mut self, now: Instant, line: usize, byte: u8) {
        if self.config.faults.dumb {
            return;
        }
        if let Some(call) = self.lines[line].call
            && !self.is_up(call)
            && self.calls[call].as_ref().is_some_and(|c| c.from == line)
        {
            // Any byte ends a dialling (ITU-T V.250, 5.6.1).
            self.fail(call, Result::NoCarrier);
            return;
        }
        match self.lines[line].modem.command_byte(byte) {
            None => {}
            Some(Ask::Dial(number)) => self.dial(now, line, number),
            Some(Ask::Answer) => self.answer(now, line),
            Some(Ask::HangUp) => {
                self.hang_up(now, line);
                self.lines[line].modem.say(Result::Ok);
            }
            Some(Ask::Online) => match self.carrier(line) {
                true => self.lines[line].modem.connect(now, self.config.rate.as_bps()),
                false => self.lines[line].modem.say(Result::NoCarrier),
            },
        }
    }

    fn dial(&mut self, now: Instant, line: usize, number: String) {
        if self.lines[line].call.is_some() || self.lines[line].loses.is_some() {
            return self.lines[line].modem.say(Result::Error);
        }
        let faults = &self.config.faults;
        let no_dialtone = self.rng.chance(faults.no_dialtone);
        let busy = self.rng.chance(faults.busy);
        let refusal = match (no_dialtone, busy) {
            (true, _) => Some(Result::NoDialtone),
            (false, true) => Some(Result::Busy),
            (false, false) => None,
        };
        let until = now + if no_dialtone { DIALTONE } else { self.config.setup };
        let stage = Stage::SettingUp { until, refusal };
        let call = Call { from: line, to: None, number, stage };
        let free = self.calls.iter().position(Option::is_none);
        let at = free.unwrap_or(self.calls.len());
        if at == self.calls.len() {
            self.calls.push(None);
        }
        self.calls[at] = Some(call);
        self.lines[line].call = Some(at);
    }

    /// `told`: when programs hear of it, which is later where the driver was late.
    fn look_at_call(&mut self, now: Instant, told: Instant, at: usize) {
        let Some(call) = &self.calls[at] else { return };
        match call.stage {
            Stage::SettingUp { until, refusal } if until <= now => match refusal {
                Some(result) => self.fail(at, result),
                None => self.ring(now, at),
            },
            Stage::Ringing { until, .. } if until <= now => self.fail(at, Result::NoAnswer),
            Stage::Ringing { next, rings, until } if next <= now => {
                self.ring_again(now, at, rings + 1, until);
            }
            Stage::Training { until, fails } if until <= now => match fails {
                true => self.fail(at, Result::NoCarrier),
                false => self.connect(now, told, at),
            },
            Stage::Up { drops: Some(when), .. } if when <= now => {
                self.end(now, at, CallEnd::Dropped);
            }
            _ => {}
        }
    }

    /// Looks for a free line of the number, and rings it.
    fn ring(&mut self, now: Instant, at: usize) {
        let Some(call) = &self.calls[at] else { return };
        let named = |n: &usize| self.config.lines[*n].number == call.number && *n != call.from;
        let mut group = (0..self.lines.len()).filter(named).peekable();
        if group.peek().is_none() {
            return self.fail(at, Result::NoCarrier);
        }
        let free = |n: &usize| self.lines[*n].call.is_none() && self.lines[*n].loses.is_none();
        let Some(to) = group.find(free) else { return self.fail(at, Result::Busy) };
        self.lines[to].call = Some(at);
        if let Some(call) = &mut self.calls[at] {
            call.to = Some(to);
        }
        self.ring_again(now, at, 1, now + self.config.no_answer);
    }

    fn ring_again(&mut self, now: Instant, at: usize, rings: u32, until: Instant) {
        let Some(call) = &mut self.calls[at] else { return };
        call.stage = Stage::Ringing { next: now + self.config.ring, rings, until };
        let Some(to) = call.to else { return };
        let line = &mut self.lines[to];
        // A modem that is switched off does not answer.
        if line.open {
            line.modem.say(Result::Ring);
            if line.modem.rings() > 0 && rings >= u32::from(line.modem.rings()) {
                self.answer(now, to);
            }
        }
    }

    fn answer(&mut self, now: Instant, line: usize) {
        let call = self.lines[line].call.and_then(|at| self.calls[at].as_mut());
        match call {
            Some(call) if matches!(call.stage, Stage::Ringing { .. }) && call.to == Some(line) => {
                let fails = self.rng.chance(self.config.faults.no_carrier);
                call.stage = Stage::Training { until: now + self.config.training, fails };
            }
            _ => self.lines[line].modem.say(Result::NoCarrier),
        }
    }

    /// What is billed begins when the modems say CONNECT.
    fn connect(&mut self, now: Instant, told: Instant, at: usize) {
        let drops = self.config.faults.drop.map(|(least, most)| {
            now + Duration::from_nanos(self.rng.between(least.as_nanos(), most.as_nanos()))
        });
        let Some(call) = &mut self.calls[at] else { return };
        let Some(to) = call.to else { return };
        let from = call.from;
        call.stage = Stage::Up { drops, record: self.records.len() };
        let why = CallEnd::None;
        self.records.push(CallRecord { from, to, start: told, end: told, bytes: [0; 2], why });
        for line in [from, to] {
            let line = &mut self.lines[line];
            line.out.leaving.clear();
            line.out.arriving.clear();
            line.out.free = now;
            line.modem.connect(now, self.config.rate.as_bps());
        }
    }

    /// A call that was not connected comes to nothing.
    fn fail(&mut self, at: usize, result: Result) {
        let Some(call) = self.calls[at].take() else { return };
        self.lines[call.from].call = None;
        self.lines[call.from].modem.say(result);
        if let Some(to) = call.to {
            self.lines[to].call = None;
            if let Stage::Training { .. } = call.stage {
                self.lines[to].modem.say(Result::NoCarrier);
            }
        }
    }

    /// A line hangs up whatever it has.
    fn hang_up(&mut self, now: Instant, line: usize) {
        let Some(at) = self.lines[line].call else { return };
        let Some(call) = &self.calls[at] else { return };
        let caller = call.from == line;
        match call.stage {
            Stage::Up { .. } if caller => self.end(now, at, CallEnd::Caller),
            Stage::Up { .. } => self.end(now, at, CallEnd::Called),
            // Nobody hears a ringing line being hung up.
            Stage::Ringing { .. } if !caller => {}
            _ => self.fail(at, Result::NoCarrier),
        }
    }

    /// A connected call ends: at once for who hung up, a delay later for the other.
    fn end(&mut self, now: Instant, at: usize, why: CallEnd) {
        let Some(call) = self.calls[at].take() else { return };
        if let Stage::Up { record, .. } = call.stage {
            self.records[record].end = now;
            self.records[record].why = why;
        }
        let ends = [(call.from, CallEnd::Caller), (call.to.unwrap_or(call.from), CallEnd::Called)];
        for (line, own) in ends {
            let line = &mut self.lines[line];
            line.call = None;
            line.out.leaving.clear();
            line.out.arriving.clear();
            if why == own {
                line.modem.hung_up();
            } else {
                let later =
                    if why == CallEnd::Dropped { Duration::ZERO } else { self.config.delay };
                line.loses = Some(now + later);
            }
        }
    }
}

/// The time of a byte in 8N1: a start bit, eight bits, a stop bit.
fn ten_bits(rate: BitRate) -> Duration {
    rate.time_for(ByteCount(10)).divided_by(8)
}
