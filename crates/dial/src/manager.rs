//! The link manager of one peer: when the line is up, on which carrier, and what for.
//!
//! [`Manager`] is told what waits, what crosses and what the modems say, and gives work: dial,
//! hang up, tell. Its lines go through these states, each with its cause and since when:
//!
//! ```text
//! down ── a rule, an order ──> dialling ── carrier ──> rising ── the peer ──> up
//!   ^                             │                      │                    │ ^
//!   └───────── failed ────────────┴──────── no peer ─────┘               idle │ │ used
//!   └──────────────── the paid time ends, lost, ordered ────────────────── lingering
//! ```
//!
//! One turn, after each change and at each time that [`Manager::poll_timeout`] names:
//!
//! 1. **Meter**: each call's price goes into the books; budgets are compared with them.
//! 2. **End** what has to: an order, the longest call, a budget that does not allow the next step
//!    of time or block of bytes, a dialling whose reason has gone.
//! 3. **Raise**: for each rule with something due, carriers are looked at in their order. The first
//!    that is up and trusted serves it, one that is being dialled is waited for, else the first
//!    that may be dialled is. A carrier that failed may not for a while (back-off), so that the
//!    next one is; when it may again it is dialled beside the other, also for what crosses by that
//!    now, and the other goes idle.
//! 4. **Linger**: a line that nothing holds is kept as long as it is paid for, and hung up just
//!    before the next step.
//!
//! A line is held by what waits and moves, by what crossed in the last `idle`, and by orders; never
//! by traffic of a rule that never raises it. A hang-up with something still waiting counts as a
//! failure, so that what cannot move does not dial again and again.

mod budgets;
mod config;
mod demand;
mod dropping;
mod each;
mod line;
mod raise;
mod release;
mod state;
#[cfg(test)]
mod tests;
mod why;

use std::collections::{BTreeSet, VecDeque};

use units::{ByteCount, Duration, Instant};

use crate::books::{Books, Host, Name};
use crate::calendar::{Month, Wall};
use crate::money::Money;
use crate::rules::{Action, Flow, Rule};

use budgets::{HostBudgets, Told};
pub use budgets::{HostSpending, Spending};
pub use config::{Budget, CarrierConfig, ManagerConfig, Order, Redial};
use demand::Demand;
use each::OwnBudget;
use line::{Line, LineCall};
pub use state::{DownCause, Reason, State};
pub use why::{LineWhy, WaitWhy, Why};

/// A carrier of the peer, by its place in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CarrierId(pub usize);

/// A flow that waits; the caller's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId(pub u64);

/// What the operator says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Command {
    /// The rules decide.
    #[default]
    Auto,
    /// Raise the link now; then the rules decide.
    Up,
    /// Raise it and keep it, until another command.
    Hold,
    /// Hang up and stay down, until another command.
    Down,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Dial; the answer is [`Manager::handle_connected`] or [`Manager::handle_failed`].
    Dial {
        /// Which carrier.
        carrier: CarrierId,
        /// The how manieth try since it last worked.
        attempt: u32,
    },
    /// Hang up, or stop dialling; of a carrier that is there by itself: let nothing cross. A call
    /// that was there is over with [`Manager::handle_ended`]. It is wanted again, with pauses,
    /// after [`Manager::handle_drop_failed`].
    HangUp {
        /// Which carrier.
        carrier: CarrierId,
        /// Why.
        cause: DownCause,
    },
    /// A carrier that is there by itself, and that [`Work::HangUp`] was told of for the budget, may
    /// carry again: the month is another, or the budget is.
    Admit {
        /// Which carrier.
        carrier: CarrierId,
    },
    /// For the log and for who watches.
    Tell(Event),
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A line is in another state.
    State {
        /// Which.
        carrier: CarrierId,
        /// Its state, with its cause.
        state: State,
    },
    /// A budget is nearly used up, or is.
    Budget {
        /// The host's, or the peer's.
        host: Option<Host>,
        /// What was spent this month.
        spent: Money,
        /// What may be.
        of: Money,
        /// Nothing more is begun.
        stopped: bool,
    },
    /// What is left of a host's budget does not pay the beginning of a call: what the host wants
    /// raises nothing.
    HostShort {
        /// Which.
        host: Host,
        /// What it has cost this month.
        spent: Money,
        /// What it may cost.
        of: Money,
    },
    /// The same of a carrier's own budget.
    LineBudget {
        /// Which.
        carrier: CarrierId,
        /// What was spent on it this month.
        spent: Money,
        /// What may be.
        of: Money,
        /// It is not raised for anything that costs more.
        stopped: bool,
    },
}

