//! The nearest thing that could have been meant.

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
    let alias = units.aliases.iter().find(|(wrong, _)| *wrong == unit).map(|(_, right)| *right);
    Some(format!("{number}{}", alias.or_else(|| nearest(unit, units.names))?))
}

/// The units of one quantity.
#[derive(Clone, Copy)]
pub(super) struct Units {
    names: &'static [&'static str],
    /// Spellings that letters do not lead from.
    aliases: &'static [(&'static str, &'static str)],
}

pub(super) const RATES: Units = Units {
    names: &["bit", "kbit", "Mbit", "Gbit"],
    aliases: &[
        ("", "kbit"),
        ("bps", "bit"),
        ("b", "bit"),
        ("k", "kbit"),
        ("K", "kbit"),
        ("kb", "kbit"),
        ("Kb", "kbit"),
        ("kB", "kbit"),
        ("kbps", "kbit"),
        ("Kbps", "kbit"),
        ("M", "Mbit"),
        ("m", "Mbit"),
        ("Mb", "Mbit"),
        ("MB", "Mbit"),
        ("mbps", "Mbit"),
        ("Mbps", "Mbit"),
        ("G", "Gbit"),
        ("g", "Gbit"),
        ("Gb", "Gbit"),
        ("GB", "Gbit"),
        ("Gbps", "Gbit"),
    ],
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
    fn wrong_units_become_the_nearest_right_one() {
        assert_eq!(fix_unit("128kbps", RATES).as_deref(), Some("128kbit"));
        assert_eq!(fix_unit("128 kB/s", RATES).as_deref(), Some("128kbit"));
        assert_eq!(fix_unit("23.58mbit", RATES).as_deref(), Some("23.58Mbit"));
        assert_eq!(fix_unit("270", TIMES).as_deref(), Some("270ms"));
        assert_eq!(fix_unit("25seconds", TIMES).as_deref(), Some("25s"));
        assert_eq!(fix_unit("256Mib", SIZES).as_deref(), Some("256MiB"));
        assert_eq!(fix_unit("lots", SIZES), None);
        assert_eq!(fix_unit("1.2.3ms", TIMES), None);
    }
}
