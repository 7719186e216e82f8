//! What a request that changes something makes obsolete (RFC 9111, section 4.4).

use http::header::{self, HeaderMap};
use http::{Method, StatusCode, Uri};

use super::Key;

/// May a request with this method change what it names?
pub fn changes(method: &Method) -> bool {
    !method.is_safe()
}

/// What was kept of these does not hold any more: the target, and what `Location` and
/// `Content-Location` name on the same host.
pub fn obsolete(key: &Key, status: StatusCode, fields: &HeaderMap) -> Vec<Key> {
    if !status.is_success() && !status.is_redirection() {
        return Vec::new();
    }
    let named = [header::LOCATION, header::CONTENT_LOCATION];
    let named = named.iter().filter_map(|name| fields.get(name)?.to_str().ok());
    let others = named.filter_map(|reference| beside(key, reference));
    std::iter::once(key.clone()).chain(others).collect()
}

/// What `reference` names, if that is on the same host as `key` (RFC 3986, section 5.2).
fn beside(key: &Key, reference: &str) -> Option<Key> {
    let reference = reference.split('#').next()?.trim();
    let (_, host, target) = super::split(&key.uri);
    let scheme = if super::is_secure(&key.uri) { "https:" } else { "http:" };
    let absolute = match reference.split_once("//") {
        Some((named, rest)) if named.is_empty() || named == scheme => {
            format!("{scheme}//{rest}").parse::<Uri>().ok()?
        }
        Some((named, _)) if named.ends_with(':') => return None,
        _ => {
            let path = target.split('?').next()?;
            let merged = match reference.chars().next() {
                Some('/') => reference.to_owned(),
                Some('?') => format!("{path}{reference}"),
                Some(_) => format!("{}{reference}", &path[..=path.rfind('/')?]),
                None => target.to_owned(),
            };
            format!("{scheme}//{host}{}", without_dots(&merged)).parse::<Uri>().ok()?
        }
    };
    let other = Key::new(&key.peer, key.to, &absolute);
    (other.origin() == key.origin()).then_some(other)
}

/// RFC 3986, section 5.2.4.
fn without_dots(target: &str) -> String {
    let (path, query) = match target.find('?') {
        Some(at) => target.split_at(at),
        None => (target, ""),
    };
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    for (n, segment) in segments.iter().enumerate() {
        let last = n + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}{query}", kept.join("/"))
}
