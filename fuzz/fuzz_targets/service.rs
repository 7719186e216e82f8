//! What a service says to its gateway, and a gateway to its service.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| service::packet::fuzz(data));
