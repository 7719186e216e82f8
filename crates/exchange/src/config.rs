//! What an exchange is like.

use units::{BitRate, Duration, Ratio};

/// A line with its modem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineConfig {
    /// What people call it.
    pub name: String,
    /// Who dials this rings it. Lines with one number are a hunt group, in their order.
    pub number: String,
}

/// An exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExchangeConfig {
    /// Its lines.
    pub lines: Vec<LineConfig>,
    /// What a call carries: ten bits for each byte.
    pub rate: BitRate,
    /// From one modem to the other.
    pub delay: Duration,
    /// From the last digit until the far line rings.
    pub setup: Duration,
    /// From the answer until both modems have carrier.
    pub training: Duration,
    /// Between two rings.
    pub ring: Duration,
    /// A call that is not answered after so long has failed.
    pub no_answer: Duration,
    /// Bytes that a modem takes before they are on the line.
    pub buffer: usize,
    /// What goes wrong.
    pub faults: Faults,
}

/// What goes wrong, by chance.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// A number is engaged.
    pub busy: Ratio,
    /// There is no dial tone.
    pub no_dialtone: Ratio,
    /// The modems do not find each other.
    pub no_carrier: Ratio,
    /// A call drops after a time that is drawn evenly from these.
    pub drop: Option<(Duration, Duration)>,
    /// A byte begins a burst of noise.
    pub noise: Ratio,
    /// The longest such burst, in bytes.
    pub burst: u32,
    /// Modems take commands and do nothing, and say nothing.
    pub dumb: bool,
}

impl Default for ExchangeConfig {
    /// An Inmarsat Mini-M call: 2,400 bit/s, 997.5 ms, and 28.28 s until there is carrier.
    fn default() -> ExchangeConfig {
        ExchangeConfig {
            lines: Vec::new(),
            rate: BitRate::from_bps(2_400),
            delay: Duration::from_micros(997_500),
            setup: Duration::from_millis(6_800 + 11_010),
            training: Duration::from_millis(10_470),
            ring: Duration::from_secs(5),
            no_answer: Duration::from_secs(60),
            buffer: 256,
            faults: Faults { burst: 1, ..Faults::default() },
        }
    }
}

impl ExchangeConfig {
    /// What is wrong, with the mend.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.lines.len() < 2 {
            return Err("an exchange with less than two lines; give it two or more".into());
        }
        if self.rate.as_bps() == 0 {
            return Err("lines without a rate; give one, such as \"2400bit\"".into());
        }
        if self.buffer == 0 || self.ring == Duration::ZERO {
            return Err("modems without a buffer, or rings without a pause; give both".into());
        }
        for (at, line) in self.lines.iter().enumerate() {
            if self.lines[..at].iter().any(|l| l.name == line.name) {
                return Err(format!("two lines are called \"{}\"; rename one", line.name));
            }
            let digits = |c: char| c.is_ascii_digit();
            if line.number.is_empty() || !line.number.chars().all(digits) {
                return Err(format!(
                    "line \"{}\" has the number \"{}\"; write digits only",
                    line.name, line.number
                ));
            }
        }
        match self.faults.drop {
            Some((least, most)) if least > most => {
                Err("calls drop after a time whose least is above its most; swap them".into())
            }
            _ => Ok(()),
        }
    }
}
