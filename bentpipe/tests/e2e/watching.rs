//! What the control socket tells: events as they come, usage by host, and the log of outages,
//! also after a restart and after a crash.

use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe::admin::{
    self, Answer, By, Cause, Event, LinkState, Notice, Outage, Request, UsageReport, Watcher,
};

use crate::documents::{self, GUIDE};
use crate::gateway::{Gateway, PROGRAM};
use crate::harness::{Plan, World, root, wait_for, wait_long_for};
use crate::tcp::{
    SERVER, accept, check_echo, connect, expect, joined, listen, pattern, read_to_end,
};

/// What is kept is on the disk well before this: a minute at the most, on an idle machine.
const KEPT: Duration = Duration::from_secs(120);

fn socket(gateway: &Gateway) -> std::path::PathBuf {
    gateway.dir().join("admin.sock")
}

/// The gateway's events from now on, the snapshot first.
pub struct Watch(Receiver<Notice>);

impl Watch {
    fn begin(gateway: &Gateway, request: &Request) -> Watch {
        let patience = units::Duration::from_secs(20);
        let mut watcher = Watcher::open(&socket(gateway), request, patience).expect("a watcher");
        let (to, events) = channel();
        thread::spawn(move || {
            while let Ok(Some(notice)) = watcher.next_notice() {
                if to.send(notice).is_err() {
                    return;
                }
            }
        });
        Watch(events)
    }

    /// All of them.
    pub fn all(gateway: &Gateway) -> Watch {
        Watch::begin(gateway, &Request::Watch { peer: None, flows: true })
    }

    /// Waits for an event that `find` finds something in.
    pub fn wait<T>(&self, what: &str, mut find: impl FnMut(&Notice) -> Option<T>) -> T {
        let begin = Instant::now();
        let mut seen = Vec::new();
        while begin.elapsed() < KEPT {
            let Ok(notice) = self.0.recv_timeout(Duration::from_secs(5)) else { continue };
            if let Some(found) = find(&notice) {
                return found;
            }
            seen.push(format!("{notice:?}"));
        }
        panic!("{what} is not told; seen:\n{}", seen.join("\n"));
    }
}

fn ask(gateway: &Gateway, request: &Request) -> Answer {
    admin::ask(&socket(gateway), request, units::Duration::from_secs(60)).expect("an answer")
}

fn log(gateway: &Gateway) -> Vec<Outage> {
    match ask(gateway, &Request::Log { peer: None }) {
        Answer::Log(outages) => outages,
        other => panic!("{other:?}"),
    }
}

fn usage(gateway: &Gateway) -> UsageReport {
    match ask(gateway, &Request::Usage { by: By::Host, peer: None, from: None, to: None }) {
        Answer::Usage(report) => *report,
        other => panic!("{other:?}"),
    }
}

/// What a host has sent and received by split connections.
fn streams_of(report: &UsageReport, host: &str) -> [u64; 2] {
    let row = report.rows.iter().find(|row| row.of == host);
    row.map_or([0, 0], |row| [row.bytes.stream_bytes_sent, row.bytes.stream_bytes_received])
}

/// Prints what `bentpipe COMMAND` does, which must succeed.
fn command(gateway: &Gateway, args: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(args).arg("--socket").arg(socket(gateway)).output();
    let output = output.expect("the program");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    said
}

