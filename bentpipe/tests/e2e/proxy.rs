//! The explicit proxy: no root, no interception; both gateways run as nobody
//! (R-LASTHOP).

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::chown;

use crate::files::HttpServer;
use crate::harness::{Plan, World, install_script, must, root, said, shell, wait_for};
use crate::tcp::{SERVER, accept, connect, listen, pattern};

/// Debian's nobody and nogroup.
const NOBODY: u32 = 65_534;

/// Gateways without any right.
fn unprivileged() -> World {
    unprivileged_with(|_| {})
}

fn unprivileged_with(change: impl FnOnce(&mut Plan)) -> World {
    let mut plan = Plan::default();
    for side in [&mut plan.a, &mut plan.b] {
        side.lan = None;
        side.prefix = "--reuid 65534 --regid 65534 --clear-groups --no-new-privs \
                       --bounding-set=-all"
            .into();
    }
    plan.a.routes = vec!["0.0.0.0/0", "::/0"];
    plan.a.node = "proxy = \"10.1.0.1:1080\"".into();
    change(&mut plan);
    let mut world = World::without_gateways(&plan);
    for gateway in [&world.a, &world.b] {
        chown(gateway.dir(), Some(NOBODY), Some(NOBODY)).unwrap();
        chown(gateway.file(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    world
}

#[test]
fn socks_and_connect_work_for_addresses_and_names_without_any_right() {
    if !root() {
        return;
    }
    let world = unprivileged();
    let uid = fs::read_to_string(format!("/proc/{}/status", world.a.pid())).unwrap();
    assert!(uid.contains("Uid:\t65534\t65534\t65534\t65534"), "{uid}");
    assert!(uid.contains("CapEff:\t0000000000000000"), "{uid}");
    let body = pattern(71, 300_000);
    let files = [("/file", body.clone())];
    let _v4 = HttpServer::start(&world.server, "10.2.0.2:80", &files, world.dir("put"));
    let _v6 = HttpServer::start(&world.server, "[fd02::2]:80", &files, world.dir("put"));
    let out = world.dir("files").join("got");
    for command in [
        "curl -sS --proxy socks5://10.1.0.1:1080 http://10.2.0.2/file",
        "curl -sS -g --proxy socks5://10.1.0.1:1080 http://[fd02::2]/file",
        "curl -sS --proxy socks5h://10.1.0.1:1080 http://10.2.0.2/file",
        "curl -sS --proxytunnel --proxy http://10.1.0.1:1080 http://10.2.0.2/file",
        "curl -sS -g --proxytunnel --proxy http://10.1.0.1:1080 http://[fd02::2]/file",
    ] {
        let _ = fs::remove_file(&out);
        must(&world.client, &format!("{command} -o {}", out.display()));
        assert!(fs::read(&out).unwrap() == body, "{command}");
    }
}

#[test]
fn names_are_resolved_at_the_far_side() {
    if !root() {
        return;
    }
    // The far gateway has a hosts file of its own, in a mount namespace of its own.
    let scratch = crate::harness::Scratch::new("hosts");
    let (hosts, start) = (scratch.sub("etc").join("hosts"), scratch.sub("bin").join("start"));
    fs::write(&hosts, "10.2.0.2 shop.test\n127.0.0.1 inside.test\n").unwrap();
    let script = format!(
        "#!/bin/sh\nmount --bind {} /etc/hosts || exit 9\n\
         exec setpriv --pdeathsig KILL --reuid 65534 --regid 65534 --clear-groups \"$@\"\n",
        hosts.display()
    );
    install_script(&script, &start);
    let mut plan = Plan::default();
    for side in [&mut plan.a, &mut plan.b] {
        side.lan = None;
    }
    plan.a.routes = vec!["0.0.0.0/0", "::/0"];
    plan.a.node = "proxy = \"10.1.0.1:1080\"".into();
    plan.b.prefix = format!("unshare --mount --propagation private {}", start.display());
    let mut world = World::without_gateways(&plan);
    chown(world.b.dir(), Some(NOBODY), Some(NOBODY)).unwrap();
    chown(world.b.file(), Some(NOBODY), Some(NOBODY)).unwrap();
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    let body = pattern(72, 50_000);
    let _http =
        HttpServer::start(&world.server, "10.2.0.2:80", &[("/x", body.clone())], world.dir("put"));
    let out = world.dir("files").join("got");
    for proxy in ["--proxy socks5h://10.1.0.1:1080", "--proxytunnel --proxy http://10.1.0.1:1080"] {
        let _ = fs::remove_file(&out);
        must(&world.client, &format!("curl -sS {proxy} -o {} http://shop.test/x", out.display()));
        assert!(fs::read(&out).unwrap() == body);
    }
    // A name is no way around the rules, and one that is none is an end, not a wait.
    for name in ["inside.test", "nobody.test"] {
        let command = format!("curl -sS -m 20 --proxy socks5h://10.1.0.1:1080 http://{name}/x");
        let output = shell(&world.client, &command);
        assert!(!output.status.success(), "{name}: {}", said(&output));
    }
    assert!(world.b.dropped_for("destination denied") >= 1, "{:?}", world.b.status().node.dropped);
}

#[test]
fn the_proxy_answers_nonsense_and_closes() {
    if !root() {
        return;
    }
    let world = unprivileged();
    use std::io::{Read as _, Write as _};
    for nonsense in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"CONNECT nonsense HTTP/1.1\r\n\r\n",
        b"CONNECT [::1 HTTP/1.1\r\n\r\n",
        b"\x04\x01\x00\x50\x0a\x02\x00\x02\x00",
        b"\x05\x01\x02",
        b"\x05\x01\x00\x05\x02\x00\x01\x0a\x02\x00\x02\x00\x50",
        b"\x05\x01\x00\x05\x01\x00\x07\x0a\x02\x00\x02\x00\x50",
        b"\xff\xff\xff\xff",
        b"",
    ] {
        let mut stream = crate::tcp::connect(&world.client, "10.1.0.1:1080");
        stream.write_all(nonsense).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{nonsense:?}");
    }
    let listener = listen(&world.server, "10.2.0.2:80");
    let mut stream = crate::tcp::connect(&world.client, "10.1.0.1:1080");
    write!(stream, "CONNECT 10.2.0.2:80 HTTP/1.1\r\n\r\nearly").unwrap();
    crate::tcp::expect(&mut accept(&listener), b"early");
}

#[test]
fn clients_are_told_the_truth_by_reply_code_and_status() {
    if !root() {
        return;
    }
    use std::io::{Read as _, Write as _};
    let world = unprivileged_with(|plan| plan.a.open = Some("sure"));
    let reject = "add rule inet t input tcp dport";
    must(
        &world.server,
        &format!(
            "nft 'add table inet t; add chain inet t input {{ type filter hook input priority 0; \
             policy accept; }}; {reject} 91 reject with icmp net-unreachable; \
             {reject} 92 reject with icmp host-unreachable; \
             {reject} 93 reject with icmp admin-prohibited; {reject} 94 drop'"
        ),
    );
    world.gwb.sysctl("net.ipv4.tcp_syn_retries", "1").unwrap();
    let listening = listen(&world.server, "10.2.0.2:80");
    for (port, code, status) in [
        (80, 0, "200"),
        (81, 5, "502"),
        (91, 3, "502"),
        (92, 4, "502"),
        (93, 2, "403"),
        (94, 6, "504"),
    ] {
        let mut socks = crate::tcp::connect(&world.client, "10.1.0.1:1080");
        socks.write_all(&[5, 1, 0, 5, 1, 0, 1, 10, 2, 0, 2, 0, port]).unwrap();
        let mut answer = [0; 12];
        socks.read_exact(&mut answer).unwrap();
        assert_eq!((answer[..2].to_vec(), answer[3]), (vec![5, 0], code), "port {port}");
        let mut http = crate::tcp::connect(&world.client, "10.1.0.1:1080");
        write!(http, "CONNECT 10.2.0.2:{port} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        http.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[9..], status.as_bytes(), "port {port}");
    }
    drop(listening); // Resets what it has not accepted.
    // A client that goes while it waits leaves nothing when the far side has answered.
    let mut waiting = crate::tcp::connect(&world.client, "10.1.0.1:1080");
    waiting.write_all(&[5, 1, 0, 5, 1, 0, 1, 10, 2, 0, 2, 0, 94]).unwrap();
    crate::harness::wait_for("a stream", || {
        (world.a.status().links[0].streams_open > 0).then_some(()).ok_or("none".into())
    });
    drop(waiting);
    world.wait_until_no_streams();
}

/// As apt, wget and browsers ask a proxy: the whole address in the request line.
#[test]
fn plain_http_requests_are_passed_on_for_curl_and_wget() {
    if !root() {
        return;
    }
    let world = unprivileged();
    let (one, two) = (pattern(73, 300_000), pattern(74, 70_000));
    let put = world.dir("put");
    must(&world.client, &format!("chmod 777 {}", put.display()));
    let servers = [("10.2.0.2:80", &one), ("10.2.0.2:8080", &two), ("[fd02::2]:80", &one)];
    let _servers = servers.map(|(at, body)| {
        HttpServer::start(&world.server, at, &[("/f", body.clone())], put.clone())
    });
    let out = world.dir("files");
    let got = |name: &str| fs::read(out.join(name)).unwrap();
    let dir = out.display();
    let curl = "curl -sS -g --fail --proxy http://10.1.0.1:1080";
    // Several requests to different servers by one program, which would keep its connection.
    must(
        &world.client,
        &format!(
            "{curl} -o {dir}/a http://10.2.0.2/f -o {dir}/b http://10.2.0.2:8080/f \
             -o {dir}/c http://[fd02::2]/f -o {dir}/d http://10.2.0.2/f"
        ),
    );
    assert!(got("a") == one && got("b") == two && got("c") == one && got("d") == one);
    let wget = "env http_proxy=http://10.1.0.1:1080 wget -q --tries=1";
    must(
        &world.client,
        &format!("cd {dir} && {wget} -O e http://10.2.0.2/f && {wget} -O f http://10.2.0.2:8080/f"),
    );
    assert!(got("e") == one && got("f") == two);
    // A body goes with its request, a head comes without one, and errors are the server's.
    fs::write(out.join("up"), &two).unwrap();
    must(&world.client, &format!("{curl} -T {dir}/up http://10.2.0.2/put"));
    assert!(fs::read(put.join("put")).unwrap() == two);
    let missing = shell(&world.client, &format!("{curl} -o /dev/null http://10.2.0.2/none"));
    assert!(said(&missing).contains("404"), "{}", said(&missing));
    world.wait_until_no_streams();
}

#[test]
fn a_request_behind_the_first_reaches_no_server_and_costs_no_memory() {
    if !root() {
        return;
    }
    use std::io::{Read as _, Write as _};
    let world = unprivileged();
    let [first, second] = ["10.2.0.2:81", "10.2.0.2:82"].map(|at| listen(&world.server, at));
    let mut client = crate::tcp::connect(&world.client, "10.1.0.1:1080");
    write!(
        client,
        "POST http://10.2.0.2:81/a HTTP/1.1\r\nHost: 10.2.0.2:81\r\nProxy-Connection: keep-alive\r\n\
         Proxy-Authorization: Basic eDp5\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n0\r\n\r\n"
    )
    .unwrap();
    let mut server = accept(&first);
    let wanted = "POST /a HTTP/1.1\r\nHost: 10.2.0.2:81\r\nTransfer-Encoding: chunked\r\n\
                  Connection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    crate::tcp::expect(&mut server, wanted.as_bytes());
    // For another server, and much of it: it is for nobody.
    write!(client, "GET http://10.2.0.2:82/ HTTP/1.1\r\nCookie: secret\r\n\r\n").unwrap();
    client.write_all(&vec![b'x'; 3_000_000]).unwrap();
    let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    server.write_all(answer.as_bytes()).unwrap();
    server.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = String::new();
    client.read_to_string(&mut got).unwrap();
    assert_eq!(got, answer);
    drop(client);
    let mut more = Vec::new();
    let _ = server.read_to_end(&mut more);
    assert!(more.is_empty(), "{} bytes more", more.len());
    let stray = crate::tcp::accept_within(&second, std::time::Duration::from_millis(300));
    assert!(stray.is_none(), "the second request went nowhere");
    world.wait_until_no_streams();
}

/// L-ST-7: the far side keeps sources, of the proxy's clients as well.
#[test]
fn where_sources_are_kept_servers_see_the_proxys_clients_and_nobody_else_is_connected() {
    if !root() {
        return;
    }
    let world = World::with(|plan| {
        plan.keep();
        plan.a.node = "proxy = \"10.1.0.1:1080\"".into();
    });
    let listener = listen(&world.server, SERVER);
    let asks = |from: &os::netns::NetNs| {
        let mut near = connect(from, "10.1.0.1:1080");
        write!(near, "CONNECT {SERVER} HTTP/1.1\r\n\r\n").unwrap();
        near
    };
    let near = asks(&world.client);
    let far = accept(&listener);
    assert_eq!(far.peer_addr().unwrap().ip(), near.local_addr().unwrap().ip());
    // The gateway's own address is nobody's behind it.
    let mut own = asks(&world.gwa);
    let mut answer = String::new();
    let end = own.read_to_string(&mut answer);
    assert!(end.is_err() || !answer.starts_with("HTTP/1.1 200"), "{answer}");
    wait_for("the refusal", || {
        let denied = world.b.dropped_for("destination denied");
        (denied == 1).then_some(()).ok_or(format!("{denied} were denied"))
    });
}

/// A host that fills all places of the proxy and says nothing holds no other up. (How many turns of
/// the loop others wait: `up::proxy`.)
#[test]
fn a_host_with_a_thousand_silent_connections_to_the_proxy_costs_the_others_nothing() {
    if !root() {
        return;
    }
    let world = World::with(|plan| plan.a.node = "proxy = \"10.1.0.1:1080\"".into());
    world.client.ip("address add 10.1.0.3/24 dev lan0").unwrap();
    let silent: Vec<_> = (0..1_200).map(|_| connect(&world.client, "10.1.0.1:1080")).collect();
    let listener = listen(&world.server, SERVER);
    for n in 0..20 {
        let begin = std::time::Instant::now();
        let mut near = connect_as(&world.client, "10.1.0.3", "10.1.0.1:1080");
        write!(near, "CONNECT {SERVER} HTTP/1.1\r\n\r\nnumber {n:2}").unwrap();
        crate::tcp::expect(&mut accept(&listener), format!("number {n:2}").as_bytes());
        crate::tcp::expect(&mut near, b"HTTP/1.1 200");
        let took = begin.elapsed();
        assert!(took < std::time::Duration::from_secs(5), "it took {took:?}");
    }
    drop(silent);
}

/// A connection from this address of the host's.
fn connect_as(host: &os::netns::NetNs, own: &str, to: &str) -> std::net::TcpStream {
    let to: std::net::SocketAddr = to.parse().unwrap();
    host.run(|| {
        let domain = socket2::Domain::for_address(to);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
        let own = std::net::SocketAddr::new(own.parse().unwrap(), 0);
        socket.bind(&own.into()).expect("its address");
        socket.connect(&to.into()).expect("a place");
        std::net::TcpStream::from(socket)
    })
}

/// A host of IPv6 has as many addresses as it likes: they are one network's.
#[test]
fn a_host_with_a_thousand_addresses_at_the_proxy_costs_other_networks_nothing() {
    if !root() {
        return;
    }
    let world = World::with(|plan| plan.a.node = "proxy = \"[::]:1080\"".into());
    world.client.ip("-6 route add local fd01:0:0:9::/64 dev lo").unwrap();
    world.gwa.ip("-6 route add fd01:0:0:9::/64 via fd01::2").unwrap();
    let any_source = || fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1");
    world.client.run(any_source).unwrap();
    let listener = listen(&world.server, SERVER);
    let silent =
        |n: usize| connect_as(&world.client, &format!("fd01:0:0:9::{n:x}"), "[fd01::1]:1080");
    let mut all: Vec<_> = (1..1_100).map(silent).collect();
    let mut near = connect(&world.client, "10.1.0.1:1080");
    // More than there are places, while the client has said nothing yet.
    all.extend((1_100..2_200).map(silent));
    write!(near, "CONNECT {SERVER} HTTP/1.1\r\n\r\nstill here").unwrap();
    crate::tcp::expect(&mut accept(&listener), b"still here");
    drop(all);
}
