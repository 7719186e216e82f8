//! What the operator is told where the two nodes' files cannot both be right.

use link::session::{Disagreements, End};
use units::BitRate;

/// One sentence for each thing, with what mends it.
pub fn sentences(found: &Disagreements) -> Vec<String> {
    let mut all = Vec::new();
    if !found.not_taken_there.is_empty() {
        all.push(format!(
            "{} cannot work and is refused here: the peer's file has no such prefix in its `routes` \
             for this node",
            found.not_taken_there
        ));
    }
    if !found.not_taken_here.is_empty() {
        all.push(format!(
            "{} cannot work and is refused at the peer, which routes it here: `routes` of this \
             node's file have no such prefix for the peer",
            found.not_taken_here
        ));
    }
    match found.same_end {
        Some(end) => {
            let end = if end == End::Hub { "hub" } else { "terminal" };
            all.push(format!("both files say end = \"{end}\": one of the nodes is the other end"));
        }
        None => all.extend(rates(found)),
    }
    all
}

fn rates(found: &Disagreements) -> Vec<String> {
    let apart = |rates: Option<[BitRate; 2]>, sender, receiver| {
        rates.map(|[send, receive]| {
            format!(
                "{sender} file says that it sends {send}, {receiver} that it receives {receive}: \
                 give both the link's own rate"
            )
        })
    };
    let outward = apart(found.outward, "this node's", "the peer's");
    let inward = apart(found.inward, "the peer's", "this node's");
    outward.into_iter().chain(inward).collect()
}

#[cfg(test)]
mod tests {
    use link::session::Families;

    use super::*;

    #[test]
    fn each_disagreement_is_one_sentence_and_the_same_end_explains_the_rates() {
        assert!(sentences(&Disagreements::default()).is_empty());
        let rates = Some([20, 2].map(BitRate::from_mbps));
        let v6 = Families { v4: false, v6: true };
        let mut found = Disagreements {
            not_taken_there: v6,
            not_taken_here: v6,
            same_end: None,
            outward: rates,
            inward: rates,
        };
        let all = sentences(&found);
        assert_eq!(all.len(), 4);
        assert!(all[0].starts_with("IPv6 cannot work"), "{all:?}");
        assert!(all[2].contains("sends 20Mbit") && all[2].contains("receives 2Mbit"), "{all:?}");
        found.same_end = Some(End::Hub);
        assert_eq!(sentences(&found).len(), 3);
    }
}
