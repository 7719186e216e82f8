//! Several connections of one client: a page, or streams side by side.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Fetched, Samples, Wanted, fetch};

/// Fetches a page: `html` bytes, then `objects` of `object` bytes each, at most
/// `connections` at a time, a connection for each as in HTTP/1.0. The result's times
/// run from the first connection to the last byte of the last object.
pub fn fetch_page(
    server: SocketAddr,
    page: Page,
    origin: Instant,
    progress: &AtomicUsize,
) -> io::Result<Fetched> {
    let part =
        |seed, bytes| Wanted { window: page.window, text: page.text, ..Wanted::whole(seed, bytes) };
    let text = fetch(server, part(page.seed, page.html), origin, progress)?;
    let next = AtomicUsize::new(0);
    let fetch_objects = || -> io::Result<Vec<Fetched>> {
        let mut mine = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed) as u64;
            if i >= u64::from(page.objects) {
                return Ok(mine);
            }
            let object = part(page.seed + 1 + i, page.object);
            mine.push(fetch(server, object, origin, progress)?);
        }
    };
    let objects = thread::scope(|scope| {
        let workers: Vec<_> =
            (0..page.connections.max(1)).map(|_| scope.spawn(fetch_objects)).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| io::Error::other("a client thread failed"))??);
        }
        Ok::<_, io::Error>(all)
    })?;
    Ok(merge(text, &objects))
}

/// A page to fetch.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Content of the text; the objects' follow from it.
    pub seed: u64,
    /// Size of the text.
    pub html: u64,
    /// Number of objects.
    pub objects: u32,
    /// Size of each object.
    pub object: u64,
    /// Connections at a time.
    pub connections: u32,
    /// As [`Wanted::window`].
    pub window: Option<u32>,
    /// As [`Wanted::text`].
    pub text: bool,
}

/// One account of several requests, the first of which began everything.
fn merge(first: Fetched, rest: &[Fetched]) -> Fetched {
    let end = rest.iter().map(|f| f.started + f.complete).fold(0.0, f64::max);
    Fetched {
        complete: first.complete.max(end - first.started),
        bytes: first.bytes + rest.iter().map(|f| f.bytes).sum::<u64>(),
        asked: first.asked + rest.iter().map(|f| f.asked).sum::<u64>(),
        received: running_total(std::iter::once(&first).chain(rest)),
        ..first
    }
}

/// Bytes of all requests together over time.
fn running_total<'a>(all: impl Iterator<Item = &'a Fetched>) -> Samples {
    let mut steps: Samples = Vec::new();
    for one in all {
        let mut before = 0.0;
        for &(t, total) in &one.received {
            steps.push((t, total - before));
            before = total;
        }
    }
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut total = 0.0;
    for step in &mut steps {
        total += step.1;
        step.1 = total;
    }
    steps
}

/// Fetches `count` endless files side by side for `time`, a connection each; every byte
/// of each is checked. The first result is all of them together, the others are each.
pub fn fetch_streams(
    server: SocketAddr,
    each: Wanted,
    count: u32,
    time: Duration,
    origin: Instant,
    progress: &AtomicUsize,
) -> io::Result<(Fetched, Vec<u64>)> {
    let begin = Instant::now();
    let fetch_one = |i: u32| {
        // Threads begin one after the other; the end is the same for all.
        let until = Some(time.saturating_sub(begin.elapsed()));
        let seed = each.seed + u64::from(i);
        fetch(server, Wanted { seed, bytes: ENDLESS, until, ..each }, origin, progress)
    };
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|i| scope.spawn(move || fetch_one(i))).collect();
        let one = |t: thread::ScopedJoinHandle<'_, io::Result<Fetched>>| {
            t.join().map_err(|_| io::Error::other("a client thread failed"))?
        };
        threads.into_iter().map(one).collect::<io::Result<Vec<Fetched>>>()
    })?;
    if all.is_empty() {
        return Ok((Fetched { complete: time.as_secs_f64(), ..Fetched::default() }, Vec::new()));
    }
    let earliest = |of: fn(&Fetched) -> f64| all.iter().map(of).fold(f64::INFINITY, f64::min);
    let bytes = all.iter().map(|f| f.bytes).sum();
    if bytes == 0 {
        return Err(io::Error::other("not a byte came on any connection"));
    }
    let sum = Fetched {
        started: earliest(|f| f.started),
        connected: earliest(|f| f.connected),
        first_byte: earliest(|f| f.first_byte),
        complete: time.as_secs_f64(),
        bytes,
        // Nobody asked for a certain amount.
        asked: bytes,
        received: running_total(all.iter()),
    };
    Ok((sum, all.iter().map(|f| f.bytes).collect()))
}

/// More than any link carries in the time of an experiment.
const ENDLESS: u64 = 1 << 44;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_all_its_objects() {
        let one = |started: f64, bytes: f64| Fetched {
            started,
            complete: 1.0,
            bytes: bytes as u64,
            received: vec![(started + 0.5, bytes / 2.0), (started + 1.0, bytes)],
            ..Fetched::default()
        };
        let all = merge(one(0.0, 10.0), &[one(1.0, 20.0), one(1.2, 30.0)]);
        assert_eq!((all.bytes, all.complete), (60, 2.2));
        assert_eq!(all.received.last(), Some(&(2.2, 60.0)));
    }
}
