//! Thousands of connections at once: a server in a process of its own (descriptors are
//! counted per process) and a LAN of hosts that open them all before they use any.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use os::netns::NetNs;
use os::poll::{Events, Interest, Poller};
use os::proc::{die_with_parent, raise_descriptor_limit, reset_signals};
use socket2::{Domain, Socket, Type};

use crate::testbed::topology::Topology;

/// The server's port.
const PORT: u16 = 7;
/// A client's number and the server's answer, which repeats it.
const ASK: usize = 8;
const ANSWER: usize = 64;
/// How long an answer may take with everybody asking at once.
const PATIENCE: Duration = Duration::from_secs(60);
/// Threads of the client.
const CLIENTS: usize = 8;
/// Hosts that the connections are from. One host may use a sixteenth of the link for opening, and
/// would wait for that and not for the gateways.
const HOSTS: u8 = 40;
/// Tokens of the server's poller; connections follow.
const LISTENER: u64 = 0;
const STDIN: u64 = 1;
const FIRST: u64 = 2;

/// The server, running in `host` until dropped.
pub struct CrowdServer(Child);

impl CrowdServer {
    /// Starts it and waits until it listens on `address`.
    pub fn start(host: &NetNs, address: IpAddr) -> io::Result<CrowdServer> {
        let program = std::env::current_exe()?;
        let mut command: Command = host.command(&program.to_string_lossy());
        command.args(["bench", "--serve", &address.to_string()]).stdin(Stdio::piped());
        let mut child = die_with_parent(reset_signals(command.stdout(Stdio::piped()))).spawn()?;
        let mut ready = [0; 1];
        let out = child.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let listening = out.read_exact(&mut ready);
        let server = CrowdServer(child);
        listening.map(|()| server)
    }
}

impl Drop for CrowdServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server's program: answers whoever asks, until standard input ends.
pub fn serve(address: IpAddr) -> io::Result<()> {
    let other = |e: os::OsError| io::Error::other(e.to_string());
    raise_descriptor_limit().map_err(other)?;
    let listener = TcpListener::bind((address, PORT))?;
    listener.set_nonblocking(true)?;
    let mut poller = Poller::new().map_err(other)?;
    poller.add(&listener, LISTENER, Interest::READ).map_err(other)?;
    poller.add(&io::stdin(), STDIN, Interest::READ).map_err(other)?;
    io::stdout().write_all(b"\n")?;
    io::stdout().flush()?;
    let mut events = Events::with_capacity(256);
    let mut guests: Vec<Option<TcpStream>> = Vec::new();
    loop {
        poller.wait(&mut events, None).map_err(other)?;
        for event in events.iter() {
            match event.token {
                LISTENER => {
                    while let Ok((stream, _)) = listener.accept() {
                        stream.set_nonblocking(true)?;
                        stream.set_nodelay(true)?;
                        let token = FIRST + guests.len() as u64;
                        poller.add(&stream, token, Interest::READ).map_err(other)?;
                        guests.push(Some(stream));
                    }
                }
                STDIN => return Ok(()),
                token => {
                    let guest = &mut guests[(token - FIRST) as usize];
                    if guest.as_mut().is_some_and(|stream| !answer(stream)) {
                        *guest = None;
                    }
                }
            }
        }
    }
}

/// Answers one question; false at the end of the connection. A question is one small
/// segment and an answer fits into any send buffer, so neither comes in parts.
fn answer(stream: &mut TcpStream) -> bool {
    let mut question = [0; ASK];
    match stream.read(&mut question) {
        Ok(ASK) => stream.write_all(&answer_to(question)).is_ok(),
        Ok(_) => false,
        Err(e) => e.kind() == io::ErrorKind::WouldBlock,
    }
}

fn answer_to(question: [u8; ASK]) -> [u8; ANSWER] {
    std::array::from_fn(|i| question[i % ASK] ^ (i / ASK) as u8)
}

/// What became of a crowd of connections, and the connections themselves.
#[derive(Debug, Default)]
pub struct Crowd {
    /// Connections that could not be opened, with the first reason.
    pub refused: Vec<String>,
    /// Connections whose answer did not come or was wrong.
    pub lost: Vec<String>,
    /// From the first opening to the last, s.
    pub opening: f64,
    /// From the first question to the last answer, s.
    pub answering: f64,
    /// Those that live.
    pub open: Vec<TcpStream>,
}

