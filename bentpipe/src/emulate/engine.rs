//! The thread that moves frames: two ports, two channels, one loop.
//!
//! The loop never spins. While frames are dense it sleeps for the rest of a quantum
//! (200 µs) after each turn, so that a turn moves several frames per system call; then
//! it waits for a frame or for the next departure, whichever is first. A sparse packet
//! is therefore handled at once, and a packet of a dense flow at most a quantum late.
//! That does not add up: the line's clock is exact arithmetic on arrival times, which
//! interfaces stamp in the kernel.
//!
//! The thread shares nothing while it runs. What a handle wants to know or change it
//! leaves as a closure in a queue, which the thread looks at when it can have the lock
//! at once: a thread of real-time priority must not wait for one that has none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, mpsc};
use std::thread::JoinHandle;

use channel::{Arrival, Channel, ChannelConfig, ConfigError, Counters, Fate, Series, flip_bit};
use os::poll::{Clock, ClockSource, Events, Interest, Poller, Waker};
use os::port::{BATCH, Batch, Frame, Port, Received, hurry};
use units::{BitRate, Duration, Instant};

use super::arena::{Arena, Place};
use super::capture::{Capture, CaptureOptions, NotCrossed, cannot_write};
use super::ethernet::{Kind, classify, counted_bytes};
use super::report::{DirectionReport, LatenessCounts, PortReport, Report};

/// One of the two ways through the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the left port to the right one.
    Up,
    /// From the right port to the left one.
    Down,
}

impl Direction {
    const BOTH: [Direction; 2] = [Direction::Up, Direction::Down];

    /// The number of the port where packets come in: 0 is left.
    pub(super) fn from(self) -> usize {
        self as usize
    }

    /// The number of the port where packets go out.
    pub(super) fn to(self) -> usize {
        1 - self as usize
    }
}

/// Choices beside the two channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmulatorOptions {
    /// Equal seeds lose the same packets of equal sequences.
    pub seed: u64,
    /// Width of a bin of the utilisation series at first.
    pub bin: Duration,
    /// Most bins per direction (40 bytes each); more are merged in pairs.
    pub bins: usize,
    /// Write a capture.
    pub capture: Option<CaptureOptions>,
    /// The least time between two turns while frames flow: processor time against
    /// precision. 200 µs unless there is a reason.
    pub quantum: Duration,
}

impl Default for EmulatorOptions {
    fn default() -> EmulatorOptions {
        EmulatorOptions {
            seed: 1,
            bin: Duration::from_millis(100),
            bins: 4_096,
            capture: None,
            quantum: Duration::from_micros(200),
        }
    }
}

/// Why an emulator could not start, or ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmulatorError {
    /// A direction that cannot be emulated.
    #[error("{direction:?}: {error}")]
    Config {
        /// Which.
        direction: Direction,
        /// Why.
        error: ConfigError,
    },
    /// Something of the operating system, in one sentence.
    #[error("{0}")]
    System(String),
    /// A port's interface was removed while it ran.
    #[error("the interface {0} is gone; the emulator has ended")]
    PortGone(String),
}

/// The emulator; see [`Emulator::start`].
pub struct Emulator;

/// A running emulator. Dropping it stops it.
pub struct EmulatorHandle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), EmulatorError>>>,
}

struct Shared {
    clock: Clock,
    waker: Waker,
    stop: AtomicBool,
    seed: u64,
    mail: Mutex<Mail>,
}

/// Where handles and the thread meet.
enum Mail {
    /// What handles leave for the thread.
    Open(Vec<Request>),
    /// The thread has ended; this is its state.
    Left(Box<State>),
    /// The thread panicked.
    Broken,
}

type Request = Box<dyn FnOnce(&mut State, Instant) + Send>;

/// What a handle may look at and change.
struct State {
    lanes: [Lane; 2],
    ports: [PortReport; 2],
    frame_memory: usize,
    capture_missed: u64,
    problem: Option<String>,
}

struct Lane {
    channel: Channel<Place>,
    lateness: LatenessCounts,
    last_in: Instant,
}

