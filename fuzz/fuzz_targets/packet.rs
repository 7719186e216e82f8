//! IP packets that hosts send, as the relay reads and changes them.
#![no_main]

fuzz::bounded!(relay::packet::fuzz, megabytes: 8, millis: 2000);
