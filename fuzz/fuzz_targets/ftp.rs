//! What a host and a server say in an FTP session, and what a stream between the two halves is for.
#![no_main]

fuzz::bounded!(ftp::fuzz, megabytes: 2, millis: 2000);
