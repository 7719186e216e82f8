//! Gateways that die: their hosts see resets and never a clean close, nothing stays in
//! the kernel, and a new start makes everything work again.

use std::net::TcpStream;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use os::netns::NetNs;

use crate::files::{HttpServer, make_file, sha256};
use crate::harness::{Plan, World, must, root, said, shell, wait_for};
use crate::tcp::{
    End, SERVER, accept, check_echo, connect, echo_once, end_within, expect, joined, listen,
    pattern, read_to_end, send_all, try_connect,
};

/// Everything of ours that the kernel of a host can hold.
pub fn kernel_state(ns: &NetNs) -> String {
    [
        "nft list ruleset",
        "ip -4 rule",
        "ip -6 rule",
        "ip -4 route show table all",
        "ip -6 route show table all",
        "ip -o link | cut -d: -f2",
    ]
    .iter()
    .map(|command| format!("$ {command}\n{}", steady(&must(ns, command))))
    .collect()
}

/// Without what changes by itself: link-local addresses come a while after their device.
fn steady(text: &str) -> String {
    let by_itself = |l: &&str| l.contains("fe80:") || l.contains("ff00:");
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !by_itself(l)).collect();
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

pub fn wait_for_kernel_state(ns: &NetNs, wanted: &str) {
    wait_for("a kernel as before", || {
        let now = kernel_state(ns);
        (now == wanted).then_some(()).ok_or(format!("now:\n{now}\nbefore:\n{wanted}"))
    });
}

/// What makes an end in order leave nothing behind.
pub const RELEASE: &str = "on_stop = \"release\"\n";

/// A network whose gateways are started after the kernels were looked at.
fn observed(plan: &Plan) -> (World, [String; 2]) {
    let mut plan = plan.clone();
    plan.a.node += RELEASE;
    plan.b.node += RELEASE;
    let mut world = World::without_gateways(&plan);
    let before = [kernel_state(&world.gwa), kernel_state(&world.gwb)];
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    world.b.wait_until_up();
    (world, before)
}

/// Connections in three states: at rest, uploading, downloading; both ends of each.
fn busy_connections(world: &World, at: &str) -> Vec<(TcpStream, TcpStream)> {
    let listener = listen(&world.server, at);
    let mut all = Vec::new();
    for n in 0..12 {
        let (mut near, mut far) = joined(&world.client, &listener);
        send_word(&mut near, &mut far);
        match n % 3 {
            0 => {}
            1 => drop(send_all(&near, pattern(n, 30_000_000))),
            _ => drop(send_all(&far, pattern(n, 30_000_000))),
        }
        all.push((near, far));
    }
    thread::sleep(Duration::from_millis(500));
    all
}

fn send_word(near: &mut TcpStream, far: &mut TcpStream) {
    use std::io::Write as _;
    near.write_all(b"word").unwrap();
    expect(far, b"word");
}

/// The socket is over by a reset. A thread that was writing to it may have been told of
/// the reset first; then what is left to read is not even an end, which the socket's
/// state shows.
fn check_reset(stream: &mut TcpStream, which: &str) {
    let end = end_within(stream, Duration::from_secs(20));
    if end == Some(End::Clean) {
        let stream = os::tcp::Stream::from(stream.try_clone().unwrap());
        assert!(
            stream.peer_addr().is_err(),
            "{which}: a socket that was closed in order is still connected"
        );
        return;
    }
    assert_eq!(end, Some(End::Reset), "{which}");
}

fn a_gateway_dies(client_side: bool) {
    let mut world = World::new();
    let mut connections = busy_connections(&world, SERVER);
    let dying = if client_side { &mut world.a } else { &mut world.b };
    dying.kill();
    for (n, (near, far)) in connections.iter_mut().enumerate() {
        // Its own hosts hear at once; the others when it is back.
        let own = if client_side { near } else { far };
        check_reset(own, &format!("connection {n} beside the gateway that died"));
    }
    let begin = Instant::now();
    let dying = if client_side { &mut world.a } else { &mut world.b };
    dying.start();
    let listener = listen(&world.server, "10.2.0.2:7100");
    wait_for("a new connection", || echo_once(&world.client, &listener).map_err(|e| e.to_string()));
    let back = begin.elapsed();
    eprintln!(
        "gateway {} restarted: a new connection after {back:?} (RTT 0.1 s)",
        dying_name(client_side)
    );
    assert!(back < Duration::from_secs(5), "{back:?} after the restart");
    for (n, (near, far)) in connections.iter_mut().enumerate() {
        let orphan = if client_side { far } else { near };
        check_reset(orphan, &format!("connection {n} beside the survivor"));
    }
    world.wait_until_no_streams();
}

fn dying_name(client_side: bool) -> &'static str {
    if client_side { "a" } else { "b" }
}

