//! `bentpipe-lab day --real`: the same hour with real gateways, modems, hosts and kernel TCP.
//!
//! Two ships have it side by side, each in namespaces of its own: the gateway of one has the
//! careful rules, that of the other dials for any packet. The exchange meters their calls from
//! outside.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration as StdDuration, Instant as StdInstant};

use dial::calendar::Wall;
use dial::money::Money;
use dial::tariff::{Call, Rates};
use exchange::{CallRecord, ExchangeConfig};
use os::netns::NetNs;
use units::{BitRate, ByteCount, Duration, Instant, Rng};

use super::{Day, POINT, Talk};
use crate::called::Called;
use crate::testbed::progress::{Board, Row};
use crate::testbed::topology::{CLIENT, SERVER};

/// In front of what a host says: number, bytes it says, bytes that it is answered.
const HEAD: usize = 12;
/// How long a gateway may take to write down what a call cost.
const END: StdDuration = StdDuration::from_secs(60);
/// A look at what is expected.
const LOOK: StdDuration = StdDuration::from_millis(50);
/// Lines of one ssh session are no further apart.
const SESSION: Duration = Duration::from_secs(60);
/// Ports of servers: mail, a page, ssh.
const PORTS: [u16; 3] = [25, 443, 22];

/// The line and the prices of a day, N times as fast as they are.
pub struct Pace(pub u32);

impl Pace {
    fn of(&self, time: Duration) -> Duration {
        time.divided_by(u64::from(self.0))
    }

    fn network(&self) -> ExchangeConfig {
        let real = ExchangeConfig::default();
        ExchangeConfig {
            rate: BitRate::from_bps(real.rate.as_bps() * u64::from(self.0)),
            delay: self.of(real.delay),
            setup: self.of(real.setup),
            training: self.of(real.training),
            ..real
        }
    }

    fn increment(&self) -> Duration {
        self.of(Duration::from_secs(6))
    }

    fn rates(&self) -> Rates {
        let price = Money::from_cents(240 * u64::from(self.0));
        Rates::per_minute(price, self.increment(), self.increment().times(5))
    }

    /// The ship's `[peer.line]`.
    fn line(&self, careful: bool) -> String {
        let rules = match careful {
            true => format!(
                "[[peer.line.demand]]\nname = \"mail\"\nports = [25]\nthen = \"batch\"\n\
                 amount = \"8kB\"\nage = \"{}\"\n",
                self.of(Duration::from_secs(3_600))
            ),
            false => String::new(),
        };
        format!(
            "idle = \"{idle}\"\nnoise = \"{noise}\"\ntariff = {{ currency = \"USD\", per_minute = \
             \"{price}\", increment = \"{step}\", minimum = \"{least}\" }}\n{rules}",
            idle = self.of(Duration::from_secs(30)),
            noise = if careful { "never" } else { "raise" },
            price = Money::from_cents(240 * u64::from(self.0)),
            step = self.increment(),
            least = self.increment().times(5),
        )
    }
}

/// What came of what hosts said, by number.
#[derive(Default)]
struct Came {
    /// When its first bytes were there.
    first: BTreeMap<u32, StdInstant>,
    /// Whose answer came as it was sent.
    whole: Vec<u32>,
    /// Packets of chatter.
    chatter: usize,
}

type Shared = Arc<Mutex<Came>>;

fn look(came: &Shared) -> MutexGuard<'_, Came> {
    came.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a host says, or is answered: noise, so that nothing is saved by compression.
fn content(id: u32, len: u32, answer: bool) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    Rng::new(u64::from(id) << 1 | u64::from(answer)).fill(&mut bytes);
    bytes
}

/// A third is asked, the rest is answered, as in virtual time.
fn halves(bytes: u64) -> [u32; 2] {
    let asked = (bytes / 3).max(HEAD as u64);
    [asked as u32, bytes.saturating_sub(asked).max(1) as u32]
}

/// Asks for what `talk` is about.
fn ask(mut stream: &TcpStream, id: u32, bytes: u64) -> io::Result<()> {
    let [asked, answer] = halves(bytes);
    let mut all = [id, asked, answer].map(u32::to_be_bytes).concat();
    all.extend(content(id, asked - HEAD as u32, false));
    stream.write_all(&all)
}

/// Takes the answer.
fn take(mut stream: &TcpStream, id: u32, bytes: u64, came: &Shared) -> io::Result<()> {
    let mut answer = vec![0; halves(bytes)[1] as usize];
    stream.read_exact(&mut answer)?;
    if answer == content(id, answer.len() as u32, true) {
        look(came).whole.push(id);
    }
    Ok(())
}

/// Answers all of one connection.
fn answer(mut stream: TcpStream, came: &Shared) -> io::Result<()> {
    loop {
        let mut head = [0; HEAD];
        // The first byte is what somebody waits for.
        stream.read_exact(&mut head[..1])?;
        let now = StdInstant::now();
        stream.read_exact(&mut head[1..])?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let [id, asked, length] = [word(0), word(4), word(8)];
        look(came).first.insert(id, now);
        let mut rest = vec![0; (asked as usize).saturating_sub(HEAD)];
        stream.read_exact(&mut rest)?;
        if rest != content(id, rest.len() as u32, false) {
            return Err(io::Error::other("other bytes came than were sent"));
        }
        stream.write_all(&content(id, length, true))?;
    }
}

