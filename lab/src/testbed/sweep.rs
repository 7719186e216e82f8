//! One way of a scenario for each of several values: throughput against the link's rate,
//! or against the number of connections, as sources draw it.

use channel::QueueLimit;
use units::{BitRate, ByteCount};

use super::figure::Published;
use super::way::{Over, Point, Sweep, Way, Work};

/// Puts in place of every way with a sweep its points, called `ID-VALUE`. What was
/// published of the whole line is published of each of them.
pub fn expand(ways: Vec<Way>, published: &mut Vec<Published>) -> Result<Vec<Way>, String> {
    let mut all = Vec::new();
    for way in ways {
        let Some(sweep) = way.sweep.clone() else {
            all.push(way);
            continue;
        };
        let points: Vec<Way> =
            sweep.values.iter().map(|v| point(&way, &sweep, v)).collect::<Result<_, _>>()?;
        let (of_line, rest) = published.drain(..).partition::<Vec<_>, _>(|p| p.way == way.id);
        *published = rest;
        for p in of_line {
            let each = |w: &Way| Published { way: w.id.clone(), ..p.clone() };
            published.extend(points.iter().map(each));
        }
        all.extend(points);
    }
    Ok(all)
}

fn point(way: &Way, sweep: &Sweep, value: &str) -> Result<Way, String> {
    let wrong = |why: String| format!("\"{value}\" in the sweep of \"{}\" {why}", way.id);
    let mut one = way.clone();
    one.sweep = None;
    one.id = format!("{}-{value}", way.id);
    let x = match sweep.over {
        Over::Rate => {
            let rate: BitRate = value.parse().map_err(|e| wrong(format!("is no rate: {e}")))?;
            one.rate = Some(rate);
            one.title = format!("{}, {rate}/s", way.title);
            rate.as_bps() as f64 / 1e3
        }
        Over::Connections => {
            let n: u32 = value.parse().map_err(|e| wrong(format!("is no number: {e}")))?;
            match &mut one.work {
                Some(Work::Streams { count, .. }) => *count = n,
                _ => return Err(wrong("needs a way whose own work is of kind \"streams\"".into())),
            }
            one.title = format!("{}, {n} connections", way.title);
            f64::from(n)
        }
        Over::Window | Over::Queue | Over::Bucket => {
            let size: ByteCount = value.parse().map_err(|e| wrong(format!("is no size: {e}")))?;
            one.title = format!("{}, {value}", way.title);
            match (sweep.over, &mut one.hosts.shape) {
                (Over::Window, _) => one.hosts.window = Some(size),
                (Over::Queue, _) => one.queue = Some(QueueLimit::Bytes(size)),
                (_, Some(shape)) => shape.bucket = size,
                (_, None) => return Err(wrong("needs a way with `hosts.shape`".into())),
            }
            size.0 as f64 / if sweep.over == Over::Queue { 1_500.0 } else { 1_000.0 }
        }
    };
    let (chart, line) = (sweep.chart.clone(), way.title.clone());
    one.point = Some(Point { chart, line, over: sweep.over, x });
    Ok(one)
}
