//! The link profiles that come with the program: `profiles/*.toml`.

use std::path::Path;

use units::{BitRate, Duration, Ratio};

use super::link::{self, LinkPart};
use super::problem::{ConfigError, Problem, Problems};
use super::reader::Section;

/// A satellite link as its operator describes it, seen from above: forward is from
/// the hub to the terminal.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// As the configuration calls it.
    pub name: &'static str,
    /// One line for people.
    pub description: String,
    /// Hub to terminal, counted on IP packets.
    pub forward: BitRate,
    /// Terminal to hub.
    pub back: BitRate,
    /// One way.
    pub delay: Duration,
    /// Bit-error ratio, 0 to 0.01.
    pub ber: Ratio,
    /// Packets lost whatever their size, 0 to 0.5.
    pub loss: Ratio,
    /// The largest IP packet, 128 to 9000 bytes.
    pub mtu: u16,
    /// No packet takes longer on the line.
    pub packet_time: Option<Duration>,
}

/// Name and text of each embedded profile, slowest first.
const EMBEDDED: [(&str, &str); 8] = [
    ("mini-m", include_str!("../../../profiles/mini-m.toml")),
    ("inmarsat-b", include_str!("../../../profiles/inmarsat-b.toml")),
    ("vsat", include_str!("../../../profiles/vsat.toml")),
    ("t1-geo", include_str!("../../../profiles/t1-geo.toml")),
    ("geo-20-2", include_str!("../../../profiles/geo-20-2.toml")),
    ("ku", include_str!("../../../profiles/ku.toml")),
    ("oc3", include_str!("../../../profiles/oc3.toml")),
    ("leo", include_str!("../../../profiles/leo.toml")),
];

impl Profile {
    /// The names of all profiles, slowest first.
    pub fn names() -> Vec<&'static str> {
        EMBEDDED.iter().map(|(name, _)| *name).collect()
    }

    /// The profile called `name`.
    pub fn find(name: &str) -> Option<Profile> {
        let (name, text) = EMBEDDED.iter().find(|(n, _)| *n == name)?;
        // The test below reads every embedded profile, so this does not fail.
        parse(name, name, text).ok()
    }

    /// Reads `text`, the file `path`, which describes a link as the embedded profiles do.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str, path: &Path) -> Result<Profile, ConfigError> {
        let file = path.display().to_string();
        parse("the profile", &file, text)
            .map_err(|problems| ConfigError::Content { file, problems })
    }

    /// Does `text` describe a link, and no node?
    pub fn is_one(text: &str) -> bool {
        let table = toml::de::DeTable::parse_recoverable(text).0;
        let has = |key: &str| table.get_ref().contains_key(key);
        (has("forward") || has("return")) && !has("node") && !has("peer")
    }

    /// True if both ends send at the same rate, so that it does not matter which end
    /// a node is.
    pub fn is_symmetric(&self) -> bool {
        self.forward == self.back
    }
}

fn parse(name: &'static str, file: &str, text: &str) -> Result<Profile, Vec<Problem>> {
    let problems = Problems::default();
    let profile = match toml::de::DeTable::parse(text) {
        Ok(table) => {
            let mut section = Section::new(name, table.get_ref(), table.span(), &problems);
            let profile = read(name, &mut section);
            section.finish();
            profile
        }
        Err(e) => {
            problems.add(Problem::at(e.span().unwrap_or(0..0), e.message()));
            None
        }
    };
    let source = std::sync::Arc::new(miette::NamedSource::new(file, text.to_owned()));
    match (profile, problems.finish(&source).0) {
        (Some(profile), none) if none.is_empty() => Ok(profile),
        (_, problems) => Err(problems),
    }
}

fn read(name: &'static str, section: &mut Section<'_>) -> Option<Profile> {
    let description = section.get::<String>("description").map_or_else(String::new, |d| d.value);
    let forward = link::rate(section, "forward");
    let back = link::rate(section, "return");
    let LinkPart { delay, ber, loss, mtu, packet_time, .. } = LinkPart::read_common(section);
    for (key, example) in [("forward", "20Mbit"), ("return", "2Mbit"), ("delay", "300ms")] {
        if !section.has(key) {
            section.lacks(key, format!("write {key} = \"{example}\", say"));
        }
    }
    Some(Profile {
        name,
        description,
        forward: forward?.value,
        back: back?.value,
        delay: delay?.value,
        ber: ber.unwrap_or_default(),
        loss: loss.unwrap_or_default(),
        mtu: mtu.unwrap_or(link::DEFAULT_MTU),
        packet_time,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_profile_reads_without_a_problem() {
        for (name, text) in EMBEDDED {
            let profile = parse(name, name, text).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            assert!(profile.forward >= profile.back, "{name}: forward is hub to terminal");
            assert_eq!(Profile::find(name), Some(profile));
        }
        assert_eq!(Profile::find("warp"), None);
    }

    #[test]
    fn a_file_is_read_as_a_profile_and_told_what_it_lacks() {
        let read = |text| Profile::parse(text, Path::new("sky.toml"));
        let text = "forward = \"8Mbit\"\nreturn = \"1Mbit\"\ndelay = \"280ms\"\n";
        assert!(Profile::is_one(text) && !Profile::is_one("[node]\nforward = 1\n"));
        let profile = read(text).expect("a profile");
        assert_eq!((profile.back, profile.mtu), (BitRate::from_mbps(1), 1500));
        let ConfigError::Content { file, problems } =
            read("forward = \"8Mbit\"\nretrun = \"1Mbit\"\n").expect_err("lacks")
        else {
            panic!()
        };
        let told: Vec<_> = problems.iter().map(|p| p.message.as_str()).collect();
        assert_eq!(file, "sky.toml");
        assert!(told.iter().any(|t| t.contains("the profile has no return")), "{told:?}");
        assert!(told.iter().any(|t| t.contains("the profile has no delay")), "{told:?}");
        assert!(told.iter().any(|t| t.contains("there is no key \"retrun\"")), "{told:?}");
    }

    #[test]
    fn the_figures_are_those_of_the_sources() {
        let mini_m = Profile::find("mini-m").unwrap();
        assert_eq!((mini_m.forward, mini_m.mtu), (BitRate::from_bps(1_920), 500));
        assert_eq!(mini_m.delay, Duration::from_micros(997_500));
        let oc3 = Profile::find("oc3").unwrap();
        assert_eq!(
            (oc3.back, oc3.delay),
            (BitRate::from_kbps(134_940), Duration::from_millis(270))
        );
        assert!(!Profile::find("ku").unwrap().is_symmetric());
    }
}
