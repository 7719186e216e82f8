//! Results as people read them: text on the terminal, and a page with figures.

use std::fmt::Write as _;

use super::figure::Figure;
use super::measure::Outcome;
use super::results::{Compared, Results, WayResults};
use super::scenario::Scenario;
use crate::plot::{Bar, BarChart, LineChart, Mark, Page, Series, Table, number};

/// Points over the length of a figure's time axis.
const POINTS: f64 = 80.0;
/// Shorter than this a bin shows the bursts of TCP's windows and not its rate, s.
const SHORTEST_BIN: f64 = 0.25;

/// The table of published and measured figures, with the scenario's notes.
pub fn text(scenario: &Scenario, results: &Results) -> String {
    let mut out = format!("{}\n{}\n\n", results.title, results.source);
    let rows: Vec<Vec<String>> = results.ways.iter().flat_map(rows).collect();
    let head = HEAD.map(str::to_owned).to_vec();
    out += &columns(&head, &rows);
    if scenario.published.iter().any(|p| p.derived) {
        let _ = writeln!(out, "\n{DERIVED}");
    }
    for way in &results.ways {
        if let Some(why) = &way.missing {
            let _ = writeln!(out, "\n{} was not run: it {why}.", way.title);
        }
    }
    for failure in results.failures() {
        let _ = writeln!(out, "\nFAILED: {failure}");
    }
    if !scenario.notes.is_empty() {
        out.push_str("\nNotes\n");
    }
    for note in &scenario.notes {
        let _ = writeln!(out, "{}", wrap(note, 90));
    }
    out
}

/// What parentheses mean.
const DERIVED: &str = "In parentheses: not printed in the source, but reckoned from what it says.";
const HEAD: [&str; 6] = ["way", "figure", "unit", "published", "measured", "where"];

/// Figures that were published, and those that explain them.
fn rows(way: &WayResults) -> Vec<Vec<String>> {
    let shown =
        |c: &&Compared| c.published.is_some() || (c.measured.is_some() && way.missing.is_none());
    way.figures
        .iter()
        .filter(shown)
        .map(|c| {
            let over = c.over.as_ref().map(|o| format!(" over {o}")).unwrap_or_default();
            vec![
                way.title.clone(),
                format!("{}{over}", c.figure.title()),
                c.figure.unit().to_owned(),
                c.published.map_or(String::new(), |p| published(p, c.derived)),
                c.measured.map_or_else(|| "not measured".into(), number),
                c.place.clone().unwrap_or_default(),
            ]
        })
        .collect()
}

/// What is not in the source, but follows from it, is in parentheses.
fn published(of: (f64, f64), derived: bool) -> String {
    if derived { format!("({})", range(of)) } else { range(of) }
}

fn range((low, high): (f64, f64)) -> String {
    if low == high { number(low) } else { format!("{}–{}", number(low), number(high)) }
}

