//! Files of a chunk store as they may be found after a crash or on a bad disk.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| squeeze::dedup::fuzz::recovery(data));
