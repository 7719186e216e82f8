//! The books: what was paid, to whom, by whom and for what; durable over restarts and power cuts.
//!
//! [`Books`] keeps sums by day, carrier, peer, host, class and service, and says what to append to
//! the ledger's file ([`Books::poll_record`]). The caller writes and flushes
//! it, and gives the file back at the next start ([`Books::replay`]).
//!
//! * **A session** begins when its carrier is there and ends when it is gone. Its price is the
//!   tariff's at the time, written into the ledger, so that a later tariff changes no old bill. It
//!   belongs to the day on which it began.
//! * **A price is divided** among hosts, classes and services by their bytes, exactly: the parts
//!   make the whole. A session without bytes is paid by who raised it.
//! * **What a power cut costs**: a line is written whenever a session's price has changed (a step
//!   of time or a block of bytes has begun), once a second at most, and once a minute while bytes
//!   cross. A session without an end is closed at its last line. Where a step of time is longer
//!   than a second its price is exact even so, because a step that has begun is paid.
//! * **A torn line** is the last one, and is cut off; a damaged line in the middle is skipped and
//!   counted.
//! * **Limits**: 256 accounts a session and 50,000 cells in all. What is beyond is told together as
//!   "others": in a session the newest accounts, of the cells the oldest day's hosts.

mod query;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use units::{ByteCount, Duration};

use crate::calendar::{Day, Month, Wall};
use crate::money::{Currency, Money, divide};

pub use query::{By, Line, Query, csv};
use record::Record;
pub use record::{Account, Cell, Host, Name, Sums};

/// Accounts that one session is divided among, at most.
const MAX_ACCOUNTS: usize = 256;
/// Sums that are kept, at most.
const MAX_CELLS: usize = 50_000;
/// Sessions that are remembered one by one.
const RECENT: usize = 1_000;
/// Months of which it is known what was spent.
const MONTHS: usize = 13;
/// A session's line after a change of its price comes no sooner.
const SOONEST: Duration = Duration::from_secs(1);
/// … and of anything else no later.
const LATEST: Duration = Duration::from_secs(60);

/// The number of a session; later ones have higher numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// A session: a call, or the time that a carrier was up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// When the carrier was there.
    pub start: Wall,
    /// Whom it led to.
    pub peer: Name,
    /// What it was on.
    pub carrier: Name,
    /// What its price is in.
    pub currency: Currency,
    /// Who raised it.
    pub raised: Account,
    /// How long it has been up.
    pub elapsed: Duration,
    /// What it has cost.
    pub price: Money,
    /// Bytes out and in.
    pub sent: u64,
    /// Bytes that came.
    pub received: u64,
    /// Why it ended; empty while it goes on.
    pub cause: Name,
}

/// A session that goes on.
#[derive(Clone, Debug)]
struct Open {
    session: Session,
    /// Bytes out and in by account.
    by: BTreeMap<Account, [u64; 2]>,
    /// The same since the last line.
    fresh: BTreeMap<Account, [u64; 2]>,
    /// The price and the length that the ledger has.
    written: (Money, Duration),
}

/// What was paid. See the module.
#[derive(Clone, Debug, Default)]
pub struct Books {
    cells: BTreeMap<Cell, Sums>,
    open: BTreeMap<SessionId, Open>,
    recent: VecDeque<Session>,
    fees: BTreeMap<(Month, Currency, Name, Name), Money>,
    /// Sums of the cells, for budgets and fair use.
    spent: BTreeMap<(Month, Currency, Name, Option<Host>), Money>,
    bytes: BTreeMap<(Month, Name, Name), u64>,
    /// What carriers cost, by their peers and names.
    spent_over: BTreeMap<(Month, Currency, Name, Name), Money>,
    /// The months of these sums.
    months: BTreeSet<Month>,
    next: u64,
    out: VecDeque<Record>,
}

/// What was found in a ledger.
#[derive(Debug)]
pub struct Replay {
    /// The books as they are now.
    pub books: Books,
    /// So many bytes of the file are whole lines; cut the rest off before appending.
    pub valid: usize,
    /// Lines that were damaged.
    pub damaged: usize,
    /// The carriers of sessions that had no end: the node stopped in mid-call.
    pub broken: Vec<Name>,
}

