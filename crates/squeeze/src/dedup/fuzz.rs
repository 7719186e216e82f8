//! What the fuzzers call; see `fuzz/`.

use std::sync::Arc;

use super::wire::MAX_RANGES;
use super::{
    Dedup, ItemDecoder, Keys, Limits, Loaded, MAX_INDEX, Op, Recovery, Shown, Store, Written,
};

fn limits() -> Limits {
    Limits { memory: 64 * 1024, disk: 1 << 20, sources: 1 << 16, assembling: 1 << 16, chunks: 500 }
}

fn keys() -> Arc<Keys> {
    Arc::new(Keys::new(&[7; 32]))
}

/// Files that take everything, or nothing.
fn serve(dedup: &mut Dedup, works: bool) {
    while let Some(op) = dedup.receiver.poll_op() {
        match op {
            Op::Append { segment, data, index } => {
                assert!(index.len() <= MAX_INDEX && !data.is_empty());
                let failed = if data.len() % 2 == 0 { Written::Failed } else { Written::Full };
                dedup.receiver.appended(segment, if works { Written::All } else { failed });
            }
            Op::Load { number, segment, len, .. } => {
                let content = vec![0; len as usize];
                let failed = if len % 2 == 0 { Loaded::Failed } else { Loaded::Short };
                let loaded = if works { Loaded::Content(&content) } else { failed };
                dedup.receiver.loaded(number, segment, loaded);
            }
            Op::Remove { .. } | Op::Quarantine { .. } => {}
        }
    }
}

/// What a peer may send: a direction's items to two streams, and messages. Nothing panics,
/// and what is kept is bounded.
///
/// The input is a sequence of pieces, each after its length (2 bytes) and its kind: items
/// for a stream, a message, a host that takes, files that work or not, a new session, a chunk
/// that streams mean by its number, or do not.
pub fn peer(mut bytes: &[u8]) {
    let limits = limits();
    let store = Store::new(keys(), limits.memory, limits.disk, 9);
    let mut dedup = Dedup::new(keys(), store, &limits);
    let mut streams =
        [(ItemDecoder::default(), Vec::new(), true), (ItemDecoder::default(), Vec::new(), true)];
    while let [kind, high, low, rest @ ..] = bytes {
        let n = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (piece, rest) = rest.split_at(n);
        bytes = rest;
        match kind % 6 {
            _ if *kind >= 240 => ask(&mut dedup, n),
            0 | 1 => {
                let key = kind % 2;
                let (decoder, input, alive) = &mut streams[usize::from(key)];
                input.extend_from_slice(piece);
                *alive = *alive && take(decoder, &mut dedup, u64::from(key), input, 1 << 20);
            }
            2 => dedup.handle_message(piece),
            3 => {
                let mut message = Vec::new();
                while dedup.poll_message(n % 2 == 0, &mut message) {
                    assert!(message.len() <= 40_000 + 20 * MAX_RANGES);
                    message.clear();
                }
                while dedup.receiver.poll_ready().is_some() {}
            }
            4 => {
                serve(&mut dedup, n % 2 == 0);
                let _ = dedup.sender.poll_journal();
            }
            _ => {
                for (key, (decoder, input, alive)) in streams.iter_mut().enumerate() {
                    decoder.close(&mut dedup.receiver, key as u64);
                    dedup.receiver.leave(key as u64 + 2);
                    (*decoder, *alive) = (ItemDecoder::default(), true);
                    input.clear();
                }
                dedup.begin_session();
            }
        }
        dedup.receiver.check();
        let (pending, news, assembling) = dedup.receiver.burden();
        assert!(pending <= 1024 && news <= 16 * 1024 + 1 && assembling <= limits.assembling);
        let (memory, disk) = dedup.receiver.store.size();
        assert!(memory <= 2 * limits.memory && disk <= limits.disk);
        assert!(dedup.sender.catalogue.len() <= limits.chunks);
    }
}

/// One of two further streams wants a chunk that is held, most of it in files, or another of
/// the same number.
fn ask(dedup: &mut Dedup, n: usize) {
    let number = 1 + (n % 8) as u64;
    let content = vec![0; 20_000 + n % 8]; // As [`serve`] reads it.
    dedup.receiver.keep(number, &content);
    let same = super::keys::tag(&dedup.sender.keys.id(&content));
    let (wanted, key) = (if n & 8 == 0 { same } else { [9; 8] }, 2 + (n >> 4 & 1) as u64);
    if let Ok(Some(found)) = dedup.receiver.get(number, wanted, key) {
        assert!(*found == content, "what is found is what was meant");
    }
}

/// The host takes up to `most` bytes; false if the stream is to be reset.
fn take(
    decoder: &mut ItemDecoder,
    dedup: &mut Dedup,
    key: u64,
    input: &mut Vec<u8>,
    most: usize,
) -> bool {
    let (mut at, mut taken) = (0, 0);
    let result = loop {
        let rest = &input[at..];
        let n = match decoder.show(&mut dedup.receiver, key, &[rest]) {
            Err(_) => break false,
            Ok(Shown::Waiting | Shown::More) => break true,
            Ok(Shown::Head(n)) => {
                assert!(n > 0, "something is done");
                at += n;
                continue;
            }
            Ok(Shown::Content(content)) => content.len(),
            Ok(Shown::AsItIs(n)) => (n as usize).min(rest.len()),
        };
        if n == 0 || taken + n > most {
            break true;
        }
        taken += n;
        at += decoder.took(&mut dedup.receiver, n);
    };
    input.drain(..at);
    result
}

