//! The gateways as their hosts see them: real programs, real sockets, real clients,
//! around an emulated satellite link. Needs root, for it builds networks of namespaces.
//!
//! The machine may be busy, so nothing is timed tightly here. Measured figures are
//! printed (`--nocapture`). What takes minutes is ignored by default:
//! `cargo test --test e2e -- --ignored`.

mod accelerators;
mod block;
mod browser;
mod carried;
mod classes;
mod clients;
mod compression;
mod cut_off;
mod dedup;
mod documents;
mod failure;
mod faults;
mod files;
mod ftp;
mod gateway;
mod handshake;
mod harness;
mod hostile;
mod hostile_peer;
mod line;
mod line_by_hand;
mod line_lost;
mod line_rules;
mod line_several;
mod many;
mod names;
mod networkd;
mod one_sided;
mod opening;
mod own;
mod own_names;
mod packets;
mod path;
mod paths;
mod policy;
mod ports;
mod prices;
mod proxy;
mod raw_peer;
mod readme;
mod refusals;
mod reload;
mod rights;
mod self_test;
mod semantics;
mod service;
mod shards;
mod tcp;
mod telephones;
mod two_hops;
mod watching;
mod web;
mod web_again;
mod web_cache;
mod web_encoded;
mod web_faults;
mod web_hub;
mod web_inspect;
mod web_load;
mod web_logins;
mod web_names;
mod web_proxied;
mod web_push;
