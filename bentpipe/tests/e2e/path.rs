//! A path that takes smaller packets from one moment to the next, and says nothing.

use std::io::Read as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use bentpipe_lab::emulate::Direction;

use crate::harness::{SATELLITE, World, root, wait_for};
use crate::tcp::{SERVER, joined, listen, pattern, send_all};

/// A download that goes on: bytes read so far, and the thread that reads.
struct Download {
    read: Arc<AtomicU64>,
    reader: JoinHandle<Vec<u8>>,
    sender: JoinHandle<std::io::Result<()>>,
}

impl Download {
    fn start(world: &World, data: &[u8]) -> Download {
        let (near, far) = joined(&world.client, &listen(&world.server, SERVER));
        let sender = send_all(&far, data.to_vec());
        let read = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&read);
        let reader = thread::spawn(move || read_all(near, &counted));
        Download { read, reader, sender }
    }

    /// Waits until another megabyte has come.
    fn goes_on(&self, when: &str) {
        let from = self.read.load(Ordering::Relaxed);
        wait_for(&format!("bytes {when}"), || {
            let more = self.read.load(Ordering::Relaxed) - from;
            (more >= 1_000_000).then_some(()).ok_or(format!("{more} bytes came"))
        });
    }

    fn check(self, data: &[u8]) {
        assert!(self.reader.join().unwrap() == data, "what was read is not what was sent");
        self.sender.join().unwrap().unwrap();
    }
}

fn read_all(mut stream: TcpStream, counted: &AtomicU64) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = vec![0; 65_536];
    loop {
        let n = stream.read(&mut piece).expect("bytes");
        if n == 0 {
            return all;
        }
        all.extend_from_slice(&piece[..n]);
        counted.fetch_add(n as u64, Ordering::Relaxed);
    }
}

/// Waits until the server's gateway sends packets of at most `mtu` bytes.
fn wait_for_mtu(world: &World, mtu: u64) {
    wait_for(&format!("a path MTU of {mtu}"), || {
        let now = world.b.status().links[0].path_mtu;
        (now == Some(mtu)).then_some(()).ok_or(format!("it is {now:?}"))
    });
}

/// L-PM-2 to L-PM-5.
#[test]
fn a_transfer_goes_on_over_a_path_that_narrows_and_widens_in_silence() {
    if !root() {
        return;
    }
    let world = World::with(|plan| plan.rate = units::BitRate::from_mbps(10));
    // Longer at the link's rate than three rounds of probes, 5 s each, and what is waited for.
    let data = pattern(71, 40_000_000);
    let download = Download::start(&world, &data);
    download.goes_on("at first");
    assert_eq!(world.b.status().links[0].path_mtu, Some(1500));
    for (mtu, found) in [(576, 576), (1300, 1280), (1500, 1500)] {
        for direction in [Direction::Up, Direction::Down] {
            let config = channel::ChannelConfig { mtu: Some(mtu), ..world.link.config(direction) };
            world.link.reconfigure(direction, config).expect("a channel");
        }
        wait_for_mtu(&world, found);
        download.goes_on(&format!("over a path of {mtu}"));
    }
    download.check(&data);
    let lost = world.link.counters(Direction::Down).lost_too_long.packets;
    assert!(lost > 0, "nothing was too long for the path");
}

/// L-PM-3.
#[test]
fn a_transfer_goes_on_when_the_own_interface_takes_smaller_packets() {
    if !root() {
        return;
    }
    let world = World::with(|plan| plan.rate = units::BitRate::from_mbps(10));
    let data = pattern(72, 20_000_000);
    let download = Download::start(&world, &data);
    download.goes_on("at first");
    world.gwb.ip(&format!("link set {SATELLITE} mtu 1100")).unwrap();
    wait_for_mtu(&world, 1006);
    download.goes_on("by smaller packets");
    world.gwb.ip(&format!("link set {SATELLITE} mtu 1500")).unwrap();
    wait_for_mtu(&world, 1500);
    download.check(&data);
}
