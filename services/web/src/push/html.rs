//! What a page names, while it streams by.

use std::cell::RefCell;
use std::rc::Rc;

use lol_html::html_content::{Element, TextChunk};
use lol_html::{HtmlRewriter, MemorySettings, Settings, element, text};

use super::css::Css;
use super::{Found, Kind};

/// Bytes that one page's reader may take.
const MEMORY: usize = 256 << 10;
/// It is given so many at a time: what it gets in one piece, it reads without counting.
const PIECE: usize = 16 << 10;
/// The longest reference to a character that is known, up to its ";".
const REFERENCE: usize = 8;
/// A page's width in CSS pixels, where an image has several widths and says no more.
const WIDTH: u32 = 1280;

type Nowhere = fn(&[u8]);

/// Reads one page.
pub struct Html {
    /// Nothing any more, once a page was too much for it.
    reader: Option<HtmlRewriter<'static, Nowhere>>,
    seen: Rc<RefCell<Seen>>,
}

#[derive(Default)]
struct Seen {
    found: Vec<Found>,
    /// The first `base` with a reference, until it is taken.
    base: Option<String>,
    has_base: bool,
    style: Css,
    /// The next element is in something that browsers do not show.
    hidden: bool,
    /// In a `picture` with sources, whose `img` shows one of them.
    has_sources: bool,
}

impl Html {
    /// Of a page from its first byte.
    pub fn new() -> Html {
        let seen = Rc::new(RefCell::new(Seen::default()));
        let [hidden, sources, every, style] = [(); 4].map(|()| Rc::clone(&seen));
        let memory = MemorySettings::new()
            .with_max_allowed_memory_usage(MEMORY)
            .with_preallocated_parsing_buffer_size(1 << 10);
        let settings = Settings::new()
            .with_memory_settings(memory)
            .with_strict(false)
            .append_element_content_handler(element!("noscript *, template *", move |_| {
                hidden.borrow_mut().hidden = true;
                Ok(())
            }))
            .append_element_content_handler(element!("picture > source", move |_| {
                sources.borrow_mut().has_sources = true;
                Ok(())
            }))
            .append_element_content_handler(element!("*", move |it: &mut Element| {
                every.borrow_mut().element(it);
                Ok(())
            }))
            .append_element_content_handler(text!("style", move |it: &mut TextChunk| {
                let mut seen = style.borrow_mut();
                let Seen { style, found, .. } = &mut *seen;
                style.read(it.as_str().as_bytes(), found);
                if it.last_in_text_node() {
                    *style = Css::default();
                }
                Ok(())
            }));
        // What comes out of it is what went in: the page itself goes another way.
        let nowhere: Nowhere = |_| {};
        Html { reader: Some(HtmlRewriter::new(settings, nowhere)), seen }
    }

    /// What the next bytes name. After an error the rest names nothing.
    pub fn read(&mut self, bytes: &[u8], found: &mut Vec<Found>) {
        for piece in bytes.chunks(PIECE) {
            if let Some(reader) = &mut self.reader
                && reader.write(piece).is_err()
            {
                self.reader = None;
            }
        }
        found.append(&mut self.seen.borrow_mut().found);
    }

    /// What the page says its references start from, as it is written there. It is told once.
    pub fn take_base(&mut self) -> Option<String> {
        self.seen.borrow_mut().base.take()
    }
}

impl Seen {
    fn element(&mut self, it: &Element) {
        if std::mem::take(&mut self.hidden) {
            return;
        }
        let attribute = |name: &str| it.get_attribute(name).map(|value| unescape(&value));
        if let Some(style) = attribute("style").filter(|s| s.contains("url(")) {
            Css::default().read(style.as_bytes(), &mut self.found);
        }
        let lazy = attribute("loading").is_some_and(|l| l.eq_ignore_ascii_case("lazy"));
        let name = it.tag_name();
        let named = match name.as_str() {
            _ if lazy => None,
            "base" if !self.has_base => {
                self.base = attribute("href");
                self.has_base = self.base.is_some();
                None
            }
            "picture" => {
                self.has_sources = false;
                None
            }
            "img" if self.has_sources => {
                self.has_sources = false;
                None
            }
            "img" => image(attribute("src"), attribute("srcset"), attribute("sizes")),
            "input" => attribute("type")
                .filter(|t| t.eq_ignore_ascii_case("image"))
                .and_then(|_| attribute("src"))
                .map(|src| (src, Kind::Image)),
            "video" => attribute("poster").map(|src| (src, Kind::Image)),
            "body" | "table" | "tr" | "td" | "th" => {
                attribute("background").map(|src| (src, Kind::Image))
            }
            "iframe" | "frame" => attribute("src").map(|src| (src, Kind::Page)),
            "script" => script(attribute),
            "link" => link(attribute),
            _ => None,
        };
        self.found.extend(named.map(|(reference, kind)| Found { reference, kind }));
    }
}

