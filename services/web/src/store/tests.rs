//! What the store leaves of a disk to what is not whole yet.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bentpipe_web::cache::record::PIECE;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH};
use http::{HeaderValue, Request, StatusCode};
use tokio::task::LocalSet;

use super::*;

const LIMIT: u64 = 2 << 20;

/// Answers of this size are on disk alone.
const LENGTH: usize = (LIMIT / PART) as usize;

fn ship() -> Holder {
    Holder::Host([10, 1, 0, 2].into())
}

fn evil() -> Holder {
    Holder::Host([10, 1, 0, 3].into())
}

fn asked(store: &Store, n: usize) -> Asked {
    let uri = format!("http://a.test/{n}").parse().unwrap();
    let key = Key::new("far", "10.2.0.2:80".parse().unwrap(), &uri);
    Asked::of(&Request::new(()), &key, true, store.now()).unwrap()
}

/// An answer of which so many bytes have come.
fn begun(store: &Rc<Store>, n: usize, length: usize) -> Keep {
    begun_for(ship(), store, n, length)
}

fn begun_for(holder: Holder, store: &Rc<Store>, n: usize, length: usize) -> Keep {
    let asked = asked(store, n);
    let mut answer = http::HeaderMap::new();
    answer.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    let stored = bentpipe_web::cache::keep(&asked, StatusCode::OK, &answer, store.now()).unwrap();
    let mut keep = store.begin(&asked, stored, holder).unwrap();
    for at in (0..length).step_by(64 << 10) {
        keep.append(&Bytes::from(vec![n as u8; (length - at).min(64 << 10)]));
    }
    keep
}

/// Waits until it is so; the thread that writes has told everything then.
async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Bytes of files that are not whole.
fn unfinished(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let files = files.filter(|file| file.file_name().to_str().unwrap().starts_with("new-"));
    // One may be removed meanwhile.
    files.filter_map(|file| file.metadata().ok()).map(|it| it.len()).sum()
}

fn with_store(test: impl AsyncFnOnce(&Path, &Rc<Store>)) {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let store = Store::open(Some(directory.path()), 1 << 20, LIMIT, Rc::default());
        until(|| store.files.borrow().is_some()).await;
        test(directory.path(), &store).await;
    });
}

#[test]
fn answers_that_never_end_take_a_part_of_the_disk_and_most_of_what_is_kept_remains() {
    with_store(async |directory, store| {
        for n in 0..7 {
            begun(store, n, LENGTH).finish();
            until(|| store.sizes().on_disk == n as u64 + 1).await;
        }
        let held: Vec<_> = (10..30).map(|n| begun(store, n, LENGTH - 1)).collect();
        // What is ordered behind all of it is written when the rest is.
        begun(store, 40, 1000).finish();
        until(|| store.index.borrow().has(asked(store, 40).key.digest())).await;
        let of_it = unfinished(directory);
        assert!(of_it <= LIMIT / 4, "{of_it} bytes of files that are not whole");
        assert!(of_it + store.sizes().disk_bytes <= LIMIT, "{of_it} beside what is kept");
        for n in 2..7 {
            assert!(store.find(&asked(store, n), &ship()).await.is_some(), "{n} was kept before");
        }
        assert!(store.find(&asked(store, 0), &ship()).await.is_none(), "the oldest gives way");
        // Nor do they keep others from the disk.
        begun(store, 41, LENGTH).finish();
        until(|| store.index.borrow().has(asked(store, 41).key.digest())).await;
        drop(held);
        // What has been given up leaves its room.
        for n in 50..60 {
            begun(store, n, LENGTH).finish();
            until(|| store.pending.borrow().is_empty()).await;
            assert!(store.find(&asked(store, n), &ship()).await.is_some(), "{n}");
        }
        assert_eq!(unfinished(directory), 0);
    });
}

#[test]
fn answers_of_one_host_that_never_end_take_neither_disk_nor_memory_from_another() {
    with_store(async |_, store| {
        let part = LENGTH - (LENGTH >> 2);
        let mut own = begun(store, 1, part);
        let held: Vec<_> = (10..30).map(|n| begun_for(evil(), store, n, LENGTH - 1)).collect();
        // It has not grown for longest.
        own.append(&Bytes::from(vec![1; LENGTH - part]));
        own.finish();
        assert!(store.has(asked(store, 1).key.digest()), "it is kept");
        // In memory, too.
        let short = 60 << 10;
        let more: Vec<_> = (30..60).map(|n| begun_for(evil(), store, n, short)).collect();
        begun(store, 2, short).finish();
        assert!(store.has(asked(store, 2).key.digest()), "it is kept");
        drop((held, more));
    });
}

/// Who breaks off what he asks for anew takes nothing from others.
#[test]
fn an_answer_is_replaced_when_the_new_one_has_come_whole() {
    with_store(async |_, store| {
        begun(store, 1, 1_000).finish();
        until(|| store.pending.borrow().is_empty()).await;
        let number =
            async || store.find(&asked(store, 1), &ship()).await.map(|found| found.stored.number);
        let old = store.find(&asked(store, 1), &ship()).await.unwrap();
        let anew = |length| {
            let mut keep = begun_for(evil(), store, 1, length);
            keep.replaces(&old.stored);
            keep
        };
        drop(anew(500));
        assert_eq!(number().await, Some(old.stored.number));
        anew(700).finish();
        until(|| store.pending.borrow().is_empty()).await;
        assert!(number().await.is_some_and(|number| number > old.stored.number));
        // One that cannot be kept is there in its place, too.
        let old = store.find(&asked(store, 1), &ship()).await.unwrap();
        let mut long = begun_for(evil(), store, 1, LENGTH + (64 << 10));
        long.replaces(&old.stored);
        long.finish();
        assert_eq!(number().await, None);
    });
}

