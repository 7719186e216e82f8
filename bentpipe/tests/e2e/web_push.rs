//! Page push between two `bentpipe-web`: what a page names is at the terminal before hosts ask.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Condvar, Mutex};
use std::time::Duration;
use std::{fs, thread};

use bentpipe::admin::PathState;
use units::BitRate;

use crate::accelerators::{program, serve, wait_until_running};
use crate::documents::{WEB, put};
use crate::harness::{Plan, Scratch, World, must, root, shell, wait_for};
use crate::paths::{command as path_command, start_with_second, wait_for_path};
use crate::tcp::{connect, expect, pattern};
use crate::web::{
    AT, Server, command, field, read_head, service, sized, wait_for_count, wait_until_still, world,
    world_with,
};
use crate::web_cache::web_at;
use crate::web_hub::with_hosts;

/// With these fields.
fn with(fields: &str, body: &[u8]) -> (String, Vec<u8>) {
    let (mut head, body) = sized(body.to_vec());
    head.insert_str(head.len() - 2, fields);
    (head, body)
}

fn site(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let target = head.split(' ').nth(1).unwrap_or("");
    let cookie = field(head, "cookie").unwrap_or("none").as_bytes().to_vec();
    match target {
        "/page" => with(
            "Content-Type: text/html\r\nLink: </linked.js>; rel=preload; as=script\r\n",
            b"<link rel=stylesheet href=style.css><img src=image.png><script src=script.js>\
              </script><img src=gone.png><img src=//10.2.0.9/else.png><img src=http://10.2.0.2:81/>",
        ),
        "/style.css" => with(
            "Content-Type: text/css\r\nCache-Control: max-age=600\r\n",
            b"@import 'more.css'; @font-face { src: url(font.woff2) } a { background: url(bg.png) }",
        ),
        "/more.css" => with("Content-Type: text/css\r\n", b"b { }"),
        "/moved" => ("HTTP/1.1 302 Found\r\nLocation: /page\r\nContent-Length: 0\r\n\r\n".into(), vec![]),
        "/session" => with(
            "Content-Type: text/html\r\nSet-Cookie: id=1; Path=/\r\n",
            b"<img src=mine.png><img src=set.png><iframe src=users.html></iframe>",
        ),
        "/mine.png" => with("Cache-Control: private\r\n", &cookie),
        "/set.png" => with("Set-Cookie: id=2; Path=/\r\n", &cookie),
        "/users.html" => (
            "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n".into(),
            vec![],
        ),
        "/large" => with("Content-Type: text/html\r\n", b"<img src=huge.png><img src=image.png>"),
        "/based/page" => {
            let page = format!("<base href='sub/'>{}<img src=x><img src=y>", "filler ".repeat(20_000));
            with("Content-Type: text/html\r\n", page.as_bytes())
        }
        "/huge.png" => sized(pattern(5, 3_000_000)),
        "/gone.png" => ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into(), vec![]),
        _ => sized(target.as_bytes().to_vec()),
    }
}

fn get(world: &World, more: &str, path: &str) -> String {
    must(&world.client, &format!("curl -sS --max-time 20 {more} http://{AT}{path}"))
}

/// How often the server was asked for each.
fn asked(server: &Server, target: &str) -> usize {
    let first = format!("GET {target} HTTP");
    server.heads().iter().filter(|head| head.starts_with(&first)).count()
}

