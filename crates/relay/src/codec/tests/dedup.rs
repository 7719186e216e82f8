//! Deduplicated streams between two gateways: what crosses, what does not, and what becomes
//! of it where stores are lost or nodes start anew.

use std::sync::Arc;

use link::session::RecvState;
use squeeze::dedup::disk::Disk;
use squeeze::dedup::{Keys, Limits};
use units::{BitRate, Rng};

use super::*;
use crate::Share;
use crate::gateways::address;

const LIMITS: Limits =
    Limits { memory: 8 << 20, disk: 0, sources: 4 << 20, assembling: 1 << 20, chunks: 1 << 14 };

/// A link whose nodes say of themselves whether they deduplicate.
fn gateways_with(takes: [bool; 2], history: u64, share: Share) -> Gateways {
    let links = takes.map(|dedup| LinkConfig { dedup, ..compressed(history) });
    let mut pair = Gateways::apart(links, |policy| policy.dedup = share);
    for side in (0..2).filter(|side| takes[*side]) {
        pair.put_store(side, &Disk::default(), LIMITS, side as u64 + 1);
    }
    pair.meet();
    pair
}

fn both(history: u64, share: Share) -> Gateways {
    gateways_with([true; 2], history, share)
}

impl Gateways {
    fn put_store(&mut self, side: usize, disk: &Disk, limits: Limits, epoch: u64) {
        let relay = &mut self.sides[side];
        let secret = relay.endpoint.chunk_secret(PEER).expect("a peer");
        let dedup = disk.recover(&Arc::new(Keys::new(&secret)), &limits, epoch);
        relay.set_dedup(PEER, dedup);
    }

    /// The server of a new connection of `host`'s sends `content` and ends; answers how many
    /// bytes of the link that took, packets and all, both ways.
    fn fetch(&mut self, host: u8, content: &[u8]) -> u64 {
        let crossed = |g: &Gateways| -> u64 {
            g.sides.iter().map(|s| s.endpoint.peer_stats(PEER).bytes_out).sum()
        };
        let before = crossed(self);
        let ends = self.connect(host, PORT);
        let mut got = self.send(ends, 1, content);
        self.sides[1].local_end(self.now, ends[1]);
        for _ in 0..1000 {
            self.pass(Duration::from_millis(5));
            got.extend(self.take(ends, 0));
            if self.sides[0].outgoing_state(ends[0]) == RecvState::Finished {
                break;
            }
        }
        assert!(got == content, "{} of {} bytes", got.len(), content.len());
        assert_eq!(self.sides[0].outgoing_state(ends[0]), RecvState::Finished);
        self.sides[0].local_end(self.now, ends[0]);
        self.pass(Duration::from_millis(50));
        for (side, flow) in ends.into_iter().enumerate() {
            self.sides[side].closed(self.now, flow);
        }
        self.pass(Duration::from_millis(500));
        crossed(self) - before
    }

    fn chunks(&self, side: usize) -> ChunkCounts {
        self.compression(side).chunks.expect("the node deduplicates")
    }