/// Opens `count` connections from hosts of the client's LAN to the server, then asks on all of
/// them, then reads all answers.
pub fn gather(topology: &Topology, server: IpAddr, count: usize) -> Result<Crowd, String> {
    let hosts = topology.client_addresses(HOSTS).map_err(|e| e.to_string())?;
    Ok(topology.client.run(|| gather_from(&hosts, server, count)))
}

fn gather_from(hosts: &[IpAddr], server: IpAddr, count: usize) -> Crowd {
    let address = SocketAddr::new(server, PORT);
    let all_open = Barrier::new(CLIENTS);
    let begin = Instant::now();
    let parts = thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|i| {
                let share = count / CLIENTS + usize::from(i < count % CLIENTS);
                let numbers = i * count..i * count + share;
                let all_open = &all_open;
                scope.spawn(move || gather_part(hosts, address, numbers, all_open, begin))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_default()).collect::<Vec<_>>()
    });
    parts.into_iter().fold(Crowd::default(), |mut all, part| {
        all.refused.extend(part.refused);
        all.lost.extend(part.lost);
        all.open.extend(part.open);
        all.opening = all.opening.max(part.opening);
        all.answering = all.answering.max(part.answering);
        all
    })
}

fn gather_part(
    hosts: &[IpAddr],
    address: SocketAddr,
    numbers: Range<usize>,
    all_open: &Barrier,
    begin: Instant,
) -> Crowd {
    let mut crowd = Crowd::default();
    let first = numbers.start;
    for number in numbers {
        match connect(hosts[number % hosts.len()], address) {
            Ok(stream) => crowd.open.push(stream),
            Err(e) => crowd.refused.push(e.to_string()),
        }
    }
    crowd.opening = begin.elapsed().as_secs_f64();
    all_open.wait();
    let asked = Instant::now();
    let number = |i: usize| ((first + i) as u64).to_le_bytes();
    let sent: Vec<io::Result<()>> =
        crowd.open.iter_mut().enumerate().map(|(i, s)| s.write_all(&number(i))).collect();
    let mut open = Vec::with_capacity(crowd.open.len());
    for (i, (mut stream, sent)) in crowd.open.into_iter().zip(sent).enumerate() {
        match sent.and_then(|()| hear(&mut stream, number(i))) {
            Ok(()) => open.push(stream),
            Err(e) => crowd.lost.push(e.to_string()),
        }
    }
    Crowd { open, answering: asked.elapsed().as_secs_f64(), ..crowd }
}

fn connect(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&to.into(), PATIENCE)?;
    Ok(socket.into())
}

/// Asks `count` more questions on each connection, all at once each time.
pub fn ask_again(open: &mut [TcpStream], count: usize) -> io::Result<()> {
    let number = |i: usize, n: usize| ((n << 32 | i) as u64).to_le_bytes();
    for n in 0..count {
        for (i, stream) in open.iter_mut().enumerate() {
            stream.write_all(&number(i, n))?;
        }
        for (i, stream) in open.iter_mut().enumerate() {
            hear(stream, number(i, n))?;
        }
    }
    Ok(())
}

fn hear(stream: &mut TcpStream, question: [u8; ASK]) -> io::Result<()> {
    let mut heard = [0; ANSWER];
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.read_exact(&mut heard)?;
    match heard == answer_to(question) {
        true => Ok(()),
        false => Err(io::Error::other("the answer belongs to another question")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_differ_between_questions() {
        assert_ne!(answer_to([1; ASK]), answer_to([2; ASK]));
        assert_eq!(answer_to([1, 2, 3, 4, 5, 6, 7, 8])[..9], [1, 2, 3, 4, 5, 6, 7, 8, 0]);
    }

    #[test]
    fn a_question_is_answered_and_an_end_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        client.write_all(&[9; ASK]).unwrap();
        assert!(answer(&mut server));
        hear(&mut client, [9; ASK]).unwrap();
        drop(client);
        assert!(!answer(&mut server));
    }
}
