//! Packets that are not in order, against a live gateway: dropped in silence, counted,
//! and without harm to the session.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use os::netns::NetNs;
use units::Rng;

use crate::gateway::Keys;
use crate::harness::{Plan, World, root, wait_for};
use crate::tcp::{End, SERVER, check_echo, joined, listen, pattern, read_to_end, send_all};

const GATEWAY_A: &str = "192.0.2.1:4500";
const GATEWAY_B: &str = "192.0.2.2:4500";
/// Where gateway a believes its peer to be.
const MIDDLE: &str = "192.0.2.1:4600";

/// Somebody on the way who passes all packets and remembers them.
struct Middle {
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
}

impl Middle {
    fn start(ns: &NetNs) -> Middle {
        const REMEMBERED: usize = 400;
        let socket = ns.run(|| UdpSocket::bind(MIDDLE)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (remember, stopped) = (seen.clone(), stop.clone());
        thread::spawn(move || {
            let mut packet = [0; 65_536];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((n, from)) = socket.recv_from(&mut packet) else { continue };
                let from_a = from == GATEWAY_A.parse().unwrap();
                let mut seen = remember.lock().unwrap();
                if from_a && seen.len() < REMEMBERED {
                    seen.push(packet[..n].to_vec());
                }
                let _ = socket.send_to(&packet[..n], if from_a { GATEWAY_B } else { GATEWAY_A });
            }
        });
        Middle { seen, stop }
    }

