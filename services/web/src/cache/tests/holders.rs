//! Whose answers give way.

use super::*;

fn host(n: u8) -> Holder {
    Holder::Host([10, 1, 0, n].into())
}

fn place(number: u64, length: u64) -> Place {
    Place { digest: number.into(), uri: 0, number, length }
}

fn has(index: &Index, numbers: std::ops::Range<u64>) -> usize {
    numbers.filter(|n| index.has((*n).into())).count()
}

#[test]
fn answers_for_one_host_displace_its_own_in_memory() {
    let mut memory = Memory::new(100_000);
    let mut keep = |n: u64, holder| {
        let asked = Asked { key: key(&format!("h{n}")), ..ask(&[], 1) };
        let fields = map(&[("cache-control", "max-age=60")]);
        let stored = super::keep(&asked, StatusCode::OK, &fields, at(1)).unwrap();
        let (stored, digest) = (Stored { number: n, ..stored }, asked.key.digest());
        memory.insert(digest, stored.into(), Bytes::from(vec![0; 1_000]), holder);
        assert!(memory.bytes() <= 100_000);
        memory.all().map(|(_, it)| it.number).collect::<Vec<_>>()
    };
    (0..10).for_each(|n| drop(keep(n, host(1))));
    let left = (100..1_000).map(|n| keep(n, host(2))).last().unwrap();
    assert_eq!(left.iter().filter(|n| **n < 10).count(), 10);
    assert!(left.contains(&999) && !left.contains(&100), "the last of its own stay");
    // In other networks, too, one host counts as one.
    let left = (2_000..3_000).map(|n| keep(n, Holder::Peer("ship".into()))).last().unwrap();
    assert_eq!(left.iter().filter(|n| **n < 10).count(), 10);
}

/// Where all have about as much, one that is longer than what its holder may keep of it stays.
#[test]
fn an_answer_stays_that_needs_more_than_an_even_share() {
    let mut memory = Memory::new(100_000);
    let mut keep = |n: u64, length: usize, of: u8| {
        let asked = Asked { key: key(&format!("h{n}")), ..ask(&[], 1) };
        let fields = map(&[("cache-control", "max-age=60")]);
        let stored = super::keep(&asked, StatusCode::OK, &fields, at(1)).unwrap();
        let (stored, digest) = (Stored { number: n, ..stored }, asked.key.digest());
        memory.insert(digest, stored.into(), Bytes::from(vec![0; length]), host(of));
        assert!(memory.bytes() <= 100_000);
        memory.all().map(|(_, it)| it.number).collect::<Vec<_>>()
    };
    for n in 0..60 {
        keep(n, 4_400, n as u8 % 20);
    }
    let left = keep(100, 9_000, 7);
    assert!(left.contains(&100) && left.len() > 15, "{left:?}");
}

#[test]
fn one_who_asks_for_many_variants_takes_no_others() {
    let mut memory = Memory::new(1 << 20);
    let mut index = Index::new(1 << 30);
    let digest = key("a").digest();
    for n in 0..20 {
        let (foo, holder) = (n.to_string(), host(if n == 0 { 1 } else { 2 }));
        let answer = [("cache-control", "max-age=60"), ("vary", "foo")];
        let stored = kept(&[("foo", &foo)], &answer).unwrap();
        let stored = Stored { number: n, ..stored };
        memory.insert(digest, stored.into(), Bytes::from_static(b"x"), holder.clone());
        index.insert(Place { digest, uri: 0, number: n, length: 10 }, holder);
    }
    assert!(memory.find(digest, &ask(&[("foo", "0")], 1)).is_some());
    assert!(memory.find(digest, &ask(&[("foo", "19")], 1)).is_some());
    let numbers: Vec<u64> = index.of_target(digest).iter().map(|place| place.number).collect();
    assert!(numbers.contains(&0) && numbers.contains(&19) && numbers.len() == 8, "{numbers:?}");
}

#[test]
fn files_for_one_host_displace_its_own_and_long_ones_are_not_displaced_by_many_short_ones() {
    let mut index = Index::new(1 << 20);
    (0..10).for_each(|n| drop(index.insert(place(n, 10_000), host(1))));
    for n in 100..1_000 {
        let gone = index.insert(place(n, 10_000), host(2));
        assert!(gone.iter().all(|place| place.number >= 100), "{gone:?}");
        assert!(index.bytes() <= 1 << 20);
    }
    assert_eq!((has(&index, 0..10), has(&index, 999..1_000)), (10, 1));
    // What the other asks for now has room, up to half of all.
    (10..90).for_each(|n| drop(index.insert(place(n, 10_000), host(1))));
    assert!((35..=45).contains(&has(&index, 0..90)), "{}", has(&index, 0..90));
    // The disk has room for all of this, and the book of files has not.
    let mut index = Index::new(1 << 40);
    (0..100).for_each(|n| drop(index.insert(place(n, 100 << 20), host(1))));
    for n in 1_000..220_000 {
        let gone = index.insert(place(n, 1), host(2));
        assert!(gone.iter().all(|place| place.number >= 1_000), "{gone:?}");
    }
    assert_eq!((index.len(), has(&index, 0..100)), (200_000, 100));
}

#[test]
fn what_was_on_disk_before_is_nobodys_until_it_is_used_and_goes_first_in_the_end() {
    let mut index = Index::new(1 << 20);
    (0..80).for_each(|n| drop(index.insert(place(n, 10_000), Holder::Nobody)));
    index.touch(3, 3, &host(1));
    assert_eq!(index.holder(3, 3), Some(&host(1)));
    index.touch(3, 3, &host(2));
    assert_eq!(index.holder(3, 3), Some(&host(1)), "who asked first");
    (100..1_000).for_each(|n| drop(index.insert(place(n, 10_000), host(2))));
    assert!((35..=45).contains(&has(&index, 0..80)) && index.has(3), "{}", has(&index, 0..80));
    index.end_start();
    (1_000..1_100).for_each(|n| drop(index.insert(place(n, 10_000), host(2))));
    assert_eq!((has(&index, 0..80), index.has(3)), (1, true));
}
