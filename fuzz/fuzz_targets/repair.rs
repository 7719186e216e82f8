//! The repair code's two ends over any losses, and with a hostile peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| link::fuzz::repair(data));
