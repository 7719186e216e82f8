//! The ledger of a line on the disk: lines that are appended, and flushed before anything waits
//! for them. A thread writes, because disks may be slow.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use dial::books::{Books, Name};
use link::keys::PublicKey;
use units::{Duration, Instant};

use crate::human;
use crate::state_directory::{state_directory, write_whole};

/// A ledger that has grown by so much is written anew in fewer lines.
const LONG: usize = 1 << 20;

/// Where lines go.
pub struct Ledger {
    path: PathBuf,
    parts: Option<Sender<Part>>,
    /// The thread, and what tells that it has ended.
    writer: Option<(JoinHandle<()>, Receiver<()>)>,
    /// Bytes of lines since it was written anew, or opened.
    grown: usize,
    /// The file could not be read, and is asked again then: until what it has is known nothing is
    /// written over it.
    unread: Option<Instant>,
    trouble: Trouble,
}

/// Why the books cannot be written at the moment.
type Trouble = Arc<Mutex<Option<String>>>;

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

/// A file beside the ledger that tells that this line may be raised.
pub fn mark(node: &PublicKey, peer: &PublicKey, line: &Name) -> Option<PathBuf> {
    let line = line.replace('/', "_");
    path(node, peer).map(|ledger| ledger.with_extension(format!("{line}.raised")))
}

/// A file beside the ledger that tells which of the peer's lines are ordered to stay down.
pub fn orders(node: &PublicKey, peer: &PublicKey) -> Option<PathBuf> {
    path(node, peer).map(|ledger| ledger.with_extension("down.json"))
}

impl Ledger {
    /// The books as they were left, and where to go on writing them. Tells which carriers were up
    /// when the program ended. Where the file can be read and not written the books go on from
    /// it all the same, so that budgets hold.
    pub fn open(now: Instant, node: &PublicKey, peer: &PublicKey) -> (Books, Ledger, Vec<Name>) {
        match path(node, peer) {
            Some(path) => Ledger::at(now, &path),
            None => {
                crate::log!(
                    Warn,
                    "there is no state directory: the books are lost with the program"
                );
                let ledger = Ledger::nowhere(PathBuf::new());
                note(&ledger.trouble, Some("there is no state directory".to_owned()));
                (Books::new(), ledger, Vec::new())
            }
        }
    }

    fn nowhere(path: PathBuf) -> Ledger {
        let (parts, writer, unread, trouble) = (None, None, None, Trouble::default());
        Ledger { path, parts, writer, grown: 0, unread, trouble }
    }

    fn at(now: Instant, path: &Path) -> (Books, Ledger, Vec<Name>) {
        let mut ledger = Ledger::nowhere(path.to_owned());
        let bytes = match read(path) {
            Ok(bytes) => bytes,
            Err(why) => {
                let file = path.display();
                crate::log!(Error, "the books cannot be read", file = file, why = why);
                note(&ledger.trouble, Some(human::reason(&why)));
                ledger.unread = Some(now + READ_AGAIN);
                return (Books::new(), ledger, Vec::new());
            }
        };
        let replay = Books::replay(&bytes);
        let mut books = replay.books;
        warn_of_damage(path, replay.damaged);
        ledger.begin(replay.valid);
        if replay.valid > LONG {
            ledger.send(Part::Anew(books.compact()));
        }
        (books, ledger, replay.broken)
    }

    /// From now on a thread writes, behind so many bytes of the file.
    fn begin(&mut self, whole: usize) {
        let (parts, wanted) = channel();
        let (path, trouble) = (self.path.clone(), Trouble::clone(&self.trouble));
        let mut file = LedgerFile { file: None, path, whole: whole as u64, trouble };
        let thread = thread::Builder::new().name("ledger".into());
        let (ends, ended) = channel::<()>();
        let write = move || {
            let _ends = ends;
            file.write(&wanted);
        };
        match thread.spawn(write) {
            Ok(writer) => (self.parts, self.writer) = (Some(parts), Some((writer, ended))),
            Err(why) => {
                let file = self.path.display();
                crate::log!(Error, "the books cannot be written", file = file, why = why);
                note(&self.trouble, Some(human::reason(&why)));
            }
        }
    }

    /// Writes what the books have to say.
    pub fn keep(&mut self, now: Instant, books: &mut Books) {
        if self.unread.is_some() && !self.reads_late(now, books) {
            while books.poll_record().is_some() {}
            return;
        }
        while let Some(line) = books.poll_record() {
            self.grown += line.len();
            self.send(Part::Line(line));
        }
        if self.grown > LONG {
            self.grown = 0;
            self.send(Part::Anew(books.compact()));
        }
    }

    /// Can what could not be read at the start be read now? Then the books have it, too.
    fn reads_late(&mut self, now: Instant, books: &mut Books) -> bool {
        if self.unread.is_some_and(|again| now < again) {
            return false;
        }
        match read(&self.path) {
            Ok(bytes) => {
                warn_of_damage(&self.path, books.take_in(&bytes));
                self.unread = None;
                self.begin(bytes.len());
                self.send(Part::Anew(books.compact()));
            }
            Err(why) => {
                note(&self.trouble, Some(human::reason(&why)));
                self.unread = Some(now + READ_AGAIN);
            }
        }
        self.unread.is_none()
    }

