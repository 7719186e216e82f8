//! Each step of a change, a start and a repair fails or hangs, once or from then on: the rules and
//! routes of before stand, or those of after; it is told; and the next attempt makes it good.

use super::*;
use crate::faults::{Fault, Kind, set, steps};
use crate::netns::root;
use std::collections::BTreeSet;

/// Each step once in each way, and from every third on: one that goes on failing finds the same
/// steps behind it.
const WAYS: [(Kind, bool); 4] =
    [(Kind::Fails, false), (Kind::Fails, true), (Kind::FailsWhenDone, false), (Kind::Hangs, false)];

/// Rules and routes of ours, of IPv4 and of IPv6.
type Families = [BTreeSet<String>; 2];

fn families(ns: &NetNs) -> Families {
    set(None);
    ["-4", "-6"].map(|family| {
        let rules = ns.ip(&format!("{family} rule show")).unwrap();
        let routes = ns.ip(&format!("{family} route show table all proto 143")).unwrap();
        let rules = rules.lines().filter(|l| l.contains(" proto 143"));
        // The note of an end has its time.
        let routes = routes.lines().filter(|l| !l.contains("table 25402"));
        rules.chain(routes).map(|l| l.replace(" linkdown", "").trim().to_owned()).collect()
    })
}

/// Takes one step after the other in each way, until a change takes none of that number.
/// `attempt` answers whether it was told; `check` looks at what stands then.
fn at_each_step(
    mut attempt: impl FnMut() -> Result<(), OsError>,
    mut check: impl FnMut(&Fault, Result<(), String>),
) {
    for (kind, goes_on) in WAYS {
        let mut told = 0;
        let stride = if goes_on { 3 } else { 1 };
        for at in (1..).step_by(stride) {
            assert!(at < 60, "{kind:?}: too many steps");
            let fault = Fault { kind, at, goes_on };
            set(Some(fault));
            let outcome = attempt();
            let taken = steps();
            set(None);
            told += usize::from(outcome.is_err());
            check(&fault, outcome.map_err(|e| e.to_string()));
            if taken < at {
                assert!(at > 8 && told > 2, "{kind:?}: {told} of {at} told");
                break;
            }
        }
    }
}

fn has_all_of(stands: &Families, wanted: &Families) -> [bool; 2] {
    [0, 1].map(|family| stands[family].is_superset(&wanted[family]))
}

#[test]
fn a_change_that_fails_or_hangs_at_any_step_leaves_the_rules_of_before_or_after() {
    if !root() {
        return;
    }
    let lab = Lab::new("change");
    let ways =
        [&["10.99.0.0/16", "fd99::/32"], &["10.98.0.0/16", "fd98::/33"]].map(|w| prefixes(w));
    lab.intercepting(
        &["10.99.0.0/16", "fd99::/32"],
        |_| {},
        |gateway| {
            let intercept = std::cell::RefCell::new(gateway.intercept);
            let now = std::cell::Cell::new(0);
            let mut stood = [families(&lab.gateway), Families::default()];
            intercept.borrow_mut().update_routes(&ways[1], &[]).unwrap();
            stood[1] = families(&lab.gateway);
            assert!(has_all_of(&stood[0], &stood[1]) == [false; 2]);
            intercept.borrow_mut().update_routes(&ways[0], &[]).unwrap();
            let attempt = || intercept.borrow_mut().update_routes(&ways[1 - now.get()], &[]);
            at_each_step(attempt, |fault, outcome| {
                let (before, after) = (&stood[now.get()], &stood[1 - now.get()]);
                let stands = families(&lab.gateway);
                assert!(outcome.is_err() || stands == *after, "{fault:?} is not told");
                if fault.goes_on {
                    // What cannot be taken back is there beside it.
                    let [old, new] = [before, after].map(|wanted| has_all_of(&stands, wanted));
                    for family in [0, 1] {
                        assert!(old[family] || new[family], "{fault:?}: {stands:?}");
                    }
                } else {
                    assert!(stands == *before || stands == *after, "{fault:?}: {stands:?}");
                }
                // As the gateway does at the next attempt.
                let mut intercept = intercept.borrow_mut();
                intercept.repair().unwrap_or_else(|e| panic!("{fault:?}: {e}"));
                intercept.update_routes(&ways[1 - now.get()], &[]).unwrap();
                assert_eq!(families(&lab.gateway), *after, "{fault:?}");
                now.set(1 - now.get());
            });
        },
    );
}

