//! The half at the hub: names that go together, and what a peer may ask.

use super::*;
use crate::message::tests::{answer, question};

const SERVER: &str = "10.2.0.2:53";

fn client() -> SocketAddr {
    "10.1.0.2:4000".parse().unwrap()
}

fn key(name: &str) -> Key {
    let query = Query::parse(&question(0, name, None)).unwrap();
    (SERVER.parse().unwrap(), query.canonical)
}

/// Asks for a peer and answers what is dialled; the names that were sent, and how many dials.
fn ask(far: &mut Far, now: u64, peer: &str, name: &str) -> (Vec<Frame>, usize) {
    let (server, query) = key(name);
    assert!(far.on_frame(
        now,
        peer,
        Frame::Ask { id: 5, waits: true, client: client(), server, query }
    ));
    let (mut sent, mut dials) = (Vec::new(), 0);
    loop {
        let todo = far.take();
        if todo.is_empty() {
            return (sent, dials);
        }
        for it in todo {
            match it {
                Do::Send(_, frame) => sent.push(frame),
                Do::Dial { dial, query, .. } => {
                    dials += 1;
                    far.on_answer(now, dial, Some(&answer(&query, 300, 1)));
                }
            }
        }
    }
}

#[test]
fn names_that_go_together_come_together_for_everybody() {
    let mut far = Far::default();
    let page: Vec<String> = (0..6).map(|n| format!("host{n}.example")).collect();
    for peer in ["ship", "boat"] {
        for (n, name) in page.iter().enumerate() {
            assert_eq!(ask(&mut far, 400 * n as u64, peer, name).1, 1);
        }
    }
    for now in [100_000, 1_000_000] {
        // In time, and when all have ended at the hub as well.
        let (sent, _) = ask(&mut far, now, "other", "host0.example");
        let along = sent.iter().filter(|frame| matches!(frame, Frame::Along { .. }));
        assert_eq!((along.count(), sent.len()), (5, 6));
        assert!(matches!(sent[0], Frame::Answer { id: 5, .. }), "who waits is first");
    }
}

#[test]
fn names_that_are_asked_for_at_other_times_do_not_go_together() {
    let mut far = Far::default();
    ask(&mut far, 0, "ship", "a.example");
    ask(&mut far, 3_001, "ship", "b.example");
    ask(&mut far, 3_002, "other", "c.example");
    assert_eq!(ask(&mut far, 10_000, "ship", "a.example").0.len(), 1);
}

#[test]
fn a_peer_gets_nothing_of_a_server_before_the_gateway_has_connected_it_there() {
    let mut far = Far::default();
    assert_eq!(ask(&mut far, 0, "ship", "a.example").1, 1);
    assert_eq!(ask(&mut far, 1, "ship", "a.example").1, 0);
    let (server, query) = key("a.example");
    far.on_frame(2, "other", Frame::Ask { id: 1, waits: true, client: client(), server, query });
    assert!(matches!(&far.take()[..], [Do::Dial { dial: 2, .. }]));
    far.on_answer(3, 2, None);
    let failed = Do::Send("other".into(), Frame::Failed { id: 1 });
    assert_eq!(far.take(), [failed]);
}

#[test]
fn what_a_private_server_told_one_peer_is_not_anothers_and_what_a_public_one_did_is() {
    for (server, is_shared) in [
        ("9.9.9.9:53", true),
        ("[2620:fe::fe]:53", true),
        ("10.2.0.2:53", false),
        ("100.64.0.1:53", false),
        ("[fd02::2]:53", false),
        ("198.18.0.1:53", false),
        // It holds 10.2.0.2.
        ("[64:ff9b::a02:2]:53", false),
    ] {
        let mut far = Far::default();
        let server: SocketAddr = server.parse().unwrap();
        // Both may speak with it.
        ["ship", "other"].iter().for_each(|peer| far.permit(0, peer, server));
        for (peer, is_known) in [("ship", false), ("other", is_shared), ("ship", true)] {
            let (client, query) = (client(), key("intra.example").1);
            far.on_frame(1, peer, Frame::Ask { id: 1, waits: true, client, server, query });
            let todo = far.take();
            match &todo[..] {
                [Do::Send(_, Frame::Answer { .. })] if is_known => {}
                [Do::Dial { dial, query, .. }] if !is_known => {
                    far.on_answer(1, *dial, Some(&answer(query, 300, 1)));
                    far.take();
                }
                other => panic!("{server} {peer}: {other:?}"),
            }
        }
    }
}

