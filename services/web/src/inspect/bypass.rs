//! Names that are never opened.
//!
//! A list has a name and a reason on each line. A `*` stands for any letters, dots too, and
//! `*.example.org` for `example.org` as well. Lines that begin with `#` are remarks.

/// The list that is used, and handed out to be edited, where there is no other.
pub const SHIPPED: &str = include_str!("bypass.txt");

/// Lines of a list: each connection is compared with all of them.
const MAX_NAMES: usize = 5000;

/// Why a name is not opened that has no reason beside it.
const NO_REASON: &str = "it is on the list";

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass(Vec<(String, String)>);

/// What is wrong with a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// No name begins this line.
    #[error("line {0}: \"{1}\" is no name: letters, digits, \"-\", \".\", \"_\" and \"*\"")]
    Name(usize, String),
    /// It is too long.
    #[error("there are over {MAX_NAMES} names")]
    Many,
}

impl Bypass {
    /// Reads a list.
    ///
    /// # Errors
    /// Which line is none, or that there are too many.
    pub fn parse(text: &str) -> Result<Bypass, Wrong> {
        let mut names = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, why) = line.split_once(char::is_whitespace).unwrap_or((line, NO_REASON));
            let fits = |c: char| c.is_ascii_alphanumeric() || "-._*".contains(c);
            if !name.chars().all(fits) {
                return Err(Wrong::Name(n + 1, name.to_owned()));
            }
            names.push((name.to_ascii_lowercase(), why.trim().to_owned()));
            if names.len() > MAX_NAMES {
                return Err(Wrong::Many);
            }
        }
        Ok(Bypass(names))
    }

    /// Why this name, in small letters, is not opened.
    pub fn why(&self, name: &str) -> Option<&str> {
        let it = self.0.iter().find(|(pattern, _)| matches(pattern, name));
        it.map(|(_, why)| why.as_str())
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_prefix("*.") == Some(name) || is_like(pattern.as_bytes(), name.as_bytes())
}

/// Goes back to the last `*` only: it may stand for more, and no earlier one need then.
fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name, mut star) = (0, 0, None);
    while in_name < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, in_name));
            at += 1;
        } else if pattern.get(at) == Some(&name[in_name]) {
            (at, in_name) = (at + 1, in_name + 1);
        } else if let Some((star_at, from)) = star {
            star = Some((star_at, from + 1));
            (at, in_name) = (star_at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_their_patterns_and_tell_why() {
        let list = "# remarks\n\n *.Bank.test  money \nexact.test\n*pay*.test its own reasons\n";
        let list = Bypass::parse(list).unwrap();
        for (name, why) in [
            ("bank.test", Some("money")),
            ("www.bank.test", Some("money")),
            ("a.b.bank.test", Some("money")),
            ("mybank.test", None),
            ("bank.test.evil", None),
            ("exact.test", Some(NO_REASON)),
            ("www.exact.test", None),
            ("pay.test", Some("its own reasons")),
            ("www.paypaypal.x.test", Some("its own reasons")),
            ("pay.tes", None),
            ("", None),
        ] {
            assert_eq!(list.why(name), why, "{name}");
        }
        assert_eq!(Bypass::parse("*").unwrap().why("a"), Some(NO_REASON));
        let many = "*a*a*a*a*a*a*a*a*a*a*b x";
        assert_eq!(Bypass::parse(many).unwrap().why(&"a".repeat(200)), None);
    }

    #[test]
    fn what_is_no_list_is_refused_and_its_line_named() {
        assert_eq!(Bypass::parse("a\nhttps://b x"), Err(Wrong::Name(2, "https://b".into())));
        assert_eq!(Bypass::parse(&"a\n".repeat(MAX_NAMES + 1)), Err(Wrong::Many));
    }

    #[test]
    fn the_shipped_list_is_one_and_has_a_reason_for_each_name() {
        let list = Bypass::parse(SHIPPED).unwrap();
        assert!(list.0.len() > 30 && list.0.iter().all(|(_, why)| why != NO_REASON));
        for name in ["www.somebank.de", "paypal.com", "gateway.icloud.com", "cloudflare-ech.com"] {
            assert!(list.why(name).is_some(), "{name}");
        }
        assert_eq!(list.why("www.example.org"), None);
    }
}