    /// Why the books cannot be written at the moment; they are kept in memory meanwhile.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn send(&self, part: Part) {
        if let Some(parts) = &self.parts {
            let _ = parts.send(part);
        }
    }

    /// Waits until all is on the disk, or until the disk has not answered for a while.
    pub fn finish(&mut self) {
        self.parts = None;
        let Some((writer, ended)) = self.writer.take() else { return };
        // Nothing is ever sent: the channel ends with the thread.
        if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PATIENCE) {
            let file = self.path.display();
            crate::log!(
                Error,
                "the disk does not answer: the last of the books may be lost",
                file = file
            );
            return;
        }
        let _ = writer.join();
    }
}

/// The end waits so long for a disk.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
/// What could not be written is tried again after so long.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(10);
/// The same of what could not be read.
const READ_AGAIN: Duration = Duration::from_secs(10);

struct LedgerFile {
    /// `None`: it is to be opened.
    file: Option<File>,
    path: PathBuf,
    /// Bytes of whole lines when it was read; what is behind them when it is first opened was torn.
    whole: u64,
    trouble: Trouble,
}

/// What the disk does not have yet.
#[derive(Default)]
struct Unwritten {
    /// Lines from before `anew`, which need not be written once that is.
    text: String,
    /// All that the books said until then.
    anew: Option<Vec<u8>>,
    /// Lines since then.
    since: String,
    /// So many bytes of these are behind the old file already.
    appended: usize,
}

impl Unwritten {
    fn add(&mut self, part: Part) {
        match part {
            Part::Line(line) if self.anew.is_some() => self.since += &line,
            Part::Line(line) => self.text += &line,
            Part::Anew(bytes) => {
                self.text += &self.since[self.appended..];
                // What was refused for so long may be given up: it is in what is written anew.
                if self.text.len() > LONG {
                    self.text.clear();
                }
                (self.anew, self.since, self.appended) = (Some(bytes), String::new(), 0);
            }
        }
    }
}

impl LedgerFile {
    /// Writes until nobody has more. What the disk refuses is kept, and tried again, after a while
    /// and with each line that follows: it is bounded, because what the books say anew stands for
    /// all before.
    fn write(&mut self, wanted: &Receiver<Part>) {
        let mut unwritten = Unwritten::default();
        let mut told = false;
        let mut first = wanted.try_recv().map_err(|why| match why {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        });
        loop {
            let is_last = matches!(first, Err(RecvTimeoutError::Disconnected));
            for part in first.into_iter().chain(wanted.try_iter()) {
                unwritten.add(part);
            }
            let result = self.write_parts(&mut unwritten);
            note(&self.trouble, result.as_ref().err().map(human::reason));
            match result {
                Ok(()) if told => {
                    told = false;
                    let path = self.path.display();
                    crate::log!(Info, "the books are written again", file = path);
                }
                Ok(()) => {}
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
            first = wanted.recv_timeout(AGAIN);
        }
    }

    /// Where all of the books find no room lines may: those go behind the old file meanwhile.
    fn write_parts(&mut self, unwritten: &mut Unwritten) -> io::Result<()> {
        let mut anew = Ok(());
        if let Some(bytes) = &unwritten.anew {
            anew = write_whole(&self.path, bytes);
            if anew.is_ok() {
                (self.file, self.whole) = (None, bytes.len() as u64);
                let text = std::mem::take(&mut unwritten.since);
                *unwritten = Unwritten { text, ..Unwritten::default() };
            }
        }
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let file = open(&self.path)?;
                if file.metadata()?.len() > self.whole {
                    file.set_len(self.whole)?;
                }
                file
            }
        };
        let file = self.file.insert(file);
        append(file, &unwritten.text)?;
        unwritten.text.clear();
        append(file, &unwritten.since[unwritten.appended..])?;
        unwritten.appended = unwritten.since.len();
        anew
    }
}

/// Writes all of it behind what there is, or nothing.
fn append(file: &mut File, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let whole = file.metadata()?.len();
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
    if written.is_err() {
        // A torn line would spoil the next one.
        let _ = file.set_len(whole);
    }
    written
}

fn note(trouble: &Trouble, why: Option<String>) {
    *trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
}

/// What the file has; nothing where there is none.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// Says that sums are short by so many lines.
pub fn warn_of_damage(path: &Path, lines: usize) {
    if lines > 0 {
        let file = path.display();
        crate::log!(Warn, "damaged lines of the books were left out", file = file, lines = lines);
    }
}

