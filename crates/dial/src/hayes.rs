//! The Hayes dialler: one modem on one serial line, from silence to a call and back.
//!
//! [`Modem`] is told what the line brings (bytes, carrier, the device's end) and what is wanted
//! (dial, hang up), and says what to do with the line ([`Output`]). One command is under way at a
//! time:
//!
//! ```text
//! gone ── open ──> preparing ── OK to each init string ──> ready ── dial ──> dialling
//!                     ^  ^                                   │ RING              │ CONNECT
//!                     │  └── back-off: silent, garbage        └──> answering ──> online
//!                     └───────────────── hanging up <───────────────────────────┘
//! ```
//!
//! * The init strings are sent anew before the next call after each one, because a modem may have
//!   been switched off meanwhile; a modem that says nothing, or nothing that makes sense, is tried
//!   again with back-off.
//! * Numbers of the dial list are tried in turn, the list again after a pause that doubles;
//!   what the last one failed of is told. When to call at all is [`crate::manager`]'s matter.
//! * A call ends when carrier goes, or, on lines that cannot tell carrier, when the modem says
//!   "NO CARRIER". It is hung up by DTR, or by `+++` between two pauses and `ATH`; where the
//!   carrier stays after one, the other is tried.
//! * A modem that answers no command may be in a call that a killed program left, or that was not
//!   hung up as it seemed, which costs: it is hung up by the escape before it is tried again. DTR
//!   and DCD do not help: a cable of three wires has neither, whatever its driver says, and some
//!   modems ignore DTR.
//! * So may one that has told no result of a dialling in time. It is prepared anew before the next
//!   number; where it answers nothing then, the call is hung up: by DTR where there is a carrier,
//!   else by the escape.
//! * A call that comes in is answered after some rings, and must prove within a handshake's time
//!   that a peer calls ([`Modem::prove`]); a stranger's ends then.

mod words;

use std::collections::VecDeque;
use std::fmt;

use units::{BitRate, Duration, Instant};

use words::{InBand, Lines, Word};

/// How a modem is to be handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModemConfig {
    /// Sent one after the other before each call, each answered by OK.
    pub init: Vec<String>,
    /// S-registers that are set after them: (number, value).
    pub registers: Vec<(u8, u8)>,
    /// Before a number: `ATDT` dials by tones, `ATD` as the modem likes.
    pub dial: String,
    /// The numbers, tried in turn.
    pub numbers: Vec<String>,
    /// How often the list is gone through before a dialling has failed.
    pub rounds: u32,
    /// The pause before the next number; it doubles with each round.
    pub pause: Duration,
    /// A dialling that has brought nothing after so long is given up.
    pub connect_timeout: Duration,
    /// A command that is not answered after so long is lost.
    pub command_timeout: Duration,
    /// The pause before a silent modem is tried again; it doubles, up to `most_silence`.
    pub silence: Duration,
    /// The longest such pause.
    pub most_silence: Duration,
    /// Calls that come in are answered after so many rings; `None`: not at all.
    pub answer: Option<u32>,
    /// A caller who has not proved to be a peer after so long is hung up.
    pub probation: Duration,
    /// The line tells whether there is carrier (DCD). A pty does not.
    pub carrier_detect: bool,
    /// How a call is hung up first.
    pub hang_up: HangUp,
    /// Silence before and after `+++`; a little more than the modem's S12.
    pub guard: Duration,
}

/// How a call is hung up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangUp {
    /// DTR goes for half a second (`AT&D2`).
    Dtr,
    /// `+++` and `ATH`, for lines without DTR.
    Escape,
}

impl Default for ModemConfig {
    fn default() -> ModemConfig {
        ModemConfig {
            // No echo, words, results told; carrier and DTR as they are; all call progress.
            init: vec!["ATZ".into(), "ATE0V1Q0".into(), "ATX4&C1&D2S0=0".into()],
            registers: Vec::new(),
            dial: "ATDT".into(),
            numbers: Vec::new(),
            rounds: 1,
            pause: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(90),
            command_timeout: Duration::from_secs(3),
            silence: Duration::from_secs(5),
            most_silence: Duration::from_secs(300),
            answer: None,
            probation: Duration::from_secs(30),
            carrier_detect: true,
            hang_up: HangUp::Dtr,
            guard: Duration::from_millis(1_200),
        }
    }
}

