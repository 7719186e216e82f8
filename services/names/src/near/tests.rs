//! The half at the terminal: answers kept, asked for ahead, and served stale.

use super::*;
use crate::far::{self, Far};
use crate::message::tests::{answer, https, none, question};

const CLIENT: &str = "10.1.0.2:4000";
const SERVER: &str = "10.2.0.2:53";

fn pair() -> (SocketAddr, SocketAddr) {
    (CLIENT.parse().unwrap(), SERVER.parse().unwrap())
}

/// Asks; the number and the question that go to the other half.
fn ask(near: &mut Near, now: u64, name: &str) -> Option<(u32, Vec<u8>)> {
    near.on_question(now, "hub", pair(), By::Datagram, &question(9, name, None));
    near.take().into_iter().find_map(|it| match it {
        Do::Send(_, Frame::Ask { id, query, .. }) => Some((id, query)),
        _ => None,
    })
}

fn answered(near: &mut Near) -> bool {
    matches!(&near.take()[..], [Do::Answer(_)])
}

fn learn(near: &mut Near, now: u64, name: &str, ttl: u32) {
    let (id, query) = ask(near, now, name).expect("a question");
    let message = answer(&query, ttl, 1);
    assert!(near.on_frame(now, "hub", Frame::Answer { id, message }));
    assert!(answered(near));
}

#[test]
fn what_is_known_is_answered_until_it_ends() {
    let mut near = Near::default();
    learn(&mut near, 0, "a.example", 10);
    near.on_question(9_999, "hub", pair(), By::Datagram, &question(1, "A.example", None));
    assert!(answered(&mut near));
    assert!(ask(&mut near, 10_000, "a.example").is_some());
}

#[test]
fn a_popular_name_is_asked_for_before_it_ends() {
    let mut near = Near::default();
    learn(&mut near, 0, "a.example", 100);
    assert_eq!(ask(&mut near, 1_000, "a.example"), None);
    assert_eq!(ask(&mut near, 50_000, "a.example"), None);
    let (id, query) = ask(&mut near, 95_000, "a.example").expect("a prefetch");
    assert_eq!(ask(&mut near, 96_000, "a.example"), None, "it is on its way");
    near.on_frame(97_000, "hub", Frame::Answer { id, message: answer(&query, 100, 1) });
    assert_eq!(ask(&mut near, 150_000, "a.example"), None);
    assert_eq!(near.counts.misses, 1);
}

#[test]
fn what_is_past_its_time_is_served_when_nobody_answers_for_a_day() {
    let mut near = Near::default();
    learn(&mut near, 0, "a.example", 10);
    assert!(ask(&mut near, 20_000, "a.example").is_some());
    near.on_time(21_700);
    assert_eq!(near.take(), []);
    near.on_time(21_900);
    assert!(answered(&mut near));
    near.on_lost(22_000, "hub");
    assert_eq!(near.take(), [], "nobody waits any more");
    assert!(ask(&mut near, 90_000_000, "a.example").is_some());
    near.on_lost(90_000_000, "hub");
    assert!(matches!(&near.take()[..], [Do::Onward(_)]));
}

/// REFUSED, with the question or without it.
fn refused(query: &[u8], repeats: bool) -> Vec<u8> {
    let mut message = answer(query, 0, 0);
    message[3] = 0x85;
    if !repeats {
        message.truncate(12);
        message[5] = 0;
    }
    message
}