/// Opens the file for more lines; only its owner may read it.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2.50 for a month.
    fn fee(books: &mut Books, month: u64) {
        let at = dial::calendar::Wall(month * 31 * 86_400);
        let currency = "USD".parse().expect("a currency");
        books.fee(at, &"shore".into(), &"line".into(), currency, "2.50".parse().expect("money"));
    }

    fn sum(books: &Books) -> u64 {
        let lines = books.query(&dial::books::Query::all(dial::books::By::Peer));
        lines.iter().map(|l| l.sums.price.to_cents()).sum::<u64>()
    }

    fn on_disk(path: &Path) -> u64 {
        sum(&Books::replay(&fs::read(path).unwrap_or_default()).books)
    }

    /// Waits for what the thread does.
    fn wait_for(what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..500 {
            if is_so() {
                return;
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("{what}");
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = format!("bentpipe-ledger-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a directory");
        dir
    }

    #[test]
    fn what_could_not_be_written_from_the_start_on_is_written_when_it_can_be() {
        let dir = scratch("unwritable");
        // Not even root writes into a directory that is not there.
        let path = dir.join("later").join("ship.ledger");
        let (mut books, mut ledger, _) = Ledger::at(Instant::ZERO, &path);
        wait_for("it is told", || ledger.trouble().is_some());
        fee(&mut books, 1);
        ledger.keep(Instant::ZERO, &mut books);
        wait_for("it is still told", || ledger.trouble().is_some());
        assert_eq!((sum(&books), on_disk(&path)), (250, 0), "the books go on in memory");
        fs::create_dir(dir.join("later")).expect("made");
        fee(&mut books, 2);
        ledger.keep(Instant::ZERO, &mut books);
        wait_for("all is written", || on_disk(&path) == 500);
        wait_for("nothing is told", || ledger.trouble().is_none());
        ledger.finish();
        fs::remove_dir_all(&dir).expect("it is there");
    }

    #[test]
    fn lines_are_written_where_all_of_the_books_find_no_room() {
        let dir = scratch("full");
        let path = dir.join("ship.ledger");
        let (mut books, mut ledger, _) = Ledger::at(Instant::ZERO, &path);
        fee(&mut books, 1);
        ledger.keep(Instant::ZERO, &mut books);
        wait_for("it is there", || on_disk(&path) == 250);
        // A disk that is full for a whole file: its name is a directory's that is not empty.
        let beside = path.with_extension("new");
        fs::create_dir_all(beside.join("not empty")).expect("in the way");
        for month in 2..=3 {
            fee(&mut books, month);
            ledger.grown = LONG + 1;
            ledger.keep(Instant::ZERO, &mut books);
        }
        fee(&mut books, 4);
        ledger.keep(Instant::ZERO, &mut books);
        wait_for("the lines are there", || on_disk(&path) == 1000);
        assert!(ledger.trouble().is_some(), "it is told");
        fs::remove_dir_all(&beside).expect("out of the way");
        fee(&mut books, 5);
        ledger.keep(Instant::ZERO, &mut books);
        wait_for("nothing is told", || ledger.trouble().is_none());
        ledger.finish();
        assert_eq!(on_disk(&path), 1250, "each once");
        fs::remove_dir_all(&dir).expect("it is there");
    }

    #[test]
    fn books_that_cannot_be_read_at_the_start_are_taken_in_later_and_never_written_over() {
        let dir = scratch("unreadable");
        let (path, aside) = (dir.join("ship.ledger"), dir.join("aside"));
        let (mut books, mut ledger, _) = Ledger::at(Instant::ZERO, &path);
        fee(&mut books, 1);
        ledger.keep(Instant::ZERO, &mut books);
        ledger.finish();
        // Not even root reads a directory as a file.
        fs::rename(&path, &aside).and_then(|()| fs::create_dir(&path)).expect("put aside");
        let (mut books, mut ledger, _) = Ledger::at(Instant::ZERO, &path);
        assert!(ledger.trouble().is_some());
        fee(&mut books, 2);
        ledger.keep(Instant::ZERO, &mut books);
        fs::remove_dir(&path).and_then(|()| fs::rename(&aside, &path)).expect("put back");
        ledger.keep(Instant::ZERO + READ_AGAIN, &mut books);
        assert_eq!(sum(&books), 500);
        ledger.finish();
        assert_eq!((on_disk(&path), ledger.trouble()), (500, None));
        fs::remove_dir_all(&dir).expect("it is there");
    }

    #[test]
    fn books_go_on_where_they_were_left_and_a_torn_line_is_cut_off() {
        let path = std::env::temp_dir().join(format!("bentpipe-ledger-{}", std::process::id()));
        for round in 1..=3u64 {
            let (mut books, mut ledger, _) = Ledger::at(Instant::ZERO, &path);
            assert_eq!(sum(&books), (round - 1) * 250);
            fee(&mut books, round);
            ledger.keep(Instant::ZERO, &mut books);
            if round == 2 {
                // As after a megabyte of lines.
                ledger.grown = LONG + 1;
                ledger.keep(Instant::ZERO, &mut books);
            }
            ledger.finish();
            // A power cut in the middle of a line.
            let mut file = OpenOptions::new().append(true).open(&path).expect("a file");
            file.write_all(b"half a li").expect("written");
        }
        fs::remove_file(&path).expect("it is there");
    }
}
