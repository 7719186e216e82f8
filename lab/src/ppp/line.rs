//! A host's end of a dialled line: a thread that dials or answers by AT commands, negotiates, and
//! carries the packets of a TUN device.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration as StdDuration, Instant as StdInstant};

use os::OsError;
use os::netns::NetNs;
use os::poll::Clock;
use os::serial::{Got, Serial, Settings};
use os::tun::Tun;

use super::negotiation::{Negotiation, Role};
use super::{frame, protocol};

/// The name of the device.
pub const DEVICE: &str = "ppp0";
/// Between two looks at the line: a byte takes 4 ms at 2,400 bit/s.
const LOOK: StdDuration = StdDuration::from_millis(2);
/// Bytes on their way to the modem, above which the next packet waits in the device's queue.
const AHEAD: usize = 64;
const SETTINGS: Settings = Settings { speed: 115_200, hardware_flow: false };

/// What a line has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// CONNECT.
    Carrier,
    /// Packets may cross.
    Network,
    /// There is none, and why.
    Failed(&'static str),
}

/// One end. Dropped, it hangs up.
pub struct Line {
    steps: Receiver<(Step, StdInstant)>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Line {
    /// Starts one on the modem at `path`: with a number it dials, without it answers. Its device is
    /// in `host`, with this MTU.
    ///
    /// # Errors
    /// If there is no such modem or no device.
    pub fn start(
        host: &NetNs,
        path: &Path,
        number: Option<&str>,
        mtu: u16,
    ) -> Result<Line, OsError> {
        let serial = Serial::open(path, SETTINGS)?;
        let tun = host.run(|| Tun::open(DEVICE, mtu))?;
        let (tell, steps) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let role = if number.is_some() { Role::Caller } else { Role::Answerer };
        let mut end = End {
            serial,
            tun,
            role,
            heard: Vec::new(),
            out: Vec::new(),
            reader: frame::Reader::default(),
            negotiation: None,
            is_open: false,
            tell,
            clock: Clock::start(),
        };
        if let Some(number) = number {
            end.out.extend(format!("ATDT{number}\r").into_bytes());
        }
        let stop = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) && end.turn() {
                std::thread::sleep(LOOK);
            }
        });
        Ok(Line { steps, over, thread: Some(thread) })
    }

    /// Waits until the line has reached a step; when it did.
    ///
    /// # Errors
    /// If it failed, or `patience` is over.
    pub fn wait_for(&self, step: Step, patience: StdDuration) -> Result<StdInstant, String> {
        let until = StdInstant::now() + patience;
        loop {
            let left = until.saturating_duration_since(StdInstant::now());
            match self.steps.recv_timeout(left) {
                Ok((got, at)) if got == step => return Ok(at),
                Ok((Step::Failed(why), _)) => return Err(format!("no line: {why}")),
                Ok(_) => {}
                Err(_) => return Err(format!("no {step:?} within {} s", patience.as_secs())),
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct End {
    serial: Serial,
    tun: Tun,
    role: Role,
    /// What the modem says before there is carrier.
    heard: Vec<u8>,
    out: Vec<u8>,
    reader: frame::Reader,
    negotiation: Option<Negotiation>,
    is_open: bool,
    tell: Sender<(Step, StdInstant)>,
    clock: Clock,
}

impl End {
    /// Does what there is to do; false when the line is over.
    fn turn(&mut self) -> bool {
        let mut bytes = [0; 256];
        loop {
            match self.serial.read(&mut bytes) {
                Got::Bytes(n) if self.negotiation.is_none() => self.hear(&bytes[..n]),
                Got::Bytes(n) => self.receive(&bytes[..n]),
                Got::Nothing => break,
                Got::Gone => return self.fail("the modem is gone"),
            }
        }
        if !self.negotiate() {
            return self.fail("the other end does not agree");
        }
        self.send_packets();
        if !self.out.is_empty()
            && let Got::Bytes(n) = self.serial.write(&self.out)
        {
            self.out.drain(..n);
        }
        true
    }

    fn fail(&mut self, why: &'static str) -> bool {
        self.reach(Step::Failed(why));
        false
    }

    fn reach(&self, step: Step) {
        // Nobody may be waiting any more.
        let _ = self.tell.send((step, StdInstant::now()));
    }

    /// Words of the modem.
    fn hear(&mut self, bytes: &[u8]) {
        self.heard.extend(bytes);
        let said = |word: &str| self.heard.windows(word.len()).any(|w| w == word.as_bytes());
        if said("CONNECT") && self.heard.ends_with(b"\n") {
            self.reach(Step::Carrier);
            self.negotiation = Some(Negotiation::begin(self.clock.now(), self.role));
        } else if said("RING") && self.role == Role::Answerer {
            self.heard.clear();
            self.out.extend(b"ATA\r");
        } else if said("NO CARRIER") || said("BUSY") || said("ERROR") {
            self.reach(Step::Failed("the modem has no carrier"));
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        let now = self.clock.now();
        let (reader, tun, is_open) = (&mut self.reader, &self.tun, self.is_open);
        let Some(negotiation) = &mut self.negotiation else { return };
        reader.read(bytes, |protocol, content| match protocol {
            // What the kernel does not take is lost, as in any device.
            protocol::IP if is_open => drop(tun.write(content)),
            protocol::IP => {}
            _ => negotiation.handle(now, protocol, content),
        });
    }

    fn negotiate(&mut self) -> bool {
        let now = self.clock.now();
        let Some(negotiation) = &mut self.negotiation else { return true };
        negotiation.handle_timeout(now);
        while let Some((protocol, packet)) = negotiation.poll() {
            let short = negotiation.is_linked() && protocol != protocol::LCP;
            frame::write(protocol, &packet, short, &mut self.out);
        }
        if negotiation.is_open() && !self.is_open {
            self.is_open = true;
            self.reach(Step::Network);
        }
        self.negotiation.as_ref().is_none_or(|negotiation| !negotiation.has_failed())
    }

    fn send_packets(&mut self) {
        let mut packet = [0; 2_048];
        while self.is_open && self.out.len() + self.serial.unsent() < AHEAD {
            match self.tun.read(&mut packet) {
                // Only IPv4 was agreed on.
                Ok(n) if n > 0 && packet[0] >> 4 == 4 => {
                    frame::write(protocol::IP, &packet[..n], true, &mut self.out);
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}
