//! A chart of horizontal bars, with published ranges as brackets.

use std::fmt::Write;

use super::{COLOURS, Ticks, escape, number};

const WIDTH: f64 = 760.0;
const LABELS: f64 = 200.0;
const RIGHT: f64 = 90.0;
const ROW: f64 = 30.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 44.0;

/// One bar, with the published range it is to be compared with, if there is one.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What the bar stands for.
    pub name: String,
    /// Colour slot, 0…[`COLOURS`]−1.
    pub colour: usize,
    /// Its length; `None` draws "not measured".
    pub value: Option<f64>,
    /// What a source published: low and high end, drawn as a bracket over the bar.
    pub published: Option<(f64, f64)>,
}

/// Horizontal bars, measured, with published ranges as brackets.
#[derive(Clone, Debug, Default)]
pub struct BarChart {
    /// The figure's title.
    pub title: String,
    /// One sentence under the title.
    pub caption: String,
    /// The x axis with its unit.
    pub x_label: String,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

impl BarChart {
    /// The figure as HTML.
    pub fn html(&self) -> String {
        let most = self
            .bars
            .iter()
            .flat_map(|b| b.value.into_iter().chain(b.published.map(|p| p.1)))
            .fold(0.0, f64::max);
        let ticks = Ticks::covering(0.0, most, 6);
        let height = TOP + ROW * self.bars.len() as f64 + BOTTOM;
        let mut out = String::from("<figure class=\"chart\">");
        let (title, caption) = (escape(&self.title), escape(&self.caption));
        let _ = write!(
            out,
            "<figcaption><b>{title}</b> {caption}</figcaption>\
             <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">",
        );
        self.axis(&ticks, height - BOTTOM, &mut out);
        for (i, bar) in self.bars.iter().enumerate() {
            draw(bar, &ticks, TOP + ROW * i as f64, &mut out);
        }
        out.push_str("</svg></figure>");
        out
    }

    fn axis(&self, ticks: &Ticks, bottom: f64, out: &mut String) {
        for &x in &ticks.at {
            let (px, text) = (px(ticks, x), number(x));
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
                 <text class=\"tick\" x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                bottom + 16.0,
            );
        }
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LABELS + WIDTH - RIGHT) / 2.0,
            bottom + 36.0,
            escape(&self.x_label),
        );
    }
}

fn px(ticks: &Ticks, x: f64) -> f64 {
    LABELS + x / ticks.high() * (WIDTH - LABELS - RIGHT)
}

fn draw(bar: &Bar, ticks: &Ticks, top: f64, out: &mut String) {
    let middle = top + ROW / 2.0;
    let _ = write!(
        out,
        "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        LABELS - 8.0,
        middle + 4.0,
        escape(&bar.name),
    );
    let end = px(ticks, bar.value.unwrap_or(0.0).max(0.0));
    let text = bar.value.map_or_else(|| "not measured".into(), number);
    let _ = write!(
        out,
        "<rect x=\"{LABELS}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" \
         style=\"fill:var(--s{})\"/>",
        top + 6.0,
        end - LABELS,
        ROW - 12.0,
        bar.colour % COLOURS,
    );
    let mut text_at = end;
    if let Some((low, high)) = bar.published {
        let (a, b) = (px(ticks, low), px(ticks, high).max(px(ticks, low) + 2.0));
        text_at = text_at.max(b);
        let _ = write!(
            out,
            "<path class=\"published\" d=\"M{a:.1} {:.1}V{:.1}M{a:.1} {middle:.1}H{b:.1}\
             M{b:.1} {:.1}V{:.1}\"><title>published: {} to {}</title></path>",
            top + 4.0,
            top + ROW - 4.0,
            top + 4.0,
            top + ROW - 4.0,
            number(low),
            number(high),
        );
    }
    let _ = write!(
        out,
        "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
        text_at + 7.0,
        middle + 4.0,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_its_value_and_the_published_range() {
        let bar = |value| Bar {
            name: "with <gateways>".into(),
            colour: 9,
            value,
            published: Some((320.0, 320.0)),
        };
        let chart = BarChart { bars: vec![bar(Some(318.0)), bar(None)], ..BarChart::default() };
        let html = chart.html();
        assert!(html.contains(">318<") && html.contains("not measured"));
        assert!(html.contains("published: 320") && html.contains("&lt;gateways&gt;"));
        assert!(!html.contains("NaN"));
    }
}
