//! What operators read of a status.

use super::*;
use crate::admin::{LineHost, ServiceState};

fn sample() -> Status {
    let direction = |configured_bps, measured_bps, lan_bytes, link_bytes| Direction {
        configured_bps,
        measured_bps,
        loss_ppm: 1_234,
        packets: 98_765,
        lan_bytes,
        link_bytes,
    };
    Status {
        services: Vec::new(),
        telephones: Vec::new(),
        one_sided: Vec::new(),
        node: NodeStatus {
            version: "0.1.0".to_owned(),
            uptime_ms: 11_520_000,
            memory_bytes: 14_200_000,
            buffered_bytes: 1_200_000,
            buffer_limit_bytes: 268_435_456,
            listen: "0.0.0.0:4500".to_owned(),
            ..NodeStatus::default()
        },
        links: vec![LinkStatus {
            peer: "shore".to_owned(),
            state: LinkState::Up,
            endpoint: Some("203.0.113.7:4500".to_owned()),
            heard_ms: Some(1_200),
            send: direction(2_000_000, 1_234_567, 0, 0),
            receive: direction(20_000_000, 18_345_678, 120_400_000, 98_300_000),
            rtt_us: Some(612_345),
            path_mtu: Some(1_280),
            streams_open: 12,
            streams_total: 4_321,
            dropped: [("replayed".to_owned(), 3), ("malformed".to_owned(), 0)].into(),
            ..LinkStatus::default()
        }],
    }
}

#[test]
fn the_text_tells_what_an_operator_asks_first() {
    let text = render(&sample());
    assert!(
        text.starts_with("bentpipe 0.1.0, up 3h12m, memory 14.2MB (buffers 1.2MB of 256MiB)"),
        "{text}"
    );
    let row = text.lines().find(|l| l.starts_with("shore")).expect("a row");
    for part in [
        "up",
        "203.0.113.7:4500",
        "1.23Mbit of 2Mbit",
        "18.3Mbit of 20Mbit",
        "612ms",
        "0.12%",
        "12",
    ] {
        assert!(row.contains(part), "{part} in {row}");
    }
    assert!(text.contains("120.4MB of the hosts in 98.3MB on the link (81.6 %)"), "{text}");
    assert!(text.contains("path MTU     1280 bytes"), "{text}");
    assert!(text.contains("3 replayed") && !text.contains("malformed"), "{text}");
}

/// L-PP-8.
#[test]
fn a_renewal_that_is_overdue_is_told_and_so_are_keys_that_ended() {
    let mut status = sample();
    for (rekey, row) in [
        (RekeyState::Overdue, Some("  rekey overdue: no handshake succeeds")),
        (RekeyState::Erased, Some("  keys erased  at their end")),
        (RekeyState::InTime, None),
    ] {
        status.links[0].rekey = rekey;
        let text = render(&status);
        match row {
            Some(row) => assert!(text.lines().any(|line| line.starts_with(row)), "{text}"),
            None => assert!(!text.contains("rekey") && !text.contains("keys"), "{text}"),
        }
    }
}

#[test]
fn a_link_that_is_split_at_one_end_is_shown() {
    let mut status = sample();
    status.one_sided = vec![OneSidedStatus {
        peer: "sky".to_owned(),
        device: "eth1".to_owned(),
        routes: vec!["0.0.0.0/0".to_owned()],
        congestion: "bbr".to_owned(),
        connections_open: 2,
        connections_total: 1_234,
    }];
    let told = "peer sky, split at this end alone (mode = \"split\")\n  device       eth1, for \
                0.0.0.0/0\n";
    assert!(render(&status).contains(told), "{}", render(&status));
    assert!(render(&status).contains("  connections  2 open, 1,234 in all"));
    status.links.clear();
    let text = render(&status);
    assert!(text.contains(told) && !text.contains("no peers") && !text.contains("STATE"));
}

#[test]
fn telephone_lines_are_shown_with_who_calls_and_how_many_strangers_did() {
    let mut status = sample();
    let line = TelephoneReport {
        name: "one".into(),
        ready: true,
        calls: 3,
        strangers: 1,
        ..Default::default()
    };
    let silent = TelephoneReport { ready: false, name: "two".into(), ..line.clone() };
    let called =
        TelephoneReport { call_ms: Some(60_000), peer: Some("ship".into()), ..line.clone() };
    status.telephones = vec![line, called, silent];
    let text = render(&status);
    assert!(text.contains("telephone one at : waits for a call"), "{text}");
    assert!(text.contains("telephone two at : its modem does not answer"), "{text}");
    assert!(text.contains("ship called 1m00s ago\n  calls        3 answered, 1 of strangers"));
}

