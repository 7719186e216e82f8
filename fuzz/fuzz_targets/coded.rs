//! One direction of a coded stream.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| squeeze::fuzz::stream(data));
