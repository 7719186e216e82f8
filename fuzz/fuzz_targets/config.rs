//! Texts that may be configuration files.
#![no_main]

fuzz::bounded!(bentpipe::config::fuzz, megabytes: 8, millis: 2000);