/// Servers of all that is said; they end with this process.
fn serve(server: &NetNs, came: &Shared) -> io::Result<()> {
    for port in PORTS {
        let listener = server.run(|| TcpListener::bind((SERVER[0], port)))?;
        let came = Arc::clone(came);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let came = Arc::clone(&came);
                thread::spawn(move || answer(stream, &came));
            }
        });
    }
    for port in super::CHATTER {
        let socket = server.run(|| UdpSocket::bind((SERVER[0], port)))?;
        let came = Arc::clone(came);
        thread::spawn(move || {
            while socket.recv(&mut [0; 2_048]).is_ok() {
                look(&came).chatter += 1;
            }
        });
    }
    Ok(())
}

/// Both ships at once, the careful one first.
///
/// # Errors
/// If a network, a modem or a gateway cannot be had.
pub fn both(
    talk: &[Talk],
    length: Duration,
    pace: &Pace,
    board: &Board,
) -> Result<[Day; 2], String> {
    let one = |name: &'static str, careful: bool| {
        let row = board.row(name, 0);
        move || Ship::new(name, careful, pace)?.run(talk, length, &row)
    };
    let [careful, any] = thread::scope(|scope| {
        let ships = [scope.spawn(one("day, real", true)), scope.spawn(one("any, real", false))];
        ships.map(|ship| ship.join().unwrap_or_else(|_| Err("the thread of a ship failed".into())))
    });
    Ok([careful?, any?])
}

struct Ship<'a> {
    name: &'static str,
    pace: &'a Pace,
    called: Called,
    /// Connections of hosts.
    open: Mutex<Vec<TcpStream>>,
}

