//! What compression must reach: bytes, time, processor and memory with it and
//! without.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use control::LinkStatus;
use os::proc::raise_descriptor_limit;
use units::Rng;

use super::checked::Checked;
use super::code::code;
use super::crowd::{self, CrowdServer};
use super::setup::link;
use super::setup::memories;
use crate::testbed::gateway::Pair;
use crate::testbed::measure::median;
use crate::testbed::progress::{Board, Row};
use crate::testbed::topology::{Plan, SERVER, Topology};
use crate::testbed::way::LinkSetup;

type Measured = Result<Vec<Checked>, String>;

/// The server's ports: one that is none of HTTP's, and HTTP's.
const PORT: u16 = 5432;
const HTTP: u16 = 80;
const PATIENCE: Duration = Duration::from_secs(600);
/// What was said at the end of a connection has been told by then.
const SETTLE: Duration = Duration::from_secs(2);

/// What a client asks for: so many bytes of one kind, or to be told what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Code(u64),
    Noise(u64),
    /// The same with a hundredth of it changed, in ten places.
    Changed(u64),
    /// Report number n as HTTP and JSON have it, about a kilobyte.
    Report(u64),
    /// The same, asked for as a browser does.
    Page(u64),
    Echo,
}

/// A question has this length whatever it says.
const QUESTION: usize = 48;

impl Wish {
    /// The question as a client of JSON puts it, or a browser.
    fn question(self) -> Vec<u8> {
        let (kind, n) = match self {
            Wish::Page(n) => return request(n),
            Wish::Code(n) => ("code", n),
            Wish::Noise(n) => ("noise", n),
            Wish::Changed(n) => ("changed", n),
            Wish::Report(n) => ("report", n),
            Wish::Echo => ("echo", 0),
        };
        let text = format!("{{\"id\":{n},\"method\":\"{kind}.get\"}}");
        format!("{text:QUESTION$}").into_bytes()
    }

    fn port(self) -> u16 {
        if matches!(self, Wish::Page(_)) { HTTP } else { PORT }
    }

    fn read(question: &[u8; QUESTION]) -> Option<Wish> {
        if let Some(path) = question.strip_prefix(REPORTS.as_bytes()) {
            let path = str::from_utf8(path).ok()?;
            return path.split(' ').next()?.parse().ok().map(Wish::Page);
        }
        let value: serde_json::Value = serde_json::from_slice(question).ok()?;
        let n = value["id"].as_u64()?;
        match value["method"].as_str()? {
            "code.get" => Some(Wish::Code(n)),
            "noise.get" => Some(Wish::Noise(n)),
            "changed.get" => Some(Wish::Changed(n)),
            "report.get" => Some(Wish::Report(n)),
            "echo.get" => Some(Wish::Echo),
            _ => None,
        }
    }

    /// The answer, piece by piece.
    fn answer(self, mut put: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self {
            Wish::Code(mut n) => {
                let code = code()?;
                while n > 0 {
                    let piece = &code[..code.len().min(n as usize)];
                    put(piece)?;
                    n -= piece.len() as u64;
                }
                Ok(())
            }
            Wish::Noise(n) | Wish::Changed(n) => {
                let (mut rng, mut piece) = (Rng::new(n), vec![0; 65_536]);
                let mut at = 0;
                while at < n {
                    rng.fill(&mut piece);
                    piece.truncate((n - at).min(65_536) as usize);
                    if let Wish::Changed(_) = self {
                        change(&mut piece, at, n);
                    }
                    put(&piece)?;
                    at += piece.len() as u64;
                }
                Ok(())
            }
            Wish::Report(n) | Wish::Page(n) => put(report(n).as_bytes()),
            Wish::Echo => Ok(()),
        }
    }
}

/// Changes what of `len` bytes lies in ten places of a thousandth each and in `piece`, which
/// begins at `at`.
fn change(piece: &mut [u8], at: u64, len: u64) {
    for (n, byte) in piece.iter_mut().enumerate() {
        let place = at + n as u64;
        let tenth = len / 10;
        if tenth > 0 && (place % tenth).abs_diff(tenth / 2) < len / 2000 {
            *byte ^= 0x5a;
        }
    }
}

/// Where reports are, for a browser.
const REPORTS: &str = "GET /reports/";

