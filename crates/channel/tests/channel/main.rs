//! A channel as its users see it.

mod behaviour;
mod properties;
mod statistics;
