//! The thread that moves frames: two ports, two channels, one loop. It never spins; how
//! often it looks is [`Pace`]'s. Lateness does not add up: the line's clock is exact
//! arithmetic on arrival times, which interfaces stamp in the kernel.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use channel::{Arrival, Fate, Refused, flip_bit};
use os::poll::{Events, Interest, Poller};
use os::port::{BATCH, Batch, Frame, Port, Received, hurry};
use units::{Duration, Instant};

use super::arena::{Arena, Place};
use super::capture::{Capture, NotCrossed, cannot_write};
use super::ethernet::{Kind, classify, counted_bytes};
use super::handle::{Direction, EmulatorError, Shared};
use super::pace::Pace;
use super::state::State;

/// What only the thread touches.
pub(super) struct Engine {
    shared: Arc<Shared>,
    ports: [Port; 2],
    arenas: [Arena; 2],
    batch: Batch,
    capture: Option<Capture>,
    pace: Pace,
    last_slow_count: Instant,
}

/// Reading the kernel's drop counters costs system calls: once a second is enough.
const SLOW_COUNT: Duration = Duration::from_secs(1);

/// Receive calls per port and turn, so that a flood on one side cannot starve the other.
const CALLS_PER_TURN: usize = 8;

const WAKE: u64 = 2;

impl Engine {
    pub(super) fn new(
        shared: Arc<Shared>,
        ports: [Port; 2],
        capture: Option<Capture>,
        quantum: Duration,
    ) -> Engine {
        Engine {
            shared,
            ports,
            arenas: [Arena::new(), Arena::new()],
            batch: Batch::new(),
            capture,
            pace: Pace::new(quantum),
            last_slow_count: Instant::ZERO,
        }
    }

    /// Runs until the handle says stop or a port is gone.
    pub(super) fn run(mut self, state: State) -> Result<(), EmulatorError> {
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
        while !self.shared.stop.load(Ordering::Acquire) {
            let began = self.shared.clock.now();
            let turn = self.turn(state)?;
            let now = self.shared.clock.now();
            if let Some(until) = self.pace.sleep_until(began, now, turn.moved, turn.next) {
                std::thread::sleep(until.since(now).to_std());
            }
            let from = self.shared.clock.now();
            let wait = match turn.next {
                Some(at) if at <= from => Some(Duration::ZERO),
                Some(at) => Some(at.since(from)),
                None => self.capture.as_ref().map(|_| SLOW_COUNT),
            };
            if wait != Some(Duration::ZERO) {
                poller.wait(&mut events, wait).map_err(system)?;
                self.shared.waker.clear();
            }
            self.pace.watched(from, self.shared.clock.now());
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
        self.pace.looked(now);
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
            let stamped = port.has_timestamps();
            let now = self.shared.clock.now();
            for frame in batch.frames() {
                let came = if stamped { now - frame.age } else { self.pace.came(now) };
                self.admit(state, direction, came, frame);
            }
            total += count;
            if count < BATCH {
                break;
            }
        }
        self.batch = batch;
        Ok(total)
    }

    /// A frame that came at `came` enters its channel.
    fn admit(&mut self, state: &mut State, direction: Direction, came: Instant, frame: Frame<'_>) {
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
        let came = came.max(lane.last_in);
        lane.last_in = came;
        let arena = &mut self.arenas[direction as usize];
        let place = arena.store(frame.bytes);
        let (place, why) = match lane.channel.push(came, len, place) {
            Ok(()) => return,
            Err(Refused::Full(place)) => (place, NotCrossed::Queue),
            Err(Refused::Policed(place)) => (place, NotCrossed::Policed),
        };
        if let Some(capture) = &mut self.capture {
            capture.dropped(direction, came, frame.bytes, why);
        }
        arena.release(place);
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
    fn drop(&mut self) {
        self.shared.hang_up();
    }
}

/// What a turn came to.
struct Turn {
    /// Frames that came or went.
    moved: usize,
    /// When the next packet is due.
    next: Option<Instant>,
}
