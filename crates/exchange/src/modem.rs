//! A modem's side towards its program: commands in, result codes out.

use std::collections::VecDeque;

use units::{Duration, Instant};

/// What a command line asks the exchange for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    Dial(String),
    Answer,
    HangUp,
    /// Back to the call.
    Online,
}

/// What the exchange answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Result {
    Ok,
    Connect(u64),
    Ring,
    NoCarrier,
    Error,
    NoDialtone,
    Busy,
    NoAnswer,
}

impl Result {
    fn words(self) -> (String, u8) {
        match self {
            Result::Ok => ("OK".into(), 0),
            Result::Connect(rate) => (format!("CONNECT {rate}"), 1),
            Result::Ring => ("RING".into(), 2),
            Result::NoCarrier => ("NO CARRIER".into(), 3),
            Result::Error => ("ERROR".into(), 4),
            Result::NoDialtone => ("NO DIALTONE".into(), 6),
            Result::Busy => ("BUSY".into(), 7),
            Result::NoAnswer => ("NO ANSWER".into(), 8),
        }
    }
}

/// The longest command line (ITU-T V.250 wants 40 at least).
const LONGEST: usize = 128;

/// One modem.
#[derive(Clone, Debug)]
pub(crate) struct Modem {
    echo: bool,
    words: bool,
    quiet: bool,
    registers: [u8; 64],
    line: Vec<u8>,
    /// What the program is to read.
    pub to_program: VecDeque<u8>,
    /// Escape: pluses seen, and when the last byte came.
    pluses: u8,
    last_byte: Instant,
    /// Data mode: what the program writes is data.
    pub data: bool,
}

impl Modem {
    pub fn new() -> Modem {
        let mut modem = Modem {
            echo: true,
            words: true,
            quiet: false,
            registers: [0; 64],
            line: Vec::new(),
            to_program: VecDeque::new(),
            pluses: 0,
            last_byte: Instant::ZERO,
            data: false,
        };
        modem.reset();
        modem
    }

    fn reset(&mut self) {
        (self.echo, self.words, self.quiet) = (true, true, false);
        self.registers = [0; 64];
        // Escape character, and its guard in fiftieths of a second.
        self.registers[2] = b'+';
        self.registers[12] = 50;
    }

    /// Rings after which it answers by itself; 0: never.
    pub fn rings(&self) -> u8 {
        self.registers[0]
    }

    fn guard(&self) -> Duration {
        Duration::from_millis(20 * u64::from(self.registers[12]))
    }

    pub fn say(&mut self, result: Result) {
        if self.quiet {
            return;
        }
        let (words, digit) = result.words();
        let text = if self.words { format!("\r\n{words}\r\n") } else { format!("{digit}\r") };
        self.to_program.extend(text.bytes());
    }

    /// A byte of a command; what the line that it ends asks for.
    pub fn command_byte(&mut self, byte: u8) -> Option<Ask> {
        if self.echo {
            self.to_program.push_back(byte);
        }
        match byte {
            b'\r' => {}
            8 => {
                self.line.pop();
                return None;
            }
            _ => {
                if self.line.len() < LONGEST && byte != b'\n' {
                    self.line.push(byte);
                }
                return None;
            }
        }
        let line = std::mem::take(&mut self.line);
        let text: String = line.iter().map(|b| char::from(*b).to_ascii_uppercase()).collect();
        let rest = &text[text.find("AT")? + 2..];
        match self.run(rest) {
            Ok(None) => {
                self.say(Result::Ok);
                None
            }
            Ok(ask) => ask,
            Err(()) => {
                self.say(Result::Error);
                None
            }
        }
    }

    /// Runs the commands of a line; the last may ask for something.
    fn run(&mut self, text: &str) -> std::result::Result<Option<Ask>, ()> {
        let text: String = text.chars().filter(|c| *c != ' ').collect();
        let mut rest = text.as_str();
        while let Some(command) = rest.chars().next() {
            rest = &rest[command.len_utf8()..];
            let digits =
                |t: &str| t.len() - t.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            match command {
                'D' => {
                    let number: String = rest.chars().filter(char::is_ascii_digit).collect();
                    return if number.is_empty() { Err(()) } else { Ok(Some(Ask::Dial(number))) };
                }
                'A' => return Ok(Some(Ask::Answer)),
                '&' | '%' | '\\' => {
                    let letter = rest.chars().next().filter(char::is_ascii_alphabetic).ok_or(())?;
                    rest = &rest[letter.len_utf8()..];
                    rest = &rest[digits(rest)..];
                }
                'S' => rest = self.register(rest)?,
                'Z' | 'E' | 'V' | 'Q' | 'H' | 'O' | 'X' | 'L' | 'M' | 'I' | 'N' | 'W' => {
                    let (value, after) = rest.split_at(digits(rest));
                    rest = after;
                    let value: u32 =
                        if value.is_empty() { 0 } else { value.parse().map_err(|_| ())? };
                    match command {
                        'Z' => self.reset(),
                        'E' => self.echo = value != 0,
                        'V' => self.words = value != 0,
                        'Q' => self.quiet = value != 0,
                        'H' if value == 0 => return Ok(Some(Ask::HangUp)),
                        'O' => return Ok(Some(Ask::Online)),
                        _ => {}
                    }
                }
                _ => return Err(()),
            }
        }
        Ok(None)
    }

    /// `7=60` sets a register, `7?` tells it.
    fn register<'a>(&mut self, text: &'a str) -> std::result::Result<&'a str, ()> {
        let digits = |t: &'a str| {
            let end = t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
            t.split_at(end)
        };
        let (number, rest) = digits(text);
        let number: usize = number.parse().map_err(|_| ())?;
        let register = self.registers.get_mut(number).ok_or(())?;
        if let Some(rest) = rest.strip_prefix('?') {
            let told = format!("\r\n{register:03}\r\n");
            self.to_program.extend(told.bytes());
            return Ok(rest);
        }
        let (value, rest) = digits(rest.strip_prefix('=').ok_or(())?);
        *register = value.parse().map_err(|_| ())?;
        Ok(rest)
    }

    /// Data mode begins.
    pub fn connect(&mut self, now: Instant, rate: u64) {
        self.say(Result::Connect(rate));
        self.online(now);
    }

    pub fn online(&mut self, now: Instant) {
        (self.data, self.pluses, self.last_byte) = (true, 0, now);
        self.line.clear();
    }

    /// A byte of data passes; it may be part of an escape.
    pub fn watch(&mut self, now: Instant, byte: u8) {
        let paused = now.since(self.last_byte) >= self.guard();
        self.last_byte = now;
        let plus = byte == self.registers[2] && self.registers[2] < 128;
        self.pluses = match (plus, self.pluses) {
            (true, 0) if paused => 1,
            (true, n @ 1..=2) if !paused => n + 1,
            _ => 0,
        };
    }

    /// When an escape will have been one, if nothing follows.
    pub fn escapes_at(&self) -> Option<Instant> {
        (self.data && self.pluses == 3).then(|| self.last_byte + self.guard())
    }

    /// The escape is whole: commands again, while the call goes on.
    pub fn escape(&mut self) {
        (self.data, self.pluses) = (false, 0);
        self.say(Result::Ok);
    }

    /// The call is over.
    pub fn hung_up(&mut self) {
        (self.data, self.pluses) = (false, 0);
        self.line.clear();
    }
}
