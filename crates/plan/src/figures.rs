//! The numbers of a plan with their reasons, for people and programs.

use dial::calendar::Wall;
use dial::money::Money;
use dial::tariff::{Call, Rates};
use units::{BitRate, ByteCount, Duration, Ratio};

use crate::arithmetic::{self as formulas, Survival};
use crate::{Direction, Plan, TCP_HEADERS};

/// One number of a plan, for data from this end and to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// As programs call it.
    pub key: &'static str,
    /// As people call it.
    pub name: &'static str,
    /// From this end, and to it.
    pub values: [Value; 2],
    /// How it comes about.
    pub reason: &'static str,
    /// Where the formula is from.
    pub source: &'static str,
}

/// A number with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number of bytes.
    Bytes(ByteCount),
    /// A length of time.
    Time(Duration),
    /// Bits per second.
    Rate(BitRate),
    /// A number of segments.
    Segments(u32),
    /// A part of all.
    Share(Ratio),
    /// One packet of so many is repair; `None`: none is.
    Repair(Option<u64>),
    /// Money.
    Money(Money),
    /// A name.
    Word(&'static str),
}

const CG: &str = "Coast Guard, section \"Large Cutter\"";
const ITU_BUFFER: &str = "ITU-R S.1711-1, annex 2, section 4.3.1";
const ITU_WINDOW: &str = "ITU-R S.1711-1, annex 2, sections 2.1.3 and 4.3.1";
const OWN: &str = "bentpipe, ARCHITECTURE.md and spec/link.md";

/// A megabyte of content, as prices and times count it.
pub const MEGABYTE: ByteCount = ByteCount(1_000_000);

impl Plan {
    /// All numbers, in the order in which one follows from another; prices if there is a tariff,
    /// those of a call that begins at the time given with it.
    pub fn figures(&self, tariff: Option<(&Rates, Wall)>) -> Vec<Figure> {
        let mut all = self.sizes();
        all.extend(self.times());
        all.extend(self.windows());
        all.extend(self.goodputs());
        all.extend(self.transfers());
        all.extend(tariff.into_iter().flat_map(|(rates, start)| self.prices(rates, start)));
        all
    }

    fn each(&self, value: impl Fn(&Direction) -> Value) -> [Value; 2] {
        [value(&self.send), value(&self.receive)]
    }

    fn sizes(&self) -> Vec<Figure> {
        vec![
            Figure {
                key: "packet",
                name: "packet between gateways",
                values: self.each(|d| Value::Bytes(ByteCount(d.packet.into()))),
                reason: "the MTU, or h/2 + √(h²/4 + h/8b) where bit errors b make shorter ones \
                         better; h = 52 bytes of headers",
                source: OWN,
            },
            Figure {
                key: "tcp_packet",
                name: "packet of hosts' TCP (MTU)",
                values: self.each(|d| Value::Bytes(ByteCount(d.tcp_packet.into()))),
                reason: "the same, but 200 ms on the line at most, and 500 bytes at least, \
                         because headers are 8 % of those already",
                source: CG,
            },
            Figure {
                key: "loss",
                name: "such packets lost",
                values: self.each(|d| Value::Share(d.loss)),
                reason: "1 − (1 − bit errors)^8n · (1 − packets lost)",
                source: "probability of independent errors",
            },
        ]
    }

    fn times(&self) -> Vec<Figure> {
        vec![
            Figure {
                key: "on_the_line",
                name: "such a packet's time on the line",
                values: self.each(|d| Value::Time(d.on_the_line)),
                reason: "its bytes and framing at the link's rate",
                source: CG,
            },
            Figure {
                key: "round_trip",
                name: "round trip",
                values: self.each(|d| Value::Time(d.round_trip)),
                reason: "twice the delay, that packet, and an ACK of 40 bytes",
                source: CG,
            },
            Figure {
                key: "initial_rto",
                name: "initial RTO",
                values: self.each(|d| Value::Time(d.initial_rto)),
                reason: "the whole second above the round trip, so that nothing is sent twice \
                         before its ACK can be back",
                source: "Coast Guard, section \"Current Research\"; RFC 6298",
            },
            Figure {
                key: "least_rto",
                name: "RTO beyond the round trip",
                values: self.each(|d| Value::Time(d.least_rto)),
                reason: "an ACK may wait for a second packet, half a second at most, and \
                         packets for the queue",
                source: "RFC 1122, section 4.2.3.2; RFC 6298",
            },
        ]
    }