#[test]
fn an_answer_to_another_question_is_none() {
    let mut far = Far::default();
    let (server, query) = key("a.example");
    far.on_frame(0, "ship", Frame::Ask { id: 1, waits: true, client: client(), server, query });
    far.take();
    far.on_answer(0, 1, Some(&answer(&key("b.example").1, 300, 1)));
    assert!(matches!(&far.take()[..], [Do::Send(_, Frame::Failed { id: 1 })]));
    assert_eq!(far.cache.size().0, 0);
}

#[test]
fn what_a_peer_asks_for_is_bounded_and_has_to_be_a_question() {
    let mut far = Far::default();
    let server = SERVER.parse().unwrap();
    let frame =
        Frame::Ask { id: 1, waits: true, client: client(), server, query: b"nothing".to_vec() };
    assert!(!far.on_frame(0, "ship", frame));
    for n in 0..20_000 {
        let (server, query) = key(&format!("n{n}.example"));
        far.on_frame(0, "ship", Frame::Ask { id: n, waits: true, client: client(), server, query });
    }
    assert_eq!(far.dials.len(), MOST_DIALS / 4, "one host's");
    let (server, query) = key("long.example");
    let query = [query, vec![0; LONGEST_QUESTION]].concat();
    far.take();
    assert!(far.on_frame(
        0,
        "ship",
        Frame::Ask { id: 7, waits: true, client: client(), server, query }
    ));
    assert_eq!(far.take(), [Do::Send("ship".into(), Frame::Failed { id: 7 })]);
}

#[test]
fn a_peer_whose_servers_do_not_answer_leaves_the_others_theirs() {
    let mut far = Far::default();
    for n in 0..2 * MOST_DIALS {
        let (server, query) = key(&format!("host{n}.example"));
        let id = n as u32;
        far.on_frame(0, "evil", Frame::Ask { id, waits: true, client: client(), server, query });
    }
    assert!(far.take().iter().filter(|it| matches!(it, Do::Dial { .. })).count() <= MOST_DIALS / 2);
    assert_eq!(ask(&mut far, 1, "ship", "a.example").1, 1);
}

#[test]
fn a_host_whose_servers_do_not_answer_leaves_the_others_of_its_peer_theirs() {
    let mut far = Far::default();
    for n in 0..2 * MOST_DIALS {
        let (server, query) = key(&format!("host{n}.example"));
        let client = match n % 2 {
            0 => ([10, 1, 0, 9], 4_000).into(),
            _ => (format!("fd01::{n:x}").parse::<std::net::Ipv6Addr>().unwrap(), 4_000).into(),
        };
        far.on_frame(0, "ship", Frame::Ask { id: n as u32, waits: true, client, server, query });
    }
    far.take();
    assert_eq!(ask(&mut far, 1, "ship", "a.example").1, 1);
}

#[test]
fn answers_to_one_peer_displace_its_own() {
    let mut far = Far::default();
    ask(&mut far, 0, "ship", "a.example");
    let mut n = 0;
    while far.cache.size().0 == n + 1 {
        n += 1;
        let (server, query) = key(&format!("host{n}.example"));
        let waits = false;
        far.on_frame(0, "evil", Frame::Ask { id: 1, waits, client: client(), server, query });
        for it in far.take() {
            let Do::Dial { dial, query, .. } = it else { continue };
            far.on_answer(0, dial, Some(&answer(&query, 300, 1_000)));
        }
        far.take();
    }
    assert!(n > 1_000 && far.cache.size().1 <= MEMORY);
    assert_eq!(ask(&mut far, 1, "ship", "a.example").1, 0, "it is known");
}

