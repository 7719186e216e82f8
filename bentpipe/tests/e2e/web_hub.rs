//! What the hub's `bentpipe-web` knows and keeps: whose server answers, and for whom.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::harness::{Plan, Scratch, World, must, root, wait_for};
use crate::tcp::pattern;
use crate::web::{Server, field, sized, wait_for_count, world_with};
use crate::web_cache::web_at;

/// Has the hub know these names and no others.
pub fn with_hosts(plan: &mut Plan, programs: &Scratch, names: &str) {
    let (script, hosts) = (programs.sub("bin").join("names.sh"), programs.sub("bin").join("hosts"));
    fs::write(&hosts, names).expect("a file");
    let bind = format!("mount --bind {} /etc/hosts", hosts.display());
    fs::write(&script, format!("{bind} && shift && exec \"$@\"\n")).expect("a script");
    let words = format!("-- unshare --mount --propagation private sh {}", script.display());
    plan.b.prefix = words;
}

fn with(fields: &str, body: &[u8]) -> (String, Vec<u8>) {
    let (mut head, body) = sized(body.to_vec());
    head.insert_str(head.len() - 2, fields);
    (head, body)
}

fn bank(_: &str, _: &[u8]) -> (String, Vec<u8>) {
    with("Cache-Control: max-age=600\r\nAge: 100\r\n", b"bank")
}

fn evil(_: &str, _: &[u8]) -> (String, Vec<u8>) {
    with("Cache-Control: max-age=600\r\n", b"evil")
}

/// Asks the server at `at` for the bank's page: its `Age`, and what it says.
fn ask(world: &World, at: &str) -> (u64, String) {
    let curl = format!("curl -sS --max-time 20 --resolve bank.test:80:{at} -D - http://bank.test/");
    let said = must(&world.client, &curl).to_lowercase();
    let (head, body) = said.split_once("\r\n\r\n").expect("an answer");
    (field(head, "age").map_or(0, |age| age.parse().expect("a number")), body.to_owned())
}

/// A page with objects of its own, of its server by another name, and of a name in a private net.
fn page(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    match head.split(' ').nth(1) {
        Some("/page") => with(
            "Content-Type: text/html\r\n",
            b"<img src=http://inside.test/x><img src=http://also.test/y><img src=z>",
        ),
        _ => with("", b"an object"),
    }
}

/// Names tell nothing of where they lead: that is judged before anybody is connected.
#[test]
fn a_page_that_names_a_host_of_a_private_net_has_nobody_connected_there() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("web-inside", |plan, programs| {
        with_hosts(plan, programs, "10.2.0.9 inside.test\n10.2.0.2 also.test\n");
    });
    must(&world.server, "ip address add 10.2.0.9/24 dev lan0");
    let server = Server::start_at(&world.server, "10.2.0.2:80", page);
    let inside = Server::start_at(&world.server, "10.2.0.9:80", evil);
    must(&world.client, "curl -sS --max-time 20 http://10.2.0.2/page");
    wait_for_count(&world.a, "pushed", 2);
    let asked = |path: &str| server.heads().iter().any(|head| head.starts_with(path));
    assert!(asked("GET /y") && asked("GET /z"), "{:?}", server.heads());
    thread::sleep(Duration::from_secs(1));
    assert_eq!(inside.connections(), 0, "{}", world.b.log());
}

