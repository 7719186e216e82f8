//! Finds what a text names, whatever kind of text it is.

use http::header::{self, HeaderMap};
use http::{StatusCode, Uri};
use url::Url;

use super::css::Css;
use super::html::{Html, link_kind};
use super::{Found, Kind, MAX_ADDRESS};

/// Names in `Link` fields that are looked at.
const MAX_LINKS: usize = 64;

/// Reads one answer.
pub enum Scanner {
    /// A page.
    Html(Box<Html>),
    /// A style sheet.
    Css(Css),
    /// Something that names nothing.
    Blind,
}

impl Scanner {
    /// For what is inside an answer with these fields ([`Reader`](crate::encoded::Decoder)).
    pub fn of(fields: &HeaderMap) -> Scanner {
        let kind = fields.get(header::CONTENT_TYPE).and_then(|t| t.to_str().ok()).unwrap_or("");
        match kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase().as_str() {
            "text/html" | "application/xhtml+xml" => Scanner::Html(Box::new(Html::new())),
            "text/css" => Scanner::Css(Css::default()),
            _ => Scanner::Blind,
        }
    }

    /// What the next bytes name.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        match self {
            Scanner::Html(html) => html.read(bytes, &mut found),
            Scanner::Css(css) => css.read(bytes, &mut found),
            Scanner::Blind => {}
        }
        found
    }

    /// From where references start, where the text has said so since this was asked.
    fn take_base(&mut self) -> Option<String> {
        match self {
            Scanner::Html(html) => html.take_base(),
            _ => None,
        }
    }
}

/// A text, and from where its references start.
pub struct Text {
    scanner: Scanner,
    base: Url,
}

impl Text {
    /// Of what is at `url`.
    pub fn new(scanner: Scanner, url: Url) -> Text {
        Text { scanner, base: url }
    }

    /// What the next bytes name.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<Found> {
        let found = self.scanner.read(bytes);
        // Each reference copies it.
        let fits = |base: &Url| base.as_str().len() <= MAX_ADDRESS;
        let written = self.scanner.take_base().filter(|base| base.len() <= MAX_ADDRESS);
        if let Some(base) = written.and_then(|base| self.base.join(base.trim()).ok()).filter(fits) {
            self.base = base;
        }
        found
    }

    /// From where references start.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// The rest of it names nothing.
    pub fn give_up(&mut self) {
        self.scanner = Scanner::Blind;
    }
}

/// What an answer's fields name: where a redirect leads, and what `Link` says.
pub fn in_fields(status: StatusCode, fields: &HeaderMap) -> Vec<Found> {
    let mut found = Vec::new();
    if status.is_redirection()
        && status != StatusCode::NOT_MODIFIED
        && let Some(to) = fields.get(header::LOCATION).and_then(|l| l.to_str().ok())
    {
        found.push(Found { reference: to.to_owned(), kind: Kind::Page });
    }
    let links = fields.get_all(header::LINK).iter().filter_map(|l| l.to_str().ok());
    found.extend(links.flat_map(links_in).take(MAX_LINKS));
    found
}

/// What one `Link` field names (RFC 8288): `<reference>; name=value, <reference>…`.
fn links_in(mut field: &str) -> Vec<Found> {
    let mut found = Vec::new();
    while let Some((_, rest)) = field.split_once('<') {
        let Some((reference, rest)) = rest.split_once('>') else { break };
        let end = rest.find('<').unwrap_or(rest.len());
        let (mut rel, mut kind) = ("", None);
        for parameter in rest[..end].split([';', ',']) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "rel" => rel = value,
                "as" => kind = Some(value),
                _ => {}
            }
        }
        let kind = link_kind(rel, kind);
        found.extend(kind.map(|kind| Found { reference: reference.trim().to_owned(), kind }));
        field = &rest[end..];
    }
    found
}