#[test]
fn when_the_clients_gateway_is_killed_its_hosts_see_resets_and_a_restart_works() {
    if root() {
        a_gateway_dies(true);
    }
}

#[test]
fn when_the_servers_gateway_is_killed_its_hosts_see_resets_and_a_restart_works() {
    if root() {
        a_gateway_dies(false);
    }
}

/// Does a datagram of the client reach the server?
fn datagram_arrives(world: &World) -> bool {
    let server = world.server.run(|| UdpSocket::bind("10.2.0.2:7500")).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    let client = world.client.run(|| UdpSocket::bind("10.1.0.2:0")).unwrap();
    for _ in 0..3 {
        // An ICMP error for the one before may come back with a call.
        let _ = client.send_to(b"in clear?", "10.2.0.2:7500");
    }
    server.recv(&mut [0; 64]).is_ok()
}

#[test]
fn with_block_nothing_leaves_in_clear_while_the_gateway_is_dead() {
    if !root() {
        return;
    }
    let mut world = World::with(|plan| plan.clear_routes = true);
    let _listener = listen(&world.server, SERVER);
    world.a.kill();
    for _ in 0..3 {
        assert!(try_connect(&world.client, SERVER).is_err(), "there is no way");
        assert!(!datagram_arrives(&world), "a datagram went in clear");
        let ping =
            shell(&world.client, "ping -c 2 -i 0.2 -W 1 10.2.0.2; ping -c 2 -i 0.2 -W 1 fd02::2");
        assert!(!ping.status.success());
    }
}

#[test]
fn with_wire_traffic_flows_in_clear_while_the_gateways_are_dead() {
    if !root() {
        return;
    }
    let mut plan = Plan { clear_routes: true, ..Plan::default() };
    plan.a.on_failure = "wire";
    plan.b.on_failure = "wire";
    let (mut world, before) = observed(&plan);
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    world.wait_until_no_streams();
    assert_eq!(world.a.status().links[0].streams_total, 1, "it is split first");
    world.a.kill();
    world.b.kill();
    wait_for_kernel_state(&world.gwa, &before[0]);
    wait_for_kernel_state(&world.gwb, &before[1]);
    check_echo(&world.client, &listener);
    wait_for("a datagram", || datagram_arrives(&world).then_some(()).ok_or("none".into()));
    // And back into the tunnel with a new start.
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    check_echo(&world.client, &listener);
    assert_eq!(world.a.status().links[0].streams_total, 1, "it is split again");
}

#[test]
fn after_a_kill_only_the_routes_that_block_stay_and_the_next_start_sweeps_them() {
    if !root() {
        return;
    }
    let (mut world, before) = observed(&Plan::default());
    world.a.kill();
    wait_for("the watchdog", || {
        let all = must(
            &world.gwa,
            "nft list ruleset; ip rule; ip -6 rule; ip route show table all; \
             ip -6 route show table all",
        );
        let going = ["0x62700001", "0x62700002", "table 25400", "flags owner"];
        // Its last word is the table that tells hosts.
        let done = all.contains("bentpipe_blocked") && !going.iter().any(|l| all.contains(l));
        done.then_some(()).ok_or(all)
    });
    let routes = must(&world.gwa, "ip -4 route show table all; ip -6 route show table all");
    let ours = routes.lines().filter(|l| l.contains("proto 143"));
    for route in ours {
        let note = route.starts_with("blackhole default") && route.contains(" table 25402 ");
        assert!(note || route.starts_with("unreachable"), "{route}");
    }
    world.a.start();
    world.a.wait_until_up();
    check_echo(&world.client, &listen(&world.server, SERVER));
    world.a.signal("TERM");
    assert!(world.a.wait_until_ended().success());
    wait_for_kernel_state(&world.gwa, &before[0]);
}

#[test]
fn a_gateway_that_is_told_to_end_finishes_its_transfers_and_leaves_nothing_behind() {
    if !root() {
        return;
    }
    let plan = Plan { rate: units::BitRate::from_mbps(8), ..Plan::default() };
    let (mut world, before) = observed(&plan);
    let listener = listen(&world.server, SERVER);
    let (mut near, far) = joined(&world.client, &listener);
    let data = pattern(11, 3_000_000); // three seconds
    let sending = send_all(&far, data.clone());
    let receiving = thread::spawn(move || read_to_end(&mut near));
    thread::sleep(Duration::from_millis(700));
    world.a.signal("TERM");
    thread::sleep(Duration::from_millis(300));
    drop(far.shutdown(std::net::Shutdown::Read));
    sending.join().unwrap().unwrap();
    let (got, _) = receiving.join().unwrap();
    assert!(got == data, "{} of {} bytes", got.len(), data.len());
    drop(far);
    assert!(world.a.wait_until_ended().success());
    wait_for_kernel_state(&world.gwa, &before[0]);
    // The other gateway lives on and takes it back.
    world.a.start();
    world.a.wait_until_up();
    check_echo(&world.client, &listener);
    world.b.signal("TERM");
    assert!(world.b.wait_until_ended().success());
    wait_for_kernel_state(&world.gwb, &before[1]);
}

