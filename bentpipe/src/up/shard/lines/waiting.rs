//! What waits for a line that is down, and what waits again when its carrier is lost.

use dial::books::Host;
use dial::rules::Flow;
use link::MAX_DATAGRAM_WAIT;
use relay::FlowId;
use units::{Instant, Shares, host_in_network};

use super::managed::{LATELY, MOST_FLOWS, ManagedLine, WaitKey, Waiting, key_of, own_flow};

impl ManagedLine {
    /// Is the line down, and does somebody's amount of bytes matter?
    pub(super) fn counts_unread(&self) -> bool {
        self.settings.raises && !self.carries() && self.waiting.values().any(|w| w.counts)
    }

    /// Is there a place for another flow that waits? Packets whose host has given up leave theirs,
    /// and what wants the line less, that of what wants it more.
    pub(super) fn make_room(&mut self, now: Instant, flow: &Flow) -> bool {
        if self.waiting.len() < MOST_FLOWS {
            return true;
        }
        self.forget_given_up(now);
        if self.waiting.len() < MOST_FLOWS {
            return true;
        }
        let urgency = |w: &Waiting| self.manager.urgency(&w.flow);
        let least = self.waiting.iter().min_by_key(|(_, w)| (urgency(w), w.said_at));
        let least = least.filter(|(_, w)| urgency(w) < self.manager.urgency(flow));
        let least = least.map(|(key, _)| key.clone());
        let Some(key) = least.or_else(|| self.of_who_has_most(flow)) else { return false };
        self.forget(now, key);
        true
    }

    /// The oldest of what waits for the host that has the most, in the network that does, where
    /// whoever comes has less: one host's datagrams to everybody keep out nobody else's. What
    /// wants the line more stays.
    fn of_who_has_most(&self, flow: &Flow) -> Option<WaitKey> {
        let holder = |host: &Host| match host {
            Host::Addr(addr) => Some(host_in_network(*addr)).unzip(),
            Host::Node | Host::Others => (None, None),
        };
        // Who has half of it has no less than anybody: one who floods costs no more than this.
        let its_own = self.waiting.values().filter(|w| w.flow.host == flow.host);
        if 2 * its_own.count() > MOST_FLOWS {
            return None;
        }
        let urgency = self.manager.urgency(flow);
        let mut shares = Shares::default();
        for (key, w) in &self.waiting {
            if self.manager.urgency(&w.flow) <= urgency {
                shares.add(&holder(&w.flow.host), (w.said_at, key), 1);
            }
        }
        shares.gives_way_to(&holder(&flow.host), 1).map(|(_, key)| (*key).clone())
    }

    /// Packets that nobody sent again are dropped by now: they wait no more.
    pub(super) fn forget_given_up(&mut self, now: Instant) {
        let is_over = |(key, w): &(&WaitKey, &Waiting)| {
            matches!(key, WaitKey::Packets(_)) && now.since(w.said_at) > MAX_DATAGRAM_WAIT
        };
        let over: Vec<WaitKey> =
            self.waiting.iter().filter(is_over).map(|(key, _)| key.clone()).collect();
        over.into_iter().for_each(|key| self.forget(now, key));
    }

    fn forget(&mut self, now: Instant, key: WaitKey) {
        if let Some(waiting) = self.waiting.remove(&key) {
            self.manager.handle_waiting(now, waiting.id, &own_flow(), 0);
        }
    }

    /// What carried since then is lost: connections wait that had moved shortly before, though
    /// their hosts may have nothing to say, and those of which something has not arrived.
    pub(super) fn wait_again(
        &mut self,
        now: Instant,
        lost: Instant,
        is_undelivered: impl Fn(FlowId) -> bool,
    ) {
        if self.carries() {
            return;
        }
        let moved = std::mem::take(&mut self.moved);
        for (id, (flow, when)) in moved {
            if lost.since(when) < LATELY || is_undelivered(id) {
                self.on_bytes(now, Some(id), flow, [0, 0]);
            }
        }
    }

    /// The line is hung up, though not for being idle: connections wait again of which something
    /// has not arrived.
    pub(super) fn wait_for_the_next(
        &mut self,
        now: Instant,
        is_undelivered: impl Fn(FlowId) -> bool,
    ) {
        self.wait_again(now, Instant::FAR_FUTURE, is_undelivered);
    }

    /// A connection that is over before the line was raised waits no more.
    pub(super) fn on_closed(&mut self, now: Instant, id: FlowId) {
        self.moved.remove(&id);
        self.forget(now, WaitKey::Connection(id));
    }

    /// What waited crosses now.
    pub(super) fn forget_waiting(&mut self, now: Instant) {
        self.forget_given_up(now);
        for (key, waiting) in std::mem::take(&mut self.waiting) {
            self.manager.handle_waiting(now, waiting.id, &own_flow(), 0);
            // Its host may have said all that it has to say: if the call is lost it waits again.
            if let WaitKey::Connection(id) = key
                && self.may_remember(now, &id)
            {
                self.moved.insert(id, (waiting.flow.clone(), now));
            }
            // All but the one that stands for its answer.
            let bytes = [waiting.bytes - 1, 0];
            self.note_crossing(key_of(&waiting.flow), waiting.flow, bytes);
        }
    }
}
