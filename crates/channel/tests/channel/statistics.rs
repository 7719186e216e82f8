//! Loss is what was asked for, over many seeds. The seeds are fixed, so these tests
//! either always pass or never; the intervals are what a fair generator keeps in all
//! but one case of a million.

use channel::{Channel, ChannelConfig, Fate, GilbertElliott};
use units::{ByteCount, Instant, Ratio};

/// Five standard deviations of a binomial count, and one for small numbers.
fn tolerance(n: f64, p: f64) -> f64 {
    5.0 * (n * p * (1.0 - p)).sqrt() + 1.0
}

/// Which of `n` packets of `len` bytes are lost.
fn losses(config: &ChannelConfig, seed: u64, n: u64, len: u64) -> Vec<bool> {
    let mut channel = Channel::new(config.clone(), seed).unwrap();
    let mut lost = Vec::new();
    for i in 0..n {
        channel.push(Instant::ZERO, ByteCount(len), i).unwrap();
        while let Some(arrival) = channel.pop(Instant::ZERO) {
            lost.push(matches!(arrival.fate, Fate::Lost(_)));
        }
    }
    assert_eq!(lost.len() as u64, n);
    lost
}

fn count(config: &ChannelConfig, seeds: u64, n: u64, len: u64) -> f64 {
    let one = |seed| losses(config, seed, n, len).into_iter().filter(|l| *l).count();
    (0..seeds).map(one).sum::<usize>() as f64
}

#[test]
#[allow(clippy::disallowed_methods)] // Of the library: nothing is decided by it.
fn bit_errors_take_packets_by_their_length() {
    for ber in [1e-7, 1e-6, 1e-5, 1e-4] {
        let config = ChannelConfig { ber: Ratio::from_f64(ber), ..ChannelConfig::default() };
        for len in [40, 576, 1_500] {
            let p = 1.0 - (1.0 - ber).powi(8 * len as i32);
            let n = 50.0 * 4_000.0;
            let got = count(&config, 50, 4_000, len);
            let off = (got - n * p).abs();
            assert!(off < tolerance(n, p), "ber {ber} len {len}: {got} of {}", n * p);
        }
    }
}

#[test]
fn independent_loss_is_what_was_asked_for() {
    for p in [0.001, 0.01, 0.5] {
        let config = ChannelConfig { loss: Ratio::from_f64(p), ..ChannelConfig::default() };
        let got = count(&config, 50, 4_000, 100);
        assert!((got - 200_000.0 * p).abs() < tolerance(200_000.0, p), "{p}: {got}");
    }
}

#[test]
fn most_single_seeds_fall_inside_the_95_percent_interval() {
    let config = ChannelConfig { loss: Ratio::from_f64(0.02), ..ChannelConfig::default() };
    let (n, p) = (5_000.0, 0.02f64);
    let inside = |seed: &u64| {
        let got = losses(&config, *seed, 5_000, 100).into_iter().filter(|l| *l).count() as f64;
        (got - n * p).abs() <= 1.96 * (n * p * (1.0 - p)).sqrt()
    };
    let share = (0..200).filter(inside).count();
    assert!((178..=199).contains(&share), "{share} of 200");
}

#[test]
fn bursts_have_the_length_and_the_share_that_the_parameters_say() {
    let process = GilbertElliott {
        p: Ratio::from_f64(0.01),
        r: Ratio::from_f64(0.2),
        h: Ratio::ZERO,
        k: Ratio::ONE,
    };
    let config = ChannelConfig { burst: Some(process), ..ChannelConfig::default() };
    let (mut lost, mut bursts) = (0.0, 0.0);
    for seed in 0..40 {
        let pattern = losses(&config, seed, 20_000, 1_500);
        lost += pattern.iter().filter(|l| **l).count() as f64;
        bursts += pattern.windows(2).filter(|w| !w[0] && w[1]).count() as f64;
    }
    let share = lost / 800_000.0;
    assert!((share - 0.01 / 0.21).abs() < 0.002, "share {share}");
    assert!((lost / bursts - 5.0).abs() < 0.15, "mean burst {}", lost / bursts);
}

#[test]
fn the_bad_state_may_let_some_through_and_the_good_one_lose_some() {
    let process = GilbertElliott {
        p: Ratio::from_f64(0.05),
        r: Ratio::from_f64(0.1),
        h: Ratio::from_f64(0.4),
        k: Ratio::from_f64(0.99),
    };
    let config = ChannelConfig { burst: Some(process), ..ChannelConfig::default() };
    let share = count(&config, 40, 20_000, 1_500) / 800_000.0;
    let expected = (0.05 * 0.6 + 0.1 * 0.01) / 0.15;
    assert!((share - expected).abs() < 0.005, "{share} instead of {expected}");
}
