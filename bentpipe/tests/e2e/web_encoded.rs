//! Pages that their server encodes: what of them crosses the link, and what both ends read in them.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::{fs, thread};

use crate::harness::{World, must, root};
use crate::tcp::pattern;
use crate::web::{AT, Server, field, sized, wait_for_count, world, world_with};

/// With it an answer may be somebody's own.
const COOKIE: &str = "-H 'Cookie: session=0123456789abcdef'";

/// A page of which gzip makes about a quarter. Of the second version a hundredth is another.
fn page(version: usize) -> Vec<u8> {
    let letters = |seed: u64, n: usize| pattern(seed, n).into_iter().map(|b| b'a' + b % 4);
    let mut page = b"<img src=picture.png><link rel=stylesheet href=style.css>".to_vec();
    page.extend(letters(1, 400_000));
    page.splice(200_000..204_000, letters(version as u64, 4_000));
    page
}

fn gzip(bytes: Vec<u8>) -> Vec<u8> {
    let mut program = Command::new("gzip");
    let program = program.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().expect("gzip");
    let mut input = program.stdin.take().expect("its input");
    let writing = thread::spawn(move || input.write_all(&bytes).expect("it reads"));
    let packed = program.wait_with_output().expect("it ends").stdout;
    writing.join().unwrap();
    packed
}

/// Versions of the page, and the same in gzip.
fn pages() -> &'static [(Vec<u8>, Vec<u8>); 2] {
    static PAGES: OnceLock<[(Vec<u8>, Vec<u8>); 2]> = OnceLock::new();
    PAGES.get_or_init(|| [1, 2].map(|version| (page(version), gzip(page(version)))))
}

/// A server that encodes for whoever takes it.
fn site(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let target = head.split(' ').nth(1).unwrap_or("");
    let takes = field(head, "accept-encoding").is_some_and(|codings| codings.contains("gzip"));
    let version = usize::from(target.ends_with("page") && field(head, "x-version").is_some());
    let (plain, packed) = match target {
        "/page" | "/style.css" => &pages()[version],
        _ => return sized(target.as_bytes().to_vec()),
    };
    let (mut head, body) = sized(if takes { packed.clone() } else { plain.clone() });
    let kind = match target {
        "/page" => "Content-Type: text/html",
        _ => "Content-Type: text/css\r\nCache-Control: public, max-age=600",
    };
    let mut fields = format!("{kind}\r\nVary: Accept-Encoding\r\n");
    if takes {
        fields.push_str("Content-Encoding: gzip\r\n");
    }
    head.insert_str(head.len() - 2, &fields);
    (head, body)
}

fn load(world: &World, more: &str, path: &str) -> Vec<u8> {
    let file = world.dir("files").join("got");
    let to = file.display();
    must(&world.client, &format!("curl -sS --max-time 30 {more} -o {to} http://{AT}{path}"));
    fs::read(&file).expect("a file")
}

/// Bytes of streams from the servers' side as they crossed. How many packets carry them, and how
/// many of those come twice, is another matter: it depends on the machine's pace too.
fn crossed(world: &World) -> u64 {
    world.a.status().links[0].compression.total.received_as
}

#[test]
fn a_users_own_page_crosses_as_its_server_encodes_it_and_is_read_all_the_same() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-encoded");
    let server = Server::start(&world.server, site);
    let asked = |path: &str| {
        let first = format!("GET {path} ");
        server.heads().into_iter().filter(|head| head.starts_with(&first)).collect::<Vec<_>>()
    };
    let [(first, packed), (second, _)] = pages();
    let most = packed.len() as u64 * 102 / 100;

    let before = crossed(&world);
    assert!(load(&world, &format!("--compressed {COOKIE}"), "/page") == *first);
    // The sheet is as long as the page, and comes with it.
    wait_for_count(&world.a, "pushed", 2);
    assert!(load(&world, &format!("--compressed {COOKIE}"), "/style.css") == *first);
    let both = crossed(&world) - before;
    println!("{both} bytes for two of {} in gzip, {} plain", packed.len(), first.len());
    assert!(both <= 2 * most, "{both} bytes, {} each in gzip", packed.len());
    assert_eq!(load(&world, COOKIE, "/picture.png"), b"/picture.png");
    for object in ["/page", "/style.css", "/picture.png"] {
        assert_eq!(asked(object).len(), 1, "{object}");
    }

    // The next version crosses as its difference from what was inside the first.
    let before = crossed(&world);
    let newer = format!("--compressed {COOKIE} -H 'X-Version: 2'");
    assert!(load(&world, &newer, "/page") == *second);
    let difference = crossed(&world) - before;
    println!("{difference} bytes for the second version");
    assert!(difference <= packed.len() as u64 / 4, "{difference} bytes");

    // Who takes no encoding is given none.
    let again = asked("/page").len();
    assert!(load(&world, COOKIE, "/page") == *first);
    assert_eq!(asked("/page").len(), again + 1);
}

/// One end says that nothing is compressed; the other's service hears it.
#[test]
fn an_open_page_crosses_as_its_server_encodes_it_where_the_link_compresses_nothing() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("web-uncompressed", |plan, _| {
        plan.a.peer.insert_str(0, "compress = \"off\"\n");
    });
    let _server = Server::start(&world.server, site);
    let [(first, packed), _] = pages();
    // Nothing is compressed: they cross as they are.
    let crossed = || world.a.status().links[0].receive.lan_bytes;
    let before = crossed();
    assert!(load(&world, "--compressed", "/page") == *first);
    wait_for_count(&world.a, "pushed", 2);
    assert!(load(&world, "--compressed", "/style.css") == *first);
    let both = crossed() - before;
    println!("{both} bytes for two of {} in gzip, {} plain", packed.len(), first.len());
    assert!(both <= packed.len() as u64 * 204 / 100, "{both} bytes, {} each in gzip", packed.len());
}
