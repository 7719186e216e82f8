//! Compression of TCP (R-COMPRESS), which is on unless a file says otherwise.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use bentpipe::admin::{CompressedBytes, LinkStatus};
use units::BitRate;

use crate::documents::{COMPRESSION, put, toml};
use crate::files::{HttpServer, sha256};
use crate::gateway::PROGRAM;
use crate::harness::{Plan, World, root, run, said};
use crate::tcp::{End, SERVER, expect, joined, listen, pattern, read_to_end, send_all};

/// What `seq` prints: numbers, line by line.
fn numbers(len: usize) -> Vec<u8> {
    (1_000_000..).flat_map(|n: u32| format!("{n}\n").into_bytes()).take(len).collect()
}

/// A server's bytes cross, end in good order, and are what they were.
fn download(world: &World, data: &[u8]) {
    let (mut near, far) = joined(&world.client, &listen(&world.server, SERVER));
    let sender = send_all(&far, data.to_vec());
    let (got, end) = read_to_end(&mut near);
    assert!(got == data, "{} bytes came, {} were sent, or others", got.len(), data.len());
    assert_eq!(end, End::Clean);
    sender.join().unwrap().unwrap();
    drop((near, far));
    world.wait_until_no_streams();
}

/// What the client's gateway received of the link since `before`.
struct Seen {
    link_bytes: u64,
    total: CompressedBytes,
}

impl Seen {
    fn now(world: &World) -> Seen {
        let link = status(world);
        Seen { link_bytes: link.receive.link_bytes, total: link.compression.total }
    }

    fn since(&self, before: &Seen) -> (u64, u64, u64) {
        let (a, b) = (&before.total, &self.total);
        (
            self.link_bytes - before.link_bytes,
            b.received - a.received,
            b.received_as - a.received_as,
        )
    }
}

/// Nothing else makes the bytes fewer, or more.
fn alone(plan: &mut Plan) {
    for end in [&mut plan.a, &mut plan.b] {
        end.peer = "dedup = \"off\"\n".into();
    }
}

fn status(world: &World) -> LinkStatus {
    world.a.status().links.remove(0)
}

#[test]
fn by_the_pages_example_everything_goes_as_it_is() {
    if !root() {
        return;
    }
    let example = put(toml(COMPRESSION, "# Compression"), "[[peer]]\n", "");
    let world = World::with(|plan| {
        plan.rate = BitRate::from_mbps(10);
        for end in [&mut plan.a, &mut plan.b] {
            end.peer = format!("dedup = \"off\"\n{example}");
        }
    });
    let before = Seen::now(&world);
    download(&world, &numbers(500_000));
    let (link, ..) = Seen::now(&world).since(&before);
    assert!(link > 500_000, "{link}");
}

#[test]
fn what_shrinks_crosses_in_fewer_bytes_and_noise_in_hardly_more() {
    if !root() {
        return;
    }
    let world = World::with(|plan| plan.rate = BitRate::from_mbps(10));
    let text = numbers(3_000_000);
    let before = Seen::now(&world);
    download(&world, &text);
    let after = Seen::now(&world);
    let (link, content, coded) = after.since(&before);
    println!("{content} bytes of text became {coded}, and {link} on the link");
    assert_eq!(content, text.len() as u64);
    assert!(coded * 3 < content && link * 3 < content, "{coded} and {link} of {content}");
    let far = world.b.status().links.remove(0).compression.total;
    assert_eq!((far.sent, far.sent_as), (after.total.received, after.total.received_as));

    let noise = pattern(5, 3_000_000);
    download(&world, &noise);
    let (link, content, coded) = Seen::now(&world).since(&after);
    println!("{content} bytes of noise became {coded}, and {link} on the link");
    assert_eq!(content, noise.len() as u64);
    assert!(coded * 1000 <= content * 1001, "{coded} of {content}");

    // By class and by client; a stream while it is open.
    let told = status(&world).compression;
    assert_eq!(told.classes.keys().collect::<Vec<_>>(), ["normal"]);
    assert_eq!(told.hosts.len(), 1);
    assert_eq!((told.hosts[0].host.as_str(), &told.hosts[0].bytes), ("10.1.0.2", &told.total));
    assert!(told.streams.is_empty(), "{:?}", told.streams);
    let hosts = status(&world).hosts;
    let client = hosts.iter().find(|h| h.host == "10.1.0.2").expect("an account");
    let streams = (client.stream_bytes_sent, client.stream_bytes_received);
    assert_eq!(streams, (told.total.sent, told.total.received));
    let shown = run(Command::new(PROGRAM)
        .args(["status", "--socket"])
        .arg(world.a.dir().join("admin.sock")));
    let shown = said(&shown);
    for words in ["compression  ", "received as", "class normal: ", "host 10.1.0.2: "] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
}

