//! A chart of lines over time.

use std::fmt::Write;

use super::{COLOURS, Ticks, escape, number};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// Room for title and legend above the drawing of a picture.
const HEAD: f64 = 48.0;
/// What `page.css` says of light screens, for a file that has no page around it.
const PICTURE: &str = "svg{--s0:#75808e;--s1:#c4500c;--s2:#8a4fc7;--s3:#0a69b5;--s4:#157f55;\
     --s5:#b0307a}text{fill:#5b6675}.name{fill:#1d2530;font-weight:600}.grid{stroke:#d9dee5}\
     .axis{stroke:#5b6675}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}\
     .reference{stroke-width:5;stroke-opacity:.45}.mark{stroke:#5b6675;stroke-dasharray:5 4}";
/// More points than this a screen cannot show.
const MOST_POINTS: usize = 700;

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Colour slot, 0…[`COLOURS`]−1.
    pub colour: usize,
    /// Points in ascending order of x.
    pub points: Vec<(f64, f64)>,
}

/// A horizontal line at a value worth comparing with, such as the rate of the link.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Where it lies on the y axis.
    pub at: f64,
    /// What it says.
    pub text: String,
}

/// Lines over a common x axis, mostly time.
#[derive(Clone, Debug, Default)]
pub struct LineChart {
    /// The figure's title.
    pub title: String,
    /// One sentence under the title: how to read it.
    pub caption: String,
    /// x axis with its unit, such as `time (s)`.
    pub x_label: String,
    /// y axis with its unit.
    pub y_label: String,
    /// The lines.
    pub series: Vec<Series>,
    /// Lines to compare with.
    pub marks: Vec<Mark>,
    /// The y axis reaches at least to here.
    pub y_at_least: f64,
}

/// Where the data lies on the drawing.
struct Frame {
    x: Ticks,
    x_high: f64,
    y: Ticks,
}

impl Frame {
    fn px(&self, x: f64) -> f64 {
        let span = (self.x_high - self.x.low()).max(f64::MIN_POSITIVE);
        LEFT + (x - self.x.low()) / span * (WIDTH - LEFT - RIGHT)
    }

    fn py(&self, y: f64) -> f64 {
        let share = (y - self.y.low()) / (self.y.high() - self.y.low());
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

impl LineChart {
    /// The figure as HTML: caption, legend, SVG and the numbers for the read-out.
    pub fn html(&self) -> String {
        let mut out = String::from("<figure class=\"chart\">");
        self.head(&mut out);
        self.svg(&mut out);
        out.push_str("<div class=\"tip\" hidden></div>");
        let _ = write!(out, "<script type=\"application/json\">{}</script></figure>", self.data());
        out
    }

    /// The figure as an SVG file of its own, on white, with its title and legend.
    pub fn picture(&self) -> String {
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<style>{PICTURE}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text class=\"name\" x=\"{LEFT}\" y=\"20\">{} {}</text>\n",
            HEIGHT + HEAD,
            escape(&self.title),
            escape(&self.caption),
        );
        let mut x = LEFT;
        for s in &self.series {
            let (c, name) = (s.colour % COLOURS, escape(&s.name));
            let _ = writeln!(
                out,
                "<path class=\"line\" style=\"stroke:var(--s{c})\" d=\"M{x:.0} 38h16\"/>\
                 <text x=\"{:.0}\" y=\"42\">{name}</text>",
                x + 22.0,
            );
            x += 52.0 + 6.5 * s.name.chars().count() as f64;
        }
        let _ = writeln!(out, "<g transform=\"translate(0 {HEAD})\">");
        self.drawing(&self.frame(), &mut out);
        out + "</g>\n</svg>\n"
    }

    fn head(&self, out: &mut String) {
        let (title, caption) = (escape(&self.title), escape(&self.caption));
        let _ = write!(out, "<figcaption><b>{title}</b> {caption}</figcaption>");
        out.push_str("<ul class=\"legend\">");
        for s in &self.series {
            let (c, name) = (s.colour % COLOURS, escape(&s.name));
            let _ = write!(out, "<li><i style=\"background:var(--s{c})\"></i>{name}</li>");
        }
        out.push_str("</ul>");
    }

    fn frame(&self) -> Frame {
        let points = || self.series.iter().flat_map(|s| s.points.iter());
        let x_low = points().map(|p| p.0).fold(f64::INFINITY, f64::min).min(0.0);
        let x_high = points().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
        let y_high = points()
            .map(|p| p.1)
            .chain(self.marks.iter().map(|m| m.at))
            .fold(self.y_at_least, f64::max);
        let x = Ticks::covering(x_low, x_high, 8);
        // The x axis ends where the data ends; a half-empty plot wastes its width.
        let x_high = if x_high > x.low() { x_high } else { x.high() };
        Frame { x, x_high, y: Ticks::covering(0.0, y_high, 5) }
    }

    fn svg(&self, out: &mut String) {
        let frame = self.frame();
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\" \
             data-x0=\"{:.2}\" data-x1=\"{:.2}\" data-y0=\"{:.2}\" data-y1=\"{:.2}\">",
            escape(&self.title),
            frame.px(frame.x.low()),
            frame.px(frame.x_high),
            frame.py(frame.y.low()),
            frame.py(frame.y.high()),
        );
        self.drawing(&frame, out);
        out.push_str("<line class=\"cross\" hidden/></svg>");
    }

