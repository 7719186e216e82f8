//! Two gateways that deduplicate, and all that hosts, the link, disks and a far gateway that says
//! what it likes can do to that.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| relay::fuzz_dedup(data));
