//! The committed grid of throughputs, cell by cell: no cell may become worse.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sim::grid;

#[test]
fn no_cell_of_the_grid_is_worse_than_the_committed_one() {
    let text = include_str!("../../grid.txt");
    let before = grid::shares(text).expect("grid.txt is of another grid; `make grid`");
    let cells = grid::cells();
    let next = AtomicUsize::new(0);
    let worse: Vec<String> = thread::scope(|scope| {
        let work = || {
            let mut worse = Vec::new();
            loop {
                // The last are the longest.
                let taken = next.fetch_add(1, Ordering::Relaxed);
                let Some(i) = cells.len().checked_sub(1 + taken) else { return worse };
                match grid::measure(&cells[i]) {
                    Ok(now) if now.share >= before[i] - grid::tolerance(&cells[i]) => {}
                    Ok(now) => worse.push(format!(
                        "{:.2} % instead of {:.2} %: {:?}",
                        now.share, before[i], cells[i]
                    )),
                    Err(failure) => worse.push(format!("{failure}: {:?}", cells[i])),
                }
            }
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert!(worse.is_empty(), "worse than grid.txt:\n{}", worse.join("\n"));
}
