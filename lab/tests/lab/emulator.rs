//! The emulator on real interfaces: two namespaces, one link; and the lab, which is made of it.
//! Needs root.
//!
//! The machine may be busy, so times are checked generously here. The exact figures
//! come from `cargo test --release --test lab emulator -- --ignored --nocapture`.

mod capture;
mod figures;
mod lab;
mod program;
mod wire;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use bentpipe_lab::emulate::{Direction, Emulator, EmulatorError, EmulatorOptions};
use channel::{ChannelConfig, OutageMode, Policer, QueueLimit};
use os::netns::root;
use units::{BitRate, ByteCount, Duration, Ratio};

use wire::{Kind, Wire, delays, punctual_rate_of, sleep_ms, wait_until, wait_until_empty};

const BOTH: [Kind; 2] = [Kind::Tap, Kind::Veth];

fn link(rate: BitRate, delay_ms: u64) -> ChannelConfig {
    ChannelConfig {
        rate: Some(rate),
        delay: Duration::from_millis(delay_ms),
        ..ChannelConfig::default()
    }
}

#[test]
fn a_lone_packet_takes_its_time_on_the_line_and_the_delay() {
    if !root() {
        return;
    }
    for kind in BOTH {
        // 1,000 bytes at 8 Mbit/s are one millisecond.
        let (wire, link) =
            Wire::with_link(kind, &format!("delay{kind:?}"), link(BitRate::from_mbps(8), 99));
        let (mut sender, listener) = (wire.sender(), wire.listener());
        for _ in 0..40 {
            sender.send(1, 1_000);
            sleep_ms(10);
        }
        wait_until(&link, |c| c.delivered.packets == 40);
        let seen = listener.stop();
        assert_eq!(seen.len(), 40, "{kind:?}");
        let (median, _) = delays(&seen);
        assert!((99_600..115_000).contains(&median), "{kind:?}: {median} us");
        // Less half of what the loop may be blind.
        assert!(seen.iter().all(|s| s.came.since(s.sent) >= Duration::from_micros(99_600)));
        let report = link.stop().unwrap();
        assert_eq!(report.problems, [""; 0]);
        assert_eq!(report.right.frames_out, report.up.counters.delivered.packets);
    }
}

#[test]
fn a_flood_comes_out_at_the_rate_and_in_order() {
    if !root() {
        return;
    }
    for kind in BOTH {
        let rate = BitRate::from_mbps(20);
        let (wire, link) = Wire::with_link(kind, &format!("rate{kind:?}"), link(rate, 30));
        let (mut sender, listener) = (wire.sender(), wire.listener());
        // 420 ms of the queue's 500 first, so that the line never waits for the sender.
        sender.send(700, 1_500);
        sender.flood(BitRate::from_mbps(30), 1_500, Duration::from_millis(1_500));
        let n = sender.count();
        wait_until(&link, |c| c.delivered.packets + c.queue_drops.packets == n);
        let seen = listener.stop();
        assert!(seen.windows(2).all(|w| w[0].number < w[1].number), "{kind:?}");
        let error = punctual_rate_of(&seen, 20e6) / 20e6 - 1.0;
        assert!(error.abs() < 0.02, "{kind:?}: off by {error}");
        let counters = link.stop().unwrap().up.counters;
        assert_eq!(counters.delivered.packets, seen.len() as u64);
        assert_eq!(counters.queue_drops.packets, sender.count() - seen.len() as u64);
        assert!(counters.queue_drops.packets > 0);
    }
}

#[test]
fn losses_follow_the_bit_error_ratio_and_the_counters_tell_the_truth() {
    if !root() {
        return;
    }
    let config = ChannelConfig { ber: Ratio::from_f64(1e-5), ..ChannelConfig::default() };
    let (wire, link) = Wire::with_link(Kind::Tap, "loss", config);
    let (mut sender, listener) = (wire.sender(), wire.listener());
    for _ in 0..200 {
        sender.send(50, 1_250);
        sleep_ms(2);
    }
    let n = sender.count();
    wait_until(&link, |c| c.delivered.packets + c.lost_bit_error.packets == n);
    let seen = listener.stop().len() as u64;
    let p = 1.0 - (1.0 - 1e-5f64).powi(10_000);
    let expected = n as f64 * p;
    let five_sigma = 5.0 * (expected * (1.0 - p)).sqrt();
    let lost = (n - seen) as f64;
    assert!((lost - expected).abs() < five_sigma, "{lost} lost of {n}, {expected} expected");
    let up = link.stop().unwrap().up.counters;
    assert_eq!([up.delivered.packets, up.lost_bit_error.packets], [seen, n - seen]);
}