/// What only the thread touches.
struct Engine {
    shared: Arc<Shared>,
    ports: [Port; 2],
    arenas: [Arena; 2],
    batch: Batch,
    capture: Option<Capture>,
    quantum: Duration,
    last_slow_count: Instant,
}

/// Reading the kernel's drop counters costs system calls: once a second is enough.
const SLOW_COUNT: Duration = Duration::from_secs(1);

/// A turn that moved no more frames than this, a quantum or more after the one before,
/// need not be followed by a pause: the traffic leaves pauses of its own.
const SPARSE: usize = 2;

/// Receive calls per port and turn, so that a flood on one side cannot starve the other.
const CALLS_PER_TURN: usize = 8;

impl Emulator {
    /// Joins `left` and `right`: packets from left to right go through `up`, those from
    /// right to left through `down`. It runs in a thread of its own until the handle
    /// stops it. Time zero for outages and series is now.
    pub fn start(
        left: Port,
        right: Port,
        up: ChannelConfig,
        down: ChannelConfig,
        options: EmulatorOptions,
    ) -> Result<EmulatorHandle, EmulatorError> {
        let mut seeds = units::Rng::new(options.seed);
        let mut lane = |direction, config| Lane::new(direction, config, &mut seeds, &options);
        let lanes = [lane(Direction::Up, up)?, lane(Direction::Down, down)?];
        let clock = Clock::start_on(ClockSource::Monotonic);
        let capture = options.capture.clone().map(|o| start_capture(o, &left, &right, &clock));
        let ports = [&left, &right]
            .map(|p| PortReport { name: p.name().to_owned(), ..PortReport::default() });
        let shared = Arc::new(Shared {
            clock,
            waker: Waker::new().map_err(|e| EmulatorError::System(e.to_string()))?,
            stop: AtomicBool::new(false),
            seed: options.seed,
            mail: Mutex::new(Mail::Open(Vec::new())),
        });
        let state = State { lanes, ports, frame_memory: 0, capture_missed: 0, problem: None };
        let engine = Engine {
            shared: shared.clone(),
            ports: [left, right],
            arenas: [Arena::new(), Arena::new()],
            batch: Batch::new(),
            capture: capture.transpose()?,
            quantum: options.quantum,
            last_slow_count: Instant::ZERO,
        };
        let thread = std::thread::Builder::new()
            .name("emulator".into())
            .spawn(move || engine.run(state))
            .map_err(|e| EmulatorError::System(format!("cannot start a thread: {e}")))?;
        Ok(EmulatorHandle { shared, thread: Some(thread) })
    }
}

fn start_capture(
    options: CaptureOptions,
    left: &Port,
    right: &Port,
    clock: &Clock,
) -> Result<Capture, EmulatorError> {
    let file = options.file.clone();
    let names = [left, right].map(|p| p.name().to_owned());
    Capture::start(options, [&names[0], &names[1]], clock.now())
        .map_err(|e| EmulatorError::System(cannot_write(&file, &e)))
}

impl EmulatorHandle {
    /// Time since the start: the clock of outages and series.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// The counters of one direction, up to this moment.
    pub fn counters(&self, direction: Direction) -> Counters {
        self.with_channel(direction, |channel, _| *channel.counters())
    }

    /// The utilisation series of one direction, up to this moment.
    pub fn series(&self, direction: Direction) -> Series {
        self.with_channel(direction, |channel, _| channel.series().clone())
    }

    /// The configuration in force in one direction.
    pub fn config(&self, direction: Direction) -> ChannelConfig {
        self.with_channel(direction, |channel, _| channel.config().clone())
    }

    /// Everything, up to this moment.
    pub fn report(&self) -> Report {
        let seed = self.shared.seed;
        self.ask(move |state, now| {
            for lane in &mut state.lanes {
                lane.channel.advance(now);
            }
            state.report(now, seed)
        })
    }

    /// What has gone wrong so far, one sentence each; see [`Report::problems`].
    pub fn problems(&self) -> Vec<String> {
        self.ask(|state, _| state.problems())
    }