#[test]
fn a_start_that_fails_or_hangs_at_any_step_leaves_what_an_earlier_run_blocks() {
    if !root() {
        return;
    }
    let lab = Lab::new("again");
    lab.intercepting(
        &["10.99.0.0/16", "fd99::/32"],
        |_| {},
        |Gateway { tun, listener, intercept }| {
            let config = intercept.config.clone();
            drop(intercept);
            start_at_each_step(&lab, &config);
            drop((tun, listener));
        },
    );
}

/// Of each start that fails what was left by the run before is left.
fn start_at_each_step(lab: &Lab, config: &InterceptConfig) {
    let refuses = || {
        set(None);
        let list = ["list", "table", "inet", "bentpipe_blocked"];
        command::run(Command::new("nft").args(list), "").is_ok()
    };
    // The watchdog does this last.
    let is_left = || {
        let begin = Instant::now();
        while !refuses() {
            assert!(begin.elapsed().as_secs() < 30, "nobody tells hosts");
            thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    is_left();
    let left = families(&lab.gateway);
    let blocks = |f: &BTreeSet<String>| f.iter().any(|l| l.starts_with("unreachable"));
    assert!(left.iter().all(blocks), "{left:?}");
    // A rule that leads to the note of the end goes with it.
    let note = |line: &String| line.contains("lookup 25402");
    assert!(left.iter().all(|f| f.iter().any(note)), "{left:?}");
    let lasting = left.clone().map(|f| f.into_iter().filter(|l| !note(l)).collect());
    let up = std::cell::RefCell::new(None);
    let attempt = || {
        *up.borrow_mut() = Some(Intercept::install(config)?);
        Ok(())
    };
    at_each_step(attempt, |fault, outcome| {
        let stands = families(&lab.gateway);
        assert_eq!(has_all_of(&stands, &lasting), [true; 2], "{fault:?}: {stands:?}");
        match outcome {
            Ok(()) => assert!(!refuses(), "{fault:?}: hosts are refused"),
            Err(_) => {
                assert!(fault.goes_on || stands == left, "{fault:?}: {stands:?}");
                assert!(refuses(), "{fault:?}: nobody tells hosts");
            }
        }
        if up.borrow_mut().take().is_some() {
            is_left();
            let now = families(&lab.gateway);
            assert_eq!(has_all_of(&now, &left), [true; 2], "{fault:?}: {now:?}");
        }
    });
}

#[test]
fn a_repair_after_a_flush_that_fails_or_hangs_at_any_step_puts_back_what_it_can_and_all_at_the_next()
 {
    if !root() {
        return;
    }
    let lab = Lab::new("flushed");
    lab.intercepting(
        &["10.99.0.0/16", "fd99::/32"],
        |_| {},
        |mut gateway| {
            let whole = families(&lab.gateway);
            let intercept = std::cell::RefCell::new(&mut gateway.intercept);
            let attempt = || {
                let fault = crate::faults::fault();
                set(None);
                for family in ["-4", "-6"] {
                    lab.gateway.ip(&format!("{family} rule flush")).unwrap();
                    lab.gateway
                        .ip(&format!("{family} rule add priority 32766 lookup main"))
                        .unwrap();
                }
                set(fault);
                intercept.borrow_mut().repair().map(drop)
            };
            at_each_step(attempt, |fault, outcome| {
                let stands = has_all_of(&families(&lab.gateway), &whole);
                assert!(outcome.is_err() || stands == [true; 2], "{fault:?} is not told");
                if !fault.goes_on {
                    assert!(stands[0] || stands[1], "{fault:?}: nothing was put back");
                }
                let mut intercept = intercept.borrow_mut();
                intercept.repair().unwrap_or_else(|e| panic!("{fault:?}: {e}"));
                assert_eq!(families(&lab.gateway), whole, "{fault:?}");
            });
        },
    );
}