/// May the answer to such a request name objects? What ends like an image does not.
pub fn may_name_others(uri: &Uri, fields: &HeaderMap) -> bool {
    const NAMING: [&str; 12] =
        ["", "html", "htm", "xhtml", "shtml", "php", "asp", "aspx", "jsp", "cgi", "do", "css"];
    let accepts = fields.get(header::ACCEPT).and_then(|a| a.to_str().ok()).unwrap_or("");
    let last = uri.path().rsplit('/').next().unwrap_or("");
    let ending = last.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    match accepts.contains("text/html") || accepts.contains("text/css") {
        true => true,
        false => {
            (accepts.is_empty() || accepts.contains("*/*")) && NAMING.contains(&ending.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(n, v)| (header::HeaderName::from_static(n), v.parse().unwrap()))
            .collect()
    }

    #[test]
    fn only_pages_and_sheets_are_read() {
        let is_blind = |f: &[_]| matches!(Scanner::of(&fields(f)), Scanner::Blind);
        assert!(!is_blind(&[("content-type", "text/html; charset=utf-8")]));
        assert!(!is_blind(&[("content-type", "TEXT/CSS")]));
        assert!(is_blind(&[("content-type", "image/png")]));
        assert!(is_blind(&[]));
    }

    fn base_of(page: &str, step: usize) -> String {
        let html = Scanner::Html(Box::new(Html::new()));
        let mut text = Text::new(html, Url::parse("http://a.test/dir/page").unwrap());
        page.as_bytes().chunks(step).for_each(|part| drop(text.read(part)));
        text.base().to_string()
    }

    #[test]
    fn references_start_where_the_page_says_however_many_pieces_follow() {
        let page = format!("<base href='sub/'>{}<base href='no/'>", "filler ".repeat(100));
        for step in [1, 7, 1 << 20] {
            assert_eq!(base_of(&page, step), "http://a.test/dir/sub/", "by {step} bytes");
        }
        assert_eq!(base_of("<base href='http://b.test/c'> ", 1), "http://b.test/c");
    }

    #[test]
    fn a_base_takes_no_more_than_an_address_may() {
        for length in [1000, 200_000] {
            let page = format!("<base href='{}/'>{}", "a".repeat(length), "x".repeat(1000));
            assert!(base_of(&page, length).len() < 2 << 10, "{length}");
            let base = base_of(&page, length + 20);
            assert!(base.len() < 2 << 10, "{length}");
        }
        let wide = format!("<base href='{}/'> ", "\u{e9}".repeat(1000));
        assert_eq!(base_of(&wide, 4096), "http://a.test/dir/page", "three bytes each");
    }

    #[test]
    fn fields_name_where_a_redirect_leads_and_what_is_linked() {
        let names = |status: u16, f: &[_]| {
            let found = in_fields(StatusCode::from_u16(status).unwrap(), &fields(f));
            found.into_iter().map(|f| (f.reference, f.kind)).collect::<Vec<_>>()
        };
        assert_eq!(names(302, &[("location", "/a")]), [("/a".into(), Kind::Page)]);
        assert_eq!(names(200, &[("location", "/a")]), []);
        assert_eq!(names(304, &[("location", "/a")]), []);
        let link = "</a.css>; rel=preload; as=style, <b,c.js>; as=\"script\"; rel=\"preload\", \
                    <d>; rel=next, <e.css>;rel=stylesheet, <broken";
        let expected = [("/a.css", Kind::Style), ("b,c.js", Kind::Script), ("e.css", Kind::Style)]
            .map(|(name, kind)| (name.to_owned(), kind));
        assert_eq!(names(200, &[("link", link)]), expected);
    }

    #[test]
    fn requests_for_pages_are_told_from_those_for_images() {
        let may = |uri: &str, accept: &'static str| {
            may_name_others(&uri.parse().unwrap(), &fields(&[("accept", accept)]))
        };
        assert!(may("http://a/", "text/html,*/*"));
        assert!(may("http://a/x.png", "text/html,*/*;q=0.8"), "who types it");
        assert!(may("http://a/x.css", "text/css,*/*;q=0.1"));
        assert!(may("http://a/x.y/z?a=b.png", "*/*"));
        assert!(!may("http://a/x.png", "*/*"));
        assert!(!may("http://a/x", "image/png"));
    }
}