#[test]
fn a_peer_with_many_servers_leaves_the_others_what_they_may() {
    let mut far = Far::default();
    let server = |n: usize| SocketAddr::from(([10, 3, (n >> 8) as u8, n as u8], 53));
    far.permit(0, "ship", server(0));
    for n in 0..2 * MOST_PERMITTED {
        far.permit(1, "evil", server(n));
    }
    far.permit(2, "late", server(0));
    assert!(["ship", "late"].iter().all(|peer| far.may(3, peer, server(0))));
    assert_eq!((far.permitted.len(), far.permits_of.sum()), (MOST_PERMITTED, MOST_PERMITTED));
    far.on_lost("evil");
    assert_eq!((far.permitted.len(), far.permits_of.sum()), (2, 2));
}

#[test]
fn a_peer_that_makes_up_names_leaves_what_others_taught() {
    let mut far = Far::default();
    for peer in ["ship", "boat"] {
        for name in ["page.example", "image.example"] {
            ask(&mut far, 0, peer, name);
        }
    }
    let count = |far: &mut Far, peer: &str| ask(far, 10_000, peer, "page.example").0.len();
    assert_eq!(count(&mut far, "other"), 2, "the answer, and what goes with it");
    for n in 0..20_000 {
        let (server, query) = key(&format!("n{n}.example"));
        far.on_frame(0, "evil", Frame::Ask { id: n, waits: true, client: client(), server, query });
        far.take();
    }
    assert_eq!(count(&mut far, "third"), 2);
}

#[test]
fn a_question_that_is_repeated_brings_no_more_answers_than_a_stream_holds() {
    let mut far = Far::default();
    let (server, query) = key("a.example");
    for id in 0..200_000 {
        let query = query.clone();
        far.on_frame(0, "evil", Frame::Ask { id, waits: true, client: client(), server, query });
    }
    let mut todo = far.take();
    let Do::Dial { dial, query, .. } = todo.remove(0) else { panic!() };
    far.on_answer(1, dial, Some(&answer(&query, 300, 1)));
    todo.extend(far.take());
    let answers = |todo: Vec<Do>| -> usize {
        let len = |it: &Do| match it {
            Do::Send(_, Frame::Answer { message, .. }) => message.len(),
            _ => 0,
        };
        assert!(todo.len() >= 200_000, "each is answered somehow");
        todo.iter().map(len).sum()
    };
    assert!(answers(todo) <= MOST_OUT);
    // From the cache, too.
    for id in 0..200_000 {
        let (server, query) = key("a.example");
        far.on_frame(2, "evil", Frame::Ask { id, waits: true, client: client(), server, query });
    }
    assert!(answers(far.take()) <= MOST_OUT);
}

#[test]
fn a_refusal_without_the_question_is_an_answer_and_no_sign_of_a_server_without_tcp() {
    for (flags, rcode, count, is_answer) in [
        (0x80, 5, 0, true),
        (0x80, 2, 0, true),
        (0x80, 1, 0, false),
        (0x80, 0, 0, false),
        (0x00, 5, 0, false),
        (0x82, 5, 0, false),
        (0x80, 5, 1, false),
    ] {
        let (mut far, (server, query)) = (Far::default(), key("a.example"));
        let ask = Frame::Ask { id: 5, waits: true, client: client(), server, query };
        assert!(far.on_frame(0, "ship", ask));
        far.take();
        far.on_answer(0, 1, Some(&[1, 2, flags, rcode, 0, count, 0, 0, 0, 0, 0, 0]));
        let sent = far.take();
        let [Do::Send(_, frame)] = &sent[..] else { panic!("{sent:?}") };
        match frame {
            Frame::Answer { id: 5, message } if is_answer => {
                let answer = Answer::parse(&key("a.example").1, message).expect("whole");
                assert!(answer.is_failure() && answer.ttl == 0);
                assert_eq!(message[3], rcode);
            }
            Frame::Failed { id: 5 } if !is_answer => {}
            other => panic!("{flags} {rcode} {count}: {other:?}"),
        }
    }
}

