//! Two endpoints and their handshakes over a bad and hostile pipe.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| link::fuzz::endpoints(data));
