//! `[peer.line.tariff]`: what a line costs, by the minute, the megabyte, the month, the hour and
//! the zone (R-COST).

use dial::calendar::Window;
use dial::money::{Currency, Money};
use dial::tariff::{Band, Beyond, Flat, Rates, Tariff};
use units::{ByteCount, Duration};

use crate::problem::Problem;
use crate::reader::{FromValue, Section, Wrong};

/// More than a bill has.
const MAX_PRICES: usize = 64;

/// Without a table all is free; `None`: it is wrong.
pub fn read(section: &mut Section<'_>) -> Option<Tariff> {
    let title = format!("the tariff of {}", section.title());
    let Some(mut table) = section.table("tariff", title) else { return Some(Tariff::free()) };
    let currency = table.get::<Currency>("currency");
    if !table.has("currency") {
        table.lacks("currency", "say what prices are in, as in currency = \"USD\"");
    }
    let everywhere = read_rates(&mut table);
    let zones = table.tables("zone");
    let (span, problems) = (table.span(), table.problems());
    let wrong = |message: String, help: &str| {
        problems.add(Problem::at(span.clone(), message).help(help.to_owned()));
        None
    };
    if zones.len() > MAX_PRICES {
        return wrong(format!("a tariff with over {MAX_PRICES} zones"), "leave some out");
    }
    let mut all = Vec::new();
    for mut zone in zones {
        let name = zone.get::<String>("name").map(|n| n.value);
        if !zone.has("name") {
            zone.lacks("name", "a zone is named by `zone` of the line and by `bentpipe link zone`");
        }
        let name = name.unwrap_or_default();
        zone.set_title(format!("zone \"{name}\" of a tariff"));
        let rates = read_rates(&mut zone);
        zone.finish();
        all.push((name, rates?));
    }
    let everywhere = everywhere?;
    // Where all prices are a zone's, the first of them holds until a zone is named.
    if everywhere != Rates::default() || all.is_empty() {
        all.insert(0, (String::new(), everywhere));
    }
    table.finish();
    match Tariff::new(currency?.value, all) {
        Ok(tariff) => Some(tariff),
        Err(why) => {
            let of = if why.zone.is_empty() {
                String::new()
            } else {
                format!("zone \"{}\": ", why.zone)
            };
            wrong(format!("{of}{}", why.what), &why.mend)
        }
    }
}

/// The prices of a zone, or of everywhere.
fn read_rates(table: &mut Section<'_>) -> Option<Rates> {
    let [per_call, per_minute, per_megabyte, per_month] =
        ["per_call", "per_minute", "per_megabyte", "per_month"]
            .map(|key| table.get::<Money>(key).map(|m| m.value));
    let [increment, minimum, lead] =
        ["increment", "minimum", "lead"].map(|key| table.get::<Duration>(key).map(|d| d.value));
    let block = table.get::<ByteCount>("block").map(|b| b.value);
    let fair_use = table.get::<ByteCount>("fair_use").map(|b| b.value);
    let words =
        [("charged", Beyond::Charged), ("slow", Beyond::Slow), ("stopped", Beyond::Stopped)];
    let beyond = table.word("beyond", &words).map(|b| b.value);
    let mut bands: Vec<Band> = per_minute
        .map(|price| Band { when: Window::ALWAYS, per_minute: price })
        .into_iter()
        .collect();
    let hours = table.tables("hours");
    if per_minute.is_some() && !hours.is_empty() {
        let help = "leave per_minute out, and give each hour of the week its price in hours";
        let message = "minutes have a price at all times and others by the hour".to_owned();
        table.problems().add(Problem::at(table.span(), message).help(help));
        return None;
    }
    for mut band in hours.into_iter().take(MAX_PRICES) {
        band.set_title("a price by the hour".into());
        let when = band.list::<Window>("when");
        let price = band.get::<Money>("per_minute");
        for (key, help) in [
            ("when", "say when, as in when = [\"mon-fri 08:00-18:00\"]"),
            ("per_minute", "say what a minute costs then, as in per_minute = \"2.40\""),
        ] {
            if !band.has(key) {
                band.lacks(key, help);
            }
        }
        band.finish();
        let price = price?.value;
        bands.extend(when?.into_iter().map(|when| Band { when: when.value, per_minute: price }));
    }
    let flat = match (per_month, fair_use, beyond) {
        (None, None, None) => None,
        (Some(per_month), fair_use, beyond) => Some(Flat {
            per_month,
            fair_use: fair_use.unwrap_or(ByteCount(u64::MAX)),
            beyond: beyond.unwrap_or(Beyond::Slow),
        }),
        (None, ..) => {
            let message = "a fair use without the price of a month".to_owned();
            let help = "say what the month costs, as in per_month = \"99\"";
            table.problems().add(Problem::at(table.span(), message).help(help));
            return None;
        }
    };
    let default = Rates::default();
    Some(Rates {
        per_call: per_call.unwrap_or_default(),
        bands,
        increment: increment.unwrap_or(default.increment),
        minimum: minimum.unwrap_or(default.minimum),
        lead: lead.unwrap_or(default.lead),
        per_megabyte: per_megabyte.unwrap_or_default(),
        block: block.unwrap_or(default.block),
        flat,
    })
}

