//! The ledger of a line on the disk: lines that are appended, and flushed before anything waits
//! for them. A thread writes, because disks may be slow.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dial::books::{Books, Name};
use link::keys::PublicKey;

use crate::state_directory::{state_directory, write_whole};

/// A ledger that has grown by so much is written anew in fewer lines.
const LONG: usize = 1 << 20;

/// Where lines go.
pub struct Ledger {
    parts: Option<Sender<Part>>,
    writer: Option<JoinHandle<()>>,
    /// Bytes of lines since it was written anew, or opened.
    grown: usize,
}

/// What is to be written.
enum Part {
    Line(String),
    /// In place of all that there is.
    Anew(Vec<u8>),
}

/// The file of a peer's line, in the state directory.
pub fn path(node: &PublicKey, peer: &PublicKey) -> Option<PathBuf> {
    // Base64 may hold a slash.
    let name = |key: &PublicKey| key.to_string().replace('/', "_");
    state_directory().map(|dir| dir.join(format!("{}.{}.ledger", name(node), name(peer))))
}

impl Ledger {
    /// The books as they were left, and where to go on writing them. Tells which carriers were up
    /// when the program ended.
    pub fn open(node: &PublicKey, peer: &PublicKey) -> (Books, Ledger, Vec<Name>) {
        let nowhere = Ledger { parts: None, writer: None, grown: 0 };
        let Some(path) = path(node, peer) else {
            crate::log!(Warn, "there is no state directory: the books are lost with the program");
            return (Books::new(), nowhere, Vec::new());
        };
        match Ledger::at(&path) {
            Ok(ledger) => ledger,
            Err(why) => {
                let file = path.display();
                crate::log!(Error, "the books cannot be kept", file = file, why = why);
                (Books::new(), nowhere, Vec::new())
            }
        }
    }

    fn at(path: &Path) -> io::Result<(Books, Ledger, Vec<Name>)> {
        let bytes = match fs::read(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let replay = Books::replay(&bytes);
        let mut books = replay.books;
        if replay.damaged > 0 {
            let file = path.display();
            let lines = replay.damaged;
            crate::log!(
                Warn,
                "damaged lines of the books were left out",
                file = file,
                lines = lines
            );
        }
        if replay.valid > LONG {
            write_whole(path, &books.compact())?;
        } else {
            open(path)?.set_len(replay.valid as u64)?;
        }
        let (parts, wanted) = channel();
        let mut file = LedgerFile { file: open(path)?, path: path.to_owned() };
        let writer =
            thread::Builder::new().name("ledger".into()).spawn(move || file.write(&wanted))?;
        let ledger = Ledger { parts: Some(parts), writer: Some(writer), grown: 0 };
        Ok((books, ledger, replay.broken))
    }

    /// Writes what the books have to say.
    pub fn keep(&mut self, books: &mut Books) {
        while let Some(line) = books.poll_record() {
            self.grown += line.len();
            self.send(Part::Line(line));
        }
        if self.grown > LONG {
            self.grown = 0;
            self.send(Part::Anew(books.compact()));
        }
    }

    fn send(&self, part: Part) {
        if let Some(parts) = &self.parts {
            let _ = parts.send(part);
        }
    }

    /// Waits until all is on the disk.
    pub fn finish(&mut self) {
        self.parts = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// What could not be written is tried again after so long.
const AGAIN: Duration = Duration::from_secs(10);

struct LedgerFile {
    file: File,
    path: PathBuf,
}

impl LedgerFile {
    /// Writes until nobody has more. What the disk refuses is kept, and tried again: it is bounded,
    /// because what the books say anew stands for all before.
    fn write(&mut self, wanted: &Receiver<Part>) {
        let (mut anew, mut text) = (None, String::new());
        let mut told = false;
        loop {
            let first = wanted.recv_timeout(AGAIN);
            let is_last = matches!(first, Err(RecvTimeoutError::Disconnected));
            for part in first.into_iter().chain(wanted.try_iter()) {
                match part {
                    Part::Line(line) => text += &line,
                    Part::Anew(bytes) => (anew, text) = (Some(bytes), String::new()),
                }
            }
            match self.write_parts(&mut anew, &mut text) {
                Ok(()) => told = false,
                Err(why) if is_last || !told => {
                    told = true;
                    let path = self.path.display();
                    crate::log!(Error, "the books cannot be written", file = path, why = why);
                }
                Err(_) => {}
            }
            if is_last {
                return;
            }
        }
    }

    fn write_parts(&mut self, anew: &mut Option<Vec<u8>>, text: &mut String) -> io::Result<()> {
        if let Some(bytes) = &anew {
            write_whole(&self.path, bytes)?;
            self.file = open(&self.path)?;
            *anew = None;
        }
        if !text.is_empty() {
            self.append(text)?;
            text.clear();
        }
        Ok(())
    }

    /// Writes all of it behind what there is, or nothing.
    fn append(&mut self, text: &str) -> io::Result<()> {
        let whole = self.file.metadata()?.len();
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        if written.is_err() {
            // A torn line would spoil the next one.
            let _ = self.file.set_len(whole);
        }
        written
    }
}

/// Opens the file for more lines; only its owner may read it.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_go_on_where_they_were_left_and_a_torn_line_is_cut_off() {
        let path = std::env::temp_dir().join(format!("bentpipe-ledger-{}", std::process::id()));
        let name: dial::books::Name = "shore".into();
        let currency = "USD".parse().expect("a currency");
        let fee = |books: &mut Books, month: u64| {
            let at = dial::calendar::Wall(month * 31 * 86_400);
            let price = "2.50".parse().expect("money");
            books.fee(at, &name, &"line".into(), currency, price);
        };
        for round in 1..=3u64 {
            let (mut books, mut ledger, _) = Ledger::at(&path).expect("a ledger");
            let sum = |books: &Books| {
                let lines = books.query(&dial::books::Query::all(dial::books::By::Peer));
                lines.iter().map(|l| l.sums.price.to_cents()).sum::<u64>()
            };
            assert_eq!(sum(&books), (round - 1) * 250);
            fee(&mut books, round);
            ledger.keep(&mut books);
            if round == 2 {
                // As after a megabyte of lines.
                ledger.grown = LONG + 1;
                ledger.keep(&mut books);
            }
            ledger.finish();
            // A power cut in the middle of a line.
            let mut file = OpenOptions::new().append(true).open(&path).expect("a file");
            file.write_all(b"half a li").expect("written");
        }
        fs::remove_file(&path).expect("it is there");
    }
}
