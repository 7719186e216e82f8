//! DNS messages, and what the two halves of the service `names` say to each other.
#![no_main]

fuzz::bounded!(names::fuzz, megabytes: 8, millis: 2000);