#[test]
fn a_connection_that_does_not_end_is_reset_when_the_gateway_ends() {
    if !root() {
        return;
    }
    let mut world = World::new();
    let (mut near, mut far) = joined(&world.client, &listen(&world.server, SERVER));
    send_word(&mut near, &mut far);
    world.a.signal("TERM");
    world.a.wait_for_log("ending open_connections=1");
    // Meanwhile hosts, and whoever starts another one, are told.
    let e = try_connect(&world.client, SERVER).unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::ConnectionRefused, "{e}");
    let second = crate::block::bentpipe(&world.a, &world.gwa, "up FILE");
    assert!(said(&second).contains("a bentpipe that is stopping"), "{}", said(&second));
    world.a.signal("TERM");
    // Not because the time was over that connections are given.
    world.a.wait_for_log("ending at once");
    assert!(world.a.wait_until_ended().success(), "a second signal ends it");
    check_reset(&mut near, "the client");
    check_reset(&mut far, "the server");
}

/// The satellite is away for `time` in the middle of real downloads and uploads.
fn the_link_is_down_for(time: Duration) {
    let world = World::with(|plan| plan.rate = units::BitRate::from_mbps(10));
    let dir = world.dir("files");
    // Seconds of link: still in the middle when this thread looks late.
    let body = pattern(21, 10_000_000);
    let _http = HttpServer::start(
        &world.server,
        "10.2.0.2:80",
        &[("/file", body.clone())],
        world.dir("put"),
    );
    let original = dir.join("original");
    std::fs::write(&original, &body).unwrap();
    let upload = make_file(&dir.join("upload"), 8_000_000);
    let fetched = dir.join("fetched");
    let (client, up, down) = (world.client.clone(), upload.clone(), fetched.clone());
    let getting = thread::spawn(move || {
        shell(&client, &format!("curl -sS -o {} http://10.2.0.2/file", down.display()))
    });
    let client = world.client.clone();
    let putting = thread::spawn(move || {
        shell(&client, &format!("curl -sS -T {} http://10.2.0.2/copy", up.display()))
    });
    wait_for("a part of the file", || {
        let n = std::fs::metadata(&fetched).map_or(0, |m| m.len());
        // Down at once: both are in the middle, and the link does not wait for this thread.
        (n >= 500_000).then(|| world.set_link_down(true)).ok_or(format!("{n} bytes"))
    });
    thread::sleep(time);
    assert!(!getting.is_finished() && !putting.is_finished(), "both wait");
    world.set_link_down(false);
    let begin = Instant::now();
    for output in [getting.join().unwrap(), putting.join().unwrap()] {
        assert!(output.status.success(), "{}", crate::harness::said(&output));
    }
    eprintln!("link down for {time:?}: complete {:?} after it was back", begin.elapsed());
    assert_eq!(sha256(&fetched), sha256(&original));
    assert_eq!(sha256(&world.dir("put").join("copy")), sha256(&upload));
    // The link itself loses nothing, and what the outage swallowed is not called its loss.
    let losses = [&world.a, &world.b].map(|gateway| {
        let link = gateway.status().links.remove(0);
        (link.send.loss_ppm, link.retransmitted_packets)
    });
    eprintln!("loss in ppm, and packets sent again: {losses:?}");
    assert!(losses.iter().all(|(ppm, _)| *ppm < 2_000), "{losses:?}");
}

#[test]
fn transfers_wait_while_the_link_is_down_and_complete_unharmed() {
    if root() {
        the_link_is_down_for(Duration::from_secs(10));
    }
}

#[test]
fn transfers_survive_a_minute_without_a_link() {
    if root() {
        the_link_is_down_for(Duration::from_secs(60));
    }
}

