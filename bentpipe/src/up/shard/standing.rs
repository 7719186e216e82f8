//! Where a peer's link stands: judged here, once, for `status`, `doctor` and `watch`. A session
//! outlives its line, so that the session alone says `up` of a peer whose line has been hung up.

use dial::manager::{Command, DownCause, State};
use link::PeerId;
use link::session::PathHealth;
use units::Instant;

use super::Shard;
use crate::admin::LinkState;
use crate::up::peer_table::KnownPeer;
use crate::up::peers::may_telephone;

/// How the lines stand that are the only way to a peer, all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// One is up, and the peer is reached over it.
    Carry,
    /// One is dialled, or the peer is being reached over it.
    Rising,
    /// None is up, and nobody has said that none may be.
    Resting,
    /// `link down` is in force.
    OrderedDown,
    /// The last try to raise each of them came to nothing.
    Failed,
}

/// How lines stand that are in these states, with what the operator said of each.
pub fn lines<'a>(all: impl Iterator<Item = (&'a State, Command)>) -> Lines {
    let mut stands = None;
    for (state, command) in all {
        let one = match state {
            // Hanging up takes a modem its time.
            _ if command == Command::Down => Lines::OrderedDown,
            State::Up { .. } | State::Lingering { .. } => return Lines::Carry,
            State::Dialling { .. } | State::Rising { .. } => Lines::Rising,
            State::Down { cause: DownCause::Failed(_) | DownCause::NoPeer, .. } => Lines::Failed,
            State::Down { .. } => Lines::Resting,
        };
        // Whichever may carry first says how all stand.
        let rank = |lines: Lines| match lines {
            Lines::Carry => 0,
            Lines::Rising => 1,
            Lines::Resting => 2,
            Lines::Failed => 3,
            Lines::OrderedDown => 4,
        };
        stands = match stands {
            Some(before) if rank(before) <= rank(one) => stands,
            _ => Some(one),
        };
    }
    stands.unwrap_or(Lines::Resting)
}

/// What the link's state is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// There is a session.
    pub is_established: bool,
    /// What reports say of its directions.
    pub health: PathHealth,
    /// A handshake is under way.
    pub is_calling: bool,
    /// The peer was heard, and ended its session in order.
    pub has_departed: bool,
    /// The peer's lines, where there is no other way to it.
    pub lines: Option<Lines>,
}

/// The state of the link.
pub fn judge(facts: Facts) -> LinkState {
    match facts.lines {
        Some(Lines::Rising) => return LinkState::Rising,
        Some(Lines::Resting) => return LinkState::Resting,
        Some(Lines::OrderedDown) => return LinkState::OrderedDown,
        Some(Lines::Failed) => return LinkState::LineFailed,
        Some(Lines::Carry) | None => {}
    }
    match (facts.is_established, facts.health) {
        (true, PathHealth::Alive) => LinkState::Up,
        (true, _) => LinkState::Fading,
        (false, _) if facts.is_calling => LinkState::Rising,
        (false, _) if facts.has_departed => LinkState::Departed,
        (false, _) => LinkState::Down,
    }
}

impl Shard {
    /// Where the peer's link stands.
    pub(super) fn link_state(&self, now: Instant, peer: &KnownPeer) -> LinkState {
        let endpoint = &self.relay.endpoint;
        let heard = endpoint.peer_stats(peer.id).heard;
        judge(Facts {
            is_established: endpoint.is_established(peer.id),
            health: endpoint.health(peer.id),
            is_calling: endpoint.is_calling(peer.id),
            has_departed: heard.is_some() && !peer.up,
            lines: self.lines_to(now, peer.id),
        })
    }

    /// How the lines to a peer stand; `None`: it has none, or other ways beside them.
    pub(in crate::up) fn lines_to(&self, now: Instant, id: PeerId) -> Option<Lines> {
        let mut calls = self.telephones.iter().filter_map(|line| line.call.as_ref());
        if calls.any(|call| call.peer == Some(id)) {
            return Some(Lines::Carry);
        }
        if let Some(line) = self.lines.iter().find(|line| line.peer == id) {
            return line.stand();
        }
        // One that calls by telephone is nowhere between its calls.
        let peer = self.peers.with_id(id)?;
        let is_nowhere = || self.relay.endpoint.paths(now, id).iter().all(|p| p.remote.is_none());
        let rests = may_telephone(&self.config.node, &peer.config)
            && self.relay.endpoint.is_established(id)
            && is_nowhere();
        rests.then_some(Lines::Resting)
    }
}

#[cfg(test)]
mod tests {
    use dial::manager::Reason;

    use super::*;

    fn down(cause: DownCause) -> State {
        State::Down { since: Instant::ZERO, cause }
    }

    fn up() -> State {
        State::Up { since: Instant::ZERO, cause: Reason::Ordered }
    }

    fn dialling() -> State {
        State::Dialling { since: Instant::ZERO, cause: Reason::Ordered }
    }

    /// A session that was alive when its line was hung up.
    fn after(lines: Option<Lines>) -> Facts {
        let health = PathHealth::Alive;
        Facts { is_established: true, health, is_calling: false, has_departed: false, lines }
    }

    #[test]
    fn a_link_whose_line_is_down_is_not_up_whatever_its_session_was() {
        for (stands, state) in [
            (Lines::Carry, LinkState::Up),
            (Lines::Rising, LinkState::Rising),
            (Lines::Resting, LinkState::Resting),
            (Lines::OrderedDown, LinkState::OrderedDown),
            (Lines::Failed, LinkState::LineFailed),
        ] {
            assert_eq!(judge(after(Some(stands))), state);
            // Nor is it rising because a handshake waits for the line.
            let calling = Facts { is_established: false, is_calling: true, ..after(Some(stands)) };
            let expected = if stands == Lines::Carry { LinkState::Rising } else { state };
            assert_eq!(judge(calling), expected);
        }
        assert_eq!(judge(after(None)), LinkState::Up);
        let since = Instant::ZERO;
        let silent = Facts { health: PathHealth::NothingReceived { since }, ..after(None) };
        assert_eq!(judge(silent), LinkState::Fading);
    }

    #[test]
    fn lines_stand_as_the_one_that_may_carry_first() {
        let failed = || down(DownCause::Failed("BUSY".into()));
        let cases = [
            (vec![(down(DownCause::NotWanted), Command::Auto)], Lines::Resting),
            (vec![(down(DownCause::Ordered), Command::Down)], Lines::OrderedDown),
            (vec![(failed(), Command::Auto)], Lines::Failed),
            (vec![(down(DownCause::NoPeer), Command::Auto)], Lines::Failed),
            (
                vec![(failed(), Command::Auto), (down(DownCause::Idle), Command::Auto)],
                Lines::Resting,
            ),
            (vec![(failed(), Command::Down), (dialling(), Command::Auto)], Lines::Rising),
            (vec![(dialling(), Command::Auto), (up(), Command::Auto)], Lines::Carry),
            (vec![(up(), Command::Down)], Lines::OrderedDown),
            // `link auto` came; it is down for the order before.
            (vec![(down(DownCause::Ordered), Command::Auto)], Lines::Resting),
        ];
        for (all, expected) in cases {
            let each = all.iter().map(|(state, command)| (state, *command));
            assert_eq!(lines(each), expected, "{all:?}");
        }
    }
}
