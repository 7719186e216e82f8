//! What a modem says: its result codes, in words and in digits.

use units::BitRate;

/// A line that a modem has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Ok,
    /// The carrier is there, at the rate if the modem tells it.
    Connect(Option<BitRate>),
    Ring,
    NoCarrier,
    Error,
    NoDialtone,
    Busy,
    NoAnswer,
    /// The modem refuses the number for a while, as the law of many countries wants it.
    Delayed,
    /// Progress (`RINGING`, `CARRIER`, `PROTOCOL`, caller's number …): nothing follows from it.
    Progress,
    /// Nothing that a modem says.
    Unknown,
}

/// Reads a line without its end. Digits are the answers of modems that keep to `V0`.
pub(super) fn read(line: &str) -> Word {
    let line = line.trim().to_ascii_uppercase();
    if let Some(rest) = line.strip_prefix("CONNECT") {
        let rate = rest.trim().split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        return Word::Connect(rate.parse().ok().map(BitRate::from_bps));
    }
    match line.as_str() {
        "OK" | "0" => Word::Ok,
        "1" => Word::Connect(None),
        "RING" | "2" => Word::Ring,
        "NO CARRIER" | "3" => Word::NoCarrier,
        "ERROR" | "4" => Word::Error,
        "NO DIALTONE" | "NO DIAL TONE" | "6" => Word::NoDialtone,
        "BUSY" | "7" => Word::Busy,
        "NO ANSWER" | "8" => Word::NoAnswer,
        "DELAYED" | "BLACKLISTED" => Word::Delayed,
        _ => {
            const PROGRESS: [&str; 10] = [
                "RINGING",
                "CARRIER",
                "PROTOCOL",
                "COMPRESSION",
                "NMBR",
                "NAME",
                "DATE",
                "TIME",
                "+CRING",
                "+CLIP",
            ];
            let progress = PROGRESS.iter().any(|word| line.starts_with(word));
            if progress { Word::Progress } else { Word::Unknown }
        }
    }
}

/// The longest line that is kept; what is longer is no answer.
const LONGEST: usize = 120;

/// Cuts what a modem says into lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    line: Vec<u8>,
    too_long: bool,
}

impl Lines {
    /// Takes one byte; a line that it ends. Empty lines are none.
    pub fn take(&mut self, byte: u8) -> Option<String> {
        if byte == b'\r' || byte == b'\n' {
            let line = std::mem::take(&mut self.line);
            let too_long = std::mem::take(&mut self.too_long);
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            return (too_long || !text.is_empty()).then_some(text);
        }
        match self.line.len() < LONGEST {
            // Modems set to another parity set the eighth bit.
            true => self.line.push(byte & 0x7f),
            false => self.too_long = true,
        }
        None
    }

    pub fn clear(&mut self) {
        *self = Lines::default();
    }
}

/// Sees "NO CARRIER" on a line of its own in what is otherwise data, for lines that cannot tell
/// carrier.
#[derive(Clone, Debug, Default)]
pub(super) struct InBand {
    at: usize,
}

impl InBand {
    const SAYS: &[u8] = b"\r\nNO CARRIER\r\n";

    /// True when `byte` completes it.
    pub fn take(&mut self, byte: u8) -> bool {
        if byte != Self::SAYS[self.at] {
            // The text begins with the only "\r\n" that could begin it anew.
            self.at = usize::from(byte == Self::SAYS[0]);
            return false;
        }
        self.at += 1;
        let whole = self.at == Self::SAYS.len();
        if whole {
            self.at = 0;
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_in_words_and_in_digits() {
        let rate = |n| Word::Connect(Some(BitRate::from_bps(n)));
        for (line, word) in [
            ("OK", Word::Ok),
            ("0", Word::Ok),
            ("CONNECT", Word::Connect(None)),
            ("connect 2400", rate(2_400)),
            ("CONNECT 9600/V42BIS", rate(9_600)),
            ("NO DIALTONE", Word::NoDialtone),
            ("NO DIAL TONE", Word::NoDialtone),
            ("7", Word::Busy),
            ("RINGING", Word::Progress),
            ("RING", Word::Ring),
            ("xyzzy", Word::Unknown),
        ] {
            assert_eq!(read(line), word, "{line}");
        }
    }

    #[test]
    fn lines_end_however_the_modem_ends_them() {
        let mut lines = Lines::default();
        let said: Vec<String> =
            b"\r\nOK\r\n\n\rRING\rB\xd5SY\n".iter().filter_map(|b| lines.take(*b)).collect();
        assert_eq!(said, ["OK", "RING", "BUSY"]);
        let long: Vec<String> =
            [b'x'; 5_000].iter().chain(b"\rOK\r").filter_map(|b| lines.take(*b)).collect();
        assert_eq!((long.len(), long[0].len(), long[1].as_str()), (2, LONGEST, "OK"));
    }

    #[test]
    fn the_end_of_a_call_is_seen_among_data() {
        let sees = |data: &[u8]| {
            let mut band = InBand::default();
            data.iter().filter(|b| band.take(**b)).count()
        };
        assert_eq!(sees(b"data\r\nNO CARRIER\r\n"), 1);
        assert_eq!(sees(b"\r\r\nNO CARRIER\r\n"), 1);
        assert_eq!(sees(b"\r\nNO CARR\r\nNO CARRIER\r\n"), 1);
        assert_eq!(sees(b"NO CARRIER\r\n and no NO CARRIER\r\n"), 0);
    }
}
