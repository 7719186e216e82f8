//! Whole nodes in virtual time: what transfers, losses, rates, paths and faults come to.

mod compression;
mod dedup;
mod endure;
mod grid;
mod hashes;
mod losses;
mod paths;
mod rate;
mod repair;
