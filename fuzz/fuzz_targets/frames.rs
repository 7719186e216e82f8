//! The frames of a packet.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| link::fuzz::frames(data));