#[test]
fn what_a_page_names_is_there_before_it_is_asked_for_and_is_fetched_once() {
    if !root() {
        return;
    }
    let (world, _programs) = world("push-page");
    let server = Server::start(&world.server, site);
    get(&world, "", "/moved");
    let objects = [
        "/page",
        "/linked.js",
        "/style.css",
        "/script.js",
        "/image.png",
        "/gone.png",
        "/more.css",
        "/font.woff2",
        "/bg.png",
    ];
    wait_for_count(&world.a, "pushed", objects.len() as u64);
    wait_for("all of it", || {
        let sent = server.heads().len();
        (sent == 1 + objects.len()).then_some(()).ok_or(format!("{sent}"))
    });
    // Images, too, are in the class of what was asked for: that of others may have a cap.
    let classes = world.b.status().links.remove(0).compression.classes;
    assert!(classes.get("bulk").is_none_or(|bulk| bulk.sent == 0), "{classes:?}");
    // Nothing of it needs the satellite any more.
    world.set_link_down(true);
    for object in objects {
        let got = get(&world, "-w ' %{http_code}'", object);
        let expected = if object == "/gone.png" { " 404" } else { " 200" };
        assert!(got.ends_with(expected), "{object}: {got}");
        assert!(!got.is_empty() && asked(&server, object) == 1, "{object}: {got}");
    }
    world.set_link_down(false);
    wait_for_count(&world.a, "push_used", objects.len() as u64);
    // A push is for one request; what is fresh for everybody is kept, and not sent again.
    get(&world, "", "/page");
    wait_for_count(&world.a, "pushed", objects.len() as u64 + 4);
    assert_eq!([asked(&server, "/style.css"), asked(&server, "/image.png")], [1, 2]);
    let heads = server.heads();
    assert!(heads.iter().all(|h| !h.contains("bp-")), "{heads:?}");
    let of_page = |h: &&String| h.starts_with("GET /image.png");
    let referer = heads.iter().find(of_page).and_then(|h| field(h, "referer"));
    assert_eq!(referer, Some("http://10.2.0.2/moved"));
}

#[test]
fn a_page_says_once_where_its_references_start_however_many_pieces_it_comes_in() {
    if !root() {
        return;
    }
    let (world, _programs) = world("push-base");
    let server = Server::start(&world.server, site);
    get(&world, "-o /dev/null", "/based/page");
    wait_for_count(&world.a, "pushed", 2);
    let targets: Vec<_> = server.heads().iter().map(|head| head[..24].to_owned()).collect();
    assert_eq!(
        [asked(&server, "/based/sub/x"), asked(&server, "/based/sub/y")],
        [1, 1],
        "{targets:?}"
    );
}

#[test]
fn what_was_purged_is_pushed_again() {
    if !root() {
        return;
    }
    let (world, _programs) = world("push-purged");
    let _server = Server::start(&world.server, site);
    get(&world, "", "/page");
    wait_for_count(&world.a, "pushed", 8);
    wait_for_count(&world.a, "in_memory", 1);
    // The style sheet is fresh, and what it names is not looked for.
    get(&world, "", "/page");
    wait_for_count(&world.a, "pushed", 12);
    assert_eq!(web_at(&world.a, &["purge"]).0["purged"], 1);
    get(&world, "", "/page");
    wait_for_count(&world.a, "pushed", 20);
}

#[test]
fn what_is_somebodys_own_is_pushed_to_him_only_and_papers_are_never_shown() {
    if !root() {
        return;
    }
    let (world, _programs) = world("push-own");
    let server = Server::start(&world.server, site);
    must(&world.client, "ip address add 10.1.0.3/24 dev lan0");
    get(&world, "-H 'Cookie: a=b'", "/session");
    wait_for_count(&world.a, "pushed", 2);
    // What was pushed has the cookie that the page set.
    assert_eq!(
        get(&world, "--interface 10.1.0.3 -H 'Cookie: a=b; id=1'", "/mine.png"),
        "a=b; id=1"
    );
    assert_eq!(asked(&server, "/mine.png"), 2, "another host is not given it");
    assert_eq!(get(&world, "-H 'Cookie: a=c'", "/mine.png"), "a=c");
    assert_eq!(asked(&server, "/mine.png"), 3, "nor is another session");
    assert_eq!(get(&world, "-u me:word", "/mine.png"), "none");
    assert_eq!(asked(&server, "/mine.png"), 4);
    for path in ["/mine.png", "/set.png"] {
        let before = asked(&server, path);
        assert_eq!(get(&world, "-H 'Cookie: a=b; id=1'", path), "a=b; id=1");
        assert_eq!(asked(&server, path), before, "{path} was there");
        assert_eq!(get(&world, "-H 'Cookie: a=b; id=1'", path), "a=b; id=1");
        assert_eq!(asked(&server, path), before + 1, "{path} is given once");
    }
    let code = get(&world, "-w '%{http_code}'", "/users.html");
    assert_eq!((code.as_str(), asked(&server, "/users.html")), ("401", 2));
    get(&world, "-u me:word", "/session");
    assert_eq!(asked(&server, "/set.png"), 2, "with papers nothing is pushed");
}

