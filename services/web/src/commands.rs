//! What the operator asks of the cache (`bentpipe web`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use bentpipe_web::cache::{Stored, plain_uri, uri_digest};
use http::Uri;
use serde_json::{Value, json};

use crate::hosts::Hosts;
use crate::hub::Kept;
use crate::store::Store;
use crate::terminal::{Inspection, Terminal};

/// Hosts, answers and fields that are told of; bytes of a field, and of all that is told.
const HOSTS: usize = 50;
const ANSWERS: usize = 8;
const FIELDS: usize = 40;
const VALUE: usize = 120;
const ALL: usize = 60_000;

/// The answer, as JSON.
///
/// # Errors
/// A sentence for the operator.
pub async fn answer(
    terminal: &Terminal,
    hub: Option<&Kept>,
    words: &[String],
) -> Result<String, String> {
    let stores = [Some(&terminal.store), hub.map(|hub| &hub.store)];
    let purge = |of| stores.iter().flatten().map(|store| store.purge(of)).sum::<usize>();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let told = match words[..] {
        ["stats"] => stats(terminal, hub),
        ["purge"] => json!({ "purged": purge(None) }),
        ["purge", url] => json!({ "purged": purge(Some(named(url)?.1)) }),
        ["show", url] => show(stores, url).await?,
        _ => return Err("the service knows stats, purge, purge URL and show URL".to_owned()),
    };
    let text = told.to_string();
    match text.len() <= ALL {
        true => Ok(text),
        false => Err("there is more about it than can be told".to_owned()),
    }
}

fn named(url: &str) -> Result<(String, u64), String> {
    let known = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    let uri = url.parse::<Uri>().ok().filter(known);
    let uri = uri.ok_or_else(|| format!("\"{url}\" is no URL such as http://example.org/"))?;
    let plain = plain_uri(&uri);
    let digest = uri_digest(&plain);
    Ok((plain, digest))
}

fn stats(terminal: &Terminal, hub: Option<&Kept>) -> Value {
    terminal.pushes.tidy();
    let mut told = json!(terminal.counted.all());
    for (name, n) in terminal.store.sizes().named() {
        told[name] = n.into();
    }
    told["hosts"] = best(&terminal.hosts);
    if let Some(hub) = hub {
        let counted: BTreeMap<_, _> = hub.store.told().into_iter().collect();
        told["hub"] = json!(counted);
        told["hub"]["hosts"] = best(&hub.hosts);
    }
    if let Some(inspection) = &terminal.inspection {
        told["inspection"] = json!({ "left_alone": left_alone(inspection) });
    }
    told
}

fn left_alone(inspection: &Inspection) -> Value {
    let names = inspection.left_alone(HOSTS).into_iter();
    let about = |(host, name, left, why): (IpAddr, String, Duration, String)| json!({ "host": host.to_string(), "name": name, "left_s": left.as_secs(), "why": why });
    names.map(about).collect()
}

fn best(hosts: &Hosts) -> Value {
    let with_name = |(host, saved)| {
        let mut it = json!(saved);
        it["host"] = Value::String(host);
        it
    };
    hosts.best(HOSTS).into_iter().map(with_name).collect()
}

async fn show(stores: [Option<&Rc<Store>>; 2], url: &str) -> Result<Value, String> {
    let (uri, digest) = named(url)?;
    let mut answers = Vec::new();
    for store in stores.into_iter().flatten() {
        let mut told = BTreeSet::new();
        for (stored, place) in store.all_of(digest, ANSWERS).await {
            if stored.key.uri() == uri && told.insert(stored.number) {
                answers.push(about(store, &stored, place));
            }
        }
    }
    match answers.is_empty() {
        true => Err(format!("nothing is kept of {url}")),
        false => Ok(json!({ "answers": answers })),
    }
}

fn about(store: &Store, stored: &Stored, place: &str) -> Value {
    let now = store.now();
    let fields = stored.fields.iter().take(FIELDS).map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        json!({ "name": name.as_str(), "value": value.chars().take(VALUE).collect::<String>() })
    });
    let (fresh, stale) = stored.left(now);
    json!({
        "peer": stored.key.peer(),
        "server": stored.key.server().to_string(),
        "status": stored.status.as_u16(),
        "length": stored.length,
        "age_s": stored.age_at(now).as_secs(),
        "fresh_s": fresh.as_secs(),
        "stale_s": stale.as_secs(),
        "where": place,
        "fields": fields.collect::<Vec<_>>(),
    })
}
