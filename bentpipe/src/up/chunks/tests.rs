//! Files that are slow, late, or not there, under a real store and its thread.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::thread;

use link::endpoint::{Endpoint, EndpointConfig};
use link::keys::PrivateKey;
use squeeze::dedup::{ItemDecoder, ItemEncoder, Scope, Shown};
use units::Rng;

use super::*;
use crate::chunk_files::ChunkFiles;
use crate::config::Config;
use crate::up::peers;

const LIMITS: Limits = Limits {
    memory: 50_000,
    disk: 64 << 20,
    sources: 1 << 20,
    assembling: 1 << 20,
    chunks: 1 << 14,
};

/// A receiver whose files the thread has, and who sends to it.
struct Link {
    relay: Relay,
    peer: PeerId,
    stores: ChunkStores,
    near: Dedup,
    now: Instant,
    /// The disk does not answer.
    blocked: bool,
}

/// A directory that goes with its test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Link {
    fn new(dir: &Path, near: Option<Dedup>) -> Link {
        let [own, other] = [7, 9].map(|n| PrivateKey::generate([n; 32]));
        let text = format!(
            "[node]\nprivate_key = \"{}\"\n[[peer]]\npublic_key = \"{}\"\n\
             link = {{ send = \"1Mbit\", receive = \"8Mbit\", delay = \"300ms\" }}\n",
            own.to_base64(),
            other.public()
        );
        let config = Config::parse(&text, Path::new("/")).unwrap_or_else(|_| panic!("{text}"));
        let mut relay = Relay::new(Endpoint::new(EndpointConfig {
            private_key: own.clone(),
            seed: [1; 32],
            hardware_aes: false,
            initiations_per_second: 100,
            key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
            fresh: None,
        }));
        let now = Instant::from_nanos(1);
        let known = peers::peer_config(&config.node, &config.peers[0], 1, None);
        let policy = peers::policy(&config.peers[0]);
        let peer = relay.add_peer(now, known, policy).expect("two keys");
        let place = ChunkPlace::find(Some(dir), true, own.public());
        let mut stores = ChunkStores::new(place).expect("a waker");
        stores.set_limits(LIMITS);
        stores.add(now, &mut relay, peer, other.public());
        let secret = relay.endpoint.chunk_secret(peer).expect("a peer");
        let keys = Arc::new(Keys::new(&secret));
        let new = || Dedup::new(keys.clone(), Store::new(keys.clone(), 0, 0, 1), &LIMITS);
        let near = near.unwrap_or_else(new);
        let mut link = Link { relay, peer, stores, near, now, blocked: false };
        link.until_open();
        link
    }

    /// The thread opens the files.
    fn until_open(&mut self) {
        for _ in 0..5_000 {
            if !self.is_opening() {
                return;
            }
            self.stores.work(self.now, &mut self.relay);
            thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("the files were not opened");
    }

    fn is_opening(&self) -> bool {
        self.stores.opening.contains_key(&self.peer)
    }

    fn has_store(&mut self) -> bool {
        let mut has = false;
        self.relay.serve_files(self.peer, |_| {
            has = true;
            false
        });
        has
    }

    /// Files have their turn, and time passes; not while a disk that answers is at work, so
    /// that it is never late on a machine that stands still.
    fn work(&mut self) {
        self.stores.busy.insert(self.peer);
        self.stores.work(self.now, &mut self.relay);
        if self.blocked || self.stores.asked.is_empty() {
            self.now += Duration::from_millis(1);
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }

    /// Sends `content`; answers how much of it came.
    fn send(&mut self, content: &[u8]) -> usize {
        let (mut encoder, mut decoder) =
            (ItemEncoder::new(&self.near.sender, Scope::Lan), ItemDecoder::default());
        let (mut wire, mut begin, mut pushed, mut got) = (Vec::new(), 0, 0, 0);
        for _ in 0..20_000 {
            let (near, now) = (&mut self.near, self.now);
            let n = encoder.room().min(content.len() - pushed);
            encoder.push(now, &near.sender, &content[pushed..pushed + n]);
            pushed += n;
            if pushed == content.len() {
                encoder.finish();
            }
            let room = (1 << 16, 1 << 20);
            encoder.pull(now, &mut near.sender, room, true, &mut |bytes| wire.extend(bytes));
            encoder.written(begin + wire.len() as u64);
            self.relay.serve_files(self.peer, |far| {
                let mut at = 0;
                loop {
                    let shown = decoder.show(&mut far.receiver, 1, &[&wire[at..]]);
                    let n = match shown.expect("items") {
                        Shown::Head(n) => {
                            at += n;
                            continue;
                        }
                        Shown::Content(shown) => shown.len(),
                        Shown::AsItIs(n) => (n as usize).min(wire.len() - at),
                        Shown::Waiting | Shown::More => 0,
                    };
                    if n == 0 {
                        break;
                    }
                    got += n;
                    at += decoder.took(&mut far.receiver, n);
                }
                wire.drain(..at);
                begin += at as u64;
                let mut message = Vec::new();
                while far.poll_message(true, &mut message) {
                    near.handle_message(&message);
                    message.clear();
                }
                while near.poll_message(true, &mut message) {
                    far.handle_message(&message);
                    message.clear();
                }
                while far.receiver.poll_ready().is_some() {}
                true
            });
            encoder.consumed(&mut self.near.sender, begin);
            self.work();
            if got == content.len() {
                break;
            }
        }
        encoder.close(&mut self.near.sender);
        self.relay.serve_files(self.peer, |far| {
            decoder.close(&mut far.receiver, 1);
            true
        });
        got
    }

    fn asked(&mut self) -> u64 {
        let mut asked = 0;
        self.relay.serve_files(self.peer, |far| {
            asked = far.receiver.asked();
            false
        });
        asked
    }
}

/// A file that cannot even be opened, as on a server that is gone: streams wait for a second
/// and then for the peer, and everything is as before when the disk answers again.
#[test]
fn a_disk_that_does_not_answer_holds_nobody_up() {
    let dir = std::env::temp_dir().join(format!("bentpipe-late-{}", std::process::id()));
    let scratch = Scratch(dir.clone());
    let mut link = Link::new(&dir, None);
    let mut content = vec![0; 1_000_000];
    Rng::new(1).fill(&mut content);
    assert_eq!(link.send(&content), content.len());
    assert_eq!(link.send(&content), content.len());
    assert_eq!(link.asked(), 0, "what was kept was found");
    // The next one finds all of it on disk, and has no file open.
    link.stores.finish(link.now, &mut link.relay).wait(std::time::Instant::now());
    let mut link = Link::new(&dir, Some(link.near));

    let mut pipes = Vec::new();
    for entry in walk(&dir).into_iter().filter(|p| p.extension().is_some_and(|e| e == "data")) {
        fs::remove_file(&entry).expect("a file");
        assert!(Command::new("mkfifo").arg(&entry).status().expect("mkfifo").success());
        pipes.push(entry);
    }
    assert!(!pipes.is_empty());
    link.blocked = true;
    assert_eq!(link.send(&content), content.len());
    assert!(link.asked() > 10, "the peer was asked for {}", link.asked());
    assert!(link.stores.late);

    let open = |pipe: &PathBuf| {
        let o_nonblock = 0o4000;
        OpenOptions::new().write(true).custom_flags(o_nonblock).open(pipe)
    };
    for _ in 0..10_000 {
        drop(pipes.iter().map(open).collect::<Vec<_>>());
        link.work();
        if !link.stores.late {
            break;
        }
    }
    assert!(!link.stores.late);
    assert_eq!(link.send(&content), content.len());
    drop(scratch);
}

/// A disk that hangs: what is to be opened behind it holds nobody up.
struct Hanging(PathBuf);

impl Hanging {
    /// The thread of `link` hangs in reading a peer's journal from now on.
    fn new(link: &mut Link, dir: &Path, key: &PublicKey) -> Hanging {
        link.stores.remove(link.now, &mut link.relay, link.peer);
        while !link.stores.asked.is_empty() {
            link.stores.work(link.now, &mut link.relay);
            thread::sleep(std::time::Duration::from_millis(1));
        }
        let own = *PrivateKey::generate([7; 32]).public();
        let names = dir.join(name(&own)).join(name(key)).join("names");
        let _ = fs::remove_file(&names);
        assert!(Command::new("mkfifo").arg(&names).status().expect("mkfifo").success());
        link.stores.add(link.now, &mut link.relay, link.peer, key);
        Hanging(names)
    }

    /// The disk answers again: the journal is empty.
    fn end(&self, link: &mut Link) {
        let o_nonblock = 0o4000;
        for _ in 0..5_000 {
            let mut pipe = OpenOptions::new();
            drop(pipe.write(true).custom_flags(o_nonblock).open(&self.0));
            link.stores.work(link.now, &mut link.relay);
            if !link.is_opening() {
                let _ = fs::remove_file(&self.0);
                return;
            }
            thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("the files were not opened");
    }
}

/// What a store holds is read by the thread, not by the loop.
#[test]
fn files_that_are_slow_to_open_hold_up_their_own_peer_and_that_not_for_ever() {
    let dir = std::env::temp_dir().join(format!("bentpipe-slow-{}", std::process::id()));
    let scratch = Scratch(dir.clone());
    let mut link = Link::new(&dir, None);
    let key = *PrivateKey::generate([9; 32]).public();
    let hanging = Hanging::new(&mut link, &dir, &key); // The loop goes on: it came back.
    let begin = link.now;
    link.stores.work(link.now, &mut link.relay);
    assert!(link.is_opening());
    assert_eq!(link.stores.opening_due(), Some(begin + OPENED));
    hanging.end(&mut link);
    assert!(link.has_store() && !link.stores.told_unusable);

    // A disk that does not answer at all.
    let hanging = Hanging::new(&mut link, &dir, &key);
    link.now = link.stores.opening_due().expect("it has an end");
    assert!(link.stores.poll_timeout().is_some_and(|at| at <= link.now));
    link.stores.work(link.now, &mut link.relay);
    assert!(!link.is_opening() && link.has_store(), "chunks are in memory");
    assert!(link.stores.told_unusable && link.stores.known.is_empty());
    let mut content = vec![0; 100_000];
    Rng::new(2).fill(&mut content);
    let secret = link.relay.endpoint.chunk_secret(link.peer).expect("a peer");
    let keys = Arc::new(Keys::new(&secret));
    link.near = Dedup::new(keys.clone(), Store::new(keys, 0, 0, 1), &LIMITS);
    assert_eq!(link.send(&content), content.len());
    let o_nonblock = 0o4000;
    while OpenOptions::new().write(true).custom_flags(o_nonblock).open(&hanging.0).is_err() {
        thread::sleep(std::time::Duration::from_millis(1));
    }
    drop(scratch);
}

/// The thread that closes the files of a peer that was taken out may not have come to it, and it
/// may be another shard's.
#[test]
fn a_peer_that_is_back_at_once_has_its_files_again() {
    let dir = std::env::temp_dir().join(format!("bentpipe-back-{}", std::process::id()));
    let mut link = Link::new(&dir, None);
    let key = *PrivateKey::generate([9; 32]).public();
    for _ in 0..3 {
        link.stores.remove(link.now, &mut link.relay, link.peer);
        link.stores.add(link.now, &mut link.relay, link.peer, &key);
        link.until_open();
        assert!(link.stores.known.contains_key(&link.peer), "it has none");
    }
    assert!(!link.stores.told_unusable, "something was wrong");
    // Another thread of this process takes its time to close them.
    link.stores.remove(link.now, &mut link.relay, link.peer);
    link.stores.add(link.now, &mut link.relay, link.peer, &key);
    link.until_open();
    let mut other = Link::new(&dir.join("other"), None);
    other.stores.place = link.stores.place.clone();
    other.stores.remove(other.now, &mut other.relay, other.peer);
    other.stores.add(other.now, &mut other.relay, other.peer, &key);
    for _ in 0..200 {
        other.stores.work(other.now, &mut other.relay);
        thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(other.is_opening(), "it waits");
    link.stores.remove(link.now, &mut link.relay, link.peer);
    other.until_open();
    assert!(other.stores.known.contains_key(&other.peer), "it has none");
    let _ = fs::remove_dir_all(&dir);
}

#[test]
fn files_are_in_time_again_although_something_is_asked_for_all_the_time() {
    let dir = std::env::temp_dir().join(format!("bentpipe-busy-{}", std::process::id()));
    let mut link = Link::new(&dir, None);
    link.now += Duration::from_secs(10);
    link.stores.set_late(&mut link.relay, true);
    let before = Instant::from_nanos(link.now.as_nanos() - CAUGHT_UP.as_nanos());
    link.stores.asked = [before, link.now].into();
    link.stores.work(link.now, &mut link.relay);
    assert!(link.stores.late);
    // The oldest has its answer.
    link.stores.asked.pop_front();
    link.stores.work(link.now, &mut link.relay);
    assert!(!link.stores.late && !link.stores.asked.is_empty());
    let _ = fs::remove_dir_all(&dir);
}

#[test]
fn what_was_told_of_other_things_does_not_keep_failures_from_being_told() {
    let dir = std::env::temp_dir().join(format!("bentpipe-told-{}", std::process::id()));
    let mut link = Link::new(&dir, None);
    let key = PrivateKey::generate([9; 32]);
    link.stores.remove(link.now, &mut link.relay, link.peer);
    link.stores.place.room = 0;
    link.stores.set_limits(Limits { disk: 0, ..LIMITS });
    link.stores.add(link.now, &mut link.relay, link.peer, key.public());
    assert!(link.stores.told_no_room);
    // Its directory is a file.
    link.stores.set_limits(LIMITS);
    link.stores.place.dir = Some(PathBuf::from("/dev/null"));
    link.stores.add(link.now, &mut link.relay, link.peer, key.public());
    link.until_open();
    assert!(link.stores.told_unusable);
    let begin = link.now;
    for (seconds, told) in [(0, true), (1, false), (599, false), (600, true), (601, false)] {
        let now = begin + Duration::from_secs(seconds);
        assert_eq!(is_due(&mut link.stores.failure_told, now), told, "after {seconds} s");
    }
    let _ = fs::remove_dir_all(&dir);
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(walk(&path)),
            path => found.push(path),
        }
    }
    found
}

#[test]
fn a_disk_that_is_full_leaves_the_stores_a_part_of_what_they_have() {
    assert_eq!(room(Some(0), 1 << 30), 1 << 28);
    assert_eq!(room(Some(3 << 30), 1 << 30), 1 << 30);
    assert_eq!(room(Some(u64::MAX), 1), u64::MAX / 4);
    assert_eq!(room(None, 1 << 30), 0, "files are in memory");
}

/// A key that is mistyped for a while costs no cache.
#[test]
fn chunks_of_a_peer_that_is_not_in_the_file_are_kept_for_thirty_days() {
    let dir = std::env::temp_dir().join(format!("bentpipe-unlisted-{}", std::process::id()));
    let dir = Scratch(dir);
    let [own, peer, off] = [7, 9, 11].map(|n| *PrivateKey::generate([n; 32]).public());
    let place = ChunkPlace::find(Some(&dir.0), true, &own);
    let [kept, dropped] = [peer, off].map(|key| dir.0.join(name(&own)).join(name(&key)));
    for store in [&kept, &dropped] {
        fs::create_dir_all(store).expect("a directory");
        fs::write(store.join("1.data"), "chunks").expect("a file");
    }
    // Where deduplication is switched off what there is goes at once.
    place.forget_others(&[], &[off], LEAST, 9000);
    assert!(kept.join("1.data").exists() && !dropped.exists());
    // Each day counts once, whatever day it is; without a clock all starts are on one.
    let starts = |days: std::ops::Range<u64>| {
        days.for_each(|day| place.forget_others(&[], &[], LEAST, day));
        kept.exists()
    };
    for _ in 0..40 {
        assert!(starts(0..1) && starts(9000..9001));
    }
    // A program that runs on counts as well.
    (9001..9028).for_each(|day| note_day(&place, day));
    assert!(starts(9028..9029), "29 others");
    // It is back, and gone again: the time begins anew.
    drop(ChunkFiles::open(&kept, &Arc::new(Keys::new(&[1; 32])), &LIMITS).expect("files"));
    assert!(!kept.join(UNLISTED).exists());
    note_day(&place, 9029);
    assert!(!kept.join(UNLISTED).exists(), "it is in the file");
    assert!(starts(9030..9060));
    place.forget_others(&[peer], &[], LEAST, 9060);
    assert!(kept.exists(), "it is in the file");
    assert!(!starts(9060..9061));
}

/// A mark of a version that went by the file's time, or by a clock that stood in 1970.
#[test]
fn a_mark_that_seems_to_be_old_takes_no_chunks() {
    let dir = std::env::temp_dir().join(format!("bentpipe-old-mark-{}", std::process::id()));
    let dir = Scratch(dir);
    let [own, peer] = [7, 9].map(|n| *PrivateKey::generate([n; 32]).public());
    let place = ChunkPlace::find(Some(&dir.0), true, &own);
    let store = dir.0.join(name(&own)).join(name(&peer));
    fs::create_dir_all(&store).expect("a directory");
    let mark = fs::File::create(store.join(UNLISTED)).expect("a mark");
    mark.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("a time");
    place.forget_others(&[], &[], LEAST, 9000);
    assert!(store.exists());
}

#[test]
fn files_go_where_a_peers_part_of_the_disk_is_of_no_use() {
    let dir = std::env::temp_dir().join(format!("bentpipe-no-room-{}", std::process::id()));
    let dir = Scratch(dir);
    let [own, peer] = [7, 9].map(|n| *PrivateKey::generate([n; 32]).public());
    let place = ChunkPlace::find(Some(&dir.0), true, &own);
    let store = dir.0.join(name(&own)).join(name(&peer));
    fs::create_dir_all(&store).expect("a directory");
    fs::write(store.join("1.data"), "chunks").expect("a file");
    place.forget_others(&[peer], &[], LEAST, 9000);
    assert!(store.join("1.data").exists());
    place.forget_others(&[peer], &[], LEAST - 1, 9000);
    assert!(!store.exists());
}
