//! The nearest thing that could have been meant.

use units::BitRate;

/// The number of letters to insert, delete, replace or swap with their neighbour to
/// get from one word to the other (optimal string alignment), capitals ignored.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().flat_map(char::to_lowercase).collect();
    let b: Vec<char> = b.chars().flat_map(char::to_lowercase).collect();
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

/// Longest word worth comparing; beyond it nothing sensible was meant.
const MAX_WORD: usize = 40;

/// The candidate nearest to `given`, if it is near enough to have been meant: at most
/// a third of the letters differ, or one is the start of the other.
pub(super) fn nearest<'a>(given: &str, candidates: &[&'a str]) -> Option<&'a str> {
    if given.is_empty() || given.len() > MAX_WORD {
        return None;
    }
    let starts = |c: &str| given.len() >= 3 && (c.starts_with(given) || given.starts_with(c));
    candidates
        .iter()
        .map(|c| (distance(given, c), *c))
        .filter(|(d, c)| *d <= c.len().max(given.len()).div_ceil(3) || starts(c))
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// The text with its unit made right: `fix_unit("128kbps", RATES)` is `"128kbit"`.
pub(super) fn fix_unit(given: &str, units: Units) -> Option<String> {
    let end = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
    let (number, unit) = (given[..end].trim(), given[end..].trim());
    number.parse::<f64>().ok()?;
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    if let Some(bare) = units.bare.filter(|_| unit.is_empty()) {
        return bare(number);
    }
    let alias = units.aliases.iter().find(|(wrong, _)| *wrong == unit).map(|(_, right)| *right);
    Some(format!("{number}{}", alias.or_else(|| nearest(unit, units.names))?))
}

/// The units of one quantity.
#[derive(Clone, Copy)]
pub(super) struct Units {
    names: &'static [&'static str],
    /// Spellings that letters do not lead from.
    aliases: &'static [(&'static str, &'static str)],
    /// What a number without a unit means, where that depends on it.
    bare: Option<fn(&str) -> Option<String>>,
}

/// From here on a number without a unit is bits per second: nobody has a link of so many kbit/s.
const IN_BITS: f64 = 10_000.0;

/// People write small rates in kbit/s, and large ones in bit/s.
fn bare_rate(number: &str) -> Option<String> {
    let value = number.parse::<f64>().ok()?;
    Some(match value < IN_BITS {
        true => format!("{number}kbit"),
        false => BitRate::from_bps(value as u64).to_string(),
    })
}

/// A rate in bytes per second: `2MB`, `128 kB/s`. Its own unit, and the factor to bits.
const BYTE_RATES: [(&str, &str, u64); 4] = [
    ("B", "bytes", 1),
    ("kB", "kilobytes", 1_000),
    ("MB", "megabytes", 1_000_000),
    ("GB", "gigabytes", 1_000_000_000),
];

/// What to write for a rate whose unit is one of bytes.
pub(super) fn byte_rate(given: &str) -> Option<String> {
    let end = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
    let (number, unit) = (given[..end].trim(), given[end..].trim());
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    let (unit, name, factor) = BYTE_RATES.into_iter().find(|(known, ..)| *known == unit)?;
    let value = number.parse::<f64>().ok()?;
    let as_bits = BitRate::from_bps((value * factor as f64 * 8.0) as u64);
    let meant = BitRate::from_bps((value * factor as f64) as u64);
    Some(format!(
        "{unit} is {name}, and rates are in bits: write \"{as_bits}\" for {number} {name} a \
         second, or \"{meant}\" if that is what was meant"
    ))
}

