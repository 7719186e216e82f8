//! What the specification promises in numbers.

use super::ends::{Pair, limits, random};
use crate::dedup::Scope;

const LAN: Option<Scope> = Some(Scope::Lan);
const TEN_MB: usize = 10_000_000;

/// 1 % of the content, changed in ten places.
fn changed(content: &[u8], seed: u64) -> Vec<u8> {
    let mut content = content.to_vec();
    let piece = content.len() / 1000;
    for n in 0..10 {
        let at = n * content.len() / 10 + 333 * (n + 1);
        content[at..at + piece].copy_from_slice(&random(piece, seed + n as u64));
    }
    content
}

#[test]
fn a_second_transfer_costs_next_to_nothing_and_a_changed_one_little_more() {
    let content = random(TEN_MB, 1);
    for (piece, idle) in [(1448, true), (8 * 1024, true), (64 * 1024, true), (1448, false)] {
        let mut pair = Pair::new(limits());
        pair.exchange();
        let first = pair.send_over(LAN, &content, piece, idle);
        // Where the link has time between any two packets each of them has a head.
        let growth = if idle { TEN_MB / 500 } else { TEN_MB / 1000 };
        assert!(first <= TEN_MB + growth, "{first}");
        let (before, sent) = (pair.messages, first);
        assert!(before.1 <= TEN_MB / 1000, "what the receiver says of it: {before:?}");
        let second = pair.send_over(LAN, &content, piece, idle);
        let third = pair.send_over(LAN, &changed(&content, 77), piece, idle);
        println!(
            "read by {piece}, idle {idle}: first {first}, unchanged {second} ({:.3} %), changed {third} \
             ({:.3} %); messages there {}, back {}",
            second as f64 * 100.0 / first as f64,
            third as f64 * 100.0 / first as f64,
            pair.messages.0,
            pair.messages.1,
        );
        assert!(second * 1000 <= sent * 15, "unchanged: {second} of {first}");
        assert!(third * 100 <= sent * 4, "changed: {third} of {first}");
        assert_eq!(pair.far.dedup.receiver.asked(), 0);
    }
}

#[test]
fn insertions_and_deletions_cost_no_more_than_changes() {
    let content = random(TEN_MB, 2);
    let mut other = content.clone();
    for n in 0..10 {
        let at = n * 1_000_000 + 5000;
        if n % 2 == 0 {
            other.splice(at..at, random(10_000, 50 + n as u64));
        } else {
            other.drain(at..at + 10_000);
        }
    }
    let mut pair = Pair::new(limits());
    pair.exchange();
    let first = pair.send(LAN, &content, 64 * 1024);
    let second = pair.send(LAN, &other, 64 * 1024);
    assert!(second * 100 <= first * 4, "{second} of {first}");
}
