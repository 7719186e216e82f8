//! Calls over one link: what header compression, and waiting for each other, make of their
//! packets (R-HC).

use std::io;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use control::LinkStatus;
use units::Rng;

use super::checked::Checked;
use super::setup::link;
use crate::testbed::gateway::Pair;
use crate::testbed::progress::Board;
use crate::testbed::topology::{CLIENT, Plan, SERVER, Topology};

/// How many talk at once, for how long, and what G.729 makes of 20 ms of it.
const CALLS: u64 = 10;
const TIME: Duration = Duration::from_secs(30);
const PACKET_TIME: Duration = Duration::from_millis(20);
const VOICE: usize = 20;
/// With the headers of RTP, UDP and IP.
const WHOLE: u64 = VOICE as u64 + 12 + 8 + 20;
/// The first call's port; those of RTP are even.
const PORT: u16 = 20_000;
/// What is under way when the last word is spoken has arrived by then.
const DRAIN: Duration = Duration::from_secs(2);

/// Calls may wait for each other.
const HELD: &str = "\
[[peer.class]]
name = \"interactive\"
hold = \"20ms\"

[[peer.rule]]
protocol = \"udp\"
ports = [\"20000-20018\"]
class = \"interactive\"
";

/// Ten calls over 256 kbit/s and a geostationary satellite, one way.
pub fn ten_calls(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("ten calls", 0);
    let pair = Pair { peer: HELD.to_owned(), ..Pair::default() };
    let link = link(256_000, 256_000, 300);
    let plan = Plan { link, seed: 1, gateways: Some(pair), ..Plan::default() };
    let topology = Topology::build(&plan).map_err(|e| e.to_string())?;
    row.begin();
    let before = link_bytes(&topology)?;
    let (sent, arrived) = talk(&topology).map_err(|e| format!("the calls failed: {e}"))?;
    let bytes = link_bytes(&topology)? - before;
    let share = bytes as f64 / (sent * WHOLE) as f64 * 100.0;
    row.end(format!("{share:.1} %"));
    let gap = 100.0 - arrived as f64 / sent as f64 * 100.0;
    Ok(vec![
        Checked::asked(
            "ten calls one way (20 B every 20 ms each): link bytes both ways of their IP bytes",
            "≤ 55 %",
            format!("{share:.1} %"),
            share <= 55.0,
        ),
        Checked::asked("packets of them that were lost", "none", format!("{gap:.2} %"), gap == 0.0),
    ])
}

/// What crossed the link in both directions, all headers counted.
fn link_bytes(topology: &Topology) -> Result<u64, String> {
    let [gateway, _] = topology.gateways.as_ref().ok_or("there are no gateways")?;
    let status = gateway.status().map_err(|e| e.to_string())?;
    let bytes = |l: &LinkStatus| l.send.link_bytes + l.receive.link_bytes;
    status.links.first().map(bytes).ok_or("there is no link".to_owned())
}

/// Speaks; answers how many packets left and how many arrived unchanged.
fn talk(topology: &Topology) -> io::Result<(u64, u64)> {
    let receiver = topology.server.run(|| UdpSocket::bind((SERVER[0], PORT)))?;
    receiver.set_read_timeout(Some(Duration::from_millis(100)))?;
    let speakers: Vec<UdpSocket> = (0..CALLS as u16)
        .map(|call| topology.client.run(|| UdpSocket::bind((CLIENT[0], PORT + 2 * call))))
        .collect::<io::Result<_>>()?;
    let begin = Instant::now();
    thread::scope(|scope| {
        let speaking = scope.spawn(|| speak(&speakers, begin));
        let (mut arrived, mut packet) = (0, [0; 100]);
        while begin.elapsed() < TIME + DRAIN {
            match receiver.recv(&mut packet) {
                Ok(len) => arrived += u64::from(is_as_spoken(&packet[..len])),
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(e) => return Err(e),
            }
        }
        let sent = speaking.join().map_err(|_| io::Error::other("the speakers failed"))??;
        Ok((sent, arrived))
    })
}

/// Each call speaks every 20 ms, at times of its own.
fn speak(speakers: &[UdpSocket], begin: Instant) -> io::Result<u64> {
    let mut sent = 0;
    loop {
        let due = PACKET_TIME * sent as u32 / CALLS as u32;
        if due >= TIME {
            return Ok(sent);
        }
        thread::sleep(due.saturating_sub(begin.elapsed()));
        let (call, n) = (sent % CALLS, sent / CALLS);
        speakers[call as usize].send_to(&rtp(call as u32, n as u32), (SERVER[0], PORT))?;
        sent += 1;
    }
}

/// Packet `n` of a call.
fn rtp(call: u32, n: u32) -> [u8; 12 + VOICE] {
    let mut packet = [0; 12 + VOICE];
    packet[..2].copy_from_slice(&[0x80, 18]);
    packet[2..4].copy_from_slice(&(n as u16).to_be_bytes());
    packet[4..8].copy_from_slice(&(160 * n).to_be_bytes());
    packet[8..12].copy_from_slice(&(0x5eed_0000 + call).to_be_bytes());
    Rng::new(u64::from(call) << 32 | u64::from(n)).fill(&mut packet[12..]);
    packet
}

fn is_as_spoken(packet: &[u8]) -> bool {
    let Some(head) = packet.first_chunk::<12>() else { return false };
    let call = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) & 0xffff;
    let n = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) / 160;
    packet == rtp(call, n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_not_as_it_was_spoken() {
        let mut packet = rtp(3, 70_000);
        assert!(is_as_spoken(&packet) && !is_as_spoken(&packet[1..]));
        packet[31] ^= 1;
        assert!(!is_as_spoken(&packet));
    }
}
