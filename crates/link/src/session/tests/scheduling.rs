//! Whose turn it is, measured: keystrokes, shares, hosts, objects of a page, many flows.

use super::*;

fn at(rate: BitRate, rtt_ms: u64) -> LinkConfig {
    LinkConfig {
        send_rate: rate,
        receive_rate: rate,
        rtt: Duration::from_millis(rtt_ms),
        ..config()
    }
}

fn from_host(host: u8) -> Origin {
    let client: SocketAddr = format!("10.1.0.{host}:40000").parse().unwrap();
    Origin { client: Some(client), ..origin() }
}

const FOREVER: (u64, u64) = (0, 1 << 40);

/// Feeds and drains for `time`; answers what each stream of side 0 delivered in it.
fn run(w: &mut World, feeder: &mut Feeder, drain: &mut Drain, time: Duration) -> Vec<u64> {
    let before = drain.got.clone();
    w.run(time, |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
    });
    drain.got.iter().map(|(id, n)| n - before.get(id).unwrap_or(&0)).collect()
}

/// Jain's index: 1 where all have the same.
fn jain(x: &[u64]) -> f64 {
    let sum: f64 = x.iter().map(|x| *x as f64).sum();
    let squares: f64 = x.iter().map(|x| *x as f64 * *x as f64).sum();
    sum * sum / (x.len() as f64 * squares)
}

#[test]
fn what_arrives_is_awaited_for_a_round_trip_after_a_keystroke_and_not_in_a_transfer() {
    let mut w = World::new(32, CLEAN, at(BitRate::from_mbps(20), 600));
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    feeder.left.insert(id, FOREVER);
    run(&mut w, &mut feeder, &mut drain, Duration::from_secs(5));
    assert!(w.sides.iter().all(|side| side.awaited_until() < w.now), "a transfer goes on");
    let shell = w.sides[1].open(w.now, origin()).unwrap();
    let key = [pattern(shell, 0)];
    assert_eq!(w.sides[1].write(w.now, shell, &key), 1);
    run(&mut w, &mut feeder, &mut drain, Duration::from_millis(600));
    assert!(w.sides[1].awaited_until() > w.now, "its answer comes now");
    run(&mut w, &mut feeder, &mut drain, Duration::from_secs(2));
    assert!(w.sides[1].awaited_until() < w.now, "nobody waits any more");
}

/// R-QOS: the link is saturated at 64 kbit/s, and somebody types.
#[test]
fn a_keystroke_waits_at_most_200_ms_on_a_saturated_64_kbit_link() {
    let rate = BitRate::from_kbps(64);
    let mut w = World::new(31, CLEAN, at(rate, 600));
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    for _ in 0..2 {
        let id = w.sides[0].open(w.now, origin()).unwrap();
        feeder.left.insert(id, FOREVER);
    }
    let shell = w.sides[0].open(w.now, origin()).unwrap();
    run(&mut w, &mut feeder, &mut drain, Duration::from_secs(10));
    let (mut typed, mut waits) = (0u64, Vec::new());
    let mut rng = Rng::new(7);
    for _ in 0..300 {
        let data: Vec<u8> = (typed..typed + 36).map(|o| pattern(shell, o)).collect();
        typed += 36;
        assert_eq!(w.sides[0].write(w.now, shell, &data), 36);
        let written = w.now;
        let mut left = None;
        let pause = Duration::from_millis(210 + rng.below(400));
        w.run(pause, |w| {
            feeder.feed(w.now, &mut w.sides[0]);
            drain.drain(w.now, &mut w.sides[1]);
            let s = &w.sides[0].streams[&shell];
            if left.is_none() && s.send.unsent() == 0 {
                left = Some(w.now);
            }
        });
        // Its own time on the link counts too; `left` is when it was handed to the link.
        let own = rate.time_for(ByteCount(36 + 10 + SEALING + 28));
        waits.push(left.expect("it left before the next one").since(written) + own);
    }
    waits.sort();
    let (median, most) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    println!("a keystroke waits {median}, {most} at most");
    assert!(most <= Duration::from_millis(200), "{most}");
    // Smaller packets cost headers, and typing itself a little.
    let before: u64 = drain.got.values().sum();
    run(&mut w, &mut feeder, &mut drain, Duration::from_secs(60));
    let goodput = (drain.got.values().sum::<u64>() - before) as f64 / (60.0 * 8000.0);
    println!("bulk goes on at {goodput:.3} of the rate");
    assert!(goodput > 0.9);
}

