//! The exact figures of this machine; see the file beside this directory for the command.

use bentpipe_lab::emulate::Report;
use channel::ChannelConfig;
use os::netns::root;
use units::{BitRate, Duration, Ratio};

use crate::emulator::wire::{Kind, SHORTEST, Wire, delays, punctual_rate_of, rate_of, sleep_ms};

const RATES: [(u64, &str); 4] = [
    (2_000_000, "2 Mbit/s"),
    (20_000_000, "20 Mbit/s"),
    (155_000_000, "155 Mbit/s"),
    (500_000_000, "500 Mbit/s"),
];

const DELAY_MS: u64 = 270;

fn config(rate: u64) -> ChannelConfig {
    ChannelConfig {
        rate: Some(BitRate::from_bps(rate)),
        delay: Duration::from_millis(DELAY_MS),
        ..ChannelConfig::default()
    }
}

/// Seconds of processor time of the emulator's thread so far.
fn emulator_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let mut ticks = 0.0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        if name.ends_with("(emulator") {
            let field = |n: usize| rest.split_whitespace().nth(n).unwrap().parse::<f64>().unwrap();
            ticks += field(11) + field(12);
        }
    }
    ticks / TICKS_PER_SECOND
}

fn none_wrong(report: &Report) {
    assert_eq!(report.problems, [""; 0]);
}

#[test]
#[ignore = "takes minutes and prints figures"]
fn figures_of_delay() {
    if !root() {
        return;
    }
    println!("\none-way delay of lone packets, set to {DELAY_MS} ms + the line's time");
    for kind in [Kind::Tap, Kind::Veth] {
        let (wire, link) = Wire::with_link(kind, &format!("fd{kind:?}"), config(500_000_000));
        let (mut sender, listener) = (wire.sender(), wire.listener());
        for _ in 0..1_000 {
            sender.send(1, 1_500);
            sleep_ms(3);
        }
        sleep_ms(500);
        let seen = listener.stop();
        let (median, p99) = delays(&seen);
        let set = DELAY_MS * 1_000 + 24;
        println!(
            "{kind:?}: median {:+} us, 99th percentile {:+} us ({} of 1000 seen)",
            median as i64 - set as i64,
            p99 as i64 - set as i64,
            seen.len()
        );
        none_wrong(&link.stop().unwrap());
        assert!(median.abs_diff(set) < 1_000);
    }
}

#[test]
#[ignore = "takes minutes and prints figures"]
fn figures_of_rate() {
    if !root() {
        return;
    }
    // Nothing may keep the probe from sending: a line that runs dry has no rate.
    os::port::hurry();
    println!("\nlong-run rate, 30 % more offered for 12 s, and what the emulator took");
    for kind in [Kind::Tap, Kind::Veth] {
        for (rate, name) in RATES {
            let (wire, link) = Wire::with_link(kind, &format!("fr{kind:?}{rate}"), config(rate));
            let (mut sender, listener) = (wire.sender(), wire.listener());
            // A full queue from the start: the line must never wait for the probe.
            sender.send((rate / 12_000 * 2 / 5) as usize, 1_500);
            let before = emulator_seconds();
            sender.flood(BitRate::from_bps(rate * 13 / 10), 1_500, Duration::from_secs(12));
            let used = emulator_seconds() - before;
            sleep_ms(1_500);
            let seen = listener.stop();
            let memory = link.report().frame_memory;
            let report = link.stop().unwrap();
            let gigabytes = report.up.counters.delivered.bytes as f64 / 1e9;
            let off = |measured: f64| (measured / rate as f64 - 1.0) * 100.0;
            let error = off(punctual_rate_of(&seen, rate as f64));
            println!(
                "{kind:?} {name}: rate {error:+.4} % ({:+.4} % from first to last), \
                 delivered {} seen {}, late {:?}, \
                 {:.2} s/GB, {:.0} % of a core, {} kB for frames",
                off(rate_of(&seen)),
                report.up.counters.delivered.packets,
                seen.len(),
                report.up.lateness,
                used / gigabytes,
                used / 12.0 * 100.0,
                memory / 1_000
            );
            assert!(error.abs() < 0.05);
        }
    }
}

#[test]
#[ignore = "takes minutes and prints figures"]
fn figures_of_loss() {
    if !root() {
        return;
    }
    println!("\nloss of 400,000 packets, with the 95 % interval of a fair link");
    for (ber, len) in [(1e-7, 1_500), (1e-6, 1_500), (1e-5, 576), (1e-5, 1_500), (1e-4, SHORTEST)] {
        let config = ChannelConfig { ber: Ratio::from_f64(ber), ..config(500_000_000) };
        let (wire, link) = Wire::with_link(Kind::Tap, "floss", config);
        let (mut sender, listener) = (wire.sender(), wire.listener());
        let rate = BitRate::from_bps(30_000 * 8 * len as u64);
        sender.flood(rate, len, Duration::from_nanos(400_000 * 1_000_000_000 / 30_000));
        sleep_ms(600);
        let (n, seen) = (sender.count() as f64, listener.stop().len() as f64);
        let p = 1.0 - (1.0 - ber).powi(8 * len as i32);
        let half = 1.96 * (p * (1.0 - p) / n).sqrt();
        let lost = 1.0 - seen / n;
        let verdict = if (lost - p).abs() <= half { "inside" } else { "outside" };
        println!(
            "ber {ber:e}, {len} bytes: {:.4} %, expected {:.4} % ± {:.4} %: {verdict}",
            lost * 100.0,
            p * 100.0,
            half * 100.0
        );
        none_wrong(&link.stop().unwrap());
        assert!((lost - p).abs() < half * 2.5);
    }
}
