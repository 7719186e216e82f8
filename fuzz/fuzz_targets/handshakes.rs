//! What an authenticated peer says in handshakes, and in the sessions that come of them.
#![no_main]

fuzz::bounded!(link::fuzz::handshakes, megabytes: 64, millis: 10000);
