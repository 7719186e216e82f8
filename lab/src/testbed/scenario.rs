//! A published experiment as a file: set-up, ways to run it, work to do, and what
//! the source printed. The files lie in `lab/scenarios/` and are part of the program.

use serde::Deserialize;
use units::Ratio;

use super::figure::{Bound, Figure, Published};
use super::sweep;
use super::way::{HostTcp, Legs, LinkSetup, MOST_BESIDE, Told, Way, Work};

/// The scenario files that the program carries, by name.
pub const BUILT_IN: [(&str, &str); 15] = [
    ("umd-ftp", include_str!("../../scenarios/umd-ftp.toml")),
    ("wise-web", include_str!("../../scenarios/wise-web.toml")),
    ("itu-single-window", include_str!("../../scenarios/itu-single-window.toml")),
    ("itu-test-a", include_str!("../../scenarios/itu-test-a.toml")),
    ("itu-test-b", include_str!("../../scenarios/itu-test-b.toml")),
    ("itu-test-1", include_str!("../../scenarios/itu-test-1.toml")),
    ("itu-test-2", include_str!("../../scenarios/itu-test-2.toml")),
    ("itu-test-3", include_str!("../../scenarios/itu-test-3.toml")),
    ("itu-cache-spoof", include_str!("../../scenarios/itu-cache-spoof.toml")),
    ("itu-oc3", include_str!("../../scenarios/itu-oc3.toml")),
    ("itu-ftp", include_str!("../../scenarios/itu-ftp.toml")),
    ("itu-http", include_str!("../../scenarios/itu-http.toml")),
    ("cg-inmarsat-b", include_str!("../../scenarios/cg-inmarsat-b.toml")),
    ("leo", include_str!("../../scenarios/leo.toml")),
    ("ka-fade", include_str!("../../scenarios/ka-fade.toml")),
];

/// The scenarios of `bentpipe-lab demo`.
pub const DEMO: [(&str, &str); 2] = [
    ("demo-t1", include_str!("../../scenarios/demo-t1.toml")),
    ("demo-geo", include_str!("../../scenarios/demo-geo.toml")),
];

/// One experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name on the command line.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// Who published it, where and when.
    pub source: String,
    /// What the experiment was and how it is repeated here.
    pub about: String,
    /// What differs from the source and why; printed with the results.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The satellite link.
    pub link: LinkSetup,
    /// What the gateways are told otherwise than the link is.
    #[serde(default)]
    pub told: Told,
    /// A ping from client to server runs beside the work.
    #[serde(default)]
    pub ping: bool,
    /// The terrestrial legs on either side of it.
    #[serde(default)]
    pub legs: Legs,
    /// TCP on the end hosts, unless a way says otherwise.
    #[serde(default)]
    pub hosts: HostTcp,
    /// Further nodes with gateways, each joined to every other; at most two.
    #[serde(default)]
    pub mesh: usize,
    /// Files are text, which can be compressed; else they are noise, which cannot.
    #[serde(default)]
    pub text: bool,
    /// What is carried.
    pub work: Work,
    /// What is carried before it, while the link is idle.
    pub before: Option<Work>,
    /// How often each way is run, with seeds 1, 2, …; figures are medians.
    #[serde(default = "once")]
    pub seeds: u64,
    /// The ways to run it.
    #[serde(rename = "way")]
    pub ways: Vec<Way>,
    /// What the source printed.
    #[serde(rename = "published", default)]
    pub published: Vec<Published>,
    /// What `--check` demands.
    #[serde(rename = "bound", default)]
    pub bounds: Vec<Bound>,
}

fn once() -> u64 {
    1
}

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Not TOML, unknown keys, wrong units.
    #[error("the scenario {name} cannot be read: {why}")]
    Syntax {
        /// Which scenario.
        name: String,
        /// Line, column and reason.
        why: String,
    },
    /// It names a way that it does not have, or has none.
    #[error("the scenario {name} is not consistent: {why}")]
    Inconsistent {
        /// Which scenario.
        name: String,
        /// What does not fit.
        why: String,
    },
    /// No such scenario.
    #[error(
        "there is no scenario \"{0}\"; `bentpipe-lab list` names them, and a file ends in .toml"
    )]
    Unknown(String),
    /// The file is not there, or is no text.
    #[error("the scenario {name} cannot be read: {why}")]
    File {
        /// Which file.
        name: String,
        /// What the kernel says.
        why: std::io::Error,
    },
}

