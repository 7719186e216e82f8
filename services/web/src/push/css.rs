//! What a style sheet names, while it streams by.

use super::{Found, Kind};

/// Bytes of one token that are kept until the rest has come; what is longer names nothing.
pub(super) const MAX_TOKEN: usize = 4 << 10;
/// Fonts of one `@font-face` that are looked at.
const MAX_SOURCES: usize = 16;

/// Reads one style sheet.
#[derive(Debug, Default)]
pub struct Css {
    /// What has come and is not read, because its end has not come.
    rest: Vec<u8>,
    in_comment: bool,
    /// In an `@font-face`: its sources so far.
    font: Option<Vec<String>>,
}

/// What one look at the bytes brings.
enum Step {
    /// So many bytes that name nothing.
    Skip(usize),
    /// An object, and the bytes that name it.
    Name(String, usize),
    /// Likewise, of `@import`.
    Import(String, usize),
    FontBegins(usize),
    CommentBegins,
    BlockEnds,
    /// The end of it has not come yet.
    More,
}

impl Css {
    /// What the next bytes name.
    pub fn read(&mut self, bytes: &[u8], found: &mut Vec<Found>) {
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(bytes);
        let mut at = 0;
        while at < all.len() {
            if self.in_comment {
                match all[at..].windows(2).position(|w| w == b"*/") {
                    Some(n) => at += n + 2,
                    None => {
                        at = at.max(all.len() - 1);
                        break;
                    }
                }
                self.in_comment = false;
                continue;
            }
            // No look goes further than a token may, so that a sheet takes time by its length.
            let window = &all[at..all.len().min(at + MAX_TOKEN)];
            match step(window) {
                Step::Skip(n) => at += n,
                Step::Name(name, n) => {
                    self.name(name, found);
                    at += n;
                }
                Step::Import(reference, n) => {
                    found.push(Found { reference, kind: Kind::Style });
                    at += n;
                }
                Step::FontBegins(n) => {
                    self.font = Some(Vec::new());
                    at += n;
                }
                Step::CommentBegins => {
                    self.in_comment = true;
                    at += 2;
                }
                Step::BlockEnds => {
                    found.extend(self.font.take().and_then(best_font));
                    at += 1;
                }
                Step::More if window.len() == MAX_TOKEN => at += MAX_TOKEN,
                Step::More => break,
            }
        }
        self.rest = all.split_off(at);
    }

    fn name(&mut self, reference: String, found: &mut Vec<Found>) {
        match &mut self.font {
            Some(sources) if sources.len() < MAX_SOURCES => sources.push(reference),
            Some(_) => {}
            None => found.push(Found { reference, kind: Kind::Image }),
        }
    }
}

/// A font comes in several formats, of which browsers take the newest that they know.
fn best_font(sources: Vec<String>) -> Option<Found> {
    let with = |ending: &str| {
        sources
            .iter()
            .find(|s| s.split(['?', '#']).next().is_some_and(|path| path.ends_with(ending)))
    };
    let best = with(".woff2").or_else(|| with(".woff")).or_else(|| sources.first())?;
    Some(Found { reference: best.clone(), kind: Kind::Font })
}

fn step(bytes: &[u8]) -> Step {
    match bytes[0] {
        b'/' => comment(bytes),
        b'"' | b'\'' => match string(bytes) {
            Some((_, n)) => Step::Skip(n),
            None => Step::More,
        },
        b'@' => at_rule(bytes),
        b'u' | b'U' => match begins(bytes, b"url(") {
            Some(true) => url(bytes).map_or(Step::More, |(name, n)| named(name, n)),
            Some(false) => Step::Skip(1),
            None => Step::More,
        },
        b'}' => Step::BlockEnds,
        b'\\' if bytes.len() > 1 => Step::Skip(2),
        b'\\' => Step::More,
        _ => Step::Skip(
            bytes.iter().position(|b| b"/\"'@uU}\\".contains(b)).unwrap_or(bytes.len()).max(1),
        ),
    }
}

fn named(name: String, n: usize) -> Step {
    match name.is_empty() || name.starts_with('#') {
        true => Step::Skip(n),
        false => Step::Name(name, n),
    }
}

/// Does it begin with this word? `None`: too short to know.
fn begins(bytes: &[u8], word: &[u8]) -> Option<bool> {
    let n = bytes.len().min(word.len());
    match bytes[..n].eq_ignore_ascii_case(&word[..n]) {
        true if n < word.len() => None,
        same => Some(same),
    }
}

