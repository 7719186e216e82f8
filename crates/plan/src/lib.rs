//! What is best for a link whose rates, delay and errors are known (R-TUNE).
//!
//! [`Plan::of`] turns the facts of a [`Link`] into numbers for both of its [`Direction`]s:
//!
//! 1. **Packet.** As long as the MTU allows, but no longer than is best for bit errors, and, for
//!    TCP without gateways, no longer than 200 ms on the line.
//! 2. **Round trip** of such a packet and its ACK, idle; from it the initial RTO.
//! 3. **Window.** Rate × round trip. A router before the link has to hold half of it when a
//!    sender opens it by slow start (ITU-R S.1711-1, section 4.3.1).
//! 4. **Initial window.** Ten segments, or as many as leave at the link's rate when BBR paces
//!    them over the first round trip.
//! 5. **Code rate and buffers** of bentpipe's own protocol.
//! 6. **Goodput** with a gateway at both ends, at one end, and at none.
//! 7. **Cost** of a megabyte and of an hour under a tariff.
//!
//! `arithmetic` has the formulas, each with its source; `figures` words them for people. All
//! numbers are integers, nothing is read or changed here: `bentpipe plan` prints the numbers,
//! `bentpipe tune` and the one-gateway mode set what they say.

pub mod arithmetic;
mod figures;
#[cfg(test)]
mod tests;

use units::{BitRate, ByteCount, Duration, Ratio};

use arithmetic::{self as formulas, Survival};
pub use figures::{Figure, Value};

/// Bytes of an IPv4 packet of a TCP with timestamps that are not content.
pub const TCP_HEADERS: u16 = 52;
/// The shortest TCP segment, an ACK: IPv4 and TCP without options.
pub const ACK: u16 = 40;

/// The facts of a link, as one of its ends sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// This end to the other, counted on IP packets.
    pub send: BitRate,
    /// The other end to this one.
    pub receive: BitRate,
    /// One way.
    pub delay: Duration,
    /// Bit-error ratio.
    pub ber: Ratio,
    /// Packets lost whatever their size.
    pub loss: Ratio,
    /// The largest IP packet.
    pub mtu: u16,
    /// What the link's framing adds to a packet.
    pub framing: u16,
    /// What the modem, or a router before it, holds; `None`: not known.
    pub queue: Option<ByteCount>,
}

/// The best numbers for a link.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The link they are for.
    pub link: Link,
    /// For data from this end.
    pub send: Direction,
    /// For data to this end.
    pub receive: Direction,
}

/// The best numbers for data in one direction; its ACKs take the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
    /// The direction's rate.
    pub rate: BitRate,
    /// IP packets of bentpipe.
    pub packet: u16,
    /// IP packets of hosts' own TCP.
    pub tcp_packet: u16,
    /// How long such a packet is on the line.
    pub on_the_line: Duration,
    /// TCP packets that do not arrive.
    pub loss: Ratio,
    /// A full TCP packet and its ACK, on an idle link.
    pub round_trip: Duration,
    /// Bytes of TCP under way when the link is full.
    pub window: ByteCount,
    /// What a router before the link must hold to lose nothing while a window opens.
    pub router_buffer: ByteCount,
    /// Segments that a new TCP connection sends at once.
    pub initial_window: u32,
    /// How long to wait for the first ACK.
    pub initial_rto: Duration,
    /// What a retransmission timer adds to the round trip at least.
    pub least_rto: Duration,
    /// What TCP across the link should control congestion by.
    pub congestion: Congestion,
    /// Of so many packets of bulk one is repair; `None`: lost ones are sent again.
    pub repair_every: Option<u64>,
    /// Memory for one bentpipe stream at the link's rate.
    pub stream_buffer: ByteCount,
    /// Content at most with a gateway at both ends.
    pub with_pair: BitRate,
    /// Content at most where TCP itself crosses the link, paced at its rate.
    pub with_one: BitRate,
    /// Content that one CUBIC connection of hosts carries in the long run.
    pub without: BitRate,
}

impl Plan {
    /// The plan for `link`.
    pub fn of(link: Link) -> Plan {
        let send = Direction::of(&link, link.send, link.receive);
        let receive = Direction::of(&link, link.receive, link.send);
        Plan { link, send, receive }
    }
}

impl Direction {
    /// Of `link`, the direction that has `rate`, and `back` for its ACKs.
    fn of(link: &Link, rate: BitRate, back: BitRate) -> Direction {
        let sky = Survival { ber: link.ber, loss: link.loss };
        let packet = link::session::best_packet(link.mtu, link.ber);
        let tcp_packet = formulas::tcp_packet(packet, rate);
        let on_the_line = rate.time_for(link.line_bytes(tcp_packet));
        let ack = back.time_for(link.line_bytes(ACK));
        let round_trip = link.delay.times(2) + on_the_line + ack;
        let window = rate.bytes_in(round_trip).max(ByteCount(u64::from(tcp_packet)));
        let loss = sky.lost(tcp_packet);
        let content = |packet, headers| {
            let line = link.line_bytes(packet);
            formulas::goodput(rate, packet - headers, line, sky.arrives(packet))
        };
        let mss = u64::from(tcp_packet - TCP_HEADERS);
        let with_one = content(tcp_packet, TCP_HEADERS);
        let cubic = formulas::cubic(mss, round_trip, loss);
        Direction {
            rate,
            packet,
            tcp_packet,
            on_the_line,
            loss,
            round_trip,
            window,
            router_buffer: formulas::router_buffer(window),
            initial_window: formulas::initial_window(window, tcp_packet),
            initial_rto: formulas::initial_rto(round_trip),
            least_rto: formulas::least_rto(on_the_line, rate, link.queue),
            congestion: match cubic > with_one {
                true => Congestion::Cubic,
                false => Congestion::Bbr,
            },
            repair_every: link::session::bulk_repair_interval(
                sky.lost(packet),
                rate,
                link.delay.times(2),
                packet,
            ),
            stream_buffer: formulas::stream_buffer(
                rate,
                link.delay.times(2),
                sky.lost(packet),
                packet,
            ),
            with_pair: content(packet, LINK_HEADERS),
            with_one,
            without: cubic.min(with_one),
        }
    }

    /// Segments under way when the link is full, and two at least.
    pub fn window_segments(&self) -> u32 {
        self.window.0.div_ceil(u64::from(self.tcp_packet)).clamp(2, 65_535) as u32
    }

    /// The content of a full TCP segment.
    pub const fn mss(&self) -> u16 {
        self.tcp_packet - TCP_HEADERS
    }
}

/// A congestion control of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// Loss is rare enough for it to keep the link full.
    Cubic,
    /// It takes no single loss for congestion, but empties the link for a round trip in ten
    /// seconds to measure it.
    Bbr,
}

impl Congestion {
    /// As the kernel calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Congestion::Cubic => "cubic",
            Congestion::Bbr => "bbr",
        }
    }
}

/// Bytes of a packet between two gateways that are not content: IPv4, UDP and ours.
const LINK_HEADERS: u16 = 52;

impl Link {
    /// A packet and its framing.
    const fn line_bytes(&self, packet: u16) -> ByteCount {
        ByteCount(packet as u64 + self.framing as u64)
    }
}
