//! What a link manager is given: [`ManagerConfig`], checked once.

use units::{BitRate, ByteCount, Duration, IpPrefix};

use crate::books::Name;
use crate::calendar::Hours;
use crate::money::{Currency, Money};
use crate::rules::Rules;
use crate::tariff::Tariff;

/// A longest call has to leave the peer the time to answer.
const SHORTEST_CALL: Duration = Duration::from_secs(1);
/// No modem has a call sooner.
const SHORTEST_SETUP: Duration = Duration::from_secs(1);

/// A carrier of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CarrierConfig {
    /// What people call it.
    pub name: Name,
    /// True: it has to be dialled. False: it is there or not by itself (an IP terminal).
    pub dialled: bool,
    /// The lower, the sooner it is used.
    pub priority: u8,
    /// What it costs.
    pub tariff: Tariff,
    /// What it carries; for the choice by cost.
    pub rate: BitRate,
    /// A dialling that has come to nothing after so long has failed. Longer than the modem's own
    /// limit, which has the better cause.
    pub dial_timeout: Duration,
    /// A carrier over which the peer is not reached within this time is hung up.
    pub rise_timeout: Duration,
    /// When to try again.
    pub redial: Redial,
    /// A carrier that fails often must hold for so long before it is trusted; doubled each time.
    pub hold: Duration,
    /// Bytes that may still cross, and be billed, when a stop has been decided: what was sent
    /// already, and what comes until the peer's side knows. A budget ends so many bytes early.
    pub under_way: ByteCount,
    /// A call is not hung up before it has lasted so long.
    pub min_call: Duration,
    /// … and is when it has lasted so long; `None`: never for that.
    pub max_call: Option<Duration>,
    /// When nobody has used it for so long it is hung up, as soon as it is not paid for any more.
    pub idle: Duration,
    /// … and after so long already if another step of time is about to begin.
    pub idle_at_step: Duration,
    /// So long before a step begins it is hung up: hanging up takes time, and clocks and machines
    /// are late. Longer where hanging up takes more than half of it.
    pub guard: Duration,
    /// However long the time is paid for, or free, it is not kept longer when it is idle.
    pub most_linger: Duration,
    /// Only rules that say so raise it then.
    pub quiet: Hours,
    /// Its own budget, in the currency of its tariff, beside the peer's.
    pub budget: Option<Budget>,
}

impl CarrierConfig {
    /// A carrier with ordinary times.
    pub fn new(name: &str, dialled: bool, tariff: Tariff) -> CarrierConfig {
        CarrierConfig {
            name: name.into(),
            dialled,
            priority: 100,
            tariff,
            rate: BitRate::from_bps(1_920),
            dial_timeout: Duration::from_secs(120),
            rise_timeout: Duration::from_secs(60),
            redial: Redial::default(),
            hold: Duration::from_secs(10),
            under_way: ByteCount(0),
            min_call: Duration::ZERO,
            max_call: None,
            idle: Duration::from_secs(30),
            idle_at_step: Duration::from_secs(10),
            guard: Duration::from_secs(3),
            most_linger: Duration::from_secs(600),
            quiet: Hours::default(),
            budget: None,
        }
    }
}

/// How a carrier that failed is tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redial {
    /// After the first failure; doubled after each that follows.
    pub first: Duration,
    /// The longest pause between two tries.
    pub most: Duration,
    /// After so many failures in a row the carrier rests …
    pub attempts: u32,
    /// … for so long.
    pub rest: Duration,
    /// Diallings in an hour, at most.
    pub per_hour: u32,
}

impl Default for Redial {
    fn default() -> Redial {
        Redial {
            first: Duration::from_secs(5),
            most: Duration::from_secs(300),
            attempts: 8,
            rest: Duration::from_secs(1_800),
            per_hour: 60,
        }
    }
}

/// A month's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Nothing that would cost more is begun.
    pub stop: Money,
    /// A warning at so many hundredths of it.
    pub warn_percent: u8,
}

/// What carriers are chosen by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Their priority.
    #[default]
    Priority,
    /// What a minute, or what waits, would cost; their priority where that is the same.
    Cost,
}

/// The manager of one peer's link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagerConfig {
    /// The peer.
    pub peer: Name,
    /// Its carriers.
    pub carriers: Vec<CarrierConfig>,
    /// What raises the link.
    pub rules: Rules,
    /// Which carrier comes first.
    pub order: Order,
    /// What waits without moving holds a line no longer than this.
    pub stalled: Duration,
    /// What the budgets are in that are not a carrier's own.
    pub currency: Currency,
    /// The peer's budget.
    pub budget: Option<Budget>,
    /// Budgets of hosts, for each host by itself; the first that matches.
    pub host_budgets: Vec<(IpPrefix, Budget)>,
}