/// A page with a frame of another host, which knows its users by the same cookie.
fn two_hosts(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let whose = field(head, "cookie").unwrap_or("nobody's").as_bytes();
    match head.split(' ').nth(1) {
        Some("/page") => with(
            "Content-Type: text/html\r\n",
            b"<iframe src=http://app.site.test/frame></iframe><img src=http://app.site.test/image>",
        ),
        _ => with("", whose),
    }
}

#[test]
fn another_hosts_object_is_given_only_to_who_asks_for_it_without_a_cookie() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("push-two-hosts", |plan, programs| {
        with_hosts(plan, programs, "10.2.0.2 www.site.test\n10.2.0.2 app.site.test\n");
    });
    let server = Server::start(&world.server, two_hosts);
    let resolve = ["www", "app"].map(|name| format!("--resolve {name}.site.test:80:10.2.0.2"));
    let get = |more: &str, uri: &str| {
        let curl = format!("curl -sS --max-time 20 {} {more} http://{uri}", resolve.join(" "));
        must(&world.client, &curl)
    };
    get("-H 'Cookie: id=1'", "www.site.test/page");
    wait_for_count(&world.a, "pushed", 2);
    assert_eq!(get("-H 'Cookie: id=1'", "app.site.test/frame"), "id=1");
    assert_eq!(asked(&server, "/frame"), 2);
    assert_eq!(get("", "app.site.test/image"), "nobody's");
    assert_eq!(asked(&server, "/image"), 1, "it was there");
}

#[test]
fn what_is_too_much_is_asked_for_by_the_host_and_push_can_be_off() {
    if !root() {
        return;
    }
    // Enough for the small one.
    let (world, _programs) = world_with("push-large", |plan, programs| {
        plan.a.node = command(&plan.a.node, "exchange that its own request is.", programs);
    });
    let server = Server::start(&world.server, site);
    get(&world, "", "/large");
    wait_for_count(&world.a, "pushed", 1);
    let file = world.dir("files").join("got");
    get(&world, &format!("-o {}", file.display()), "/huge.png");
    assert!(fs::read(&file).unwrap() == pattern(5, 3_000_000));
    assert_eq!(get(&world, "", "/image.png"), "/image.png");
    assert_eq!([asked(&server, "/huge.png"), asked(&server, "/image.png")], [2, 1]);
    drop(world);
    let (world, _programs) = world_with("push-off", |plan, programs| {
        plan.a.node = put(&plan.a.node, "-web\"]", "-web\", \"--push\", \"0\"]");
        plan.b.node = command(&plan.b.node, "where that matters, switch it off:", programs);
    });
    let server = Server::start(&world.server, site);
    get(&world, "", "/page");
    assert_eq!(get(&world, "", "/image.png"), "/image.png");
    assert_eq!(server.heads().len(), 2);
    wait_for_count(&world.a, "pushed", 0);
    // Nor does this hub keep anything: what the terminal forgets is asked for again.
    let style = get(&world, "", "/style.css");
    assert_eq!(get(&world, "", "/style.css"), style);
    assert_eq!(asked(&server, "/style.css"), 1, "the terminal keeps it");
    web_at(&world.a, &["purge"]);
    assert_eq!(get(&world, "", "/style.css"), style);
    assert_eq!(asked(&server, "/style.css"), 2);
}

#[test]
fn where_bytes_cost_money_nothing_is_pushed() {
    nothing_is_pushed("push-paid", "per_megabyte = \"5\"");
}

#[test]
fn where_time_costs_money_nothing_is_pushed() {
    nothing_is_pushed("push-timed", "per_minute = \"5\"");
}

/// Over a line at this price.
fn nothing_is_pushed(label: &str, price: &str) {
    if !root() {
        return;
    }
    let (mut world, _programs) = world(label);
    world.a.signal("TERM");
    world.a.wait_until_ended();
    let line = format!(
        "[peer.line]\nraise = \"true\"\ndrop = \"true\"\nidle = \"60s\"\n\
         tariff = {{ currency = \"USD\", {price} }}\n"
    );
    world.a.configure(|s| s.peer = format!("{line}{}", s.peer));
    world.a.start();
    world.a.wait_for_log("bentpipe is up");
    let server = Server::start(&world.server, site);
    // The first one raises the link.
    get(&world, "", "/image.png");
    wait_for("a request by the service", || {
        get(&world, "", "/page");
        let counters = service(&world.a).counters;
        let served = counters.get("requests").is_some_and(|n| *n > 0);
        served.then_some(()).ok_or(format!("{counters:?}\n{}", world.a.log()))
    });
    get(&world, "", "/image.png");
    assert!(asked(&server, "/script.js") == 0 && asked(&server, "/image.png") == 2);
    wait_for_count(&world.a, "pushed", 0);
}

