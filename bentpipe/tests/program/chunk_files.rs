//! The chunk store on real files: programs that are killed while they write, a file system
//! that is full, bytes that rot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use bentpipe::chunk_files::ChunkFiles;
use squeeze::dedup::{Dedup, ItemDecoder, ItemEncoder, Keys, Limits, Scope, Shown, Store};
use units::{Instant, Rng};

/// Where the process that is to be killed, or to fill its disk, works.
const DIR: &str = "BENTPIPE_TEST_CHUNKS";

fn limits() -> Limits {
    Limits { memory: 200_000, disk: 64 << 20, ..Limits::default() }
}

fn keys() -> Arc<Keys> {
    Arc::new(Keys::new(&[5; 32]))
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// A directory that is gone afterwards.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let name = format!("bentpipe-chunks-{}-{name}", std::process::id());
        let dir = Dir(std::env::temp_dir().join(name));
        fs::create_dir_all(&dir.0).expect("a directory");
        dir
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A link: a sender in memory, a receiver over files.
struct Link {
    near: Dedup,
    far: Dedup,
    files: ChunkFiles,
}

impl Link {
    fn open(dir: &Path, limits: &Limits) -> Link {
        let (files, far) = ChunkFiles::open(dir, &keys(), limits).expect("a store");
        let near = Dedup::new(keys(), Store::new(keys(), 0, 0, 1), limits);
        Link { near, far, files }
    }

    /// The receiver's program starts again.
    fn reopen(self, dir: &Path, limits: &Limits) -> Link {
        let Link { mut near, far, files } = self;
        drop((far, files));
        let (files, far) = ChunkFiles::open(dir, &keys(), limits).expect("a store");
        near.begin_session();
        Link { near, far, files }
    }

    fn exchange(&mut self) {
        loop {
            self.files.serve(&mut self.far);
            let mut message = Vec::new();
            if self.far.poll_message(true, &mut message) {
                self.near.handle_message(&message);
            } else if self.near.poll_message(true, &mut message) {
                self.far.handle_message(&message);
            } else {
                return;
            }
        }
    }

    /// Sends `content`, sees that it arrives, and answers what it cost.
    fn send(&mut self, content: &[u8]) -> usize {
        self.exchange();
        let mut encoder = ItemEncoder::new(&self.near.sender, Scope::Lan);
        let (mut decoder, mut wire, mut got) = (ItemDecoder::default(), Vec::new(), Vec::new());
        let (mut pushed, mut begin, mut cost) = (0, 0_u64, 0);
        while got.len() < content.len() {
            let n = encoder.room().min(content.len() - pushed).min(50_000);
            encoder.push(Instant::ZERO, &self.near.sender, &content[pushed..pushed + n]);
            pushed += n;
            if pushed == content.len() {
                encoder.finish();
            }
            let mut put = |bytes: &[u8]| wire.extend_from_slice(bytes);
            let terms = (1 << 20, 1 << 20);
            cost += encoder.pull(Instant::ZERO, &mut self.near.sender, terms, true, &mut put);
            encoder.written(begin + wire.len() as u64);
            let mut at = 0;
            loop {
                let rest = &wire[at..];
                let n = match decoder.show(&mut self.far.receiver, 1, &[rest]).expect("items") {
                    Shown::Head(n) => {
                        at += n;
                        continue;
                    }
                    Shown::Content(content) => {
                        got.extend_from_slice(content);
                        content.len()
                    }
                    Shown::AsItIs(n) if !rest.is_empty() => {
                        let n = (n as usize).min(rest.len());
                        got.extend_from_slice(&rest[..n]);
                        n
                    }
                    Shown::Waiting => {
                        // From disk it is there at once.
                        self.files.serve(&mut self.far);
                        match self.far.receiver.poll_ready() {
                            Some(_) => continue,
                            None => break,
                        }
                    }
                    Shown::AsItIs(_) | Shown::More => break,
                };
                at += decoder.took(&mut self.far.receiver, n);
            }
            wire.drain(..at);
            begin += at as u64;
            encoder.consumed(&mut self.near.sender, begin);
            self.exchange();
        }
        assert!(got == content, "what came is what was sent");
        encoder.close(&mut self.near.sender);
        decoder.close(&mut self.far.receiver, 1);
        self.exchange();
        cost
    }
}

/// Every file of the directory that is a segment's.
fn segment_files(dir: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).expect("the directory").flatten().map(|e| e.path());
    let mut files: Vec<PathBuf> = names
        .filter(|p| p.extension().is_some_and(|e| e == "data" || e == "index"))
        .filter(|p| p.file_stem().is_some_and(|s| s != "bad"))
        .collect();
    files.sort();
    files
}