/// The manager of one peer's link. See the module.
#[derive(Clone, Debug)]
pub struct Manager {
    config: ManagerConfig,
    lines: Vec<Line>,
    demand: Demand,
    command: Command,
    /// The wall clock at an instant.
    clock: (Instant, Wall),
    zone: String,
    /// What the month's budget still allows.
    left: Option<Money>,
    /// More than that was spent: bytes crossed before anybody could stop them.
    overspent: bool,
    /// How the month's budget stands, from the warning on.
    spending: Option<Spending>,
    /// Of whom what was told, this month.
    told: BTreeSet<(Month, Option<Host>, Told)>,
    hosts: HostBudgets,
    /// The file as it is, while a call is under way in a currency that it no longer names.
    later: Option<ManagerConfig>,
    fees_of: Option<Month>,
    dirty: bool,
    timer: Option<(Instant, &'static str)>,
    out: VecDeque<Work>,
}

impl Manager {
    /// A manager whose lines are down. `wall` is the local time at `now`. `Err`: what is wrong in
    /// the configuration, with the mend.
    pub fn new(config: ManagerConfig, now: Instant, wall: Wall) -> Result<Manager, String> {
        config.check()?;
        let lines = config.carriers.iter().cloned().map(Line::new).collect();
        Ok(Manager {
            config,
            lines,
            demand: Demand::default(),
            command: Command::Auto,
            clock: (now, wall),
            zone: String::new(),
            left: None,
            overspent: false,
            spending: None,
            told: BTreeSet::new(),
            hosts: HostBudgets::default(),
            later: None,
            fees_of: None,
            dirty: true,
            timer: None,
            out: VecDeque::new(),
        })
    }

    /// The local time was looked up again: a clock that was set, summer time.
    pub fn handle_clock(&mut self, now: Instant, wall: Wall) {
        self.clock = (now, wall);
        self.hosts.look_at_all();
        self.dirty = true;
    }

    /// The file says something else now. Calls that are under way keep their prices, lines their
    /// states and back-off. Where the currency of a dialled call is another now, all prices and
    /// budgets stay until that has ended: amounts in two currencies cannot be compared. Who tells
    /// of flows that wait tells of all of them again, since those that could raise nothing are not
    /// known here. `Err`, and nothing is changed: it has other carriers, or is wrong.
    pub fn handle_config(&mut self, config: ManagerConfig) -> Result<(), String> {
        config.check()?;
        let names = |all: &[CarrierConfig]| -> Vec<(Name, bool)> {
            all.iter().map(|c| (c.name.clone(), c.dialled)).collect()
        };
        if names(&config.carriers) != names(&self.config.carriers) {
            return Err(format!("peer \"{}\" has other carriers; restart", config.peer));
        }
        self.later = None;
        if self.pays_in_other(&config, |_| true) {
            let now = config.with_prices_of(&self.config);
            self.later = Some(config);
            self.take_config(now);
        } else {
            self.take_config(config);
        }
        Ok(())
    }

    fn take_config(&mut self, config: ManagerConfig) {
        for (line, carrier) in self.lines.iter_mut().zip(&config.carriers) {
            if line.config.budget != carrier.budget {
                line.own_budget = OwnBudget::default();
            }
            line.config = carrier.clone();
        }
        self.demand.set_rules(&config.rules);
        let budgets = |c: &ManagerConfig| (c.budget, c.host_budgets.clone());
        if budgets(&config) != budgets(&self.config) {
            self.told.clear();
            self.hosts.look_at_all();
        }
        self.config = config;
        self.fees_of = None;
        self.dirty = true;
    }

    /// Is there a call with a price in a currency that its line does not have in `config`?
    fn pays_in_other(&self, config: &ManagerConfig, which: impl Fn(&Line) -> bool) -> bool {
        let mut lines = self.lines.iter().zip(&config.carriers);
        lines.any(|(line, new)| {
            let call = line.call.as_ref().filter(|call| call.rates.charges());
            which(line) && call.is_some_and(|call| call.currency != new.tariff.currency())
        })
    }

    /// Goes over to the prices of a file that waited for the last call in another currency. What
    /// is there by itself does not end: it has a new session.
    fn take_later(&mut self, now: Instant, books: &mut Books) {
        let Some(config) = self.later.take() else { return };
        if self.pays_in_other(&config, |line| line.config.dialled) {
            self.later = Some(config);
            return;
        }
        self.take_config(config);
        for at in 0..self.lines.len() {
            let line = &self.lines[at];
            let currency = line.config.tariff.currency();
            let other = line.call.as_ref().is_some_and(|call| call.currency != currency);
            if other && !line.config.dialled {
                self.begin_session(now, at, books, "another currency");
            }
        }
    }

