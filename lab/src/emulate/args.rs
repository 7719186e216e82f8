//! From the command line and a file to two channels and two ports.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use channel::{
    ChannelConfig, GilbertElliott, Outage, OutageMode, Policer, QueueLimit, Schedule, parse_ratio,
};
use miette::{IntoDiagnostic as _, WrapErr as _, miette};
use os::port::Port;
use serde::Deserialize;
use units::{BitRate, ByteCount, Duration, Ratio};

/// Where a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// An interface of this namespace.
    Interface(String),
    /// A new interface in another namespace.
    Namespace {
        /// A name as `ip netns` knows it, or a path such as `/proc/17/ns/net`.
        namespace: String,
        /// The name of the interface to make.
        interface: String,
    },
}

/// What the interface in a namespace is called unless the user says so.
const TAP_NAME: &str = "sat0";

impl FromStr for PortSpec {
    type Err = String;

    /// `eth1`, `ns:ship`, `ns:ship:sat0` or `ns:/proc/17/ns/net:sat0`.
    fn from_str(s: &str) -> Result<PortSpec, String> {
        let Some(rest) = s.strip_prefix("ns:") else {
            let port = PortSpec::Interface(s.to_owned());
            return if s.is_empty() { Err("a port needs a name".into()) } else { Ok(port) };
        };
        let (namespace, interface) = rest.split_once(':').unwrap_or((rest, TAP_NAME));
        if namespace.is_empty() || interface.is_empty() {
            return Err(format!("\"{s}\" is not a port such as \"eth1\" or \"ns:ship:sat0\""));
        }
        Ok(PortSpec::Namespace { namespace: namespace.into(), interface: interface.into() })
    }
}

impl PortSpec {
    /// Opens the port; `mtu` is for interfaces that are made.
    pub fn open(&self, mtu: usize) -> miette::Result<Port> {
        match self {
            PortSpec::Interface(name) => Port::interface(name),
            PortSpec::Namespace { namespace, interface } => {
                let path = match namespace.contains('/') {
                    true => PathBuf::from(namespace),
                    false => Path::new("/run/netns").join(namespace),
                };
                let netns = File::open(&path)
                    .map_err(|e| miette!("cannot open the namespace {}: {e}", path.display()))?;
                Port::tap(Some(netns.as_fd()), interface, mtu)
            }
        }
        .map_err(|e| miette!("{e}"))
    }
}

/// Two channels as a file writes them: `[both]` for what they share, `[up]` and
/// `[down]` for the rest and the exceptions.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFile {
    #[serde(default)]
    both: toml::Table,
    #[serde(default)]
    up: toml::Table,
    #[serde(default)]
    down: toml::Table,
}

/// Reads a link from a TOML file, or a JSON file by its ending: left to right and right
/// to left.
pub fn read_link(path: &Path) -> miette::Result<[ChannelConfig; 2]> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|e| miette!("cannot read the link file {name}: {e}"))?;
    let json = path.extension().is_some_and(|e| e == "json");
    parse_link(&text, json).wrap_err_with(|| format!("the link file {name} is wrong"))
}

fn parse_link(text: &str, json: bool) -> miette::Result<[ChannelConfig; 2]> {
    let file: LinkFile = match json {
        true => serde_json::from_str(text).into_diagnostic()?,
        false => toml::from_str(text).into_diagnostic()?,
    };
    let LinkFile { both, up, down } = file;
    let one = |name: &str, own: toml::Table| -> miette::Result<ChannelConfig> {
        let mut all = both.clone();
        all.extend(own);
        all.try_into::<ChannelConfig>().into_diagnostic().wrap_err_with(|| format!("in [{name}]"))
    };
    Ok([one("up", up)?, one("down", down)?])
}

fn parse_burst(s: &str) -> Result<GilbertElliott, String> {
    let values = s.split(',').map(parse_ratio).collect::<Result<Vec<Ratio>, String>>()?;
    match values[..] {
        [p, r] => Ok(GilbertElliott { p, r, h: Ratio::ZERO, k: Ratio::ONE }),
        [p, r, h] => Ok(GilbertElliott { p, r, h, k: Ratio::ONE }),
        [p, r, h, k] => Ok(GilbertElliott { p, r, h, k }),
        _ => Err(format!("\"{s}\" is not P,R[,H[,K]]")),
    }
}

