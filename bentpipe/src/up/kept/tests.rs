//! Usage by day and the log of outages, over restarts and damaged files.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant as StdInstant;
use std::{fs, thread};

use control::{UsageBytes, UsageReport};
use link::keys::PrivateKey;

use super::*;

/// A state directory that vanishes.
struct State(PathBuf);

impl State {
    fn new(name: &str) -> State {
        let dir = std::env::temp_dir().join(format!("bentpipe-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a directory");
        State(dir)
    }

    fn open(&self) -> Kept {
        let poller = Poller::new().expect("a poller");
        Kept::at(Some(&self.0), &key(), &[key()], &poller, 1).expect("a waker")
    }

    /// All files below it.
    fn files(&self) -> Vec<PathBuf> {
        let mut all = Vec::new();
        let mut dirs = vec![self.0.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).expect("a directory").flatten() {
                match entry.path() {
                    path if path.is_dir() => dirs.push(path),
                    path => all.push(path),
                }
            }
        }
        all
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key() -> PublicKey {
    *PrivateKey::from_bytes([7; 32]).public()
}

fn had(name: &str, host: u32, sent: u64) -> PeerUsage {
    let host = Some(std::net::IpAddr::from((0x0a00_0000 + host).to_be_bytes()));
    let bytes = UsageBytes { stream_bytes_sent: sent, ..UsageBytes::default() };
    PeerUsage { key: key(), name: name.to_owned(), hosts: vec![(host, bytes)], link: [sent / 2, 1] }
}

fn report(kept: &mut Kept, by: By, range: Range) -> UsageReport {
    assert!(kept.report(Asked { token: 5, serial: 6 }, by, range));
    next_report(kept)
}

fn next_report(kept: &mut Kept) -> UsageReport {
    let begin = StdInstant::now();
    loop {
        match kept.next_report() {
            Some((asked, Answer::Usage(report))) => {
                assert_eq!((asked.token, asked.serial), (5, 6));
                return *report;
            }
            Some((_, other)) => panic!("{other:?}"),
            None => thread::sleep(std::time::Duration::from_millis(1)),
        }
        assert!(begin.elapsed() < std::time::Duration::from_secs(30), "no report");
    }
}

/// CT-12, CT-13: they count on after an end in good order, and after none.
#[test]
fn usage_counts_on_over_restarts_and_only_its_owner_can_read_it() {
    let state = State::new("usage");
    let mut kept = state.open();
    kept.add(&had("ship", 1, 1_000));
    kept.add(&had("ship", 2, 10));
    kept.finish();
    let mut kept = state.open();
    let told = kept.add(&had("ship", 1, 500));
    let Event::Usage { hosts, total, .. } = told.event else { panic!("{told:?}") };
    assert_eq!(hosts[0].bytes.stream_bytes_sent, 1_500, "the day's sums: {hosts:?}");
    assert_eq!((total.of.as_str(), total.bytes.link_bytes_sent), ("ship", 755));
    kept.save(Instant::from_nanos(1));
    // As after kill -9: nothing is said at the end; what was given to the thread is waited for.
    let all = report(&mut kept, By::Host, Range::default());
    std::mem::forget(kept);
    let again = report(&mut state.open(), By::Host, Range::default());
    assert_eq!(again, all);
    let rows: Vec<_> = again.rows.iter().map(|r| (r.of.as_str(), r.bytes.bytes())).collect();
    assert_eq!(rows, [("10.0.0.1", 1_500), ("10.0.0.2", 10)]);
    assert_eq!((again.total.bytes(), again.total.link_bytes_received), (1_510, 3));
    let files = state.files();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        let mode = fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
}

/// A host without a clock of its own begins in the past, and is told the time a little later.
#[test]
fn a_clock_that_comes_right_after_the_start_takes_nothing_from_today() {
    let state = State::new("clock");
    let mut kept = state.open();
    kept.add(&had("ship", 1, 1_000));
    kept.finish();
    let mut kept = state.open();
    let today = kept.book.day();
    kept.book = Book::new(today - 3);
    kept.add(&had("ship", 1, 500));
    kept.finish();
    assert_eq!(report(&mut state.open(), By::Peer, Range::default()).total.bytes(), 1_500);
}

#[test]
fn a_day_that_ends_while_the_thread_is_busy_is_written_later() {
    let state = State::new("busy");
    let mut kept = state.open();
    let (today, usage) = (kept.book.day(), kept.files.as_ref().expect("files").usage.clone());
    // A report waits for a day that is a pipe, and behind it there is no room for anything.
    let pipe = usage.join(format!("{}.json", calendar::day(today - 9)));
    fs::create_dir_all(&usage).expect("a directory");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    assert!(kept.report(Asked { token: 5, serial: 6 }, By::Day, Range::default()));
    let mut pipe_end = fs::OpenOptions::new().write(true).open(&pipe).expect("it is read");
    while kept.keeper.give(Job::Prune(state.0.join("nothing"))) {}
    kept.book = Book::new(today - 1);
    kept.book.add(&had("ship", 1, 1_000));
    kept.add(&had("ship", 1, 10));
    assert!(kept.poll_timeout().is_some());
    fs::remove_file(&pipe).expect("a pipe");
    pipe_end.write_all(b"{}").expect("written");
    drop(pipe_end);
    next_report(&mut kept);
    while !kept.report(Asked { token: 5, serial: 6 }, By::Day, Range::default()) {
        thread::yield_now();
    }
    let sent = |report: UsageReport| report.rows.iter().map(|r| r.bytes.sent()).collect::<Vec<_>>();
    assert_eq!(sent(next_report(&mut kept)), [1_000, 10], "it is told from memory");
    kept.save(Instant::from_nanos(1));
    kept.finish();
    assert_eq!(sent(report(&mut state.open(), By::Day, Range::default())), [1_000, 10]);
}

#[test]
fn what_the_disk_refused_is_written_when_it_can_be() {
    let state = State::new("refused");
    let mut kept = state.open();
    let usage = kept.files.as_ref().expect("files").usage.clone();
    // Not even root makes a directory where a file is.
    fs::write(&usage, "").expect("a file");
    kept.add(&had("ship", 1, 1_000));
    kept.save(Instant::from_nanos(1));
    assert_eq!(report(&mut kept, By::Peer, Range::default()).total.bytes(), 1_000);
    fs::remove_file(&usage).expect("a file");
    kept.finish();
    assert_eq!(report(&mut state.open(), By::Peer, Range::default()).total.bytes(), 1_000);
}

/// Puts a file aside and a directory in its place, which not even root reads as a file.
struct Hidden(PathBuf);

impl Hidden {
    fn new(path: &Path) -> Hidden {
        fs::rename(path, path.with_extension("aside")).expect("a file");
        fs::create_dir(path).expect("a directory");
        Hidden(path.to_owned())
    }

    /// Nothing was done to it; the file is back.
    fn end(self) {
        fs::remove_dir(&self.0).expect("it is still there");
        fs::rename(self.0.with_extension("aside"), &self.0).expect("put back");
    }
}

#[test]
fn usage_that_cannot_be_read_is_never_written_over_and_counts_when_it_can_be() {
    let state = State::new("unread");
    let mut kept = state.open();
    kept.add(&had("ship", 1, 1_000));
    kept.finish();
    let today = kept.files.as_ref().expect("files").usage.join(kept.book.file_name());
    let hidden = Hidden::new(&today);
    let mut kept = state.open();
    kept.add(&had("ship", 1, 500));
    kept.save(Instant::from_nanos(1));
    assert!(kept.poll_timeout().is_some_and(|at| at > Instant::from_nanos(1)), "not all the time");
    let told = report(&mut kept, By::Peer, Range::default());
    assert_eq!((told.total.bytes(), told.unread), (500, vec![kept.book.day_name()]));
    hidden.end();
    kept.finish();
    let told = report(&mut state.open(), By::Peer, Range::default());
    assert_eq!((told.total.bytes(), told.unread.len()), (1_500, 0));

    // A day that is over is left as it is, and named.
    let hidden = Hidden::new(&today);
    let mut kept = state.open();
    kept.book = Book::new(kept.book.day() + 1);
    let told = report(&mut kept, By::Peer, Range::default());
    assert_eq!((told.total.bytes(), told.unread.len()), (0, 1));
    hidden.end();
    assert_eq!(report(&mut kept, By::Peer, Range::default()).total.bytes(), 1_500);
}

#[test]
fn outages_that_cannot_be_read_are_never_written_over_and_go_on_when_they_can_be() {
    let notice = |at_ms, event| Notice { at_ms, peer: Some("ship".to_owned()), event };
    let down = Event::LinkDown { cause: control::Cause::Closed };
    for unreadable in ["outages", "alive"] {
        let state = State::new(&format!("unread-{unreadable}"));
        let mut kept = state.open();
        kept.follow(&key(), &notice(5, down.clone()));
        kept.finish();
        let files = kept.files.as_ref().expect("files");
        let hidden = Hidden::new(match unreadable {
            "outages" => &files.outages,
            _ => &files.alive,
        });
        let mut kept = state.open();
        kept.follow(&key(), &notice(9, Event::LinkBack));
        kept.follow(&key(), &notice(12, down.clone()));
        let now = Instant::from_nanos(1) + SPACING;
        kept.save(now);
        assert!(kept.poll_timeout().is_some_and(|at| at > now), "not all the time");
        hidden.end();
        kept.finish();
        let log = state.open().log(Some("ship"));
        let told: Vec<_> = log.iter().map(|o| (o.began_ms, o.ended_ms)).collect();
        assert_eq!(told[..2], [(5, Some(9)), (12, None)], "{unreadable}: {log:?}");
        assert_eq!(log.len(), 4, "the gateway was stopped twice: {log:?}");
    }
}

#[test]
fn a_report_has_the_days_and_the_peer_that_it_was_asked_for() {
    let state = State::new("days");
    let mut kept = state.open();
    for day in [20_000, 20_001, 20_003] {
        kept.book = Book::new(day);
        kept.book.add(&had("ship", 1, day));
        kept.write_usage();
    }
    let of = |kept: &mut Kept, from: &str, to: &str, peer: &str| {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let range = Range::checked(some(from), some(to), some(peer)).expect("days");
        let report = report(kept, By::Day, range);
        report.rows.into_iter().map(|r| (r.of, r.bytes.sent())).collect::<Vec<_>>()
    };
    let names = [20_000, 20_001, 20_003].map(calendar::day);
    let told = of(&mut kept, "", "", "");
    assert_eq!(told.iter().map(|(day, _)| day.clone()).collect::<Vec<_>>(), names);
    assert_eq!(told.iter().map(|(_, sent)| *sent).collect::<Vec<_>>(), [20_000, 20_001, 20_003]);
    assert_eq!(of(&mut kept, &names[1], &names[1], "").len(), 1);
    assert_eq!(of(&mut kept, "", "", "nobody"), []);
    assert!(Range::checked(Some("today".into()), None, None).is_err_and(|e| e.contains("today")));
}

#[test]
fn a_scan_takes_no_more_rows_than_there_are_and_no_byte_from_the_sum() {
    let mut book = Book::new(1);
    book.add(&had("ship", 9_999_999, 1 << 40));
    for n in 0..5_000 {
        book.add(&had("ship", n, 60));
    }
    let report = usage::report(None, &[book.clone()], By::Host, &Range::default());
    assert!(report.rows.len() <= 2 * 1024 + 1, "{}", report.rows.len());
    let sum: u64 = report.rows.iter().map(|row| row.bytes.bytes()).sum();
    assert_eq!((sum, report.total.bytes()), ((1 << 40) + 5_000 * 60, sum));
    assert_eq!(report.rows.last().map(|row| row.of.as_str()), Some("other"));
    let text = serde_json::to_string(book.of_the_day()).expect("JSON");
    assert!(text.len() < 200_000, "{} bytes", text.len());
}

#[test]
fn a_damaged_file_is_put_aside_and_a_torn_one_never_comes_to_be() {
    let state = State::new("damaged");
    let mut kept = state.open();
    kept.add(&had("ship", 1, 1_000));
    kept.finish();
    let today = state.files().into_iter().find(|f| f.to_string_lossy().contains(".usage/"));
    let today = today.expect("a day");
    // A crash in the middle of a write leaves this beside it.
    fs::write(today.with_extension("new"), "{\"peers\":{\"x").expect("written");
    assert_eq!(report(&mut state.open(), By::Peer, Range::default()).total.bytes(), 1_000);
    fs::write(&today, "{\"peers\":{\"x").expect("written");
    assert_eq!(report(&mut state.open(), By::Peer, Range::default()).total.bytes(), 0);
    assert!(today.with_extension("damaged").exists());
}