type Named = Option<(String, Kind)>;

fn script(attribute: impl Fn(&str) -> Option<String>) -> Named {
    let kind = attribute("type").unwrap_or_default().trim().to_ascii_lowercase();
    let runs = ["", "module", "text/javascript", "application/javascript"].contains(&kind.as_str());
    (runs && attribute("nomodule").is_none())
        .then(|| attribute("src"))
        .flatten()
        .map(|src| (src, Kind::Script))
}

fn link(attribute: impl Fn(&str) -> Option<String>) -> Named {
    let rel = attribute("rel")?.to_ascii_lowercase();
    let kind = link_kind(&rel, attribute("as").as_deref())?;
    // A sheet for another medium is fetched last, if at all.
    let media = attribute("media").unwrap_or_default();
    let other = media.trim().eq_ignore_ascii_case("print") || attribute("disabled").is_some();
    (!other).then(|| attribute("href")).flatten().map(|href| (href, kind))
}

/// What a link of these relations leads to, if a browser fetches it at once.
pub fn link_kind(rel: &str, r#as: Option<&str>) -> Option<Kind> {
    let is = |name: &str| rel.split_ascii_whitespace().any(|r| r.eq_ignore_ascii_case(name));
    match () {
        () if is("alternate") => None,
        () if is("stylesheet") => Some(Kind::Style),
        () if is("modulepreload") => Some(Kind::Script),
        () if is("preload") => match r#as?.to_ascii_lowercase().as_str() {
            "style" => Some(Kind::Style),
            "script" => Some(Kind::Script),
            "font" => Some(Kind::Font),
            _ => Some(Kind::Image),
        },
        () if is("icon") => Some(Kind::Image),
        () => None,
    }
}

/// The one of an image's files that a browser on a plain screen takes; none if that depends on
/// more than the page's width.
fn image(src: Option<String>, set: Option<String>, sizes: Option<String>) -> Named {
    let Some(set) = set else { return src.map(|src| (src, Kind::Image)) };
    let mut candidates = set.split(", ").flat_map(|c| c.split(",\n")).filter_map(|candidate| {
        let mut words = candidate.split_ascii_whitespace();
        let url = words.next()?.trim_end_matches(',');
        Some((url.to_owned(), words.next().map(|d| d.trim_end_matches(',').to_owned())))
    });
    let wide = |d: &Option<String>| d.as_ref()?.strip_suffix('w')?.parse::<u32>().ok();
    let all: Vec<_> = candidates.by_ref().take(32).collect();
    if all.iter().any(|(_, d)| wide(d).is_some()) {
        let mut by_width: Vec<_> = all.iter().filter_map(|(u, d)| Some((wide(d)?, u))).collect();
        by_width.sort();
        let best = by_width.iter().find(|(w, _)| *w >= WIDTH).or(by_width.last())?;
        return sizes.is_none().then(|| (best.1.clone(), Kind::Image));
    }
    let plain = |d: &Option<String>| d.as_ref().is_none_or(|d| d == "1x" || d == "1.0x");
    let one = all.into_iter().find(|(_, d)| plain(d)).map(|(url, _)| url);
    one.or(src).map(|src| (src, Kind::Image))
}

/// An attribute's value without the references that addresses have.
fn unescape(value: &str) -> String {
    let mut text = String::new();
    let mut rest = value;
    while let Some(at) = rest.find('&') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        // No further: a value may have a million of "&" and no ";".
        let end = rest.bytes().take(REFERENCE + 1).position(|b| b == b';');
        let known = end.and_then(|end| character(&rest[1..end]).map(|c| (c, end + 1)));
        let (c, length) = known.unwrap_or(('&', 1));
        text.push(c);
        rest = &rest[length..];
    }
    text + rest
}

