//! Usage by day, peer and host: a file for each day, of which only today's is written.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::{fs, io};

use control::{By, UsageBytes, UsageReport, UsageRow};
use serde::{Deserialize, Serialize};

use crate::calendar;
use crate::human;
use crate::state_directory::read_whole;
use crate::up::shard::tidings::PeerUsage;

/// Days that are kept.
const DAYS: usize = 400;
/// Hosts of one peer and day after those with the least bytes were taken together, and of all
/// peers. Twice as many before.
const MOST: usize = 1024;
const MOST_OF_ALL: usize = 16_384;
/// However many peers there are.
const LEAST: usize = 8;
/// Hosts that a watcher is told at once.
const MOST_TOLD: usize = 128;
/// Rows of a report.
const MOST_ROWS: usize = 10_000;
/// What hosts are called that have no account of their own, or are not known.
const OTHER: &str = "other";

/// A day as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Day {
    /// By the peer's key.
    peers: BTreeMap<String, PeerDay>,
}

/// A peer's day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct PeerDay {
    /// Its name, when it last had something.
    name: String,
    /// All of it, with the bytes of link packets.
    total: UsageBytes,
    /// By host. Numbers without their names: streams sent and received, packets' bytes sent and
    /// received, packets sent and received.
    hosts: BTreeMap<String, [u64; 6]>,
}

impl Day {
    /// Adds what was there earlier that day.
    fn add(&mut self, earlier: Day) {
        for (key, before) in earlier.peers {
            let peer = self.peers.entry(key).or_default();
            if peer.name.is_empty() {
                peer.name = before.name;
            }
            peer.total += before.total;
            for (host, numbers) in before.hosts {
                add(peer.hosts.entry(host).or_default(), &bytes_of(&numbers));
            }
        }
    }
}

/// A day in memory: today, and earlier ones that are still to be written.
#[derive(Clone)]
pub(super) struct Book {
    /// Days since 1970.
    day: u64,
    of_the_day: Day,
    /// It is to be written.
    pub changed: bool,
    /// The file could not be read: until what it has is known, nothing is written over it.
    pub unread: bool,
}

impl Book {
    pub fn new(day: u64) -> Book {
        Book { day, of_the_day: Day::default(), changed: false, unread: false }
    }

    /// The book of a day, which goes on with what was written of it in `dir`.
    pub fn open(day: u64, dir: Option<&Path>) -> Book {
        let mut book = Book::new(day);
        if let Some(dir) = dir {
            book.unread = true;
            if let Err(e) = book.read(dir) {
                let (file, why) = (dir.join(book.file_name()), human::reason(&e));
                let file = file.display();
                crate::log!(
                    Error,
                    "usage cannot be read, and is tried again",
                    file = file,
                    why = why
                );
            }
        }
        book
    }

    /// Adds what was written of the day in `dir`, where that was not done yet.
    ///
    /// # Errors
    /// The file cannot be read for now.
    pub fn read(&mut self, dir: &Path) -> io::Result<()> {
        if self.unread {
            let written: Option<Day> = read_whole(&dir.join(self.file_name()))?;
            self.of_the_day.add(written.unwrap_or_default());
            self.unread = false;
        }
        Ok(())
    }

    pub fn day(&self) -> u64 {
        self.day
    }

    pub fn day_name(&self) -> String {
        calendar::day(self.day)
    }

    pub fn file_name(&self) -> String {
        format!("{}.json", self.day_name())
    }

    pub fn of_the_day(&self) -> &Day {
        &self.of_the_day
    }

    /// Books what a peer and its hosts had. Answers the day's sums of those hosts, the most of
    /// them, and of the peer.
    pub fn add(&mut self, had: &PeerUsage) -> (Vec<UsageRow>, UsageRow) {
        self.changed = true;
        let peers = self.of_the_day.peers.len().max(1);
        let peer = self.of_the_day.peers.entry(had.key.to_string()).or_default();
        peer.name.clone_from(&had.name);
        for (host, bytes) in &had.hosts {
            peer.total += *bytes;
            add(peer.hosts.entry(name_of(*host)).or_default(), bytes);
        }
        peer.total.link_bytes_sent += had.link[0];
        peer.total.link_bytes_received += had.link[1];
        let mut told: Vec<UsageRow> = had
            .hosts
            .iter()
            .map(|(host, _)| name_of(*host))
            .map(|of| UsageRow { bytes: bytes_of(&peer.hosts[&of]), of })
            .collect();
        told.sort_by_key(|row| Reverse(row.bytes.bytes()));
        told.truncate(MOST_TOLD);
        let most = (MOST_OF_ALL / peers).clamp(LEAST, MOST);
        if peer.hosts.len() > 2 * most {
            take_together(&mut peer.hosts, most);
        }
        (told, UsageRow { of: peer.name.clone(), bytes: peer.total })
    }
}

fn name_of(host: Option<IpAddr>) -> String {
    host.map_or(OTHER.to_owned(), |host| host.to_string())
}

fn add(sum: &mut [u64; 6], more: &UsageBytes) {
    let more = [
        more.stream_bytes_sent,
        more.stream_bytes_received,
        more.packet_bytes_sent,
        more.packet_bytes_received,
        more.packets_sent,
        more.packets_received,
    ];
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
}