/// R-DDR: mail that was gathered waits in small pieces, and then somebody wants a page.
#[test]
fn what_is_set_into_bulk_while_it_waits_goes_behind_what_comes_later() {
    let rate = BitRate::from_bps(2_400);
    let mut w = World::new(33, CLEAN, at(rate, 2_000));
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    let mails: Vec<StreamId> = (0..4)
        .map(|_| {
            let id = w.sides[0].open(w.now, origin()).unwrap();
            feeder.left.insert(id, (0, 500));
            feeder.feed(w.now, &mut w.sides[0]);
            w.sides[0].set_class(id, ClassId::BULK, ChosenBy::Operator);
            id
        })
        .collect();
    let page = w.sides[0].open(w.now, origin()).unwrap();
    feeder.left.insert(page, (0, 100));
    let mut order = Vec::new();
    w.run(Duration::from_secs(30), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
        for (id, n) in &drain.got {
            if *n >= 100 && !order.contains(id) {
                order.push(*id);
            }
        }
    });
    assert_eq!(order[0], page, "{order:?}");
    assert!(mails.iter().all(|id| drain.got[id] == 500), "{:?}", drain.got);
}

/// Sends datagrams of `class` at `share` of the link for a minute beside a transfer; answers
/// the shares of the link that both then have, headers of the link included.
fn beside_tcp(share: f64, class: ClassId, config: LinkConfig) -> (f64, f64) {
    let label = Label { class, flow: 5, ..Label::default() };
    datagrams_beside_tcp((share, 1_000, 1), |_| label, config)
}

/// The same with datagrams of so many bytes, so many at once, and a label for each.
fn datagrams_beside_tcp(
    (share, len, burst): (f64, usize, u32),
    label: impl Fn(u32) -> Label,
    config: LinkConfig,
) -> (f64, f64) {
    let rate = config.send_rate;
    let mut w = World::new(32, CLEAN, config);
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    feeder.left.insert(id, FOREVER);
    let size = len as u64 + 3 + SEALING + 28;
    let gap = rate.time_for(ByteCount((size as f64 * f64::from(burst) / share) as u64));
    let (mut next, mut sent, mut arrived, mut got) = (w.now, 0, 0u64, 0);
    for second in 0..70 {
        if second == 10 {
            (arrived, got) = (0, drain.got[&id]);
        }
        w.run(Duration::from_secs(1), |w| {
            while next <= w.now {
                for _ in 0..burst {
                    w.sides[0].send_datagram(w.now, &vec![9; len], &label(sent));
                    sent += 1;
                }
                next += gap;
            }
            feeder.feed(w.now, &mut w.sides[0]);
            drain.drain(w.now, &mut w.sides[1]);
            while w.sides[1].take_datagram(|_| {}) {
                arrived += 1;
            }
        });
    }
    let whole = rate.bytes_in(Duration::from_secs(60)).0 as f64;
    let tcp = (drain.got[&id] - got) as f64 * 1500.0 / 1448.0;
    ((arrived * size) as f64 / whole, tcp / whole)
}

#[test]
fn a_udp_stream_with_a_share_of_40_percent_keeps_it_beside_tcp() {
    let mut classes = vec![ClassConfig::default(); 5];
    classes[4].share = Some(40);
    let config = LinkConfig { classes, ..at(BitRate::from_kbps(1536), 500) };
    let video = ClassId::from_index(4);
    let (udp, tcp) = beside_tcp(0.4, video, config.clone());
    println!("offered 40 %: UDP has {udp:.3}, TCP {tcp:.3}");
    assert!(udp > 0.396 && tcp > 0.57, "{udp} {tcp}");
    let (udp, tcp) = beside_tcp(0.9, video, config.clone());
    println!("offered 90 %: UDP has {udp:.3}, TCP {tcp:.3}");
    assert!((0.38..0.44).contains(&udp) && tcp > 0.55, "{udp} {tcp}");
    let (udp, tcp) = beside_tcp(0.2, video, config);
    println!("offered 20 %: UDP has {udp:.3}, TCP {tcp:.3}");
    assert!(udp > 0.197 && tcp > 0.77, "what UDP leaves is TCP's: {udp} {tcp}");
}

