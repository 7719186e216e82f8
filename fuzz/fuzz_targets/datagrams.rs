//! Unsplit packets, cut and joined.
#![no_main]

fuzz::bounded!(link::fuzz::datagrams, megabytes: 8, millis: 2000);
