//! What a service says to its gateway, and a gateway to its service.
#![no_main]

fuzz::bounded!(service::packet::fuzz, megabytes: 8, millis: 2000);
