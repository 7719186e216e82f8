//! Services of this project between two gateways, set up as their pages say.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use bentpipe::admin::{ServiceState, ServiceStatus};

use crate::documents::{put, toml};
use crate::gateway::{Gateway, PROGRAM, Settings};
use crate::harness::{Scratch, install, wait_for};

/// The program of a service, built as this test was, in a directory of its own.
pub fn program(name: &str, dir: &Scratch) -> PathBuf {
    // One build at a time, or they wait for each other with a message for each.
    static BUILDS: Mutex<()> = Mutex::new(());
    let built = {
        let _one = BUILDS.lock();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "-p", name]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success(), "{name} is built");
        Path::new(PROGRAM).with_file_name(name)
    };
    let at = dir.sub("bin").join(name);
    install(built, &at);
    at
}

/// Puts the first example of the service's page into the file: what is of the node, and what is
/// of the peer.
pub fn serve(settings: &mut Settings, page: &str, name: &str, at: &Path) {
    let text = put(toml(page, ""), &format!("/usr/bin/{name}"), &at.display().to_string());
    serve_text(settings, &text);
}

/// Puts this text into the file: what is of the node, and what is of the peer.
pub fn serve_text(settings: &mut Settings, text: &str) {
    let (node, rule) = text.split_once("[[peer.rule]]").expect("a rule");
    settings.node += &format!("\n{node}");
    settings.peer += &format!("\n[[peer.rule]]{rule}");
}

/// What is told of the gateway's only service.
pub fn service(gateway: &Gateway) -> ServiceStatus {
    gateway.status().services.first().cloned().expect("it has a service")
}

pub fn wait_until_running(gateway: &Gateway) {
    wait_for("a service that runs", || match service(gateway) {
        it if it.state == ServiceState::Running => Ok(()),
        it => Err(format!("{it:?}\n{}", gateway.log())),
    });
}
