//! What a self-test of a link found, and what of it is wrong.

use serde::{Deserialize, Serialize};

/// How far a self-test is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TestProgress {
    /// What is measured now: `idle`, `send` or `receive`; `line`: nothing yet, the line is raised.
    pub phase: String,
    /// Since this began.
    pub elapsed_ms: u64,
    /// What the link carries now that way, all traffic; 0 while idle.
    pub carried_bps: u64,
    /// The most that the whole test will send and receive.
    pub most_bytes_sent: u64,
    /// See `most_bytes_sent`.
    pub most_bytes_received: u64,
    /// What the line costs that is raised, in words, if the file says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prices: Option<String>,
}

/// What a self-test found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkTest {
    /// The peer's name.
    pub peer: String,
    /// For how long each direction was measured.
    pub seconds: u64,
    /// The round trip before the test's own load.
    pub rtt_idle: Spread,
    /// This node to the peer.
    pub send: Option<TestedDirection>,
    /// The peer to this node.
    pub receive: Option<TestedDirection>,
    /// Bytes of all link packets of that time, other traffic's too.
    pub link_bytes_sent: u64,
    /// See `link_bytes_sent`.
    pub link_bytes_received: u64,
    /// What is wrong, in sentences.
    pub problems: Vec<String>,
}

/// Many measurements of one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// The median.
    pub median_us: u64,
    /// What 95 % stayed below.
    pub p95_us: u64,
    /// How many there were; 0: nothing was measured.
    pub samples: u64,
}

impl Spread {
    /// Of these.
    pub fn of(mut samples: Vec<u64>) -> Spread {
        samples.sort_unstable();
        let at = |percent: usize| samples.get((samples.len() * percent / 100).min(last(&samples)));
        Spread {
            median_us: at(50).copied().unwrap_or(0),
            p95_us: at(95).copied().unwrap_or(0),
            samples: samples.len() as u64,
        }
    }
}

fn last(samples: &[u64]) -> usize {
    samples.len().saturating_sub(1)
}

/// One direction under the test's load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TestedDirection {
    /// The rate of the configuration.
    pub configured_bps: u64,
    /// What the class of the test may have of it at most, where this node's file says it. What the
    /// peer's says of what it sends is not known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_bps: Option<u64>,
    /// The test's own bytes that arrived.
    pub goodput_bps: u64,
    /// `goodput_bps` as a part of `configured_bps`.
    pub share: f64,
    /// All link packets that arrived: the test's and others', headers and repair.
    pub carried_bps: u64,
    /// The round trip meanwhile.
    pub rtt: Spread,
    /// How long packets queued on the way; `samples` is not told of the peer's.
    pub queue: Spread,
    /// Link packets lost per million, whether repair brought them back or not.
    pub loss_ppm: u64,
    /// Link packets for repair alone, per million.
    pub repair_ppm: u64,
}

/// A direction is as the file says if it carries so much of it, per cent.
const ENOUGH: u64 = 90;
/// Loss and queueing that a user would notice.
const MUCH_LOSS_PPM: u64 = 10_000;
const LONG_QUEUE_US: u64 = 100_000;

impl LinkTest {
    /// What is wrong, in sentences.
    pub fn find_problems(&self) -> Vec<String> {
        let ways = [("send", &self.send), ("receive", &self.receive)];
        let found = ways.into_iter().filter_map(|(key, way)| Some((key, way.as_ref()?)));
        found.flat_map(|(key, way)| way.problems(key)).collect()
    }
}

impl TestedDirection {
    /// `key` names its rate in the file.
    fn problems(&self, key: &str) -> Vec<String> {
        let mut found = Vec::new();
        let cap = self.cap_bps.filter(|cap| *cap < self.configured_bps);
        let promised = cap.unwrap_or(self.configured_bps);
        let enough = promised / 100 * ENOUGH;
        let said = mbits(promised);
        let not_carried = promised.saturating_sub(self.carried_bps);
        let others = self.carried_bps.saturating_sub(self.goodput_bps);
        if self.goodput_bps >= enough {
            // As the file says.
        } else if not_carried > others {
            let carried = mbits(self.carried_bps);
            let of = match (cap, key) {
                (Some(_), _) => format!("that the `cap` of bulk leaves of {key}"),
                (None, "receive") => format!(
                    "that {key} says; a `cap` of bulk in the peer's file, if it has one, may be why"
                ),
                (None, _) => format!("that {key} says"),
            };
            found.push(format!("the link carries {carried} of the {said} Mbit/s {of}"));
        } else {
            found.push(format!(
                "{key}: the test's own bytes are {} of the {} Mbit/s that the link carries; the \
                 others are other traffic, headers and repair",
                mbits(self.goodput_bps),
                mbits(self.carried_bps)
            ));
        }
        if self.loss_ppm >= MUCH_LOSS_PPM {
            found.push(format!("{key}: {} % of the packets are lost", percent(self.loss_ppm)));
        }
        if self.queue.p95_us >= LONG_QUEUE_US {
            found.push(format!(
                "{key}: packets queue on the way, {} ms at the 95th percentile: the rate in the \
                 file may be more than the link has",
                self.queue.p95_us / 1000
            ));
        }
        found
    }
}

