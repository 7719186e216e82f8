//! `bentpipe cost`: what lines have cost.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use console::Global;
use dial::books::{self, Books, Host, Query};
use dial::manager::{CarrierConfig, HostSpending};
use dial::tariff::Tariff;
use miette::{IntoDiagnostic as _, WrapErr as _};
use serde::Serialize;

use crate::calendar::wall;
use crate::config::{Config, Line};
use crate::ledger;

/// Says what the links of a file have cost.
///
/// It reads the ledgers that the gateway keeps in its state directory, whether it runs or not.
/// Prices are those of the tariff at the time of the call.
///
/// Examples: bentpipe cost /etc/bentpipe/ship.toml; bentpipe cost ship.toml --by host --csv
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's configuration file.
    file: PathBuf,
    /// What sums are told by.
    #[arg(long, value_enum, default_value_t = By::Month)]
    by: By,
    /// As comma-separated values.
    #[arg(long)]
    csv: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// The hosts in the LAN.
    Host,
    /// Classes of traffic.
    Class,
    /// Carriers; a flat price is one whatever crosses, and 0 where the file has none.
    Carrier,
    /// Peers.
    Peer,
    /// Days, by the line's clock.
    Day,
    /// Months, by the line's clock.
    Month,
}

#[derive(Serialize)]
struct Row {
    peer: String,
    name: String,
    price: String,
    currency: String,
    calls: u64,
    seconds: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// What crosses costs nothing: the price is a month's, or none.
    flat: bool,
    /// A host that has used up this month's budget, or nearly.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<OfBudget>,
}

/// What a host has of its month's budget.
#[derive(Serialize)]
struct OfBudget {
    /// What it has cost this month.
    spent: String,
    budget: String,
    /// It is used up.
    stopped: bool,
}

/// What this month has come to for hosts with a budget, from the warning on.
fn spending(line: &Line, books: &Books) -> Vec<HostSpending> {
    let (now, currency) = (wall(line.clock), line.manager.currency);
    let mut sums = books.spending(currency);
    for host in books.hosts_before(now, currency) {
        sums.entry(host).or_default();
    }
    let of_host = |(host, sum): (Host, dial::money::Money)| {
        let budget = line.manager.host_budget(&host)?;
        budget.spending(host, sum.plus(books.spent_before(now, currency, host)))
    };
    sums.into_iter().filter_map(of_host).collect()
}

/// The budget of the host whose sum this is: what was paid in another currency is not of it.
fn of_budget(line: &Line, spending: &[HostSpending], sum: &books::Line) -> Option<OfBudget> {
    let mut of_host = spending.iter().filter(|of| of.host.to_string() == sum.name);
    let of = of_host.next().filter(|_| sum.currency == line.manager.currency)?;
    let (spent, budget) = (of.spent.to_string(), of.of.to_string());
    Some(OfBudget { spent, budget, stopped: of.stopped })
}

impl OfBudget {
    fn words(&self, currency: &str) -> String {
        let OfBudget { spent, budget, stopped } = self;
        let what = if *stopped { "; stopped, this month" } else { "; this month" };
        format!("{what} {spent} of {budget} {currency}")
    }
}

/// Have the carriers whose sums are told under `name` flat prices? Those beside a line are not
/// billed by it.
fn is_flat(line: &Line, by: By, name: &str) -> bool {
    let told = |carrier: &&CarrierConfig| match by {
        By::Carrier => *carrier.name == *name,
        By::Peer => true,
        By::Host | By::Class | By::Day | By::Month => false,
    };
    let mut carriers = line.manager.carriers.iter().filter(told).peekable();
    carriers.peek().is_some()
        && carriers.all(|c| !c.tariff.zones().any(|zone| c.tariff.rates(zone).charges()))
}