fn character(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, step: usize) -> Vec<(String, Kind)> {
        let (mut html, mut found) = (Html::new(), Vec::new());
        for part in page.as_bytes().chunks(step) {
            html.read(part, &mut found);
        }
        found.into_iter().map(|f| (f.reference, f.kind)).collect()
    }

    #[test]
    fn a_page_names_what_a_browser_would_ask_for_and_not_what_it_would_not() {
        let page = r#"<!doctype html><head><title>x</title>
            <link rel="stylesheet" href="a.css"><link rel=icon href=/b.ico>
            <link rel="preload" as="font" href="c.woff2"><link rel="modulepreload" href="d.js">
            <link rel="stylesheet" media="print" href="no.css"><link rel="next" href="no.html">
            <link rel="alternate stylesheet" href="no.css">
            <script src="e.js?a=1&amp;b=2&#38;c"></script><script type="text/template" src="no.js"></script>
            <script nomodule src="no.js"></script><script>document.write('<img src="no.png">')</script>
            <style>body { background: url("f.png") } @import "g.css";</style></head>
            <body background=h.gif><!-- <img src="no.png"> --><a href="no.html">no</a>
            <img src="i.png"><IMG SRC='j.png' srcset="k.png 1x, no.png 2x">
            <img src="no.png" srcset="no-1.png 320w, l.png 1600w, no-2.png 3200w">
            <img srcset="no.png 320w, no.png 640w" sizes="(max-width: 9px) 100vw, 50vw">
            <img loading="lazy" src="no.png"><noscript><img src="no.png"></noscript>
            <template><img src="no.png"></template>
            <picture><source srcset="no.webp" type="image/webp"><img src="no.png"></picture>
            <picture><img src="m.png"></picture><iframe src="n.html"></iframe>
            <div style="background: url(o.png)"></div><input type=image src=p.png>
            <video poster="q.jpg"><source src="no.mp4"></video></body>"#;
        let expected: Vec<(String, Kind)> = [
            ("a.css", Kind::Style),
            ("/b.ico", Kind::Image),
            ("c.woff2", Kind::Font),
            ("d.js", Kind::Script),
            ("e.js?a=1&b=2&c", Kind::Script),
            ("f.png", Kind::Image),
            ("g.css", Kind::Style),
            ("h.gif", Kind::Image),
            ("i.png", Kind::Image),
            ("k.png", Kind::Image),
            ("l.png", Kind::Image),
            ("m.png", Kind::Image),
            ("n.html", Kind::Page),
            ("o.png", Kind::Image),
            ("p.png", Kind::Image),
            ("q.jpg", Kind::Image),
        ]
        .map(|(name, kind)| (name.to_owned(), kind))
        .into();
        for step in [1, 7, 64, 1 << 20] {
            assert_eq!(found(page, step), expected, "by {step} bytes");
        }
    }

    #[test]
    fn a_page_without_ends_takes_no_more_memory_than_it_may() {
        for begin in ["<img src=\"", "<", "<!--", "<style>", "<script>", "<div "] {
            let (mut html, mut found) = (Html::new(), Vec::new());
            html.read(begin.as_bytes(), &mut found);
            for _ in 0..100 {
                html.read(&[b'a'; 10_000], &mut found);
            }
            assert!(found.is_empty(), "{begin}");
        }
        let (mut deep, mut found) = (Html::new(), Vec::new());
        for _ in 0..1000 {
            deep.read("<div>".repeat(200).as_bytes(), &mut found);
        }
        assert!(deep.reader.is_none(), "a page of 200,000 levels is given up");
    }

    #[test]
    fn references_without_ends_cost_no_more_than_others() {
        assert_eq!(unescape("a&amp;b&#x41;&#x10FFFF;&nope;&"), "a&bA&#x10FFFF;&nope;&");
        let value = "&".repeat(1 << 20);
        // Looked for through the rest each time, their ends would take a minute.
        let begin = std::time::Instant::now();
        assert_eq!(unescape(&value), value);
        assert!(begin.elapsed() < std::time::Duration::from_secs(10));
    }

    #[test]
    fn an_attribute_has_no_more_room_in_one_piece_than_in_many() {
        let page = format!("<img src=\"{}\"><img src=b.png>", "a".repeat(2 * MEMORY));
        assert_eq!(found(&page, page.len()), []);
    }

    #[test]
    fn where_references_start_is_told_once() {
        let mut html = Html::new();
        html.read(b"<base target=x><base href='/a/'><base href='/b/'>", &mut Vec::new());
        assert_eq!(html.take_base().as_deref(), Some("/a/"));
        html.read(b"<base href='/c/'>", &mut Vec::new());
        assert_eq!(html.take_base(), None);
    }
}
