//! What the operator asks of the cache (`bentpipe web`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use bentpipe_web::cache::{Stored, plain_uri, uri_digest};
use http::Uri;
use serde_json::{Value, json};

use crate::terminal::Terminal;

/// Hosts, answers and fields that are told of; bytes of a field, and of all that is told.
const HOSTS: usize = 100;
const ANSWERS: usize = 8;
const FIELDS: usize = 40;
const VALUE: usize = 120;
const ALL: usize = 60_000;

/// The answer, as JSON.
///
/// # Errors
/// A sentence for the operator.
pub async fn answer(terminal: &Terminal, words: &[String]) -> Result<String, String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let told = match words[..] {
        ["stats"] => stats(terminal),
        ["purge"] => json!({ "purged": terminal.store.purge(None) }),
        ["purge", url] => json!({ "purged": terminal.store.purge(Some(named(url)?.1)) }),
        ["show", url] => show(terminal, url).await?,
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

fn stats(terminal: &Terminal) -> Value {
    let mut told = json!(terminal.counted.all());
    for (name, n) in terminal.store.sizes().named() {
        told[name] = n.into();
    }
    let hosts = terminal.hosts.best(HOSTS);
    let with_name = |(host, saved)| {
        let mut it = json!(saved);
        it["host"] = Value::String(host);
        it
    };
    told["hosts"] = hosts.into_iter().map(with_name).collect();
    if let Some(inspection) = &terminal.inspection {
        let told_of = |(host, name, left, why): (IpAddr, String, Duration, String)| json!({ "host": host.to_string(), "name": name, "left_s": left.as_secs(), "why": why });
        let alone: Value = inspection.left_alone(HOSTS).into_iter().map(told_of).collect();
        told["inspection"] = json!({ "left_alone": alone });
    }
    told
}

async fn show(terminal: &Terminal, url: &str) -> Result<Value, String> {
    let (uri, digest) = named(url)?;
    let mut told = BTreeSet::new();
    let mut answers = Vec::new();
    for (stored, place) in terminal.store.all_of(digest, ANSWERS).await {
        if stored.key.uri() == uri && told.insert(stored.number) {
            answers.push(about(terminal, &stored, place));
        }
    }
    match answers.is_empty() {
        true => Err(format!("nothing is kept of {url}")),
        false => Ok(json!({ "answers": answers })),
    }
}

fn about(terminal: &Terminal, stored: &Stored, place: &str) -> Value {
    let now = terminal.store.now();
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