impl FromValue for Money {
    const WANTED: &'static str = "an amount in quotes such as \"2.40\"";
    fn from_text(text: &str) -> Result<Money, Wrong> {
        text.parse::<Money>().map_err(|e| Wrong::new(e.to_string()))
    }
}

impl FromValue for Currency {
    const WANTED: &'static str = "a currency's three letters such as \"USD\" (ISO 4217)";
    fn from_text(text: &str) -> Result<Currency, Wrong> {
        text.parse::<Currency>().map_err(|e| Wrong::new(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use dial::manager::Redial;

    use super::*;
    use crate::line::Clock;
    use crate::tests::parse_peer as parse;

    const LINE: &str = "link = { send = \"9600bit\", receive = \"9600bit\", delay = \"300ms\" }\n\
        [peer.line]\nzone = \"at sea\"\nclock = \"-03:30\"\nredial = { per_hour = 6 }\n\
        [[peer.line.host_budget]]\nhosts = [\"10.1.0.0/24\"]\nbudget = \"20\"\n\
        [peer.line.tariff]\ncurrency = \"EUR\"\nincrement = \"6s\"\nlead = \"28s\"\n\
        [[peer.line.tariff.hours]]\nwhen = [\"mon-fri 08:00-18:00\"]\nper_minute = \"3\"\n\
        [[peer.line.tariff.hours]]\n\
        when = [\"mon-fri 18:00-08:00\", \"sat 08:00-24:00\", \"sun\", \"mon 00:00-08:00\"]\nper_minute = \"1.20\"\n\
        [[peer.line.tariff.zone]]\nname = \"at sea\"\nper_megabyte = \"4\"\nblock = \"10kB\"\n\
        per_month = \"99\"\nfair_use = \"50MB\"\nbeyond = \"charged\"\n";

    #[test]
    fn a_tariff_has_hours_zones_and_a_months_price() {
        let config = parse(LINE).expect("a good file");
        let line = config.peers[0].line.as_ref().expect("a line");
        assert_eq!((line.zone.as_str(), line.clock), ("at sea", Clock::Offset(-210)));
        assert_eq!(line.manager.host_budgets.len(), 1);
        let carrier = &line.manager.carriers[0];
        assert_eq!(carrier.redial, Redial { per_hour: 6, ..Redial::default() });
        let at_home = carrier.tariff.rates("");
        assert_eq!((at_home.bands.len(), at_home.lead), (5, Duration::from_secs(28)));
        let at_sea = carrier.tariff.rates("at sea");
        assert_eq!(at_sea.flat.expect("one").beyond, Beyond::Charged);
        assert!(at_sea.bands.is_empty());
    }

    #[test]
    fn a_budget_is_the_peers_or_its_lines_and_needs_prices() {
        let stop = |text: &str| {
            let config = parse(text).expect("a good file");
            config.peers[0].line.as_ref().expect("prices").manager.budget.map(|b| b.stop)
        };
        let own = format!("budget = \"5\"\n{LINE}");
        let lines =
            LINE.replace("zone = \"at sea\"\nclock", "budget = \"5\"\nzone = \"at sea\"\nclock");
        let five = "5".parse::<Money>().ok();
        assert_eq!((stop(LINE), stop(&own), stop(&lines)), (None, five, five));
        let both = parse(&format!("budget = \"5\"\n{lines}")).expect_err("refused");
        assert!(both.contains("has two budgets"), "{both}");
        let (link, _) = LINE.split_once('\n').expect("lines");
        let told = parse(&format!("budget = \"5\"\n{link}\n")).expect_err("refused");
        assert!(told.contains("needs prices"), "{told}");
        let metered = "[[peer.carrier]]\nname = \"a\"\nsource = \"192.0.2.7\"\n\
            tariff = { currency = \"USD\", per_megabyte = \"1\" }\n";
        assert_eq!(stop(&format!("budget = \"5\"\n{link}\n{metered}")), five);
    }

    #[test]
    fn a_tariff_that_cannot_be_is_refused_with_the_mend() {
        let told = |a: &str, b: &str| {
            assert!(LINE.contains(a), "{a}");
            parse(&LINE.replace(a, b)).expect_err("refused")
        };
        for (a, b, says) in [
            (", \"sun\"", "", "no minute price holds at"),
            ("\"sun\"", "\"sun\", \"sun 09:00-10:00\"", "several minute prices hold at"),
            ("zone = \"at sea\"", "zone = \"in port\"", "which its tariff has not"),
            ("clock = \"-03:30\"", "clock = \"CET\"", "is no clock"),
            ("per_month = \"99\"\n", "", "without the price of a month"),
            ("per_megabyte = \"4\"\n", "", "a megabyte has no price"),
            ("lead = \"28s\"", "lead = \"28s\"\nper_minute = \"1\"", "and others by the hour"),
            ("hosts = [\"10.1.0.0/24\"]\n", "", "hosts"),
            ("per_hour = 6", "per_hour = 0", "tries from 1"),
        ] {
            let told = told(a, b);
            assert!(told.contains(says), "{a} → {b}: {told}");
        }
    }
}
