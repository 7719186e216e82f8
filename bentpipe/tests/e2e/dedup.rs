//! What crossed before does not cross again (R-COMPRESS), whatever becomes of the gateways.

use std::collections::BTreeSet;
use std::io::Read;

use bentpipe_lab::emulate::Direction;

use crate::documents::{DEDUPLICATION, put, toml};
use crate::harness::{Scratch, World, root, wait_for};
use crate::tcp::{End, SERVER, joined, listen, pattern, read_to_end, send_all};

/// A server's bytes cross, end in good order, and are what they were; answers how many bytes
/// the satellite was given for that, both ways.
fn download(world: &World, data: &[u8]) -> u64 {
    download_from(world, SERVER, data)
}

fn download_from(world: &World, server: &str, data: &[u8]) -> u64 {
    let offered = |direction| world.link.counters(direction).offered.bytes;
    let before = offered(Direction::Down) + offered(Direction::Up);
    let (mut near, far) = joined(&world.client, &listen(&world.server, server));
    let sender = send_all(&far, data.to_vec());
    let (got, end) = read_to_end(&mut near);
    assert!(got == data, "{} bytes came, {} were sent, or others", got.len(), data.len());
    assert_eq!(end, End::Clean);
    sender.join().unwrap().unwrap();
    drop((near, far));
    world.wait_until_no_streams();
    offered(Direction::Down) + offered(Direction::Up) - before
}

/// The same with a hundredth of it changed, in ten places.
fn changed(data: &[u8]) -> Vec<u8> {
    let (mut data, tenth, piece) = (data.to_vec(), data.len() / 10, data.len() / 1000);
    for part in data.chunks_mut(tenth) {
        part.iter_mut().skip(tenth / 2).take(piece).for_each(|byte| *byte ^= 0x5a);
    }
    data
}

/// How many chunks gateway b has written down as held by its peer. (A record: number 8,
/// scope 8, id 16, and 16 more bytes. One that the peer lost and got again is there twice.)
fn names(world: &World) -> usize {
    let journal = std::fs::read(world.b.chunks().join("names")).unwrap_or_default();
    let records = journal.get(24..).unwrap_or_default().chunks_exact(48);
    records.map(|record| &record[8..32]).collect::<BTreeSet<_>>().len()
}

#[test]
fn a_second_transfer_costs_little_though_the_gateway_was_killed_in_between() {
    if !root() {
        return;
    }
    let mut world = World::with(|plan| {
        for end in [&mut plan.a, &mut plan.b] {
            end.node = "dedup_disk = \"1GiB\"".into(); // wherever the files are
        }
    });
    let data = pattern(11, 10_000_000);
    let first = download(&world, &data);
    assert!(first > 10_000_000, "{first}");
    wait_for("all is written", || match world.a.status().links.remove(0).dedup {
        told if told.disk_bytes > 9_900_000 => Ok(()),
        told => Err(format!("{told:?}")),
    });
    world.a.kill();
    world.a.start();
    world.a.wait_until_up();
    let second = download(&world, &data);
    println!("{first} bytes on the link, then {second} after a restart");
    assert!(second * 100 <= first * 4, "{second} of {first}");
    let told = world.a.status().links.remove(0).dedup;
    assert!(told.in_use && told.chunks > 500 && told.disk_bytes > 9_000_000, "{told:?}");
    assert_eq!((told.wanted, told.quarantined_files), (0, 0), "{told:?}");

    let third = download(&world, &changed(&data));
    println!("{third} with a hundredth changed");
    assert!(third * 100 <= first * 4, "{third} of {first}");

    // Killed in the middle of a transfer, and then the sending gateway between two.
    let (mut near, far) = joined(&world.client, &listen(&world.server, SERVER));
    let other = pattern(12, 10_000_000);
    let sender = send_all(&far, other.clone());
    let mut got = vec![0; 1_000_000];
    near.read_exact(&mut got).unwrap();
    world.a.kill();
    got.extend(read_to_end(&mut near).0);
    assert!(got.len() < other.len() && other.starts_with(&got), "{}", got.len());
    drop(near);
    world.a.start();
    world.a.wait_until_up();
    let _ = sender.join();
    drop(far);
    download(&world, &other);
    wait_for("all names to be written", || {
        let (named, held) = (names(&world), world.a.status().links[0].dedup.chunks as usize);
        (named >= held).then_some(()).ok_or(format!("{named} of {held}"))
    });
    world.b.kill();
    world.b.start();
    world.b.wait_until_up();
    wait_for("a's second link", || match world.a.log() {
        log if log.matches("link up").count() >= 2 => Ok(()),
        log => Err(log),
    });
    let again = download(&world, &other);
    println!("{again} after the sending gateway's restart");
    assert!(again * 100 <= first * 4, "{again} of {first}");
}

#[test]
fn by_the_pages_example_chunks_lie_where_it_says_and_a_port_is_left_alone() {
    if !root() {
        return;
    }
    let scratch = Scratch::new("dedup-page");
    let chunks = scratch.sub("chunks");
    let example = toml(DEDUPLICATION, "# Deduplication");
    let example = put(example, "/srv/chunks\"    #", &format!("{}\"    #", chunks.display()));
    let (node, peer) = example.split_once("[[peer]]\n").expect("two tables");
    let world = World::with(|plan| {
        for end in [&mut plan.a, &mut plan.b] {
            end.peer = peer.to_owned();
        }
        plan.a.node = put(node, "[node]\n", "");
    });
    let data = pattern(14, 2_000_000);
    let first = download(&world, &data);
    let second = download(&world, &data);
    assert!(first > 2_000_000 && second * 10 < first, "{second} of {first}");
    wait_for("chunks in the directory", || match world.a.status().links.remove(0).dedup {
        told if told.disk_bytes > 1_900_000 => Ok(()),
        told => Err(format!("{told:?}")),
    });
    assert!(std::fs::read_dir(&chunks).unwrap().count() > 0);
    let alone = [(); 2].map(|()| download_from(&world, "10.2.0.2:5432", &data));
    assert!(alone.iter().all(|bytes| *bytes > 2_000_000), "{alone:?}");
}

#[test]
fn a_peer_that_does_not_deduplicate_is_served_as_before() {
    if !root() {
        return;
    }
    let world = World::with(|plan| plan.b.peer = "dedup = \"off\"".into());
    let data = pattern(13, 1_000_000);
    let first = download(&world, &data);
    let second = download(&world, &data);
    assert!(second * 10 > first * 9, "{second} of {first}");
    assert!(!world.a.status().links.remove(0).dedup.in_use);
}
