//! Unsplit packets by how they are carried.

use super::*;

/// One packet each 20 ms for a minute; answers the delay of each, in milliseconds, by number,
/// in the order of arrival.
fn carry(pipe: Pipe, config: LinkConfig, carry: Carry) -> (World, Vec<(u64, u64)>) {
    let mut w = World::new(41, pipe, config);
    let label = Label { carry, flow: 3, ..Label::default() };
    let (begin, mut got) = (w.now, Vec::new());
    let at = |n: u64| begin + Duration::from_millis(20 * n);
    let take = |w: &mut World, got: &mut Vec<(u64, u64)>| {
        let now = w.now;
        while w.sides[1].take_datagram(|d| {
            let n = u64::from_be_bytes(*d.first_chunk().unwrap());
            assert!(d.len() == 200 && d[8..].iter().all(|b| *b == n as u8));
            got.push((n, now.since(at(n)).as_millis()));
        }) {}
    };
    for n in 0..3000u64 {
        let mut data = vec![n as u8; 200];
        data[..8].copy_from_slice(&n.to_be_bytes());
        assert!(w.sides[0].send_datagram(w.now, &data, &label));
        w.run(Duration::from_millis(20), |w| take(w, &mut got));
    }
    w.run(Duration::from_secs(30), |w| take(w, &mut got));
    (w, got)
}

fn numbers(got: &[(u64, u64)]) -> Vec<u64> {
    got.iter().map(|(n, _)| *n).collect()
}

const LOSSY: Pipe = Pipe { loss: 0.05, ..CLEAN };

/// L-DG-1: what is lost is not sent again, and delays nothing.
#[test]
fn plain_packets_leave_once() {
    let (w, got) = carry(LOSSY, config(), Carry::Plain);
    assert!((2800..2900).contains(&got.len()), "{}", got.len());
    assert!(numbers(&got).is_sorted() && got.iter().all(|(_, ms)| *ms < 400));
    assert_eq!(w.sides[0].schedule.hosts.holds(), 0);
}

/// L-DG-6: in order, each once, whatever the pipe does.
#[test]
fn ordered_packets_arrive_each_once_and_in_order() {
    for (loss, reorder, duplicate) in [(0.05, 0.0, 0.0), (0.3, 0.25, 0.1)] {
        let (w, got) = carry(Pipe { loss, reorder, duplicate }, config(), Carry::Ordered);
        assert_eq!(numbers(&got), Vec::from_iter(0..3000));
        assert_eq!([w.sides[0].streams(), w.sides[1].streams()], [0, 0], "nobody sees a stream");
        assert_eq!(w.sides[1].stats().violations, 0);
        assert!(w.sides.iter().all(|s| s.is_quiet() && s.memory_used() == 0));
    }
}

/// L-DG-6, L-DG-7: what no honest sender writes ends that stream and nothing else.
#[test]
fn lengths_and_headers_that_mean_nothing_end_their_stream() {
    let label = Label { carry: Carry::Ordered, ..Label::default() };
    let bodies: [&[u8]; 5] = [
        &[0, 0],
        &[0x23, 0x29],          // 9,001
        &[0x80, 0],             // no headers
        &[0xff, 0xff],          // 32,767 of them
        &[0x80, 4, 0, 5, 1, 1], // of a context that is not there
    ];
    for body in bodies {
        let mut w = World::new(46, CLEAN, config());
        let other = w.sides[0].open(w.now, origin()).unwrap();
        let now = w.now;
        let side = &mut w.sides[0];
        let id = side.lane(now, &label).unwrap();
        let s = side.streams.get_mut(&id).unwrap();
        s.send.write(&mut side.pool, body);
        s.open.want();
        side.want_control(id);
        side.make_ready(now, id);
        w.run(Duration::from_secs(2), |w| assert!(!w.sides[1].take_datagram(|_| ())));
        assert!(!w.sides[0].is_usable(id), "{body:x?}");
        assert_eq!(w.sides[1].stats().violations, 1, "{body:x?}");
        assert!(w.sides[0].contains(other) && w.sides[1].contains(other));
        assert!(w.sides[0].send_datagram(w.now, &[5; 100], &label), "as it is from now on");
    }
}