#[test]
fn who_names_anothers_host_poisons_no_cache_and_all_addresses_of_a_name_share_one() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("web-verified", |plan, programs| {
        with_hosts(plan, programs, "10.2.0.2 bank.test\n10.2.0.3 bank.test\n");
    });
    for address in ["10.2.0.3", "10.2.0.9"] {
        must(&world.server, &format!("ip address add {address}/24 dev lan0"));
    }
    let [first, second] =
        ["10.2.0.2:80", "10.2.0.3:80"].map(|at| Server::start_at(&world.server, at, bank));
    let other = Server::start_at(&world.server, "10.2.0.9:80", evil);
    assert_eq!(ask(&world, "10.2.0.9").1, "evil", "he is given what he asked for");
    let (age, said) = ask(&world, "10.2.0.2");
    assert_eq!((age, said.as_str()), (100, "bank"));
    assert_eq!(ask(&world, "10.2.0.3").1, "bank");
    assert_eq!([first.heads().len(), second.heads().len()], [1, 0], "at the terminal for both");
    // The terminal forgets; the hub has what is the bank's, and nothing of the other's.
    web_at(&world.a, &["purge"]);
    let (older, said) = ask(&world, "10.2.0.3");
    assert_eq!(said, "bank");
    assert!((age..age + 90).contains(&older), "{older} s: each second once");
    assert_eq!([first.heads().len(), second.heads().len()], [1, 0], "the hub's copy");
    assert_eq!(ask(&world, "10.2.0.9").1, "evil");
    assert_eq!(other.heads().len(), 2, "not kept by the hub");
    wait_for_count(&world.b, "hub_hits", 1);
    let told = web_at(&world.b, &["stats"]).0;
    assert_eq!((&told["hub"]["in_memory"], &told["hits"]), (&1.into(), &0.into()), "{told}");
    assert_eq!(told["hub"]["hosts"][0]["host"], "bank.test", "{told}");
}

/// A page of two objects, which are not fresh for long; all of it may be validated.
fn site(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let target = head.split(' ').nth(1).unwrap_or("");
    if field(head, "if-none-match") == Some("\"one\"") {
        let fields =
            "HTTP/1.1 304 Not Modified\r\nCache-Control: max-age=1\r\nETag: \"one\"\r\n\r\n";
        return (fields.into(), Vec::new());
    }
    let kept = "Cache-Control: max-age=1\r\nETag: \"one\"\r\n";
    match target {
        "/" => with(
            "Content-Type: text/html\r\nCache-Control: no-store\r\n",
            b"<link rel=stylesheet href=sheet.css><img src=a.png>",
        ),
        "/sheet.css" => {
            let mut sheet = b"a { background: url(b.png) }".to_vec();
            sheet.extend(pattern(1, 30_000).iter().map(|b| b'a' + b % 26));
            with(&format!("Content-Type: text/css\r\n{kept}"), &sheet)
        }
        _ => with(kept, &pattern(target.len() as u64, 30_000)),
    }
}

#[test]
fn a_page_whose_objects_hold_still_is_validated_in_one_exchange() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("web-one-exchange", |_, _| {});
    let server = Server::start(&world.server, site);
    let objects = ["sheet.css", "a.png", "b.png"];
    let get = |path: &str| {
        let file = world.dir("files").join("got");
        let curl = format!("curl -sS --max-time 20 -o {} http://10.2.0.2/{path}", file.display());
        must(&world.client, &curl);
        fs::read(file).expect("a file")
    };
    get("");
    wait_for_count(&world.a, "pushed", 3);
    let first = objects.map(get);
    assert!(first.iter().all(|body| body.len() >= 30_000));
    wait_for_count(&world.a, "push_used", 3);
    thread::sleep(Duration::from_millis(1500));
    let before = world.a.status().links[0].receive.lan_bytes;
    get("");
    wait_for_count(&world.a, "validated", 3);
    wait_for_count(&world.a, "pushed", 6);
    // Nothing of it needs the satellite any more, and little of it did.
    let crossed = world.a.status().links[0].receive.lan_bytes - before;
    assert!(crossed < 5_000, "{crossed} bytes");
    world.set_link_down(true);
    assert!(objects.map(get) == first);
    world.set_link_down(false);
    let heads = server.heads();
    let held = heads.iter().filter(|h| field(h, "if-none-match").is_some()).count();
    assert_eq!((heads.len(), held), (8, 3), "the hub asked the server: {heads:?}");
    wait_for("what the hub counts", || match web_at(&world.b, &["stats"]).0 {
        told if told["hub"]["validated"] == 3 => Ok(()),
        told => Err(told.to_string()),
    });
}
