//! The committed hashes of seeds: every build replays them, on every machine. `make seeds` compares
//! those of the optimised build; `make hashes` writes them down anew, after a change of the
//! protocol or of what seeds mean.

use sim::net::{NetPlan, run_net};

/// The hash of what a line of the file names.
fn hash_of(words: &[&str]) -> String {
    let number = |word: &str| word.parse().expect("a number");
    match *words {
        [seed] => sim::run(number(seed)).map(|report| report.hash),
        [kind, size, seed] => {
            let (size, seed) = (number(size) as usize, number(seed));
            let plan = match kind {
                "star" => NetPlan::drawn_star(seed, size),
                "mesh" => NetPlan::drawn_mesh(seed, size),
                _ => NetPlan::drawn_row(seed, size),
            };
            run_net(&plan, None).map(|report| report.hash)
        }
        _ => panic!("no run: {words:?}"),
    }
    .unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn seeds_have_the_hashes_that_are_written_down() {
    let mut now = String::new();
    for line in include_str!("../../hashes.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (_, run) = words.split_last().expect("a hash");
        now += &format!("{} {}\n", run.join(" "), hash_of(run));
    }
    assert!(now.lines().count() >= 10);
    assert_eq!(now, include_str!("../../hashes.txt"), "make hashes writes them down");
}