#[test]
fn while_a_server_refuses_every_question_of_a_known_name_is_answered() {
    let mut near = Near::default();
    learn(&mut near, 0, "a.example", 10);
    learn(&mut near, 0, "b.example", 10);
    let (id, query) = ask(&mut near, 20_000, "a.example").expect("it is asked");
    near.on_frame(20_100, "hub", Frame::Answer { id, message: refused(&query, true) });
    assert!(answered(&mut near));
    for now in [20_200, 30_000, 50_000] {
        near.on_question(now, "hub", pair(), By::Datagram, &question(2, "a.example", None));
        assert!(answered(&mut near), "at {now} ms, and nobody is asked");
    }
    assert!(ask(&mut near, 50_200, "a.example").is_some(), "half a minute later it is");
    // One that does not answer by TCP at all.
    let (id, _) = ask(&mut near, 60_000, "b.example").expect("it is asked");
    near.on_frame(60_100, "hub", Frame::Failed { id });
    assert!(answered(&mut near));
    near.on_question(60_200, "hub", pair(), By::Datagram, &question(2, "b.example", None));
    assert!(answered(&mut near));
    near.on_question(60_200, "hub", pair(), By::Datagram, &question(2, "c.example", None));
    assert!(matches!(&near.take()[..], [Do::Onward(_)]));
    // It answers again.
    let (id, query) = ask(&mut near, 130_000, "b.example").expect("it is asked");
    near.on_frame(130_100, "hub", Frame::Answer { id, message: answer(&query, 10, 1) });
    assert!(answered(&mut near));
    assert_eq!((near.counts.stale, near.counts.onward), (6, 1));
}

#[test]
fn while_the_link_is_down_what_is_known_is_answered_and_nothing_is_asked() {
    let mut near = Near::default();
    learn(&mut near, 0, "a.example", 100);
    near.set_down("hub", true);
    for now in [1_000, 2_000, 95_000, 200_000, 86_400_000] {
        near.on_question(now, "hub", pair(), By::Datagram, &question(1, "a.example", None));
        assert!(answered(&mut near), "at {now} ms");
    }
    assert_eq!((near.counts.hits, near.counts.stale, near.counts.prefetched), (3, 2, 0));
    for (now, name) in [(90_000_000, "a.example"), (1_000, "b.example")] {
        near.on_question(now, "hub", pair(), By::Datagram, &question(1, name, None));
        assert!(matches!(&near.take()[..], [Do::Onward(_)]), "{name} waits for the link");
    }
    near.on_question(1_000, "hub", pair(), By::Connection(7), &question(1, "b.example", None));
    assert_eq!(near.take(), [Do::Pass(7)]);
    near.set_down("hub", false);
    assert!(ask(&mut near, 1_000, "b.example").is_some());
}

#[test]
fn while_the_peer_is_not_heard_what_is_past_its_time_is_answered_at_once() {
    let mut near = Near::default();
    learn(&mut near, 0, "a.example", 100);
    near.set_silent("hub", true);
    near.on_question(200_000, "hub", pair(), By::Datagram, &question(1, "a.example", None));
    assert!(answered(&mut near));
    assert_eq!(near.counts.stale, 1);
    // What is not known waits for the peer, whose session goes on.
    assert!(ask(&mut near, 200_000, "b.example").is_some());
    near.set_silent("hub", false);
    assert!(ask(&mut near, 205_000, "a.example").is_some());
}

#[test]
fn an_answer_that_comes_late_is_kept() {
    let mut near = Near::default();
    let (id, query) = ask(&mut near, 0, "a.example").expect("a question");
    near.on_time(3_100);
    assert!(matches!(&near.take()[..], [Do::Onward(_)]));
    let (again, _) = ask(&mut near, 3_400, "a.example").expect("it is not known");
    let message = answer(&query, 300, 1);
    near.on_frame(3_500, "other", Frame::Answer { id, message: message.clone() });
    assert_eq!(near.take(), [], "of another peer");
    near.on_frame(3_500, "hub", Frame::Answer { id, message: message.clone() });
    assert!(answered(&mut near), "who asked meanwhile");
    near.on_frame(3_600, "hub", Frame::Answer { id: again, message });
    assert_eq!((ask(&mut near, 3_700, "a.example"), near.counts.hits), (None, 1));
    // What no answer is ends the exchange, and one that is much too late is nothing.
    for (now, is_kept) in [(63_000, true), (70_000, false)] {
        let mut near = Near::default();
        let (id, query) = ask(&mut near, 0, "a.example").expect("a question");
        ask(&mut near, now - 4_000, "b.example").expect("a question");
        near.on_time(3_100);
        near.on_time(now);
        let message = answer(&query, 300, 1);
        near.on_frame(now, "hub", Frame::Answer { id, message });
        assert_eq!(near.size().0 == 1, is_kept, "at {now} ms");
    }
}

