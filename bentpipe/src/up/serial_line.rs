//! Serial carriers: one modem on its line, with the link's packets framed in its calls. Its other
//! end is whoever is called, or calls.

use std::collections::VecDeque;
use std::path::PathBuf;

use dial::framing;
use dial::hayes::{Cause, HangUp, Modem, ModemConfig, Output, Told};
use os::OsError;
use os::poll::{Clock, Events, Interest, Poller};
use os::serial::{Got, Serial, Settings};
use units::{BitRate, ByteCount, Duration, Instant};

use crate::config::SerialModem;

/// How often the line is asked for carrier, and what it still holds.
const LOOK: Duration = Duration::from_millis(250);
/// The same while a call ends, which may be billed by seconds.
const LOOK_AT_END: Duration = Duration::from_millis(50);
/// A device that is not there is opened anew after this.
const REOPEN: Duration = Duration::from_secs(5);
/// What was written leaves within this, or is lost with the call.
const LINGER: Duration = Duration::from_secs(5);
/// The link paces to the line's rate; packets beyond this time of it are lost.
const QUEUE: Duration = Duration::from_secs(2);
/// A call that is there when the gateway ends, or its peer goes, is hung up within this: what was
/// written leaves, and the escape and the modem's answers have their time.
const FINISH: Duration = Duration::from_secs(20);
/// Commands that the modem does not take: one that wants more is broken.
const MOST_COMMANDS: usize = 4 << 10;
/// Reads per turn, so that a flood cannot keep the loop from its other work.
const READS: usize = 16;
/// What is told and not asked for; the oldest goes.
const MOST_TOLD: usize = 64;

/// One modem.
pub struct SerialLine {
    device: PathBuf,
    settings: Settings,
    config: ModemConfig,
    modem: Modem,
    serial: Option<Serial>,
    reader: framing::Reader,
    /// Commands, which go before packets, and framed packets.
    commands: Vec<u8>,
    unsent: Vec<u8>,
    most_unsent: usize,
    told: VecDeque<Told>,
    token: u64,
    watched: Interest,
    /// When to look at carrier, or open the device anew.
    look_at: Instant,
    /// Hang up when all is sent, or then.
    hang_up_at: Option<Instant>,
    /// That the device cannot be opened was told.
    complained: bool,
    /// Packets that found no call or no room.
    pub lost: u64,
    /// When the last packet came.
    pub heard: Instant,
    /// While a call is made: how long this thread had waited for a processor at the last look.
    waited_before: Option<Duration>,
    /// When the modem's CONNECT was read, and how long it may have been there before.
    connected: (Instant, Duration),
}

impl SerialLine {
    /// The line of a link at `rate` with such a round trip; watched as `token`.
    pub fn new(line: &SerialModem, rate: BitRate, rtt: Duration, token: u64) -> SerialLine {
        let defaults = ModemConfig::default();
        let config = ModemConfig {
            init: init_of(line),
            numbers: line.numbers.clone(),
            answer: line.answer.then_some(1),
            probation: probation(rate, rtt),
            ..defaults
        };
        SerialLine {
            device: line.device.clone(),
            settings: Settings { speed: line.speed, hardware_flow: line.hardware_flow },
            modem: Modem::new(config.clone()),
            config,
            serial: None,
            reader: framing::Reader::new(),
            commands: Vec::new(),
            unsent: Vec::new(),
            most_unsent: most_unsent(rate, line.speed),
            told: VecDeque::new(),
            token,
            watched: Interest::READ,
            look_at: Instant::ZERO,
            hang_up_at: None,
            complained: false,
            lost: 0,
            heard: Instant::ZERO,
            waited_before: None,
            connected: (Instant::ZERO, Duration::ZERO),
        }
    }

    /// The file has other numbers or init strings for the same device.
    pub fn change(&mut self, now: Instant, line: &SerialModem) {
        let (init, numbers) = (init_of(line), line.numbers.clone());
        let answer = line.answer.then_some(1);
        self.config.init.clone_from(&init);
        self.config.numbers.clone_from(&numbers);
        self.config.answer = answer;
        self.modem.change(now, init, numbers, answer);
    }

    /// The link of whoever called is at this rate.
    pub fn set_rate(&mut self, rate: BitRate) {
        self.most_unsent = most_unsent(rate, self.settings.speed);
    }

    /// The slowest link over which somebody may call is at this rate, with such a round trip.
    pub fn set_slowest(&mut self, rate: BitRate, rtt: Duration) {
        self.config.probation = probation(rate, rtt);
        self.modem.set_probation(self.config.probation);
    }