#[test]
fn padding_of_short_frames_does_not_use_the_link() {
    if !root() {
        return;
    }
    // 44 bytes of IP in a frame of 60: a thousand of them at 352 kbit/s take a second.
    let config = ChannelConfig {
        queue: QueueLimit::Bytes(ByteCount(100_000)),
        ..link(BitRate::from_kbps(352), 0)
    };
    let (wire, link) = Wire::with_link(Kind::Tap, "padding", config);
    wire.sender().send(100, 44);
    wait_until(&link, |c| c.offered.packets == 100);
    let up = link.stop().unwrap().up.counters;
    assert_eq!((up.offered.packets, up.offered.bytes), (100, 4_400));
}

#[test]
fn the_link_can_be_changed_while_it_runs() {
    if !root() {
        return;
    }
    let (wire, link) = Wire::with_link(Kind::Tap, "change", link(BitRate::from_mbps(10), 5));
    let (mut sender, listener) = (wire.sender(), wire.listener());
    link.set_outage(Direction::Up, true);
    sender.send(5, 500);
    wait_until(&link, |c| c.lost_outage.packets == 5);
    assert_eq!(link.counters(Direction::Up).lost_outage.packets, 5);
    link.set_outage(Direction::Up, false);
    let held = ChannelConfig { outage_mode: OutageMode::Hold, ..link.config(Direction::Up) };
    link.reconfigure(Direction::Up, held).unwrap();
    link.set_outage(Direction::Up, true);
    sender.send(5, 500);
    wait_until(&link, |c| c.offered.packets == 10);
    assert_eq!(link.report().up.queue_bytes, 2_500);
    link.set_outage(Direction::Up, false);
    link.set_rate(Direction::Up, Some(BitRate::from_kbps(40))).unwrap();
    sleep_ms(700);
    assert!(
        link.report().up.queue_bytes > 0 || link.counters(Direction::Up).delivered.packets == 5
    );
    assert!(link.set_rate(Direction::Up, Some(BitRate::from_bps(0))).is_err());
    let seen = listener.stop();
    assert!(seen.iter().all(|s| s.number >= 5));
    let report = link.stop().unwrap();
    assert_eq!(report.up.series.bins().iter().map(|b| b.lost_bytes).sum::<u64>(), 2_500);
}

#[test]
fn a_link_changes_by_its_schedules_and_drops_what_its_policer_refuses() {
    if !root() {
        return;
    }
    let config = ChannelConfig {
        rate_schedule: "0s 4Mbit, 1s 40Mbit, repeat 2s".parse().ok(),
        delay_schedule: "5ms-40ms every 20ms".parse().ok(),
        policer: Some(Policer { rate: BitRate::from_mbps(10), burst: ByteCount(30_000) }),
        ..ChannelConfig::default()
    };
    let (wire, link) = Wire::with_link(Kind::Tap, "plan", config);
    let (mut sender, listener) = (wire.sender(), wire.listener());
    sender.flood(BitRate::from_mbps(20), 1_000, Duration::from_secs(3));
    let n = sender.count();
    let refused = |c: &channel::Counters| c.policed.packets + c.queue_drops.packets;
    wait_until(&link, |c| c.delivered.packets + refused(c) == n);
    let seen = listener.stop();
    assert!(seen.windows(2).all(|w| w[0].number < w[1].number), "a packet overtook");
    let end = units::Instant::ZERO + Duration::from_secs(2);
    let capacity = link.capacity(Direction::Up, units::Instant::ZERO, end);
    assert_eq!(capacity, Some(ByteCount(5_500_000)));
    let up = link.stop().unwrap().up.counters;
    assert_eq!(up.delivered.packets, seen.len() as u64);
    // Of 20 Mbit/s the policer lets about 10 pass, and of these 4 Mbit/s do not carry all.
    let passed = up.offered.packets - up.policed.packets;
    let share = passed as f64 / up.offered.packets as f64;
    assert!((0.4..0.65).contains(&share), "{share}");
    assert!(up.queue_drops.packets > 0);
}

