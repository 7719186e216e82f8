//! What a client says to the explicit proxy.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bentpipe::proxy_proto::fuzz(data));