#[test]
fn on_a_slow_link_questions_wait_until_all_have_crossed() {
    for (rate, first) in [(0, 3_000), (10_000_000, 3_303), (9_600, 7_300), (2_400, 15_000)] {
        let mut near = Near::default();
        near.set_pace("hub", rate, if rate == 0 { 0 } else { 400_000 });
        for n in 0..12 {
            assert!(ask(&mut near, 0, &format!("n{n}.example")).is_some());
        }
        let onward = |near: &mut Near, now| {
            near.on_time(now);
            near.take().len()
        };
        assert_eq!(onward(&mut near, first - 1), 0, "{rate} bit/s");
        assert_eq!(onward(&mut near, first), 12, "{rate} bit/s");
    }
}

#[test]
fn that_there_is_no_such_name_is_kept() {
    let mut near = Near::default();
    let (id, query) = ask(&mut near, 0, "no.example").unwrap();
    near.on_frame(0, "hub", Frame::Answer { id, message: none(&query, 60, 60) });
    assert!(answered(&mut near));
    assert_eq!(ask(&mut near, 59_000, "no.example"), None);
    assert!(ask(&mut near, 61_000, "no.example").is_some());
}

#[test]
fn questions_of_a_server_that_fails_go_their_way_and_so_do_strange_ones() {
    let mut near = Near::default();
    let (id, _) = ask(&mut near, 0, "a.example").unwrap();
    near.on_frame(0, "hub", Frame::Failed { id });
    let onward = |near: &mut Near| matches!(&near.take()[..], [Do::Onward(_)]);
    assert!(onward(&mut near));
    near.on_question(1, "hub", pair(), By::Datagram, &question(9, "b.example", None));
    assert!(onward(&mut near), "it is left to UDP");
    assert!(ask(&mut near, 61_000, "b.example").is_some());
    near.on_question(1, "hub", pair(), By::Datagram, b"no question");
    assert!(onward(&mut near));
}

#[test]
fn a_long_question_goes_its_way() {
    let mut near = Near::default();
    for (len, is_asked) in [(LONGEST_QUESTION, true), (LONGEST_QUESTION + 1, false)] {
        // An option of nobody's.
        let mut question = question(9, "a.example", Some(1232));
        question.truncate(question.len() - 14);
        let data = len - question.len() - 6;
        let numbers = [data as u16 + 4, 65_001, data as u16];
        question.extend(numbers.iter().flat_map(|n| n.to_be_bytes()));
        question.resize(len, 0);
        assert!(Query::parse(&question).is_some());
        near.on_question(0, "hub", pair(), By::Datagram, &question);
        let [it] = &near.take()[..] else { panic!("{len}") };
        assert_eq!(matches!(it, Do::Send(..)), is_asked, "{len}: {it:?}");
    }
}

#[test]
fn a_hundred_thousand_answers_that_nobody_asked_for_change_nothing() {
    let mut near = Near::default();
    let (id, query) = ask(&mut near, 0, "a.example").unwrap();
    for n in 0..100_000 {
        // Of another peer, or with another number.
        let (peer, id) = if n % 2 == 0 { ("other", id) } else { ("hub", id + 1 + n) };
        near.on_frame(0, peer, Frame::Answer { id, message: answer(&query, 300, 1) });
    }
    assert_eq!((near.take(), near.size().0), (vec![], 0));
}