/// CT-5, CT-6, CT-9, CT-10.
#[test]
fn a_watcher_sees_a_link_come_up_a_flow_with_its_bytes_and_an_outage_with_its_end() {
    if !root() {
        return;
    }
    let mut world = World::without_gateways(&Plan::default());
    world.a.start();
    wait_for("a socket", || world.a.try_status());
    let watch = Watch::all(&world.a);
    let first = watch.0.recv_timeout(KEPT).expect("a snapshot");
    let Event::Snapshot { version: 1, status, outages } = first.event else { panic!("{first:?}") };
    assert_ne!(status.links[0].state, LinkState::Up, "the peer does not run");
    assert_eq!(outages, []);

    world.b.start();
    watch.wait("the link", |notice| match &notice.event {
        Event::LinkUp { address, anew: false, .. } => {
            assert_eq!(notice.peer.as_deref(), Some("far"));
            assert_eq!(address.as_deref(), Some("192.0.2.2:4500"));
            Some(())
        }
        _ => None,
    });

    let listener = listen(&world.server, SERVER);
    let (mut near, mut far) = joined(&world.client, &listener);
    let up = pattern(1, 300_000);
    near.write_all(&up[..1_000]).expect("written");
    expect(&mut far, &up[..1_000]);
    far.write_all(&up).expect("written");
    expect(&mut near, &up);
    drop(far);
    assert_eq!(read_to_end(&mut near).0.len(), 0);
    drop(near);
    let mut opened = None;
    watch.wait("the flow", |notice| match &notice.event {
        Event::FlowOpened { flow } => {
            assert_eq!((flow.sent_bytes, flow.received_bytes), (0, 0));
            opened = Some(flow.id.clone());
            None
        }
        Event::FlowClosed { flow } => {
            assert_eq!(Some(&flow.id), opened.as_ref(), "it was told when it began");
            assert_eq!((flow.sent_bytes, flow.received_bytes), (1_000, 300_000));
            assert_eq!((flow.client.as_str(), flow.server.as_str()), ("10.1.0.2", SERVER));
            assert_eq!((flow.class.is_empty(), flow.from_here), (false, true));
            Some(())
        }
        _ => None,
    });

    world.set_link_down(true);
    // Something has to be waited for, or nobody notices.
    let mut near = connect(&world.client, SERVER);
    let _ = near.write_all(b"is anybody there?");
    let began = watch.wait("the outage", |notice| match &notice.event {
        Event::OutageBegan { outage } => Some(outage.clone()),
        _ => None,
    });
    assert_eq!((began.cause, began.ended_ms), (Cause::Silent, None));
    let late = Watch::begin(&world.a, &Request::Watch { peer: Some("far".into()), flows: false });
    late.wait("the open outage", |notice| match &notice.event {
        Event::Snapshot { outages, .. } => {
            assert_eq!(outages.as_slice(), std::slice::from_ref(&began));
            Some(())
        }
        other => panic!("the snapshot is first: {other:?}"),
    });
    world.set_link_down(false);
    for watch in [&watch, &late] {
        watch.wait("the end of the outage", |notice| match &notice.event {
            Event::OutageEnded { outage } => {
                assert_eq!((outage.began_ms, outage.cause), (began.began_ms, began.cause));
                assert!(outage.ended_ms.is_some_and(|at| at >= outage.began_ms));
                Some(())
            }
            _ => None,
        });
    }
    assert_eq!(log(&world.a).len(), 1, "{:?}", log(&world.a));
    let text = command(&world.a, &["log"]);
    assert!(text.contains("far ") && text.contains("nothing received"), "{text}");
    let unknown = Request::Watch { peer: Some("nobody".into()), flows: true };
    let refused = Watcher::open(&socket(&world.a), &unknown, units::Duration::from_secs(20));
    assert!(refused.is_err_and(|e| e.to_string().contains("no peer \"nobody\"")));
}