/// Text in columns; a first cell that repeats is left out.
pub fn columns(head: &[String], rows: &[Vec<String>]) -> String {
    let width = |i: usize| {
        let cells = rows.iter().map(|r| r.get(i).map_or(0, |c| c.chars().count()));
        cells.chain([head[i].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut out = line(head);
    out += &line(&widths.iter().map(|w| "-".repeat(*w)).collect::<Vec<_>>());
    let mut before = "";
    for row in rows {
        let mut cells = row.clone();
        if row[0] == before {
            cells[0].clear();
        }
        before = &row[0];
        out += &line(&cells);
    }
    out
}

fn wrap(text: &str, width: usize) -> String {
    let (mut out, mut line) = (String::new(), String::from("-"));
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > width {
            out += &line;
            out.push_str("\n ");
            line.clear();
        }
        line.push(' ');
        line += word;
    }
    out + line.trim_end()
}

/// A page about several scenarios.
pub fn page(all: &[(Scenario, Results)]) -> String {
    let mut page = Page::new(
        "Published experiments, repeated",
        "Real Linux hosts, an emulated satellite link, and the figures that the sources \
         printed beside the ones measured here.",
    );
    for (scenario, results) in all {
        page.section(&results.title);
        page.text(scenario.about.trim());
        page.note(&format!("Source: {}", results.source));
        page.table(&table(results));
        if scenario.published.iter().any(|p| p.derived) {
            page.note(DERIVED);
        }
        for failure in results.failures() {
            page.text(&format!("Failed: {failure}"));
        }
        for html in figures(scenario, results) {
            page.figure(&html);
        }
        for note in &scenario.notes {
            page.note(note);
        }
    }
    page.html()
}

fn table(results: &Results) -> Table {
    Table {
        caption: "Published and measured (medians where there are several runs)".into(),
        head: HEAD.map(str::to_owned).to_vec(),
        rows: results.ways.iter().flat_map(rows).collect(),
        text_columns: vec![1, 2, 5],
        best: None,
    }
}

/// The figures of the sources: throughput, utilisation, round trip, server, times.
pub fn figures(scenario: &Scenario, results: &Results) -> Vec<String> {
    if results.ways.iter().any(|w| w.point.is_some()) {
        let traces = traces(scenario, results).into_iter().map(|(_, chart)| chart);
        return sweeps(results).into_iter().chain(traces).map(|c| c.html()).collect();
    }
    let mut all = vec![
        throughput(scenario, results).html(),
        utilisation(results).html(),
        over_time(results, "Round trip seen by the server.", "ms", |o, _| o.server_rtt.clone())
            .html(),
    ];
    for (figure, caption) in [
        (Figure::Goodput, "Content over the time from connecting to the last byte."),
        (Figure::Time, "From connecting to the last byte; ways may carry files of different size."),
        (Figure::ServerBusy, "While the server has data that nobody has acknowledged."),
    ] {
        all.push(bars(results, figure, caption).html());
    }
    all
}

/// The figures that sweeps make: a line for each sweep, goodput against its values.
fn sweeps(results: &Results) -> Vec<LineChart> {
    let mut charts: Vec<LineChart> = Vec::new();
    for way in &results.ways {
        let (Some(point), Some(goodput)) = (&way.point, way.median(Figure::Goodput)) else {
            continue;
        };
        let title = format!("{}.", point.chart);
        let at = charts.iter().position(|c| c.title == title).unwrap_or_else(|| {
            charts.push(LineChart {
                title: title.clone(),
                caption: "Content that the client had in order, all connections together.".into(),
                x_label: point.over.label().into(),
                y_label: "kbit/s".into(),
                ..LineChart::default()
            });
            charts.len() - 1
        });
        let lines = &mut charts[at].series;
        let place = (point.x, goodput);
        match lines.iter_mut().find(|s| s.name == point.line) {
            Some(line) => line.points.push(place),
            None => lines.push(Series {
                name: point.line.clone(),
                colour: way.colour,
                points: vec![place],
            }),
        }
    }
    charts
}

/// For every way that wants it a sequence graph and one of its congestion window, and one of all
/// their queues; each with a name for a file.
pub fn traces(scenario: &Scenario, results: &Results) -> Vec<(String, LineChart)> {
    let wanted = |w: &&WayResults| scenario.way(&w.id).is_some_and(|way| way.trace);
    let runs: Vec<(&WayResults, &Outcome)> =
        results.ways.iter().filter(wanted).filter_map(|w| Some((w, &w.typical()?.work))).collect();
    let x_label = "time since the client began to connect (s)";
    let mut all: Vec<(String, LineChart)> = Vec::new();
    for (way, run) in &runs {
        if !run.elements.is_empty() {
            all.push((format!("{}-{}-elements", results.scenario, way.id), elements(way, run)));
            continue;
        }
        let megabytes = |s: &Points| s.iter().map(|p| (p.0, p.1 / 1e6)).collect();
        let line = |name: &str, colour, points: &Points| Series {
            name: name.into(),
            colour,
            points: megabytes(points),
        };
        all.push((
            format!("{}-{}-sequence", results.scenario, way.id),
            LineChart {
                title: format!("Sequence graph: {}.", way.title),
                caption: "As the server's TCP has it.".into(),
                x_label: x_label.into(),
                y_label: "sequence number (MB)".into(),
                series: vec![
                    line("sent", 1, &run.sent),
                    line("acknowledged", 3, &run.acknowledged),
                ],
                ..LineChart::default()
            },
        ));
        all.push((
            format!("{}-{}-cwnd", results.scenario, way.id),
            LineChart {
                title: format!("Congestion window: {}.", way.title),
                caption: "As the server's TCP tells it (TCP_INFO).".into(),
                x_label: x_label.into(),
                y_label: "congestion window (MB)".into(),
                series: vec![line("cwnd", 2, &run.congestion_window)],
                ..LineChart::default()
            },
        ));
    }
    if runs.iter().any(|(_, run)| run.elements.is_empty()) {
        let line = |(way, run): &(&WayResults, &Outcome)| Series {
            name: way.title.clone(),
            colour: way.colour,
            points: run.down.queue_series(run.started, run.started + run.complete),
        };
        all.push((
            format!("{}-queue", results.scenario),
            LineChart {
                title: "Queue before the link.".into(),
                caption: "The most that waited in each moment.".into(),
                x_label: x_label.into(),
                y_label: "packets of 1,500 bytes".into(),
                series: runs.iter().map(line).collect(),
                ..LineChart::default()
            },
        ));
    }
    all
}

/// When each object of a page was asked for and had come, in the order in which they were asked
/// for.
fn elements(way: &WayResults, run: &Outcome) -> LineChart {
    let mut all = run.elements.clone();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let line = |name: &str, colour, at: fn(&(f64, f64)) -> f64| {
        let mut points: Points = all.iter().map(at).zip((1..).map(f64::from)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: name.into(), colour, points }
    };
    LineChart {
        title: format!("Element transfer sequence: {}.", way.title),
        caption: "Each object of the page, in the order in which they were asked for.".into(),
        x_label: "time since the browser began (s)".into(),
        y_label: "object".into(),
        series: vec![line("asked for", 1, |e| e.0), line("has come", 3, |e| e.1)],
        ..LineChart::default()
    }
}

/// What the link delivered towards the client, over time.
pub fn throughput(scenario: &Scenario, results: &Results) -> LineChart {
    let mark =
        |r: units::BitRate| Mark { at: r.as_bps() as f64 / 1e3, text: format!("link: {r}/s") };
    let series =
        |o: &Outcome, bin| o.down.throughput_series(o.started, o.started + o.complete, bin);
    LineChart {
        caption: "Packets delivered by the link towards the client.".into(),
        marks: scenario.link.down.rate.map(mark).into_iter().collect(),
        ..over_time(results, "Link throughput.", "kbit/s", series)
    }
}

/// How busy the link towards the client was, over time.
pub fn utilisation(results: &Results) -> LineChart {
    let series =
        |o: &Outcome, bin| o.down.utilisation_series(o.started, o.started + o.complete, bin);
    LineChart {
        caption: "Share of the time during which the link towards the client was sending.".into(),
        y_at_least: 100.0,
        ..over_time(results, "Instantaneous utilisation.", "%", series)
    }
}

/// A line for each way's typical run; `value` is asked for points of a given width.
fn over_time(
    results: &Results,
    title: &str,
    y_label: &str,
    value: impl Fn(&Outcome, f64) -> Points,
) -> LineChart {
    let runs: Vec<(&WayResults, &Outcome)> =
        results.ways.iter().filter_map(|w| Some((w, &w.typical()?.work))).collect();
    let longest = runs.iter().map(|r| r.1.complete).fold(0.0, f64::max);
    let bin = (longest / POINTS).max(SHORTEST_BIN);
    let series = runs.iter().map(|(w, o)| Series {
        name: w.title.clone(),
        colour: w.colour,
        points: value(o, bin),
    });
    LineChart {
        title: title.into(),
        x_label: "time since the client began to connect (s)".into(),
        y_label: y_label.into(),
        series: series.collect(),
        ..LineChart::default()
    }
}

type Points = Vec<(f64, f64)>;

fn bars(results: &Results, figure: Figure, caption: &str) -> BarChart {
    let published =
        |w: &WayResults| w.figures.iter().find(|c| c.figure == figure).and_then(|c| c.published);
    let title = figure.title();
    let first = title.chars().next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    BarChart {
        title: format!("{first}{}.", title.get(1..).unwrap_or("")),
        caption: caption.into(),
        x_label: figure.unit().into(),
        bars: results
            .ways
            .iter()
            .map(|w| Bar {
                name: w.title.clone(),
                colour: w.colour,
                value: w.median(figure),
                published: published(w),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::measure::LinkUse;
    use crate::testbed::results::Run;

    fn sample() -> (Scenario, Results) {
        let mut scenario = Scenario::built_in("wise-web").unwrap();
        scenario.ways[1].missing = Some("needs what is not here".into());
        let run = Run {
            work: Outcome {
                bytes: 200_000,
                complete: 19.5,
                link_rate: 100_000,
                ..Outcome::default()
            },
            before: None,
            gateways: None,
            problems: Vec::new(),
        };
        let ways = scenario.ways.iter().cloned().map(|way| {
            let runs = if way.missing.is_some() { vec![] } else { vec![Ok(run.clone())] };
            (way, runs)
        });
        let results = Results::new(&scenario, ways.collect());
        (scenario, results)
    }

    #[test]
    fn text_and_page_show_published_and_measured_and_say_what_is_missing() {
        let (scenario, results) = sample();
        let text = text(&scenario, &results);
        for part in [
            "(90–100)",
            "not printed in the source",
            "82.1",
            "not measured",
            "section 7",
            "was not run",
            "Notes",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        let html = page(&[(scenario, results)]);
        assert!(html.contains("MILCOM") && html.contains("Instantaneous utilisation"));
        assert!(!html.contains("NaN"));
    }

    #[test]
    fn a_way_that_is_traced_has_a_sequence_graph_and_a_line_among_the_queues() {
        let (mut scenario, mut results) = sample();
        assert!(traces(&scenario, &results).is_empty());
        scenario.ways[0].trace = true;
        let run = &mut results.ways[0].runs[0].work;
        (run.sent, run.complete) = (vec![(0.0, 0.0), (1.0, 2e6)], 2.0);
        run.congestion_window = vec![(0.0, 3_000.0), (1.0, 6_000.0)];
        run.down = LinkUse { width: 1.0, queue: vec![3_000.0, 0.0], ..LinkUse::default() };
        let charts = traces(&scenario, &results);
        let names: Vec<&str> = charts.iter().map(|c| c.0.as_str()).collect();
        assert_eq!(names, ["wise-web-tcp-sequence", "wise-web-tcp-cwnd", "wise-web-queue"]);
        assert_eq!(charts[0].1.series[0].points[1], (1.0, 2.0));
        assert_eq!(charts[1].1.series[0].points, [(0.0, 0.003), (1.0, 0.006)]);
        assert_eq!(charts[2].1.series[0].points[0], (0.5, 2.0));
    }

    #[test]
    fn columns_line_up_and_repeated_names_are_left_out() {
        let cells = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        let text = columns(&cells("way", "x"), &[cells("long name", "1"), cells("long name", "2")]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, ["way        x", "---------  -", "long name  1", "           2"]);
    }

    #[test]
    fn notes_are_wrapped_at_words() {
        assert_eq!(wrap("one two three", 9), "- one two\n  three");
    }
}