/// L-OR-6, R-QOS: code points are the hosts' own word. A host has what it asks for by them while it
/// keeps to its part, and shares what is left: of two, one has at most three quarters. A rule of
/// the operator's counts without bound.
#[test]
fn a_host_that_calls_all_that_it_sends_urgent_leaves_another_its_part() {
    use ChosenBy::{Host, Operator};
    for (class, chosen_by, least, most) in [
        (ClassId::INTERACTIVE, Host, 0.25, 0.58),
        (ClassId::CONTROL, Host, 0.25, 0.58),
        (ClassId::INTERACTIVE, Operator, 0.0, 0.1),
    ] {
        let mut w = World::new(34, CLEAN, at(BitRate::from_mbps(2), 500));
        let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
        let ids = [1, 2].map(|host| w.sides[0].open(w.now, from_host(host)).unwrap());
        w.sides[0].set_class(ids[0], class, chosen_by);
        feeder.left.extend(ids.map(|id| (id, FOREVER)));
        run(&mut w, &mut feeder, &mut drain, Duration::from_secs(10));
        let got = run(&mut w, &mut feeder, &mut drain, Duration::from_secs(30));
        let share = 1.0 - got[0] as f64 / got.iter().sum::<u64>() as f64;
        assert!((least..=most).contains(&share), "{class:?} by {chosen_by:?}: {got:?}");
    }
}

/// L-OR-6: the same in packets, which may be of a new flow each.
#[test]
fn a_host_whose_packets_are_all_urgent_or_of_new_flows_leaves_another_its_part() {
    let host = Some("10.1.0.77".parse().unwrap());
    let claimed =
        Label { class: ClassId::INTERACTIVE, chosen_by: ChosenBy::Host, host, ..Label::default() };
    let link = || at(BitRate::from_mbps(2), 500);
    for share in [0.9, 1.5] {
        for len in [1_000, 1_450] {
            for burst in [1, 150] {
                for fresh in [false, true] {
                    let label = |n: u32| match fresh {
                        true => {
                            Label { flow: n.wrapping_mul(2_654_435_761), host, ..Label::default() }
                        }
                        false => claimed,
                    };
                    let (udp, tcp) = datagrams_beside_tcp((share, len, burst), label, link());
                    let how = format!("{share} in {burst} of {len}, fresh {fresh}");
                    assert!(udp > 0.4 && tcp > 0.22, "{how}: UDP {udp:.3}, TCP {tcp:.3}");
                }
            }
        }
    }
    // Somebody's call is within its part.
    let (udp, tcp) = datagrams_beside_tcp((0.3, 1_000, 1), |_| claimed, link());
    assert!(udp > 0.297 && tcp > 0.65, "UDP has {udp:.3}, TCP {tcp:.3}");
}

#[test]
fn bulk_leaves_normal_four_fifths_and_a_cap_holds() {
    let link = at(BitRate::from_kbps(1536), 500);
    let (udp, tcp) = beside_tcp(0.9, ClassId::BULK, link.clone());
    println!("bulk UDP has {udp:.3}, normal TCP {tcp:.3}");
    assert!((0.17..0.24).contains(&udp) && tcp > 0.75, "{udp} {tcp}");
    let mut classes = vec![ClassConfig::default(); 4];
    classes[3].cap = Some(BitRate::from_kbps(96));
    let (udp, tcp) = beside_tcp(0.9, ClassId::BULK, LinkConfig { classes, ..link });
    println!("with a cap of 1/16 bulk UDP has {udp:.3}, normal TCP {tcp:.3}");
    assert!((0.055..0.066).contains(&udp) && tcp > 0.92, "{udp} {tcp}");
}

#[test]
fn a_cap_holds_where_nothing_else_waits() {
    let mut classes = vec![ClassConfig::default(); 4];
    classes[2].cap = Some(BitRate::from_mbps(1));
    let mut w = World::new(33, CLEAN, LinkConfig { classes, ..config() });
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    feeder.left.insert(id, FOREVER);
    run(&mut w, &mut feeder, &mut drain, Duration::from_secs(5));
    let before = w.wire_bytes[0];
    run(&mut w, &mut feeder, &mut drain, Duration::from_secs(20));
    let rate = (w.wire_bytes[0] - before) as f64 * 8.0 / 20e6;
    assert!((0.98..1.01).contains(&rate), "{rate} Mbit/s");
}

#[test]
fn what_a_class_owes_is_paid_at_the_cap_that_it_gets() {
    let mut classes = vec![ClassConfig::default(); 4];
    classes[2].cap = Some(BitRate::from_bps(1));
    let mut w = World::new(37, CLEAN, LinkConfig { classes: classes.clone(), ..config() });
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    feeder.left.insert(id, FOREVER);
    // A packet or two, for which it would have to wait some hours.
    let alone = run(&mut w, &mut feeder, &mut drain, Duration::from_secs(20))[0];
    assert!(alone < 5_000, "{alone} bytes");
    classes[2].cap = Some(BitRate::from_mbps(1));
    w.sides[0].set_classes(w.now, &classes);
    let then = run(&mut w, &mut feeder, &mut drain, Duration::from_secs(20))[0];
    assert!(then > 2_000_000, "{then} bytes");
}