/// CT-11, CT-12.
#[test]
fn usage_and_the_log_go_on_after_a_restart_and_after_a_kill() {
    if !root() {
        return;
    }
    let mut world = World::new();
    let listener = listen(&world.server, SERVER);
    let send = |world: &World, bytes: usize| {
        let (mut near, mut far) = joined(&world.client, &listener);
        let sent = pattern(bytes as u64, bytes);
        near.write_all(&sent).expect("written");
        expect(&mut far, &sent);
    };
    send(&world, 100_000);
    wait_long_for("usage", KEPT, || match streams_of(&usage(&world.a), "10.1.0.2") {
        [100_000, 0] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // Stopped in good order: what was not told yet is written, too.
    send(&world, 50_000);
    world.a.signal("TERM");
    assert!(world.a.wait_until_ended().success());
    world.a.start();
    world.a.wait_until_up();
    let report = usage(&world.a);
    assert_eq!(streams_of(&report, "10.1.0.2"), [150_000, 0]);
    assert!(report.total.link_bytes_sent > 150_000, "{report:?}");
    let stopped = log(&world.a);
    assert_eq!(stopped.len(), 1, "{stopped:?}");
    assert_eq!((stopped[0].peer.clone(), stopped[0].cause), (None, Cause::GatewayStopped));

    send(&world, 30_000);
    wait_long_for("usage on the disk", KEPT, || {
        let files = std::fs::read_dir(world.a.dir()).expect("a directory").flatten();
        let dir = files.map(|f| f.path()).find(|f| f.to_string_lossy().ends_with(".usage"));
        let dir = dir.ok_or("no directory of usage")?;
        let days = std::fs::read_dir(dir).expect("a directory").flatten();
        // Not what is half written.
        let days = days.filter(|day| day.path().extension().is_none_or(|e| e != "new"));
        let texts: Vec<String> =
            days.filter_map(|day| std::fs::read_to_string(day.path()).ok()).collect();
        // Of one day or, around midnight, of two.
        let sent = texts.iter().filter_map(|text| {
            text.split_once("\"10.1.0.2\":[")?.1.split(',').next()?.parse::<u64>().ok()
        });
        (sent.sum::<u64>() == 180_000).then_some(()).ok_or(texts.join("\n"))
    });
    world.a.kill();
    world.a.start();
    world.a.wait_until_up();
    assert_eq!(streams_of(&usage(&world.a), "10.1.0.2"), [180_000, 0]);
    let causes: Vec<_> = log(&world.a).iter().map(|o| (o.peer.clone(), o.cause)).collect();
    let killed = (None, Cause::GatewayKilled);
    assert_eq!(causes, [(None, Cause::GatewayStopped), killed]);
    // The peer saw both: the first as an end in order, the second as it was found out.
    // It knows of the second session a moment later than the one who called.
    wait_for("the peer's log", || match log(&world.b) {
        far if far.len() < 2 || far.iter().any(|o| o.ended_ms.is_none()) => Err(format!("{far:?}")),
        far => {
            assert_eq!(far[0].cause, Cause::Closed, "{far:?}");
            Ok(())
        }
    });
    let text = command(&world.a, &["usage", "--csv"]);
    assert!(text.contains("\n10.1.0.2,180000,0,"), "{text}");
    let text = command(&world.a, &["usage", "--by", "day"]);
    assert!(text.starts_with("20") && text.contains("\nall "), "{text}");
    for words in [&["usage", "--peer", "nobody"][..], &["log", "nobody"]] {
        let mut program = Command::new(PROGRAM);
        let output = program.args(words).arg("--socket").arg(socket(&world.a)).output();
        let output = output.expect("the program");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(said.contains("there is no peer \"nobody\""), "{words:?}: {said}");
    }
}

/// Connections that stand at once while a watcher does not read.
const AT_ONCE: usize = 100;

/// CT-7.
#[test]
fn a_watcher_that_never_reads_is_dropped_with_a_reason_and_holds_nobody_up() {
    if !root() {
        return;
    }
    let world = World::new();
    let mut lazy = UnixStream::connect(socket(&world.a)).expect("a connection");
    lazy.write_all(b"{\"request\":\"watch\"}\n").expect("written");
    let watch = Watch::all(&world.a);
    let listener = listen(&world.server, SERVER);
    let begin = Instant::now();
    let mut rounds = 0;
    while !world.a.log().contains("a watcher of the control socket was dropped") {
        let near: Vec<_> = (0..AT_ONCE).map(|_| connect(&world.client, SERVER)).collect();
        let far: Vec<_> = (0..AT_ONCE).map(|_| accept(&listener)).collect();
        drop((near, far));
        rounds += 1;
        assert!(begin.elapsed() < Duration::from_secs(120), "not dropped in {rounds} rounds");
    }
    println!("dropped after {rounds} rounds of {AT_ONCE} connections, {:?}", begin.elapsed());
    check_echo(&world.client, &listener);
    // The other one has them all, to the last.
    watch.wait("a flow with bytes", |notice| match &notice.event {
        Event::FlowClosed { flow } if flow.sent_bytes > 0 => Some(()),
        Event::Dropped { .. } | Event::Missed { .. } => panic!("{notice:?}"),
        _ => None,
    });
    let mut text = String::new();
    lazy.set_read_timeout(Some(Duration::from_secs(30))).expect("a time-out");
    lazy.read_to_string(&mut text).expect("what was left for it");
    let last: Notice = text.lines().last().and_then(|l| serde_json::from_str(l).ok()).expect("one");
    let Event::Dropped { reason } = last.event else { panic!("{last:?}") };
    assert!(reason.contains("were not read"), "{reason}");
    for line in text.lines() {
        assert!(serde_json::from_str::<Notice>(line).is_ok(), "no line is cut: {line}");
    }
}

/// CT-4: over sessions, and over a reload.
#[test]
fn counters_do_not_go_back_with_a_new_session_or_a_reload() {
    if !root() {
        return;
    }
    let mut world = World::new();
    let listener = listen(&world.server, SERVER);
    let counters = |world: &World| {
        let status = world.a.status();
        let link = &status.links[0];
        [
            link.send.lan_bytes,
            link.receive.lan_bytes,
            link.send.link_bytes,
            link.receive.link_bytes,
            link.streams_total,
            link.datagrams.sent,
            link.compression.total.sent + link.compression.total.received,
            link.handshakes.completed,
        ]
    };
    let (mut near, mut far) = joined(&world.client, &listener);
    let text = "all stations report and no more\n".repeat(5_000);
    near.write_all(text.as_bytes()).expect("written");
    expect(&mut far, text.as_bytes());
    crate::harness::pings(&world.client, 3, "10.2.0.2");
    drop((near, far));
    wait_for("the end of the stream", || match world.a.status().links[0].streams_open {
        0 => Ok(()),
        n => Err(format!("{n} streams")),
    });
    let before = counters(&world);
    assert!(before.iter().all(|n| *n > 0), "{before:?}");
    world.b.kill();
    world.b.start();
    wait_for("a new session", || match counters(&world)[7] {
        n if n > before[7] => Ok(()),
        n => Err(format!("{n} handshakes")),
    });
    let check = |after: [u64; 8], what: &str| {
        let back = before.iter().zip(&after).any(|(before, after)| after < before);
        assert!(!back, "{what}: {before:?} became {after:?}");
    };
    check(counters(&world), "a new session");
    world.a.signal("HUP");
    world.a.wait_for_log("the configuration was read again");
    check(counters(&world), "a reload");
}

/// The commands of the operator's guide, as they stand there.
#[test]
fn the_guides_examples_of_events_usage_and_outages_work() {
    if !root() {
        return;
    }
    let world = World::new();
    let commands = documents::commands(GUIDE, "### Events, usage and outages");
    for words in &commands {
        let args: Vec<&str> = words.iter().map(|w| if *w == "ship" { "far" } else { w }).collect();
        let said = match args[0] {
            "watch" => first_line(&world.a, &args),
            _ => command(&world.a, &args),
        };
        assert!(!said.is_empty(), "bentpipe {args:?} says nothing");
    }
    assert_eq!(commands.len(), 8);
}

/// The first line of a command that goes on.
fn first_line(gateway: &Gateway, args: &[&str]) -> String {
    let mut child = Command::new(PROGRAM)
        .args(args)
        .arg("--socket")
        .arg(socket(gateway))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut line = String::new();
    let out = child.stdout.take().expect("a pipe");
    std::io::BufReader::new(out).read_line(&mut line).expect("a line");
    child.kill().expect("a signal");
    child.wait().expect("an end");
    line
}
