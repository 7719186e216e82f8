//! Requests on the admin socket.
#![no_main]

fuzz::bounded!(bentpipe::admin::fuzz, megabytes: 8, millis: 2000);
