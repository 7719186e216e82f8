//! The repair code's two ends over any losses, and with a hostile peer.
#![no_main]

fuzz::bounded!(link::fuzz::repair, megabytes: 64, millis: 20000);
