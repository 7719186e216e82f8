//! Pages that `bentpipe-web` pushes bring, by `bentpipe-names`, the names that they need.

use crate::accelerators::{program, serve};
use crate::documents::NAMES;
use crate::gateway::Gateway;
use crate::harness::{World, must, root, wait_for};
use crate::names::{look_up, serve_dns};
use crate::web::{Server, sized, world_with};
use crate::web_hub::with_hosts;

/// Hosts of the page's objects.
const OTHERS: usize = 5;

fn site(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let (mut fields, body) = match head.split(' ').nth(1) {
        Some("/page") => {
            let images = (0..OTHERS).map(|n| format!("<img src=http://host{n}.test/image>"));
            let (head, body) = sized(images.collect::<String>().into_bytes());
            (head.replace("\r\n\r\n", "\r\nContent-Type: text/html\r\n\r\n"), body)
        }
        _ => sized(b"an image".to_vec()),
    };
    fields.insert_str(fields.len() - 2, "Cache-Control: max-age=600\r\n");
    (fields, body)
}

fn count(gateway: &Gateway, service: &str, what: &str) -> u64 {
    let services = gateway.status().services;
    let it = services.iter().find(|s| s.name == service).expect("the service");
    it.counters.get(what).copied().unwrap_or(0)
}

#[test]
fn a_page_that_is_pushed_brings_the_names_of_its_hosts_so_that_one_look_up_crosses_the_link() {
    if !root() {
        return;
    }
    let (world, _programs): (World, _) = world_with("web-names", |plan, programs| {
        let hosts: String = (0..OTHERS).map(|n| format!("10.2.0.2 host{n}.test\n")).collect();
        with_hosts(plan, programs, &hosts);
        let at = program("bentpipe-names", programs);
        for settings in [&mut plan.a, &mut plan.b] {
            serve(settings, NAMES, "bentpipe-names", &at);
        }
    });
    for gateway in [&world.a, &world.b] {
        wait_for("both services", || {
            let services = gateway.status().services;
            let run = |s: &bentpipe::admin::ServiceStatus| {
                s.state == bentpipe::admin::ServiceState::Running
            };
            (services.iter().all(run)).then_some(()).ok_or(format!("{services:?}"))
        });
    }
    let dns = serve_dns(&world.server, true);
    let _server = Server::start(&world.server, site);
    look_up(&world.client, "page.test").expect("an answer");
    let page = "curl -sS --max-time 20 --resolve page.test:80:10.2.0.2 http://page.test/page";
    must(&world.client, page);
    for (service, what) in [("web", "pushed"), ("names", "along")] {
        wait_for(what, || match count(&world.a, service, what) {
            n if n == OTHERS as u64 => Ok(()),
            n => Err(format!("{n}\n{}", world.b.log())),
        });
    }
    let asked = dns.asked();
    assert_eq!(asked, 1 + OTHERS as u64, "the hub has asked for each");
    // Neither a name nor an object needs the satellite any more.
    world.set_link_down(true);
    for n in 0..OTHERS {
        look_up(&world.client, &format!("HOST{n}.test")).expect("an answer from memory");
        let at = format!("host{n}.test:80:10.2.0.2");
        let got = must(
            &world.client,
            &format!("curl -sS --max-time 5 --resolve {at} http://host{n}.test/image"),
        );
        assert_eq!(got, "an image");
    }
    // A service tells its counters once a second.
    wait_for("the last hit", || match count(&world.a, "names", "hits") {
        n if n == OTHERS as u64 => Ok(()),
        n => Err(n.to_string()),
    });
    assert_eq!((count(&world.a, "names", "misses"), dns.asked()), (1, asked));
}
