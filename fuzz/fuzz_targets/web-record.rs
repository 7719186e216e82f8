//! What the web's cache reads of its files.
#![no_main]

fuzz::bounded!(bentpipe_web::cache::record::fuzz, megabytes: 16, millis: 2000);
