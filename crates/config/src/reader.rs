//! Reads typed values out of a TOML table and says what is wrong with each.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use units::{BitRate, ByteCount, Duration, IpPrefix};

use super::problem::{Problem, Problems};
use super::suggest::{self, RATES, SIZES, TIMES};
use crate::host::{HostError, HostPort};
use console::logging::Level;

/// A value and the bytes of the file it was read from.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub value: T,
    pub span: Range<usize>,
}

/// Why a value cannot be used.
pub(super) struct Wrong {
    pub message: String,
    pub help: Option<String>,
}

impl Wrong {
    pub fn new(message: impl Into<String>) -> Wrong {
        Wrong { message: message.into(), help: None }
    }
    pub fn help(mut self, help: impl Into<String>) -> Wrong {
        self.help = Some(help.into());
        self
    }
}

/// What a key of the file may hold.
pub(super) trait FromValue: Sized {
    /// What is wanted, as in "delay is *a time such as \"270ms\"*".
    const WANTED: &'static str;

    /// Reads the text of a string value.
    fn from_text(text: &str) -> Result<Self, Wrong>;

    /// Reads a whole number, where one may stand without quotes.
    fn from_number(_number: &str) -> Option<Self> {
        None
    }

    /// Reads true or false, without quotes.
    fn from_bool(_on: bool) -> Option<Self> {
        None
    }

    /// What to write in place of a bare number.
    fn for_number(_number: &str) -> Option<String> {
        None
    }
}

/// One table of the file; remembers which keys it was asked for, so that the rest
/// are unknown.
pub(super) struct Section<'t> {
    title: String,
    table: &'t DeTable<'t>,
    span: Range<usize>,
    known: Vec<&'static str>,
    problems: &'t Problems,
    /// The key that the table stands under.
    #[cfg(test)]
    kind: &'static str,
}