/// What a browser says to get report `n`.
fn request(n: u64) -> Vec<u8> {
    format!(
        "{REPORTS}{n} HTTP/1.1\r\nHost: fleet.example.com\r\nUser-Agent: Mozilla/5.0 (X11; Linux \
         x86_64; rv:145.0) Gecko/20100101 Firefox/145.0\r\nAccept: application/json, */*\r\n\
         Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate\r\nCookie: \
         session={:016x}\r\nConnection: close\r\n\r\n",
        Rng::new(n).below(u64::MAX)
    )
    .into_bytes()
}

/// A ship's report with numbers that differ each time.
fn report(n: u64) -> String {
    let mut rng = Rng::new(n);
    let mut number = |below| rng.below(below);
    let items: Vec<String> =
        ["fuel oil", "fresh water", "provisions", "spares", "lubricants", "stores"]
            .map(|name| {
                format!(
                    "{{\"id\":{},\"name\":\"{name}\",\"value\":{},\"unit\":\"t\",\
                 \"updated_at\":\"2026-11-{:02}T{:02}:00:00Z\"}}",
                    number(100_000),
                    number(5_000),
                    number(28) + 1,
                    number(24)
                )
            })
            .into();
    let body = format!(
        "{{\"status\":\"ok\",\"error\":null,\"data\":{{\"id\":{},\"position\":{{\"latitude\":\
         {}.{:05},\"longitude\":-{}.{:05}}},\"speed\":{}.{},\"course\":{},\"items\":[{}]}},\
         \"message\":\"next report is due at noon, all stations normal\"}}",
        number(1 << 30),
        number(90),
        number(100_000),
        number(180),
        number(100_000),
        number(20),
        number(10),
        number(360),
        items.join(",")
    );
    format!(
        "HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 12:{:02}:{:02} GMT\r\nServer: nginx/1.26.1\r\n\
         Content-Type: application/json; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nX-Request-Id: {:016x}\r\nConnection: close\r\n\r\n{body}",
        number(60),
        number(60),
        body.len(),
        number(u64::MAX)
    )
}

/// A link with gateways, and a server behind it that grants wishes until dropped.
pub(super) struct Bed {
    pub topology: Topology,
    stop: Arc<AtomicBool>,
}

impl Bed {
    pub fn build(link: &LinkSetup, compress: bool) -> Result<Bed, String> {
        Bed::build_with(link, Pair { compress, ..Pair::default() })
    }

