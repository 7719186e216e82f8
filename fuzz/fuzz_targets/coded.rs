//! One direction of a compressed stream.
#![no_main]

fuzz::bounded!(squeeze::fuzz::stream, megabytes: 64, millis: 5000);
