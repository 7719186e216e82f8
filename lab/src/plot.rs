//! Charts and pages for people: self-contained HTML with inline SVG.
//!
//! A [`Page`] is a list of sections; a section holds prose, tables and figures.
//! Figures are drawn here, by hand, into SVG: axes with units, light grid lines, a
//! legend, colours from CSS variables so that one file reads well on light and dark
//! screens. A few lines of script add a read-out under the pointer; without script
//! everything can still be read. Nothing is fetched from anywhere.

mod bars;
mod line;
mod page;
mod scale;

pub use bars::{Bar, BarChart};
pub use line::{LineChart, Mark, Series};
pub use page::{Page, Table};
pub use scale::{Ticks, number};

/// The colour slots of a page; each is a CSS variable with a light and a dark value.
/// What a colour stands for must be the same in every figure of a page; slot 0 is the
/// reference that others are compared with.
pub const COLOURS: usize = 6;

/// `text` with the five characters that HTML and SVG treat specially made harmless.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_become_markup() {
        assert_eq!(escape("<b a=\"1\">&'"), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;");
    }
}
