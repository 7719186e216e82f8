//! Compressed headers over a bad link, and forged ones.
#![no_main]

fuzz::bounded!(squeeze::headers::fuzz::headers, megabytes: 8, millis: 2000);