/// Why there is no call, or none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The modem found no carrier: the far end is no modem, or the line is bad.
    NoCarrier,
    /// The number is engaged.
    Busy,
    /// The modem hears no dial tone: no line, or no coverage.
    NoDialtone,
    /// It rang, and nobody answered.
    NoAnswer,
    /// The modem refuses the number for a while.
    Delayed,
    /// The modem refuses a command: an init string or the number is wrong.
    Refused,
    /// Neither carrier nor a result came in time.
    Timeout,
    /// The modem answers nothing.
    Silent,
    /// What the line brings is not what a modem says: wrong speed, or noise.
    Garbage,
    /// The device is gone.
    Unplugged,
    /// The carrier went in mid-call.
    CarrierLost,
    /// We hung up.
    HungUp,
    /// Who called did not prove to be a peer.
    Stranger,
    /// The call was hung up, and the carrier stays: the modem needs a look, it may cost money.
    Stuck,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::NoCarrier => "no carrier: the far end did not answer as a modem",
            Cause::Busy => "busy: the number is engaged",
            Cause::NoDialtone => "no dial tone: is the line plugged in, is there coverage?",
            Cause::NoAnswer => "no answer: it rang and nobody took the call",
            Cause::Delayed => "delayed: the modem refuses this number for a while",
            Cause::Refused => "the modem refuses a command: see the init strings and the number",
            Cause::Timeout => "no result in time: neither carrier nor a failure was told",
            Cause::Silent => "the modem says nothing: is it switched on, is the speed right?",
            Cause::Garbage => "what the line brings makes no sense: is the speed right?",
            Cause::Unplugged => "the device is gone",
            Cause::CarrierLost => "the carrier was lost",
            Cause::HungUp => "hung up from here",
            Cause::Stranger => "the caller did not prove to be a peer",
            Cause::Stuck => "the carrier stays though the call was hung up: switch the modem off",
        })
    }
}

/// What the driver does with the line, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write these bytes: a command.
    Send(Vec<u8>),
    /// Set DTR.
    Dtr(bool),
    /// Something happened.
    Told(Told),
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The modem answers its commands; it can dial.
    Ready,
    /// A number is dialled: its place in the list.
    Dialling(usize),
    /// A call is there: what is written now is data.
    Connected {
        /// The rate that the modem tells.
        rate: Option<BitRate>,
        /// Somebody called.
        incoming: bool,
    },
    /// Dialling came to nothing, or an answered call to no carrier.
    Failed(Cause),
    /// The call is over.
    Ended(Cause),
    /// The modem cannot be used; it is tried again by itself.
    Trouble(Cause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no device.
    Gone,
    /// The command `step` of the preparation is under way.
    Preparing {
        step: usize,
        tries: u32,
        until: Instant,
    },
    /// The modem does not do what it should; tried again then.
    Resting {
        until: Instant,
    },
    Ready,
    /// A number is dialled.
    Dialling {
        until: Instant,
    },
    /// Between two numbers.
    Pausing {
        until: Instant,
    },
    /// `ATA` is under way.
    Answering {
        until: Instant,
    },
    /// `unproven` until then.
    Online {
        unproven: Option<Instant>,
    },
    HangingUp {
        how: Step,
        cause: Cause,
        second: bool,
        until: Instant,
    },
}

/// Where hanging up has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// DTR is away.
    DtrAway,
    /// DTR is back; the carrier should go.
    DtrBack,
    /// Silence before `+++`.
    Before,
    /// Silence after it, until the modem says OK, or has had time enough.
    After,
    /// The rest of that silence: what said OK before may have been the far end.
    Taken,
    /// `ATH` was sent.
    Ath,
    /// Nothing helped.
    Stuck,
}

/// A call that is there before the modem has answered its first command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftover {
    /// Nobody looked since the program began, or a call ended.
    Unknown,
    /// It is being hung up, if it is there.
    HangingUp,
    /// There is none.
    None,
}

