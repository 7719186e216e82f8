//! Answers in files: restarts, damage, and two processes.

use std::time::Duration;

use http::header::{CACHE_CONTROL, HeaderMap, HeaderValue};
use http::{Request, StatusCode, Uri};
use tempfile::TempDir;

use super::*;
use crate::cache::{Asked, Holder, Index, Key, Stored, keep};

fn now() -> Now {
    Now { steady: Duration::from_secs(1), calendar: Duration::from_secs(1_000) }
}

fn stored(n: u64) -> Stored {
    let uri: Uri = format!("http://a/{n}").parse().unwrap();
    let key = Key::new("far", "10.2.0.2:80".parse().unwrap(), &uri);
    let asked = Asked::of(&Request::new(()), &key, true, now()).unwrap();
    let fresh = HeaderValue::from_static("max-age=60");
    let fields = HeaderMap::from_iter([(CACHE_CONTROL, fresh)]);
    let mut stored = keep(&asked, StatusCode::OK, &fields, now()).unwrap();
    stored.number = n;
    stored
}

fn body(n: u64, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u64 * 31 + n * 7 + (i as u64 >> 8)) as u8).collect()
}

fn write(disk: &Disk, n: u64, length: usize) -> io::Result<Place> {
    let mut file = disk.begin(n)?;
    // In bits, as they come from a socket.
    for bit in body(n, length).chunks(10_000) {
        file.write_all(bit)?;
    }
    disk.finish(file, Record { stored: stored(n), checks: Vec::new() }, now())
}

fn read(disk: &Disk, place: &Place) -> io::Result<Vec<u8>> {
    let Loaded { record, body, file } = disk.load(place, now())?;
    assert_eq!(record.stored.key, stored(place.number).key);
    if let Some(body) = body {
        return Ok(body.to_vec());
    }
    let length = record.stored.length;
    let pieces = (0..record.checks.len()).map(|n| read_piece(&file, length, &record.checks, n));
    Ok(pieces.collect::<io::Result<Vec<_>>>()?.concat())
}

const LENGTHS: [usize; 7] = [0, 1, PIECE - 1, PIECE, PIECE + 1, SMALL as usize + 1, 1_000_000];