#[test]
fn ordered_packets_that_find_the_queue_full_are_dropped_and_counted() {
    let link = LinkConfig { send_rate: BitRate::from_kbps(64), ..config() };
    let mut w = World::new(42, CLEAN, link);
    let label = Label { carry: Carry::Ordered, ..Label::default() };
    let taken = (0..100).filter(|_| w.sides[0].send_datagram(w.now, &[5; 1400], &label)).count();
    assert_eq!(taken, 18_000 / 1402, "two of the largest");
    assert_eq!(w.sides[0].stats().datagrams_dropped, 100 - taken as u64);
    assert!(!w.sides[0].send_datagram(w.now, &[5; MAX_DATAGRAM + 1], &label));
    let mut got = 0;
    w.run(Duration::from_secs(20), |w| {
        while w.sides[1].take_datagram(|d| assert_eq!(d, [5; 1400])) {
            got += 1;
        }
    });
    assert_eq!(got, taken);
}

/// `count` ordered packets, each 5 ms after the other, by hosts in turns; answers how many
/// arrive.
fn crowd(w: &mut World, hosts: u32, count: u32) -> u32 {
    let mut got = 0;
    for n in 0..count {
        let host = IpAddr::from((0x0a01_0000 + n % hosts).to_be_bytes());
        let label = Label { carry: Carry::Ordered, host: Some(host), ..Label::default() };
        assert!(w.sides[0].send_datagram(w.now, &[6; 100], &label));
        assert!(w.sides[0].packet_streams <= 65 && w.sides[1].packet_streams <= 65);
        w.run(Duration::from_millis(5), |w| while w.sides[1].take_datagram(|_| got += 1) {});
    }
    w.run(Duration::from_secs(5), |w| while w.sides[1].take_datagram(|_| got += 1) {});
    got
}

#[test]
fn a_crowd_of_hosts_shares_few_streams_that_take_no_connection_s_place() {
    let mut w = World::new(43, CLEAN, config());
    w.sides[1].config.max_streams = 1;
    assert_eq!(crowd(&mut w, 1000, 2000), 2000);
    let id = w.sides[0].open(w.now, origin()).unwrap();
    w.run(Duration::from_secs(2), |_| {});
    assert_eq!(w.sides[1].poll_event(), Some(Event::Opened(id, origin())));
}

/// A session lasts for months, and hosts come and go.
#[test]
fn a_stream_of_packets_that_nobody_uses_any_more_is_the_next_hosts() {
    let mut w = World::new(47, CLEAN, config());
    let from = |n: u32| IpAddr::from((0x0a01_0000 + n).to_be_bytes());
    let label = |n| Label { carry: Carry::Ordered, host: Some(from(n)), ..Label::default() };
    let mut got = 0;
    for round in 0..3 {
        let hosts = 64 * round..64 * round + 64;
        for n in hosts.clone() {
            assert!(w.sides[0].send_datagram(w.now, &[6; 100], &label(n)));
            w.run(Duration::from_millis(5), |w| while w.sides[1].take_datagram(|_| got += 1) {});
        }
        let side = &mut w.sides[0];
        let own = |n: u32| {
            let host = side.schedule.hold_host(Some(from(n)));
            side.schedule.hosts.release(host);
            side.lanes.keys().any(|key| key.2 == host)
        };
        assert_eq!(hosts.map(own).filter(|is_own| *is_own).count(), 64, "each its own");
        assert!(w.sides[0].schedule.hosts.holds() <= 2 * 65);
        // Not while they are in use.
        assert!(w.sides[0].send_datagram(w.now, &[6; 100], &label(1000)));
        assert_eq!(w.sides[0].lanes.len(), 65, "that of all others");
        w.run(Duration::from_secs(11), |w| while w.sides[1].take_datagram(|_| got += 1) {});
        assert!(w.sides.iter().all(|side| side.packet_streams == 65));
    }
    assert_eq!(got, 3 * 65);
}