impl ManagerConfig {
    /// A manager with ordinary times and no budget.
    pub fn new(peer: &str, carriers: Vec<CarrierConfig>, rules: Rules) -> ManagerConfig {
        let currency = carriers.first().map(|c| c.tariff.currency());
        ManagerConfig {
            peer: peer.into(),
            carriers,
            rules,
            order: Order::Priority,
            stalled: Duration::from_secs(120),
            currency: currency.unwrap_or_else(|| Tariff::free().currency()),
            budget: None,
            host_budgets: Vec::new(),
        }
    }

    /// The same carriers and rules with the prices and budgets of `old`, which has these carriers.
    pub(super) fn with_prices_of(&self, old: &ManagerConfig) -> ManagerConfig {
        let priced = |(new, old): (&CarrierConfig, &CarrierConfig)| CarrierConfig {
            tariff: old.tariff.clone(),
            budget: old.budget,
            ..new.clone()
        };
        ManagerConfig {
            carriers: self.carriers.iter().zip(&old.carriers).map(priced).collect(),
            order: old.order,
            currency: old.currency,
            budget: old.budget,
            host_budgets: old.host_budgets.clone(),
            ..self.clone()
        }
    }

    /// What is wrong, with the mend.
    pub(super) fn check(&self) -> Result<(), String> {
        let peer = &self.peer;
        if self.carriers.is_empty() {
            return Err(format!("peer \"{peer}\" has no carrier; give it one"));
        }
        for (at, carrier) in self.carriers.iter().enumerate() {
            let name = &carrier.name;
            if self.carriers[..at].iter().any(|c| c.name == *name) {
                return Err(format!(
                    "two carriers of peer \"{peer}\" are called \"{name}\"; rename one"
                ));
            }
            if carrier.rate.as_bps() == 0 {
                return Err(format!("carrier \"{name}\" has no rate; say what it carries"));
            }
            if carrier.max_call.is_some_and(|most| most < carrier.min_call) {
                return Err(format!(
                    "carrier \"{name}\": a call's shortest length is above its longest; swap them"
                ));
            }
            if let Some(most) = carrier.max_call.filter(|most| *most < SHORTEST_CALL) {
                return Err(format!(
                    "carrier \"{name}\": calls of at most {most} would end before they carry \
                     anything, and be paid; give `max_call` {SHORTEST_CALL} or more, or leave it \
                     out for no limit"
                ));
            }
            if carrier.dial_timeout < SHORTEST_SETUP {
                return Err(format!(
                    "carrier \"{name}\": a call that has to stand within {} never does; give it {} \
                     or more, or leave `setup` out for two minutes",
                    carrier.dial_timeout, SHORTEST_SETUP
                ));
            }
            if carrier.redial.attempts == 0 || carrier.redial.per_hour == 0 {
                return Err(format!(
                    "carrier \"{name}\" may never be dialled; allow one attempt at least"
                ));
            }
            if carrier.idle_at_step > carrier.idle {
                return Err(format!(
                    "the idle time before a step ({}) is above that at other times ({}); make it less",
                    carrier.idle_at_step, carrier.idle
                ));
            }
        }
        self.check_rules()?;
        self.check_budgets()
    }

    fn check_rules(&self) -> Result<(), String> {
        for rule in self.rules.iter() {
            let known = |name: &&Name| !self.carriers.iter().any(|c| c.name == **name);
            if let Some(missing) = rule.carriers.iter().find(known) {
                let names: Vec<&str> = self.carriers.iter().map(|c| &*c.name).collect();
                return Err(format!(
                    "rule \"{}\" wants the carrier \"{missing}\", which peer \"{}\" has not; it has {}",
                    rule.name,
                    self.peer,
                    names.join(", ")
                ));
            }
        }
        Ok(())
    }

    fn check_budgets(&self) -> Result<(), String> {
        let other =
            |c: &&CarrierConfig| c.tariff.currency() != self.currency && c.tariff != Tariff::free();
        let any =
            self.budget.is_some() || !self.host_budgets.is_empty() || self.order == Order::Cost;
        match self.carriers.iter().find(other).filter(|_| any) {
            None => Ok(()),
            Some(carrier) => Err(format!(
                "carrier \"{}\" is paid in {} and the budget is in {}; give all prices of a peer in one currency",
                carrier.name,
                carrier.tariff.currency(),
                self.currency
            )),
        }
    }
}