#[test]
fn a_host_with_nine_transfers_has_no_more_than_one_with_a_single_one() {
    for loss in [0.0, 0.01] {
        let mut w = World::new(34, Pipe { loss, ..CLEAN }, config());
        let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
        for host in [1, 1, 1, 1, 1, 1, 1, 1, 1, 2] {
            let id = w.sides[0].open(w.now, from_host(host)).unwrap();
            feeder.left.insert(id, FOREVER);
        }
        run(&mut w, &mut feeder, &mut drain, Duration::from_secs(5));
        let got = run(&mut w, &mut feeder, &mut drain, Duration::from_secs(20));
        let (many, one) = (got[..9].iter().sum::<u64>() as f64, got[9] as f64);
        println!("loss {loss}: nine have {:.4} of what the one has", many / one);
        assert!((0.95..1.05).contains(&(many / one)), "{many} {one}");
        assert!(jain(&got[..9]) > 0.99);
    }
}

#[test]
fn objects_of_a_page_are_served_to_completion() {
    let mut w = World::new(35, CLEAN, at(BitRate::from_kbps(100), 1000));
    let mut feeder = Feeder::default();
    for _ in 0..6 {
        let id = w.sides[0].open(w.now, origin()).unwrap();
        feeder.left.insert(id, (0, 8000));
    }
    let (start, mut drain, mut ends) = (w.now, Drain::default(), Vec::new());
    w.run(Duration::from_secs(30), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
        while ends.len() < drain.finished.len() {
            ends.push(w.now.since(start).as_secs_f64() - 0.3);
        }
    });
    // One object takes 0.66 s on the link.
    println!("objects are complete after {ends:.2?}");
    assert_eq!(ends.len(), 6);
    for (i, end) in ends.iter().enumerate() {
        let ideal = 0.665 * (i + 1) as f64;
        assert!((ideal - 0.1..ideal + 0.25).contains(end), "{i}: {end}, {ideal} in order");
    }
}

#[test]
fn a_small_stream_is_not_stuck_behind_large_ones_and_they_do_not_starve() {
    let mut w = World::new(36, CLEAN, at(BitRate::from_mbps(2), 600));
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    for _ in 0..20 {
        let id = w.sides[0].open(w.now, origin()).unwrap();
        feeder.left.insert(id, FOREVER);
    }
    run(&mut w, &mut feeder, &mut drain, Duration::from_secs(10));
    // Small ones come one after the other: together they want all of the link.
    let (before, start) = (drain.got.values().sum::<u64>(), w.now);
    let mut ends = Vec::new();
    while w.now.since(start) < Duration::from_secs(20) {
        let id = w.sides[0].open(w.now, from_host(9)).unwrap();
        feeder.left.insert(id, (0, 30_000));
        let begun = w.now;
        while !drain.finished.contains(&id) {
            run(&mut w, &mut feeder, &mut drain, Duration::from_millis(5));
        }
        ends.push(w.now.since(begun).as_millis());
    }
    // 30 kB take 124 ms, half a round trip 300.
    println!("30 kB took {} … {} ms", ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!(ends.iter().all(|ms| *ms < 500), "{ends:?}");
    let small = 30_000 * ends.len() as u64;
    let large = drain.got.values().sum::<u64>() - before - small;
    assert!(large > small, "{large} {small}");
}

#[test]
fn a_hundred_and_ten_streams_have_equal_parts() {
    // Where packets are lost a window lacks what waits for them, and the next has it.
    for (loss, fair) in [(0.0, 0.99), (0.01, 0.92)] {
        let mut link = at(BitRate::from_mbps(45), 600);
        link.memory = ByteCount(256 << 20);
        let mut w = World::new(37, Pipe { loss, ..CLEAN }, link);
        let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
        for _ in 0..110 {
            let id = w.sides[0].open(w.now, origin()).unwrap();
            feeder.left.insert(id, FOREVER);
        }
        let mut total = vec![0; 110];
        let mut windows = Vec::new();
        for _ in 0..25 {
            let got = run(&mut w, &mut feeder, &mut drain, Duration::from_millis(1200));
            for (sum, n) in total.iter_mut().zip(&got) {
                *sum += n;
            }
            windows.push(jain(&got));
        }
        let goodput = total.iter().sum::<u64>() as f64 * 8.0 / 30.0 / 45e6;
        let least = windows[1..].iter().copied().fold(1.0, f64::min);
        let index = jain(&total);
        println!(
            "loss {loss}: Jain {index:.5} over 30 s, {least:.4} at least over two round \
             trips, goodput {goodput:.4}"
        );
        assert!(index >= 0.99, "{index}");
        assert!(least >= fair, "loss {loss}: {least}");
    }
}
