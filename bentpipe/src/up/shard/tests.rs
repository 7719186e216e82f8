//! A shard and one peer: when keys are made anew, and what is told of their end.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use control::{Event, RekeyState};
use link::endpoint::{EndpointConfig, Rekey};
use link::keys::PrivateKey;
use os::netns::{NetNs, root_alone};

use super::*;
use crate::up::peers::peer_config;

/// The shard's.
const LISTEN: &str = "127.0.0.1:4500";
/// The shortest that the file may say.
const KEY_LIFETIME: Duration = Duration::from_secs(120);
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(20);
const BUFFER: usize = 2_000;

struct World {
    shard: Shard,
    /// At the shard.
    peer: PeerId,
    events: Events,
    /// The peer's node, and the shard as it knows it.
    far: Endpoint,
    here: PeerId,
    socket: UdpSocket,
    /// Of each packet that came there: does it belong to a handshake, and how many had the shard
    /// brought to their end by then?
    came: Vec<(bool, u64)>,
}

fn endpoint(own: &PrivateKey, seed: u8) -> Endpoint {
    Endpoint::new(EndpointConfig {
        private_key: own.clone(),
        seed: [seed; 32],
        hardware_aes: false,
        initiations_per_second: 100,
        key_lifetime: KEY_LIFETIME,
        fresh: None,
    })
}

impl World {
    /// The peer calls the shard at `listen`.
    fn new(listen: &str) -> World {
        let [own, far_key] = [[9; 32], [7; 32]].map(PrivateKey::from_bytes);
        let text = format!(
            "[node]\nprivate_key = \"{}\"\n[[peer]]\nname = \"ship\"\npublic_key = \"{}\"\n\
             link = {{ send = \"5Mbit\", receive = \"5Mbit\", delay = \"1ms\" }}\n",
            own.to_base64(),
            far_key.public()
        );
        let config = Config::parse(&text, Path::new("/")).unwrap_or_else(|_| panic!("{text}"));
        let ship = config.peers[0].clone();
        let clock = Clock::start();
        let chunks = ChunkPlace::find(None, true, own.public());
        let leaving_lines = LeavingLines::default();
        let common = Common { config: &config, clock, tun: None, chunks: &chunks, leaving_lines };
        let listen: SocketAddr = listen.parse().unwrap();
        let carrier = Carrier::open(listen, None, 1).unwrap().remove(0);
        let poller = Poller::new().unwrap();
        let mut shard = Shard::new(0, poller, carrier, endpoint(&own, 1), &common).unwrap();
        let peer = shard.add_peer(ship.clone(), None).unwrap();
        let mut far = endpoint(&far_key, 2);
        let mut to_here = peer_config(&config.node, &ship, 1, None);
        to_here.public_key = *own.public();
        to_here.endpoint = Some(listen.into());
        let here = far.add_peer(clock.now(), to_here).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let (events, came) = (Events::with_capacity(16), Vec::new());
        World { shard, peer, events, far, here, socket, came }
    }

    /// Both have a turn, as the gateway's loop has it.
    fn turn(&mut self) {
        let timeout = Some(Duration::from_millis(2));
        self.shard.wait(&mut self.events, timeout).unwrap();
        let now = self.shard.clock.now();
        for event in self.events.iter() {
            self.shard.on_event(now, event);
        }
        self.shard.on_time(now);
        self.shard.settle();

        let (now, mut packet) = (self.shard.clock.now(), [0; BUFFER]);
        while let Ok((n, from)) = self.socket.recv_from(&mut packet) {
            self.came.push((packet[0] & 0x80 == 0, self.handshakes()));
            self.far.handle_packet(now, now, from.into(), &mut packet[..n]);
        }
        self.far.handle_timeout(now);
        while let Some(transmit) = self.far.poll_transmit(now, &mut packet) {
            if let Some(to) = transmit.to.addr {
                self.socket.send_to(&packet[..transmit.len], to).unwrap();
            }
        }
        while self.far.poll_event().is_some() {}
    }

    fn wait_until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let end = self.shard.clock.now() + PATIENCE;
        while !is_so(self) {
            assert!(self.shard.clock.now() < end, "{what}: {:?}", self.came);
            self.turn();
        }
    }

    /// What the last packets were followed by is over, too.
    fn rest(&mut self) {
        let end = self.shard.clock.now() + Duration::from_millis(300);
        while self.shard.clock.now() < end {
            self.turn();
        }
        self.came.clear();
    }

    fn handshakes(&self) -> u64 {
        self.shard.relay.endpoint.peer_stats(self.peer).handshakes
    }

    fn have_something_to_say(&mut self) {
        self.shard.relay.endpoint.session_mut(self.peer).expect("a session").ping();
    }

    /// Something happened after which no key may be used again, and the shard has a packet to send.
    fn new_keys_come_before_the_next_packet(&mut self) {
        let before = self.handshakes();
        self.have_something_to_say();
        self.wait_until("new keys", |w| w.handshakes() > before);
        self.wait_until("the packet", |w| w.came.iter().any(|(handshake, _)| !handshake));
        let is_old = |(handshake, ended): &(bool, u64)| !handshake && *ended == before;
        assert!(!self.came.iter().any(is_old), "under the old keys: {:?}", self.came);
        self.rest();
    }
}