#[test]
fn hosts_whose_budget_is_used_up_are_named_with_what_they_cost() {
    let mut status = sample();
    let host = LineHost {
        host: "10.1.0.2".into(),
        spent: "3.02".into(),
        budget: "3.00".into(),
        currency: "USD".into(),
        stopped: true,
        short: false,
    };
    let near = LineHost { host: "10.1.0.3".into(), stopped: false, ..host.clone() };
    let short = LineHost { host: "10.1.0.4".into(), short: true, ..near.clone() };
    let hosts = vec![host, near, short];
    status.links[0].line = Some(LineReport { hosts, ..Default::default() });
    let text = render(&status);
    let first =
        "  budget       10.1.0.2 is stopped: its month's budget is used up, 3.02 of 3.00 USD";
    assert!(text.contains(first), "{text}");
    assert!(text.contains("10.1.0.3 has nearly used up its month's budget"), "{text}");
    assert!(text.contains("10.1.0.4 raises no line: its month's budget does not pay"), "{text}");
}

#[test]
fn lines_are_told_as_link_why_tells_them() {
    let mut status = sample();
    let line = |carrier: &str, command: &str, cause: &str| LineReport {
        carrier: carrier.into(),
        command: command.into(),
        state: "down".into(),
        cause: cause.into(),
        ..Default::default()
    };
    status.links[0].line = Some(line("", "down", "ordered from here"));
    status.links[0].state = LinkState::OrderedDown;
    let text = render(&status);
    assert!(text.contains("shore  ordered down  "), "{text}");
    let told = "  line         down for 0 s: ordered from here; `bentpipe link down` is in force\n";
    assert!(text.contains(told), "{text}");
    let lines = vec![line("vsat", "auto", "idle"), line("lte", "auto", "idle; it may still be up")];
    status.links[0].line = Some(LineReport { lines, ..line("", "auto", "idle") });
    let text = render(&status);
    let told = "  line         vsat: down for 0 s: idle\n               lte: down for 0 s: idle; it \
                may still be up\n";
    assert!(text.contains(told), "{text}");
    assert_eq!(text.matches("  line  ").count(), 1, "{text}");
}

#[test]
fn services_have_a_row_each_and_one_that_fails_says_how() {
    let mut status = sample();
    let web = ServiceStatus {
        name: "web".into(),
        state: ServiceState::Running,
        running_ms: Some(180_000),
        starts: 1,
        ..ServiceStatus::default()
    };
    let names = ServiceStatus {
        name: "names".into(),
        state: ServiceState::Resting,
        failures: 7,
        ended: Some("exit status: 1".into()),
        last_line: Some("port 53 is taken".into()),
        next_start_ms: Some(12_800),
        ..ServiceStatus::default()
    };
    status.services = vec![web, names];
    let text = render(&status);
    assert!(text.contains("\n  service      web: running for 3m00s\n"), "{text}");
    let told = "  service      names: not running; it fails over and over: exit status: 1, \
                \"port 53 is taken\"; started again in 12s\n";
    assert!(text.contains(told), "{text}");
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["services"][1]["last_line"], "port 53 is taken");
}

#[test]
fn a_peer_that_departed_is_told_from_one_that_is_called() {
    let mut status = sample();
    let link = &mut status.links[0];
    (link.state, link.heard_ms) = (LinkState::Departed, Some(180_000));
    let text = render(&status);
    assert!(text.contains("shore  departed"), "{text}");
    assert!(text.contains("3m00s ago; it ended in order, and calls when it is back"), "{text}");
}

#[test]
fn where_there_are_several_shards_each_link_tells_its_own() {
    let mut status = sample();
    assert!(!render(&status).contains("shard"), "one alone is not worth a word");
    (status.node.shards, status.links[0].shard) = (3, 2);
    let text = render(&status);
    assert!(text.contains("  shards       3\n") && text.contains("  shard        2\n"), "{text}");
    assert_eq!(serde_json::to_value(&status).unwrap()["links"][0]["shard"], 2);
}

