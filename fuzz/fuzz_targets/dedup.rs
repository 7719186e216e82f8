//! What a peer sends to a link's deduplication: items of streams, and messages.
#![no_main]

fuzz::bounded!(squeeze::dedup::fuzz::peer, megabytes: 128, millis: 20000);