/// What decides is the price of the carrier by which everything goes, not that of another.
#[test]
fn a_line_that_costs_money_keeps_nothing_from_being_pushed_while_it_is_not_used() {
    if !root() {
        return;
    }
    let programs = Scratch::new("programs-push-beside");
    let at = program("bentpipe-web", &programs);
    let mut plan = Plan { rate: BitRate::from_mbps(10), ..Plan::default() };
    plan.b.listen = "0.0.0.0:4500".into();
    plan.a.peer =
        "[peer.line]\ncarrier = \"lte\"\nraise = \"true\"\ndrop = \"true\"\nidle = \"60s\"\n\
        tariff = { currency = \"USD\", per_megabyte = \"5\" }\n\
        [[peer.carrier]]\nname = \"geo\"\n\
        [[peer.carrier]]\nname = \"lte\"\nendpoint = \"198.51.100.2:4500\"\ninterface = \"sat1\"\n\
        link = { send = \"6Mbit\", receive = \"6Mbit\", delay = \"10ms\" }\n"
            .into();
    for settings in [&mut plan.a, &mut plan.b] {
        serve(settings, WEB, "bentpipe-web", &at);
    }
    let (world, _second) = start_with_second(&plan);
    for gateway in [&world.a, &world.b] {
        wait_until_running(gateway);
    }
    let server = Server::start(&world.server, site);
    wait_for_path([&world.a, &world.b], "geo", PathState::InUse);
    get(&world, "", "/page");
    wait_for_count(&world.a, "pushed", 8);
    // By the line it is another matter.
    assert!(path_command(&world.a, &["down", "geo"]).status.success());
    wait_for("a page that brings nothing", || {
        let sent = server.heads().len();
        get(&world, "", "/page");
        thread::sleep(Duration::from_secs(1));
        match server.heads().len() - sent {
            1 => Ok(()),
            more => Err(format!("{more}\n{}", world.a.log())),
        }
    });
    wait_for_path([&world.a, &world.b], "lte", PathState::InUse);
    assert!(path_command(&world.a, &["up", "geo"]).status.success());
    wait_for("a page that brings its objects", || {
        let sent = server.heads().len();
        get(&world, "", "/page");
        thread::sleep(Duration::from_secs(1));
        match server.heads().len() - sent {
            1 => Err(world.a.log()),
            _ => Ok(()),
        }
    });
}

/// Objects of the browser's page.
const OBJECTS: usize = 60;

fn large_page(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let target = head.split(' ').nth(1).unwrap_or("");
    if target != "/" {
        let image = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><!--{}--></svg>",
            pattern(target.len() as u64, 2_000)
                .iter()
                .map(|b| char::from(b'a' + b % 26))
                .collect::<String>()
        );
        return with("Content-Type: image/svg+xml\r\n", image.as_bytes());
    }
    let mut page = String::from("<!doctype html><body>");
    for n in 0..OBJECTS {
        let _ = write!(page, "<img src=\"image-{n}.svg\">");
    }
    page += "<p id=a>waiting</p><script>addEventListener('load', () => {
        const all = [...document.images].filter(i => i.complete && i.naturalWidth == 9).length;
        document.getElementById('a').innerText = `shown ${all}`;
    });</script></body>";
    with("Content-Type: text/html; charset=utf-8\r\n", page.as_bytes())
}

#[test]
fn a_browser_shows_a_page_of_sixty_images_of_which_none_was_asked_for_over_the_link() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("push-browser", |plan, _| plan.delay_ms = 300);
    let server = Server::start(&world.server, large_page);
    let dir = world.dir("browser");
    let browser = format!(
        "HOME={0} timeout 60 chromium-headless-shell --no-sandbox --disable-gpu --dump-dom \
         --timeout=40000 --user-data-dir={0}/profile http://{AT}/",
        dir.display()
    );
    let shown = shell(&world.client, &browser);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(text.contains(&format!("shown {OBJECTS}")), "{text}{}", world.a.log());
    let each: Vec<usize> =
        (0..OBJECTS).map(|n| asked(&server, &format!("/image-{n}.svg"))).collect();
    assert_eq!(each, [1; OBJECTS], "each was fetched once");
    wait_for_count(&world.a, "push_used", OBJECTS as u64);
}