#[test]
fn what_compression_did_is_told_for_the_link_its_classes_hosts_and_streams() {
    let bytes = CompressedBytes {
        sent: 1_000_000,
        sent_deduplicated: 1_000_000,
        sent_as: 240_000,
        received: 5_000,
        received_deduplicated: 5_000,
        received_as: 4_000,
        cpu_us: 31_000,
    };
    let stream = crate::admin::StreamCompression {
        host: "10.1.0.2".into(),
        port: 5432,
        class: "normal".into(),
        bytes: bytes.clone(),
    };
    let host = crate::admin::HostCompression { host: "10.1.0.2".into(), bytes: bytes.clone() };
    let mut status = sample();
    status.links[0].compression = Compression {
        total: bytes.clone(),
        classes: [("normal".to_owned(), bytes)].into(),
        hosts: vec![host],
        streams: vec![stream],
    };
    let numbers = "1.0MB sent as 240.0kB, 5.0kB received as 4.0kB; 31ms of processor time";
    let text = render(&status);
    for line in [
        "  compression  ",
        "    class normal: ",
        "    host 10.1.0.2: ",
        "    stream of 10.1.0.2 to port 5432: ",
    ] {
        assert!(text.contains(&format!("{line}{numbers}")), "{line}{numbers} in {text}");
    }
    // One line and its classes for each of several links.
    status.links.push(status.links[0].clone());
    let text = render(&status);
    assert!(text.contains("class normal") && !text.contains("host 10.1.0.2"), "{text}");
    let json = serde_json::to_value(&status).unwrap();
    let told = &json["links"][0]["compression"];
    assert_eq!(told["hosts"][0]["sent_as"], 240_000);
    assert_eq!(told["streams"][0]["cpu_us"], 31_000);
    assert_eq!(told["classes"]["normal"]["received_as"], 4_000);
}

#[test]
fn the_traffic_of_hosts_is_told_of_a_single_link() {
    let mut status = sample();
    status.links[0].hosts = vec![crate::admin::HostAccount {
        host: "10.1.0.2".to_owned(),
        stream_bytes_sent: 2_000_000,
        packet_bytes_sent: 500_000,
        packet_bytes_received: 7_000,
        ..Default::default()
    }];
    let line = "  host         10.1.0.2: 2.5MB sent, 7.0kB received, of it 500.0kB and 7.0kB \
                not split";
    assert!(render(&status).contains(line), "{}", render(&status));
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["links"][0]["hosts"][0]["stream_bytes_sent"], 2_000_000);
    status.links.push(status.links[0].clone());
    assert!(!render(&status).contains(line), "{}", render(&status));
}

#[test]
fn what_compression_of_packets_saved_and_took_is_told() {
    let mut status = sample();
    let d = &mut status.links[0].datagrams;
    (d.bytes_saved_sent, d.bytes_saved_received, d.cpu_us) = (5_000, 1_000, 31_000);
    let text = render(&status);
    let told = "5.0kB of their bytes saved sending, 1.0kB receiving; 31ms of processor time";
    assert!(text.contains(told), "{text}");
    assert_eq!(serde_json::to_value(&status).unwrap()["links"][0]["datagrams"]["cpu_us"], 31_000);
}

#[test]
fn what_did_not_cross_again_is_told() {
    let mut status = sample();
    status.links[0].compression.total = CompressedBytes {
        received: 10_000_000,
        received_deduplicated: 12_000,
        received_as: 13_000,
        ..CompressedBytes::default()
    };
    status.links[0].dedup = Deduplication {
        in_use: true,
        chunks: 1_200,
        memory_bytes: 5_000_000,
        disk_bytes: 10_000_000,
        referred: 7,
        wanted: 2,
        gone: 3,
        quarantined_files: 1,
    };
    let text = render(&status);
    for words in [
        "10.0MB received as 12.0kB without what crossed before, 13.0kB;",
        "chunks       1,200 held, 5.0MB in memory, 10.0MB on disk; 7 referred to, 2 wanted, \
         3 gone; 1 files put aside",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["links"][0]["dedup"]["quarantined_files"], 1);
    assert_eq!(json["links"][0]["compression"]["total"]["received_deduplicated"], 12_000);
}

#[test]
fn rows_line_up_whatever_their_lengths() {
    let mut status = sample();
    let mut other = status.links[0].clone();
    other.peer = "a-ship-with-a-long-name".to_owned();
    other.endpoint = None;
    other.rtt_us = None;
    status.links.push(other);
    let text = render(&status);
    let columns: Vec<usize> = text
        .lines()
        .skip_while(|line| !line.starts_with("PEER"))
        .take(3)
        .filter_map(|line| line.find("STATE").or_else(|| line.find("up ")))
        .collect();
    assert_eq!(columns.len(), 3, "{text}");
    assert!(columns.windows(2).all(|w| w[0] == w[1]), "{text}");
}

#[test]
fn shares_and_round_trips_have_as_many_digits_as_help() {
    assert_eq!([percent(0), percent(1_234), percent(1_000_000)], ["0.00%", "0.12%", "100.00%"]);
    assert_eq!([round_trip(2_345), round_trip(612_345)], ["2.3ms", "612ms"]);
}