#[test]
fn duplicates_and_detours_reach_the_far_end_and_leave_nothing_behind() {
    if !root() {
        return;
    }
    let config = ChannelConfig {
        duplicate: Ratio::from_f64(0.3),
        duplicate_delay: Duration::from_millis(3),
        reorder: Ratio::from_f64(0.3),
        reorder_delay: Duration::from_millis(20),
        corrupt: Ratio::from_f64(0.3),
        delay: Duration::from_millis(10),
        ..ChannelConfig::default()
    };
    let (wire, link) = Wire::with_link(Kind::Tap, "mess", config);
    let (mut sender, listener) = (wire.sender(), wire.listener());
    for _ in 0..200 {
        sender.send(50, 1_400);
        sleep_ms(2);
    }
    wait_until(&link, |c| c.delivered.packets == 10_000);
    wait_until_empty(&link);
    let seen = listener.stop();
    let report = link.stop().unwrap();
    let up = report.up.counters;
    assert_eq!(up.delivered.packets, 10_000);
    assert_eq!(report.right.frames_out, 10_000 + up.duplicated.packets);
    for some in [up.duplicated, up.reordered, up.corrupted] {
        assert!((2_000..4_000).contains(&some.packets), "{up:?}");
    }
    assert!(seen.windows(2).any(|w| w[0].number > w[1].number));
    assert_eq!(report.up.held_packets, 0);
    // 14 MB have passed.
    assert!(report.frame_memory < 5_000_000, "{} bytes are still held", report.frame_memory);
}

/// TCP through the link, both ways, with equal bytes.
fn transfer(wire: &Wire, bytes: usize) {
    let listener = wire.right.run(|| TcpListener::bind("10.9.0.2:5001")).unwrap();
    let data: Vec<u8> = (0..bytes).map(|i| (i * 7 % 251) as u8).collect();
    let echo = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut got = vec![0; bytes];
        socket.read_exact(&mut got).unwrap();
        socket.write_all(&got).unwrap();
    });
    let mut socket = wire.left.run(|| TcpStream::connect("10.9.0.2:5001")).unwrap();
    socket.write_all(&data).unwrap();
    let mut back = vec![0; bytes];
    socket.read_exact(&mut back).unwrap();
    assert!(back == data);
    echo.join().unwrap();
}

#[test]
fn tcp_crosses_without_super_packets() {
    if !root() {
        return;
    }
    let (wire, link) = Wire::with_link(Kind::Tap, "tcp", link(BitRate::from_mbps(100), 10));
    transfer(&wire, 2_000_000);
    let report = link.stop().unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert!(report.left.neighbour_in > 0, "ARP goes through the link too");
    let up = report.up.counters.offered;
    assert!(up.packets > 1_300, "2 MB in {} packets", up.packets);
}

#[test]
fn a_host_with_offloads_is_found_out_and_told_the_remedy() {
    if !root() {
        return;
    }
    let (wire, link) = Wire::with_link(Kind::Veth, "offload", link(BitRate::from_mbps(100), 5));
    // Checksums that a veth leaves to the hardware are filled in, super-packets are not
    // taken apart: TCP gets on, slowly, with what fits.
    transfer(&wire, 60_000);
    let report = link.stop().unwrap();
    assert!(report.left.too_long > 0);
    assert!(report.problems[0].contains("ethtool -K"), "{:?}", report.problems);

    let (wire, link) = Wire::with_link(Kind::Veth, "remedy", link_100());
    for host in [&wire.left, &wire.right] {
        let mut ethtool = host.command("ethtool");
        let words = "-K sat0 tso off gso off gro off lro off tx-udp-segmentation off";
        ethtool.args(words.split(' ')).output().unwrap();
    }
    transfer(&wire, 500_000);
    assert_eq!(link.stop().unwrap().problems, [""; 0]);
}

fn link_100() -> ChannelConfig {
    link(BitRate::from_mbps(100), 5)
}

#[test]
fn a_port_that_goes_away_ends_the_link_with_its_name() {
    if !root() {
        return;
    }
    let (wire, link) = Wire::with_link(Kind::Veth, "gone", ChannelConfig::default());
    wire.left.ip(&format!("link delete {DEVICE}", DEVICE = wire::DEVICE)).unwrap();
    for _ in 0..600 {
        if !link.is_running() {
            break;
        }
        sleep_ms(50);
    }
    assert_eq!(link.stop().unwrap_err(), EmulatorError::PortGone("left".into()));
}

#[test]
fn a_wrong_channel_is_refused_before_anything_runs() {
    if !root() {
        return;
    }
    let (_wire, [left, right]) = Wire::lay(Kind::Tap, "wrong");
    let good = ChannelConfig::default();
    let bad = ChannelConfig { rate: Some(BitRate::from_bps(0)), ..good.clone() };
    let refused = Emulator::start(left, right, good, bad, EmulatorOptions::default());
    let message = refused.err().unwrap().to_string();
    assert!(message.contains("Down") && message.contains("rate"), "{message}");
}