#[test]
fn no_peer_says_anything_of_a_server_behind_another() {
    let mut near = Near::default();
    let (id, query) = ask(&mut near, 0, "a.example").expect("a question");
    let message = answer(&query, 300, 66);
    let server = pair().1;
    near.on_frame(
        0,
        "evil",
        Frame::Along { server, query: query.clone(), message: message.clone() },
    );
    near.on_frame(0, "evil", Frame::Answer { id, message });
    assert_eq!(near.take(), [], "whoever waits is not answered");
    near.on_frame(1, "hub", Frame::Failed { id });
    near.take();
    near.on_question(60_001, "hub", pair(), By::Datagram, &question(1, "a.example", None));
    assert!(matches!(&near.take()[..], [Do::Send(to, Frame::Ask { .. })] if to == "hub"));
}

#[test]
fn memory_has_its_limit() {
    let mut near = Near::default();
    for n in 0..60_000u32 {
        let query = Query::parse(&question(0, &format!("n{n}.example"), None)).unwrap().canonical;
        let message = answer(&query, 300, 1);
        near.on_frame(0, "hub", Frame::Along { server: pair().1, query, message });
    }
    assert!(near.size().1 <= MEMORY && near.size().0 > 20_000);
    assert_eq!(ask(&mut near, 1, "n59999.example"), None);
    assert!(ask(&mut near, 1, "n1.example").is_some());
}

/// A host asks for `count` names that nobody has asked for; how many go to the other half.
fn flood(near: &mut Near, host: &str, name: &str, count: usize) -> usize {
    let pair = (SocketAddr::new(host.parse().unwrap(), 4000), pair().1);
    for n in 0..count {
        let question = question(9, &format!("{name}{n}.example"), None);
        near.on_question(1, "hub", pair, By::Datagram, &question);
    }
    near.take().iter().filter(|it| matches!(it, Do::Send(..))).count()
}

#[test]
fn a_host_that_asks_without_end_leaves_the_others_their_questions() {
    let mut near = Near::default();
    assert_eq!(flood(&mut near, "10.1.0.9", "a", 5_000), MOST_ASKED);
    assert_eq!(flood(&mut near, "10.1.0.8", "b", 5_000), MOST_ASKED / 2);
    assert_eq!(flood(&mut near, "10.1.0.9", "c", 5_000), 0, "it has its share");
    assert!(ask(&mut near, 1, "c.example").is_some());
    assert_eq!((near.asked.len(), near.asked_by.sum()), (MOST_ASKED, MOST_ASKED));
    near.on_lost(2, "hub");
    assert_eq!((near.asked.len(), near.asked_by.sum()), (0, 0));
}

#[test]
fn a_network_of_forged_addresses_leaves_the_others_their_questions() {
    let mut near = Near::default();
    for n in 0..250 {
        flood(&mut near, &format!("10.1.7.{n}"), &format!("a{n}-"), 40);
    }
    for n in 0..5_000 {
        flood(&mut near, &format!("fd01::{n:x}:1"), &format!("b{n}-"), 1);
    }
    assert_eq!(near.asked.len(), MOST_ASKED);
    // Each in a network of its own, and one beside those that are forged.
    for (other, count) in [("10.1.0.9", 30), ("fd01:0:0:1::1", 30), ("10.1.7.251", 1)] {
        assert_eq!(flood(&mut near, other, &format!("c{other}-"), count), count, "{other}");
    }
}

#[test]
fn a_question_that_gives_way_to_another_hosts_is_carried_as_ever() {
    let mut near = Near::default();
    flood(&mut near, "10.1.0.9", "a", MOST_ASKED);
    near.on_question(1, "hub", pair(), By::Datagram, &question(9, "b.example", None));
    let told = near.take();
    let [Do::Onward(oldest), Do::Send(_, Frame::Ask { .. })] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(oldest.bytes, question(9, "a0.example", None));
}