/// Tries of a command before the modem counts as silent.
const TRIES: u32 = 3;
/// Escapes that are tried before a call is hung up blindly.
const ESCAPES: u32 = 2;
/// DTR is away for so long.
const DTR_AWAY: Duration = Duration::from_millis(500);
/// A carrier is gone so long after DTR went, or it stays.
const CARRIER_GOES: Duration = Duration::from_secs(3);
/// Rings of one call are not further apart.
const RING_GAP: Duration = Duration::from_secs(8);
/// How often a stuck carrier is attended to.
const STUCK: Duration = Duration::from_secs(30);

/// One modem on one line.
#[derive(Clone, Debug)]
pub struct Modem {
    config: ModemConfig,
    state: State,
    lines: Lines,
    in_band: InBand,
    out: VecDeque<Output>,
    /// Somebody wants a call.
    wanted: bool,
    /// The number that is tried, and the round through the list.
    number: usize,
    /// The list of numbers is another than the one of which a number was dialled.
    renumbered: bool,
    /// What it was prepared with so far is of another list than the one that holds.
    is_outdated: bool,
    round: u32,
    /// Lines that made no sense since the last one that did.
    nonsense: u32,
    /// Failed preparations in a row.
    failures: u32,
    /// Escapes that were tried to end this call.
    escapes: u32,
    /// A call that nobody here knows of is being hung up, or was: of a program before this one, or
    /// of a dialling without a result.
    leftover: Leftover,
    /// A call may be there: a number was dialled or a call answered, and nothing since then says
    /// that there is none.
    called: bool,
    /// The next number is not dialled sooner.
    paused: Option<Instant>,
    rings: u32,
    last_ring: Instant,
    carrier: bool,
    /// The line has told of a carrier in this call. A cable of three wires never does, though its
    /// driver says that it can.
    carrier_seen: bool,
    /// The end of the line CONNECT is still to come.
    skip_line_feed: bool,
}

impl Modem {
    /// A modem whose device is not there yet.
    pub fn new(config: ModemConfig) -> Modem {
        Modem {
            config,
            state: State::Gone,
            lines: Lines::default(),
            in_band: InBand::default(),
            out: VecDeque::new(),
            wanted: false,
            number: 0,
            renumbered: false,
            is_outdated: false,
            round: 0,
            nonsense: 0,
            failures: 0,
            escapes: 0,
            leftover: Leftover::Unknown,
            called: false,
            paused: None,
            rings: 0,
            last_ring: Instant::ZERO,
            carrier: false,
            carrier_seen: false,
            skip_line_feed: false,
        }
    }

    /// How long hanging up takes, once what was written has left: the program's pause before the
    /// escape and the modem's own after it, or the fall of DTR.
    pub fn hang_up_time(&self) -> Duration {
        match self.config.hang_up {
            HangUp::Dtr => DTR_AWAY,
            HangUp::Escape => self.config.guard.times(2),
        }
    }

    /// True while what is written to the line is data.
    pub fn is_online(&self) -> bool {
        matches!(self.state, State::Online { .. })
    }

    /// A call of this program's may be there, known or not.
    pub fn may_be_in_call(&self) -> bool {
        self.called && self.state != State::Gone
    }

    /// The device was opened.
    pub fn handle_open(&mut self, now: Instant) {
        self.failures = 0;
        self.leftover = Leftover::Unknown;
        self.out.push_back(Output::Dtr(true));
        self.prepare(now);
    }

    /// The device is gone (unplugged, an error of the line).
    pub fn handle_gone(&mut self) {
        let told = match self.state {
            State::Gone => return,
            State::HangingUp { .. } if self.leftover == Leftover::HangingUp => match self.wanted {
                true => Told::Failed(Cause::Unplugged),
                false => Told::Trouble(Cause::Unplugged),
            },
            State::Online { .. } | State::HangingUp { .. } => Told::Ended(Cause::Unplugged),
            _ if self.wanted => Told::Failed(Cause::Unplugged),
            _ => Told::Trouble(Cause::Unplugged),
        };
        self.state = State::Gone;
        (self.wanted, self.called, self.carrier) = (false, false, false);
        self.tell(told);
    }

    /// A call is wanted: the numbers are dialled as soon as the modem is ready.
    pub fn dial(&mut self, now: Instant) {
        if self.config.numbers.is_empty() || matches!(self.state, State::Gone) {
            let no_number = self.config.numbers.is_empty();
            let cause = if no_number { Cause::Refused } else { Cause::Unplugged };
            return self.tell(Told::Failed(cause));
        }
        (self.wanted, self.number, self.round) = (true, 0, 0);
        (self.renumbered, self.paused) = (false, None);
        match self.state {
            State::Ready => self.dial_number(now),
            // Somebody waits: no time for a rest.
            State::Resting { .. } => self.prepare(now),
            _ => {}
        }
    }

