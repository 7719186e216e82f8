//! A node whose own traffic all goes into the link (`own = true`) finds a peer whose endpoint is a
//! name, and no other question for a name leaves in clear.

use std::fs;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use os::netns::{NetNs, veth};

use crate::harness::{SATELLITE, World, install_script, must, root, spaces, wait_for};
use crate::own::single_host;

/// The name server, in a network of its own.
const RESOLVER: &str = "203.0.113.53";
const TO_RESOLVER: &str = "isp0";
const NAME: &str = "shore.example";

/// Answers questions for [`NAME`]'s IPv4 address, and says which names were asked for.
fn serve(ns: &NetNs) -> Arc<Mutex<Vec<String>>> {
    let socket = ns.run(|| UdpSocket::bind((RESOLVER, 53))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let names = asked.clone();
    thread::spawn(move || {
        let mut packet = [0; 512];
        while let Ok((n, from)) = socket.recv_from(&mut packet) {
            let mut answer = packet[..n].to_vec();
            let name: String = answer[12..n - 5]
                .iter()
                .map(|b| if b.is_ascii_alphanumeric() { char::from(*b) } else { '.' })
                .collect();
            let is_known = name.trim_matches('.') == NAME;
            names.lock().unwrap().push(name.trim_matches('.').to_owned());
            answer[2..4].copy_from_slice(&[0x81, 0x80]);
            if is_known && answer[n - 3] == 1 {
                answer[7] = 1;
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 2]);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    asked
}

/// The gateway sees `files` where the system's are.
fn with_files(world: &mut World, files: [(&str, String); 2]) {
    let dir = world.dir("etc");
    let mut script = "#!/bin/sh\nset -e\nmount --make-rprivate /\n".to_owned();
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        script += &format!("mount --bind {} /etc/{name}\n", path.display());
    }
    let path = dir.join("with-files");
    install_script(&(script + "shift\nexec \"$@\"\n"), &path);
    world.a.configure(|s| {
        s.endpoint = Some(format!("{NAME}:4500"));
        s.prefix = format!("-- unshare --mount {}", path.display());
    });
}

/// Questions for names that left in clear.
fn in_clear(world: &World) -> u64 {
    let list = must(&world.gwa, "nft list table inet watch");
    let counts = list.split("counter packets ").skip(1);
    counts.map(|c| c.split(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn a_peer_with_a_name_is_found_and_no_other_question_leaves_in_clear() {
    if !root() {
        return;
    }
    let mut world = single_host("block");
    // The strictest of hosts: every interface checks sources.
    let (_, [provider, ..]) = spaces();
    veth(&provider, TO_RESOLVER, &world.gwa, TO_RESOLVER).unwrap();
    world.gwa.address(TO_RESOLVER, "198.51.100.1/24").unwrap();
    provider.address(TO_RESOLVER, "198.51.100.2/24").unwrap();
    world.gwa.route(&format!("{RESOLVER}/32 via 198.51.100.2")).unwrap();
    provider.address("lo", &format!("{RESOLVER}/32")).unwrap();
    for interface in ["all", SATELLITE, TO_RESOLVER] {
        world.gwa.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "1").unwrap();
    }
    must(
        &world.gwa,
        &format!(
            "nft 'add table inet watch; add chain inet watch out \
             {{ type filter hook postrouting priority 300; }}; \
             add rule inet watch out oifname {{ {SATELLITE}, {TO_RESOLVER} }} udp dport 53 counter'"
        ),
    );
    let asked = serve(&provider);
    let servers = format!("nameserver {RESOLVER}\n");
    with_files(&mut world, [("resolv.conf", servers), ("hosts", "127.0.0.1 localhost\n".into())]);
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    let names = asked.lock().unwrap().clone();
    assert!(!names.is_empty() && names.iter().all(|name| name == NAME), "{names:?}");

    // Another program's question goes into the link, where nobody lets it out.
    let before = in_clear(&world);
    assert!(before >= 1, "the counter counts");
    let own = world.gwa.run(|| UdpSocket::bind("192.0.2.1:0")).unwrap();
    let sent = || world.a.status().links[0].datagrams.sent;
    let crossed = sent();
    for _ in 0..10 {
        own.send_to(b"whose secret name?", (RESOLVER, 53)).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    wait_for("questions in the link", || {
        (sent() >= crossed + 10).then_some(()).ok_or(format!("{} of them", sent() - crossed))
    });
    assert_eq!(in_clear(&world), before, "nothing but the peer's name is asked for in clear");

    // What the file of hosts says comes first, and nobody is asked.
    world.a.signal("TERM");
    assert!(world.a.wait_until_ended().success(), "{}", world.a.log());
    let hosts = format!("192.0.2.2 elsewhere {NAME}\n");
    with_files(&mut world, [("resolv.conf", "nameserver 192.0.2.99\n".into()), ("hosts", hosts)]);
    let questions = asked.lock().unwrap().len();
    world.a.start();
    world.a.wait_until_up();
    assert_eq!(asked.lock().unwrap().len(), questions);
}
