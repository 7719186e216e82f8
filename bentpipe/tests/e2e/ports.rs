//! Hosts whose ports are few or fixed (NATs, printers, controllers): a port is used again as
//! soon as its last connection is over.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::harness::{PATIENCE, World, must, root_alone};
use crate::tcp::{SERVER, SERVER_V6};

/// Connections at a time; half of them from each host.
const AT_ONCE: usize = 50;

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
    Ok(connected)
}

/// `each` connections from every one of [`AT_ONCE`] ports, each as soon as the last is over.
fn ports_are_used_again(open: &'static str, each: usize) {
    let world = World::with(|plan| plan.open(open));
    for at in [SERVER, SERVER_V6] {
        let listener = world.server.run(|| TcpListener::bind(at)).unwrap();
        SockRef::from(&listener).listen(1024).unwrap();
        serve(listener);
    }
    let begin = Instant::now();
    let host = |n: usize| -> (SocketAddr, SocketAddr) {
        let (from, to) = match n % 2 {
            0 => (format!("10.1.0.2:{}", 30_000 + n), SERVER),
            _ => (format!("[fd01::2]:{}", 30_000 + n), SERVER_V6),
        };
        (from.parse().unwrap(), to.parse().unwrap())
    };
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|n| {
            let (client, (from, to)) = (world.client.clone(), host(n));
            thread::spawn(move || {
                client.run(|| (0..each).map(|_| short_connection(from, to)).collect::<Vec<_>>())
            })
        })
        .collect();
    let outcomes: Vec<_> = workers.into_iter().flat_map(|w| w.join().unwrap()).collect();
    let failed: Vec<_> = outcomes.iter().filter_map(|o| o.as_ref().err()).collect();
    let slowest = outcomes.iter().filter_map(|o| o.as_ref().ok()).max();
    eprintln!(
        "open = {open}: {} connections, {AT_ONCE} at a time, in {:?}; slowest to stand {slowest:?} \
         (RTT 0.1 s); {} failed",
        outcomes.len(),
        begin.elapsed(),
        failed.len()
    );
    assert!(failed.is_empty(), "{failed:?}");
    // Nothing on the way lost a SYN or took a second for it.
    assert_eq!(
        must(&world.client, "nstat -asz TcpExtTCPSynRetrans | awk 'NR == 2 { print $2 }'"),
        "0\n"
    );
    world.wait_until_no_streams();
}

#[test]
fn thousands_of_short_connections_from_the_same_few_ports_all_stand() {
    if root_alone() {
        ports_are_used_again("fast", 40);
        ports_are_used_again("sure", 30);
    }
}

#[test]
#[ignore = "takes minutes"]
fn twenty_thousand_short_connections_from_the_same_few_ports_all_stand() {
    if root_alone() {
        ports_are_used_again("auto", 400);
    }
}
