//! A ping beside the work: a small datagram every tenth of a second, which the far host
//! returns at once.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Samples;

/// The port of the host that returns them.
pub const PORT: u16 = 7;
/// From one to the next.
const EVERY: Duration = Duration::from_millis(100);
/// As long as those of ping(8).
const SIZE: usize = 56;
/// What has not come back so long after the last was sent is lost.
const DRAIN: Duration = Duration::from_secs(3);
/// How long one wait for a datagram lasts at most.
const WAIT: Duration = Duration::from_millis(50);

/// What came back, and what did not.
#[derive(Clone, Debug, Default)]
pub struct Pings {
    /// When each was sent, seconds since the start, and its round trip, ms.
    pub round_trips: Samples,
    /// How many never came back.
    pub lost: u64,
}

/// Sends from `near` to `to`, where `far` returns them, until `over` says so.
pub fn ping(
    near: &UdpSocket,
    far: &UdpSocket,
    to: SocketAddr,
    origin: Instant,
    over: &AtomicBool,
) -> io::Result<Pings> {
    let done = AtomicBool::new(false);
    far.set_read_timeout(Some(WAIT))?;
    thread::scope(|scope| {
        scope.spawn(|| echo(far, &done));
        let pings = send(near, to, origin, over);
        done.store(true, Ordering::Relaxed);
        pings
    })
}

fn echo(socket: &UdpSocket, done: &AtomicBool) {
    let mut datagram = [0; SIZE];
    while !done.load(Ordering::Relaxed) {
        if let Ok((n, from)) = socket.recv_from(&mut datagram) {
            // One that cannot be returned is lost, and counts as that.
            let _ = socket.send_to(&datagram[..n], from);
        }
    }
}

fn send(
    socket: &UdpSocket,
    to: SocketAddr,
    origin: Instant,
    over: &AtomicBool,
) -> io::Result<Pings> {
    let begin = Instant::now();
    let mut sent: Vec<(Instant, Option<Duration>)> = Vec::new();
    let mut ended: Option<Instant> = None;
    loop {
        let now = Instant::now();
        if ended.is_none() && over.load(Ordering::Relaxed) {
            ended = Some(now);
        }
        let due = begin + EVERY * sent.len() as u32;
        let missing = sent.iter().any(|(_, came)| came.is_none());
        match ended {
            Some(end) if !missing || now - end > DRAIN => break,
            None if now >= due => {
                // A full queue loses it, as queues do.
                let _ = socket.send_to(&datagram(sent.len() as u64), to);
                sent.push((now, None));
                continue;
            }
            _ => {}
        }
        let wait = if ended.is_some() { WAIT } else { (due - now).min(WAIT) };
        socket.set_read_timeout(Some(wait.max(Duration::from_micros(1))))?;
        let mut answer = [0; SIZE];
        let Ok((SIZE, _)) = socket.recv_from(&mut answer) else { continue };
        let came = Instant::now();
        let number = answer.first_chunk().map_or(u64::MAX, |n| u64::from_be_bytes(*n));
        if let Some((left, slot @ None)) = sent.get_mut(number as usize) {
            *slot = Some(came - *left);
        }
    }
    let since = |t: Instant| t.duration_since(origin).as_secs_f64();
    let back =
        sent.iter().filter_map(|(t, came)| Some((since(*t), came.as_ref()?.as_secs_f64() * 1e3)));
    let lost = sent.iter().filter(|(_, came)| came.is_none()).count() as u64;
    Ok(Pings { round_trips: back.collect(), lost })
}

fn datagram(number: u64) -> [u8; SIZE] {
    let mut datagram = [0x55; SIZE];
    datagram[..8].copy_from_slice(&number.to_be_bytes());
    datagram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ping_comes_back_or_is_counted_as_lost() {
        let [near, far, nobody] = [0; 3].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let over = AtomicBool::new(false);
        let run = |to: &UdpSocket| {
            over.store(false, Ordering::Relaxed);
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(650));
                    over.store(true, Ordering::Relaxed);
                });
                ping(&near, &far, to.local_addr().unwrap(), Instant::now(), &over).unwrap()
            })
        };
        let good = run(&far);
        assert!(good.round_trips.len() >= 2 && good.lost == 0, "{good:?}");
        let bad = run(&nobody);
        assert!(bad.round_trips.is_empty() && bad.lost >= 2, "{bad:?}");
    }
}
