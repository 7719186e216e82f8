//! Turns of the addresses that a peer's name has: each is called until one answers.

use std::net::SocketAddr;

/// Which of them have had one since there was a session.
#[derive(Debug, Default)]
pub(super) struct Turns {
    tried: Vec<SocketAddr>,
    all_tried: bool,
}

impl Turns {
    /// Have all had one?
    pub fn are_over(&self) -> bool {
        self.all_tried
    }

    /// The address that has its turn now, in whichever order they come: name servers rotate them.
    /// The one `at` which the peer was is the first. An answer without addresses changes nothing.
    pub fn next(&mut self, addresses: &[SocketAddr], at: Option<SocketAddr>) -> Option<SocketAddr> {
        if addresses.is_empty() {
            return None;
        }
        self.tried.retain(|tried| addresses.contains(tried));
        let first = at.filter(|at| self.tried.is_empty() && addresses.contains(at));
        let fresh = || addresses.iter().copied().find(|to| !self.tried.contains(to));
        let next = first.or_else(fresh).unwrap_or_else(|| {
            (self.tried, self.all_tried) = (Vec::new(), true);
            addresses[0]
        });
        self.tried.push(next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(last: u8) -> SocketAddr {
        ([203, 0, 113, last], 4500).into()
    }

    #[test]
    fn each_address_has_its_turn_also_where_the_answers_rotate() {
        let mut turns = Turns::default();
        let answers = [[to(1), to(2)], [to(2), to(1)], [to(1), to(2)], [to(2), to(1)]];
        assert_eq!(turns.next(&answers[0], Some(to(2))), Some(to(2)), "where it was");
        assert_eq!(turns.next(&answers[1], Some(to(2))), Some(to(1)));
        assert!(!turns.are_over());
        let later: Vec<_> =
            answers.iter().map(|all| turns.next(all, Some(to(1))).unwrap()).collect();
        assert!(turns.are_over());
        assert_eq!(later.iter().filter(|at| **at == to(1)).count(), 2, "{later:?}");
    }

    #[test]
    fn no_answer_ends_no_turn_and_what_the_name_has_no_more_is_forgotten() {
        let mut turns = Turns::default();
        assert_eq!(turns.next(&[], None), None);
        assert_eq!(turns.next(&[to(1), to(2)], None), Some(to(1)));
        assert_eq!(turns.next(&[], Some(to(1))), None);
        assert!(!turns.are_over());
        assert_eq!(turns.next(&[to(1), to(2)], Some(to(1))), Some(to(2)));
        assert_eq!(turns.next(&[to(3)], Some(to(2))), Some(to(3)));
    }
}