#[test]
fn what_was_stored_is_there_after_a_restart_and_the_directory_has_one_owner() {
    let dir = Dir::new("restart");
    let content = random(3_000_000, 1);
    let mut link = Link::open(&dir.0, &limits());
    let first = link.send(&content);
    let refused = ChunkFiles::open(&dir.0, &keys(), &limits()).err().expect("somebody has it");
    let holder = format!("process {}, uses them", std::process::id());
    assert!(refused.to_string().contains(&holder), "{refused}");
    link.files.finish(&mut link.far);
    let held = link.far.receiver.store.len();
    let mut link = link.reopen(&dir.0, &limits());
    assert_eq!(link.far.receiver.store.len(), held);
    assert!(link.send(&content) * 50 < first);
    assert_eq!(link.far.receiver.asked(), 0);
    assert_eq!(link.files.failures().0, 0);
}

#[test]
fn a_sender_that_restarts_knows_what_the_peer_holds() {
    let (near_dir, far_dir) = (Dir::new("near"), Dir::new("far"));
    let content = random(1_000_000, 2);
    let mut link = Link::open(&far_dir.0, &limits());
    let (mut near_files, near) = ChunkFiles::open(&near_dir.0, &keys(), &limits()).expect("files");
    link.near = near;
    link.send(&content[..500_000]);
    near_files.save(&mut link.near);
    let first = link.send(&content);
    near_files.save(&mut link.near);
    drop(near_files);
    let (_files, near) = ChunkFiles::open(&near_dir.0, &keys(), &limits()).expect("files");
    link.near = near;
    link.far.begin_session();
    let again = link.send(&content);
    assert!(again * 30 < first, "{again} of {first}");
}

/// What the process does that is killed: it is no test of its own.
#[test]
fn a_writer_that_is_killed() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from).filter(|d| !d.join("full").exists())
    else {
        return;
    };
    let mut link = Link::open(&dir.join("far"), &limits());
    let near = ChunkFiles::open(&dir.join("near"), &keys(), &limits()).expect("files");
    let (mut near_files, near) = near;
    link.near = near;
    let parent = std::os::unix::process::parent_id();
    for n in 0.. {
        if std::os::unix::process::parent_id() != parent {
            return; // Nobody is left who would kill us.
        }
        link.send(&random(700_000, 1000 + n));
        near_files.save(&mut link.near);
        fs::write(dir.join("sent.new"), n.to_string()).expect("how far it came");
        fs::rename(dir.join("sent.new"), dir.join("sent")).expect("how far it came");
    }
}

fn child(dir: &Path, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]).env(DIR, dir);
    command
}

/// Kills a process that was not killed before.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_is_killed_while_it_writes_leaves_a_store_that_is_sound() {
    // L-DD-9
    let mut rng = Rng::new(std::process::id().into());
    for round in 0..6 {
        let dir = Dir::new(&format!("killed-{round}"));
        let mut command = child(&dir.0, "chunk_files::a_writer_that_is_killed");
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let victim = Victim(command.spawn().expect("a process"));
        let sent = || fs::read_to_string(dir.0.join("sent")).ok().and_then(|n| n.parse().ok());
        let mut waited = 0;
        while sent().is_none_or(|n: u64| n < 3) {
            std::thread::sleep(std::time::Duration::from_millis(5));
            waited += 1;
            assert!(waited < 12_000, "the writer writes");
        }
        std::thread::sleep(std::time::Duration::from_millis(rng.below(150)));
        drop(victim); // SIGKILL
        let mut link = Link::open(&dir.0.join("far"), &limits());
        let near = ChunkFiles::open(&dir.0.join("near"), &keys(), &limits()).expect("files");
        link.near = near.1;
        let store = &link.far.receiver.store;
        assert!(store.len() > 100, "what was written is found: {} chunks", store.len());
        assert_eq!(store.quarantined(), 0, "cut is not damaged");
        // What both find goes by reference and is what was stored; of the rest nobody speaks.
        let whole = 700_000;
        assert!(link.send(&random(whole, 1000)) * 30 < whole);
        let all: usize =
            (1..=sent().expect("a number")).map(|n| link.send(&random(whole, 1000 + n))).sum();
        assert!(all < 2 * whole, "no more than the last is lost: {all} bytes");
        assert_eq!(link.far.receiver.asked(), 0);
        assert_eq!(link.far.receiver.store.quarantined(), 0);
    }
}