/// The same question for records of this type.
fn of_kind(kind: u8, (server, mut query): Key) -> Key {
    let at = query.len() - 3;
    query[at] = kind;
    (server, query)
}

#[test]
fn a_peer_has_its_own_first_and_then_eight_of_what_two_others_asked() {
    let mut far = Far::default();
    let images: Vec<String> = (0..20).map(|n| format!("image{n}.example")).collect();
    let visit = |far: &mut Far, peer: &str, names: &[String]| {
        ask(far, 0, peer, "page.example");
        names.iter().for_each(|name| drop(ask(far, 10, peer, name)));
    };
    visit(&mut far, "evil", &["made-up.example".into()]);
    visit(&mut far, "boat", &images);
    visit(&mut far, "ship", &["map.example".into()]);
    let along = |far: &mut Far, peer: &str| -> Vec<Vec<u8>> {
        far.on_lost(peer); // It has nothing.
        let (sent, _) = ask(far, 100_000, peer, "page.example");
        let along = sent.into_iter().filter_map(|frame| match frame {
            Frame::Along { query, .. } => Some(query),
            _ => None,
        });
        along.collect()
    };
    assert_eq!(along(&mut far, "ship"), [key("map.example").1], "nothing that one alone asked");
    assert!(along(&mut far, "other").is_empty());
    visit(&mut far, "third", &images);
    let sent = along(&mut far, "ship");
    assert_eq!((&sent[0], sent.len()), (&key("map.example").1, 1 + MOST_OF_OTHERS));
    assert_eq!(along(&mut far, "other").len(), MOST_OF_OTHERS);
    assert_eq!(along(&mut far, "third").len(), images.len(), "all are its own");
    // What it has by now it is not sent again: the others are.
    let (sent, _) = ask(&mut far, 100_010, "other", "page.example");
    assert_eq!(sent.len(), 1 + MOST_OF_OTHERS);
}

#[test]
fn nobody_has_much_sent_behind_a_name_that_others_ask_for() {
    let mut far = Far::default();
    for evil in ["evil", "its friend"] {
        ask(&mut far, 0, evil, "www.example");
        // Texts, and addresses without end: 60 kB of each.
        for n in 0..20 {
            for kind in [1, 16] {
                let (server, query) = of_kind(kind, key(&format!("n{n}.example")));
                let ask = Frame::Ask { id: n, waits: true, client: client(), server, query };
                assert!(far.on_frame(10, evil, ask));
                for it in far.take() {
                    let Do::Dial { dial, query, .. } = it else { continue };
                    far.on_answer(10, dial, Some(&answer(&query, 300, 3_750)));
                }
                far.take();
            }
        }
        for (now, name) in [(20, "short.example"), (30, "www.example")] {
            ask(&mut far, now, evil, name);
        }
    }
    // Neither from memory nor when they are asked for again.
    for now in [100_000, 1_000_000] {
        let (sent, _) = ask(&mut far, now, "ship", "www.example");
        let along = sent.iter().filter_map(|frame| match frame {
            Frame::Along { message, .. } => Some(message.len()),
            _ => None,
        });
        assert!(along.sum::<usize>() < 1_000, "{} frames", sent.len());
    }
}

#[test]
fn what_a_peer_has_is_not_sent_again_before_that_ends_or_its_half_is_another() {
    let mut far = Far::default();
    for peer in ["ship", "boat"] {
        for name in ["page.example", "image.example"] {
            ask(&mut far, 0, peer, name);
        }
    }
    let count = |far: &mut Far, now, peer: &str| ask(far, now, peer, "page.example").0.len();
    assert_eq!(count(&mut far, 100, "ship"), 1, "it has asked for the other");
    assert_eq!((count(&mut far, 100, "other"), count(&mut far, 200, "other")), (2, 1));
    assert_eq!(count(&mut far, 300_100, "other"), 2, "it has ended");
    far.on_lost("other");
    assert_eq!(count(&mut far, 300_200, "other"), 2, "it has forgotten all");
}

