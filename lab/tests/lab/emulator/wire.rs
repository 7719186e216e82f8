//! Two namespaces with an emulated link between them, and probes at both ends that
//! send and stamp raw frames, so that what is measured is the link and not a host.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bentpipe_lab::emulate::{Direction, Emulator, EmulatorHandle, EmulatorOptions};
use channel::{ChannelConfig, Counters};
use os::netns::{NetNs, veth};
use os::poll::{Clock, ClockSource};
use os::port::{BATCH, Batch, ETHERNET_HEADER, Port, Received};
use units::{BitRate, ByteCount, Duration, Instant};

/// How the link reaches its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It makes their interfaces.
    Tap,
    /// It takes over the far ends of two veth pairs.
    Veth,
}

/// The two hosts; the link between them is separate, so that it can be stopped.
pub struct Wire {
    pub left: NetNs,
    pub right: NetNs,
    /// Keeps the namespace of the veth ends alive.
    _sky: Option<NetNs>,
    pub clock: Clock,
}

/// The hosts' interface, whatever the kind.
pub const DEVICE: &str = "sat0";

impl Wire {
    /// Hosts 10.9.0.1 (left) and 10.9.0.2 and the ports for a link between them.
    pub fn lay(kind: Kind, label: &str) -> (Wire, [Port; 2]) {
        let host = |side: &str| {
            let ns = NetNs::unique("emutest", &format!("{label}-{side}")).unwrap();
            // Else it announces itself now and then, and the counts are not ours alone.
            ns.sysctl("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
            ns
        };
        let (left, right) = (host("l"), host("r"));
        let (sky, ports) = match kind {
            Kind::Tap => {
                let port = |ns: &NetNs| ns.run(|| Port::tap(None, DEVICE, 1_500)).unwrap();
                (None, [port(&left), port(&right)])
            }
            Kind::Veth => {
                let sky = host("s");
                veth(&left, DEVICE, &sky, "left").unwrap();
                veth(&right, DEVICE, &sky, "right").unwrap();
                let port = |name: &str| sky.run(|| Port::interface(name)).unwrap();
                let ports = [port("left"), port("right")];
                (Some(sky), ports)
            }
        };
        left.address(DEVICE, "10.9.0.1/24").unwrap();
        right.address(DEVICE, "10.9.0.2/24").unwrap();
        let clock = Clock::start_on(ClockSource::Monotonic);
        (Wire { left, right, _sky: sky, clock }, ports)
    }

    /// The same with a running link of `up` and its mirror image.
    pub fn with_link(kind: Kind, label: &str, up: ChannelConfig) -> (Wire, EmulatorHandle) {
        let (wire, [left, right]) = Wire::lay(kind, label);
        let options = EmulatorOptions::default();
        let link = Emulator::start(left, right, up.clone(), up, options).unwrap();
        (wire, link)
    }

    /// A probe at the left host's end.
    pub fn sender(&self) -> Sender {
        let port = self.left.run(|| Port::interface(DEVICE)).unwrap();
        Sender { port, clock: self.clock, next: 0 }
    }

    /// A probe at the right host's end, which listens from now on.
    pub fn listener(&self) -> Listener {
        let mut port = self.right.run(|| Port::interface(DEVICE)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (told, clock) = (stop.clone(), self.clock);
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            let mut batch = Batch::new();
            // Once more after the end, for what was there before it.
            loop {
                let last = told.load(Ordering::Acquire);
                while let Received::Frames(count @ 1..) = port.receive(&mut batch) {
                    let now = clock.now();
                    seen.extend(batch.frames().filter_map(|f| Seen::read(f.bytes, now - f.age)));
                    if count < BATCH {
                        break;
                    }
                }
                if last {
                    assert_eq!(port.overruns(), 0, "the listener itself was too slow");
                    return seen;
                }
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
        });
        Listener { stop, thread }
    }
}

/// Sends numbered frames with the time in them.
pub struct Sender {
    port: Port,
    clock: Clock,
    next: u64,
}

/// A frame that arrived, in the order of arrival.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub number: u64,
    pub sent: Instant,
    pub came: Instant,
    pub len: u64,
}

pub struct Listener {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Seen>>,
}

const MAGIC: &[u8; 8] = b"bentpipe";
/// IP header (20), magic, number, time.
pub const SHORTEST: usize = 44;

impl Sender {
    /// Sends `count` packets of `len` IP bytes at once; the kernel must take them.
    pub fn send(&mut self, count: usize, len: usize) {
        let mut left = count;
        while left > 0 {
            let batch = left.min(BATCH);
            let frames: Vec<Vec<u8>> =
                (0..batch as u64).map(|i| self.frame(self.next + i, len)).collect();
            let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            let sent = self.port.send(&slices);
            assert_eq!(sent.frames, batch, "the host did not take all frames");
            self.next += batch as u64;
            left -= batch;
        }
    }