/// Has the kernel tell all in the namespace of a snapshot (lib/kobject_uevent.c, uevent_net_rcv).
const RESTORE: &str = r#"
import socket, struct
told = b"change@/devices/v\0ACTION=change\0NEW_VMGENID=1\0"
head = struct.pack("=IHHII", 16 + len(told), 16, 1, 0, 0)
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).sendto(head + told, (0, 0))
"#;

/// Seconds that the machine of this test has slept.
static SLEPT: AtomicU64 = AtomicU64::new(0);

/// L-PP-9.
#[test]
fn a_machine_that_was_restored_or_slept_makes_new_keys_before_its_next_packet() {
    if !root_alone() {
        return;
    }
    let ns = NetNs::unique("bpshard", "copies").unwrap();
    ns.run(|| {
        let mut w = World::new(LISTEN);
        let slept = || Duration::from_secs(SLEPT.load(Ordering::Relaxed));
        w.shard.copies.set_sleep_clock(slept);
        w.wait_until("a session", |w| w.handshakes() > 0);
        w.rest();
        let first = w.handshakes();
        w.have_something_to_say();
        w.wait_until("a packet", |w| !w.came.is_empty());
        w.rest();
        assert_eq!(w.handshakes(), first, "awake, the keys go on");

        let told = ns.command("python3").args(["-c", RESTORE]).status().expect("python3 starts");
        assert!(told.success());
        w.new_keys_come_before_the_next_packet();

        SLEPT.store(5, Ordering::Relaxed);
        w.new_keys_come_before_the_next_packet();
    });
}

/// L-PP-8.
#[test]
fn a_renewal_that_is_overdue_is_told_by_status_log_and_events_before_the_keys_end() {
    let mut w = World::new("127.0.0.1:0");
    let from = |port: u16| link::Remote::from(SocketAddr::from(([192, 0, 2, 1], port)));
    let mut now = w.shard.clock.now();
    let begin = now;
    let mut told = Vec::new();
    while told.len() < 2 {
        now += Duration::from_millis(500);
        assert!(now.since(begin) < KEY_LIFETIME.times(2), "{told:?}");
        let (mut packet, in_peace) = ([0; BUFFER], now.since(begin) < Duration::from_secs(5));
        if !in_peace {
            w.have_something_to_say();
            w.far.session_mut(w.here).expect("a session").ping();
        }
        // Calls have turns, and answers take some.
        for turn in 0..5 {
            let now = now + Duration::from_millis(10 * turn);
            w.far.handle_timeout(now);
            while let Some(n) = w.far.poll_transmit(now, &mut packet).map(|t| t.len) {
                // Somebody on the path drops all handshakes but the first.
                if in_peace || packet[0] & 0x80 != 0 {
                    w.shard.relay.endpoint.handle_packet(now, now, from(2), &mut packet[..n]);
                }
            }
            w.shard.relay.endpoint.handle_timeout(now);
            while let Some(n) =
                w.shard.relay.endpoint.poll_transmit(now, &mut packet).map(|t| t.len)
            {
                if in_peace || packet[0] & 0x80 != 0 {
                    w.far.handle_packet(now, now, from(1), &mut packet[..n]);
                }
            }
            w.shard.act(now);
            while w.far.poll_event().is_some() {}
        }
        for (_, notice) in std::mem::take(&mut w.shard.tidings.events) {
            if let Event::Rekey { state } = notice.event {
                let links = w.shard.part(now).links;
                assert_eq!(links[0].rekey, state);
                told.push((now.since(begin), state));
            }
        }
    }
    let [(at, overdue), (end, erased)] = told.try_into().expect("two");
    assert_eq!((overdue, erased), (RekeyState::Overdue, RekeyState::Erased));
    // Six eighths of two minutes, and the handshake's time.
    let seconds = [at, end].map(|time| time.as_millis() / 1_000);
    assert!((88..97).contains(&seconds[0]) && (118..130).contains(&seconds[1]), "{seconds:?}");
    let log = links::rekey_words(Rekey::Overdue).expect("the log tells it");
    assert!(log.starts_with("rekey overdue: data passes"), "{log}");
    assert_eq!(links::rekey_words(Rekey::InTime), None);
}