    /// A new configuration for one direction from now on; see [`Channel::reconfigure`].
    pub fn reconfigure(
        &self,
        direction: Direction,
        config: ChannelConfig,
    ) -> Result<(), EmulatorError> {
        self.with_channel(direction, |channel, now| channel.reconfigure(now, config))
            .map_err(|error| EmulatorError::Config { direction, error })
    }

    /// A step of the rate of one direction.
    pub fn set_rate(
        &self,
        direction: Direction,
        rate: Option<BitRate>,
    ) -> Result<(), EmulatorError> {
        self.with_channel(direction, move |channel, now| channel.set_rate(now, rate))
            .map_err(|error| EmulatorError::Config { direction, error })
    }

    /// Begins or ends an outage of one direction.
    pub fn set_outage(&self, direction: Direction, on: bool) {
        self.with_channel(direction, move |channel, now| channel.set_outage(now, on));
    }

    /// False once it has ended by itself; [`EmulatorHandle::stop`] says why.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Ends it and says what it did. Packets on their way are forgotten.
    pub fn stop(mut self) -> Result<Report, EmulatorError> {
        self.end()?;
        Ok(self.report())
    }

    fn end(&mut self) -> Result<(), EmulatorError> {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(EmulatorError::System("the emulator's thread broke down".into())),
        }
    }

    fn with_channel<R: Send + 'static>(
        &self,
        direction: Direction,
        act: impl FnOnce(&mut Channel<Place>, Instant) -> R + Send + 'static,
    ) -> R {
        self.ask(move |state, now| {
            let channel = &mut state.lanes[direction as usize].channel;
            channel.advance(now);
            act(channel, now)
        })
    }

    /// Has the thread do something between two turns; after its end does it here.
    fn ask<R: Send + 'static>(
        &self,
        act: impl FnOnce(&mut State, Instant) -> R + Send + 'static,
    ) -> R {
        let (reply, answer) = mpsc::sync_channel(1);
        let request: Request = Box::new(move |state, now| {
            // The asker waits for it; there is room for one.
            let _ = reply.send(act(state, now));
        });
        match &mut *self.shared.mail() {
            Mail::Open(requests) => requests.push(request),
            Mail::Left(state) => request(state, self.shared.clock.now()),
            Mail::Broken => drop(request),
        }
        self.shared.waker.wake();
        answer.recv().expect("the emulator's thread answers unless it panicked")
    }
}

impl Drop for EmulatorHandle {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Shared {
    /// Nothing panics while it holds this lock, and if it did the mail would be whole.
    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Answers what handles ask, unless one of them is writing just now; it wakes the
    /// thread when it has written.
    fn answer(&self, state: &mut State) {
        let mut mail = match self.mail.try_lock() {
            Ok(mail) => mail,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Mail::Open(requests) = &mut *mail else { return };
        let requests = std::mem::take(requests);
        drop(mail);
        for request in requests {
            request(state, self.clock.now());
        }
    }

    /// Answers the last requests and leaves the state for later ones.
    fn retire(&self, mut state: Box<State>) {
        let mut mail = self.mail();
        if let Mail::Open(requests) = &mut *mail {
            for request in std::mem::take(requests) {
                request(&mut state, self.clock.now());
            }
        }
        *mail = Mail::Left(state);
    }
}

impl Lane {
    fn new(
        direction: Direction,
        config: ChannelConfig,
        seeds: &mut units::Rng,
        options: &EmulatorOptions,
    ) -> Result<Lane, EmulatorError> {
        let channel = Channel::new(config, seeds.next_u64())
            .map_err(|error| EmulatorError::Config { direction, error })?
            .with_series(options.bin, options.bins);
        Ok(Lane { channel, lateness: LatenessCounts::new(), last_in: Instant::ZERO })
    }

    fn report(&self, now: Instant) -> DirectionReport {
        let busy: u64 = self.channel.series().bins().iter().map(|b| b.busy_ns).sum();
        DirectionReport {
            config: self.channel.config().clone(),
            outage: self.channel.in_manual_outage(),
            counters: *self.channel.counters(),
            queue_bytes: self.channel.waiting().0,
            held_packets: self.channel.held(),
            utilisation: busy as f64 / now.as_nanos().max(1) as f64,
            lateness: self.lateness.summary(),
            series: self.channel.series().clone(),
        }
    }
}

impl State {
    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.ports.iter().flat_map(PortReport::problems).collect();
        problems.extend(self.problem.clone());
        if self.capture_missed > 0 {
            problems.push(format!(
                "{} packets are missing in the capture because the disk was too slow",
                self.capture_missed
            ));
        }
        problems
    }