fn bytes_of(numbers: &[u64; 6]) -> UsageBytes {
    let [stream_bytes_sent, stream_bytes_received, packet_bytes_sent, packet_bytes_received, ..] =
        *numbers;
    let [.., packets_sent, packets_received] = *numbers;
    UsageBytes {
        stream_bytes_sent,
        stream_bytes_received,
        packet_bytes_sent,
        packet_bytes_received,
        packets_sent,
        packets_received,
        ..UsageBytes::default()
    }
}

/// Leaves the `most` hosts with the most bytes, beside what is told of the others.
fn take_together(hosts: &mut BTreeMap<String, [u64; 6]>, most: usize) {
    let mut others = hosts.remove(OTHER).unwrap_or_default();
    let mut all: Vec<_> = std::mem::take(hosts).into_iter().collect();
    all.sort_by_key(|(_, numbers)| Reverse(bytes_of(numbers).bytes()));
    for (_, numbers) in all.drain(most.min(all.len())..) {
        add(&mut others, &bytes_of(&numbers));
    }
    hosts.extend(all);
    hosts.insert(OTHER.to_owned(), others);
}

/// Which part of what is kept a report is of.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// The first day and the last, as texts; none: all.
    pub from: Option<String>,
    pub to: Option<String>,
    /// Only the peer called so.
    pub peer: Option<String>,
}

impl Range {
    /// A range as a client asks for it.
    ///
    /// # Errors
    /// A sentence, if a day is none.
    pub fn checked(
        from: Option<String>,
        to: Option<String>,
        peer: Option<String>,
    ) -> Result<Range, String> {
        let wrong = |day: &&String| !calendar::is_day(day);
        if let Some(day) = from.iter().chain(&to).find(wrong) {
            return Err(format!("\"{day}\" is no day: write it as 2026-11-24"));
        }
        Ok(Range { from, to, peer })
    }

    fn has(&self, day: &str) -> bool {
        let from = self.from.as_deref().is_none_or(|from| from <= day);
        from && self.to.as_deref().is_none_or(|to| day <= to)
    }
}

/// The days that have a file, in their order.
fn days(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let days = names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned));
    let mut days: Vec<String> = days.filter(|day| calendar::is_day(day)).collect();
    days.sort();
    days
}

/// Removes the days beyond those that are kept.
pub(super) fn prune(dir: &Path) {
    let days = days(dir);
    for day in &days[..days.len().saturating_sub(DAYS)] {
        let _ = fs::remove_file(dir.join(format!("{day}.json")));
    }
}

/// Sums up the days of a range. Those of `live`, which are in memory, count in place of their
/// files.
pub(super) fn report(dir: Option<&Path>, live: &[Book], by: By, range: &Range) -> UsageReport {
    let mut all: BTreeSet<String> = dir.map(days).unwrap_or_default().into_iter().collect();
    all.extend(live.iter().map(Book::day_name));
    all.retain(|day| range.has(day));
    let (mut sums, mut total) = (BTreeMap::<String, UsageBytes>::new(), UsageBytes::default());
    let mut unread: BTreeSet<String> =
        live.iter().filter(|book| book.unread).map(Book::day_name).collect();
    unread.retain(|day| range.has(day));
    for name in &all {
        let read;
        let day = match (live.iter().find(|book| book.day_name() == *name), dir) {
            (Some(book), _) => &book.of_the_day,
            (None, Some(dir)) => {
                let file = read_whole::<Day>(&dir.join(format!("{name}.json")));
                if file.is_err() {
                    unread.insert(name.clone());
                }
                read = file.ok().flatten().unwrap_or_default();
                &read
            }
            (None, None) => continue,
        };
        let wanted = |peer: &&PeerDay| range.peer.as_ref().is_none_or(|name| peer.name == *name);
        for peer in day.peers.values().filter(wanted) {
            total += peer.total;
            match by {
                By::Host => peer.hosts.iter().for_each(|(host, numbers)| {
                    *sums.entry(host.clone()).or_default() += bytes_of(numbers);
                }),
                By::Peer => *sums.entry(peer.name.clone()).or_default() += peer.total,
                By::Day => *sums.entry(name.clone()).or_default() += peer.total,
            }
        }
    }
    let rows = rows(sums, by);
    let [from, to] = [all.first(), all.last()].map(|day| day.cloned().unwrap_or_default());
    UsageReport { by, from, to, rows, total, unread: unread.into_iter().collect() }
}

fn rows(mut sums: BTreeMap<String, UsageBytes>, by: By) -> Vec<UsageRow> {
    if by == By::Day {
        return sums.into_iter().map(|(of, bytes)| UsageRow { of, bytes }).collect();
    }
    // A peer may be called so, too, and is then one among others.
    let mut other = if by == By::Host { sums.remove(OTHER) } else { None };
    let all = sums.into_iter().map(|(of, bytes)| UsageRow { of, bytes });
    let mut rows: Vec<UsageRow> = all.collect();
    rows.sort_by_key(|row| Reverse(row.bytes.bytes()));
    for row in rows.drain(MOST_ROWS.min(rows.len())..) {
        *other.get_or_insert_default() += row.bytes;
    }
    rows.extend(other.map(|bytes| UsageRow { of: OTHER.to_owned(), bytes }));
    rows
}
