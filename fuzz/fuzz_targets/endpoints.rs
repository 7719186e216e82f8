//! Two endpoints and their handshakes over a bad and hostile pipe.
#![no_main]

fuzz::bounded!(link::fuzz::endpoints, megabytes: 128, millis: 20000);