#[test]
fn answers_of_all_lengths_are_there_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let (disk, places) = Disk::open(dir.path()).unwrap();
    assert_eq!(places, []);
    let written: Vec<_> =
        (0..).zip(LENGTHS).map(|(n, length)| write(&disk, n, length).unwrap()).collect();
    drop(disk);
    let (disk, places) = Disk::open(dir.path()).unwrap();
    assert_eq!(places, written);
    for (place, length) in places.iter().zip(LENGTHS) {
        assert!(read(&disk, place).unwrap() == body(place.number, length), "{length}");
    }
    disk.remove(&places[0]).unwrap();
    disk.remove(&places[0]).unwrap();
    assert_eq!(disk.load(&places[0], now()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_file_that_was_not_finished_is_gone_after_a_restart_and_those_of_others_stay() {
    let dir = TempDir::new().unwrap();
    let (disk, _) = Disk::open(dir.path()).unwrap();
    let mut file = disk.begin(1).unwrap();
    file.write_all(&[1; 100]).unwrap();
    // As kill -9 would leave it.
    std::mem::forget(file);
    fs::write(dir.path().join("notes-of-mine"), "x").unwrap();
    fs::write(dir.path().join("1-2-3-4-5"), "x").unwrap();
    drop(disk);
    let (disk, places) = Disk::open(dir.path()).unwrap();
    assert_eq!(places, []);
    assert!(!dir.path().join("new-1").exists() && dir.path().join("notes-of-mine").exists());
    // One that is dropped removes itself.
    drop(disk.begin(2).unwrap());
    assert!(!dir.path().join("new-2").exists());
}

#[test]
fn whatever_byte_of_a_file_is_damaged_no_wrong_byte_is_given() {
    let dir = TempDir::new().unwrap();
    let (disk, _) = Disk::open(dir.path()).unwrap();
    for length in [300, SMALL as usize + 100] {
        let place = write(&disk, 1, length).unwrap();
        let path = disk.path(&place);
        let sound = fs::read(&path).unwrap();
        let body = body(1, length);
        let step = if length < 1000 { 1 } else { 997 };
        for at in (0..sound.len()).step_by(step) {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            let why = read(&disk, &place).expect_err("a damaged byte");
            assert_eq!(why.kind(), ErrorKind::InvalidData, "byte {at}");
        }
        for cut in (0..sound.len()).step_by(step) {
            fs::write(&path, &sound[..cut]).unwrap();
            assert!(read(&disk, &place).is_err(), "{cut} bytes");
        }
        fs::write(&path, &sound).unwrap();
        assert!(read(&disk, &place).unwrap() == body);
        disk.remove(&place).unwrap();
    }
    // A name that says what is not there.
    let place = Place { digest: 1, uri: 2, number: 3, length: 1 << 40 };
    fs::write(disk.path(&place), [0; 100]).unwrap();
    assert_eq!(disk.load(&place, now()).unwrap_err().kind(), ErrorKind::InvalidData);
    // The answer to something else, under this name.
    let place = write(&disk, 1, 10).unwrap();
    let other = Place { digest: place.digest + 1, ..place };
    fs::rename(disk.path(&place), disk.path(&other)).unwrap();
    assert_eq!(disk.load(&other, now()).unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn a_freshened_answer_has_its_body_and_its_file_does_not_grow_for_ever() {
    let dir = TempDir::new().unwrap();
    let (disk, _) = Disk::open(dir.path()).unwrap();
    let mut place = write(&disk, 1, 200_000).unwrap();
    for n in 0..1000 {
        let mut record = disk.load(&place, now()).unwrap().record;
        record.stored.fields.insert("x-times", n.into());
        let before = place;
        place = disk.freshen(place, &record, now()).unwrap();
        assert!(place.length < 200_000 + 2 * SLACK);
        if n == 3 {
            // As if it had been killed before the file had its new name.
            fs::rename(disk.path(&place), disk.path(&before)).unwrap();
            assert_eq!(disk.load(&before, now()).unwrap().record.stored.fields["x-times"], "2");
            fs::rename(disk.path(&before), disk.path(&place)).unwrap();
        }
    }
    assert_eq!(disk.load(&place, now()).unwrap().record.stored.fields["x-times"], "999");
    assert!(read(&disk, &place).unwrap() == body(1, 200_000));
    drop(disk);
    assert_eq!(Disk::open(dir.path()).unwrap().1, [place], "one file");
}

#[test]
fn two_processes_do_not_use_one_directory_at_once() {
    let dir = TempDir::new().unwrap();
    let (disk, _) = Disk::open(dir.path()).unwrap();
    let path = dir.path().to_owned();
    let second = std::thread::spawn(move || Disk::open(&path).map(|(_, places)| places));
    let place = write(&disk, 1, 10).unwrap();
    assert!(!second.is_finished());
    drop(disk);
    assert_eq!(second.join().unwrap().unwrap(), [place]);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let why = Disk::open(Path::new("/proc/nowhere")).unwrap_err();
    assert!(why.to_string().contains("/proc/nowhere"), "{why}");
}

#[test]
fn a_hundred_thousand_answers_are_known_without_opening_one() {
    let dir = TempDir::new().unwrap();
    let (disk, _) = Disk::open(dir.path()).unwrap();
    for n in 0..100_000u64 {
        // Whether there is something in them is not looked at.
        let place = Place { digest: u128::from(n) << 64, uri: n, number: n, length: 5_000 };
        File::create(disk.path(&place)).unwrap();
    }
    drop(disk);
    let begin = std::time::Instant::now();
    let (_disk, places) = Disk::open(dir.path()).unwrap();
    let mut index = Index::new(10 << 30);
    places.into_iter().for_each(|place| drop(index.insert(place, Holder::Nobody)));
    println!("100,000 answers are known after {:?}", begin.elapsed());
    assert_eq!(index.len(), 100_000);
}