/// Mbit/s with the digits that help: `19.4`, `0.128`.
pub fn mbits(bps: u64) -> String {
    let digits = match bps {
        0..1_000_000 => 3,
        1_000_000..100_000_000 => 1,
        _ => 0,
    };
    let text = format!("{:.digits$}", bps as f64 / 1e6);
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

/// Per cent with two decimals.
pub fn percent(ppm: u64) -> String {
    format!("{}.{:02}", ppm / 10_000, ppm / 100 % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> TestedDirection {
        TestedDirection {
            configured_bps: 20_000_000,
            goodput_bps: 19_000_000,
            carried_bps: 19_800_000,
            share: 0.95,
            loss_ppm: 1_000,
            ..TestedDirection::default()
        }
    }

    #[test]
    fn a_link_that_is_as_its_file_says_has_no_problems() {
        let test = LinkTest { send: Some(good()), receive: Some(good()), ..LinkTest::default() };
        assert_eq!(test.find_problems(), [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_said_in_words_with_the_key_that_promised_it() {
        let slow = TestedDirection { goodput_bps: 11_500_000, carried_bps: 12_000_000, ..good() };
        let shared = TestedDirection { goodput_bps: 4_000_000, ..good() };
        let queue = Spread { median_us: 90_000, p95_us: 240_000, samples: 9 };
        let lossy = TestedDirection { loss_ppm: 31_400, queue, ..good() };
        let of = |send, receive| LinkTest { send, receive, ..LinkTest::default() }.find_problems();
        assert_eq!(
            of(Some(slow.clone()), None),
            ["the link carries 12 of the 20 Mbit/s that send says"]
        );
        let [received] = &of(None, Some(slow.clone()))[..] else { panic!("one problem") };
        assert!(received.contains("a `cap` of bulk in the peer's file"), "{received}");
        let [shared] = &of(None, Some(shared))[..] else { panic!("one problem") };
        assert!(shared.starts_with("receive: the test's own bytes are 4 of the 19.8"), "{shared}");
        let [loss, queue] = &of(Some(lossy), None)[..] else { panic!("two problems") };
        assert_eq!(loss, "send: 3.14 % of the packets are lost");
        assert!(queue.contains("240 ms at the 95th percentile"), "{queue}");
    }

    #[test]
    fn what_a_cap_of_this_file_leaves_is_all_that_is_asked_for() {
        let of = |goodput_bps| {
            let (cap_bps, carried_bps) = (Some(500_000), goodput_bps + 26_000);
            let send = TestedDirection { cap_bps, goodput_bps, carried_bps, ..good() };
            LinkTest { send: Some(send), ..LinkTest::default() }.find_problems()
        };
        assert_eq!(of(490_000), [""; 0]);
        let why = "the link carries 0.326 of the 0.5 Mbit/s that the `cap` of bulk leaves of send";
        assert_eq!(of(300_000), [why]);
    }

    #[test]
    fn spreads_are_of_any_number_of_samples() {
        assert_eq!(Spread::of(vec![]), Spread::default());
        let spread = |median_us, p95_us, samples| Spread { median_us, p95_us, samples };
        assert_eq!(Spread::of(vec![7]), spread(7, 7, 1));
        assert_eq!(Spread::of((0..100).rev().collect()), spread(50, 95, 100));
    }

    #[test]
    fn rates_have_the_digits_that_help() {
        let rates = [2_400, 128_000, 1_540_000, 20_000_000, 469_400_000].map(mbits);
        assert_eq!(rates, ["0.002", "0.128", "1.5", "20", "469"]);
    }
}