/// Reads the ledgers.
///
/// # Errors
/// If the file is wrong or a ledger cannot be read.
pub fn run(args: &Args, global: &Global) -> miette::Result<ExitCode> {
    let config = Config::load(&args.file)?;
    if let Some(user) = &config.node.user {
        crate::state_directory::go_on_as(user);
    }
    let query = Query::all(match args.by {
        By::Host => books::By::Host,
        By::Class => books::By::Class,
        By::Carrier => books::By::Carrier,
        By::Peer => books::By::Peer,
        By::Day => books::By::Day,
        By::Month => books::By::Month,
    });
    let (mut rows, mut csv) = (Vec::new(), String::new());
    for peer in &config.peers {
        let Some(line) = &peer.line else { continue };
        let node = config.node.private_key.public();
        let Some(path) = ledger::path(node, &peer.public_key) else { continue };
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            other => other
                .into_diagnostic()
                .wrap_err_with(|| format!("cannot read the ledger {}", path.display()))?,
        };
        let replay = Books::replay(&bytes);
        ledger::warn_of_damage(&path, replay.damaged);
        let books = replay.books;
        let lines = books.query(&query);
        let spending = match args.by {
            By::Host => spending(line, &books),
            _ => Vec::new(),
        };
        let part = books::csv(&query, &lines);
        // One heading for all.
        csv += if csv.is_empty() { &part } else { part.split_once('\n').map_or("", |(_, r)| r) };
        rows.extend(lines.into_iter().map(|of| Row {
            peer: peer.name.clone(),
            flat: is_flat(line, args.by, &of.name),
            budget: of_budget(line, &spending, &of),
            name: of.name,
            price: of.sums.price.to_string(),
            currency: of.currency.to_string(),
            calls: of.sums.calls,
            seconds: of.sums.connect_ms / 1000,
            sent_bytes: of.sums.sent,
            received_bytes: of.sums.received,
        }));
    }
    if global.json {
        console::print_json(&rows)?;
    } else if args.csv {
        console::print(&csv)?;
    } else if rows.is_empty() {
        console::print("nothing was paid for yet\n")?;
    } else {
        console::print(&rows.iter().map(|row| text(row, args.by)).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A row as text. What belongs to no class, such as the time of a call in which nothing crossed, is
/// named; what has no tariff has no currency.
fn text(row: &Row, by: By) -> String {
    let name = match (row.name.as_str(), by) {
        ("", By::Class) => "no class",
        (name, _) => name,
    };
    let currency = match row.currency == Tariff::free().currency().to_string() {
        true => "",
        false => row.currency.as_str(),
    };
    format!(
        "{:12} {name:20} {:>10} {}  {} calls, {} min, {} bytes sent, {} received{}\n",
        row.peer,
        row.price,
        [currency, if row.flat { " flat" } else { "" }].concat().trim_start(),
        row.calls,
        row.seconds.div_ceil(60),
        row.sent_bytes,
        row.received_bytes,
        row.budget.as_ref().map(|of| of.words(&row.currency)).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_budget_stands_beside_the_sum_in_its_currency_alone() {
        let [own, theirs] = [7, 9].map(|n| link::keys::PrivateKey::from_bytes([n; 32]));
        let text = format!(
            "[node]\nprivate_key = \"{}\"\n[[peer]]\npublic_key = \"{}\"\n\
             link = {{ send = \"9600bit\", receive = \"9600bit\", delay = \"300ms\" }}\n\
             [peer.line]\nserial = \"/dev/ttyS0\"\nnumbers = [\"1\"]\n\
             tariff = {{ currency = \"EUR\", per_call = \"1\" }}\n\
             [[peer.line.host_budget]]\nhosts = [\"10.2.0.0/24\"]\nbudget = \"1\"\n",
            own.to_base64().as_str(),
            theirs.public()
        );
        let config = Config::parse(&text, Path::new("t.toml")).expect("a good file");
        let line = config.peers[0].line.as_ref().expect("a line");
        let mut books = Books::new();
        // The file named dollars before.
        for currency in ["USD", "EUR"] {
            let raised = books::Account {
                host: "10.2.0.7".parse().expect("a host"),
                class: "".into(),
                service: "".into(),
            };
            let currency = currency.parse().expect("a currency");
            let (peer, carrier) = (&line.manager.peer, &line.manager.carriers[0].name);
            let id = books.start(wall(line.clock), peer, carrier, currency, raised);
            books.end(id, units::Duration::from_secs(60), "1".parse().expect("money"), "idle");
        }
        let spending = spending(line, &books);
        let lines = books.query(&Query::all(books::By::Host));
        let told = lines.iter().map(|of| {
            let budget = of_budget(line, &spending, of);
            (of.currency.to_string(), budget.map(|of| of.words("EUR")))
        });
        let stopped = "; stopped, this month 1.00 of 1.00 EUR".to_owned();
        let expected = [("EUR".to_owned(), Some(stopped)), ("USD".to_owned(), None)];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn rows_without_a_class_have_a_name_and_those_without_a_tariff_no_currency() {
        let row = |name: &str, currency: &str, flat| Row {
            peer: "shore".into(),
            name: name.into(),
            price: "2.40".into(),
            currency: currency.into(),
            calls: 1,
            seconds: 61,
            sent_bytes: 5,
            received_bytes: 7,
            flat,
            budget: None,
        };
        let told = text(&row("", "USD", false), By::Class);
        assert!(
            told.starts_with("shore        no class                   2.40 USD  1 calls"),
            "{told}"
        );
        let told = text(&row("iridium", "XXX", true), By::Carrier);
        assert!(told.contains(" 2.40 flat  1 calls, 2 min, 5 bytes sent"), "{told}");
        let told = text(&row("iridium", "USD", true), By::Carrier);
        assert!(told.contains(" 2.40 USD flat  1 calls"), "{told}");
    }
}