impl Books {
    /// Books without an entry.
    pub fn new() -> Books {
        Books::default()
    }

    /// The books of a ledger's bytes.
    pub fn replay(ledger: &[u8]) -> Replay {
        let valid = ledger.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let (mut books, mut damaged) = (Books::new(), 0);
        for line in ledger[..valid].split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            match std::str::from_utf8(line).ok().and_then(Record::read) {
                Some(record) => books.apply(record),
                None => damaged += 1,
            }
        }
        let open = books.open.iter().map(|(id, open)| (*id, open.written));
        let ends: Vec<_> = open.collect();
        let broken = books.open.values().map(|open| open.session.carrier.clone()).collect();
        for (id, (price, elapsed)) in ends {
            books.end(id, elapsed, price, "the node stopped");
        }
        Replay { books, valid, damaged, broken }
    }

    /// Takes in a ledger that could not be read before these books began: what it has was paid,
    /// too. Answers how many of its lines were damaged. The ledger is to be written anew then
    /// ([`Books::compact`]), because sessions of both may have the same numbers.
    pub fn take_in(&mut self, ledger: &[u8]) -> usize {
        let Replay { books: earlier, damaged, .. } = Books::replay(ledger);
        for (cell, sums) in earlier.cells {
            self.add(cell, &sums);
        }
        for ((month, currency, peer, carrier), price) in earlier.fees {
            if !self.fees.contains_key(&(month, currency, peer.clone(), carrier.clone())) {
                self.apply(Record::Fee { month, peer, carrier, currency, price });
            }
        }
        let free = RECENT.saturating_sub(self.recent.len());
        earlier.recent.into_iter().rev().take(free).for_each(|s| self.recent.push_front(s));
        damaged
    }

    /// The lines of a new ledger that says the same in fewer lines. Sessions that go on stay what
    /// they are. What [`Books::poll_record`] has not given yet is in it, and is dropped.
    pub fn compact(&mut self) -> Vec<u8> {
        let mut lines = Record::Next { session: self.next }.line();
        for ((month, currency, peer, carrier), price) in &self.fees {
            let (peer, carrier) = (peer.clone(), carrier.clone());
            let (month, currency, price) = (*month, *currency, *price);
            lines += &Record::Fee { month, peer, carrier, currency, price }.line();
        }
        for (cell, sums) in &self.cells {
            lines += &Record::Sum { cell: cell.clone(), sums: *sums }.line();
        }
        for open in self.open.values_mut() {
            lines += &start_record(&open.session).line();
            let session = open.session.id.0;
            for (account, [sent, received]) in &open.by {
                let (account, sent, received) = (account.clone(), *sent, *received);
                lines += &Record::Usage { session, account, sent, received }.line();
            }
            let (elapsed, price) = (open.session.elapsed, open.session.price);
            lines += &Record::Mark { session, elapsed, price }.line();
            open.written = (price, elapsed);
            open.fresh.clear();
        }
        self.out.clear();
        lines.into_bytes()
    }

    /// The next line to append to the ledger. Flush when there is none left.
    pub fn poll_record(&mut self) -> Option<String> {
        self.out.pop_front().map(|record| record.line())
    }

    /// A carrier is there: from `start` on it costs.
    pub fn start(
        &mut self,
        start: Wall,
        peer: &Name,
        carrier: &Name,
        currency: Currency,
        raised: Account,
    ) -> SessionId {
        let record = Record::Start {
            session: self.next,
            at: start,
            peer: peer.clone(),
            carrier: carrier.clone(),
            currency,
            raised,
        };
        let id = SessionId(self.next);
        self.enter(record);
        id
    }

    /// Bytes crossed.
    pub fn traffic(&mut self, id: SessionId, account: &Account, sent: u64, received: u64) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let account = account_among(&open.by, account);
        add_bytes(&mut open.by, &account, sent, received);
        add_bytes(&mut open.fresh, &account, sent, received);
        open.session.sent = open.session.sent.saturating_add(sent);
        open.session.received = open.session.received.saturating_add(received);
    }

    /// What the session costs by now. Says when it wants to hear of it again, whatever happens.
    pub fn mark(&mut self, id: SessionId, elapsed: Duration, price: Money) -> Duration {
        let Some(open) = self.open.get_mut(&id) else { return Duration::MAX };
        // The ledger keeps milliseconds.
        let elapsed = Duration::from_millis(elapsed.as_millis());
        open.session.elapsed = elapsed;
        open.session.price = price;
        let (written, at) = open.written;
        let due = at + if price != written { SOONEST } else { LATEST };
        let first = price != written && at == Duration::ZERO && written.is_zero();
        if elapsed < due && !first {
            return due;
        }
        self.write_usage(id);
        self.enter(Record::Mark { session: id.0, elapsed, price });
        elapsed + LATEST
    }

    /// The session is over.
    pub fn end(&mut self, id: SessionId, elapsed: Duration, price: Money, cause: &str) {
        if self.open.contains_key(&id) {
            self.write_usage(id);
            let elapsed = Duration::from_millis(elapsed.as_millis());
            self.enter(Record::End { session: id.0, elapsed, price, cause: cause.into() });
        }
    }

    /// A month's price of a carrier, once.
    pub fn fee(&mut self, at: Wall, peer: &Name, carrier: &Name, currency: Currency, price: Money) {
        let month = at.day().month();
        if price.is_zero()
            || self.fees.contains_key(&(month, currency, peer.clone(), carrier.clone()))
        {
            return;
        }
        let (peer, carrier) = (peer.clone(), carrier.clone());
        self.enter(Record::Fee { month, peer, carrier, currency, price });
    }

    /// What a peer's links have cost in the month of `at`, with all sessions that go on. They are
    /// of the month in which they began, but a budget limits them in the next one, too, and where
    /// the clock was set meanwhile.
    pub fn spent_on(&self, at: Wall, currency: Currency, peer: &Name) -> Money {
        let month = at.day().month();
        let kept = self.spent.get(&(month, currency, peer.clone(), None)).copied();
        let open = self.open.values().map(|o| &o.session);
        let open = open.filter(|s| s.peer == *peer && s.currency == currency);
        kept.unwrap_or_default().plus(open.map(|s| s.price).sum())
    }

    /// What one carrier of a peer has cost in the month of `at`, with all sessions that go on.
    pub fn spent_over(&self, at: Wall, currency: Currency, peer: &Name, carrier: &Name) -> Money {
        let month = at.day().month();
        let key = (month, currency, peer.clone(), carrier.clone());
        let kept = self.spent_over.get(&key).copied().unwrap_or_default();
        let open = self
            .open
            .values()
            .map(|o| &o.session)
            .filter(|s| (&s.peer, &s.carrier) == (peer, carrier) && s.currency == currency);
        kept.plus(open.map(|s| s.price).sum())
    }

    /// What a host has cost in the month of `at`, over all peers, in sessions that are over.
    pub fn spent_before(&self, at: Wall, currency: Currency, host: Host) -> Money {
        let key = (at.day().month(), currency, "".into(), Some(host));
        self.spent.get(&key).copied().unwrap_or_default()
    }

    /// The parts of hosts in sessions that go on. Each session is divided once for all of them.
    pub fn spending(&self, currency: Currency) -> BTreeMap<Host, Money> {
        let open = self.open.values().filter(|o| o.session.currency == currency);
        let mut by_host: BTreeMap<Host, Money> = BTreeMap::new();
        for (account, sums) in open.flat_map(Open::parts) {
            let sum = by_host.entry(account.host).or_default();
            *sum = sum.plus(sums.price);
        }
        by_host
    }

    /// What a host has cost in the month of `at`, over all peers, with all sessions that go on.
    pub fn spent_by(&self, at: Wall, currency: Currency, host: Host) -> Money {
        let now = self.spending(currency).get(&host).copied();
        self.spent_before(at, currency, host).plus(now.unwrap_or_default())
    }

    /// Hosts in sessions of the month of `at` that are over.
    pub fn hosts_before(&self, at: Wall, currency: Currency) -> impl Iterator<Item = Host> {
        let first = |host| (at.day().month(), currency, Name::from(""), host);
        let nobodys = self.spent.range(first(None)..);
        let month = nobodys.take_while(move |((m, c, name, _), _)| {
            (*m, *c, &**name) == (at.day().month(), currency, "")
        });
        month.filter_map(|((.., host), _)| *host)
    }

    /// Bytes that crossed on a carrier in the month of `at`, in sessions that are over.
    pub fn bytes_on(&self, at: Wall, peer: &Name, carrier: &Name) -> ByteCount {
        let key = (at.day().month(), peer.clone(), carrier.clone());
        ByteCount(self.bytes.get(&key).copied().unwrap_or(0))
    }

    /// The last sessions that are over, oldest first, and those that go on.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.recent.iter().chain(self.open.values().map(|o| &o.session))
    }

    /// A session that goes on.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.open.get(&id).map(|o| &o.session)
    }

    /// Writes down what crossed since the last line.
    fn write_usage(&mut self, id: SessionId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let session = id.0;
        for (account, [sent, received]) in std::mem::take(&mut open.fresh) {
            self.out.push_back(Record::Usage { session, account, sent, received });
        }
    }

    /// A new record: into the books and onto the ledger.
    fn enter(&mut self, record: Record) {
        self.apply(record.clone());
        self.out.push_back(record);
    }

    /// What a record means. Replaying a ledger does nothing else.
    fn apply(&mut self, record: Record) {
        match record {
            Record::Start { session, at, peer, carrier, currency, raised } => {
                let id = SessionId(session);
                self.next = self.next.max(session.saturating_add(1));
                let session = Session {
                    id,
                    start: at,
                    peer,
                    carrier,
                    currency,
                    raised,
                    elapsed: Duration::ZERO,
                    price: Money::ZERO,
                    sent: 0,
                    received: 0,
                    cause: "".into(),
                };
                let written = (Money::ZERO, Duration::ZERO);
                let (by, fresh) = (BTreeMap::new(), BTreeMap::new());
                self.open.insert(id, Open { session, by, fresh, written });
            }
            // Only when a ledger is replayed: what crosses now is counted by `traffic`.
            Record::Usage { session, account, sent, received } => {
                let id = SessionId(session);
                self.traffic(id, &account, sent, received);
                if let Some(open) = self.open.get_mut(&id) {
                    open.fresh.clear();
                }
            }
            Record::Mark { session, elapsed, price } => {
                if let Some(open) = self.open.get_mut(&SessionId(session)) {
                    (open.session.elapsed, open.session.price) = (elapsed, price);
                    open.written = (price, elapsed);
                }
            }
            Record::End { session, elapsed, price, cause } => {
                if let Some(mut open) = self.open.remove(&SessionId(session)) {
                    (open.session.elapsed, open.session.price) = (elapsed, price);
                    open.session.cause = cause;
                    self.close(open);
                }
            }
            Record::Fee { month, peer, carrier, currency, price } => {
                let key = (month, currency, peer.clone(), carrier.clone());
                if self.fees.insert(key, price).is_none() {
                    self.spend_over(month, currency, (peer.clone(), carrier), price);
                    self.spend(month, currency, (peer, None), price);
                }
            }
            Record::Sum { cell, sums } => self.add(cell, &sums),
            Record::Next { session } => self.next = self.next.max(session),
        }
    }

    fn close(&mut self, open: Open) {
        for (cell, sums) in open.cells() {
            self.add(cell, &sums);
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(open.session);
    }

    fn add(&mut self, cell: Cell, sums: &Sums) {
        let month = cell.day.month();
        let (peer, carrier) = (cell.peer.clone(), cell.carrier.clone());
        self.spend(month, cell.currency, (peer.clone(), None), sums.price);
        self.spend(month, cell.currency, ("".into(), Some(cell.account.host)), sums.price);
        self.spend_over(month, cell.currency, (peer.clone(), carrier.clone()), sums.price);
        let bytes = self.bytes.entry((month, peer, carrier)).or_default();
        *bytes = bytes.saturating_add(sums.bytes());
        self.cells.entry(cell).or_default().add(sums);
        if self.cells.len() > MAX_CELLS {
            self.merge_oldest();
        }
    }

    fn spend(
        &mut self,
        month: Month,
        currency: Currency,
        whom: (Name, Option<Host>),
        price: Money,
    ) {
        self.keep_months(month);
        let sum = self.spent.entry((month, currency, whom.0, whom.1)).or_default();
        *sum = sum.plus(price);
    }

    /// Budgets are of the month. The newest months are kept, counted and not reckoned from this
    /// one: a clock that stood in the future must not take away the sums of the present.
    fn keep_months(&mut self, month: Month) {
        if !self.months.insert(month) || self.months.len() <= MONTHS {
            return;
        }
        let Some(oldest) = self.months.pop_first() else { return };
        self.spent.retain(|(m, ..), _| *m > oldest);
        self.spent_over.retain(|(m, ..), _| *m > oldest);
        self.bytes.retain(|(m, ..), _| *m > oldest);
    }

    fn spend_over(
        &mut self,
        month: Month,
        currency: Currency,
        (peer, carrier): (Name, Name),
        price: Money,
    ) {
        let sum = self.spent_over.entry((month, currency, peer, carrier)).or_default();
        *sum = sum.plus(price);
    }

    /// The oldest day of which hosts are told one by one is told for all of them together.
    fn merge_oldest(&mut self) {
        let oldest = self.cells.iter().find(|(c, _)| c.account.host != Host::Others);
        let Some(day) = oldest.map(|(c, _)| c.day) else {
            self.cells.pop_first();
            return;
        };
        let of_day: Vec<Cell> = self.cells.keys().filter(|c| c.day == day).cloned().collect();
        for mut cell in of_day {
            let Some(sums) = self.cells.remove(&cell) else { continue };
            (cell.day, cell.account.host) = (day.first_of_month(), Host::Others);
            self.cells.entry(cell).or_default().add(&sums);
        }
    }
}

