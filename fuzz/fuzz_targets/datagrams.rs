//! Unsplit packets, cut and joined.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| link::fuzz::datagrams(data));
