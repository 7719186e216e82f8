//! What the web's push and deltas read of servers and peers.
#![no_main]

fuzz::bounded!(bentpipe_web::push::fuzz, megabytes: 64, millis: 2000);