#[test]
fn a_page_that_was_loaded_is_one_line_of_the_log() {
    if !root() {
        return;
    }
    let (world, _programs) = world("push-log");
    let page = "/page?secret=1";
    let _server = Server::start(&world.server, |head, _| match head.contains(" /page") {
        true => with("Content-Type: text/html\r\n", b"<img src=a.png><img src=b.png>"),
        false => sized(pattern(1, 1000)),
    });
    get(&world, "", page);
    wait_for_count(&world.a, "pushed", 2);
    get(&world, &format!("-e http://{AT}{page} -o /dev/null"), "/a.png");
    world.a.wait_for_log("page 10.2.0.2/page: 2 objects, 1030 bytes in ");
    let log = world.a.log();
    assert!(log.contains("0 from memory, 1 pushed, 1 over the link"), "{log}");
    assert!(!log.contains("secret"), "{log}");
    let (told, _) = web_at(&world.a, &["stats"]);
    let host = &told["hosts"][0];
    assert_eq!((&host["total_bytes"], &host["push_used"]), (&1030.into(), &1.into()), "{told}");
}

/// A page with more than the link carries in most of a minute.
fn heavy_page(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let target = head.split(' ').nth(1).unwrap_or("");
    match target {
        "/heavy" => {
            let images: String = (0..OBJECTS).map(|n| format!("<img src=image-{n}.png>")).collect();
            with("Content-Type: text/html\r\n", images.as_bytes())
        }
        "/next" => with("Content-Type: text/html\r\n", b"another"),
        _ => sized(pattern(target.len() as u64, 60_000)),
    }
}