    /// The tariffs' zone from now on. Calls that are under way keep their prices.
    pub fn handle_zone(&mut self, zone: &str) {
        self.zone = zone.to_owned();
        self.fees_of = None;
        self.dirty = true;
    }

    /// The tariffs' zone; empty: the first.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// The operator says something of all lines, each of which forgets what was said of it alone.
    pub fn handle_command(&mut self, command: Command) {
        self.command = command;
        self.lines.iter_mut().for_each(|line| line.command = None);
        self.dirty = true;
    }

    /// `bytes` of a flow wait for the link by now; none: it does not wait any more.
    pub fn handle_waiting(&mut self, now: Instant, id: FlowId, flow: &Flow, bytes: u64) {
        self.demand.set(now, id, flow, bytes, &self.config.rules);
        self.dirty = true;
    }

    /// How urgently a flow that waits wants the line ([`crate::rules::Action::urgency`]).
    pub fn urgency(&self, flow: &Flow) -> u8 {
        self.config.rules.rule_for(flow).then.urgency()
    }

    /// Bytes of a flow crossed. Sums of a tenth of a second do.
    pub fn handle_traffic(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        flow: &Flow,
        [sent, received]: [u64; 2],
        books: &mut Books,
    ) {
        let rule = self.config.rules.rule_for(flow);
        let holds = rule.then != Action::Never && !self.demand.is_stopped(&flow.host);
        let reason = holds.then(|| Reason::Flow { flow: flow.clone(), rule: rule.name.clone() });
        let Some(line) = self.lines.get_mut(carrier.0) else { return };
        let Some(call) = &mut line.call else { return };
        call.bytes.0 = call.bytes.0.saturating_add(sent).saturating_add(received);
        books.traffic(call.session, &flow.account(), sent, received);
        if let Some(reason) = reason {
            line.used = Some((now, reason));
            line.stalls = 0;
        }
        self.dirty = true;
    }

    /// The carrier is there: a call was answered, came in, or an IP terminal has its network.
    pub fn handle_connected(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        incoming: bool,
        books: &mut Books,
    ) {
        let wall = self.wall(now);
        let Some(line) = self.lines.get_mut(carrier.0).filter(|l| l.call.is_none()) else { return };
        let cause = match &line.state {
            State::Dialling { cause, .. } => cause.clone(),
            _ if incoming => Reason::Incoming,
            _ if !line.config.dialled => Reason::Always,
            // It was answered while we broke off: it costs, and ends.
            State::Down { cause, .. } => {
                let cause = cause.clone();
                self.out.push_back(Work::HangUp { carrier, cause });
                Reason::Ordered
            }
            _ => return,
        };
        let needless = matches!(cause, Reason::Ordered) && matches!(line.state, State::Down { .. });
        let tariff = &line.config.tariff;
        let rates = tariff.rates(&self.zone).clone();
        let names = (&self.config.peer, &line.config.name);
        let bytes_before = books.bytes_on(wall, names.0, names.1);
        let currency = tariff.currency();
        let session = books.start(wall, names.0, names.1, currency, cause.account());
        line.call = Some(LineCall {
            session,
            connected: now,
            start: wall,
            bytes: ByteCount(0),
            bytes_before,
            incoming,
            rates,
            currency,
            ending: needless.then_some(now),
            price: Money::ZERO,
        });
        if !needless {
            line.note_return(now);
            line.used = None;
            self.set_state(carrier.0, State::Rising { since: now, cause });
        }
        self.dirty = true;
    }

    /// The peer was reached over the carrier.
    pub fn handle_ready(&mut self, now: Instant, carrier: CarrierId) {
        let Some(line) = self.lines.get_mut(carrier.0) else { return };
        if let State::Rising { cause, .. } = &line.state {
            let cause = cause.clone();
            line.note_success();
            line.used = Some((now, cause.clone()));
            self.set_state(carrier.0, State::Up { since: now, cause });
        }
    }

    /// Dialling came to nothing; `cause` is what the modem told.
    pub fn handle_failed(&mut self, now: Instant, carrier: CarrierId, cause: &str) {
        let Some(line) = self.lines.get_mut(carrier.0) else { return };
        if let State::Dialling { .. } = line.state {
            line.note_failure(now);
            let cause = DownCause::Failed(cause.into());
            self.set_state(carrier.0, State::Down { since: now, cause });
        }
    }

