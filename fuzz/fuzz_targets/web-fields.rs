//! What the two ends of the web exchange say to each other in fields.
#![no_main]

fuzz::bounded!(bentpipe_web::fuzzed::exchange, megabytes: 16, millis: 2000);