    pub fn build_with(link: &LinkSetup, gateways: Pair) -> Result<Bed, String> {
        let gateways = Some(gateways);
        let plan = Plan { link: link.clone(), seed: 1, gateways, ..Plan::default() };
        let topology = Topology::build(&plan).map_err(|e| e.to_string())?;
        let stop = Arc::new(AtomicBool::new(false));
        for port in [PORT, HTTP] {
            let listener = topology.server.run(|| TcpListener::bind((SERVER[0], port)));
            let listener = listener.map_err(|e| format!("the server does not start: {e}"))?;
            listener.set_nonblocking(true).map_err(|e| e.to_string())?;
            let stopped = Arc::clone(&stop);
            thread::spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    match listener.accept() {
                        // A client that goes away in the middle is the client's affair.
                        Ok((stream, _)) => drop(thread::spawn(move || grant(stream).ok())),
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
        }
        Ok(Bed { topology, stop })
    }

    fn ask(&self, wish: Wish) -> io::Result<TcpStream> {
        self.topology.client.run(|| ask(SocketAddr::new(SERVER[0], wish.port()), wish))
    }

    /// Fetches and compares; the time from connecting to the end, s.
    pub fn fetch(&self, wish: Wish, row: &Row) -> Result<f64, String> {
        let begin = Instant::now();
        let fetched = self.ask(wish).and_then(|stream| compare(stream, wish, &row.done));
        fetched.map_err(|e| format!("{wish:?}: {e}"))?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// What the client's gateway says of the link.
    pub fn status(&self) -> Result<LinkStatus, String> {
        let [near, _] = self.topology.gateways.as_ref().ok_or("there are no gateways")?;
        let mut status = near.status().map_err(|e| e.to_string())?;
        status.links.pop().ok_or("there is no link".to_owned())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn ask(server: SocketAddr, wish: Wish) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.write_all(&wish.question())?;
    Ok(stream)
}

/// Reads the answer to the end; it must be what was wished for. `done` counts its bytes.
fn compare(mut stream: TcpStream, wish: Wish, done: &AtomicUsize) -> io::Result<()> {
    let mut piece = Vec::new();
    wish.answer(|expected| {
        piece.resize(expected.len(), 0);
        stream.read_exact(&mut piece)?;
        done.fetch_add(piece.len(), Ordering::Relaxed);
        let same = piece == expected;
        same.then_some(()).ok_or_else(|| io::Error::other("other bytes than were sent"))
    })?;
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("more bytes than were sent")),
    }
}

/// The server's part of a connection.
fn grant(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut question = [0; QUESTION];
    stream.read_exact(&mut question)?;
    let Some(wish) = Wish::read(&question) else { return Ok(()) };
    if let Wish::Page(n) = wish {
        stream.read_exact(&mut vec![0; request(n).len() - QUESTION])?;
    }
    if wish == Wish::Echo {
        let mut said = [0; 256];
        loop {
            let n = stream.read(&mut said)?;
            if n == 0 {
                return Ok(());
            }
            stream.write_all(&said[..n])?;
        }
    }
    wish.answer(|piece| stream.write_all(piece))
}

/// A megabyte of source code over 64 kbit/s.
pub fn source_code(board: &Board, _seeds: u64) -> Measured {
    const BYTES: u64 = 1_000_000;
    let row = board.row("source code", BYTES);
    let bed = Bed::build(&link(64_000, 64_000, 300), true)?;
    row.begin();
    let before = bed.status()?.receive.link_bytes;
    let time = bed.fetch(Wish::Code(BYTES), &row)?;
    let status = bed.status()?;
    let share = (status.receive.link_bytes - before) as f64 / BYTES as f64 * 100.0;
    let coded = status.compression.total.received_as as f64 / BYTES as f64 * 100.0;
    row.end(format!("{share:.1} %"));
    Ok(vec![
        Checked::asked(
            "1 MB of source code over 64 kbit/s: link bytes, all headers counted",
            "≤ 25 %",
            format!("{share:.1} %"),
            share <= 25.0,
        ),
        Checked::told("of them bytes of the stream", format!("{coded:.1} %")),
        Checked::told("its time; 130 s without compression", format!("{time:.0} s")),
    ])
}

/// Small answers, each on a connection of its own.
pub fn small_exchanges(board: &Board, _seeds: u64) -> Measured {
    const COUNT: u64 = 50;
    let row = board.row("small exchanges", 0);
    row.begin();
    let mut shares = Vec::new();
    for wish in [Wish::Report, Wish::Page] {
        let bed = Bed::build(&link(512_000, 128_000, 300), true)?;
        for n in 0..COUNT {
            bed.fetch(wish(n), &row)?;
        }
        thread::sleep(SETTLE);
        let c = bed.status()?.compression.total;
        let share = |plain: u64, coded: u64| coded as f64 / plain.max(1) as f64 * 100.0;
        let both = share(c.sent + c.received, c.sent_as + c.received_as);
        shares.push((both, share(c.received, c.received_as), c.sent + c.received));
    }
    let [(reports, _, plain), (pages, answers, requested)] = shares[..] else {
        return Err("nothing was measured".to_owned());
    };
    row.end(format!("{reports:.1} %"));
    Ok(vec![
        Checked::asked(
            "50 exchanges of 1 kB of JSON, a connection each: stream bytes both ways",
            "≤ 45 %",
            format!("{reports:.1} % of {plain} B"),
            reports <= 45.0,
        ),
        Checked::told(
            "the same asked for by a browser, whose requests go as they are",
            format!("{pages:.1} % of {requested} B; answers {answers:.1} %"),
        ),
    ])
}

/// Data that does not shrink.
pub fn noise(board: &Board, _seeds: u64) -> Measured {
    const BYTES: u64 = 50_000_000;
    /// A run without and one with, side by side and not in turn: the machine's speed may change
    /// by a fifth from one second to the next, and so both have the same.
    const PAIRS: usize = 21;
    let row = board.row("noise", 2 * PAIRS as u64 * BYTES);
    row.begin();
    let link = link(200_000_000, 20_000_000, 20);
    let beds = [Bed::build(&link, false)?, Bed::build(&link, true)?];
    let mut costs = Vec::new();
    let spent =
        || Ok::<_, String>([beds[0].topology.gateways_cpu()?, beds[1].topology.gateways_cpu()?]);
    for _ in 0..PAIRS {
        let before = spent()?;
        thread::scope(|scope| {
            let other = scope.spawn(|| beds[1].fetch(Wish::Noise(BYTES), &row));
            beds[0].fetch(Wish::Noise(BYTES), &row)?;
            other.join().map_err(|_| "a client panicked")?
        })?;
        let after = spent()?;
        costs.push([after[0] - before[0], after[1] - before[1]]);
    }
    let c = beds[1].status()?.compression.total;
    let growth = (c.received_as as f64 / c.received.max(1) as f64 - 1.0) * 100.0;
    let dearer: Vec<f64> = costs.iter().map(|[off, on]| (on / off - 1.0) * 100.0).collect();
    let dearer = median(dearer).ok_or("nothing was measured")?;
    let off = median(costs.iter().map(|[off, _]| *off)).ok_or("nothing was measured")?;
    row.end(format!("{growth:.3} %"));
    Ok(vec![
        Checked::asked("random data: growth", "≤ 0.1 %", format!("{growth:.3} %"), growth <= 0.1),
        Checked::asked(
            "the same at 200 Mbit/s: processor time of both gateways above that without",
            "≤ 5 %",
            format!("{dearer:.1} % of {off:.2} s, median of {PAIRS} pairs"),
            dearer <= 5.0,
        ),
    ])
}

/// Text over a link that is nearly as fast as the compressor.
pub fn fast_text(board: &Board, _seeds: u64) -> Measured {
    const BYTES: u64 = 100_000_000;
    let row = board.row("text over 100 Mbit/s", 2 * BYTES);
    row.begin();
    let mut times = Vec::new();
    for compress in [false, true] {
        let bed = Bed::build(&link(100_000_000, 10_000_000, 20), compress)?;
        times.push(bed.fetch(Wish::Code(BYTES), &row)?);
    }
    let goodput = BYTES as f64 * 8.0 / times[1] / 1e6;
    row.end(format!("{goodput:.0} Mbit/s"));
    Ok(vec![
        Checked::asked(
            "100 MB of source code over 100 Mbit/s: time",
            &format!("≤ {:.1} s, as without", times[0]),
            format!("{:.1} s", times[1]),
            times[1] <= times[0],
        ),
        Checked::asked(
            "its goodput",
            "> 100 Mbit/s",
            format!("{goodput:.0} Mbit/s"),
            goodput > 100.0,
        ),
    ])
}

/// A shell beside a download.
pub fn keystrokes(board: &Board, _seeds: u64) -> Measured {
    const KEYS: usize = 100;
    /// Drawn for each key: answers that come in step with the packets of the download, and
    /// a next key the same time after each, would all wait the same part of a packet.
    const APART_MS: (u64, u64) = (150, 250);
    let row = board.row("keystrokes", 0);
    row.begin();
    let mut medians = Vec::new();
    for compress in [false, true] {
        let bed = Bed::build(&link(1_000_000, 1_000_000, 100), compress)?;
        let waits = (|| -> io::Result<Vec<f64>> {
            let mut bulk = bed.ask(Wish::Code(1 << 40))?;
            let reader = thread::spawn(move || io::copy(&mut bulk, &mut io::sink()).ok());
            thread::sleep(SETTLE);
            let mut shell = bed.ask(Wish::Echo)?;
            let (mut waits, mut rng) = (Vec::new(), Rng::new(1));
            for n in 0..KEYS {
                let begin = Instant::now();
                let key = [b'a' + (n % 26) as u8];
                shell.write_all(&key)?;
                shell.read_exact(&mut [0])?;
                waits.push(begin.elapsed().as_secs_f64() * 1e3);
                thread::sleep(Duration::from_millis(rng.between(APART_MS.0, APART_MS.1)));
            }
            // The download ends with its gateways.
            drop(reader);
            Ok(waits)
        })();
        let waits = waits.map_err(|e| format!("the shell failed: {e}"))?;
        medians.push(median(waits).ok_or("nothing was measured")?);
    }
    let later = medians[1] - medians[0];
    row.end(format!("{later:.1} ms"));
    Ok(vec![Checked::asked(
        "keystrokes beside a download, 1 Mbit/s, RTT 200 ms: median of 100 above that without",
        "≤ 5 ms",
        format!("{later:.1} ms above {:.1} ms", medians[0]),
        later <= 5.0,
    )])
}

/// Ten thousand connections that have said something and rest.
pub fn idle_streams(board: &Board, _seeds: u64) -> Measured {
    rest(board, Pair { compress: true, ..Pair::default() }, "compressed")
}

/// The memory of gateways with ten thousand streams that rest, which are `what`.
pub(super) fn rest(board: &Board, gateways: Pair, what: &str) -> Measured {
    const COUNT: usize = 10_000;
    const QUESTIONS: usize = 16;
    let row = board.row(&format!("10,000 idle {what} streams"), 0);
    raise_descriptor_limit().map_err(|e| e.to_string())?;
    let dedup = gateways.dedup;
    let bed = Bed::build_with(&link(20_000_000, 2_000_000, 300), gateways)?;
    row.begin();
    let server = CrowdServer::start(&bed.topology.server, SERVER[0])
        .map_err(|e| format!("the server does not start: {e}"))?;
    let mut crowd = crowd::gather(&bed.topology, SERVER[0], COUNT)?;
    if let Some(first) = crowd.refused.iter().chain(&crowd.lost).next() {
        return Err(format!("not all connections stand: {first}"));
    }
    crowd::ask_again(&mut crowd.open, QUESTIONS).map_err(|e| format!("the crowd failed: {e}"))?;
    thread::sleep(SETTLE);
    let [a, b] = memories(&bed.topology)?.map(|bytes| bytes as f64 / 1e6);
    let status = bed.status()?;
    let coded = status.compression.total.received > 0 && (!dedup || status.dedup.in_use);
    row.end(format!("{:.0} MB", a.max(b)));
    drop((crowd.open, server));
    if !coded {
        return Err(format!("the streams were not {what}"));
    }
    Ok(vec![Checked::asked(
        &format!("memory of a gateway with 10,000 idle {what} streams"),
        "≤ 300 MB",
        format!("client's side {a:.0}, server's side {b:.0} MB"),
        a.max(b) <= 300.0,
    )])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_understood_and_answered_to_the_byte() {
        for wish in [
            Wish::Code(1_000_000),
            Wish::Changed(100_001),
            Wish::Report(7),
            Wish::Page(8),
            Wish::Echo,
        ] {
            assert_eq!(Wish::read(wish.question().first_chunk().unwrap()), Some(wish));
        }
        assert_eq!(Wish::read(&[b' '; QUESTION]), None);
        let length = |wish: Wish| {
            let mut bytes = 0;
            wish.answer(|piece| {
                bytes += piece.len();
                Ok(())
            })
            .unwrap();
            bytes
        };
        assert_eq!([Wish::Code(1_000_000), Wish::Noise(100_001)].map(length), [1_000_000, 100_001]);
        assert!((900..1_200).contains(&length(Wish::Report(7))), "{}", length(Wish::Report(7)));
    }

    #[test]
    fn wishes_are_granted_over_a_socket_and_a_wrong_answer_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let granting = thread::spawn(move || {
            for _ in 0..6 {
                grant(listener.accept().unwrap().0).unwrap();
            }
        });
        let done = AtomicUsize::new(0);
        for wish in [Wish::Code(500_000), Wish::Noise(200_000), Wish::Report(3), Wish::Page(3)] {
            compare(ask(server, wish).unwrap(), wish, &done).unwrap();
        }
        assert_eq!(done.into_inner(), 700_000 + 2 * report(3).len());
        let other = ask(server, Wish::Report(4)).unwrap();
        assert!(compare(other, Wish::Report(5), &AtomicUsize::new(0)).is_err());
        let mut shell = ask(server, Wish::Echo).unwrap();
        let mut heard = [0; 2];
        shell.write_all(b"ls").unwrap();
        shell.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"ls");
        drop(shell);
        granting.join().unwrap();
    }
}
