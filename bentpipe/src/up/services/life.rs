//! Whether a service that runs is seen to live (S-FA-2).

/// Looks in a row at which it may have packets unread, or a ping unanswered, and have said nothing.
const HANGS: u32 = 10;
/// Looks at which it has said nothing, before it is pinged.
const STILL: u32 = 5;

/// Whether a service is seen to live.
#[derive(Clone, Copy, Debug, Default)]
pub struct Life {
    /// It answers pings.
    pub pings: bool,
    /// It was pinged, and has said nothing since.
    pub pinged: bool,
    /// Looks since it said something.
    still: u32,
    /// Those in a row at which it owed something.
    owes: u32,
}

/// What a look at a service says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Lives,
    /// It is to be pinged.
    Ping,
    Hangs(&'static str),
}

impl Life {
    /// It says something.
    pub fn hear(&mut self) {
        *self = Life { pings: self.pings, ..Life::default() };
    }

    /// Looks at one that has packets `unread`, or not.
    pub fn look(&mut self, unread: bool, can_answer: bool) -> Look {
        self.still = self.still.saturating_add(1);
        let owes_pong = self.pinged && can_answer;
        self.owes = if unread || owes_pong { self.owes + 1 } else { 0 };
        if self.owes >= HANGS {
            let reads = "it does not answer a ping";
            return Look::Hangs(if unread { "it does not read its socket" } else { reads });
        }
        let pings = self.pings && can_answer && !self.pinged && !unread && self.still >= STILL;
        if pings { Look::Ping } else { Look::Lives }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at it so often, and pings it when that is due: what the last look said.
    fn looked(life: &mut Life, times: u32, unread: bool) -> Look {
        let mut last = Look::Lives;
        for _ in 0..times {
            last = life.look(unread, true);
            life.pinged |= last == Look::Ping;
        }
        last
    }

    #[test]
    fn a_service_that_does_not_answer_a_ping_hangs() {
        let mut life = Life { pings: true, ..Life::default() };
        assert_eq!(looked(&mut life, STILL, false), Look::Ping);
        assert_eq!(looked(&mut life, HANGS - 1, false), Look::Lives);
        assert_eq!(life.look(false, true), Look::Hangs("it does not answer a ping"));
        // One that answers at the last moment does not, and is pinged again.
        let mut life = Life { pings: true, ..Life::default() };
        for _ in 0..9 {
            assert_eq!(looked(&mut life, STILL, false), Look::Ping);
            assert_eq!(looked(&mut life, HANGS - 1, false), Look::Lives);
            life.hear();
        }
    }

    #[test]
    fn a_service_that_knows_no_ping_hangs_only_where_it_does_not_read() {
        let mut life = Life::default();
        assert_eq!(looked(&mut life, 1000, false), Look::Lives);
        assert_eq!(looked(&mut life, HANGS - 1, true), Look::Lives);
        assert_eq!(life.look(true, true), Look::Hangs("it does not read its socket"));
    }

    /// What it says waits for the gateway, or it is about to end.
    #[test]
    fn a_service_that_cannot_answer_a_ping_does_not_hang() {
        let mut life = Life { pings: true, ..Life::default() };
        assert_eq!(looked(&mut life, STILL, false), Look::Ping);
        for _ in 0..1000 {
            assert_eq!(life.look(false, false), Look::Lives);
        }
    }
}
