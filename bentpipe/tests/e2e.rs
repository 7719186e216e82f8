//! The gateways as their hosts see them: real programs, real sockets, real clients,
//! around an emulated satellite link. Needs root, for it builds networks of namespaces.
//!
//! The machine may be busy, so nothing is timed tightly here. Measured figures are
//! printed (`--nocapture`). What takes minutes is ignored by default:
//! `cargo test --test e2e -- --ignored`.

#[path = "e2e/accelerators.rs"]
mod accelerators;
#[path = "e2e/block.rs"]
mod block;
#[path = "e2e/browser.rs"]
mod browser;
#[path = "e2e/carried.rs"]
mod carried;
#[path = "e2e/classes.rs"]
mod classes;
#[path = "e2e/clients.rs"]
mod clients;
#[path = "e2e/compression.rs"]
mod compression;
#[path = "e2e/cut_off.rs"]
mod cut_off;
#[path = "e2e/dedup.rs"]
mod dedup;
#[path = "e2e/documents.rs"]
mod documents;
#[path = "e2e/failure.rs"]
mod failure;
#[path = "e2e/faults.rs"]
mod faults;
#[path = "e2e/files.rs"]
mod files;
#[path = "e2e/ftp.rs"]
mod ftp;
#[path = "e2e/gateway.rs"]
mod gateway;
#[path = "e2e/handshake.rs"]
mod handshake;
#[path = "e2e/harness.rs"]
mod harness;
#[path = "e2e/hostile.rs"]
mod hostile;
#[path = "e2e/hostile_peer.rs"]
mod hostile_peer;
#[path = "e2e/line.rs"]
mod line;
#[path = "e2e/line_lost.rs"]
mod line_lost;
#[path = "e2e/line_rules.rs"]
mod line_rules;
#[path = "e2e/many.rs"]
mod many;
#[path = "e2e/names.rs"]
mod names;
#[path = "e2e/networkd.rs"]
mod networkd;
#[path = "e2e/one_sided.rs"]
mod one_sided;
#[path = "e2e/opening.rs"]
mod opening;
#[path = "e2e/own.rs"]
mod own;
#[path = "e2e/own_names.rs"]
mod own_names;
#[path = "e2e/packets.rs"]
mod packets;
#[path = "e2e/path.rs"]
mod path;
#[path = "e2e/paths.rs"]
mod paths;
#[path = "e2e/policy.rs"]
mod policy;
#[path = "e2e/ports.rs"]
mod ports;
#[path = "e2e/prices.rs"]
mod prices;
#[path = "e2e/proxy.rs"]
mod proxy;
#[path = "e2e/raw_peer.rs"]
mod raw_peer;
#[path = "e2e/readme.rs"]
mod readme;
#[path = "e2e/refusals.rs"]
mod refusals;
#[path = "e2e/reload.rs"]
mod reload;
#[path = "e2e/rights.rs"]
mod rights;
#[path = "e2e/self_test.rs"]
mod self_test;
#[path = "e2e/semantics.rs"]
mod semantics;
#[path = "e2e/service.rs"]
mod service;
#[path = "e2e/shards.rs"]
mod shards;
#[path = "e2e/tcp.rs"]
mod tcp;
#[path = "e2e/telephones.rs"]
mod telephones;
#[path = "e2e/two_hops.rs"]
mod two_hops;
#[path = "e2e/watching.rs"]
mod watching;
#[path = "e2e/web.rs"]
mod web;
#[path = "e2e/web_again.rs"]
mod web_again;
#[path = "e2e/web_cache.rs"]
mod web_cache;
#[path = "e2e/web_encoded.rs"]
mod web_encoded;
#[path = "e2e/web_faults.rs"]
mod web_faults;
#[path = "e2e/web_hub.rs"]
mod web_hub;
#[path = "e2e/web_inspect.rs"]
mod web_inspect;
#[path = "e2e/web_load.rs"]
mod web_load;
#[path = "e2e/web_names.rs"]
mod web_names;
#[path = "e2e/web_push.rs"]
mod web_push;