    fn drawing(&self, frame: &Frame, out: &mut String) {
        self.grid(frame, out);
        for mark in &self.marks {
            self.mark(frame, mark, out);
        }
        for s in &self.series {
            // The reference is broad and pale, so that it shows beneath a line it equals.
            let class = if s.colour == 0 { "line reference" } else { "line" };
            let _ = write!(
                out,
                "<path class=\"{class}\" style=\"stroke:var(--s{})\" d=\"{}\"/>",
                s.colour % COLOURS,
                path(frame, &thin(&s.points)),
            );
        }
    }

    fn grid(&self, frame: &Frame, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for &y in &frame.y.at {
            let (py, text) = (frame.py(y), number(y));
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{py:.1}\" y2=\"{py:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 7.0,
                py + 4.0,
            );
        }
        for &x in frame.x.at.iter().filter(|x| **x <= frame.x_high * (1.0 + 1e-9)) {
            let (px, text) = (frame.px(x), number(x));
            let _ = write!(
                out,
                "<line class=\"axis\" x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"{bottom}\" y2=\"{:.1}\"/>\
                 <text class=\"tick\" x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                bottom + 5.0,
                bottom + 18.0,
            );
        }
        let _ = write!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
             <text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"label\" transform=\"translate(14 {:.1}) rotate(-90)\" \
             text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            escape(&self.x_label),
            (TOP + bottom) / 2.0,
            escape(&self.y_label),
        );
    }

    fn mark(&self, frame: &Frame, mark: &Mark, out: &mut String) {
        let (py, right) = (frame.py(mark.at), WIDTH - RIGHT);
        let _ = write!(
            out,
            "<line class=\"mark\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{py:.1}\" y2=\"{py:.1}\"/>\
             <text class=\"marktext\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            right - 4.0,
            py - 5.0,
            escape(&mark.text),
        );
    }

    /// What the read-out needs: the ranges and the thinned points.
    fn data(&self) -> String {
        let frame = self.frame();
        let lines: Vec<serde_json::Value> = self
            .series
            .iter()
            .map(|s| {
                let points: Vec<[f64; 2]> =
                    thin(&s.points).iter().map(|p| [round4(p.0), round4(p.1)]).collect();
                serde_json::json!({ "name": s.name, "colour": s.colour % COLOURS, "points": points })
            })
            .collect();
        let data = serde_json::json!({
            "x": [frame.x.low(), frame.x_high], "y": [frame.y.low(), frame.y.high()],
            "xLabel": self.x_label, "yLabel": self.y_label, "series": lines,
        });
        // A name that contains "</script>" must not end the element.
        data.to_string().replace('<', "\\u003c")
    }
}

fn round4(v: f64) -> f64 {
    (v * 1e4).round() / 1e4
}

fn path(frame: &Frame, points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        let op = if i == 0 { 'M' } else { 'L' };
        let _ = write!(d, "{op}{:.1} {:.1}", frame.px(x), frame.py(y));
    }
    d
}

/// At most [`MOST_POINTS`] points; each stands for the mean of those it replaces.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let finite: Vec<(f64, f64)> =
        points.iter().copied().filter(|p| p.0.is_finite() && p.1.is_finite()).collect();
    let group = finite.len().div_ceil(MOST_POINTS).max(1);
    finite
        .chunks(group)
        .map(|c| {
            let n = c.len() as f64;
            (c.iter().map(|p| p.0).sum::<f64>() / n, c.iter().map(|p| p.1).sum::<f64>() / n)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> LineChart {
        LineChart {
            title: "Throughput".into(),
            x_label: "time (s)".into(),
            y_label: "kbit/s".into(),
            series: vec![Series {
                name: "a </script>".into(),
                colour: 3,
                points: vec![(0.0, 0.0), (1.0, f64::NAN), (2.0, 1500.0)],
            }],
            marks: vec![Mark { at: 1544.0, text: "T1".into() }],
            ..LineChart::default()
        }
    }

    #[test]
    fn a_chart_names_its_axes_and_skips_what_is_not_a_number() {
        let html = chart().html();
        assert!(html.contains("time (s)") && html.contains("kbit/s") && html.contains("T1"));
        assert!(!html.contains("NaN"));
        assert_eq!(html.matches("</script>").count(), 1);
    }

    #[test]
    fn a_picture_stands_alone_with_title_legend_and_lines() {
        let svg = chart().picture();
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        for part in ["Throughput", "a &lt;/script&gt;", "time (s)", "--s3:", "class=\"line\""] {
            assert!(svg.contains(part), "{part} is missing in:\n{svg}");
        }
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }

    #[test]
    fn a_chart_without_points_still_draws_its_axes() {
        let empty = LineChart { series: vec![], marks: vec![], ..chart() };
        assert!(!empty.html().contains("NaN"));
    }

    #[test]
    fn thinning_keeps_the_mean() {
        let points: Vec<(f64, f64)> = (0..2100).map(|i| (i as f64, (i % 3) as f64)).collect();
        let thinned = thin(&points);
        assert_eq!(thinned.len(), 700);
        assert!(thinned.iter().all(|p| (p.1 - 1.0).abs() < 1e-9));
    }
}
