//! Two gateways that deduplicate, and all that hosts, the link, disks and a far gateway that says
//! what it likes can do to that.
#![no_main]

fuzz::bounded!(relay::fuzz_dedup, megabytes: 192, millis: 20000);
