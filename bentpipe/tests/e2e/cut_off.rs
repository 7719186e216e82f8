//! Names and pages that the terminal has, while the link is down: after the far gateway has ended,
//! before it was heard of, and with a line that nobody has raised (spec, S-GW-1). And pages while
//! nothing is heard.

use std::fs;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use os::netns::NetNs;

use crate::accelerators::{program, serve, wait_until_running};
use crate::documents::{NAMES, WEB};
use crate::gateway::{Gateway, Settings};
use crate::harness::{Plan, Scratch, World, root, said, shell, wait_for};
use crate::line::wait_for_state;
use crate::names::{SERVER, look_up, serve_one, with_names};
use crate::tcp::pattern;
use crate::web::{AT, Server, field, sized, wait_for_count, world_with};
use crate::web_cache::with_directory;

/// What comes from memory takes less, on whatever machine; a host waits so long at most.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A name server by TCP: names that begin with `old` hold for a second, others for 300.
fn serve_dns(ns: &NetNs) -> Arc<AtomicU64> {
    let listener = ns.run(|| TcpListener::bind(SERVER)).expect("a listener");
    let count = Arc::new(AtomicU64::new(0));
    let asked = count.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if serve_one(stream, dns_answer).is_ok() {
                asked.fetch_add(1, Relaxed);
            }
        }
    });
    count
}

fn dns_answer(query: &[u8]) -> Vec<u8> {
    let end = 12 + query[12..].iter().position(|b| *b == 0).expect("a name") + 5;
    let mut out = query[..end].to_vec();
    (out[2], out[3]) = (0x81, 0x80);
    out[6..12].copy_from_slice(&[0, 1, 0, 0, 0, 0]);
    let ttl = if out[13..].starts_with(b"old") { [0, 1] } else { [1, 44] };
    out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, ttl[0], ttl[1], 0, 4, 10, 2, 0, 2]);
    out
}

fn site(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let target = head.split(' ').nth(1).unwrap_or("");
    if field(head, "if-none-match").is_some() {
        return ("HTTP/1.1 304 Not Modified\r\n\r\n".into(), Vec::new());
    }
    let rules = match target {
        "/old" => "max-age=1",
        "/strict" => "max-age=1, must-revalidate",
        _ => "max-age=600",
    };
    let (mut fields, body) = sized(pattern(target.len() as u64, 10_000));
    fields.insert_str(fields.len() - 2, &format!("Cache-Control: {rules}\r\nETag: \"one\"\r\n"));
    (fields, body)
}

/// The status of an answer that is whole; `None`: none came in this many seconds.
fn get(client: &NetNs, path: &str, more: &str, within: u32) -> Option<u16> {
    let script = format!(
        "curl -sS --max-time {within} {more} -o /dev/null -w '%{{http_code}} %{{size_download}}' \
         http://{AT}{path}"
    );
    let output = shell(client, &script);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        assert!(said(&output).contains("timed out"), "{path}: {}", said(&output));
        return None;
    }
    let (status, size) = text.split_once(' ').expect("two numbers");
    assert!(status != "200" || size == "10000", "{path}: {text}");
    Some(status.parse().expect("a status"))
}

/// A host that waits until the link is there.
fn waits_for(client: &NetNs, path: &'static str) -> JoinHandle<()> {
    let client = client.clone();
    let waits = thread::spawn(move || assert_eq!(get(&client, path, "", 60), Some(200)));
    thread::sleep(Duration::from_secs(2));
    assert!(!waits.is_finished());
    waits
}

fn stop(gateway: &mut Gateway) {
    gateway.signal("TERM");
    gateway.wait_until_ended();
}

fn wait_until_down(gateway: &Gateway) {
    wait_for("a link that is down", || match &gateway.status().links[0].state {
        bentpipe::admin::LinkState::Up => Err("it is up".into()),
        _ => Ok(()),
    });
}