/// Asks for a page as browsers do, and reads it.
fn show(stream: &mut TcpStream, path: &str) {
    let fields = "Host: 10.2.0.2\r\nAccept: text/html,*/*;q=0.8";
    let request = format!("GET {path} HTTP/1.1\r\n{fields}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let head = read_head(stream).expect("an answer");
    let length = field(&head, "content-length").and_then(|n| n.parse().ok());
    stream.read_exact(&mut vec![0; length.expect("its length")]).expect("a page");
}

/// Has a browser show the heavy page and leave it, while its objects come.
fn leave_with(label: &str, leave: fn(TcpStream) -> Option<TcpStream>) {
    let (world, _programs) = world_with(label, |plan, _| {
        plan.rate = BitRate::from_kbps(512);
        for node in [&mut plan.a.node, &mut plan.b.node] {
            *node = put(node, "-web\"]", "-web\", \"--push\", \"5MB\"]");
        }
    });
    let server = Server::start(&world.server, heavy_page);
    let mut browser = connect(&world.client, AT);
    show(&mut browser, "/heavy");
    wait_for("the first object", || match service(&world.a).counters.get("pushed") {
        Some(1..) => Ok(()),
        other => Err(format!("{other:?}\n{}", world.a.log())),
    });
    let _open = leave(browser);
    wait_for("the hub to hear of it", || match service(&world.b).counters.get("push_stopped") {
        Some(1..) => Ok(()),
        other => Err(format!("{other:?}\n{}", world.b.log())),
    });
    let fetched = server.heads().iter().filter(|head| head.contains("/image")).count();
    // What had left the hub before arrives.
    thread::sleep(Duration::from_secs(4));
    let after = server.heads().iter().filter(|head| head.contains("/image")).count();
    println!("{label}: {fetched} of {OBJECTS} were fetched");
    assert!(fetched == after && after < OBJECTS, "{fetched}, {after}");
    wait_for("what had begun to come to be counted", || {
        let counters = service(&world.a).counters;
        (counters["push_wasted"] > 0).then_some(()).ok_or(format!("{counters:?}"))
    });
}

#[test]
fn what_a_page_names_is_neither_fetched_nor_sent_once_its_user_asks_for_another() {
    if !root() {
        return;
    }
    leave_with("push-next", |mut browser| {
        show(&mut browser, "/next");
        Some(browser)
    });
}

#[test]
fn what_a_page_names_is_neither_fetched_nor_sent_once_its_user_has_left() {
    if !root() {
        return;
    }
    leave_with("push-left", |_| None);
}

/// A page that says something else in ten places each time.
fn album(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    match head.split(' ').nth(1).unwrap_or("") {
        "/album" => {
            let images: String = (0..SHOTS).map(|n| format!("<img src=shot-{n}.png>")).collect();
            with("Content-Type: text/html\r\n", images.as_bytes())
        }
        target if target.starts_with("/shot-") => sized(vec![b'x'; 1_000_000]),
        _ => with("Content-Type: text/html\r\n", b"<img src=small.png>"),
    }
}

/// More than one stream of pushes has room for.
const SHOTS: usize = 36;

#[test]
fn pushed_answers_that_their_host_does_not_read_hold_up_no_others() {
    if !root() {
        return;
    }
    let (world, _programs) = world_with("push-stalled", |plan, _| {
        for node in [&mut plan.a.node, &mut plan.b.node] {
            *node = put(node, "-web\"]", "-web\", \"--push\", \"64MB\"]");
        }
    });
    must(&world.client, "ip address add 10.1.0.3/24 dev lan0");
    let server = Server::start(&world.server, album);
    get(&world, "", "/album");
    let stalled: Vec<_> = (0..SHOTS)
        .map(|n| {
            let mut stream = connect(&world.client, AT);
            socket2::SockRef::from(&stream).set_recv_buffer_size(64 << 10).expect("a socket");
            let request = format!("GET /shot-{n}.png HTTP/1.1\r\nHost: {AT}\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("a request");
            stream
        })
        .collect();
    wait_until_still(&world);
    assert!(get(&world, "--interface 10.1.0.3", "/other").contains("small.png"));
    assert!(get(&world, "--interface 10.1.0.3", "/small.png").contains("small.png"));
    assert_eq!(asked(&server, "/small.png"), 1, "it was pushed");
    // They go on where they stopped.
    for mut one in stalled {
        read_head(&mut one).expect("an answer");
        expect(&mut one, &vec![b'x'; 1_000_000]);
    }
}

fn changing_page(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let letters = |seed: u64, n: usize| pattern(seed, n).into_iter().map(|b| b'!' + b % 26);
    let target = head.split(' ').nth(1).unwrap_or("");
    let mut page: Vec<u8> = letters(1, 100_000).collect();
    let (name, version) = target.split_once('?').unwrap_or((target, ""));
    for place in 0..10 {
        let seed = version.len() as u64 * 100 + name.len() as u64 * 1000 + place;
        let at = 9_500 * place as usize;
        page.splice(at..at + 200, letters(seed, 200));
    }
    with("Content-Type: text/html\r\nCache-Control: no-cache\r\n", &page)
}

#[test]
fn a_page_that_has_changed_a_little_costs_little_and_arrives_whole() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-delta");
    // The same address each time: a field tells the server which version is the newest.
    let versions = |head: &str, body: &[u8]| {
        let version = "x".repeat(field(head, "x-version").map_or(0, |n| n.parse().unwrap()));
        let line = head.lines().next().unwrap_or("").replace(" HTTP", &format!("?{version} HTTP"));
        changing_page(&line, body)
    };
    let _server = Server::start(&world.server, versions);
    let file = world.dir("files").join("got");
    let load = |path: &str, version: usize| {
        // Bytes of streams: those of the link have what a slow machine asks and reports besides.
        let crossed = || world.a.status().links[0].receive.lan_bytes;
        let before = crossed();
        get(&world, &format!("-H 'X-Version: {version}' -o {}", file.display()), path);
        let line = format!("GET {path}?{} HTTP/1.1", "x".repeat(version));
        assert!(fs::read(&file).unwrap() == changing_page(&line, b"").1, "{path} {version}");
        crossed() - before
    };
    let first = load("/page", 1);
    assert!(first > 50_000, "{first}");
    for (path, version) in [("/page", 2), ("/page", 3), ("/similar", 3)] {
        let crossed = load(path, version);
        println!("{path} {version}: {crossed} bytes crossed, {first} for the first");
        assert!(crossed <= 5_000, "{path} {version}: {crossed}");
    }
}

/// Keeps an answer back until it is opened.
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    const fn closed() -> Gate {
        Gate(Mutex::new(false), Condvar::new())
    }

    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let _open = self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap();
    }
}