fn comment(bytes: &[u8]) -> Step {
    match begins(bytes, b"/*") {
        Some(true) => Step::CommentBegins,
        Some(false) => Step::Skip(1),
        None => Step::More,
    }
}

fn at_rule(bytes: &[u8]) -> Step {
    let (import, font) = (begins(bytes, b"@import"), begins(bytes, b"@font-face"));
    if import.is_none() || font.is_none() {
        return Step::More;
    }
    if font == Some(true) {
        return Step::FontBegins(b"@font-face".len());
    }
    if import == Some(false) {
        return Step::Skip(1);
    }
    let word = b"@import".len();
    let spaces = bytes[word..].iter().take_while(|b| b.is_ascii_whitespace()).count();
    let rest = &bytes[word + spaces..];
    let named = match rest.first() {
        None => return Step::More,
        Some(b'"' | b'\'') => string(rest),
        Some(b'u' | b'U') => match begins(rest, b"url(") {
            Some(true) => url(rest),
            Some(false) => return Step::Skip(word),
            None => return Step::More,
        },
        Some(_) => return Step::Skip(word),
    };
    named.map_or(Step::More, |(name, n)| Step::Import(name, word + spaces + n))
}

/// A string, and its length with its quotes.
fn string(bytes: &[u8]) -> Option<(String, usize)> {
    let quote = bytes[0];
    let mut text = Vec::new();
    let mut at = 1;
    loop {
        match *bytes.get(at)? {
            b if b == quote => return Some((into_text(text), at + 1)),
            b'\\' => {
                text.push(*bytes.get(at + 1)?);
                at += 2;
            }
            // It has no end in its line, and is none.
            b'\n' => return Some((String::new(), at)),
            b => {
                text.push(b);
                at += 1;
            }
        }
    }
}

/// What `url(…)` names, and its length.
fn url(bytes: &[u8]) -> Option<(String, usize)> {
    let mut at = b"url(".len();
    at += bytes[at..].iter().take_while(|b| b.is_ascii_whitespace()).count();
    if matches!(bytes.get(at)?, b'"' | b'\'') {
        let (name, n) = string(&bytes[at..])?;
        return Some((name, at + n));
    }
    let end = at + bytes[at..].iter().position(|b| *b == b')')?;
    let name = into_text(bytes[at..end].to_vec());
    Some((name.trim().to_owned(), end + 1))
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, step: usize) -> Vec<(String, Kind)> {
        let (mut css, mut found) = (Css::default(), Vec::new());
        for part in text.as_bytes().chunks(step) {
            css.read(part, &mut found);
        }
        found.into_iter().map(|f| (f.reference, f.kind)).collect()
    }

    #[test]
    fn a_style_sheet_names_sheets_images_and_one_format_of_each_font() {
        let text = "@charset \"utf-8\"; @import 'a.css'; @IMPORT url( \"b.css\" ) screen;\n\
                    /* url(commented.png) */ body { background: url(c.png) } \n\
                    p::before { content: \"url(quoted.png)\"; cursor: url('d.cur'), auto }\n\
                    @font-face { font-family: x; src: url(e.eot); src: url(e.eot?#iefix) format('x'), \
                    url(e.woff) format(\"woff\"), url('e.woff2?v=1') format('woff2') }\n\
                    @font-face{src:url(f.ttf)} i{mask:url(#here)} b{background:URL( g.png )}";
        let expected = [
            ("a.css", Kind::Style),
            ("b.css", Kind::Style),
            ("c.png", Kind::Image),
            ("d.cur", Kind::Image),
            ("e.woff2?v=1", Kind::Font),
            ("f.ttf", Kind::Font),
            ("g.png", Kind::Image),
        ]
        .map(|(name, kind)| (name.to_owned(), kind));
        for step in 1..40 {
            assert_eq!(found(text, step), expected, "by {step} bytes");
        }
    }

    #[test]
    fn what_has_no_end_is_not_kept() {
        for begin in ["url(", "\"", "/* ", "@import \"", "@font-face{src:url('"] {
            let (mut css, mut found) = (Css::default(), Vec::new());
            css.read(begin.as_bytes(), &mut found);
            for _ in 0..200 {
                css.read(&[b'a'; 1000], &mut found);
                assert!(css.rest.len() <= MAX_TOKEN, "{begin}: {}", css.rest.len());
            }
        }
        let mut many = Css::default();
        many.read(b"@font-face{", &mut Vec::new());
        for _ in 0..1000 {
            many.read(b"src:url(a);", &mut Vec::new());
        }
        assert_eq!(many.font.unwrap().len(), MAX_SOURCES);
    }
}
