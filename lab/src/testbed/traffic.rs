//! Real TCP work for the kernel: a file server and a client that speak HTTP/1.0, and
//! what each of them notices. Content is pseudo-random (incompressible) unless text is
//! asked for, and made anew by the client, so that every byte is checked in its place.
//!
//! Both sides block and use threads: an experiment has a handful of connections. The
//! thread must already be in the namespace of its host.

pub mod browser;
pub mod chromium;
pub(crate) mod content;
pub mod dns;
pub mod ftp;
mod many;
pub mod ping;
pub mod site;
pub mod six_hosts;
pub mod udp;

pub use many::{Page, fetch_page, fetch_streams};

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use content::{Checker, Content};

/// The server's port in every experiment.
pub const PORT: u16 = 80;
/// Pieces in which content is made, written and checked.
const PIECE: usize = 64 * 1024;
/// How often progress and TCP's state are written down.
const SAMPLE: Duration = Duration::from_millis(20);
/// A transfer in which nothing moves for so long has failed.
const PATIENCE: Duration = Duration::from_secs(150);
/// The longest request or response head that is read.
const LONGEST_HEAD: u64 = 8 * 1024;

/// A value noted over time: seconds since the experiment's start, and the value.
pub type Samples = Vec<(f64, f64)>;

/// What the server noticed of one connection.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// When the request was read, seconds since the start.
    pub started: f64,
    /// From then until the last byte was acknowledged by whoever is at the other end.
    pub busy: f64,
    /// Smoothed round-trip time over time, ms.
    pub rtt: Samples,
    /// Bytes handed to TCP over time.
    pub written: Samples,
    /// Bytes that TCP has sent over time, each counted once.
    pub sent: Samples,
    /// Bytes acknowledged over time.
    pub acknowledged: Samples,
    /// TCP's congestion window over time, bytes.
    pub congestion_window: Samples,
    /// Segments sent again.
    pub retransmitted: u32,
}

/// What the client noticed of one request.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// When it began to connect, seconds since the start.
    pub started: f64,
    /// From then to the end of TCP's opening, s.
    pub connected: f64,
    /// From then to the first byte of content, s.
    pub first_byte: f64,
    /// From then to the last byte of content, s.
    pub complete: f64,
    /// Bytes of content that came.
    pub bytes: u64,
    /// Bytes of content that were asked for; more came not if time was up first.
    pub asked: u64,
    /// Bytes of content received over time (since the start).
    pub received: Samples,
}