impl Open {
    /// The session's sums, divided among its accounts by their bytes.
    fn parts(&self) -> Vec<(Account, Sums)> {
        let mut by = self.by.clone();
        by.entry(self.session.raised.clone()).or_default();
        let bytes: Vec<u64> = by.values().map(|[s, r]| s.saturating_add(*r)).collect();
        // Who raised a session without bytes pays for it.
        let none = bytes.iter().all(|b| *b == 0);
        let weights: Vec<u64> = match none {
            true => by.keys().map(|a| u64::from(*a == self.session.raised)).collect(),
            false => bytes,
        };
        let prices = divide(self.session.price.as_micros(), &weights);
        let times = divide(self.session.elapsed.as_millis(), &weights);
        let parts = by.into_iter().zip(prices.into_iter().zip(times));
        parts
            .map(|((account, [sent, received]), (price, connect_ms))| {
                let calls = u64::from(account == self.session.raised);
                let price = Money::from_micros(price);
                (account, Sums { calls, connect_ms, sent, received, price })
            })
            .collect()
    }

    fn cells(&self) -> impl Iterator<Item = (Cell, Sums)> + '_ {
        let s = &self.session;
        let day: Day = s.start.day();
        self.parts().into_iter().map(move |(account, sums)| {
            let (peer, carrier) = (s.peer.clone(), s.carrier.clone());
            (Cell { day, currency: s.currency, peer, carrier, account }, sums)
        })
    }
}

/// `account`, or that of the others where there is no place for one more.
fn account_among(by: &BTreeMap<Account, [u64; 2]>, account: &Account) -> Account {
    if by.len() < MAX_ACCOUNTS || by.contains_key(account) {
        return account.clone();
    }
    Account { host: Host::Others, class: "".into(), service: "".into() }
}

fn add_bytes(by: &mut BTreeMap<Account, [u64; 2]>, account: &Account, sent: u64, received: u64) {
    let bytes = by.entry(account.clone()).or_default();
    *bytes = [bytes[0].saturating_add(sent), bytes[1].saturating_add(received)];
}

fn start_record(s: &Session) -> Record {
    Record::Start {
        session: s.id.0,
        at: s.start,
        peer: s.peer.clone(),
        carrier: s.carrier.clone(),
        currency: s.currency,
        raised: s.raised.clone(),
    }
}
