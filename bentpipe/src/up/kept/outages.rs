//! Outages: what events make of them, and those that are over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use control::{Cause, Event, Notice, Outage, RekeyState, Way};
use serde::{Deserialize, Serialize};

/// Outages that are kept; the oldest go first.
const MOST: usize = 10_000;

/// When the gateway was last alive.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Alive {
    pub at_ms: u64,
    /// It was stopped then, in good order.
    pub stopped: bool,
}

/// The outages of a node's links.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Outages {
    /// Those that are over, in the order of their ends.
    over: VecDeque<Outage>,
    /// Those that go on, by the peer's key.
    open: BTreeMap<String, Outage>,
    #[serde(skip)]
    pub changed: bool,
}

impl Outages {
    /// The gateway starts with peers of these keys, and was last `alive` then. Of a peer that is
    /// no longer in the file nothing more is heard: its outage ended when the gateway did.
    pub fn begin(&mut self, alive: Option<Alive>, peers: &BTreeSet<String>, now_ms: u64) {
        let end_ms = alive.map_or(now_ms, |alive| alive.at_ms.min(now_ms));
        let gone: Vec<String> =
            self.open.keys().filter(|key| !peers.contains(*key)).cloned().collect();
        for key in gone {
            self.end_at(&key, end_ms);
        }
        let Some(alive) = alive else { return };
        let cause = match alive.stopped {
            true => Cause::GatewayStopped,
            false => Cause::GatewayKilled,
        };
        // A clock that stood wrong tells no length.
        let (began_ms, ended_ms) = (alive.at_ms.min(now_ms), Some(now_ms));
        self.add(Outage { peer: None, began_ms, ended_ms, cause, why: String::new() });
    }

    /// What an event of the peer with this key makes of its outages.
    pub fn follow(&mut self, key: &str, notice: &Notice) -> Option<Event> {
        match &notice.event {
            Event::LinkSilent { direction, for_ms } => {
                let cause = match direction {
                    Way::Receive => Cause::Silent,
                    Way::Transmit => Cause::TransmitDead,
                    Way::Reports => Cause::NoReports,
                };
                self.open_one(key, notice, notice.at_ms.saturating_sub(*for_ms), cause)
            }
            Event::LinkFailing { failing } => {
                let began_ms = notice.at_ms.saturating_sub(failing.for_ms);
                let begun = self.open_one(key, notice, began_ms, Cause::NoSession);
                if let Some(outage) = self.open.get_mut(key) {
                    outage.why = failing.finding();
                    self.changed = true;
                    return begun.map(|_| Event::OutageBegan { outage: outage.clone() });
                }
                None
            }
            Event::Rekey { state: RekeyState::Erased } => {
                self.open_one(key, notice, notice.at_ms, Cause::KeysErased)
            }
            // New keys alone do not say that the peer hears: that it is back does.
            Event::Rekey { state: RekeyState::InTime }
                if self.open.get(key).is_some_and(|o| o.cause == Cause::KeysErased) =>
            {
                self.end(key, notice)
            }
            Event::LinkDown { cause: Cause::Removed } => self.end(key, notice),
            Event::LinkDown { cause } => self.open_one(key, notice, notice.at_ms, *cause),
            Event::LinkUp { anew, .. } => match self.end(key, notice) {
                None if *anew => {
                    self.open_one(key, notice, notice.at_ms, Cause::Restarted);
                    self.end(key, notice)
                }
                ended => ended,
            },
            Event::LinkBack => self.end(key, notice),
            _ => None,
        }
    }

    /// Can [`Outages::follow`] make something of the event?
    pub fn is_concerned(event: &Event) -> bool {
        matches!(
            event,
            Event::LinkSilent { .. }
                | Event::LinkFailing { .. }
                | Event::Rekey { state: RekeyState::Erased | RekeyState::InTime }
                | Event::LinkDown { .. }
                | Event::LinkUp { .. }
                | Event::LinkBack
        )
    }

    /// Begins an outage, unless one goes on: its first cause stands.
    fn open_one(
        &mut self,
        key: &str,
        notice: &Notice,
        began_ms: u64,
        cause: Cause,
    ) -> Option<Event> {
        if self.open.contains_key(key) {
            return None;
        }
        let peer = notice.peer.clone();
        let outage = Outage { peer, began_ms, ended_ms: None, cause, why: String::new() };
        self.open.insert(key.to_owned(), outage.clone());
        self.changed = true;
        Some(Event::OutageBegan { outage })
    }

    fn end(&mut self, key: &str, notice: &Notice) -> Option<Event> {
        self.end_at(key, notice.at_ms)
    }

    fn end_at(&mut self, key: &str, at_ms: u64) -> Option<Event> {
        let mut outage = self.open.remove(key)?;
        outage.ended_ms = Some(at_ms.max(outage.began_ms));
        self.add(outage.clone());
        Some(Event::OutageEnded { outage })
    }

    fn add(&mut self, outage: Outage) {
        self.over.push_back(outage);
        while self.over.len() > MOST {
            self.over.pop_front();
        }
        self.changed = true;
    }

    /// Those that go on.
    pub fn open(&self, peer: Option<&str>) -> Vec<Outage> {
        self.open.values().filter(|outage| is_of(outage, peer)).cloned().collect()
    }

    /// All of them, in the order of their beginnings.
    pub fn log(&self, peer: Option<&str>) -> Vec<Outage> {
        let over = self.over.iter().filter(|outage| is_of(outage, peer)).cloned();
        let mut all: Vec<Outage> = over.chain(self.open(peer)).collect();
        all.sort_by_key(|outage| outage.began_ms);
        all
    }
}