/// A file server on [`PORT`] of one host.
pub struct Server {
    stop: Arc<AtomicBool>,
    served: Arc<Mutex<Vec<Served>>>,
    acceptor: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` and serves until stopped or dropped. `origin` is the start
    /// that all times refer to.
    pub fn start(address: IpAddr, origin: Instant) -> io::Result<Server> {
        let listener = TcpListener::bind((address, PORT))?;
        listener.set_nonblocking(true)?;
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
        let acceptor = thread::Builder::new().name("lab-server".into()).spawn({
            let (stop, served) = (stop.clone(), served.clone());
            move || accept(&listener, origin, &stop, &served)
        })?;
        Ok(Server { stop, served, acceptor: Some(acceptor) })
    }

    /// What was noticed of the connections that are over, in the order of their ends.
    pub fn stop(mut self) -> Vec<Served> {
        self.end();
        std::mem::take(&mut self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.acceptor.take() {
            // A panic in there has been printed; what was served until then still counts.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn accept(
    listener: &TcpListener,
    origin: Instant,
    stop: &Arc<AtomicBool>,
    served: &Arc<Mutex<Vec<Served>>>,
) {
    let mut workers = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let (stop, served) = (stop.clone(), served.clone());
                // Hundreds of connections are looked at less often, or looking is the work.
                let sample = SAMPLE * (1 + workers.len() as u32 / 8);
                workers.push(thread::spawn(move || {
                    // A connection that breaks is the client's to report.
                    if let Ok(one) = serve(&stream, origin, sample, &stop) {
                        served.lock().unwrap_or_else(PoisonError::into_inner).push(one);
                    }
                }));
            }
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
    for worker in workers {
        let _ = worker.join();
    }
}

fn serve(
    stream: &TcpStream,
    origin: Instant,
    sample: Duration,
    stop: &AtomicBool,
) -> io::Result<Served> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(stream)?;
    send(stream, &request, (origin, sample), stop)
}

/// Sends what was asked for, and notes what TCP does meanwhile.
fn send(
    stream: &TcpStream,
    request: &Request,
    (origin, sample): (Instant, Duration),
    stop: &AtomicBool,
) -> io::Result<Served> {
    let mut noted = Served { started: origin.elapsed().as_secs_f64(), ..Served::default() };
    let progress = AtomicUsize::new(0);
    let (done, over) = mpsc::channel::<()>();
    let broken = AtomicBool::new(false);
    let ended: &(dyn Fn() -> bool + Sync) =
        &|| broken.load(Ordering::Relaxed) || stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let probe = os::tcp::Stream::from(stream.try_clone()?);
        let progress = &progress;
        let watcher = scope.spawn(move || watch(&probe, (origin, sample), progress, &over, ended));
        let written = write_content(stream, request, progress);
        // What a broken connection has not delivered is never acknowledged.
        broken.store(written.is_err(), Ordering::Relaxed);
        drop(done);
        let watched = watcher.join().map_err(|_| io::Error::other("the watcher failed"))?;
        match written.as_ref().map_err(io::Error::kind) {
            // A client that has seen enough hangs up.
            Ok(()) | Err(io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
            Err(_) => return written,
        }
        noted.rtt = watched.rtt;
        noted.written = watched.written;
        noted.sent = watched.sent;
        noted.acknowledged = watched.acknowledged;
        noted.congestion_window = watched.congestion_window;
        noted.retransmitted = watched.retransmitted;
        noted.busy = watched.idle_at - noted.started;
        Ok(())
    })?;
    // It fails where the client has hung up; then there is nothing to wait for.
    let _ = stream.shutdown(Shutdown::Write);
    // Waits for the client's end, so that closing cannot cut off what is on its way.
    let _ = io::copy(&mut stream.take(LONGEST_HEAD), &mut io::sink());
    Ok(noted)
}

/// How often a second a paced server sends.
const PORTIONS: u64 = 10;

/// What a client asks for, and whether its headers call for as long ones.
#[derive(Debug, PartialEq)]
struct Request {
    seed: u64,
    bytes: u64,
    /// bit/s; 0 is no limit.
    pace: u64,
    text: bool,
    headers: bool,
    /// The content alone, without a head.
    bare: bool,
}

fn read_request(stream: &TcpStream) -> io::Result<Request> {
    let mut lines = BufReader::new(stream.take(LONGEST_HEAD)).lines();
    let first = lines.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
    let mut headers = false;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        headers |= line.starts_with("User-Agent:");
    }
    let parsed = parse_request(&first);
    let request = parsed.ok_or_else(|| io::Error::other(format!("not a request: {first:?}")))?;
    Ok(Request { headers, ..request })
}

/// `GET /SEED/BYTES HTTP/1.0` or `GET /SEED/BYTES/PACE HTTP/1.0`; `/text/SEED…` is of text.
fn parse_request(line: &str) -> Option<Request> {
    let path = line.strip_prefix("GET /")?.split(' ').next()?;
    let (text, path) = path.strip_prefix("text/").map_or((false, path), |path| (true, path));
    let (seed, rest) = path.split_once('/')?;
    let (bytes, pace) = rest.split_once('/').unwrap_or((rest, "0"));
    let (seed, bytes, pace) = (seed.parse().ok()?, bytes.parse().ok()?, pace.parse().ok()?);
    Some(Request { seed, bytes, pace, text, headers: false, bare: false })
}

fn write_content(
    mut stream: &TcpStream,
    request: &Request,
    progress: &AtomicUsize,
) -> io::Result<()> {
    let Request { seed, bytes, pace, text, headers, bare } = *request;
    let headers = if headers { WEB_SERVER } else { "" };
    let head = format!("HTTP/1.0 200 OK\r\n{headers}Content-Length: {bytes}\r\n\r\n");
    let mut content = Content::new(seed, text);
    let mut piece = vec![0; PIECE];
    let mut left = bytes;
    let mut out = if bare { Vec::new() } else { head.into_bytes() };
    let begin = Instant::now();
    // What a paced server sends at a time.
    let portion = if pace > 0 { (pace / 8 / PORTIONS).max(1) as usize } else { usize::MAX };
    while left > 0 || !out.is_empty() {
        let n = left.min(PIECE as u64) as usize;
        content.fill(&mut piece);
        out.extend_from_slice(&piece[..n]);
        for portion in out.chunks(portion) {
            if pace > 0 {
                let due = progress.load(Ordering::Relaxed) as f64 * 8.0 / pace as f64;
                thread::sleep(Duration::from_secs_f64(due).saturating_sub(begin.elapsed()));
            }
            stream.write_all(portion)?;
            progress.fetch_add(portion.len(), Ordering::Relaxed);
        }
        out.clear();
        left -= n as u64;
    }
    Ok(())
}

#[derive(Default)]
struct Watched {
    rtt: Samples,
    written: Samples,
    sent: Samples,
    acknowledged: Samples,
    congestion_window: Samples,
    retransmitted: u32,
    idle_at: f64,
}

/// Notes TCP's state until everything is written and acknowledged.
fn watch(
    stream: &os::tcp::Stream,
    (origin, sample): (Instant, Duration),
    progress: &AtomicUsize,
    over: &mpsc::Receiver<()>,
    ended: &dyn Fn() -> bool,
) -> Watched {
    let mut noted = Watched::default();
    let mut writing = true;
    loop {
        if writing {
            writing = over.recv_timeout(sample) == Err(mpsc::RecvTimeoutError::Timeout);
        } else {
            thread::sleep(Duration::from_millis(1));
        }
        let now = origin.elapsed().as_secs_f64();
        noted.idle_at = now;
        let (Ok(info), Ok(waiting)) = (stream.info(), stream.unacknowledged()) else {
            return noted;
        };
        let due = noted.rtt.last().is_none_or(|last| now - last.0 >= sample.as_secs_f64());
        if due {
            noted.rtt.push((now, info.rtt.as_secs_f64() * 1e3));
            noted.written.push((now, progress.load(Ordering::Relaxed) as f64));
            noted.sent.push((now, info.sent as f64));
            noted.acknowledged.push((now, info.acknowledged as f64));
            let window = f64::from(info.congestion_window) * f64::from(info.send_mss);
            noted.congestion_window.push((now, window));
        }
        noted.retransmitted = info.retransmissions;
        if !writing && waiting == 0 || ended() {
            return noted;
        }
    }
}

/// One file to fetch.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Which content.
    pub seed: u64,
    /// How much of it.
    pub bytes: u64,
    /// Hang up when so much time has passed since the first byte of content.
    pub at_most: Duration,
    /// Count only what has come by then, since the client began to connect, and hang up.
    pub until: Option<Duration>,
    /// Offer no larger receive window than this.
    pub window: Option<u32>,
    /// The server sends no faster than so many bit/s; 0: as fast as it can.
    pub pace: u64,
    /// The content is text, not noise.
    pub text: bool,
    /// Ask and be answered with headers as long as those of a browser and a web server.
    pub headers: bool,
}

impl Wanted {
    /// All `bytes` of the content of `seed`, however long it takes.
    pub fn whole(seed: u64, bytes: u64) -> Wanted {
        Wanted {
            seed,
            bytes,
            at_most: Duration::MAX,
            until: None,
            window: None,
            pace: 0,
            text: false,
            headers: false,
        }
    }

    fn request(&self) -> String {
        let Wanted { seed, bytes, pace, text, headers, .. } = self;
        let kind = if *text { "text/" } else { "" };
        let more = if *headers { BROWSER } else { "" };
        let pace = if *pace > 0 { format!("/{pace}") } else { String::new() };
        format!("GET /{kind}{seed}/{bytes}{pace} HTTP/1.0\r\n{more}\r\n")
    }
}

/// What a command-line client of today says of itself.
const BROWSER: &str = "Host: www.example.net\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n";
/// What a web server of today answers to those who say `User-Agent`.
const WEB_SERVER: &str = "Server: nginx/1.26.3\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
     Content-Type: application/octet-stream\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
     Connection: close\r\nETag: \"69559a80-2710\"\r\nAccept-Ranges: bytes\r\n";

/// Fetches a file from `server` and checks every byte. `progress` counts the bytes of
/// content as they come.
pub fn fetch(
    server: SocketAddr,
    wanted: Wanted,
    origin: Instant,
    progress: &AtomicUsize,
) -> io::Result<Fetched> {
    let Wanted { bytes, until, .. } = wanted;
    let begin = Instant::now();
    let started = begin.duration_since(origin).as_secs_f64();
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    let connected = begin.elapsed().as_secs_f64();
    stream.set_nodelay(true)?;
    // Nothing counts that comes after the deadline, and nobody waits for it.
    let left = until.map_or(PATIENCE, |until| until.saturating_sub(begin.elapsed()));
    stream.set_read_timeout(Some(left.clamp(Duration::from_millis(1), PATIENCE)))?;
    let over = || until.is_some_and(|until| begin.elapsed() >= until);
    stream.write_all(wanted.request().as_bytes())?;

    let noted = Fetched { started, connected, asked: bytes, ..Fetched::default() };
    let mut reader = BufReader::with_capacity(PIECE, stream);
    let announced = match read_head(&mut reader) {
        Err(_) if over() => bytes,
        announced => announced?,
    };
    if announced != bytes {
        return Err(io::Error::other(format!("the server offers {announced} of {bytes} bytes")));
    }
    receive(reader, wanted, noted, (origin, begin), progress)
}

/// Reads content and checks every byte.
fn receive(
    mut reader: BufReader<TcpStream>,
    wanted: Wanted,
    mut noted: Fetched,
    (origin, begin): (Instant, Instant),
    progress: &AtomicUsize,
) -> io::Result<Fetched> {
    let Wanted { seed, bytes, at_most, until, window, text, .. } = wanted;
    let over = || until.is_some_and(|until| begin.elapsed() >= until);
    let limiter = os::tcp::Stream::from(reader.get_ref().try_clone()?);
    let mut check = Checker::new(Content::new(seed, text));
    let mut last = f64::NEG_INFINITY;
    while check.position < bytes {
        if let Some(window) = window {
            // Again and again: the kernel raises it when it measures its buffers anew.
            limiter.set_window_limit(window)?;
        }
        let piece = match reader.fill_buf() {
            Err(_) if over() => break,
            piece => piece.map_err(patience)?,
        };
        if piece.is_empty() {
            let at = check.position;
            return Err(io::Error::other(format!(
                "the connection ended after {at} of {bytes} bytes"
            )));
        }
        if over() {
            // What came since is left out, as if it had not been read.
            break;
        }
        if check.position == 0 {
            noted.first_byte = begin.elapsed().as_secs_f64();
        }
        if piece.len() as u64 > bytes - check.position {
            return Err(io::Error::other("more bytes came than were asked for"));
        }
        check.next(piece)?;
        let n = piece.len();
        reader.consume(n);
        progress.fetch_add(n, Ordering::Relaxed);
        let now = origin.elapsed().as_secs_f64();
        if now - last >= SAMPLE.as_secs_f64() || check.position == bytes {
            noted.received.push((now, check.position as f64));
            last = now;
        }
        if begin.elapsed().as_secs_f64() - noted.first_byte > at_most.as_secs_f64() {
            break;
        }
    }
    noted.bytes = check.position;
    noted.complete = begin.elapsed().as_secs_f64();
    if let Some(until) = until {
        noted.complete = noted.complete.min(until.as_secs_f64());
        if noted.bytes == 0 {
            noted.first_byte = noted.complete;
        }
    }
    if noted.bytes < bytes {
        return Ok(noted);
    }
    if !reader.fill_buf().map_err(patience)?.is_empty() {
        return Err(io::Error::other("more bytes came than were asked for"));
    }
    Ok(noted)
}

fn patience(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::other(format!("not a byte came for {} s", PATIENCE.as_secs()))
        }
        _ => e,
    }
}

fn read_head(reader: &mut impl BufRead) -> io::Result<u64> {
    let mut announced = None;
    let mut line = String::new();
    loop {
        line.clear();
        if reader.by_ref().take(LONGEST_HEAD).read_line(&mut line).map_err(patience)? == 0 {
            return Err(io::Error::other("the connection ended before the answer began"));
        }
        if line.trim_end().is_empty() {
            break;
        }
        if let Some(bytes) = line.strip_prefix("Content-Length: ") {
            announced = bytes.trim_end().parse().ok();
        }
    }
    announced.ok_or_else(|| io::Error::other("the answer does not say how long it is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(answer: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || answer(listener.accept().unwrap().0));
        address
    }

    fn get(server: SocketAddr, bytes: u64) -> io::Result<Fetched> {
        fetch(server, Wanted::whole(7, bytes), Instant::now(), &AtomicUsize::new(0))
    }

    #[test]
    fn a_file_arrives_whole_and_both_sides_have_noted_it() {
        let origin = Instant::now();
        let (send, receive) = mpsc::channel();
        let address = local(move |s| {
            send.send(serve(&s, origin, SAMPLE, &AtomicBool::new(false)).unwrap()).unwrap();
        });
        let progress = AtomicUsize::new(0);
        let got = fetch(address, Wanted::whole(7, 300_001), origin, &progress).unwrap();
        let served = receive.recv().unwrap();
        assert_eq!(progress.load(Ordering::Relaxed), 300_001);
        assert_eq!(got.received.last().unwrap().1, 300_001.0);
        assert!(got.connected <= got.first_byte && got.first_byte <= got.complete);
        assert!(served.busy >= 0.0 && !served.rtt.is_empty());
        let windows = &served.congestion_window;
        // No fewer segments than one, of no fewer bytes than IPv4's least.
        assert!(windows.len() == served.rtt.len() && windows.iter().all(|w| w.1 >= 536.0));
    }

    #[test]
    fn a_client_whose_time_is_up_hangs_up_and_both_sides_keep_their_notes() {
        let origin = Instant::now();
        let (send, receive) = mpsc::channel();
        let address = local(move |s| {
            send.send(serve(&s, origin, SAMPLE, &AtomicBool::new(false)).unwrap()).unwrap();
        });
        let at_most = Duration::from_millis(50);
        let wanted = Wanted { at_most, ..Wanted::whole(7, 1 << 40) };
        let got = fetch(address, wanted, origin, &AtomicUsize::new(0)).unwrap();
        assert!(got.bytes > 0 && got.bytes < got.asked);
        assert!(!receive.recv().unwrap().rtt.is_empty());
    }

    #[test]
    fn an_empty_file_is_a_file() {
        let origin = Instant::now();
        let address = local(move |s| drop(serve(&s, origin, SAMPLE, &AtomicBool::new(false))));
        assert_eq!(get(address, 0).unwrap().bytes, 0);
    }

    fn answering(head: &'static str, content: Vec<u8>) -> SocketAddr {
        local(move |mut s| {
            read_request(&s).unwrap();
            s.write_all(head.as_bytes()).unwrap();
            s.write_all(&content).unwrap();
            s.shutdown(Shutdown::Write).unwrap();
            let _ = io::copy(&mut s, &mut io::sink());
        })
    }

    #[test]
    fn wrong_short_and_long_content_is_noticed() {
        let mut right = vec![0; 1000];
        units::Rng::new(7).fill(&mut right);
        let mut wrong = right.clone();
        wrong[999] ^= 1;
        let head = "HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n";
        let longer = [right.clone(), vec![0]].concat();
        for (content, why) in
            [(wrong, "wrong content"), (right[..999].to_vec(), "after 999"), (longer, "more bytes")]
        {
            let error = get(answering(head, content), 1000).unwrap_err().to_string();
            assert!(error.contains(why), "{error} does not say {why}");
        }
        assert!(get(answering(head, right), 1000).is_ok());
    }

    #[test]
    fn requests_that_are_none_are_refused() {
        let request = |bytes, pace, text| {
            Some(Request { seed: 7, bytes, pace, text, headers: false, bare: false })
        };
        assert_eq!(parse_request("GET /7/100 HTTP/1.0"), request(100, 0, false));
        assert_eq!(parse_request("GET /7/100/8000 HTTP/1.0"), request(100, 8000, false));
        let wanted = Wanted { text: true, pace: 8000, ..Wanted::whole(7, 100) }.request();
        assert_eq!(parse_request(&wanted), request(100, 8000, true));
        for bad in ["", "GET /7", "GET /x/1 HTTP/1.0", "PUT /7/1 HTTP/1.0", "GET /7/-1 HTTP/1.0"] {
            assert_eq!(parse_request(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_paced_server_sends_no_faster_than_asked() {
        let origin = Instant::now();
        let address = local(move |s| {
            let _ = serve(&s, origin, SAMPLE, &AtomicBool::new(false));
        });
        let wanted = Wanted { pace: 800_000, ..Wanted::whole(7, 50_000) };
        let got = fetch(address, wanted, origin, &AtomicUsize::new(0)).unwrap();
        // 50 kB at 100 kB/s, the last portion of a tenth of a second at its beginning.
        assert!(got.complete >= 0.39, "{}", got.complete);
    }

    #[test]
    fn what_comes_after_the_deadline_is_not_counted() {
        let origin = Instant::now();
        let address = local(move |s| {
            let _ = serve(&s, origin, SAMPLE, &AtomicBool::new(false));
        });
        let until = Some(Duration::from_secs(2));
        let wanted = Wanted { until, ..Wanted::whole(7, 1 << 40) };
        let got = fetch(address, wanted, origin, &AtomicUsize::new(0)).unwrap();
        assert!(got.bytes > 0 && got.bytes < got.asked);
        assert_eq!(got.complete, 2.0);
    }

    #[test]
    fn a_server_that_says_nothing_until_the_deadline_has_sent_nothing() {
        let (let_go, hold) = mpsc::channel::<()>();
        let address = local(move |s| {
            read_request(&s).unwrap();
            let _ = hold.recv();
        });
        let begin = Instant::now();
        let until = Some(Duration::from_millis(300));
        let wanted = Wanted { until, ..Wanted::whole(7, 1 << 40) };
        let got = fetch(address, wanted, begin, &AtomicUsize::new(0)).unwrap();
        assert_eq!((got.bytes, got.complete, got.first_byte), (0, 0.3, 0.3));
        drop(let_go);
    }

    #[test]
    fn a_client_that_speaks_like_a_browser_is_answered_by_a_web_server() {
        let head = |headers| {
            let origin = Instant::now();
            let address = local(move |s| drop(serve(&s, origin, SAMPLE, &AtomicBool::new(false))));
            let mut stream = TcpStream::connect(address).unwrap();
            let wanted = Wanted { headers, ..Wanted::whole(7, 10_000) };
            stream.write_all(wanted.request().as_bytes()).unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            all.len() - 10_000
        };
        assert_eq!(head(false), 42);
        assert!((240..320).contains(&head(true)), "{}", head(true));
    }
}