impl<'t> Section<'t> {
    /// `title` names the table in messages; `span` is blamed for what is missing.
    pub fn new(
        title: impl Into<String>,
        table: &'t DeTable<'t>,
        span: Range<usize>,
        problems: &'t Problems,
    ) -> Section<'t> {
        Section {
            title: title.into(),
            table,
            span,
            known: Vec::new(),
            problems,
            #[cfg(test)]
            kind: "",
        }
    }

    /// The table that stands under `key`.
    #[cfg_attr(not(test), allow(unused_mut, unused_variables))]
    fn under(mut self, key: &'static str) -> Section<'t> {
        #[cfg(test)]
        {
            self.kind = key;
        }
        self
    }

    pub fn problems(&self) -> &'t Problems {
        self.problems
    }

    /// The table's own place, for what is missing from it.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// A better title, once the table's name is known.
    pub fn set_title(&mut self, title: String) {
        self.title = title;
    }

    pub fn title(&self) -> &str {
        &self.title
    }

    /// Where the value of `key` stands, if the file gives it.
    pub fn span_of(&self, key: &str) -> Option<Range<usize>> {
        self.table.get(key).map(Spanned::span)
    }

    /// True if the file gives `key` at all, well or badly written.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Keys that somebody else has spoken of already.
    pub fn know(&mut self, keys: impl Iterator<Item = &'static str>) {
        self.known.extend(keys);
    }

    fn value(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.known.push(key);
        #[cfg(test)]
        super::reload_tests::asked_for(self.kind, key);
        self.table.get(key)
    }

    pub fn wrong(&self, key: &str, span: Range<usize>, wrong: Wrong) {
        let problem = Problem::at(span, format!("{key} in {}: {}", self.title, wrong.message));
        self.problems.add(match wrong.help {
            Some(help) => problem.help(help),
            None => problem,
        });
    }

    /// The value of `key`, if it is there and right.
    pub fn get<T: FromValue>(&mut self, key: &'static str) -> Option<At<T>> {
        let value = self.value(key)?;
        match read(key, value.get_ref()) {
            Ok(read) => Some(At { value: read, span: value.span() }),
            Err(wrong) => {
                self.wrong(key, value.span(), wrong);
                None
            }
        }
    }

    /// One of a few words.
    pub fn word<T: Copy>(
        &mut self,
        key: &'static str,
        words: &[(&'static str, T)],
    ) -> Option<At<T>> {
        let At { value: text, span } = self.get::<String>(key)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(At { value: *value, span });
        }
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let wrong = Wrong::new(format!("\"{text}\" is not one of {}", quoted(&names)));
        let wrong = match suggest::nearest(&text, &names) {
            Some(near) => wrong.help(format!("did you mean \"{near}\"?")),
            None => wrong,
        };
        self.wrong(key, span, wrong);
        None
    }

    /// The elements of a list that are right; `None` if the key is absent.
    pub fn list<T: FromValue>(&mut self, key: &'static str) -> Option<Vec<At<T>>> {
        let value = self.value(key)?;
        let DeValue::Array(array) = value.get_ref() else {
            let help = match value.get_ref() {
                DeValue::String(text) => format!("write {key} = [\"{text}\"]"),
                _ => format!("write {key} = [\"…\"]"),
            };
            self.wrong(key, value.span(), Wrong::new("it is a list").help(help));
            return Some(Vec::new());
        };
        let mut elements = Vec::new();
        for element in array.iter() {
            match read(key, element.get_ref()) {
                Ok(value) => elements.push(At { value, span: element.span() }),
                Err(wrong) => self.wrong(key, element.span(), wrong),
            }
        }
        Some(elements)
    }

    /// A share such as an error ratio: a number from 0 to `most`, or a text such as
    /// `"0.1%"`.
    pub fn share(&mut self, key: &'static str, most: f64) -> Option<At<f64>> {
        let value = self.value(key)?;
        let read = match value.get_ref() {
            DeValue::Float(float) => Some(float.as_str()),
            DeValue::Integer(int) => Some(int.as_str()),
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        };
        let share = read.and_then(|text| share_of(&text.replace('_', "")));
        let wrong =
            || Wrong::new(format!("it is a share from 0 to {most}, such as 1e-6 or \"0.1%\""));
        match share {
            Some(share) if (0.0..=most).contains(&share) => {
                return Some(At { value: share, span: value.span() });
            }
            // `loss = 1`: 1 is everything.
            Some(share) if (most..=100.0).contains(&share) && share <= most * 100.0 => {
                let help = format!("for {share} per cent write {key} = \"{share}%\"");
                self.wrong(key, value.span(), wrong().help(help));
            }
            _ => self.wrong(key, value.span(), wrong()),
        }
        None
    }

    /// A whole number of `what` within `range`.
    pub fn number(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<u64>,
        what: &str,
    ) -> Option<At<u64>> {
        let value = self.value(key)?;
        let (low, high) = (range.start(), range.end());
        let wrong = || Wrong::new(format!("it is a number of {what} from {low} to {high}"));
        match value.get_ref() {
            DeValue::Integer(int) => {
                match u64::from_str_radix(&int.as_str().replace('_', ""), int.radix()) {
                    Ok(n) if range.contains(&n) => {
                        return Some(At { value: n, span: value.span() });
                    }
                    _ => self.wrong(key, value.span(), wrong()),
                }
            }
            DeValue::String(text) => {
                let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
                let wrong = match digits.parse::<u64>() {
                    Ok(n) if range.contains(&n) => wrong().help(format!("write {key} = {n}")),
                    _ => wrong(),
                };
                self.wrong(key, value.span(), wrong);
            }
            _ => self.wrong(key, value.span(), wrong()),
        }
        None
    }

    /// A list of whole numbers of `what` within `range`; `None` if the key is absent.
    pub fn numbers(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<u64>,
        what: &str,
    ) -> Option<Vec<u64>> {
        let value = self.value(key)?;
        let (low, high) = (range.start(), range.end());
        let wrong = || {
            Wrong::new(format!("it is a list of {what} from {low} to {high}"))
                .help(format!("write {key} = [{low}, {high}], say"))
        };
        let DeValue::Array(array) = value.get_ref() else {
            self.wrong(key, value.span(), wrong());
            return Some(Vec::new());
        };
        let mut numbers = Vec::new();
        for element in array.iter() {
            let number = match element.get_ref() {
                DeValue::Integer(int) => {
                    u64::from_str_radix(&int.as_str().replace('_', ""), int.radix()).ok()
                }
                _ => None,
            };
            match number.filter(|n| range.contains(n)) {
                Some(n) => numbers.push(n),
                None => self.wrong(key, element.span(), wrong()),
            }
        }
        Some(numbers)
    }

    /// True if `key` holds a whole number, which `number` should then read.
    pub fn is_number(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|v| v.get_ref().is_integer())
    }

    /// True if `key` holds this text.
    pub fn is_text(&self, key: &str, text: &str) -> bool {
        self.table.get(key).is_some_and(|v| v.get_ref().as_str() == Some(text))
    }

    /// A table inside this one, such as `link = { … }`.
    pub fn table(&mut self, key: &'static str, title: String) -> Option<Section<'t>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => {
                Some(Section::new(title, table, value.span(), self.problems).under(key))
            }
            _ => {
                let wrong = Wrong::new("it is a table").help(format!("write {key} = {{ … }}"));
                self.wrong(key, value.span(), wrong);
                None
            }
        }
    }

    /// The tables of an array such as `[[peer]]`.
    pub fn tables(&mut self, key: &'static str) -> Vec<Section<'t>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let problems = self.problems;
        let section = |v: &'t Spanned<DeValue<'t>>| match v.get_ref() {
            DeValue::Table(table) => {
                let title = format!("[[{}]]", full_name(key));
                Some(Section::new(title, table, v.span(), problems).under(key))
            }
            _ => None,
        };
        let tables: Option<Vec<_>> = match value.get_ref() {
            DeValue::Array(array) => array.iter().map(section).collect(),
            _ => None,
        };
        tables.unwrap_or_else(|| {
            let wrong = Wrong::new("it is written as one table for each")
                .help(format!("start each with [[{}]], in double brackets", full_name(key)));
            self.wrong(key, value.span(), wrong);
            Vec::new()
        })
    }

    /// One table, as in `[peer.line]`, or the tables of an array, as in `[[peer.line]]`.
    pub fn table_or_tables(&mut self, key: &'static str, title: String) -> Vec<Section<'t>> {
        match self.table.get(key).is_some_and(|value| value.get_ref().is_array()) {
            true => self.tables(key),
            false => self.table(key, title).into_iter().collect(),
        }
    }

    /// The tables that stand under `key` by names of their own, such as `[service.web]`.
    pub fn named_tables(&mut self, key: &'static str) -> Vec<(String, Section<'t>)> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let problems = self.problems;
        let section = |(name, value): (&'t Spanned<_>, &'t Spanned<DeValue<'t>>)| {
            let DeValue::Table(table) = value.get_ref() else { return None };
            let name: &std::borrow::Cow<'_, str> = name.get_ref();
            let title = format!("[{key}.{name}]");
            let section = Section::new(title, table, value.span(), problems).under(key);
            Some((name.to_string(), section))
        };
        let tables: Option<Vec<_>> = match value.get_ref() {
            DeValue::Table(table) => table.iter().map(section).collect(),
            _ => None,
        };
        tables.unwrap_or_else(|| {
            let wrong = Wrong::new("it is written as one table for each")
                .help(format!("start each with its name, as in [{key}.web]"));
            self.wrong(key, value.span(), wrong);
            Vec::new()
        })
    }

    /// True if `key` holds the text `word`.
    pub fn is_word(&self, key: &str, word: &str) -> bool {
        self.table.get(key).is_some_and(|v| v.get_ref().as_str() == Some(word))
    }

    /// Blames the section for something it lacks.
    pub fn lacks(&self, what: &str, help: impl Into<String>) {
        let message = format!("{} has no {what}", self.title);
        self.problems.add(Problem::at(self.span(), message).help(help));
    }

    /// Reports the keys that nobody asked for.
    pub fn finish(self) {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if self.known.contains(&name) {
                continue;
            }
            let problem =
                Problem::at(key.span(), format!("there is no key \"{name}\" in {}", self.title))
                    .label("unknown");
            self.problems.add(match suggest::nearest(name, &self.known) {
                // Tables of a peer, written as if they were the file's.
                _ if OF_PEERS.contains(&name) => problem.help(format!(
                    "write [[{}]], behind the [[peer]] that it is of",
                    full_name(name)
                )),
                _ if self.place_of(name).is_some() => problem.help(format!(
                    "\"{name}\" belongs in {}",
                    self.place_of(name).unwrap_or_default()
                )),
                Some(near) => problem.help(format!("did you mean \"{near}\"?")),
                None => problem.help(format!("known here: {}", self.known.join(", "))),
            });
        }
    }
}

