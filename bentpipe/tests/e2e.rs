//! The gateways as their hosts see them: real programs, real sockets, real clients,
//! around an emulated satellite link. Needs root, for it builds networks of namespaces;
//! without root every test says that it was skipped.
//!
//! The machine may be busy, so nothing is timed tightly here. Measured figures are
//! printed (`--nocapture`). What takes minutes is ignored by default:
//! `cargo test --test e2e -- --ignored`.

#[path = "e2e/gateway.rs"]
mod gateway;
#[path = "e2e/harness.rs"]
mod harness;
#[path = "e2e/semantics.rs"]
mod semantics;
#[path = "e2e/tcp.rs"]
mod tcp;