    /// A call is wanted.
    pub fn dial(&mut self, now: Instant) {
        if !self.modem.is_online() {
            self.hang_up_at = None;
        }
        self.modem.dial(now);
        self.waited_before = os::proc::run_delay();
        // A device that is opened meanwhile has another modem, which knows nothing of it.
        self.listen();
    }

    /// The call is to end, when what was written has left. True: it has not ended, and nobody said
    /// so before.
    pub fn hang_up(&mut self, now: Instant) -> bool {
        let is_first = self.hang_up_at.is_none() && self.modem.is_online();
        self.hang_up_at.get_or_insert(now + LINGER);
        self.look_at = now;
        is_first
    }

    /// Ends the call, if one may be there ([`Modem::may_be_in_call`]), and gives the device back:
    /// when the call was over. A line without DTR keeps its call, and its price, when it is only
    /// closed.
    pub fn finish(mut self, clock: &Clock) -> Instant {
        let ended = self.wait_for_end(clock);
        if self.modem.may_be_in_call() {
            let why = ended.as_ref().err().map_or("it answers nothing".into(), OsError::to_string);
            let device = self.device.display();
            crate::log!(Warn, "a call may still be there: see to it", device = device, why = why);
        }
        ended.ok().flatten().unwrap_or_else(|| clock.now())
    }

    /// Hangs up, and waits until it is sure that there is no call: when that was over, if one was.
    fn wait_for_end(&mut self, clock: &Clock) -> Result<Option<Instant>, OsError> {
        // Another than the gateway's, which goes on or has ended.
        let (mut poller, mut events) = (Poller::new()?, Events::with_capacity(1));
        let Some(serial) = &self.serial else { return Ok(None) };
        poller.add(serial, 0, Interest::READ)?;
        (self.token, self.watched) = (0, Interest::READ);
        let mut now = clock.now();
        self.hang_up(now);
        let (until, mut ended) = (now + FINISH, None);
        while self.serial.is_some() && self.modem.may_be_in_call() && now < until {
            self.turn(now, &poller, |_| ());
            let is_end = |told: Told| matches!(told, Told::Ended(_) | Told::Failed(_));
            ended = ended.or(self.told.drain(..).any(is_end).then_some(now));
            let next = self.poll_timeout().map_or(until, |at| at.min(until));
            poller.wait(&mut events, Some(next.since(now)))?;
            now = clock.now();
        }
        Ok(ended)
    }

    /// Stops watching the line there.
    pub fn unwatch(&self, poller: &Poller) {
        let _ = self.serial.as_ref().map(|serial| poller.remove(serial));
    }

    /// How long hanging up takes, once what was written has left.
    pub fn hang_up_time(&self) -> Duration {
        self.modem.hang_up_time()
    }

    /// How long the exchange may have billed the call that is there before `now`.
    pub fn noticed_late(&self, now: Instant) -> Duration {
        let (read, before) = self.connected;
        now.since(read) + before
    }

    /// The far end is the peer.
    pub fn prove(&mut self) {
        self.modem.prove();
    }

    /// The next thing that happened.
    pub fn poll_told(&mut self) -> Option<Told> {
        self.told.pop_front()
    }