/// Is the outage of the peer called so, or of the gateway and all peers with it?
fn is_of(outage: &Outage, peer: Option<&str>) -> bool {
    peer.is_none() || outage.peer.is_none() || outage.peer.as_deref() == peer
}

#[cfg(test)]
mod tests {
    use control::{Failing, Reason};

    use super::*;

    const KEY: &str = "KEY=";

    fn notice(at_ms: u64, event: Event) -> Notice {
        Notice { at_ms, peer: Some("ship".to_owned()), event }
    }

    fn up(anew: bool) -> Event {
        Event::LinkUp { address: None, cipher: String::new(), rtt_us: 0, anew }
    }

    fn told(outages: &Outages) -> Vec<(u64, Option<u64>, Cause)> {
        outages.log(None).iter().map(|o| (o.began_ms, o.ended_ms, o.cause)).collect()
    }

    #[test]
    fn an_outage_begins_where_the_last_packet_came_and_its_first_cause_stands() {
        let mut outages = Outages::default();
        assert_eq!(outages.follow(KEY, &notice(1_000, up(false))), None);
        let silent = |direction| Event::LinkSilent { direction, for_ms: 3_000 };
        let begun = outages.follow(KEY, &notice(10_000, silent(Way::Receive)));
        let Some(Event::OutageBegan { outage }) = begun else { panic!("{begun:?}") };
        assert_eq!((outage.began_ms, outage.cause), (7_000, Cause::Silent));
        assert_eq!(outages.follow(KEY, &notice(11_000, silent(Way::Transmit))), None);
        let failing = Failing { reason: Reason::Silence, ..Failing::default() };
        let failing = Event::LinkFailing { failing: Box::new(failing) };
        assert_eq!(outages.follow(KEY, &notice(200_000, failing)), None);
        assert!(outages.open(None)[0].why.contains("nothing came back"), "{outages:?}");
        let ended = outages.follow(KEY, &notice(250_000, Event::LinkBack));
        let Some(Event::OutageEnded { outage }) = ended else { panic!("{ended:?}") };
        assert_eq!((outage.cause, outage.length_ms(0)), (Cause::Silent, 243_000));
        assert_eq!(outages.follow(KEY, &notice(250_001, up(false))), None, "it is over");
        assert_eq!(told(&outages), [(7_000, Some(250_000), Cause::Silent)]);
    }

    #[test]
    fn a_session_that_ends_is_an_outage_until_there_is_another() {
        let mut outages = Outages::default();
        outages.follow(KEY, &notice(5, Event::LinkDown { cause: Cause::Closed }));
        outages.follow(KEY, &notice(9, up(false)));
        // One that was cut by a new one has no length.
        outages.follow(KEY, &notice(20, up(true)));
        outages.follow(KEY, &notice(30, Event::Rekey { state: RekeyState::Erased }));
        outages.follow(KEY, &notice(35, Event::Rekey { state: RekeyState::InTime }));
        outages.follow(KEY, &notice(40, Event::Rekey { state: RekeyState::InTime }));
        let expected = [
            (5, Some(9), Cause::Closed),
            (20, Some(20), Cause::Restarted),
            (30, Some(35), Cause::KeysErased),
        ];
        assert_eq!(told(&outages), expected);
    }

    #[test]
    fn a_gateway_that_was_down_itself_is_told_and_outages_go_on_over_it() {
        let mut outages = Outages::default();
        let silent = Event::LinkSilent { direction: Way::Receive, for_ms: 0 };
        outages.follow(KEY, &notice(100, silent));
        let text = serde_json::to_string(&outages).unwrap();
        let mut outages: Outages = serde_json::from_str(&text).unwrap();
        let peers = BTreeSet::from([KEY.to_owned()]);
        outages.begin(Some(Alive { at_ms: 200, stopped: false }), &peers, 500);
        outages.follow(KEY, &notice(600, up(false)));
        outages.begin(None, &peers, 700);
        outages.begin(Some(Alive { at_ms: 900, stopped: true }), &peers, 800);
        let expected = [
            (100, Some(600), Cause::Silent),
            (200, Some(500), Cause::GatewayKilled),
            (800, Some(800), Cause::GatewayStopped),
        ];
        assert_eq!(told(&outages), expected);
        assert_eq!(outages.log(Some("other")).len(), 2, "the gateway's own are everybody's");
    }

    #[test]
    fn an_outage_of_a_peer_that_left_the_file_ends_with_the_gateway() {
        let mut outages = Outages::default();
        let silent = Event::LinkSilent { direction: Way::Receive, for_ms: 0 };
        outages.follow(KEY, &notice(100, silent.clone()));
        outages.follow("OTHER=", &notice(150, silent));
        let peers = BTreeSet::from(["OTHER=".to_owned()]);
        outages.begin(Some(Alive { at_ms: 200, stopped: true }), &peers, 500);
        let expected = [
            (100, Some(200), Cause::Silent),
            (150, None, Cause::Silent),
            (200, Some(500), Cause::GatewayStopped),
        ];
        assert_eq!(told(&outages), expected);
    }

    #[test]
    fn a_link_that_flaps_for_years_is_kept_up_to_a_bound() {
        let mut outages = Outages::default();
        for n in 0..12_000 {
            outages.follow(KEY, &notice(n, Event::LinkDown { cause: Cause::Closed }));
            outages.follow(KEY, &notice(n, up(false)));
        }
        let log = outages.log(None);
        assert_eq!((log.len(), log[0].began_ms), (MOST, 2_000));
    }
}