/// Fresh and stale answers come at once, and nobody is asked for them.
fn pages_are_here(client: &NetNs) {
    for (path, more, status) in [
        ("/fresh", "", 200),
        ("/fresh", "-H 'Range: bytes=5-9'", 206),
        ("/old", "", 200),
        // RFC 9111, section 5.2.2.2.
        ("/strict", "", 504),
    ] {
        let begin = Instant::now();
        assert_eq!(get(client, path, more, 20), Some(status), "{path}");
        assert!(status == 504 || begin.elapsed() < AT_ONCE, "{path}: {:?}", begin.elapsed());
    }
}

fn names_are_here(client: &NetNs) {
    for name in ["fresh.example", "old.example"] {
        let took = look_up(client, name).expect(name);
        assert!(took < AT_ONCE, "{name}: {took:?}");
    }
}

#[test]
fn names_that_are_known_are_answered_at_once_while_the_far_gateway_does_not_run() {
    if !root() {
        return;
    }
    let (mut world, _programs) = with_names(true);
    let asked = serve_dns(&world.server);
    for name in ["fresh.example", "old.example"] {
        look_up(&world.client, name).expect("an answer");
    }
    stop(&mut world.b);
    wait_until_down(&world.a);
    thread::sleep(Duration::from_millis(1200));
    names_are_here(&world.client);
    assert_eq!(look_up(&world.client, "new.example"), None);
    assert_eq!(asked.load(Relaxed), 2);
    world.b.start();
    wait_for("an answer over the link", || {
        look_up(&world.client, "newer.example").map(drop).ok_or_else(|| world.a.log())
    });
    names_are_here(&world.client);
}

#[test]
fn pages_that_are_kept_are_given_at_once_while_the_far_gateway_does_not_run() {
    if !root() {
        return;
    }
    let (mut world, _programs) = world_with("web-cut-off", with_directory);
    let server = Server::start(&world.server, site);
    let client = world.client.clone();
    for path in ["/fresh", "/old", "/strict"] {
        assert_eq!(get(&client, path, "", 20), Some(200));
    }
    wait_for_count(&world.a, "on_disk", 3);
    stop(&mut world.b);
    wait_until_down(&world.a);
    thread::sleep(Duration::from_millis(2500));
    pages_are_here(&client);
    // Who insists on a new one waits, and so does who wants what is not kept.
    assert_eq!(get(&client, "/strict", "-H 'Cache-Control: no-cache'", 3), None);
    assert_eq!(server.heads().len(), 3);
    let waits = waits_for(&client, "/new");
    world.b.start();
    waits.join().expect("an answer when the link is up");
    wait_for_count(&world.a, "on_disk", 4);
    // And so it is before the first contact after a start.
    stop(&mut world.b);
    stop(&mut world.a);
    let before = server.heads().len();
    world.a.start();
    world.a.wait_for_log("bentpipe is up");
    wait_until_running(&world.a);
    wait_for_count(&world.a, "on_disk", 4);
    pages_are_here(&client);
    assert_eq!(server.heads().len(), before);
    let waits = waits_for(&client, "/newer");
    world.b.start();
    waits.join().expect("an answer when the link is up");
    world.a.wait_until_up();
    assert_eq!(get(&client, "/strict", "", 20), Some(200));
}

#[test]
fn pages_that_are_kept_are_given_while_the_link_fades() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("web-fading", |_, _| {});
    let _server = Server::start(&world.server, site);
    let client = world.client.clone();
    for path in ["/old", "/strict"] {
        assert_eq!(get(&client, path, "", 20), Some(200));
    }
    thread::sleep(Duration::from_secs(2));
    world.set_link_down(true);
    // Asked for before anybody knows that the link is dark.
    assert_eq!(get(&client, "/old", "", 20), Some(200));
    wait_for("a link that fades", || match &world.a.status().links[0].state {
        bentpipe::admin::LinkState::Fading => Ok(()),
        other => Err(format!("{other:?}")),
    });
    for _ in 0..3 {
        let begin = Instant::now();
        assert_eq!(get(&client, "/old", "", 20), Some(200));
        assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    }
    // The session goes on, and with it what may not be given unasked.
    let waits = waits_for(&client, "/strict");
    world.set_link_down(false);
    waits.join().expect("an answer when the link is back");
}

