//! Hosts whose ports are few or fixed (NATs, printers, controllers): a port is used again as
//! soon as its last connection is over.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use os::netns::{NetNs, veth};
use socket2::{Domain, SockRef, Socket, Type};

use crate::harness::{LAN, PATIENCE, Plan, World, must, root_alone, spaces};
use crate::tcp::{SERVER, SERVER_V6};

/// Connections at a time; half of them from each host.
const AT_ONCE: usize = 50;
/// The interface of the ship towards the second host.
const SECOND_LAN: &str = "lan1";
/// The default link's, there and back.
const RTT: Duration = Duration::from_millis(100);

/// Says who called and closes first, for ever. Its thread ends with the test's process.
fn serve(listener: TcpListener) {
    listener.set_nonblocking(false).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            thread::spawn(move || {
                let _ = stream.set_read_timeout(Some(PATIENCE));
                let mut question = [0; 2];
                if stream.read_exact(&mut question).is_ok() {
                    let _ = stream.write_all(&question);
                }
            });
        }
    });
}

/// A kernel acknowledges the last FIN before the connection's socket makes way for TIME_WAIT's
/// (`tcp_fin`, Linux 6.18). A SYN that comes in between is dropped, at any Linux server.
const BEFORE_REUSE: Duration = Duration::from_millis(5);

/// One short connection from a port of the caller's choice; the time until it stood.
fn short_connection(from: SocketAddr, to: SocketAddr) -> io::Result<Duration> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&from.into())?;
    let (since, mut begin) = (Instant::now(), Instant::now());
    // The host's own last connection from this port is over once its FIN is acknowledged.
    while let Err(e) = socket.connect_timeout(&to.into(), PATIENCE) {
        if e.kind() != ErrorKind::AddrNotAvailable || since.elapsed() > PATIENCE {
            return Err(e);
        }
        thread::sleep(Duration::from_millis(1));
        begin = Instant::now();
    }
    let connected = begin.elapsed();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    let question = from.port().to_be_bytes();
    stream.write_all(&question)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    assert_eq!(answer, question);
    drop(stream);
    thread::sleep(BEFORE_REUSE);
    Ok(connected)
}

/// Two LANs of the ship with a host in each.
struct TwoHosts {
    world: World,
    hosts: [NetNs; 2],
}

impl TwoHosts {
    /// The second host is on an interface of its own, with addresses of its own.
    fn new(change: impl FnOnce(&mut Plan)) -> TwoHosts {
        let mut plan = Plan::default();
        plan.a.lan = Some(vec![LAN, SECOND_LAN]);
        plan.b.routes.extend(["10.5.0.0/24", "fd05::/64"]);
        change(&mut plan);
        let mut world = World::without_gateways(&plan);
        let (_, [second, ..]) = spaces();
        veth(&second, LAN, &world.gwa, SECOND_LAN).unwrap();
        for (host, gateway) in [("10.5.0.2/24", "10.5.0.1/24"), ("fd05::2/64", "fd05::1/64")] {
            second.address(LAN, host).unwrap();
            world.gwa.address(SECOND_LAN, gateway).unwrap();
        }
        second.route("default via 10.5.0.1").unwrap();
        second.route("default via fd05::1").unwrap();
        world.b.start();
        world.a.start();
        world.a.wait_until_up();
        world.b.wait_until_up();
        let hosts = [world.client.clone(), second];
        TwoHosts { world, hosts }
    }

    /// The host of worker `n`, its address with the worker's port, and whom it calls: one half of
    /// the workers are on each host, and of these one half in each family.
    fn worker(&self, n: usize) -> (NetNs, SocketAddr, SocketAddr) {
        let (host, family) = (n % 2, n / 2 % 2);
        let address = [["10.1.0.2", "10.5.0.2"], ["fd01::2", "fd05::2"]][family][host];
        let from = SocketAddr::new(address.parse().unwrap(), 30_000 + n as u16);
        let to = [SERVER, SERVER_V6][family];
        (self.hosts[host].clone(), from, to.parse().unwrap())
    }
}

/// `each` connections from every one of [`AT_ONCE`] ports, each as soon as the last is over; how
/// long the slowest took to stand.
fn ports_are_used_again(each: usize, change: impl FnOnce(&mut Plan)) -> Duration {
    let two = TwoHosts::new(change);
    let world = &two.world;
    for at in [SERVER, SERVER_V6] {
        let listener = world.server.run(|| TcpListener::bind(at)).unwrap();
        SockRef::from(&listener).listen(1024).unwrap();
        serve(listener);
    }
    let begin = Instant::now();
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|n| {
            let (host, from, to) = two.worker(n);
            thread::spawn(move || {
                host.run(|| (0..each).map(|_| short_connection(from, to)).collect::<Vec<_>>())
            })
        })
        .collect();
    let outcomes: Vec<_> = workers.into_iter().flat_map(|w| w.join().unwrap()).collect();
    let failed: Vec<_> = outcomes.iter().filter_map(|o| o.as_ref().err()).collect();
    let slowest = *outcomes.iter().filter_map(|o| o.as_ref().ok()).max().expect("one that stood");
    eprintln!(
        "open = {}, source = {}: {} connections of two hosts, {AT_ONCE} at a time, in {:?}; \
         slowest to stand {slowest:?} (RTT {RTT:?}); {} failed",
        world.a.settings().open.unwrap_or("auto"),
        world.b.settings().source.unwrap_or("nat"),
        outcomes.len(),
        begin.elapsed(),
        failed.len()
    );
    assert!(failed.is_empty(), "{failed:?}");
    // Nothing on the way lost a SYN or took a second for it.
    for host in &two.hosts {
        let again = must(host, "nstat -asz TcpExtTCPSynRetrans | awk 'NR == 2 { print $2 }'");
        assert_eq!(again, "0\n");
    }
    world.wait_until_no_streams();
    slowest
}

#[test]
fn thousands_of_short_connections_from_the_same_few_ports_all_stand() {
    if !root_alone() {
        return;
    }
    for (open, each) in [("fast", 40), ("sure", 30)] {
        ports_are_used_again(each, |plan| {
            plan.open(open);
            // The server, too, sees the same few ports again.
            plan.keep();
        });
    }
}

#[test]
#[ignore = "takes minutes"]
fn twenty_thousand_short_connections_from_the_same_few_ports_all_stand() {
    if !root_alone() {
        return;
    }
    for change in [|_: &mut Plan| {}, Plan::keep] {
        let slowest = ports_are_used_again(400, change);
        assert!(slowest < 3 * RTT, "one took {slowest:?} to stand");
    }
}