    /// The call, or the attempt at one, is to end. What was written before should have left: an
    /// escape wants silence.
    pub fn hang_up(&mut self, now: Instant) {
        let dialling = std::mem::take(&mut self.wanted);
        match self.state {
            State::Online { .. } => self.begin_hang_up(now, Cause::HungUp),
            State::Dialling { .. } | State::Answering { .. } => {
                // Any byte ends a dialling (ITU-T V.250, 5.6.1), if it is not too late.
                self.command("");
                self.tell(Told::Failed(Cause::HungUp));
                self.leftover = Leftover::Unknown;
                self.prepare(now);
            }
            State::Pausing { .. } => {
                self.state = State::Ready;
                self.tell(Told::Failed(Cause::HungUp));
            }
            _ if dialling => self.tell(Told::Failed(Cause::HungUp)),
            _ => {}
        }
    }

    /// Other init strings and numbers, from the next call on, and whether calls are answered.
    pub fn change(
        &mut self,
        now: Instant,
        init: Vec<String>,
        numbers: Vec<String>,
        answer: Option<u32>,
    ) {
        let is_other = self.config.init != init;
        self.renumbered |= self.config.numbers != numbers;
        (self.config.init, self.config.numbers, self.config.answer) = (init, numbers, answer);
        match self.state {
            // It was prepared for the next call already.
            State::Ready if is_other => self.prepare(now),
            // It has a command to answer first.
            State::Preparing { .. } => self.is_outdated |= is_other,
            _ => {}
        }
    }

    /// How long a call may stay that nobody has proved to be a peer's, from the next one on.
    pub fn set_probation(&mut self, probation: Duration) {
        self.config.probation = probation;
    }

    /// The far end has proved to be a peer: the call may stay.
    pub fn prove(&mut self) {
        if let State::Online { unproven } = &mut self.state {
            *unproven = None;
        }
    }

    /// The line tells that the carrier came or went (DCD).
    pub fn handle_carrier(&mut self, now: Instant, there: bool) {
        let went = std::mem::replace(&mut self.carrier, there) && !there;
        self.carrier_seen |= there;
        match self.state {
            State::Online { .. } if went && self.config.carrier_detect => {
                self.end(now, Cause::CarrierLost);
            }
            State::HangingUp { how, cause, .. } if went && how != Step::DtrAway => {
                self.end(now, cause);
            }
            _ => {}
        }
    }

    /// The line tells whether this call's carrier is there.
    fn detects_carrier(&self) -> bool {
        self.config.carrier_detect && self.carrier_seen
    }