fn parse_policer(s: &str) -> Result<Policer, String> {
    let (rate, burst) = s
        .split_once(',')
        .ok_or_else(|| format!("\"{s}\" is not RATE,BURST such as \"2Mbit,1MB\""))?;
    let rate = rate.parse::<BitRate>().map_err(|e| e.to_string())?;
    let burst = burst.parse::<ByteCount>().map_err(|e| e.to_string())?;
    Ok(Policer { rate, burst })
}

fn parse_outage_mode(s: &str) -> Result<OutageMode, String> {
    match s {
        "lose" => Ok(OutageMode::Lose),
        "hold" => Ok(OutageMode::Hold),
        _ => Err(format!("\"{s}\" is neither \"lose\" nor \"hold\"")),
    }
}

/// The flags of a channel: for both directions, and again with a prefix for one.
macro_rules! channel_flags {
    ($name:ident, $prefix:literal, $heading:literal, $hide:literal) => {
        #[derive(clap::Args, Clone, Debug, Default)]
        #[command(next_help_heading = $heading)]
        pub(super) struct $name {
            /// Bits per second of IP packets, such as 20Mbit [default: unlimited]
            #[arg(long = concat!($prefix, "rate"), id = concat!($prefix, "rate"),
                  value_name = "RATE", hide_short_help = $hide)]
            rate: Option<BitRate>,
            /// The rate by time: "0s 40Mbit, 15s to 8Mbit, repeat 60s", "40Mbit-90Mbit every 15s"
            #[arg(long = concat!($prefix, "rate-schedule"), id = concat!($prefix, "rate-schedule"),
                  value_name = "SCHEDULE", hide_short_help = $hide)]
            rate_schedule: Option<Schedule<BitRate>>,
            /// One-way delay, such as 270ms
            #[arg(long = concat!($prefix, "delay"), id = concat!($prefix, "delay"),
                  value_name = "TIME", hide_short_help = $hide)]
            delay: Option<Duration>,
            /// The delay by time, written alike: "25ms-60ms every 50ms"; nobody overtakes
            #[arg(long = concat!($prefix, "delay-schedule"), id = concat!($prefix, "delay-schedule"),
                  value_name = "SCHEDULE", hide_short_help = $hide)]
            delay_schedule: Option<Schedule<Duration>>,
            /// Drop at once what exceeds a token bucket, such as 2Mbit,1MB
            #[arg(long = concat!($prefix, "policer"), id = concat!($prefix, "policer"),
                  value_name = "RATE,BURST", value_parser = parse_policer,
                  hide_short_help = $hide)]
            policer: Option<Policer>,
            /// What may wait before the line: bytes (64kB) or a time of the rate (500ms)
            #[arg(long = concat!($prefix, "queue"), id = concat!($prefix, "queue"),
                  value_name = "LIMIT", hide_short_help = $hide)]
            queue: Option<QueueLimit>,
            /// Bit-error ratio, such as 1e-6
            #[arg(long = concat!($prefix, "ber"), id = concat!($prefix, "ber"),
                  value_name = "RATIO", value_parser = parse_ratio, hide_short_help = $hide)]
            ber: Option<Ratio>,
            /// Gilbert-Elliott losses: good to bad, bad to good, survival in bad and in good
            #[arg(long = concat!($prefix, "burst"), id = concat!($prefix, "burst"),
                  value_name = "P,R[,H[,K]]", value_parser = parse_burst,
                  hide_short_help = $hide)]
            burst: Option<GilbertElliott>,
            /// Independent loss, such as 0.1%
            #[arg(long = concat!($prefix, "loss"), id = concat!($prefix, "loss"),
                  value_name = "RATIO", value_parser = parse_ratio, hide_short_help = $hide)]
            loss: Option<Ratio>,
            /// Longer packets vanish behind the line; the interfaces keep their own MTU
            #[arg(long = concat!($prefix, "path-mtu"), id = concat!($prefix, "path-mtu"),
                  value_name = "BYTES", hide_short_help = $hide)]
            path_mtu: Option<u16>,
            /// A time without a link, counted from the start, such as 10s-12s; may be repeated
            #[arg(long = concat!($prefix, "outage"), id = concat!($prefix, "outage"),
                  value_name = "FROM-TO", hide_short_help = $hide)]
            outages: Vec<Outage>,
            /// Whether an outage loses packets or holds them back: lose, hold
            #[arg(long = concat!($prefix, "outage-mode"), id = concat!($prefix, "outage-mode"),
                  value_name = "MODE", value_parser = parse_outage_mode,
                  hide_short_help = $hide)]
            outage_mode: Option<OutageMode>,
            /// Part of the packets that others overtake
            #[arg(long = concat!($prefix, "reorder"), id = concat!($prefix, "reorder"),
                  value_name = "RATIO", value_parser = parse_ratio, hide_short_help = $hide)]
            reorder: Option<Ratio>,
            /// How much later those arrive
            #[arg(long = concat!($prefix, "reorder-delay"), id = concat!($prefix, "reorder-delay"),
                  value_name = "TIME", hide_short_help = $hide)]
            reorder_delay: Option<Duration>,
            /// Part of the packets that arrive twice
            #[arg(long = concat!($prefix, "duplicate"), id = concat!($prefix, "duplicate"),
                  value_name = "RATIO", value_parser = parse_ratio, hide_short_help = $hide)]
            duplicate: Option<Ratio>,
            /// How much later the second copy arrives
            #[arg(long = concat!($prefix, "duplicate-delay"),
                  id = concat!($prefix, "duplicate-delay"),
                  value_name = "TIME", hide_short_help = $hide)]
            duplicate_delay: Option<Duration>,
            /// Part of the packets that arrive with one bit flipped
            #[arg(long = concat!($prefix, "corrupt"), id = concat!($prefix, "corrupt"),
                  value_name = "RATIO", value_parser = parse_ratio, hide_short_help = $hide)]
            corrupt: Option<Ratio>,
        }

        impl $name {
            /// Puts what was given in the place of what the configuration says.
            pub(super) fn apply(self, config: &mut ChannelConfig) {
                fn put<T>(given: Option<T>, slot: &mut T) {
                    if let Some(value) = given {
                        *slot = value;
                    }
                }
                // A fixed value ends the schedule that a file or "both directions" gave.
                config.rate_schedule = match self.rate {
                    Some(_) => self.rate_schedule,
                    None => self.rate_schedule.or(config.rate_schedule.take()),
                };
                config.delay_schedule = match self.delay {
                    Some(_) => self.delay_schedule,
                    None => self.delay_schedule.or(config.delay_schedule.take()),
                };
                config.policer = self.policer.or(config.policer);
                config.rate = self.rate.or(config.rate);
                config.mtu = self.path_mtu.or(config.mtu);
                config.burst = self.burst.or(config.burst);
                put(self.delay, &mut config.delay);
                put(self.queue, &mut config.queue);
                put(self.ber, &mut config.ber);
                put(self.loss, &mut config.loss);
                put(self.outage_mode, &mut config.outage_mode);
                put(self.reorder, &mut config.reorder);
                put(self.reorder_delay, &mut config.reorder_delay);
                put(self.duplicate, &mut config.duplicate);
                put(self.duplicate_delay, &mut config.duplicate_delay);
                put(self.corrupt, &mut config.corrupt);
                if !self.outages.is_empty() {
                    config.outages = self.outages;
                }
            }
        }
    };
}

