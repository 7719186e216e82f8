//! The path MTU (spec/link.md, "Path MTU").

use super::*;

/// What one transfer in a world saw.
struct Seen {
    world: World,
    feeder: Feeder,
    drain: Drain,
}

impl Seen {
    fn new(seed: u64, pipe: Pipe, config: LinkConfig) -> Seen {
        let mut world = World::new(seed, pipe, config);
        let now = world.now;
        let id = world.sides[0].open(now, origin()).expect("there is room");
        let feeder = Feeder { left: BTreeMap::from([(id, (0, u64::MAX / 4))]) };
        Seen { world, feeder, drain: Drain::default() }
    }

    fn got(&self) -> u64 {
        self.drain.got.values().sum()
    }

    /// Stream bytes delivered within `d`.
    fn run(&mut self, d: Duration) -> u64 {
        let before = self.got();
        let (feeder, drain) = (&mut self.feeder, &mut self.drain);
        self.world.run(d, |w| {
            let now = w.now;
            feeder.feed(now, &mut w.sides[0]);
            drain.drain(now, &mut w.sides[1]);
        });
        self.got() - before
    }

    fn mtu(&self) -> u16 {
        self.world.sides[0].path_mtu()
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// L-PM-2, L-PM-3, L-PM-5: bytes flow again at the size that the path takes.
#[test]
fn a_path_that_narrows_and_widens_in_mid_transfer_is_followed_within_ten_seconds() {
    for (loss, reorder) in [(0.0, 0.0), (0.01, 0.05), (0.1, 0.0)] {
        let pipe = Pipe { loss, reorder, duplicate: 0.0 };
        let config = LinkConfig { send_rate: BitRate::from_mbps(4), ..config() };
        let mut w = Seen::new(31, pipe, config);
        let full = w.run(SECOND.times(10)) / 9;
        assert_eq!(w.mtu(), 1500);
        for (mtu, found) in [(576, 576), (1300, 1280), (900, 576), (1500, 1500)] {
            w.world.path_mtu = mtu;
            w.run(SECOND.times(10));
            let what = format!("{loss}, {reorder}: {mtu}");
            let side = &w.world.sides[0];
            assert_eq!(w.mtu(), found, "{what}: {:#?}\n{:#?}", side, side.paths[0].sent.evidence);
            let then = w.run(SECOND.times(5)) / 5;
            // Headers take 10 % of 576 bytes; where much is lost readers are held up at times.
            let least = if loss < 0.05 { 8 } else { 4 };
            assert!(then * 10 > full * least, "{what}: {then} of {full} bytes a second");
        }
    }
}

/// L-PM-4: what is asked of the path is not the link's loss.
#[test]
fn probes_that_are_lost_count_as_nothing() {
    let mut w = Seen::new(32, CLEAN, config());
    w.run(SECOND.times(2));
    w.world.path_mtu = 600;
    w.run(SECOND.times(10));
    let before = w.world.sides[0].stats();
    w.run(SECOND.times(60));
    let after = w.world.sides[0].stats();
    assert_eq!(w.mtu(), 576);
    assert_eq!(after.packets_lost, before.packets_lost);
    assert_eq!(after.probes, before.probes);
    assert_eq!(w.world.sides[0].rate_status().rate, config().send_rate);
}

/// L-PM-1, L-PM-6: where nothing is wrong, and above what is configured, nothing is tried.
#[test]
fn a_link_that_is_configured_right_is_never_probed() {
    for packet in [1500, 700, 296, 128] {
        let config = LinkConfig { packet, ..config() };
        let mut w = Seen::new(33, CLEAN, config);
        w.run(SECOND.times(30));
        let header = SEALING as usize + 28;
        let longest = w.world.longest[0] + header;
        assert!(longest <= usize::from(packet), "{longest} of {packet}");
        assert_eq!(w.mtu(), packet);
    }
}

/// L-PM-3: an outage takes small packets too.
#[test]
fn outages_and_losses_are_not_taken_for_a_narrow_path() {
    for loss in [0.0, 0.02, 0.1] {
        let pipe = Pipe { loss, reorder: 0.0, duplicate: 0.0 };
        let mut w = Seen::new(34, pipe, config());
        let mut smaller = 0;
        for outage in [200, 700, 1500, 4000] {
            w.run(SECOND.times(5));
            w.world.dead = [true; 2];
            w.run(Duration::from_millis(outage));
            w.world.dead = [false; 2];
            for _ in 0..50 {
                w.run(Duration::from_millis(100));
                smaller += u32::from(w.mtu() < 1500);
            }
        }
        // A tenth of a second each, of 20 s after outages.
        assert!(smaller <= 30, "loss {loss}: {smaller} times");
    }
}

/// L-PM-5: a thin link carries on with what works and spends little on trying more.
#[test]
fn a_thin_link_goes_on_and_is_not_disturbed() {
    let config = LinkConfig {
        send_rate: BitRate::from_bps(2400),
        receive_rate: BitRate::from_bps(2400),
        rtt: SECOND.times(2),
        ..config()
    };
    let mut w = Seen::new(35, CLEAN, config);
    w.run(SECOND.times(60));
    w.world.path_mtu = 576;
    let begun = w.world.now;
    while w.mtu() != 576 {
        w.run(SECOND);
        assert!(w.world.now.since(begun) < SECOND.times(40), "{:#?}", w.world.sides[0]);
    }
    w.run(SECOND.times(30));
    let sent = w.world.wire_bytes[0];
    let got = w.run(SECOND.times(600));
    let sent = w.world.wire_bytes[0] - sent;
    // 524 of 576 bytes are the stream's, and a hundredth of the link tries larger ones.
    assert!(got * 100 > sent * 87, "{got} of {sent}");
    w.world.path_mtu = 1300;
    w.run(SECOND.times(2600));
    assert!(w.mtu() >= 1006, "{}", w.mtu());
}

/// L-PM-2: unsplit packets go in pieces that fit.
#[test]
fn unsplit_packets_cross_a_narrow_path_in_pieces() {
    let mut w = Seen::new(36, CLEAN, config());
    w.run(SECOND.times(2));
    w.world.path_mtu = 600;
    w.run(SECOND.times(10));
    let before = w.world.sides[1].stats().datagrams_out;
    let label = Label::default();
    for n in 0..20u8 {
        let now = w.world.now;
        assert!(w.world.sides[0].send_datagram(now, &[n; 1400], &label));
        w.run(Duration::from_millis(100));
        while w.world.sides[1].take_datagram(|d| assert_eq!(d, [d[0]; 1400])) {}
    }
    w.run(SECOND);
    while w.world.sides[1].take_datagram(|d| assert_eq!(d, [d[0]; 1400])) {}
    assert_eq!(w.world.sides[1].stats().datagrams_out - before, 20);
    assert!(w.world.sides[0].max_whole_datagram() < 576);
}

/// L-PM-3: what the kernel refuses is known at once.
#[test]
fn what_the_own_interface_refuses_is_cut_smaller_at_once() {
    let mut w = Seen::new(37, CLEAN, config());
    w.run(SECOND);
    let now = w.world.now;
    w.world.sides[0].on_too_big(now, PathId::FIRST, 1472);
    assert_eq!(w.mtu(), 1492);
    w.world.sides[0].on_too_big(now, PathId::FIRST, 1464);
    assert_eq!(w.mtu(), 1400);
    w.run(SECOND.times(8));
    assert_eq!(w.mtu(), 1500, "it was the interface's for a while only");
}

/// L-PS-4.
#[test]
fn a_new_session_goes_on_with_the_length_that_losses_made_best() {
    let config = config();
    let now = Instant::ZERO;
    let mut before = Session::new(now, config.clone(), 0);
    before.set_peer(Params::of(&config));
    before.first_mut().set_ipv6(true);
    for number in 0..200 {
        before.paths[0].sent.by_size.on_lost(number * 20, 1500);
        (0..8).for_each(|_| before.paths[0].sent.by_size.on_arrived(1500));
    }
    before.paths[0].fit_sizes();
    let best = before.paths[0].sent.by_size.best();
    assert!(best < 1400, "{best}");
    let mut after = Session::new(now, config.clone(), 0);
    after.inherit_link(now, &before);
    after.set_peer(Params::of(&config));
    after.first_mut().set_ipv6(true);
    assert_eq!(after.paths[0].sent.by_size.best(), best);
}
