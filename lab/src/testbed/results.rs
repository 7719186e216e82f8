//! What a scenario gave: for every way its runs, and medians beside what was published.

use serde::{Deserialize, Serialize};

use super::figure::{Bound, Figure, Published};
use super::measure::{Outcome, median};
use super::scenario::Scenario;
use super::way::Point;
use super::way::Way;

/// All ways of one scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The scenario's name.
    pub scenario: String,
    /// Its title.
    pub title: String,
    /// What published the figures.
    pub source: String,
    /// One entry for each way, in the scenario's order.
    pub ways: Vec<WayResults>,
}

/// One way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WayResults {
    /// Its id in the scenario.
    pub id: String,
    /// Its name for people.
    pub title: String,
    /// Colour slot in figures.
    pub colour: usize,
    /// Where it stands in a figure of several ways.
    #[serde(default)]
    pub point: Option<Point>,
    /// Why it was not run.
    pub missing: Option<String>,
    /// The runs, by seed.
    pub runs: Vec<Run>,
    /// Runs that failed, and why.
    pub failures: Vec<String>,
    /// Measured and published figures side by side.
    pub figures: Vec<Compared>,
}

/// One run: the work itself, and what was carried before it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The scenario's work.
    pub work: Outcome,
    /// What went before it on the idle link, such as a page.
    pub before: Option<Outcome>,
    /// What the two gateways used, where there are any: client's side, server's side.
    pub gateways: Option<[Load; 2]>,
    /// What went wrong in the emulated link; with problems, figures mean nothing.
    pub problems: Vec<String>,
}

/// What one gateway process used.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// Processor time during the run, s.
    pub cpu: f64,
    /// Resident memory at its end, bytes.
    pub memory: u64,
}

/// A measured figure beside the published one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Compared {
    /// Which figure.
    pub figure: Figure,
    /// Median over the runs, in the figure's unit.
    pub measured: Option<f64>,
    /// Low and high end of what was published.
    pub published: Option<(f64, f64)>,
    /// That was reckoned from what the source prints, and is not printed there.
    #[serde(default)]
    pub derived: bool,
    /// How the source words it.
    pub says: Option<String>,
    /// Where it is printed.
    pub place: Option<String>,
    /// For a speed-up: faster than which way.
    pub over: Option<String>,
}

impl Results {
    /// Puts the runs of all ways beside the published figures.
    pub fn new(scenario: &Scenario, ways: Vec<(Way, Vec<Result<Run, String>>)>) -> Results {
        let mut all: Vec<WayResults> = ways
            .into_iter()
            .map(|(way, runs)| {
                let (good, bad): (Vec<_>, Vec<_>) = runs.into_iter().partition(Result::is_ok);
                WayResults {
                    id: way.id,
                    title: way.title,
                    colour: way.colour,
                    point: way.point,
                    missing: way.missing,
                    runs: good.into_iter().filter_map(Result::ok).collect(),
                    failures: bad.into_iter().filter_map(Result::err).collect(),
                    figures: Vec::new(),
                }
            })
            .collect();
        let goodputs: Vec<(String, Option<f64>)> =
            all.iter().map(|w| (w.id.clone(), w.median(Figure::Goodput))).collect();
        for way in &mut all {
            way.figures = compare(scenario, way, &goodputs);
        }
        Results {
            scenario: scenario.name.clone(),
            title: scenario.title.clone(),
            source: scenario.source.clone(),
            ways: all,
        }
    }

    /// What keeps the figures from being trusted: failed runs, and links that this
    /// machine could not emulate.
    pub fn failures(&self) -> Vec<String> {
        let of_way = |w: &WayResults| -> Vec<String> {
            let problems = w.runs.iter().flat_map(|r| &r.problems);
            w.failures.iter().chain(problems).map(|why| format!("{}: {why}", w.title)).collect()
        };
        self.ways.iter().flat_map(of_way).collect()
    }

    /// The bounds of the scenario that are not kept, a sentence each.
    pub fn outside(&self, scenario: &Scenario) -> Vec<String> {
        let check = |bound: &Bound| {
            let way = self.way(&bound.way)?;
            let (mut name, mut unit) = (bound.figure.title().to_owned(), bound.figure.unit());
            let mut value = way.median(bound.figure);
            if let Some(over) = &bound.over {
                let whole = self.way(over).and_then(|over| over.median(bound.figure));
                value = value.zip(whole).map(|(value, whole)| value / whole);
                (name, unit) = (format!("{name} over {over}'s"), "×");
            }
            let least = bound.least.map(|n| format!("at least {n}"));
            let most = bound.most.map(|n| format!("at most {n}"));
            let must: Vec<String> = least.into_iter().chain(most).collect();
            let must = must.join(" and ");
            match value {
                Some(value) if bound.holds(value) => None,
                Some(value) => Some(format!(
                    "{}, {}: {name} is {value:.2} {unit} and must be {must}",
                    self.scenario, way.id
                )),
                None => Some(format!(
                    "{}, {}: {name} was not measured and must be {must} {unit}",
                    self.scenario, way.id
                )),
            }
        };
        scenario.bounds.iter().filter_map(check).collect()
    }

    /// The way of that id.
    pub fn way(&self, id: &str) -> Option<&WayResults> {
        self.ways.iter().find(|w| w.id == id)
    }
}

impl WayResults {
    /// Median over the runs.
    pub fn median(&self, figure: Figure) -> Option<f64> {
        median(self.runs.iter().filter_map(|r| r.work.figure(figure)))
    }

