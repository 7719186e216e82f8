//! What a peer sends to a link's deduplication: items of streams, and messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| squeeze::dedup::fuzz::peer(data));