#[test]
fn a_host_that_waits_for_one_answer_by_many_ports_leaves_the_others_room() {
    let mut near = Near::default();
    let mut waits = |client: SocketAddr| {
        let (pair, question) = ((client, pair().1), question(9, "a.example", None));
        near.on_question(1, "hub", pair, By::Datagram, &question);
        !near.take().iter().any(|it| matches!(it, Do::Onward(_)))
    };
    let hog = (0..1_000).filter(|n| waits(([10, 1, 0, 9], 4_000 + n).into())).count();
    assert_eq!(hog, MOST_WAITING / 2);
    let one = (0..1_000u16).filter(|n| {
        let ip: std::net::Ipv6Addr = format!("fd01::{n:x}").parse().unwrap();
        waits((ip, 4_000).into())
    });
    assert_eq!(one.count(), MOST_WAITING / 4, "all addresses of an IPv6 host are one's");
    assert!(waits(pair().0));
}

#[test]
fn what_fails_for_one_host_is_no_reason_to_carry_anothers_questions_as_ever() {
    let mut near = Near::default();
    let hog: SocketAddr = "10.1.0.9:4000".parse().unwrap();
    // It makes up names, for which there is no room at the hub, and servers.
    for n in 0..10 * MOST_PLAIN {
        let (server, question) = match n % 2 {
            0 => (pair().1, question(9, &format!("a{n}.example"), None)),
            _ => (([10, 2, (n >> 8) as u8, n as u8], 53).into(), question(9, "a.example", None)),
        };
        near.on_question(1, "hub", (hog, server), By::Datagram, &question);
        for it in near.take() {
            let Do::Send(_, Frame::Ask { id, .. }) = it else { continue };
            near.on_frame(1, "hub", Frame::Failed { id });
        }
        near.take();
    }
    assert!(near.plain.len() <= MOST_PLAIN && near.plain_for.sum() == near.plain.len());
    assert!(ask(&mut near, 1, "b.example").is_some());
}

#[test]
fn names_that_a_host_makes_up_displace_its_own() {
    let mut near = Near::default();
    learn(&mut near, 0, "a.example", 300);
    for n in 0..60_000u32 {
        let hog = ([10, 1, 0, 9 + (n % 8) as u8], 4000).into();
        let question = question(9, &format!("n{n}.example"), None);
        near.on_question(1, "hub", (hog, pair().1), By::Datagram, &question);
        for it in near.take() {
            let Do::Send(_, Frame::Ask { id, query, .. }) = it else { continue };
            near.on_frame(1, "hub", Frame::Answer { id, message: answer(&query, 300, 1) });
        }
    }
    assert!(near.size().1 <= MEMORY && near.size().0 > 20_000);
    near.take();
    assert_eq!(ask(&mut near, 1, "a.example"), None, "it is known");
}

#[test]
fn a_question_by_a_connection_is_answered_there_and_whole() {
    let mut near = Near::default();
    learn(&mut near, 0, "a.example", 10);
    let by = By::Connection(7);
    near.on_question(1, "hub", pair(), by, &question(3, "a.example", None));
    assert!(matches!(&near.take()[..], [Do::Reply(7, answer)] if answer[..2] == [0, 3]));
    // One that is too long for a datagram.
    let (id, query) = ask(&mut near, 2, "long.example").unwrap();
    near.on_question(3, "hub", pair(), by, &question(4, "long.example", None));
    assert!(near.take().is_empty());
    near.on_frame(4, "hub", Frame::Answer { id, message: answer(&query, 10, 60) });
    let told = near.take();
    let [Do::Answer(cut), Do::Reply(7, whole)] = &told[..] else { panic!("{told:?}") };
    assert!(cut.bytes[2] & 2 != 0 && whole[2] & 2 == 0 && whole.len() > cut.bytes.len());
    // What is no question goes its way, and so does one without an answer.
    near.on_question(5, "hub", pair(), by, b"nonsense");
    assert_eq!(near.take(), [Do::Pass(7)]);
    near.on_question(6, "hub", pair(), by, &question(5, "b.example", None));
    near.take();
    near.on_lost(7, "hub");
    assert_eq!(near.take(), [Do::Pass(7)]);
}