    /// The run that figures over time show: the one of median duration.
    pub fn typical(&self) -> Option<&Run> {
        let mut sorted: Vec<&Run> = self.runs.iter().collect();
        sorted.sort_by(|a, b| a.work.complete.total_cmp(&b.work.complete));
        sorted.get(sorted.len() / 2).copied()
    }
}

/// Every figure of a way once, with what was published of it; further published
/// speed-ups follow.
fn compare(
    scenario: &Scenario,
    way: &WayResults,
    goodputs: &[(String, Option<f64>)],
) -> Vec<Compared> {
    let published: Vec<&Published> =
        scenario.published.iter().filter(|p| p.way == way.id).collect();
    let goodput = |id: &str| goodputs.iter().find(|g| g.0 == id).and_then(|g| g.1);
    let entry = |figure: Figure, p: Option<&Published>, measured: Option<f64>| Compared {
        figure,
        measured,
        published: p.map(Published::range),
        derived: p.is_some_and(|p| p.derived),
        says: p.and_then(|p| p.says.clone()),
        place: p.map(|p| p.place.clone()),
        over: p.and_then(|p| p.over.clone()),
    };
    let mut all = Vec::new();
    for figure in Figure::ALL {
        let mut of_it = published.iter().filter(|p| p.figure == figure).peekable();
        if figure != Figure::Speedup && of_it.peek().is_none() {
            all.push(entry(figure, None, way.median(figure)));
        }
        for p in of_it {
            let measured = match &p.over {
                // Files may differ in size, so the ratio of times is that of goodputs.
                Some(over) => goodput(&way.id).zip(goodput(over)).map(|(a, b)| a / b),
                None => way.median(figure),
            };
            all.push(entry(figure, Some(p), measured));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: u64, complete: f64) -> Result<Run, String> {
        let work = Outcome { bytes, complete, ..Outcome::default() };
        Ok(Run { work, before: None, gateways: None, problems: vec![] })
    }

    #[test]
    fn a_figure_outside_its_bounds_is_named_with_them() {
        let mut scenario = Scenario::built_in("umd-ftp").unwrap();
        let bound = |figure, least, most| {
            let over = None;
            Bound { way: "gateways".into(), figure, over, least, most }
        };
        scenario.bounds = vec![
            bound(Figure::Goodput, Some(1_000.0), Some(2_000.0)),
            bound(Figure::Goodput, Some(1_601.0), None),
            bound(Figure::Goodput, Some(1.0), Some(1_500.0)),
            bound(Figure::Ping, None, Some(9.0)),
        ];
        let ways = scenario.ways.iter().cloned().map(|way| {
            let runs = if way.id == "gateways" { vec![run(10_000_000, 50.0)] } else { vec![] };
            (way, runs)
        });
        let outside = Results::new(&scenario, ways.collect()).outside(&scenario);
        assert_eq!(
            outside,
            [
                "umd-ftp, gateways: goodput is 1600.00 kbit/s and must be at least 1601",
                "umd-ftp, gateways: goodput is 1600.00 kbit/s and must be at least 1 and at most 1500",
                "umd-ftp, gateways: ping was not measured and must be at most 9 ms",
            ]
        );
    }

    #[test]
    fn a_bound_over_another_way_is_for_the_share_of_its_figure() {
        let mut scenario = Scenario::built_in("umd-ftp").unwrap();
        let bound = |over: &str, least, most| Bound {
            way: "gateways".into(),
            figure: Figure::Goodput,
            over: Some(over.into()),
            least,
            most,
        };
        // 1,600 kbit/s over 500.
        scenario.bounds = vec![
            bound("satellite", Some(3.1), Some(3.3)),
            bound("satellite", Some(4.0), None),
            bound("satellite", None, Some(1.0)),
            bound("terrestrial", Some(1.0), None),
        ];
        let ways = scenario.ways.iter().cloned().map(|way| {
            let runs = match way.id.as_str() {
                "satellite" => vec![run(4_000_000, 64.0)],
                "gateways" => vec![run(10_000_000, 50.0)],
                _ => vec![],
            };
            (way, runs)
        });
        let outside = Results::new(&scenario, ways.collect()).outside(&scenario);
        assert_eq!(
            outside,
            [
                "umd-ftp, gateways: goodput over satellite's is 3.20 × and must be at least 4",
                "umd-ftp, gateways: goodput over satellite's is 3.20 × and must be at most 1",
                "umd-ftp, gateways: goodput over terrestrial's was not measured and must be at \
                 least 1 ×",
            ]
        );
    }

    #[test]
    fn a_speedup_compares_rates_so_that_sizes_may_differ() {
        let scenario = Scenario::built_in("umd-ftp").unwrap();
        let ways = scenario.ways.iter().cloned().map(|way| {
            let runs = match way.id.as_str() {
                "satellite" => vec![run(4_000_000, 64.0)],
                "gateways" => vec![run(10_000_000, 54.0), run(10_000_000, 50.0), Err("x".into())],
                _ => vec![],
            };
            (way, runs)
        });
        let results = Results::new(&scenario, ways.collect());
        let gateways = results.way("gateways").unwrap();
        let speedups: Vec<&Compared> =
            gateways.figures.iter().filter(|c| c.figure == Figure::Speedup).collect();
        assert_eq!(speedups.len(), 2);
        let over_satellite = speedups[0].measured.unwrap();
        assert!((over_satellite - 10.0 / 52.0 * 16.0).abs() < 0.01, "{over_satellite}");
        assert_eq!(speedups[1].measured, None);
        assert_eq!(results.failures(), ["Satellite, gateways: x"]);
    }
}