    /// The carrier is gone, lost or hung up; `cause` is what the modem told.
    pub fn handle_ended(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        cause: &str,
        books: &mut Books,
    ) {
        self.handle_lost(now, carrier, cause);
        let Some(line) = self.lines.get_mut(carrier.0) else { return };
        let Some(call) = line.call.take() else { return };
        let told = match &line.state {
            State::Down { cause: DownCause::Lost(told), .. } => told.to_string(),
            State::Down { cause, .. } => cause.to_string(),
            _ => cause.to_owned(),
        };
        books.end(call.session, now.since(call.connected), call.price_at(now), &told);
        self.hosts.look_at_all();
        self.dirty = true;
    }

    /// The call carries nothing any more, and costs until [`Manager::handle_ended`]: what is left
    /// of the carrier is being dropped.
    pub fn handle_lost(&mut self, now: Instant, carrier: CarrierId, cause: &str) {
        let alone = self.lines.len() == 1;
        let Some(line) = self.lines.get_mut(carrier.0) else { return };
        let Some(call) = &mut line.call else { return };
        if matches!(line.state, State::Down { .. }) {
            return;
        }
        call.ending = Some(now);
        let lasted = now.since(call.connected);
        line.note_loss(now, lasted, alone);
        let cause = DownCause::Lost(cause.into());
        self.set_state(carrier.0, State::Down { since: now, cause });
    }

    /// The call that has just been connected may have been billed for so long already: nobody
    /// looked at the line meanwhile. Where that leaves a step of time in doubt it is booked.
    pub fn handle_noticed_late(&mut self, carrier: CarrierId, by: Duration) {
        let call = self.lines.get_mut(carrier.0).and_then(|line| line.call.as_mut());
        if let Some(call) = call {
            call.connected = call.connected - by;
            self.dirty = true;
        }
    }

    /// Hanging up takes so long on this carrier, from [`Work::HangUp`] to the end of what is
    /// billed.
    pub fn handle_hang_up_time(&mut self, carrier: CarrierId, time: Duration) {
        if let Some(line) = self.lines.get_mut(carrier.0) {
            line.hang_up_time = time;
            self.dirty = true;
        }
    }

    /// The next thing to do. Call it until there is none, after each change and at each time that
    /// [`Manager::poll_timeout`] told.
    pub fn poll(&mut self, now: Instant, books: &mut Books) -> Option<Work> {
        let mut due = self.timer.is_some_and(|(at, _)| now >= at);
        while due || self.dirty && self.out.is_empty() {
            (self.dirty, due) = (false, false);
            self.turn(now, books);
        }
        self.out.pop_front()
    }

    /// When to poll again, and what for.
    pub fn poll_timeout(&self) -> Option<(Instant, &'static str)> {
        if self.dirty || !self.out.is_empty() {
            return Some((Instant::ZERO, "something changed"));
        }
        self.timer
    }

    /// The carriers that packets of `flow` may take now, the best first. Only one, unless its rule
    /// wants all. A gateway's link chooses among its paths itself; simulators ask.
    pub fn carriers_for(&self, now: Instant, flow: &Flow) -> Vec<CarrierId> {
        let rule = self.config.rules.find(flow);
        self.serving(now, rule).into_iter().map(CarrierId).collect()
    }

    /// The state of a line.
    pub fn state(&self, carrier: CarrierId) -> Option<&State> {
        self.lines.get(carrier.0).map(|l| &l.state)
    }

    /// Does the month's budget keep a carrier from carrying that is there by itself?
    pub fn is_barred(&self, carrier: CarrierId) -> bool {
        self.lines.get(carrier.0).is_some_and(|l| l.barred)
    }

    /// Does what crosses on a carrier cost something now?
    pub fn charges(&self, carrier: CarrierId) -> bool {
        let Some(line) = self.lines.get(carrier.0) else { return false };
        let of_call = line.call.as_ref().map(|call| &call.rates);
        of_call.unwrap_or_else(|| line.config.tariff.rates(&self.zone)).charges()
    }

    /// What the operator said.
    pub fn command(&self) -> Command {
        self.command
    }

    /// True while hosts of this flow are to be told that the net is unreachable.
    pub fn fails_fast(&self, now: Instant, flow: &Flow) -> bool {
        let rule = self.config.rules.find(flow);
        self.config.rules.get(rule).fail_fast && self.serving(now, rule).is_empty()
    }

    fn wall(&self, now: Instant) -> Wall {
        self.clock.1.after(now.since(self.clock.0))
    }

