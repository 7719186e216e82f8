//! What a service writes to its standard error, in the gateway's log.

use std::io::{ErrorKind, PipeReader, Read as _};

use units::{Duration, Instant};

/// The longest line that is logged.
const LINE: usize = 500;
/// Lines that are logged in a [`PERIOD`]; of those beyond the number alone.
const LINES: u32 = 50;
const PERIOD: Duration = Duration::from_secs(10);

/// The reading end of its pipe.
pub struct Words {
    pub pipe: PipeReader,
    /// The last line.
    pub last: Option<String>,
    line: Vec<u8>,
    since: Instant,
    lines: u32,
    lost: u64,
}

impl Words {
    pub fn new(pipe: PipeReader) -> Words {
        Words { pipe, last: None, line: Vec::new(), since: Instant::ZERO, lines: 0, lost: 0 }
    }

    /// Logs what is there; false at its end.
    pub fn hear(&mut self, now: Instant, name: &str) -> bool {
        let mut room = [0; 4096];
        // A turn's work; the poller tells of the rest.
        for _ in 0..8 {
            match self.pipe.read(&mut room) {
                Ok(0) => {
                    self.end_line(now, name);
                    return false;
                }
                Ok(n) => {
                    for byte in &room[..n] {
                        match byte {
                            b'\n' => self.end_line(now, name),
                            byte if self.line.len() < LINE => self.line.push(*byte),
                            _ => {}
                        }
                    }
                }
                Err(e) => {
                    return matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                }
            }
        }
        true
    }

    fn end_line(&mut self, now: Instant, name: &str) {
        if self.line.is_empty() {
            return;
        }
        let (level, line) = level_of(&self.line);
        let text = printable(line);
        self.line.clear();
        self.last = Some(text.clone());
        if now.since(self.since) >= PERIOD {
            if self.lost > 0 {
                crate::log!(Warn, "a service writes too much", service = name, lines = self.lost);
            }
            (self.since, self.lines, self.lost) = (now, 0, 0);
        }
        match self.lines < LINES {
            true => match level {
                Level::Error => crate::log!(Error, text, service = name),
                Level::Warn => crate::log!(Warn, text, service = name),
                Level::Debug => crate::log!(Debug, text, service = name),
                Level::Info => crate::log!(Info, text, service = name),
            },
            false => self.lost += 1,
        }
        self.lines = self.lines.saturating_add(1);
    }
}

/// How urgent a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// A line and its level: `<3>` and the like before it, as for systemd's journal (sd-daemon(3));
/// without such it is for who wants to know.
fn level_of(line: &[u8]) -> (Level, &[u8]) {
    let level = match line {
        [b'<', b'0'..=b'3', b'>', ..] => Level::Error,
        [b'<', b'4', b'>', ..] => Level::Warn,
        [b'<', b'5' | b'6', b'>', ..] => Level::Info,
        [b'<', b'7', b'>', ..] => Level::Debug,
        _ => return (Level::Info, line),
    };
    (level, &line[3..])
}

/// Without what a terminal would obey.
pub fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn what_a_terminal_would_obey_is_not_logged() {
        assert_eq!(printable(b"a\x1b[31mb\tc\xff"), "a?[31mb?c\u{fffd}");
    }

    #[test]
    fn a_line_may_say_how_urgent_it_is() {
        assert_eq!(level_of(b"<3>it is open"), (Level::Error, &b"it is open"[..]));
        assert_eq!(level_of(b"<4>soon"), (Level::Warn, &b"soon"[..]));
        assert_eq!(level_of(b"<7>"), (Level::Debug, &b""[..]));
        for plain in ["ready", "<8>no level", "<3 >no level", "<", ""] {
            assert_eq!(level_of(plain.as_bytes()), (Level::Info, plain.as_bytes()));
        }
    }

    #[test]
    fn long_and_many_lines_are_cut() {
        let (pipe, mut writer) = std::io::pipe().unwrap();
        os::poll::set_nonblocking(&pipe).unwrap();
        let mut words = Words::new(pipe);
        let now = Instant::ZERO + PERIOD;
        writer.write_all(&[b'x'; 5000]).unwrap();
        assert!(words.hear(now, "test"));
        assert_eq!(words.line.len(), LINE);
        for _ in 0..200 {
            writer.write_all(b"\nline").unwrap();
        }
        assert!(words.hear(now, "test"));
        assert_eq!(words.lost, 200 - u64::from(LINES));
        drop(writer);
        // A process that another test starts at this moment holds the pipe's end for a short while.
        let begin = std::time::Instant::now();
        while words.hear(now, "test") {
            assert!(begin.elapsed().as_secs() < 10, "the end");
            std::thread::yield_now();
        }
    }
}
