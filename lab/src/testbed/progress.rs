//! What is going on, for people who wait: a few lines that are drawn again on a
//! terminal, or a line every ten seconds elsewhere.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// One thing that makes progress.
#[derive(Debug)]
pub struct Row {
    title: String,
    total: u64,
    /// Bytes done; traffic adds to it.
    pub done: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
enum State {
    Waiting,
    Running(Instant),
    Over(String),
}

impl Row {
    /// The work begins; the first of several runs counts.
    pub fn begin(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Waiting) {
            *state = State::Running(Instant::now());
        }
    }

    /// The work is over; `summary` says with what result.
    pub fn end(&self, summary: String) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Over(summary);
    }

    fn text(&self) -> String {
        let done = self.done.load(Ordering::Relaxed) as f64;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match state {
            State::Waiting => format!("{:<38} waiting", self.title),
            State::Over(summary) => format!("{:<38} {summary}", self.title),
            State::Running(since) if self.total == 0 => {
                format!("{:<38} for {:.0} s", self.title, since.elapsed().as_secs_f64())
            }
            State::Running(since) => {
                let share = (done / self.total as f64).min(1.0);
                let filled = (share * 20.0) as usize;
                let bar: String = (0..20).map(|i| if i < filled { '━' } else { '─' }).collect();
                let rate = done * 8.0 / 1e3 / since.elapsed().as_secs_f64().max(0.1);
                format!("{:<38} {bar} {:3.0} % {rate:8.0} kbit/s", self.title, share * 100.0)
            }
        }
    }
}

/// All rows, and the thread that shows them.
#[derive(Debug)]
pub struct Board {
    shared: Arc<Shared>,
    painter: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    rows: Mutex<Vec<Arc<Row>>>,
    stop: AtomicBool,
    drawn: AtomicU64,
}

impl Board {
    /// Starts to show rows on standard error; nothing is shown if `quiet`.
    pub fn start(quiet: bool) -> Board {
        let shared = Arc::<Shared>::default();
        let painter = (!quiet).then(|| {
            let shared = shared.clone();
            thread::spawn(move || paint(&shared))
        });
        Board { shared, painter }
    }

    /// Adds a row for `total` bytes; 0: only the time that it takes is shown.
    pub fn row(&self, title: &str, total: u64) -> Arc<Row> {
        let row = Arc::new(Row {
            title: title.to_owned(),
            total,
            done: AtomicUsize::new(0),
            state: Mutex::new(State::Waiting),
        });
        self.shared.rows.lock().unwrap_or_else(PoisonError::into_inner).push(row.clone());
        row
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(painter) = self.painter.take() {
            let _ = painter.join();
        }
    }
}

fn paint(shared: &Shared) {
    let terminal = std::io::stderr().is_terminal();
    let pause = Duration::from_millis(if terminal { 250 } else { 10_000 });
    loop {
        let stop = wait(shared, pause);
        draw(shared, terminal);
        if stop {
            return;
        }
    }
}

/// Waits for `pause`, or less if it is time to stop; true then.
fn wait(shared: &Shared, pause: Duration) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < pause {
        if shared.stop.load(Ordering::Relaxed) {
            return true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    shared.stop.load(Ordering::Relaxed)
}

fn draw(shared: &Shared, terminal: bool) {
    let rows = shared.rows.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut out = String::new();
    let drawn = shared.drawn.swap(rows.len() as u64, Ordering::Relaxed);
    if terminal && drawn > 0 {
        let _ = write!(out, "\x1b[{drawn}A");
    }
    for row in rows {
        let _ = writeln!(out, "{}{}", if terminal { "\x1b[2K" } else { "  " }, row.text());
    }
    if !terminal {
        out.push('\n');
    }
    // Progress that cannot be shown is no reason to stop working.
    let _ = std::io::stderr().write_all(out.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_where_its_work_stands() {
        let board = Board::start(true);
        let row = board.row("Satellite", 1000);
        assert!(row.text().ends_with("waiting"));
        row.begin();
        row.done.store(500, Ordering::Relaxed);
        assert!(row.text().contains("50 %"), "{}", row.text());
        let timed = board.row("A day", 0);
        timed.begin();
        assert!(timed.text().ends_with(" for 0 s"), "{}", timed.text());
        row.end("1.5 Mbit/s".into());
        assert!(row.text().ends_with("1.5 Mbit/s"));
    }
}