    /// The line has brought `bytes`; those that are a call's data are handed to `data`.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8], mut data: impl FnMut(&[u8])) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            if let State::Online { .. } = self.state {
                let from = usize::from(std::mem::take(&mut self.skip_line_feed) && byte == b'\n');
                let all = &rest[from..];
                rest = self.online(now, all, &mut data);
                continue;
            }
            rest = after;
            if let Some(line) = self.lines.take(byte) {
                self.handle_line(now, &line);
            }
        }
    }

    /// Data of a call, up to where the modem says that it has ended; what follows that.
    fn online<'a>(
        &mut self,
        now: Instant,
        all: &'a [u8],
        data: &mut impl FnMut(&[u8]),
    ) -> &'a [u8] {
        let says_end = |band: &mut InBand| all.iter().position(|b| band.take(*b));
        let end = if self.detects_carrier() { None } else { says_end(&mut self.in_band) };
        let Some(end) = end else {
            if !all.is_empty() {
                data(all);
            }
            return &[];
        };
        let (of_call, rest) = all.split_at(end + 1);
        data(of_call);
        self.end(now, Cause::CarrierLost);
        rest
    }

    fn handle_line(&mut self, now: Instant, line: &str) {
        let word = words::read(line);
        let echo = line.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("AT"));
        match word {
            Word::Unknown if echo => return,
            Word::Unknown => self.nonsense = self.nonsense.saturating_add(1),
            _ => self.nonsense = 0,
        }
        let is_idle = match self.state {
            State::HangingUp { .. } => self.leftover == Leftover::HangingUp,
            State::Preparing { .. } | State::Ready => true,
            State::Pausing { .. } | State::Resting { .. } => true,
            _ => false,
        };
        // A digit is no more than that here.
        let is_digits = line.bytes().all(|b| b.is_ascii_digit());
        if let (true, false, Word::Connect(rate)) = (is_idle, is_digits, word) {
            // The far end answered while the dialling was broken off: what was to end it was too
            // late, and the call costs.
            let wanted = self.wanted;
            self.connected(now, rate);
            (self.wanted, self.leftover) = (wanted, Leftover::None);
            return self.begin_hang_up(now, Cause::HungUp);
        }
        match self.state {
            State::Preparing { step, .. } => self.prepared(now, step, word),
            State::Ready | State::Pausing { .. } => self.ready(now, word),
            State::Dialling { .. } | State::Answering { .. } => self.dialled(now, word),
            State::HangingUp { how, cause, second, until } => {
                let carrier = self.config.carrier_detect && self.carrier;
                if (how, word) == (Step::After, Word::Ok) {
                    // The modem has taken the escape: sooner, it would have taken ATH for data.
                    let (how, until) = (Step::Taken, until - self.config.guard);
                    if now >= until {
                        return self.hang_up_step(now, how, cause, second);
                    }
                    self.state = State::HangingUp { how, cause, second, until };
                    return;
                }
                let over = match how {
                    Step::Ath => matches!(word, Word::Ok | Word::NoCarrier) && !carrier,
                    // The far end was faster.
                    Step::Before | Step::After | Step::Taken => word == Word::NoCarrier,
                    _ => false,
                };
                if over {
                    self.end(now, cause);
                }
            }
            _ => {}
        }
    }

    fn prepared(&mut self, now: Instant, step: usize, word: Word) {
        match word {
            Word::Ok => {
                (self.leftover, self.called) = (Leftover::None, false);
                self.next_step(now, step + 1);
            }
            Word::Error => {
                // It takes commands: it is in no call.
                self.called = false;
                self.trouble(now, Cause::Refused);
            }
            _ => {}
        }
    }

    fn ready(&mut self, now: Instant, word: Word) {
        let Some(wanted) = self.config.answer.filter(|_| word == Word::Ring) else { return };
        let same_call = now.since(self.last_ring) < RING_GAP;
        self.rings = if same_call { self.rings + 1 } else { 1 };
        self.last_ring = now;
        if self.rings >= wanted {
            (self.rings, self.called) = (0, true);
            self.command("ATA");
            self.state = State::Answering { until: now + self.config.connect_timeout };
        }
    }

    fn dialled(&mut self, now: Instant, word: Word) {
        let cause = match word {
            Word::Connect(rate) => return self.connected(now, rate),
            Word::NoCarrier => Cause::NoCarrier,
            Word::Busy => Cause::Busy,
            Word::NoDialtone => Cause::NoDialtone,
            Word::NoAnswer => Cause::NoAnswer,
            Word::Delayed => Cause::Delayed,
            Word::Error => Cause::Refused,
            Word::Ok | Word::Ring | Word::Progress | Word::Unknown => return,
        };
        self.failed(now, cause);
    }

    fn connected(&mut self, now: Instant, rate: Option<BitRate>) {
        let incoming = matches!(self.state, State::Answering { .. });
        let unproven = incoming.then(|| now + self.config.probation);
        self.state = State::Online { unproven };
        self.called = true;
        self.carrier_seen = self.carrier;
        // Whoever wanted a call while one came in has one now.
        self.wanted = false;
        self.skip_line_feed = true;
        self.in_band = InBand::default();
        self.tell(Told::Connected { rate, incoming });
    }

    /// The dialling of one number, or an answer, has come to nothing.
    fn failed(&mut self, now: Instant, cause: Cause) {
        // Without a result a call may be there, of which CONNECT was lost.
        self.called = cause == Cause::Timeout;
        if let State::Answering { .. } = self.state {
            self.tell(Told::Failed(cause));
            return self.go_on(now);
        }
        // Of another list the first is next.
        self.number += usize::from(!self.renumbered);
        if !self.renumbered && self.number >= self.config.numbers.len() {
            self.number = 0;
            self.round += 1;
        }
        // Another number does not help where there is no line or the modem refuses.
        let hopeless = matches!(cause, Cause::NoDialtone | Cause::Refused);
        if hopeless || self.round >= self.config.rounds {
            self.wanted = false;
            self.tell(Told::Failed(cause));
            return self.go_on(now);
        }
        self.paused = Some(now + self.config.pause.times(1 << self.round.min(16)));
        self.go_on(now);
    }

    /// A dialling or an answer is over: what is wanted next, once it is sure that there is no call.
    fn go_on(&mut self, now: Instant) {
        if self.called {
            self.leftover = Leftover::Unknown;
            return self.prepare(now);
        }
        self.state = State::Ready;
        self.dial_if_wanted(now);
    }

    fn dial_number(&mut self, now: Instant) {
        if std::mem::take(&mut self.renumbered) {
            (self.number, self.round) = (0, 0);
        }
        let Some(number) = self.config.numbers.get(self.number) else {
            (self.wanted, self.state) = (false, State::Ready);
            return self.tell(Told::Failed(Cause::Refused));
        };
        let command = format!("{}{number}", self.config.dial);
        self.command(&command);
        self.called = true;
        self.state = State::Dialling { until: now + self.config.connect_timeout };
        self.tell(Told::Dialling(self.number));
    }

    fn dial_if_wanted(&mut self, now: Instant) {
        let paused = self.paused.take().filter(|until| now < *until);
        match paused {
            _ if !self.wanted => {}
            Some(until) => self.state = State::Pausing { until },
            None => self.dial_number(now),
        }
    }

    fn prepare(&mut self, now: Instant) {
        self.lines.clear();
        self.nonsense = 0;
        self.is_outdated = false;
        self.next_step(now, 0);
    }

    /// Sends the command `step` of the preparation; after the last the modem is ready.
    fn next_step(&mut self, now: Instant, step: usize) {
        let step = if std::mem::take(&mut self.is_outdated) { 0 } else { step };
        match self.preparation(step) {
            Some(command) => {
                self.command(&command);
                let until = now + self.config.command_timeout;
                self.state = State::Preparing { step, tries: 1, until };
            }
            None => {
                self.failures = 0;
                self.rings = 0;
                self.state = State::Ready;
                self.tell(Told::Ready);
                self.dial_if_wanted(now);
            }
        }
    }

    fn preparation(&self, step: usize) -> Option<String> {
        let init = &self.config.init;
        if step < init.len() {
            return Some(init[step].clone());
        }
        let (number, value) = self.config.registers.get(step - init.len())?;
        Some(format!("ATS{number}={value}"))
    }

    fn trouble(&mut self, now: Instant, cause: Cause) {
        if self.called {
            // It is looked for again before the next try.
            self.leftover = Leftover::Unknown;
        }
        let wait = self.config.silence.times(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.state = State::Resting { until: now + wait.min(self.config.most_silence) };
        let told = if std::mem::take(&mut self.wanted) {
            Told::Failed(cause)
        } else {
            Told::Trouble(cause)
        };
        self.tell(told);
    }

    fn begin_hang_up(&mut self, now: Instant, cause: Cause) {
        match self.config.hang_up {
            HangUp::Dtr => self.drop_dtr(now, cause, false),
            HangUp::Escape => self.begin_escape(now, cause, false),
        }
    }

    fn drop_dtr(&mut self, now: Instant, cause: Cause, second: bool) {
        self.lines.clear();
        self.out.push_back(Output::Dtr(false));
        let until = now + DTR_AWAY;
        self.state = State::HangingUp { how: Step::DtrAway, cause, second, until };
    }

    fn begin_escape(&mut self, now: Instant, cause: Cause, second: bool) {
        self.lines.clear();
        self.escapes = 0;
        let until = now + self.config.guard;
        self.state = State::HangingUp { how: Step::Before, cause, second, until };
    }

    /// The time of a step of hanging up is over.
    fn hang_up_step(&mut self, now: Instant, how: Step, cause: Cause, second: bool) {
        let step = |how, until| State::HangingUp { how, cause, second, until };
        match how {
            Step::DtrAway => {
                self.out.push_back(Output::Dtr(true));
                match (self.detects_carrier(), self.carrier) {
                    (true, true) => self.state = step(Step::DtrBack, now + CARRIER_GOES),
                    (true, false) => self.end(now, cause),
                    // Only a modem that is no longer in a call answers a command.
                    (false, _) => {
                        self.command("ATH");
                        self.state = step(Step::Ath, now + self.config.command_timeout);
                    }
                }
            }
            Step::Before => {
                self.out.push_back(Output::Send(b"+++".to_vec()));
                self.escapes += 1;
                self.state = step(Step::After, now + self.config.guard.times(2));
            }
            // What was written before may still have been on its way: then there was no pause.
            Step::After if self.escapes < ESCAPES => {
                self.state = step(Step::Before, now + self.config.guard);
            }
            Step::After | Step::Taken => {
                self.lines.clear();
                self.command("ATH");
                self.state = step(Step::Ath, now + self.config.command_timeout);
            }
            // It says nothing at all.
            Step::Ath if self.leftover == Leftover::HangingUp => self.end(now, cause),
            Step::DtrBack if !second => self.begin_escape(now, cause, true),
            Step::Ath if !second => match self.config.hang_up {
                HangUp::Dtr => self.begin_escape(now, cause, true),
                HangUp::Escape => self.drop_dtr(now, cause, true),
            },
            Step::DtrBack | Step::Ath => {
                self.tell(Told::Trouble(Cause::Stuck));
                self.state = step(Step::Stuck, now + STUCK);
            }
            Step::Stuck => self.begin_hang_up(now, cause),
        }
    }

    /// The call is over.
    fn end(&mut self, now: Instant, cause: Cause) {
        self.leftover = match self.leftover {
            // Nobody here knows of a call that another program left.
            Leftover::HangingUp => Leftover::None,
            // What the far end sent last may have read as the modem's answer: a modem that takes
            // no command now is in the call.
            Leftover::Unknown | Leftover::None => {
                self.tell(Told::Ended(cause));
                Leftover::Unknown
            }
        };
        self.prepare(now);
    }

    /// A time that [`Modem::poll_timeout`] told may have come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline().is_none_or(|until| now < until) {
            return;
        }
        match self.state {
            State::Preparing { step, tries, .. } => self.command_lost(now, step, tries),
            State::Resting { .. } => self.prepare(now),
            State::Pausing { .. } => {
                self.state = State::Ready;
                self.dial_if_wanted(now);
            }
            State::Dialling { .. } | State::Answering { .. } => {
                self.command("");
                self.failed(now, Cause::Timeout);
            }
            State::Online { .. } => self.begin_hang_up(now, Cause::Stranger),
            State::HangingUp { how, cause, second, .. } => {
                self.hang_up_step(now, how, cause, second);
            }
            State::Gone | State::Ready => {}
        }
    }

    fn command_lost(&mut self, now: Instant, step: usize, tries: u32) {
        if self.leftover == Leftover::Unknown {
            self.leftover = Leftover::HangingUp;
            if self.config.hang_up == HangUp::Dtr && self.carrier && self.called {
                return self.drop_dtr(now, Cause::HungUp, false);
            }
            self.begin_escape(now, Cause::HungUp, true);
            self.escapes = ESCAPES - 1;
            return;
        }
        if tries >= TRIES {
            let garbage = self.nonsense > 0;
            return self.trouble(now, if garbage { Cause::Garbage } else { Cause::Silent });
        }
        // The modem may have taken half of it with noise before it.
        self.command("");
        if self.is_outdated {
            return self.prepare(now);
        }
        let command = self.preparation(step).unwrap_or_default();
        self.command(&command);
        let until = now + self.config.command_timeout;
        self.state = State::Preparing { step, tries: tries + 1, until };
    }

    /// When to call [`Modem::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline()
    }

    fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Gone | State::Ready => None,
            State::Online { unproven } => unproven,
            State::Preparing { until, .. }
            | State::Resting { until }
            | State::Dialling { until }
            | State::Pausing { until }
            | State::Answering { until }
            | State::HangingUp { until, .. } => Some(until),
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn command(&mut self, text: &str) {
        self.out.push_back(Output::Send(format!("{text}\r").into_bytes()));
    }

    fn tell(&mut self, told: Told) {
        self.out.push_back(Output::Told(told));
    }
}

#[cfg(test)]
mod tests;