impl Section<'_> {
    /// The table that a key of the node's or of a peer's belongs in, which stands in another.
    fn place_of(&self, key: &str) -> Option<&'static str> {
        match () {
            () if OF_NODE_KEYS.contains(&key) => Some("[node]"),
            () if OF_PEER_KEYS.contains(&key) => Some("[[peer]]"),
            () if OF_LINE_KEYS.contains(&key) => Some("[peer.line]"),
            () => None,
        }
    }
}

/// Keys that people put elsewhere, which no other table has.
const OF_NODE_KEYS: [&str; 11] = [
    "admin",
    "direct",
    "dns",
    "key_lifetime",
    "lan",
    "listen",
    "memory",
    "own",
    "proxy",
    "shards",
    "tun",
];
const OF_PEER_KEYS: [&str; 11] = [
    "allow",
    "connects",
    "deny",
    "fast_ports",
    "keepalive",
    "on_failure",
    "open",
    "public_key",
    "quic",
    "routes",
    "stream_buffer",
];
const OF_LINE_KEYS: [&str; 3] = ["idle", "noise", "quiet"];

/// Tables that stand inside one of `[[peer]]`.
const OF_PEERS: [&str; 2] = ["class", "rule"];

/// The name of an array of tables as it stands in the brackets.
fn full_name(key: &str) -> String {
    if OF_PEERS.contains(&key) { format!("peer.{key}") } else { key.to_owned() }
}

