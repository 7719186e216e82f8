//! Self-tests of links whose line costs: none begins without the operator's word, and none before
//! the line is up. What is measured while a modem trains, or after the line is down, says nothing
//! of the link.

use control::{LineCommand, TestProgress};
use dial::manager::Command;
use link::PeerId;
use units::{Duration, Instant};

use super::Shard;
use super::standing::Lines;
use crate::human::lasting;
use crate::up::self_test::{NewTest, RAISING, TestNews};

/// How often whoever waits for the line hears that it does.
const TELL: Duration = Duration::from_secs(1);

/// A test that waits for its line.
pub struct WaitingTest {
    test: NewTest,
    since: Instant,
    tell_at: Instant,
    /// The line was seen rising since.
    has_risen: bool,
}

/// What a line is to a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metered {
    /// What it costs, in words; `None`: the file does not say.
    pub prices: Option<String>,
    /// Why it is as it is.
    pub cause: String,
}

/// What becomes of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It measures.
    Begins,
    /// It waits until the line is up.
    Waits,
    /// It ends, for this reason.
    Fails(String),
}

/// May a test of the link to `name` begin? The operator has said that it `may_raise` the line.
pub fn begin(
    name: &str,
    metered: Option<&Metered>,
    lines: Option<Lines>,
    may_raise: bool,
) -> Verdict {
    let Some(line) = metered else { return Verdict::Begins };
    if lines == Some(Lines::OrderedDown) {
        return Verdict::Fails(ordered_down(name));
    }
    if !may_raise {
        let prices = match &line.prices {
            Some(prices) => format!("costs {prices}"),
            None => "may cost, and the file does not say what".to_owned(),
        };
        return Verdict::Fails(format!(
            "a test of the link to {name} goes by a line that {prices}: `bentpipe test {name} \
             --raise` raises the line if it is down, and measures all the same"
        ));
    }
    match lines {
        None | Some(Lines::Carry) => Verdict::Begins,
        Some(_) => Verdict::Waits,
    }
}

/// What becomes of a test that waits, or (`is_measuring`) is under way.
pub fn go_on(
    name: &str,
    cause: &str,
    lines: Option<Lines>,
    has_risen: bool,
    is_measuring: bool,
) -> Verdict {
    match lines {
        None | Some(Lines::Carry) => Verdict::Begins,
        Some(Lines::OrderedDown) => Verdict::Fails(ordered_down(name)),
        Some(_) if is_measuring => {
            Verdict::Fails(format!("the line to {name} went down during the test: {cause}"))
        }
        Some(Lines::Failed | Lines::Resting) if has_risen => {
            Verdict::Fails(format!("the line to {name} did not come up: {cause}"))
        }
        Some(_) => Verdict::Waits,
    }
}

fn ordered_down(name: &str) -> String {
    format!(
        "the line to {name} is ordered down (`bentpipe link down`): `bentpipe link auto {name}` \
         leaves it to the rules again"
    )
}

impl Shard {
    /// Begins a test, has it wait for its line, or says why not.
    pub(super) fn begin_test(&mut self, now: Instant, test: NewTest) {
        let (id, lines) = (test.peer, self.lines_to(now, test.peer));
        let metered = self.metered(now, id, lines);
        match begin(&test.name, metered.as_ref(), lines, test.wanted.raise) {
            Verdict::Begins => self.tests.ask(now, &self.relay, test),
            Verdict::Fails(why) => drop(test.listener.tell(TestNews::Failed(why))),
            Verdict::Waits => self.raise_for(now, test),
        }
    }

    fn raise_for(&mut self, now: Instant, test: NewTest) {
        let Some(line) = self.lines.iter().find(|line| line.peer == test.peer) else {
            let why = format!("{} calls by telephone, and has not: wait for its call", test.name);
            test.listener.tell(TestNews::Failed(why));
            return;
        };
        if let Err(why) = line.may_raise(now, None) {
            test.listener.tell(TestNews::Failed(why));
            return;
        }
        let (key, is_left_to_rules) = (line.key(), line.command() == Command::Auto);
        if is_left_to_rules {
            self.command_line(now, &key, None, LineCommand::Up);
        }
        self.line_tests.push(WaitingTest { test, since: now, tell_at: now, has_risen: false });
        self.work_line_tests(now);
    }

    /// What the line is that a test would go by; `None`: it costs nothing that is not there anyway.
    fn metered(&self, now: Instant, id: PeerId, lines: Option<Lines>) -> Option<Metered> {
        let line = self.lines.iter().find(|line| line.peer == id);
        if line.is_none() && lines == Some(Lines::Resting) {
            return Some(Metered { prices: None, cause: self.cause_of_line(now, id) });
        }
        let prices = self.prices_of(now, id);
        (lines.is_some() && line.is_some() || prices.is_some())
            .then(|| Metered { prices, cause: self.cause_of_line(now, id) })
    }

    fn cause_of_line(&self, now: Instant, id: PeerId) -> String {
        let report = self.line_report(now, id);
        report.map_or_else(|| "its call is over".to_owned(), |line| line.cause)
    }

