//! A page of charts, tables and text, as one HTML file.

use std::fmt::Write;

use super::escape;

const CSS: &str = include_str!("page.css");
const JS: &str = include_str!("page.js");

/// A table: the first column is text, the others are figures unless said otherwise.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What the table shows.
    pub caption: String,
    /// Column heads.
    pub head: Vec<String>,
    /// Rows of cells.
    pub rows: Vec<Vec<String>>,
    /// Columns that hold text and are set flush left (the first always is).
    pub text_columns: Vec<usize>,
    /// The row to stress, if any.
    pub best: Option<usize>,
}

/// A page under construction.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// A page with a title and one sentence that says what it shows.
    pub fn new(title: &str, lead: &str) -> Page {
        let mut body = String::new();
        let (t, l) = (escape(title), escape(lead));
        let _ = write!(body, "<h1>{t}</h1>\n<p class=\"lead\">{l}</p>\n");
        Page { title: title.to_owned(), body }
    }

    /// Starts a section.
    pub fn section(&mut self, heading: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(heading));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", escape(text));
    }

    /// Adds a paragraph in small print: sources, settings, caveats.
    pub fn note(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"note\">{}</p>", escape(text));
    }

    /// Adds a figure made by a chart's `html`.
    pub fn figure(&mut self, html: &str) {
        self.body.push_str(html);
        self.body.push('\n');
    }

    /// Adds a table.
    pub fn table(&mut self, table: &Table) {
        let class = |i: usize| match table.text_columns.contains(&i) {
            true => " class=\"text\"",
            false => "",
        };
        let out = &mut self.body;
        out.push_str("<div class=\"scroll\"><table>");
        if !table.caption.is_empty() {
            let _ = write!(out, "<caption>{}</caption>", escape(&table.caption));
        }
        out.push_str("<thead><tr>");
        for (i, cell) in table.head.iter().enumerate() {
            let _ = write!(out, "<th{}>{}</th>", class(i), escape(cell));
        }
        out.push_str("</tr></thead><tbody>");
        for (n, row) in table.rows.iter().enumerate() {
            out.push_str(if table.best == Some(n) { "<tr class=\"best\">" } else { "<tr>" });
            for (i, cell) in row.iter().enumerate() {
                let _ = write!(out, "<td{}>{}</td>", class(i), escape(cell));
            }
            out.push_str("</tr>");
        }
        out.push_str("</tbody></table></div>\n");
    }

    /// The finished page.
    pub fn html(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n{}<script>\n{JS}</script>\n\
             </body>\n</html>\n",
            escape(&self.title),
            self.body,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stands_alone() {
        let mut page = Page::new("T1 & satellite", "What it shows.");
        page.section("Figures");
        page.table(&Table {
            head: vec!["way".into(), "kbit/s".into()],
            rows: vec![vec!["<script>alert(1)</script>".into(), "12".into()]],
            best: Some(0),
            ..Table::default()
        });
        let html = page.html();
        assert!(html.contains("T1 &amp; satellite") && html.contains("<tr class=\"best\">"));
        assert!(!html.contains("<script>alert") && !html.contains("http"));
    }
}
