//! Frames and numbers, written and read back, cut short, and random bytes.

use std::net::IpAddr;

use units::Instant;

use super::*;
use proptest::prelude::*;

fn id() -> impl Strategy<Value = StreamId> {
    prop_oneof![0u64..200, any::<u64>()].prop_map(StreamId)
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..300, any::<u64>(), (0u32..64).prop_map(|b| 1u64 << b)]
}

fn address() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        (any::<[u8; 4]>(), any::<u16>()).prop_map(|(a, p)| SocketAddr::new(IpAddr::from(a), p)),
        (any::<[u8; 16]>(), any::<u16>()).prop_map(|(a, p)| SocketAddr::new(IpAddr::from(a), p)),
    ]
}

fn origin() -> impl Strategy<Value = Origin> {
    let target = prop_oneof![
        address().prop_map(Target::Address),
        ("[a-z0-9.-]{1,253}", any::<u16>()).prop_map(|(n, p)| Target::Name(n, p)),
        ("[a-z0-9-]{1,32}", prop::collection::vec(any::<u8>(), 0..=MAX_PREFACE))
            .prop_map(|(name, preface)| Target::Service(name, preface)),
    ];
    (prop::option::of(address()), target, 0u8..64).prop_map(|(client, target, dscp)| Origin {
        client,
        target,
        dscp,
    })
}

fn reason() -> impl Strategy<Value = ResetReason> {
    prop_oneof![1u8..=11, 32u8..64].prop_map(|n| ResetReason::from_u8(n).unwrap())
}

fn round_trip(frame: Frame<'_>) -> Result<(), TestCaseError> {
    let mut buf = vec![0u8; 4096];
    let mut w = Writer::new(&mut buf);
    prop_assert!(w.put(&frame));
    let n = w.len();
    prop_assert_eq!(n, frame_len(&frame), "frame_len tells the truth");
    let mut r = Reader::new(&buf[..n]);
    prop_assert_eq!(r.frame(), Ok(Some(frame.clone())));
    prop_assert_eq!(r.frame(), Ok(None));
    for cut in 1..n {
        let _ = Reader::new(&buf[..cut]).frame();
    }
    // A frame that does not fit is not begun.
    let mut small = vec![0u8; n - 1];
    let mut w = Writer::new(&mut small);
    prop_assert!(!w.put(&frame));
    prop_assert!(w.is_empty());
    Ok(())
}

