//! The program and its parts as their users meet them; networks of several nodes are e2e's. The
//! house's own rules are here too.

mod admin;
mod chunk_files;
mod cli;
mod dependencies;
mod doctor;
mod peers;
mod plan;
mod proxy;
mod tidy;
mod tune;