/// Each side says a little and waits for the other, as in a shell: nothing waits for more.
#[test]
fn an_exchange_of_keystrokes_works_and_one_stream_is_told_of() {
    if !root() {
        return;
    }
    let world = World::new();
    let (mut near, mut far) = joined(&world.client, &listen(&world.server, SERVER));
    for n in 0..60u32 {
        let key = [b'a' + (n % 26) as u8];
        near.write_all(&key).unwrap();
        expect(&mut far, &key);
        let echo = format!("{n}\x1b[1m{}\x1b[0m", key[0] as char).into_bytes();
        far.write_all(&echo).unwrap();
        expect(&mut near, &echo);
    }
    let told = status(&world).compression;
    assert_eq!(told.streams.len(), 1, "{told:?}");
    let stream = &told.streams[0];
    assert_eq!(
        (stream.host.as_str(), stream.port, stream.class.as_str()),
        ("10.1.0.2", 7000, "normal")
    );
    assert_eq!(stream.bytes.sent, 60);
    near.write_all(b"exit\n").unwrap();
    drop(near);
    let (rest, end) = read_to_end(&mut far);
    assert_eq!((rest.as_slice(), end), (&b"exit\n"[..], End::Clean));
}

/// L-CO-1.
#[test]
fn off_at_one_end_is_off() {
    if !root() {
        return;
    }
    for off_at in 0..2 {
        let world = World::with(|plan| {
            alone(plan);
            let end = if off_at == 0 { &mut plan.a } else { &mut plan.b };
            end.peer += "compress = \"off\"";
        });
        let text = numbers(500_000);
        let before = status(&world).receive.link_bytes;
        download(&world, &text);
        let link = status(&world);
        let crossed = link.receive.link_bytes - before;
        assert!(crossed > text.len() as u64, "{crossed} bytes on the link");
        assert_eq!(link.compression.total, CompressedBytes::default());
    }
}

/// A real client and a server of HTTP: the file is the same, the request is left alone.
#[test]
fn curl_gets_a_file_in_fewer_bytes() {
    if !root() {
        return;
    }
    let world = World::with(|plan| {
        alone(plan);
        plan.rate = BitRate::from_mbps(2);
    });
    let (page, into) = (numbers(1_000_000), world.dir("got"));
    let original = into.join("original");
    std::fs::write(&original, &page).unwrap();
    let _server =
        HttpServer::start(&world.server, "10.2.0.2:80", &[("/page", page)], world.dir("put"));
    let got = into.join("page");
    fetch(&world, "http://10.2.0.2/page", &got);
    assert_eq!(sha256(&got), sha256(&original));
    world.wait_until_no_streams();
    let c = status(&world).compression.total;
    assert!(c.sent > 0 && c.sent_as == c.sent + 1, "a request goes as it is: {c:?}");
    assert!(c.received > 1_000_000 && c.received_as * 3 < c.received, "{c:?}");
}

fn fetch(world: &World, url: &str, into: &Path) {
    let output = run(world
        .client
        .command("curl")
        .args(["-sS", "--max-time", "120", "-o"])
        .arg(into)
        .arg(url));
    assert!(output.status.success(), "{}", said(&output));
}