    /// What gateway a sent to gateway b.
    fn genuine(&self) -> Vec<Vec<u8>> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Middle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Packets that are dropped and counted, each of them. A lot waits until the one before is
/// counted, so that none is lost on the way.
fn check_dropped(world: &World, socket: &UdpSocket, packets: &[&[u8]]) {
    const LOT: usize = 100;
    for lot in packets.chunks(LOT) {
        let before = world.b.dropped();
        for packet in lot {
            socket.send_to(packet, GATEWAY_B).unwrap();
        }
        wait_for("all of them to be counted", || {
            let counted = world.b.dropped() - before;
            let all = counted >= lot.len() as u64;
            all.then_some(()).ok_or(format!("{counted} of {}", lot.len()))
        });
    }
}

fn slices(packets: &[Vec<u8>]) -> Vec<&[u8]> {
    packets.iter().map(Vec::as_slice).collect()
}

fn check_unanswered(socket: &UdpSocket) {
    socket.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    let mut answer = [0; 2048];
    if let Ok((n, from)) = socket.recv_from(&mut answer) {
        panic!("{from} answered with {n} bytes: {:02x?}", &answer[..n.min(40)]);
    }
}

#[test]
fn forged_and_repeated_packets_are_dropped_counted_and_never_answered() {
    if !root() {
        return;
    }
    let mut plan = Plan::default();
    plan.a.endpoint = Some(MIDDLE.into());
    let mut world = World::without_gateways(&plan);
    let middle = Middle::start(&world.gwa);
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    let (mut near, mut far) = joined(&world.client, &listener);
    let data = pattern(81, 200_000);
    send_all(&near, data.clone()).join().unwrap().unwrap();
    assert!(read_to_end(&mut far) == (data, End::Clean));

    world.gwa.ip("address add 192.0.2.66/24 dev sat0").unwrap();
    let attacker = world.gwa.run(|| UdpSocket::bind("192.0.2.66:4500")).unwrap();
    let link_before = world.b.status().links[0].clone();
    let sessions = |world: &World| world.b.log().matches("link up peer=").count();
    let sessions_before = sessions(&world);
    let genuine = middle.genuine();
    assert!(genuine.len() > 50, "there is something to attack with");

    // Random bytes of many lengths, none at all too, and all first bytes there are.
    let mut rng = Rng::new(82);
    let mut random: Vec<Vec<u8>> = Vec::new();
    for n in 0..600u64 {
        let mut packet = vec![0; n as usize];
        rng.fill(&mut packet);
        if let Some(first) = packet.first_mut() {
            *first = n as u8;
        }
        random.push(packet);
    }
    check_dropped(&world, &attacker, &slices(&random));
    assert!(world.b.dropped_for("malformed") > 0, "at least the empty one");
    check_unanswered(&attacker);

    // Genuine packets, cut short and with a bit flipped.
    let cut: Vec<&[u8]> = genuine
        .iter()
        .flat_map(|p| [&p[..p.len() / 2], &p[..p.len() - 1], &p[..p.len().min(5)]])
        .collect();
    check_dropped(&world, &attacker, &cut);
    check_unanswered(&attacker);
    let flipped: Vec<Vec<u8>> = genuine
        .iter()
        .map(|p| {
            let mut p = p.clone();
            let bit = rng.below(p.len() as u64 * 8) as usize;
            p[bit / 8] ^= 1 << (bit % 8);
            p
        })
        .collect();
    check_dropped(&world, &attacker, &slices(&flipped));
    check_unanswered(&attacker);

    // Genuine data packets again, from elsewhere. (Handshakes have a test of their own.)
    check_dropped(&world, &attacker, &slices(&genuine)[5..]);
    check_unanswered(&attacker);

    let link = world.b.status().links[0].clone();
    assert_eq!(sessions(&world), sessions_before, "the session is the same");
    assert_eq!(link.endpoint, link_before.endpoint, "and the peer where it was");
    far.set_nonblocking(false).unwrap();
    let answer = pattern(83, 100_000);
    send_all(&far, answer.clone()).join().unwrap().unwrap();
    assert!(read_to_end(&mut near) == (answer, End::Clean), "streams go on");
    check_echo(&world.client, &listener);
}

#[test]
fn a_repeated_handshake_moves_nothing_and_ends_no_session() {
    if !root() {
        return;
    }
    let mut plan = Plan::default();
    plan.a.endpoint = Some(MIDDLE.into());
    let mut world = World::without_gateways(&plan);
    let middle = Middle::start(&world.gwa);
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    let listener = listen(&world.server, SERVER);
    let (mut near, mut far) = joined(&world.client, &listener);
    let initiation = middle.genuine().swap_remove(0);
    world.gwa.ip("address add 192.0.2.66/24 dev sat0").unwrap();
    let attacker = world.gwa.run(|| UdpSocket::bind("192.0.2.66:4500")).unwrap();
    let endpoint = world.b.status().links[0].endpoint.clone();
    for _ in 0..50 {
        attacker.send_to(&initiation, GATEWAY_B).unwrap();
        thread::sleep(Duration::from_millis(5));
    }
    // Whoever repeats it may get an answer, but nothing larger than what was sent.
    attacker.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    let (mut answer, mut answers) = ([0; 2048], 0);
    while let Ok((n, _)) = attacker.recv_from(&mut answer) {
        assert!(n <= initiation.len(), "{n} bytes for {}", initiation.len());
        answers += 1;
    }
    eprintln!("50 repeated initiations had {answers} answers");
    let data = pattern(84, 100_000);
    let sending = [send_all(&near, data.clone()), send_all(&far, data.clone())];
    assert!(read_to_end(&mut far) == (data.clone(), End::Clean));
    assert!(read_to_end(&mut near) == (data, End::Clean));
    for s in sending {
        s.join().unwrap().unwrap();
    }
    assert_eq!(world.b.status().links[0].endpoint, endpoint);
    check_echo(&world.client, &listener);
}

#[test]
fn a_peer_with_another_key_gets_no_link_and_no_answer() {
    if !root() {
        return;
    }
    let mut world = World::without_gateways(&Plan::default());
    let stranger = Keys::new();
    let text = world.a.text();
    let private = text.lines().find(|l| l.starts_with("private_key")).unwrap();
    world.a.write(&text.replace(private, &format!("private_key = \"{}\"", stranger.private)));
    world.b.start();
    world.a.start();
    wait_for("the stranger to be noticed", || match world.b.try_status() {
        Ok(s) if s.node.dropped.values().sum::<u64>() > 0 => Ok(()),
        other => Err(format!("{other:?}")),
    });
    thread::sleep(Duration::from_secs(2));
    for gateway in [&world.a, &world.b] {
        let link = &gateway.status().links[0];
        assert_ne!(link.state, bentpipe::admin::LinkState::Up);
        assert_eq!(link.handshakes.completed, 0);
    }
    assert_eq!(world.a.status().links[0].receive.packets, 0, "b never answered");
}