pub(super) const RATES: Units = Units {
    names: &["bit", "kbit", "Mbit", "Gbit"],
    aliases: &[
        ("bps", "bit"),
        ("b", "bit"),
        ("k", "kbit"),
        ("K", "kbit"),
        ("kb", "kbit"),
        ("Kb", "kbit"),
        ("kbps", "kbit"),
        ("Kbps", "kbit"),
        ("M", "Mbit"),
        ("m", "Mbit"),
        ("Mb", "Mbit"),
        ("mbps", "Mbit"),
        ("Mbps", "Mbit"),
        ("G", "Gbit"),
        ("g", "Gbit"),
        ("Gb", "Gbit"),
        ("Gbps", "Gbit"),
    ],
    bare: Some(bare_rate),
};

pub(super) const TIMES: Units = Units {
    names: &["ns", "us", "ms", "s", "min", "h"],
    aliases: &[
        ("", "ms"),
        ("msec", "ms"),
        ("millis", "ms"),
        ("sec", "s"),
        ("secs", "s"),
        ("second", "s"),
        ("seconds", "s"),
        ("m", "min"),
        ("minute", "min"),
        ("minutes", "min"),
        ("hour", "h"),
        ("hours", "h"),
        ("usec", "us"),
    ],
    bare: None,
};

pub(super) const SIZES: Units = Units {
    names: &["B", "kB", "MB", "GB", "KiB", "MiB", "GiB"],
    aliases: &[
        ("", "B"),
        ("b", "B"),
        ("k", "kB"),
        ("K", "KiB"),
        ("KB", "KiB"),
        ("m", "MB"),
        ("M", "MiB"),
        ("G", "GiB"),
    ],
    bare: None,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_its_word() {
        let keys = ["private_key", "private_key_file", "listen", "tun", "lan"];
        assert_eq!(nearest("privatekey", &keys), Some("private_key"));
        assert_eq!(nearest("PrivateKey", &keys), Some("private_key"));
        assert_eq!(nearest("lsiten", &keys), Some("listen"));
        assert_eq!(nearest("listen_port", &keys), Some("listen"));
        assert_eq!(nearest("dns", &keys), None);
        assert_eq!(nearest("", &keys), None);
    }

    #[test]
    fn swapped_neighbours_are_one_slip() {
        assert_eq!(distance("tnu", "tun"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn a_rate_without_a_unit_is_in_bits_where_it_is_large() {
        for (number, meant) in [
            ("2000000", "2Mbit"),
            ("2e6", "2Mbit"),
            ("23580000", "23.58Mbit"),
            ("64000", "64kbit"),
            ("9600", "9600kbit"),
            ("128", "128kbit"),
        ] {
            assert_eq!(bare_rate(number).as_deref(), Some(meant));
        }
        assert_eq!(fix_unit("2000000", RATES).as_deref(), Some("2Mbit"));
    }

    #[test]
    fn bytes_are_told_from_bits() {
        let help = byte_rate("2MB").expect("help");
        assert_eq!(
            help,
            "MB is megabytes, and rates are in bits: write \"16Mbit\" for 2 megabytes a second, \
             or \"2Mbit\" if that is what was meant"
        );
        assert!(byte_rate("128 kB/s").is_some_and(|help| help.contains("\"1.024Mbit\"")));
        assert_eq!([byte_rate("2Mbit"), byte_rate("2mb"), byte_rate("MB")], [None, None, None]);
    }

    #[test]
    fn wrong_units_become_the_nearest_right_one() {
        assert_eq!(fix_unit("128kbps", RATES).as_deref(), Some("128kbit"));
        assert_eq!(fix_unit("128 kb/s", RATES).as_deref(), Some("128kbit"));
        assert_eq!(fix_unit("23.58mbit", RATES).as_deref(), Some("23.58Mbit"));
        assert_eq!(fix_unit("270", TIMES).as_deref(), Some("270ms"));
        assert_eq!(fix_unit("25seconds", TIMES).as_deref(), Some("25s"));
        assert_eq!(fix_unit("256Mib", SIZES).as_deref(), Some("256MiB"));
        assert_eq!(fix_unit("lots", SIZES), None);
        assert_eq!(fix_unit("1.2.3ms", TIMES), None);
    }
}
