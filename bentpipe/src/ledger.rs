//! The ledger of a line on the disk: lines that are appended, and flushed before anything waits
//! for them. A thread writes, because disks may be slow.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dial::books::Books;
use link::keys::PublicKey;

use crate::state_directory::state_directory;

/// A ledger that is longer is written anew in fewer lines at the start.
const LONG: usize = 1 << 20;

/// Where lines go.
pub struct Ledger {
    lines: Option<Sender<String>>,
    writer: Option<JoinHandle<()>>,
}

/// The file of a peer's line, in the state directory.
pub fn path(node: &PublicKey, peer: &PublicKey) -> Option<PathBuf> {
    // Base64 may hold a slash.
    let name = |key: &PublicKey| key.to_string().replace('/', "_");
    state_directory().map(|dir| dir.join(format!("{}.{}.ledger", name(node), name(peer))))
}

impl Ledger {
    /// The books as they were left, and where to go on writing them. Tells whether a call was under
    /// way when the program ended.
    pub fn open(node: &PublicKey, peer: &PublicKey) -> (Books, Ledger, bool) {
        let nowhere = Ledger { lines: None, writer: None };
        let Some(path) = path(node, peer) else {
            crate::log!(Warn, "there is no state directory: the books are lost with the program");
            return (Books::new(), nowhere, false);
        };
        match Ledger::at(&path) {
            Ok(ledger) => ledger,
            Err(why) => {
                let file = path.display();
                crate::log!(Error, "the books cannot be kept", file = file, why = why);
                (Books::new(), nowhere, false)
            }
        }
    }

    fn at(path: &Path) -> io::Result<(Books, Ledger, bool)> {
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
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        file.set_len(replay.valid as u64)?;
        if replay.valid > LONG {
            let beside = path.with_extension("new");
            let _ = fs::remove_file(&beside);
            let mut new =
                OpenOptions::new().append(true).create_new(true).mode(0o600).open(&beside)?;
            new.write_all(&books.compact())?;
            new.sync_all()?;
            fs::rename(&beside, path)?;
            File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
            file = new;
        }
        let (lines, wanted) = channel();
        let name = path.to_owned();
        let writer = thread::Builder::new()
            .name("ledger".into())
            .spawn(move || write(&file, &wanted, &name))?;
        let ledger = Ledger { lines: Some(lines), writer: Some(writer) };
        Ok((books, ledger, !replay.broken.is_empty()))
    }

    /// One line more.
    pub fn append(&self, line: String) {
        if let Some(lines) = &self.lines {
            let _ = lines.send(line);
        }
    }

    /// Waits until all is on the disk.
    pub fn finish(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// What could not be written is tried again after so long.
const AGAIN: Duration = Duration::from_secs(10);

fn write(file: &File, wanted: &Receiver<String>, path: &Path) {
    let mut whole = file.metadata().map_or(0, |about| about.len());
    let (mut text, mut told) = (String::new(), false);
    loop {
        match wanted.recv_timeout(AGAIN) {
            Ok(line) => text += &line,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if text.is_empty() => return,
            // The last try.
            Err(RecvTimeoutError::Disconnected) => {
                if let Err(why) = append(file, whole, &text) {
                    let path = path.display();
                    crate::log!(Error, "the books' last lines are lost", file = path, why = why);
                }
                return;
            }
        }
        text.extend(wanted.try_iter());
        if text.is_empty() {
            continue;
        }
        match append(file, whole, &text) {
            Ok(()) => {
                whole += text.len() as u64;
                text.clear();
                told = false;
            }
            Err(why) if !told => {
                told = true;
                let path = path.display();
                crate::log!(Error, "the books cannot be written now", file = path, why = why);
            }
            Err(_) => {}
        }
    }
}

/// Writes all of it behind the `whole` bytes of lines, or nothing.
fn append(mut file: &File, whole: u64, text: &str) -> io::Result<()> {
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
    if written.is_err() {
        // A torn line would spoil the next one.
        let _ = file.set_len(whole);
    }
    written
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
            while let Some(line) = books.poll_record() {
                ledger.append(line);
            }
            ledger.finish();
            // A power cut in the middle of a line.
            let mut file = OpenOptions::new().append(true).open(&path).expect("a file");
            file.write_all(b"half a li").expect("written");
        }
        fs::remove_file(&path).expect("it is there");
    }
}