/// Files as they may be found when the program starts: `bytes` is what happened to sound
/// ones, places (2 bytes) and what was written there (1 byte), or where they were cut. Nothing
/// panics, and what is found is either what was stored or is not there.
pub fn recovery(bytes: &[u8]) {
    let (keys, limits) = (keys(), limits());
    let store = Store::new(keys.clone(), limits.memory, limits.disk, 9);
    let mut dedup = Dedup::new(keys.clone(), store, &limits);
    let content = |n: u64| vec![n as u8; 300 + n as usize];
    let mut files: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut journal = Vec::new();
    dedup.sender.catalogue.holds(5, 1, &[]);
    for n in 1..=24 {
        dedup.receiver.keep(n, &content(n));
        dedup.sender.catalogue.name(1, [n as u8; 16], 0);
        dedup.sender.catalogue.news(5, &[(n, n)], &[]);
        if n % 8 > 0 {
            continue;
        }
        dedup.receiver.store.flush();
        while let Some(op) = dedup.receiver.poll_op() {
            let Op::Append { segment, data, index } = op else { continue };
            files.resize(files.len().max(segment as usize), Default::default());
            files[segment as usize - 1].0.extend(index);
            files[segment as usize - 1].1.extend(data);
            dedup.receiver.appended(segment, Written::All);
        }
        if n % 16 == 0 {
            dedup.receiver.store.close_segment();
        }
        if let Some(written) = dedup.sender.poll_journal() {
            if written.replaces {
                journal.clear();
            }
            journal.extend(written.into_bytes());
        }
    }
    for change in bytes.chunks_exact(4) {
        let files = files.iter_mut().flat_map(|(index, data)| [index, data]);
        let mut files: Vec<&mut Vec<u8>> = files.chain([&mut journal]).collect();
        let n = usize::from(change[0] & 0x7f) % files.len();
        let at = usize::from(u16::from_be_bytes([change[1], change[2]]));
        match files[n].get_mut(at) {
            Some(_) if change[0] & 0x80 > 0 => files[n].truncate(at),
            Some(byte) => *byte = change[3],
            None => files[n].extend(std::iter::repeat_n(change[3], at % 100)),
        }
    }
    let mut recovery = Recovery::new(keys.clone(), limits.memory, limits.disk);
    for (n, (index, data)) in files.iter().enumerate() {
        recovery.segment(n as u64 + 1, index, data.len() as u64);
    }
    let mut dedup = Dedup::new(keys, recovery.finish(77), &limits);
    dedup.sender.load_journal(&journal);
    for n in 1..=24 {
        let tag = super::keys::tag(&dedup.sender.keys.id(&content(n)));
        for _ in 0..2 {
            if let Ok(Some(found)) = dedup.receiver.get(n, tag, 1) {
                assert_eq!(*found, content(n), "what is found is what was stored");
            }
            while let Some(op) = dedup.receiver.poll_op() {
                let Op::Load { number, segment, offset, len } = op else { continue };
                let (from, to) = (offset as usize, offset as usize + len as usize);
                let content = files[segment as usize - 1].1.get(from..to);
                let loaded = content.map_or(Loaded::Short, Loaded::Content);
                dedup.receiver.loaded(number, segment, loaded);
            }
        }
    }
    dedup.receiver.leave(1);
    serve(&mut dedup, true);
}

#[cfg(test)]
mod tests {
    use corpus::replay;

    #[test]
    fn the_corpora_of_deduplication_replay() {
        // L-DD-10
        replay("dedup", super::peer);
        replay("chunk-log", super::recovery);
    }

    /// Random inputs, most of them nearly sound.
    #[test]
    fn nothing_that_a_peer_sends_or_a_file_holds_panics() {
        let mut rng = units::Rng::new(11);
        for _ in 0..3000 {
            let mut input = Vec::new();
            for _ in 0..rng.below(30) {
                let mut piece = Vec::new();
                for _ in 0..rng.below(6) {
                    let byte = |rng: &mut units::Rng| [0, 1, 2, 5, 66, 255][rng.below(6) as usize];
                    piece.extend((0..rng.below(40)).map(|_| byte(&mut rng)));
                    let run = rng.below(200) as usize;
                    piece.extend(std::iter::repeat_n(rng.below(256) as u8, run));
                }
                input.push(match rng.below(3) {
                    0 => 240 + rng.below(16) as u8,
                    _ => rng.below(256) as u8,
                });
                input.extend((piece.len() as u16).to_be_bytes());
                input.extend(piece);
            }
            super::peer(&input);
            let changes: Vec<u8> = (0..rng.below(5) * 4)
                .map(|n| match n % 4 {
                    1 => rng.below(12) as u8,
                    _ => rng.below(256) as u8,
                })
                .collect();
            super::recovery(&changes);
        }
    }
}