impl Scenario {
    /// Reads and checks a scenario file.
    pub fn parse(name: &str, text: &str) -> Result<Scenario, ScenarioError> {
        let syntax = |e: toml::de::Error| ScenarioError::Syntax {
            name: name.to_owned(),
            why: e.to_string().trim_end().to_owned(),
        };
        let mut scenario: Scenario = toml::from_str(text).map_err(syntax)?;
        let inconsistent = |why| ScenarioError::Inconsistent { name: name.into(), why };
        scenario.ways =
            sweep::expand(scenario.ways, &mut scenario.published).map_err(inconsistent)?;
        scenario.check().map_err(inconsistent)?;
        Ok(scenario)
    }

    /// The built-in scenario of that name.
    pub fn built_in(name: &str) -> Result<Scenario, ScenarioError> {
        let found = BUILT_IN.iter().find(|(n, _)| *n == name);
        let (name, text) = found.ok_or_else(|| ScenarioError::Unknown(name.to_owned()))?;
        Scenario::parse(name, text)
    }

    /// The built-in scenario of that name, or that of a file, whose name ends in `.toml`.
    pub fn named(name: &str) -> Result<Scenario, ScenarioError> {
        if !name.ends_with(".toml") {
            return Scenario::built_in(name);
        }
        let text = std::fs::read_to_string(name)
            .map_err(|why| ScenarioError::File { name: name.to_owned(), why })?;
        let scenario = Scenario::parse(name, &text)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        // Results lie in files of that name.
        if scenario.name.is_empty() || !scenario.name.chars().all(is_plain) {
            let why = format!(
                "name = {:?} is not made of letters, digits, \"-\" and \"_\" alone",
                scenario.name
            );
            return Err(ScenarioError::Inconsistent { name: name.to_owned(), why });
        }
        if BUILT_IN.iter().any(|(built_in, _)| *built_in == scenario.name) {
            let why = format!("name = {:?} is that of a published experiment", scenario.name);
            return Err(ScenarioError::Inconsistent { name: name.to_owned(), why });
        }
        Ok(scenario)
    }

    /// The way of that id.
    pub fn way(&self, id: &str) -> Option<&Way> {
        self.ways.iter().find(|w| w.id == id)
    }

    /// The link as this way uses it.
    pub fn link_of(&self, way: &Way) -> LinkSetup {
        let mut link = self.link.clone();
        link.up.rate = way.up_rate.or(way.rate).or(link.up.rate);
        link.down.rate = way.rate.or(link.down.rate);
        link.down.queue = way.queue.unwrap_or(link.down.queue);
        link.down.outages.extend(&way.outages);
        for direction in [&mut link.down, &mut link.up] {
            direction.delay = way.delay.unwrap_or(direction.delay);
            direction.ber = way.ber.unwrap_or(direction.ber);
            direction.loss = way.loss.unwrap_or(direction.loss);
            direction.burst = way.burst.or(direction.burst);
            if way.clean {
                (direction.ber, direction.loss, direction.burst) = (Ratio::ZERO, Ratio::ZERO, None);
            }
        }
        link
    }