/// Only the hub says which page its request is for.
fn is_push(head: &str) -> bool {
    field(head, "referer").is_some()
}

/// Asks for an object, and waits until its server has been asked.
fn ask_for(world: &World, server: &Server, path: &str) -> TcpStream {
    let before = asked(server, path);
    let mut stream = connect(&world.client, AT);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {AT}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    wait_for("the server to be asked", || {
        (asked(server, path) > before).then_some(()).ok_or(world.a.log())
    });
    stream
}

#[test]
fn an_object_that_is_pushed_is_given_to_its_hosts_request_that_has_crossed() {
    static OWN: Gate = Gate::closed();
    if !root() {
        return;
    }
    let (world, _programs) = world("push-crossed");
    let server = Server::start(&world.server, |head, _| match head.split(' ').nth(1) {
        Some("/page") => with("Content-Type: text/html\r\n", b"<img src=image>"),
        _ if is_push(head) => sized(b"pushed".to_vec()),
        _ => {
            OWN.pass();
            sized(b"asked".to_vec())
        }
    });
    let mut own = ask_for(&world, &server, "/image");
    get(&world, "", "/page");
    read_head(&mut own).expect("an answer, although its server gives none");
    expect(&mut own, b"pushed");
    wait_for_count(&world.a, "push_used", 1);
    OWN.open();
    // The connection goes on.
    show(&mut own, "/page");
}

#[test]
fn an_object_that_its_host_was_sent_itself_does_not_cross_once_more_as_a_push() {
    static OWN: Gate = Gate::closed();
    static PUSHED: Gate = Gate::closed();
    if !root() {
        return;
    }
    let (world, _programs) = world("push-answered");
    let server =
        Server::start(&world.server, |head, _| match (head.split(' ').nth(1), is_push(head)) {
            (Some("/page"), _) => with("Content-Type: text/html\r\n", b"<img src=image>"),
            (Some("/next"), _) => with("Content-Type: text/html\r\n", b"<img src=other>"),
            (Some("/image"), true) => {
                PUSHED.pass();
                sized(b"pushed".to_vec())
            }
            (Some("/image"), false) => {
                OWN.pass();
                sized(b"asked".to_vec())
            }
            _ => sized(b"other".to_vec()),
        });
    let mut own = ask_for(&world, &server, "/image");
    get(&world, "", "/page");
    wait_for("the hub to ask for the page's object", || {
        (asked(&server, "/image") == 2).then_some(()).ok_or(world.b.log())
    });
    OWN.open();
    read_head(&mut own).expect("an answer");
    expect(&mut own, b"asked");
    PUSHED.open();
    // What comes on the same stream behind it is there.
    get(&world, "", "/next");
    assert_eq!(get(&world, "", "/other"), "other");
    wait_for_count(&world.a, "push_used", 1);
    assert_eq!((service(&world.a).counters["pushed"], asked(&server, "/other")), (1, 1));
    // Nobody waits for it either.
    assert_eq!(get(&world, "", "/image"), "asked");
}

/// At 9,600 bit/s each piece of 4 KiB takes longer than the 3 s that requests wait on fast links.
#[test]
fn on_a_slow_link_what_was_promised_crosses_once() {
    if !root() {
        return;
    }
    let (world, _programs) =
        world_with("push-slow", |plan, _| plan.rate = BitRate::from_bps(9_600));
    let sheets = ["/1", "/2", "/3"];
    let server = Server::start(&world.server, move |head, _| {
        match head.split(' ').nth(1).unwrap_or("") {
            "/page" => with(
                "Content-Type: text/html\r\n",
                b"<link rel=stylesheet href=1><link rel=stylesheet href=2><link rel=stylesheet href=3>",
            ),
            target => sized(pattern(target.len() as u64 + u64::from(target.as_bytes()[1]), 8_000)),
        }
    });
    let one = |path: &str| format!("curl -sSf --max-time 120 -o /dev/null http://{AT}{path}");
    let all = sheets.map(|sheet| format!("{} & p=\"$p $!\"; ", one(sheet))).concat();
    must(
        &world.client,
        &format!("{}; {all} for it in $p; do wait $it || exit 1; done", one("/page")),
    );
    assert_eq!(sheets.map(|sheet| asked(&server, sheet)), [1; 3]);
    wait_for_count(&world.a, "push_used", 3);
}