    /// When to have a turn though the poller tells nothing.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.told.is_empty() {
            return Some(Instant::ZERO);
        }
        let looks = self.serial.is_none() || self.modem.is_online() || self.hang_up_at.is_some();
        let look = looks.then_some(self.look_at);
        [look, self.modem.poll_timeout()].into_iter().flatten().min()
    }

    /// Queues a packet.
    pub fn send(&mut self, packet: &[u8]) {
        let fits = packet.len() <= framing::MAX_PACKET
            && self.unsent.len() + framing::max_framed(packet.len()) <= self.most_unsent;
        if !self.modem.is_online() || self.hang_up_at.is_some() || !fits {
            self.lost += 1;
            return;
        }
        framing::write(packet, self.unsent.is_empty(), &mut self.unsent);
    }

    /// Reads, writes and does what is due; `packet` is handed what came.
    pub fn turn(&mut self, now: Instant, poller: &Poller, mut packet: impl FnMut(&mut [u8])) {
        if self.serial.is_none() && now >= self.look_at {
            self.open(now, poller);
        }
        self.read(now, &mut packet);
        if now >= self.look_at {
            self.look_at = now + if self.hang_up_at.is_some() { LOOK_AT_END } else { LOOK };
            // Here and not in every turn, because others' packets pass by this, too.
            if self.waited_before.is_some() {
                self.waited_before = os::proc::run_delay();
            }
            let carrier = self.serial.as_ref().and_then(Serial::carrier);
            if let Some(there) = carrier {
                self.modem.handle_carrier(now, there);
            }
        }
        if let Some(until) = self.hang_up_at {
            let held = self.serial.as_ref().map_or(0, Serial::unsent);
            if !self.modem.is_online() || self.unsent.is_empty() && held == 0 || now >= until {
                self.hang_up_at = None;
                self.modem.hang_up(now);
            }
        }
        self.modem.handle_timeout(now);
        self.listen();
        self.flush(now, poller);
    }

    fn open(&mut self, now: Instant, poller: &Poller) {
        self.look_at = now + REOPEN;
        let opened = Serial::open(&self.device, self.settings);
        let watched = opened.and_then(|serial| {
            poller.add(&serial, self.token, Interest::READ)?;
            Ok::<Serial, OsError>(serial)
        });
        match watched {
            Ok(serial) => {
                // What has no control lines is asked in the band.
                let has_lines = serial.carrier().is_some();
                let hang_up = if has_lines { HangUp::Dtr } else { HangUp::Escape };
                let config = self.config.clone();
                self.modem =
                    Modem::new(ModemConfig { carrier_detect: has_lines, hang_up, ..config });
                (self.watched, self.complained) = (Interest::READ, false);
                self.serial = Some(serial);
                self.modem.handle_open(now);
            }
            Err(why) if !std::mem::replace(&mut self.complained, true) => {
                crate::log!(Warn, "no modem; it is tried again", why = why);
                self.told.push_back(Told::Trouble(Cause::Unplugged));
            }
            Err(_) => {}
        }
    }

    fn gone(&mut self, now: Instant) {
        self.serial = None; // Closed, the poller forgets it.
        self.look_at = now + REOPEN;
        self.modem.handle_gone();
        self.listen();
    }

    fn read(&mut self, now: Instant, packet: &mut impl FnMut(&mut [u8])) {
        let mut buf = [0; 1_024];
        for _ in 0..READS {
            let Some(serial) = &self.serial else { return };
            match serial.read(&mut buf) {
                Got::Bytes(n) => {
                    let was_online = self.modem.is_online();
                    let (reader, heard) = (&mut self.reader, &mut self.heard);
                    self.modem.handle_bytes(now, &buf[..n], |data| {
                        reader.read(data, |found| {
                            *heard = now;
                            packet(&mut found.to_vec());
                        });
                    });
                    if self.modem.is_online() && !was_online {
                        let waited = self.waited_before.take().zip(os::proc::run_delay());
                        let late = waited.map_or(Duration::ZERO, |(before, now)| now - before);
                        self.connected = (now, late);
                    }
                }
                Got::Nothing => return,
                Got::Gone => return self.gone(now),
            }
        }
    }

    /// Does what the modem wants.
    fn listen(&mut self) {
        while let Some(output) = self.modem.poll() {
            match output {
                Output::Send(bytes) if self.commands.len() < MOST_COMMANDS => {
                    self.commands.extend(bytes);
                }
                Output::Send(_) => {}
                Output::Dtr(on) => {
                    let _ = self.serial.as_ref().is_some_and(|serial| serial.set_dtr(on));
                }
                Output::Told(told) => {
                    if let Told::Connected { .. } | Told::Ended(_) = told {
                        // Nothing of another call is for this one.
                        self.unsent.clear();
                        self.reader = framing::Reader::new();
                    }
                    if self.told.len() == MOST_TOLD {
                        self.told.pop_front();
                    }
                    self.told.push_back(told);
                }
            }
        }
    }

    /// Writes what the line takes.
    pub fn flush(&mut self, now: Instant, poller: &Poller) {
        let Some(serial) = &self.serial else {
            self.commands.clear();
            return self.unsent.clear();
        };
        let (mut full, mut gone) = (false, false);
        for queue in [&mut self.commands, &mut self.unsent] {
            if full || queue.is_empty() {
                continue;
            }
            match serial.write(queue) {
                Got::Bytes(n) => {
                    queue.drain(..n);
                    full = !queue.is_empty();
                }
                Got::Nothing => full = true,
                Got::Gone => (full, gone) = (true, true),
            }
        }
        let wanted = if full { Interest::READ_WRITE } else { Interest::READ };
        let is_other = std::mem::replace(&mut self.watched, wanted) != wanted;
        if gone || is_other && poller.modify(serial, self.token, wanted).is_err() {
            self.gone(now);
        }
    }
}

