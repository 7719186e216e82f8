//! Two sessions, used in any order, over a bad pipe and with a hostile peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| link::fuzz::sessions(data));