    fn turn(&mut self, now: Instant, books: &mut Books) {
        self.timer = None;
        self.take_later(now, books);
        // Budgets and prices are of the month, sessions of the day.
        let midnight = 86_400 - self.wall(now).0 % 86_400;
        self.want(now, now + Duration::from_secs(midnight), "midnight");
        self.want_other_prices(now);
        self.meter(now, books);
        self.look_at_budgets(now, books);
        self.look_at_own_budgets(now, books);
        self.end_what_must(now);
        self.admit(now);
        self.raise(now);
        self.drop_again(now);
        self.linger(now);
    }

    /// What was too dear to begin may be begun in other hours.
    fn want_other_prices(&mut self, now: Instant) {
        let wall = self.wall(now);
        let dialled = self.lines.iter().filter(|line| line.config.dialled);
        let prices = dialled.map(|line| line.config.tariff.rates(&self.zone).next_prices(wall));
        if let Some(next) = prices.flatten().min() {
            self.want(now, now + next, "prices of other hours");
        }
    }

    /// Writes down what calls cost by now.
    fn meter(&mut self, now: Instant, books: &mut Books) {
        self.pay_fees(now, books);
        let wall = self.wall(now);
        for at in 0..self.lines.len() {
            self.begin_day(now, at, books);
            let line = &mut self.lines[at];
            line.month_bytes = books.bytes_on(wall, &self.config.peer, &line.config.name).0;
            let Some(call) = &mut self.lines[at].call else { continue };
            call.price = call.price_at(now);
            let elapsed = now.since(call.connected);
            let line_due = call.connected + books.mark(call.session, elapsed, call.price);
            let step = call.next_step(now);
            self.want(now, line_due, "the ledger");
            if let Some(step) = step {
                self.want(now, step + Duration::from_nanos(1), "a step of time");
            }
        }
    }

    fn pay_fees(&mut self, now: Instant, books: &mut Books) {
        let wall = self.wall(now);
        let month = wall.day().month();
        if self.fees_of == Some(month) {
            return;
        }
        self.fees_of = Some(month);
        for line in &self.lines {
            let tariff = &line.config.tariff;
            if let Some(flat) = tariff.rates(&self.zone).flat {
                let (peer, name) = (&self.config.peer, &line.config.name);
                books.fee(wall, peer, name, tariff.currency(), flat.per_month);
            }
        }
    }

    /// A carrier that is always up has a session for each day, so that days and months have
    /// their own.
    fn begin_day(&mut self, now: Instant, at: usize, books: &mut Books) {
        let wall = self.wall(now);
        let line = &self.lines[at];
        let of_before = |call: &LineCall| call.start.day() != wall.day();
        if !line.config.dialled && line.call.as_ref().is_some_and(of_before) {
            self.begin_session(now, at, books, "a new day");
        }
    }

    /// Closes the account of a call that goes on, and opens another one.
    fn begin_session(&mut self, now: Instant, at: usize, books: &mut Books, why: &str) {
        let wall = self.wall(now);
        let line = &mut self.lines[at];
        let Some(call) = line.call.as_mut() else { return };
        let names = (&self.config.peer, &line.config.name);
        let account = Reason::Always.account();
        books.end(call.session, now.since(call.connected), call.price_at(now), why);
        self.hosts.look_at_all();
        call.bytes_before = books.bytes_on(wall, names.0, names.1);
        call.currency = line.config.tariff.currency();
        call.session = books.start(wall, names.0, names.1, call.currency, account);
        (call.connected, call.start, call.bytes) = (now, wall, ByteCount(0));
        call.rates = line.config.tariff.rates(&self.zone).clone();
        self.dirty = true;
    }

    fn set_state(&mut self, at: usize, state: State) {
        self.out
            .push_back(Work::Tell(Event::State { carrier: CarrierId(at), state: state.clone() }));
        self.lines[at].state = state;
        self.dirty = true;
    }

    /// Poll again at `at`, or a moment later where that is over.
    fn want(&mut self, now: Instant, at: Instant, why: &'static str) {
        let at = at.max(now + Duration::from_millis(1));
        if self.timer.is_none_or(|(other, _)| at < other) {
            self.timer = Some((at, why));
        }
    }
}

impl ManagerConfig {
    /// The name of a carrier.
    pub fn carrier_name(&self, carrier: CarrierId) -> Option<&Name> {
        self.carriers.get(carrier.0).map(|c| &c.name)
    }
    /// The rule of a flow.
    pub fn rule_of(&self, flow: &Flow) -> &Rule {
        self.rules.rule_for(flow)
    }
}