#[test]
fn answers_for_one_host_displace_its_own_in_memory_and_on_disk_and_after_a_restart_nobodys() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let length = 16 << 10;
    let opened = async || {
        let store = Store::open(Some(directory.path()), 1 << 20, LIMIT, Rc::default());
        until(|| store.files.borrow().is_some()).await;
        store
    };
    LocalSet::new().block_on(&runtime, async {
        let store = opened().await;
        for n in 0..10 {
            begun(&store, n, length).finish();
            until(|| store.pending.borrow().is_empty()).await;
        }
        for n in 100..400 {
            begun_for(evil(), &store, n, length).finish();
            until(|| store.pending.borrow().is_empty()).await;
        }
        for n in 0..10 {
            let digest = asked(&store, n).key.digest();
            assert!(store.memory.borrow().has(digest), "{n} in memory");
            assert!(store.index.borrow().has(digest), "{n} on disk");
        }
        assert!(store.sizes().disk_bytes <= LIMIT && store.sizes().memory_bytes <= 1 << 20);
    });
    LocalSet::new().block_on(&runtime, async {
        let store = opened().await;
        assert!(store.find(&asked(&store, 0), &ship()).await.is_some());
        let before = store.sizes().on_disk;
        for n in 400..700 {
            begun_for(evil(), &store, n, length).finish();
            until(|| store.pending.borrow().is_empty()).await;
        }
        // Half of the disk was nobody's still, and one the other host's again.
        let left = store.index.borrow().all().filter(|place| place.number <= 400).count();
        assert!(left as u64 >= before / 2 - 1, "{left} of {before} are left");
        assert!(store.index.borrow().has(asked(&store, 0).key.digest()));
    });
}

/// An answer that is kept on disk, and no more in memory.
async fn on_disk(store: &Rc<Store>, n: usize) -> Asked {
    begun(store, n, 1000).finish();
    let asked = asked(store, n);
    let digest = asked.key.digest();
    until(|| store.index.borrow().has(digest)).await;
    let number = store.index.borrow().of_target(digest)[0].number;
    store.memory.borrow_mut().forget(digest, number);
    asked
}

#[test]
fn what_is_purged_while_it_is_on_its_way_is_not_kept() {
    with_store(async |_, store| {
        let (mut purged, mut other) = (begun(store, 1, 1000), begun(store, 2, 1000));
        store.purge(Some(asked(store, 1).key.uri_digest()));
        purged.finish();
        other.finish();
        assert!(!store.has(asked(store, 1).key.digest()));
        assert!(store.has(asked(store, 2).key.digest()));
        until(|| store.pending.borrow().is_empty()).await;
        assert!(store.find(&asked(store, 1), &ship()).await.is_none());
        assert!(store.find(&asked(store, 2), &ship()).await.is_some());
    });
}

#[test]
fn what_is_forgotten_while_its_file_is_read_is_not_found_again() {
    with_store(async |_, store| {
        let asked = on_disk(store, 1).await;
        let ship = ship();
        let mut finding = Box::pin(store.find(&asked, &ship));
        let polled = poll_fn(|context| Poll::Ready(finding.as_mut().poll(context))).await;
        assert!(polled.is_pending(), "its file is read");
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.forget_target(&asked.key);
        drop(finding.await);
        assert!(store.find(&asked, &ship).await.is_none());
        assert!(!store.has(asked.key.digest()));
    });
}

#[test]
fn what_is_forgotten_while_it_is_validated_is_given_once_and_not_kept() {
    with_store(async |_, store| {
        let asked = on_disk(store, 1).await;
        let found = store.find(&asked, &ship()).await.expect("it is kept");
        store.forget_target(&asked.key);
        let mut fields = http::HeaderMap::new();
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
        let fresh = store.holds(&asked, &found, &fields);
        assert_eq!(fresh.stored.length, 1000);
        assert!(store.find(&asked, &ship()).await.is_none());
        // What is still kept, in memory or on its way to the disk, holds again.
        for n in 2..4 {
            let mut keep = begun(store, n, 1000);
            keep.finish();
            let asked = self::asked(store, n);
            let digest = asked.key.digest();
            if n == 3 {
                until(|| store.index.borrow().has(digest)).await;
            }
            let found = store.find(&asked, &ship()).await.expect("it is kept");
            store.memory.borrow_mut().forget(digest, found.stored.number);
            store.holds(&asked, &found, &fields);
            assert!(store.memory.borrow().has(digest), "{n}");
        }
    });
}

#[test]
fn what_has_more_pieces_than_its_file_can_tell_is_not_begun() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(Some(directory.path()), 1 << 20, 1 << 40, Rc::default());
        until(|| store.files.borrow().is_some()).await;
        let begins = |length: u64| {
            let asked = asked(&store, 1);
            let mut answer = http::HeaderMap::new();
            answer.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
            answer.insert(CONTENT_LENGTH, length.into());
            let stored = bentpipe_web::cache::keep(&asked, StatusCode::OK, &answer, store.now());
            let stored = stored.unwrap();
            store.begin(&asked, stored.clone(), ship()).map(|_| stored)
        };
        let mut stored = begins(700 << 20).expect("it has room");
        stored.fields.insert("x-long", "x".repeat(60 << 10).parse().unwrap());
        let record = |length: u64| {
            let checks = vec![0; length.div_ceil(PIECE as u64) as usize];
            Record { stored: stored.clone(), checks }.encode(store.now())
        };
        assert!(record(store.largest).is_some());
        assert!(record(2 << 30).is_none() && begins(2 << 30).is_none());
    });
}
