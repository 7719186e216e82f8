//! Inspection of HTTPS, for fleets that own their devices: what is opened, and with which
//! certificates (docs/web.md).
//!
//! A host's first bytes say which name it wants ([`hello`]). Names on a list are never opened
//! ([`bypass`]), nor those that a client has just refused to have opened ([`refused`]). For all
//! others the terminal shows a certificate that the operator's own authority signs on the spot
//! ([`certificate`]), and the hub verifies the server's.

pub mod bypass;
pub mod certificate;
pub mod hello;
pub mod refused;