/// A page tells its names; those that are sent along for it, and how many dials.
fn page(far: &mut Far, now: u64, peer: &str, hosts: &str) -> (Vec<Key>, usize) {
    far.on_page(now, peer, hosts.as_bytes());
    let (mut sent, mut dials) = (Vec::new(), 0);
    loop {
        let todo = far.take();
        if todo.is_empty() {
            return (sent, dials);
        }
        for it in todo {
            match it {
                Do::Send(_, Frame::Along { server, query, .. }) => sent.push((server, query)),
                Do::Dial { dial, query, .. } => {
                    dials += 1;
                    far.on_answer(now, dial, Some(&answer(&query, 300, 1)));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_page_brings_the_names_that_it_needs_as_its_own_was_asked_for() {
    let mut far = Far::default();
    ask(&mut far, 0, "ship", "page.example");
    let hosts = "Page.Example\nimg.example\ncdn.example.\nnot a name\n";
    let (sent, dials) = page(&mut far, 10, "ship", hosts);
    assert_eq!((sent, dials), (vec![key("img.example"), key("cdn.example")], 2));
    // Once for each question.
    assert_eq!(page(&mut far, 20, "ship", hosts), (vec![], 0));
    ask(&mut far, 30, "ship", "page.example");
    let (sent, dials) = page(&mut far, 40, "ship", "page.example\nimg.example\nnew.example");
    assert_eq!((sent, dials), (vec![key("new.example")], 1), "it has the other");
    // Who asks for the page's name afterwards has the others with the answer, once two did so.
    ask(&mut far, 50, "boat", "page.example");
    for hosts in [hosts, "page.example\nnew.example"] {
        page(&mut far, 60, "boat", hosts);
    }
    let (sent, _) = ask(&mut far, 100_000, "other", "page.example");
    assert_eq!(sent.len(), 4, "{sent:?}");
}

#[test]
fn a_page_brings_nothing_to_whom_has_not_asked_for_it_lately_and_not_without_end() {
    let mut far = Far::default();
    ask(&mut far, 0, "ship", "page.example");
    let hosts = "page.example\nimg.example\n";
    assert_eq!(page(&mut far, 10, "other", hosts).1, 0, "another peer");
    assert_eq!(page(&mut far, 10, "ship", "else.example\nimg.example").1, 0, "another page");
    assert_eq!(page(&mut far, LATELY + 1, "ship", hosts).1, 0, "long ago");
    for bad in ["", "\n", "page.example", "\u{e4}.example\nimg.example"] {
        assert_eq!(page(&mut far, 20, "ship", bad).1, 0, "{bad}");
    }
    far.on_page(20, "ship", b"page.example\n\xff");
    assert!(far.take().is_empty());
    let many: String = (0..100).map(|n| format!("\nhost{n}.example")).collect();
    assert_eq!(page(&mut far, 20, "ship", &format!("page.example{many}")).1, MOST_BROUGHT);
    assert_eq!(page(&mut far, 20, "ship", "page.example\none-more.example").1, 0);
}

#[test]
fn a_question_that_is_repeated_without_an_end_is_refused_and_not_remembered() {
    let mut far = Far::default();
    let (server, query) = key("again.example");
    let (mut failed, mut dials) = (0, 0);
    for id in 0..10_000 {
        let query = query.clone();
        assert!(far.on_frame(
            0,
            "ship",
            Frame::Ask { id, waits: true, client: client(), server, query }
        ));
        for it in far.take() {
            match it {
                Do::Send(_, Frame::Failed { .. }) => failed += 1,
                Do::Dial { .. } => dials += 1,
                _ => {}
            }
        }
    }
    assert_eq!((failed, dials), (10_000 - MOST_IDS, 1));
}

#[test]
fn a_question_that_was_given_up_is_its_hosts_while_the_gateway_tries_to_connect() {
    let mut far = Far::default();
    let mut last = 0;
    let mut dials = |far: &mut Far, host: u8, count: usize| -> Vec<u64> {
        for _ in 0..count {
            last += 1;
            let (server, query) = key(&format!("n{last}.example"));
            let client = ([10, 1, 0, host], 4_000).into();
            far.on_frame(0, "ship", Frame::Ask { id: last, waits: true, client, server, query });
        }
        let number = |it: Do| match it {
            Do::Dial { dial, .. } => Some(dial),
            Do::Send(..) => None,
        };
        far.take().into_iter().filter_map(number).collect()
    };
    let first = dials(&mut far, 2, 600);
    assert_eq!(first.len(), MOST_DIALS / 4);
    first.iter().for_each(|dial| far.give_up(*dial));
    let failed = Frame::Failed { id: 1 };
    assert!(far.take().contains(&Do::Send("ship".into(), failed)), "who waits is told at once");
    assert!(dials(&mut far, 2, 600).is_empty(), "the gateway still tries for them");
    assert_eq!(dials(&mut far, 3, 10).len(), 10, "another host asks on");
    for dial in &first[..20] {
        far.on_connect_over(*dial);
        far.on_connect_over(*dial);
    }
    // It leaves as many free as it has, beside the other's ten.
    assert_eq!(dials(&mut far, 2, 600).len(), 15);
    far.on_answer(1, first[4], Some(&answer(&key("n5.example").1, 300, 1)));
    assert!(far.take().is_empty(), "it has its answer");
}

#[test]
fn questions_without_end_are_learned_by_the_second_and_unanswered_ones_not_at_all() {
    let mut far = Far::default();
    for name in ["page.example", "image.example"] {
        ask(&mut far, 0, "ship", name);
    }
    for n in 0..6_000 {
        let (server, query) = key(&format!("unanswered{n}.example"));
        far.on_frame(0, "evil", Frame::Ask { id: n, waits: true, client: client(), server, query });
    }
    far.take();
    assert_eq!(far.together.follows, 1, "the image follows the page");
    for n in 0..6_000 {
        ask(&mut far, n, "other", &format!("answered{n}.example"));
    }
    let most = 7 * together::MOST_LEARNS as usize * together::MOST_RECENT;
    assert!(far.together.follows <= most, "{} times", far.together.follows);
    far.on_lost("ship");
    assert_eq!(ask(&mut far, 10_000, "ship", "page.example").0.len(), 2, "the image goes along");
}

#[test]
fn of_two_questions_the_one_that_was_asked_first_leads_whichever_is_answered_first() {
    let mut far = Far::default();
    for (peer, before) in [("ship", 0), ("boat", 2)] {
        for (n, name) in ["page.example", "image.example"].into_iter().enumerate() {
            let (server, query) = key(name);
            let ask = Frame::Ask { id: 1, waits: true, client: client(), server, query };
            assert!(far.on_frame(n as u64, peer, ask));
        }
        for (dial, name) in [(2, "image.example"), (1, "page.example")] {
            far.on_answer(2_000, before + dial, Some(&answer(&key(name).1, 300, 1)));
        }
        far.take();
    }
    assert_eq!(ask(&mut far, 9_000, "other", "image.example").0.len(), 1);
    assert_eq!(ask(&mut far, 9_000, "third", "page.example").0.len(), 2);
}

#[test]
fn an_answer_for_a_half_that_is_gone_goes_not_to_its_successor_but_is_known() {
    let mut far = Far::default();
    let ask_for = |far: &mut Far, id, name| {
        let (server, query) = key(name);
        far.on_frame(0, "ship", Frame::Ask { id, waits: true, client: client(), server, query });
        far.take()
    };
    for (id, name) in [(1, "a.example"), (2, "b.example"), (3, "c.example")] {
        assert_eq!(ask_for(&mut far, id, name).len(), 1);
    }
    far.on_lost("ship");
    far.on_answer(1, 1, Some(&answer(&key("a.example").1, 300, 1)));
    far.on_answer(1, 2, None);
    assert_eq!(far.take(), []);
    assert_eq!(ask(&mut far, 2, "ship", "a.example").1, 0, "it is known");
    // The successor asks for what is on its way.
    assert_eq!(ask_for(&mut far, 1, "c.example"), []);
    far.on_answer(3, 3, Some(&answer(&key("c.example").1, 300, 1)));
    assert!(matches!(&far.take()[..], [Do::Send(_, Frame::Answer { id: 1, .. })]));
}