    fn report(&self, now: Instant, seed: u64) -> Report {
        let [left, right] = self.ports.clone();
        Report {
            elapsed: now.since(Instant::ZERO),
            seed,
            up: self.lanes[0].report(now),
            down: self.lanes[1].report(now),
            left,
            right,
            frame_memory: self.frame_memory,
            capture_missed: self.capture_missed,
            problems: self.problems(),
        }
    }
}

const WAKE: u64 = 2;

impl Engine {
    fn run(mut self, state: State) -> Result<(), EmulatorError> {
        let mut state = Box::new(state);
        hurry();
        let outcome = self.serve(&mut state);
        let finished = self.capture.take().map_or(Ok(0), Capture::finish);
        self.count_slowly(&mut state);
        match finished {
            Ok(missed) => state.capture_missed = missed,
            Err((file, e)) => state.problem = Some(cannot_write(&file, &e)),
        }
        self.shared.retire(state);
        outcome
    }

    fn serve(&mut self, state: &mut State) -> Result<(), EmulatorError> {
        let system = |e: os::OsError| EmulatorError::System(e.to_string());
        let mut poller = Poller::new().map_err(system)?;
        for (port, token) in self.ports.iter().zip(0..) {
            poller.add(port, token, Interest::READ).map_err(system)?;
        }
        poller.add(&self.shared.waker, WAKE, Interest::READ).map_err(system)?;
        let mut events = Events::with_capacity(4);
        let mut last_began = Instant::ZERO;
        while !self.shared.stop.load(Ordering::Acquire) {
            let began = self.shared.clock.now();
            let turn = self.turn(state)?;
            let rest = (began + self.quantum).since(self.shared.clock.now());
            let sparse = turn.moved <= SPARSE && began.since(last_began) >= self.quantum;
            if turn.moved > 0 && !sparse && rest > Duration::ZERO {
                std::thread::sleep(rest.to_std());
            }
            last_began = began;
            let now = self.shared.clock.now();
            let timeout = match turn.next {
                Some(at) if at <= now => continue,
                Some(at) => Some(at.since(now)),
                None => self.capture.as_ref().map(|_| SLOW_COUNT),
            };
            poller.wait(&mut events, timeout).map_err(system)?;
            self.shared.waker.clear();
        }
        Ok(())
    }

    /// Takes in what came, gives out what is due.
    fn turn(&mut self, state: &mut State) -> Result<Turn, EmulatorError> {
        let mut moved = 0;
        for direction in Direction::BOTH {
            moved += self.take_in(state, direction)?;
        }
        let now = self.shared.clock.now();
        for direction in Direction::BOTH {
            moved += self.give_out(state, direction, now);
        }
        if let Some(capture) = &mut self.capture {
            capture.tick(now);
        }
        if now.since(self.last_slow_count) >= SLOW_COUNT {
            self.last_slow_count = now;
            self.count_slowly(state);
        }
        self.shared.answer(state);
        let next = state.lanes.iter().filter_map(|l| l.channel.next_time()).min();
        Ok(Turn { moved, next })
    }

    fn count_slowly(&mut self, state: &mut State) {
        for (report, port) in state.ports.iter_mut().zip(&mut self.ports) {
            report.overruns = port.overruns();
        }
        state.frame_memory = self.arenas.iter().map(Arena::memory).sum();
        state.capture_missed = self.capture.as_ref().map_or(0, Capture::missed);
    }

