//! A modem on a serial line, of `[peer.line]` (R-MODEM).

use std::path::PathBuf;

use crate::problem::Problem;
use crate::reader::{At, Section};

/// A modem on a serial line, of eight data bits without parity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SerialModem {
    /// Such as `/dev/ttyUSB0`.
    pub device: PathBuf,
    /// Bits per second between this machine and the modem.
    pub speed: u32,
    /// Sent to the modem before each call, in place of `ATZ`.
    pub init: Vec<String>,
    /// The numbers that are dialled, in turn; none: only the other end calls.
    pub numbers: Vec<String>,
    /// Calls that come in are answered.
    pub answer: bool,
    /// The modem says by RTS and CTS when it cannot take more.
    pub hardware_flow: bool,
}

const SPEEDS: [u64; 14] = [
    300, 600, 1_200, 2_400, 4_800, 9_600, 19_200, 38_400, 57_600, 115_200, 230_400, 460_800,
    921_600, 3_000_000,
];
/// What modems take in one line.
const MAX_COMMAND: usize = 80;
const MAX_COMMANDS: usize = 16;
/// Keys that are read only where there is a modem, and known everywhere.
const OF_MODEM: [&str; 3] = ["speed", "init", "hardware_flow"];

/// A modem that answers and never calls. `Err`: what was wrong is told.
pub(crate) fn read_answering(section: &mut Section<'_>) -> Result<SerialModem, ()> {
    section.know(OF_MODEM.into_iter());
    if !section.has("serial") {
        section.lacks("serial", "name its modem's device, as in serial = \"/dev/ttyUSB0\"");
        return Err(());
    }
    let device = section.get::<String>("serial").ok_or(())?;
    read_modem(section, device, Vec::new(), true)
}

/// `Err`: what was wrong is told.
pub(super) fn read(section: &mut Section<'_>) -> Result<Option<At<SerialModem>>, ()> {
    section.know(OF_MODEM.into_iter());
    let device = section.get::<String>("serial");
    let numbers = section.list::<String>("numbers").unwrap_or_default();
    let answer = section.get::<bool>("answer").is_some_and(|a| a.value);
    let wrong = |span, message: String, help: &str| {
        section.problems().add(Problem::at(span, message).help(help));
        Err(())
    };
    let Some(device) = device else {
        let alone = OF_MODEM.into_iter().chain(["numbers", "answer"]).find(|k| section.has(k));
        return match alone {
            None if !section.has("serial") => Ok(None),
            None => Err(()),
            Some(key) => wrong(
                section.span(),
                format!("{} has {key} and no modem", section.title()),
                "name its device, as in serial = \"/dev/ttyUSB0\"",
            ),
        };
    };
    for key in ["raise", "drop"] {
        if section.has(key) {
            let message = format!("{} has a modem and the command {key}", section.title());
            return wrong(section.span(), message, "leave one out: the modem raises and drops it");
        }
    }
    let span = device.span.clone();
    let modem = read_modem(section, device, numbers, answer)?;
    Ok(Some(At { value: modem, span }))
}

fn read_modem(
    section: &mut Section<'_>,
    device: At<String>,
    numbers: Vec<At<String>>,
    answer: bool,
) -> Result<SerialModem, ()> {
    let speed = section.number("speed", SPEEDS[0]..=SPEEDS[13], "bits per second");
    let init = section.list::<String>("init").unwrap_or_default();
    let hardware_flow = section.get::<bool>("hardware_flow").is_none_or(|on| on.value);
    let wrong = |span, message: String, help: &str| {
        section.problems().add(Problem::at(span, message).help(help));
        Err(())
    };
    if let Some(speed) = speed.as_ref().filter(|s| !SPEEDS.contains(&s.value)) {
        let message = format!("{} bit/s is no speed of a serial line", speed.value);
        return wrong(speed.span.clone(), message, "write one such as 9600, 57600 or 115200");
    }
    if numbers.is_empty() && !answer {
        let message = format!("{} neither calls nor answers", section.title());
        return wrong(device.span, message, "write numbers = [\"…\"], or answer = true");
    }
    let is_command = |text: &str| {
        let start = text.get(..2).is_some_and(|s| s.eq_ignore_ascii_case("AT"));
        start && text.len() <= MAX_COMMAND && text.bytes().all(|b| (b' '..0x7f).contains(&b))
    };
    let is_number = |text: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "+*#,!@-() ".contains(c);
        !text.is_empty() && text.len() <= MAX_COMMAND && text.chars().all(known)
    };
    if let Some(bad) = init.iter().find(|i| !is_command(&i.value)) {
        let message = format!("{:?} is no command of a modem", bad.value);
        return wrong(bad.span.clone(), message, "write one that begins with AT, as in \"AT&F\"");
    }
    if let Some(bad) = numbers.iter().find(|n| !is_number(&n.value)) {
        let message = format!("{:?} is no number that a modem dials", bad.value);
        return wrong(bad.span.clone(), message, "write digits, as in \"+881612345678\"");
    }
    if init.len().max(numbers.len()) > MAX_COMMANDS {
        let message =
            format!("{} has over {MAX_COMMANDS} numbers or init strings", section.title());
        return wrong(section.span(), message, "keep the best of them");
    }
    let values = |list: Vec<At<String>>| list.into_iter().map(|t| t.value).collect();
    Ok(SerialModem {
        device: device.value.into(),
        speed: speed.map_or(115_200, |s| s.value as u32),
        init: values(init),
        numbers: values(numbers),
        answer,
        hardware_flow,
    })
}
