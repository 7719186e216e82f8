//! Compressed headers over a bad link, and forged ones.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| squeeze::headers::fuzz::headers(data));
