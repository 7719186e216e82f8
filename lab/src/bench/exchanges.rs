//! Pages and requests by `bentpipe-web` where the link is slow and noisy, and where everything is
//! near.

use std::io::{self, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::checked::Checked;
use super::pages::Bed;
use super::setup::{link, noisy};
use crate::testbed::gateway::Pair;
use crate::testbed::measure::median;
use crate::testbed::progress::{Board, Row};
use crate::testbed::topology::SERVER;
use crate::testbed::traffic::browser::{Browser, ask, body_length, read_head};
use crate::testbed::traffic::content::Content;
use crate::testbed::traffic::site::{self, Bodies};

const PATIENCE: Duration = Duration::from_secs(60);
/// A page of so many objects beside its text, all of this length.
const OBJECTS: usize = 8;
const LENGTH: usize = 8_000;
/// Until when the page must be there, s; the best without a service takes 8.7.
const MOST: f64 = 7.6;

/// A text of the length that names the objects; it and they are noise or English.
fn page(seed: u64, is_text: bool) -> Bodies {
    let body = |n: usize| {
        let mut body = vec![0; LENGTH];
        Content::new(seed * 100 + n as u64, is_text).fill(&mut body);
        body
    };
    let mut all: Bodies = (0..=OBJECTS).map(body).collect();
    let mut names = String::from("<!doctype html>");
    for n in 1..=OBJECTS {
        names += &format!("<script src=\"{n}.js\"></script>");
    }
    names += "<p>";
    // What is behind the names names nothing.
    all[0].iter_mut().filter(|byte| **byte == b'<').for_each(|byte| *byte = b'-');
    all[0][..names.len()].copy_from_slice(names.as_bytes());
    all
}

/// A page over 100 kbit/s with errors: without the service, with it, and of text.
pub fn web_noisy(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("a page over a noisy link", seeds * 3);
    row.begin();
    let (mut without, mut noise, mut text) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 1..=seeds {
        let link = noisy(link(100_000, 100_000, 500), 1e-5);
        let build = |with_service| {
            let pair = Pair { compress: true, ..Pair::default() };
            let pages = vec![page(seed, false), page(seed, true)];
            Bed::build(link.clone(), seed, pair, with_service, pages)
        };
        let load = |bed: &Bed, page| {
            let time = bed.load_as(page, Browser::Kept, "once");
            row.done.fetch_add(1, Ordering::Relaxed);
            time
        };
        without.push(load(&build(false)?, 0)?);
        noise.push(load(&build(true)?, 0)?);
        // On streams of its own: one that has carried noise may not be compressed for a while.
        text.push(load(&build(true)?, 1)?);
    }
    let middle = |times: Vec<f64>| median(times).ok_or("nothing was measured".to_owned());
    let (without, noise, text) = (middle(without)?, middle(noise)?, middle(text)?);
    row.end(format!("{noise:.2} s"));
    let what = "100 kbit/s, 1 s, BER 1e-5: text and 8 objects of 8 kB";
    let asked = |what: &str, asked: &str, time: f64, is_met| Checked {
        value: Some(time),
        ..Checked::asked(what, asked, format!("{time:.2} s"), is_met)
    };
    Ok(vec![
        Checked::told(&format!("without the service: {what}"), format!("{without:.2} s")),
        Checked {
            limit: "6.8 s".into(),
            best: "8.7 s (without the service)".into(),
            ..asked(what, &format!("≤ {MOST} s"), noise, noise <= MOST)
        },
        asked("the same of English", "sooner", text, text < noise),
    ])
}

/// Objects of these lengths, pages of one each: from memory, and such as are read from a disk if
/// the service has one.
const CACHED: [(usize, &str); 2] = [(10_000, "10 kB"), (1_000_000, "1 MB")];
/// The page whose only object is a small answer that is fetched each time.
const SMALL: usize = 2;
const SMALL_LENGTH: usize = 1_000;
/// Connections at once, and for how long.
const CONNECTIONS: usize = 8;
const TIME: Duration = Duration::from_secs(5);
/// Requests of which a time is the median.
const REQUESTS: usize = 100;
const LEAST_MBPS: f64 = 300.0;
const MOST_ADDED_MS: f64 = 2.0;

/// How fast kept objects are, and what the service adds to a request that crosses the link.
pub fn web_cached(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("kept objects and small requests", 2 * REQUESTS as u64);
    row.begin();
    let build = |with_service| {
        let lengths = CACHED.map(|(length, _)| length).into_iter().chain([SMALL_LENGTH]);
        let pages = lengths.map(|length| vec![Vec::new(), vec![b'x'; length]]).collect();
        Bed::build(link(20_000_000, 20_000_000, 50), 1, Pair::default(), with_service, pages)
    };
    let without = request(&build(false)?, &row)?;
    let bed = build(true)?;
    let with = request(&bed, &row)?;
    let added = with - without;
    let mut checks = vec![Checked {
        value: Some(added),
        ..Checked::asked(
            "added to a request of 1 kB at the median, RTT 100 ms",
            &format!("≤ {MOST_ADDED_MS} ms"),
            format!("{added:.2} ms: {without:.2} → {with:.2} ms"),
            added <= MOST_ADDED_MS,
        )
    }];
    for (page, (length, name)) in CACHED.into_iter().enumerate() {
        let rate = rate(&bed, page, length).map_err(|e| format!("a client fails: {e}"))?;
        checks.push(Checked {
            value: Some(rate),
            ..Checked::asked(
                &format!("kept objects of {name}, 8 connections, all on this machine"),
                &format!("≥ {LEAST_MBPS:.0} Mbit/s"),
                format!("{rate:.0} Mbit/s"),
                rate >= LEAST_MBPS,
            )
        });
    }
    row.end("done".into());
    Ok(checks)
}

/// A host's connection to the server.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(bed: &Bed) -> io::Result<Client> {
        let at = SocketAddr::new(SERVER[0], 80);
        let stream = bed.topology.client.run(|| TcpStream::connect_timeout(&at, PATIENCE))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client(BufReader::with_capacity(256 << 10, stream)))
    }

    /// The length of the object's answer.
    fn get(&mut self, target: &str) -> io::Result<usize> {
        let at = SocketAddr::new(SERVER[0], 80);
        ask(self.0.get_mut(), at, target, "HTTP/1.1", "*/*")?;
        let length = body_length(&read_head(&mut self.0)?)?;
        let got = io::copy(&mut (&mut self.0).take(length as u64), &mut io::sink())?;
        if got == length as u64 { Ok(length) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// The median time of a small request, in milliseconds.
fn request(bed: &Bed, row: &Row) -> Result<f64, String> {
    let all = || {
        let mut client = Client::connect(bed)?;
        let path = format!("/{SMALL}-each/1.js");
        client.get(&path)?;
        let one = |_| {
            let begin = Instant::now();
            client.get(&path)?;
            row.done.fetch_add(1, Ordering::Relaxed);
            Ok(begin.elapsed().as_secs_f64() * 1e3)
        };
        (0..REQUESTS).map(one).collect::<io::Result<Vec<_>>>()
    };
    let times = all().map_err(|e| format!("a request fails: {e}"))?;
    median(times).ok_or("nothing was measured".into())
}

/// Mbit/s of the bodies of a page's object that is kept.
fn rate(bed: &Bed, page: usize, length: usize) -> io::Result<f64> {
    let path = format!("/{page}-{}/1.js", site::FRESH);
    Client::connect(bed)?.get(&path)?;
    // Until it is stored.
    thread::sleep(Duration::from_secs(1));
    let begin = Instant::now();
    let clients = (0..CONNECTIONS).map(|_| {
        let (mut client, path) = (Client::connect(bed)?, path.clone());
        Ok(thread::spawn(move || {
            let mut times = 0;
            while begin.elapsed() < TIME {
                client.get(&path)?;
                times += 1;
            }
            Ok::<usize, io::Error>(times)
        }))
    });
    let mut times = 0;
    for client in clients.collect::<io::Result<Vec<_>>>()? {
        times += client.join().map_err(|_| io::Error::other("a thread panicked"))??;
    }
    Ok((times * length * 8) as f64 / begin.elapsed().as_secs_f64() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_its_objects_and_all_have_one_length() {
        for is_text in [false, true] {
            let page = page(1, is_text);
            assert!(page.iter().all(|body| body.len() == LENGTH) && page.len() == OBJECTS + 1);
            let text = String::from_utf8_lossy(&page[0]);
            assert_eq!(text.matches("src=").count(), OBJECTS);
        }
    }
}