/// Hosts that never said anything may be made up: all of them go first as far as one sender may.
#[test]
fn packets_to_ever_new_hosts_go_first_as_far_as_their_sender_may() {
    let mut w = World::new(49, CLEAN, config());
    let mut first = |sender: Option<[u8; 4]>, from: u32| {
        let side = &mut w.sides[0];
        let classes = (from..from + 200).map(|n| {
            let host = Some(IpAddr::from((0x0a02_0000 + n).to_be_bytes()));
            let label =
                Label { host, sender: sender.map(IpAddr::from), flow: n, ..Label::default() };
            let id = side.schedule.hold_host(host);
            let class = side.datagram_class(w.now, 1000, &label, id);
            side.schedule.hosts.release(id);
            class
        });
        classes.filter(|class| *class == ClassId::INTERACTIVE).count()
    };
    assert_eq!(first(None, 0), 200, "those who are known are hosts each");
    let one = first(Some([203, 0, 113, 9]), 1_000);
    assert!((60..=66).contains(&one), "{one}");
    assert_eq!(first(Some([203, 0, 113, 9]), 2_000), 0, "it has had its part");
    assert!((60..=66).contains(&first(Some([203, 0, 113, 8]), 3_000)), "and another has his");
}

/// Streams that nobody reads take a half of the memory at most, and no packet's place.
#[test]
fn ordered_packets_leave_where_others_bytes_fill_the_memory() {
    let config = LinkConfig { memory: ByteCount(1 << 20), ..config() };
    let mut w = World::new(48, CLEAN, config);
    let mut feeder = Feeder::default();
    for _ in 0..200 {
        let id = w.sides[1].open(w.now, origin()).unwrap();
        feeder.left.insert(id, (0, 1 << 20));
    }
    w.run(Duration::from_secs(20), |w| feeder.feed(w.now, &mut w.sides[1]));
    assert!(w.sides[0].memory_used() > 1 << 19, "{}", w.sides[0].memory_used());
    let label = Label { carry: Carry::Ordered, ..Label::default() };
    let mut got = 0;
    for _ in 0..20 {
        assert!(w.sides[0].send_datagram(w.now, &[6; 1400], &label));
        w.run(Duration::from_millis(100), |w| while w.sides[1].take_datagram(|_| got += 1) {});
    }
    w.run(Duration::from_secs(2), |w| while w.sides[1].take_datagram(|_| got += 1) {});
    assert_eq!(got, 20);
}

#[test]
fn a_peer_without_room_for_the_stream_gets_plain_packets() {
    let mut w = World::new(45, CLEAN, config());
    w.sides[1].config.max_streams = 1;
    w.sides[0].open(w.now, origin()).unwrap();
    w.run(Duration::from_secs(2), |_| {});
    // Those of the first round trip were in the stream that was refused.
    let got = crowd(&mut w, 1, 1000);
    assert!((800..1000).contains(&got), "{got}");
}

#[test]
fn a_stream_of_packets_with_a_length_that_cannot_be_is_given_up() {
    for length in [[0, 0], [0xff, 0xff]] {
        let mut w = World::new(44, CLEAN, config());
        let mut buf = [0; 64];
        let mut writer = Writer::new(&mut buf);
        writer.put(&Frame::Packets(StreamId(0)));
        let data = [&[0, 3, 1, 2, 3][..], &length, &[9; 20]].concat();
        let frame = StreamFrame { id: StreamId(0), offset: 0, fin: false, data: &data };
        writer.put(&Frame::Stream(frame));
        let len = writer.len();
        w.sides[1].handle_packet(w.now, w.now, (PathId::FIRST, 0), 0, &buf[..len], &mut |_| {});
        assert_eq!(w.sides[1].stats().violations, 1);
        let mut got = Vec::new();
        while w.sides[1].take_datagram(|d| got.push(d.to_vec())) {}
        assert_eq!(got, [[1, 2, 3]]);
        assert!(w.sides[1].poll_event().is_none());
    }
}
