//! Commands and replies of FTP, rewritten and left alone.

use proptest::prelude::*;

use super::*;

const CLIENT: &str = "10.1.0.2";
const SERVER: &str = "203.0.113.5";

fn session() -> Control {
    let mut it = Control::new(CLIENT.parse().unwrap(), SERVER.parse().unwrap());
    assert_eq!(says(&mut it, "220 ready\r\n"), ("220 ready\r\n".into(), None));
    it
}

/// What the server hears.
fn asks(it: &mut Control, text: &str) -> String {
    let mut out = Vec::new();
    it.on_client(text.as_bytes(), &mut out);
    String::from_utf8(out).unwrap()
}

/// What the host hears, and what is to be connected.
fn says(it: &mut Control, text: &str) -> (String, Option<Data>) {
    let mut out = Vec::new();
    let data = it.on_server(text.as_bytes(), &mut out);
    (String::from_utf8(out).unwrap(), data)
}

const PASSIVE: &str = "227 Entering Passive Mode (192,168,0,9,156,64).\r\n";

#[test]
fn port_becomes_pasv_and_its_answer_the_one_that_the_host_waits_for() {
    let mut it = session();
    assert_eq!(asks(&mut it, "PORT 10,1,0,2,4,1\r\n"), "PASV\r\n");
    let data = Some(Data { server: 40_000, client: 1025 });
    assert_eq!(says(&mut it, PASSIVE), ("200 PORT command successful.\r\n".into(), data));
    assert_eq!(asks(&mut it, "RETR file\r\n"), "RETR file\r\n");
    for reply in ["150 here it comes\r\n", "226 done\r\n"] {
        assert_eq!(says(&mut it, reply), (reply.into(), None));
    }
    // The host's own PASV is none of ours.
    assert_eq!(asks(&mut it, "PASV\r\n"), "PASV\r\n");
    assert_eq!(says(&mut it, PASSIVE), (PASSIVE.into(), None));
}

#[test]
fn eprt_becomes_what_the_servers_address_wants() {
    let mut it = session();
    assert_eq!(asks(&mut it, "eprt |1|10.1.0.2|1025|\r\n"), "PASV\r\n");
    let data = Some(Data { server: 40_000, client: 1025 });
    assert_eq!(says(&mut it, PASSIVE), ("200 EPRT command successful.\r\n".into(), data));
    let mut it = Control::new("2001:db8::2".parse().unwrap(), "2001:db8::5".parse().unwrap());
    says(&mut it, "220 ready\r\n");
    assert_eq!(asks(&mut it, "EPRT |2|2001:db8::2|1025|\r\n"), "EPSV\r\n");
    let passive = "229 Entering Extended Passive Mode (|||40000|)\r\n";
    assert_eq!(says(&mut it, passive), ("200 EPRT command successful.\r\n".into(), data));
}

#[test]
fn ports_of_other_hosts_and_of_services_are_the_servers_to_refuse() {
    let mut it = session();
    for other in [
        "PORT 10,1,0,3,4,1\r\n",
        "PORT 10,1,0,2,0,0\r\n",
        "PORT 10,1,0,2,0,22\r\n",
        "PORT 10,1,0,2,3,255\r\n",
        "EPRT |1|10.1.0.2|22|\r\n",
        "PORT 10,1,0,2,4\r\n",
        "PORT 10,1,0,2,4,256\r\n",
        "EPRT |1|10.1.0.9|1025|\r\n",
        "EPRT |1|10.1.0.2|0|\r\n",
        "EPRT\r\n",
    ] {
        assert_eq!(asks(&mut it, other), other);
        let reply = "500 Illegal PORT command.\r\n";
        assert_eq!(says(&mut it, reply), (reply.into(), None));
        let mut named = Named::new(CLIENT.parse().unwrap());
        named.on_client(other.as_bytes());
        assert!(named.is_empty(), "{other}");
    }
}

#[test]
fn a_server_without_passive_mode_says_so_itself() {
    let mut it = session();
    asks(&mut it, "PORT 10,1,0,2,4,1\r\n");
    let reply = "502-not\r\n 227 (1,2,3,4,5,6)\r\n502 here\r\n";
    assert_eq!(says(&mut it, reply), (reply.into(), None));
    // What is no port is handed on as it came.
    asks(&mut it, "PORT 10,1,0,2,4,1\r\n");
    let reply = "227 somewhere\r\n";
    assert_eq!(says(&mut it, reply), (reply.into(), None));
}