    /// Moves on with tests that wait for their line, and ends those whose line is down.
    pub(super) fn work_line_tests(&mut self, now: Instant) {
        for id in self.tests.peers() {
            let lines = self.lines_to(now, id);
            if matches!(lines, None | Some(Lines::Carry)) {
                continue;
            }
            let name = self.peers.with_id(id).map(|p| p.config.name.clone()).unwrap_or_default();
            if let Verdict::Fails(why) =
                go_on(&name, &self.cause_of_line(now, id), lines, true, true)
            {
                self.tests.fail(now, &mut self.relay, id, why);
            }
        }
        for mut waiting in std::mem::take(&mut self.line_tests) {
            let id = waiting.test.peer;
            if self.peers.with_id(id).is_none() {
                continue; // The listener learns it by its channel's end.
            }
            let lines = self.lines_to(now, id);
            waiting.has_risen |= lines == Some(Lines::Rising);
            let cause = self.cause_of_line(now, id);
            let name = &waiting.test.name;
            let verdict = match go_on(name, &cause, lines, waiting.has_risen, false) {
                Verdict::Begins if !self.tests.can_begin(&self.relay, id) => Verdict::Waits,
                verdict => verdict,
            };
            match verdict {
                Verdict::Begins => self.tests.ask(now, &self.relay, waiting.test),
                Verdict::Fails(why) => drop(waiting.test.listener.tell(TestNews::Failed(why))),
                Verdict::Waits if now.since(waiting.since) >= RAISING => {
                    let time = lasting(RAISING);
                    let why = format!("the line to {name} was not up within {time}: {cause}");
                    waiting.test.listener.tell(TestNews::Failed(why));
                }
                Verdict::Waits => {
                    if self.tell_waiting(now, &mut waiting) {
                        self.line_tests.push(waiting);
                    }
                }
            }
        }
    }

    /// False if nobody listens any more.
    fn tell_waiting(&self, now: Instant, waiting: &mut WaitingTest) -> bool {
        if now < waiting.tell_at {
            return true;
        }
        waiting.tell_at = now + TELL;
        waiting.test.listener.tell(TestNews::Progress(TestProgress {
            phase: "line".to_owned(),
            elapsed_ms: now.since(waiting.since).as_millis(),
            prices: self.prices_of(now, waiting.test.peer),
            ..TestProgress::default()
        }))
    }

    /// When somebody is to hear that a test waits.
    pub(super) fn line_tests_timeout(&self) -> Option<Instant> {
        self.line_tests.iter().map(|waiting| waiting.tell_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metered() -> Metered {
        let prices = Some("2.40 USD a minute".to_owned());
        Metered { prices, cause: "idle".to_owned() }
    }

    fn why(verdict: Verdict) -> String {
        match verdict {
            Verdict::Fails(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_test_raises_a_metered_line_without_the_operators_word() {
        for lines in [Lines::Carry, Lines::Rising, Lines::Resting, Lines::Failed] {
            let refused = why(begin("shore", Some(&metered()), Some(lines), false));
            assert!(refused.contains("costs 2.40 USD a minute"), "{refused}");
            assert!(refused.contains("`bentpipe test shore --raise`"), "{refused}");
        }
        let unknown = Metered { prices: None, ..metered() };
        assert!(
            why(begin("shore", Some(&unknown), Some(Lines::Carry), false)).contains("may cost")
        );
        // Carriers with prices that are there by themselves.
        assert!(why(begin("shore", Some(&metered()), None, false)).contains("--raise"));
        assert_eq!(begin("shore", Some(&metered()), None, true), Verdict::Begins);
        assert_eq!(begin("shore", None, None, false), Verdict::Begins);
    }

    #[test]
    fn a_test_measures_when_the_line_is_up_and_not_while_it_is_dialled() {
        let at = |lines| begin("shore", Some(&metered()), Some(lines), true);
        assert_eq!(at(Lines::Resting), Verdict::Waits);
        assert_eq!(at(Lines::Rising), Verdict::Waits);
        assert_eq!(at(Lines::Carry), Verdict::Begins);
        let then =
            |lines, risen| go_on("shore", "dialling failed: BUSY", Some(lines), risen, false);
        assert_eq!(then(Lines::Resting, false), Verdict::Waits);
        assert_eq!(then(Lines::Rising, true), Verdict::Waits);
        assert_eq!(then(Lines::Carry, true), Verdict::Begins);
        let failed = why(then(Lines::Failed, true));
        assert_eq!(failed, "the line to shore did not come up: dialling failed: BUSY");
    }

    #[test]
    fn a_line_that_is_ordered_down_ends_a_test_at_once() {
        let lines = Some(Lines::OrderedDown);
        for raise in [false, true] {
            let told = why(begin("shore", Some(&metered()), lines, raise));
            assert!(told.contains("ordered down") && told.contains("link auto shore"), "{told}");
        }
        assert!(why(go_on("shore", "x", lines, true, true)).contains("ordered down"));
        let lost = why(go_on("shore", "lost: NO CARRIER", Some(Lines::Resting), true, true));
        assert_eq!(lost, "the line to shore went down during the test: lost: NO CARRIER");
    }
}
