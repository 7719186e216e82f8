//! The link profiles that come with the program: `profiles/*.toml`.

use units::{BitRate, Duration, Ratio};

use super::link::{self, LinkPart};
use super::problem::{Problem, Problems};
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
        parse(name, text).ok()
    }

    /// True if both ends send at the same rate, so that it does not matter which end
    /// a node is.
    pub fn is_symmetric(&self) -> bool {
        self.forward == self.back
    }
}

fn parse(name: &'static str, text: &str) -> Result<Profile, Vec<Problem>> {
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
    let source = std::sync::Arc::new(miette::NamedSource::new(name, text.to_owned()));
    match (profile, problems.finish(&source).0) {
        (Some(profile), none) if none.is_empty() => Ok(profile),
        (_, problems) => Err(problems),
    }
}

fn read(name: &'static str, section: &mut Section<'_>) -> Option<Profile> {
    let description = section.get::<String>("description")?.value;
    let forward = link::rate(section, "forward")?.value;
    let back = link::rate(section, "return")?.value;
    let LinkPart { delay, ber, loss, mtu, .. } = LinkPart::read_common(section);
    Some(Profile {
        name,
        description,
        forward,
        back,
        delay: delay?.value,
        ber: ber.unwrap_or_default(),
        loss: loss.unwrap_or_default(),
        mtu: mtu?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_profile_reads_without_a_problem() {
        for (name, text) in EMBEDDED {
            let profile = parse(name, text).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            assert!(profile.forward >= profile.back, "{name}: forward is hub to terminal");
            assert_eq!(Profile::find(name), Some(profile));
        }
        assert_eq!(Profile::find("warp"), None);
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