#[test]
fn replies_find_their_commands_also_behind_others() {
    let mut it = session();
    // A transfer that is broken off has two replies, and telnet's signs before the command.
    asks(&mut it, "RETR file\r\n");
    let mut out = Vec::new();
    it.on_client(b"\xff\xf4\xff\xf2ABOR\r\nPORT 10,1,0,2,4,1\r\n", &mut out);
    assert_eq!(out, b"\xff\xf4\xff\xf2ABOR\r\nPASV\r\n");
    let replies = "150 opening\r\n426 broken off\r\n226-is\r\n226 done\r\n";
    let (heard, data) = says(&mut it, &format!("{replies}{PASSIVE}"));
    assert_eq!(heard, format!("{replies}200 PORT command successful.\r\n"));
    assert_eq!(data, Some(Data { server: 40_000, client: 1025 }));
}

#[test]
fn what_is_behind_tls_is_not_read() {
    let mut it = session();
    asks(&mut it, "AUTH TLS\r\n");
    says(&mut it, "234 go on\r\n");
    assert_eq!(asks(&mut it, "PORT 10,1,0,2,4,1\r\nx"), "PORT 10,1,0,2,4,1\r\nx");
    // Refused, all stays as it was.
    let mut it = session();
    asks(&mut it, "AUTH TLS\r\n");
    says(&mut it, "502 no\r\n");
    assert_eq!(asks(&mut it, "PORT 10,1,0,2,4,1\r\n"), "PASV\r\n");
}

#[test]
fn a_host_is_reached_only_at_ports_that_it_named_and_once_at_each() {
    let mut named = Named::new(CLIENT.parse().unwrap());
    let said = "USER me\r\nPORT 10,1,0,2,4,1\r\nPORT 10,1,0,3,4,2\r\neprt |1|10.1.0.2|1027|\r\n";
    for byte in said.bytes() {
        named.on_client(&[byte]);
    }
    assert!(!named.take(445) && !named.take(1026), "never, and for another host");
    assert!(named.take(1025) && !named.take(1025));
    assert!(named.take(1027));
    // Nothing grows.
    named.on_client(&"PORT 10,1,0,2,4,1".repeat(1000).into_bytes());
    assert!(named.line.len() <= MAX_LINE);
    named.on_client(&["\n", &"PORT 10,1,0,2,4,1\r\n".repeat(1000)].concat().into_bytes());
    assert_eq!(named.ports.len(), MAX_WAITING);
}

#[test]
fn what_is_no_ftp_passes_and_nothing_grows() {
    let mut it = session();
    let long = "x".repeat(MAX_LINE + 1);
    assert_eq!(asks(&mut it, &long), long);
    assert_eq!(asks(&mut it, "PORT 10,1,0,2,4,1"), "PORT 10,1,0,2,4,1");
    let mut it = session();
    asks(&mut it, "PORT 10,1,0,2,4,1\r\n");
    let mut heard = 0;
    for _ in 0..1000 {
        heard += says(&mut it, &format!("227-{}\r\n", "y".repeat(1000))).0.len();
        assert!(it.held.len() <= MAX_HELD + MAX_LINE);
    }
    assert_eq!(heard, 1000 * 1006);
    let mut it = session();
    let noops = "NOOP\r\n".repeat(1000);
    assert_eq!(asks(&mut it, &noops), noops);
    assert!(it.waiting.len() <= MAX_WAITING + 1);
}

proptest! {
    #[test]
    fn without_ports_both_directions_pass_as_they_are(
        pieces in proptest::collection::vec((any::<bool>(), "[A-OQ-Z0-9 \r\n-]{0,30}"), 0..40)
    ) {
        let mut it = session();
        let mut all = [(String::new(), String::new()), (String::new(), String::new())];
        for (from_client, piece) in &pieces {
            let (said, heard) = &mut all[usize::from(*from_client)];
            said.push_str(piece);
            if !piece.is_empty() {
                heard.push_str(&match from_client {
                    true => asks(&mut it, piece),
                    false => says(&mut it, piece).0,
                });
            }
        }
        all[1].1.push_str(&asks(&mut it, ""));
        all[0].1.push_str(&says(&mut it, "").0);
        for (said, heard) in all {
            prop_assert_eq!(said, heard);
        }
    }

    #[test]
    fn nothing_that_either_side_says_panics(
        pieces in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..60)), 0..40)
    ) {
        let mut it = session();
        let mut named = Named::new(CLIENT.parse().unwrap());
        for (from_client, piece) in pieces {
            let mut out = Vec::new();
            match from_client {
                true => it.on_client(&piece, &mut out),
                false => drop(it.on_server(&piece, &mut out)),
            }
            named.on_client(&piece);
        }
    }
}