/// What the modem is told before each call: the file's strings stand for the first of ours.
fn init_of(line: &SerialModem) -> Vec<String> {
    let ours = ModemConfig::default().init;
    let skipped = usize::from(!line.init.is_empty());
    line.init.iter().cloned().chain(ours.into_iter().skip(skipped)).collect()
}

/// How long a call may stay that nobody proves to be a peer's: a handshake is two packets each way
/// and some patience.
fn probation(rate: BitRate, rtt: Duration) -> Duration {
    rtt.times(4) + rate.time_for(ByteCount(1_000)) + Duration::from_secs(5)
}

/// Bytes that may wait for a line of a link at this rate, which is no more than the line's: ten
/// bits a byte.
fn most_unsent(rate: BitRate, speed: u32) -> usize {
    let rate = rate.min(BitRate::from_bps(u64::from(speed) * 8 / 10));
    let queue = (rate.as_bps() / 8 * QUEUE.as_millis() / 1_000) as usize;
    queue.max(2 * framing::max_framed(framing::MAX_PACKET))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use os::serial::Pty;

    use super::*;

    /// A modem on a line without DTR, whose call goes on when the line is closed. Tells what it was
    /// told until then.
    fn modem(pty: Pty) -> Receiver<String> {
        let (to, from) = channel();
        thread::spawn(move || {
            let (mut all, mut said, mut online) = (String::new(), String::new(), false);
            let mut buf = [0; 256];
            let mut opened = false;
            loop {
                thread::sleep(std::time::Duration::from_millis(5));
                match pty.read(&mut buf) {
                    Got::Bytes(n) => said.extend(buf[..n].iter().map(|b| char::from(*b))),
                    Got::Nothing => {}
                    Got::Gone if opened => break,
                    Got::Gone => continue,
                }
                opened = true;
                if online && said == "+++" {
                    thread::sleep(std::time::Duration::from_millis(1_000));
                    (all, said, online) = (all + &said, String::new(), false);
                    let _ = pty.write(b"\r\nOK\r\n");
                }
                while let Some(at) = said.find('\r').filter(|_| !online) {
                    let command: String = said.drain(..=at).collect();
                    online = command.starts_with("ATD");
                    let _ = pty.write(if online { b"\r\nCONNECT 9600\r\n" } else { b"\r\nOK\r\n" });
                    all += &command;
                }
            }
            let _ = to.send(all);
        });
        from
    }

    #[test]
    fn a_call_on_a_line_without_dtr_is_hung_up_before_the_line_is_closed() {
        for calls in [true, false] {
            let pty = Pty::open().unwrap();
            let modem_is = SerialModem {
                device: pty.path().to_owned(),
                speed: 9_600,
                init: Vec::new(),
                numbers: vec!["100".into()],
                answer: false,
                hardware_flow: false,
            };
            let heard = modem(pty);
            let (clock, mut poller) = (Clock::start(), Poller::new().unwrap());
            let rate = BitRate::from_bps(9_600);
            let mut line = SerialLine::new(&modem_is, rate, Duration::from_millis(100), 1);
            let mut events = Events::with_capacity(4);
            let mut told = Vec::new();
            let is_there = |told: &Told| match told {
                Told::Connected { .. } => calls,
                Told::Ready => !calls,
                _ => false,
            };
            line.turn(clock.now(), &poller, |_| ());
            if calls {
                line.dial(clock.now());
            }
            while !told.iter().any(is_there) {
                poller.wait(&mut events, Some(Duration::from_millis(20))).unwrap();
                line.turn(clock.now(), &poller, |_| ());
                told.extend(std::iter::from_fn(|| line.poll_told()));
                assert!(clock.now().as_nanos() < 60_000_000_000, "{told:?}");
            }
            line.unwatch(&poller);
            line.finish(&clock);
            let heard = heard.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
            let (_, after) = heard.split_once("ATX4&C1&D2S0=0\r").unwrap();
            assert_eq!(after.starts_with("ATDT100\r"), calls, "{heard:?}");
            // The escape may come twice on a machine that is busy.
            let escape = after.split_once("+++");
            assert_eq!(escape.is_some_and(|(_, then)| then.contains("ATH\r")), calls, "{heard:?}");
        }
    }

    #[test]
    fn no_more_waits_than_the_line_itself_carries_in_two_seconds() {
        let of_its_link = most_unsent(BitRate::from_bps(46_080), 57_600);
        assert_eq!(of_its_link, 11_520);
        assert_eq!(most_unsent(BitRate::from_mbps(1_000), 57_600), of_its_link);
    }
}
