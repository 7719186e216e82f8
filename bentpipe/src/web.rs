//! `bentpipe web`: what the service `bentpipe-web` keeps.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use console::Global;
use miette::miette;
use serde_json::Value;
use units::Duration;
use units::human::bytes;

use crate::admin::{self, Answer, Request};

/// Tells what the web's cache keeps and saved, and forgets it.
///
/// Asks the service `bentpipe-web` of the gateway that runs here: that of the node whose hosts
/// are served.
///
/// Examples: bentpipe web stats; bentpipe web show http://example.org/; bentpipe web purge
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's admin socket.
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// The service's name in the gateway's file.
    #[arg(long, value_name = "NAME", default_value = "web", global = true)]
    service: String,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Requests, hits, bytes and time saved, by host.
    Stats,
    /// Forget what is kept of a URL, or all that is kept.
    Purge {
        /// Such as http://example.org/logo.png; without it everything is forgotten.
        url: Option<String>,
    },
    /// What is kept of a URL: its fields, its age, and how long it is fresh.
    Show {
        /// Such as http://example.org/logo.png.
        url: String,
    },
}

/// Services answer within five seconds, or the gateway says that they do not.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the gateway's service.
///
/// # Errors
/// One sentence: nothing runs there, there is no such service, or nothing is kept of the URL.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let socket = args.socket.unwrap_or_else(admin::default_socket);
    let (words, print): (Vec<String>, fn(&Value) -> String) = match args.what {
        What::Stats => (vec!["stats".into()], stats),
        What::Purge { url } => (std::iter::once("purge".into()).chain(url).collect(), purged),
        What::Show { url } => (vec!["show".into(), url], shown),
    };
    let request = Request::Service { service: args.service, words };
    let Answer::Service(told) = admin::request(&socket, &request, PATIENCE)? else {
        return Err(miette!("the gateway behind {} gave another answer", socket.display()));
    };
    match global.json {
        true => console::print_json(&told)?,
        false => console::print(&print(&told))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or("")
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map_or(&[], Vec::as_slice)
}

fn stats(told: &Value) -> String {
    let count = |name| number(told, name);
    let mut out = format!(
        "{} requests: {} from the cache, {} more validated, {} stale\n\
         {} did not cross the link\n\
         {} answers in memory ({}), {} on disk ({})\n",
        count("requests"),
        count("hits"),
        count("validated"),
        count("stale"),
        bytes(count("hit_bytes")),
        count("in_memory"),
        bytes(count("memory_bytes")),
        count("on_disk"),
        bytes(count("disk_bytes")),
    );
    if !told["inspection"].is_null() {
        out += &format!(
            "{} connections of HTTPS opened, {} left alone by the list, {} refused\n",
            count("inspected"),
            count("bypassed"),
            count("refused"),
        );
    }
    if count("pushed") > 0 {
        out += &format!(
            "{} objects came ahead of their requests ({}): {} were asked for ({}), {} were wasted \
             ({})\n",
            count("pushed"),
            bytes(count("pushed_bytes")),
            count("push_used"),
            bytes(count("push_used_bytes")),
            count("push_wasted"),
            bytes(count("push_wasted_bytes")),
        );
    }
    out += &by_host(list(told, "hosts"));
    out += &bytes_and_pushes(list(told, "hosts"));
    let hub = &told["hub"];
    if number(hub, "hits") + number(hub, "in_memory") + number(hub, "on_disk") > 0 {
        out += &format!(
            "\nFor terminals behind this hub: {} from the cache ({}), {} more validated\n\
             {} answers in memory ({}), {} on disk ({})\n",
            number(hub, "hits"),
            bytes(number(hub, "hit_bytes")),
            number(hub, "validated"),
            number(hub, "in_memory"),
            bytes(number(hub, "memory_bytes")),
            number(hub, "on_disk"),
            bytes(number(hub, "disk_bytes")),
        );
        out += &by_host(list(hub, "hosts"));
    }
    out += &left_alone(list(&told["inspection"], "left_alone"));
    out
}