#[test]
fn flipped_bytes_go_into_quarantine_and_nowhere_else() {
    // L-DD-7, L-DD-9
    let dir = Dir::new("flipped");
    let content = random(2_000_000, 3);
    let mut link = Link::open(&dir.0, &limits());
    let first = link.send(&content);
    let mut rng = Rng::new(7);
    for round in 0..12 {
        link.files.finish(&mut link.far);
        let mut files = segment_files(&dir.0);
        let path = files.swap_remove(rng.below(files.len() as u64) as usize);
        let mut bytes = fs::read(&path).expect("a file");
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        fs::write(&path, bytes).expect("the file");
        if round % 2 == 0 {
            link = link.reopen(&dir.0, &limits());
        }
        // Every byte that comes is right. What the damaged file held goes at once, also what
        // came of it before the damage was seen.
        link.send(&content);
        link.send(&content);
        assert!(link.send(&content) * 30 < first, "what was damaged is there again");
    }
    assert!(dir.0.join("bad.data").exists() && dir.0.join("bad.index").exists());
}

#[test]
fn files_that_vanish_or_are_no_files_cost_bytes_and_no_stream() {
    let dir = Dir::new("vanished");
    let content = random(2_000_000, 4);
    let mut link = Link::open(&dir.0, &limits());
    link.send(&content);
    link.files.finish(&mut link.far);
    for path in segment_files(&dir.0) {
        fs::remove_file(&path).expect("the file");
    }
    let mut link = link.reopen(&dir.0, &limits());
    assert!(link.send(&content) > content.len());
    for path in segment_files(&dir.0) {
        fs::remove_file(&path).expect("the file");
        fs::create_dir(&path).expect("a directory");
    }
    link.send(&content);
    assert!(link.files.failures().0 > 0 && link.files.failures().1.is_some());
    let mut link = link.reopen(&dir.0, &limits());
    link.send(&content);
}

#[test]
fn files_that_cannot_be_written_cost_none_of_the_others() {
    let dir = Dir::new("blocked");
    let limits = Limits { disk: 2 << 20, ..limits() };
    let content = random(800_000, 6);
    let mut link = Link::open(&dir.0, &limits);
    link.send(&content[..500_000]);
    link.files.finish(&mut link.far);
    let before = segment_files(&dir.0);
    let number = |p: &PathBuf| p.file_stem()?.to_str()?.parse::<u64>().ok();
    let last = before.iter().filter_map(number).max().expect("a segment");
    let blocks = [1, 2].map(|n| dir.0.join(format!("{}.data", last + n)));
    blocks.iter().for_each(|block| fs::create_dir(block).expect("a directory"));
    link.send(&content);
    link.files.finish(&mut link.far);
    assert!(link.files.failures().0 > 0);
    let after = segment_files(&dir.0);
    assert!(before.iter().all(|file| after.contains(file)), "{before:?} {after:?}");
    blocks.iter().for_each(|block| fs::remove_dir(block).expect("the directory"));
    link.files.finish(&mut link.far);
    let mut link = link.reopen(&dir.0, &limits);
    assert!(link.send(&content) * 30 < content.len());
    assert_eq!(link.far.receiver.asked(), 0, "all of it was written");
}

#[test]
fn a_full_file_system_costs_what_does_not_fit() {
    if let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) {
        return on_a_full_file_system(&dir.join("full"));
    }
    // A file system of 1 MB, in a mount namespace that goes with the process.
    let dir = Dir::new("full");
    fs::create_dir(dir.0.join("full")).expect("a directory");
    let program = std::env::current_exe().expect("this program");
    let script = "mount -t tmpfs -o size=1m none \"$1\" && exec \"$2\" --exact \
                  chunk_files::a_full_file_system_costs_what_does_not_fit --nocapture";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([dir.0.join("full").as_path(), program.as_path()])
        .env(DIR, &dir.0)
        .output()
        .expect("unshare(1)");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("the file system was full"));
}

fn on_a_full_file_system(dir: &Path) {
    let mut link = Link::open(dir, &limits());
    let small = random(60_000, 5);
    for n in 0..8 {
        link.send(&random(500_000, 50 + n)); // Four times what fits.
        link.send(&small);
        assert!(link.send(&small) * 10 < small.len(), "what is recent is there");
        if n == 4 {
            link = link.reopen(dir, &limits());
        }
    }
    let (failures, why) = link.files.failures();
    assert!(failures > 0, "the file system was full");
    assert_eq!(why.map(std::io::Error::kind), Some(std::io::ErrorKind::StorageFull));
    println!("the file system was full {failures} times");
}