channel_flags!(BothFlags, "", "Both directions", false);
channel_flags!(UpFlags, "up-", "Left to right only", true);
channel_flags!(DownFlags, "down-", "Right to left only", true);

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        both: BothFlags,
        #[command(flatten)]
        up: UpFlags,
        #[command(flatten)]
        down: DownFlags,
    }

    #[test]
    fn the_pages_link_files_are_links() {
        let page = include_str!("../../../docs/emulator.md");
        let blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let links: Vec<_> = blocks.map(|text| parse_link(text, false).expect(text)).collect();
        assert_eq!(links.len(), 2);
        assert!(links.iter().all(|[up, down]| up != down));
    }

    #[test]
    fn a_flag_for_one_direction_overrides_the_one_for_both() {
        let line = Line::parse_from(
            "x --rate 20Mbit --delay 270ms --up-rate 2Mbit --down-ber 1e-7 --queue 64kB \
             --up-outage 1s-2s --up-outage 3s-4s --burst 0.01,25% --down-path-mtu 1280"
                .split_whitespace(),
        );
        let mut up = ChannelConfig::default();
        let mut down = ChannelConfig::default();
        line.both.clone().apply(&mut up);
        line.both.apply(&mut down);
        line.up.apply(&mut up);
        line.down.apply(&mut down);
        assert_eq!(up.rate, Some(BitRate::from_mbps(2)));
        assert_eq!(down.rate, Some(BitRate::from_mbps(20)));
        assert_eq!([up.ber, down.ber], [Ratio::ZERO, Ratio::from_f64(1e-7)]);
        assert_eq!(up.queue, QueueLimit::Bytes(ByteCount(64_000)));
        assert_eq!([up.outages.len(), down.outages.len()], [2, 0]);
        assert_eq!(down.burst.unwrap().r, Ratio::from_f64(0.25));
        assert_eq!([up.mtu, down.mtu], [None, Some(1280)]);
    }

    #[test]
    fn schedules_and_policers_are_read_and_a_fixed_value_ends_a_schedule() {
        let line = Line::parse_from([
            "x",
            "--rate-schedule=40Mbit-140Mbit every 15s",
            "--delay-schedule=0s 25ms, 15s to 60ms, repeat 30s",
            "--up-rate=2Mbit",
            "--down-policer=2Mbit,1MB",
        ]);
        let [mut up, mut down] = [ChannelConfig::default(), ChannelConfig::default()];
        line.both.clone().apply(&mut up);
        line.both.apply(&mut down);
        line.up.apply(&mut up);
        line.down.apply(&mut down);
        assert_eq!((up.rate, up.rate_schedule), (Some(BitRate::from_mbps(2)), None));
        assert_eq!(down.rate_schedule, "40Mbit-140Mbit every 15s".parse().ok());
        assert!(up.delay_schedule.is_some() && up.delay_schedule == down.delay_schedule);
        let policer = Policer { rate: BitRate::from_mbps(2), burst: ByteCount(1_000_000) };
        assert_eq!([up.policer, down.policer], [None, Some(policer)]);
    }

    #[test]
    fn wrong_flags_are_refused() {
        for wrong in [
            "x --rate 20",
            "x --delay 270",
            "x --ber 2",
            "x --burst 0.1",
            "x --outage 5s",
            "x --policer 2Mbit",
            "x --rate-schedule 2Mbit",
            "x --outage-mode x",
        ] {
            assert!(Line::try_parse_from(wrong.split_whitespace()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_link_file_shares_what_both_directions_have() {
        let text = "[both]\ndelay = \"270ms\"\nrate = \"20Mbit\"\n[up]\nrate = \"2Mbit\"\n";
        let [up, down] = parse_link(text, false).unwrap();
        assert_eq!(up.delay, down.delay);
        assert_eq!(up.rate, Some(BitRate::from_mbps(2)));
        assert_eq!(down.rate, Some(BitRate::from_mbps(20)));
        let json = r#"{ "both": { "delay": "270ms" }, "up": { "ber": 1e-6 } }"#;
        assert_eq!(parse_link(json, true).unwrap()[0].ber, Ratio::from_f64(1e-6));
    }

    #[test]
    fn a_wrong_link_file_says_what_is_wrong() {
        for (wrong, word) in [
            ("[sideways]\n", "sideways"),
            ("[up]\nspeed = \"1Mbit\"\n", "speed"),
            ("[down]\nrate = \"1Mb\"\n", "1Mb"),
            ("[up]\nrate_schedule = \"15s 40Mbit\"\n", "begin at 0s"),
        ] {
            let report = parse_link(wrong, false).unwrap_err();
            let all: String = report.chain().map(|e| e.to_string()).collect();
            assert!(all.contains(word), "{wrong}: {all}");
        }
    }

    #[test]
    fn ports_are_interfaces_or_namespaces() {
        let namespace = |namespace: &str, interface: &str| PortSpec::Namespace {
            namespace: namespace.into(),
            interface: interface.into(),
        };
        assert_eq!("eth1".parse(), Ok(PortSpec::Interface("eth1".into())));
        assert_eq!("ns:ship".parse(), Ok(namespace("ship", "sat0")));
        assert_eq!("ns:/proc/1/ns/net:up".parse(), Ok(namespace("/proc/1/ns/net", "up")));
        for wrong in ["", "ns:", "ns:ship:", "ns::sat0"] {
            assert!(wrong.parse::<PortSpec>().is_err(), "{wrong}");
        }
    }
}