/// `"a", "b" or "c"`.
pub(super) fn quoted(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|w| format!("\"{w}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

/// `0.001`, `1e-6` or `0.1%`, as a number.
fn share_of(text: &str) -> Option<f64> {
    match text.strip_suffix('%') {
        Some(percent) => percent.trim_end().parse::<f64>().ok().map(|p| p / 100.0),
        None => text.parse().ok(),
    }
}

fn read<T: FromValue>(key: &str, value: &DeValue<'_>) -> Result<T, Wrong> {
    let wanted = || Wrong::new(format!("it is {}", T::WANTED));
    let number = match value {
        DeValue::String(text) => return T::from_text(text.trim()),
        DeValue::Integer(int) => match T::from_number(int.as_str()) {
            Some(value) => return Ok(value),
            None => int.as_str(),
        },
        DeValue::Float(float) => float.as_str(),
        DeValue::Boolean(on) => return T::from_bool(*on).ok_or_else(wanted),
        _ => return Err(wanted()),
    };
    Err(match T::for_number(number) {
        Some(text) => wanted().help(format!("write {key} = \"{text}\"")),
        None => wanted(),
    })
}

impl FromValue for bool {
    const WANTED: &'static str = "true or false, without quotes";
    fn from_text(text: &str) -> Result<bool, Wrong> {
        Err(Wrong::new(format!("\"{text}\" is not {}", Self::WANTED)))
    }
    fn from_bool(on: bool) -> Option<bool> {
        Some(on)
    }
}

impl FromValue for String {
    const WANTED: &'static str = "a text in quotes";
    fn from_text(text: &str) -> Result<String, Wrong> {
        if text.is_empty() { Err(Wrong::new("it is empty")) } else { Ok(text.to_owned()) }
    }
}

/// The quantities with units differ only in their names, and `$special` knows better help
/// for some texts.
macro_rules! quantity {
    ($type:ty, $units:expr, $special:expr, $wanted:literal, $example:literal) => {
        impl FromValue for $type {
            const WANTED: &'static str = $wanted;
            fn from_text(text: &str) -> Result<$type, Wrong> {
                text.parse::<$type>().map_err(|_| {
                    let wrong = Wrong::new(format!("\"{text}\" is not {}", Self::WANTED));
                    let special: fn(&str) -> Option<String> = $special;
                    if let Some(help) = special(text) {
                        return wrong.help(help);
                    }
                    match suggest::fix_unit(text, $units) {
                        Some(fixed) => wrong.help(format!("did you mean \"{fixed}\"?")),
                        None => wrong.help(concat!("write it like \"", $example, "\"")),
                    }
                })
            }
            fn for_number(number: &str) -> Option<String> {
                suggest::fix_unit(number, $units)
            }
        }
    };
}

quantity!(Duration, TIMES, |_| None, "a time such as \"270ms\" or \"25s\"", "270ms");
quantity!(
    BitRate,
    RATES,
    suggest::byte_rate,
    "a rate such as \"128kbit\" or \"23.58Mbit\"",
    "128kbit"
);
quantity!(ByteCount, SIZES, |_| None, "a size such as \"64kB\" or \"256MiB\"", "256MiB");

impl FromValue for SocketAddr {
    const WANTED: &'static str = "an address and a port such as \"0.0.0.0:4500\"";
    fn from_text(text: &str) -> Result<SocketAddr, Wrong> {
        if let Ok(addr) = text.parse::<SocketAddr>() {
            return Ok(addr);
        }
        let wrong = Wrong::new(format!("\"{text}\" is not {}", Self::WANTED));
        Err(match (text.parse::<IpAddr>(), text.strip_prefix(':').unwrap_or(text).parse::<u16>()) {
            (Ok(IpAddr::V4(ip)), _) => wrong.help(format!("did you mean \"{ip}:4500\"?")),
            (Ok(IpAddr::V6(ip)), _) => wrong.help(format!("did you mean \"[{ip}]:4500\"?")),
            (_, Ok(port)) => wrong.help(format!("did you mean \"0.0.0.0:{port}\"?")),
            _ => wrong,
        })
    }
    fn for_number(number: &str) -> Option<String> {
        number.parse::<u16>().ok().map(|port| format!("0.0.0.0:{port}"))
    }
}

impl FromValue for IpAddr {
    const WANTED: &'static str = "an address such as \"198.51.100.53\" or \"2001:db8::53\"";
    fn from_text(text: &str) -> Result<IpAddr, Wrong> {
        let wrong = || Wrong::new(format!("\"{text}\" is not {}", Self::WANTED));
        let no_port = |addr: SocketAddr| wrong().help(format!("did you mean \"{}\"?", addr.ip()));
        text.parse().map_err(|_| text.parse().map_or_else(|_| wrong(), no_port))
    }
}

impl FromValue for HostPort {
    const WANTED: &'static str = "an address or name with a port, as in \"203.0.113.7:4500\"";
    fn from_text(text: &str) -> Result<HostPort, Wrong> {
        text.parse::<HostPort>().map_err(|e| {
            let wrong = Wrong::new(format!("\"{text}\" cannot be used: {e}"));
            match e {
                HostError::NoPort if text.parse::<crate::host::Host>().is_ok() => {
                    wrong.help(format!("did you mean \"{text}:4500\"?"))
                }
                HostError::NoBrackets if text.parse::<IpAddr>().is_ok() => {
                    wrong.help(format!("did you mean \"[{text}]:4500\"?"))
                }
                _ => wrong,
            }
        })
    }
}

impl FromValue for IpPrefix {
    const WANTED: &'static str = "a prefix such as \"10.2.0.0/24\" or \"::/0\"";
    fn from_text(text: &str) -> Result<IpPrefix, Wrong> {
        text.parse::<IpPrefix>().map_err(|e| Wrong::new(e.to_string()))
    }
}

impl FromValue for Level {
    const WANTED: &'static str = "\"error\", \"warn\", \"info\", \"debug\" or \"trace\"";
    fn from_text(text: &str) -> Result<Level, Wrong> {
        text.parse::<Level>().map_err(|()| {
            let wrong = Wrong::new(format!("\"{text}\" is not {}", Self::WANTED));
            match suggest::nearest(text, &Level::NAMES) {
                Some(near) => wrong.help(format!("did you mean \"{near}\"?")),
                None => wrong,
            }
        })
    }
}