    /// Reads what came; how many frames.
    fn take_in(&mut self, state: &mut State, direction: Direction) -> Result<usize, EmulatorError> {
        let mut batch = std::mem::take(&mut self.batch);
        let mut total = 0;
        for _ in 0..CALLS_PER_TURN {
            let port = &mut self.ports[direction.from()];
            let count = match port.receive(&mut batch) {
                Received::Frames(count) => count,
                Received::Down => 0,
                Received::Gone => return Err(EmulatorError::PortGone(port.name().to_owned())),
            };
            let now = self.shared.clock.now();
            for frame in batch.frames() {
                self.admit(state, direction, now, frame);
            }
            total += count;
            if count < BATCH {
                break;
            }
        }
        self.batch = batch;
        Ok(total)
    }

    /// One frame enters its channel.
    fn admit(&mut self, state: &mut State, direction: Direction, now: Instant, frame: Frame<'_>) {
        let port = &mut state.ports[direction.from()];
        port.frames_in += 1;
        if frame.too_long {
            port.too_long += 1;
            return;
        }
        let (len, kind) = classify(frame.bytes);
        match kind {
            Kind::Ip => {}
            Kind::Neighbour => port.neighbour_in += 1,
            Kind::Other => port.other_in += 1,
        }
        let lane = &mut state.lanes[direction as usize];
        let came = (now - frame.age).max(lane.last_in);
        lane.last_in = came;
        let arena = &mut self.arenas[direction as usize];
        let place = arena.store(frame.bytes);
        if lane.channel.push(came, len, place).is_err() {
            if let Some(capture) = &mut self.capture {
                capture.dropped(direction, came, frame.bytes, NotCrossed::Queue);
            }
            arena.release(place);
        }
    }

    /// Sends what is due by `now`, in batches; how many packets.
    fn give_out(&mut self, state: &mut State, direction: Direction, now: Instant) -> usize {
        let mut total = 0;
        loop {
            let mut due: [Option<Arrival<Place>>; BATCH] = [const { None }; BATCH];
            let channel = &mut state.lanes[direction as usize].channel;
            let mut count = 0;
            for slot in &mut due {
                *slot = channel.pop(now);
                if slot.is_none() {
                    break;
                }
                count += 1;
            }
            total += count;
            self.send(state, direction, now, &due[..count]);
            if count < BATCH {
                return total;
            }
        }
    }

    fn send(
        &mut self,
        state: &mut State,
        direction: Direction,
        now: Instant,
        due: &[Option<Arrival<Place>>],
    ) {
        let arena = &mut self.arenas[direction as usize];
        for arrival in due.iter().flatten() {
            match arrival.fate {
                // The copy shares the first one's bytes, which are flipped already.
                Fate::Corrupted(draw) if !arrival.is_copy => {
                    let bytes = arena.bytes_mut(arrival.item);
                    let counted = counted_bytes(bytes);
                    flip_bit(&mut bytes[counted], draw);
                }
                _ => {}
            }
        }
        let mut frames: [&[u8]; BATCH] = [&[]; BATCH];
        let mut count = 0;
        let lane = &mut state.lanes[direction as usize];
        for arrival in due.iter().flatten() {
            let bytes = arena.bytes(arrival.item);
            if let Fate::Lost(cause) = arrival.fate {
                if let Some(capture) = &mut self.capture {
                    capture.dropped(direction, arrival.at, bytes, NotCrossed::Lost(cause));
                }
                continue;
            }
            if let Some(capture) = &mut self.capture {
                capture.crossed(direction, now, bytes);
            }
            lane.lateness.add(now.since(arrival.at));
            frames[count] = bytes;
            count += 1;
        }
        if count > 0 {
            let sent = self.ports[direction.to()].send(&frames[..count]);
            let port = &mut state.ports[direction.to()];
            port.frames_out += sent.frames as u64;
            port.refused_out += sent.refused as u64;
        }
        for arrival in due.iter().flatten().filter(|a| !a.copy_follows) {
            arena.release(arrival.item);
        }
    }
}

impl Drop for Engine {
    /// Whoever still waits for an answer must not wait for ever.
    fn drop(&mut self) {
        let mut mail = self.shared.mail();
        if matches!(*mail, Mail::Open(_)) {
            *mail = Mail::Broken;
        }
    }
}

/// What a turn came to.
struct Turn {
    /// Frames that came or went.
    moved: usize,
    /// When the next packet is due.
    next: Option<Instant>,
}
