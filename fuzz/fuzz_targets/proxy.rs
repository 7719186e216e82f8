//! What a client says to the explicit proxy.
#![no_main]

fuzz::bounded!(bentpipe::proxy_proto::fuzz, megabytes: 8, millis: 2000);
