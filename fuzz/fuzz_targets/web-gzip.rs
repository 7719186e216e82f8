//! What the web's hub and terminal read in gzip.
#![no_main]

fuzz::bounded!(bentpipe_web::fuzzed::gzip, megabytes: 16, millis: 2000);
