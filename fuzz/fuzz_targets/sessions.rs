//! Two sessions, used in any order, over a bad pipe and with a hostile peer.
#![no_main]

fuzz::bounded!(link::fuzz::sessions, megabytes: 192, millis: 20000);