    /// Every pair of a way has its nodes, and no node is in two pairs in the same part.
    fn check_pairs(&self, way: &Way) -> Result<(), String> {
        for (i, pair) in way.pairs.iter().enumerate() {
            if pair.sender.max(pair.receiver) >= 2 + self.mesh {
                return Err(format!("\"{}\" has a pair with a node that is not there", way.id));
            }
            let mut earlier = way.pairs[..i].iter();
            if earlier.any(|p| p.sender == pair.sender || p.receiver == pair.receiver) {
                return Err(format!(
                    "\"{}\" has two pairs with the same sender or receiver",
                    way.id
                ));
            }
        }
        if way.alone.is_some() && (!way.gateways || way.unsplit || way.pairs.len() > 1) {
            let id = &way.id;
            return Err(format!("\"{id}\" is alone: gateways = true, and no unsplit or pairs"));
        }
        if way.web && (!way.gateways || way.unsplit || way.alone.is_some()) {
            return Err(format!("\"{}\" has the web's service and no pair of gateways", way.id));
        }
        if way.pairs.len() > 1 && !way.gateways {
            return Err(format!("\"{}\" has pairs and no gateways, which know the ways", way.id));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.ways.is_empty() {
            return Err("it has no [[way]]".into());
        }
        if self.mesh > MOST_BESIDE {
            return Err(format!("mesh = {} has more nodes than {MOST_BESIDE}", self.mesh));
        }
        if self.seeds == 0 {
            return Err("seeds = 0 would run nothing".into());
        }
        for (direction, config) in [("down", &self.link.down), ("up", &self.link.up)] {
            config.validate().map_err(|e| format!("link.{direction}: {e}"))?;
        }
        for (i, way) in self.ways.iter().enumerate() {
            if self.ways[..i].iter().any(|w| w.id == way.id) {
                return Err(format!("two ways are called \"{}\"", way.id));
            }
        }
        for way in &self.ways {
            let valid = self.link_of(way).down.validate();
            valid.map_err(|e| format!("the link of \"{}\": {e}", way.id))?;
            self.check_pairs(way)?;
        }
        for Bound { way, figure, over, least, most } in &self.bounds {
            if let Some(way) = over.iter().chain([way]).find(|id| self.way(id).is_none()) {
                return Err(format!("a bound names the way \"{way}\", which is not there"));
            }
            if least.or(*most).is_none() || *figure == Figure::Speedup {
                return Err(format!(
                    "a bound of \"{way}\" has neither `least` nor `most`, or is a speedup's"
                ));
            }
        }
        for p in &self.published {
            for id in p.over.iter().chain([&p.way]) {
                if self.way(id).is_none() {
                    return Err(format!(
                        "a published figure names the way \"{id}\", which is not there"
                    ));
                }
            }
            if (p.figure == Figure::Speedup) != p.over.is_some() {
                return Err("a speedup, and only a speedup, says `over` which way".into());
            }
            let (low, high) = p.range();
            if !(low.is_finite() && high.is_finite() && low <= high) {
                return Err(format!("published range {low}…{high} of \"{}\" is no range", p.way));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use channel::ChannelConfig;
    use units::{BitRate, ByteCount, Duration};

    use super::*;

    #[test]
    fn the_scenarios_of_the_demo_are_consistent() {
        for (name, text) in DEMO {
            let scenario = Scenario::parse(name, text).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((scenario.name.as_str(), scenario.ways.len()), (name, 4));
            assert!(scenario.before.is_some(), "{name} has no page");
        }
    }

    #[test]
    fn every_built_in_scenario_is_consistent_and_named_as_its_file() {
        for (name, _) in BUILT_IN {
            let scenario = Scenario::built_in(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(scenario.name, name);
            let own = scenario.source.starts_with("This project");
            assert!(own || !scenario.published.is_empty(), "{name} has no published figures");
            assert!(!scenario.bounds.is_empty(), "{name} has no bounds to check");
        }
    }

    const SMALL: &str = r#"
        name = "x"
        title = "t"
        source = "s"
        about = "a"
        link = { down = { rate = "1Mbit" }, up = { rate = "1Mbit" } }
        work = { kind = "file", bytes = "1MB" }
        [[way]]
        id = "plain"
        title = "Plain"
        delay = "10ms"
    "#;

    #[test]
    fn a_way_may_replace_the_delay_of_both_directions() {
        let s = Scenario::parse("x", SMALL).unwrap();
        let link = s.link_of(&s.ways[0]);
        assert_eq!(link.up.delay, Duration::from_millis(10));
        assert_eq!(link.down.rate, s.link.down.rate);
    }

    #[test]
    fn a_way_may_lose_packets_both_ways_and_be_dark_towards_the_client() {
        let text = format!("{SMALL}\nloss = \"10%\"\noutages = [\"1s-2s\", \"5s-6s\"]");
        let s = Scenario::parse("x", &text).unwrap_or_else(|e| panic!("{e}"));
        let link = s.link_of(&s.ways[0]);
        assert_eq!([link.down.loss, link.up.loss], [Ratio::from_f64(0.1); 2]);
        assert_eq!([link.down.outages.len(), link.up.outages.len()], [2, 0]);
        let text = format!("{SMALL}\noutages = [\"2s-1s\"]");
        assert!(Scenario::parse("x", &text).unwrap_err().to_string().contains("plain"));
    }

    #[test]
    fn a_sweep_is_a_way_for_each_value_and_so_is_what_was_published_of_it() {
        let sweep = |what: &str| {
            format!(
                "{SMALL}\n[[way]]\nid = \"line\"\ntitle = \"Line\"\n\
                 work = {{ kind = \"streams\", count = 1, time = \"9s\" }}\n\
                 sweep = {{ chart = \"Figure 7\", {what} }}\n\
                 [[published]]\nway = \"line\"\nfigure = \"share\"\nlow = 95\nwhere = \"p\"\n"
            )
        };
        let s = Scenario::parse("x", &sweep("over = \"rate\", values = [\"384kbit\", \"2Mbit\"]"));
        let s = s.unwrap_or_else(|e| panic!("{e}"));
        let ids: Vec<&str> = s.ways.iter().map(|w| w.id.as_str()).collect();
        assert_eq!(ids, ["plain", "line-384kbit", "line-2Mbit"]);
        assert_eq!(s.link_of(&s.ways[1]).up.rate, Some(BitRate::from_kbps(384)));
        assert_eq!(s.ways[2].point.as_ref().map(|p| p.x), Some(2000.0));
        assert_eq!(s.published.len(), 2);
        let s = Scenario::parse("x", &sweep("over = \"window\", values = [\"9MB\"]"));
        let s = s.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(s.ways[1].hosts.window, Some(ByteCount(9_000_000)));
        let s = Scenario::parse("x", &sweep("over = \"queue\", values = [\"300kB\"]"));
        let s = s.unwrap_or_else(|e| panic!("{e}"));
        let waits = |l: ChannelConfig| l.queue.bytes(l.rate);
        assert_eq!(waits(s.link_of(&s.ways[1]).down), ByteCount(300_000));
        let unshaped = Scenario::parse("x", &sweep("over = \"bucket\", values = [\"16kB\"]"));
        assert!(unshaped.unwrap_err().to_string().contains("shape"));
        let s = Scenario::parse("x", &sweep("over = \"connections\", values = [\"350\"]"));
        let work = s.unwrap_or_else(|e| panic!("{e}")).ways[1].work;
        assert!(matches!(work, Some(Work::Streams { count: 350, .. })), "{work:?}");
        let slip = Scenario::parse("x", &sweep("over = \"connections\", values = [\"9s\"]"));
        assert!(slip.unwrap_err().to_string().contains("is no number"));
    }

    #[test]
    fn slips_in_a_scenario_are_refused_with_a_reason() {
        let with = |more: &str| format!("{SMALL}\n{more}");
        let published =
            |more: &str| with(&format!("[[published]]\nlow = 3\nwhere = \"p\"\n{more}"));
        for (text, why) in [
            (with("gateway = true"), "unknown field"),
            (with("web = true"), "no pair of gateways"),
            (with("pairs = [\"a-a\"]"), "is not a pair"),
            (with("pairs = [\"c-a\"]"), "not there"),
            (with("pairs = [\"b-a\", \"b-a\"]"), "the same sender"),
            (with("[[way]]\nid = \"plain\"\ntitle = \"again\""), "two ways"),
            (published("way = \"other\"\nfigure = \"time\""), "not there"),
            (published("way = \"plain\"\nfigure = \"speedup\""), "over"),
            (published("way = \"plain\"\nfigure = \"time\"\nhigh = 2"), "no range"),
            (with("[[bound]]\nway = \"other\"\nfigure = \"time\"\nmost = 1"), "not there"),
            (
                with("[[bound]]\nway = \"plain\"\nover = \"o\"\nfigure = \"time\"\nmost = 1"),
                "not there",
            ),
            (with("[[bound]]\nway = \"plain\"\nfigure = \"time\""), "neither"),
            (SMALL.replace("1MB", "1000"), "size such as"),
        ] {
            let error = Scenario::parse("x", &text).unwrap_err().to_string();
            assert!(error.contains(why), "{error} does not say {why}");
        }
    }
}
