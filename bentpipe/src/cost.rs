//! `bentpipe cost`: what lines have cost.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use console::Global;
use dial::books::{self, Books, Query};
use miette::{IntoDiagnostic as _, WrapErr as _};
use serde::Serialize;

use crate::config::Config;
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
}

/// Reads the ledgers.
///
/// # Errors
/// If the file is wrong or a ledger cannot be read.
pub fn run(args: &Args, global: &Global) -> miette::Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let query = Query::all(match args.by {
        By::Host => books::By::Host,
        By::Class => books::By::Class,
        By::Peer => books::By::Peer,
        By::Day => books::By::Day,
        By::Month => books::By::Month,
    });
    let (mut rows, mut csv) = (Vec::new(), String::new());
    for peer in config.peers.iter().filter(|peer| peer.line.is_some()) {
        let node = config.node.private_key.public();
        let Some(path) = ledger::path(node, &peer.public_key) else { continue };
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            other => other
                .into_diagnostic()
                .wrap_err_with(|| format!("cannot read the ledger {}", path.display()))?,
        };
        let lines = Books::replay(&bytes).books.query(&query);
        let part = books::csv(&query, &lines);
        // One heading for all.
        csv += if csv.is_empty() { &part } else { part.split_once('\n').map_or("", |(_, r)| r) };
        rows.extend(lines.into_iter().map(|line| Row {
            peer: peer.name.clone(),
            name: line.name,
            price: line.sums.price.to_string(),
            currency: line.currency.to_string(),
            calls: line.sums.calls,
            seconds: line.sums.connect_ms / 1000,
            sent_bytes: line.sums.sent,
            received_bytes: line.sums.received,
        }));
    }
    if global.json {
        console::print_json(&rows)?;
    } else if args.csv {
        console::print(&csv)?;
    } else if rows.is_empty() {
        console::print("nothing was paid for yet\n")?;
    } else {
        let line = |row: &Row| {
            format!(
                "{:12} {:20} {:>10} {}  {} calls, {} min, {} bytes sent, {} received\n",
                row.peer,
                row.name,
                row.price,
                row.currency,
                row.calls,
                row.seconds.div_ceil(60),
                row.sent_bytes,
                row.received_bytes
            )
        };
        console::print(&rows.iter().map(line).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}
