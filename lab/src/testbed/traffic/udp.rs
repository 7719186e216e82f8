//! A UDP stream of even rate, as `iperf -u` sends it, and what of it arrives.

use std::io;
use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use units::Rng;

/// The receiver's port.
pub const PORT: u16 = 5001;
/// Content of each datagram: what iperf sends unless told otherwise.
const PAYLOAD: usize = 1_470;
/// What waits in queues has arrived so long after the last was sent.
const DRAIN: Duration = Duration::from_secs(3);

/// Sends at `rate` bit/s of content for `time`, and answers at which rate it arrived,
/// bit/s of content from the first datagram to the last; 0 if fewer than two came. The
/// sockets are in the namespaces of their hosts.
pub fn stream(
    sender: &UdpSocket,
    receiver: &UdpSocket,
    to: SocketAddr,
    rate: u64,
    time: Duration,
) -> io::Result<f64> {
    receiver.set_read_timeout(Some(Duration::from_millis(200)))?;
    let begin = Instant::now();
    thread::scope(|scope| {
        let sending = scope.spawn(move || send(sender, to, rate, time));
        let (mut first, mut last, mut bytes) = (None, begin, 0_u64);
        let mut datagram = [0; 2048];
        while begin.elapsed() < time + DRAIN {
            match receiver.recv(&mut datagram) {
                Ok(_) if first.is_none() => first = Some(Instant::now()),
                Ok(n) => {
                    last = Instant::now();
                    bytes += n as u64;
                }
                // A wait with an end is not begun again by itself after a signal.
                Err(e) if matches!(e.kind(), WouldBlock | TimedOut | Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
        sending.join().map_err(|_| io::Error::other("the UDP sender failed"))??;
        let span = first.map_or(0.0, |first| last.duration_since(first).as_secs_f64());
        Ok(if span > 0.0 { bytes as f64 * 8.0 / span } else { 0.0 })
    })
}

fn send(socket: &UdpSocket, to: SocketAddr, rate: u64, time: Duration) -> io::Result<()> {
    let mut datagram = [0; PAYLOAD];
    Rng::new(rate).fill(&mut datagram);
    let begin = Instant::now();
    let gap = Duration::from_secs_f64(PAYLOAD as f64 * 8.0 / rate.max(1) as f64);
    let mut due = Duration::ZERO;
    while due < time {
        thread::sleep(due.saturating_sub(begin.elapsed()));
        match socket.send_to(&datagram, to) {
            // A full queue loses datagrams, as queues do.
            Ok(_) | Err(_) if begin.elapsed() < time => {}
            Ok(_) => {}
            Err(e) => return Err(e),
        }
        due += gap;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_is_what_was_sent_at_its_rate() {
        let [a, b] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = b.local_addr().unwrap();
        let rate = stream(&a, &b, to, 400_000, Duration::from_secs(4)).unwrap();
        assert!(rate > 200_000.0 && rate < 600_000.0, "{rate}");
    }
}