    /// Sends packets of `len` IP bytes at `rate` for `time`.
    pub fn flood(&mut self, rate: BitRate, len: usize, time: Duration) {
        let start = self.clock.now();
        let mut sent = ByteCount(0);
        loop {
            let passed = self.clock.now().since(start);
            let due = rate.bytes_in(passed.min(time)) - sent;
            let count = (due.0 / len as u64).min(2_000);
            self.send(count as usize, len);
            sent += ByteCount(count * len as u64);
            if passed >= time {
                return;
            }
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
    }

    /// How many have been sent.
    pub fn count(&self) -> u64 {
        self.next
    }

    fn frame(&self, number: u64, len: usize) -> Vec<u8> {
        let mut frame = vec![0u8; ETHERNET_HEADER + len.max(SHORTEST)];
        // A locally administered address that nobody has: no host answers.
        frame[0] = 0x02;
        frame[5] = 0x99;
        frame[6] = 0x02;
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        let packet = &mut frame[ETHERNET_HEADER..];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[20..28].copy_from_slice(MAGIC);
        packet[28..36].copy_from_slice(&number.to_be_bytes());
        packet[36..44].copy_from_slice(&self.clock.now().as_nanos().to_be_bytes());
        frame
    }
}

impl Seen {
    fn read(frame: &[u8], came: Instant) -> Option<Seen> {
        let packet = frame.get(ETHERNET_HEADER..).filter(|p| p.len() >= SHORTEST)?;
        if &packet[20..28] != MAGIC {
            return None;
        }
        let word = |at: usize| u64::from_be_bytes(packet[at..at + 8].try_into().unwrap());
        let len = u64::from(u16::from_be_bytes([packet[2], packet[3]]));
        Some(Seen { number: word(28), sent: Instant::from_nanos(word(36)), came, len })
    }
}

impl Listener {
    /// Everything that came until now.
    pub fn stop(self) -> Vec<Seen> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

/// The rate at which `seen` came, by the kernel's stamps: the bytes after the first
/// packet over the time after it.
pub fn rate_of(seen: &[Seen]) -> f64 {
    let bits: u64 = seen[1..].iter().map(|s| s.len * 8).sum();
    let time = seen[seen.len() - 1].came.since(seen[0].came);
    bits as f64 / time.as_secs_f64()
}

/// The same with the machine's hiccups taken out: packets may come late but never
/// early, so the most punctual one of the first tenth and of the last tenth show how
/// fast the line really ran.
pub fn punctual_rate_of(seen: &[Seen], nominal: f64) -> f64 {
    let mut bits = 0.0;
    let mut marks = Vec::with_capacity(seen.len());
    for s in seen {
        let came = s.came.since(seen[0].came).as_secs_f64();
        marks.push((came - bits / nominal, bits, came));
        bits += s.len as f64 * 8.0;
    }
    let tenth = seen.len() / 10;
    let punctual = |part: &[(f64, f64, f64)]| {
        part.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0)).expect("a tenth of many")
    };
    let (_, bits_a, came_a) = punctual(&marks[..tenth]);
    let (_, bits_b, came_b) = punctual(&marks[marks.len() - tenth..]);
    (bits_b - bits_a) / (came_b - came_a)
}

/// The median and the 99th percentile of what `seen` took, in microseconds.
pub fn delays(seen: &[Seen]) -> (u64, u64) {
    let mut all: Vec<u64> = seen.iter().map(|s| s.came.since(s.sent).as_micros()).collect();
    all.sort();
    (all[all.len() / 2], all[all.len() * 99 / 100])
}

/// Waits until the line there has done with what was sent, if it does.
pub fn wait_until(link: &EmulatorHandle, done: impl Fn(&Counters) -> bool) {
    for _ in 0..600 {
        if done(&link.counters(Direction::Up)) {
            break;
        }
        sleep_ms(50);
    }
}

/// Waits until nothing is under way there any more: copies and packets that went a detour
/// come after those that are counted as delivered.
pub fn wait_until_empty(link: &EmulatorHandle) {
    for _ in 0..600 {
        if link.report().up.held_packets == 0 {
            break;
        }
        sleep_ms(50);
    }
}

/// A file of this process, which is gone with its test, however that ends.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn file(extension: &str) -> Scratch {
        let name = format!("emulator-{}.{extension}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn sleep_ms(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}
