//! How a kept answer is given to a request: whole, not modified, or in part.

use std::ops::Range;

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::words::{date, split};
use super::{Asked, Now, Stored};

/// Which bytes of the body follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// None.
    Nothing,
    /// All.
    Whole,
    /// These.
    Bytes(Range<u64>),
}

/// What the host gets.
#[derive(Clone, Debug)]
pub struct Given {
    /// The status.
    pub status: StatusCode,
    /// The fields.
    pub fields: HeaderMap,
    /// The body.
    pub part: Part,
}

/// A 304 does not repeat these.
const OF_THE_BODY: [HeaderName; 4] = [
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
];

/// Gives `stored` to whoever asked, by his own conditions and range.
pub fn give(asked: &Asked, stored: &Stored, now: Now) -> Given {
    let mut fields = stored.fields.clone();
    fields.insert(header::AGE, stored.age_at(now).as_secs().into());
    if stored.status == StatusCode::NO_CONTENT {
        return Given { status: stored.status, fields, part: Part::Nothing };
    }
    let has_content = [StatusCode::OK, StatusCode::PARTIAL_CONTENT].contains(&stored.status);
    if has_content && is_what_he_has(asked, stored) {
        OF_THE_BODY.iter().for_each(|name| drop(fields.remove(name)));
        fields.remove(header::CONTENT_RANGE);
        return Given { status: StatusCode::NOT_MODIFIED, fields, part: Part::Nothing };
    }
    fields.insert(header::CONTENT_LENGTH, stored.length.into());
    if asked.head {
        return Given { status: stored.status, fields, part: Part::Nothing };
    }
    if stored.status != StatusCode::OK {
        return Given { status: stored.status, fields, part: Part::Whole };
    }
    match wanted_range(asked, stored) {
        None => Given { status: stored.status, fields, part: Part::Whole },
        Some(Some(bytes)) => {
            let (first, last, all) = (bytes.start, bytes.end - 1, stored.length);
            set(&mut fields, header::CONTENT_RANGE, format!("bytes {first}-{last}/{all}"));
            fields.insert(header::CONTENT_LENGTH, (bytes.end - bytes.start).into());
            Given { status: StatusCode::PARTIAL_CONTENT, fields, part: Part::Bytes(bytes) }
        }
        Some(None) => {
            OF_THE_BODY.iter().for_each(|name| drop(fields.remove(name)));
            set(&mut fields, header::CONTENT_RANGE, format!("bytes */{}", stored.length));
            fields.insert(header::CONTENT_LENGTH, 0.into());
            Given { status: StatusCode::RANGE_NOT_SATISFIABLE, fields, part: Part::Nothing }
        }
    }
}

fn set(fields: &mut HeaderMap, name: HeaderName, text: String) {
    if let Ok(value) = HeaderValue::from_str(&text) {
        fields.insert(name, value);
    }
}

/// RFC 9111, section 4.3.2: the host has this already.
fn is_what_he_has(asked: &Asked, stored: &Stored) -> bool {
    let wanted = asked.fields.get_all(header::IF_NONE_MATCH);
    if wanted.iter().next().is_some() {
        let mine = stored.fields.get(header::ETAG).map(|tag| weak(tag.as_bytes()));
        return wanted.iter().filter_map(|v| std::str::from_utf8(v.as_bytes()).ok()).any(|list| {
            split(list)
                .map(str::trim)
                .any(|tag| tag == "*" || mine.is_some_and(|mine| weak(tag.as_bytes()) == mine))
        });
    }
    let since = date(&asked.fields, header::IF_MODIFIED_SINCE);
    let changed =
        date(&stored.fields, header::LAST_MODIFIED).or_else(|| date(&stored.fields, header::DATE));
    since.zip(changed).is_some_and(|(since, changed)| changed <= since)
}

/// Tags are compared without their mark of weakness (RFC 9110, section 8.8.3.2).
fn weak(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// The range that is to be given; `None`: all of it, `Some(None)`: there is no such range. Who
/// wants several gets all of it, too, as any server may answer him.
fn wanted_range(asked: &Asked, stored: &Stored) -> Option<Option<Range<u64>>> {
    let mut all = asked.fields.get_all(header::RANGE).iter();
    let only = all.next().filter(|_| all.next().is_none())?;
    let ranges = only.to_str().ok()?.trim().strip_prefix("bytes=")?;
    if ranges.contains(',') || !may_be_joined(asked, stored) {
        return None;
    }
    let (first, last) = ranges.trim().split_once('-')?;
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => Some(text.parse::<u64>().unwrap_or(u64::MAX)),
        false => None,
    };
    let length = stored.length;
    let bytes = match (first.is_empty(), last.is_empty()) {
        (true, true) => return None,
        (true, false) => length.saturating_sub(number(last)?)..length,
        (false, true) => number(first)?..length,
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            first..last.saturating_add(1).min(length)
        }
    };
    Some((bytes.start < bytes.end).then_some(bytes))
}

/// Is what he has a part of the same (RFC 9110, section 13.1.5)?
pub(super) fn may_be_joined(asked: &Asked, stored: &Stored) -> bool {
    let Some(validator) = asked.fields.get(header::IF_RANGE) else { return true };
    let is = |name| stored.fields.get(name) == Some(validator);
    let is_weak = validator.as_bytes().starts_with(b"W/");
    !is_weak && (is(header::ETAG) || is(header::LAST_MODIFIED))
}