    fn windows(&self) -> Vec<Figure> {
        vec![
            Figure {
                key: "window",
                name: "TCP window",
                values: self.each(|d| Value::Bytes(d.window)),
                reason: "rate × round trip; less leaves the link idle",
                source: ITU_WINDOW,
            },
            Figure {
                key: "router_buffer",
                name: "buffer of a router before it",
                values: self.each(|d| Value::Bytes(d.router_buffer)),
                reason: "half the window: slow start sends at twice the rate; none is needed \
                         where the sender is paced",
                source: ITU_BUFFER,
            },
            Figure {
                key: "initial_window",
                name: "initial window",
                values: self.each(|d| Value::Segments(d.initial_window)),
                reason: "ten segments, fewer if the window is; more where BBR's first round, \
                         2.885 × window / round trip, stays below the rate",
                source: "RFC 6928; BBR, STARTUP",
            },
            Figure {
                key: "congestion_control",
                name: "TCP's congestion control",
                values: self.each(|d| Value::Word(d.congestion.name())),
                reason: "CUBIC while it fills the link with these losses (see below); BBR \
                         otherwise, which pauses for a round trip in ten seconds",
                source: "RFC 8312, section 5.2; BBR, PROBE_RTT",
            },
            Figure {
                key: "stream_buffer",
                name: "memory of one stream",
                values: self.each(|d| Value::Bytes(d.stream_buffer)),
                reason: "rate × (round trip × (1 + rounds of repair) + a report); by default a \
                         stream may have four times rate × round trip",
                source: OWN,
            },
            Figure {
                key: "code_rate",
                name: "code rate",
                values: self.each(|d| Value::Repair(d.repair_every)),
                reason: "of bulk by one stream; no code where sending again serves better",
                source: "bentpipe, docs/decisions/repair-by-sliding-code.md; RFC 8681",
            },
        ]
    }

    fn goodputs(&self) -> Vec<Figure> {
        vec![
            Figure {
                key: "with_pair",
                name: "content, gateways at both ends",
                values: self.each(|d| Value::Rate(d.with_pair)),
                reason: "rate × (packet − headers) / (packet + framing) × packets that arrive",
                source: OWN,
            },
            Figure {
                key: "with_one",
                name: "content, a gateway at one end",
                values: self.each(|d| Value::Rate(d.with_one)),
                reason: "the same for TCP's packets, paced at the rate",
                source: "ITU-R S.1711-1, annex 2, sections 2.2 and 4.3.2",
            },
            Figure {
                key: "without",
                name: "content, one CUBIC connection",
                values: self.each(|d| Value::Rate(d.without)),
                reason: "in the long run, losses by chance: 1.054 (RTT / p)^¾ segments, or \
                         √(3 / 2p), in each round trip, and no more than the link carries",
                source: "RFC 8312, section 5.2",
            },
            Figure {
                key: "window_8kB",
                name: "content, a window of 8 kB",
                values: self.each(|d| {
                    let limit = formulas::window_limit(ByteCount(8_000), d.round_trip);
                    Value::Rate(limit.min(d.with_one))
                }),
                reason: "window / round trip, for hosts without window scaling and buffers",
                source: "ITU-R S.1711-1, annex 2, section 2.1.3",
            },
        ]
    }

    fn transfers(&self) -> Vec<Figure> {
        vec![
            Figure {
                key: "megabyte_with_pair",
                name: "1 MB, gateways at both ends",
                values: self.each(|d| Value::Time(self.megabyte_with_pair(d))),
                reason: "its time at that goodput, and one round trip for the request",
                source: OWN,
            },
            Figure {
                key: "megabyte_without",
                name: "1 MB without gateways",
                values: self.each(|d| Value::Time(megabyte_without(d))),
                reason: "a round trip to connect, one for the request, one for each doubling of \
                         ten segments",
                source: "RFC 5681; RFC 6928",
            },
        ]
    }

    fn prices(&self, rates: &Rates, start: Wall) -> Vec<Figure> {
        let price = |bytes, elapsed| {
            let call = Call { start, elapsed, bytes, bytes_before: ByteCount(0) };
            Value::Money(rates.price(&call))
        };
        let hour = Duration::from_secs(3600);
        vec![
            Figure {
                key: "megabyte_price_with_pair",
                name: "price of 1 MB, gateways at both ends",
                values: self.each(|d| {
                    let bytes = self.sent_for_megabyte(d.packet, crate::LINK_HEADERS);
                    price(bytes, self.megabyte_with_pair(d))
                }),
                reason: "that time by the tariff's increments, and the bytes on the link, with \
                         headers and repeats",
                source: "the tariff",
            },
            Figure {
                key: "megabyte_price_without",
                name: "price of 1 MB without gateways",
                values: self.each(|d| {
                    let bytes = self.sent_for_megabyte(d.tcp_packet, TCP_HEADERS);
                    price(bytes, megabyte_without(d))
                }),
                reason: "the same for TCP across the link",
                source: "the tariff",
            },
            Figure {
                key: "hour_price",
                name: "price of an hour, fully used",
                values: self.each(|d| price(d.rate.bytes_in(hour), hour)),
                reason: "sixty minutes, and the bytes that fit into them in this direction",
                source: "the tariff",
            },
        ]
    }

    fn megabyte_with_pair(&self, d: &Direction) -> Duration {
        formulas::time_with_pair(MEGABYTE, d.with_pair, self.link.delay.times(2))
    }

    /// IP bytes on the link for a megabyte of content in such packets, with what is sent again.
    fn sent_for_megabyte(&self, packet: u16, headers: u16) -> ByteCount {
        let arrives = Survival { ber: self.link.ber, loss: self.link.loss }.arrives(packet);
        let once = u128::from(MEGABYTE.0) * u128::from(packet) / u128::from(packet - headers);
        let sent = (once << 64) / u128::from(arrives.max(1));
        ByteCount(sent.min(u128::from(u64::MAX)) as u64)
    }
}

fn megabyte_without(d: &Direction) -> Duration {
    formulas::time_without(MEGABYTE, d.mss(), d.without, d.round_trip)
}
