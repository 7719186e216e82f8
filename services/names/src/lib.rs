//! A DNS cache at the terminal and its other half at the hub (spec/names.md). Nothing here does
//! I/O: the program gives what came and the time in milliseconds, and does what comes out.

pub mod cache;
pub mod exchange;
pub mod far;
pub mod message;
pub mod near;

use std::net::SocketAddr;

/// What an answer is of: the server that was asked, and the question as [`message`] writes it.
pub type Key = (SocketAddr, Vec<u8>);

/// For the fuzzer: nothing that arrives panics, and what is written can be read.
pub fn fuzz(data: &[u8]) {
    if let Some(query) = message::Query::parse(data) {
        let again = message::Query::parse(&query.canonical);
        assert_eq!(again.map(|q| q.canonical), Some(query.canonical));
    }
    if let Some((len, rest)) = data.split_first()
        && let Some((query, answer)) = rest.split_at_checked(usize::from(*len))
        && let Some(query) = message::Query::parse(query)
        && let Some(answer) = message::Answer::parse(&query.canonical, answer)
    {
        let as_it_is = query.answer(&answer, Some(5), false);
        assert!(as_it_is.len() <= message::LARGEST);
        assert_eq!(query.answer(&answer, Some(5), true).len(), as_it_is.len());
    }
    let mut stream = data.to_vec();
    let (mut near, mut far) = (near::Near::default(), far::Far::default());
    for frame in exchange::frames(&mut stream).unwrap_or_default() {
        near.on_frame(1, "hub", frame.clone());
        far.on_frame(1, "ship", frame);
        far.on_answer(1, 1, Some(data));
    }
    far.on_page(1, "ship", data);
    near.take();
    far.take();
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_replays() {
        corpus::replay("names", super::fuzz);
    }
}
