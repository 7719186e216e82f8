//! Questions to the books: who, what and when, and the answer as lines or as CSV.

use std::collections::BTreeMap;

use super::{Books, Cell, Name, Sums};
use crate::calendar::{Day, Month};
use crate::money::Currency;

/// What sums are told by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The hosts in the LAN.
    Host,
    /// Classes.
    Class,
    /// Services, and what they call their messages.
    Service,
    /// Carriers.
    Carrier,
    /// Peers.
    Peer,
    /// Days.
    Day,
    /// Months.
    Month,
}

/// A question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query {
    /// What to tell by.
    pub by: By,
    /// Only of this peer.
    pub peer: Option<Name>,
    /// Only from this day on.
    pub from: Option<Day>,
    /// Only up to this day, which is included.
    pub to: Option<Day>,
}

impl Query {
    /// Everything, by `by`.
    pub fn all(by: By) -> Query {
        Query { by, peer: None, from: None, to: None }
    }
}

/// A line of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// A host, a class, …, as the question wants it. Monthly fees have no host and no class:
    /// they are told as "monthly fee".
    pub name: String,
    /// What its price is in.
    pub currency: Currency,
    /// The sums.
    pub sums: Sums,
}

/// What a monthly price is told as where there is nothing else to name.
const FEE: &str = "monthly fee";

impl Books {
    /// Answers a question; sessions that go on are included.
    pub fn query(&self, query: &Query) -> Vec<Line> {
        let mut lines: BTreeMap<(String, Currency), Sums> = BTreeMap::new();
        let open = self.open.values().flat_map(|o| o.cells());
        let closed = self.cells.iter().map(|(cell, sums)| (cell.clone(), *sums));
        for (cell, sums) in closed.chain(open).filter(|(cell, _)| query.wants(cell)) {
            lines.entry((query.by.name(&cell), cell.currency)).or_default().add(&sums);
        }
        for ((month, currency, peer, carrier), price) in &self.fees {
            if query.wants_fee(*month, peer) {
                let sums = Sums { price: *price, ..Sums::default() };
                let name = query.by.fee_name(*month, peer, carrier);
                lines.entry((name, *currency)).or_default().add(&sums);
            }
        }
        let line = |((name, currency), sums)| Line { name, currency, sums };
        lines.into_iter().map(line).collect()
    }
}

impl Query {
    fn wants(&self, cell: &Cell) -> bool {
        self.peer.as_ref().is_none_or(|p| *p == cell.peer)
            && self.from.is_none_or(|from| cell.day >= from)
            && self.to.is_none_or(|to| cell.day <= to)
    }
    /// A month's price counts where any day of the month does.
    fn wants_fee(&self, month: Month, peer: &Name) -> bool {
        self.peer.as_ref().is_none_or(|p| p == peer)
            && self.from.is_none_or(|from| month >= from.month())
            && self.to.is_none_or(|to| month <= to.month())
    }
}

impl By {
    fn name(self, cell: &Cell) -> String {
        match self {
            By::Host => cell.account.host.to_string(),
            By::Class => cell.account.class.to_string(),
            By::Service => cell.account.service.to_string(),
            By::Carrier => cell.carrier.to_string(),
            By::Peer => cell.peer.to_string(),
            By::Day => cell.day.to_string(),
            By::Month => cell.day.month().to_string(),
        }
    }
    fn fee_name(self, month: Month, peer: &Name, carrier: &Name) -> String {
        match self {
            By::Host | By::Class | By::Service | By::Day => FEE.to_owned(),
            By::Carrier => carrier.to_string(),
            By::Peer => peer.to_string(),
            By::Month => month.to_string(),
        }
    }
    fn heading(self) -> &'static str {
        match self {
            By::Host => "host",
            By::Class => "class",
            By::Service => "service",
            By::Carrier => "carrier",
            By::Peer => "peer",
            By::Day => "day",
            By::Month => "month",
        }
    }
}

/// The answer to `query` as CSV (RFC 4180), with a line of headings.
pub fn csv(query: &Query, lines: &[Line]) -> String {
    let heading = query.by.heading();
    let mut text =
        format!("{heading},calls,connect_seconds,sent_bytes,received_bytes,price,currency\r\n");
    for Line { name, currency, sums: s } in lines {
        let (name, seconds) = (quoted(name), s.connect_ms / 1_000);
        let rest = s.connect_ms % 1_000;
        text += &format!(
            "{name},{},{seconds}.{rest:03},{},{},{},{currency}\r\n",
            s.calls, s.sent, s.received, s.price
        );
    }
    text
}

fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\r', '\n']) {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field.to_owned()
}
