//! Many nodes: stars with a shared forward channel, meshes, several hops in a row.
//!
//! The same relays and endpoints as between two nodes, but each has as many peers as its place asks
//! for: so a hub's table of sleeping peers, its pool of memory and its calls in turns are what is
//! tried. An event wakes those nodes that it concerns and nobody else, so that a star of 200
//! terminals costs what its packets cost.
//!
//! What is promised of two nodes is checked here as well: every byte once, in order and unchanged;
//! an end in good order behind the last byte alone; a reset only where a node died; memory, rates
//! and queues within their bounds; in the end nothing left anywhere, and silence. Beside that what
//! equal demand gets is told ([`NetReport::window`]), and how equal that is ([`is_fair`]).

mod node;
mod plan;
mod run;
mod traffic;
mod world;

pub use plan::{Demand, NetFault, NetFaultKind, NetLink, NetPlan};
pub use run::{NetReport, run_net};

/// Is Jain's index of what each got, (Σx)² ÷ (n · Σx²), at least 0.99?
pub fn is_fair(got: &[u64]) -> bool {
    let sum: u128 = got.iter().map(|n| u128::from(*n)).sum();
    let squares: u128 = got.iter().map(|n| u128::from(*n) * u128::from(*n)).sum();
    sum * sum * 100 >= squares * got.len() as u128 * 99
}

#[cfg(test)]
mod tests;