#[test]
fn hosts_hear_of_http3_behind_those_peers_alone_towards_which_quic_is_carried() {
    let mut near = Near::default();
    near.set_quic("hub", true);
    let (id, query) = ask(&mut near, 0, "a.example").expect("a question");
    let message = https(&query, &["h3", "h2"]);
    let has_http3 = |near: &mut Near| match &near.take()[..] {
        [Do::Answer(it)] => it.bytes.windows(3).any(|w| w == b"\x02h3"),
        other => panic!("{other:?}"),
    };
    near.on_frame(0, "hub", Frame::Answer { id, message });
    assert!(!has_http3(&mut near), "the first answer");
    let again = |near: &mut Near, peer: &str| {
        near.on_question(1, peer, pair(), By::Datagram, &question(9, "a.example", None));
    };
    again(&mut near, "hub");
    assert!(!has_http3(&mut near), "and from memory");
    again(&mut near, "another");
    let told = near.take();
    let [Do::Send(_, Frame::Ask { id, .. })] = &told[..] else { panic!("{told:?}") };
    near.on_frame(1, "another", Frame::Answer { id: *id, message: https(&query, &["h3", "h2"]) });
    assert!(has_http3(&mut near));
    near.set_quic("hub", false);
    again(&mut near, "hub");
    assert!(has_http3(&mut near), "what is kept is as it came");
}

/// Two halves at terminals and one at the hub; each step takes what the one says to the other.
struct Star {
    far: Far,
    /// Questions that went over the link, and connections to servers.
    over: usize,
    dialled: usize,
}

impl Star {
    /// A terminal's host asks for all of these at once; how many answers it got.
    fn ask(&mut self, now: u64, ship: &str, near: &mut Near, questions: &[Vec<u8>]) -> usize {
        for question in questions {
            near.on_question(now, "hub", pair(), By::Datagram, question);
        }
        let mut answers = 0;
        loop {
            let (said, mut more) = (near.take(), false);
            for it in said {
                match it {
                    Do::Send(_, frame) => {
                        self.over += 1;
                        assert!(self.far.on_frame(now, ship, frame));
                    }
                    Do::Answer(_) => answers += 1,
                    other => panic!("{other:?}"),
                }
                more = true;
            }
            for it in self.far.take() {
                more = true;
                match it {
                    far::Do::Send(to, frame) => {
                        assert_eq!(to, ship);
                        assert!(near.on_frame(now, "hub", frame));
                    }
                    far::Do::Dial { dial, query, .. } => {
                        self.dialled += 1;
                        self.far.on_answer(now, dial, Some(&answer(&query, 300, 1)));
                    }
                }
            }
            if !more {
                return answers;
            }
        }
    }
}

/// What a browser asks for a host: addresses of both families, and how HTTPS is spoken.
fn asked_by_browsers(host: usize) -> Vec<Vec<u8>> {
    let of = |kind: u8| {
        let mut question = question(kind, &format!("host{host}.example"), Some(1232));
        let at = 12 + 1 + format!("host{host}").len() + 9 + 1;
        question[at] = kind;
        question
    };
    [1, 28, 65].map(of).to_vec()
}

#[test]
fn a_page_on_six_hosts_waits_for_one_look_up_after_two_other_terminals_have_seen_it() {
    let mut star = Star { far: Far::default(), over: 0, dialled: 0 };
    for terminal in ["first", "second"] {
        let mut near = Near::default();
        for host in 0..6 {
            // Each name is in what the one before it led to.
            let now = 400 * host as u64;
            assert_eq!(star.ask(now, terminal, &mut near, &asked_by_browsers(host)), 3);
        }
        assert_eq!((star.over, star.dialled), (18, 18), "{terminal}");
        (star.over, star.dialled) = (0, 0);
    }
    let mut third = Near::default();
    for host in 0..6 {
        let now = 60_000 + 10 * host as u64;
        assert_eq!(star.ask(now, "third", &mut third, &asked_by_browsers(host)), 3);
        // The three questions of the first host leave together: one round trip, and none after it.
        assert_eq!(star.over, 3, "questions over the link, host {host}");
    }
    assert_eq!((third.counts.misses, third.counts.hits), (3, 15));
}