impl<'a> Ship<'a> {
    fn new(name: &'static str, careful: bool, pace: &'a Pace) -> Result<Ship<'a>, String> {
        let called = Called::start(pace.network(), "open = \"fast\"\n", &pace.line(careful))?;
        Ok(Ship { name, pace, called, open: Mutex::default() })
    }

    fn run(self, talk: &[Talk], length: Duration, row: &Row) -> Result<Day, String> {
        let came = Shared::default();
        serve(&self.called.topology.server, &came).map_err(|e| format!("no server: {e}"))?;
        row.begin();
        let begin = StdInstant::now();
        let asked = thread::scope(|scope| {
            let asked = self.talk(scope, talk, begin, &came);
            self.sleep_until(begin, length);
            let over = self.called.hang_up();
            for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                // Who is not answered yet waits no longer.
                let _ = stream.shutdown(Shutdown::Both);
            }
            over.and(asked)
        })?;
        let (calls, came) = (self.called.modems.calls(), look(&came));
        let (price, booked) = self.books(calls.len() as u64)?;
        if booked != calls.len() as u64 {
            return Err(format!("the books have {booked} calls, the meter {}", calls.len()));
        }
        let rates = self.pace.rates();
        let metered: Money = calls.iter().map(|c| priced(&rates, c, c.end)).sum();
        let waits =
            asked.iter().filter_map(|(id, at)| Some(came.first.get(id)?.duration_since(*at)));
        let longest = waits.max().unwrap_or_default().as_millis() as u64;
        let unanswered = asked.keys().filter(|id| !came.whole.contains(id)).count();
        let connected: u64 = calls.iter().map(|c| c.end.since(c.start).as_millis()).sum();
        row.end(format!("{} calls, {price} USD", calls.len()));
        Ok(Day {
            rules: self.name,
            calls: calls.len() as u64,
            connected_s: connected * u64::from(self.pace.0) / 1_000,
            price,
            longest_wait_ms: longest * u64::from(self.pace.0),
            real: Some(super::Real {
                metered: metered.to_string(),
                answered: came.whole.len(),
                unanswered_urgent: unanswered,
                chatter: came.chatter,
            }),
            micros: metered.as_micros().into(),
            priced: self.price_by_time(&calls, begin, length),
            up: self.up_by_time(&calls, begin),
        })
    }

    /// All that hosts say, each at its time; answers when each that somebody waits for was said.
    fn talk<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        talk: &[Talk],
        begin: StdInstant,
        came: &Shared,
    ) -> Result<BTreeMap<u32, StdInstant>, String> {
        let mut order: Vec<(usize, &Talk)> = talk.iter().enumerate().collect();
        order.sort_by_key(|(_, talk)| talk.at);
        let (mut asked, mut session) = (BTreeMap::new(), None::<(Ssh, Instant)>);
        for (id, talk) in order {
            let (id, bytes, at) = (id as u32, talk.bytes, talk.at);
            self.sleep_until(begin, at.since(Instant::ZERO));
            if talk.urgent {
                asked.insert(id, StdInstant::now());
            }
            let said = match talk.flow.protocol {
                17 => self.chatter(id, talk),
                _ if talk.flow.port == 22 => {
                    let old = session.take().filter(|(_, last)| at.since(*last) < SESSION);
                    let ssh = match old {
                        Some((ssh, _)) => Ok(ssh),
                        None => self.connect(22).and_then(|stream| Ssh::start(scope, stream, came)),
                    };
                    ssh.and_then(|ssh| {
                        ssh.say(id, bytes)?;
                        session = Some((ssh, at));
                        Ok(())
                    })
                }
                _ => self.connect(talk.flow.port).map(|stream| {
                    let came = Arc::clone(came);
                    scope.spawn(move || {
                        ask(&stream, id, bytes).and_then(|()| take(&stream, id, bytes, &came))
                    });
                }),
            };
            said.map_err(|e| format!("a host of \"{}\": {e}", self.name))?;
        }
        Ok(asked)
    }

    fn sleep_until(&self, begin: StdInstant, at: Duration) {
        thread::sleep(self.pace.of(at).to_std().saturating_sub(begin.elapsed()));
    }

    fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let to = SocketAddr::new(SERVER[0], port);
        let stream = self.called.topology.client.run(|| TcpStream::connect(to))?;
        stream.set_nodelay(true)?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push(stream.try_clone()?);
        Ok(stream)
    }

    fn chatter(&self, id: u32, talk: &Talk) -> io::Result<()> {
        let packet = content(id, talk.bytes as u32, false);
        let to = SocketAddr::new(SERVER[0], talk.flow.port);
        let socket = self.called.topology.client.run(|| UdpSocket::bind((CLIENT[0], 0)))?;
        socket.send_to(&packet, to).map(|_| ())
    }

    /// The price and the number of calls by `bentpipe cost`, when all are written down.
    fn books(&self, calls: u64) -> Result<(String, u64), String> {
        let begin = StdInstant::now();
        loop {
            let text = self.called.caller.cost()?;
            let rows: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let booked = rows[0]["calls"].as_u64().unwrap_or(0);
            if booked >= calls || begin.elapsed() > END {
                let price = rows[0]["price"].as_str().unwrap_or("0.00");
                return Ok((price.to_owned(), booked));
            }
            thread::sleep(LOOK);
        }
    }

    /// A time of the meter in minutes of the day.
    fn minutes(&self, at: Instant, begin: StdInstant) -> f64 {
        let before = begin.duration_since(self.called.metered_from).as_secs_f64();
        let seconds = at.since(Instant::ZERO).as_secs_f64() - before;
        seconds * f64::from(self.pace.0) / 60.0
    }

    fn price_by_time(
        &self,
        calls: &[CallRecord],
        begin: StdInstant,
        length: Duration,
    ) -> Vec<(f64, f64)> {
        let rates = self.pace.rates();
        let points = length.as_millis() / POINT.as_millis();
        let at = |point: u64| point as f64 * POINT.as_secs_f64() / 60.0;
        let spent = |minute: f64| {
            let until = |call: &CallRecord| {
                let end = self.minutes(call.end, begin).min(minute);
                let start = self.minutes(call.start, begin);
                let seconds = (end - start).max(0.0) * 60.0 / f64::from(self.pace.0);
                call.start + Duration::from_micros((seconds * 1e6) as u64)
            };
            let begun = calls.iter().filter(|call| self.minutes(call.start, begin) <= minute);
            begun.map(|call| priced(&rates, call, until(call)).as_micros() as f64 / 1e6).sum()
        };
        (0..=points).map(|point| (at(point), spent(at(point)))).collect()
    }

    fn up_by_time(&self, calls: &[CallRecord], begin: StdInstant) -> Vec<(f64, f64)> {
        let mut up = vec![(0.0, 0.0)];
        for call in calls {
            let [from, to] = [call.start, call.end].map(|at| self.minutes(at, begin));
            up.extend([(from, 0.0), (from, 1.0), (to, 1.0), (to, 0.0)]);
        }
        up
    }
}

/// What a call had cost at a time.
fn priced(rates: &Rates, call: &CallRecord, until: Instant) -> Money {
    let (elapsed, none) = (until.since(call.start), ByteCount(0));
    rates.price(&Call { start: Wall::default(), elapsed, bytes: none, bytes_before: none })
}

/// A session of which each line is echoed.
struct Ssh {
    stream: TcpStream,
    echoes: Sender<(u32, u64)>,
}

impl Ssh {
    fn start<'s>(scope: &'s Scope<'s, '_>, stream: TcpStream, came: &Shared) -> io::Result<Ssh> {
        let (echoes, expected): (_, Receiver<(u32, u64)>) = channel();
        let (reader, came) = (stream.try_clone()?, Arc::clone(came));
        scope.spawn(move || {
            expected.iter().try_for_each(|(id, bytes)| take(&reader, id, bytes, &came))
        });
        Ok(Ssh { stream, echoes })
    }

    fn say(&self, id: u32, bytes: u64) -> io::Result<()> {
        ask(&self.stream, id, bytes)?;
        // Its reader ends only after it.
        let _ = self.echoes.send((id, bytes));
        Ok(())
    }
}
