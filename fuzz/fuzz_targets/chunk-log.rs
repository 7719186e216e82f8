//! Files of a chunk store as they may be found after a crash or on a bad disk.
#![no_main]

fuzz::bounded!(squeeze::dedup::fuzz::recovery, megabytes: 64, millis: 5000);
