//! Clients of the gateway's own proxy, which `bentpipe-web` serves like hosts that are intercepted.

use std::io::{Read as _, Write as _};

use crate::harness::{World, must, root, wait_for};
use crate::tcp::{accept, connect, listen, pattern};
use crate::web::{Server, field, sized, wait_for_count, world_with};
use crate::web_hub::with_hosts;

const PROXY: &str = "10.1.0.1:1080";

/// A page with a picture, and whatever else is asked for, fresh for a while.
fn site(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let (kind, body) = match head.split(' ').nth(1) {
        Some("/page") => ("text/html", b"<img src=picture>".to_vec()),
        Some("/picture") => ("image/png", pattern(1, 50_000)),
        _ => ("application/octet-stream", pattern(2, 400_000)),
    };
    let (mut head, body) = sized(body);
    let fields = format!("Content-Type: {kind}\r\nCache-Control: max-age=600\r\n");
    head.insert_str(head.len() - 2, &fields);
    (head, body)
}

fn crossed(world: &World) -> u64 {
    world.a.status().links[0].receive.lan_bytes
}

/// A terminal whose proxy listens, and a hub that knows these names.
fn world(label: &str) -> (World, crate::harness::Scratch) {
    world_with(label, |plan, programs| {
        plan.a.node.insert_str(0, &format!("proxy = \"{PROXY}\"\n"));
        plan.a.routes = vec!["0.0.0.0/0", "::/0"];
        with_hosts(plan, programs, "10.2.0.2 shop.test\n10.2.0.2 other.test\n");
    })
}

#[test]
fn clients_of_the_proxy_are_answered_from_what_is_kept() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-proxied");
    let server = Server::start(&world.server, site);
    let out = world.dir("files").join("got");
    let body = pattern(2, 400_000);
    let environment = format!("env http_proxy=http://{PROXY} curl -sS --fail --max-time 60");
    let socks = format!("curl -sS --fail --max-time 60 --proxy socks5h://{PROXY}");
    for (n, [first, again]) in [
        [
            format!("{environment} http://10.2.0.2/by-address"),
            environment.clone() + " http://10.2.0.2/by-address",
        ],
        [
            format!("{environment} http://shop.test/by-name"),
            socks.clone() + " http://shop.test/by-name",
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let get = |command: &str| {
            let _ = std::fs::remove_file(&out);
            must(&world.client, &format!("{command} -o {}", out.display()));
            assert!(std::fs::read(&out).unwrap() == body, "{command}");
        };
        get(&first);
        wait_for_count(&world.a, "in_memory", n as u64 + 1);
        let before = crossed(&world);
        get(&again);
        let bytes = crossed(&world) - before;
        println!("{again}: {bytes} bytes of an answer crossed the second time");
        assert!(bytes < 5000, "{bytes} bytes crossed for {again}");
        assert_eq!(server.heads().len(), n + 1, "{:?}", server.heads());
    }
    let heads = server.heads();
    assert_eq!(field(&heads[1], "host"), Some("shop.test"), "{heads:?}");
    assert!(heads.iter().all(|head| head.starts_with("GET /by-")), "{heads:?}");
    // Another's page is not given by that name, and a name that is none is told.
    must(&world.client, &format!("{environment} -o /dev/null http://other.test/by-name"));
    assert_eq!(server.heads().len(), 3);
    let none = must(
        &world.client,
        &format!(
            "curl -sS --max-time 60 --proxy http://{PROXY} -w %{{http_code}} -o /dev/null http://nobody.test/"
        ),
    );
    assert_eq!(none, "502");
}

/// What a page needs comes before it is asked for, by the name that its client said.
#[test]
fn pages_are_pushed_to_clients_of_the_proxy() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-proxied-push");
    let server = Server::start(&world.server, site);
    let get = |path: &str| {
        let curl =
            format!("curl -sS --fail --max-time 60 --proxy http://{PROXY} -H 'Accept: text/html'");
        must(&world.client, &format!("{curl} -o /dev/null http://shop.test/{path}"));
    };
    get("page");
    wait_for_count(&world.a, "pushed", 1);
    wait_for("all of it", || match server.heads().len() {
        2 => Ok(()),
        n => Err(format!("{n} requests")),
    });
    get("picture");
    assert_eq!(server.heads().len(), 2, "{:?}", server.heads());
    wait_for_count(&world.a, "push_used", 1);
}

/// What is no HTTP, or is for another host than its client said, goes where the client wanted.
#[test]
fn what_the_service_does_not_want_of_the_proxys_clients_loses_no_byte() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-proxied-pass");
    let listener = listen(&world.server, "10.2.0.2:80");
    // SOCKS5 (RFC 1928): no authentication, and CONNECT to a name.
    let asked = b"\x05\x01\0\x05\x01\0\x03\x09shop.test\0\x50";
    for said in [
        &b"SSH-2.0-x\r\n"[..],
        b"GET / HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n",
        b"GET /chat HTTP/1.1\r\nHost: shop.test\r\nUpgrade: websocket\r\n\r\nframes",
    ] {
        let mut near = connect(&world.client, PROXY);
        near.write_all(&[&asked[..], said].concat()).unwrap();
        let mut far = accept(&listener);
        let mut got = vec![0; said.len()];
        far.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(said));
        far.write_all(b"answer").unwrap();
        let mut answer = [0; 18];
        near.read_exact(&mut answer).unwrap();
        assert_eq!((&answer[..2], &answer[12..]), (&[5, 0][..], &b"answer"[..]));
    }
    // What follows a request that is passed on is for nobody.
    let mut near = connect(&world.client, PROXY);
    let first =
        "POST http://shop.test/x HTTP/1.1\r\nHost: shop.test\r\nUpgrade: x\r\nX-Length: 2\r\n";
    let strange = format!(
        "BREW http://shop.test/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab{first}"
    );
    near.write_all(strange.as_bytes()).unwrap();
    let mut far = accept(&listener);
    far.write_all(b"done").unwrap();
    drop(near);
    let mut got = Vec::new();
    let _ = far.read_to_end(&mut got);
    let got = String::from_utf8_lossy(&got).into_owned();
    assert!(
        got.starts_with("BREW /x HTTP/1.1\r\nHost: shop.test\r\n") && got.ends_with("\r\n\r\nab"),
        "{got}"
    );
}
