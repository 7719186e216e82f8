//! IP packets that hosts send, as the relay reads and changes them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| relay::packet::fuzz(data));
