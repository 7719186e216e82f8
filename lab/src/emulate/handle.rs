//! Starting, asking, changing and stopping an emulator.
//!
//! The thread shares nothing while it runs. What a handle wants to know or change it
//! leaves as a closure in a queue, which the thread looks at when it can have the lock
//! at once: a thread of real-time priority must not wait for one that has none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, mpsc};
use std::thread::JoinHandle;

use channel::{Channel, ChannelConfig, ConfigError, Counters, Series};
use os::poll::{Clock, ClockSource, Waker};
use os::port::Port;
use units::{BitRate, ByteCount, Duration, Instant};

use super::arena::Place;
use super::capture::{Capture, CaptureOptions, cannot_write};
use super::engine::Engine;
use super::report::Report;
use super::state::State;

/// One of the two ways through the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the left port to the right one.
    Up,
    /// From the right port to the left one.
    Down,
}

impl Direction {
    pub(super) const BOTH: [Direction; 2] = [Direction::Up, Direction::Down];

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
    /// Processor time against precision: packets may leave this late, and frames that
    /// come without a timestamp are placed to within twice this. 200 µs unless there is
    /// a reason.
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

pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) waker: Waker,
    pub(super) stop: AtomicBool,
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
        let state = State::new([&left, &right], [up, down], &options)?;
        let clock = Clock::start_on(ClockSource::Monotonic);
        let capture = options.capture.clone().map(|o| start_capture(o, &left, &right, &clock));
        let shared = Arc::new(Shared {
            clock,
            waker: Waker::new().map_err(|e| EmulatorError::System(e.to_string()))?,
            stop: AtomicBool::new(false),
            seed: options.seed,
            mail: Mutex::new(Mail::Open(Vec::new())),
        });
        let ports = [left, right];
        let engine = Engine::new(shared.clone(), ports, capture.transpose()?, options.quantum);
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
    // In two namespaces both may have the same name.
    let names = [("left", left), ("right", right)].map(|(side, p)| format!("{side} {}", p.name()));
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

    /// What one direction's line can send from `from` to `to`; see [`Channel::capacity`].
    pub fn capacity(&self, direction: Direction, from: Instant, to: Instant) -> Option<ByteCount> {
        self.with_channel(direction, move |channel, _| channel.capacity(from, to))
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

    /// A step of the rate of one direction, which ends a schedule of it.
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
    pub(super) fn answer(&self, state: &mut State) {
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

    /// Whoever still waits for an answer of a thread that panicked must not wait for ever.
    pub(super) fn hang_up(&self) {
        let mut mail = self.mail();
        if matches!(*mail, Mail::Open(_)) {
            *mail = Mail::Broken;
        }
    }

    /// Answers the last requests and leaves the state for later ones.
    pub(super) fn retire(&self, mut state: Box<State>) {
        let mut mail = self.mail();
        if let Mail::Open(requests) = &mut *mail {
            for request in std::mem::take(requests) {
                request(&mut state, self.clock.now());
            }
        }
        *mail = Mail::Left(state);
    }
}
