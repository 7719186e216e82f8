//! Reports, and what they tell of packets.

use super::*;

/// L-PT-13: another path is faster, and says nothing of how long this one takes.
#[test]
fn a_report_that_came_by_another_path_tells_what_arrived_and_no_round_trip() {
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    for aside in [true, false] {
        let (mut sent, mut rtt) = (Sent::new(), Rtt::new(Duration::from_millis(600)));
        (0..2).for_each(|_| _ = sent.push_packet(at(0), true, 100));
        let mut fates = |_: Fate, _: &SentFrame| {};
        let state = StateFrame::of_one(1);
        let report = sent.handle_state(at(300), &state, aside, &mut rtt, &mut fates);
        assert!(report.progress && report.told.is_some());
        assert_eq!((sent.counts.arrived, rtt.is_sampled()), (1, !aside));
    }
}

/// What a path that goes down has under way may have arrived before that.
#[test]
fn losses_count_as_ever_once_what_an_outage_took_turns_out_to_have_arrived() {
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    let (mut sent, mut rtt) = (Sent::new(), Rtt::new(Duration::from_millis(600)));
    (0..100).for_each(|_| _ = sent.push_packet(at(0), true, 100));
    let mut fates = |_: Fate, _: &SentFrame| {};
    sent.give_up_all(at(1), &mut fates);
    assert_eq!((sent.counts.lost, sent.counts.in_outages), (100, 100));
    for number in 0..100 {
        let state = StateFrame::of_one(number);
        sent.handle_state(at(300), &state, false, &mut rtt, &mut fates);
    }
    assert_eq!((sent.counts.lost, sent.counts.in_outages), (0, 0));
    assert_eq!(sent.reorder_window, Duration::ZERO, "nothing overtook anything");
}

/// What a dead path had under way is not walked through with each look at what leaves later.
#[test]
fn what_was_given_up_is_not_looked_through_again() {
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    let mut sent = Sent::new();
    for _ in 0..30_000 {
        sent.push_packet(at(0), true, 100);
    }
    sent.give_up_all(at(1), |_, _| {});
    assert_eq!((sent.scan_from, sent.oldest_in_flight()), (30_000, None));
    sent.push_packet(at(2), true, 100);
    assert_eq!(sent.oldest_in_flight(), Some(at(2)));
    // Late news of an old one is still taken, and the new one is found lost in its time.
    let mut rtt = Rtt::new(Duration::from_millis(600));
    let mut arrived = 0;
    let mut fates = |fate: Fate, _: &SentFrame| arrived += u32::from(fate == Fate::Arrived);
    sent.handle_state(at(700), &StateFrame::of_one(29_999), true, &mut rtt, &mut fates);
    sent.handle_state(at(800), &StateFrame::of_one(30_000), false, &mut rtt, &mut fates);
    assert_eq!((sent.in_flight(), arrived), (0, 0));
}

/// A peer that speaks of one packet of very many has each of its packets cost no walk through
/// all of them, and what is lost is found all the same.
#[test]
fn losses_among_very_many_are_looked_for_bit_by_bit() {
    let (mut sent, mut rtt) = (Sent::new(), Rtt::new(Duration::from_secs(1)));
    let mut now = Instant::ZERO + Duration::from_secs(10);
    for _ in 0..30_000 {
        sent.push_packet(now, true, 100);
    }
    let mut fates = |_: Fate, _: &SentFrame| {};
    now += Duration::from_secs(1);
    sent.handle_state(now, &StateFrame::of_one(29_999), false, &mut rtt, &mut fates);
    let begin = now;
    let again = sent.detect_lost(now, &rtt, &mut fates);
    assert_eq!((sent.look_on, again), (Some(16_384), Some(now + LOOKING_PAUSE)));
    assert_eq!(sent.detect_lost(now, &rtt, &mut fates), again, "not before");
    let mut looks = 0;
    while let Some(again) = sent.detect_lost(now, &rtt, &mut fates) {
        assert!(again >= now && looks < 2_000, "{looks}");
        now = again.max(now + Duration::from_millis(1));
        // Something is heard, so that time tells what is lost.
        sent.handle_state(now, &StateFrame::of_one(29_999), false, &mut rtt, &mut fates);
        looks += 1;
    }
    assert_eq!((sent.in_flight(), sent.counts.lost), (0, 29_999));
    assert!(now.since(begin) < rtt.smoothed().times(8), "{looks} looks");
}