proptest! {
    #[test]
    fn varints_round_trip_in_their_shortest_form(n in number()) {
        let mut buf = [0u8; 9];
        let mut w = Writer::new(&mut buf);
        w.varint(n);
        let len = w.len();
        prop_assert_eq!(len, varint_len(n));
        prop_assert_eq!(Reader::new(&buf[..len]).varint(), Ok(n));
    }

    #[test]
    fn every_frame_round_trips(
        id in id(), n in number(), data in prop::collection::vec(any::<u8>(), 0..1500),
        origin in origin(), reason in reason(), fin: bool, offset in 0u64..1 << 61,
    ) {
        round_trip(Frame::Ping)?;
        round_trip(Frame::Floor(n))?;
        let seen = LossesSeen { recovered: n, gaps: offset, missing: n / 2 };
        round_trip(Frame::Recovered(seen))?;
        round_trip(Frame::Open(id, origin))?;
        round_trip(Frame::Accepted(id))?;
        round_trip(Frame::Packets(id))?;
        round_trip(Frame::Messages(id))?;
        round_trip(Frame::Reset { id, reason, end: n })?;
        round_trip(Frame::Credit(id, n))?;
        round_trip(Frame::Challenge(n))?;
        round_trip(Frame::Response(n))?;
        round_trip(Frame::Close(reason))?;
        let path = PathId::new(2 + (n % 30) as u8).expect("a number of a path");
        let facts = PathFacts { send: n, receive: offset, rtt: n / 3, mtu: 1500, overhead: 4 };
        let facts = Some(facts).filter(|_| n % 2 == 0);
        let priority = offset as u8;
        let (up, hears, free) = (fin, n % 3 == 0, n % 5 == 0);
        let name = &b"starboard antenna"[..(n % 17) as usize];
        let name = CarrierName::new(name).expect("16 bytes at most");
        let news = PathNews { path, version: n, up, hears, free, priority, name, facts };
        round_trip(Frame::Path(news))?;
        round_trip(Frame::Use { sequence: n, path: Some(path).filter(|_| n % 7 != 0) })?;
        round_trip(Frame::Datagram(&data))?;
        if !data.is_empty() {
            let total = 100 + data.len() as u64;
            round_trip(Frame::Fragment(FragmentFrame { id: n, total, offset: 100, data: &data }))?;
        }
        round_trip(Frame::Stream(StreamFrame { id, offset, fin, data: &data }))?;
    }

    #[test]
    fn a_report_tells_exactly_what_arrived(
        pns in prop::collection::btree_set(1000u64..1400, 1..200), lo in 900u64..1000,
        about in prop_oneof![Just(None), Just(PathId::new(0)), Just(PathId::new(31))],
    ) {
        let mut set = crate::ranges::RangeSet::default();
        for pn in &pns {
            set.insert(*pn..pn + 1);
        }
        let mut buf = [0u8; 2048];
        let mut w = Writer::new(&mut buf);
        let at = Instant::from_nanos(40_000_000_000);
        let told = w.state(about, set.descending(), lo, Duration::from_micros(160), at, 2000);
        prop_assert_eq!(told, Some(lo));
        let n = w.len();
        let (of, state) = match Reader::new(&buf[..n]).frame() {
            Ok(Some(Frame::State(state))) => (None, state),
            Ok(Some(Frame::StateOf(path, state))) => (Some(path), state),
            other => return Err(TestCaseError::fail(format!("{other:?} is no report"))),
        };
        prop_assert_eq!(of, about);
        prop_assert_eq!(state.delay, Duration::from_micros(160));
        // 2,500,000 units of 16 µs, less 2^21.
        prop_assert_eq!(state.arrival, 402_848);
        let got: std::collections::BTreeSet<u64> = state.received().flatten().collect();
        prop_assert_eq!(got, pns);
    }

    #[test]
    fn random_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut r = Reader::new(&data);
        for _ in 0..200 {
            match r.frame() {
                Ok(Some(Frame::State(s))) => assert!(s.received().take(300).count() <= 300),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        for n in 2..=4 {
            let _ = short::read_head(&data, n);
        }
    }

    /// L-SF-2, L-SF-3: whatever the receiver has seen within the limits, the
    /// truncated offset names the byte that the sender meant.
    #[test]
    fn short_offsets_expand_to_what_was_meant(
        low in 0u64..1 << 40, n in 2usize..=4, a in 0u64..10_000, b in 0u64..10_000, late in 0u64..10_000,
    ) {
        let range = 1u64 << (8 * n);
        let span = range / 8 * 3;
        let offset = low + span * a / 10_000;
        let reference = low + span * b / 10_000 + range / 8 * late / 10_000;
        prop_assert!(short::offset_len(span).is_some_and(|m| m <= n));
        let truncated = offset & ((1 << (8 * n)) - 1);
        prop_assert_eq!(short::expand(truncated, n, reference), offset);
    }
}

#[test]
fn a_report_cut_short_speaks_only_of_what_it_lists() {
    let mut set = crate::ranges::RangeSet::default();
    for pn in (0..1000).step_by(2) {
        set.insert(pn..pn + 1);
    }
    let mut buf = [0u8; 2048];
    let mut w = Writer::new(&mut buf);
    let lo = w.state(None, set.descending(), 0, Duration::ZERO, Instant::ZERO, 132).unwrap();
    assert!(lo > 800, "about fifty runs fit in 100 bytes, got down to {lo}");
    let n = w.len();
    let Ok(Some(Frame::State(state))) = Reader::new(&buf[..n]).frame() else { panic!() };
    assert_eq!((state.hi, state.lo), (998, lo));
}

#[test]
fn a_report_that_runs_below_its_span_is_refused() {
    // hi 10, lo 5, two runs that reach down to 0.
    let bytes = [STATE, 10, 5, 0, 2, 2, 1, 5];
    assert_eq!(Reader::new(&bytes).frame(), Err(WireError::Invalid));
}