    /// Content that the far node keeps because it may be asked for it.
    fn sources(&mut self) -> usize {
        let mut n = 0;
        self.sides[1].serve_files(PEER, |dedup| {
            n = dedup.sender.sources();
            false
        });
        n
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// The same with a hundredth of it changed, in ten places.
fn changed(content: &[u8]) -> Vec<u8> {
    let mut content = content.to_vec();
    let (len, piece) = (content.len(), content.len() / 1000);
    for n in 0..10 {
        let at = (2 * n + 1) * len / 20;
        content[at..at + piece].copy_from_slice(&noise(n as u64 + 99, piece));
    }
    content
}

/// A self-test takes nothing that chunks may be kept of (L-TE-2).
#[test]
fn content_as_it_is_is_told_from_what_chunks_may_be_kept_of() {
    let sealed = [&[0x16, 3, 1][..], &noise(1, 4_000)].concat();
    for (takes, content, as_it_is) in [
        ([true; 2], &noise(1, 4_000), false),
        ([true; 2], &sealed, true),
        ([false; 2], &noise(1, 4_000), true),
    ] {
        let mut g = gateways_with(takes, 1 << 20, Share::Lan);
        let ends = g.connect(7, PORT);
        let mut got = g.send(ends, 1, content);
        for _ in 0..400 {
            g.pass(Duration::from_millis(5));
            got.extend(g.take(ends, 0));
        }
        assert!(got == *content, "{} of {} bytes", got.len(), content.len());
        assert_eq!(g.sides[0].comes_as_it_is(ends[0]), as_it_is);
    }
}

/// R-COMPRESS: what crossed does not cross again, whatever it is; with blocks under the items
/// and without.
#[test]
fn a_second_transfer_crosses_as_references() {
    for history in [0, 1 << 20] {
        let mut g = both(history, Share::Host);
        let content = noise(1, 2_000_000);
        let first = g.fetch(2, &content);
        assert!(first > 2_000_000 && first < 2_100_000, "{first}");
        let second = g.fetch(2, &content);
        // Half of it is a connection's own: opening, reports, ends, half a chunk at the begin.
        assert!(second * 1000 < first * 25, "{second} of {first}");
        let third = g.fetch(2, &changed(&content));
        assert!(third * 100 < first * 15, "{third} of {first}");
        let all = g.compression(1).all;
        assert_eq!(all.sent, 6_000_000);
        assert!(all.sent_items < 2_400_000 && all.sent_as < 2_450_000, "{all:?}");
        let taken = g.compression(0).all;
        assert_eq!((taken.received, taken.received_items), (all.sent, all.sent_items));
        assert_eq!(taken.received_as, all.sent_as);
        // Without a stopwatch what chunks take is all that is told, at both ends.
        assert_eq!([all.cpu, taken.cpu], [Duration::from_millis(12); 2]);
        let host = Some(IpAddr::from([10, 1, 0, 2]));
        assert_eq!(g.compression(1).hosts[&host].cpu, all.cpu);
        let (near, far) = (g.chunks(0), g.chunks(1));
        assert!(near.in_use && far.in_use && near.held > 150 && far.referred > 300, "{near:?}");
        assert_eq!((near.wanted, near.quarantined, near.violations), (0, 0, 0));
        assert_eq!(g.sources(), 0, "what was taken is kept no more");
    }
}

/// L-DD-4.
#[test]
fn another_host_profits_only_where_the_lan_shares() {
    for (share, profits) in [(Share::Host, false), (Share::Lan, true), (Share::Off, false)] {
        let mut g = both(0, share);
        let content = noise(2, 500_000);
        let first = g.fetch(2, &content);
        let other = g.fetch(3, &content);
        assert_eq!(other * 10 < first, profits, "{share:?}: {other} of {first}");
        assert_eq!(g.chunks(1).referred > 0, profits);
        for side in 0..2 {
            let cpu = g.compression(side).all.cpu;
            assert_eq!(cpu == Duration::ZERO, share == Share::Off, "no chunks, no time");
        }
    }
}

/// L-DD-11.
#[test]
fn a_peer_that_does_not_deduplicate_gets_bytes_as_they_are() {
    for takes in [[true, false], [false, true], [false, false]] {
        for history in [0, 1 << 20] {
            let mut g = gateways_with(takes, history, Share::Lan);
            let content = noise(3, 300_000);
            let first = g.fetch(2, &content);
            let second = g.fetch(2, &content);
            assert!(second * 10 > first * 9, "{second} of {first}");
            for side in (0..2).filter(|side| takes[*side]) {
                assert!(!g.chunks(side).in_use);
            }
        }
    }
}

/// Small messages, and what is typed, leave at once: nothing waits for a chunk to be whole.
#[test]
fn small_messages_are_not_held_back() {
    let mut g = both(1 << 20, Share::Host);
    let ends = g.connect(2, PORT);
    for n in 0..21_u64 {
        // The same again, so that it begins as what is known does.
        let message = noise(n % 2, 300 + (n % 2) as usize * 1500);
        assert_eq!(g.sides[1].local_data(g.now, ends[1], &message), message.len());
        g.pass(Duration::from_millis(4));
        assert!(g.take(ends, 0) == message, "message {n}");
    }
}

/// Who dies, and what is lost with it.
#[test]
fn a_store_that_was_lost_stalls_nothing() {
    for keeps_epoch in [false, true] {
        let mut g = both(0, Share::Host);
        let content = noise(4, 400_000);
        let first = g.fetch(2, &content);
        // The near node finds nothing, or believes to hold what it does not: an index without
        // its data. The far node does not hear of it before a stream refers to chunks.
        let (ends, half) = (g.connect(2, PORT), content.len() / 2);
        let mut sent = 0;
        while sent < half {
            let room = g.sides[1].writable_bytes(g.now, ends[1]).min(half - sent);
            sent += g.sides[1].local_data(g.now, ends[1], &content[sent..sent + room]);
            g.pass(Duration::from_millis(1));
        }
        g.sides[0].serve_files(PEER, |dedup| {
            let epoch = dedup.receiver.store.epoch();
            dedup.receiver.rebuild(if keeps_epoch { epoch } else { epoch + 100 });
            true
        });
        let mut got = g.take(ends, 0);
        let rest = content[half..].to_vec();
        got.extend(g.send(ends, 1, &rest));
        for _ in 0..100 {
            g.pass(Duration::from_millis(10));
            got.extend(g.take(ends, 0));
        }
        assert!(got == content, "{} of {}", got.len(), content.len());
        assert!(g.chunks(0).wanted > 0, "what was referred to and lost was asked for");
        g.end(ends);
        // What came again is there again.
        let again = g.fetch(2, &content);
        let last = g.fetch(2, &content);
        assert!(again < first * 2 && last * 10 < first, "{again} and {last} of {first}");
    }
}

/// A flow that is over at once when its host has sent all: what was held goes, and what was
/// referred to is kept until the peer has it.
#[test]
fn what_was_read_is_delivered_though_its_flow_is_over() {
    let mut g = both(0, Share::Host);
    let content = noise(5, 60_000);
    g.fetch(2, &content);
    for resets in [false, true] {
        let ends = g.connect(2, PORT);
        let room = g.sides[1].writable_bytes(g.now, ends[1]);
        assert!(room >= content.len());
        g.sides[1].local_data(g.now, ends[1], &content);
        if resets {
            g.sides[1].local_reset(g.now, ends[1], ResetReason::HostReset);
        } else {
            g.sides[1].local_end(g.now, ends[1]);
            g.sides[0].local_end(g.now, ends[0]);
            g.pass(Duration::from_millis(20));
            assert_eq!(g.sides[1].outgoing_state(ends[1]), RecvState::Finished);
            g.sides[1].closed(g.now, ends[1]);
        }
        // The near node loses its store meanwhile.
        g.sides[0].serve_files(PEER, |dedup| {
            dedup.receiver.rebuild(77 + u64::from(resets));
            true
        });
        let mut got = Vec::new();
        for _ in 0..200 {
            g.pass(Duration::from_millis(5));
            got.extend(g.take(ends, 0));
        }
        assert!(got == content, "resets: {resets}, {} of {}", got.len(), content.len());
        g.sides[0].closed(g.now, ends[0]);
        g.pass(Duration::from_secs(1));
        assert_eq!(g.sources(), 0);
        g.fetch(2, &content);
    }
}

/// L-DD-10, L-DD-12: what means nothing harms its stream at most.
#[test]
fn malformed_items_and_messages_end_their_stream_and_nothing_else() {
    let items: [&[u8]; 4] = [
        &[0xff; 12],            // no head
        &[0x07, 1, 2, 3],       // kind 3 with a length
        &[0x00],                // a literal of nothing
        &[0x06, 0x02, 1, 2, 3], // a tag that is cut off, see below
    ];
    for (n, bytes) in items.iter().enumerate() {
        let mut g = both(0, Share::Host);
        let (bad, good) = (g.connect(2, PORT), g.connect(3, PORT));
        g.raw(bad, bytes);
        if n == 3 {
            let f = g.sides[1].flows.get(bad[1]).expect("a flow");
            let now = g.now;
            g.sides[1].endpoint.session_mut(PEER).expect("a session").finish(now, f.stream);
            g.pass(Duration::from_millis(30));
        }
        assert!(g.take(bad, 0).is_empty());
        let state = g.sides[0].outgoing_state(bad[0]);
        assert_eq!(state, RecvState::Reset(ResetReason::Protocol), "case {n}");
        assert_eq!(g.compression(0).bad_items, 1);
        let text = lines(0, 500);
        assert!(g.send(good, 1, &text) == text);
    }
    // Messages: one that means nothing is counted, one of no length ends all of them.
    let mut g = both(0, Share::Host);
    let now = g.now;
    g.sides[1].endpoint.session_mut(PEER).expect("a session").send_messages(now, &[2, 9, 9]);
    g.pass(Duration::from_millis(30));
    assert_eq!(g.chunks(0).violations, 1);
    let now = g.now;
    g.sides[1].endpoint.session_mut(PEER).expect("a session").send_messages(now, &[0, 1]);
    g.pass(Duration::from_millis(30));
    assert!(g.sides[0].endpoint.session(PEER).expect("a session").stats().violations > 0);
    assert!(!g.sides[1].endpoint.session_mut(PEER).expect("a session").has_message_room());
    let (ends, text) = (g.connect(2, PORT), lines(0, 500));
    assert!(g.send(ends, 1, &text) == text);
}

/// Ten thousand connections that rest: what each holds is small.
#[test]
fn a_flow_that_rests_holds_little() {
    assert!(std::mem::size_of::<FlowCodec>() <= 512, "{}", std::mem::size_of::<FlowCodec>());
    assert!(std::mem::size_of::<squeeze::dedup::ItemEncoder>() <= 384);
    assert!(std::mem::size_of::<squeeze::dedup::ItemDecoder>() <= 256);
    let mut g = both(0, Share::Host);
    let ends = g.connect(2, PORT);
    let content = noise(6, 200_000);
    assert!(g.send(ends, 1, &content) == content);
    g.pass(Duration::from_secs(1));
    assert_eq!(g.sides[1].codecs.held.sum(), 0);
}

/// A peer gives a stream up at the moment at which what is held of it has waited for long
/// enough: nothing of it is wanted any more, and nothing is waited for.
#[test]
fn what_is_held_of_a_stream_that_the_peer_gave_up_is_let_go() {
    let mut g = both(0, Share::Host);
    let content = noise(7, 100_000);
    g.fetch(2, &content);
    let ends = g.connect(2, PORT);
    // Beyond what never waits, and into a chunk that the peer holds.
    g.sides[1].local_data(g.now, ends[1], &content[..40_000]);
    for _ in 0..20 {
        if g.sides[1].codecs.poll_timeout().is_some() {
            break;
        }
        g.pass(Duration::from_millis(1));
    }
    let due = g.sides[1].codecs.poll_timeout().expect("something is held");
    while g.now + Duration::from_millis(1) < due {
        g.pass(Duration::from_millis(1));
    }
    assert!(g.sides[1].codecs.held.sum() > 0 && g.sides[1].codecs.poll_timeout() == Some(due));
    // The flow is not closed yet when its time comes.
    g.sides[0].connect_failed(g.now, ends[0], ResetReason::HostReset);
    let mut buf = [0; 2048];
    while let Some(t) = g.sides[0].poll_transmit(g.now, &mut buf) {
        g.sides[1].handle_carrier(g.now, g.now, address(0), &mut buf[..t.len]);
    }
    g.now = due + Duration::from_millis(1);
    g.sides[1].handle_timeout(g.now);
    assert_eq!((g.sides[1].codecs.held.sum(), g.sides[1].codecs.poll_timeout()), (0, None));
}

/// L-ST-5: a stream waits for a chunk, is given up by its sender at once, and then the chunk
/// comes: there is nothing left that it could be the end of.
#[test]
fn a_chunk_that_comes_after_its_stream_was_given_up_is_nobodys() {
    for history in [0, 1 << 20] {
        let mut g = both(history, Share::Host);
        let content = noise(8, 30_000);
        g.fetch(2, &content);
        let ends = g.connect(2, PORT);
        g.sides[0].serve_files(PEER, |dedup| {
            let epoch = dedup.receiver.store.epoch();
            dedup.receiver.rebuild(epoch);
            true
        });
        g.sides[1].local_data(g.now, ends[1], &content);
        g.sides[1].local_end(g.now, ends[1]);
        // The items cross; the near node asks for what it lacks, and is not answered yet.
        let mut buf = [0; 2048];
        for _ in 0..40 {
            g.now += Duration::from_millis(1);
            g.sides[1].handle_timeout(g.now);
            while let Some(t) = g.sides[1].poll_transmit(g.now, &mut buf) {
                g.sides[0].handle_carrier(g.now, g.now, address(1), &mut buf[..t.len]);
            }
            g.act(0);
        }
        assert!(g.take(ends, 0).is_empty(), "it has to wait");
        // It is answered, for the flow lives, after the stream was given up.
        let f = g.sides[1].flows.get(ends[1]).expect("a flow");
        let now = g.now;
        let session = g.sides[1].endpoint.session_mut(PEER).expect("a session");
        session.reset(now, f.stream, ResetReason::HostReset, false);
        for _ in 0..40 {
            g.pass(Duration::from_millis(5));
            assert!(g.take(ends, 0).is_empty());
        }
        assert!(g.chunks(0).wanted > 0);
        let state = g.sides[0].outgoing_state(ends[0]);
        assert_eq!(state, RecvState::Reset(ResetReason::HostReset));
        g.sides[0].closed(g.now, ends[0]);
        g.fetch(2, &content);
    }
}

/// What is never the same twice is neither cut nor kept, and what is on a fast link neither.
#[test]
fn what_is_sealed_and_what_is_on_a_fast_link_goes_as_it_is() {
    let mut text = noise(9, 100_000);
    for begin in [&b"\x16\x03\x01\x02\x00\x01"[..], b"SSH-2.0-OpenSSH_9.9\r\n"] {
        text[..begin.len()].copy_from_slice(begin);
        let mut g = both(1 << 20, Share::Host);
        let first = g.fetch(2, &text);
        let second = g.fetch(2, &text);
        assert!(second * 10 > first * 9, "{second} of {first}");
        assert_eq!((g.chunks(0).held, g.chunks(1).referred), (0, 0));
    }
    let text = noise(10, 100_000);
    for (mbps, keeps) in [(100, true), (101, false)] {
        let fast = LinkConfig { send_rate: BitRate::from_mbps(mbps), dedup: true, ..compressed(0) };
        let mut g = Gateways::apart([fast.clone(), fast], |policy| policy.dedup = Share::Host);
        for side in 0..2 {
            g.put_store(side, &Disk::default(), LIMITS, side as u64 + 1);
        }
        g.meet();
        g.fetch(2, &text);
        assert_eq!(g.chunks(0).held > 0, keeps, "{mbps} Mbit/s");
    }
}

/// One host that takes nothing does not keep all that there is for what was referred to.
#[test]
fn hosts_that_take_nothing_leave_others_some_of_the_sources() {
    let limits = Limits { sources: 200_000, ..LIMITS };
    let links = [true; 2].map(|dedup| LinkConfig { dedup, ..compressed(0) });
    let mut g = Gateways::apart(links, |policy| policy.dedup = Share::Lan);
    for side in 0..2 {
        g.put_store(side, &Disk::default(), limits, side as u64 + 1);
    }
    g.meet();
    let content = noise(11, 600_000);
    g.fetch(2, &content);
    // Nobody reads what comes for the first three.
    for host in 10..13 {
        let ends = g.connect(host, PORT);
        for piece in content.chunks(10_000) {
            let room = g.sides[1].writable_bytes(g.now, ends[1]).min(piece.len());
            g.sides[1].local_data(g.now, ends[1], &piece[..room]);
            g.pass(Duration::from_millis(5));
        }
    }
    assert!(g.sources() < 190_000, "{}", g.sources());
    let before = g.chunks(1).referred;
    g.fetch(3, &content);
    let held = g.chunks(0).held;
    let more = g.chunks(1).referred - before;
    assert!(more * 3 > held, "all others profit: {more} of {held}");
}

/// Nor do hosts behind another peer keep all that may be held while chunks are not whole.
#[test]
fn other_peers_for_whom_much_is_held_leave_a_peer_its_references() {
    let mut g = both(0, Share::Host);
    let content = noise(18, 200_000);
    let first = g.fetch(3, &content);
    let ends = g.connect(2, PORT);
    let f = g.sides[1].flows.get(ends[1]).expect("a flow");
    let others = Flow { peer: PeerId::from_index(9), ..f };
    g.sides[1].codecs.held.add(&others, 12 << 20);
    let second = g.fetch(3, &content);
    assert!(second * 10 < first, "{second} of {first}");
    g.sides[1].codecs.held.remove(&others, 12 << 20);
    assert_eq!(g.sides[1].codecs.held.sum(), 0);
}

/// The peer can be told nothing any more: nobody wakes up in order to try.
#[test]
fn a_peer_that_refuses_messages_is_not_tried_again_and_again() {
    let mut g = both(0, Share::Host);
    let content = noise(12, 100_000);
    g.fetch(2, &content);
    let now = g.now;
    g.sides[1].endpoint.session_mut(PEER).expect("a session").refuse_messages(now);
    g.pass(Duration::from_millis(50));
    assert!(g.sides[0].endpoint.session(PEER).expect("a session").messages_are_refused());
    g.fetch(2, &noise(13, 100_000));
    g.pass(Duration::from_secs(1));
    assert_eq!(g.sides[0].codecs.poll_timeout(), None);
    assert!(g.chunks(0).held > 0);
}

/// The files of a store are still being read when the link is up: streams wait for them, what is
/// sent meanwhile goes as it is, and what the peer holds is known when they are there.
#[test]
fn a_link_that_is_up_before_its_store_is_there_goes_on_with_it() {
    let links = [true; 2].map(|dedup| LinkConfig { dedup, ..compressed(0) });
    let mut g = Gateways::apart(links, |policy| policy.dedup = Share::Host);
    let content = noise(17, 300_000);
    g.put_store(1, &Disk::default(), LIMITS, 2);
    g.sides[0].await_dedup(PEER);
    g.meet();
    let ends = g.connect(2, PORT);
    assert!(g.send(ends, 1, b"early").is_empty(), "it waits");
    assert_eq!(g.sides[0].outgoing_state(ends[0]), RecvState::Open);
    assert!(g.send(ends, 0, &content) == content, "it goes as it is");
    assert_eq!(g.chunks(1).messages, 0);
    g.others.clear();
    g.put_store(0, &Disk::default(), LIMITS, 1);
    g.pass(Duration::from_millis(300));
    assert!(g.others.contains(&Action::Write(ends[0])), "{:?}", g.others);
    assert!(g.take(ends, 0) == b"early");
    assert!(g.chunks(1).messages > 0, "it hears of the store");
    let first = g.fetch(2, &content);
    assert!(g.fetch(2, &content) * 10 < first);
    // The peer had messages for us before.
    assert!(g.chunks(0).messages > 0 && g.chunks(0).violations == 0);
}

/// There is no room for what is to be said: it goes when there is room, and until then nobody is
/// woken to look whether there is.
#[test]
fn messages_that_find_no_room_go_when_there_is_room_and_wake_nobody_before() {
    let mut g = both(0, Share::Host);
    g.fetch(2, &noise(14, 100_000));
    let touch = |g: &mut Gateways| {
        g.sides[0].serve_files(PEER, |_| true);
        let now = g.now;
        while g.sides[0].poll_action(now).is_some() {}
    };
    // Nothing leaves meanwhile.
    let mut sent = 0;
    while let Some(session) = g.sides[0].endpoint.session_mut(PEER)
        && session.has_message_room()
    {
        session.send_messages(g.now, &[2, 9, 9]);
        sent += 1;
    }
    g.sides[0].serve_files(PEER, |dedup| {
        dedup.receiver.rebuild(99); // The peer is to hear of it.
        true
    });
    touch(&mut g);
    // The link is dark for a minute.
    let until = g.now + Duration::from_secs(60);
    let mut wakes = 0;
    while let Some(at) = g.sides[0].codecs.poll_timeout().filter(|at| *at < until) {
        wakes += 1;
        g.now = g.now.max(at);
        let mut due = Vec::new();
        g.sides[0].codecs.handle_timeout(at, &mut due);
        touch(&mut g);
    }
    assert!(wakes <= 1, "{wakes} times, and nothing to do");
    g.pass(Duration::from_secs(1));
    assert_eq!(g.chunks(1).violations, sent);
    assert_eq!(g.sides[0].codecs.poll_timeout(), None, "all is said");
    let content = noise(15, 100_000);
    g.fetch(2, &content);
    assert!(g.fetch(2, &content) * 10 < 100_000, "the peer knows the new store");
}