/// A ship with a line whose commands write down that they ran, and both services at both ends.
fn ship_with_a_line(programs: &Scratch) -> World {
    let at = ["bentpipe-names", "bentpipe-web"].map(|name| program(name, programs));
    let serve_both = |settings: &mut Settings| {
        serve(settings, NAMES, "bentpipe-names", &at[0]);
        serve(settings, WEB, "bentpipe-web", &at[1]);
    };
    let calls = programs.sub("calls").join("made").display().to_string();
    let mut plan = Plan::default();
    plan.a.peer = format!(
        "[peer.line]\nraise = \"echo raised >> {calls}\"\ndrop = \"true\"\nidle = \"2s\"\n\
         tariff = {{ currency = \"USD\", per_minute = \"60\", increment = \"1s\" }}\n"
    );
    serve_both(&mut plan.a);
    serve_both(&mut plan.b);
    let mut world = World::without_gateways(&plan);
    for gateway in [&mut world.b, &mut world.a] {
        gateway.start();
        gateway.wait_for_log("bentpipe is up");
    }
    for gateway in [&world.a, &world.b] {
        wait_for("two services that run", || {
            let ready = gateway.log().matches("a service is ready").count();
            if ready == 2 { Ok(()) } else { Err(gateway.log()) }
        });
    }
    world
}

#[test]
fn names_and_pages_that_are_kept_raise_no_line_and_others_do() {
    if !root() {
        return;
    }
    let programs = Scratch::new("cut-off-line");
    let world = ship_with_a_line(&programs);
    let calls = || fs::read_to_string(programs.sub("calls").join("made")).unwrap_or_default();
    let calls = || calls().lines().count();
    let asked = serve_dns(&world.server);
    let server = Server::start(&world.server, site);
    let client = &world.client;
    // The first of them raises it, as ever.
    wait_for("a name over the line", || {
        look_up(client, "fresh.example").map(drop).ok_or_else(|| world.a.log())
    });
    wait_for("a name that is kept", || {
        look_up(client, "old.example").ok_or_else(|| world.a.log())?;
        if asked.load(Relaxed) >= 2 { Ok(()) } else { Err(format!("{asked:?}")) }
    });
    for path in ["/fresh", "/old", "/strict"] {
        assert_eq!(get(client, path, "", 20), Some(200));
    }
    let (raised, heads) = (calls(), server.heads().len());
    wait_for_state(&world.a, "down");
    thread::sleep(Duration::from_millis(1500));
    let names = asked.load(Relaxed);
    for _ in 0..3 {
        names_are_here(client);
        pages_are_here(client);
    }
    // Noise waits, and the service is not asked for it: its other half would be.
    assert_eq!(look_up(client, "captive.apple.com"), None);
    thread::sleep(Duration::from_secs(2));
    assert_eq!((calls(), asked.load(Relaxed), server.heads().len()), (raised, names, heads));
    assert_eq!(wait_for_state(&world.a, "down").state, "down");
    // What is not kept raises it.
    assert_eq!(get(client, "/new", "", 30), Some(200));
    assert_eq!(calls(), raised + 1);
    wait_for_state(&world.a, "down");
    wait_for("a name over the line", || {
        look_up(client, "new.example").map(drop).ok_or_else(|| world.a.log())
    });
    assert_eq!(calls(), raised + 2);
    wait_for_state(&world.a, "down");
    assert_eq!(get(client, "/strict", "-H 'Cache-Control: no-cache'", 30), Some(200));
    assert_eq!(calls(), raised + 3, "who insists on a new one has it raised");
}
