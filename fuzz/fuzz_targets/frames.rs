//! The frames of a packet.
#![no_main]

fuzz::bounded!(link::fuzz::frames, megabytes: 8, millis: 2000);
