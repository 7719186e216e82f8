//! How fields that decide about caching are read: lists, directives, dates and numbers.

use std::time::{Duration, SystemTime};

use http::header::{self, HeaderMap, HeaderName};

/// Seconds that nobody's clock outlives (RFC 9111, section 1.2.2).
pub const FOREVER: u64 = 1 << 31;

/// The directives of `Cache-Control`, in the order in which they are there, names in small letters.
#[derive(Clone, Debug, Default)]
pub struct Directives(Vec<(String, Option<String>)>);

impl Directives {
    /// Of a request or an answer. What cannot be read counts as `no-store`.
    pub fn of(fields: &HeaderMap) -> Directives {
        let mut all = Vec::new();
        for value in fields.get_all(header::CACHE_CONTROL) {
            let Ok(text) = value.to_str() else {
                all.push(("no-store".to_owned(), None));
                continue;
            };
            for directive in split(text).map(str::trim).filter(|d| !d.is_empty()) {
                let (name, value) = match directive.split_once('=') {
                    Some((name, value)) => (name, Some(value.trim().trim_matches('"').to_owned())),
                    None => (directive, None),
                };
                all.push((name.trim().to_ascii_lowercase(), value));
            }
        }
        Directives(all)
    }

    /// Is it there, with a value or without?
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _)| n == name)
    }

    /// Is it there without names of fields, and so about the whole message?
    pub fn has_plain(&self, name: &str) -> bool {
        self.0.iter().any(|(n, v)| n == name && v.as_deref().is_none_or(str::is_empty))
    }

    /// Its seconds. Said twice, the shorter hold, and what is no number counts as 0.
    pub fn seconds(&self, name: &str) -> Option<Duration> {
        let all = self.0.iter().filter(|(n, _)| n == name);
        let read = |v: &Option<String>| v.as_deref().and_then(seconds).unwrap_or(0);
        all.map(|(_, v)| read(v)).min().map(Duration::from_secs)
    }

    /// The fields that `private="…"` or `no-cache="…"` names.
    pub fn names(&self, name: &str) -> Vec<HeaderName> {
        let values = self.0.iter().filter(|(n, _)| n == name).filter_map(|(_, v)| v.as_deref());
        values.flat_map(|v| v.split(',')).filter_map(|n| n.trim().parse().ok()).collect()
    }
}

/// A number of seconds; too many count as for ever.
pub fn seconds(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().map_or(FOREVER, |n: u64| n.min(FOREVER)))
}

/// Members of a list, of which some may be quoted strings with commas.
pub fn split(list: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    list.split(move |c| {
        let ends = c == ',' && !quoted;
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        ends
    })
}

/// A date that is there once.
pub fn date(fields: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    let mut all = fields.get_all(name).iter();
    let only = all.next().filter(|_| all.next().is_none())?;
    httpdate::parse_http_date(only.to_str().ok()?).ok()
}
