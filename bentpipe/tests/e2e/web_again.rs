//! Pages that were loaded before: what of them crosses the link when they are loaded again.

use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use bentpipe_lab::testbed::traffic::browser::Browser;
use bentpipe_lab::testbed::traffic::site;

use crate::harness::{World, root, wait_for};
use crate::web::{AT, world};

/// Objects and bytes of five published pages (ITU handbook on satellite communications, table 23).
const PAGES: [(usize, usize); 5] =
    [(30, 212_207), (21, 80_333), (33, 176_105), (16, 393_672), (8, 72_103)];
/// A link on which nothing is sent for so long has nothing more to say.
const QUIET: Duration = Duration::from_millis(700);

/// Bytes of link packets that both gateways have sent.
fn sent(world: &World) -> u64 {
    [&world.a, &world.b].iter().map(|gateway| gateway.status().links[0].send.link_bytes).sum()
}

/// The same, once nothing more is said.
fn sent_in_all(world: &World) -> u64 {
    let mut before = sent(world);
    wait_for("a quiet link", || {
        thread::sleep(QUIET);
        let now = sent(world);
        match now == std::mem::replace(&mut before, now) {
            true => Ok(now),
            false => Err(format!("{now} bytes")),
        }
    })
}

fn serve(world: &World) {
    let listener = world.server.run(|| TcpListener::bind(AT)).expect("a server");
    let pages = PAGES.iter().zip(0..);
    let pages = pages.map(|(&(objects, bytes), n)| site::bodies(objects, bytes, n)).collect();
    thread::spawn(move || site::serve(&listener, pages, &AtomicBool::new(false)));
}

/// Loads a page of this name; bytes that crossed for it.
fn load(world: &World, page: usize, browser: Browser, name: &str) -> u64 {
    let before = sent(world);
    let at = AT.parse().expect("an address");
    let got = world.client.run(|| browser.load(at, &format!("/{page}-{name}/"), None));
    let got = got.expect("a page");
    assert_eq!((got.objects, got.bytes), PAGES[page], "{} of {page}", browser.name());
    sent_in_all(world) - before
}

#[test]
fn pages_that_are_fresh_cross_no_more_and_one_whose_text_has_changed_a_little_costs_little() {
    if !root() {
        return;
    }
    let (world, _programs) = world("web-again");
    serve(&world);
    sent_in_all(&world);
    for (page, browser) in (0..PAGES.len()).zip(Browser::BENCH.into_iter().cycle()) {
        let first = load(&world, page, Browser::Kept, site::FRESH);
        assert!(first > PAGES[page].1 as u64 / 2, "{page}: {first} bytes");
        assert_eq!(load(&world, page, browser, site::FRESH), 0, "page {page}, {}", browser.name());
        let first = load(&world, page, browser, site::NEWS);
        let crossed = load(&world, page, browser, site::NEWS);
        println!("page {page}: {crossed} bytes of {first} where 2 % of the text are others");
        assert!(crossed > 0 && crossed <= first / 20, "page {page}: {crossed} bytes of {first}");
    }
}