fn by_host(hosts: &[Value]) -> String {
    let mut out = String::new();
    if !hosts.is_empty() {
        out += &format!(
            "\n{:<32} {:>9} {:>9} {:>9} {:>10} {:>10}\n",
            "HOST", "REQUESTS", "HITS", "VALID", "SAVED", "TIME"
        );
    }
    for host in hosts {
        out += &format!(
            "{:<32} {:>9} {:>9} {:>9} {:>10} {:>8}.{} s\n",
            printable(text(host, "host")),
            number(host, "requests"),
            number(host, "hits"),
            number(host, "validated"),
            bytes(number(host, "bytes")),
            number(host, "saved_ms") / 1000,
            number(host, "saved_ms") % 1000 / 100,
        );
    }
    out
}

fn bytes_and_pushes(hosts: &[Value]) -> String {
    let mut out = String::new();
    if !hosts.is_empty() {
        out += &format!("\n{:<32} {:>10} {:>12} {:>9}\n", "HOST", "BYTES", "PUSHES USED", "WASTED");
    }
    for host in hosts {
        out += &format!(
            "{:<32} {:>10} {:>12} {:>9}\n",
            printable(text(host, "host")),
            bytes(number(host, "total_bytes")),
            number(host, "push_used"),
            number(host, "push_wasted"),
        );
    }
    out
}

/// Names that could not be opened within the hour.
fn left_alone(names: &[Value]) -> String {
    let mut out = String::new();
    if !names.is_empty() {
        out += &format!("\n{:<32} {:<20} {:>7}  WHY\n", "LEFT ALONE", "HOST", "FOR");
    }
    for it in names {
        out += &format!(
            "{:<32} {:<20} {:>3} min  {}\n",
            printable(text(it, "name")),
            printable(text(it, "host")),
            number(it, "left_s").div_ceil(60),
            printable(text(it, "why")),
        );
    }
    out
}

fn purged(told: &Value) -> String {
    format!("{} answers forgotten\n", number(told, "purged"))
}

fn shown(told: &Value) -> String {
    let mut out = String::new();
    for it in list(told, "answers") {
        let fresh = match (number(it, "fresh_s"), number(it, "stale_s")) {
            (0, stale) => format!("stale for {stale} s"),
            (fresh, _) => format!("fresh for {fresh} s"),
        };
        out += &format!(
            "{} behind {}: {}, {}, {} s old, {fresh}, {}\n",
            text(it, "server"),
            printable(text(it, "peer")),
            number(it, "status"),
            bytes(number(it, "length")),
            number(it, "age_s"),
            text(it, "where"),
        );
        for field in list(it, "fields") {
            out += &format!("  {}: {}\n", text(field, "name"), printable(text(field, "value")));
        }
    }
    out
}

/// Without what a terminal would obey: servers choose these words.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_service_tells_is_printed_whatever_is_missing() {
        let told = json!({ "requests": 3, "hits": 2, "hosts": [
            { "host": "a\u{1b}[31m", "requests": 3, "hits": 2, "bytes": 2048, "saved_ms": 1250,
              "total_bytes": 4096, "push_used": 5, "push_wasted": 6 },
        ]});
        let text = stats(&told);
        assert!(
            text.starts_with("3 requests: 2 from the cache") && text.contains("1.2 s"),
            "{text}"
        );
        let last: Vec<_> = text.lines().last().unwrap_or("").split_whitespace().collect();
        assert_eq!(last[last.len() - 2..], ["5", "6"], "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains("HTTPS"));
        let told = json!({ "inspected": 3, "inspection": { "left_alone": [
            { "name": "a.test", "host": "10.1.0.2", "left_s": 61, "why": "it is pinned" },
        ]}});
        let text = stats(&told);
        assert!(text.contains("3 connections of HTTPS opened"), "{text}");
        assert!(text.contains("a.test") && text.ends_with("  2 min  it is pinned\n"), "{text}");
        let told = json!({ "answers": [{ "server": "10.2.0.2:80", "status": 200, "fresh_s": 7,
            "fields": [{ "name": "etag", "value": "x\ny" }] }]});
        let text = shown(&told);
        assert!(text.contains("fresh for 7 s") && text.ends_with("  etag: x?y\n"), "{text}");
        assert_eq!(shown(&json!([])), "");
        assert_eq!(purged(&json!({ "purged": 4 })), "4 answers forgotten\n");
    }
}