#[test]
fn a_ship_that_changes_its_address_keeps_its_transfers() {
    if !root() {
        return;
    }
    let world = World::with(|plan| {
        plan.a.listen = "0.0.0.0:4500".into();
        plan.rate = units::BitRate::from_mbps(8);
    });
    let listener = listen(&world.server, SERVER);
    let mut down = joined(&world.client, &listener);
    let mut up = joined(&world.client, &listener);
    let data = pattern(31, 4_000_000);
    let sending = [send_all(&down.1, data.clone()), send_all(&up.0, data.clone())];
    let receiving = thread::spawn(move || read_to_end(&mut up.1));
    thread::sleep(Duration::from_secs(1));
    world.gwa.ip("address add 192.0.2.77/24 dev sat0").unwrap();
    world.gwa.ip("address delete 192.0.2.1/24 dev sat0").unwrap();
    assert!(read_to_end(&mut down.0) == (data.clone(), End::Clean));
    assert!(receiving.join().unwrap() == (data, End::Clean));
    for s in sending {
        s.join().unwrap().unwrap();
    }
    check_echo(&world.client, &listener);
    let link = &world.b.status().links[0];
    assert_eq!(link.endpoint.as_deref(), Some("192.0.2.77:4500"));
}

#[test]
fn a_connection_opened_while_the_link_is_down_waits_for_it() {
    if !root() {
        return;
    }
    let world = World::new();
    let listener = listen(&world.server, SERVER);
    // To a server that nobody knows yet: it is asked before its client is answered.
    world.set_link_down(true);
    let client = world.client.clone();
    let opening = thread::spawn(move || connect(&client, SERVER));
    thread::sleep(Duration::from_secs(4));
    assert!(!opening.is_finished(), "nobody can have asked the server");
    world.set_link_down(false);
    let mut near = opening.join().unwrap();
    send_word(&mut near, &mut accept(&listener));
    // To one that has answered before: its client is answered at once, and its bytes wait.
    world.set_link_down(true);
    let near = connect(&world.client, SERVER);
    let sending = send_all(&near, b"patience".to_vec());
    thread::sleep(Duration::from_secs(4));
    world.set_link_down(false);
    let mut far = accept(&listener);
    assert_eq!(read_to_end(&mut far), (b"patience".to_vec(), End::Clean));
    sending.join().unwrap().unwrap();
}

/// With one gateway dead, traffic goes in clear both ways as soon as the other notices,
/// and back into the tunnel when it is there again.
fn one_dead_gateway_is_passed_by(client_side: bool) {
    let mut world = World::with(|plan| {
        plan.clear_routes = true;
        plan.a.on_failure = "wire";
        plan.b.on_failure = "wire";
    });
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    let dying = if client_side { &mut world.a } else { &mut world.b };
    dying.kill();
    // What is sent until then is lost, or waits for the peer.
    let begin = Instant::now();
    let alive = if client_side { &world.b } else { &world.a };
    wait_for("the survivor to notice", || {
        let _ = shell(&world.client, "ping -c 1 -W 1 10.2.0.2");
        let log = alive.log();
        log.contains("its traffic goes in clear").then_some(()).ok_or(log)
    });
    eprintln!("gateway {} dead: in clear after {:?}", dying_name(client_side), begin.elapsed());
    check_echo(&world.client, &listener);
    wait_for("a datagram", || datagram_arrives(&world).then_some(()).ok_or("none".into()));
    // The satellite's devices have no link-local addresses to find each other with when
    // they forward.
    must(&world.gwa, "ping -c 5 -i 0.2 -W 20 fd00:5a7::2");
    must(&world.gwb, "ping -c 5 -i 0.2 -W 20 fd00:5a7::1");
    must(&world.client, "ping -c 5 -i 0.2 -W 20 fd02::2");
    let streams = alive.status().links[0].streams_total;
    check_echo(&world.client, &listener);
    assert_eq!(alive.status().links[0].streams_total, streams, "it went past the gateways");
    // And back into the tunnel with a new start.
    let dead = if client_side { &mut world.a } else { &mut world.b };
    dead.start();
    dead.wait_until_up();
    let alive = if client_side { &world.b } else { &world.a };
    alive.wait_for_log("goes through the link again");
    check_echo(&world.client, &listener);
    let started = if client_side { &world.a } else { &world.b };
    assert!(started.status().links[0].streams_total > 0, "it is split again");
}

#[test]
fn with_wire_and_only_the_clients_gateway_dead_traffic_flows_in_clear_both_ways() {
    if root() {
        one_dead_gateway_is_passed_by(true);
    }
}

#[test]
fn with_wire_and_only_the_servers_gateway_dead_traffic_flows_in_clear_both_ways() {
    if root() {
        one_dead_gateway_is_passed_by(false);
    }
}

#[test]
fn with_block_a_silent_peer_opens_no_way_past_the_tunnel() {
    if !root() {
        return;
    }
    let mut world = World::with(|plan| plan.clear_routes = true);
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    world.b.kill();
    let near = connect(&world.client, SERVER);
    drop(send_all(&near, b"secret".to_vec()));
    world.a.wait_for_log("the peer does not answer");
    thread::sleep(Duration::from_secs(8));
    assert!(!world.a.log().contains("in clear"), "{}", world.a.log());
    assert!(!datagram_arrives(&world), "a datagram went in clear");
}
